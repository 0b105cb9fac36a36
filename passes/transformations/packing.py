"""Packing: which weights of a program can lie in one array, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.ir.digits import Order
from shardwright.ir.ops import Add, Contract, Convert
from shardwright.ir.program import DimInfo, Func, Let, Program, Scope, Value
from shardwright.ir.rewriter import Namer
from shardwright.ir.types import Axes, Dim, DType, OpenType, TensorType
from shardwright.ir.walk import Site, sites, use_counts
from shardwright.passes.transformations.gathered_weights import Gathers, gathers_of, without_gathers
from shardwright.passes.transformations.packed_weights import PackedPart, PackedWeight, Packing
from shardwright.passes.transformations.patterns import weights_of
from shardwright.passes.transformations.projections import axes_named
from shardwright.passes.transformations.supposed_layouts import open_weights, retyped, split_along

BY = "fuse-parallel-block: by"


def packing(program: Program, by: str = "all") -> Packing:
    """The weights that `fuse-parallel-block` packs in this program (given as it is before the pass)."""
    stored, gathers = stored_weights(with_supposed_layouts(program, axes_named(BY, by, program.mesh)))
    return tuple(group.recipe for group in packed_groups(stored, gathers))


def with_supposed_layouts(program: Program, axes: Axes) -> Program:
    """The program with a layout for each open weight: split over the axes along what could be packed.

    What is packed so can be split over any of these axes, so that the layout stays open.
    """
    found = open_weights(program)
    if not found:
        return program
    supposed = retyped(program, {key: TensorType.whole(kind.shape) for key, kind in found.items()})
    leading: dict[tuple[str | None, str], str] = {}
    for func in supposed.funcs:
        scope = None if program.weights else func.name
        for product in _products(supposed, func, weights_of(supposed, func))[0]:
            leading.setdefault((scope, product.weight), product.packed[0])
    return retyped(
        supposed, {key: split_along(found[key], dim, axes, program) for key, dim in leading.items() if key in found}
    )


def stored_weights(program: Program) -> tuple[Program, Mapping[str, Gathers]]:
    """The program with gathered weights used as they are stored, and for each function what it gathered."""
    gathers = {func.name: gathers_of(program, func) for func in program.funcs}
    funcs = tuple(
        without_gathers(program, func, gathers[func.name]) if gathers[func.name] else func for func in program.funcs
    )
    return replace(program, funcs=funcs), gathers


# ---------------------------------------------------------------- what is found


@dataclass(frozen=True)
class PackedProduct:
    """`result = left @[contracted] weight`, where `packed` are the dimensions of the weight that could be packed."""

    site: Site
    let: Let
    left: str
    weight: str
    converted: DType | None
    seen: TensorType
    packed: tuple[str, ...]
    occurrence: tuple[object, ...]
    added: bool

    @property
    def root(self) -> str:
        """The sum that the product is a term of, where `added`."""
        root = self.occurrence[3]
        assert isinstance(root, str)
        return root

    @property
    def summed_axes(self) -> frozenset[str]:
        """The axes over which the product leaves a partial sum."""
        assert isinstance(self.let.operation, Contract)
        return _axes(self.seen, self.let.operation.dims)


@dataclass(frozen=True)
class PackedGroup:
    """Weights that are packed into one, with the products they are in."""

    recipe: PackedWeight
    type: TensorType
    seen: TensorType
    info: DimInfo
    products: tuple[PackedProduct, ...]

    @property
    def packed(self) -> Dim:
        """The packed dimension."""
        return Dim(self.info.name, self.info.size)

    @property
    def extents(self) -> dict[str, tuple[int, int]]:
        """Where each part is taken from the packed dimension."""
        found: dict[str, tuple[int, int]] = {}
        start = 0
        for part in self.recipe.parts:
            (size,) = {math.prod(p.seen.shape.size(d) for d in part.packed) for p in self.of(part.weight)}
            found[part.weight] = (start, start + size)
            start += size
        return found

    def of(self, weight: str) -> list[PackedProduct]:
        return [product for product in self.products if product.weight == weight]


def packed_groups(program: Program, gathers: Mapping[str, Gathers]) -> list[PackedGroup]:
    """The weights of a program that go together; what functions gather differently is kept apart."""
    products: dict[tuple[str | None, str], list[PackedProduct]] = {}
    spoilt: set[tuple[str | None, str]] = set()
    order: list[tuple[str | None, str]] = []
    for func in program.funcs:
        scope = None if program.weights else func.name
        weights = weights_of(program, func)
        order.extend((scope, name) for name in weights if (scope, name) not in order)
        found, counted = _products(program, func, weights)
        for product in found:
            products.setdefault((scope, product.weight), []).append(product)
        counts = use_counts(func)
        for name in weights:
            if counts.get(name, 0) != counted.get(name, 0):
                spoilt.add((scope, name))
    alike: dict[object, list[tuple[str | None, str]]] = {}
    for key in order:
        if key in products and key not in spoilt:
            over = tuple(gathers[func.name].get(key[1]) for func in program.funcs)
            alike.setdefault((over, frozenset(p.occurrence for p in products[key])), []).append(key)
    groups: list[PackedGroup] = []
    known: dict[str, Order] = {dim.name: dim.order for dim in program.dims if dim.order is not None}
    taken = {dim.name for dim in program.dims}
    namers = {func.name: Namer.of(program, func) for func in program.funcs}
    everywhere = Namer.of(program, *program.funcs)
    for keys in alike.values():
        members = [product for key in keys for product in products[key]]
        if len(keys) > 1 and (not members[0].added or len({p.left for p in members}) > 1):
            scope = keys[0][0]
            wish = "_".join(name for _, name in keys)
            group = _group(program, scope, [name for _, name in keys], members, groups, known, taken)
            if group is not None:
                name = (everywhere if scope is None else namers[scope]).fresh(wish)
                groups.append(replace(group, recipe=replace(group.recipe, name=name)))
    return groups


def _products(program: Program, func: Func, weights: Mapping[str, Value]) -> tuple[list[PackedProduct], dict[str, int]]:
    """The products of a function that could be packed, and how many of each weight's uses they are."""
    counts = use_counts(func)
    lets: dict[str, Site] = {}
    candidates: list[tuple[Site, str, str, DType | None]] = []
    for site in map(Site.kept, sites(program, func)):
        match site.statement:
            case Let(operation=Contract(), operands=(str() as left, str() as right)) as let:
                before = lets.get(right)
                converted: DType | None = None
                weight = right
                if before is not None and isinstance(before.statement, Let) and counts[right] == 1:
                    operation, operands = before.statement.operation, before.statement.operands
                    open_type = isinstance(before.statement.result.type, OpenType)
                    if isinstance(operation, Convert) and isinstance(operands[0], str) and open_type:
                        weight, converted = operands[0], operation.dtype
                if weight in weights and left not in program.globals:
                    candidates.append((site, left, weight, converted))
                lets[let.result.name] = site
            case Let() as let:
                lets[let.result.name] = site
            case _:
                pass
    roots = _roots(lets, counts)
    lefts: dict[str, set[str]] = {}
    for site, left, _, _ in candidates:
        assert isinstance(site.statement, Let)
        lefts.setdefault(roots.get(site.statement.result.name, ""), set()).add(left)
    found: list[PackedProduct] = []
    counted: dict[str, int] = {}
    for site, left, weight, converted in candidates:
        assert isinstance(site.statement, Let)
        root = roots.get(site.statement.result.name)
        summed = root if root is not None and len(lefts[root]) > 1 else None
        product = _product(program, site, site.statement, left, weight, converted, summed)
        if product is not None:
            found.append(product)
            counted[weight] = counted.get(weight, 0) + 1
    return found, counted


