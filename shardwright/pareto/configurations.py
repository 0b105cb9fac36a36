"""What a sweep is over, and the configurations that it consists of, each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from shardwright.cost.chips import Chip, Torus
from shardwright.cost.constants import Constants
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.mesh import Mesh
from shardwright.models.built_in import BuiltIn
from shardwright.models.layouts import AttentionOver, Layout, fit_layouts
from shardwright.prediction.fitting import n_chips_of
from shardwright.prediction.programs import Deployment, Phase, Weights
from shardwright.prediction.rows import torus_mesh


@dataclass(frozen=True)
class Sweep:
    """What is asked: `prompt` tokens in and `generated` tokens out of each sequence, under every combination of these.

    `chips` are the least and the most. `every_mesh` takes every way to lay axes on every slice, rather than the one
    way that Pope et al. 2022 describe. `looped` adds each configuration with its collectives as loops. With `together`
    the phases, which are then both, will be put together to generations (`pareto.generations`).
    """

    model: BuiltIn
    chip: Chip
    constants: Constants
    chips: tuple[int, int]
    batches: tuple[int, ...]
    weights: tuple[Weights, ...]
    layouts: tuple[str, ...]
    attention: tuple[AttentionOver, ...]
    phases: tuple[Phase, ...]
    prompt: int
    generated: int
    every_mesh: bool = False
    looped: bool = False
    together: bool = False

    @property
    def context(self) -> int:
        """Positions of the cache."""
        return self.prompt + self.generated


@dataclass(frozen=True)
class Configuration:
    """One point of a sweep: a model on a mesh in a layout, and the call that is priced."""

    deployment: Deployment
    phase: Phase
    batch: int
    looped: bool = False

    @property
    def n_chips(self) -> int:
        return self.deployment.mesh.n_chips


@dataclass(frozen=True)
class Group:
    """Configurations whose programs demand the same layouts, so that one explicit program serves them all."""

    sample: Configuration
    """The one whose sizes choose the layouts that are left open."""
    members: tuple[Configuration, ...]

    def sample_on(self, mesh: Mesh) -> Configuration:
        """The one that stands for those on a mesh, where the digits of the sample's layouts do not fit there."""
        return min(
            (one for one in self.members if one.deployment.mesh == mesh), key=lambda one: (one.batch, one.looped)
        )


def groups_of(sweep: Sweep) -> list[Group]:
    """The configurations of a sweep. Presets that come to the same layout on a mesh count once, by the first's name.

    Prefill with attention over the batch is left out where the layout does not split the batch, unless it alone is
    asked for: it reads no long cache, and pays for moving queries and keys (Pope et al. 2022, section 3.3). Not so in
    a generation, where decode may want the cache split so.
    The sample is the member with nearest to 64 chips, and of these the one with the least batch.

    Raises where no slice of the chip has so many chips, or the cache is longer than the model's positions.
    """
    model, both = sweep.model.model, len(sweep.attention) > 1
    if sweep.context > model.longest:
        raise fault(
            "too-long",
            f"{sweep.prompt} tokens in and {sweep.generated} out are {sweep.context} positions, and {sweep.model.name}"
            f" has {model.longest}",
            NOWHERE,
            f"give --prompt-len and --gen-len that make {model.longest} or less",
        )
    found: dict[object, list[Configuration]] = {}
    for mesh in meshes(sweep):
        for batch in sweep.batches:
            for phase in sweep.phases:
                seen: set[object] = set()
                for layout in sweep.layouts:
                    for attention in sweep.attention:
                        demands, split = _demands(sweep, layout, attention, mesh, batch, phase)
                        alone = both and not sweep.together
                        needless = phase == "prefill" and attention == "batch" and not split and alone
                        if demands in seen or needless:
                            continue
                        seen.add(demands)
                        for weights in sweep.weights:
                            deployment = Deployment(model, mesh, layout, attention, weights)
                            made = Configuration(deployment, phase, batch)
                            found.setdefault((phase, weights, mesh.axes, demands), []).append(made)
    made_groups: list[Group] = []
    for members in found.values():
        sample = min(members, key=lambda one: (abs(one.n_chips - 64), one.batch))
        more = [replace(one, looped=True) for one in members] if sweep.looped else []
        made_groups.append(Group(sample, (*members, *more)))
    return made_groups


