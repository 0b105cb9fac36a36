"""Numbers that are known before a program runs are those that it computes."""

from __future__ import annotations

import numpy as np
import pytest
from program_text import program

from shardwright.backends.simulation.reference import evaluate
from shardwright.ir.known_numbers import KnownNumbers, known_numbers
from shardwright.ir.program import Let

HEAD = "mesh x=2\ndim N=6 B=3\n"


def known(body: str) -> dict[str, KnownNumbers]:
    made: dict[str, KnownNumbers] = {}
    for statement in program(HEAD + body).func("f").body:
        if isinstance(statement, Let) and (numbers := known_numbers(statement, made)) is not None:
            made[statement.result.name] = numbers
    return made


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        ("int32 N", "where(less(iota[N]() - iota[N]() / 4 * 4, 3), full[N, int32](1024), 8192)"),
        ("int32 N", "full[N, int32](2147483647) + 1"),
        ("int32 N", "(iota[N]() - 3) / (iota[N]() - 2)"),
        ("int32", "full[int32](2147483647) * 3"),
        ("bool NB", "less(iota[N](), iota[B]())"),
        ("bool N", "less(iota[N](), 2) * less(0, iota[N]())"),
        ("int32 NB", "maximum(iota[N]() - iota[B](), 1)"),
    ],
)
def test_they_are_what_the_program_computes(kind: str, expression: str) -> None:
    body = f"func f() -> {kind} {{\n  r: {kind} = {expression}\n  return r\n}}\n"
    (wanted,), _ = evaluate(program(HEAD + body), "f", {}, {}, {}, "declared")
    found = known(body)["r"]
    np.testing.assert_array_equal(np.broadcast_to(found.along(tuple(kind.partition(" ")[2])), wanted.shape), wanted)


def test_what_follows_from_arguments_or_is_long_is_not_known() -> None:
    body = "func f(a: int32 N) -> int32 N {\n  b = iota[N]() + 1\n  c = b + a\n  d = iota[N, 5000]()\n  return c\n}\n"
    assert set(known(body)) >= {"b"}
    assert not {"c", "d"} & set(known(body))
