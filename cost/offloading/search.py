"""The policy with the highest predicted throughput, by branch and bound over batches and blocks.

Each node is a range of batches and of blocks; the linear program over its shares bounds it from below
(`cost.offloading.linear_program`). A single block's shares are rounded to whole percents, priced as they would be
realised, and improved by exchanges between tiers until none helps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, permutations, product
from math import ceil, floor, prod

from shardwright.cost.offloading.linear_program import Blocks, RelaxedOptimum, best_shares
from shardwright.cost.offloading.policy import TIERS, Formats, Policy, Shares
from shardwright.cost.offloading.pricing import OffloadSetting, PricedPolicy

GPU_BATCHES = (1, 2, 3, *range(4, 65, 4), *range(72, 129, 8), *range(144, 257, 16), *range(288, 513, 32))
"""Sequences of a batch; a multiple of 4 typically (Sheng et al. 2023, section 4.3)."""

BLOCKS = (*range(1, 21), 24, 28, 32, 40, 48, 64)
"""Batches of a block."""

_GAP = 0.005
_MOST_LEAVES = 20
_STEPS = (0.2, 0.05, 0.01)
_LOWERED, _MOST_LOWERED = 0.02, 200
_PROMISING = 1.15
"""A block is improved where its rounded shares come so near to the best so far."""
_BLOCK_STEPS = tuple((a, b) for a, b in product((-4, -1, 0, 1, 4), repeat=2) if (a, b) != (0, 0))
_TIERS = (Shares(1.0, 0.0, 0.0), Shares(0.0, 1.0, 0.0), Shares(0.0, 0.0, 1.0))
_WHOLE = _TIERS[0]


@dataclass(frozen=True)
class PolicySearchResult:
    """The best plan, and the throughput that no policy of the search space exceeds."""

    plan: PricedPolicy
    most_tokens_per_s: float


def search(
    setting: OffloadSetting,
    compressions: Sequence[Formats],
    latency: float | None = None,
    prompts: int | None = None,
) -> PolicySearchResult | None:
    """The plan with the most tokens a second, with blocks of at most `latency` seconds where that is given; None where
    nothing fits. `compressions` are the choices of how weights and cache are stored. Of so many `prompts` the last
    block takes as long as a full one; None is as many as one likes."""
    n_batches = BLOCKS if setting.runtime.blocks else BLOCKS[:1]
    tree = _Tree(setting, list(_kinds(setting, compressions)), latency, n_batches, prompts)
    for policy in tree.kinds:
        tree.add(policy, ((0, len(GPU_BATCHES) - 1), (0, len(n_batches) - 1)))
    return tree.explored()


def fastest(setting: OffloadSetting, compressions: Sequence[Formats]) -> PricedPolicy | None:
    """The block that takes the least time, one sequence; None where that does not fit."""
    return _fastest(setting, list(_kinds(setting, compressions)))


def _fastest(setting: OffloadSetting, kinds: Sequence[Policy]) -> PricedPolicy | None:
    fitting = [plans for plans in (block_plans(setting, policy) for policy in kinds) if plans]
    made = [improved(setting, min(plans, key=lambda plan: plan.seconds)) for plans in fitting]
    return min(made, key=lambda plan: plan.seconds, default=None)


def block_plans(setting: OffloadSetting, policy: Policy) -> list[PricedPolicy]:
    """The plans of a policy's block whose shares are those of the linear program, rounded so that they fit."""
    blocks = (policy.gpu_batch, policy.n_gpu_batches)
    relaxed = best_shares(setting, Blocks(blocks, blocks), policy)
    return _starts(setting, policy, relaxed) if relaxed is not None else []


def improved(setting: OffloadSetting, plan: PricedPolicy) -> PricedPolicy:
    """The plan after exchanges between tiers, each of which makes it faster, until none does."""
    best = plan
    for step in _STEPS:
        while (faster := _faster(setting, best, step)) is not None:
            best = faster
    return best


def _faster(setting: OffloadSetting, plan: PricedPolicy, step: float) -> PricedPolicy | None:
    """The first neighbour that is faster."""
    for policy in _neighbours(plan.policy, setting.runtime.movable, step):
        tried = _priced(setting, policy)
        if tried is not None and tried.seconds < plan.seconds * (1 - 1e-6):
            return tried
    return None


def fitting_shares(setting: OffloadSetting, policy: Policy) -> Policy | None:
    """The policy's batches with the shares of the linear program, rounded so that they fit; None where none do."""
    fitting = [plan for weights in _weights(setting) for plan in block_plans(setting, replace(policy, weights=weights))]
    best = max(fitting, key=lambda plan: plan.tokens_per_s, default=None)
    return best.policy if best else None


