"""Bytes on one chip, by hand."""

from __future__ import annotations

import pytest
from oracles.example_programs import load
from program_text import program

from shardwright.cost.programs.memory import MemoryUse, memory_of
from shardwright.ir.verification.completion import complete
from shardwright.passes.pipelines import explicit


def memory(text: str, *, copied_slices: bool = False) -> MemoryUse:
    """Of the function f."""
    made = complete(program(text))
    return memory_of(made, made.func("f"), copied_slices=copied_slices)


def live(found: MemoryUse) -> list[tuple[str, int]]:
    return [(value.name, value.bytes) for value in found.live]


def test_a_feedforward_layer() -> None:
    """a 64 bytes, h 128, y 64 on each of 2 chips: the second product holds a, which is the caller's, h and y."""
    found = memory("""
mesh x=2
dim B=4 E=8 F=32
weights {
  w: EF_x
  w2: F_xE
}
func f(a: BE) -> BE(partialsum-x) {
  h: BF_x = a @ w
  y: BE(partialsum-x) = gelu(h) @ w2
  return y
}
""")
    assert found == MemoryUse(2 * 8 * 16 * 2, 0, 256, found.live, "y")
    assert live(found) == [("y_gelu", 128), ("a", 64), ("y", 64)]
    assert found.peak == 512 + 256


def test_values_die_with_their_last_reader() -> None:
    """a, which is the caller's, and two of the other three at a time, 32 bytes each."""
    found = memory("""
dim B=4 E=4 F=4
weights { w: EF }
func f(a: BE) -> BF {
  b: BF = a @ w
  c: BE = b @ w
  d: BF = c @ w
  return d
}
""")
    assert found == MemoryUse(32, 0, 96, found.live, "c")
    assert live(found) == [("a", 32), ("b", 32), ("c", 32)]


def test_a_pointwise_kernel_writes_over_what_it_is_the_last_to_read() -> None:
    """g takes h's bytes, while the maxima of 8 bytes and the arguments stay."""
    found = memory("""
dim B=4 E=4 F=4
func f(a: BE, w: EF) -> BF {
  h: BF = a @ w
  m: B = max[F](h)
  g: BF = h - m
  return g
}
""")
    assert (found.activations, found.at) == (32 + 32 + 32 + 8, "m")


def test_state_is_updated_in_place() -> None:
    text = """
mesh x=2
dim B=4 T=8 D=2
state {{ k: B_xTD }}
func f(new: B_xD, pos: int32) -> B_xD {{
  k2 = update[T](k, new, pos)
  {between}
  set k = k2
  return new
}}
"""
    found = memory(text.format(between=""))
    assert (found.state, found.activations) == (2 * 8 * 2 * 2, 8 + 4)
    kept = text.replace("return new", "return o").format(between="o: B_xD = sum[T](k)")
    assert memory(kept).activations == 8 + 4 + 64 + 8  # the old version is read after the new one is made


def test_a_loop_counts_its_body_once_with_the_carried_value_in_place() -> None:
    """Two layers at a time would be 2 x 128. h 64 bytes, its product 128 and the next h 64; x became h."""
    found = memory("""
mesh x=2
dim B=4 E=8 F=16 N=118
weights {
  w: NEF
  w2: NFE
}
func f(a: BE) -> BE {
  x: BE = a * 2.0
  y: BE = loop[N](h: BE = x) {
    g: BF = h @ w
    n: BE = g @ w2
    next n
  }
  return y
}
""")
    assert found.weights == 118 * 2 * 8 * 16 * 2
    assert live(found) == [("g", 128), ("a", 64), ("h", 64)]
    assert found.activations == 256


def test_weights_in_host_memory_do_not_count() -> None:
    found = memory("""
mesh x=2
dim B=4 E=8 F=16
weights {
  w: EF_x on device 25% host 75% along E
  w2: EF_x on host
}
func f(a: BE) -> BE {
  return a
}
""")
    assert found.weights == 8 * 8 * 2 // 4


