"""`offload`: fetches and stores where values live elsewhere, and the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.compiling.compile_program import print_program
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops import Fetch, Store
from shardwright.ir.program import Let
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes

LAYERS = """
dim B=4 N=2 E=32 F=64
weights {
  table: f32 E on host
  w_in: f32 NEF on device 25% host 75% along F
  w_out: f32 NFE on disk
}
state {
  k: f32 NBE on disk
  m: f32 NBE on host 50% disk 50% along B
}
func f(x: f32 BE) -> f32 BE {
  a = x * table
  y: f32 BE = loop[N](h: f32 BE on host = a) {
    set k = k + h
    set m = k * 2.0
    next gelu(h @ w_in) @ w_out + k
  }
  return y * table
}
"""


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    golden("passes/offload.shard", printed(run_passes(program(LAYERS), [Offload()])))


def test_the_meaning_stays() -> None:
    before = program(LAYERS)
    after = run_passes(before, [Offload()])
    inputs = random_inputs(before, "f", 0)
    (wanted,), state = evaluate(before, "f", inputs.args, inputs.weights, inputs.state)
    (found,), kept = evaluate(after, "f", inputs.args, inputs.weights, inputs.state)
    assert (found == wanted).all()
    assert all((kept[name] == state[name]).all() for name in state)


def test_what_lives_on_the_device_stays() -> None:
    before = program("dim B=4 E=8\nfunc f(x: f32 BE, w: f32 E) -> f32 BE {\n  y: f32 BE = x * w\n  return y\n}")
    assert run_passes(before, [Offload()]) == before


ON_HOST = """
mesh x=2
dim B=4 N=2 E=8 F=16
weights {
  table: f32 E on host
  w: f32 NEF_x on host
}
state { k: f32 NBE_x on host }
func f(x: f32 BE) -> f32 BE {
  y: f32 BE on host = loop[N](h: f32 BE on host = x * table) {
    set k = k + h
    next rename[F -> E](take[F 0:8](h @[E] w)) + k
  }
  return y * table
}
"""


def test_a_compiled_program_copies_what_lives_elsewhere() -> None:
    made = explicit(program(ON_HOST))
    fetched = [
        str(s.operands[0]) for s, _ in made.funcs[0].walk() if isinstance(s, Let) and isinstance(s.operation, Fetch)
    ]
    # The table is fetched again after the loop, and does not stay in between.
    assert sorted(name for name in fetched if name in {"table", "w", "k"}) == ["k", "k", "table", "table", "w"]
    assert any(isinstance(s.operation, Store) for s, _ in made.funcs[0].walk() if isinstance(s, Let))


def test_it_runs_under_jax(tmp_path: Path, shardwright: Callable) -> None:
    file = tmp_path / "host.shard"
    file.write_text(ON_HOST, encoding="utf-8")
    got = shardwright("run", file)
    assert (got.status, "agrees" in got.out) == (0, True), got.err


def test_an_open_placement_is_for_a_policy() -> None:
    for text in (LAYERS.replace("w_out: f32 NFE on disk", "w_out: f32 NFE on ?"),
                 LAYERS.replace("h: f32 BE on host = a", "h: f32 BE on ? = a")):  # fmt: skip
        with pytest.raises(DiagnosticError) as caught:
            run_passes(program(text), [Offload()])
        (fault,) = caught.value.diagnostics
        assert fault.code == "open-type"
        assert fault.message.endswith("on ? leaves its placement open")


def test_what_is_scheduled_stays() -> None:
    made = run_passes(program(LAYERS), parse_pipeline("offload,schedule-blocks"))
    assert run_passes(made, [Offload()]) == made


def test_what_goes_to_several_memories_is_stored_by_a_demand() -> None:
    before = program(LAYERS)
    made = explicit(before)
    stored = [str(s.result.type) for s, _ in made.funcs[0].walk() if isinstance(s, Let) and s.result.name == "m_new"]
    assert stored == ["f32 BE on host 50% disk 50% along B"]
    inputs = random_inputs(before, "f", 0)
    (wanted,), state = evaluate(before, "f", inputs.args, inputs.weights, inputs.state)
    found = simulate(made, "f", inputs.args, inputs.weights, inputs.state)
    assert abs(found.results[0] - wanted).max() < 1e-12
    assert all(abs(found.state[name] - state[name]).max() < 1e-12 for name in state)


DECODE = """
dim B=4 N=2 L=1 T=8 K=2 D=4
state {
  k: f32 NBTKD on host
  v: f32 NBTKD on host
  pos: int32 B
}
func prefill[L=3](x: f32 BLKD) -> f32 BLKD {
  y = loop[N](h: f32 BLKD = x) {
    set k = update[T](k, h, pos)
    set v = update[T](v, h * 2.0, pos)
    next attend[T, D, causal=L](h, k, v, pos=pos) + h
  }
  return y
}
func decode(x: f32 BLKD) -> f32 BLKD {
  y = loop[N](h: f32 BLKD = x) {
    set k = update[T](k, h, pos)
    set v = update[T](v, h * 2.0, pos)
    o = attend[T, D, causal=L](h, k, v, pos=pos)
    next o + h
  }
  return y
}
"""


def test_attention_on_the_host(golden: Callable[[str, str], None]) -> None:
    """Where queries have one position: rows and queries are stored, the result is fetched, the cache stays."""
    golden("passes/offload_attention.shard", printed(run_passes(program(DECODE), [Offload("host")])))


@pytest.mark.parametrize("text", [DECODE, DECODE.replace("    o = ", "    o: f32 BLKD on host = ")])
@pytest.mark.parametrize("attention", ["device", "host"])
def test_attention_means_the_same_wherever_it_is(text: str, attention: str) -> None:
    before = program(text)
    after = run_passes(before, [Offload(attention)])
    there = attention == "host" or "o: f32" in text
    assert ("on host = attend" in print_program(after)) is there
    for func in ("prefill", "decode"):
        inputs = random_inputs(before, func, 0)
        (wanted,), state = evaluate(before, func, inputs.args, inputs.weights, inputs.state)
        (found,), kept = evaluate(after, func, inputs.args, inputs.weights, inputs.state)
        assert (found == wanted).all()
        assert all((kept[name] == state[name]).all() for name in state)


def test_a_cache_that_is_no_whole_on_the_host_is_fetched() -> None:
    for tier in ("disk", "device 50% host 50% along T"):
        text = DECODE.replace("k: f32 NBTKD on host", f"k: f32 NBTKD on {tier}")
        assert run_passes(program(text), [Offload("host")]) == run_passes(program(text), [Offload()])


def test_attention_is_on_device_or_host() -> None:
    with pytest.raises(DiagnosticError, match="offload: attention is device or host, not disk"):
        run_passes(program(DECODE), parse_pipeline("offload{attention=disk}"))


def test_attention_on_the_host_runs_under_jax_and_torch(tmp_path: Path, shardwright: Callable) -> None:
    file = tmp_path / "decode.shard"
    file.write_text(DECODE.replace("    o = ", "    o: f32 BLKD on host = "), encoding="utf-8")
    for to in ("jax", "torch"):
        got = shardwright("run", file, "--to", to)
        assert (got.status, "agrees" in got.out) == (0, True), got.err


MADE_ELSEWHERE = {
    "by the host": """
        dim B=64 T=512 D=64
        func f(x: f32 BD on host, k: f32 BTD on host) -> f32 BD on host {
          o: f32 BD on host = attend[T, D](x, k, k)
          return o
        }
    """,
    "part of it": """
        dim B=64 T=512 D=64
        func f(x: f32 BD on host, k: f32 BTD on host) -> f32 D on host {
          o: f32 BD on host = attend[T, D](x, k, k)
          return take[B, 0](o)
        }
    """,
    "to disk": """
        dim B=2000 E=2000
        func f(x: f32 BE) -> f32 BE on disk {
          g: f32 BE on disk = x + 1
          return g
        }
    """,
    "positions there": """
        dim B=2 T=6
        state {
          k: f32 BT on host
          p: int32 on host
        }
        func f(n: f32 B on host) -> f32 BT {
          set k = update[T](k, n, p)
          return k
        }
    """,
    "a length there": """
        dim L=2 D=4 T=6
        func f(q: f32 LD on host, k: f32 TD on host, p: int32 on host) -> f32 LD {
          return attend[T, D](q, k, k, length=p)
        }
    """,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("made", MADE_ELSEWHERE)
def test_what_is_made_elsewhere_is_waited_for(made: str, tmp_path: Path, shardwright: Callable) -> None:
    """A result is read when the host has computed it, or the disk has it; positions are brought to the device."""
    file = tmp_path / "made.shard"
    file.write_text(MADE_ELSEWHERE[made], encoding="utf-8")
    for to in ("torch", "torch", *(() if made == "to disk" else ("jax",))):
        got = shardwright("run", file, "--to", to)
        assert (got.status, "agrees" in got.out) == (0, True), got.err or got.out