def meshes(sweep: Sweep) -> list[Mesh]:
    """The meshes on as many chips as are asked for. Raises where there is none."""
    least, most = sweep.chips
    known: list[int] = []
    for n in n_chips_of(sweep.chip):
        known.append(n)
        if n > most:
            break
    chosen = [n for n in known if least <= n <= most]
    if not chosen:
        below, above = [n for n in known if n < least], [n for n in known if n > most]
        near = " and ".join(str(n) for n in (*below[-1:], *above[:1]))
        asked = str(least) if least == most else f"{least} to {most}"
        raise fault(
            "empty-sweep",
            f"there is nothing to sweep: no slice of {sweep.chip.name} has {asked} chips",
            NOWHERE,
            f"the nearest sizes are {near}",
        )
    return [mesh for n in chosen for mesh in (_every_mesh(sweep.chip, n) if sweep.every_mesh else _meshes(sweep, n))]


def _meshes(sweep: Sweep, n_chips: int) -> Iterator[Mesh]:
    """One on a torus; on a switched network all chips as one axis, and where there are several nodes also two."""
    yield torus_mesh(sweep.chip, n_chips)
    if not isinstance(sweep.chip.interconnect, Torus):
        inside = sweep.chip.interconnect.levels[0].units
        if inside is not None and inside < n_chips:
            yield Mesh.of(x=n_chips // inside, y=inside)


def _every_mesh(chip: Chip, n_chips: int) -> Iterator[Mesh]:
    if isinstance(chip.interconnect, Torus):
        for shape in chip.interconnect.slices_of(n_chips):
            for sizes in dict.fromkeys(permutations(shape)):
                yield Mesh(tuple(zip("xyz", sizes, strict=False)))
        return
    yield Mesh.of(x=n_chips)
    x = 2
    while x < n_chips:
        yield Mesh.of(x=x, y=n_chips // x)
        x *= 2


def _demands(
    sweep: Sweep, layout: str, attention: AttentionOver, mesh: Mesh, batch: int, phase: Phase
) -> tuple[tuple[object, ...], bool]:
    """The preset as it fits, without its name and what it says of sizes, and whether it splits the batch."""
    fitted = fitted_layout(sweep, layout, attention, mesh, batch, phase)
    stored = sorted((role.name, dim, axes) for (role, dim), axes in fitted.stored.items())
    over = sorted((fitted.attention or {}).items())
    return (tuple(stored), fitted.batch, fitted.residual, tuple(over)), bool(fitted.batch)


def fitted_layout(sweep: Sweep, layout: str, attention: AttentionOver, mesh: Mesh, batch: int, phase: Phase) -> Layout:
    """The preset on this mesh, for one phase of this model. Raises where there is no such preset."""
    model = sweep.model.model
    sizes = model.sizes(batch, sweep.prompt if phase == "prefill" else 1, sweep.context)
    numbers = {name: size for name, size in sizes.items() if isinstance(size, int)}
    return fit_layouts([layout], mesh, numbers, model.attention.query_dims, attention, cached=True)[0]


def stores_alike(sweep: Sweep, decode: Configuration, layout: str) -> bool:
    """Whether prefill in this layout reads the weights as decode stores them, so that one program can have both."""
    here = decode.deployment
    names: Sequence[str] = (here.layout, layout)
    sizes = sweep.model.model.sizes(decode.batch, sweep.prompt, sweep.context)
    numbers = {name: size for name, size in sizes.items() if isinstance(size, int)}
    try:
        fit_layouts(names, here.mesh, numbers, here.model.attention.query_dims, here.attention, cached=True)
    except DiagnosticError:
        return False
    return True
