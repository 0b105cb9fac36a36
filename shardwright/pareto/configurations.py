"""The axes of a sweep, and the configurations that it consists of, each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from shardwright.cost.hardware.chips import Chip, PricedBy
from shardwright.cost.hardware.constants import Constants
from shardwright.cost.hardware.networks import Torus
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.mesh import Mesh
from shardwright.models.built_in import BuiltIn
from shardwright.models.description import positions_of
from shardwright.models.layouts import AttentionOver, PresetLayout, fit_layouts
from shardwright.models.token_groups import ExpertsForm
from shardwright.prediction.fitting import n_chips_of
from shardwright.prediction.models import check_generation, remark_on_positions, torus_mesh
from shardwright.prediction.programs import Deployment, Phase, Weights, fitted_layout


@dataclass(frozen=True)
class Sweep:
    """The question of a sweep: `prompt` tokens in and `generated` tokens out of each sequence, under every combination
    of these.

    `chips` are the least and the most. `every_mesh` takes every way to lay axes on every slice, rather than the one
    way that Pope et al. 2022 describe. `looped` adds each configuration with its collectives as loops. With `together`
    the phases, which are then both, will be put together to generations (`pareto.generations`). `experts` says how
    tokens meet those that a model has.
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
    experts: ExpertsForm = "routed"
    expert_capacity: float | None = None

    @property
    def title(self) -> str:
        return f"{self.model.name} on {self.chip.name}, {self.prompt} tokens in, {self.generated} out"

    @property
    def priced_by(self) -> PricedBy:
        """Where the constants of prices are from."""
        return self.chip.priced_by(self.constants)

    @property
    def context(self) -> int:
        """Positions of the cache."""
        return self.model.model.cache_for(self.prompt, self.generated)

    @property
    def beyond(self) -> str:
        """The remark where a generation takes more positions than the model was made for."""
        return remark_on_positions(self.model.model, positions_of(self.prompt, self.generated))

    def length(self, phase: Phase) -> int:
        """The new positions of each sequence in one call."""
        return self.prompt if phase == "prefill" else 1

    @property
    def middle(self) -> int:
        """Positions of the cache that decode has filled half-way through a generation."""
        return self.prompt + max(1, self.generated // 2)


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


def configurations_of(sweep: Sweep) -> list[Configuration]:
    """The configurations of a sweep. Presets that come to the same layout on a mesh count once, by the first's name.

    Prefill with attention over the batch is left out where the layout does not split the batch, unless it alone is
    asked for: it reads no long cache, and pays for moving queries and keys (Pope et al. 2022, section 3.3). Not so in
    a generation, where decode may want the cache split so.

    Raises where no slice of the chip has so many chips, or the model has a table of fewer positions.
    """
    model, both = sweep.model.model, len(sweep.attention) > 1
    check_generation(model, sweep.prompt, sweep.generated)
    found: list[Configuration] = []
    for mesh in meshes(sweep):
        for batch in sweep.batches:
            for phase in sweep.phases:
                seen: set[object] = set()
                for layout in sweep.layouts:
                    for attention in sweep.attention:
                        asked = Deployment(
                            model, mesh, layout, attention, experts=sweep.experts,
                            expert_capacity=sweep.expert_capacity,
                        )  # fmt: skip
                        fitted = fitted_layout(asked, batch, sweep.length(phase))
                        alone = both and not sweep.together
                        needless = phase == "prefill" and attention == "batch" and not fitted.batch and alone
                        demands = _demands(fitted)
                        if demands in seen or needless:
                            continue
                        seen.add(demands)
                        found += [
                            Configuration(replace(asked, weights=weights), phase, batch) for weights in sweep.weights
                        ]
    return [*found, *(replace(one, looped=True) for one in found if sweep.looped)]


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
        near = [str(n) for n in (*below[-1:], *above[:1])]
        asked = str(least) if least == most else f"{least} to {most}"
        torus, name = isinstance(sweep.chip.interconnect, Torus), sweep.chip.name
        none = f"slice of {name} has" if torus else f"power of 2 of {name}, nor of its nodes, is"
        raise fault(
            "empty-sweep",
            f"there is nothing to sweep: no {none} {asked} chips",
            NOWHERE,
            f"the nearest size{'s are' if len(near) > 1 else ' is'} {' and '.join(near)}",
        )
    return [mesh for n in chosen for mesh in (_every_mesh(sweep.chip, n) if sweep.every_mesh else _meshes(sweep, n))]


def _meshes(sweep: Sweep, n_chips: int) -> Iterator[Mesh]:
    """One on a torus; on a switched network all chips as one axis, and where the heads of keys divide over some of them
    only or there are several nodes also two."""
    made = [torus_mesh(sweep.chip, n_chips), torus_mesh(sweep.chip, n_chips, sweep.model.model.attention.kv_heads)]
    if not isinstance(sweep.chip.interconnect, Torus):
        inside = sweep.chip.interconnect.levels[0].units
        if inside is not None and inside < n_chips:
            made.append(Mesh.of(x=n_chips // inside, y=inside))
    yield from dict.fromkeys(made)


def _every_mesh(chip: Chip, n_chips: int) -> Iterator[Mesh]:
    if isinstance(chip.interconnect, Torus):
        for shape in chip.interconnect.slices_of(n_chips):
            for sizes in dict.fromkeys(permutations(shape)):
                yield Mesh(tuple(zip("xyz", sizes, strict=False)))
        return
    yield Mesh.of(x=n_chips)
    yield from (Mesh.of(x=x, y=n_chips // x) for x in range(2, n_chips) if n_chips % x == 0)


def _demands(fitted: PresetLayout) -> tuple[object, ...]:
    """A preset as it fits, without its name and what it says of sizes."""
    stored = sorted((role.name, dim, axes) for (role, dim), axes in fitted.stored.items())
    of_tokens = (fitted.attention or {}, fitted.groups)
    return tuple(stored), fitted.batch, fitted.residual, *(tuple(sorted(axes.items())) for axes in of_tokens)


def stores_alike(sweep: Sweep, decode: Configuration, layout: str) -> bool:
    """Tells whether prefill in this layout reads the weights as decode stores them, so that one program can have
    both."""
    here = decode.deployment
    names: Sequence[str] = (here.layout, layout)
    groups = [made for phase in ("decode", "prefill") if (made := here.token_groups(decode.batch, sweep.length(phase)))]
    sizes = sweep.model.model.sizes(decode.batch, sweep.prompt, {"T": sweep.context})
    numbers = {name: size for name, size in sizes.items() if isinstance(size, int)}
    try:
        fit_layouts(names, here.mesh, numbers, here.model.attention, here.attention, cached=True, groups=groups)
    except DiagnosticError:
        return False
    return True
