"""Emitted PyTorch modules run alone and mean what the reference says; what they have no form for is refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.random_programs.agreement import difference, inputs
from oracles.random_programs.bounded import DECLARED
from oracles.random_programs.draw import draw_program
from oracles.random_programs.meaning import meaning
from oracles.random_programs.texts import TYPED
from program_text import program

from shardwright.backends.jax.module_files import load_module
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.torch.emit import emit
from shardwright.cli.front import main
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes

GOLDENS = Path(__file__).parents[1] / "goldens" / "passes"
RUNNER = """
import json, runpy, sys, numpy as np
for line in sys.stdin:
    module, npz, func, out, *names = json.loads(line)
    given = dict(np.load(npz))
    part = lambda which: {k[2:]: v for k, v in given.items() if k[0] == which}
    m = runpy.run_path(module)
    run = m["Run"]("cpu")
    weights, state = m["place"](run, part("w"), part("s"))
    made = m[func](run, weights, state, *[given["a_" + n] for n in names])
    made = made if isinstance(made, tuple) else (made,)
    new = {k: (v.read(run.device) if isinstance(v, m["Far"]) else v).numpy() for k, v in state.items()}
    run.close()
    assert not any(n.split(".")[0] == "shardwright" for n in sys.modules)
    np.savez(out, *[t.numpy() for t in made], **new)
    print("done", flush=True)
"""
"""Runs one function after another, as they come."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The process of `RUNNER`: one for all functions, since it takes seconds to import PyTorch."""
    argv = [sys.executable, "-I", "-c", RUNNER]
    folder, pipe = tmp_path_factory.mktemp("alone"), subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=folder) as process:
        yield process


@pytest.mark.parametrize(
    "name", ["offload", "schedule_blocks_before", "schedule_blocks", "schedule_blocks_tokens", "diagonal_blocks"]
)
def test_offloaded_programs_run_alone(name: str, runner: subprocess.Popen[str], tmp_path: Path) -> None:
    check_alone(explicit(program((GOLDENS / f"{name}.shard").read_text())), runner, tmp_path)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", ["llama-grouped", "opt", "mixtral", "gpt-neox", "gemma", "qwen2-window", "cohere-multiquery"]
)
def test_models_run_alone(name: str, runner: subprocess.Popen[str], tmp_path: Path) -> None:
    """Prefill and decode as `import` writes them, from host and disk, batch by batch."""
    from oracles.offloaded_models import placed_model

    placed = placed_model(name, rows=4, length=3, cache=6, policy="2,2,20,30,0,100,0,50")
    made = explicit(run_passes(placed, parse_pipeline("offload,schedule-blocks{batches=2}")))
    assert "run.on_host(" in emit(made)  # attention, where the cache lies
    check_alone(made, runner, tmp_path)


def check_alone(made: Program, runner: subprocess.Popen[str], tmp_path: Path) -> None:
    """In a process of its own, without this package, every function gives what the reference does."""
    module, npz, out = tmp_path / "module.py", tmp_path / "in.npz", tmp_path / "out.npz"
    module.write_text(emit(made))
    check_style(module)
    assert runner.stdin is not None
    assert runner.stdout is not None
    for func in made.funcs:
        given = random_inputs(made, func, 3)
        tables = {"a": given.args, "w": given.weights, "s": given.state}
        np.savez(npz, **{f"{which}_{n}": v for which, table in tables.items() for n, v in table.items()})
        asked = [str(module), str(npz), func.name, str(out), *(value.name for value in func.params)]
        runner.stdin.write(json.dumps(asked) + "\n")
        runner.stdin.flush()
        assert runner.stdout.readline() == "done\n"
        found = np.load(out)
        wanted, state = evaluate(made, func.name, given.args, given.weights, given.state, precision="declared")
        assert len(wanted) == sum(key.startswith("arr_") for key in found)
        for i, want in enumerate(wanted):
            np.testing.assert_allclose(found[f"arr_{i}"], want, rtol=1e-4, atol=1e-5)
        for key, want in state.items():
            np.testing.assert_allclose(found[key], want, rtol=1e-4, atol=1e-5, err_msg=key)


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(array.astype(np.float32) if array.dtype.type.__module__ == "ml_dtypes" else array)


