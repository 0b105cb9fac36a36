"""`quantize-weights`: the weights of contractions in 8 or 4 bits, with scales as weights beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.digits import fitting_order, order_size
from shardwright.ir.operation import Number
from shardwright.ir.ops import (
    Alias,
    Contract,
    Convert,
    Div,
    Function,
    Grouped,
    Lookup,
    Max,
    Merge,
    Movement,
    Mul,
    Split,
)
from shardwright.ir.ops.contraction import accumulator
from shardwright.ir.program import DimInfo, Func, Let, Marking, Program, Scope, Statement, Value
from shardwright.ir.rewriter import Namer, Rewriter
from shardwright.ir.types import Axes, Dim, DType, OpenType, Placement, Shape, TensorType, ValueType
from shardwright.ir.walk import Site, defined, map_sites, reads, sites
from shardwright.ir.weight_source import WeightSource
from shardwright.passes.base import Pass
from shardwright.passes.transformations.patterns import weights_of
from shardwright.passes.transformations.quantized_weights import Quantization, QuantizedWeight, QuantizedWeights
from shardwright.passes.transformations.supposed_layouts import fitting_axes


@dataclass(frozen=True)
class QuantizeWeights(Pass):
    """Weights as int8 with a scale for each output channel (Pope et al. 2022, section 3.6), as 8-bit floats, or as int4
    in groups.

        weights { w: E_xF_yz }
        h: BLF_xyz = a @[E] w

    becomes

        weights { w: int8 E_xF_yz  w_scale: f32 F_yz }
        w_bf16 = convert[bf16](w)
        h_unscaled = a @[E] w_bf16
        h_unscaled_f32 = convert[f32](h_unscaled)
        h_scaled = h_unscaled_f32 * w_scale
        h: BLF_xyz = convert[bf16](h_scaled)

    A scale is linear, so it passes partial sums: `place` reduces before it. Gathers of the weight move int8,
    because they cost less there than after the conversion. With `bits=4`, groups of `group` neighbouring elements
    along the output channel have a scale each (Sheng et al. 2023, section 5; here symmetric about 0). It depends on the
    contracted index as well, so the weight is scaled before the contraction, on the chip that holds it:

        weights { w: int4 E_xF_yz  w_scale: bf16 E_xG_yz }     # dim G=F/64 C=64
        w_bf16 = convert[bf16](w)
        w_groups = split[F -> GC](w_bf16)
        w_scaled = w_groups * w_scale
        w_whole = merge[GC -> F](w_scaled)
        h: BLF_xyz = a @[E] w_whole

    A grouped product is multiplied with the scales of the matrices that its indices say, `lookup[X](w_scale, expert)`.
    In f16, whose range sums of integers leave, the product is f32 until it is scaled. With `floats`, 8 bits are floats,
    `f8e4m3`. With `products`, 8-bit weights are not converted: what they are multiplied with is quantized as they are,
    with a scale for each of its rows, found as the program runs (vector-wise, Dettmers et al. 2022):

        a_largest = max[E](abs(convert[f32](a)))
        a_step = maximum(a_largest, 1e-20) / 448.0
        a_f8e4m3 = convert[f8e4m3](convert[f32](a) / a_step)
        h_unscaled: f32 = a_f8e4m3 @[E] w
        h_scaled = h_unscaled * a_step * w_scale

    A group never crosses chips: it shrinks to the largest divisor of what a chip holds, in a layout that is left open
    of what it could be split into; a weight with fewer than 4 elements in one is int8. Scales of open weights are open,
    and lie where the weight lies, or most of it.
    Floating-point weights of two dimensions or more are quantized where every use is a contraction over the same
    dimensions; embeddings that are looked up and scales of norms stay. `quantization` says how, `quantize` does it.
    """

    name: ClassVar[str] = "quantize-weights"
    bits: int = 8
    group: int = 64
    floats: bool = False
    products: bool = False

    def run(self, program: Program) -> Program:
        if self.products and self.bits != 8:
            raise fault("bad-option", f"quantize-weights: products are of 8 bits, not {self.bits}", NOWHERE)
        return _quantized(program, self.quantization(program), products=self.products)

    def weights(self, program: Program, source: WeightSource) -> WeightSource:
        return QuantizedWeights(self.quantization(program), source)

    def quantization(self, program: Program) -> Quantization:
        """How the pass stores the weights of this program (given as it is before the pass)."""
        if self.floats and self.bits != 8:
            raise fault("bad-option", f"quantize-weights: floats have 8 bits, not {self.bits}", NOWHERE)
        if self.bits not in (4, 8):
            raise fault("bad-option", f"quantize-weights: bits is 8 or 4, not {self.bits}", NOWHERE)
        stored = DType.F8E4M3 if self.floats else DType.INT8 if self.bits == 8 else DType.INT4
        return quantization(program, stored, self.group)


FORMATS: Mapping[str, str] = {
    "bf16": "",
    "int8": "quantize-weights",
    "int4": "quantize-weights{bits=4}",
    "f8e4m3": "quantize-weights{floats=true,products=true}",
}
"""How weights are stored, and of 8-bit floats multiplied, where a command is told a format: by which passes."""

_LEAST_GROUP = 4
"""Elements: in smaller ones numbers of 4 bits and a scale of 16 for each take more than numbers of 8."""

_LEAST = "1e-20"
"""In place of the largest of a row that is all zeros."""


# ---------------------------------------------------------------- what is found


def quantization(program: Program, stored: DType = DType.INT8, group: int = 64) -> Quantization:
    """How weights of this program are stored in a format, of 4 bits in groups. Raises a `DiagnosticError` for a group
    of none."""
    if group < 1:
        raise fault("bad-option", f"quantize-weights: a group has at least 1 element, not {group}", NOWHERE)
    found: dict[tuple[str | None, str], set[tuple[str, ...]]] = {}
    values: dict[tuple[str | None, str], ValueType] = {}
    spoilt: set[tuple[str | None, str]] = set()
    for func in program.funcs:
        scope = None if program.weights else func.name
        for name, value in weights_of(program, func).items():
            key = (scope, name)
            if not value.type.dtype.is_wide_float:
                continue
            values[key] = value.type
            summed = _summed(program, func, name)
            if summed is None:
                spoilt.add(key)
            else:
                found.setdefault(key, set()).update(summed)
    namer = Namer.of(program, *program.funcs)
    made: list[QuantizedWeight] = []
    for key, ways in found.items():
        if key in spoilt or len(ways) != 1:
            continue
        (summed,) = ways
        scope, name = key
        kind = values[key]
        entry = QuantizedWeight(name, "", scope, kind.names, summed, stored)
        if stored is DType.INT4:
            grouped = [dim for dim in kind.names if dim not in summed][-1:]
            if not grouped:
                continue
            size = kind.shape.size(grouped[0])
            split = _split(program, kind, grouped[0])
            order = program.dim(grouped[0]).order or split
            digits = fitting_order(order, set(split).intersection(order), size, program.mesh)
            held = size // order_size(digits, program.mesh)
            together = max(n for n in range(1, min(group, held) + 1) if held % n == 0)
            if together < min(group, _LEAST_GROUP):
                entry = replace(entry, dtype=DType.INT8)
            else:
                entry = replace(entry, grouped=grouped[0], groups=size // together)
        made.append(replace(entry, scale=namer.fresh(f"{name}_scale")))
    return tuple(made)


def _split(program: Program, kind: ValueType, dim: str) -> Axes:
    """The axes that split a dimension; where it is left open, as many as divide it."""
    if isinstance(kind, TensorType):
        return kind.split(dim)
    axes = kind.splits[kind.names.index(dim)]
    return fitting_axes(kind.shape.size(dim), program.mesh) if axes is None else axes


def _summed(program: Program, func: Func, weight: str) -> set[tuple[str, ...]] | None:
    """The dimensions that the function sums the weight over, by contraction; None where it does anything else."""
    names = {weight}  # of the weight and its copies where the walk is; another loop may have a name for something else
    found: set[tuple[str, ...]] = set()
    for site in sites(program, func):
        statement = site.statement
        read = [name for name in reads(statement) if name in names]
        names -= {value.name for value in defined(statement)}
        if not read:
            continue
        if len(read) > 1 or not isinstance(statement, Let):
            return None
        (name,), operation = read, statement.operation
        if isinstance(operation, Contract) or (isinstance(operation, Grouped) and statement.operands[1] == name):
            kind = site.scope.type_of(name)
            found.add(tuple(dim for dim in kind.names if dim in operation.dims))
        elif isinstance(operation, Alias | Movement):
            kind, result = statement.result.type, statement.result.name
            handed_on = any(result in loop.following for loop in site.scope.loops)
            if handed_on or (isinstance(kind, TensorType) and kind.partial is not None):
                return None
            names.add(result)
        else:
            return None
    return None if names.intersection(func.returns) else found


# ---------------------------------------------------------------- what is written


def _quantized(program: Program, recipe: Quantization, *, products: bool) -> Program:
    if not recipe:
        return program
    cuts = _Cuts(program)
    shared = {entry.weight: entry for entry in recipe if entry.func is None}
    weights = _declared(program.weights, shared, cuts)
    funcs: list[Func] = []
    for func in program.funcs:
        entries = {entry.weight: entry for entry in recipe if entry.func in (None, func.name)}
        own = {name: entry for name, entry in entries.items() if entry.func is not None}
        made = _Writer(program, func, entries, cuts, products=products).rewritten()
        funcs.append(replace(made, params=_declared(func.params, own, cuts)))
    return replace(program, dims=(*program.dims, *cuts.added), weights=weights, funcs=tuple(funcs))


class _Cuts:
    """The dimensions that groups need: for a dimension and a number of groups, the groups and what one holds."""

    def __init__(self, program: Program) -> None:
        self.sizes = program.sizes()
        self.namer = Namer({dim.name for dim in program.dims}, "")
        self.known: dict[tuple[str, int], tuple[Dim, Dim]] = {}
        self.within: dict[tuple[int, str], Dim] = {}
        self.added: list[DimInfo] = []

    def of(self, dim: str, groups: int) -> tuple[Dim, Dim]:
        if (dim, groups) not in self.known:
            self.known[dim, groups] = (self.fresh("G", groups), self.fresh("C", self.sizes[dim] // groups))
        return self.known[dim, groups]

    def fresh(self, wish: str, size: int) -> Dim:
        name = self.namer.fresh(wish)
        self.added.append(DimInfo(name, size))
        return Dim(name, size)


def _scale_type(kind: ValueType, entry: QuantizedWeight, cuts: _Cuts) -> ValueType:
    dims: list[Dim] = []
    splits: list[Axes | None] = []
    for dim, axes in zip(kind.dims, kind.splits, strict=True):
        if entry.groups is not None and dim.name == entry.grouped:
            dims.append(cuts.of(dim.name, entry.groups)[0])
            splits.append(axes)
        elif entry.groups is not None or dim.name not in entry.summed:
            dims.append(dim)
            splits.append(axes)
    dtype = DType.F32 if entry.groups is None else kind.dtype
    known = tuple(axes for axes in splits if axes is not None)
    renamed = {entry.grouped: cuts.of(entry.grouped, entry.groups)[0].name} if entry.grouped and entry.groups else {}
    if isinstance(kind, TensorType):
        return TensorType(dtype, tuple(dims), known, None, _beside(kind.placement, dims, renamed))
    placement = None if kind.placement is None else _beside(kind.placement, dims, renamed)
    return OpenType(dtype, tuple(dims), tuple(splits), kind.partial, placement, kind.open)


def _beside(weight: Placement, dims: Sequence[Dim], renamed: Mapping[str, str]) -> Placement:
    """Where scales of these dimensions lie: shared as the weight is, or, without the dimension that it is shared along,
    with the most of it."""
    if weight.along is None:
        return weight
    along = renamed.get(weight.along, weight.along)
    if any(dim.name == along for dim in dims):
        return replace(weight, along=along)
    most = max(weight.shares, key=lambda share: share[1])[0]
    return Placement(((most, 100.0),))


def _declared(values: Sequence[Value], entries: Mapping[str, QuantizedWeight], cuts: _Cuts) -> tuple[Value, ...]:
    """Declarations with numbers of few bits in place of weights, each followed by its scales."""
    made: list[Value] = []
    for value in values:
        entry = entries.get(value.name)
        if entry is None:
            made.append(value)
            continue
        made.append(replace(value, type=replace(value.type, dtype=entry.dtype)))
        made.append(Value(entry.scale, _scale_type(value.type, entry, cuts), value.marking, value.span))
    return tuple(made)


class _Writer:
    """Rewrites the contractions of one function."""

    def __init__(
        self, program: Program, func: Func, entries: Mapping[str, QuantizedWeight], cuts: _Cuts, *, products: bool
    ) -> None:
        self.products = products
        self.program = program
        self.func = func
        self.sources = dict(entries)
        self.cuts = cuts
        scales = {entry.scale for entry in entries.values()}
        self.writer = Rewriter.of(program, func, scales)

    def rewritten(self) -> Func:
        return map_sites(self.program, self.func, self.statement)

    def statement(self, site: Site) -> tuple[Statement, ...]:
        statement, scope = site.statement, site.scope
        if not isinstance(statement, Let):
            return (statement,)
        at = next((i for i, operand in enumerate(statement.operands) if operand in self.sources), None)
        entry = None if at is None else self.sources[str(statement.operands[at])]
        for value in statement.results:  # another loop may have had a copy of a weight under the name
            self.sources.pop(value.name, None)
        if at is None or entry is None:
            return (statement,)
        name = str(statement.operands[at])
        if isinstance(statement.operation, Alias | Movement):
            value = statement.result
            kind = value.type
            self.sources[value.name] = entry  # a weight in another layout is a weight, too
            return (replace(statement, results=(replace(value, type=replace(kind, dtype=entry.dtype)),)),)
        # The scope holds the types that were: a weight's own, or an alias's, which this pass may have retyped.
        seen = scope.type_of(name).shape
        other = statement.operands[1 - at]
        assert isinstance(other, str)
        grouped = isinstance(statement.operation, Grouped)
        dtype = scope.type_of(other).shape.dtype
        self.writer.at(statement)
        if self.products and not grouped:
            self.quantized_product(statement, at, entry, scope.type_of(other).shape)
            return self.writer.written()
        weight = self.writer.let(Convert(dtype), (name,), f"{name}_{dtype}", Shape(dtype, seen.dims))
        if entry.groups is None:
            scale = self.scale_of_rows(statement, entry, scope) if grouped else entry.scale
            self.scale_after(statement, at, weight, scale, dtype)
        else:
            self.scale_before(statement, at, weight, entry, Shape(dtype, seen.dims))
        return self.writer.written()

    def scale_of_rows(self, statement: Let, entry: QuantizedWeight, scope: Scope) -> str:
        """The scales of the matrices that the indices of a grouped product say."""
        operation, (_, weight, indices) = statement.operation, statement.operands
        assert isinstance(operation, Grouped)
        rows, seen = (scope.type_of(str(name)).shape for name in (indices, weight))
        columns = tuple(dim for dim in seen.dims if dim.name not in (operation.dim, *operation.dims))
        kind = Shape(DType.F32, (*rows.dims, *columns))
        return self.writer.let(Lookup(operation.dim), (entry.scale, indices), f"{entry.scale}_chosen", kind)

    def scale_after(self, statement: Let, at: int, weight: str, scale: str, dtype: DType) -> None:
        """One scale for each output channel: whatever was summed, it multiplies the sum, in f32. Of operands of `dtype`
        the product has it too where nothing else is written."""
        result = statement.result
        shape = result.shape
        operands = tuple(weight if i == at else operand for i, operand in enumerate(statement.operands))
        wide = Shape(DType.F32, shape.dims)
        narrow = wide if shape.dtype is DType.F16 else shape  # sums of integers up to 127 leave the range of f16
        kind = narrow if narrow.dtype is dtype else OpenType.anything(narrow)
        product = self.writer.let(statement.operation, operands, f"{result.name}_unscaled", kind, Marking.DEMANDED)
        if shape.dtype is DType.F32:
            self.writer.put(replace(statement, operation=Mul(), operands=(product, scale)))
            return
        exact = product
        if narrow != wide:
            exact = self.writer.let(Convert(DType.F32), (product,), f"{product}_f32", wide)
        scaled = self.writer.let(Mul(), (exact, scale), f"{result.name}_scaled", wide)
        self.writer.put(replace(statement, operation=Convert(shape.dtype), operands=(scaled,)))

    def quantized_product(self, statement: Let, at: int, entry: QuantizedWeight, seen: Shape) -> None:
        """Both operands in 8 bits, each with its scales, which multiply the product; `seen` is the other operand."""
        assert isinstance(statement.operation, Contract)
        value, result = statement.operands[1 - at], statement.result
        assert isinstance(value, str)
        let, summed = self.writer.let, statement.operation.dims
        wide = Shape(DType.F32, seen.dims)
        rows = Shape(DType.F32, tuple(dim for dim in seen.dims if dim.name not in summed))
        exact = value if seen.dtype is DType.F32 else let(Convert(DType.F32), (value,), f"{value}_f32", wide)
        largest = let(Max(summed), (let(Function("abs"), (exact,), f"{value}_abs", wide),), f"{value}_largest", rows)
        positive = let(Function("maximum"), (largest, Number(_LEAST)), f"{value}_positive", rows)
        step = let(Div(), (positive, Number(f"{entry.largest:.1f}")), f"{value}_step", rows)
        steps = let(Div(), (exact, step), f"{value}_steps", wide)
        if entry.dtype.is_integer:  # conversions to integers cut off
            steps = let(Function("round"), (steps,), f"{value}_rounded", wide)
        narrow = let(Convert(entry.dtype), (steps,), f"{value}_{entry.dtype}", Shape(entry.dtype, seen.dims))
        operands = tuple(operand if i == at else narrow for i, operand in enumerate(statement.operands))
        wide = Shape(DType.F32, result.shape.dims)
        product = let(
            statement.operation, operands, f"{result.name}_unscaled", Shape(accumulator(entry.dtype), wide.dims)
        )
        if entry.dtype.is_integer:
            product = let(Convert(DType.F32), (product,), f"{result.name}_f32", wide)
        stepped = let(Mul(), (product, step), f"{result.name}_stepped", wide)
        if result.shape.dtype is DType.F32:
            self.writer.put(replace(statement, operation=Mul(), operands=(stepped, entry.scale)))
            return
        scaled = let(Mul(), (stepped, entry.scale), f"{result.name}_scaled", wide)
        self.writer.put(replace(statement, operation=Convert(result.shape.dtype), operands=(scaled,)))

    def scale_before(self, statement: Let, at: int, weight: str, entry: QuantizedWeight, seen: Shape) -> None:
        """One scale for each group: the weight is cut into groups, scaled, and joined again."""
        assert entry.groups is not None
        assert entry.grouped is not None
        groups, within = self.cuts.of(entry.grouped, entry.groups)
        place = seen.names.index(entry.grouped)
        cut = Shape(seen.dtype, (*seen.dims[:place], groups, within, *seen.dims[place + 1 :]))
        parts = (groups.name, within.name)
        name = entry.weight
        apart = self.writer.let(Split(entry.grouped, parts), (weight,), f"{name}_groups", cut)
        scaled = self.writer.let(Mul(), (apart, entry.scale), f"{name}_scaled", cut)
        whole = self.writer.let(Merge(parts, entry.grouped), (scaled,), f"{name}_whole", seen)
        operands = tuple(whole if i == at else operand for i, operand in enumerate(statement.operands))
        self.writer.put(replace(statement, operands=operands))
