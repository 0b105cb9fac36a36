"""Linear algebra and Fourier transforms of PyTorch, by those of JAX."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shardwright.tracing.aten.table import OPERATIONS, op

# ------------------------------------------------------------ decompositions


@op()
def linalg_svd(a: Any, full_matrices: bool = True, driver: Any = None) -> Any:  # noqa: ARG001 - as PyTorch calls it
    return jnp.linalg.svd(a, full_matrices=full_matrices)


@op()
def linalg_svdvals(a: Any, driver: Any = None) -> Any:  # noqa: ARG001 - as PyTorch calls it
    return jnp.linalg.svd(a, compute_uv=False)


@op()
def linalg_qr(a: Any, mode: str = "reduced") -> Any:
    made = jnp.linalg.qr(a, mode=mode)
    return made if mode != "r" else (jnp.zeros((0,), a.dtype), made)


@op()
def linalg_eigh(a: Any, UPLO: str = "L") -> Any:
    return jnp.linalg.eigh(a, UPLO=UPLO, symmetrize_input=False)


@op()
def linalg_eigvalsh(a: Any, UPLO: str = "L") -> Any:
    return linalg_eigh(a, UPLO)[0]


@op()
def linalg_cholesky(a: Any, *, upper: bool = False) -> Any:
    return jnp.linalg.cholesky(a, upper=upper)


@op()
def linalg_lu(a: Any, *, pivot: bool = True) -> Any:
    if not pivot:
        raise NotImplementedError("a decomposition without pivots")
    packed, _, rows = jax.lax.linalg.lu(a)
    size, least = a.shape[-2], min(a.shape[-2:])
    lower = jnp.tril(packed[..., :least], -1) + jnp.eye(size, least, dtype=a.dtype)
    return jnp.swapaxes(jax.nn.one_hot(rows, size, dtype=a.dtype), -1, -2), lower, jnp.triu(packed[..., :least, :])


@op()
def linalg_lu_factor(a: Any, *, pivot: bool = True) -> Any:
    if not pivot:
        raise NotImplementedError("a decomposition without pivots")
    packed, pivots, _ = jax.lax.linalg.lu(a)
    return packed, pivots + 1


# ------------------------------------------------------------ solutions


@op()
def linalg_solve(a: Any, b: Any, *, left: bool = True) -> Any:
    if not left:
        return jnp.swapaxes(linalg_solve(jnp.swapaxes(a, -1, -2), jnp.swapaxes(b, -1, -2)), -1, -2)
    vector = b.ndim == 1 or b.shape == a.shape[:-1]
    return jnp.linalg.solve(a, b[..., None])[..., 0] if vector else jnp.linalg.solve(a, b)


@op()
def linalg_solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jax.lax.linalg.triangular_solve(
        jnp.broadcast_to(a, (*batch, *a.shape[-2:])), jnp.broadcast_to(b, (*batch, *b.shape[-2:])),
        left_side=left, lower=not upper, unit_diagonal=unitriangular,
    )  # fmt: skip


@op()
def cholesky_solve(b: Any, factor: Any, upper: bool = False) -> Any:
    first = linalg_solve_triangular(jnp.swapaxes(factor, -1, -2) if upper else factor, b, upper=False)
    return linalg_solve_triangular(factor if upper else jnp.swapaxes(factor, -1, -2), first, upper=True)


@op()
def linalg_pinv(a: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    if atol is not None or hermitian:
        raise NotImplementedError("an absolute tolerance, or a symmetric matrix")
    rtol = max(a.shape[-2:]) * jnp.finfo(a.dtype).eps if rtol is None else rtol
    return jnp.linalg.pinv(a, rtol=rtol)


@op()
def logdet(a: Any) -> Any:
    sign, size = jnp.linalg.slogdet(a)
    return jnp.where(sign > 0, size, jnp.where(sign == 0, -jnp.inf, jnp.nan))


@op()
def linalg_matrix_norm(a: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *,  # noqa: A002 - as PyTorch calls it
                       dtype: Any = None) -> Any:  # fmt: skip
    if dtype is not None:
        raise NotImplementedError("a norm in another format")
    return jnp.linalg.norm(a, ord, axis=tuple(dim), keepdims=keepdim)


OPERATIONS.update({
    "linalg_inv": jnp.linalg.inv, "inverse": jnp.linalg.inv, "linalg_det": jnp.linalg.det,
    "linalg_slogdet": jnp.linalg.slogdet, "linalg_matrix_power": jnp.linalg.matrix_power,
    "linalg_cond": jnp.linalg.cond, "matrix_exp": jax.scipy.linalg.expm, "linalg_matrix_exp": jax.scipy.linalg.expm,
})  # fmt: skip

# ------------------------------------------------------------ Fourier transforms


def _one_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    def transform(a: Any, n: Any = None, dim: int = -1, norm: Any = None) -> Any:
        return function(a, n, dim, norm)

    return transform


def _several_axes(function: Callable[..., Any], default: Any) -> Callable[..., Any]:
    def transform(a: Any, s: Any = None, dim: Any = default, norm: Any = None) -> Any:
        return function(a, s, default if dim is None else tuple(dim), norm)

    return transform


for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    OPERATIONS[f"fft_{_name}"] = _one_axis(getattr(jnp.fft, _name))
for _name in ("fft2", "ifft2", "rfft2", "irfft2"):
    OPERATIONS[f"fft_{_name}"] = _several_axes(getattr(jnp.fft, _name), (-2, -1))
for _name in ("fftn", "ifftn", "rfftn", "irfftn"):
    OPERATIONS[f"fft_{_name}"] = _several_axes(getattr(jnp.fft, _name), None)
for _name in ("fftshift", "ifftshift"):
    OPERATIONS[f"fft_{_name}"] = getattr(jnp.fft, _name)
