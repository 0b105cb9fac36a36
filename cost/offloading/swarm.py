"""Seconds of generation over a swarm of servers, as in Petals: each holds some layers in int8, clients send requests
through all of them.

A request is one batch of one client. Its latency is that of every server and of every hop one after the other; servers
work on different requests at the same time, but one of them on one at a time; and what all clients send shares their
link. A round of all clients takes the longest of the three.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.toml_files import TomlTable, read_toml
from shardwright.cost.offloading.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Network:
    """The delay of a message, and bytes a second of the clients' link."""

    delay_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Swarm:
    """A swarm's software: `clients` requests of `batch` sequences at a time. A layer takes `layer_s` more than its
    arithmetic, a request at each server `hop_s` more than the `round_trips` that it needs over the network. `matmul` is
    the share of the chip's f16 rate of products, `memory` that of its memory's rate."""

    clients: int
    batch: int
    layer_s: float
    hop_s: float
    round_trips: float
    matmul: float
    memory: float


@cache
def petals() -> Swarm:
    """Petals as Sheng et al. (2023, section 6.3) ran it."""
    return read_toml(Path(__file__).parent / "petals.toml", "petals.toml", _swarm)


def _swarm(table: TomlTable) -> Swarm:
    table.inside("sources", lambda rows: rows.each(rows.text))
    return Swarm(
        table.count("clients"),
        table.count("batch"),
        table.number("layer_s"),
        table.number("hop_s"),
        table.positive("round_trips"),
        table.positive("matmul"),
        table.positive("memory"),
    )


def swarm_tokens_per_s(sizes: Sizes, chip: Chip, servers: int, network: Network, swarm: Swarm) -> float:
    """Generated tokens a second of one server's device: all clients' together over the number of servers."""
    layers = -(-sizes.layers // servers)
    elements = sizes.attention.matrix_elements + sizes.feedforward.matrix_elements
    flops = sizes.attention.flops + sizes.feedforward.flops

    def pass_s(tokens: int) -> float:
        """One pass of every client's request, `tokens` of each sequence."""
        rows = swarm.batch * tokens
        read = elements / (swarm.memory * chip.memory_bytes_per_s)  # int8, one byte each
        server = layers * (swarm.layer_s + max(read, rows * flops / (swarm.matmul * chip.rate("f16"))))
        sent = rows * sizes.hidden_bytes / network.bytes_per_s
        latency = servers * (server + swarm.hop_s + 2 * swarm.round_trips * network.delay_s + sent)
        return max(latency, swarm.clients * server, swarm.clients * servers * sent)

    seconds = pass_s(sizes.prompt) + (sizes.generated - 1) * pass_s(1)
    return swarm.clients * swarm.batch * sizes.generated / seconds / servers
