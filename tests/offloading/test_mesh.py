"""Offloading over a mesh, each chip a process: tokens equal to transformers', what each process reads and takes, and
what cannot be."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.checkpoints import make_checkpoint
from models.greedy_generation import FEW, truth
from offloading.several import finished, start
from offloading.test_pipeline import MIXED, WORKER, Run, case, lines, tokens

from shardwright.backends.torch.world import alone
from shardwright.cli.offload_run import _stages
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.ir.weight_parts import SourcePart, runs_of
from shardwright.ir.weight_source import FileRange
from shardwright.serving.offloading.offload import offload

DISK = "4,2,0,20,50,50,0,100"


def over(mesh: dict[str, int], folder: Path, policy: str = MIXED, schedule: str = "zigzag", **more: Any) -> Any:
    settings = more.pop("settings", {})
    return case(folder, policy, schedule, **settings) | {"mesh": mesh} | more


def together(count: int, cases: list[Any], path: Path) -> dict[str, Any]:
    """The results of the cases, by so many processes."""
    path.write_text(json.dumps(cases))
    ((status, out, err), *others) = finished(start(count, WORKER, path))
    assert status == 0, err
    assert [status for status, _, _ in others] == [0] * (count - 1)
    return json.loads(out)


def check_scores(found: list[list[float]], folder: Path) -> None:
    for ours, theirs in zip(found, truth(folder, FEW).logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_two_processes_are_two_chips(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """A preset with log-probabilities, the layouts that the compiler chooses, and both schedules. Every weight of a
    Llama is split, so each process reads and holds half."""
    llama, opt = checkpoint("llama-grouped"), checkpoint("opt")
    whole = case(llama, DISK)
    cases = [
        over({"x": 2}, llama, settings={"logprobs": True}),
        over({"x": 2}, llama, layout="open"),
        over({"x": 2}, opt, "3,2,0,50,20,60,0,100", "diagonal"),
        over({"x": 2}, llama, DISK),
    ]
    found = together(2, cases, tmp_path / "cases.json")
    assert found["tokens"] == [tokens(llama), tokens(llama), tokens(opt), tokens(llama)]
    check_scores(found["scores"][0], llama)
    (alone_read,) = (each["peak"] for each in together(1, [whole], tmp_path / "one.json")["measured"])
    first, second = found["each"][3]
    assert first["weights"] == second["weights"]
    for each in (first, second):
        assert each["peak"]["host"] == pytest.approx(alone_read["host"] / 2, rel=0.1)


MODELS = [
    "llama-grouped",
    "mixtral",
    "qwen2",
    "opt",
    "gpt2",
    "gptj",
    "gemma",
    "falcon",
    "falcon-grouped",
    "phi",
    "gpt-neox",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_each_model_on_two_chips(name: str, checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = checkpoint(name)
    scored = {"settings": {"logprobs": True}}
    cases = [over({"x": 2}, folder, layout=layout, **scored) for layout in ("ws2d", "megatron", "open")]
    cases.append(over({"x": 2}, folder, "3,2,0,0,0,0,0,0", "diagonal"))
    found = together(2, cases, tmp_path / "cases.json")
    assert found["tokens"] == [tokens(folder)] * len(cases)
    for scores in found["scores"][:3]:
        check_scores(scores, folder)


@pytest.mark.slow
def test_four_processes(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Two axes, weights gathered over one of them where the rows are split, and a pipeline of two meshes."""
    folder = checkpoint("llama-grouped")
    scored = {"settings": {"logprobs": True}}
    cases = [over({"x": 2, "y": 2}, folder, layout=layout, **scored) for layout in ("ws2d", "wg-x")]
    cases.append(over({"x": 2}, folder, **scored))
    found = together(4, cases, tmp_path / "cases.json")
    assert found["tokens"] == [tokens(folder)] * len(cases)
    assert [each["layers"] for each in found["measured"]] == [[0], [0], [1], [1]]
    for scores in found["scores"]:
        check_scores(scores, folder)


