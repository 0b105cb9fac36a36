"""What the explorer is made of, apart from its page: links, limits of processes, who may ask, and lines that move."""

from __future__ import annotations

import asyncio
import base64
import operator
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from interrupting import HEEDED

from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.workbench import jobs
from shardwright.workbench.examine import ExamineSettings
from shardwright.workbench.explorer import first_text, serve
from shardwright.workbench.guard import Guard
from shardwright.workbench.links import from_link, to_link
from shardwright.workbench.page import same_lines
from shardwright.workbench.preloaded import EXAMINED
from shardwright.workbench.worker import SupersededError, Worker

# ---------------------------------------------------------------- links


@pytest.mark.parametrize("text", ["", "func f(a: B) -> B { return a }\n", "# é 𝄞\n" * 500])
def test_a_link_holds_the_text_and_the_controls(text: str) -> None:
    controls = {"mesh": "x=2", "chip": "h100"}
    assert from_link(to_link(text, controls)) == (text, controls)


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    "link",
    ["", "%%%", "aGVsbG8", to_link("x", {})[:-3], packed(b"[1, 2]"), packed(b"{}"), packed(b"[" * 100_000),
     packed(b'["' + b"x" * 10_000_000 + b'", {}]'), packed(b'["' + b"x" * 200_000 + b'", {}]'), packed(b"\xff")],
)  # fmt: skip
def test_a_damaged_link_is_said_to_be_one(link: str) -> None:
    with pytest.raises(DiagnosticError, match="the link does not hold a program"):
        from_link(link)


# ---------------------------------------------------------------- processes


# What the processes are asked to do is Python's own: a new process has no module to import within its time.


def test_a_worker_has_limits_and_goes_on_after_them() -> None:
    async def asked() -> None:
        worker = Worker(seconds=3.0, memory_bytes=2 << 30)
        with pytest.raises(DiagnosticError, match=r"this takes more than 3 seconds"):
            await worker.ask(time.sleep, 60.0)
        with pytest.raises(DiagnosticError, match=r"more than 2 GiB of memory"):
            await worker.ask(bytearray, 4 << 30)
        with pytest.raises(DiagnosticError, match=r"or the process died"):
            await worker.ask(os._exit, 3)
        with pytest.raises(KeyError, match="mine"):
            await worker.ask(operator.getitem, {}, "mine")
        assert await worker.ask(operator.add, 1, 2) == 3
        worker.close()

    asyncio.run(asked())


def loaded_of(*names: str) -> list[bool]:
    return [name in sys.modules for name in names]


def test_workers_begin_with_what_they_need() -> None:
    async def asked() -> list[bool]:
        worker = Worker()
        try:
            return await worker.ask(loaded_of, "numpy", "shardwright.passes.compiling.choosing")
        finally:
            worker.close()

    assert asyncio.run(asked()) == [True, True]
    assert EXAMINED.explicit is not None


ENDED = """
import asyncio, os, signal, time
from shardwright.workbench.worker import Worker

async def asked():
    worker = Worker()
    print(await worker.ask(os.getpid), await worker.ask(os.getppid), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    asyncio.run(asked())
"""


def test_workers_end_with_the_process_that_began_them() -> None:
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, check=False)
    (worker, copied), end = map(int, done.stdout.split()), time.monotonic() + 60
    assert done.returncode == -9
    while any(Path(f"/proc/{pid}").exists() for pid in (worker, copied)):
        assert time.monotonic() < end
        time.sleep(0.05)


LOADING = """
import time
from shardwright.workbench.worker import start_preloading

if __name__ == "__main__":
    start_preloading()
    print("loading", flush=True)
    try:
        time.sleep(60)
        print("no interrupt came")
    except KeyboardInterrupt:
        pass
"""


