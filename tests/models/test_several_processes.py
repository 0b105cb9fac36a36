"""Two processes of four devices each give what one process of eight gives, and each reads only its own part."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from models.session_worker import CHUNK, ROWS, generated
from nursery import JAX, start
from own_devices import with_devices
from safetensors.numpy import load_file

from shardwright.backends.jax.devices import arrange_devices
from shardwright.backends.jax.processes import Processes, joined, processes_of
from shardwright.compiling.compile_program import print_program
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.models.weight_map import WeightMap
from shardwright.passes.pipelines import explicit

WORKER = Path(__file__).parent / "session_worker.py"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def compiled(folder: Path) -> tuple[WeightMap, Program]:
    """Prefill and decode over a mesh of which x numbers the processes."""
    made = import_model(read_config(folder).keys, "ws2d", Mesh.of(x=2, y=4), ROWS, CHUNK, cache=16)
    return made.mapping, explicit(elaborate(parse(Source("imported", made.text))))


def expected_bytes(mapping: WeightMap, program: Program) -> dict[str, int]:
    """What a process reads that holds the chips of one x: each part of these once, in f32."""
    expected: dict[str, int] = {}
    for value in program.weights:
        kind = value.type
        parts = math.prod(program.mesh[axis] for axis in kind.split_axes if axis != "x")
        tensors = mapping.entries[value.name].tensors(mapping.sizes)
        for tensor in tensors:
            expected[tensor] = 4 * math.prod(kind.local_shape(program.mesh)) * parts // len(tensors)
    return expected


@pytest.mark.slow
def test_a_session_over_two_processes(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = checkpoint("llama-grouped")
    mapping, program = compiled(folder)
    file = tmp_path / "compiled.shard"
    file.write_text(print_program(program))
    port = free_port()
    processes = [start(JAX, WORKER, folder, file, 2, index, port, env=with_devices(4)) for index in range(2)]
    alone = generated(folder, file)
    both: list[dict[str, Any]] = []
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        both.append(json.loads(out))
    logits = np.array(alone["logits"])
    for found in both:
        assert found["tokens"] == alone["tokens"]
        assert found["pos"] == alone["pos"] == [9, 5, 8, 4]
        assert np.abs(np.array(found["logits"]) - logits).max() < 1e-5 * np.abs(logits).max()
        assert abs(found["keys"] - alone["keys"]) < 1e-4 * alone["keys"]
        assert found["read"] == expected_bytes(mapping, program)
    tensors = load_file(folder / "model.safetensors")
    assert alone["read"] == {name: array.nbytes for name, array in tensors.items()}  # each part once
    assert sum(both[0]["read"].values()) < 0.6 * sum(alone["read"].values())


def test_generate(checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    """The tokens of one process, sampled ones among them; the first process alone writes."""
    folder, at = checkpoint("llama-grouped"), f"127.0.0.1:{free_port()}"
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"tokens": [5, 17, 9], "id": "a"}\n{"tokens": [33, 8]}\n{"tokens": [7, 7, 7, 60, 12]}\n')
    words = ["generate", folder, "--mesh", "x=2,y=4", "--prompts", prompts, "--max-new-tokens", "5", "--ignore-eos"]
    words += ["--temperature", "0.8", "--seed", "3", "--batch", "4"]
    together = ["--processes", 2, "--coordinator", at, "--json", "-o", out, "--process-id"]
    processes = [start(JAX, "-m", "shardwright", *words, *together, index, env=with_devices(4)) for index in range(2)]
    alone = shardwright(*words)
    assert alone.status == 0, alone.err
    said: list[str] = []
    for process in processes:
        printed, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        said.append(printed)
    assert out.read_text() == alone.out
    assert [len(json.loads(line)["new_tokens"]) for line in alone.out.splitlines()] == [5, 5, 5]
    assert json.loads(said[0])["devices"] == 8
    assert said[1] == ""


# ---------------------------------------------------------------- processes that do not come, or are lost


LOST = """
import os, sys, time
os.environ["JAX_PLATFORMS"] = "cpu"
from shardwright.backends.jax.processes import Processes, joined
from shardwright.ir.diagnostics import fault
with joined(Processes("127.0.0.1", int(sys.argv[1]), 2, int(sys.argv[2]))):
    if sys.argv[2] == "1":
        {end}
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os._exit(9)", "process 1 of 2 has ended, and this is process 0"),
        (
            "raise fault('bad', 'tensor w is not in model.safetensors')",
            "process 1 of 2 has failed: tensor w is not in model.safetensors [bad], and this is process 0",
        ),
    ],
    ids=["ended", "failed"],
)
def test_a_process_that_is_lost(end: str, said: str, tmp_path: Path) -> None:
    script, port = tmp_path / "lost.py", free_port()
    script.write_text(LOST.format(end=end))
    waiting, other = start(JAX, script, port, 0), start(JAX, script, port, 1)
    _, err = waiting.communicate(timeout=300)
    assert waiting.returncode == 1
    assert err.splitlines()[-1] == f"127.0.0.1:{port}: error: {said} [lost-process]"
    other.communicate(timeout=300)
    assert other.returncode != 0


