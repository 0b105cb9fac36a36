"""The statements of experts: the router, and tokens on their way to the experts and back."""

from __future__ import annotations

from shardwright.ir.types import DType
from shardwright.models.description import Experts
from shardwright.models.token_groups import TokenGroups
from shardwright.models.value_types import ValueTypes


def replicated(source: str, experts: Experts, dtype: DType) -> list[str]:
    """`share`: what each expert contributes to each token, 0 for those that were not chosen."""
    share = f"sum[A](where(equal(expert, iota[X]()), {_weight(experts)}, 0.0))"
    chance, *choice = _chosen(f"{source} @ w_router", experts, dtype, "chance", "greatest", "expert")
    comment = "    # Every expert computes every token; those not chosen contribute 0."
    return [chance, comment, *choice, f"    share = {_narrowed(share, dtype)}"]


def routed(source: str, experts: Experts, dtype: DType) -> list[str]:
    """`expert`: the experts that each token chose, and `share`, the weights of their results."""
    chance, *choice = _chosen(f"{source} @ w_router", experts, dtype, "chance", "greatest", "expert")
    return [chance, *choice, f"    share = {_narrowed(_weight(experts), dtype)}"]


def _chosen(logits: str, experts: Experts, dtype: DType, chance: str, greatest: str, expert: str) -> list[str]:
    """The router: `chance` of every expert for each token, the `expert` that are chosen and their chances `greatest`,
    each given as `name` or `name: type`."""
    exact = f"convert[f32]({logits})"
    probabilities = f"softmax[X]({exact})" if experts.probability == "softmax" else f"sigmoid({exact})"
    lines, choice = [f"    {chance} = {probabilities}"], "chance"
    if experts.bias:
        bias = "router_bias" if dtype is DType.F32 else "convert[f32](router_bias)"
        lines.append(f"    biased = chance + {bias}")
        choice = "biased"
    if experts.grouped:
        lines.append(f"    in_groups = split[X -> X1X2]({choice})")
        best = "max[X2](in_groups)"
        if experts.best > 1:
            lines.append(f"    best, place_in_group = topk[X2 -> X4, k={experts.best}](in_groups)")
            best = "sum[X4](best)"
        lines += [
            f"    # Experts of the {experts.groups_chosen} best of {experts.groups} groups alone are chosen.",
            f"    of_group, group = topk[X1 -> X3, k={experts.groups_chosen}]({best})",
            "    is_open = less(0, sum[X3](convert[int32](equal(group, iota[X1]()))))",
            "    choice = merge[X1X2 -> X](where(is_open, in_groups, -inf))",
        ]
        choice = "choice"
    if choice == "chance":
        return [*lines, f"    {greatest}, {expert} = topk[X -> A, k={experts.chosen}](chance)"]
    return [
        *lines,
        f"    most, {expert} = topk[X -> A, k={experts.chosen}]({choice})",
        f"    {greatest} = lookup[X](chance, expert)",
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
    chance, greatest = f"chance: {of(DType.F32, 'S', 'X')}", f"greatest: {of(DType.F32, 'S', 'A')}"
    expert = f"expert: {of(DType.INT32, 'S', 'A')}"
    return [
        f"    # {_room(groups)}",
        f"    grouped: {of(types.dtype, 'S', 'E')} = {grouped(source, groups)}",
        *_chosen("grouped @ w_router", groups.experts, types.dtype, chance, greatest, expert),
        f"    chosen: {choices} = {chosen}",
        "    # Slot c of an expert holds the token before which c of the group chose the expert.",
        f"    taken: {counts} = cumsum[{token}](sum[A](convert[int32](chosen)))",
        f"    passed: {of(DType.BOOL, 'S', 'X', 'C')} = less_equal(taken, iota[{slots}]())",
        f"    holds: {of(DType.INT32, 'X', 'C')} = sum[{token}](convert[int32](passed))",
        f"    found: {of(types.dtype, 'X', 'C', 'E')} = lookup[{token}](grouped, holds)",
        f"    sent: {types.sent} = found",
    ]


def returned(types: ValueTypes, w_down: str, result: str = "fed") -> list[str]:
    """`result`: of each token the results of the experts that it chose, out of their slots, and weighted.

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
        f"    {result} = {ungrouped('parts', groups)}",
    ]


def _weight(experts: Experts) -> str:
    """The weight of a chosen expert's result."""
    weight = "greatest / sum[A](greatest)" if experts.normed else "greatest"
    return weight if experts.factor == 1.0 else f"{weight} * {experts.factor!r}"


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
