"""Pipelines: tokens equal to transformers' with two processes, schedules, and processes that are lost."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from interrupting import await_output
from models.greedy_generation import FEW, truth
from offloading.pipeline_worker import run
from offloading.several import finished, start

from shardwright.backends.timeline import Timeline, read_timeline
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.text.format import format_module
from shardwright.ir.text.parser import parse
from shardwright.ir.text.unparse import unparse
from shardwright.serving.offloading.program_parts import PipelineStage, part_of

WORKER = Path(__file__).parent / "pipeline_worker.py"
MIXED = "2,4,20,50,30,30,20,40"


def case(folder: Path, policy: str = MIXED, schedule: str = "zigzag", **settings: Any) -> dict[str, Any]:
    prompts = [prompt.tolist() for prompt in truth(folder, FEW).prompts]
    settings = {"max_new_tokens": FEW, **settings}
    return {"folder": str(folder), "prompts": prompts, "policy": policy, "schedule": schedule, "settings": settings}


def tokens(folder: Path) -> list[list[int]]:
    return truth(folder, FEW).tokens.tolist()


def together(cases: Sequence[dict[str, Any]], path: Path) -> dict[str, Any]:
    """What two processes give."""
    path.write_text(json.dumps(cases))
    ((status, out, err), *others) = finished(start(2, WORKER, path))
    assert status == 0, err
    assert [status for status, _, _ in others] == [0]
    return json.loads(out)


def test_tokens_of_two_processes(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Greedy ones are those of transformers, others those of one process: places, schedules, drawn tokens, texts that
    end, hidden states that are sent late, and layers that differ."""
    opt, llama, differing = checkpoint("opt"), checkpoint("llama-grouped"), checkpoint("qwen2-some-windows")
    stop = tokens(opt)[0][3]
    late = case(opt, "2,4,20,50,30,30,20,40") | {"late": 0.01}
    greedy = [case(llama, "3,2,0,0,0,0,0,0", "diagonal"), late, case(differing)]
    ending = [
        case(opt, "3,2,0,50,20,60,0,100", stop_tokens=[stop]),
        case(opt, "2,2,0,50,0,100,100,0", "diagonal", stop_tokens=[stop]),
    ]
    drawn = case(llama, max_new_tokens=5, temperature=1.0, top_k=20, top_p=0.9, seed=5)
    packed = case(opt, "3,2,0,30,50,50,0,100", max_new_tokens=5) | {"quantized": True}
    found = together([*greedy, *ending, drawn, packed], tmp_path / "cases.json")["tokens"]
    assert found[:3] == [tokens(llama), tokens(opt), tokens(differing)]
    ended = [row[: row.index(stop) + 1] if stop in row else row for row in tokens(opt)]
    assert found[3] == found[4] == ended
    for each, made in zip([drawn, packed], found[5:], strict=True):
        assert made == [list(row) for row in run(each, None)[0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opt", "llama-grouped", "mistral", "qwen2", "gemma", "gptj", "falcon-grouped"])
def test_each_model(name: str, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = checkpoint(name)
    policies = ("8,1,100,0,100,0,100,0", "4,2,0,100,0,100,0,100", "3,2,0,0,0,0,0,0", MIXED)
    cases = [case(folder, p, s) for p in policies for s in ("zigzag", "diagonal")]
    found = together(cases, tmp_path / "cases.json")
    assert found["tokens"] == [tokens(folder)] * len(cases)
    first, second = found["measured"]
    assert (first["layers"], second["layers"]) == ([0], [1])
    shared = set(first["weights"]) & set(second["weights"])
    assert shared <= {"embed"}, "each process has its own weights, and a table that is used at both ends"


def test_layers_have_their_numbers_among_all() -> None:
    program = """
        dim N=5 B=2
        weights { w: f32 N }
        func f(x: f32 B) -> f32 B {
          layer = iota[N]()
          number = convert[f32](layer)
          y = loop[N as n](h: f32 B = x) {
            next h * w + number + convert[f32](n) / (size[N] * 2)
          }
          return y
        }
    """
    whole = elaborate(parse(Source("f", program)))
    first, text = (format_module(unparse(part_of(whole, PipelineStage(index, 2)))) for index in (0, 1))
    assert "dim N=2 B=2" in first
    assert " / 10\n" in first
    assert " / 10\n" in text
    assert "  layer_here = iota[N]()\n  layer = layer_here + 2\n" in text
    assert "  y = loop[N as n_here](h: f32 B = arriving_h) {\n    n :~ int32 = n_here + 2\n" in text


def test_layers_are_divided_evenly() -> None:
    for n, count in itertools.product(range(1, 9), range(1, 9)):
        if n < count:
            with pytest.raises(DiagnosticError, match=f"{n} layers cannot be divided into {count} stages"):
                PipelineStage(0, count).layers(n)
            continue
        ranges = [PipelineStage(index, count).layers(n) for index in range(count)]
        assert [layer for own in ranges for layer in own] == list(range(n))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


# ---------------------------------------------------------------- processes that are lost


PROMPTS = [{"tokens": [3 + i % 90, 5, 7 + i % 11][: 1 + i % 3], "id": i} for i in range(24)]


def lines(path: Path) -> list[dict[str, Any]]:
    return sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda line: line["index"])


@dataclass
class Run:
    """A run of two processes, and the command that goes on with it."""

    folder: Path
    model: Path
    silence: float = 60  # seconds; a process on a busy machine may say nothing for two

    def __post_init__(self) -> None:
        self.out, self.spill = self.folder / "out", self.folder / "spill"
        prompts = self.folder / "in"
        prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
        self.spill.mkdir()
        command = ["offload", self.model, "--prompts", prompts, "--policy", "4,2,0,50,30,30,0,100"]
        command += ["--max-new-tokens", "6", "--ignore-eos", "--spill-dir", self.spill, "--json"]
        self.command = [*map(str, command), "--silence-timeout", str(self.silence)]
        self.argv = [sys.executable, "-m", "shardwright", *self.command, "-o", str(self.out), "--gpus", "2"]
        self.environ = os.environ | {"OMP_NUM_THREADS": "1"}

    def interrupted(self, child: int, number: signal.Signals) -> tuple[str, str, float]:
        """What it said, on stdout and on stderr, and how many seconds after the signal to one of its processes it
        ended: with status 1, nothing left, and some prompts answered in full."""
        process = subprocess.Popen(
            self.argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environ
        )
        await_output(self.out, 200, process)
        if process.poll() is not None:
            pytest.fail(f"it ended before the signal: {process.communicate()[1]}")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[child]), number)
        began = time.monotonic()
        said, err = process.communicate(timeout=300)
        seconds = time.monotonic() - began
        assert process.returncode == 1
        assert "Traceback" not in err
        assert list(self.spill.iterdir()) == []
        assert not any(Path(f"/proc/{child}").exists() for child in children)
        assert 0 < len(lines(self.out)) < len(PROMPTS)
        return said, err, seconds

    def goes_on(self) -> Timeline:
        """The same command answers the other prompts. The timeline of its first block."""
        before = len(lines(self.out))
        timeline = self.folder / "timeline.json"
        argv = [*self.argv, "--timeline", str(timeline)]
        again = subprocess.run(argv, capture_output=True, text=True, env=self.environ, timeout=300, check=False)
        assert again.returncode == 0, again.stderr
        report = json.loads(again.stdout)
        assert (report["resumed"], report["prompts"]) == (before, len(PROMPTS) - before)
        assert [stage["layers"] for stage in report["stages"]] == [[0, 1], [1, 2]]
        return read_timeline(Source(str(timeline), timeline.read_text(encoding="utf-8")))