def refused(index: int, count: int, port: int) -> str:
    with pytest.raises(DiagnosticError) as caught, joined(Processes("127.0.0.1", port, count, index, 0.3)):
        pass
    return caught.value.render()


def test_processes_that_do_not_come() -> None:
    port = free_port()
    at = f"127.0.0.1:{port}"
    assert refused(0, 3, port) == (
        f"{at}: error: processes 1, 2 of 3 did not come within 0.3 s [absent-process]\n"
        f"note: start each with --coordinator {at} and its --process-id"
    )
    assert refused(1, 2, port) == (
        f"{at}: error: process 0 was not to be reached within 0.3 s: connection refused [no-coordinator]\n"
        f"note: start it with --coordinator {at}, and see that its port can be reached from here"
    )


def test_a_coordinator_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refused(0, 2, port) == (
            f"127.0.0.1:{port}: error: process 0 cannot listen there: address already in use [no-coordinator]\n"
            "note: give every process --coordinator HOST:PORT with an address of process 0's host and a free port"
        )


@pytest.mark.parametrize(
    ("index", "count", "what"),
    [
        (1, 3, "process 1 was told of 3 processes, and process 0 of 2"),
        (0, 2, "there are two processes 0 of 2"),
    ],
)
def test_processes_that_contradict_each_other(index: int, count: int, what: str) -> None:
    port = free_port()

    def call() -> None:
        connected = None
        while connected is None:
            try:
                connected = socket.create_connection(("127.0.0.1", port), timeout=5)
            except OSError:
                time.sleep(0.01)
        with connected:
            connected.sendall(json.dumps({"process": index, "of": count}).encode() + b"\n")
            answers.append(connected.makefile().readline())

    answers: list[str] = []
    caller = threading.Thread(target=call)
    caller.start()
    with pytest.raises(DiagnosticError) as caught, joined(Processes("127.0.0.1", port, 2, 0, 5)):
        pass
    caller.join()
    assert caught.value.diagnostics[0].message == what
    assert json.loads(answers[0]) == {"refused": what}


# ---------------------------------------------------------------- devices


@dataclass(frozen=True)
class Device:
    process_index: int
    id: int
    platform: str = "cpu"


def test_every_process_gives_as_many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a process beside each other, whatever the order in which JAX lists them."""
    listed = [Device(i % 2, i) for i in range(10)]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "devices", lambda *_: listed)
    found = arrange_devices(4).devices
    assert [(device.process_index, device.id) for device in found] == [(0, 0), (0, 2), (1, 1), (1, 3)]
    for n, counts in ((5, "5, 5"), (12, "5, 5")):
        with pytest.raises(DiagnosticError) as caught:
            arrange_devices(n)
        assert caught.value.render() == (
            f"<program>: error: the mesh needs {n} devices, the same number of each of 2 processes, and these have"
            f" {counts} [too-few-devices]\nnote: give a mesh of 10 devices (--mesh, or mesh=)"
        )


# ---------------------------------------------------------------- options


def test_one_process_needs_no_options() -> None:
    assert processes_of(environ={}) is None
    assert processes_of(count=1, index=0, environ={}) is None


def test_options_and_environment() -> None:
    environ = {"SHARDWRIGHT_PROCESSES": "4", "SHARDWRIGHT_PROCESS_ID": "3", "SHARDWRIGHT_COORDINATOR": "[::1]:80"}
    assert processes_of(environ=environ) == Processes("::1", 80, 4, 3)
    assert processes_of("host:8080", 2, 1, 5, environ) == Processes("host", 8080, 2, 1, 5.0)
    assert processes_of(count=2, index=0, environ={}) == Processes("127.0.0.1", 7621, 2, 0)


@pytest.mark.parametrize(
    ("given", "environ", "said"),
    [
        (
            (None, None, 1),
            {},
            "the number of processes is not given\n"
            "give each process --processes N and its own --process-id, from 0 to N - 1",
        ),
        (
            (None, 0, 0),
            {},
            "there cannot be 0 processes\ngive each process --processes N and its own --process-id, from 0 to N - 1",
        ),
        (
            (None, 2, None),
            {},
            "of 2 processes this one has no number\ngive each process its own --process-id, from 0 to 1",
        ),
        ((None, 2, 2), {}, "there is no process 2 of 2\ngive each process its own --process-id, from 0 to 1"),
        (
            ("here", 2, 1),
            {},
            "the coordinator 'here' is not an address\nwrite HOST:PORT, as in 127.0.0.1:7621",
        ),
        (
            (None, None, None),
            {"SHARDWRIGHT_PROCESSES": "two"},
            "SHARDWRIGHT_PROCESSES is 'two' in the environment, not a whole number",
        ),
    ],
)
def test_options_at_fault(given: tuple[str | None, int | None, int | None], environ: dict[str, str], said: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        processes_of(*given, environ=environ)
    (only,) = caught.value.diagnostics
    assert "\n".join([only.message, *(note.message for note in only.notes)]) == said
