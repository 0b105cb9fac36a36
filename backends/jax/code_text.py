"""Expressions that are written down in place of being computed, for the source of a module."""

from __future__ import annotations

from typing import Any


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
        return Code(f"{self.text}.{name}" if self.text else name)

    def __call__(self, *args: object, **options: object) -> Code:
        given = [str(arg) for arg in args] + [
            f"{name}={option!r}" if isinstance(option, str) else f"{name}={option}" for name, option in options.items()
        ]
        return Code(f"{self.text}({', '.join(given)})")

    def __str__(self) -> str:
        return self.text

    def _operator(self, sign: str, *others: object) -> Any:
        words = [f"({each})" if isinstance(each, Code) and each.is_operator else str(each) for each in (self, *others)]
        return Code(f" {sign} ".join(words) if others else f"{sign}{words[0]}", is_operator=True)

    def __add__(self, other: object) -> Any:
        return self._operator("+", other)

    def __sub__(self, other: object) -> Any:
        return self._operator("-", other)

    def __mul__(self, other: object) -> Any:
        return self._operator("*", other)

    def __truediv__(self, other: object) -> Any:
        return self._operator("/", other)

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

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return self._operator("-")

    def __invert__(self) -> Any:
        return self._operator("~")