def test_an_interrupt_from_the_terminal_is_for_the_process_that_began_it() -> None:
    """It goes to all processes of the terminal, also to the one that is still loading."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HEEDED + LOADING], start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed, errors) == (0, "", "")


def test_a_new_question_stops_the_one_before() -> None:
    async def asked() -> None:
        worker = Worker(seconds=60.0)
        assert await worker.ask(operator.add, 1, 2) == 3
        began = time.monotonic()
        first = asyncio.create_task(worker.ask(time.sleep, 50.0))
        await asyncio.sleep(0.2)
        assert await worker.ask(operator.add, 3, 4) == 7
        with pytest.raises(SupersededError):
            await first
        assert time.monotonic() - began < 20
        worker.close()

    asyncio.run(asked())


# ---------------------------------------------------------------- who may ask


def answer(scope: dict[str, Any]) -> list[dict[str, Any]]:
    """What the guard lets out, of an application that answers everything."""
    sent: list[dict[str, Any]] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        if _scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        else:
            await send({"type": "websocket.accept"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {}

    asyncio.run(Guard(app, 8080)(scope, receive, send))
    return sent


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080"])
@pytest.mark.parametrize("origin", [None, "http://127.0.0.1:8080", "http://localhost:8080"])
def test_pages_of_this_machine_may_ask(host: str, origin: str | None) -> None:
    headers = [(b"host", host.encode()), *([(b"origin", origin.encode())] if origin else [])]
    (started,) = answer({"type": "http", "headers": headers})
    assert started["status"] == 200
    assert "connect-src 'self'" in dict(started["headers"])[b"content-security-policy"].decode()
    assert answer({"type": "websocket", "headers": headers}) == [{"type": "websocket.accept"}]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"host", b"evil.example:8080")],
        [(b"host", b"127.0.0.1:8081")],
        [(b"host", b"127.0.0.1")],
        [(b"host", b"127.0.0.1:8080"), (b"host", b"evil.example")],
        [(b"host", b"127.0.0.1:8080"), (b"origin", b"http://evil.example")],
        [(b"host", b"127.0.0.1:8080"), (b"origin", b"null")],
        [(b"host", b"127.0.0.1:8080"), (b"origin", b"https://127.0.0.1:8080")],
    ],
)
def test_others_may_not(headers: list[tuple[bytes, bytes]]) -> None:
    assert answer({"type": "http", "headers": headers})[0]["status"] == 403
    assert answer({"type": "websocket", "headers": headers}) == [{"type": "websocket.close", "code": 1008}]


# ---------------------------------------------------------------- the text


def test_no_file_is_read_for_a_chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = "own.toml"
    (tmp_path / chip).write_text("secret = 1\n")
    monkeypatch.chdir(tmp_path)
    text = f"chip {chip}\nmesh x=2\ndim B=4\n\nfunc f(a: f32 B_x) -> f32 B_x {{\n  return a\n}}\n"
    (fault,) = jobs.faults(Source("a", text), ExamineSettings(own_chips=False))
    assert fault.message == f"there is no chip {chip} here"
    assert "secret" not in str(fault)
    assert "lacks the key" in str(jobs.faults(Source("a", text), ExamineSettings()))


@pytest.mark.parametrize("seed", range(20))
def test_lines_that_stay_are_found_again(seed: int) -> None:
    generator = random.Random(seed)
    old = [f"line {i}" for i in range(12)]
    start, stop = sorted(generator.sample(range(13), 2))
    new = [*old[:start], *(f"new {i}" for i in range(generator.randint(0, 4))), *old[stop:]]
    place = same_lines("\n".join(old), "\n".join(new))
    for number, line in enumerate(old, start=1):
        there = place(number)
        assert (new[there - 1] == line) if there else (line not in new)


def test_models_begin_with_their_sizes() -> None:
    text = jobs.begun(jobs.StartingModel("llama-3-8b", "megatron", "x=4", 8, 128, 1024))
    assert "mesh x=4\n" in text
    assert jobs.faults(Source("llama", text), ExamineSettings()) == ()
    with pytest.raises(DiagnosticError, match="x:4 is not a size"):
        jobs.begun(jobs.StartingModel("llama-3-8b", "megatron", "x:4", 8, 128, 1024))


def test_every_example_is_there_and_nothing_else_is_read() -> None:
    assert len(jobs.example_names()) == 14
    assert all(jobs.example(name) for name in jobs.example_names())
    assert jobs.example("../pyproject") == ""


# ---------------------------------------------------------------- the command


def test_a_taken_port_is_said_to_be_taken() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DiagnosticError, match=rf"port {port} cannot be used: address already in use"):
            serve("a", "", port, show=False)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path, shardwright: Any) -> None:
    with pytest.raises(DiagnosticError, match="there is no such file"):
        first_text(str(tmp_path / "none.shard"))
    assert shardwright("explore", tmp_path / "none.shard", "--no-browser").status == 1
    assert "--port 70000 is not a port" in shardwright("explore", "--port", "70000").err


def eventual_status(address: str) -> int:
    """The status of a fault that a server answers with, once it listens."""
    for _ in range(600):
        try:
            urlopen(address, timeout=60)
        except HTTPError as error:
            return error.code
        except URLError:
            time.sleep(0.1)
    raise AssertionError("nothing was answered for a minute")


def test_addresses_that_are_not_known_do_not_steer_the_terminal() -> None:
    command = [sys.executable, "-m", "shardwright", "explore", "--no-browser"]
    # NiceGUI would take itself to be under test.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as explorer:
        assert explorer.stdout is not None
        try:
            address = explorer.stdout.readline().strip()
            assert eventual_status(f"{address}%1b[31mred%C2%9B%0Ablue") == 404
        finally:
            explorer.terminate()
        _, said = explorer.communicate(timeout=60)
    assert f"{address}\\x1b[31mred\\x9b\\nblue not found\n" in said
