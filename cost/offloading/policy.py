"""A policy: batches, where weights, KV cache and hidden states lie, and what is kept in few bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.types import DType, StoredFormat

TIERS = ("device", "host", "disk")
AttentionPlace = Literal["device", "host"]
Formats = tuple[StoredFormat | None, StoredFormat | None]
"""In what weights and cache are stored, None as they are."""
_ORDER = "gbs,ngb,wg,wc,cg,cc,hg,hc"
POLICY_KEYS = ("gpu_batch", "n_gpu_batches", "wg", "wc", "cg", "cc", "hg", "hc")


@dataclass(frozen=True, slots=True)
class Shares:
    """How much of something lies on each tier: shares of it, which add up to 1, or bytes."""

    device: float
    host: float
    disk: float

    @property
    def elsewhere(self) -> float:
        """The share that is not on the device."""
        return self.host + self.disk

    def moved(self, source: str, target: str, most: float) -> Shares:
        """With at most so much of it moved from one tier to another."""
        parts = {"device": self.device, "host": self.host, "disk": self.disk}
        moved = min(most, parts[source])
        parts[source], parts[target] = round(parts[source] - moved, 6), round(parts[target] + moved, 6)
        return Shares(**parts)


@dataclass(frozen=True, slots=True)
class Policy:
    """`n_gpu_batches` batches of `gpu_batch` sequences make a block, through which each layer's weights are used
    (Sheng et al. 2023, section 4.2). `host_attention` has the host compute attention, in decode, over the part of the
    cache that is not on the device. `weight_format` and `cache_format` say in what matrices and cache are stored, None
    as they are."""

    gpu_batch: int
    n_gpu_batches: int
    weights: Shares
    cache: Shares
    hidden: Shares
    weight_format: StoredFormat | None = None
    cache_format: StoredFormat | None = None
    host_attention: bool = True

    @property
    def block(self) -> int:
        """Sequences in a block."""
        return self.gpu_batch * self.n_gpu_batches

    @property
    def formats(self) -> Formats:
        """In what weights and cache are stored."""
        return self.weight_format, self.cache_format

    def stored_in(self, formats: Formats) -> Policy:
        """The policy with these formats, and its own where none is said."""
        weights, cache = formats
        return replace(self, weight_format=weights or self.weight_format, cache_format=cache or self.cache_format)

    @property
    def named_formats(self) -> dict[str, StoredFormat]:
        """In what weights and cache are stored, of those that are not as they are."""
        named = zip(("weights", "cache"), self.formats, strict=True)
        return {what: stored for what, stored in named if stored is not None}

    @property
    def bits(self) -> dict[str, int]:
        """The bits of a number of what is stored in few."""
        return {what: DType(stored).bits for what, stored in self.named_formats.items()}

    def as_json(self) -> dict[str, float | int]:
        """The keys of the contract; shares in percent."""
        made: dict[str, float | int] = {"gpu_batch": self.gpu_batch, "n_gpu_batches": self.n_gpu_batches}
        for letter, shares in (("w", self.weights), ("c", self.cache), ("h", self.hidden)):
            for tier, share in zip("gcd", (shares.device, shares.host, shares.disk), strict=True):
                made[letter + tier] = _percent(share)
        return made

    @property
    def attention(self) -> AttentionPlace:
        """The place where a run computes decode's attention: the host over a cache that lies there whole, as it is."""
        there = self.host_attention and self.cache.host == 1.0 and not self.cache_format
        return "host" if there else "device"

    @property
    def numbers(self) -> str:
        """`48,3,20,80,0,100,0,100`, which `parse_policy` reads."""
        return _numbers(self.as_json())

    def __str__(self) -> str:
        """`48 x 3, 20, 80, 0, 100, 0, 100`, as the paper writes it."""
        percent = self.as_json()
        return f"{self.gpu_batch} x {self.n_gpu_batches}, " + ", ".join(
            f"{percent[key]:g}" for key in ("wg", "wc", "cg", "cc", "hg", "hc")
        )


def shares(device_percent: float, host_percent: float) -> Shares:
    """The shares of percentages; the rest is on disk."""
    return Shares(device_percent / 100, host_percent / 100, max(0.0, 100 - device_percent - host_percent) / 100)


def parse_policy(text: str) -> Policy:
    """`48,3,20,80,0,100,0,100`: batch of the device, batches in a block, and percent on device and host of weights,
    cache and hidden states; the rest is on disk. Raises where that is not what the text says, or it does not add up.
    """
    words = [word.strip() for word in text.split(",")]
    if len(words) == 1:
        raise _bad(f"{text!r} is neither a policy, which has 8 numbers, {_ORDER}, nor a file with one")
    if len(words) != 8:
        raise _bad(f"a policy has 8 numbers, {_ORDER}; {text!r} has {len(words)}")
    numbers: list[float] = []
    for word in words:
        try:
            number = float(word)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise _bad(f"{word!r} in the policy {text} is not a number")
        numbers.append(number)
    batches, percents = numbers[:2], numbers[2:]
    if any(number < 1 or number != int(number) or number > 10**6 for number in batches):
        raise _bad(f"the policy {text} begins with two whole numbers from 1 up, the batch and how many make a block")
    if any(not 0 <= percent <= 100 for percent in percents):
        raise _bad(f"the shares of the policy {text} are percentages, from 0 to 100")
    for what, (device, host) in zip(("weights", "cache", "hidden states"), _pairs(percents), strict=True):
        if device + host > 100 + 1e-9:
            raise _bad(
                f"the policy {text} places {device + host:g} % of the {what}: {device:g} on the device, {host:g} on"
                " the host",
                "device and host together are at most 100; the rest is on disk",
            )
    weights, cache, hidden = (shares(device, host) for device, host in _pairs(percents))
    return Policy(int(batches[0]), int(batches[1]), weights, cache, hidden)


def policy_of_json(values: Mapping[str, float]) -> Policy:
    """The policy that `Policy.as_json` wrote."""
    missing = [key for key in POLICY_KEYS if key not in values]
    if missing:
        raise _bad(f"the policy lacks {', '.join(missing)}")
    return parse_policy(_numbers(values))


def _numbers(values: Mapping[str, float]) -> str:
    return ",".join(f"{values[key]:.12g}" for key in POLICY_KEYS)


def _pairs(percents: list[float]) -> list[tuple[float, float]]:
    return [(percents[at], percents[at + 1]) for at in range(0, 6, 2)]


def _percent(share: float) -> float:
    value = round(100 * share, 6)
    return int(value) if value == int(value) else value


def _bad(message: str, *notes: str) -> DiagnosticError:
    return fault("bad-policy", message, NOWHERE, *(notes or (f"the order is {_ORDER}, as in 48,3,20,80,0,100,0,100",)))
