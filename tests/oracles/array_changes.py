"""What passes do to whole arrays of weights, by the functions that follow their recipes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from oracles.rewritten_programs import Change

from shardwright.ir.program import Program
from shardwright.passes.base import Pass
from shardwright.passes.pipelines import parse_pipeline, run_passes
from shardwright.passes.transformations.fuse_parallel_block import FuseParallelBlock
from shardwright.passes.transformations.packed_weights import pack
from shardwright.passes.transformations.packing import packing
from shardwright.passes.transformations.pad_heads import PadHeads, padding
from shardwright.passes.transformations.padded_weights import pad
from shardwright.passes.transformations.quantize_weights import QuantizeWeights
from shardwright.passes.transformations.quantized_weights import quantize

Arrays = Mapping[str, npt.ArrayLike]


def applied(before: Program, pipeline: str) -> tuple[Program, Change]:
    """The program after the passes, and what they do to its arrays."""
    changes: list[Change] = []
    after = before
    for made in parse_pipeline(pipeline):
        changes.append(change_of(made, after))
        after = run_passes(after, [made])

    def change(arrays: Arrays, func: str | None = None) -> Arrays:
        for one in changes:
            arrays = one(arrays, func)
        return arrays

    return after, change


def change_of(made: Pass, before: Program) -> Change:
    match made:
        case FuseParallelBlock():
            recipe = packing(before)
            return lambda arrays, func=None: pack(recipe, arrays, func)
        case QuantizeWeights():
            stored = made.quantization(before)
            return lambda arrays, func=None: quantize(stored, arrays, func)
        case PadHeads(to=to):
            padded = padding(before, to)
            return lambda arrays, func=None: pad(padded, {name: np.asarray(array) for name, array in arrays.items()})
        case _:
            return lambda arrays, func=None: arrays
