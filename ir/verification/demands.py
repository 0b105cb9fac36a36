"""Tells whether what an operation gives is what the author declared."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.ir.diagnostics import Span, fault
from shardwright.ir.elaboration.declarations import product_text
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DEFAULT_DTYPE, Shape, ValueType, row_text


def check_fits(found: Shape, declared: ValueType, what: str, span: Span, where: str = "") -> None:
    """Raises where a shape is not the declared one (extents aside, which the operation determines)."""
    wanted = declared.shape
    message = f"{what} {found}, {where or f'where {wanted} is declared'}"
    if found.names != wanted.names:
        notes: list[str] = []
        if sorted(found.names) == sorted(wanted.names):
            notes.append(
                f"write the dimensions in the order of the value: {row_text(found.names, [()] * len(found.dims))}"
            )
        raise fault("wrong-dimensions", message, span, *notes)
    if found.dtype != wanted.dtype:
        default = "; no number format means bf16" if wanted.dtype is DEFAULT_DTYPE else ""
        raise fault(
            "dtype-mismatch",
            message,
            span,
            f"convert it, convert[{wanted.dtype}](...), or declare {found.dtype}{default}",
        )


def check_divides(kind: ValueType, name: str, mesh: Mesh, sizes: Mapping[str, int], span: Span) -> None:
    """Raises where the chips do not divide the extent that an operation gave, which may be a part of the size."""
    for dim, axes in zip(kind.dims, kind.splits, strict=True):
        if axes and dim.size % mesh.product(axes):
            raise fault(
                "not-divisible",
                f"{name} has {dim.size} of {dim.name}={sizes.get(dim.name, dim.size)}, which are not divisible"
                f" by {product_text(axes, mesh)}",
                span,
                f"split {dim.name} over fewer axes",
            )


def count(n: int, what: str) -> str:
    """`1 result`, `2 results`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
