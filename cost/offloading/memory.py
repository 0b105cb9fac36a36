"""Peak bytes of device, host and disk under a policy: five constraints, device and host each in prefill and in decode.

Two slips of the paper's appendix A.3 are corrected. Its attention memory on the device in prefill carries the factor
`cg`, but prefill attends over the whole prompt on the device wherever the cache ends up. And its device memory in
decode holds hidden states of the whole prompt in flight, of which there is one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.cost.hardware.chips import Machine
from shardwright.cost.hardware.runtimes import Runtime
from shardwright.cost.offloading.placement import place
from shardwright.cost.offloading.policy import TIERS, Policy
from shardwright.cost.offloading.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Peaks:
    """Bytes at the peak of each constraint."""

    device_prefill: float
    device_decode: float
    host_prefill: float
    host_decode: float
    disk: float

    @property
    def device(self) -> float:
        return max(self.device_prefill, self.device_decode)

    @property
    def host(self) -> float:
        return max(self.host_prefill, self.host_decode)

    def as_json(self) -> dict[str, int]:
        return {tier: round(getattr(self, tier)) for tier in TIERS}


def capacities(machine: Machine) -> Mapping[str, float]:
    """Bytes of each tier of a machine."""
    disk = machine.disk.memory_bytes if machine.disk else 0.0
    return {"device": machine.chip.memory_bytes, "host": machine.host.memory_bytes, "disk": disk}


def peaks_of(sizes: Sizes, policy: Policy, runtime: Runtime) -> Peaks:
    """The peak bytes of a block on every tier, homes and working memory together."""
    parts = sizes.parts(tied=runtime.ties_tables)
    placed = [(place(part, policy.weights, runtime), n) for part, n in parts]
    device, host, disk = (sum(n * getattr(each, tier) for each, n in placed) for tier in TIERS)
    layer = [place(part, policy.weights, runtime) for part in (sizes.attention, sizes.feedforward)]
    fetched = runtime.weight_layers * sum(each.elsewhere for each in layer)
    staged = sum(each.disk for each in layer)
    made = sum(n * place(part.made, policy.weights, runtime).disk for part, n in parts)
    stored = made if runtime.weights_in_files else disk

    block, batch = policy.block, policy.gpu_batch
    each = sizes.cached_bytes
    cached = sizes.cache_elements * sizes.context  # elements of one sequence in one layer
    cache = block * sizes.layers * cached * each
    prompt, token = sizes.prompt * sizes.hidden_bytes, sizes.hidden_bytes
    hidden, on_host = policy.hidden, attends_on_host(policy, runtime)

    at_home = device + runtime.cache_copies * policy.cache.device * cache + runtime.reserve_bytes
    working = fetched + _unpacked(sizes)
    # The cache of two batches passes through the device where it computes attention over it.
    passing = 0.0 if on_host else 2 * batch * policy.cache.elsewhere * cached * each
    if sizes.cache_stored_bytes is not None:
        passing += batch * cached * sizes.cache_element_bytes
    in_flight = 2 * batch * hidden.elsewhere
    host_home = host + policy.cache.host * cache
    attention = batch * policy.cache.elsewhere * cached * runtime.host_copy_bytes if on_host else 0.0
    return Peaks(
        at_home + working + (hidden.device * block + in_flight) * prompt + batch * sizes.prefill_working,
        at_home + working + (hidden.device * block + in_flight) * token + batch * sizes.decode_working + passing,
        host_home + staged + (hidden.host * block + 2 * batch * hidden.disk) * prompt,
        host_home + staged + (hidden.host * block + 2 * batch * hidden.disk) * token + attention,
        stored + policy.cache.disk * cache + hidden.disk * block * prompt,
    )


def attends_on_host(policy: Policy, runtime: Runtime) -> bool:
    """True if the host computes attention over its part of the cache; a cache in few bits is attended on the device."""
    there = policy.cache.host == 1.0 if runtime.whole_caches else policy.cache.elsewhere > 0
    return policy.host_attention and True in runtime.attention_places and not policy.cache_format and there


def _unpacked(sizes: Sizes) -> float:
    """Weights brought from 8 or 4 bits to 16 lie on the device while a part uses them."""
    return max(part.bytes if part.made.tensors else 0.0 for part in (sizes.attention, sizes.feedforward))
