"""`fuse-parallel-block`: products that share an operand, or are added, become one product with a packed weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.operation import Arg, Context, Number, Operand
from shardwright.ir.ops import Add, Concat, Contract, Convert, Merge, Rename, Split, Take
from shardwright.ir.program import Free, Func, Let, Loop, Marking, Program, Scope, SetState, Statement, Value
from shardwright.ir.rewriter import Namer
from shardwright.ir.types import Dim, OpenType, Shape, TensorType, ValueType
from shardwright.ir.walk import names_of, use_counts
from shardwright.ir.weight_source import WeightSource
from shardwright.passes.base import Pass
from shardwright.passes.gathered_weights import Gathers, with_gathers
from shardwright.passes.packed_weights import PackedWeights
from shardwright.passes.packing import (
    BY,
    PackedGroup,
    PackedProduct,
    packed_groups,
    packing,
    stored_weights,
    with_supposed_layouts,
)
from shardwright.passes.patterns import sites
from shardwright.passes.projections import axes_named
from shardwright.passes.supposed_layouts import WeightKey, open_weights, retyped


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

    Applies to weights whose layouts agree: the same axes on the dimensions that stay, and on those that are packed.
    So W_Q goes with the feedforward layer's input matrices, and W_K with W_V, also where these are whole. Block by
    block of the digits that the parts share (`by`), so that every part stays on its chip. Where each of two added
    results is demanded split, there are two reduce-scatters before and one after. Weights are packed only where
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
    """What was gathered before is gathered again, packed weights where their parts were."""
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
        self.namer = Namer(names_of(func) | set(program.globals) | {group.recipe.name for group in groups})
        self.products: dict[int, tuple[PackedGroup, PackedProduct]] = {
            id(product.let): (group, product)
            for group in groups
            for product in group.products
            if product.site.func is func
        }
        self.packed: dict[tuple[int, object], str] = {}
        self.terms: dict[str, list[Operand]] = {}
        self.shapes: dict[str, Shape] = {}
        self.sizes = program.sizes(func)
        self.lets: dict[str, Let] = {}
        self.scopes: dict[str, Scope] = {}
        self.gone: set[str] = set()

    def rewritten(self) -> Func:
        for site in sites(self.program, self.func):
            if isinstance(site.statement, Let):
                self.lets[site.statement.result.name] = site.statement
                self.scopes[site.statement.result.name] = site.scope
        for _, product in self.products.values():
            if product.added:
                self.flatten(product.root)
        made = replace(self.func, params=_replaced(self.func.params, self.params), body=self.block(self.func.body))
        return _without_unused_converts(made)

    def flatten(self, root: str) -> None:
        """The terms of a sum; the sums within it, and the products that are packed, are written no more."""
        if root in self.terms:
            return
        counts = use_counts(self.func)

        def terms(name: str, *, outermost: bool) -> list[Operand]:
            let = self.lets.get(name)
            inner = let is not None and isinstance(let.operation, Add) and isinstance(let.result.type, OpenType)
            if let is None or not (outermost or (inner and counts[name] == 1 and name in self.same_block(root))):
                return [name]
            self.gone.add(name)
            return [t for o in let.operands for t in (terms(o, outermost=False) if isinstance(o, str) else [o])]

        self.terms[root] = terms(root, outermost=True)

    def same_block(self, name: str) -> set[str]:
        def search(body: tuple[Statement, ...]) -> set[str]:
            here = {value.name for s in body if isinstance(s, Let) for value in s.results}
            if name in here:
                return here
            return {found for s in body if isinstance(s, Loop) for found in search(s.body)}

        return search(self.func.body)

    def block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        made: list[Statement] = []
        for statement in body:
            match statement:
                case Let():
                    made.extend(self.let(statement))
                case Loop():
                    made.append(replace(statement, body=self.block(statement.body)))
                case SetState() | Free():
                    made.append(statement)
        return tuple(made)

    def let(self, statement: Let) -> list[Statement]:
        name = statement.result.name
        if name in self.terms:
            return self.sum(statement)
        if name in self.gone:
            return []
        found = self.products.get(id(statement))
        if found is None:
            return [statement]
        group, product = found
        return [] if product.added else self.input(group, product)

    def value(self, wish: str, shape: Shape) -> Value:
        name = self.namer.fresh(wish)
        self.shapes[name] = shape
        return Value(name, OpenType.anything(shape), Marking.UNWRITTEN)

    def weight(self, group: PackedGroup, product: PackedProduct, out: list[Statement]) -> str:
        """The packed weight as the product takes it: converted where its parts were."""
        name = group.recipe.name
        if product.converted is None:
            return name
        made = self.value(f"{name}_{product.converted}", Shape(product.converted, group.seen.dims))
        out.append(Let((made,), Convert(product.converted), (name,), product.let.span))
        return made.name

    # ------------------------------------------------------------ products of one operand

    def input(self, group: PackedGroup, product: PackedProduct) -> list[Statement]:
        let, dim, by = product.let, group.recipe.dim, group.recipe.by
        assert isinstance(let.operation, Contract)
        out: list[Statement] = []
        rows = let.result.shape.dims[: len(let.result.shape.dims) - len(product.packed)]
        dtype = let.result.shape.dtype
        key = (id(group), product.occurrence)
        if key not in self.packed:
            right = self.weight(group, product, out)
            whole = self.value(f"{product.left}_packed", Shape(dtype, (*rows, group.packed)))
            kind = _common_demand(group, [p for p in group.products if p.occurrence == product.occurrence])
            if kind is not None:
                whole = replace(whole, type=kind, marking=Marking.FOUND)
            out.append(Let((whole,), let.operation, (product.left, right), let.span))
            self.packed[key] = whole.name
        start, stop = group.extents[product.weight]
        part = self.value(f"{let.result.name}_part", Shape(dtype, (*rows, Dim(dim, stop - start))))
        out.append(Let((part,), Take(dim, start, stop, by), (self.packed[key],), let.span))
        apart = Rename(((dim, product.packed[0]),)) if len(product.packed) == 1 else Split(dim, product.packed)
        out.append(replace(let, operation=apart, operands=(part.name,)))
        return out

    # ------------------------------------------------------------ sums of products

    def sum(self, root: Let) -> list[Statement]:
        out: list[Statement] = []
        terms: list[Operand] = []
        done: set[int] = set()
        for term in self.terms[root.result.name]:
            let = self.lets.get(term) if isinstance(term, str) else None
            found = self.products.get(id(let)) if let is not None else None
            if found is None or not found[1].added:
                terms.append(term)
                continue
            group = found[0]
            if id(group) not in done:
                done.add(id(group))
                members = [p for p in group.products if p.occurrence == found[1].occurrence]
                terms.append(self.joined(group, members, out))
        while len(terms) > 2:
            args = [self.arg(term, root) for term in terms[:2]]
            made = self.value(f"{root.result.name}_sum", Add().infer(args, Context(self.sizes))[0])
            out.append(Let((made,), Add(), tuple(terms[:2]), root.span))
            terms[:2] = [made.name]
        if len(terms) == 2:
            out.append(replace(root, operation=Add(), operands=tuple(terms)))
        else:
            last = out.pop()
            assert isinstance(last, Let)
            demanded = root.result if isinstance(root.result.type, TensorType) else last.result
            out.append(replace(last, results=(replace(demanded, name=root.result.name, span=root.result.span),)))
        return out

    def arg(self, term: Operand, root: Let) -> Arg:
        """A term of a sum as inference sees it."""
        if isinstance(term, Number):
            return Arg(str(term), None, term)
        return Arg(
            term, self.shapes[term] if term in self.shapes else self.scopes[root.result.name].type_of(term).shape
        )

    def joined(self, group: PackedGroup, products: Sequence[PackedProduct], out: list[Statement]) -> str:
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
            piece = self.value(f"{product.left}_packed", shape)
            out.append(Let((piece,), operation, (product.left,), product.let.span))
            pieces.append(piece.name)
            whole = Shape(shape.dtype, tuple(group.packed if d.name == dim else d for d in shape.dims))
        head = products[0]
        made = self.value(f"{head.root}_operands", whole)
        out.append(Let((made,), Concat(dim, by), tuple(pieces), head.let.span))
        right = self.weight(group, head, out)
        result = replace(head.let.result, name=self.namer.fresh(f"{head.root}_product"))
        out.append(Let((result,), Contract((dim,)), (made.name, right), head.let.span))
        self.shapes[result.name] = result.shape
        return result.name


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

    def swept(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(
            replace(s, body=swept(s.body)) if isinstance(s, Loop) else s
            for s in body
            if not (isinstance(s, Let) and isinstance(s.operation, Convert) and s.result.name not in counts)
        )

    return replace(func, body=swept(func.body))
