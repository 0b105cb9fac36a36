"""MODEL as commands take it: a built-in name, a config.json, or a folder with one."""

from __future__ import annotations

from math import prod
from pathlib import Path

from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
from shardwright.models.architectures import describe
from shardwright.models.built_in import BuiltIn, built_in, built_in_names
from shardwright.models.config import read_config
from shardwright.models.description import Learned, Model
from shardwright.models.weights import model_weights


def model_of(text: str) -> BuiltIn:
    """The model with its size. Raises where the name is unknown, or the config at fault."""
    with located(Source(text, "")):
        if text in built_in_names() or not (Path(text).exists() or text.endswith(".json")):
            return built_in(text)
        model = describe(read_config(text))
    return BuiltIn(model.architecture, model, float(parameters_of(model)), text)


def parameters_of(model: Model) -> int:
    """Elements of all weights of its program."""
    sizes = model.sizes(1, 1)
    return sum(prod(int(sizes[dim]) for dim in weight.dims) for weight in model_weights(model))


def longest_context(model: Model) -> int | None:
    """How many positions a model has, None where they are not of a table."""
    return model.positions.size if isinstance(model.positions, Learned) else None


def check_positions(model: Model, positions: int) -> None:
    """Raises where a model whose positions are of a table has not so many."""
    longest = longest_context(model)
    if longest is not None and positions > longest:
        found = f"{positions} positions, and {model.architecture} has {longest}"
        raise fault("too-long", found, NOWHERE, f"give --context {longest} or less")
