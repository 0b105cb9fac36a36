"""Resharding: two types as text, and the cheapest movements from one to the other."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.cost.hardware.topology import Topology
from shardwright.cost.resharding.planner import ReshardingObjective, ReshardingPlan, plan_in_any_order
from shardwright.ir.diagnostics import DiagnosticError, Source, Span, fault, located, nearest
from shardwright.ir.elaboration.declarations import Declarations
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import DimInfo
from shardwright.ir.settings import require_word
from shardwright.ir.text.parser import parse_type
from shardwright.ir.text.syntax import TypeExpr
from shardwright.ir.types import TensorType


def reshard(
    source: str,
    target: str,
    mesh: Mapping[str, int],
    dims: Mapping[str, int],
    *,
    minimize: str = "bytes",
    topology: Topology | None = None,
) -> ReshardingPlan:
    """The cheapest movements between two types as the language writes them, in bytes received or `minimize="time"`.

        reshard("BLE_xyz", "BLE_x", {"x": 2, "y": 2, "z": 2}, {"B": 8, "L": 1, "E": 64})

    is one all-gather. bf16 where neither type names a number format; `minimize="time"` needs a topology
    (`cost.hardware.topology`). Raises a `DiagnosticError` placed in one of the texts.
    """
    require_word("minimize", minimize, tuple(ReshardingObjective))
    chips = Mesh.given(mesh)
    before, after = _types(source, target, chips, dims)
    try:
        return plan_in_any_order(before, after, chips, ReshardingObjective(minimize), topology)
    except DiagnosticError as error:
        raise _at(error, Source("TO", target)) from None


def _types(first: str, second: str, mesh: Mesh, sizes: Mapping[str, int]) -> tuple[TensorType, TensorType]:
    """FROM and TO as types. Where one of them names no number format, it has the other's."""
    texts = Source("FROM", first), Source("TO", second)
    written = parse_type(texts[0]), parse_type(texts[1])
    dtype = next((one.dtype for one in written if one.dtype), None)
    source = _type(texts[0], written[0], dtype, mesh, sizes)
    target = _type(texts[1], written[1], dtype, mesh, sizes)
    with located(texts[1]):
        if set(source.names) != set(target.names):
            raise fault(
                "different-dimensions",
                f"FROM has the dimensions {_listed(source)} and TO has {_listed(target)}",
                _all_of(texts[1]),
                "moving data keeps the dimensions: name the same ones in both",
            )
        if source.names != target.names:
            raise fault(
                "different-dimensions",
                f"FROM has the dimensions in the order {_listed(source)} and TO in the order {_listed(target)}",
                _all_of(texts[1]),
                "moving data does not transpose: name the dimensions in the same order in both",
            )
        if source.dtype != target.dtype:
            raise fault(
                "different-dtype",
                f"FROM is {source.dtype} and TO is {target.dtype}",
                _all_of(texts[1]),
                "moving data does not convert numbers: name one number format, in one of them or in both",
            )
    return source, target


def _type(text: Source, written: TypeExpr, dtype: str | None, mesh: Mesh, sizes: Mapping[str, int]) -> TensorType:
    from dataclasses import replace

    with located(text):
        for dim in written.row.dims if written.row else ():
            if dim.name not in sizes:
                raise fault(
                    "unknown-dimension",
                    f"--dim gives no size for {dim.name}",
                    dim.span,
                    nearest(dim.name, list(sizes)) or f"add it: --dim {dim.name}=...",
                )
        declared = Declarations(mesh, tuple(DimInfo(name, size) for name, size in sizes.items()), (), ())
        kind = declared.type(replace(written, dtype=written.dtype or dtype), sizes)
        if not isinstance(kind, TensorType):
            raise fault("hole", "a type with a hole is no layout to move from or to", _all_of(text), "fill in the `?`")
        if kind.in_flight:
            raise fault(
                "in-flight",
                "a value in flight is no place to move from or to, before it has landed",
                _all_of(text),
                "leave out `in flight`: `start` of the first movement begins it, `wait` lands it",
            )
    return kind


def _listed(kind: TensorType) -> str:
    return " ".join(kind.names) or "of a scalar"


def _all_of(text: Source) -> Span:
    line = text.line(1)
    return Span(1, len(line) - len(line.lstrip()) + 1, 1, len(line.rstrip()) + 1)


def _at(error: DiagnosticError, text: Source) -> DiagnosticError:
    """The planner's refusal, placed under TO."""
    from dataclasses import replace

    return DiagnosticError([replace(diagnostic, span=_all_of(text)) for diagnostic in error.diagnostics], text)
