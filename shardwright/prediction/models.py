"""MODEL as commands take it: a built-in name, a config.json, or a folder with one; its mesh and preset on a chip."""

from __future__ import annotations

import math
from pathlib import Path

from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.networks import Torus
from shardwright.ir.diagnostics import NOWHERE, Source, fault, located, nearest
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.table import counted
from shardwright.models.architectures import describe
from shardwright.models.built_in import BuiltIn, built_in, built_in_names
from shardwright.models.config import read_config
from shardwright.models.description import LearnedPositions, Model, positions_of
from shardwright.models.layouts import OPEN, PRESETS
from shardwright.models.weights import model_weights


def model_of(text: str) -> BuiltIn:
    """The model with its size. Raises where the name is unknown, or the config at fault."""
    with located(Source(text, "")):
        return named_model(text)


def named_model(text: str) -> BuiltIn:
    """The same, of a text that stands in a file, whose place faults get."""
    if text in built_in_names() or not (Path(text).exists() or text.endswith(".json")):
        return built_in(text)
    model = describe(read_config(text))
    return BuiltIn(model.architecture, model, float(parameters_of(model)), text)


def parameters_of(model: Model) -> int:
    """Elements of all weights of its program."""
    sizes = model.sizes(1, 1)
    return sum(math.prod(int(sizes[dim]) for dim in weight.dims) for weight in model_weights(model))


def active_parameters(found: BuiltIn) -> float:
    """The parameters that a token meets: all but those of the experts that it does not choose."""
    experts, sizes = found.model.feedforward.experts, found.model.sizes(1, 1)
    if experts is None:
        return found.parameters
    of_experts = sum(
        math.prod(int(sizes[dim]) for dim in weight.dims)
        for weight in model_weights(found.model)
        if {"X", "E", "F"} <= set(weight.dims)
    )
    return found.parameters - of_experts * (1 - experts.chosen / experts.number)


def longest_context(model: Model) -> int | None:
    """How many positions a model has, None where they are not of a table."""
    return model.positions.size if isinstance(model.positions, LearnedPositions) else None


def check_positions(model: Model, positions: int) -> None:
    """Raises where a model whose positions are of a table has not so many."""
    longest = longest_context(model)
    if longest is not None and positions > longest:
        found = f"{positions} positions, and {model.architecture} has {longest}"
        raise fault("too-long", found, NOWHERE, f"give --context {longest} or less")


def check_generation(model: Model, prompt: int, new: int) -> None:
    """Raises where a model whose positions are of a table has not as many as a prompt and its new tokens take."""
    longest, needed = longest_context(model), positions_of(prompt, new)
    if longest is not None and needed > longest:
        asked = f"a prompt of {prompt} and {counted(new, 'new token')} take {needed} positions"
        raise fault("too-long", f"{asked}, and {model.architecture} has {longest}", NOWHERE, "ask for fewer of either")


def remark_on_positions(model: Model, positions: int) -> str:
    """The sentence that prices of so many positions come with where the model's config has fewer; nothing elsewhere."""
    words = beyond_positions(model, positions)
    return f"{positions} positions, {words}" if words else ""


def beyond_positions(model: Model, positions: int) -> str:
    """The words on so many positions where the model's config has fewer; nothing elsewhere."""
    return f"more than the model's {model.longest}: it was not made for them" if positions > model.longest else ""


def preset_of(chip: Chip) -> str:
    """The layout that a model has on such chips where none is named."""
    return "ws2d" if isinstance(chip.interconnect, Torus) else "megatron"


def check_preset(layout: str) -> None:
    """Raises where a layout is no preset, or leaves weights and caches to a search, on which memory and time depend."""
    if layout == OPEN:
        with located(Source("--layout", "")):
            raise fault(
                "unknown-layout",
                f"{OPEN} is no preset: it leaves weights and caches to a search; there are {', '.join(PRESETS)}",
                NOWHERE,
                f"plan searches for layouts that fit, and so does search in what import --layout {OPEN} writes",
            )
    if layout not in PRESETS:
        found = f"there is no layout {layout}; there are {', '.join(PRESETS)}"
        raise fault("unknown-layout", found, NOWHERE, nearest(layout, tuple(PRESETS)))


def torus_mesh(chip: Chip, n_chips: int, kv_heads: int = 1) -> Mesh:
    """x, y and z on the most compact slice of a torus; x, along which the paper splits E, is the axis nearest to half
    the root of the chips (Pope et al. 2022, A.2.1). On a switched network all chips are one axis, or where the heads of
    keys and values divide over some of them only, two, of which y is these, next to each other."""
    if not isinstance(chip.interconnect, Torus):
        over = math.gcd(n_chips, kv_heads)
        return Mesh.of(x=n_chips) if over in (1, n_chips) else Mesh.of(x=n_chips // over, y=over)
    slices = chip.interconnect.slices_of(n_chips)
    if not slices:
        sizes = ", ".join(map(str, chip.interconnect.slice_sizes()[:12]))
        raise fault("mesh-fit", f"no slice of {chip.name} has {n_chips} chips; there are slices of {sizes}, ...")
    shape = list(slices[0])
    best = 0.5 * math.sqrt(n_chips)
    first = min(shape, key=lambda size: (abs(math.log(size / best)), -size))
    shape.remove(first)
    return Mesh(tuple(zip("xyz", (first, *shape), strict=False)))
