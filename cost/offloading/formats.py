"""Sizes of a model whose weights or cache are stored in few bits, in groups or as a program has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.cost.offloading.policy import Formats
from shardwright.cost.offloading.sizes import Sizes, WeightGroup
from shardwright.ir.types import DType

AS_THEY_ARE: Formats = (None, None)

_GROUP = 64
_GROUP_BYTES = 4
"""A scale and a least value, in 16 bits each."""


def _element_bytes(stored: str) -> float:
    """Bytes of an element in groups, its part of what the group has in common included."""
    return DType(stored).bits / 8 + _GROUP_BYTES / _GROUP


def in_groups(sizes: Sizes, formats: Formats) -> Sizes:
    """Matrices and cache in groups with a scale and a least value each, asymmetric, as FlexGen's runtime stores them
    (Sheng et al. 2023, section 5)."""
    weights, cache = formats
    if weights is not None:
        each = _element_bytes(weights)
        matrices = (tensor for part, _ in sizes.parts() for tensor in part.tensors if tensor.matrix)
        sizes = _with_stored(sizes, {tensor.name: each * tensor.elements for tensor in matrices})
    return sizes if cache is None else replace(sizes, cache_stored_bytes=_element_bytes(cache))


def _with_stored(sizes: Sizes, stored: Mapping[str, float]) -> Sizes:
    """The sizes with so many bytes for the weights that are named."""

    def part(group: WeightGroup) -> WeightGroup:
        return replace(group, tensors=tuple(replace(each, stored=stored.get(each.name)) for each in group.tensors))

    return replace(
        sizes,
        attention=part(sizes.attention),
        feedforward=part(sizes.feedforward),
        embedding=part(sizes.embedding),
        unembedding=part(sizes.unembedding),
    )
