"""`recognize`: what is written out, element by element, becomes the operation that it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from shardwright.ir import ops
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.operation import Arg, Context, Number, Operand, Operation
from shardwright.ir.program import Func, Let, Marking, Program, Scope, Statement, Value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import AnyPartial, DType, OpenType, Shape
from shardwright.ir.walk import Site, map_sites, operand_names, sites, states_set, use_counts
from shardwright.passes.base import Pass
from shardwright.passes.cleanup import without_dead_code

_NO_SCORE = -1e9
"""The scores of positions that a query does not see are at most this."""


@dataclass(frozen=True)
class Recognize(Pass):
    """Softmax, norms, activations and attention, where they are written out, become one operation each.

        top = max[T](s)
        weights = exp(s - top)
        p = weights / sum[T](weights)

    becomes

        p = softmax[T](s)

    So do SwiGLU's `g * sigmoid(g)`, `rmsnorm` and `layernorm` with their gains and offsets, rotary embeddings of two
    halves, and attention with no mask, a causal one, a window, or a number of valid positions. Only where nothing else
    reads what lies between, and no layout of it is demanded.
    """

    name: ClassVar[str] = "recognize"

    def run(self, program: Program) -> Program:
        while True:
            before = program
            program = replace(program, funcs=tuple(_rewritten(program, func) for func in program.funcs))
            if program == before:
                return program
            program = replace(program, funcs=tuple(map(_swept, program.funcs)))


def _swept(func: Func) -> Func:
    """The function without what lay between, of which nobody reads the last any more."""
    while (swept := without_dead_code(func)) != func:
        func = swept
    return func


@dataclass
class _Found:
    """An operation in the place of a statement, and the names of what lay between that goes with it."""

    operation: Operation
    operands: tuple[Operand, ...]
    between: list[str] = field(default_factory=list[str])
    renamed: tuple[tuple[str, str], ...] = ()
    """Dimensions of its result that the statement's has under other names."""
    first: tuple[tuple[str, Operation, tuple[Operand, ...]], ...] = ()
    """Statements before it: what its operands call their result, the operation, and its operands."""


def _rewritten(program: Program, func: Func) -> Func:
    made = {
        value.name: site.statement
        for site in sites(program, func)
        if isinstance(site.statement, Let)
        for value in site.statement.results
    }
    rewriter = Rewriter.of(program, func)
    uses = use_counts(func)
    gone: set[str] = set()
    changing = set(states_set(func.body))  # what is read of them later may be another version

    def rewrite(site: Site) -> Sequence[Statement]:
        statement = site.statement
        if not isinstance(statement, Let) or len(statement.results) > 1 or statement.result.name in gone:
            return (statement,)
        reader = _Reader(made, site.scope, program.sizes(func), changing)
        for rule in _RULES:
            found = rule(reader, statement)
            if found is None or not (gone | changing).isdisjoint({*found.between, *operand_names(found.operands)}):
                continue
            if _stays_inside(found, statement, made, uses) and (lines := _put(found, statement, reader, rewriter)):
                gone.update(found.between)
                return lines
        return (statement,)

    return map_sites(program, func, rewrite)


def _stays_inside(found: _Found, root: Let, made: Mapping[str, Let], uses: Mapping[str, int]) -> bool:
    """Tells whether nothing else reads what lies between, and nothing is demanded of it."""
    within = [root, *(made[name] for name in dict.fromkeys(found.between))]
    read = Counter(name for statement in within for name in operand_names(statement.operands))
    return all(
        uses[value.name] == read[value.name] and _asks_nothing(value)
        for statement in within[1:]
        for value in statement.results
    )


def _asks_nothing(value: Value) -> bool:
    kind = value.type
    if value.marking is Marking.UNWRITTEN:
        return True
    free = isinstance(kind, OpenType) and kind.open and not any(split is not None for split in kind.splits)
    return free and (kind.partial is None or isinstance(kind.partial, AnyPartial))


