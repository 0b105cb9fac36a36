"""Runtimes as data: how a runtime moves and computes, which a policy's price depends on as much as on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

from shardwright.cost.hardware.chips import Machine
from shardwright.cost.hardware.toml_files import TomlTable, read_toml
from shardwright.ir.diagnostics import NOWHERE, fault, nearest

_FOLDER = Path(__file__).parent / "runtimes"

_NO_DISK = 1e9
"""Any rate will do where there is no disk: nothing has room there."""


@dataclass(frozen=True, slots=True)
class RuntimeConstants:
    """The shares of a machine's datasheet that a runtime gets; `calibration` fits them on measurements. Shares are at
    most 1.

    `matmul` of the rate of products in 16 bits that the chip sustains, `link` of the host link from pinned memory,
    `unpinned` of it from memory that is not, `host_attention` of the host memory's rate, counted in bytes of a cache in
    16 bits, `disk_read` of the disk's: of its limit for several readers where the operating system's page cache reads
    ahead, of its nominal rate where the page cache is off, when a step that uses files takes `uncached_step_s` more.
    `quantization_bytes` of device memory traffic are spent on an element that is brought from 4 bits to 16 or back, or
    from 8.
    `contention` is the part of the shorter of two streams through host memory, the attention there and copies to the
    device, that is not hidden behind the longer.
    """

    matmul: float
    link: float
    unpinned: float
    host_attention: float
    disk_read: float
    uncached_step_s: float
    quantization_bytes: float
    contention: float


NAMES = tuple(item.name for item in fields(RuntimeConstants))


@dataclass(frozen=True)
class Runtime:
    """How a runtime behaves.

    `whole_tensors`: shares of weights are rounded to whole tensors; else to rows. `synchronised`: every step (a
    part of a layer for one batch) waits for all copies before the next begins; else copies run ahead freely.
    `overlapped`: copies and computation run at the same time; else one after the other. `blocks`: several batches
    use a layer's weights before the next layer; else one batch runs row by row. `attends_on_host`: the host can
    compute attention, for which the device waits; with `whole_caches` over a cache that lies there whole alone.
    `pinned_weights`: weights in host memory are pinned. `pinned_cache`: so is the cache. Where it is not, a copy
    holds up the thread that starts the computation. `relays`: the thread that has read a tensor from disk copies it
    to the device; else pieces are copied while others are read. `offloads_cache`: cache and hidden states may leave
    the device. `weights_together`: who plans for it puts all weights on one tier. `quantizes`: how it can keep weights
    and cache in few bits, in `groups` of its own or as the program's `text` says, or `nothing`;
    `quantizes_both`: where it keeps the cache so, weights are, too. `ties_tables`:
    a table that tokens are looked up in and logits made with lies there once. `weights_in_files`: the checkpoint lies
    on the disk already, beside what is free there, so that weights on disk take nothing more; quantized ones do. No
    description says so: it is of a run.

    `memory` is the share of the device memory's rate that its kernels reach, `cache_passes` how often attention on
    the device goes over the cache, `score_bytes` the traffic of one attention score in prefill, `attention_row_s` what
    each row of queries takes beside its scores. `elementwise` is how often what the operations of a layer that are no
    products read and write is counted, 0 where it is in other constants. `prefill_factor` and `decode_factor` are what
    a layer takes but for `step_overhead_s`, times what its operations take alone. `knee` is the part of the shorter of
    reading weights and multiplying with them that the longer does not hide. `store_cache_bytes_per_s`, `store_hidden`
    (a share of the link) and `disk_write` (of the disk's rate) are what writing gets. `weight_layers` of weights that
    are not at home on the device lie there while the model runs, and the cache of the device lies there `cache_copies`
    times; attention on the host takes `host_copy_bytes` beside an element of a batch's cache. `reserve_bytes` of the
    device are taken by the runtime itself.
    `step_overhead_s` is added to each step, where copies run ahead to its computation. `shares_device` is the part
    of the shorter of computation and copies that is not hidden behind the longer, where the device is the processor
    that copies, too.
    """

    name: str
    whole_tensors: bool
    synchronised: bool
    overlapped: bool
    blocks: bool
    attends_on_host: bool
    whole_caches: bool
    pinned_weights: bool
    pinned_cache: bool
    relays: bool
    offloads_cache: bool
    weights_together: bool
    quantizes: str
    quantizes_both: bool
    ties_tables: bool
    weights_in_files: bool
    memory: float
    cache_passes: float
    score_bytes: float
    attention_row_s: float
    prefill_factor: float
    decode_factor: float
    elementwise: float
    knee: float
    store_cache_bytes_per_s: float
    store_hidden: float
    disk_write: float
    weight_layers: float
    host_copy_bytes: float
    cache_copies: float
    reserve_bytes: float
    step_overhead_s: float
    shares_device: float
    constants: RuntimeConstants
    sources: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)

    @property
    def can_quantize(self) -> bool:
        return self.quantizes != "nothing"

    @property
    def attention_places(self) -> tuple[bool, ...]:
        """The choices of whether the host computes attention; it does not where its rate is 0, as on a machine whose
        device is the host."""
        return (True, False) if self.attends_on_host and self.constants.host_attention else (False,)

    @property
    def movable(self) -> tuple[str, ...]:
        """The things that a search divides between tiers."""
        weights = () if self.weights_together else ("weights",)
        return (*weights, "cache", "hidden") if self.offloads_cache else weights

    def with_constants(self, constants: RuntimeConstants) -> Runtime:
        return replace(self, constants=constants)


FIGURES = (*NAMES, *(item.name for item in fields(Runtime) if item.type == "float"))
"""What of a runtime can be measured on a machine."""


@dataclass(frozen=True, slots=True)
class RuntimeRates:
    """The rates that a runtime gets of a machine: FLOP/s, and bytes a second."""

    matmul: float
    memory: float
    to_device: float
    unpinned_to_device: float
    store_cache: float
    store_hidden: float
    host_attention: float
    disk_read: float
    disk_write: float
    disk_step_s: float


def runtime_names() -> tuple[str, ...]:
    """The runtimes that are described, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


@cache
def load_runtime(name: str) -> Runtime:
    """The description of this name. Raises where there is none."""
    if name not in runtime_names():
        raise fault(
            "unknown-runtime",
            f"there is no runtime {name}",
            NOWHERE,
            nearest(name, runtime_names()),
            f"the runtimes are {', '.join(runtime_names())}",
        )
    return read_toml(_FOLDER / f"{name}.toml", f"{name}.toml", _runtime)


def _runtime(table: TomlTable) -> Runtime:
    constants = table.inside("constants", lambda rows: RuntimeConstants(**{key: rows.number(key) for key in NAMES}))
    values: dict[str, object] = {"constants": constants}
    for item in fields(Runtime):
        match item.name, item.type:
            case "constants", _:
                pass
            case "sources", _:
                values["sources"] = table.inside("sources", lambda rows: rows.each(rows.text))
            case "reserve_bytes", _:
                values["reserve_bytes"] = table.size("reserve_bytes") if table.text("reserve_bytes") != "0" else 0.0
            case "store_cache_bytes_per_s", _:
                values["store_cache_bytes_per_s"] = table.rate("store_cache_bytes_per_s")
            case key, "bool":
                values[key] = table.optional(key, table.flag, False)
            case key, "float":
                values[key] = table.number(key)
            case key, _:
                values[key] = table.text(key)
    return Runtime(**values)  # pyright: ignore[reportArgumentType]


def measured_on(runtime: Runtime, machine: Machine) -> Runtime:
    """The runtime with what was measured of it on this machine."""
    measured = machine.runtimes.get(runtime.name, {})
    constants = replace(runtime.constants, **{name: value for name, value in measured.items() if name in NAMES})
    others = {name: value for name, value in measured.items() if name not in NAMES}
    return replace(runtime, constants=constants, **others)  # pyright: ignore[reportArgumentType]


def rates_of(machine: Machine, runtime: Runtime, *, page_cache: bool = True, dtype: str = "f16") -> RuntimeRates:
    """The rates that the runtime gets of the machine; with `page_cache` off every read of a file goes to the disk.

    Raises where the chip has no rate for products in `dtype`.
    """
    constants, link, disk = runtime.constants, machine.host_link, machine.disk
    read = write = _NO_DISK
    if disk is not None:
        ahead = disk.read_limit_bytes_per_s or disk.read_bytes_per_s
        read = constants.disk_read * (ahead if page_cache else disk.read_bytes_per_s)
        write = runtime.disk_write * disk.write_bytes_per_s
    return RuntimeRates(
        constants.matmul * machine.sustained_matmul * machine.chip.rate(dtype),
        runtime.memory * machine.chip.memory_bytes_per_s,
        constants.link * link.to_device_bytes_per_s,
        constants.unpinned * link.to_device_bytes_per_s,
        min(runtime.store_cache_bytes_per_s, link.from_device_bytes_per_s),
        runtime.store_hidden * link.from_device_bytes_per_s,
        constants.host_attention * machine.host.memory_rate,
        read,
        write,
        0.0 if page_cache else constants.uncached_step_s,
    )
