"""Measures this machine as the offloading runtime uses it: products, copies, attention, disk and overheads, as a
machine file."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.cost.hardware.chips import Machine, load_machine
from shardwright.ir.types import DType
from shardwright.serving.offloading.devices import check_device
from shardwright.serving.offloading.kernel_rates import (
    attention_rate,
    beside_reading,
    copy_rate,
    dequantized_rate,
    elementwise_rate,
    exposed_part,
    median_seconds,
    product_rate,
    weight_rate,
)
from shardwright.serving.offloading.layer_runs import layer_factors, layer_overhead_s

if TYPE_CHECKING:
    import torch

_FILE_BYTES = 64 << 20
"""The size of the file that is written and read, unless the disk has no room for it: several chunks for each reader."""

_LEAST_FILE_BYTES = 1 << 20

MEASURED_FILE = "machine.toml"
"""The machine file that this module writes where it runs as a process."""

_ROWS, _FEW_ROWS = 256, 64
"""Rows of what products multiply on a CPU: in the format of the run, and in others."""

_FORMATS = (DType.F32, DType.BF16, DType.F16)
_IN_PLACE = 1e15
"""Bytes a second between a device that is the CPU and the host: nothing is copied there."""


@dataclass(frozen=True)
class MachineMeasurement:
    """Measured values, and the text of a machine file with it. Rates are what was reached: shares of them are 1."""

    values: dict[str, Any]
    text: str

    @property
    def summary(self) -> str:
        values = self.values
        rates = ", ".join(f"{name} {rate:.3g} FLOP/s" for name, rate in values["flops_per_s"].items())
        copies = f" host to device {values['to_device_bytes_per_s']:.3g} B/s," if values["device"] != "cpu" else ""
        return f"{rates},{copies} disk {values['disk_readers_bytes_per_s']:.3g} B/s"


def measure(
    folder: str | Path | None = None,
    device: str | None = None,
    dtype: DType | None = None,
    readers: int = 4,
    disk_bytes: int | None = None,
) -> MachineMeasurement:
    """Times what a run in `dtype` would do on `device` (a device of PyTorch) with files in `folder`, which `readers`
    threads read.

    By default CUDA in f16 where there is a device, else the CPU in f32, and the folder of temporary files. A file in
    the folder has at most `disk_bytes`, 64 MiB and a quarter of what is free there, and is gone afterwards. Takes some
    seconds, 300 MB of the host and as much of the device. Raises where there is no such device or the folder cannot
    be written, ModuleNotFoundError without torch.
    """
    import torch

    if device is not None:
        check_device(device)
    on = torch.device(device or default_device())
    chosen = dtype or (DType.F16 if on.type == "cuda" else DType.F32)
    where = Path(folder or tempfile.gettempdir())
    large = on.type == "cuda"
    with torch.inference_mode():
        values: dict[str, Any] = {
            "device": on.type,
            "dtype": str(chosen),
            "device_memory_bytes": _device_memory(on),
            "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "disk_memory_bytes": shutil.disk_usage(where).free,
            "flops_per_s": {
                str(each): product_rate(on, each, _ROWS if each is chosen else _FEW_ROWS, large=large)
                for each in _FORMATS
                if _runs(on, each, chosen)
            },
            "weights_bytes_per_s": weight_rate(on, chosen, large=large),
            "to_device_bytes_per_s": copy_rate(on, to_device=True) if large else _IN_PLACE,
            "from_device_bytes_per_s": copy_rate(on, to_device=False) if large else _IN_PLACE,
            "elementwise_bytes_per_s": elementwise_rate(on, chosen, large=large),
            "dequantized_per_s": dequantized_rate(on, chosen),
        }
        values["device_attention_bytes_per_s"], values["attention_row_s"] = attended = attention_rate(on, chosen)
        values["host_attention_bytes_per_s"], _ = attention_rate(torch.device("cpu"), chosen) if large else attended
        values["knee"] = exposed_part(on, chosen, values["flops_per_s"][str(chosen)], values["weights_bytes_per_s"])
    values |= _disk(where, readers, file_bytes(values["disk_memory_bytes"], disk_bytes), None if large else chosen)
    values["layer_overhead_s"], values["factors"] = layer_overhead_s(on, chosen), (1.0, 1.0)
    if not large and chosen is not DType.F16:
        values["factors"] = layer_factors(on, chosen, _machine(values))
    return MachineMeasurement(values, _text(values))


def default_device() -> str:
    """The device of PyTorch that a run takes that names none. Raises ModuleNotFoundError without torch."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def file_bytes(free: float, cap: int | None = None) -> int:
    """Bytes of the file that is measured with, in a folder with so many free and with this cap; at least 1 MiB."""
    return max(_LEAST_FILE_BYTES, int(min(_FILE_BYTES, free / 4, _FILE_BYTES if cap is None else cap)))


def _runs(on: torch.device, each: DType, chosen: DType) -> bool:
    return on.type == "cuda" or each is chosen or each is not DType.F16  # f16 may be emulated on a CPU, minutes