def _put(found: _Found, statement: Let, reader: _Reader, rewriter: Rewriter) -> Sequence[Statement]:
    """The statements in the place of one; none where the operation does not take these operands."""
    rewriter.at(statement)
    rewriter.out.clear()
    for wish, operation, operands in found.first:
        (shape,) = operation.infer([reader.arg(each) for each in operands], Context(reader.sizes))
        name = rewriter.let(operation, operands, wish, shape)
        reader.scope.define(Value(name, OpenType.anything(shape), Marking.UNWRITTEN))
        found = replace(found, operands=tuple(name if each == wish else each for each in found.operands))
    try:
        (shape,) = found.operation.infer([reader.arg(each) for each in found.operands], Context(reader.sizes))
    except DiagnosticError:
        return ()
    names = dict(found.renamed)
    dims = tuple(replace(dim, name=names.get(dim.name, dim.name)) for dim in shape.dims)
    result = statement.result.type.shape
    if {dim.name: dim.size for dim in dims} != {dim.name: dim.size for dim in result.dims}:
        return ()
    same = dims == result.dims
    if not names and same and shape.dtype is result.dtype:
        return (*rewriter.written(), replace(statement, operation=found.operation, operands=found.operands))
    if shape.dtype is not result.dtype:
        return ()
    name = rewriter.let(found.operation, found.operands, f"{statement.result.name}_{found.operation.keyword}", shape)
    if names:
        rename = ops.Rename(found.renamed)
        if same:
            return (*rewriter.written(), replace(statement, operation=rename, operands=(name,)))
        name = rewriter.let(rename, (name,), statement.result.name, Shape(shape.dtype, dims))
    # The order of dimensions is another: the result has the one that was written.
    return (*rewriter.written(), replace(statement, operation=ops.Add(), operands=(name, Number("0"))))


class _Reader:
    """Looks up the statements that made the operands of a statement."""

    def __init__(
        self, made: Mapping[str, Let], scope: Scope, sizes: Mapping[str, int], changing: Collection[str]
    ) -> None:
        self.made = made
        self.scope = scope
        self.sizes = sizes
        self.changing = changing

    def shape(self, name: str) -> Shape:
        return self.scope.type_of(name).shape

    def arg(self, operand: Operand) -> Arg:
        if isinstance(operand, Number):
            return Arg(str(operand), None, operand)
        return Arg(operand, self.shape(operand))

    def of(self, operand: Operand | None, kind: type[Operation] | str) -> Let | None:
        """The statement that makes an operand, where its operation is of this kind, or the function of this name."""
        statement = self.made.get(operand) if isinstance(operand, str) else None
        if statement is None:
            return None
        if isinstance(kind, str):
            operation = statement.operation
            return statement if isinstance(operation, ops.Function) and operation.name == kind else None
        return statement if isinstance(statement.operation, kind) else None

    def mean(self, operand: Operand) -> tuple[str, tuple[str, ...], list[str]] | None:
        """The value whose mean an operand is, over which dimensions, and the names that lie between."""
        for kind in (ops.Div, ops.Mul):
            root = self.of(operand, kind)
            if root is None:
                continue
            for left, right in pairs(root):
                total = self.of(left, ops.Sum)
                if total is None or not isinstance(right, Number):
                    continue
                assert isinstance(total.operation, ops.Sum)
                summed = str(total.operands[0])
                shape = self.scope_shape(summed)
                n = math.prod(shape.size(dim) for dim in total.operation.dims) if shape else 0
                wanted = n if kind is ops.Div else 1 / n if n else 0
                if wanted and math.isclose(float(right.value), wanted, rel_tol=1e-6):
                    return summed, total.operation.dims, [root.result.name, total.result.name]
        return None

    def same(self, one: str, other: str) -> bool:
        """Tells whether two values are computed alike."""
        if one == other:
            return one not in self.changing
        a, b = self.made.get(one), self.made.get(other)
        if a is None or b is None or a.operation != b.operation or len(a.operands) != len(b.operands):
            return False
        return all(
            self.same(x, y) if isinstance(x, str) and isinstance(y, str) else x == y
            for x, y in zip(a.operands, b.operands, strict=True)
        )

    def scope_shape(self, name: str) -> Shape | None:
        try:
            return self.shape(name)
        except KeyError:
            return None


def pairs(statement: Let) -> Iterator[tuple[Operand, Operand]]:
    """The two operands of a statement in each order in which they mean the same."""
    left, right = statement.operands
    yield left, right
    if isinstance(statement.operation, ops.Mul | ops.Add):
        yield right, left


# ---------------------------------------------------------------- one rule for each operation


def _silu(reader: _Reader, root: Let) -> _Found | None:
    if not isinstance(root.operation, ops.Mul):
        return None
    for x, gate in pairs(root):
        sigmoid = reader.of(gate, "sigmoid")
        if sigmoid is not None and sigmoid.operands == (x,):
            return _Found(ops.Function("silu"), (x,), [str(gate)])
    return None


