"""Values in flight and what the next trip sees: in the simulator, under JAX and PyTorch, in pictures and in print."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.jax_agreement import check, explicit
from program_text import program

from shardwright.backends.graph import draw
from shardwright.backends.jax.emit import emit
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.compiling.compile_program import print_program

STARTED = """mesh x=2 y=2
dim E=8 order x y F=4
weights { w: f32 E_xyF }
func f(a: f32 E_xF(partialsum-y)) -> (f32 EF, f32 E_xF) {
  w_1 = start(all_gather[xy](w))
  a_1 = start(all_reduce[y](a))
  b = wait(a_1)
  whole = wait(w_1)
  return whole, b
}
"""

AHEAD = """dim N=3 M=2 E=4
weights {{ w: f32 NE on host
          k: f32 NME on host }}
func f(a: f32 E) -> (f32 N0E, f32 N0M0E) {{
  zero: f32 N0E = 0.0
  zeros: f32 N0M0E = 0.0
  ws, ks = loop[N as i](made: f32 N0E = zero, rows: f32 N0M0E = zeros) {{
    w_1 = prefetch[ahead=N{wrap}](w)
    empty: f32 M0E = 0.0
    full_row = loop[M as m](row: f32 M0E = empty) {{
      k_1 = prefetch[ahead={dims}{wrap}](k)
      next update[M0](row, wait(k_1), m)
    }}
    next update[N0](made, wait(w_1), i), update[N0](rows, full_row, i)
  }}
  return ws, ks
}}
dim N0=3 M0=2
"""


def test_started_collectives_are_collectives() -> None:
    made = check(STARTED)
    source = emit(made)
    assert "w_1 = lax.all_gather(w, ('x', 'y'), axis=0, tiled=True, to='invarying')  # f32 EF in flight" in source
    assert "whole = w_1  # f32 EF" in source
    arrays = {"a": np.ones((8, 4))}
    found = simulate(made, "f", arrays, {"w": np.ones((8, 4))})
    assert found.bytes_received == {"w_1": 3 * 2 * 4 * 4, "a_1": 4 * 4 * 4, "b": 0, "whole": 0}
    assert print_program(program(print_program(made))) == print_program(made)


def successor(n: int, m: int, dims: str, *, wrap: bool) -> tuple[int, int] | None:
    """Where a trip's next one is, by counting."""
    if dims == "M":
        return (n, m + 1) if m < 1 else (n, 0) if wrap else None
    if dims == "N":
        return (n + 1, m) if n < 2 else (0, m) if wrap else None
    following = n * 2 + m + 1
    return divmod(following % 6, 2) if following < 6 or wrap else None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("dims", ["N", "M", "NM"])
def test_what_the_next_trip_sees(dims: str, wrap: bool) -> None:
    text = AHEAD.format(dims=dims, wrap=", wrap=true" if wrap else "")
    made = check(text)  # under JAX
    w, k = np.arange(1.0, 13).reshape(3, 4), np.arange(1.0, 25).reshape(3, 2, 4)
    (ws, ks), _ = evaluate(made, "f", {"a": np.zeros(4)}, {"w": w, "k": k})
    for n in range(3):
        assert (ws[n] == (w[(n + 1) % 3] if n < 2 or wrap else 0)).all()
        for m in range(2):
            at = successor(n, m, dims, wrap=wrap)
            assert (ks[n, m] == (0 if at is None else k[at])).all()
    assert all((a == b).all() for a, b in zip(simulate(made, "f", {"a": np.zeros(4)}, {"w": w, "k": k}).results,
                                              (ws, ks), strict=True))  # fmt: skip


def test_under_pytorch() -> None:
    from shardwright.backends.torch.session import run_program
    from shardwright.backends.torch.world import alone

    made = explicit(AHEAD.format(dims="NM", wrap=""))
    w, k = np.arange(1.0, 13).reshape(3, 4), np.arange(1.0, 25).reshape(3, 2, 4)
    wanted, _ = evaluate(made, "f", {"a": np.zeros(4)}, {"w": w, "k": k})
    found, _ = run_program(made, "f", {"a": np.zeros(4)}, {"w": w, "k": k}, world=alone())
    assert all((a == b).all() for a, b in zip(found, wanted, strict=True))


def test_a_value_that_is_used_again_may_not_be_freed_in_place() -> None:
    text = """dim N=2 E=4
weights { w: f32 NE on host }
func f(a: f32 E) -> f32 E {
  y = loop[N](h: f32 E = a) {
    b = fetch(w)
    c = h * b
    free b
    next c
  }
  return y
}
"""
    made = check(text)
    assert "free b" in print_program(made)
    assert "b = jax.device_put(w, jax.memory.Space.Device)  # f32 E" in emit(made)


def test_pictures_name_what_is_started() -> None:
    made = explicit(AHEAD.format(dims="NM", wrap=""))
    drawn = draw(made).dot
    assert "<B>prefetch</B> ahead=NM" in drawn
    assert "in flight" in drawn
    assert "<B>start all_gather</B> xy" in draw(explicit(STARTED)).dot
