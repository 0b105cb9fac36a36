"""Which words may name values, functions and weights, and which are taken."""

from __future__ import annotations

import builtins
import keyword
import re

from shardwright.ir.diagnostics import DiagnosticError, Span, did_you_mean, fault
from shardwright.ir.types import DType

KEYWORDS = frozenset(
    {
        "mesh", "dim", "weights", "state", "func", "loop", "as", "set", "free", "next", "return", "on", "along",
        "order", "inf",
    }
)  # fmt: skip
"""The grammar's own words."""

DTYPES = tuple(map(str, DType))
TIERS = ("device", "host", "disk")
PARTIALS = frozenset({"partialsum", "partialmax", "partialsoftmax"})

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PYTHON = frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | frozenset(dir(builtins))

_DTYPE_ALIASES = {
    "float": "f32",
    "float32": "f32",
    "fp32": "f32",
    "single": "f32",
    "bfloat16": "bf16",
    "bfloat": "bf16",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
    "f8": "f8e4m3",
    "fp8": "f8e4m3",
    "float8": "f8e4m3",
    "e4m3": "f8e4m3",
    "f8e4m3fn": "f8e4m3",
    "fp8_e4m3": "f8e4m3",
    "float8_e4m3fn": "f8e4m3",
    "e5m2": "f8e5m2",
    "fp8_e5m2": "f8e5m2",
    "float8_e5m2": "f8e5m2",
    "i8": "int8",
    "s8": "int8",
    "i4": "int4",
    "s4": "int4",
    "i32": "int32",
    "s32": "int32",
    "int": "int32",
    "u32": "uint32",
    "uint": "uint32",
    "boolean": "bool",
    "i1": "bool",
    "pred": "bool",
}


def clip(text: str) -> str:
    """`text` for use in a message: megabytes of it would not help anyone."""
    return text if len(text) <= 60 else f"{text[:40]}...{text[-10:]}"


def check_name(name: str, span: Span) -> str:
    """`name` if it may name a value, a function or a weight; raises `bad-name` otherwise."""
    if _NAME.fullmatch(name) is None:
        raise fault(
            "bad-name",
            f"`{clip(name)}` cannot be a name",
            span,
            "names begin with a lower-case letter and go on with lower-case letters, digits and `_`",
        )
    if name in KEYWORDS or name in PARTIALS or name in DTYPES:
        raise reserved(name, "the layout language", span)
    if name in _PYTHON:
        raise reserved(name, "Python", span)
    return name


def reserved(name: str, owner: str, span: Span) -> DiagnosticError:
    """The fault of a name that already means something in `owner`."""
    return fault(
        "bad-name", f"`{name}` cannot be a name: it is a word of {owner}", span, f"rename it, say to `{name}_`"
    )


def is_valid_name(name: str) -> bool:
    """Tells whether `check_name` accepts `name`."""
    taken = name in KEYWORDS or name in PARTIALS or name in DTYPES or name in _PYTHON
    return _NAME.fullmatch(name) is not None and not taken


def nearest_dtype(word: str) -> str | None:
    """The number format that `word` was probably meant to be: `float32` is `f32`."""
    return _DTYPE_ALIASES.get(word) or did_you_mean(word, DTYPES)
