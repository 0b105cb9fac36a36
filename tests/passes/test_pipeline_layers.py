"""`pipeline-layers`: the same results from stages of chips, in the simulator and under JAX."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import all_with_slow, slow_unless
from models.checkpoints import transformers_config
from oracles.gradients import check_gradients
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.number_formats import Array
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.compiling.compile_program import load
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.pipeline_cost import pipeline_cost
from shardwright.cost.programs.program_cost import cost_of
from shardwright.cost.programs.resizing import resized
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Roll, Update
from shardwright.ir.program import Program
from shardwright.ir.stages import Stages
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType, StoredFormat, ValueType
from shardwright.ir.walk import lets_in
from shardwright.models.importing import import_model
from shardwright.models.value_types import Pages
from shardwright.passes.pipelines import explicit, run_passes
from shardwright.passes.transformations.pipeline_layers import PipelineLayers

LAYERS = """
mesh x=2
dim B=8 N=4 E=8 F=16 T=6
weights {
  w_in: f32 NEF_x
  w_out: f32 NF_xE
  scale: f32 E
}
state {
  k: f32 NBTE
  mean: f32 NBE
  pos: int32 B
}
func f(x: f32 BE, bias: f32 NE) -> f32 BE {
  y = loop[N as i](h: f32 BE = x * scale) {
    o = gelu(h @[E] w_in) @[F] w_out
    set k = update[T](k, o, pos)
    set mean = mean * 0.5 + o
    next h + o + sum[T](k) * 0.1 + mean + bias * convert[f32](i)
  }
  set pos = pos + 1
  return y * 2.0
}
func twice(x: f32 BE) -> f32 BE {
  a = loop[N](h: f32 BE = x) {
    next h + tanh(h @[E] w_in) @[F] w_out
  }
  b, c = loop[N](h: f32 BE = a, g: f32 BE = x) {
    next h * 0.5 + g, g + k @[TE] k
  }
  return b + c
}
"""

FEEDFORWARD = """
mesh x=4
dim B=16 N=64 E=4096 F=16384
weights {
  w_in: bf16 NEF_x
  w_out: bf16 NF_xE
}
func f(x: bf16 BE) -> bf16 BE {
  y = loop[N](h: bf16 BE = x) { next h + gelu(h @[E] w_in) @[F] w_out }
  return y
}
"""

CACHED = """
mesh x=4
dim B=16 N=64 E=4096 T=4096 K=8 G=4 D=128
weights {
  wq: bf16 NEK_xGD
  wk: bf16 NEK_xD
}
state {
  k: bf16 NBTK_xD
  pos: int32 B
}
func f(x: bf16 BE) -> bf16 BE {
  y = loop[N](h: bf16 BE = x) {
    set k = update[T](k, h @[E] wk, pos)
    next h + attend[T, D](h @[E] wq, k, k, length=pos) @[KGD] wq
  }
  return y
}
"""


def stored(array: object, kind: ValueType, stages: int, batches: int) -> Array:
    """The state of layers as a pipeline stores it: layer n = s |N2| + n2, row b = b2 |M| + m, M
    before the rows."""
    given = np.asarray(array)
    if "N" not in kind.names:
        return given
    sizes: list[int] = []
    for name, size in zip(kind.names, given.shape, strict=True):
        parts = {"N": [stages, size // stages], "B": [size // batches, batches]}.get(name, [size])
        sizes += parts if (stages if name == "N" else batches) > 1 else [size]
    made = given.reshape(sizes)
    if batches == 1 or "B" not in kind.names:
        return made
    at = kind.names.index("B") + (kind.names.index("N") < kind.names.index("B"))
    return made.swapaxes(at, at + 1)


def largest_difference(plain: Program, made: Program, stages: int, batches: int, calls: int = 1) -> float:
    """Between results and state of both programs over some calls, relative to the largest of each."""
    worst = 0.0
    kinds = {value.name: value.type for value in plain.state}
    for func in plain.funcs:
        given = random_inputs(plain, func.name, 0)
        state = dict(given.state)
        if "pos" in state:
            state["pos"] = np.arange(state["pos"].size).reshape(state["pos"].shape) % 3
        on_chips = {name: stored(array, kinds[name], stages, batches) for name, array in state.items()}
        for seed in range(calls):
            args = random_inputs(plain, func.name, seed).args
            if "length" in args:
                args = {**args, "length": np.full_like(args["length"], 2)}
            wanted, state = evaluate(plain, func.name, args, given.weights, state)
            found = simulate(made, func.name, args, given.weights, on_chips)
            on_chips = dict(found.state)
            pairs = list(zip(wanted, found.results, strict=True))
            pairs += [(stored(state[name], kinds[name], stages, batches), on_chips[name]) for name in state]
            for pair in pairs:
                a, b = (np.asarray(array, dtype=float) for array in pair)
                assert not np.isnan(b).any()
                worst = max(worst, float(np.abs(a - b).max() / max(1.0, np.abs(a).max())))
    return worst


def staged(plain: Program, stages: int = 2, batches: int = 1, **options: Any) -> Program:
    """The pipeline of a program whose layouts are chosen for one micro-batch."""
    rows = plain.dim("B").size
    made = resized(explicit(resized(plain, {"B": rows // batches})), {"B": rows})
    return run_passes(made, [PipelineLayers(stages=stages, micro_batches=batches, **options)])


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    golden("passes/pipeline_layers.shard", printed(staged(program(LAYERS), 2, 4)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("stages", "batches"), [(2, 1), (2, 2), (4, 1), (4, 8), (2, 8)])
def test_the_meaning_stays(stages: int, batches: int) -> None:
    plain = program(LAYERS)
    made = staged(plain, stages, batches)
    assert largest_difference(plain, program(printed(made)), stages, batches, calls=2) < 1e-13


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("layout", "batches"),
    all_with_slow(("ws2d", "megatron"), (1, 2), chosen=lambda layout, n: (layout == "ws2d") == (n == 1)),
)
@pytest.mark.parametrize("name", ["llama-grouped", "opt", "mixtral", "falcon", "qwen2-window", "gemma3"])
def test_models(name: str, layout: str, batches: int) -> None:
    config = transformers_config(name).to_dict()
    imported = import_model(config, layout, Mesh.of(x=2), 4, 3, DType.F32, cache=6)
    plain = elaborate(parse(Source(name, imported.text)))
    made = staged(plain, 2, batches)
    assert largest_difference(plain, program(printed(made)), 2, batches) < 1e-11


@pytest.mark.parametrize("batches", [1, 2])
def test_pages_are_refused(batches: int) -> None:
    config = transformers_config("llama-grouped").to_dict()
    imported = import_model(config, "ws2d", Mesh.of(x=2), 4, 3, DType.F32, cache=6, pages=Pages(2))
    with pytest.raises(DiagnosticError, match="pipeline-layers: keys and values lie in pages"):
        staged(elaborate(parse(Source("paged", imported.text))), 2, batches)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("batches", "cache_format"),
    all_with_slow((2, 4), ("int8", "f8e4m3", None), chosen=lambda n, kept: (n == 4) == (kept == "f8e4m3")),
)
def test_rows_are_written_where_the_cache_lies(
    batches: int, cache_format: StoredFormat | None, tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    """Prefill and decode write what is new of a micro-batch; its rows are read, and never written back."""
    config = transformers_config("llama-grouped").to_dict()
    mesh = Mesh.of(x=2)
    imported = import_model(config, "megatron", mesh, 4, 3, DType.F32, cache=6, cache_format=cache_format)
    plain = elaborate(parse(Source("llama", imported.text)))
    made = staged(plain, 2, batches)
    for func in made.funcs:
        updates = {let.operands[0]: let for let in lets_in(func.body) if isinstance(let.operation, Update)}
        for value in plain.state:
            if "N" in value.type.names:
                assert updates[value.name].operation == Update("T", ("M",)), (func.name, value.name)
    assert largest_difference(plain, made, 2, batches) < 1e-11
    path = tmp_path / "pipeline.shard"
    path.write_text(printed(made))
    done = shardwright("run", path)
    assert done.status == 0, done.err


def test_a_cache_that_wraps_around() -> None:
    """Beyond its end there is nothing to leave out: an idle stage keeps the whole of what it had."""
    text = LAYERS.replace("update[T](k, o, pos)", "update[T, wrap=true](k, o, pos + 4)")
    for batches in (1, 4):
        made = staged(program(text), 4, batches)
        assert largest_difference(program(text), made, 4, batches, calls=3) < 1e-13


@pytest.mark.one_in(3)
@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("update[T](k, o, pos)", "update[T](k, x, pos)"),
        ("set mean = mean", "set was = k\n    set mean = mean"),
        ("set mean = mean", "u = update[T](t, bias, i)\n    set mean = mean + sum[T](u) + mean"),
        ("set k = update[T](k, o, pos)", "once = update[T](k, o, pos)\n    set k = update[T](once, h, pos + 1)"),
    ],
)
def test_what_is_written(old: str, new: str, batches: int) -> None:
    """Stages may read values without layers, read another state, drop results, and set two rows in turn."""
    text = LAYERS.replace("  mean: f32 NBE\n", "  mean: f32 NBE\n  was: f32 NBTE\n  t: f32 NTE\n").replace(old, new)
    assert largest_difference(program(text), staged(program(text), 2, batches), 2, batches, calls=2) < 1e-13


def test_state_without_layers_or_rows() -> None:
    text = LAYERS.replace("mean: f32 NBE", "mean: f32 NE").replace("mean * 0.5 + o", "mean * 0.5 + scale")
    assert largest_difference(program(text), staged(program(text)), 2, 1, calls=2) < 1e-13
    with pytest.raises(DiagnosticError, match="mean, which has no dimension B, is set within the layers"):
        staged(program(text), 2, 4)
    with pytest.raises(DiagnosticError, match="mean, which has no dimension N, is set within the layers"):
        staged(program(LAYERS.replace("mean: f32 NBE", "mean: f32 BE")), 2, 1)


def test_what_stages_send_each_other() -> None:
    """In each round of M + P - 1 the hidden states of one micro-batch, and at the end the last stage's."""
    made = staged(program(LAYERS), 4, 8)
    assert made.dim("R").size == 8 + 4 - 1
    (roll,) = [let for let in lets_in(made.func("f").body) if isinstance(let.operation, Roll)]
    assert str(roll.result.type) == "f32 S_pB2E"
    assert roll.result.concrete.local_bytes(made.mesh) == 8 * 4


