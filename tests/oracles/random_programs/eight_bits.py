"""Floats of 8 bits: what they hold, by arithmetic of the oracle's own, and where programs have them.

Nothing here is read off a library of number formats: a number is scaled by the power of two that its last place is
worth, rounded to a whole one, and scaled back.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from oracles.random_programs import build
from oracles.random_programs.tree import EIGHT_BITS, Expr, Layout, Program, Shaped, Target, is_f8, is_wide

if TYPE_CHECKING:
    from oracles.random_programs.draw import Drawing, Wishes
    from oracles.random_programs.scope import Scope

Array = npt.NDArray[Any]

SHARE = 1 / 6
"""The share of programs that may have 8-bit floats."""


@dataclass(frozen=True)
class Eight:
    """A format: the bits of its mantissa, the exponent of its least normal number, and its greatest finite number."""

    mantissa: int
    least: int
    greatest: float
    infinite: bool


EIGHTS = {"f8e4m3": Eight(3, -6, 448.0, infinite=False), "f8e5m2": Eight(2, -14, 57344.0, infinite=True)}


def within(value: Array, dtype: str) -> Array:
    """Numbers stopped at the greatest finite one; NaN stays."""
    greatest = EIGHTS[dtype].greatest
    return np.clip(value, -greatest, greatest)


def nearest(value: Array, dtype: str) -> Array:
    """The nearest numbers of the format, of two as near the even one, stopped at the greatest; NaN stays."""
    form = EIGHTS[dtype]
    held = within(np.asarray(value, np.float64), dtype)
    exponent = np.maximum(np.frexp(held)[1] - 1, form.least)
    last = np.ldexp(1.0, exponent - form.mantissa)
    return np.asarray(np.rint(held / last) * last)


def edges(dtype: str) -> Array:
    """The ends of a format, and what else it treats in a way of its own."""
    form = EIGHTS[dtype]
    tiny, normal = 2.0 ** (form.least - form.mantissa), 2.0**form.least
    positive = [0.0, tiny, normal - tiny, normal, form.greatest, *([np.inf] if form.infinite else [])]
    return np.array([np.nan, *positive, *(-x for x in positive)])


def boundaries(formats: tuple[str, ...]) -> Array:
    """Numbers of wider formats where rounding to these turns: halfway between two, and just beside it; beyond the
    greatest."""
    made: list[float] = []
    for form in (EIGHTS[dtype] for dtype in formats):
        step = 2.0**-form.mantissa
        for scale in (1.0, 2.0**form.least):
            halves = [scale * (1 + (n + 0.5) * step) for n in (0, 1)]
            made += [half * (1 + beside) for half in halves for beside in (0.0, 2.0**-14, -(2.0**-14))]
        tiny = 2.0**form.least * step
        made += [tiny / 2, tiny * 1.5, form.greatest * (1 + step / 4), form.greatest * 1.1, form.greatest * 16]
    return np.array([*made, *(-x for x in made)])


# ------------------------------------------------------------ drawing

DRAWS = ("narrowed", "narrow_product")
"""Kinds of expressions that only programs with 8-bit floats may have."""


def drawn_beside(rng: random.Random, wishes: Wishes) -> tuple[str, ...]:
    """The 8-bit floats of the program that `rng` is about to draw, most often none; takes nothing from `rng`, so that
    programs without them are what they would be if there were none."""
    apart = random.Random(repr(rng.getstate()))
    if not wishes.eights or wishes.smooth or apart.random() >= SHARE:
        return ()
    one, other = apart.sample(EIGHT_BITS, 2)
    return (one, one) if apart.random() < 0.7 else (one, other)


def formats_in(program: Program) -> tuple[str, ...]:
    """The 8-bit floats that a program names."""
    text = program.text()
    return tuple(dtype for dtype in EIGHT_BITS if dtype in text)


def number(d: Drawing, dtype: str) -> Expr:
    """A number that the format comes near to."""
    texts = ("0", "1", "2", "0.5", "-1", "3", "0.3", "-0.25", "100", *(("inf",) if EIGHTS[dtype].infinite else ()))
    text = d.rng.choice(texts)
    return Expr("number", Shaped(dtype, (), ()), (), text, float(text))


def narrowed(d: Drawing, scope: Scope) -> Expr | None:
    """Another format converted to 8 bits: often a sum, which may be partial and has to be whole for that."""
    from oracles.random_programs.expressions import contraction, reduction
    from oracles.random_programs.scope import pick

    if d.chance(0.5):
        a = d.rng.choice((contraction, reduction))(d, scope)
    else:
        a = pick(d, scope, lambda s: is_wide(s.dtype))
    return None if a is None or is_f8(a.shape.dtype) else build.convert(a, d.rng.choice(d.eights))


def narrow_product(d: Drawing, scope: Scope) -> Expr | None:
    """A contraction of which one operand or both are converted to 8 bits first."""
    from oracles.random_programs.expressions import product
    from oracles.random_programs.scope import pick, union

    a = pick(d, scope, lambda s: bool(s.dims) and (is_f8(s.dtype) or is_wide(s.dtype)))
    if a is None:
        return None
    dtype = a.shape.dtype if is_f8(a.shape.dtype) else d.rng.choice(d.eights)

    def fits(s: Shaped) -> bool:
        return (is_wide(s.dtype) or s.dtype == dtype) and bool(set(s.dims) & set(a.shape.dims)) and (
            union(a.shape, s) is not None
        )  # fmt: skip

    b = pick(d, scope, fits)
    if b is None:
        return None
    return product(d, *(arg if arg.shape.dtype == dtype else build.convert(arg, dtype) for arg in (a, b)))


def like(d: Drawing, a: Expr, b: Expr) -> Expr:
    """Arithmetic in f32 of values in 8 bits, rounded to them again."""
    one, two = build.convert(a, "f32"), build.convert(b, "f32")
    if d.chance(0.5):
        one = build.infix("*", one, build.number(d.rng.choice((0.5, 2.0, 40.0)), one))
    return build.convert(build.infix(d.rng.choice("+-"), one, two), a.shape.dtype)


def declared_product(d: Drawing, expr: Expr) -> Expr:
    """A product of 8-bit floats in the format that its statement is to declare."""
    if not is_product(expr) or not d.chance(0.5):
        return expr
    return Expr(expr.op, expr.shape.of(d.rng.choice(("f32", "bf16", "f16"))), expr.args, expr.statics, expr.info)


def is_product(expr: Expr) -> bool:
    return expr.op == "@" and is_f8(expr.args[0].shape.dtype)


def target(d: Drawing, name: str, shape: Shaped, layout: Layout | None) -> Target:
    """A name for a product of 8-bit floats, whose format is written unless it is f32."""
    if layout is None and shape.dtype != "f32":
        layout = d.layout(shape, holes=0.6)
    return Target(name, shape, layout)
