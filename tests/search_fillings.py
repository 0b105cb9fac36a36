"""Every filling of a small program, each written down and priced: what a search must find, and nothing else it may.

A program is given twice: with holes, and with a name for every layout that is to be chosen, the copies that products
take and what they leave among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwright.compiling.compile_program import load
from shardwright.cost.hardware.chips import Chip
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.passes.pipelines import parse_pipeline, run_passes

WRITTEN_DOWN = "choose-digit-order,insert-moves,cleanup,choose-digit-order"


@dataclass(frozen=True)
class Filling:
    """One of a program's fillings: its time, all functions together, and the largest peak of them."""

    seconds: float
    peak: int


def layout(states: Mapping[str, str], dims: str) -> str:
    """What each axis does as a layout: the dimension that it splits, `+` for a partial sum, or nothing."""
    split = "".join(
        dim + (f"_{axes}" if (axes := "".join(a for a, state in states.items() if state == dim)) else "")
        for dim in dims
    )
    partial = "".join(axis for axis, state in states.items() if state == "+")
    return f"{split}(partialsum-{partial})" if partial else split


def products(axes: str, rows: str, summed: str, columns: str) -> list[tuple[str, str, str]]:
    """The layouts of [rows, summed] @ [summed, columns] and its result: each axis splits one of the three, or none."""
    made: list[tuple[str, str, str]] = []
    for chosen in itertools.product((rows, summed, columns, ""), repeat=len(axes)):
        of = dict(zip(axes, chosen, strict=True))
        left = {axis: dim for axis, dim in of.items() if dim in (rows, summed)}
        right = {axis: dim for axis, dim in of.items() if dim in (summed, columns)}
        result = {axis: "+" if dim == summed else dim for axis, dim in of.items()}
        made.append((layout(left, rows + summed), layout(right, summed + columns), layout(result, rows + columns)))
    return made


def homes(axes: str, dims: str) -> list[str]:
    """The layouts of a value without partial sums: each axis splits one of the dimensions, or none."""
    return [
        layout(dict(zip(axes, chosen, strict=True)), dims)
        for chosen in itertools.product((*dims, ""), repeat=len(axes))
    ]


def every_filling(text: str, choices: Mapping[tuple[str, ...], list[tuple[str, ...]]], chip: Chip) -> list[Filling]:
    """Prices the text with every combination of choices, each for some names in braces; those that cannot be are
    left out."""
    return list(_every_filling(text, choices, chip))


def _every_filling(
    text: str, choices: Mapping[tuple[str, ...], list[tuple[str, ...]]], chip: Chip
) -> Iterator[Filling]:
    passes = parse_pipeline(WRITTEN_DOWN)
    for chosen in itertools.product(*choices.values()):
        filling = {
            name: value
            for names, values in zip(choices, chosen, strict=True)
            for name, value in zip(names, values, strict=True)
        }
        written = text
        for name, value in filling.items():
            written = written.replace(f"<{name}>", value)
        try:
            program = run_passes(load(Source("filling", written)), passes)
        except DiagnosticError:
            continue
        costs = [cost_of(program, func, chip) for func in program.funcs]
        yield Filling(sum(cost.time_s for cost in costs), max(cost.memory.peak for cost in costs))


def limits_that_bind(fillings: list[Filling]) -> list[int]:
    """Peaks below that of the fastest filling, from the least to the largest."""
    fastest = min(fillings, key=lambda each: (each.seconds, each.peak))
    return sorted({each.peak for each in fillings if each.peak < fastest.peak})


def least(fillings: list[Filling], limit: float) -> float:
    """The least time of the fillings that fit."""
    return min(each.seconds for each in fillings if each.peak <= limit)
