"""Chips and machines as data: memory, rates, links and tiers, loaded from TOML files and validated."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Literal, TypeVar

from shardwright.cost.hardware.constants import DATASHEET, NAMES, Constants
from shardwright.cost.hardware.networks import Interconnect, NetworkLevel, Switched, Torus
from shardwright.cost.hardware.toml_files import TomlTable, read_toml
from shardwright.ir.diagnostics import NOWHERE, Span, fault, nearest
from shardwright.ir.types import DType

_HERE = Path(__file__).parent
_DTYPES = ("f32", "bf16", "f16", "f8e4m3", "f8e5m2", "int8", "int4")
_MESSAGES = ("direct", "tree", "ring")
_MOST_SHAPES = 10_000
_Made = TypeVar("_Made")


HOST_MEMORY_BYTES_PER_S = 1.28e11
"""Bytes a second of six channels of DDR4-2666, where a file does not say what the host's memory gives."""


@dataclass(frozen=True, slots=True)
class HostLink:
    """The link between a device and its host's memory, bytes a second each way, and what the host's own computation
    gets of that memory; so many devices share both."""

    to_device_bytes_per_s: float
    from_device_bytes_per_s: float
    shared_by: int = 1
    memory_bytes_per_s: float = HOST_MEMORY_BYTES_PER_S


PricedBy = Literal["calibrated", "inherited", "datasheet"]
"""Where constants are from: measurements of the chip, measurements of another chip of its family, or its datasheet."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """The constants that were measured on another chip of the family, by its name."""

    chip: str
    constants: Constants


@dataclass(frozen=True)
class Chip:
    """One accelerator: memory in bytes, rates a second, interconnect; `sources` says where figures are from.

    `memory_bytes` are what programs may use, beside the `reserved_bytes` that the chip's runtime keeps for itself.
    Matrix products are computed in tiles of `matmul_tile`, [m, n, k]; `vector_ops_per_s` are instructions of one lane
    of the vector units, None where nothing is said of them and they count as free. `calibrated` are the constants that
    came out of measurements, None where there are none; then it may have `inherited` ones. `family` are the constants
    that other chips inherit from this one; None means its own. `expected_error` is how far above predicted times
    measured ones of the chip were found, relative, in rows that its constants are not fitted on.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    flops_per_s: Mapping[str, float] = field(hash=False)
    interconnect: Interconnect
    host_link: HostLink | None = None
    usd_per_hour: float | None = None
    matmul_tile: tuple[int, int, int] = (1, 1, 1)
    calibrated: Constants | None = None
    sources: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    vector_ops_per_s: float | None = None
    disk: Disk | None = None
    inherited: Inherited | None = None
    expected_error: float | None = None
    family: Constants | None = None
    reserved_bytes: float = 0.0

    @property
    def constants(self) -> Constants:
        """The calibrated constants, else inherited ones, else the datasheet's."""
        return self.calibrated or (self.inherited.constants if self.inherited is not None else DATASHEET)

    def priced_by(self, constants: Constants | None = None) -> PricedBy:
        """Where constants are from, the chip's own where None."""
        known = constants or self.constants
        if known == self.calibrated:
            return "calibrated"
        return "inherited" if self.inherited is not None and known == self.inherited.constants else "datasheet"

    def counted(self, n_chips: int) -> str:
        """So many of them in words: `8 h100`, `8 reference chips`."""
        if self.name != REFERENCE.name:
            return f"{n_chips} {self.name}"
        return "a reference chip" if n_chips == 1 else f"{n_chips} reference chips"

    def rate(self, dtype: str) -> float:
        """FLOP/s (OP/s for integers) of matrix products in `dtype`; that of f32 for integers of 32 bits, since no chip
        has units for them. Raises where the chip has no such rate."""
        rate = self.flops_per_s.get(dtype, self.flops_per_s.get("f32") if dtype in ("int32", "uint32") else None)
        if rate is None:
            raise fault(
                "no-rate",
                f"{self.name} has no rate for matrix products in {dtype}",
                NOWHERE,
                f"it has rates for {', '.join(self.flops_per_s)}; convert the operands to one of these",
            )
        return rate


