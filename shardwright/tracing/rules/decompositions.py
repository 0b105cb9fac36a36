"""Rules for linear algebra and Fourier transforms, which `jax.lax` computes of matrices and rows that are whole."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.tracing.graph import Application
from shardwright.tracing.rules.opaque import called
from shardwright.tracing.rules.table import rule
from shardwright.tracing.writer import GraphWriter, refusal


def _of_matrices(w: GraphWriter, op: Application, params: Mapping[str, Any] | None = None,
                 order: Sequence[int] = (), whole: int = 2) -> None:  # fmt: skip
    """Writes a function of matrices, of which chips may divide how many there are. `order` are the numbers of the
    primitive's results among those of the function."""
    kept = [(*range(len(each.shape) - whole), *[None] * whole) for each in op.operands]
    for at in range(len(op.results)):
        called(w, op, op.primitive, kept, params, at=at, number=order[at] if order else at)


def _tie(w: GraphWriter, op: Application, *pairs: tuple[int, int, int, int]) -> None:
    """Makes the same dimension of axes of values, which are the results' and then the first operand, where they are as
    long: value, axis, value, axis."""
    values = [*op.results, op.operands[0]]
    for a, i, b, j in pairs:
        if values[a].shape[i] == values[b].shape[j]:
            axes = [w.value(value).axes[axis] for value, axis in ((values[a], i), (values[b], j))]
            w.dimensions.tie(*axes)


@rule("cholesky")
def _cholesky(w: GraphWriter, op: Application) -> None:
    _of_matrices(w, op, {"symmetrize_input": False})
    _tie(w, op, (0, -1, 1, -1), (0, -2, 1, -2))


@rule("triangular_solve")
def _triangular_solve(w: GraphWriter, op: Application) -> None:
    names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
    _of_matrices(w, op, {name: bool(op.params[name]) for name in names})
    w.dimensions.tie_all(w.value(op.operands[1]).axes, w.axes(op.results[0]))


@rule("lu")
def _lu(w: GraphWriter, op: Application) -> None:
    _of_matrices(w, op)
    _tie(w, op, (0, -1, 3, -1), (0, -2, 3, -2), (2, -1, 3, -2))


@rule("lu_pivots_to_permutation")
def _permutation(w: GraphWriter, op: Application) -> None:
    _of_matrices(w, op, {"permutation_size": int(op.params["permutation_size"])}, whole=1)


@rule("qr")
def _qr(w: GraphWriter, op: Application) -> None:
    _of_matrices(w, op, {name: bool(op.params[name]) for name in ("pivoting", "full_matrices")})
    of = len(op.results)
    _tie(w, op, (0, -2, of, -2), (1, -1, of, -1), (0, -1, 1, -2))


@rule("svd")
def _svd(w: GraphWriter, op: Application) -> None:
    _refuse_parts(op)
    params = {name: bool(op.params[name]) for name in ("full_matrices", "compute_uv")}
    if not params["compute_uv"]:
        _of_matrices(w, op, params)
        return
    _of_matrices(w, op, params, order=(1, 0, 2))
    _tie(w, op, (1, -2, 3, -2), (2, -1, 3, -1), (1, -1, 0, -1), (2, -2, 0, -1))


@rule("eigh")
def _eigh(w: GraphWriter, op: Application) -> None:
    _refuse_parts(op)
    params = {name: bool(op.params[name]) for name in ("lower", "sort_eigenvalues")}
    _of_matrices(w, op, {**params, "symmetrize_input": False})
    _tie(w, op, (0, -2, 2, -2), (1, -1, 0, -1))


def _refuse_parts(op: Application) -> None:
    if op.params.get("subset_by_index") is not None:
        raise refusal(op, "of a part of the values is not supported", "leave out subset_by_index")


@rule("fft_of_parts")
def _fft(w: GraphWriter, op: Application) -> None:
    """A transform of real and imaginary parts; chips may divide all axes that are not transformed."""
    lengths = op.params["fft_lengths"]
    rows = len(op.operands[0].shape) - len(lengths)
    params = {"kind": op.params["fft_type"].name, "lengths": list(lengths)}
    kept = [(*range(rows), *[None] * len(lengths))] * len(op.operands)
    for at in range(len(op.results)):
        called(w, op, "fft", kept, params, at=at)
