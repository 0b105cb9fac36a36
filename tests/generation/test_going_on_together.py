"""`generate` of two processes, ended and started again: the first has the output, and all go on from it."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interrupting import await_output
from nursery import JAX, Process, start
from own_devices import with_devices

PROMPTS = [{"tokens": [3 + i % 90, 5, 7 + i % 11][: 1 + i % 3], "id": i} for i in range(10)]
HOW = ("--mesh", "x=2", "--batch", "2", "--chunk", "4", "--max-new-tokens", "6", "--ignore-eos", "--temperature", "0.8")


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Run:
    """A command over two processes."""

    words: list[str]
    out: Path

    def started(self, *more: str) -> list[Process]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            at = f"127.0.0.1:{server.getsockname()[1]}"
        together = [*self.words, *more, "--json", "-o", str(self.out), "--processes", "2", "--coordinator", at]
        return [
            start(JAX, "-m", "shardwright", *together, "--process-id", index, env=with_devices(1)) for index in range(2)
        ]

    def run(self, *more: str) -> list[Ended]:
        return ended(self.started(*more))


def ended(processes: list[Process]) -> list[Ended]:
    found: list[Ended] = []
    for process in processes:
        out, err = process.communicate(timeout=200)
        found.append(Ended(process.returncode, out, err))
    return found


@pytest.fixture
def run(checkpoint: Callable[..., Path], tmp_path: Path) -> Run:
    given = tmp_path / "in.jsonl"
    given.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return Run(["generate", str(checkpoint("llama-grouped")), "--prompts", str(given), *HOW], tmp_path / "out.jsonl")


def by_one_process(run: Run, shardwright: Callable[..., Any]) -> bytes:
    whole = run.out.with_name("whole.jsonl")
    made = shardwright(*run.words, "-o", whole)
    assert made.status == 0, made.err
    return whole.read_bytes()


def test_going_on_from_what_one_process_has_answered(run: Run, shardwright: Callable[..., Any]) -> None:
    """The texts that the first process finds in the output are left out by both, whatever their order."""
    whole = by_one_process(run, shardwright)
    lines = whole.splitlines(keepends=True)
    run.out.write_bytes(lines[6] + lines[1] + lines[0] + b'{"tokens": [3], "id"')
    shutil.copy(run.out.with_name("whole.jsonl.settings.json"), f"{run.out}.settings.json")
    before = run.out.read_bytes()
    first, second = run.run("--seed", "4")
    assert (first.status, second.status) == (1, 1)
    assert "the answers in this file were made with other settings: --seed was 0, and is 4 now" in first.err
    assert "error: process 0 of 2 has failed: the answers in this file were made with other settings" in second.err
    assert run.out.read_bytes() == before
    first, second = run.run()
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert json.loads(first.out)["resumed"] == 3
    assert f"{run.out} answers 3 of 10 texts; going on\n" in first.err
    assert (second.out, str(run.out) in second.err) == ("", False)
    assert run.out.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.parametrize("index", range(2))
def test_ended_by_signals(index: int, run: Run, shardwright: Callable[..., Any]) -> None:
    """One of the processes by SIGINT, SIGTERM and SIGKILL one after the other: the other ends, too; then both go on."""
    whole = by_one_process(run, shardwright)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        before = run.out.stat().st_size if run.out.exists() else 0
        processes = run.started()
        await_output(run.out, before + 1, *processes)
        processes[index].send_signal(number)
        found = ended(processes)
        other = found[1 - index]
        assert found[index].status == (130 if number is signal.SIGINT else -number), found[index].err
        assert "Traceback" not in found[index].err
        how = "was interrupted" if number is signal.SIGINT else "has ended"
        assert other.status == 1
        assert f"error: process {index} of 2 {how}, and this is process {1 - index} [lost-process]\n" in other.err
        kept = f"interrupted: {run.out} has the answers so far, and the same command goes on from there\n"
        assert (kept in found[index].err) == (number is signal.SIGINT and index == 0)
    answered = run.out.read_bytes().count(b"\n")
    assert 0 < answered < len(PROMPTS)
    first, second = run.run()
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert json.loads(first.out)["resumed"] == answered
    assert run.out.read_bytes() == whole
