"""`decompose`: norms, softmax, argmax and positions become reductions and elementwise operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, takewhile
from math import prod
from operator import sub
from typing import ClassVar

from shardwright.ir import ops
from shardwright.ir.operation import Arg, Context, Number, Operand, Operation
from shardwright.ir.ops.indexing import page_of_row
from shardwright.ir.ops.reductions import far_position
from shardwright.ir.program import DimInfo, Func, Let, Program, Scope, Statement
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import Axes, Dim, DType, Reduction, Shape, ValueType
from shardwright.ir.walk import DefinitionPath, Site, map_sites
from shardwright.passes.base import Pass


@dataclass(frozen=True)
class Decompose(Pass):
    """Rewrites what reduces over a dimension inside, so that its collectives follow from the same rules as all others.

        p = softmax[T](s)        # s: f32 BHT

    becomes

        p_max = max[T](s)
        p_shifted = s - p_max
        p_exp = exp(p_shifted)
        p_sum = sum[T](p_exp)
        p = p_exp / p_sum

    Norms and softmax are computed in f32 and rounded in the end, as their definitions say. A causal softmax
    masks by comparing global indices (`iota`), one with a window by comparing them twice; `argmax` is the least index
    among those that reach the maximum; a scalar position of `rotary` becomes the positions themselves. `topk` of a
    dimension that is split takes candidates from each chip's block and chooses among those; where the split is open so
    does it, by blocks that may be exchanged for others, or for none, when layouts are chosen.

    Attention stays one operation; with `attend=true` it becomes products and a softmax, whose scores lie in memory,
    unless a partial softmax is demanded of it.
    """

    name: ClassVar[str] = "decompose"
    attend: bool = False

    def run(self, program: Program) -> Program:
        return _rewritten(program, _EXPANSIONS, attend=self.attend)


def topk_in_stages(program: Program, blocks: Mapping[DefinitionPath, Axes]) -> Program:
    """The program with some `topk` in stages, with blocks of these axes, by where their values are defined."""

    def staged(rewriter: _Rewriter, statement: Let) -> bool:
        return _in_stages(rewriter, statement, blocks.get(rewriter.site.path(statement.result.name), ()))

    return _rewritten(program, {ops.Topk: staged})


def topk_blocks(program: Program, func: Func, kind: ValueType, operation: ops.Topk) -> tuple[Axes, ...]:
    """The axes of blocks that may give candidates, those with the most blocks of more than k elements first: of the
    axes that split the dimension, or may, all whose digits are its outermost."""
    dim, mesh, size = operation.dim, program.mesh, kind.shape.size(operation.dim)
    split = kind.splits[kind.names.index(dim)]
    order = None if dim in dict(func.overrides) else program.dim(dim).order
    axes = [a for a in mesh.axes if mesh[a] > 1] if split is None else list(mesh.sorted(split))
    if order is None:
        found = [by for n in range(len(axes), 0, -1) for by in combinations(axes, n)]
    else:
        outer = [digit for digit in takewhile(lambda digit: digit in axes, order) if isinstance(digit, str)]
        found = [tuple(outer[:n]) for n in range(len(outer), 0, -1)]
    blocks = ((by, mesh.product(by)) for by in found)
    roomy = [(by, n) for by, n in blocks if size % n == 0 and size // n > operation.k]
    return tuple(by for by, _ in sorted(roomy, key=lambda each: -each[1]))


def _rewritten(program: Program, expansions: _Expansions, *, attend: bool = False) -> Program:
    added: dict[str, DimInfo] = {}
    funcs = tuple(_Rewriter(program, func, added, expansions, attend=attend).rewritten() for func in program.funcs)
    return replace(program, funcs=funcs, dims=(*program.dims, *added.values()))


class _Rewriter:
    """Rewrites one function; `at` is the statement at hand, `site` where it stands.

    `added` gathers, for all functions, the dimensions of the candidates of `topk`.
    """

    site: Site

    def __init__(
        self, program: Program, func: Func, added: dict[str, DimInfo], expansions: _Expansions, *, attend: bool
    ) -> None:
        self.func = func
        self.expansions = expansions
        self.attend = attend
        self.added = added
        self.candidates: set[DefinitionPath] = set()
        self.sizes = program.sizes(func)
        self.program = program
        self.writer = Rewriter.of(program, func)
        self.at: Let | None = None

    def rewritten(self) -> Func:
        return map_sites(self.program, self.func, self.statement)

    def statement(self, site: Site) -> tuple[Statement, ...]:
        statement = site.statement
        if not isinstance(statement, Let):
            return (statement,)
        self.at, self.site = statement, site
        self.writer.at(statement)
        expansion = self.expansions.get(type(statement.operation))
        if expansion is None or not expansion(self, statement):
            self.writer.put(statement)
        return self.writer.written()

    @property
    def scope(self) -> Scope:
        return self.site.scope

    # ------------------------------------------------------------ building

    def shape(self, operand: Operand) -> Shape | None:
        return None if isinstance(operand, Number) else self.scope.type_of(operand).shape

    def emit(self, operation: Operation, operands: Sequence[Operand], wish: str, declared: Shape | None = None) -> str:
        """Appends a statement under a fresh name, which it gives back."""
        (name,) = self.emit_all(operation, operands, (wish,), declared)
        return name

    def emit_all(
        self, operation: Operation, operands: Sequence[Operand], wishes: Sequence[str], declared: Shape | None = None
    ) -> tuple[str, ...]:
        """As `emit`, for an operation with a result for each wish."""
        assert self.at is not None
        args = [
            Arg(str(o), None, o) if isinstance(o, Number) else Arg(o, self.scope.type_of(o).shape) for o in operands
        ]
        values = tuple(
            self.writer.value(wish, shape)
            for wish, shape in zip(wishes, operation.infer(args, Context(self.sizes, declared)), strict=True)
        )
        self.writer.put(Let(values, operation, tuple(operands), self.at.span))
        self.scope.define(*values)
        return tuple(value.name for value in values)

    def finish(self, operation: Operation, operands: Sequence[Operand]) -> bool:
        """Appends the last statement, which defines the value that was rewritten."""
        assert self.at is not None
        self.writer.put(replace(self.at, operation=operation, operands=tuple(operands)))
        return True

    def index(self, dim: str, like: str, wish: str) -> str:
        """The global index along a dimension of a value, whose extent may not be the declared one."""
        shape = self.shape(like)
        assert shape is not None
        extent = shape.size(dim)
        return self.emit(ops.Iota(dim, None if extent == self.sizes[dim] else extent), [], wish)

    def candidates_dim(self, dim: str, size: int) -> str:
        """A dimension of this size for what is left of another, with digits of its own."""
        declared = {info.name for info in self.program.dims}
        count = 2
        while (name := f"{dim}{count}") in declared or (name in self.added and self.added[name].size != size):
            count += 1
        self.added[name] = DimInfo(name, size)
        self.sizes[name] = size
        return name

    def masked(
        self, scores: str, keys: str, causal: str, pos: Operand | None, window: int | Operand | None, name: str
    ) -> str:
        """Scores of positions, given by `keys`, that a query does not see become -inf."""
        queries = self.index(causal, scores, f"{name}_queries")
        width = window
        if width is not None:
            width = Number(str(width)) if isinstance(width, int) else self.of_two("maximum", width, 0, f"{name}_width")
        if pos is not None:
            pos, width = self.near(scores, keys, causal, pos, width, name)
            queries = self.emit(ops.Add(), [queries, pos], f"{name}_positions")
        visible = self.emit(ops.Function("less_equal"), [keys, queries], f"{name}_visible")
        if width is not None:  # an int32 is enough, but for queries before all positions, which see none anyway
            starts = self.emit(ops.Sub(), [queries, width], f"{name}_window_starts")
            near = self.emit(ops.Function("less"), [starts, keys], f"{name}_near")
            visible = self.emit(ops.Function("logical_and"), [visible, near], f"{name}_in_window")
        return self.emit(ops.Function("where"), [visible, scores, Number("-inf")], f"{name}_masked")

    def near(
        self, scores: str, keys: str, causal: str, pos: Operand, width: Operand | None, name: str
    ) -> tuple[Operand, Operand | None]:
        """The position of the first query and the width of the window, no further from the keys than they see anything
        else there, so that no query's position is beyond int32."""
        n_queries = self.scope.type_of(scores).shape.size(causal)
        n = prod(dim.size for dim in self.scope.type_of(keys).shape.dims)
        if width is None or isinstance(width, Number):
            far = far_position(n, n_queries, None if width is None else int(width.value))
            if far is not None:
                return self.of_two("minimum", pos, far, f"{name}_pos"), width
        here = self.of_two("minimum", pos, n, f"{name}_pos")
        beyond = self.of_two("sub", pos, here, f"{name}_beyond")
        left = self.of_two("sub", width, beyond, f"{name}_width_left")
        left = self.of_two("minimum", left, n + n_queries, f"{name}_width_at_most")
        return here, self.of_two("maximum", left, 0, f"{name}_width_seen")

    def of_two(self, name: str, left: Operand | None, right: Operand | int, wish: str) -> Operand:
        """The result of `minimum`, `maximum` or `sub` of two int32; a number where both are."""
        assert left is not None
        right = Number(str(right)) if isinstance(right, int) else right
        if isinstance(left, Number) and isinstance(right, Number):
            values = ((int(number.value) + 2**31) % 2**32 - 2**31 for number in (left, right))
            return Number(str({"minimum": min, "maximum": max, "sub": sub}[name](*values)))
        return self.emit(ops.Sub() if name == "sub" else ops.Function(name), [left, right], wish)

    def in_f32(self, operand: str, wish: str) -> str:
        shape = self.shape(operand)
        assert shape is not None
        return operand if shape.dtype is DType.F32 else self.emit(ops.Convert(DType.F32), [operand], wish)

    def rounded(self, operation: Operation, operands: Sequence[Operand], wish: str) -> bool:
        """Finishes with a value computed in f32, rounded to the format of the value that was rewritten."""
        assert self.at is not None
        dtype = self.at.result.shape.dtype
        if dtype is DType.F32:
            return self.finish(operation, operands)
        return self.finish(ops.Convert(dtype), [self.emit(operation, operands, wish)])


