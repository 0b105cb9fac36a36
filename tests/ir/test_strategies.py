"""Which types an operation takes and gives: each rule of the language with examples on both sides of it."""

from __future__ import annotations

import pytest
from every_strategy import strategies
from program_text import program

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg
from shardwright.ir.ops import Contract
from shardwright.ir.program import Let
from shardwright.ir.types import Dim, DType, Shape
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify

HEAD = "mesh x=2 y=2\ndim B=4 L=4 E=8 F=8 T=4 D=4 V=8 H=8 K=4 G=2\n"

# operands `a`, `b`, ... by type, the expression, and the type of its result
HOLD: dict[str, tuple[tuple[str, ...], str, str]] = {
    "contraction of a split dimension": (("BE_x", "E_xF"), "a @ b", "BF(partialsum-x)"),
    "and of two": (("BE_xy", "E_xyF"), "a @ b", "BF(partialsum-xy)"),
    "splits of what stays pass": (("B_xE", "EF_y"), "a @ b", "B_xF_y"),
    "both at once": (("BE_x", "E_xF_y"), "a @ b", "BF_y(partialsum-x)"),
    "a batch dimension split in both": (("B_xLD", "B_xTD"), "a @[D] b", "B_xLT"),
    "a partial operand, the other whole": (("BE(partialsum-x)", "EF"), "a @ b", "BF(partialsum-x)"),
    "partial over disjoint axes": (("BE(partialsum-x)", "EF(partialsum-y)"), "a @ b", "BF(partialsum-xy)"),
    "a sum of partial sums": (("B(partialsum-x)", "B(partialsum-x)"), "a + b", "B(partialsum-x)"),
    "zero is partial too": (("B(partialsum-x)",), "a + 0", "B(partialsum-x)"),
    "a difference": (("B(partialsum-x)", "B(partialsum-x)"), "a - b", "B(partialsum-x)"),
    "a product with what is whole": (("B(partialsum-x)", "B"), "a * b", "B(partialsum-x)"),
    "and split over another axis": (("B_y(partialsum-x)", "B_y"), "a * b", "B_y(partialsum-x)"),
    "a quotient by what is whole": (("B(partialsum-x)", "B"), "a / b", "B(partialsum-x)"),
    "negation": (("B(partialsum-x)",), "-a", "B(partialsum-x)"),
    "broadcasting": (("B_xE_y", "E_y"), "a + b", "B_xE_y"),
    "a rename": (("BL(partialsum-x)",), "rename[L -> T](a)", "BT(partialsum-x)"),
    "a range": (("BE(partialsum-x)",), "take[E 0:8](a)", "BE(partialsum-x)"),
    "a range beside a split": (("B_xE",), "take[E 0:8](a)", "B_xE"),
    "a narrower float": (("f32 B(partialsum-x)",), "convert[bf16](a)", "bf16 B(partialsum-x)"),
    "selection": (("bool B", "B(partialsum-x)", "B(partialsum-x)"), "where(a, b, c)", "B(partialsum-x)"),
    "maxima through what does not decrease": (("B(partialmax-x)",), "relu(a)", "B(partialmax-x)"),
    "a shifted maximum": (("B(partialmax-x)",), "a - 1", "B(partialmax-x)"),
    "the greater of two": (("B(partialmax-x)", "B"), "maximum(a, b)", "B(partialmax-x)"),
    "a sum over a split dimension": (("BE_x",), "sum[E](a)", "B(partialsum-x)"),
    "a maximum over a split dimension": (("BE_x",), "max[E](a)", "B(partialmax-x)"),
    "a lookup in a split table": (("V_xE", "int32 B"), "lookup[V](a, b)", "BE(partialsum-x)"),
    "by split indices": (("VE", "int32 B_x"), "lookup[V](a, b)", "B_xE"),
    "of chosen matrices": (("B_xE", "VEF_y", "int32 B_xL"), "grouped[V, E](a, b, c)", "B_xLF_y"),
    "of split chosen matrices": (("BE", "V_xEF", "int32 B"), "grouped[V, E](a, b, c)", "BF(partialsum-x)"),
    "of chosen matrices summed split": (("BE_x", "VE_xF", "int32 B"), "grouped[V, E](a, b, c)", "BF(partialsum-x)"),
    "a norm along whole dimensions": (("B_xE", "E"), "rmsnorm[E](a, b)", "B_xE"),
    "softmax beside a split": (("B_xT",), "softmax[T](a)", "B_xT"),
    "merged": (("BK_xGD",), "merge[KG -> H](a)", "BH_xD"),
    "an update of a split cache": (("BT_xD", "BD", "int32"), "update[T](a, b, c)", "BT_xD"),
    "an update at an index": (("B_xTLD_y", "D_y", "int32"), "update[TBL](a, b, c, 1, 0)", "B_xTLD_y"),
    "all-gather": (("B_xE_y",), "all_gather[xy](a)", "BE"),
    "all-reduce": (("BE_y(partialsum-x)",), "all_reduce[x](a)", "BE_y"),
    "of maxima": (("BE(partialmax-x)",), "all_reduce[x](a)", "BE"),
    "reduce-scatter": (("BE(partialsum-x)",), "reduce_scatter[x -> E](a)", "BE_x"),
    "all-to-all": (("B_xE_y",), "all_to_all[x: B -> E, y: E -> B](a)", "B_yE_x"),
    "slice": (("BE_y",), "slice[x -> E](a)", "BE_xy"),
    "addends": (("BE_x",), "as_partial[x](a)", "BE(partialsum-x)"),
}