def test_palm_540b_on_64_chips() -> None:
    """Weights of 118 layers and one embedding; a cache of 2 x 118 x 512 x 2048 x 256 bf16 over 64 chips."""
    made = explicit(load("13_palm_model"))
    found = memory_of(made, made.func("decode"))
    E, F, H, D, V = 18432, 73728, 64, 256, 256000
    split = (3 * E * F + 2 * E * H * D) // 64
    assert found.weights == 2 * (118 * (split + 2 * E * D // 4) + V * E // 64) + 4 * 119 * E // 64
    assert found.state == 2 * 118 * 512 * 2048 * 256 * 2 // 64 + 4
    assert found.at == "logits"
    # The normed last residual stream, gathered, is 512 x E; the logits are f32.
    assert found.activations == 2 * 512 * E + 4 * 512 * V // 64 + 4 * 512 // 64


def test_holes_are_refused() -> None:
    made = program("mesh x=2\ndim E=4\nfunc f(a: E_x) -> E {\n  b: E? = a + a\n  return b\n}\n")
    with pytest.raises(TypeError, match="still has holes"):
        memory_of(made, made.func("f"))


LAYERS = """
mesh x=2
dim N=3 B=4 E=8 F=32
weights {
  gate: NEF_x
  up: NEF_x
  down: NF_xE
}
func f(a: BE) -> BE {
  y: BE = loop[N](h: BE = a) {
    g: BF_x = h @ gate
    i: BF_x = g * h @ up
    p: BE(partialsum-x) = i @ down
    next all_reduce[x](p)
  }
  return y
}
"""


def test_copied_slices_of_all_products_of_one_operand_are_there_at_once() -> None:
    """The slices of `gate` and `up` take 256 bytes on a chip each; they are there as long as products of h run."""
    plain, copied = memory(LAYERS), memory(LAYERS, copied_slices=True)
    assert plain.activations == 64 + 64 + 128 + 128
    assert copied.activations == plain.activations + 2 * 256
    assert {("gate", 256), ("up", 256)} <= set(live(copied))
    assert copied.weights == plain.weights


def test_what_is_gathered_of_slices_along_one_axis_is_there_from_the_beginning_of_a_trip() -> None:
    """`w` is gathered after the products of h in the text, and held while they run."""
    text = LAYERS.replace("p: BE", "w: FE = all_gather[x](down)\n    p: BE").replace("i @ down", "i @ slice[x -> F](w)")
    assert {("gate", 256), ("up", 256), ("w", 512)} <= set(live(memory(text, copied_slices=True)))


def test_copied_slices_outside_of_loops_are_none() -> None:
    text = """
mesh x=2
dim B=4 E=8 F=32
weights {
  w: EF_x
}
func f(a: BE) -> BF_x {
  return a @ w
}
"""
    assert memory(text, copied_slices=True) == memory(text)


def test_what_a_loop_begins_with_and_also_reads_lies_beside_what_it_carries() -> None:
    text = """
dim N=3 E=8
func f(x: f32 E) -> f32 E {
  a = cumsum[E](x)
  y = loop[N](h: f32 E = a) {
    b = cumsum[E](h)
    next b * OTHER
  }
  return y
}
"""
    once, again = (complete(program(text.replace("OTHER", other))) for other in ("2", "a"))
    use = memory_of(again, again.func("f"))
    assert memory_of(once, once.func("f")).activations == 3 * 8 * 4
    assert (use.activations, [value.name for value in use.live], use.at) == (4 * 8 * 4, ["x", "a", "h", "b"], "b")


def test_what_became_state_is_counted_as_state() -> None:
    """s, and beside it x, which is the caller's, and the version that is made."""
    text = """
dim E=8
state { s: f32 E }
func f(x: f32 E) -> f32 E {
  a: f32 E = cumsum[E](s)
  set s = a
  b: f32 E = cumsum[E](s)
  set s = b
  return x
}
"""
    found = memory(text)
    assert found == MemoryUse(0, 32, 2 * 32, found.live, "a")
    assert live(found) == [("x", 32), ("a", 32)]
