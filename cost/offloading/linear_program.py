"""The nine shares of a policy by a linear program, for one size of batch and block or as a bound over many.

Busy seconds of every resource and bytes of every constraint are affine in the shares (Sheng et al. 2023, equation 1
and appendix A.3), so their coefficients are differences of prices: all on the device, and one thing elsewhere. The
time of a phase is at least what its busiest resource takes. Synchronisation, rounding and contention only add to that,
so the optimum bounds every policy from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

import numpy as np

from shardwright.cost.hardware.runtimes import Runtime
from shardwright.cost.integer_program.highs import Floats, linear_minimum
from shardwright.cost.offloading.memory import Peaks, peaks_of
from shardwright.cost.offloading.policy import Policy, Shares
from shardwright.cost.offloading.pricing import OffloadSetting
from shardwright.cost.offloading.times import Load, busy_of
from shardwright.ir.diagnostics import NOWHERE, fault

_ALL = Shares(1.0, 0.0, 0.0)
_ELSEWHERE = (Shares(0.0, 1.0, 0.0), Shares(0.0, 0.0, 1.0))
_TIE = 1e-4
"""What a second of a resource that nothing waits for counts beside a second that everything takes."""

_FOR_EVER = 1e30
"""Seconds that no block takes on a machine that there could be."""

_COLUMNS = {"weights": (7, 1, 2), "cache": (8, 3, 4), "hidden": (9, 5, 6)}
"""Columns of the shares on device, host and disk. Column 0 is the constant, and behind these are seconds of prefill and
decode, those of the largest block and those of the smallest."""

_ONE = np.eye(14)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Batches from `least` to `most`, each (sequences of a batch, batches of a block); one block where they agree."""

    least: tuple[int, int]
    most: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RelaxedOptimum:
    """The optimum: seconds that no policy in these blocks gets below for one sequence, and the shares."""

    seconds: float
    weights: Shares
    cache: Shares
    hidden: Shares


def best_shares(
    setting: OffloadSetting, blocks: Blocks, policy: Policy, latency: float | None = None
) -> RelaxedOptimum | None:
    """The shares with the least time for a sequence, or None where nothing fits.

    Of `policy` the compression and the place of attention are taken, and the shares that the runtime does not divide.
    Over a range of blocks memory is that of the smallest and time for a sequence that of the largest, which both only
    fall short of every block between.
    """
    least = replace(policy, gpu_batch=blocks.least[0], n_gpu_batches=blocks.least[1])
    most = replace(policy, gpu_batch=blocks.most[0], n_gpu_batches=blocks.most[1])
    rows: list[tuple[Floats, float, float]] = []
    for name, columns in _COLUMNS.items():
        rows.append((_ONE[list(columns)].sum(axis=0), 1.0, 1.0))
        if name not in setting.runtime.movable:
            own = astuple(getattr(policy, name))
            rows += [(_ONE[column], share, share) for column, share in zip(columns, own, strict=True)]
    for name, nbytes in _memory(setting, least).items():
        # In units of the tier's capacity, so that the solver's tolerance is relative.
        limit = setting.limits[name.partition("_")[0]]
        if limit or nbytes[1:].any():
            unit = max(limit, 1.0)
            rows.append((nbytes / unit, -np.inf, limit / unit))
    objective, busy = _seconds(setting, most, _ONE[10:12], rows)
    if latency is not None:
        longest, _ = _seconds(setting, least, _ONE[12:], rows)
        rows.append((longest / latency, -np.inf, 1.0))
    # Of shares that take the same time those that keep everything else least busy: what waits at steps is faster so.
    costs = (objective + _TIE * busy) / most.block
    matrix, lowest, highest = (np.array(part) for part in zip(*rows, strict=True))
    upper = np.where(np.arange(1, len(costs)) < 10, 1.0, np.inf)
    constants = matrix[:, 0]
    values = linear_minimum(
        costs[1:], np.zeros_like(upper), upper, matrix[:, 1:], lowest - constants, highest - constants
    )
    if values is None:
        return None
    values = np.array([1.0, *values])
    found = [Shares(*np.clip(values[list(columns)], 0.0, 1.0).tolist()) for columns in _COLUMNS.values()]
    # None of the groups is busy longer than everything takes, so the ties' part is at most so much of the rest.
    seconds = float(costs @ values) / (1 + _TIE * len(_serial(setting.runtime)))
    return RelaxedOptimum(seconds, *found)


def _seconds(
    setting: OffloadSetting, policy: Policy, phases: Floats, rows: list[tuple[Floats, float, float]]
) -> tuple[Floats, Floats]:
    """The seconds of the phases, each at least as long as each of its resources is busy, which `rows` come to say, and
    what all of these are busy. Groups of a pipeline are as many batches as each has at least, so that no block of fewer
    batches takes less time for a sequence."""
    groups = setting.groups(policy)
    loads = _loads(setting, replace(policy, n_gpu_batches=policy.n_gpu_batches // groups))
    longest = busy = np.zeros(phases.shape[1])
    for load, times, phase in zip(loads, setting.rounds(groups), phases, strict=True):
        for names in _serial(setting.runtime):
            seconds = np.sum([load[name] for name in names], axis=0)
            rows.append((seconds - phase, -np.inf, 0.0))
            busy = busy + seconds * times
        longest = longest + phase * times
    return longest, busy


def _serial(runtime: Runtime) -> tuple[tuple[str, ...], ...]:
    """Groups of resources that are busy one after the other."""
    if not runtime.overlapped:
        return (("device", "host", "to_device", "from_device", "disk"),)
    return (("device", "host", "blocking"), ("to_device",), ("from_device",), ("disk",), ("relayed",))


def _loads(setting: OffloadSetting, policy: Policy) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Busy seconds of prefill and of decode. Raises where they are more than the solver can reckon with."""
    runtime = replace(setting.runtime, whole_tensors=False)
    rates = replace(setting.rates, disk_step_s=0.0)
    made = [busy_of(setting.stage_of(each), each, runtime, rates) for each in _corners(policy)]
    names = [item.name for item in fields(Load)]
    if any(not getattr(load, name) < _FOR_EVER for busy in made for load in busy for name in names):
        raise fault(
            "bad-rate",
            f"at the rates of {setting.machine.name} and {setting.runtime.name} a block takes {_FOR_EVER:g} s or more",
            NOWHERE,
            "rates are bytes and operations a second; one of them is far too low",
        )
    prefill, decode = (
        {name: _affine([getattr(busy[phase], name) for busy in made]) for name in names} for phase in range(2)
    )
    return prefill, decode


def _memory(setting: OffloadSetting, policy: Policy) -> dict[str, Floats]:
    """Bytes of the five constraints."""
    runtime = replace(setting.runtime, whole_tensors=False)
    made = [peaks_of(setting.stage_of(each), each, runtime) for each in _corners(policy)]
    return {item.name: _affine([getattr(peaks, item.name) for peaks in made]) for item in fields(Peaks)}


def _corners(policy: Policy) -> list[Policy]:
    """Everything on the device, and each thing on the host or the disk alone."""
    everything = replace(policy, weights=_ALL, cache=_ALL, hidden=_ALL)
    return [
        everything,
        *(replace(everything, **{group: elsewhere}) for group in _COLUMNS for elsewhere in _ELSEWHERE),
    ]


def _affine(values: Sequence[float]) -> Floats:
    """A row: the constant, and the coefficients of what lies elsewhere."""
    row = np.zeros(len(_ONE))
    row[: len(values)] = values
    row[1 : len(values)] -= values[0]
    return row
