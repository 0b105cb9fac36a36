"""The explorer's server, on this machine's loopback alone."""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.workbench import jobs
from shardwright.workbench.worker import start_preloading

if TYPE_CHECKING:
    from shardwright.ir.program import Program


def explore(program: str | Path | Program | None = None, port: int = 0, *, show: bool = True) -> None:
    """Serve the explorer on this machine's loopback until it is interrupted, with a program, the path of one, or an
    example; port 0 takes a free one. `show` opens it in the browser; its address is the first line of standard output.
    Raises a `DiagnosticError` where the file cannot be read or the port is taken."""
    from shardwright.ir.program import Program

    if isinstance(program, Program):
        serve("program.shard", repr(program), port, show=show)
    else:
        serve(*first_text(program), port, show=show)


def serve(name: str, text: str, port: int, *, show: bool) -> None:
    """Serve the explorer on this machine's loopback until it is interrupted; 0 takes a free port.

    The address is the first line of standard output. Raises a `DiagnosticError` where the port is taken.
    """
    start_preloading("shardwright.workbench.preloaded_to_draw")
    from nicegui import app, ui

    from shardwright.workbench.guard import Guard
    from shardwright.workbench.links import from_link
    from shardwright.workbench.page import Explorer, Page

    port = _free_port(port)

    @ui.page("/", title="Shardwright", response_timeout=30)
    def page(p: str = "") -> None:
        explorer = Explorer(name, text)
        if p:
            try:
                explorer.text, explorer.controls = from_link(p)
            except DiagnosticError as error:
                ui.notify(error.diagnostics[0].message, type="negative", timeout=0, close_button=True)
        made = Page(ui, explorer)
        client: Any = ui.context.client
        client.on_delete(explorer.close)
        made.wrong = ()
        client.on_connect(made.connected)

    logging.getLogger("nicegui").addFilter(_without_controls)
    middleware: Any = Guard
    app.add_middleware(middleware, port=port)
    server: Any = app
    pages: Any = ui
    server.on_startup(lambda: _announce(port))
    pages.run(
        host="127.0.0.1", port=port, title="Shardwright", dark=None, reload=False, show=show, show_welcome_message=False
    )


def _without_controls(record: logging.LogRecord) -> bool:
    """Escapes what would steer the terminal, as an address that is not known may: it is logged decoded."""
    said = record.getMessage()
    record.msg, record.args = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in said), ()
    return True


def _announce(port: int) -> None:
    sys.stdout.write(f"http://127.0.0.1:{port}/\n")
    sys.stdout.flush()


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise fault("port", f"port {wanted} cannot be used: {why}", NOWHERE, "another --port, or none") from None
        return int(probe.getsockname()[1])


def first_text(file: str | Path | None) -> tuple[str, str]:
    """The name and the text that the explorer begins with: of a file, or of an example."""
    if file is None:
        name = jobs.example_names()[0] if jobs.example_names() else "program"
        return f"{name}.shard", jobs.example(name)
    from shardwright.ir.text.parser import read_source

    source = read_source(Path(file))
    return source.name, source.text