def test_random_programs() -> None:
    """Against the oracle of the tests' own; none is refused."""
    for seed in range(40):
        drawn = draw_program(random.Random(seed), replace(TYPED, most_chips=1))
        made = explicit(elaborate(parse(Source("drawn.shard", drawn.text()))))
        module = load_module(emit(made))
        for func, arrays in zip(drawn.funcs, inputs(drawn, seed).values(), strict=True):
            run = module.Run()
            given = {name: tensor(np.asarray(array)) for name, array in arrays.items()}
            names = [value.name for value in made.func(func.name).params]
            weights, state = module.place(run, given, given)
            results = getattr(module, func.name)(run, weights, state, *[given[name] for name in names])
            run.close()
            wanted = meaning(drawn, func, arrays, DECLARED).results
            results = results if isinstance(results, tuple) else (results,)
            for expected, found in zip(wanted, results, strict=True):
                text, _, _ = difference(found.double().numpy(), expected)
                assert not text, f"random program {seed}, {func.name}: {text}\n{drawn.text()}"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("lookup[F, wrap=true](iota[F, 7](), at)", [3, 6, 0, 1]),
        ("update[F](iota[F, 4](), at, 2)", [0, 1, 3, 6]),
        ("update[F, wrap=true](iota[F, 5](), at, 3)", [7, 8, 2, 3, 6]),
        ("update[F](iota[F, 15](), at, 12)", [*range(12), 3, 6, 7]),
    ],
)
def test_extents_that_are_not_the_declared_sizes(body: str, wanted: list[int]) -> None:
    text = f"dim F=12 D=4 G={len(wanted)}\nfunc f(at: int32 D) -> int32 G {{\n  y = {body}\n"
    module = load_module(
        emit(explicit(program(f"{text}  return rename[{'D' if 'lookup' in body else 'F'} -> G](y)\n}}")))
    )
    run = module.Run()
    assert module.f(run, {}, {}, torch.tensor([3, 6, 7, 8])).tolist() == wanted
    run.close()


ONE = "dim B=2 E=4\nweights { w: f32 E on disk }\nfunc f(x: f32 BE) -> f32 BE {\n  y = x * w\n  return y\n}\n"


def check_style(module: Path) -> None:
    """Ruff has nothing to say of a module, nor to change in it. Programs compare a value with itself to find NaN."""
    for command in (["check", "--ignore", "PLR0124"], ["format", "--check", "--line-length", "119"]):
        ruff = [sys.executable, "-m", "ruff", command[0], "--isolated", *command[1:], str(module)]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_command_writes_a_module(tmp_path: Path) -> None:
    file, out = tmp_path / "one.shard", tmp_path / "one.py"
    file.write_text(ONE)
    assert main(["compile", str(file), "--to", "torch", "-o", str(out)]) == 0
    assert "w_here = run.wait(run.prefetch(w))" in out.read_text()
    check_style(out)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "one.shard", tmp_path / "missing" / "one.py"
    file.write_text(ONE)
    assert main(["compile", str(file), "--to", "torch", "-o", str(out)]) == 1
    assert "missing/one.py: error: no such file or directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["one.shard"]


def test_names_that_are_none_in_python_are_refused() -> None:
    made = explicit(program(ONE))
    named = replace(made, weights=tuple(replace(value, name='w"] or f(["') for value in made.weights))
    with pytest.raises(DiagnosticError) as caught:
        emit(named)
    assert caught.value.diagnostics[0].code == "bad-name"


def refused(text: str) -> str:
    with pytest.raises(DiagnosticError) as caught:
        emit(explicit(program(text)))
    return caught.value.diagnostics[0].message


def test_several_chips_are_refused() -> None:
    assert refused("mesh x=2\n" + ONE) == "PyTorch modules have no form for a mesh of 2 chips"


def test_state_that_is_set_before_its_part_is_read_is_refused() -> None:
    text = (
        "dim N=2 E=4\nstate { k: f32 NE on host }\nfunc f(x: f32 NE) -> f32 E {\n"
        "  old :~ f32 E on host = take[N, 0](k)\n  new :~ f32 NE on host = store[host](x)\n  set k = new\n"
        "  y = fetch(old)\n  return y\n}\n"
    )
    assert refused(text) == "PyTorch modules have no form for old, a part of k that is read after it is set"


def test_digits_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.shard"
    file.write_text(ONE)
    assert main(["compile", str(file), "--to", "torch", "--edges", "digits"]) == 2
    assert "--to torch goes with neither --edges digits nor --target" in capsys.readouterr().err


def test_what_a_loop_carries_in_two_memories_is_refused() -> None:
    text = (
        "dim N=2 B=2 T=6 D=2\nstate { k: f32 BTD on host }\nfunc f(x: f32 BD on host) -> f32 BD on host {\n"
        "  y = loop[N](h: f32 BD on host = x) {\n    o: f32 BD on host = attend[T, D](h, k, k)\n    next o\n  }\n"
        "  return y\n}\n"
    )
    where = "which is on the device before the loop and away from the device at its end"
    assert refused(text) == f"PyTorch modules have no form for h, {where}"