def test_a_killed_process_ends_all_and_the_run_goes_on_later(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    """kill -9 of one: the others say so within seconds, nothing is left, and every prompt is answered once."""
    run, whole = Run(tmp_path, checkpoint("llama-grouped")), tmp_path / "whole"
    said, err, seconds = run.interrupted(1, signal.SIGKILL)
    assert seconds < 15
    assert "process 1 of 2 has ended, and this is process 0 [lost-process]" in err
    assert json.loads(said)["ok"] is False
    timeline = run.goes_on()
    assert [part.title for part in timeline.processes] == ["process 0", "process 1"]
    for part in timeline.processes:
        for course in (part.predicted, part.measured):
            assert course is not None
            assert any("token=1" in entry.name for entry in course.entries)
    assert shardwright(*run.command, "-o", whole).status == 0
    assert lines(run.out) == lines(whole)


@pytest.mark.slow
@pytest.mark.parametrize("child", [0, 1])
def test_a_stopped_process_ends_all(child: int, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """SIGSTOP of one, which keeps its connections and says nothing any more."""
    run = Run(tmp_path, checkpoint("llama-grouped"), silence=6)
    _, err, seconds = run.interrupted(child, signal.SIGSTOP)
    assert 5 < seconds < 20
    found = re.search(rf"process {child} of 2 has given no sign of life for 6 s, and was last at: (.*),"
                      rf" and this is process {1 - child} \[lost-process\]", err)  # fmt: skip
    assert found, err
    at = r"(prefill|decode|receive hidden|receive tokens), token \d|loading weights|starting"
    assert re.fullmatch(at, found[1])  # as of its last sign of life
    assert "note: it is stopped, cut off, or its host is too busy; --silence-timeout SECONDS waits longer" in err


def test_a_process_that_fails_ends_all(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Only the second process needs host memory, for what it receives."""
    prompts, out = tmp_path / "in", tmp_path / "out"
    prompts.write_text('{"tokens": [5, 6]}\n')
    options = ["--policy", "1,2,100,0,100,0,100,0", "--max-new-tokens", "4", "--host-memory", "100B"]
    words = ["offload", checkpoint("opt"), "--prompts", prompts, "-o", out, *options]
    (first, _, said), (second, _, why) = finished(start(2, "-m", "shardwright", *words), 60)
    assert (first, second) == (1, 1)
    assert "a buffer of hidden states from the stage before: 1.02 kB on the host" in why
    assert "process 1 of 2 has failed: " in said
    assert not out.exists()


def test_what_cannot_be_a_pipeline(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    prompts = tmp_path / "in"
    prompts.write_text('{"tokens": [5, 6]}\n')
    command = ["offload", checkpoint("opt"), "--prompts", prompts, "-o", tmp_path / "out", "--policy", MIXED]
    command += ["--max-new-tokens", "4"]
    made = shardwright(*command, "--gpus", "3")
    assert made.status == 1
    assert "error: 2 layers cannot be divided into 3 stages of a pipeline [too-many-stages]" in made.err


@pytest.mark.usefixtures("quick_measuring")
def test_one_process_plans_for_all(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --policy: the command that starts the processes, or the first of them. This machine is measured once."""
    from shardwright.serving.offloading import launching

    started: list[tuple[Sequence[str], int, str]] = []

    def together(argv: Sequence[str], count: int, plan: str) -> int:
        started.append((argv, count, plan))
        return 0

    monkeypatch.setattr(launching, "run_together", together)
    folder, prompts, out = checkpoint("opt"), tmp_path / "in", tmp_path / "out"
    prompts.write_text("".join(json.dumps({"tokens": each.tolist()}) + "\n" for each in truth(folder, FEW).prompts))
    words = ["offload", folder, "--prompts", prompts, "-o", out, "--max-new-tokens", FEW, "--ignore-eos"]
    made = shardwright(*map(str, words), "--gpus", "2")
    assert made.status == 0, made.err
    assert made.err.startswith("no --machine: measuring this machine once ... ")
    ((argv, count, plan),) = started
    assert (argv, count) == ([*map(str, words), "--gpus", "2"], 2)
    assert plan == f"{parse_policy(plan.split()[0]).numbers} device"
    (first, _, said), (second, _, why) = finished(start(2, "-m", "shardwright", *words))
    assert (first, second) == (0, 0), said + why
    assert "measuring" not in said + why
    assert [json.loads(line)["new_tokens"] for line in out.read_text().splitlines()] == tokens(folder)


@pytest.mark.slow
def test_a_plan_is_handed_on_whole(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the place of attention, and beside options that only a plan takes."""
    from shardwright.prediction import offloading
    from shardwright.serving.offloading import launching

    plans: list[object] = []
    start_all, found = launching.run_together, SimpleNamespace(policy=parse_policy("4,2,0,100,0,100,100,0"))

    def together(*words: Any) -> int:
        plans.append(words[-1])
        return start_all(*words)

    def planned(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(plan=found)

    monkeypatch.setattr(offloading, "best_plan", planned)
    monkeypatch.setattr(launching, "run_together", together)
    folder, prompts, out = checkpoint("opt"), tmp_path / "in", tmp_path / "out"
    prompts.write_text("".join(json.dumps({"tokens": each.tolist()}) + "\n" for each in truth(folder, FEW).prompts))
    words = ["offload", folder, "--prompts", prompts, "-o", out, "--max-new-tokens", FEW, "--ignore-eos"]
    assert shardwright(*map(str, words), "--machine", "t4", "--latency", "1000", "--gpus", "2").status == 0
    assert plans == ["4,2,0,100,0,100,100,0 host"]
    assert [json.loads(line)["new_tokens"] for line in out.read_text().splitlines()] == tokens(folder)
