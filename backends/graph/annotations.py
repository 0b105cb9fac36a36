"""The additions of a caller to a picture: a remark at a statement, and how strongly it is coloured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwright.cost.programs.program_cost import Cost


@dataclass(frozen=True)
class Annotation:
    """A line of text beneath an operation, and a weight from 0 to 1 that colours it, such as its share of the time.

    Raises ValueError for a weight outside that range.
    """

    text: str = ""
    weight: float | None = None

    def __post_init__(self) -> None:
        if self.weight is not None and not 0 <= self.weight <= 1:
            raise ValueError(f"the weight of an annotation is {self.weight:g}; it is between 0 and 1")


Annotations = Mapping[str, Annotation]
"""By the name of a value, `h`, or of a value in one function, `decode.h`, which goes first."""


def of_costs(costs: Iterable[Cost]) -> dict[str, Annotation]:
    """The predicted time of each kernel and its share of its function's, at the value that it makes."""
    from shardwright.cost.movements.movement import duration_text

    made: dict[str, Annotation] = {}
    for cost in costs:
        for kernel in cost.kernels:
            share = kernel.total_s / cost.time_s if cost.time_s else 0.0
            text = f"{duration_text(kernel.total_s)}, {100 * share:.1f} %, {kernel.times.bound}"
            made[f"{cost.func}.{kernel.work.name}"] = Annotation(text, min(1.0, share))
    return made


def annotation_of(annotations: Annotations, func: str, name: str) -> Annotation | None:
    """The annotation of a value of this function."""
    return annotations.get(f"{func}.{name}", annotations.get(name))


def together(annotations: Sequence[Annotation | None]) -> Annotation | None:
    """The annotation of several statements that one node shows: the remark of the only one that has one, or the sum of
    weights."""
    found = [one for one in annotations if one is not None]
    if len(found) < 2:
        return found[0] if found else None
    weights = [one.weight for one in found if one.weight is not None]
    weight = min(1.0, sum(weights)) if weights else None
    text = f"{len(found)} kernels" + (f", {100 * weight:.1f} %" if weight is not None else "")
    return Annotation(text, weight)


_COLD, _HOT = (0xFF, 0xF7, 0xE0), (0xE3, 0x4A, 0x33)


def heat_colour(weight: float) -> str:
    """From cream at 0 to red at 1."""
    mixed = (round(cold + (hot - cold) * weight) for cold, hot in zip(_COLD, _HOT, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
