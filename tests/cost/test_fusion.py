"""Which statements run as one kernel, and what each kernel reads from memory."""

from __future__ import annotations

from program_text import program

from shardwright.cost.kernels.body import Kernel, fused
from shardwright.ir.program import Scope
from shardwright.ir.verification.completion import complete


def kernels(text: str) -> list[tuple[str, list[str], list[tuple[str, int]]]]:
    """The result, the statements in it, and what is read in bytes, kernel by kernel, of the function f."""
    made = complete(program(text))
    func = made.func("f")
    block = fused(made, func.body, Scope.of(made, func), func.returns)
    return [
        (
            step.root.results[0].name,
            [statement.results[0].name for statement in step.inlined],
            [(read.name, round(read.nbytes)) for read in step.reads],
        )
        for step in block.steps
        if isinstance(step, Kernel)
    ]


def test_an_activation_is_part_of_the_product_before_it() -> None:
    text = """
mesh x=2
dim B=4 E=8 F=16
func f(a: BE, w: EF_x, w2: F_xE) -> BE(partialsum-x) {
  h: BF_x = a @ w
  g: BF_x = gelu(h)
  y: BE(partialsum-x) = g @ w2
  return y
}
"""
    assert kernels(text) == [("g", ["h"], [("a", 64), ("w", 128)]), ("y", [], [("g", 64), ("w2", 128)])]


def test_of_two_products_that_meet_the_later_one_takes_what_follows() -> None:
    text = """
mesh x=2
dim B=4 E=8 F=16
func f(a: BE, w: EF_x, u: EF_x) -> BF_x {
  gate: BF_x = a @ w
  up: BF_x = a @ u
  s: BF_x = silu(gate)
  y: BF_x = s * up
  return y
}
"""
    assert kernels(text) == [
        ("s", ["gate"], [("a", 64), ("w", 128)]),
        ("y", ["up"], [("a", 64), ("u", 128), ("s", 64)]),
    ]


def test_a_product_is_written_whole_and_its_slice_read() -> None:
    text = """
mesh x=2
dim B=4 E=8 F=16
func f(a: BE, w: EF, w2: FE) -> B_xE {
  h: BF = a @ w
  h_sliced: B_xF = slice[x -> B](h)
  g: B_xF = gelu(h_sliced)
  y: B_xE = g @ w2
  return y
}
"""
    assert kernels(text) == [
        ("h", [], [("a", 64), ("w", 256)]),
        ("h_sliced", [], [("h", 64)]),
        ("g", [], [("h_sliced", 64)]),
        ("y", [], [("g", 64), ("w2", 256)]),
    ]


def test_a_product_of_which_some_columns_are_taken_reads_its_operands_whole() -> None:
    text = """
mesh x=2
dim B=4 E=8 F=16 N=4
func f(a: NBE_x, w: E_xF) -> BF(partialsum-x) {
  h: NBF(partialsum-x) = a @ w
  y: BF(partialsum-x) = take[N, 1](h)
  return y
}
"""
    assert kernels(text) == [("y", ["h"], [("a", 128), ("w", 128)])]


def test_int8_weights_widen_within_the_product() -> None:
    text = """
mesh x=2
dim B=4 E=8 F=16
func f(a: BE, w: int8 EF_x) -> BF_x {
  wide: EF_x = convert[bf16](w)
  y: BF_x = a @ wide
  return y
}
"""
    assert kernels(text) == [("y", ["wide"], [("a", 64), ("w", 64)])]


def test_a_product_reads_a_sum_from_memory_rather_than_its_two_terms() -> None:
    text = """
mesh x=2
dim B=4 E=8 F=16
func f(a: BE, b: BE, w: EF_x) -> BF_x {
  c: BE = a + b
  y: BF_x = c @ w
  return y
}
"""
    assert kernels(text) == [("c", [], [("a", 64), ("b", 64)]), ("y", [], [("c", 64), ("w", 128)])]


