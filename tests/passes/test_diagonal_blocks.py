"""`schedule-blocks{order=diagonal}`: batches at tokens of their own share a pass over the layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy.typing as npt
import pytest
from oracles.diagonal_blocks import beginnings, largest_difference
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.__main__ import main
from shardwright.backends.number_formats import Array
from shardwright.backends.simulation.simulator import simulate
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops import Fetch, Movement
from shardwright.ir.program import Let, Program
from shardwright.passes.pipelines import parse_pipeline, run_passes

MODEL = """
dim B=2 L=4 T=8 N=3 E=8 D=8
weights {
  w: f32 NED on host
  q: int8 NED on disk
  s: f32 ND on host
  u: f32 NDE on device 25% host 75% along E
  out: f32 ED on host
}
state {
  k: f32 NBTD on disk
  seen: f32 BE on host 50% disk 50% along E
  pos: int32 B
}
func prefill(x: f32 BLE, length: int32 B) -> f32 BD {
  y: f32 BLE on disk = loop[N as i](h: f32 BLE on disk = x) {
    set k = update[T](k, h @[E] w, pos)
    p = softmax[T, causal=L]((h @[E] (convert[f32](q) * s)) @[D] k * (1 + convert[f32](i)), pos)
    next h + (p @[T] k) @[D] u
  }
  set seen = seen + sum[L](x)
  set pos = pos + length
  return (lookup[L](y, length - 1) + seen) @[E] out
}
func decode[L=1](x: f32 BLE) -> f32 BD {
  y: f32 BLE on disk = loop[N as i](h: f32 BLE on disk = x) {
    set k = update[T](k, h @[E] w, pos)
    p = softmax[T, causal=L]((h @[E] (convert[f32](q) * s)) @[D] k * (1 + convert[f32](i)), pos)
    next h + (p @[T] k) @[D] u
  }
  set seen = seen * 0.5 + take[L, 0](x)
  set pos = pos + 1
  return (take[L, 0](y) + seen) @[E] out
}
"""

ON_TWO_CHIPS = (
    MODEL.replace("\ndim", "\nmesh x=2\ndim")
    .replace("NED", "NED_x")
    .replace("NBTD", "NBTD_x")
    .replace("ND on", "ND_x on")
    .replace("NDE on", "ND_xE on")
)
EXPLICIT = "offload,decompose,cleanup,place,choose-digit-order{tied=true},insert-moves,cleanup,choose-digit-order,"


def diagonal(text: str, places: int, before: str = "offload,") -> tuple[Program, Program]:
    """The program for one batch, and the schedule of a block with `places` for batches."""
    block = program(text.replace("B=2", f"B={2 * places}"))
    made = run_passes(block, parse_pipeline(f"{before}schedule-blocks{{order=diagonal,batches={places}}}"))
    return program(text), program(printed(made))


def on_chips(
    made: Program, func: str, args: Mapping[str, npt.ArrayLike], weights: Mapping[str, npt.ArrayLike],
    state: Mapping[str, npt.ArrayLike],
) -> tuple[Sequence[Array], Mapping[str, Array]]:  # fmt: skip
    found = simulate(made, func, args, weights, state)
    return found.results, found.state


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    block = program(MODEL.replace("B=2", "B=4"))
    golden("passes/diagonal_blocks_before.shard", printed(run_passes(block, parse_pipeline("offload"))))
    golden("passes/diagonal_blocks.shard", printed(diagonal(MODEL, 2)[1]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("places", "tokens"), [(1, 2), (2, 3), (3, 4), (2, 5), (1, 4)])
def test_every_batch_is_as_by_itself(places: int, tokens: int) -> None:
    """Batches enter, go on and end at tokens of their own; where one ends another begins in the same pass."""
    plain, made = diagonal(MODEL, places)
    batches = 2 * places + 1
    worst, ends = largest_difference(plain, made, on_chips, batches=batches, tokens=tokens, places=places)
    assert worst < 1e-13
    assert ends == [start + tokens for start in beginnings(batches, tokens, places)]


def test_on_two_chips() -> None:
    plain, made = diagonal(ON_TWO_CHIPS, 2, EXPLICIT)
    assert largest_difference(plain, made, on_chips, batches=3, tokens=3, places=2)[0] < 1e-12


@pytest.mark.parametrize("name", ["opt", "mixtral"])
def test_models(name: str) -> None:
    from oracles.offloaded_models import placed_model

    policy = "4,1,20,30,0,100,0,50"
    plain = placed_model(name, rows=2, length=3, cache=6, policy=policy)
    block = placed_model(name, rows=4, length=3, cache=6, policy=policy)
    made = run_passes(block, parse_pipeline("offload,schedule-blocks{order=diagonal,batches=2}"))
    assert largest_difference(plain, made, on_chips, batches=3, tokens=3, places=2)[0] < 1e-12


def test_batches_share_the_loads_of_weights() -> None:
    """Each layer's weights set out once in a pass, for the batch that begins and for those that go on."""
    _, made = diagonal(MODEL, 3)
    for func in made.funcs:
        loads = [
            (str(s.operands[0]).removesuffix("_0"), len(loops), s.operation.moves.ahead)
            for s, loops in func.walk()
            if isinstance(s, Let) and isinstance(s.operation, Movement) and isinstance(s.operation.moves, Fetch)
            if str(s.operands[0]).removesuffix("_0") in {value.name for value in made.weights}
        ]
        layers = [load for name in "qsuw" for load in ((name, 0, ()), (name, 1, ("N",)))]
        assert sorted(loads) == sorted([*layers, ("out", 0, ())])