def _kinds(setting: OffloadSetting, compressions: Sequence[Formats]) -> Iterator[Policy]:
    """Where attention is computed, what is compressed, and where weights lie that are not divided."""
    for weights, cache in compressions:
        on_host = (False,) if cache else setting.attention_places
        for host, home in product(on_host, _weights(setting)):
            yield Policy(1, 1, home, _WHOLE, _WHOLE, weights, cache, host)


def _weights(setting: OffloadSetting) -> tuple[Shares, ...]:
    """The shares of weights to begin from, where a program does not divide them."""
    return _TIERS if setting.runtime.weights_together else _TIERS[:1]


def _starts(setting: OffloadSetting, policy: Policy, relaxed: RelaxedOptimum) -> list[PricedPolicy]:
    """The shares that the program's round to and that fit; where nothing does, for whole tensors may round far, what
    comes to fit as more and more goes a tier down."""
    rounded = list(_rounded(policy, relaxed, setting.runtime.movable))
    fitting = [plan for each in rounded if (plan := _priced(setting, each)) is not None]
    if fitting:
        return fitting
    lowered = next((lower for each in rounded if (lower := _lowered(setting, each)) is not None), None)
    return [setting.price(lowered)] if lowered is not None else []


def _lowered(setting: OffloadSetting, policy: Policy) -> Policy | None:
    """The policy with as much moved from exceeded tiers to the next ones as makes it fit, or None."""
    for _ in range(_MOST_LOWERED):
        over = setting.excess(policy)
        if not over:
            return policy
        if "disk" in over:
            return None
        tier = "device" if "device" in over else "host"
        group = next((name for name in setting.runtime.movable if getattr(getattr(policy, name), tier) > 0), None)
        if group is None:
            return None
        below = "host" if tier == "device" else "disk"
        policy = replace(policy, **{group: getattr(policy, group).moved(tier, below, _LOWERED)})
    return None


def _priced(setting: OffloadSetting, policy: Policy) -> PricedPolicy | None:
    """None where it does not fit."""
    return None if setting.excess(policy) else setting.price(policy)


_Range = tuple[int, int]