def _name(operand: Operand) -> str:
    assert isinstance(operand, str)
    return operand


def _size(rewriter: _Rewriter, dims: Sequence[str], shape: Shape) -> Number:
    """The number of elements of a mean, by the sizes of declared dimensions."""
    sizes = (Number(str(shape.size(dim)), dim if rewriter.sizes[dim] == shape.size(dim) else None) for dim in dims)
    return functools.reduce(functools.partial(Number.folded, "*"), sizes)


def _softmax(rewriter: _Rewriter, statement: Let) -> bool:
    operation = statement.operation
    assert isinstance(operation, ops.Softmax)
    name = statement.result.name
    scores = rewriter.in_f32(_name(statement.operands[0]), f"{name}_f32")
    if operation.causal is not None:
        pos = statement.operands[1] if len(statement.operands) > 1 else None
        keys = rewriter.index(operation.dims[0], scores, f"{name}_keys")
        scores = rewriter.masked(scores, keys, operation.causal, pos, operation.window, name)
    greatest = rewriter.emit(ops.Max(operation.dims), [scores], f"{name}_max")
    shifted = rewriter.emit(ops.Sub(), [scores, greatest], f"{name}_shifted")
    powers = rewriter.emit(ops.Function("exp"), [shifted], f"{name}_exp")
    total = rewriter.emit(ops.Sum(operation.dims), [powers], f"{name}_sum")
    return rewriter.rounded(ops.Div(), [powers, total], f"{name}_weights")