@pytest.mark.slow
def test_a_program_larger_than_the_memories_of_either_process(tmp_path: Path) -> None:
    """On device, host and disk of two processes, each of which reads half of the weights in each pass."""
    folder = make_checkpoint("llama-grouped", tmp_path / "wide", wide=True)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    caps = {"device": 5 * size // 8, "host": size // 8}
    one = case(folder, "4,2,10,10,100,0,100,0")
    cases = [one | {"mesh": {"x": 2}, "caps": caps}]
    found = together(2, cases, tmp_path / "cases.json")
    assert found["tokens"] == [tokens(folder)]
    (alone_measured,) = together(1, [one], tmp_path / "one.json")["measured"]
    for each in found["measured"]:
        assert 0 < each["peak"]["device"] <= caps["device"]
        assert 0 < each["peak"]["host"] <= caps["host"]
        assert each["moved"]["disk read"] == pytest.approx(alone_measured["moved"]["disk read"] / 2, rel=0.02)


# ---------------------------------------------------------------- from the command line


def test_a_run_of_the_command(checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    """A program that --plan-only has written says itself how many processes it is for; the first of them writes."""
    folder, prompts, out = checkpoint("llama-grouped"), tmp_path / "in", tmp_path / "out"
    given = [{"tokens": prompt.tolist()} for prompt in truth(folder, FEW).prompts]
    prompts.write_text("".join(json.dumps(each) + "\n" for each in given[:4]))
    plan, new = tmp_path / "plan.shard", ["--max-new-tokens", FEW, "--ignore-eos"]
    sizes = ["--prompt-len", 16, "--gen-len", 16, "--machine", "t4", "--dtype", "f32"]
    made = shardwright(
        "offload", folder, "--mesh", "x=2", "--plan-only", "--policy", "2,2,20,50,30,30,20,40", *sizes, "-o", plan
    )
    assert made.status == 0, made.err
    assert "mesh x=2\n" in plan.read_text()
    assert shardwright("check", plan).status == 0
    words = ["offload", folder, "--prompts", prompts, "-o", out, *new, "--policy", plan, "--json"]
    argv = [sys.executable, "-m", "shardwright", *map(str, words)]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert [each["chip"] for each in report["processes"]] == [{"x": 0}, {"x": 1}]
    both = [(each["read_bytes"], each["moved_bytes"]["disk read"]) for each in report["processes"]]
    assert (report["read_bytes"], report["moved_bytes"]["disk read"]) == tuple(map(sum, zip(*both, strict=True)))
    assert [line["new_tokens"] for line in lines(out)] == tokens(folder)[:4]


def test_a_plan_has_the_bytes_of_one_chip(checkpoint: Callable[..., Path], shardwright: Callable[..., Any]) -> None:
    words = [
        "offload",
        checkpoint("llama-grouped"),
        "--plan-only",
        "--machine",
        "t4",
        "--policy",
        "2,2,0,100,0,100,0,100",
    ]
    words += ["--prompt-len", "16", "--gen-len", "16", "--json"]
    one, two = (json.loads(shardwright(*words, *more).out) for more in ((), ("--mesh", "x=2")))
    assert two["mesh"] == {"x": 2}
    assert two["peak_bytes"]["host"] == one["peak_bytes"]["host"] / 2
    assert two["policy"] == one["policy"]


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ("--mesh x=3", 1, "offload: error: F=64 is not split over x=3: not divisible; K=2 G=4 are not split over x=3: "
         "not divisible [not-divisible]\nnote: give axes to --mesh that divide them, or --layout open, which leaves "
         "whole what does not divide\n"),
        ("--mesh x=16", 1, "offload: error: these are 16 processes, and a machine with 2 cores gets 8 at most "
         "[too-many-processes]\nnote: give a smaller --mesh or --gpus, or start them on several hosts: torchrun "
         "--nproc-per-node N -m shardwright offload ...\n"),
        ("--mesh x=2 --gpus 3", 1, "offload: error: 2 layers cannot be divided into 3 stages of a pipeline "
         "[too-many-stages]\n"),
        ("--mesh x=2 --layout ws3d", 1, "offload: error: there is no layout ws3d; there are megatron, ws1d, ws2d, "
         "wg-x, wg-xy, wg-xyz, and open [unknown-layout]\nnote: did you mean ws2d?\n"),
        ("--mesh x=1", 2, "shardwright offload: error: --mesh x=1 is a single chip: leave --mesh out, or give it more, "
         "as in --mesh x=2\n"),
        ("--mesh x", 2, "shardwright offload: error: argument --mesh: 'x' is not x=2,y=2\n"),
        ("--mesh x=2,x=2", 2, "shardwright offload: error: argument --mesh: x is given twice\n"),
        ("--layout ws1d", 2, "shardwright offload: error: --layout is of values over a mesh: give --mesh, as in --mesh "
         "x=2, or leave it out\n"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_mesh(
    options: str, status: int, said: str, checkpoint: Callable[..., Path], tmp_path: Path,
    shardwright: Callable[..., Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    prompts = tmp_path / "in"
    prompts.write_text('{"tokens": [5, 6]}\n')
    words = ["offload", checkpoint("llama-grouped"), "--prompts", prompts, "-o", tmp_path / "out", "--policy", MIXED]
    made = shardwright(*words, "--max-new-tokens", "4", *options.split())
    assert (made.status, made.err) == (status, said)


def test_a_program_with_a_mesh_is_none_for_one_process(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    folder, plan = checkpoint("llama-grouped"), tmp_path / "plan.shard"
    sizes = ("--machine", "t4", "--prompt-len", "4", "--gen-len", "3")
    assert shardwright("offload", folder, "--plan-only", "--mesh", "x=2", *sizes, "-o", plan).status == 0
    with pytest.raises(DiagnosticError) as refused:
        offload(folder, [[1, 2]], max_new_tokens=3, policy=str(plan))
    assert str(refused.value) == (
        f"{plan}: error: the program is for the mesh x=2, each chip of which is a process [bad-processes]\n"
        "note: the command starts them: shardwright offload CHECKPOINT --policy FILE.shard"
    )


def test_a_program_without_a_mesh_is_none_for_one(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    prompts, plan = tmp_path / "in", tmp_path / "plan.shard"
    prompts.write_text('{"tokens": [5, 6]}\n')
    plan.write_text("dim B=2 E=4\nfunc f(x: f32 BE) -> f32 BE {\n  return x\n}\n")
    words = ["offload", checkpoint("llama-grouped"), "--prompts", prompts, "-o", tmp_path / "out", "--policy", plan]
    made = shardwright(*words, "--mesh", "x=2")
    assert made.status == 1
    assert made.err == (
        f"{plan}: error: the program splits nothing over the mesh x=2: it declares no mesh [wrong-program]\n"
        "note: leave --mesh out, or write one for it: shardwright offload CHECKPOINT --mesh x=2 --plan-only -o FILE\n"
    )


@pytest.mark.parametrize(
    ("gpus", "mesh", "count", "said"),
    [
        (1, Mesh.of(x=4), 2, "the mesh x=4 has 4 chips, and 2 processes have been started"),
        (1, Mesh.of(x=4), 6, "the mesh x=4 has 4 chips, and 6 processes have been started"),
        (2, Mesh.of(x=2), 2, "--gpus is 2 over the mesh x=2, and 2 processes have been started"),
    ],
)
def test_processes_that_are_started_otherwise_are_those_of_the_mesh(
    gpus: int, mesh: Mesh, count: int, said: str
) -> None:
    with pytest.raises(DiagnosticError, match=said):
        _stages(argparse.Namespace(gpus=gpus), mesh, replace(alone(), count=count))
    assert _stages(argparse.Namespace(gpus=1), mesh, replace(alone(), count=8)) == 8 // mesh.n_chips


@pytest.mark.slow
def test_a_killed_chip_ends_all_and_the_run_goes_on_later(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    """The other one may wait for it in a collective. Afterwards one process answers the rest."""
    run, whole = Run(tmp_path, checkpoint("llama-grouped")), tmp_path / "whole"
    run.argv = [*run.argv[:-2], "--mesh", "x=2"]
    _, err, seconds = run.interrupted(1, signal.SIGKILL)
    assert seconds < 15
    assert "process 1 of 2 has ended, and this is process 0 [lost-process]" in err
    before = len(lines(run.out))
    made = shardwright(*run.command, "-o", run.out)
    assert (made.status, json.loads(made.out)["resumed"]) == (0, before)
    assert shardwright(*run.command, "-o", whole).status == 0
    assert lines(run.out) == lines(whole)


# ---------------------------------------------------------------- parts of weights


class Files:
    """A source of one array whose every box is a range of a file."""

    names = ("w",)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def shape(self, name: str) -> tuple[int, ...]:
        return self.array.shape

    def dtype(self, name: str) -> np.dtype[Any]:
        return self.array.dtype

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self.array[index]

    def file_ranges(self, name: str, index: tuple[slice, ...]) -> list[FileRange] | None:
        return [FileRange("file", name, index[0].start, index[0].stop - index[0].start, 0)]


def test_a_part_of_a_source_is_what_indices_take_of_it() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        array = rng.integers(0, 99, rng.integers(1, 9, 3))
        held = [np.sort(rng.choice(n, rng.integers(1, n + 1), replace=False)) for n in array.shape]
        part, wanted = SourcePart(Files(array), {"w": tuple(map(runs_of, held))}), array[np.ix_(*held)]
        assert part.shape("w") == wanted.shape
        box = tuple(slice(*np.sort(rng.choice(n + 1, 2, replace=False))) for n in wanted.shape)
        np.testing.assert_array_equal(part.read("w", box), wanted[box])
        contiguous = all(len(runs_of(h[taken])) == 1 for h, taken in zip(held, box, strict=True))
        ranges = part.file_ranges("w", box)
        assert (ranges is not None) == contiguous
        if ranges is not None:
            assert ranges[0].offset == held[0][box[0]][0]
