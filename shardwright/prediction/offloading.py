"""Policies for a model on a machine: the best one, or the price of a given one, from the model's own program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from shardwright.cost.hardware.chips import Machine
from shardwright.cost.hardware.runtimes import Runtime, measured_on
from shardwright.cost.offloading.formats import AS_THEY_ARE
from shardwright.cost.offloading.policy import TIERS, AttentionPlace, Formats, Policy, shares
from shardwright.cost.offloading.pricing import OffloadSetting, PricedPolicy
from shardwright.cost.offloading.search import PolicySearchResult, fastest, fitting_shares, search
from shardwright.cost.offloading.sizes import Sizes, sizes_of
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import ONE_CHIP, Mesh
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.models.description import Model
from shardwright.models.forward import ProgramRequest, model_text
from shardwright.prediction.models import check_generation

_BETWEEN = 1.5
"""Ratio of the bounds on the time of a block along a frontier."""

_IN = {"device": "on the device", "host": "in the host's memory", "disk": "on disk"}


def model_sizes(
    model: Model,
    prompt: int,
    generated: int,
    dtype: DType = DType.F16,
    mesh: Mesh = ONE_CHIP,
    layout: str = "ws1d",
) -> Sizes:
    """The sizes of a model's program in `dtype`, read from its types, on a mesh those of one chip.

    Raises where the model has a table of fewer positions than prompt and generation take together.
    """
    check_generation(model, prompt, generated)
    return _sizes_in(model, prompt, generated, dtype, mesh, layout, AS_THEY_ARE)


@lru_cache(maxsize=256)
def _sizes_in(
    model: Model, prompt: int, generated: int, dtype: DType, mesh: Mesh, layout: str, formats: Formats
) -> Sizes:
    """The sizes of a model's program with weights and cache in these formats."""
    from shardwright.passes.pipelines import EXPLICIT, passes_for_weights, run_passes

    weights, cache = formats
    context = model.cache_for(prompt, generated)
    request = ProgramRequest(layout, mesh, 1, prompt, dtype, None, context, decomposed=True, cache_format=cache)
    program = elaborate(parse(Source("<model>", model_text(model, request)[0])))
    return sizes_of(run_passes(program, [*passes_for_weights(weights), *EXPLICIT]), prompt, generated)


def setting_of(
    model: Model,
    machine: Machine,
    runtime: Runtime,
    prompt: int,
    generated: int,
    *,
    page_cache: bool = True,
    devices: int = 1,
    dtype: DType = DType.F16,
    mesh: Mesh = ONE_CHIP,
    layout: str = "ws1d",
    attention: AttentionPlace | None = None,
) -> OffloadSetting:
    """The setting that a policy is priced for. Raises where the model has fewer layers than there are devices."""
    sizes = model_sizes(model, prompt, generated, dtype, mesh, layout)
    if devices > sizes.layers:
        raise fault("too-many-stages", f"{sizes.layers} layers cannot be divided into {devices} stages of a pipeline")
    packed = partial(_sizes_in, model, prompt, generated, dtype, mesh, layout)
    return OffloadSetting(
        sizes, machine, measured_on(runtime, machine), page_cache, devices, str(dtype), mesh, attention,
        packed if runtime.quantizes == "text" else None,
    )  # fmt: skip


def best_plan(
    setting: OffloadSetting,
    *,
    compress: bool = False,
    formats: Formats = AS_THEY_ARE,
    latency: float | None = None,
    prompts: int | None = None,
) -> PolicySearchResult:
    """The policy with the most tokens a second for so many `prompts`, None for as many as one likes, its block within
    `latency` seconds where that is given. With `compress` the cache is in 4 bits, and the weights where the runtime has
    them so, or where that is faster; else both are as `formats` says.

    Raises where nothing fits, with the tier, by how much, and what would make it fit.
    """
    choices = _compressions(setting, compress, formats)
    found = search(setting, choices, latency, prompts)
    if found is None:
        raise _nothing_fits(setting, choices, latency)
    return found


