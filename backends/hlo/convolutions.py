"""Products as TPUs' compilers write them: convolutions, whose spatial dimensions are further ones of a product."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardwright.backends.hlo.module import Computation, Instruction

_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_DILATED = re.compile(r"lhs_dilate=([\dx]+)")


@dataclass(frozen=True)
class ConvolutionDims:
    """The labels of the dimensions of both operands and of the result. Spatial dimensions that are those of a product
    in disguise are named by their role: `batch` (of both operands), `summed`, or one operand's own. Along `windows` it
    is a true convolution."""

    left: str
    right: str
    made: str
    batch: str = ""
    summed: str = ""
    of_left: str = ""
    of_right: str = ""
    windows: str = ""


def convolution_dims(around: Computation, convolution: Instruction) -> ConvolutionDims:
    """A spatial dimension is one of the batch where the left operand is dilated along it, summed where the result has
    it no more, and one operand's own where the other has one index of it."""
    labels = _LABELS.search(convolution.attributes)
    assert labels is not None
    arrays = (*(around.instructions[name].arrays[0] for name in convolution.operands), convolution.arrays[0])
    in_left, in_right, in_made = (
        dict(zip(word, array.extents, strict=True)) for word, array in zip(labels.groups(), arrays, strict=True)
    )
    dilated = _DILATED.search(convolution.attributes)
    steps = [int(step) for step in dilated[1].split("x")] if dilated else []
    found = dict.fromkeys(("batch", "summed", "of_left", "of_right", "windows"), "")
    for at, label in enumerate(sorted(filter(str.isdigit, in_made))):
        if at < len(steps) and steps[at] > 1:
            role = "batch"
        elif in_right[label] == 1:
            role = "of_left"
        elif in_made[label] == 1:
            role = "summed"
        else:
            role = "of_right" if in_left[label] == 1 else "windows"
        found[role] += label
    return ConvolutionDims(*labels.groups(), **found)