def _roots(lets: Mapping[str, Site], counts: Mapping[str, int]) -> dict[str, str]:
    """For each term of a sum (through sums of sums in one block) the name of the whole sum."""
    roots: dict[str, str] = {}
    for name, site in reversed(list(lets.items())):
        if not isinstance(site.statement, Let) or not isinstance(site.statement.operation, Add):
            continue
        root = roots.get(name, name) if isinstance(site.statement.result.type, OpenType) else name
        for operand in site.statement.operands:
            before = lets.get(operand) if isinstance(operand, str) else None
            if isinstance(operand, str) and before is not None and before.block == site.block and counts[operand] == 1:
                roots[operand] = root
    return roots


def _product(
    program: Program, site: Site, let: Let, left: str, weight: str, converted: DType | None, root: str | None
) -> PackedProduct | None:
    """The product as something to pack, or None where its layouts or the order of its dimensions do not allow it."""
    assert isinstance(let.operation, Contract)
    seen, activation = site.scope.type_of(weight), site.scope.type_of(left)
    if (
        not isinstance(seen, TensorType)
        or seen.partial is not None
        or set(seen.names) & set(activation.names) != set(let.operation.dims)
    ):
        return None
    contracted = tuple(dim for dim in seen.names if dim in let.operation.dims)
    produced = tuple(dim for dim in seen.names if dim not in let.operation.dims)
    rows = tuple(dim for dim in activation.names if dim not in let.operation.dims)
    if let.result.shape.names != (*rows, *produced):
        return None
    block = (site.func.name, site.block)
    stored, _ = site.scope.values[weight]
    kind = (seen.dtype, converted, let.result.shape.dtype, str(stored.placement))
    joined = tuple(dim for dim in activation.names if dim in rows or dim == contracted[0])
    joined = tuple("" if dim == contracted[0] else dim for dim in joined)
    demand = str(let.result.type if isinstance(let.result.type, TensorType) else None)
    by_sum = (root, produced, _splits(seen, produced), _axes(seen, contracted), rows, joined, *kind, demand)
    by_input = (left, contracted, _splits(seen, contracted), _axes(seen, produced), *kind)
    added = root is not None
    packed = contracted if added else produced
    loops = _loop_dims(weight, site.scope)
    overridden = {name for func in program.funcs for name, _ in func.overrides}
    if any(seen.split(dim) for dim in packed[1:]) or overridden & set(packed):
        return None
    if stored.placement is not None and stored.placement.along in packed:
        return None
    occurrence = (*block, "sum" if added else "input", *(by_sum if added else by_input), loops)
    return PackedProduct(site, let, left, weight, converted, seen, packed, occurrence, added)