class _Tree:
    """Nodes by their bounds, the least first."""

    def __init__(
        self,
        setting: OffloadSetting,
        kinds: Sequence[Policy],
        latency: float | None,
        n_batches: Sequence[int],
        prompts: int | None,
    ) -> None:
        self.setting, self.kinds, self.latency, self.n_batches = setting, kinds, latency, n_batches
        self.prompts = prompts
        self.heap: list[tuple[float, int, Policy, tuple[_Range, _Range], RelaxedOptimum]] = []
        self.numbers = count()
        self.best: PricedPolicy | None = None

    @property
    def limit(self) -> float:
        """Seconds for a sequence that a node must be able to beat."""
        return self.each(self.best) * (1 - _GAP) if self.best else float("inf")

    def each(self, plan: PricedPolicy) -> float:
        """Seconds for a sequence, of all prompts in full blocks."""
        count = self.prompts or plan.policy.block
        return plan.seconds * ceil(count / plan.policy.block) / count

    def add(self, policy: Policy, ranges: tuple[_Range, _Range]) -> None:
        """A node, where anything in it fits and may be better than the best."""
        (first, last), (least, most) = ranges
        blocks = Blocks((GPU_BATCHES[first], self.n_batches[least]), (GPU_BATCHES[last], self.n_batches[most]))
        relaxed = best_shares(self.setting, blocks, policy, self.latency)
        if relaxed is None or (seconds := relaxed.seconds * self.surplus(prod(blocks.least))) >= self.limit:
            return
        heapq.heappush(self.heap, (seconds, next(self.numbers), policy, ranges, relaxed))

    def surplus(self, block: int) -> float:
        """How many sequences blocks of at least so many have for each prompt, at least: those of one block, where it is
        larger than all prompts together."""
        return max(1.0, block / (self.prompts or block))

    def explored(self) -> PolicySearchResult | None:
        leaves, bound = 0, float("inf")
        while self.heap:
            seconds, _, policy, ranges, relaxed = heapq.heappop(self.heap)
            if seconds >= self.limit or leaves >= _MOST_LEAVES:
                bound = seconds
                break
            (first, last), (least, most) = ranges
            if first == last and least == most:
                leaves += 1
                self._leaf(self._sized(policy, first, least), relaxed)
                continue
            self._try(policy, (first + last) // 2, (least + most) // 2)
            for half in _halves(ranges):
                self.add(policy, half)
        if self.latency is not None:
            # Waiting at steps, which bounds leave out, makes whole ranges too slow that are within the latency by them.
            least = _fastest(self.setting, self.kinds)
            if self.best is None and least is not None and least.seconds <= self.latency:
                self.best = least
        if self.best is None:
            return None
        self._descend()
        # What was left out was no better than the limit then, which is no better than the limit now.
        return PolicySearchResult(self.best, self.setting.sizes.generated / min(bound, self.limit))

    def _sized(self, policy: Policy, gpu_batch: int, n_gpu_batches: int) -> Policy:
        """The policy with the batches of these numbers."""
        return replace(policy, gpu_batch=GPU_BATCHES[gpu_batch], n_gpu_batches=self.n_batches[n_gpu_batches])

    def _try(self, policy: Policy, gpu_batch: int, n_gpu_batches: int) -> None:
        """One block as a leaf, its shares by a linear program of its own."""
        sized = self._sized(policy, gpu_batch, n_gpu_batches)
        blocks = (sized.gpu_batch, sized.n_gpu_batches)
        relaxed = best_shares(self.setting, Blocks(blocks, blocks), sized, self.latency)
        if relaxed is not None and relaxed.seconds * self.surplus(sized.block) < self.limit:
            self._leaf(sized, relaxed)

    def _descend(self) -> None:
        """The best block with attention and formats of every kind, and blocks near it, which the bounds of large ranges
        may have kept from being looked at in time."""
        before: PricedPolicy | None = None
        while self.best is not None and self.best is not before:
            before = self.best
            policy = before.policy
            at = GPU_BATCHES.index(policy.gpu_batch), self.n_batches.index(policy.n_gpu_batches)
            for kind in self.kinds:
                self._try(kind, *at)
            for step in _BLOCK_STEPS:
                near = at[0] + step[0], at[1] + step[1]
                if 0 <= near[0] < len(GPU_BATCHES) and 0 <= near[1] < len(self.n_batches):
                    self._try(policy, *near)

    def _leaf(self, policy: Policy, relaxed: RelaxedOptimum) -> None:
        """The block's shares from where the program's round to, and from those of the best so far, improved; it is the
        best where it is within the latency, which tells of blocks, for of one block the fastest shares are the best."""
        fitting = _starts(self.setting, policy, relaxed)
        if self.best is not None:
            own = self.best.policy
            weights = own.weights if "weights" in self.setting.runtime.movable else policy.weights
            shared = replace(policy, weights=weights, cache=own.cache, hidden=own.hidden)
            plan = _priced(self.setting, shared)
            fitting += [plan] if plan is not None else []
        if not fitting:
            return
        plan = min(fitting, key=lambda each: each.seconds)
        if self.best is not None and self.each(plan) > self.each(self.best) * _PROMISING:
            return
        if self.latency is not None and plan.seconds > self.latency * _PROMISING:
            return
        plan = improved(self.setting, plan)
        if self.latency is not None and plan.seconds > self.latency:
            return
        if self.best is None or self.each(plan) < self.each(self.best):
            self.best = plan


def _halves(ranges: tuple[_Range, _Range]) -> list[tuple[_Range, _Range]]:
    """Two halves along the side with more choices."""
    (first, last), (least, most) = ranges
    if last - first >= most - least:
        middle = (first + last) // 2
        return [((first, middle), (least, most)), ((middle + 1, last), (least, most))]
    middle = (least + most) // 2
    return [((first, last), (least, middle)), ((first, last), (middle + 1, most))]


def _rounded(policy: Policy, relaxed: RelaxedOptimum, movable: Sequence[str]) -> Iterator[Policy]:
    """The shares rounded to whole percents each way; what is cut off goes a tier down."""
    for shares in product(*(_roundings(getattr(relaxed, name)) for name in movable)):
        yield replace(policy, **dict(zip(movable, shares, strict=True)))


def _roundings(shares: Shares) -> list[Shares]:
    made: list[Shares] = []
    for device in {floor(100 * shares.device + 1e-6), ceil(100 * shares.device - 1e-6)}:
        # Nothing goes to the disk where the program wants nothing there.
        hosts = {floor(100 * shares.host + 1e-6), 100 - device} if shares.disk < 1e-6 else {
            floor(100 * shares.host + 1e-6), ceil(100 * shares.host - 1e-6)
        }  # fmt: skip
        made += [
            Shares(device / 100, host / 100, (100 - device - host) / 100) for host in hosts if device + host <= 100
        ]
    return made


def _neighbours(policy: Policy, movable: Sequence[str], step: float) -> Iterator[Policy]:
    """Exchanges of `step` of one thing between two tiers."""
    for group in movable:
        shares: Shares = getattr(policy, group)
        for source, target in permutations(TIERS, 2):
            if getattr(shares, source) > 0:
                yield replace(policy, **{group: shares.moved(source, target, step)})