@dataclass(frozen=True, slots=True)
class Host:
    """The memory beside the device, and, where known, the rates of the host's own matrix products (FLOP/s) and of its
    memory (bytes a second)."""

    memory_bytes: float
    flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None

    @property
    def memory_rate(self) -> float:
        """Bytes a second of the host's memory."""
        return self.memory_bytes_per_s or HOST_MEMORY_BYTES_PER_S


@dataclass(frozen=True, slots=True)
class Disk:
    """The tier below the host: its size in bytes, and bytes a second each way, as one reader and one writer get them.

    `read_limit_bytes_per_s` is what several readers at once get, the same where None. So many devices share it.
    """

    memory_bytes: float
    read_bytes_per_s: float
    write_bytes_per_s: float
    read_limit_bytes_per_s: float | None = None
    shared_by: int = 1


MEASURED = (
    "prefill_matmul_flops_per_s", "decode_matmul_flops_per_s", "prefill_attention_flops_per_s",
    "decode_attention_flops_per_s", "cache_from_device_bytes_per_s", "activations_from_device_bytes_per_s",
    "disk_read_bytes_per_s", "disk_write_bytes_per_s",
)  # fmt: skip
"""Rates that a machine's file may tell under `measured`. They are checked, and no price is made of them."""


@dataclass(frozen=True)
class Machine:
    """One device with its host and its disk. In a file, `chip` is a name, a path from the file's own folder, or a table
    with the keys of a chip file.

    `sustained_matmul` is the share of the chip's rate that its power lets it keep up in this machine. `runtimes` are
    figures of descriptions of runtimes (`serving.offloading.runtimes`) that were measured here, by the runtime's name.
    """

    name: str
    chip: Chip
    host: Host
    host_link: HostLink
    disk: Disk | None = None
    usd_per_hour: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    sustained_matmul: float = 1.0
    runtimes: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]], hash=False)


REFERENCE = Chip(
    "reference",
    memory_bytes=math.inf,
    memory_bytes_per_s=1.2e12,
    flops_per_s={str(dtype): 5.5e14 if dtype.bits <= 8 else 2.75e14 for dtype in DType},
    interconnect=Switched((NetworkLevel("all chips", None, 1e11, 0.0, "direct"),)),
    host_link=HostLink(3.2e10, 3.2e10),
    disk=Disk(math.inf, 3e9, 3e9),
)
"""The chip that layouts are chosen for where none is named: 275 Tflop/s, twice that in 8 bits, 1.2 TB/s of memory, 100
GB/s from other chips in all, no latencies, no limit of memory. Under `DATASHEET` traffic to memory is added to compute.
The link to the host has 32 GB/s each way, the disk 3 GB/s."""


_OF_NODES = re.compile(r"(.+):[1-9][0-9]*x([1-9][0-9]*)")


def chip_names() -> tuple[str, ...]:
    """The chips that come with the package, sorted."""
    return _names("chips")


def machine_names() -> tuple[str, ...]:
    """The machines that come with the package, sorted."""
    return _names("machines")


def load_chip(name_or_path: str) -> Chip:
    """A chip that comes with the package by its name, or a file of the user's own by its path. The name of a target of
    nodes, `h100:2x4`, has the chip with nodes of that size.

    Raises a `DiagnosticError`: unknown name (with the nearest), unreadable file, or the line and
    key at fault.
    """
    if name_or_path == REFERENCE.name:
        return REFERENCE
    if (target := _OF_NODES.fullmatch(name_or_path)) and target[1] in chip_names():
        chip, units = load_chip(target[1]), int(target[2])
        if isinstance(chip.interconnect, Switched) and units <= (chip.interconnect.levels[0].units or units):
            network = chip.interconnect.in_nodes_of(units)
            return chip if network is chip.interconnect else replace(chip, name=name_or_path, interconnect=network)
    return _loaded(name_or_path, "chip", chip_names(), _chip)


def chip_text(name_or_path: str) -> str:
    """The file of a chip as text, found as `load_chip` finds it."""
    return _file(name_or_path, "chip", chip_names()).read_text(encoding="utf-8-sig")


def load_machine(name_or_path: str) -> Machine:
    """Device, host and disk together, by name, or a file of the user's own by path; raises as `load_chip`."""
    return _loaded(name_or_path, "machine", machine_names(), _machine)


@cache
def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (_HERE / folder).glob("*.toml")))