def _attend(rewriter: _Rewriter, statement: Let) -> bool:
    """The greatest score is no less than the least finite number and the sum no less than 1, which it is anyway unless
    a query sees nothing: it gives zeros."""
    operation = statement.operation
    assert isinstance(operation, ops.Attend)
    kind = statement.results[0].type
    demanded = kind.partial is not None and kind.partial.kind is Reduction.SOFTMAX
    if not rewriter.attend or demanded:
        return False
    name, over = statement.results[0].name, (operation.along,)
    q, k, v = map(_name, statement.operands[:3])
    given = dict(zip(operation.given, statement.operands[3:], strict=True))
    table = given.pop("pages", None)
    if isinstance(table, str):
        over = (page_of_row(rewriter.scope.type_of(table).names, rewriter.scope.type_of(q).names), *over)
        pages = ops.Lookup(str(operation.page))
        k, v = (rewriter.emit(pages, [pool, table], f"{name}_{of}") for pool, of in ((k, "keys"), (v, "values")))
    query, keys = (rewriter.scope.type_of(value).shape for value in (q, k))
    wide = Shape(DType.F32, (*operation.rows(query).dims, *(Dim(T, keys.size(T)) for T in over)))
    scores = rewriter.emit(ops.Contract((operation.contracted,)), [q, k], f"{name}_scores", wide)
    if operation.scale != 1.0:
        scores = rewriter.emit(ops.Mul(), [scores, Number(repr(operation.scale))], f"{name}_scaled")
    if operation.softcap:
        cap = Number(repr(operation.softcap))
        capped = rewriter.emit(ops.Div(), [scores, cap], f"{name}_capped")
        bounded = rewriter.emit(ops.Function("tanh"), [capped], f"{name}_bounded")
        scores = rewriter.emit(ops.Mul(), [bounded, cap], f"{name}_soft")
    if operation.causal is not None:
        window, places = given.get("window", operation.window), _places(rewriter, over, scores, f"{name}_keys")
        scores = rewriter.masked(scores, places, operation.causal, given.get("pos"), window, name)
    if "length" in given:
        places = _places(rewriter, over, scores, f"{name}_places")
        held = rewriter.emit(ops.Function("less"), [places, given["length"]], f"{name}_held")
        scores = rewriter.emit(ops.Function("where"), [held, scores, Number("-inf")], f"{name}_within")
    if isinstance(table, str):  # what is no page of the pool hides its positions
        n = _size(rewriter, (str(operation.page),), rewriter.scope.type_of(_name(statement.operands[1])).shape)
        some = rewriter.emit(ops.Function("less_equal"), [Number("0"), table], f"{name}_some")
        there = rewriter.emit(ops.Function("less"), [table, n], f"{name}_there")
        there = rewriter.emit(ops.Function("logical_and"), [some, there], f"{name}_in_pool")
        scores = rewriter.emit(ops.Function("where"), [there, scores, Number("-inf")], f"{name}_of_pages")
    greatest = rewriter.emit(ops.Max(over), [scores], f"{name}_max")
    greatest = rewriter.emit(ops.Function("maximum"), [greatest, _LEAST], f"{name}_floor")
    shifted = rewriter.emit(ops.Sub(), [scores, greatest], f"{name}_shifted")
    powers = rewriter.emit(ops.Function("exp"), [shifted], f"{name}_exp")
    total = rewriter.emit(ops.Sum(over), [powers], f"{name}_sum")
    safe = rewriter.emit(ops.Function("maximum"), [total, Number("1.0")], f"{name}_safe")
    weights = rewriter.emit(ops.Div(), [powers, safe], f"{name}_weights")
    if query.dtype is not DType.F32:
        weights = rewriter.emit(ops.Convert(query.dtype), [weights], f"{name}_rounded")
    if operation.lse:
        log = rewriter.emit(ops.Function("log"), [total], f"{name}_log")
        rewriter.writer.put(Let(statement.results[1:], ops.Add(), (greatest, log), statement.span))
    last = replace(statement, results=statement.results[:1], operation=ops.Contract(over), operands=(weights, v))
    rewriter.writer.put(last)
    return True