RUNS = (("jax", "pos: int32 B"), ("jax", "pos: int32"), ("torch", "pos: int32 B"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("to", "pos", "batches"),
    slow_unless(lambda _, pos, n: n == (4 if "B" in pos else 1), [(*r, n) for r in RUNS for n in (1, 4)]),
)
def test_what_runs(to: str, pos: str, batches: int, tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    path = tmp_path / "pipeline.shard"
    path.write_text(printed(staged(program(LAYERS.replace("pos: int32 B", pos)), 2, batches)))
    done = shardwright("run", path, "--to", to)
    assert done.status == 0, done.err


@pytest.mark.parametrize("batches", [1, 2])
def test_gradients_go_back_through_the_stages(batches: int) -> None:
    text = FEEDFORWARD.replace("N=64 E=4096 F=16384", "N=4 E=8 F=16").replace("x=4", "x=2").replace("bf16", "f32")
    check_gradients(staged(program(text), 2, batches))


def test_generation(checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    """Both phases of a model, tokens as without stages, by a checkpoint's weights."""
    folder, prompts = checkpoint("llama-grouped"), tmp_path / "prompts"
    prompts.write_text("".join(json.dumps({"tokens": tokens}) + "\n" for tokens in ([1, 5, 7], [3, 9, 2, 8], [4], [5])))
    given = ("generate", folder, "--mesh", "x=2", "--batch", "4", "--prompts", prompts, "--max-new-tokens", "5")
    plain = shardwright(*given)
    assert plain.status == 0, plain.err
    for options in ("stages=2", "stages=2,micro-batches=2"):
        done = shardwright(*given, "--passes", f"pipeline-layers{{{options}}}")
        assert (done.status, done.out) == (0, plain.out), done.err


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("text", [FEEDFORWARD, CACHED])
def test_the_price_is_that_of_stages_that_fill_and_drain(text: str, batches: int) -> None:
    """Beside `cost.programs.pipeline_cost`, which prices stages without writing them: of a program whose layers take
    nearly all of its time."""
    plain = resized(program(text), {"B": 2048})
    chip = load_chip("h100")
    one = explicit(resized(plain, {"B": 2048 // batches}))
    made = run_passes(resized(one, {"B": 2048}), [PipelineLayers(stages=2, micro_batches=batches)])
    wanted = pipeline_cost(one, one.func("f"), Stages("N", {"p": 2}), batches, chip)
    found = cost_of(made, made.func("f"), chip)
    assert found.time_s == pytest.approx(wanted.time_s, rel=0.02)
    assert found.memory.weights == wanted.memory.weights


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({}, {"stages": 3}, "N=4 does not divide over 3 stages"),
        ({}, {"stages": 1}, "pipeline-layers: there are two stages or more, and one micro-batch or more"),
        ({}, {"micro_batches": 3}, "B=8 does not divide over 3 micro-batches"),
        ({}, {"axis": "x"}, "pipeline-layers: the mesh has an axis x already"),
        ({}, {"axis": "E"}, "pipeline-layers: E is no name of a mesh axis"),
        ({}, {"axis": "set"}, "pipeline-layers: set is no name of a mesh axis"),
        ({}, {"dim": "G"}, "pipeline-layers: the program has no dimension G"),
        (
            {"return y * 2.0": "return y * sum[EF](take[N, 0](w_in))"},
            {},
            "pipeline-layers: w_in, of which each stage has its own layers, is used outside the loop over N",
        ),
        (
            {"next h + tanh(": "last = cumsum[B](h)\n    next last + tanh("},
            {"micro_batches": 2},
            "pipeline-layers: last = cumsum[B](h_sliced) mixes the rows of B, so that batches cannot be computed one"
            " after the other",
        ),
        (
            {"set k = update[T](k, o, pos)": "set k = update[TB](k, bias, 0, i)"},
            {"micro_batches": 2},
            "pipeline-layers: k_new = update[TB](k, bias, 0, i) mixes the rows of B, so that batches cannot be computed"
            " one after the other",
        ),
    ],
)
def test_what_has_no_stages(changes: dict[str, str], options: dict[str, Any], reason: str) -> None:
    text = LAYERS
    for old, new in changes.items():
        text = text.replace(old, new)
    with pytest.raises(DiagnosticError) as refused:
        run_passes(explicit(program(text)), [PipelineLayers(**options)])
    assert refused.value.diagnostics[0].message == reason


STAGES = (
    LAYERS.replace("mesh x=2", "mesh x=2 p=2")
    .replace("f32 NEF_x", "f32 N_pEF_x")
    .replace("f32 NF_xE", "f32 N_pF_xE")
    .replace("f32 NBTE", "f32 N_pBTE")
    .replace("mean: f32 NBE", "mean: f32 N_pBE")
)


@pytest.mark.parametrize("batches", [1, 4])
def test_weights_split_along_the_layers_are_stages(batches: int) -> None:
    made = load(Source("stages", STAGES), micro_batches=batches)
    assert list(made.mesh.items()) == [("x", 2), ("p", 2)]
    assert str(made.globals["w_in"].type) == "f32 N_pEF_x"
    assert largest_difference(program(LAYERS), made, 2, batches, calls=2) < 1e-13


def test_one_stage_has_all_layers() -> None:
    made = load(Source("stages", STAGES), {"p": 1}, micro_batches=2)
    assert list(made.mesh.items()) == [("x", 2), ("p", 1)]
    assert largest_difference(program(LAYERS), made, 1, 1) < 1e-13


@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", ["run", "compile", "opt", "check"])
def test_commands_take_stages(command: str, tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    path = tmp_path / "stages.shard"
    path.write_text(STAGES)
    batches = () if command == "check" else ("--micro-batches", "4")
    done = shardwright(command, path, *batches)
    assert done.status == 0, done.err
    said = {
        "run": "agrees within 3.5e-04",
        "compile": "lax.ppermute",
        "opt": "roll[p, over=S, shift=1]",
        "check": "types of one stage of 2 over p, with the layers of all",
    }
    assert said[command] in done.out
    done = shardwright(command, path, *batches, "--mesh", "p=3")
    assert (done.status, done.err.splitlines()[0]) == (
        1, f"{path}:3:9: error: N=4 does not divide over 3 stages [not-divisible]"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "mesh", "batches", "reason"),
    [
        ("", "", {"p": 3}, 1, "N=4 does not divide over 3 stages"),
        ("", "", {}, 3, "3 micro-batches do not divide B=8"),
        ("p=2", "p=2 q=2", {}, 1, "N is split over p and q"),
        ("N_p", "N", {}, 2, "--micro-batches 2 is of a pipeline, and the program has no stages"),
    ],
)
def test_stages_that_cannot_be(old: str, new: str, mesh: dict[str, int], batches: int, reason: str) -> None:
    text = STAGES.replace(old, new) if old else STAGES
    text = text.replace("N_p", "N_pq") if "q=2" in text else text
    with pytest.raises(DiagnosticError) as refused:
        load(Source("stages", text), mesh, micro_batches=batches)
    assert refused.value.diagnostics[0].message == reason


ROWS = """
    mesh {mesh}
    dim B={batch} N=4 E=8 F=16
    weights {{ w: f32 NEF
              v: f32 NFE }}
    func f(x: f32 {rows}E) -> f32 {rows}E {{
      y: f32 {rows}E = loop[N](h: f32 {rows}E = x) {{
        g: f32 {rows}F = h @[E] w
        r: f32 {rows}E = g @[F] v
        next r
      }}
      return y
    }}"""


def test_micro_batches_of_which_chips_hold_unequal_parts_are_refused() -> None:
    text = ROWS.format(mesh="x=2 y=2", batch="12 order x y", rows="B_y")
    reason = "chips hold the rows of x: f32 B_yE by the digits 2 y 3, not as many of each micro-batch"
    with pytest.raises(DiagnosticError, match=reason):
        run_passes(program(text), [PipelineLayers(micro_batches=2)])
    assert "B2=4 order x y" in printed(run_passes(program(text), [PipelineLayers(micro_batches=3)]))


def test_an_order_of_digits_that_a_micro_batch_has_no_room_for_is_left_out() -> None:
    text = ROWS.format(mesh="y=8", batch="8 order y", rows="B")
    made = run_passes(program(text), [PipelineLayers(micro_batches=4)])
    assert [dim.order for dim in made.dims if dim.name.startswith("B")] == [("y",), None]
    assert printed(program(printed(made))) == printed(made)