def _gelu(reader: _Reader, root: Let) -> _Found | None:
    """`x * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`."""
    if not isinstance(root.operation, ops.Mul):
        return None
    for x, half in pairs(root):
        one_more = _times(reader, half, 0.5)
        tanh = reader.of(_plus(reader, one_more, 1), "tanh")
        total = _times(reader, tanh.operands[0], math.sqrt(2 / math.pi)) if tanh else None
        both = reader.of(total, ops.Add)
        if tanh is None or both is None:
            continue
        for own, cubic in pairs(both):
            cube = reader.of(_times(reader, cubic, 0.044715), ops.Mul)
            if own != x or cube is None:
                continue
            for square, last in pairs(cube):
                if last == x == _square(reader, square):
                    between = (half, one_more, tanh.result.name, *tanh.operands, total, cubic, cube.result.name, square)
                    return _Found(ops.Function("gelu", "tanh"), (x,), [str(each) for each in between])
    return None


def _times(reader: _Reader, operand: Operand | None, factor: float) -> Operand | None:
    """The v of `factor * v`."""
    return _beside(reader.of(operand, ops.Mul), factor)


def _plus(reader: _Reader, operand: Operand | None, constant: float) -> Operand | None:
    """The v of `constant + v`."""
    return _beside(reader.of(operand, ops.Add), constant)


def _beside(statement: Let | None, constant: float) -> Operand | None:
    for v, number in pairs(statement) if statement else ():
        if isinstance(number, Number) and math.isclose(float(number.value), constant, rel_tol=1e-5):
            return v
    return None


def _softmax(reader: _Reader, root: Let) -> _Found | None:
    if not isinstance(root.operation, ops.Div):
        return None
    weights, total = root.operands
    powers, summed = reader.of(weights, "exp"), reader.of(total, ops.Sum)
    if powers is None or summed is None or summed.operands != (weights,):
        return None
    shifted = reader.of(powers.operands[0], ops.Sub)
    top = reader.of(shifted.operands[1], ops.Max) if shifted else None
    if shifted is None or top is None or top.operands != shifted.operands[:1]:
        return None
    assert isinstance(summed.operation, ops.Sum)
    assert isinstance(top.operation, ops.Max)
    if set(summed.operation.dims) != set(top.operation.dims):
        return None
    between = [each.result.name for each in (powers, summed, shifted, top)]
    return _Found(ops.Softmax(dims=summed.operation.dims), shifted.operands[:1], between)


def _normed(reader: _Reader, root: Let) -> Iterator[tuple[str, str, float, list[str]]]:
    """The parts of a quotient by a root, `x * rsqrt(v + eps)` or `x / sqrt(v + eps)`: x, v, eps, what is between."""
    if isinstance(root.operation, ops.Mul):
        tried = [(x, reader.of(scale, "rsqrt")) for x, scale in pairs(root)]
    elif isinstance(root.operation, ops.Div):
        tried = [(root.operands[0], reader.of(root.operands[1], "sqrt"))]
    else:
        return
    for x, scale in tried:
        added = reader.of(scale.operands[0], ops.Add) if scale else None
        if scale is None or added is None or not isinstance(x, str):
            continue
        for variance, eps in pairs(added):
            if isinstance(eps, Number) and isinstance(variance, str):
                number = float(f"{float(eps.value):.6g}")  # as written, before it was rounded to f32
                yield x, variance, number, [scale.result.name, added.result.name]


def _square(reader: _Reader, operand: Operand) -> str | None:
    """The value whose square an operand is."""
    product = reader.of(operand, ops.Mul)
    if product is None or product.operands[0] != product.operands[1] or isinstance(product.operands[0], Number):
        return None
    return product.operands[0]


def _rmsnorm(reader: _Reader, root: Let) -> _Found | None:
    for x, variance, eps, between in _normed(reader, root):
        mean = reader.mean(variance)
        if mean is not None and _square(reader, mean[0]) == x:
            return _Found(ops.Rmsnorm(eps=eps, dims=mean[1]), (x,), [*between, *mean[2], mean[0]])
    return None


