"""`pad-heads`: attention heads padded to a multiple with heads of zeros, and the recipe for the weights."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.operation import Number
from shardwright.ir.ops import (
    Merge,
    Split,
)
from shardwright.ir.program import Func, Let, Program, Statement, Value
from shardwright.ir.text.unparse import unparse
from shardwright.ir.walk import Site, lets, map_sites
from shardwright.ir.weight_source import WeightSource
from shardwright.passes.base import Pass
from shardwright.passes.transformations.added_heads import require_zeros_to_stay_apart
from shardwright.passes.transformations.padded_weights import PaddedDim, PaddedWeights, Padding
from shardwright.passes.transformations.projections import Dataflow


@dataclass(frozen=True)
class PadHeads(Pass):
    """Heads are added until their number is a multiple of `to`, so that more axes divide it (Pope et al., section 4).

        mesh x=4 y=4 z=4
        dim E=18432 H=48 D=256
        func f(a: BLE_xyz, wq: E_xH_yzD, wo: H_yzDE_x) -> BLE_xyz { ... }

    becomes, with `to=64`,

        dim E=18432 H=64 D=256

    The weights of an added head are zeros: its query is zero, and whatever it reads, the output projection
    multiplies by zeros, so that results are exactly those of the heads that were there. Raises where heads are mixed
    otherwise, or multiplied with nothing that is zeros there. `padding` gives the recipe by which arrays become those
    of the padded program, and `pad` follows it. Where several heads of queries share those of keys and values, heads
    are added to each group, and the KV cache stays as it is. Attention may be written `attend` or as `@ softmax @`.
    The layouts stay too: what the padded heads now allow is demanded by other passes, or chosen by `place`. Where a
    layout demands already what only the padded heads allow, as `BLH_xyzD` does of 48 heads on 64 chips, `opt` reads
    the program at the padded sizes. To leave heads as they are and let axes that do not divide them hold copies
    instead, see `attention-over-batch{axes=none}`.
    """

    name: ClassVar[str] = "pad-heads"
    to: int = 64

    def run(self, program: Program) -> Program:
        sizes = padded_sizes(program, self.to)
        if not sizes:
            return program
        plain = partial(_with_numbers, _grown(program, self.to).blocks)
        funcs = tuple(map_sites(program, func, plain) for func in program.funcs)
        try:
            return elaborate(unparse(replace(program, funcs=funcs)), dims=sizes)
        except DiagnosticError as error:
            first, (name, size) = error.diagnostics[0], next(iter(sizes.items()))
            what = f"pad-heads makes {name}={program.dim(name).size} {size}, and {first.message}"
            raise fault(first.code, what, program.dim(name).span, *first.notes) from error

    def weights(self, program: Program, source: WeightSource) -> WeightSource:
        return PaddedWeights(padding(program, self.to), source)


def padded_sizes(program: Program, to: int) -> Mapping[str, int]:
    """The sizes that `pad-heads{to=...}` gives dimensions, by name; raises where it refuses the program."""
    grown = _grown(program, to)
    require_zeros_to_stay_apart(program, grown.blocks)
    return grown.sizes


def padding(program: Program, to: int) -> Padding:
    """The changes that `pad-heads{to=...}` makes to the arrays of this program, which is the one before the pass.

    The paper's "18B parameters" for PaLM 540B, of 48 heads padded to 64, are 2 E (64 - 48) D in each of 118 layers.
    """
    grown = _grown(program, to)
    arrays: dict[str, tuple[PaddedDim, ...]] = {}
    parameters = 0
    weights = {value.name for value in program.weights}
    inputs: list[Value] = [*program.weights, *program.state, *(v for func in program.funcs for v in func.params)]
    for value in inputs:
        made = tuple(
            PaddedDim(i, *grown.blocks[dim.name]) for i, dim in enumerate(value.type.dims) if dim.name in grown.blocks
        )
        if not made:
            continue
        arrays[value.name] = made
        if value.name in weights:
            after = math.prod(
                next((p.blocks * p.after for p in made if p.index == i), dim.size)
                for i, dim in enumerate(value.type.dims)
            )
            parameters += after - value.shape.elements
    return Padding(grown.sizes, arrays, parameters)


def _with_numbers(grown: Collection[str], site: Site) -> tuple[Statement, ...]:
    """The statement with the size of a dimension that grows as the number that it is."""
    statement = site.statement
    if not isinstance(statement, Let):
        return (statement,)
    numbers = (o.fixed(grown) if isinstance(o, Number) else o for o in statement.operands)
    return (replace(statement, operands=tuple(numbers)),)


# ---------------------------------------------------------------- which dimensions grow


@dataclass(frozen=True)
class _Grown:
    """Declared sizes to be changed, and for each dimension that grows (blocks, elements before, elements after)."""

    sizes: Mapping[str, int]
    blocks: Mapping[str, tuple[int, int, int]]


def _grown(program: Program, to: int) -> _Grown:
    if to < 1:
        raise fault("bad-option", f"pad-heads: heads cannot be padded to a multiple of {to}", NOWHERE)
    blocks: dict[str, tuple[int, int, int]] = {}
    for func in program.funcs:
        for heads in Dataflow(program, func).heads:
            _grow(program, func, heads, to, blocks)
    for let, _ in lets(program):
        _grow_whole(program, let, blocks)
    sizes = {name: n * after for name, (n, _, after) in blocks.items() if program.dim(name).expression is None}
    _require_independent(program, blocks, sizes)
    return _Grown(sizes, blocks)


def _grow(program: Program, func: Func, heads: Sequence[str], to: int, blocks: dict[str, tuple[int, int, int]]) -> None:
    """The last dimension of the heads grows until all heads together are a multiple."""
    if not heads:
        return
    sizes = program.sizes(func)
    *others, last = heads
    rest = math.prod(sizes[name] for name in others)
    step = to // math.gcd(to, rest)
    after = -(-sizes[last] // step) * step
    if any(name == last for name, _ in func.overrides):
        raise fault(
            "overridden-heads",
            f"pad-heads: {func.name} gives {last} a size of its own",
            func.span,
            "heads are those of the whole program",
        )
    known = blocks.get(last)
    if known is not None and known[2] != after:
        raise fault("heads-differ", f"pad-heads: two attentions need {last} of {known[2]} and of {after}", func.span)
    if after != sizes[last]:
        blocks[last] = (1, sizes[last], after)


def _grow_whole(program: Program, statement: Let, blocks: dict[str, tuple[int, int, int]]) -> None:
    """A dimension that is split into heads, or merged from them, grows with the innermost of its parts."""
    match statement.operation:
        case Split(source=whole, parts=parts):
            pass
        case Merge(parts=parts, target=whole):
            pass
        case _:
            return
    packed = program.dim(whole).expression
    if not any(part in blocks for part in parts) or (packed is not None and len(packed) > 1):
        return  # `_require_independent` says what is wrong with a packed dimension
    *others, last = parts
    if any(part in blocks for part in others):
        raise fault(
            "heads-outermost",
            f"pad-heads: {statement.operation.keyword} has the heads {''.join(p for p in parts if p in blocks)}"
            f" outside {last}",
            statement.span,
            "pad where heads are a dimension of their own",
        )
    _, before, after = blocks[last]
    blocks[whole] = (math.prod(program.dim(name).size for name in others), before, after)


def _require_independent(
    program: Program, blocks: Mapping[str, tuple[int, int, int]], sizes: Mapping[str, int]
) -> None:
    """Raises where another dimension's size follows from one that grows, as a packed dimension's does."""
    for dim in program.dims:
        if dim.expression is None:
            continue
        named = {word for product in dim.expression for word in product if isinstance(word, str)}
        if named & set(blocks) and dim.name not in blocks:
            raise fault(
                "packed-heads",
                f"pad-heads: the size of {dim.name} follows from that of {', '.join(sorted(named & set(blocks)))}",
                dim.span,
                "pad heads before dimensions are packed: run pad-heads before fuse-parallel-block",
            )
        if dim.name in blocks and not named & set(sizes):
            raise fault("packed-heads", f"pad-heads: the size of {dim.name} follows from other dimensions", dim.span)
