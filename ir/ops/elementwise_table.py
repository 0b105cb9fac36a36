"""One entry for each elementwise operation: what it takes, what passes through it, and how each library spells it.

An operation that is called by its name, as `softsign(x)`, needs nothing but its entry here: its reading and printing,
its table of strategies, the three backends, the list in docs/reference/operations.md and the tests follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from shardwright.ir.operation import Arg
from shardwright.ir.types import DType

Takes = Literal["float", "bool", "value"]
"""Kinds of operands: a floating-point value, a bool, or a value of any format that all such operands share."""

Together = tuple[tuple[int, ...], ...]
"""Sets of operands, by position, that may be partial over an axis at once while the others are whole."""

Function = Callable[[Any, Any], Any] | Callable[[Any, Any, Any], Any] | Callable[..., Any]
"""A function of a library and of the operands, arrays of that library: `lambda np, a: np.exp(a)`."""


@dataclass(frozen=True)
class Spelling:
    """The operation in numpy, which defines what it computes, in JAX, and in PyTorch.

    JAX's function is given what has `jax`, `jnp`, `lax` and the helpers of compiled modules for attributes. It uses
    attributes, calls and operators alone, so that it can be written down as the source of a module.
    """

    numpy: Function
    jax: Function
    torch: Function


@dataclass(frozen=True)
class Entry:
    """An elementwise operation. In arithmetic on bools these are 0 and 1, and what is not 0 is true."""

    keyword: str
    meaning: str
    """A line of docs/reference/operations.md."""
    spelling: Spelling
    takes: tuple[Takes, ...] = ("float",)
    gives_bool: bool = False
    form: str = ""
    """`gelu[form=tanh]` has an entry of its own; the first entry of a keyword is the form that is meant without one."""

    sums: Together = ()
    """Partial sums pass: the operation is linear in these operands together."""
    maxima: Together = ()
    """Partial maxima pass: it decreases nowhere, in the order -inf, the numbers, inf, NaN of values and of results."""
    beside: tuple[float, float] | None = None
    """Maxima pass only where the other operand is a number between these two; None: whatever the other is."""
    integer_sums: Together | None = None
    """`sums` between integers, whose arithmetic wraps around; None: the same. Bools are no partial sums."""
    integer_maxima: Together | None = None
    """`maxima` between integers and between bools, whose maximum is *or*."""

    takes_f8: bool = False
    """8-bit floats may be chosen among."""
    differentiable: bool = True
    domain: tuple[float, float] = (-math.inf, math.inf)
    """Between which numbers the last operand of a random point lies that has a value and a derivative."""

    integers: Spelling | None = None
    """The spelling between integers, and between bools as 0 and 1, where it is another."""
    jax_bools: Function | None = None
    """JAX's between bools, where it does not compute with 0 and 1."""
    jax_wide: bool = False
    """Computed in f32 and rounded once, where JAX would round at each step."""

    def spelled(self, dtype: DType) -> Spelling:
        return self.spelling if self.integers is None or dtype.is_float else self.integers

    def sums_of(self, dtype: DType) -> Together:
        if dtype is DType.BOOL:
            return ()
        return self.integer_sums if self.integer_sums is not None and dtype.is_integer else self.sums

    def maxima_of(self, dtype: DType) -> Together:
        return self.integer_maxima if self.integer_maxima is not None and not dtype.is_float else self.maxima

    def rises_beside(self, other: Arg, dtype: DType) -> bool:
        """Tells whether the operation decreases nowhere beside this operand of a partial maximum; a number counts as
        what it is in the format `dtype`, in which it may wrap around, or round to 0 or infinity."""
        if self.beside is None:
            return True
        if other.number is None or not self.beside[0] < other.number.value < self.beside[1]:
            return False
        least, greatest = dtype.positive_range
        return other.is_zero or least <= abs(other.number.value) <= greatest


_EITHER: Together = ((0,), (1,))
_TWO: tuple[Takes, ...] = ("value", "value")
_POSITIVE = (0.0, math.inf)
_FINITE = (-math.inf, math.inf)


