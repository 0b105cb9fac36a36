"""Letters by what dimensions do in attention: heads, groups, positions of queries and of keys, the size of a head."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from shardwright.ir import ops
from shardwright.ir.program import Let, Program
from shardwright.ir.types import Shape
from shardwright.ir.walk import lets, reads

_BETWEEN = (ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Function, ops.Convert, ops.Rename, ops.Split, ops.Merge)


def letters(program: Program, firm: Collection[str]) -> dict[str, str]:
    """For dimensions of the program the letter that the field has for them. Those of `firm` stay what they are."""
    made: dict[str, str] = {}
    for q, k, v, along, summed in _attentions(program):
        kept = [name for name in k.names if name not in (along, summed)]
        wanted = [(along, "T"), (summed, "D")]
        shared = [name for name in kept if name in q and name in v]
        grouped = [name for name in q.names if name not in k and name != summed]
        heads = _heads(program, shared, _projected(program, summed, {along, *grouped}))
        if heads:
            groups = [name for name in grouped if name in _parts(program)]
            wanted.append((heads, "K" if groups else "H"))
            wanted.extend((name, "G") for name in groups[:1])
        wanted.extend((name, "B") for name in shared[:1] if name not in (heads, *_stored(program)))
        wanted.extend((name, "L") for name in grouped if name not in _parts(program))
        others = [name for name in v.names if name not in (along, summed) and name not in k]
        wanted.extend((name, "D") for name in others)
        for name, letter in wanted:
            if name not in firm and letter not in firm:
                made.setdefault(name, letter)
    for let, _ in lets(program):  # heads of queries are groups of those of keys
        operation = let.operation
        if isinstance(operation, ops.Merge) and [made.get(part) for part in operation.parts] == ["K", "G"]:
            made.setdefault(operation.target, "H")
    for func in program.funcs:  # what a rotary embedding gives is named as what it takes
        turned: set[str] = set()
        for let, _ in lets(program, func):
            operation = let.operation
            if isinstance(operation, ops.Rotary):
                turned.update(value.name for value in let.results)
            elif isinstance(operation, ops.Rename) and turned.intersection(reads(let)):
                for source, target in operation.pairs:
                    made.setdefault(source, made.get(target, target))
    return made


def _attentions(program: Program) -> Iterator[tuple[Shape, Shape, Shape, str, str]]:
    """Queries, keys and values, the dimension of keys' positions and the one that scores sum over."""
    for func in program.funcs:
        makers: dict[str, Let] = {}
        kinds: dict[str, Shape] = {}
        for statement, scope in lets(program, func):
            for operand in statement.operands:
                if isinstance(operand, str):
                    kinds[operand] = scope.type_of(operand).shape
            makers.update((value.name, statement) for value in statement.results)
            operation = statement.operation
            if isinstance(operation, ops.Attend):
                q, k, v = (kinds[str(each)] for each in statement.operands[:3])
                yield q, k, v, operation.along, operation.contracted
            elif isinstance(operation, ops.Contract) and len(operation.dims) == 1:
                for weights, v in (statement.operands, statement.operands[::-1]):
                    scores = _scores(makers, str(weights), operation.dims[0])
                    if scores is None:
                        continue
                    assert isinstance(scores.operation, ops.Contract)
                    sides = [kinds[str(each)] for each in scores.operands]
                    q, k = sides if operation.dims[0] in sides[1] else sides[::-1]
                    if operation.dims[0] not in q and len(scores.operation.dims) == 1:
                        yield q, k, kinds[str(v)], operation.dims[0], scores.operation.dims[0]


def _scores(makers: dict[str, Let], name: str, along: str) -> Let | None:
    """The product whose softmax along a dimension a value is."""
    statement = makers.get(name)
    seen_softmax = False
    while statement is not None:
        operation = statement.operation
        if isinstance(operation, ops.Softmax) and operation.dims == (along,):
            seen_softmax = True
        elif isinstance(operation, ops.Contract):
            return statement if seen_softmax and along in statement.result.type.shape else None
        elif not isinstance(operation, _BETWEEN):
            return None
        given = [makers[each] for each in statement.operands if isinstance(each, str) and each in makers]
        wide = [each for each in given if along in each.result.type.shape]
        statement = max(wide, key=lambda each: len(each.result.type.shape.dims), default=None)
    return None


def _parts(program: Program) -> set[str]:
    """Dimensions that others are cut into, or put together of."""
    operations = (let.operation for let, _ in lets(program))
    return {part for each in operations if isinstance(each, ops.Split | ops.Merge) for part in each.parts}


def _heads(program: Program, shared: list[str], projected: set[str]) -> str | None:
    """The heads among what queries, keys and values share, which projections make, unlike a batch."""
    stored = _stored(program) | projected
    parts = _parts(program)
    return next((name for name in shared if name in parts), None) or next(
        (name for name in reversed(shared) if name in stored), shared[-1] if len(shared) > 1 else None
    )


def _projected(program: Program, size: str, positions: set[str]) -> set[str]:
    """The dimensions of parameters that have the size of a head and no positions: of projections, not of caches."""
    shapes = (value.shape.names for func in program.funcs for value in func.params)
    return {name for names in shapes if size in names and positions.isdisjoint(names) for name in names}


def _stored(program: Program) -> set[str]:
    return {name for weight in program.weights for name in weight.shape.names}
