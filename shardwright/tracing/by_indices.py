"""Arrays that depend on no argument, by their indices: what counts, and masks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardwright.tracing.graph import uniform


def by_indices(array: npt.NDArray[Any]) -> Any:
    """An array that does not depend on arguments, by its indices where these give it: a single number, counting along
    one dimension, a band of a square as causal masks are. Any other is a weight."""
    import jax.numpy as jnp
    from jax.lax import broadcasted_iota

    if array.dtype.kind == "c":
        return jnp.asarray(array, np.complex64)
    if array.ndim and array.shape[0] > 1 and (array == array[:1]).all():
        return jnp.broadcast_to(by_indices(array[:1]), array.shape)
    if uniform(array) is not None or not array.size:
        return jnp.full(array.shape, array.flat[0] if array.size else 0, array.dtype)
    wide = [axis for axis, size in enumerate(array.shape) if size > 1]
    if len(wide) == 1 and array.dtype.kind in "if" and len(steps := set(np.diff(array.ravel()).tolist())) == 1:
        step, start = steps.pop(), array.flat[0]
        counted = broadcasted_iota(array.dtype, array.shape, wide[0])
        counted = counted if step == 1 else counted * step
        return counted + start if start else counted
    of_row = np.unique(array[(0,) * wide[1]]) if len(wide) == 2 else ()
    values = np.unique(array) if 0 < len(of_row) < 3 else ()  # quick for weights, which have more numbers in a row
    if len(values) == 2:
        least = broadcasted_iota(jnp.int32, array.shape, wide[0]) - broadcasted_iota(jnp.int32, array.shape, wide[1])
        square = array.reshape(array.shape[wide[0]], array.shape[wide[1]])
        apart = np.subtract.outer(np.arange(square.shape[0]), np.arange(square.shape[1]))
        for inside, outside in (values[::-1], values):
            low, high = (bound(apart[square == inside]) for bound in (np.min, np.max))
            if ((square == inside) == ((low <= apart) & (apart <= high))).all():
                band = [least >= low] if low > apart.min() else []
                band += [least <= high] if high < apart.max() else []
                chosen = band[0] if len(band) == 1 else band[0] & band[1]
                return (
                    chosen if array.dtype == bool and inside else jnp.where(chosen, inside, outside).astype(array.dtype)
                )
    return jnp.asarray(array)