def priced(setting: OffloadSetting, policy: Policy, *, compress: bool = False) -> PricedPolicy:
    """The price of a policy. With `compress` the cache is in 4 bits, and the weights where the runtime has them so,
    where that is faster, or where they would not fit otherwise; else a policy is kept as it says.

    Raises where the policy does not fit, with every tier that is exceeded.
    """
    return best_priced(setting, (policy,), compress=compress)


def best_priced(setting: OffloadSetting, policies: Sequence[Policy], *, compress: bool = False) -> PricedPolicy:
    """The best price of policies that differ in where attention is computed, as `priced` has them. Raises where none
    fits."""
    _check_behaviour(setting.runtime, policies[0])
    kinds = [kind for policy in policies for kind in _in_formats(setting, policy, compress)]
    fitting = [kind for kind in kinds if not setting.excess(kind)]
    if not fitting:
        raise _does_not_fit(setting, _in_formats(setting, policies[0], compress)[-1], compress)
    return max((setting.price(kind) for kind in fitting), key=lambda plan: plan.tokens_per_s)


def _in_formats(setting: OffloadSetting, policy: Policy, compress: bool) -> list[Policy]:
    """The policy with each choice of what is quantized."""
    if policy.bits and not compress:
        _check_quantizes(setting.runtime)
        return [policy]
    chosen = _compressions(setting, compress)
    return [replace(policy, weight_format=weights, cache_format=cache) for weights, cache in chosen]


def frontier(
    setting: OffloadSetting, *, compress: bool = False, formats: Formats = AS_THEY_ARE, points: int = 8
) -> list[PricedPolicy]:
    """Plans none of which another beats in both throughput and the time of a block, the fastest block first.

    Each is the best within a bound, from that of the best throughput down by equal ratios, until there are so many
    `points`; the last is the block that takes the least time.
    """
    compressions = _compressions(setting, compress, formats)
    best, least = search(setting, compressions), fastest(setting, compressions)
    if best is None or least is None:
        raise _nothing_fits(setting, compressions, None)
    made: list[PricedPolicy] = [best.plan]
    while len(made) < points - 1 and made[-1].seconds / _BETWEEN > least.seconds:
        found: PolicySearchResult | None = search(setting, compressions, made[-1].seconds / _BETWEEN)
        if found is None:
            break
        made.append(found.plan)
    if least.policy != made[-1].policy:
        made.append(least)
    return [
        plan
        for plan in reversed(made)
        if not any(
            other.seconds <= plan.seconds and other.tokens_per_s > plan.tokens_per_s * (1 + 1e-9) for other in made
        )
    ]


def _compressions(setting: OffloadSetting, compress: bool, formats: Formats = AS_THEY_ARE) -> Sequence[Formats]:
    if not compress and formats == AS_THEY_ARE:
        return (AS_THEY_ARE,)
    _check_quantizes(setting.runtime)
    if not compress:
        return (formats,)
    both: Formats = "int4", "int4"
    return (both,) if setting.runtime.quantizes_both else ((None, "int4"), both)


def _check_quantizes(runtime: Runtime) -> None:
    if not runtime.can_quantize:
        raise fault(
            "no-compression",
            f"{runtime.name} keeps nothing in 4 bits, or 8",
            NOWHERE,
            "leave --compress, --weights and --cache-format out, or give --runtime flexgen or ours",
        )


def _check_behaviour(runtime: Runtime, policy: Policy) -> None:
    """Raises where the runtime cannot do what the policy says."""
    if not runtime.blocks and policy.n_gpu_batches > 1:
        raise fault(
            "bad-policy",
            f"{runtime.name} goes through the layers with one batch at a time, and the policy has"
            f" {policy.n_gpu_batches}",
            NOWHERE,
            "give 1 for the batches in a block",
        )
    if not runtime.offloads_cache and (policy.cache.elsewhere or policy.hidden.elsewhere):
        raise fault(
            "bad-policy",
            f"{runtime.name} keeps cache and hidden states on the device, and {policy} places some elsewhere",
            NOWHERE,
            "give 100 percent of both to the device",
        )


