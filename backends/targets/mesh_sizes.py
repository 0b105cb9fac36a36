"""The sizes of a mesh that a user gives, of JAX or written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, fault


def sizes_of(mesh: Mapping[str, int] | Any) -> dict[str, int]:
    """The sizes of a mesh of JAX, or of a mapping from axis to size. Raises `bad-mesh`."""
    sizes = getattr(mesh, "shape", mesh)
    if not isinstance(sizes, Mapping):
        said = f"{mesh!r} is neither a mesh of JAX nor a mapping from axis to size"
        raise fault("bad-mesh", said, NOWHERE, "as in jax.make_mesh((4, 2), ('x', 'y')), or {'x': 4, 'y': 2}")
    return dict(cast("Mapping[str, int]", sizes))