def _places(rewriter: _Rewriter, over: Sequence[str], scores: str, wish: str) -> str:
    """The positions of scores along a dimension, or two: of pages and of slots."""
    *pages, slot = over
    places = rewriter.index(slot, scores, wish)
    for page in pages:
        shape = rewriter.shape(scores)
        assert shape is not None
        number = rewriter.index(page, scores, f"{wish}_page")
        first = rewriter.emit(ops.Mul(), [number, _size(rewriter, (slot,), shape)], f"{wish}_first")
        places = rewriter.emit(ops.Add(), [first, places], f"{wish}_in_row")
    return places


_LEAST = Number("-3.4028234663852886e+38")
"""The least finite number of f32."""


def _argmax(rewriter: _Rewriter, statement: Let) -> bool:
    operation = statement.operation
    assert isinstance(operation, ops.Argmax)
    name = statement.result.name
    values = _name(statement.operands[0])
    shape = rewriter.shape(values)
    assert shape is not None
    greatest = rewriter.emit(ops.Max((operation.dim,)), [values], f"{name}_max")
    reaches = rewriter.emit(ops.Function("equal"), [values, greatest], f"{name}_reaches")
    if shape.dtype.is_float:  # NaN is the greatest of all and equals nothing, itself included
        number = rewriter.emit(ops.Function("equal"), [values, values], f"{name}_number")
        nan = rewriter.emit(ops.Function("logical_not"), [number], f"{name}_nan")
        reaches = rewriter.emit(ops.Function("logical_or"), [reaches, nan], f"{name}_reaches_or_nan")
    index = rewriter.index(operation.dim, values, f"{name}_index")
    negative = rewriter.emit(ops.Neg(), [index], f"{name}_negative")
    size = _size(rewriter, (operation.dim,), shape)
    chosen = rewriter.emit(ops.Function("where"), [reaches, negative, Number.folded("-", size)], f"{name}_chosen")
    least = rewriter.emit(ops.Max((operation.dim,)), [chosen], f"{name}_least")
    return rewriter.finish(ops.Neg(), [least])