def _layernorm(reader: _Reader, root: Let) -> _Found | None:
    for centered, variance, eps, between in _normed(reader, root):
        mean = reader.mean(variance)
        less = reader.of(centered, ops.Sub)
        if mean is None or less is None:
            continue
        other = _square(reader, mean[0])
        if other is None or not reader.same(other, centered):
            continue
        center = reader.mean(less.operands[1])
        if center is not None and center[0] == less.operands[0] and set(center[1]) == set(mean[1]):
            names = [*between, *mean[2], mean[0], centered, other, *center[2]]
            twin = reader.mean(reader.made[other].operands[1])
            names.extend(twin[2] if twin else ())
            return _Found(ops.Layernorm(eps=eps, dims=mean[1]), less.operands[:1], names)
    return None


def _gain(reader: _Reader, root: Let) -> _Found | None:
    """A norm times its gain, and a norm with its gain plus its offset."""
    if not isinstance(root.operation, ops.Mul | ops.Add):
        return None
    for normed, other in pairs(root):
        for kind in (ops.Rmsnorm, ops.Layernorm):
            norm = reader.of(normed, kind)
            if norm is None or isinstance(other, Number):
                continue
            if kind is ops.Rmsnorm and isinstance(root.operation, ops.Add):
                continue
            assert isinstance(norm.operation, ops.Rmsnorm | ops.Layernorm)
            wanted = 1 if isinstance(root.operation, ops.Mul) else 2
            if len(norm.operands) == wanted and set(reader.shape(other).names) == set(norm.operation.dims):
                return _Found(norm.operation, (*norm.operands, other), [norm.result.name])
    return None


# ---------------------------------------------------------------- rotary embeddings


