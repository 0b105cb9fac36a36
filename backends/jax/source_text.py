"""Python source as text: safe names, literals, calls, and lines broken as a person would break them."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shardwright.backends.jax.helpers import HELPERS
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.rewriter import Namer
from shardwright.ir.types import DType, OpenType, TensorType, ValueType

WIDTH = 119
"""Lines longer than this are broken."""

RESERVED = frozenset(
    {
        "jax", "jnp", "lax", "np", "functools", "with_layout_constraint", "mesh", "weights", "state", "on_mesh",
        "carry", "xs", "shape", "name", "make_mesh", "put", "zero_state", "laid", "itertools", "json", "math",
        "pathlib", "re", "pl", "pltpu",
        "open_tensors", "numbered", "read_tensor", "load_weights", *HELPERS,
    }
)  # fmt: skip
"""Names that an emitted module uses itself; a value of the program that has one gets a suffix."""


UseHelper = Callable[[str], None]
"""Asks for one of the functions that a module defines for itself (`backends.jax.helpers`)."""


@dataclass(frozen=True)
class Forms:
    """How things that can be written in several ways are written, for the sake of a target's compiler."""

    finished_products: bool = False
    """What is computed elementwise of a product is made once before another product reads it, behind an optimization
    barrier, and not within that one again for each of its blocks."""
    tile: tuple[int, int] | None = None
    """The rows and lanes of a tile, of which each chip's part in a collective is made (`tiled_forms`)."""


_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DIM = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

JAX_DTYPES = {
    DType.F32: "jnp.float32",
    DType.BF16: "jnp.bfloat16",
    DType.F16: "jnp.float16",
    DType.F8E4M3: "jnp.float8_e4m3fn",
    DType.F8E5M2: "jnp.float8_e5m2",
    DType.INT8: "jnp.int8",
    DType.INT4: "jnp.int4",
    DType.INT32: "jnp.int32",
    DType.UINT32: "jnp.uint32",
    DType.BOOL: "jnp.bool_",
}


def check_identifier(name: str) -> str:
    """`name` if it may stand in emitted source; raises `bad-name` otherwise."""
    if _NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise fault("bad-name", f"{name!r} cannot be a name in Python source", NOWHERE)
    return name


def check_dimension(name: str) -> str:
    """`name` if it may stand in a comment of emitted source as a dimension; raises `bad-name` otherwise."""
    if _DIM.fullmatch(name) is None:
        raise fault("bad-name", f"{name!r} cannot be a dimension in Python source", NOWHERE)
    return name


def concrete(name: str, kind: ValueType) -> TensorType:
    """The type, which explicit programs have without holes; raises `open-type` otherwise."""
    if isinstance(kind, OpenType):
        raise fault(
            "open-type",
            f"{name}: {kind} has holes, and JAX source is made of explicit programs",
            NOWHERE,
            "run the passes that choose layouts and insert movements first",
        )
    return kind


class PythonNames(Namer):
    """Python names for the names of a program, the same for the same program, and fresh ones beside them."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__({check_identifier(name) for name in names} | RESERVED)
        self.chosen: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """The Python name of a value: its own, or, where the module needs that itself, with `_` appended."""
        check_identifier(name)
        if name not in self.chosen:
            python = name
            if name in RESERVED:
                while python in self.taken:
                    python += "_"
            self.taken.add(python)
            self.chosen[name] = python
        return self.chosen[name]


def number_text(value: float | bool) -> str:
    """A number as Python writes it. Never the program's own text."""
    if math.isnan(value):
        return "jnp.nan"
    if value in (float("inf"), float("-inf")):
        return "jnp.inf" if value > 0 else "-jnp.inf"
    return repr(value)


def reshaped(code: str, shape: Sequence[int] | None, wanted: Sequence[int]) -> str:
    """The array, of this shape if it is known, in the wanted one; the code itself where it has that."""
    same = shape is not None and list(shape) == list(wanted)
    return code if same else f"{code}.reshape({', '.join(map(str, wanted)) or '()'})"


def transposed(code: str, order: Sequence[int]) -> str:
    """The array with its dimensions in this order; the code itself where that changes nothing."""
    return code if list(order) == sorted(order) else f"{code}.transpose({', '.join(map(str, order))})"


def tuple_text(items: Sequence[str]) -> str:
    """`(a, b)`, and `(a,)` for a single item."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def bare_or_tuple(items: Sequence[str]) -> str:
    """A single item bare, several as a tuple."""
    return items[0] if len(items) == 1 else tuple_text(items)


def axes_text(axes: Sequence[str]) -> str:
    """Mesh axes as collectives take them: `'x'`, or `('x', 'y')`."""
    return bare_or_tuple([repr(check_identifier(axis)) for axis in axes])


def assigned(target: str, code: str, comment: str, indent: str) -> list[str]:
    """An assignment with the type of its value in a comment: behind it, or above it where both do not fit."""
    return commented(f"{target} = {code}", comment, indent, f"{target}: ")


def commented(code: str, comment: str, indent: str, label: str = "") -> list[str]:
    """A line with a comment: behind it, or above it, after the label, where both do not fit."""
    one = f"{indent}{code}  # {comment}"
    if len(one) <= WIDTH:
        return [one]
    return [f"{indent}# {label}{comment}", *broken(code, indent)]


def block_start(axes: Sequence[str], size: int) -> str:
    """The index at which this chip's block of a dimension begins, the blocks numbered by these axes."""
    index = f"lax.axis_index({axes_text(axes)})"
    return index if size == 1 else f"{index} * {size}"


def broken(code: str, indent: str) -> list[str]:
    """A statement on as many lines as it needs: the widest outermost brackets are opened first."""
    if len(indent) + len(code) <= WIDTH:
        return [indent + code]
    spans = _outermost_brackets(code)
    if not spans:
        return [indent + code]
    start, end = max(spans, key=lambda span: (span[1] - span[0], -span[0]))
    inner = code[start + 1 : end]
    if not inner.strip():
        return [indent + code]
    deeper = indent + "    "
    lines = [indent + code[: start + 1]]
    if len(deeper) + len(inner) + 1 <= WIDTH and code[start] == "(":
        lines.append(deeper + inner)
    else:
        pieces = _pieces(inner)
        comma = "," if len(pieces) > 1 or inner.rstrip().endswith(",") else ""  # that of a tuple of one makes it one
        for piece in pieces:
            lines.extend(broken(piece + comma, deeper))
    lines.extend(broken(code[end:], indent))
    return lines


def _outermost_brackets(code: str) -> list[tuple[int, int]]:
    """The positions of the outermost pairs of brackets (strings in emitted code hold none)."""
    spans: list[tuple[int, int]] = []
    depth, start = 0, 0
    for at, character in enumerate(code):
        if character in "([{":
            if depth == 0:
                start = at
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                spans.append((start, at))
    return spans


def _pieces(inner: str) -> list[str]:
    """The pieces between the outermost commas; those of strings, such as an einsum's, are none."""
    pieces: list[str] = []
    depth, start, quoted = 0, 0, False
    for at, character in enumerate(inner):
        if character == "'":
            quoted = not quoted
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0 and not quoted:
            pieces.append(inner[start:at].strip())
            start = at + 1
    pieces.append(inner[start:].strip())
    return [piece for piece in pieces if piece]


def docstring_lines(text: str) -> list[str]:
    """Text made fit for a docstring: no quotes that would end it, no escapes, nothing unprintable."""
    safe = text.replace("\\", "\\\\").replace('"', "'")
    return ["".join(c for c in line if c.isprintable()).rstrip() for line in safe.splitlines()] or [""]
