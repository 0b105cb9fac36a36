"""Measures the devices that JAX has here: matrix products, copies, collectives and launches, as a chip file."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

_REPEATS = 5
_LARGE = {"cpu": 1024, "gpu": 8192, "tpu": 8192}
_COPY = {"cpu": 1 << 26, "gpu": 1 << 30, "tpu": 1 << 29}
_FORMATS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "int8": "int8"}


@dataclass(frozen=True)
class ChipMeasurement:
    """The measured values, and the text of a chip file with it. Rates are what was reached, so its constants are 1."""

    values: dict[str, Any]
    text: str

    @property
    def summary(self) -> str:
        rates = ", ".join(f"{name} {rate:.3g} FLOP/s" for name, rate in self.values["flops_per_s"].items())
        links = self.values["link_bytes_per_s"]
        between = f", {links:.3g} B/s between {self.values['devices']} devices" if links else ""
        return f"{rates}, memory {self.values['memory_bytes_per_s']:.3g} B/s{between}"


def measure() -> ChipMeasurement:
    """Times every number format's products, a copy, an all-gather large and small, and the launch of a kernel.

    Takes seconds on an accelerator, some ten on a CPU. Raises ModuleNotFoundError without jax.
    """
    jax = cast(Any, importlib.import_module("jax"))
    devices = jax.devices()
    platform = str(devices[0].platform)
    values: dict[str, Any] = {
        "name": f"{platform}-{str(devices[0].device_kind).lower().replace(' ', '-')}",
        "devices": len(devices),
        "memory_bytes": _memory(devices[0], len(devices)),
        "flops_per_s": _products(platform),
        "memory_bytes_per_s": _copies(platform),
        "kernel_overhead_s": _launch(),
    }
    latency, rate = _links(devices, platform)
    values |= {"link_latency_s": latency, "link_bytes_per_s": rate}
    return ChipMeasurement(values, _text(values))


def _best(run: Callable[[], Any]) -> float:
    """Seconds of the fastest of some runs, after one that compiles."""
    run().block_until_ready()
    best = float("inf")
    for _ in range(_REPEATS):
        began = time.perf_counter()
        run().block_until_ready()
        best = min(best, time.perf_counter() - began)
    return best


def _next(x: Any) -> Any:
    return x + 1


def _same(x: Any) -> Any:
    return x + 0


def _products(platform: str) -> dict[str, float]:
    """FLOP/s of a large square product in each format that runs here at all."""
    jax = cast(Any, importlib.import_module("jax"))
    jnp = jax.numpy
    size = _LARGE.get(platform, 1024)
    rates: dict[str, float] = {}
    for name, dtype in _FORMATS.items():
        if platform == "cpu" and name in ("int8", "f16"):
            continue  # emulated element by element, minutes
        a = jnp.ones((size, size), dtype)
        kind = jnp.int32 if name == "int8" else dtype
        product = jax.jit(partial(jnp.matmul, preferred_element_type=kind))
        rates[name] = 2 * size**3 / _best(partial(product, a, a))
    return rates


def _copies(platform: str) -> float:
    """Bytes a second of reading one array and writing another."""
    jax = cast(Any, importlib.import_module("jax"))
    elements = _COPY.get(platform, 1 << 26) // 4
    a = jax.numpy.ones(elements, "float32")
    return 2 * 4 * elements / _best(partial(jax.jit(_next), a))


def _launch() -> float:
    """Seconds of each of a thousand tiny kernels in one program, which depend on each other and do not fuse."""
    jax = cast(Any, importlib.import_module("jax"))
    steps = 1000
    a = jax.numpy.ones((8, 8), "float32")

    def product(_: int, y: Any) -> Any:
        return y @ a

    def chained(x: Any) -> Any:
        return jax.lax.fori_loop(0, steps, product, x)

    chain = jax.jit(chained)
    return _best(partial(chain, a)) / steps


def _links(devices: list[Any], platform: str) -> tuple[float, float]:
    """Seconds of a small all-gather over all devices, and bytes a second that each receives in a large one; 0, 0 of
    a single device."""
    if len(devices) == 1:
        return 0.0, 0.0
    jax = cast(Any, importlib.import_module("jax"))
    mesh = jax.make_mesh((len(devices),), ("x",), devices=devices)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    gather = jax.jit(_same, out_shardings=whole)

    def seconds(elements: int) -> float:
        a = jax.device_put(jax.numpy.ones(elements * len(devices), "float32"), split)
        return _best(partial(gather, a))

    large = _COPY.get(platform, 1 << 26) // 64
    latency = seconds(1)
    return latency, 4 * large * (len(devices) - 1) / max(seconds(large) - latency, 1e-9)


def _memory(device: Any, count: int) -> float:
    stats: dict[str, int] = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / count


def _text(values: dict[str, Any]) -> str:
    rates = "".join(f"{name} = {rate:.4g}\n" for name, rate in values["flops_per_s"].items())
    units = values["devices"]
    return f"""\
# Measured by shardwright calibrate: rates are what was reached, so the constants say only what a launch costs.
name = "{values["name"]}"
memory = "{values["memory_bytes"]:.0f} B"
memory_bytes_per_s = {values["memory_bytes_per_s"]:.4g}

[flops_per_s]
{rates}
[interconnect]
kind = "switched"

[[interconnect.levels]]
name = "the devices of this machine"
units = {max(units, 1)}
egress_bytes_per_s = {values["link_bytes_per_s"] or values["memory_bytes_per_s"]:.4g}
latency_s = {values["link_latency_s"]:.4g}
messages = "direct"

[calibrated]
kernel_overhead_s = {values["kernel_overhead_s"]:.4g}
unoverlapped = 0.3

[sources]
measured = "shardwright calibrate on {units} {values["name"]}"
"""
