"""Typed keys of random numbers, for which the language has the two numbers that each is made of."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def is_key(leaf: Any) -> bool:
    """Tells whether it is an array of typed keys of random numbers, as `jax.random.key` gives."""
    return str(getattr(leaf, "dtype", "")).startswith("key<")


def without_keys(function: Callable[..., Any], args: Sequence[Any]) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The function with random keys replaced, among arguments and results, by the two numbers that each key is made
    of; and the arguments for it."""
    import jax

    leaves, tree = jax.tree_util.tree_flatten(tuple(args))
    keys = [is_key(leaf) for leaf in leaves]
    if not any(keys):
        return function, args

    def of_numbers(*given: Any) -> Any:
        parts = jax.tree_util.tree_leaves(given)
        wrapped = [jax.random.wrap_key_data(part) if key else part for part, key in zip(parts, keys, strict=True)]
        results = function(*jax.tree_util.tree_unflatten(tree, wrapped))
        return jax.tree_util.tree_map(numbers_of, results)

    given = list(map(numbers_of, leaves))
    return functools.wraps(function)(of_numbers), jax.tree_util.tree_unflatten(tree, given)


def numbers_of(leaf: Any) -> Any:
    """The numbers of a key, or of its shape; anything else as it is."""
    import jax

    if not is_key(leaf):
        return leaf
    shaped = isinstance(leaf, jax.ShapeDtypeStruct)
    return jax.ShapeDtypeStruct((*leaf.shape, 2), np.uint32) if shaped else jax.random.key_data(leaf)


def as_given(array: Any, shape: Any, mesh: Any) -> Any:
    """A result in the format that the function gives it, a key or one that the language keeps wider."""
    import jax

    if is_key(array):
        return array
    if not is_key(shape):
        return array.astype(shape.dtype)
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.random.wrap_key_data(jax.device_put(array, whole))
