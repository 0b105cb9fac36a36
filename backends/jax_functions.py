"""Functions of JAX that programs may call by name.

Each is given what has `jax`, `jnp` and `lax` for attributes, its parameters, and its operands. It uses attributes,
calls and operators alone, so that it can be computed, and written down as the source of a module.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

Params = Mapping[str, Any]

POINTWISE = frozenset((
    "floor", "ceil", "round", "erf_inv", "lgamma", "digamma", "atan2", "pow", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "nextafter", "population_count", "clz", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_not", "shift_left", "shift_right_logical", "shift_right_arithmetic", "bessel_i0e", "bessel_i1e",
    "igamma", "igammac", "regularized_incomplete_beta", "rem", "reduce_precision",
))  # fmt: skip
"""Functions of `jax.lax` that compute each element from those at its place."""

ALONG = frozenset({"cumprod", "cummax", "cummin", "cumlogsumexp"})
"""Functions of `jax.lax` along `axis`."""

_OF_SEVERAL = ("lu", "qr", "svd", "eigh")


def has_several(name: str, params: Params) -> bool:
    """Tells whether a function of JAX has several results, of which a statement takes one."""
    return name in _OF_SEVERAL and params.get("compute_uv", True)


def _named(path: str) -> Callable[..., Any]:
    """A function below `jax.lax`, which takes the parameters by name."""

    def call(m: Any, params: Params, *operands: Any) -> Any:
        return functools.reduce(getattr, path.split("."), m.lax)(*operands, **params)

    return call


def _window(first: float, combine: str) -> Callable[..., Any]:
    """A reduction of windows that begins with a number and goes on with a function of `jax.lax`."""

    def call(m: Any, params: Params, a: Any) -> Any:
        return m.lax.reduce_window(a, first, getattr(m.lax, combine), **params)

    return call


def _combined(method: str) -> Callable[..., Any]:
    """Rows combined with those of a table at indices along `axis`, by a method of `jnp.ndarray.at`."""

    def call(_: Any, params: Params, table: Any, ids: Any, rows: Any) -> Any:
        at = table.at[(*(slice(None),) * params["axis"], ids)]
        return getattr(at, method)(rows, mode="drop", wrap_negative_indices=False)

    return call


def _fft(m: Any, params: Params, real: Any, *imaginary: Any) -> Any:
    """A transform of real and imaginary parts, to both or, back to real numbers, to these."""
    made = m.lax.fft(m.lax.complex(real, *imaginary) if imaginary else real, params["kind"], params["lengths"])
    return made if params["kind"] == "IRFFT" else (made.real, made.imag)


# Of a key of random numbers the language has the two numbers that it is made of.


def _random_seed(m: Any, _: Params, seed: Any) -> Any:
    return m.jax.random.key_data(m.jax.random.key(seed))


def _random_bits(m: Any, params: Params, key: Any) -> Any:
    return m.jax.random.bits(m.jax.random.wrap_key_data(key), params["shape"], m.jnp.uint32)


def _random_split(m: Any, params: Params, key: Any) -> Any:
    return m.jax.random.key_data(m.jax.random.split(m.jax.random.wrap_key_data(key), params["shape"]))


def _random_fold_in(m: Any, _: Params, key: Any, data: Any) -> Any:
    return m.jax.random.key_data(m.jax.random.fold_in(m.jax.random.wrap_key_data(key), data))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: _named(name) for name in (*POINTWISE, *ALONG, "conv_general_dilated", "ragged_dot", "reduce_prod")},
    **{
        name: _named(f"linalg.{name}")
        for name in ("cholesky", "triangular_solve", "lu_pivots_to_permutation", *_OF_SEVERAL)
    },
    "reduce_window_max": _window(-math.inf, "max"),
    "reduce_window_min": _window(math.inf, "min"),
    "reduce_window_sum": _window(0, "add"),
    "scatter_add": _combined("add"),
    "scatter_max": _combined("max"),
    "scatter_min": _combined("min"),
    "scatter_mul": _combined("multiply"),
    "fft": _fft,
    "random_seed": _random_seed,
    "random_bits": _random_bits,
    "random_split": _random_split,
    "random_fold_in": _random_fold_in,
}
"""The functions of JAX by the names that programs have for them."""