def _disk(folder: Path, readers: int, nbytes: int, dtype: DType | None) -> dict[str, float]:
    """Bytes a second of writing, and of reading by one reader and by several, past the page cache and through it, there
    beside computations in this format, where these are the CPU's; and what the longer of both does not hide."""
    import torch

    from shardwright.backends.torch.disk import Readers, page_aligned

    data = torch.empty(nbytes // 8, dtype=torch.int64).random_().view(torch.uint8)
    nbytes = data.numel()
    rates = {"shares_device": 0.0}
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        file.write(data.numpy().data)
        file.flush()
        os.fsync(file.fileno())
        rates["disk_write_bytes_per_s"] = nbytes / (time.perf_counter() - began)
        del data
        target = page_aligned(nbytes)
        for name, threads, direct in (
            ("disk_read_bytes_per_s", 1, True),
            ("disk_readers_bytes_per_s", readers, True),
            ("page_cache_bytes_per_s", readers, False),
        ):
            pool = Readers(threads, direct=direct)
            try:
                opened = pool.open(file.name)
                read = partial(pool.run, pool.jobs(opened, "what is measured", target, 0))
                seconds = median_seconds(read, torch.device("cpu"))
                if not direct and dtype is not None:
                    rates["shares_device"], seconds = beside_reading(dtype, read, seconds)
                rates[name] = nbytes / seconds
            finally:
                pool.close()
    return rates


def _device_memory(on: torch.device) -> float:
    import torch

    if on.type == "cuda":
        cuda: Any = torch.cuda
        return float(cuda.get_device_properties(on).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _machine(values: dict[str, Any]) -> Machine:
    """The machine with these values."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, MEASURED_FILE)
        file.write_text(_text(values), encoding="utf-8")
        return load_machine(str(file))


def _text(values: dict[str, Any]) -> str:
    rates = "".join(f"{name} = {rate:.4g}\n" for name, rate in values["flops_per_s"].items())
    shared = values["device"] == "cpu"
    memory = values["host_memory_bytes"] / (2 if shared else 1)
    device = memory if shared else values["device_memory_bytes"]
    attention = values["weights_bytes_per_s"] / values["device_attention_bytes_per_s"]
    return f"""\
# Measured by shardwright calibrate --offloading in {values["dtype"]}: rates are what was reached.
name = "this-machine"

[chip]
name = "this-machine"
memory = "{device:.0f} B"
memory_bytes_per_s = {values["weights_bytes_per_s"]:.4g} # of weights that a few rows are multiplied with

[chip.flops_per_s]
{rates}
[chip.interconnect]
kind = "switched"

[[chip.interconnect.levels]]
name = "one device"
units = 1
egress_bytes_per_s = {values["to_device_bytes_per_s"]:.4g}
latency_s = 0
messages = "direct"

[host]
memory = "{memory:.0f} B"{" # half, where the device is the host itself" if shared else ""}
memory_bytes_per_s = {values["host_attention_bytes_per_s"]:.4g} # of a cache that the host attends to

[host_link]
to_device_bytes_per_s = {values["to_device_bytes_per_s"]:.4g}
from_device_bytes_per_s = {values["from_device_bytes_per_s"]:.4g}

[disk]
memory = "{values["disk_memory_bytes"]:.0f} B"
read_bytes_per_s = {values["disk_readers_bytes_per_s"]:.4g}
write_bytes_per_s = {values["disk_write_bytes_per_s"]:.4g}
read_limit_bytes_per_s = {values["page_cache_bytes_per_s"]:.4g} # through the page cache

[runtimes.ours]
matmul = 1
memory = 1
link = 1
host_attention = {0 if shared else 1}{" # the device is the host" if shared else ""}
disk_read = 1
disk_write = 1
store_hidden = 1
cache_passes = {attention:.4g} # attention on the device, against reading weights
attention_row_s = {values["attention_row_s"]:.4g} # a row of queries of one head, beside its scores
prefill_factor = {values["factors"][0]:.4g} # a layer, times what its parts take alone
decode_factor = {values["factors"][1]:.4g}
elementwise = {values["weights_bytes_per_s"] / values["elementwise_bytes_per_s"]:.4g}
knee = {values["knee"]:.3g}
quantization_bytes = {values["weights_bytes_per_s"] / values["dequantized_per_s"]:.4g}
step_overhead_s = {values["layer_overhead_s"] / 2:.4g} # of attention and of the feedforward layer, for each batch
shares_device = {values["shares_device"]:.3g}

[sources]
measured = "shardwright calibrate --offloading on {values["device"]}"
disk = "one reader alone gets {values["disk_read_bytes_per_s"]:.3g} B/s"
"""


def _main(asked: dict[str, Any]) -> None:
    """Writes the machine file of what `this_machine` asks for into its folder, and removes the folder where the process
    that asked is gone."""
    parent, folder = os.getppid(), asked["folder"]
    try:
        found = measure(folder, asked["device"], DType(asked["dtype"]), asked["readers"], asked["disk_bytes"])
        Path(folder, MEASURED_FILE).write_text(found.text, encoding="utf-8")
    finally:
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