def _rotary(reader: _Reader, root: Let) -> _Found | None:
    """`concat[D](a cos - b sin, b cos + a sin)` of the two halves a and b of one value."""
    if not isinstance(root.operation, ops.Concat) or root.operation.by or len(root.operands) != 2:
        return None
    parts = [reader.of(each, ops.Rename) for each in root.operands]
    between = [part.result.name for part in parts if part is not None]
    first, second = (part.operands[0] if part else each for part, each in zip(parts, root.operands, strict=True))
    minus, plus = reader.of(first, ops.Sub), reader.of(second, ops.Add)
    if minus is None or plus is None:
        return None
    turned = [_turned(reader, each) for each in (*minus.operands, *plus.operands)]
    found = [each for each in turned if each is not None]
    if len(found) < 4 or not all(reader.same(found[0][2], each[2]) for each in found):
        return None
    (a, cos, angle), (b, sin, _), one, other = found
    if one[1] == "sin":
        one, other = other, one
    functions = (cos, sin, one[1], other[1])
    if functions != ("cos", "sin", "cos", "sin") or not (reader.same(one[0], b) and reader.same(other[0], a)):
        return None
    halves = [_half(reader, a), _half(reader, b)]
    if halves[0] is None or halves[1] is None:
        return None
    (x, dim, low, high), (whole, _, start, stop) = halves[0], halves[1]
    size = reader.shape(x).size(dim)
    place = _angle(reader, angle)
    if x != whole or (low, high, start, stop) != (0, size // 2, size // 2, size) or place is None:
        return None
    products = [str(each) for each in (*minus.operands, *plus.operands)]
    made = _with_frequencies(reader, x, dim, place, [*between, minus.result.name, plus.result.name, *products])
    if dim != root.operation.dim:
        made.renamed = ((dim, root.operation.dim),)
    return made


def _rotated(reader: _Reader, root: Let) -> _Found | None:
    """`x * cos(a) + concat(-b, a) * sin(a)` of the halves a and b of x, with the angles twice in a row."""
    if not isinstance(root.operation, ops.Add):
        return None
    for straight, crossed in pairs(root):
        first, second = _turned(reader, straight), _turned(reader, crossed)
        if first is None or second is None or (first[1], second[1]) != ("cos", "sin"):
            continue
        x, dim = first[0], ""
        halves, twice = reader.of(second[0], ops.Concat), reader.of(first[2], ops.Concat)
        if halves is None or twice is None or not reader.same(first[2], second[2]):
            continue
        assert isinstance(halves.operation, ops.Concat)
        dim, between = halves.operation.dim, [str(straight), str(crossed), halves.result.name]
        if len(halves.operands) != 2 or len(twice.operands) != 2 or twice.operation != halves.operation:
            continue
        if halves.operation.by or dim not in reader.shape(x):
            continue
        high, low = (_behind(reader, each, between) for each in halves.operands)
        negative = reader.of(high, ops.Neg)
        if negative is None:
            continue
        between.append(high)
        size = reader.shape(x).size(dim)
        wanted = [(x, dim, size // 2, size), (x, dim, 0, size // 2)]
        if [_half(reader, _behind(reader, each, between)) for each in (negative.operands[0], low)] != wanted:
            continue
        between.extend([_behind(reader, negative.operands[0], between), low])
        angles = [_behind(reader, each, []) for each in twice.operands]
        place = _angle(reader, angles[0]) if reader.same(*angles) else None
        if place is not None:
            return _with_frequencies(reader, x, dim, place, list(dict.fromkeys(between)))
    return None


def _behind(reader: _Reader, operand: Operand, between: list[str]) -> str:
    """The value that an operand is under other names of its dimensions, or in another order of them."""
    name = str(operand)
    while True:
        statement = reader.of(name, ops.Rename) or reader.of(name, ops.Add)
        if statement is None:
            return name
        if isinstance(statement.operation, ops.Add):
            zero = statement.operands[1]
            if not isinstance(zero, Number) or zero.value != 0:
                return name
        elif reader.of(statement.operands[0], ops.Take) is not None:
            return name
        between.append(name)
        name = str(statement.operands[0])


def _with_frequencies(reader: _Reader, x: str, dim: str, place: tuple[str, str, bool], between: list[str]) -> _Found:
    """The rotary embedding at these positions, by these frequencies, or by what positions are divided by."""
    position, frequencies, inverted = place
    made = _Found(ops.Rotary(dim, seq=_sequence(reader, position)), (x, position, frequencies), between)
    if inverted:
        made.operands = (x, position, "frequencies")
        made.first = (("frequencies", ops.Div(), (Number("1.0"), frequencies)),)
    return made


def _turned(reader: _Reader, operand: Operand) -> tuple[str, str, str] | None:
    """A product of a value and the cosine or sine of an angle: these three."""
    product = reader.of(operand, ops.Mul)
    if product is None:
        return None
    for x, turn in pairs(product):
        for function in ("cos", "sin"):
            made = reader.of(turn, function)
            if made is not None and isinstance(x, str):
                return x, function, str(made.operands[0])
    return None


def _half(reader: _Reader, name: str) -> tuple[str, str, int, int] | None:
    """The value, dimension and range that a value is a part of."""
    renamed = reader.of(name, ops.Rename)
    taken = reader.of(renamed.operands[0] if renamed else name, ops.Take)
    if taken is None:
        return None
    assert isinstance(taken.operation, ops.Take)
    if taken.operation.stop is None or taken.operation.by:
        return None
    return str(taken.operands[0]), taken.operation.dim, taken.operation.start, taken.operation.stop


def _angle(reader: _Reader, name: str) -> tuple[str, str, bool] | None:
    """Positions and frequencies whose product is an angle; or what it is divided by, and True."""
    product = reader.of(name, ops.Mul) or reader.of(name, ops.Div)
    if product is None:
        return None
    for position, frequencies in pairs(product):
        converted = reader.of(position, ops.Convert)
        if converted is None or not isinstance(frequencies, str):
            continue
        source = str(converted.operands[0])
        if reader.shape(source).dtype is DType.INT32 and len(reader.shape(frequencies).dims) == 1:
            return source, frequencies, isinstance(product.operation, ops.Div)
    return None


def _sequence(reader: _Reader, position: str) -> str | None:
    """The dimension along which a single position would count; positions here are given one by one."""
    return None if reader.shape(position).dims else "L"


# ---------------------------------------------------------------- attention


def _attend(reader: _Reader, root: Let) -> _Found | None:
    if not isinstance(root.operation, ops.Contract) or len(root.operation.dims) != 1:
        return None
    along = root.operation.dims[0]
    for weights, v in (root.operands, root.operands[::-1]):
        softmax = reader.of(weights, ops.Softmax)
        if softmax is None or not isinstance(v, str):
            continue
        assert isinstance(softmax.operation, ops.Softmax)
        if softmax.operation.dims != (along,) or softmax.operation.causal is not None:
            continue
        mask = _masked(reader, str(softmax.operands[0]), along)
        if mask is None:
            continue
        scores, between = mask.scores, mask.between
        scale = 1.0
        scaled = reader.of(scores, ops.Mul) or reader.of(scores, ops.Div)
        for inner, number in pairs(scaled) if scaled else ():
            if isinstance(number, Number) and reader.of(inner, ops.Contract):
                scale = float(number.value) if reader.of(scores, ops.Mul) else 1 / float(number.value)
                between.append(scores)
                scores = str(inner)
                break
        product = reader.of(scores, ops.Contract)
        if product is None or not math.isfinite(scale):
            continue
        assert isinstance(product.operation, ops.Contract)
        if len(product.operation.dims) != 1:
            continue
        between.extend([scores, softmax.result.name])
        sides = [str(each) for each in product.operands]
        for q, k in (sides, sides[::-1]):
            if along in reader.shape(q) or along not in reader.shape(k):
                continue
            attend = ops.Attend(
                along, product.operation.dims[0], mask.causal, mask.window, scale=scale, given=tuple(mask.given)
            )
            return _Found(attend, (q, k, v, *mask.given.values()), between, first=tuple(mask.first))
    return None


@dataclass
class _Mask:
    """The scores beneath a mask, and the mask as `attend` says it."""

    scores: str
    causal: str | None = None
    window: int = 0
    of_window: str | None = None
    """The dimension of queries whose window it is."""
    given: dict[str, str] = field(default_factory=dict[str, str])
    between: list[str] = field(default_factory=list[str])
    first: list[tuple[str, Operation, tuple[Operand, ...]]] = field(
        default_factory=list[tuple[str, Operation, tuple[Operand, ...]]]
    )

    def add(self, reader: _Reader, comparison: Let, along: str) -> bool:
        """Takes in one comparison of key t and query l, t <= l, l - t < w, t < n, or t <= n for one query; False where
        it is none of these."""
        left, right = comparison.operands
        strict = comparison.operation.keyword == "less"
        gap = reader.of(right, ops.Sub)
        if not strict and gap is not None and isinstance(left, Number) and left.value == 0 and self.causal is None:
            query, key = (_positions(reader, each) for each in gap.operands)  # 0 <= l - t
            self.causal = query
            return key == along and query not in (None, along)
        gap = reader.of(left, ops.Sub)
        if strict and gap is not None and not self.window:
            query, key = (_positions(reader, each) for each in gap.operands)
            self.of_window = query
            self.window = int(right.value) if isinstance(right, Number) else 0
            return self.window > 0 and key == along and query not in (None, along)
        if _positions(reader, left) != along or not isinstance(right, str):
            return False
        query = _positions(reader, right)
        if query is not None:
            self.causal, before = query, self.causal
            return not strict and before is None and query != along
        if along in reader.shape(right) or "length" in self.given:
            return False
        self.given["length"] = right if strict else "length"
        if not strict:
            self.first.append(("length", ops.Add(), (right, Number("1"))))
        return True


def _masked(reader: _Reader, name: str, along: str) -> _Mask | None:
    """The scores under a mask; None where the mask is none that `attend` has a word for."""
    chosen = reader.of(name, "where")
    if chosen is None:
        return _Mask(name)
    mask, scores, rest = chosen.operands
    if not isinstance(rest, Number) or float(rest.value) > _NO_SCORE or not isinstance(scores, str):
        return None
    made = _Mask(scores, between=[name])
    for part in _conjuncts(reader, str(mask)):
        comparison = reader.of(part, "less_equal") or reader.of(part, "less")
        if comparison is None or not made.add(reader, comparison, along):
            return None
    return None if made.window and made.causal != made.of_window else made


def _conjuncts(reader: _Reader, mask: str) -> Iterator[str]:
    both = reader.of(mask, "logical_and")
    if both is None:
        yield mask
        return
    for each in both.operands:
        yield from _conjuncts(reader, str(each))


def _positions(reader: _Reader, name: Operand) -> str | None:
    """The dimension whose indices a value has."""
    renamed = reader.of(name, ops.Rename)
    iota = reader.of(renamed.operands[0] if renamed else name, ops.Iota)
    if iota is None:
        return None
    assert isinstance(iota.operation, ops.Iota)
    if iota.operation.extent is not None:
        return None
    names = dict(renamed.operation.pairs) if renamed and isinstance(renamed.operation, ops.Rename) else {}
    return names.get(iota.operation.dim, iota.operation.dim)


_RULES: tuple[Callable[[_Reader, Let], _Found | None], ...] = (
    _silu, _gelu, _softmax, _layernorm, _rmsnorm, _gain, _rotary, _rotated, _attend,
)  # fmt: skip