def _topk(rewriter: _Rewriter, statement: Let) -> bool:
    operation = statement.operation
    assert isinstance(operation, ops.Topk)
    l = _name(statement.operands[0])  # noqa: E741
    if operation.by:
        rewriter.candidates.add(rewriter.site.path(statement.result.name))
    if operation.by or rewriter.site.path(l) in rewriter.candidates:
        return False
    found = topk_blocks(rewriter.program, rewriter.func, rewriter.scope.type_of(l), operation)
    return _in_stages(rewriter, statement, found[0] if found else ())


def _in_stages(rewriter: _Rewriter, statement: Let, by: Axes) -> bool:
    """The greatest of each block of the digits, and of these the greatest: equal elements stay in order, because blocks
    are stretches of the dimension, one after the other."""
    operation = statement.operation
    assert isinstance(operation, ops.Topk)
    if not by:
        return False
    l, dim = _name(statement.operands[0]), operation.dim  # noqa: E741
    values, ids = statement.results
    k = operation.k * rewriter.program.mesh.product(by)
    among = rewriter.candidates_dim(dim, k)
    candidates, where = rewriter.emit_all(
        ops.Topk(dim, among, k, by), [l], (f"{values.name}_candidates", f"{ids.name}_candidates")
    )
    chosen = rewriter.writer.value(f"{ids.name}_places", ids.shape)
    last = replace(operation, dim=among)
    rewriter.writer.put(replace(statement, results=(values, chosen), operation=last, operands=(candidates,)))
    rewriter.writer.put(Let((ids,), ops.Lookup(among), (where, chosen.name), statement.span))
    return True


def _norm(rewriter: _Rewriter, statement: Let) -> bool:
    """Divides by the root of the mean square, then applies scale and offset if there are any."""
    operation = statement.operation
    assert isinstance(operation, ops.Layernorm | ops.Rmsnorm)
    name, dims = statement.result.name, operation.dims
    centred = rewriter.in_f32(_name(statement.operands[0]), f"{name}_f32")
    shape = rewriter.shape(centred)
    assert shape is not None
    count = _size(rewriter, dims, shape)
    if isinstance(operation, ops.Layernorm):
        total = rewriter.emit(ops.Sum(dims), [centred], f"{name}_sum")
        mean = rewriter.emit(ops.Div(), [total, count], f"{name}_mean")
        centred = rewriter.emit(ops.Sub(), [centred, mean], f"{name}_centred")
    square = rewriter.emit(ops.Mul(), [centred, centred], f"{name}_square")
    power = rewriter.emit(ops.Sum(dims), [square], f"{name}_power")
    mean = rewriter.emit(ops.Div(), [power, count], f"{name}_mean_square")
    safe = rewriter.emit(ops.Add(), [mean, Number(repr(operation.eps))], f"{name}_safe")
    inverse = rewriter.emit(ops.Function("rsqrt"), [safe], f"{name}_inverse")
    if len(statement.operands) == 1:
        return rewriter.rounded(ops.Mul(), [centred, inverse], f"{name}_normed")
    normed = rewriter.emit(ops.Mul(), [centred, inverse], f"{name}_normed")
    scale = rewriter.in_f32(_name(statement.operands[1]), f"{name}_scale")
    if len(statement.operands) == 2:
        return rewriter.rounded(ops.Mul(), [normed, scale], f"{name}_scaled")
    scaled = rewriter.emit(ops.Mul(), [normed, scale], f"{name}_scaled")
    offset = rewriter.in_f32(_name(statement.operands[2]), f"{name}_offset")
    return rewriter.rounded(ops.Add(), [scaled, offset], f"{name}_moved")


def _rotary(rewriter: _Rewriter, statement: Let) -> bool:
    operation = statement.operation
    assert isinstance(operation, ops.Rotary)
    args = [Arg(str(o), None, o) if isinstance(o, Number) else Arg(o, rewriter.shape(o)) for o in statement.operands]
    along = operation.positions_dim(args)
    if along is None:
        return False
    positions = rewriter.index(along, _name(statement.operands[0]), f"{statement.result.name}_index")
    start = statement.operands[1]
    if not (isinstance(start, Number) and start.value == 0):
        positions = rewriter.emit(ops.Add(), [positions, start], f"{statement.result.name}_positions")
    operands = (statement.operands[0], positions, *statement.operands[2:])
    return rewriter.finish(replace(operation, seq=None), operands)


_Expansions = Mapping[type[Operation], Callable[[_Rewriter, Let], bool]]

_EXPANSIONS: _Expansions = {
    ops.Softmax: _softmax,
    ops.Attend: _attend,
    ops.Argmax: _argmax,
    ops.Topk: _topk,
    ops.Layernorm: _norm,
    ops.Rmsnorm: _norm,
    ops.Rotary: _rotary,
}
