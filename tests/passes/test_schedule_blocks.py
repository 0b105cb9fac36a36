"""`schedule-blocks`: the zig-zag block schedule as a program, with the meaning of the program that it was made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from oracles.block_schedules import largest_difference
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.__main__ import main
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops import Fetch, Movement, Start
from shardwright.ir.program import Func, Let, Program
from shardwright.passes.pipelines import parse_pipeline, run_passes

LAYERS = """
dim B=4 N=3 T=8 E=8 F=16 D=8
weights {
  wk: f32 NED on host
  w_in: f32 NEF on device 25% host 75% along F
  w_out: f32 NFE on disk
  scale: f32 NE
  table: f32 ED on host
}
state {
  k: f32 NBTD on disk
  m: f32 NBE on host 50% disk 50% along B
  pos: int32
}
func f(x: f32 BE) -> f32 BD {
  a = x * 0.5
  y: f32 BE on host = loop[N](h: f32 BE on host = a) {
    key: f32 BD = h @[E] wk
    set k = update[T](k, key, pos)
    set m = m + h
    s = softmax[T](key @[D] k)
    g = rename[D -> E](s @[T] k) * scale
    next h + gelu(g @ w_in) @ w_out + m
  }
  set pos = pos + 1
  return y @[E] table
}
"""

TOKENS = """
dim B=4 G=3 N=2 V=16 E=8 F=16
weights {
  embed: f32 VE
  w_in: f32 NEF on disk
  w_out: f32 NFE on host
}
state {
  k: f32 NBE on host
}
func generate(first: int32 B) -> (int32 B, f32 BV) {
  zero: f32 BV = 0.0
  last, scores = loop[G](token: int32 B = first, before: f32 BV = zero) {
    x: f32 BE on host = lookup[V](embed, token)
    y: f32 BE on host = loop[N](h: f32 BE on host = x) {
      set k = k * 0.5 + h
      next h + gelu(k @[E] w_in) @[F] w_out
    }
    logits = y @[E] embed
    next argmax[V](logits), before + logits
  }
  return last, scores
}
"""

TWO_LENGTHS = """
dim B=6 L=4 T=8 N=2 E=8 D=8
weights {
  w: f32 NED on host
  u: f32 NDE on disk
}
state {
  k: f32 NBTD on host
  pos: int32 B
}
func prefill(x: f32 BLE, length: int32 B) -> f32 BE {
  y: f32 BLE on disk = loop[N](h: f32 BLE on disk = x) {
    set k = update[T](k, h @[E] w, pos)
    p = softmax[T, causal=L]((h @[E] w) @[D] k, pos)
    next h + (p @[T] k) @[D] u
  }
  set pos = pos + length
  return lookup[L](y, length - 1)
}
func decode[L=1](x: f32 BLE) -> f32 BE {
  y: f32 BLE on disk = loop[N](h: f32 BLE on disk = x) {
    set k = update[T](k, h @[E] w, pos)
    p = softmax[T, causal=L]((h @[E] w) @[D] k, pos)
    next h + (p @[T] k) @[D] u
  }
  set pos = pos + 1
  return take[L, 0](y)
}
"""

ON_TWO_CHIPS = """
mesh x=2
dim B=4 N=3 E=8 F=16
weights {
  w_in: f32 NEF_x on host
  w_out: f32 NF_xE on disk
}
state { k: f32 NBE_x on host }
func f(x: f32 BE) -> f32 BE {
  y: f32 BE on host = loop[N](h: f32 BE on host = x) {
    set k = k + h
    next gelu(h @ w_in) @ w_out + k
  }
  return y * 2.0
}
"""

MOVED_LENGTHS = """
mesh x=2
dim B=6 L=4 N=2 E=8
weights { w: f32 NE }
func prefill(first: f32 BLHIDDEN, length: int32 B) -> f32 BE {
  y: f32 BLHIDDEN = loop[N](h: f32 BLHIDDEN = first) {
    part: f32 BL_xE = MOVEMENT
    next BACK(part * w)
  }
  return lookup[L](y, length - 1)
}
func decode[L=2](first: f32 BLHIDDEN) -> f32 BE {
  y: f32 BLHIDDEN = loop[N](h: f32 BLHIDDEN = first) {
    part: f32 BL_xE = MOVEMENT
    next BACK(part * w)
  }
  return take[L, 0](y)
}
"""

EXPLICIT = "offload,decompose,cleanup,place,choose-digit-order{tied=true},insert-moves,cleanup,choose-digit-order"


def scheduled(text: str, count: int, before: str = "offload") -> tuple[Program, Program]:
    """A program, and its schedule in blocks of `count` batches."""
    made = program(text)
    return made, run_passes(made, parse_pipeline(f"{before},schedule-blocks{{batches={count}}}"))


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    before = run_passes(program(LAYERS), parse_pipeline("offload"))
    golden("passes/schedule_blocks_before.shard", printed(before))
    golden("passes/schedule_blocks.shard", printed(run_passes(before, parse_pipeline("schedule-blocks"))))


def test_a_loop_over_tokens_around(golden: Callable[[str, str], None]) -> None:
    golden("passes/schedule_blocks_tokens.shard", printed(scheduled(TOKENS, 2)[1]))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("text", [LAYERS, TOKENS], ids=["layers", "tokens"])
def test_the_meaning_stays(text: str, count: int) -> None:
    plain, made = scheduled(text, count)
    assert largest_difference(plain, program(printed(made)), count) < 1e-14


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_lengths_that_functions_change_are_dimensions_of_their_own(count: int) -> None:
    plain, made = scheduled(TWO_LENGTHS, count)
    assert {value.name: str(value.type) for value in made.state[2:]} == {
        "prefill_h": f"f32 {'MBL2E'} on disk",
        "decode_h": f"f32 {'MBL3E'} on disk",
    }
    assert largest_difference(plain, program(printed(made)), count) < 1e-14


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("hidden", "movement", "back"),
    [
        ("E", "slice[x -> L](h)", "all_gather[x]"),
        ("E_x", "all_to_all[x: E -> L](h)", "all_to_all[x: L -> E]"),
        ("E_x", "permute[E: x -> {}, L: {} -> x](h)", "permute[L: x -> {}, E: {} -> x]"),
    ],
)
def test_what_moves_hidden_states_names_their_lengths(hidden: str, movement: str, back: str, count: int) -> None:
    text = MOVED_LENGTHS.replace("HIDDEN", hidden).replace("MOVEMENT", movement).replace("BACK", back)
    plain, made = scheduled(text, count, EXPLICIT)
    assert largest_difference(plain, program(printed(made)), count) < 1e-14


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("count", [1, 2])
def test_few_layers_and_batches(layers: int, count: int) -> None:
    plain, made = scheduled(LAYERS.replace("N=3", f"N={layers}"), count)
    assert largest_difference(plain, made, count) < 1e-14


@pytest.mark.parametrize("count", [1, 2])
def test_weights_on_several_chips(count: int) -> None:
    plain, made = scheduled(ON_TWO_CHIPS, count, EXPLICIT)
    assert largest_difference(plain, program(printed(made)), count) < 1e-13


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["opt", "llama-grouped", "falcon", "mixtral"])
def test_models(name: str) -> None:
    from oracles.offloaded_models import placed_model

    plain = placed_model(name, rows=4, length=3, cache=6, policy="4,1,20,30,0,100,0,50")
    made = run_passes(plain, parse_pipeline("offload,schedule-blocks{batches=2}"))
    assert largest_difference(plain, program(printed(made)), 2) < 1e-12


def moved(made: Program, func: Func) -> dict[str, int]:
    """How often a slice of each value comes to the device in one call; what is beyond the last trip does not."""
    sizes = made.sizes(func)
    counts: dict[str, int] = {}
    for statement, loops in func.walk():
        if not isinstance(statement, Let) or not isinstance(statement.operation, Movement):
            continue
        fetch = statement.operation.moves
        if not isinstance(fetch, Fetch):
            continue
        trips = 1
        for loop in loops:
            trips *= sizes[loop.dim]
        name = str(statement.operands[0]).partition("_0")[0]
        counts[name] = counts.get(name, 0) + trips - (1 if fetch.ahead and not fetch.wrap else 0)
    return counts


@pytest.mark.parametrize("count", [1, 2, 4])
def test_weights_are_loaded_once_for_all_batches(count: int) -> None:
    _, made = scheduled(LAYERS, count)
    found = moved(made, made.funcs[0])
    weights = dict.fromkeys(("wk", "w_in", "w_out"), 3) | {"table": 1}
    assert {name: found[name] for name in weights} == weights
    assert (found["k"], found["m"]) == (3 * count, 3 * count)
    # One batch's hidden states too many where they are prefetched, and once more after the layers.
    assert found["h_state"] == 3 * count + (1 if count > 1 else 0) + count


def test_a_loop_over_tokens_keeps_weights_under_way() -> None:
    """One load of each layer for every token, and of the first layer one more after the last of them."""
    _, made = scheduled(TOKENS, 2)
    found = moved(made, made.funcs[0])
    assert (found["w_in"], found["w_out"], found["k"]) == (3 * 2 + 1, 3 * 2 + 1, 3 * 2 * 2 + 1)


def test_what_is_prefetched_is_under_way_while_something_is_computed() -> None:
    """Between the start of each prefetch in a loop and its landing there is the rest of a trip."""
    _, made = scheduled(LAYERS, 2)
    for statement, loops in made.funcs[0].walk():
        if isinstance(statement, Let) and isinstance(statement.operation, Start) and loops:
            name = statement.result.name
            if isinstance(statement.operation.movement, Fetch):
                assert name in loops[-1].following
            else:  # stores end with the turn
                assert name == "key_going"


def test_under_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = LAYERS.replace("on device 25% host 75% along F", "on host").replace("on disk", "on host")
    text = text.replace("on host 50% disk 50% along B", "on host")
    file = tmp_path / "scheduled.shard"
    file.write_text(printed(scheduled(text, 2)[1]), encoding="utf-8")
    assert main(["run", str(file)]) == 0
    assert "agrees" in capsys.readouterr().out


def test_under_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its values where it has them, in pieces on device, host and disk."""
    file = tmp_path / "scheduled.shard"
    file.write_text(printed(scheduled(LAYERS, 2)[1]), encoding="utf-8")
    assert main(["run", str(file), "--to", "torch"]) == 0
    assert "agrees" in capsys.readouterr().out


