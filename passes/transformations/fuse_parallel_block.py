"""`fuse-parallel-block`: products that share an operand, or are added, become one product with a packed weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.operation import Arg, Context, Number, Operand, Operation
from shardwright.ir.ops import Add, Concat, Contract, Convert, Merge, Rename, Split, Take
from shardwright.ir.program import Func, Let, Program, Statement, Value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import Dim, OpenType, Shape, TensorType, ValueType
from shardwright.ir.walk import Position, Site, map_bodies, map_sites, sites, use_counts
from shardwright.ir.weight_source import WeightSource
from shardwright.passes.base import Pass
from shardwright.passes.transformations.gathered_weights import Gathers, with_gathers
from shardwright.passes.transformations.packed_weights import PackedWeights
from shardwright.passes.transformations.packing import (
    BY,
    PackedGroup,
    PackedProduct,
    packed_groups,
    packing,
    stored_weights,
    with_supposed_layouts,
)
from shardwright.passes.transformations.projections import axes_named
from shardwright.passes.transformations.supposed_layouts import WeightKey, open_weights, retyped


@dataclass(frozen=True)
class FuseParallelBlock(Pass):
    """One matmul for all projections of one input, and one for projections that are added (Pope et al., section 3.4).

        weights { wq: E_xH_yzD  w_in: E_xF_yz  wo: H_yzDE_x  w_out: F_yzE_x }
        q: BLH_xyzD = a @[E] wq
        h: BLF_xyz = a @[E] w_in
        ...
        y: BLE_xyz = x + (o @[HD] wo + g @[F] w_out)

    becomes

        dim A=H*D+F order y z x
        weights { wq_w_in: E_xA_yz  wo_w_out: A_yzE_x }
        packed = a @[E] wq_w_in
        q_part = take[A 0:1024, by=yzx](packed)
        q: BLH_xyzD = split[A -> HD](q_part)
        h_part = take[A 1024:3072, by=yzx](packed)
        h: BLF_xyz = rename[A -> F](h_part)
        ...
        joined = concat[A, by=yzx](merge[HD -> A](o), rename[F -> A](g))
        y: BLE_xyz = x + joined @[A] wo_w_out

    Applies to weights whose layouts agree, and memories: the same axes on the dimensions that stay, and on those that
    are packed. So W_Q goes with the feedforward layer's input matrices, and W_K with W_V, also where these are whole.
    Block by block of the digits that the parts share (`by`), so that every part stays on its chip. Where each of two
    added results is demanded split, there are two reduce-scatters before and one after. Weights are packed only where
    every use of theirs in the program is packed alike; weights that are gathered alike are packed and then gathered.
    Weights whose layouts are open are packed by the digits of the axes `by`, as many of them as divide each part, and
    what they are packed into is open too. `packing` says which weight goes where, `pack` does it with arrays.
    """

    name: ClassVar[str] = "fuse-parallel-block"
    by: str = "all"

    def run(self, program: Program) -> Program:
        stored, gathers = stored_weights(with_supposed_layouts(program, axes_named(BY, self.by, program.mesh)))
        groups = packed_groups(stored, gathers)
        if not groups:
            return program
        return _reopened(_gathered(_fused(stored, groups), groups, gathers), program, groups)

    def weights(self, program: Program, source: WeightSource) -> WeightSource:
        return PackedWeights(packing(program, self.by), source)


def _fused(program: Program, groups: Sequence[PackedGroup]) -> Program:
    dims = dict.fromkeys(group.info for group in groups)
    weights = _replaced(program.weights, [group for group in groups if group.recipe.func is None])
    funcs = tuple(_Writer(program, func, groups).rewritten() for func in program.funcs)
    return replace(program, dims=(*program.dims, *dims), weights=weights, funcs=funcs)


def _gathered(program: Program, groups: Sequence[PackedGroup], gathers: Mapping[str, Gathers]) -> Program:
    """Gathers again what was gathered before, packed weights where their parts were."""
    packed = {part.weight: group.recipe.name for group in groups for part in group.recipe.parts}
    funcs = tuple(
        with_gathers(program, func, {packed.get(name, name): axes for name, axes in gathers[func.name].items()})
        for func in program.funcs
    )
    return replace(program, funcs=funcs)


def _reopened(made: Program, before: Program, groups: Sequence[PackedGroup]) -> Program:
    """Weights that were open before are, and so is what is packed of such."""
    types: dict[WeightKey, ValueType] = {**open_weights(before)}
    for group in groups:
        if (group.recipe.func, group.recipe.parts[0].weight) in types:
            types[group.recipe.func, group.recipe.name] = OpenType.any_split(group.type.shape)
    return retyped(made, types)


def _replaced(values: tuple[Value, ...], groups: Sequence[PackedGroup]) -> tuple[Value, ...]:
    """Declarations with a packed one where the first of its parts stood."""
    made: list[Value] = []
    for value in values:
        group = next((g for g in groups if any(part.weight == value.name for part in g.recipe.parts)), None)
        if group is None:
            made.append(value)
        elif group.recipe.parts[0].weight == value.name:
            made.append(Value(group.recipe.name, group.type, value.marking, value.span))
    return tuple(made)


class _Writer:
    """Rewrites one function with packed weights in place of their parts."""

    def __init__(self, program: Program, func: Func, groups: Sequence[PackedGroup]) -> None:
        self.program = program
        self.func = func
        self.params = [group for group in groups if group.recipe.func == func.name]
        self.writer = Rewriter.of(program, func, [group.recipe.name for group in groups])
        self.products: dict[Position, tuple[PackedGroup, PackedProduct]] = {
            product.site.at: (group, product)
            for group in groups
            for product in group.products
            if product.site.func is func
        }
        self.packed: dict[tuple[str, object], str] = {}
        self.terms: dict[str, list[Operand]] = {}
        self.shapes: dict[str, Shape] = {}
        self.sizes = program.sizes(func)
        lets = (site for site in sites(program, func) if isinstance(site.statement, Let))
        self.sites = {site.statement.results[0].name: site.kept() for site in lets}
        self.gone: set[str] = set()

    def rewritten(self) -> Func:
        for _, product in self.products.values():
            if product.added:
                self.flatten(product.root)
        made = map_sites(self.program, self.func, self.statement)
        return _without_unused_converts(replace(made, params=_replaced(self.func.params, self.params)))

    def flatten(self, root: str) -> None:
        """The terms of a sum; the sums within it, and the products that are packed, are written no more."""
        if root in self.terms:
            return
        counts = use_counts(self.func)

        def terms(name: str, *, outermost: bool) -> list[Operand]:
            let = self.sites[name].statement if name in self.sites else None
            assert let is None or isinstance(let, Let)
            inner = let is not None and isinstance(let.operation, Add) and isinstance(let.result.type, OpenType)
            together = inner and counts[name] == 1 and self.sites[name].block == self.sites[root].block
            if let is None or not (outermost or together):
                return [name]
            self.gone.add(name)
            return [t for o in let.operands for t in (terms(o, outermost=False) if isinstance(o, str) else [o])]

        self.terms[root] = terms(root, outermost=True)

    def statement(self, site: Site) -> tuple[Statement, ...]:
        statement = site.statement
        if not isinstance(statement, Let):
            return (statement,)
        name = statement.result.name
        found = self.products.get(site.at)
        self.writer.at(statement)
        if name in self.terms:
            self.sum(statement)
        elif name in self.gone:
            pass
        elif found is None:
            self.writer.put(statement)
        elif not found[1].added:
            self.input(*found)
        return self.writer.written()

    def emit(self, operation: Operation, operands: Sequence[Operand], wish: str, shape: Shape) -> str:
        name = self.writer.let(operation, operands, wish, shape)
        self.shapes[name] = shape
        return name

    def weight(self, group: PackedGroup, product: PackedProduct) -> str:
        """The packed weight as the product takes it: converted where its parts were."""
        name = group.recipe.name
        if product.converted is None:
            return name
        shape = Shape(product.converted, group.seen.dims)
        return self.emit(Convert(product.converted), (name,), f"{name}_{product.converted}", shape)

    # ------------------------------------------------------------ products of one operand

    def input(self, group: PackedGroup, product: PackedProduct) -> None:
        let, dim, by = product.let, group.recipe.dim, group.recipe.by
        assert isinstance(let.operation, Contract)
        rows = let.result.shape.dims[: len(let.result.shape.dims) - len(product.packed)]
        dtype = let.result.shape.dtype
        key = (group.recipe.name, product.occurrence)
        if key not in self.packed:
            right = self.weight(group, product)
            kind = _common_demand(group, [p for p in group.products if p.occurrence == product.occurrence])
            whole = kind or Shape(dtype, (*rows, group.packed))
            self.packed[key] = self.writer.let(let.operation, (product.left, right), f"{product.left}_packed", whole)
        start, stop = group.extents[product.weight]
        shape = Shape(dtype, (*rows, Dim(dim, stop - start)))
        part = self.emit(Take(dim, start, stop, by), (self.packed[key],), f"{let.result.name}_part", shape)
        apart = Rename(((dim, product.packed[0]),)) if len(product.packed) == 1 else Split(dim, product.packed)
        self.writer.put(replace(let, operation=apart, operands=(part,)))

    # ------------------------------------------------------------ sums of products

    def sum(self, root: Let) -> None:
        terms: list[Operand] = []
        done: set[str] = set()
        for term in self.terms[root.result.name]:
            site = self.sites.get(term) if isinstance(term, str) else None
            found = self.products.get(site.at) if site is not None else None
            if found is None or not found[1].added:
                terms.append(term)
                continue
            group = found[0]
            if group.recipe.name not in done:
                done.add(group.recipe.name)
                members = [p for p in group.products if p.occurrence == found[1].occurrence]
                terms.append(self.joined(group, members))
        while len(terms) > 2:
            args = [self.arg(term, root) for term in terms[:2]]
            (shape,) = Add().infer(args, Context(self.sizes))
            terms[:2] = [self.emit(Add(), terms[:2], f"{root.result.name}_sum", shape)]
        if len(terms) == 2:
            self.writer.put(replace(root, operation=Add(), operands=tuple(terms)))
        else:
            last = self.writer.out.pop()
            assert isinstance(last, Let)
            demanded = root.result if isinstance(root.result.type, TensorType) else last.result
            named = replace(demanded, name=root.result.name, span=root.result.span, origin=root.result.origin)
            self.writer.put(replace(last, results=(named,)))

    def arg(self, term: Operand, root: Let) -> Arg:
        """A term of a sum as inference sees it."""
        if isinstance(term, Number):
            return Arg(str(term), None, term)
        return Arg(
            term, self.shapes[term] if term in self.shapes else self.sites[root.result.name].scope.type_of(term).shape
        )

    def joined(self, group: PackedGroup, products: Sequence[PackedProduct]) -> str:
        """The product of all left operands, one after the other, with the packed weight."""
        dim, by = group.recipe.dim, group.recipe.by
        pieces: list[str] = []
        whole = products[0].site.scope.type_of(products[0].left).shape
        for part in group.recipe.parts:
            product = next(p for p in products if p.weight == part.weight)
            before = product.site.scope.type_of(product.left).shape
            one = len(product.packed) == 1
            operation = Rename(((product.packed[0], dim),)) if one else Merge(product.packed, dim)
            (shape,) = operation.infer([Arg(product.left, before)], Context({**self.sizes, dim: group.info.size}))
            pieces.append(self.emit(operation, (product.left,), f"{product.left}_packed", shape))
            whole = Shape(shape.dtype, tuple(group.packed if d.name == dim else d for d in shape.dims))
        head = products[0]
        made = self.emit(Concat(dim, by), pieces, f"{head.root}_operands", whole)
        right = self.weight(group, head)
        value = head.let.result
        result = self.writer.like(value, f"{head.root}_product", value.type, value.marking)
        self.shapes[result.name] = result.shape
        return self.writer.define(result, Contract((dim,)), (made, right))


def _common_demand(group: PackedGroup, products: Sequence[PackedProduct]) -> TensorType | None:
    """The layout that the parts' demands give the packed product, so that it is reduced once for all of them.

    None unless the demands agree. Parts without one go along where nothing is gathered for the others' sake.
    """
    found: set[TensorType] = set()
    for product in products:
        kind = product.let.result.type
        if isinstance(kind, TensorType):
            if kind.partial is not None or any(kind.split(dim) for dim in product.packed[1:]):
                return None
            rows = len(kind.dims) - len(product.packed)
            dims = (*kind.dims[:rows], group.packed)
            found.add(replace(kind, dims=dims, splits=(*kind.splits[:rows], kind.split(product.packed[0]))))
    if len(found) != 1:
        return None
    (kind,) = found
    summed = products[0].summed_axes
    every = all(isinstance(product.let.result.type, TensorType) for product in products)
    fits = set(kind.split(group.recipe.dim)) <= set(group.recipe.by)
    return kind if fits and (every or summed <= set(kind.split_axes)) else None


def _without_unused_converts(func: Func) -> Func:
    """The conversions of weights whose products are gone."""
    counts = use_counts(func)

    def used(statement: Statement) -> bool:
        convert = isinstance(statement, Let) and isinstance(statement.operation, Convert)
        return not convert or statement.results[0].name in counts

    return map_bodies(func, lambda body: tuple(filter(used, body)))
