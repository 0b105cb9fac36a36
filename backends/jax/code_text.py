"""Expressions that are written down in place of being computed, for the source of a module."""

from __future__ import annotations

import math
from typing import Any, cast


def literal(value: Any) -> str:
    """A value as Python writes it; in brackets pieces of source stand for themselves."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, slice):
        ends = cast("slice[Any, Any, Any]", value)
        return ":".join("" if end is None else literal(end) for end in (ends.start, ends.stop))
    if isinstance(value, tuple):
        items = [literal(each) for each in cast("tuple[Any, ...]", value)]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    return "..." if value is ... else repr(value)


class Code:
    """A piece of source. What is done with it gives the source that does so: `Code("a") + Code("b")` is `a + b`.

    Functions that use attributes, calls and operators alone are read off so: `lambda m, a: m.jnp.exp(a)`, given
    `Code()`, whose attributes are the names that stand alone, and `Code("x")`, gives `jnp.exp(x)`.
    """

    __slots__ = ("is_operator", "text")

    def __init__(self, text: str = "", *, is_operator: bool = False) -> None:
        self.text = text
        self.is_operator = is_operator

    def __getattr__(self, name: str) -> Code:
        return Code(f"{self._word()}.{name}" if self.text else name)

    def __call__(self, *args: object, **options: object) -> Code:
        given = [*map(literal, args), *(f"{name}={literal(option)}" for name, option in options.items())]
        return Code(f"{self.text}({', '.join(given)})")

    def __getitem__(self, index: Any) -> Code:
        each = cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
        return Code(f"{self._word()}[{', '.join(map(literal, each))}]")

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _word(self) -> str:
        return f"({self.text})" if self.is_operator else self.text

    def _operator(self, sign: str, *others: object, reflected: bool = False) -> Any:
        words = [each._word() if isinstance(each, Code) else literal(each) for each in (self, *others)]
        if reflected:
            words.reverse()
        return Code(f" {sign} ".join(words) if others else f"{sign}{words[0]}", is_operator=True)

    def __add__(self, other: object) -> Any:
        return self._operator("+", other)

    def __sub__(self, other: object) -> Any:
        return self._operator("-", other)

    def __mul__(self, other: object) -> Any:
        return self._operator("*", other)

    def __truediv__(self, other: object) -> Any:
        return self._operator("/", other)

    def __radd__(self, other: object) -> Any:
        return self._operator("+", other, reflected=True)

    def __rsub__(self, other: object) -> Any:
        return self._operator("-", other, reflected=True)

    def __rmul__(self, other: object) -> Any:
        return self._operator("*", other, reflected=True)

    def __rtruediv__(self, other: object) -> Any:
        return self._operator("/", other, reflected=True)

    def __mod__(self, other: object) -> Any:
        return self._operator("%", other)

    def __and__(self, other: object) -> Any:
        return self._operator("&", other)

    def __or__(self, other: object) -> Any:
        return self._operator("|", other)

    def __xor__(self, other: object) -> Any:
        return self._operator("^", other)

    def __lt__(self, other: object) -> Any:
        return self._operator("<", other)

    def __le__(self, other: object) -> Any:
        return self._operator("<=", other)

    def __eq__(self, other: object) -> Any:
        return self._operator("==", other)

    def __gt__(self, other: object) -> Any:
        return self._operator(">", other)

    def __ge__(self, other: object) -> Any:
        return self._operator(">=", other)

    def __ne__(self, other: object) -> Any:
        return self._operator("!=", other)

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return self._operator("-")

    def __invert__(self) -> Any:
        return self._operator("~")