# ---------------------------------------------------------------- what does not fit


def _does_not_fit(setting: OffloadSetting, policy: Policy, compress: bool) -> DiagnosticError:
    peaks, over = setting.peaks(policy), setting.excess(policy)
    needs = [
        f"{_gib(getattr(peaks, tier))} {_IN[tier]}, {_gib(over[tier])} more than {setting.machine.name} has"
        for tier in TIERS
        if tier in over
    ]
    way_out = next(_alternatives(setting, policy, compress), None)
    return fault(
        "does-not-fit",
        f"the policy {policy} needs {'; and '.join(needs)}",
        NOWHERE,
        way_out or "no batch and no shares make it fit",
    )


def _alternatives(setting: OffloadSetting, policy: Policy, compress: bool) -> Iterator[str]:
    """Changes of the policy that would make it fit, the smallest first."""
    for batches in range(policy.n_gpu_batches - 1, 0, -1):
        if not setting.excess(replace(policy, n_gpu_batches=batches)):
            yield f"with {batches} batches in a block it fits" if batches > 1 else "with 1 batch in a block it fits"
            break
    for batch in range(policy.gpu_batch - 1, 0, -1):
        if not setting.excess(replace(policy, gpu_batch=batch)):
            yield f"with batches of {batch} it fits"
            break
    if not (compress or policy.weight_format) and setting.runtime.can_quantize:
        packed = replace(policy, weight_format="int4", cache_format="int4")
        if not setting.excess(packed):
            yield "with --compress 4bit it fits"
    for batches in dict.fromkeys(((policy.gpu_batch, policy.n_gpu_batches), (policy.gpu_batch, 1), (1, 1))):
        smaller = replace(policy, gpu_batch=batches[0], n_gpu_batches=batches[1])
        moved = fitting_shares(setting, smaller)
        if moved is not None:
            yield f"with the policy {moved} it fits"
            return


def _nothing_fits(setting: OffloadSetting, choices: Sequence[Formats], latency: float | None) -> DiagnosticError:
    if latency is not None:
        return _too_slow(setting, choices, latency)
    lowest = shares(0, 0) if setting.machine.disk is not None else shares(0, 100)
    rest = lowest if setting.runtime.offloads_cache else shares(100, 0)
    smallest = Policy(1, 1, lowest, rest, rest, *choices[-1])
    over, limits = setting.excess(smallest), setting.limits
    needs = [
        f"{_gib(limits[tier] + nbytes)} {_IN[tier]}, {_gib(nbytes)} more than {setting.machine.name} has"
        for tier, nbytes in over.items()
    ]
    as_they_are = choices[-1] == AS_THEY_ARE
    return fault(
        "does-not-fit",
        f"nothing fits: with one sequence, and everything as low as it goes, it still takes {'; and '.join(needs)}",
        NOWHERE,
        *(["--compress 4bit takes less than a third"] if as_they_are and setting.runtime.can_quantize else []),
        *(["shorter prompts (of a plan --prompt-len) take less of the device"] if "device" in over else []),
        "--gpus N divides the layers over machines",
    )


def _too_slow(setting: OffloadSetting, choices: Sequence[Formats], latency: float) -> DiagnosticError:
    best = fastest(setting, choices)
    if best is None:
        return _nothing_fits(setting, choices, None)
    return fault(
        "too-slow",
        f"no block takes {latency:g} s or less",
        NOWHERE,
        f"the fastest takes about {best.seconds:.3g} s: --latency {best.seconds * 1.02:.3g}",
    )


def _gib(nbytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size / 10:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} B"
