"""The diagonal block schedule driven pass by pass, against each batch computed by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shardwright.backends.number_formats import Array
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.ir.program import Program

Arrays = Mapping[str, npt.ArrayLike]
Call = Callable[[Program, str, Arrays, Arrays, Arrays], tuple[Sequence[Array], Mapping[str, Array]]]


def alone(plain: Program, weights: Arrays, arguments: Sequence[Arrays]) -> tuple[list[Array], dict[str, Array]]:
    """What one batch's calls give, the first of `prefill` and the others of `decode`, and its state after them."""
    state: dict[str, Array] = {v.name: np.zeros([d.size for d in v.type.dims]) for v in plain.state}
    state = {v.name: state[v.name].astype(np.int32 if v.shape.dtype.is_integer else float) for v in plain.state}
    given: list[Array] = []
    for token, args in enumerate(arguments):
        results, state = evaluate(plain, "decode" if token else "prefill", args, weights, state)
        given.append(results[0])
    return given, state


def beginnings(batches: int, tokens: int, places: int) -> list[int]:
    """The pass in which each batch begins: its place is free when the batch before in it takes its last step."""
    return [math.floor(batch * (tokens - 1) / places) for batch in range(batches)]


def largest_difference(
    plain: Program, diagonal: Program, call: Call, *, batches: int, tokens: int, places: int
) -> tuple[float, list[int]]:
    """Between each batch's results in the schedule and by itself; and the number of passes after which each has ended.

    `plain` has one batch's rows. The block's state begins with anything, hidden states as not-a-number.
    """
    drawn = [
        [random_inputs(plain, "decode" if t else "prefill", 100 * b + t).args for t in range(tokens)]
        for b in range(batches)
    ]
    weights = random_inputs(plain, "prefill", 7).weights
    wanted = [alone(plain, weights, arguments) for arguments in drawn]
    state: dict[str, Array] = dict(random_inputs(diagonal, "decode", 8).state)
    names = {value.name for value in plain.state}
    state = {name: array if name in names else np.full_like(array, np.nan) for name, array in state.items()}
    starts = beginnings(batches, tokens, places)
    func = diagonal.func("decode")
    entering = diagonal.func("prefill_and_decode")
    own = [value.name for value in entering.params[1 : 1 + len(plain.func("prefill").params)]]
    worst, ends = 0.0, [0] * batches
    for p in range(starts[-1] + tokens):
        begins = [b for b in range(batches) if starts[b] == p]
        assert len(begins) <= 1
        staying = {b % places: b for b in range(batches) if starts[b] < p < starts[b] + tokens}
        args: dict[str, npt.ArrayLike] = {}
        for value in func.params:
            at = value.type.names.index("M")
            rows = random_inputs(diagonal, "decode", 9).args[value.name].copy()
            for place, b in staying.items():
                index = (*(slice(None),) * at, place)
                rows[index] = drawn[b][p - starts[b]][value.name]
            args[value.name] = rows
        if begins:
            args[entering.params[0].name] = np.int32(begins[0] % places)
            args |= dict(zip(own, drawn[begins[0]][0].values(), strict=True))
        results, state_after = call(diagonal, "prefill_and_decode" if begins else "decode", args, weights, state)
        state = dict(state_after)
        found = [(b, np.take(results[-1], place, axis=0)) for place, b in staying.items()]
        found += [(b, results[0]) for b in begins]
        for b, result in found:
            worst = max(worst, _difference(wanted[b][0][p - starts[b]], result))
            ends[b] = p + 1
    last = batches - 1
    for value in diagonal.state:
        if value.name in names:
            at = value.type.names.index("M")
            worst = max(worst, _difference(wanted[last][1][value.name], np.take(state[value.name], last % places, at)))
    return worst, ends


def _difference(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    difference = np.abs(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))
    assert not np.isnan(difference).any()
    return float(difference.max(initial=0.0))
