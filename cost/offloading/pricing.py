"""A policy's price on a machine under a runtime: seconds, peak bytes, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardwright.cost.hardware.chips import Machine
from shardwright.cost.hardware.runtimes import Runtime, RuntimeRates, rates_of
from shardwright.cost.offloading.formats import AS_THEY_ARE, in_groups
from shardwright.cost.offloading.memory import Peaks, attends_on_host, capacities, peaks_of
from shardwright.cost.offloading.policy import TIERS, AttentionPlace, Formats, Policy
from shardwright.cost.offloading.sizes import Sizes
from shardwright.cost.offloading.times import BlockTimes, times_of
from shardwright.ir.mesh import ONE_CHIP, Mesh
from shardwright.ir.text.table import bytes_text, text_table


@dataclass(frozen=True)
class PricedPolicy:
    """A policy with what it costs in a setting. `prefill_s` and `decode_s` are of one block."""

    setting: OffloadSetting
    policy: Policy
    times: BlockTimes
    peaks: Peaks
    prefill_s: float
    decode_s: float

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def tokens_per_s(self) -> float:
        return self.times.tokens / self.seconds

    @property
    def host_attention(self) -> bool:
        return attends_on_host(self.policy, self.setting.runtime)

    def as_json(self) -> dict[str, Any]:
        """The keys of `offload --plan-only --json`."""
        setting, bits = self.setting, self.policy.bits
        return {
            "policy": self.policy.as_json(),
            "tokens_per_s": self.tokens_per_s,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "peak_bytes": self.peaks.as_json(),
            "bound_by": self.times.bound_by,
            "capacity_bytes": {tier: round(nbytes) for tier, nbytes in setting.limits.items()},
            "runtime": setting.runtime.name,
            "machine": setting.machine.name,
            "gpus": setting.devices,
            **({"mesh": dict(setting.mesh)} if setting.mesh else {}),
            "compressed": {what: what in bits for what in ("weights", "cache")},
            "bits": bits,
            "formats": self.policy.named_formats,
            "host_attention": self.host_attention,
        }

    def text(self, model: str, most_tokens_per_s: float | None) -> str:
        """The plan for people, of a model of this name; where it was searched, with what no policy exceeds."""
        policy, setting, sizes, most = self.policy, self.setting, self.setting.sizes, most_tokens_per_s
        rows = [
            (tier, *(f"{100 * getattr(shares, tier):g} %" for shares in (policy.weights, policy.cache, policy.hidden)),
             bytes_text(getattr(self.peaks, tier)), bytes_text(setting.limits[tier]))
            for tier in TIERS
        ]  # fmt: skip
        where = "host" if self.host_attention else "device"
        stored = ", ".join(f"{what} in {name}" for what, name in policy.named_formats.items())
        gpus = "" if setting.devices == 1 else f", {setting.devices} in a pipeline"
        gpus += f", each a chip of the mesh {setting.mesh}" if setting.mesh else ""
        return "\n".join(
            [
                f"{model} on {setting.machine.name}{gpus}, {sizes.prompt} tokens in and {sizes.generated} out,"
                f" runtime {setting.runtime.name}",
                "",
                f"batch            {policy.gpu_batch}, {policy.n_gpu_batches} in a block of {policy.block} sequences",
                *([f"stored           {stored}"] if stored else []),
                f"attention        on the {where} over what of the cache is not on the device",
                "",
                *text_table(("", "weights", "cache", "hidden", "peak", "capacity"), rows, "lrrrrr"),
                "",
                f"throughput       {self.tokens_per_s:.4g} token/s"
                + (f"; no policy here gives more than {most:.4g}" if most is not None else ""),
                f"block            {self.seconds:.4g} s: prefill {self.prefill_s:.4g} s, decode {self.decode_s:.4g} s",
                f"bound by         {self.times.bound_by}",
            ]
        )


@dataclass(frozen=True)
class OffloadSetting:
    """A model at a length, a machine, and a runtime.

    With `devices` above 1 the layers are divided into so many stages of a pipeline, each on such a machine (Sheng et
    al. 2023, section 4.4), and the batches of a block into as many groups, as far as there are batches. A stage takes
    one group after the other through its layers, and loads their weights for each: prefill fills and drains the
    pipeline with the groups, and a token takes as many rounds as there are stages. On a `mesh` the sizes are those of
    one chip, which has such a machine to itself. What is sent between machines is not priced. Decode's `attention` over
    a cache that is not on the device is computed there, or, where None, where that takes less time. `packed` are the
    sizes of the whole model with weights and cache in few bits: None where they are in groups.
    """

    sizes: Sizes
    machine: Machine
    runtime: Runtime
    page_cache: bool = True
    devices: int = 1
    dtype: str = "f16"
    mesh: Mesh = ONE_CHIP
    attention: AttentionPlace | None = None
    packed: Callable[[Formats], Sizes] | None = field(default=None, compare=False, repr=False)

    @property
    def attention_places(self) -> tuple[bool, ...]:
        """The choices of whether the host computes attention: where it is asked for, else the runtime's."""
        return self.runtime.attention_places if self.attention is None else (self.attention == "host",)

    @cached_property
    def rates(self) -> RuntimeRates:
        return rates_of(self.machine, self.runtime, page_cache=self.page_cache, dtype=self.dtype)

    @cached_property
    def limits(self) -> dict[str, float]:
        """Bytes of each tier."""
        return dict(capacities(self.machine))

    @cached_property
    def stage(self) -> Sizes:
        """The part that one machine holds: its layers, and both tables, of which the first and the last machine have
        one."""
        return replace(self.sizes, layers=-(-self.sizes.layers // self.devices))

    @cached_property
    def _stages(self) -> dict[Formats, Sizes]:
        return {AS_THEY_ARE: self.stage}

    def stage_of(self, policy: Policy) -> Sizes:
        """The stage with weights and cache stored as the policy has them."""
        if policy.formats not in self._stages:
            formats = policy.formats
            whole = in_groups(self.sizes, formats) if self.packed is None else self.packed(formats)
            self._stages[formats] = replace(whole, layers=self.stage.layers)
        return self._stages[policy.formats]

    def price(self, policy: Policy) -> PricedPolicy:
        """The price of the policy, whether it fits or not."""
        groups = self.groups(policy)
        group = replace(policy, n_gpu_batches=-(-policy.n_gpu_batches // groups))
        times = times_of(self.stage_of(policy), group, self.runtime, self.rates)
        times = replace(times, tokens=policy.block * self.sizes.generated)
        filling, waiting = self.rounds(groups)
        seconds = times.prefill.seconds * filling, times.decode.seconds * waiting
        return PricedPolicy(self, policy, times, self.peaks(policy), *seconds)

    def peaks(self, policy: Policy) -> Peaks:
        return peaks_of(self.stage_of(policy), policy, self.runtime)

    def excess(self, policy: Policy) -> dict[str, float]:
        """By how many bytes each tier is exceeded; empty where the policy fits."""
        peaks, limits = self.peaks(policy), self.limits
        over = {tier: getattr(peaks, tier) - limits[tier] for tier in TIERS}
        return {tier: nbytes for tier, nbytes in over.items() if nbytes > 0}

    def groups(self, policy: Policy) -> int:
        """Into how many groups the batches of a block are divided."""
        return min(self.devices, policy.n_gpu_batches)

    def rounds(self, groups: int) -> tuple[int, int]:
        """How often prefill, and a token of decode, takes a stage's time for one group."""
        return groups + self.devices - 1, self.devices