def _loaded(name: str, what: str, known: Sequence[str], build: Callable[[TomlTable], _Made]) -> _Made:
    """Builds something of a file of the package, once, or of the user's own."""
    return _built_in(name, what, build) if name in known else read_toml(_file(name, what, known), name, build)


@cache
def _built_in(name: str, what: str, build: Callable[[TomlTable], _Made]) -> _Made:
    return read_toml(_HERE / f"{what}s" / f"{name}.toml", f"{name}.toml", build)


def _file(name: str, what: str, known: Sequence[str], span: Span = NOWHERE) -> Path:
    if name in known:
        return _HERE / f"{what}s" / f"{name}.toml"
    if name.endswith(".toml") or "/" in name or "\\" in name:
        return Path(name)
    listed = f"{what}s: {', '.join(known)}; or the path of a {what} file, NAME.toml"
    raise fault(f"unknown-{what}", f"there is no {what} `{name}`", span, nearest(name, known), listed)


def _chip(table: TomlTable, *, alone: bool = False) -> Chip:
    """The chip of a file; of one `alone` in its machine nothing need be said of an interconnect."""
    name = table.text("name")
    no_network = table.optional("interconnect", lambda _: False, alone)
    memory_bytes = table.size("memory")
    reserved_bytes = table.optional("reserved", partial(table.size, above=False), 0.0)
    if reserved_bytes >= memory_bytes:
        raise table.bad("reserved", "must be less than `memory`: it is the part that programs do not get")
    memory_bytes_per_s = table.positive("memory_bytes_per_s")
    rates = table.table("flops_per_s")
    flops_per_s = rates.each(rates.positive, _DTYPES)
    if not flops_per_s:
        raise table.bad("flops_per_s", "must give at least one rate, such as `bf16 = 2.75e14`")
    return Chip(
        name,
        memory_bytes - reserved_bytes,
        memory_bytes_per_s,
        flops_per_s,
        Switched(()) if no_network else table.inside("interconnect", _interconnect),
        table.optional("host_link", partial(table.inside, build=_host_link), None),
        table.optional("usd_per_hour", table.positive, None),
        table.optional("matmul_tile", partial(_tile, table), (1, 1, 1)),
        table.optional("calibrated", partial(table.inside, build=_calibrated), None),
        table.optional("sources", partial(table.inside, build=_sources), dict[str, str]()),
        table.optional("vector_ops_per_s", table.positive, None),
        table.optional("disk", partial(table.inside, build=_disk), None),
        table.optional("inherits", partial(_inherited, table), None),
        table.optional("expected_error", table.positive, None),
        table.optional("family", partial(table.inside, build=_calibrated), None),
        reserved_bytes,
    )


def _inherited(table: TomlTable, key: str) -> Inherited:
    """The constants of a chip that comes with the package and has its own."""
    name = table.choice(key, chip_names())
    parent = load_chip(name)
    constants = parent.family or parent.calibrated
    if constants is None:
        raise table.bad(key, f"must name a chip with constants of its own, which {name} has not")
    return Inherited(name, constants)


def _tile(table: TomlTable, key: str) -> tuple[int, int, int]:
    tile = table.shape(key)
    if len(tile) != 3:
        raise table.bad(key, "must give m, n and k, such as [8, 128, 128]")
    return (tile[0], tile[1], tile[2])


def _calibrated(rows: TomlTable) -> Constants:
    values = rows.each(rows.number, NAMES)
    for key in ("compute_efficiency", "memory_efficiency", "link_efficiency"):
        if not 0 < values.get(key, 1.0) <= 1:
            raise rows.bad(key, "must be a share of the chip's rate, above 0 and at most 1")
    if values.get("unoverlapped", 1.0) > 1:
        raise rows.bad("unoverlapped", "must be a share, from 0 to 1")
    return Constants(**values)


def _sources(rows: TomlTable) -> dict[str, str]:
    return rows.each(rows.text)


def _interconnect(table: TomlTable) -> Interconnect:
    kind = table.choice("kind", ("torus", "switched"))
    return _torus(table) if kind == "torus" else Switched(_levels(table))


