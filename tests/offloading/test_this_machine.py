"""Plans for the machine at hand: it is measured once, in a process of its own, and kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from interrupting import HEEDED
from offloading.quick_measuring import T4, quick_command

from shardwright.cost.hardware.chips import Machine, load_machine
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType
from shardwright.serving.offloading import this_machine as module
from shardwright.serving.offloading.measuring import file_bytes
from shardwright.serving.offloading.this_machine import MachineRequest, this_machine


class Measuring:
    """This machine with a cache folder of its own and a process that measures quickly."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.spill = folder / "spill"
        self.spill.mkdir()
        self.request = MachineRequest(DType.F32, "cpu", str(self.spill))
        self.said = ""
        self.cache(folder / "cache")
        self.does()

    def cache(self, folder: Path) -> None:
        self.patch.setenv("XDG_CACHE_HOME", str(folder))

    def does(self, what: str = "", text: str = T4) -> None:
        """Has the process that measures do this before it writes this text."""
        self.patch.setattr(module, "COMMAND", quick_command(self.folder, what, text))

    def machine(self, **changed: Any) -> Machine:
        """The machine for a request with these changes; `said` is then what was told."""
        pieces: list[str] = []
        made = this_machine(replace(self.request, **changed), pieces.append)
        self.said = "".join(pieces)
        assert list(self.spill.iterdir()) == []
        return made

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The requests to the processes that measured."""
        log = self.folder / "measured.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def kept(self) -> list[Path]:
        return sorted((self.folder / "cache" / "shardwright" / "machines").glob("*.toml"))


@pytest.fixture
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measuring:
    return Measuring(tmp_path, monkeypatch)


def test_it_is_measured_once_and_kept(measuring: Measuring) -> None:
    assert measuring.machine() == load_machine("t4")
    (kept,) = measuring.kept
    begin, _, rest = measuring.said.partition(" ... ")
    seconds, _, where = rest.partition(" s, ")
    assert begin == "no --machine: measuring this machine once"
    assert float(seconds) < 60
    assert where == f"kept in {kept}\n"
    assert "# dtype: f32\n" in kept.read_text()
    assert measuring.machine() == load_machine("t4")
    assert measuring.said == ""
    assert len(measuring.asked) == 1


@pytest.mark.parametrize(
    "changed", [{"dtype": DType.BF16}, {"readers": 2}, {"threads": 1000}, {"disk_bytes": 9 << 20}], ids=str
)
def test_what_rates_depend_on_is_measured_anew(measuring: Measuring, changed: Mapping[str, Any]) -> None:
    for _ in range(2):
        measuring.machine()
        measuring.machine(**changed)
    first, second = measuring.asked
    told = {name: str(value) if name in {"dtype", "threads"} else value for name, value in changed.items()}
    assert {name: second[name] for name in told} == told
    assert first["folder"].startswith(str(measuring.spill))


@pytest.mark.parametrize("name", ["_processor", "code_digest", "_file_system"])
def test_another_processor_code_or_disk_is_measured_anew(measuring: Measuring, name: str) -> None:
    def another(*_: object) -> str:
        return "another"

    measuring.machine()
    measuring.patch.setattr(module, name, another)
    measuring.machine()
    assert len(measuring.asked) == len(measuring.kept) == 2


@pytest.mark.parametrize(("length", "more"), [(-1, b""), (0, b""), (200, b"\xff")])
def test_a_damaged_file_is_measured_again(measuring: Measuring, length: int, more: bytes) -> None:
    measuring.machine()
    (kept,) = measuring.kept
    before = kept.read_bytes()
    kept.write_bytes(before[:length] + more)
    assert measuring.machine() == load_machine("t4")
    assert len(measuring.asked) == 2
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    ("does", "text", "why"),
    [
        ("sys.exit('no such instruction\\n\\n')", T4, "no such instruction"),
        ("os.kill(os.getpid(), 9)", T4, "it ended with -9"),
        ("time.sleep(60)", T4, "it takes longer than 0.5 s"),
        ("", "name = 3", "must be a text in quotes"),
    ],
    ids=["error", "killed", "too long", "no machine file"],
)
def test_where_measuring_fails_a_t4_stands_for_it(measuring: Measuring, does: str, text: str, why: str) -> None:
    measuring.patch.setattr(module, "TIME_LIMIT_S", 0.5 if "sleep" in does else 60.0)
    measuring.does(does, text)
    assert measuring.machine() == load_machine("t4")
    assert measuring.said.startswith("no --machine: measuring this machine once ... failed: ")
    assert measuring.said.endswith(f"{why}; planning with the rates of t4\n")
    assert measuring.kept == []


def test_a_folder_that_is_not_there_is_no_place_to_measure(measuring: Measuring) -> None:
    assert measuring.machine(spill="/nowhere/at/all") == load_machine("t4")
    assert "/nowhere/at/all" in measuring.said
    assert measuring.said.endswith(": no such file or directory; planning with the rates of t4\n")


def test_a_cache_that_cannot_be_written_costs_time_alone(measuring: Measuring) -> None:
    file = measuring.folder / "file"
    file.touch()
    measuring.cache(file)
    for _ in range(2):
        assert measuring.machine() == load_machine("t4")
        assert measuring.said.endswith(f" s, not kept: {file}/shardwright/machines: not a directory\n")
    assert len(measuring.asked) == 2


def test_two_at_once_measure_once(measuring: Measuring) -> None:
    measuring.does("time.sleep(0.3)")
    machines: list[Machine] = []
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda: machines.append(this_machine(measuring.request, said.append))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machines == [load_machine("t4")] * 3
    assert len(measuring.asked) == 1
    assert sum(piece == f"another run has; kept in {measuring.kept[0]}\n" for piece in said) == 2


def test_a_device_that_is_not_there(measuring: Measuring) -> None:
    with pytest.raises(DiagnosticError, match="bad-device"):
        measuring.machine(device="gpu")
    assert measuring.asked == []


def test_the_file_leaves_room_on_the_disk() -> None:
    assert file_bytes(1e12) == 64 << 20
    assert file_bytes(1e12, 10 << 20) == 10 << 20
    assert file_bytes(40 << 20) == 10 << 20
    assert file_bytes(0, 0) == 1 << 20


RUN = """
import sys
from shardwright.serving.offloading import this_machine
this_machine.COMMAND = sys.argv.pop(1).split("|")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_while_it_is_measured(measuring: Measuring, number: signal.Signals) -> None:
    """The process that measures goes with the one that waits for it, or ends by itself, and nothing stays behind."""
    measuring.does("time.sleep(60)" if number is signal.SIGINT else "time.sleep(1)")
    script = f"{HEEDED}{RUN}import runpy; runpy.run_module('shardwright', run_name='__main__', alter_sys=True)"
    argv = [
        sys.executable, "-c", script, "|".join(module.COMMAND), "offload", "opt-125m", "--plan-only", "--device", "cpu",
        "--spill-dir", str(measuring.spill),
    ]  # fmt: skip
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    end = time.monotonic() + 100
    while not measuring.asked and time.monotonic() < end:
        time.sleep(0.02)
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert time.monotonic() - began < 30
    assert (process.returncode, out) == (130 if number is signal.SIGINT else -number, "")
    assert "Traceback" not in err
    if number is signal.SIGINT:
        assert err.startswith("no --machine: measuring this machine once ... \n")
        assert list(measuring.spill.iterdir()) == []
    assert measuring.kept == []


