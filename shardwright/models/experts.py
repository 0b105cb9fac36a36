"""The statements of experts: the router, and tokens on their way to the experts and back."""

from __future__ import annotations

from shardwright.ir.types import DType
from shardwright.models.description import Experts
from shardwright.models.token_groups import TokenGroups
from shardwright.models.value_types import ValueTypes


def replicated(source: str, experts: Experts, dtype: DType) -> list[str]:
    """`share`: what each expert contributes to each token, 0 for those that were not chosen."""
    share = f"sum[A](where(equal(expert, iota[X]()), {_weight(experts)}, 0.0))"
    return [
        f"    chance = softmax[X](convert[f32]({source} @ w_router))",
        "    # Every expert computes every token; those not chosen contribute 0.",
        f"    greatest, expert = topk[X -> A, k={experts.chosen}](chance)",
        f"    share = {_narrowed(share, dtype)}",
    ]


def sent(source: str, types: ValueTypes, *, padded: bool) -> list[str]:
    """`sent`: for each group of tokens and each expert, the tokens that chose it, in slots (Lepikhin et al. 2021).

    A group's tokens stand by position and then by row; the first C that choose an expert have a slot there, and an
    empty slot is 0. Where `padded`, `real` says which tokens are none of the padding, which takes no slots.
    """
    groups, of = types.sending, types.of_tokens
    token, slots = groups.dim("S"), groups.dim("C")
    choices, counts = of(DType.BOOL, "S", "A", "X"), of(DType.INT32, "S", "X")
    chosen = "logical_and(equal(expert, iota[X]()), real)" if padded else "equal(expert, iota[X]())"
    greatest, expert = of(DType.F32, "S", "A"), of(DType.INT32, "S", "A")
    return [
        f"    # {_room(groups)}",
        f"    grouped: {of(types.dtype, 'S', 'E')} = {grouped(source, groups)}",
        f"    chance: {of(DType.F32, 'S', 'X')} = softmax[X](convert[f32](grouped @ w_router))",
        f"    greatest: {greatest}, expert: {expert} = topk[X -> A, k={groups.experts.chosen}](chance)",
        f"    chosen: {choices} = {chosen}",
        "    # Slot c of an expert holds the token before which c of the group chose the expert.",
        f"    taken: {counts} = cumsum[{token}](sum[A](convert[int32](chosen)))",
        f"    passed: {of(DType.BOOL, 'S', 'X', 'C')} = less_equal(taken, iota[{slots}]())",
        f"    holds: {of(DType.INT32, 'X', 'C')} = sum[{token}](convert[int32](passed))",
        f"    found: {of(types.dtype, 'X', 'C', 'E')} = lookup[{token}](grouped, holds)",
        f"    sent: {types.sent} = found",
    ]


def returned(types: ValueTypes, w_down: str) -> list[str]:
    """`fed`: of each token the results of the experts that it chose, out of their slots, and weighted.

    A token that has no slot at an expert gets nothing from it, and no more from the others.
    """
    groups, of = types.sending, types.of_tokens
    slots, places = groups.dim("C"), groups.dim("Z")
    place = f"expert * size[{slots}] + before"
    if groups.bounded:
        place = f"where(less(before, size[{slots}]), {place}, size[{places}])"
    number, share = of(DType.INT32, "S", "A"), of(types.dtype, "S", "A")
    return [
        f"    made: {of(types.dtype, 'X', 'C', 'E')} = each @[F] {w_down}",
        f"    places: {of(types.dtype, 'Z', 'E')} = merge[X{slots} -> {places}](made)",
        f"    before: {number} = lookup[X](taken, expert) - 1",
        f"    place: {number} = {place}",
        f"    share: {share} = {_narrowed(_weight(groups.experts), types.dtype)}",
        f"    part: {of(types.dtype, 'S', 'A', 'E')} = lookup[{places}](places, place)",
        f"    parts: {of(types.dtype, 'S', 'E')} = part @[A] share",
        f"    fed = {ungrouped('parts', groups)}",
    ]


def _weight(experts: Experts) -> str:
    """The weight of a chosen expert's result."""
    return "greatest / sum[A](greatest)" if experts.normed else "greatest"


def _room(groups: TokenGroups) -> str:
    """A sentence about the slots."""
    slots = f"{groups.slots} slot" + ("s" if groups.slots > 1 else "")
    tokens = f"{groups.tokens} token" + ("s" if groups.tokens > 1 else "")
    dropped = ", and those beyond it have none" if groups.bounded else ""
    return f"Each of the {groups.experts.number} experts has {slots} for each group of {tokens}{dropped}."


def real_tokens(types: ValueTypes) -> list[str]:
    """`real`: which tokens of a group are among the first `length` of their row."""
    return [f"  real = {grouped('less(iota[L](), length)', types.sending)}"]


def grouped(value: str, groups: TokenGroups) -> str:
    """Rows and positions as groups and the tokens in them."""
    group, member, token = (groups.dim(letter) for letter in "JMS")
    made, along = f"split[{groups.rows} -> {group}{member}]({value})", "L"
    if groups.over_positions > 1:
        made, along = f"split[L -> OQ]({made})", "Q"
    return f"merge[{along}{member} -> {token}]({made})"


def ungrouped(value: str, groups: TokenGroups) -> str:
    """Groups and the tokens in them as rows and positions."""
    group, member, token = (groups.dim(letter) for letter in "JMS")
    along = "Q" if groups.over_positions > 1 else "L"
    made = f"split[{token} -> {along}{member}]({value})"
    if groups.over_positions > 1:
        made = f"merge[OQ -> L]({made})"
    return f"merge[{group}{member} -> {groups.rows}]({made})"


def _narrowed(value: str, dtype: DType) -> str:
    return value if dtype is DType.F32 else f"convert[{dtype}]({value})"