@pytest.mark.slow
def test_under_pytorch_on_two_chips(tmp_path: Path) -> None:
    import subprocess
    import sys

    file = tmp_path / "scheduled.shard"
    file.write_text(printed(scheduled(ON_TWO_CHIPS, 2, EXPLICIT)[1]), encoding="utf-8")
    command = [sys.executable, "-m", "shardwright", "run", str(file), "--to", "torch"]
    got = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert got.returncode == 0, got.stderr
    assert "agrees" in got.stdout


FAULTS = {
    "a sum over the batch": (
        LAYERS.replace("a = x * 0.5", "a = x * 0.5 / sum[B](x)"),
        "schedule-blocks",
        "a_sum = sum[B](x) mixes the rows of B, so that batches cannot be computed one after the other",
    ),
    "batches that do not divide": (
        LAYERS,
        "schedule-blocks{batches=3}",
        "B=4 rows cannot be divided into 3 equal batches",
    ),
    "another dimension": (LAYERS, "schedule-blocks{batch=Q}", "the program has no dimension Q"),
    "no loop over layers": (
        "dim B=4 E=8\nfunc f(x: f32 BE) -> f32 BE {\n  y = x * 2.0\n  return y\n}\n",
        "schedule-blocks",
        "no function has a loop over layers that carries rows of B",
    ),
    "a carry without rows": (
        LAYERS.replace("loop[N](h: f32 BE on host = a)", "loop[N](h: f32 BE on host = a, t: int32 = pos)")
        .replace("@ w_out + m", "@ w_out + m, t + 1")
        .replace("y: f32 BE on host = loop", "y: f32 BE on host, t_last = loop"),
        "schedule-blocks",
        "the loop over N carries t: int32, which has no rows of B",
    ),
    "state of the whole block": (
        LAYERS.replace("    s = softmax", "    set pos = pos + 1\n    s = softmax"),
        "schedule-blocks",
        "pos, which has no rows of B, is set in the loop over layers",
    ),
    "twice": (LAYERS, "schedule-blocks,schedule-blocks{batch=M}", "f has a schedule already"),
    "diagonal": (LAYERS, "schedule-blocks{order=diagonal}", "the diagonal order needs a function prefill"),
    "an order that there is not": (LAYERS, "schedule-blocks{order=row}", "order is zigzag or diagonal, not row"),
    "rows split over more chips than there are": (
        ON_TWO_CHIPS.replace("x: f32 BE)", "x: f32 B_xE)"),
        "schedule-blocks{batches=4}",
        "x: f32 B_xE splits B over 2 chips, which do not divide a batch of 1",
    ),
    "rows of a result split over more chips than there are": (
        ON_TWO_CHIPS.replace("-> f32 BE", "-> f32 B_xE"),
        "schedule-blocks{batches=4}",
        "the result of f: f32 B_xE splits B over 2 chips, which do not divide a batch of 1",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_cannot_be_scheduled(case: str) -> None:
    text, passes, message = FAULTS[case]
    with pytest.raises(DiagnosticError) as caught:
        run_passes(program(text), parse_pipeline(f"offload,{passes}"))
    assert message in str(caught.value)
    assert caught.value.diagnostics[0].code in {"unschedulable", "bad-option"}


def test_an_order_of_digits_that_a_batch_has_no_room_for_is_left_out() -> None:
    text = ON_TWO_CHIPS.replace("dim B=4 ", "dim B=4 order x ")
    made = run_passes(program(text), parse_pipeline("offload,schedule-blocks{batches=4}"))
    assert made.dim("B").order is None
    assert printed(program(printed(made))) == printed(made)