# ---------------------------------------------------------------- commands


def test_a_plan_alone_is_for_this_machine(measuring: Measuring, shardwright: Callable[..., Any]) -> None:
    """Its memories are what the caps leave, its runtime the one that runs here."""
    words = ("opt-125m", "--plan-only", "--json", "--policy", "2,2,10,50,0,100,100,0", "--dtype", "f16")
    caps = ("--device-memory", "200MB", "--host-memory", "300MB", "--disk-memory", "1GB", "--device", "cpu")
    caps = (*caps, "--spill-dir", str(measuring.spill))
    first = shardwright("offload", *words, *caps)
    assert first.status == 0, first.err
    assert first.err.startswith("no --machine: measuring this machine once ... ")
    assert first.err.count("\n") == 1
    plan = json.loads(first.out)
    assert plan["runtime"] == "ours"
    assert plan["capacity_bytes"] == {"device": 190_000_000, "host": 285_000_000, "disk": 1_000_000_000}
    assert measuring.asked[0]["dtype"] == "f16"
    again = shardwright("offload", *words, *caps)
    assert (again.out, again.err) == (first.out, "")
    assert len(measuring.asked) == 1


def test_a_checkpoint_and_a_program_are_planned_in_their_format(
    measuring: Measuring, checkpoint: Callable[..., Path], shardwright: Callable[..., Any], tmp_path: Path
) -> None:
    lengths = ("--prompt-len", "8", "--gen-len", "4")
    words = ("--plan-only", "--device", "cpu", "--spill-dir", measuring.spill, "--policy", "2,2,0,100,0,100,100,0")
    out = tmp_path / "plan.shard"
    got = shardwright("offload", checkpoint("llama-grouped"), *words, *lengths, "-o", out)
    assert got.status == 0, got.err
    assert "on t4, 8 tokens in and 4 out, runtime ours" in got.out
    again = shardwright("offload", out, *words, "--json", "-o", tmp_path / "again.shard")
    assert again.status == 0, again.err
    assert json.loads(again.out)["runtime"] == "ours"
    assert [asked["dtype"] for asked in measuring.asked] == ["f32"]


@pytest.mark.slow
def test_it_is_really_measured(measuring: Measuring) -> None:
    """Within the time limit, as a machine file with the rates of this runtime, and with nothing left behind."""
    measuring.patch.undo()
    measuring.cache(measuring.folder / "cache")
    machine = measuring.machine()
    assert measuring.said.endswith(f"kept in {measuring.kept[0]}\n")
    assert machine.name == "this-machine"
    assert machine.chip.rate("f32") > 1e8
    assert machine.runtimes["ours"]["step_overhead_s"] > 0
    measuring.does("sys.exit(1)")
    assert measuring.machine() == machine