def test_half_the_mean_time_to_completion() -> None:
    """Warm, one of n batches ends after every pass: (n + 1) / 2n of the n passes of a zig-zag block, on average."""
    n = 4
    plain, made = diagonal(MODEL, n - 1)
    _, ends = largest_difference(plain, made, on_chips, batches=2 * n, tokens=n, places=n - 1)
    warm = [end - ends[n - 1] for end in ends[n:]]
    assert sum(warm) / n == (n + 1) / 2


def written(folder: Path, text: str) -> str:
    file = folder / "diagonal.shard"
    file.write_text(printed(diagonal(text, 2)[1]), encoding="utf-8")
    return str(file)


def test_under_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its values where it has them, in pieces on device, host and disk."""
    assert main(["run", written(tmp_path, MODEL), "--to", "torch"]) == 0
    assert "agrees" in capsys.readouterr().out


def test_under_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = MODEL.replace("on device 25% host 75% along E", "on host").replace("on host 50% disk 50% along E", "on host")
    assert main(["run", written(tmp_path, text.replace("on disk", "on host"))]) == 0
    assert "agrees" in capsys.readouterr().out


FAULTS = {
    "no function in which a batch begins": (
        MODEL.replace("func prefill", "func first"),
        "schedule-blocks: enters: the diagonal order needs a function prefill in which a batch begins, and the program"
        " has first, decode",
    ),
    "a position of the whole block": (
        MODEL.replace("pos: int32 B", "pos: int32").replace("length: int32 B", "length: int32"),
        "pos: int32 is set, and has no rows of B: in the diagonal order each batch is at a token of its own",
    ),
    "state that nothing sets": (
        MODEL.replace("  set seen = seen + sum[L](x)\n", "").replace("  set seen = seen * 0.5 + take[L, 0](x)\n", ""),
        "seen is state that nothing sets: what it is for a batch that begins is not said",
    ),
    "a layer's state after the layers": (
        MODEL.replace("(take[L, 0](y) + seen)", "(take[L, 0](y) + seen + sum[NT](rename[D -> E](k)))"),
        "decode reads k after its layers, where the batch that begins has taken its place",
    ),
    "a layer's state before the layers": (
        MODEL.replace(
            "  y: f32 BLE on disk = loop[N as i](h: f32 BLE on disk = x) {\n",
            "  z = sum[NT](k)\n  y: f32 BLE on disk = loop[N as i](h: f32 BLE on disk = x) {\n",
            1,
        ).replace("@[E] out", "@[E] out + z", 1),
        "prefill reads k outside its loop over N",
    ),
    "a loop over tokens": (
        MODEL.replace("T=8", "T=8 G=2")
        .replace(
            "func decode[L=1](x: f32 BLE) -> f32 BD {",
            "func decode[L=1](x: f32 BLE) -> f32 BLE {\n  z = loop[G](g = x) {",
        )
        .replace("  set seen = seen * 0.5 + take[L, 0](x)", "  next y\n  }\n  set seen = seen * 0.5")
        .replace("  return (take[L, 0](y) + seen) @[E] out", "  return z"),
        "decode goes through its layers in a loop around, and the diagonal order is one pass over the layers",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_cannot_be_scheduled(case: str) -> None:
    text, message = FAULTS[case]
    with pytest.raises(DiagnosticError) as caught:
        diagonal(text, 2)
    assert message in str(caught.value)
    assert caught.value.diagnostics[0].code in {"unschedulable", "bad-option"}
    assert caught.value.diagnostics[0].notes
