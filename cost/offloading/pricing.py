"""A policy's price on a machine under a runtime: seconds, peak bytes, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from shardwright.cost.chips import Machine
from shardwright.cost.offloading.memory import Peaks, capacities, excess, peaks_of
from shardwright.cost.offloading.policy import Policy
from shardwright.cost.offloading.runtimes import Rates, Runtime, rates_of
from shardwright.cost.offloading.sizes import Sizes
from shardwright.cost.offloading.times import Times, times_of


@dataclass(frozen=True)
class Plan:
    """A policy with what it costs. `prefill_s` and `decode_s` are of one block."""

    policy: Policy
    times: Times
    peaks: Peaks
    prefill_s: float
    decode_s: float

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def tokens_per_s(self) -> float:
        return self.times.tokens / self.seconds


@dataclass(frozen=True)
class Setting:
    """A model at a length, a machine, and a runtime.

    With `devices` above 1 the layers are divided into so many stages of a pipeline, each on such a machine (Sheng et
    al. 2023, section 4.4): prefill fills and drains the pipeline with the batches of a block, and a step of decode
    takes a stage's time for as many batches as there are stages where the block has fewer.
    """

    sizes: Sizes
    machine: Machine
    runtime: Runtime
    page_cache: bool = True
    devices: int = 1
    dtype: str = "f16"

    @cached_property
    def rates(self) -> Rates:
        return rates_of(self.machine, self.runtime, page_cache=self.page_cache, dtype=self.dtype)

    @cached_property
    def limits(self) -> dict[str, float]:
        """Bytes of each tier."""
        return dict(capacities(self.machine))

    @cached_property
    def stage(self) -> Sizes:
        """What one machine holds: its layers, and both tables, of which the first and the last machine have one."""
        return replace(self.sizes, layers=-(-self.sizes.layers // self.devices))

    def price(self, policy: Policy) -> Plan:
        """What the policy costs, whether it fits or not."""
        times = times_of(self.stage, policy, self.runtime, self.rates)
        filling, waiting = self.pipeline(policy.n_gpu_batches)
        return Plan(policy, times, self.peaks(policy), times.prefill.seconds * filling, times.decode.seconds * waiting)

    def peaks(self, policy: Policy) -> Peaks:
        return peaks_of(self.stage, policy, self.runtime)

    def excess(self, policy: Policy) -> dict[str, float]:
        """By how many bytes each tier is exceeded; empty where the policy fits."""
        return excess(self.peaks(policy), self.limits)

    def pipeline(self, n_gpu_batches: int) -> tuple[float, float]:
        """Of one stage's time for a block: how often prefill takes it, and decode."""
        return (n_gpu_batches + self.devices - 1) / n_gpu_batches, max(n_gpu_batches, self.devices) / n_gpu_batches