def _in_all(function: Callable[[Any], Any] | Callable[[Any, Any], Any]) -> Spelling:
    """Operations written with the operators of Python, which arrays of the three libraries have."""

    def spelled(_library: Any, *operands: Any) -> Any:
        return function(*operands)

    return Spelling(spelled, spelled, spelled)


def _named(name: str) -> Spelling:
    """A function that has one name in the three libraries."""

    def spelled(library: Any, *operands: Any) -> Any:
        return getattr(library, name)(*operands)

    def by_jax(m: Any, *operands: Any) -> Any:
        return spelled(m.jnp, *operands)

    return Spelling(spelled, by_jax, spelled)


ENTRIES = (
    Entry(
        "+", "the sum; of integers modulo the size of their range", _in_all(lambda a, b: a + b), _TWO,
        sums=((0, 1),), maxima=_EITHER, beside=_FINITE, integer_maxima=(), jax_bools=lambda _, a, b: a | b,
    ),
    Entry(
        "-", "the difference; of integers modulo the size of their range", _in_all(lambda a, b: a - b), _TWO,
        sums=((0, 1),), maxima=((0,),), beside=_FINITE, integer_maxima=(), jax_bools=lambda _, a, b: a ^ b,
    ),
    Entry(
        "*", "the product; of integers modulo the size of their range", _in_all(lambda a, b: a * b), _TWO,
        sums=_EITHER, maxima=_EITHER, beside=_POSITIVE, integer_maxima=(), jax_bools=lambda _, a, b: a & b,
    ),
    Entry(
        "/", "the quotient; of integers rounded down, and 0 where the divisor is 0", _in_all(lambda a, b: a / b), _TWO,
        sums=((0,),), maxima=((0,),), beside=_POSITIVE, integer_sums=(), domain=_POSITIVE,
        jax_bools=lambda _, a, b: a & b,
        integers=Spelling(
            lambda _, a, b: a // b,
            lambda m, a, b: m.floor_divide(a, b),
            lambda torch, a, b: torch.where(
                b == 0, 0, torch.div(a.long(), torch.where(b == 0, 1, b), rounding_mode="floor")
            ),
        ),
    ),
    Entry("neg", "x with the other sign", _in_all(lambda a: -a), ("value",), sums=((0,),), jax_bools=lambda _, a: a),
    Entry(
        "maximum", "the greater one, NaN beside NaN", _named("maximum"), _TWO, maxima=((0,), (1,), (0, 1))
    ),
    Entry("minimum", "the lesser one, NaN beside NaN", _named("minimum"), _TWO, maxima=_EITHER),
    Entry("less", "whether a < b", _in_all(lambda a, b: a < b), _TWO, gives_bool=True, differentiable=False),
    Entry("less_equal", "whether a <= b", _in_all(lambda a, b: a <= b), _TWO, gives_bool=True, differentiable=False),
    Entry("equal", "whether a = b", _in_all(lambda a, b: a == b), _TWO, gives_bool=True, differentiable=False),
    Entry(
        "logical_and", "both", _in_all(lambda a, b: a & b), ("bool", "bool"), gives_bool=True,
        maxima=_EITHER, differentiable=False,
    ),
    Entry(
        "logical_or", "one or both", _in_all(lambda a, b: a | b), ("bool", "bool"), gives_bool=True,
        maxima=((0,), (1,), (0, 1)), differentiable=False,
    ),
    Entry("logical_not", "the opposite", _in_all(lambda a: ~a), ("bool",), gives_bool=True, differentiable=False),
    Entry(
        "where", "a where the mask holds, else b", _named("where"), ("bool", "value", "value"),
        sums=((1, 2),), maxima=((1,), (2,), (1, 2)), takes_f8=True,
    ),
    Entry(
        "gelu", "x Phi(x), Phi the normal distribution function (Hendrycks and Gimpel 2016)",
        Spelling(
            lambda np, a: 0.5 * a * np.asarray(np.frompyfunc(math.erfc, 1, 1)(-a / math.sqrt(2)), np.float64),
            lambda m, a: m.jax.nn.gelu(a, approximate=False),
            lambda torch, a: torch.nn.functional.gelu(a),
        ),
        form="exact", jax_wide=True,
    ),
    Entry(
        "gelu", "its approximation by tanh",
        Spelling(
            lambda np, a: 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a * a * a))),
            lambda m, a: m.jax.nn.gelu(a, approximate=True),
            lambda torch, a: torch.nn.functional.gelu(a, approximate="tanh"),
        ),
        form="tanh", jax_wide=True,
    ),
    Entry(
        "silu", "x sigmoid(x)",
        Spelling(
            lambda np, a: a / (1 + np.exp(-a)),
            lambda m, a: m.jax.nn.silu(a),
            lambda torch, a: torch.nn.functional.silu(a),
        ), jax_wide=True,
    ),
    Entry(
        "softsign", "x / (1 + |x|), NaN of infinities",
        Spelling(
            lambda np, a: a / (1 + np.abs(a)),
            lambda m, a: m.jax.nn.soft_sign(a),
            lambda torch, a: torch.nn.functional.softsign(a),
        ),
    ),
    Entry(
        "relu", "the greater one of x and 0",
        Spelling(
            lambda np, a: np.maximum(a, 0), lambda m, a: m.jax.nn.relu(a), lambda torch, a: torch.relu(a)
        ), maxima=((0,),),
    ),
    Entry("exp", "e to the x", _named("exp"), maxima=((0,),)),
    Entry("expm1", "exp(x) - 1, exact where x is small", _named("expm1"), maxima=((0,),)),
    Entry(
        "erf", "the error function",
        Spelling(
            lambda np, a: np.asarray(np.frompyfunc(math.erf, 1, 1)(a), np.float64),
            lambda m, a: m.jax.scipy.special.erf(a),
            lambda torch, a: torch.erf(a.float()).to(a.dtype),
        ), maxima=((0,),), jax_wide=True,
    ),
    Entry(
        "erfc", "1 - erf(x), exact where that is small",
        Spelling(
            lambda np, a: np.asarray(np.frompyfunc(math.erfc, 1, 1)(a), np.float64),
            lambda m, a: m.jax.scipy.special.erfc(a),
            lambda torch, a: torch.erfc(a),
        ), jax_wide=True,
    ),
    Entry("log", "the natural logarithm, NaN below 0", _named("log"), domain=_POSITIVE),
    Entry(
        "log1p", "log(1 + x), exact where x is small; NaN below -1", _named("log1p"), domain=(-1.0, math.inf)
    ),
    Entry("sqrt", "the square root, NaN below 0", _named("sqrt"), domain=_POSITIVE),
    Entry(
        "rsqrt", "1 / sqrt(x)",
        Spelling(
            lambda np, a: 1 / np.sqrt(a), lambda m, a: m.lax.rsqrt(a), lambda torch, a: torch.rsqrt(a)
        ), domain=_POSITIVE,
    ),
    Entry("tanh", "the hyperbolic tangent", _named("tanh"), maxima=((0,),)),
    Entry(
        "sigmoid", "1 / (1 + exp(-x))",
        Spelling(
            lambda np, a: 1 / (1 + np.exp(-a)),
            lambda m, a: m.jax.nn.sigmoid(a),
            lambda torch, a: torch.sigmoid(a),
        ), maxima=((0,),),
    ),
    Entry("cos", "the cosine", _named("cos")),
    Entry("sin", "the sine", _named("sin")),
    Entry("abs", "x without its sign", _named("abs")),
    Entry("round", "the nearest integer, of two the even one", _named("round"), maxima=((0,),), differentiable=False),
)  # fmt: skip
"""Every elementwise operation but `convert` and `bitcast`, which are between formats."""

FORMS = {entry.keyword: tuple(e.form for e in ENTRIES if e.keyword == entry.keyword) for entry in ENTRIES}
"""The forms of each keyword, the one that is meant without saying first."""

_BY_NAME = {(entry.keyword, entry.form): entry for entry in ENTRIES}


def entry_of(keyword: str, form: str = "") -> Entry:
    return _BY_NAME[keyword, form or FORMS[keyword][0]]
