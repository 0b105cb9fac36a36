"""Layout presets: which axes of the mesh split which dimension of weights and activations, by name.

A preset says for each role of a dimension how many of the mesh's axes it takes and from which end, so that it fits
a mesh of any number of axes. `ws1d` and `ws2d` are the weight-stationary layouts of Pope et al. 2022, sections
3.2.1 and 3.2.2: in the first, weights are split over all axes along F and the heads; in the second, along E over
the first axis (x of the paper) and along F and the heads over the others (y and z). On a mesh of one axis no axis
is left over for E, and ws2d is ws1d.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from shardwright.ir.diagnostics import NOWHERE, did_you_mean, fault
from shardwright.ir.mesh import Mesh


class Axes(Enum):
    """Axes of a mesh, by position."""

    NONE = "none"
    FIRST = "the first, where there are others"
    OTHERS = "all but the first, or the only one"
    ALL = "all"

    def of(self, mesh: Mesh) -> tuple[str, ...]:
        """The names, in the order of the mesh."""
        at = 1 if len(mesh) > 1 else 0
        chosen = {Axes.NONE: (), Axes.FIRST: mesh.axes[:at], Axes.OTHERS: mesh.axes[at:], Axes.ALL: mesh.axes}
        return chosen[self]


class Role(Enum):
    """What a dimension is to a tensor."""

    RESIDUAL = "E of the residual stream, of norms, and of biases added to it"
    EMBED = "E of the weight matrices"
    FEEDFORWARD = "F"
    HEADS = "the heads"
    VOCAB = "V of the embedding tables and of the logits"


PRESETS: dict[str, dict[Role, Axes]] = {
    "ws1d": {
        Role.RESIDUAL: Axes.ALL,
        Role.EMBED: Axes.NONE,
        Role.FEEDFORWARD: Axes.ALL,
        Role.HEADS: Axes.ALL,
        Role.VOCAB: Axes.ALL,
    },
    "ws2d": {
        Role.RESIDUAL: Axes.ALL,
        Role.EMBED: Axes.FIRST,
        Role.FEEDFORWARD: Axes.OTHERS,
        Role.HEADS: Axes.OTHERS,
        Role.VOCAB: Axes.ALL,
    },
}


@dataclass(frozen=True)
class Layout:
    """A preset fitted to a mesh and to the sizes of a model.

    `axes` gives for each role, and dimension that has it, the axes that split the dimension. `dropped` says in
    sentences what the preset would have split and the sizes do not allow.
    """

    name: str
    axes: Mapping[tuple[Role, str], tuple[str, ...]]
    dropped: tuple[str, ...]

    def split(self, role: Role | None, dim: str) -> tuple[str, ...]:
        return () if role is None else self.axes.get((role, dim), ())


def fit_layout(name: str, mesh: Mesh, sizes: Mapping[str, int], heads: Sequence[str]) -> Layout:
    """The preset on this mesh, for dimensions of these sizes; `heads` are those that number the query heads.

    All axes that split a dimension anywhere divide it together (digits of its index). The outer axes have the
    first claim, so that the innermost are dropped first. An axis that does not fit the first dimension of the
    heads (K, the heads of keys and values) splits the second (G, the queries in a group), which keeps the heads of
    a chip together with their keys and values. Raises where there is no such preset.
    """
    if name not in PRESETS:
        near = did_you_mean(name, list(PRESETS))
        raise fault(
            "unknown-layout",
            f"there is no layout {name}; there are {', '.join(PRESETS)}",
            NOWHERE,
            *([f"did you mean {near}?"] if near else []),
        )
    preset = PRESETS[name]
    axes: dict[tuple[Role, str], tuple[str, ...]] = {}
    dropped: list[str] = []
    for dims, roles in (
        (("E",), (Role.RESIDUAL, Role.EMBED)),
        (("F",), (Role.FEEDFORWARD,)),
        (tuple(heads), (Role.HEADS,)),
        (("V",), (Role.VOCAB,)),
    ):
        wanted = mesh.sorted(axis for role in roles for axis in preset[role].of(mesh))
        home, left_out = _homes(dims, wanted, mesh, sizes)
        for role in roles:
            for dim in dims:
                axes[role, dim] = tuple(a for a in preset[role].of(mesh) if home.get(a) == dim)
        if left_out:
            dropped.append(_sentence(dims, home, left_out, mesh, sizes))
    return Layout(name, axes, tuple(dropped))


def _homes(
    dims: Sequence[str], wanted: Sequence[str], mesh: Mesh, sizes: Mapping[str, int]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Which of the dimensions each axis splits, and the axes that fit none."""
    left = {dim: sizes[dim] for dim in dims}
    home: dict[str, str] = {}
    for axis in wanted:
        for dim in dims:
            if left[dim] % mesh[axis] == 0:
                home[axis] = dim
                left[dim] //= mesh[axis]
                break
    return home, tuple(axis for axis in wanted if axis not in home)


def _sentence(
    dims: Sequence[str], home: Mapping[str, str], left_out: Sequence[str], mesh: Mesh, sizes: Mapping[str, int]
) -> str:
    named = " ".join(f"{dim}={sizes[dim]}" for dim in dims)
    over = " and ".join(f"{axis}={mesh[axis]}" for axis in left_out)
    verb = "is" if len(dims) == 1 else "are"
    kept = " ".join(f"{axis}={mesh[axis]}" for axis in home)
    beside = f" beside {kept}" if kept else ""
    return f"{named} {verb} not split over {over}{beside}: not divisible"
