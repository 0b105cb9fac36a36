"""Layout presets: which axes of the mesh split which dimension of weights and activations, by name.

A preset says for each role of a dimension how many of the mesh's axes it takes and from which end, so that it fits
a mesh of any number of axes. `megatron` (Shoeybi et al. 2019) and `ws1d` split weights over all axes along F and the
heads, the first with a residual stream that is whole on every chip, the second with one split along E. The others
store weights along E over the first axis (x of the paper) and along F and the heads over the others (y and z): `ws2d`
leaves them there, `wg-x`, `wg-xy` and `wg-xyz` gather them over one, two or all axes just before use, where the batch
of the activations is split instead (Pope et al. 2022, sections 3.2.1 to 3.2.3). On a mesh of one axis no axis is left
over for E, and ws2d is ws1d.

`open` is no preset: it demands nothing but the layout of the logits, over all axes along V, and leaves weights, cache
and activations to the compiler, by bytes (`place`) or by time (`search`).

Attention is over heads, over batch (section 3.3) or over positions whatever the preset. Over positions, the axes that
do not divide the heads of keys and values split the cache along T in place of holding copies of it: each chip attends
its own positions, and the results are joined by their log-sum-exps (Helix, Bhatia et al. 2025, section 2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Literal

from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.ir.mesh import Mesh
from shardwright.models.description import AttentionSpec
from shardwright.models.token_groups import TokenGroups

AttentionOver = Literal["head", "batch", "positions"]


class Axes(Enum):
    """Axes of a mesh, by position."""

    NONE = "none"
    FIRST = "the first, where there are others"
    OTHERS = "all but the first, or the only one"
    LEADING = "the first"
    LEADING_TWO = "the first two"
    ALL = "all"

    def of(self, mesh: Mesh) -> tuple[str, ...]:
        """The names, in the order of the mesh."""
        at = 1 if len(mesh) > 1 else 0
        chosen = {
            Axes.NONE: (),
            Axes.FIRST: mesh.axes[:at],
            Axes.OTHERS: mesh.axes[at:],
            Axes.LEADING: mesh.axes[:1],
            Axes.LEADING_TWO: mesh.axes[:2],
            Axes.ALL: mesh.axes,
        }
        return chosen[self]


class Role(Enum):
    """The role of a dimension in a stored weight."""

    NORM = "E of norms, of positions, and of biases added to the residual stream"
    EMBED = "E of the weight matrices"
    FEEDFORWARD = "F"
    HEADS = "the heads"
    EXPERTS = "X of the experts' weights"
    EXPERT_EMBED = "E of the experts' weights"
    VOCAB = "V of the logits and of the table that gives them"
    TABLE = "V of a table that tokens alone are looked up in"


@dataclass(frozen=True)
class Preset:
    """Axes for each role in the stored weights, for E of the residual stream, and for the batch of activations.

    Axes of the batch split no other dimension of activations, and weights are gathered over them before use.
    """

    weights: Mapping[Role, Axes]
    residual: Axes
    batch: Axes = Axes.NONE
    name: str = ""
    """The name of a layout that is none of `PRESETS`."""


OF_EXPERTS = frozenset({Role.EXPERTS, Role.EXPERT_EMBED, Role.FEEDFORWARD})
"""What the weights of experts have; X is split only where tokens are sent to the experts."""

FEEDFORWARD_DIMS = ("F", "F1", "F2")
"""F of most layers and of their experts, F1 of the opening layers, F2 of what computes every token beside experts."""

_TABLES = {Role.VOCAB: Axes.ALL, Role.TABLE: Axes.ALL}
_ONE = {Role.EMBED: Axes.NONE, Role.FEEDFORWARD: Axes.ALL, Role.HEADS: Axes.ALL, **_TABLES}
_TWO = {Role.EMBED: Axes.FIRST, Role.FEEDFORWARD: Axes.OTHERS, Role.HEADS: Axes.OTHERS, **_TABLES}

PRESETS: dict[str, Preset] = {
    "megatron": Preset({**_ONE, Role.NORM: Axes.NONE}, residual=Axes.NONE),
    "ws1d": Preset({**_ONE, Role.NORM: Axes.ALL}, residual=Axes.ALL),
    "ws2d": Preset({**_TWO, Role.NORM: Axes.ALL}, residual=Axes.ALL),
    "wg-x": Preset({**_TWO, Role.NORM: Axes.ALL}, residual=Axes.ALL, batch=Axes.LEADING),
    "wg-xy": Preset({**_TWO, Role.NORM: Axes.ALL}, residual=Axes.ALL, batch=Axes.LEADING_TWO),
    "wg-xyz": Preset({**_TWO, Role.NORM: Axes.ALL}, residual=Axes.ALL, batch=Axes.ALL),
}

OPEN = "open"
"""The layout in which everything but the logits is a hole."""

_OPEN = Preset({**dict.fromkeys(Role, Axes.NONE), Role.VOCAB: Axes.ALL}, residual=Axes.NONE)


@dataclass(frozen=True)
class PresetLayout:
    """A preset fitted to a mesh and to the sizes of a model.

    `stored` gives for each role, and dimension that has it, the axes that split the dimension in a stored weight;
    `batch` and `residual` the axes of B and E of activations; `attention` those of B, the heads and T in attention and
    its cache, None where they are left to the compiler. `dropped` says in sentences what the preset would have split
    and the sizes do not allow.

    Where tokens are sent to experts, `experts` are the axes of X, and `groups` those of the tokens on their way, of
    the dimensions that number their groups and of E; the experts' weights stay where they are stored. Else `experts`
    is None.
    """

    name: str
    stored: Mapping[tuple[Role, str], tuple[str, ...]]
    batch: tuple[str, ...]
    residual: tuple[str, ...]
    attention: Mapping[str, tuple[str, ...]] | None
    dropped: tuple[str, ...]
    experts: tuple[str, ...] | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def open(self) -> bool:
        """Tells whether types are holes."""
        return self.name == OPEN

    def split(self, role: Role | None, dim: str) -> tuple[str, ...]:
        """The axes of a dimension of a stored weight."""
        return () if role is None else self.stored.get((role, dim), ())

    def used(self, role: Role | None, dim: str) -> tuple[str, ...]:
        """The axes of a dimension of a weight where it is used, gathered over those of the batch."""
        if self.experts is not None and role in OF_EXPERTS and dim in ("X", "E", "F"):
            return self.split(role, dim)
        return tuple(axis for axis in self.split(role, dim) if axis not in self.batch)


def preset(name: str) -> Preset:
    """The preset of this name. Raises where there is none."""
    if name == OPEN:
        return _OPEN
    if name not in PRESETS:
        raise fault(
            "unknown-layout",
            f"there is no layout {name}; there are {', '.join(PRESETS)}, and {OPEN}",
            NOWHERE,
            nearest(name, [*PRESETS, OPEN]),
        )
    return PRESETS[name]


def fit_layouts(
    names: Sequence[str | Preset],
    mesh: Mesh,
    sizes: Mapping[str, int],
    attends: AttentionSpec,
    attention: AttentionOver | None = None,
    *,
    cached: bool = False,
    batches: Sequence[str] | None = None,
    groups: Sequence[TokenGroups] = (),
) -> tuple[PresetLayout, ...]:
    """The presets, by name or given, on this mesh, for the functions of one program, whose dimensions have these
    sizes; `batches` are the dimension of each function's sequences, B where None.

    All axes that split a dimension anywhere divide it together (digits of its index). The outer axes have the
    first claim, so that the innermost are dropped first. Axes that do not fit the first dimension of the heads (K,
    the heads of keys and values) split the second (G, the queries in a group), which keeps the heads of a chip
    together with their keys and values; K is split as far as the whole can be. Attention over batch puts on the heads
    what does not fit B, attention over positions on T what does not fit the heads of keys and values. Where attention
    is `cached`, its layout is that of the cache, the same in every function.

    With the `groups` of each function, tokens are sent to experts: the axes that divide X split it and no other
    dimension of the experts' weights, and the groups as far as they divide them; the others split F. Where none
    divides X, and no token could be dropped, the experts are replicated after all.

    Raises where there is no such preset, or where two store the weights differently.
    """
    presets = [preset(name) if isinstance(name, str) else name for name in names]
    batches, heads = batches or ["B"] * len(names), attends.query_dims
    homes: dict[str, dict[str, str]] = {}
    dropped: list[str] = []

    def place(dims: tuple[str, ...], wanted: Iterable[str]) -> None:
        ordered = mesh.sorted(wanted)
        home, left_out = _homes(dims, ordered, mesh, sizes)
        homes[dims[0]] = home
        if left_out:
            dropped.append(_sentence(dims, home, left_out, mesh, sizes))

    def stored(*roles: Role) -> list[str]:
        return [axis for made in presets for role in roles for axis in made.weights[role].of(mesh)]

    experts, whole = _axes_of_experts(groups, mesh)
    dropped += whole
    for rows in dict.fromkeys(batches):
        users = [user for user, at in zip(presets, batches, strict=True) if at == rows]
        over_batch = mesh.axes if attention == "batch" else ()
        place((rows,), [*over_batch, *(a for user in users for a in user.batch.of(mesh))])
    residuals = mesh.axes if experts is not None else [a for made in presets for a in made.residual.of(mesh)]
    place(("E",), [*stored(Role.NORM, Role.EMBED), *residuals])
    for dim in FEEDFORWARD_DIMS:
        if dim in sizes:
            left = [a for a in mesh.axes if a not in experts] if experts is not None else []
            place((dim,), left if experts is not None and dim == "F" else stored(Role.FEEDFORWARD))
    not_on_batch = tuple(a for a in mesh.axes if any(a not in homes[rows] for rows in batches))
    spare = {"batch": not_on_batch, None: ()}.get(attention, mesh.axes)
    place(heads, [*stored(Role.HEADS), *spare])
    if attention == "positions":
        sizes = {"T": sizes["L"], **sizes}
        place(("T",), [axis for axis in mesh.axes if homes[heads[0]].get(axis) not in attends.key_dims])
    place(("V",), stored(Role.VOCAB, Role.TABLE))

    made: list[PresetLayout] = []
    for i, (name, own, rows) in enumerate(zip(names, presets, batches, strict=True)):
        axes = {
            (role, dim): tuple(a for a in own.weights[role].of(mesh) if homes[group].get(a) == dim)
            for group, dims, roles in _groups(heads, sizes)
            for role in roles
            for dim in dims
        }
        if experts is None:
            axes[Role.EXPERT_EMBED, "E"] = axes[Role.EMBED, "E"]
        else:
            axes |= {(Role.EXPERTS, "X"): experts, (Role.FEEDFORWARD, "F"): tuple(homes["F"])}
        batch = tuple(a for a in own.batch.of(mesh) if a in homes[rows])
        residual = tuple(a for a in own.residual.of(mesh) if a in homes["E"] and a not in batch)
        over = None
        if attention is not None:
            first = () if cached else batch
            first = tuple(homes[rows]) if attention == "batch" else first
            on_positions = _on(homes.get("T", {}), "T", first)
            over = {rows: first, **{d: _on(homes[heads[0]], d, (*first, *on_positions)) for d in heads}}
            if on_positions:
                over["T"] = on_positions
        sent: dict[str, tuple[str, ...]] = {}
        if experts is not None:
            sent = _axes_of_groups(groups[i], experts, homes[rows], mesh)
            sent["E"] = tuple(a for a in homes["E"] if all(a not in axes for axes in sent.values()))
        label = name if isinstance(name, str) else name.name
        made.append(PresetLayout(label, axes, batch, residual, over, tuple(dropped), experts, sent))
    for other in made[1:]:
        if other.stored != made[0].stored:
            raise fault(
                "layouts-differ",
                f"{other.name} stores weights otherwise than {made[0].name}, and they are stored once",
                NOWHERE,
                "ws2d, wg-x, wg-xy and wg-xyz store them alike",
            )
    return tuple(made)


def _groups(
    heads: Sequence[str], sizes: Mapping[str, int]
) -> tuple[tuple[str, tuple[str, ...], tuple[Role, ...]], ...]:
    """The dimensions that are placed together, by the first, and their roles."""
    return (
        ("E", ("E",), (Role.NORM, Role.EMBED)),
        *((dim, (dim,), (Role.FEEDFORWARD,)) for dim in FEEDFORWARD_DIMS if dim in sizes),
        (heads[0], tuple(heads), (Role.HEADS,)),
        ("V", ("V",), (Role.VOCAB, Role.TABLE)),
    )


def _axes_of_experts(groups: Sequence[TokenGroups], mesh: Mesh) -> tuple[tuple[str, ...] | None, list[str]]:
    """The axes that split X, None where the experts are replicated, and a sentence where that was not asked for."""
    if not groups:
        return None, []
    number = {"X": groups[0].experts.number}
    home, left_out = _homes(("X",), mesh.axes, mesh, number)
    if home or any(made.bounded for made in groups):
        return tuple(home), []
    sentence = f"{_sentence(('X',), home, left_out, mesh, number)}, and every expert computes every token"
    return None, [sentence] if left_out else []


def _axes_of_groups(
    groups: TokenGroups, experts: Iterable[str], on_rows: Iterable[str], mesh: Mesh
) -> dict[str, tuple[str, ...]]:
    """The axes that split the groups. What splits the rows elsewhere, `on_rows`, has digits of the rows too."""
    axes: dict[str, list[str]] = {dim: [] for dim in groups.dims}
    numbers = (groups.over_rows, groups.over_positions)
    for axis in experts:
        for dim, number in zip(groups.dims, numbers, strict=False):
            digits = {*on_rows, *axes[dim], axis}
            fits = number % mesh.product([*axes[dim], axis]) == 0
            if fits and (dim == "O" or groups.batch % mesh.product(digits) == 0):
                axes[dim].append(axis)
                break
    return {dim: tuple(split) for dim, split in axes.items()}


def _on(home: Mapping[str, str], dim: str, taken: Sequence[str]) -> tuple[str, ...]:
    return tuple(axis for axis, at in home.items() if at == dim and axis not in taken)


def _homes(
    dims: Sequence[str], wanted: Sequence[str], mesh: Mesh, sizes: Mapping[str, int]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Which of the dimensions each axis splits, and the axes that fit none."""
    home: dict[str, str] = {}
    if len(dims) == 1:
        for axis in wanted:
            if sizes[dims[0]] % mesh.product([*home, axis]) == 0:
                home[axis] = dims[0]
    else:
        home = max(_shared_out(dims, wanted, mesh, sizes), key=lambda made: _split(made, dims[0], mesh))
    return home, tuple(axis for axis in wanted if axis not in home)


