"""The nine shares of a policy by a linear program, for one size of batch and block or as a bound over many.

Busy seconds of every resource and bytes of every constraint are affine in the shares (Sheng et al. 2023, equation 1
and appendix A.3), so their coefficients are differences of prices: all on the device, and one thing elsewhere. The
time of a phase is at least what its busiest resource takes. Synchronisation, rounding and contention only add to that,
so the optimum bounds every policy from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from shardwright.cost.hardware.runtimes import Runtime
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

_GROUPS = ("weights", "cache", "hidden")


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


@dataclass(frozen=True)
class _Affine:
    """A constant, and a coefficient for host and disk share of weights, cache and hidden states."""

    constant: float
    coefficients: tuple[float, ...]


def best_shares(
    setting: OffloadSetting, blocks: Blocks, policy: Policy, latency: float | None = None
) -> RelaxedOptimum | None:
    """The shares with the least time for a sequence, or None where nothing fits.

    Of `policy` the compression and the place of attention are taken, and the shares that the runtime does not divide.
    Over a range of blocks memory is that of the smallest and time for a sequence that of the largest, which both only
    fall short of every block between.
    """
    from ortools.math_opt.python import mathopt

    least = replace(policy, gpu_batch=blocks.least[0], n_gpu_batches=blocks.least[1])
    most = replace(policy, gpu_batch=blocks.most[0], n_gpu_batches=blocks.most[1])
    model: Any = mathopt.Model(name="shares")
    shares = [[model.add_variable(lb=0.0, ub=1.0) for _ in range(3)] for _ in _GROUPS]
    for group in shares:
        model.add_linear_constraint(group[0] + group[1] + group[2] == 1.0)
    for name, group in zip(_GROUPS, shares, strict=True):
        if name not in setting.runtime.movable:
            own: Shares = getattr(policy, name)
            for share, value in zip(group, (own.device, own.host, own.disk), strict=True):
                model.add_linear_constraint(share == value)
    elsewhere = [share for group in shares for share in group[1:]]

    def total(affine: _Affine) -> Any:
        terms = zip(affine.coefficients, elsewhere, strict=True)
        return affine.constant + mathopt.fast_sum([value * share for value, share in terms])

    for name, affine in _memory(setting, least).items():
        # In units of the tier's capacity, so that the solver's tolerance is relative.
        limit = setting.limits[name.partition("_")[0]]
        if limit or any(affine.coefficients):
            unit = max(limit, 1.0)
            model.add_linear_constraint(total(affine) * (1 / unit) <= limit / unit)
    objective, busy = _seconds(model, setting, most, total)
    if latency is not None:
        longest, _ = _seconds(model, setting, least, total)
        model.add_linear_constraint(longest * (1 / latency) <= 1.0)
    # Of shares that take the same time those that keep everything else least busy: what waits at steps is faster so.
    model.minimize((objective + _TIE * busy) * (1 / most.block))
    result = mathopt.solve(model, mathopt.SolverType.GLOP)
    if result.termination.reason != mathopt.TerminationReason.OPTIMAL:
        return None
    values = result.variable_values()
    found = [Shares(*(min(1.0, max(0.0, values[share])) for share in group)) for group in shares]
    # None of the groups is busy longer than everything takes, so the ties' part is at most so much of the rest.
    seconds = result.objective_value() / (1 + _TIE * len(_serial(setting.runtime)))
    return RelaxedOptimum(seconds, *found)


def _seconds(model: Any, setting: OffloadSetting, policy: Policy, total: Any) -> tuple[Any, Any]:
    """A variable for each phase, at least as long as each of its resources is busy, and what all of these are busy.
    Groups of a pipeline are as many batches as each has at least, so that no block of fewer batches takes less time
    for a sequence."""
    groups = setting.groups(policy)
    loads = _loads(setting, replace(policy, n_gpu_batches=policy.n_gpu_batches // groups))
    longest, busy = 0.0, 0.0
    for load, times in zip(loads, setting.rounds(groups), strict=True):
        phase = model.add_variable(lb=0.0)
        for names in _serial(setting.runtime):
            seconds = total(_sum([load[name] for name in names]))
            model.add_linear_constraint(phase >= seconds)
            busy += seconds * times
        longest += phase * times
    return longest, busy


def _serial(runtime: Runtime) -> tuple[tuple[str, ...], ...]:
    """Groups of resources that are busy one after the other."""
    if not runtime.overlapped:
        return (("device", "host", "to_device", "from_device", "disk"),)
    return (("device", "host", "blocking"), ("to_device",), ("from_device",), ("disk",), ("relayed",))


def _loads(setting: OffloadSetting, policy: Policy) -> tuple[dict[str, _Affine], dict[str, _Affine]]:
    """Busy seconds of prefill and of decode. Raises where they are more than the solver can reckon with."""
    runtime = replace(setting.runtime, whole_tensors=False)
    rates = replace(setting.rates, disk_step_s=0.0)
    made = [busy_of(setting.stage, each, runtime, rates) for each in _corners(policy)]
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


def _memory(setting: OffloadSetting, policy: Policy) -> dict[str, _Affine]:
    """Bytes of the five constraints."""
    runtime = replace(setting.runtime, whole_tensors=False)
    made = [peaks_of(setting.stage, each, runtime) for each in _corners(policy)]
    return {item.name: _affine([getattr(peaks, item.name) for peaks in made]) for item in fields(Peaks)}


def _corners(policy: Policy) -> list[Policy]:
    """Everything on the device, and each thing on the host or the disk alone."""
    everything = replace(policy, weights=_ALL, cache=_ALL, hidden=_ALL)
    return [
        everything,
        *(replace(everything, **{group: elsewhere}) for group in _GROUPS for elsewhere in _ELSEWHERE),
    ]


def _affine(values: Sequence[float]) -> _Affine:
    return _Affine(values[0], tuple(value - values[0] for value in values[1:]))


def _sum(parts: Sequence[_Affine]) -> _Affine:
    coefficients = zip(*(part.coefficients for part in parts), strict=True)
    return _Affine(sum(part.constant for part in parts), tuple(map(sum, coefficients)))
