"""Attention in a program: the operation, or two contractions of activations joined by what happens to the scores."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.ir.ops import Alias, Attend, Contract, Split
from shardwright.ir.program import Let, Loop, Marking
from shardwright.ir.types import TensorType
from shardwright.passes.projections import Dataflow, is_numeric


@dataclass(frozen=True)
class Attention:
    """`scores = query @ keys`, something along the keys' positions, `out = weights @ values`; both are one statement
    where that is `attend`.

    `query`, `keys`, `weights` and `values` are numbers of operands. `interior` names what lies between the two
    contractions, with the scores and without `out`; `cached` names keys and values back to their projections,
    state and parameters among them. `heads` are the query's dimensions that number heads, those that keys have
    too first, and `kv_heads` the latter alone.
    """

    scores: Let
    out: Let
    query: int
    keys: int
    weights: int
    values: int
    interior: frozenset[str]
    cached: frozenset[str]
    heads: tuple[str, ...]
    kv_heads: tuple[str, ...]

    @property
    def query_name(self) -> str:
        return str(self.scores.operands[self.query])

    @property
    def key_name(self) -> str:
        return str(self.scores.operands[self.keys])

    @property
    def value_name(self) -> str:
        return str(self.out.operands[self.values])


def attentions(flow: Dataflow) -> tuple[Attention, ...]:
    """Every attention of a function: `attend`, or products with a softmax that is whole or decomposed."""
    products = [
        statement
        for statement, _ in flow.func.walk()
        if isinstance(statement, Let)
        and isinstance(statement.operation, Contract)
        and all(flow.is_activation(str(operand)) for operand in statement.operands)
    ]
    found = [
        _of_operation(flow, statement)
        for statement, _ in flow.func.walk()
        if isinstance(statement, Let)
        and isinstance(statement.operation, Attend)
        and all(flow.is_activation(str(operand)) for operand in statement.operands[:3])
    ]
    for scores in products:
        for query in range(2):
            made = _attention(flow, scores, query, products)
            if made is not None:
                found.append(made)
                break
    return tuple(found)


def _of_operation(flow: Dataflow, let: Let) -> Attention:
    operation = let.operation
    assert isinstance(operation, Attend)
    q, k, v = map(str, let.operands[:3])
    taken = {flow.batch, operation.contracted, operation.causal}
    own = [n for n in flow.values[q].type.names if n not in taken and _numbers_heads(flow, n)]
    kv = tuple(n for n in own if n in flow.values[k].type.names)
    heads = (*kv, *(n for n in own if n not in kv))
    return Attention(let, let, 0, 1, 0, 2, frozenset(), _cached(flow, k, v, {let}), heads, kv)


def _attention(flow: Dataflow, scores: Let, query: int, products: list[Let]) -> Attention | None:
    asked, offered = (flow.values[str(scores.operands[i])].type for i in (query, 1 - query))
    positions = {name for name in scores.result.type.names if name in offered.names and name not in asked.names}
    after = _computed_from(flow, scores.result.name)
    for out in products:
        assert isinstance(out.operation, Contract)
        summed = positions & set(out.operation.dims)
        if out is scores or not summed:
            continue
        for weights in range(2):
            if str(out.operands[weights]) not in after:
                continue
            before = _back(flow, str(out.operands[weights]))
            assert isinstance(scores.operation, Contract)
            shared = {flow.batch, *scores.operation.dims}
            own = [n for n in asked.names if n not in shared and _numbers_heads(flow, n)]
            kv = tuple(n for n in own if n in offered.names)
            keys, values = str(scores.operands[1 - query]), str(out.operands[1 - weights])
            cached = _cached(flow, keys, values, {scores, out})
            return Attention(
                scores, out, query, 1 - query, weights, 1 - weights,
                frozenset(after & before), cached, (*kv, *(n for n in own if n not in kv)), kv,
            )  # fmt: skip
    return None


def _numbers_heads(flow: Dataflow, dim: str) -> bool:
    """Whether projections make the dimension or take it up, as they do heads and not the queries' positions."""
    if not flow.projections:
        return dim in flow.values
    return any(dim in flow.values[p.weight_name].type.names for p in flow.projections) or _split_of_heads(flow, dim)


def _split_of_heads(flow: Dataflow, dim: str) -> bool:
    return any(
        isinstance(let.operation, Split)
        and dim in let.operation.parts
        and any(let.operation.source in flow.values[p.weight_name].type.names for p in flow.projections)
        for lets in flow.lets.values()
        for let in lets
    )


def _computed_from(flow: Dataflow, name: str) -> set[str]:
    """The values that follow from one without another contraction, itself included."""
    found, rest = {name}, [name]
    while rest:
        for statement in flow.users.get(rest.pop(), ()):
            if isinstance(statement, Let) and not isinstance(statement.operation, Contract):
                for value in statement.results:
                    if value.name not in found and flow.is_activation(value.name):
                        found.add(value.name)
                        rest.append(value.name)
    return found


def _back(flow: Dataflow, name: str) -> set[str]:
    """The activations that a value is computed from, up to contractions, whose results are included."""
    found, rest = {name}, [name]
    while rest:
        here = rest.pop()
        lets = flow.lets.get(here, ())
        if any(isinstance(let.operation, Contract) for let in lets):
            continue
        for source in flow.sources.get(here, ()):
            if source not in found and flow.is_activation(source):
                found.add(source)
                rest.append(source)
    return found


def _cached(flow: Dataflow, keys: str, values: str, attention: set[Let]) -> frozenset[str]:
    """Keys and values back to their projections; what others use as well is not theirs to place, and is left out."""
    found = {name for name in _back(flow, keys) | _back(flow, values) if is_numeric(flow.values[name].type)}
    while True:
        shared = {name for name in found if not _used_within(flow, name, found, attention)}
        if not shared:
            return frozenset(found)
        found -= shared


def _used_within(flow: Dataflow, name: str, found: set[str], attention: set[Let]) -> bool:
    if name in flow.program.state_names:
        return True
    for statement in flow.users.get(name, ()):
        match statement:
            case Let():
                if statement not in attention and all(value.name not in found for value in statement.results):
                    return False
            case Loop():
                return False
            case _:
                pass
    return True


def reshards_query(flow: Dataflow, attention: Attention) -> bool:
    """Whether the query takes a demanded layout of its own before it meets the keys, as attention over batch does."""
    return any(is_demanded_alias(let) for let in flow.lets.get(attention.query_name, ()))


def is_demanded_alias(let: Let) -> bool:
    """Whether a statement only demands a layout: `q: B_xyzLHD = q_heads`."""
    value = let.result
    return isinstance(let.operation, Alias) and value.marking is Marking.DEMANDED and isinstance(value.type, TensorType)
