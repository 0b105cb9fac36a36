"""A policy put into the types of a model's program: `w_up: f16 NEF on device 20% host 80% along F`."""

from __future__ import annotations

from dataclasses import replace

from shardwright.cost.offloading.policy import Policy, Shares
from shardwright.ir.ops import Update
from shardwright.ir.program import Func, Loop, Program, Statement, Value
from shardwright.ir.types import Placement, Tier
from shardwright.ir.walk import lets
from shardwright.models.weight_map import WeightEntry, WeightMap
from shardwright.models.weights import dims_of
from shardwright.passes.memory.host_attention import with_attention_on_host


def placed(program: Program, policy: Policy, mapping: WeightMap) -> Program:
    """The program with weights, keys and values, and the residual stream, where the policy has them.

    A weight is spread along the outermost dimension of its tensor in the checkpoint, so that a share on disk is one
    range of a file. The cache is spread along its positions, hidden states along the batch.
    """
    weights = tuple(_weight(value, policy, mapping.entries[value.name]) for value in program.weights)
    caches = _caches(program)
    state = tuple(
        _typed(value, placement_of(policy.cache, caches[value.name])) if value.name in caches else value
        for value in program.state
    )
    hidden = tuple(_with_hidden(func, policy.hidden) for func in program.funcs)
    return with_attention(replace(program, weights=weights, state=state, funcs=hidden), policy)


def with_attention(program: Program, policy: Policy) -> Program:
    """The program with decode's attention on the host, where the policy has it there and a cache that lies there whole
    as it is computed with."""
    return with_attention_on_host(program) if policy.attention == "host" else program


def stored_order(entry: WeightEntry) -> tuple[tuple[str, ...], int]:
    """The dimensions of a weight, but for that of layers, as its tensors have them, and how many of them make a row:
    those of the tensors' outermost dimension, and those along which tensors are stacked."""
    stacked = tuple(dim for dim in entry.stacked if dim != "N")
    dims = [[dim for item in group for dim in dims_of(item)] for group in entry.stored]
    names = (*stacked, *(dim for group in dims for dim in group))
    return names, max(min(1, len(names)), len(stacked) + len(dims[0] if dims else ()))


def _weight(value: Value, policy: Policy, entry: WeightEntry) -> Value:
    order, _ = stored_order(entry)
    return _typed(value, placement_of(policy.weights, order[0] if order else None))


def placement_of(shares: Shares, along: str | None) -> Placement:
    """Shares as a type has them, along a dimension where they are of several memories."""
    parts = [(Tier(tier), round(100 * getattr(shares, tier), 6)) for tier in ("device", "host", "disk")]
    kept = tuple((tier, percent) for tier, percent in parts if percent > 0)
    if len(kept) == 1:
        return Placement(((kept[0][0], 100.0),))
    return Placement(kept, along)


def _typed(value: Value, placement: Placement) -> Value:
    return replace(value, type=replace(value.type, placement=placement))


def _caches(program: Program) -> dict[str, str]:
    """State that is updated position by position, and the dimension of its positions."""
    found = {str(let.operands[0]): let.operation.dim for let, _ in lets(program) if isinstance(let.operation, Update)}
    return {name: dim for name, dim in found.items() if name in program.state_names}


def _with_hidden(func: Func, shares: Shares) -> Func:
    if shares.device == 1.0:
        return func

    def visit(statement: Statement) -> Statement:
        if not isinstance(statement, Loop) or statement.dim != "N":
            return statement
        carries = tuple(
            replace(carry, value=_typed(carry.value, placement_of(shares, carry.value.shape.names[0])))
            for carry in statement.carries
        )
        return replace(statement, carries=carries)

    return replace(func, body=tuple(map(visit, func.body)))