def _splits(kind: TensorType, dims: Sequence[str]) -> tuple[Axes, ...]:
    return tuple(kind.split(dim) for dim in dims)


def _axes(kind: TensorType, dims: Iterable[str]) -> frozenset[str]:
    return frozenset(axis for dim in dims for axis in kind.split(dim))


def _loop_dims(weight: str, scope: Scope) -> tuple[tuple[str, Axes], ...]:
    """The dimensions that loops take from the weight, with their splits."""
    seen = scope.type_of(weight).names
    kind = scope.values[weight][0]
    return tuple((d.name, a or ()) for d, a in zip(kind.dims, kind.splits, strict=True) if d.name not in seen)


def _group(
    program: Program,
    scope: str | None,
    names: Sequence[str],
    products: Sequence[PackedProduct],
    before: Sequence[PackedGroup],
    known: dict[str, Order],
    taken: set[str],
) -> PackedGroup | None:
    """The packed weight of these; None where no blocks of digits suit all parts."""
    first = {name: next(p for p in products if p.weight == name) for name in names}
    head = first[names[0]]
    sizes = program.sizes()
    leading = [first[name].packed[0] for name in names]
    by = _blocks(program, head.seen, head.packed, leading, known)
    if by is None:
        return None
    terms = tuple(first[name].packed for name in names)
    info = next((g.info for g in before if g.info.expression == terms and g.recipe.by == by), None)
    if info is None:
        label = Namer(taken, "").fresh("A")
        size = sum(math.prod(sizes[dim] for dim in term) for term in terms)
        info = DimInfo(label, size, terms, by or None)
    if by:
        known.update((dim, max(by, known.get(dim, ()), key=len)) for dim in leading)
    full, _ = head.site.scope.values[head.weight]
    assert isinstance(full, TensorType)
    packed = Dim(info.name, info.size)
    split = next(full.split(dim) for dim in head.packed)

    def replaced(kind: TensorType) -> TensorType:
        dims: list[Dim] = []
        splits: list[Axes] = []
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            if dim.name == head.packed[0]:
                dims.append(packed)
                splits.append(split)
            elif dim.name not in head.packed:
                dims.append(dim)
                splits.append(axes)
        return replace(kind, dims=tuple(dims), splits=tuple(splits))

    parts: list[PackedPart] = []
    for name in names:
        kind, _ = first[name].site.scope.values[name]
        parts.append(PackedPart(name, kind.names, first[name].packed))
    made = replaced(full)
    recipe = PackedWeight("", scope, made.names, info.name, by, program.mesh.product(by), tuple(parts))
    return PackedGroup(recipe, made, replaced(head.seen), info, tuple(products))


def _blocks(
    program: Program, kind: TensorType, packed: Sequence[str], leading: Sequence[str], known: Mapping[str, Order]
) -> tuple[str, ...] | None:
    """The digits that all parts share, outermost and in one order: those of the weights' own split first.

    The axes of the dimension that stays come after them where they divide every part, for what is scattered there.
    """
    mesh, sizes = program.mesh, program.sizes()
    own = mesh.sorted(kind.split(packed[0]))
    if not own:
        return ()
    longest = max((known.get(dim, ()) for dim in leading), key=len)
    others = mesh.sorted(axis for axis in kind.split_axes if axis not in own)
    for wanted in ((*own, *others), own):
        order = (*longest, *(axis for axis in wanted if axis not in longest))
        by = tuple(digit for digit in order if isinstance(digit, str))
        while by and by[-1] not in wanted:
            by = by[:-1]
        fits = all(isinstance(digit, str) for digit in order[: len(by)])
        fits &= all(sizes[dim] % mesh.product(by) == 0 for dim in leading)
        fits &= all(_compatible(by, known.get(dim, ()), program, dim) for dim in leading)
        if fits:
            return by
    return None


def _compatible(by: Order, order: Order, program: Program, dim: str) -> bool:
    """Tells whether one order begins with the other; what the author pinned takes no further digit."""
    if program.dim(dim).order is not None and len(by) > len(order):
        return False
    shorter = min(len(by), len(order))
    return by[:shorter] == order[:shorter]
