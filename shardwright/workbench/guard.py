"""Who may talk to the explorer: pages that it served itself, on this machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self'; form-action 'none'; "
    "frame-ancestors 'self'; base-uri 'self'"
)
"""The page calls no other machine. Its framework compiles templates in the browser, hence the unsafe ones."""


class Guard:
    """ASGI middleware: refuses other host names, as a rebound name of a foreign site would be, and other origins."""

    def __init__(self, app: App, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Hands on what may come, with the policy on what goes."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        if len(hosts) != 1 or hosts[0] not in self.hosts or not set(origins) <= self.origins:
            await _refuse(scope, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(b"content-security-policy", POLICY.encode()), (b"x-content-type-options", b"nosniff")]
                message["headers"] = [*message.get("headers", ()), *added, (b"referrer-policy", b"no-referrer")]
            await send(message)

        await self.app(scope, receive, guarded)


async def _refuse(scope: MutableMapping[str, Any], send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"this page is for the browser of this machine alone\n"})