def _shared_out(
    dims: Sequence[str], wanted: Sequence[str], mesh: Mesh, sizes: Mapping[str, int]
) -> Iterator[dict[str, str]]:
    """Every way to put axes on dimensions that they divide together, outer axes on earlier dimensions first."""
    for chosen in product((*dims, None), repeat=len(wanted)):
        home = {axis: dim for axis, dim in zip(wanted, chosen, strict=True) if dim is not None}
        over = {dim: mesh.product([axis for axis, at in home.items() if at == dim]) for dim in dims}
        if all(sizes[dim] % over[dim] == 0 for dim in dims):
            yield home


def _split(home: Mapping[str, str], first: str, mesh: Mesh) -> tuple[int, int]:
    """Over how many chips the dimensions are split together, and the first by itself."""
    return mesh.product(list(home)), mesh.product([axis for axis, at in home.items() if at == first])


def _sentence(
    dims: Sequence[str], home: Mapping[str, str], left_out: Sequence[str], mesh: Mesh, sizes: Mapping[str, int]
) -> str:
    named = " ".join(f"{dim}={sizes[dim]}" for dim in dims)
    over = " and ".join(f"{axis}={mesh[axis]}" for axis in left_out)
    verb = "is" if len(dims) == 1 else "are"
    kept = " ".join(f"{axis}={mesh[axis]}" for axis in home)
    beside = f" beside {kept}" if kept else ""
    return f"{named} {verb} not split over {over}{beside}: not divisible"
