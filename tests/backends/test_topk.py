"""`topk`, the operation with two results: order, ties, its plan's bytes, and every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracles.jax_agreement import check
from program_text import program

from shardwright.backends.jax.session import Session
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.backends.validation.validate import validate
from shardwright.compiling.compile_program import print_program as printed
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Let, Program
from shardwright.ir.verification.verifier import Level, verify
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.pipelines import explicit

HEAD = "mesh x=2 y=2 z=2\ndim B=4 V=4096 C=5 D=2 L=3\n"


def of(logits: str, result: str, *, k: int = 5, head: str = HEAD) -> Program:
    """A program of one topk with these types."""
    types = f"{logits.partition(' ')[0]} {result}, int32 {result}"
    body = f"  values, ids = topk[V -> C, k={k}](l)\n  return values, ids\n"
    return program(f"{head}func f(l: {logits}) -> ({types}) {{\n{body}}}")


def sorted_rows(rows: Any, k: int) -> tuple[Any, Any]:
    """Greatest first, of equal ones the first."""
    ids = np.argsort(-rows, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(rows, ids, -1), ids


@pytest.mark.parametrize(
    ("logits", "result"),
    [
        ("f32 BV", "BC"),
        ("f32 BV_xyz", "BC"),
        ("f32 B_xV_yz", "B_xC"),
        ("f32 B_xyV", "BC"),
        ("f32 BV?", "BC"),
        ("int8 BV_yz", "BC"),
    ],
)
def test_every_backend_gives_the_same(logits: str, result: str) -> None:
    """Numbers of few values, so that most are equal to others."""
    surface = of(logits, result)
    made = explicit(surface)
    assert program(printed(made)) == made
    rows = np.random.default_rng(0).integers(-60, 60, (4, 4096))
    wanted = sorted_rows(rows, 5)
    reference, _ = evaluate(surface, "f", {"l": rows})
    for found in (reference, simulate(made, "f", {"l": rows}).results, Session(made, {}).call("f", {"l": rows})):
        for array, expected in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_nan_comes_first_and_zeros_are_equal() -> None:
    surface = of("f32 BV_x", "BC", k=5, head="mesh x=2\ndim B=1 V=12 C=5\n")
    made = explicit(surface)
    row = np.array([[0.0, -np.inf, np.nan, -0.0, -1, np.inf, -np.nan, 0.0, -2, -2, -3, -3]], np.float32)
    for ids in (
        evaluate(surface, "f", {"l": row})[0][1],
        simulate(made, "f", {"l": row}).results[1],
        Session(made, {}).call("f", {"l": row})[1],
    ):
        np.testing.assert_array_equal(ids, [[2, 6, 5, 0, 3]])


@pytest.mark.parametrize(
    ("logits", "result", "chips", "rows"), [("f32 BV_xyz", "BC", 8, 4), ("f32 B_xV_yz", "B_xC", 4, 2)]
)
def test_candidates_are_gathered_and_not_the_dimension(logits: str, result: str, chips: int, rows: int) -> None:
    """At most k values and k indices from each of the other chips, for each row that a chip has."""
    made = explicit(of(logits, result))
    args = {"l": np.random.default_rng(0).standard_normal((4, 4096))}
    assert 0 < simulate(made, "f", args).total <= 8 * 5 * rows * (chips - 1)


def test_blocks_are_left_where_they_hold_too_little() -> None:
    """Of 12 elements on 8 chips no chip has more than k; of 4 chips either."""
    surface = of("f32 BV_xyz", "BC", head="mesh x=2 y=2 z=2\ndim B=4 V=16 C=5\n")
    operations = [s.operation for s, _ in Decompose().run(surface).funcs[0].walk() if isinstance(s, Let)]
    assert [getattr(operation, "by", None) for operation in operations] == [("x",), (), None]


def test_it_is_decomposed_once() -> None:
    once = Decompose().run(of("f32 BV?", "BC"))
    assert Decompose().run(once) == once
    assert Decompose().run(program(printed(once))) == once


def test_compiled_programs_are_validated() -> None:
    surface = of("f32 BV_xyz", "BC")
    assert validate(surface, explicit(surface)).largest_difference == 0


EXPLICIT = {
    "along the first dimension": "(l: f32 VB_x) -> (f32 CB_x, int32 CB_x) { v, i = topk[V -> C, k=3](l) return v, i }",
    "by blocks that are split": (
        "(l: bf16 B_zV_xyL) -> (bf16 B_zC_xyL, int32 B_zC_xyL) { v, i = topk[V -> C, k=8, by=xy](l) return v, i }"
    ),
    "by blocks that are whole": (
        "(l: f32 LV_zB) -> (f32 LC_zB, int32 LC_zB) { v, i = topk[V -> C, k=8, by=zx](l) return v, i }"
    ),
    "of int4": "(l: int4 B_xV) -> (int4 B_xC, int32 B_xC) { v, i = topk[V -> C, k=6](l) return v, i }",
    "in place": "(l: uint32 B_xV) -> (uint32 B_xV, int32 B_xV) { v, i = topk[V -> V, k=32](l) return v, i }",
    "without a batch": "(l: f32 V_x) -> (f32 C_x, int32 C_x) { v, i = topk[V -> C, k=8, by=x](l) return v, i }",
}


@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit_programs_under_jax(name: str) -> None:
    k = EXPLICIT[name].split("k=")[1].split("]")[0].split(",")[0]
    text = EXPLICIT[name].replace(" return", "\n  return").replace("{ ", "{\n  ").replace(" }", "\n}")
    order = "order z x" if "zx" in text else "order x y"
    check(f"mesh x=2 y=2 z=2\ndim B=4 V=32 {order} C={k} {order if 'by' in text else ''} L=2\nfunc f{text}")


def wrong(body: str) -> str:
    """The fault of a function of `l: f32 BV_x` with this body, and the way out."""
    text = f"{HEAD}func f(l: f32 BV_x, m: bool BV) -> f32 BC {{\n  {body}\n  return v\n}}"
    with pytest.raises(DiagnosticError) as raised:
        verify(program(text), Level.SURFACE)
    first = raised.value.diagnostics[0]
    return "; ".join([first.message, *(note.message for note in first.notes)])


def test_faults() -> None:
    assert wrong("v = topk[V -> C, k=5](l)") == "1 name is on the left, and the right side gives 2 values"
    assert wrong("v, i, j = topk[V -> C, k=5](l)") == "3 names are on the left, and the right side gives 2 values"
    assert wrong("v = relu(topk[V -> C, k=5](l))") == (
        "topk gives 2 values, and one is needed here; name them in a statement of its own: values, ids = topk[...](...)"
    )
    assert wrong("v, i = topk[V -> C](l)") == "topk: say how many elements; as in topk[V -> C, k=40](l)"
    assert wrong("v, i = topk[V -> B, k=5](l)") == "topk would give l: f32 BV the dimension B twice"
    assert wrong("v, i = topk[V -> C, k=5000](l)") == "topk: V=4096 has no 5000 greatest elements"
    assert wrong("v, i = topk[V -> C, k=5](m)") == "topk of bool: convert it first, convert[int32](m)"
    assert wrong("v: f32 BC, i: f32 BC = topk[V -> C, k=5](l)").startswith("i is int32 BC, where f32 BC is declared")
    assert wrong("v, i = topk[V -> C, k=5, by=x](l)") == (
        "topk: 5 elements of V are not divisible by the 2 blocks of x"
    )


def test_pictures_and_memory_know_both_results() -> None:
    from shardwright.backends.graph import draw
    from shardwright.cost.programs.memory import memory_of

    made = explicit(of("f32 BV_xyz", "BC"))
    drawn = draw(made).dot
    assert all(name in drawn for name in ("values_candidates", "ids_candidates"))
    assert memory_of(made, made.funcs[0]).peak >= 4 * 4096 // 8 * 4 + 2 * 4 * 5 * 4