BREAK: dict[str, tuple[tuple[str, ...], str, str]] = {
    "an axis on a summed dimension of one operand": (("BE_x", "EF"), "a @ b", "conflict"),
    "on two dimensions of the result": (("B_xE", "EF_x"), "a @ b", "conflict"),
    "a batch dimension split in one": (("B_xLD", "BTD"), "a @[D] b", "conflict"),
    "both operands partial over an axis": (("BE(partialsum-x)", "EF(partialsum-x)"), "a @ b", "partial-operand"),
    "a partial operand, the other split": (("BE(partialsum-x)", "EF_x"), "a @ b", "partial-operand"),
    "partial plus whole": (("B(partialsum-x)", "B"), "a + b", "partial-operand"),
    "partial plus a number": (("B(partialsum-x)",), "a + 1", "partial-operand"),
    "a product of partial sums": (("B(partialsum-x)", "B(partialsum-x)"), "a * b", "partial-operand"),
    "a partial denominator": (("B", "B(partialsum-x)"), "a / b", "partial-operand"),
    "a quotient of integers": (("int32 B(partialsum-x)", "int32 B"), "a / b", "partial-operand"),
    "a nonlinearity": (("B(partialsum-x)",), "gelu(a)", "partial-operand"),
    "quantizing": (("f32 B(partialsum-x)",), "convert[int8](a)", "partial-operand"),
    "a partial predicate": (("int32 B(partialsum-x)",), "less(a, 0)", "partial-operand"),
    "maxima through what may decrease": (("B(partialmax-x)",), "gelu(a)", "partial-operand"),
    "negated maxima": (("B(partialmax-x)",), "-a", "partial-operand"),
    "a maximum of partial sums": (("B(partialsum-x)",), "maximum(a, 0)", "partial-operand"),
    "the sum of maxima": (("BE(partialmax-x)",), "sum[E](a)", "partial-operand"),
    "a norm along a split dimension": (("BE_x",), "layernorm[E](a)", "split-operand"),
    "softmax along a split dimension": (("BT_x",), "softmax[T](a)", "split-operand"),
    "rotary along a split dimension": (("BLD_x", "int32"), "rotary[D](a, b)", "split-operand"),
    "a range of a split dimension": (("BE_x",), "take[E 0:8](a)", "split-operand"),
    "a running sum along a split": (("BE_x",), "cumsum[E](a)", "split-operand"),
    "the place of the greatest along a split": (("BE_x",), "argmax[E](a)", "split-operand"),
    "splits that disagree": (("B_xE", "BE"), "a + b", "conflict"),
    "a gather of what is whole": (("BE",), "all_gather[x](a)", "misapplied-movement"),
    "an all-reduce of what is split": (("B_xE",), "all_reduce[x](a)", "misapplied-movement"),
}


def text_of(types: tuple[str, ...], expression: str, result: str) -> str:
    params = ", ".join(f"{name}: {kind}" for name, kind in zip("abc", types, strict=False))
    return f"{HEAD}func f({params}) -> {result} {{\n  v = {expression}\n  return v\n}}\n"


@pytest.mark.parametrize(("types", "expression", "result"), HOLD.values(), ids=HOLD.keys())
def test_the_operands_determine_the_result(types: tuple[str, ...], expression: str, result: str) -> None:
    made = complete(program(text_of(types, expression, result)))
    verify(made, Level.EXPLICIT)
    (statement,) = made.funcs[0].body
    assert isinstance(statement, Let)
    assert statement.result.type == made.funcs[0].results[0]
    assert str(statement.result.type).removeprefix("bf16 ") == result.removeprefix("bf16 ")


@pytest.mark.parametrize(("types", "expression", "code"), BREAK.values(), ids=BREAK.keys())
def test_operands_that_fit_no_row(types: tuple[str, ...], expression: str, code: str) -> None:
    params = ", ".join(f"{name}: {kind}" for name, kind in zip("abc", types, strict=False))
    text = f"{HEAD}func f({params}) -> {types[0]} {{\n  v = {expression}\n  return a\n}}\n"
    with pytest.raises(DiagnosticError) as caught:
        complete(program(text))
    assert [found.code for found in caught.value.diagnostics] == [code]


def test_all_strategies_of_a_contraction_over_one_axis() -> None:
    left = Shape(DType.BF16, (Dim("B", 4), Dim("E", 8)))
    right = Shape(DType.BF16, (Dim("E", 8), Dim("F", 8)))
    result = Shape(DType.BF16, (Dim("B", 4), Dim("F", 8)))
    rows = strategies(Contract(("E",)), [Arg("a", left), Arg("b", right)], [result], Mesh.of(x=2))
    assert [(*(k.layout_text for k in operands if k), results[0].layout_text) for operands, results in rows] == [
        ("BE", "EF", "BF"),
        ("B_xE", "EF", "B_xF"),
        ("BE", "EF_x", "BF_x"),
        ("BE_x", "E_xF", "BF(partialsum-x)"),
        ("BE(partialsum-x)", "EF", "BF(partialsum-x)"),
        ("BE", "EF(partialsum-x)", "BF(partialsum-x)"),
    ]


def test_strategies_keep_to_what_divides() -> None:
    shape = Shape(DType.BF16, (Dim("B", 3), Dim("E", 4)))
    made = program("mesh x=2 y=2\ndim B=3 E=4\nfunc f(a: BE) -> BE {\n  v = relu(a)\n  return v\n}\n")
    (statement,) = made.funcs[0].body
    assert isinstance(statement, Let)
    rows = strategies(statement.operation, [Arg("a", shape)], [shape], made.mesh)
    layouts = {results[0].layout_text for _, results in rows}
    assert {"BE", "BE_x", "BE_y", "BE_xy", "BE(partialmax-x)", "BE_x(partialmax-y)"} <= layouts
    assert not any("B_" in layout for layout in layouts)
