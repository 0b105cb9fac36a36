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
    al. 2023, section 4.4), and the batches of a block into as many groups, as far as there are batches. A stage takes
    one group after the other through its layers, and loads their weights for each: prefill fills and drains the
    pipeline with the groups, and a token takes as many rounds as there are stages. What is sent between machines is not
    priced.
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
        """The part that one machine holds: its layers, and both tables, of which the first and the last machine have
        one."""
        return replace(self.sizes, layers=-(-self.sizes.layers // self.devices))

    def price(self, policy: Policy) -> Plan:
        """The price of the policy, whether it fits or not."""
        groups = self.groups(policy)
        group = replace(policy, n_gpu_batches=-(-policy.n_gpu_batches // groups))
        times = times_of(self.stage, group, self.runtime, self.rates)
        times = replace(times, tokens=policy.block * self.sizes.generated)
        filling, waiting = self.rounds(groups)
        return Plan(policy, times, self.peaks(policy), times.prefill.seconds * filling, times.decode.seconds * waiting)

    def peaks(self, policy: Policy) -> Peaks:
        return peaks_of(self.stage, policy, self.runtime)

    def excess(self, policy: Policy) -> dict[str, float]:
        """By how many bytes each tier is exceeded; empty where the policy fits."""
        return excess(self.peaks(policy), self.limits)

    def groups(self, policy: Policy) -> int:
        """Into how many groups the batches of a block are divided."""
        return min(self.devices, policy.n_gpu_batches)

    def rounds(self, groups: int) -> tuple[int, int]:
        """How often prefill, and a token of decode, takes a stage's time for one group."""
        return groups + self.devices - 1, self.devices