def _torus(table: TomlTable) -> Torus:
    pod = table.shape("pod")
    if len(pod) > 3:
        raise table.bad("pod", "must have 1, 2 or 3 axes")
    slices = table.optional("slices", table.shapes, ())
    for shape in slices:
        if len(shape) != len(pod):
            raise table.bad("slices", f"must have as many axes as the pod, {len(pod)}; {list(shape)} has {len(shape)}")
        if any(size > whole for size, whole in zip(sorted(shape), sorted(pod), strict=True)):
            raise table.bad("slices", f"must fit into the pod {list(pod)}; {list(shape)} does not")
    torus = Torus(
        tuple(sorted(pod)),
        table.positive("link_bytes_per_s"),
        table.number("hop_latency_s"),
        table.optional("wrap_multiple_of", table.count, None),
        table.optional("wrap_needs_every_axis", table.flag, False),
        tuple(tuple(sorted(shape)) for shape in slices),
        table.optional("slice_multiple_of", table.count, None),
    )
    if (multiple := torus.slice_multiple_of) and prod(size // multiple for size in pod) > _MOST_SHAPES:
        raise table.bad("pod", f"must have at most {_MOST_SHAPES} slices of multiples of {multiple}")
    if not torus.slice_sizes():
        raise table.bad("pod", "must come with `slices`, a list of shapes, or with `slice_multiple_of`")
    return torus


def _levels(table: TomlTable) -> tuple[NetworkLevel, ...]:
    rows = table.tables("levels")
    levels = [row.built(_level) for row in rows]
    for row, level in zip(rows[:-1], levels, strict=False):
        if level.units is None:
            raise row.bad("name", "must come with `units`: only the outermost level may join any number")
    return tuple(levels)


def _level(row: TomlTable) -> NetworkLevel:
    return NetworkLevel(
        row.text("name"),
        row.optional("units", row.count, None),
        row.positive("egress_bytes_per_s"),
        row.number("latency_s"),
        row.choice("messages", _MESSAGES),
    )


def _host_link(link: TomlTable) -> HostLink:
    to_device, from_device = link.rate("to_device_bytes_per_s"), link.rate("from_device_bytes_per_s")
    memory = link.optional("memory_bytes_per_s", link.rate, HOST_MEMORY_BYTES_PER_S)
    return HostLink(to_device, from_device, link.optional("shared_by", link.count, 1), memory)


def _disk(rows: TomlTable) -> Disk:
    return Disk(
        rows.size("memory"),
        rows.rate("read_bytes_per_s"),
        rows.rate("write_bytes_per_s"),
        rows.optional("read_limit_bytes_per_s", rows.rate, None),
        rows.optional("shared_by", rows.count, 1),
    )


def _machine(table: TomlTable) -> Machine:
    table.optional("measured", partial(table.inside, build=lambda rows: rows.each(rows.rate, MEASURED)), None)
    return Machine(
        table.text("name"),
        _machine_chip(table),
        table.inside("host", _host),
        disk=table.optional("disk", partial(table.inside, build=_disk), None),
        host_link=table.inside("host_link", _host_link),
        usd_per_hour=table.optional("usd_per_hour", table.positive, None),
        sources=table.optional("sources", partial(table.inside, build=_sources), dict[str, str]()),
        sustained_matmul=table.optional("sustained_matmul", partial(_share, table), 1.0),
        runtimes=table.optional("runtimes", partial(table.inside, build=_runtimes), dict[str, dict[str, float]]()),
    )


def _host(rows: TomlTable) -> Host:
    memory_bytes, flops_per_s = rows.size("memory"), rows.optional("flops_per_s", rows.positive, None)
    return Host(memory_bytes, flops_per_s, rows.optional("memory_bytes_per_s", rows.rate, None))


def _share(table: TomlTable, key: str) -> float:
    share = table.positive(key)
    if share > 1:
        raise table.bad(key, "must be a share of the chip's rate, above 0 and at most 1")
    return share


def _runtimes(described: TomlTable) -> dict[str, dict[str, float]]:
    from shardwright.cost.hardware.runtimes import FIGURES, runtime_names

    def figures(runtime: str) -> dict[str, float]:
        rows = described.table(runtime)
        return rows.each(rows.number, FIGURES)

    return described.each(figures, runtime_names())


def _machine_chip(table: TomlTable) -> Chip:
    if isinstance(table.values.get("chip"), dict):
        return table.inside("chip", partial(_chip, alone=True))
    name = table.text("chip")
    if name not in chip_names():
        # Beside the machine's file, wherever one stands.
        name = str(table.folder / _file(name, "chip", chip_names(), table.span("chip")))
    return load_chip(name)