def test_a_softmax_reads_its_scores_three_times_and_stores_the_probabilities() -> None:
    text = """
mesh x=2
dim B=4 T=8 D=16
func f(s: f32 B_xT, v: TD) -> B_xD {
  m: f32 B_x = max[T](s)
  e: f32 B_xT = exp(s - m)
  t: f32 B_x = sum[T](e)
  p: B_xT = convert[bf16](e / t)
  o: B_xD = p @ v
  return o
}
"""
    assert [(name, reads) for name, _, reads in kernels(text)] == [
        ("m", [("s", 64)]),
        ("t", [("s", 64), ("m", 8)]),
        ("p", [("s", 64), ("m", 8), ("t", 8)]),
        ("o", [("p", 32), ("v", 256)]),
    ]


def test_collectives_read_and_write_memory_save_over_axes_of_one_chip() -> None:
    text = """
mesh x=2 y=1
dim B=4 E=8
func f(a: BE_xy) -> BE {
  b: BE_xy = a * 2.0
  c: BE_x = all_gather[y](b)
  d: BE = all_gather[x](c)
  e: BE = d + 1.0
  return e
}
"""
    assert kernels(text) == [("b", [], [("a", 32)]), ("d", [], [("b", 32)]), ("e", [], [("d", 64)])]


def test_a_part_of_a_value_is_read_alone() -> None:
    text = """
mesh x=2
dim B=4 E=8 V=64
func f(table: VE, ids: int32 B) -> BE {
  rows: BE = lookup[V](table, ids)
  return rows
}
"""
    assert kernels(text) == [("rows", [], [("table", 64), ("ids", 16)])]


def test_an_update_reads_what_it_writes_and_not_the_cache() -> None:
    text = """
mesh x=2
dim B=4 T=8 D=2
state { k: B_xTD }
func f(new: B_xD, pos: int32) -> B_xD {
  set k = update[T](k, new * 2.0, pos)
  return new
}
"""
    ((_, inlined, reads),) = kernels(text)
    assert len(inlined) == 1
    assert reads == [("new", 8), ("pos", 4)]


def test_a_slice_at_an_index_is_computed_in_the_kernel_that_reads_it() -> None:
    text = """
dim B=4 T=8 D=2 M=2 L=1
func f(q: BLD, k: MBTD, m: int32) -> BLD {
  own: BTD = lookup[M](k, m)
  return attend[T, D](q, own, own)
}
"""
    assert kernels(text) == [("result_0", ["own"], [("q", 16), ("k", 128), ("m", 4)])]


NORM = """
mesh x=2 y=2
dim B=4 E=8
func f(h: f32 BE_x) -> {result} {{
  a: f32 BE_x = h * 2
  s :~ f32 B_yE_x = slice[y -> B](a)
  {last}
}}
"""


def test_a_slice_is_computed_in_the_kernels_that_read_it() -> None:
    last = "q :~ f32 B_y(partialsum-x) = sum[E](s)\n  return q"
    assert kernels(NORM.format(result="f32 B_y(partialsum-x)", last=last)) == [("q", ["a"], [("h", 32)])]


def test_a_slice_that_a_collective_takes_is_written() -> None:
    last = "g :~ f32 B_yE = all_gather[x](s)\n  return g"
    assert kernels(NORM.format(result="f32 B_yE", last=last)) == [
        ("a", [], [("h", 64)]),
        ("s", [], [("a", 32)]),
        ("g", [], [("s", 32)]),
    ]


def test_a_residual_that_a_norm_reads_starts_no_kernel() -> None:
    text = """
mesh x=2
dim B=4 E=8 F=16
func f(a: BF_x, w: F_xE, h: BE) -> (BE, f32 B) {
  p: BE(partialsum-x) = a @[F] w
  r: BE = all_reduce[x](p)
  m: BE = h + r
  q = sum[E](convert[f32](m))
  return m, q
}
"""
    made = complete(program(text))
    func = made.func("f")
    steps = fused(made, func.body, Scope.of(made, func), func.returns).steps
    starts = {step.root.results[0].name: step.starts for step in steps if isinstance(step, Kernel)}
    assert starts == {"p": 1, "r": 1, "m": 0, "q": 1}
    alone = (
        text.replace("  q = sum[E](convert[f32](m))\n", "")
        .replace("return m, q", "return m")
        .replace("(BE, f32 B)", "BE")
    )
    made = complete(program(alone))
    steps = fused(made, made.func("f").body, Scope.of(made, made.func("f")), ("m",)).steps
    assert [step.starts for step in steps if isinstance(step, Kernel)] == [1, 1, 1]
