"""Devices for a mesh: the machine's own, those of several hosts together, or virtual ones of the CPU."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, fault

MOST_VIRTUAL = 1024
"""Virtual devices of the CPU; each takes threads and memory of the one machine."""

_FORCED = "xla_force_host_platform_device_count"


@dataclass(frozen=True)
class Devices:
    """Devices for a mesh, and whether they are virtual ones of the CPU because the machine has too few."""

    devices: tuple[Any, ...]
    virtual: bool

    def __str__(self) -> str:
        kind = self.devices[0].device_kind if self.devices else "none"
        n = len(self.devices)
        if self.virtual:
            return f"{n} virtual CPU device{'s' if n != 1 else ''}: the machine has fewer than the mesh needs"
        return f"{n} device{'s' if n != 1 else ''} ({kind})"


def arrange_devices(n: int) -> Devices:
    """`n` devices: the machine's own if it has as many, else virtual ones of the CPU.

    Of several processes each gives as many. Must be called before JAX is used for the first time if virtual devices
    are to be made; raises `too-few-devices` where it is too late and there are not enough.
    """
    jax = cast(Any, importlib.import_module("jax"))

    if _FORCED not in os.environ.get("XLA_FLAGS", "") and n <= MOST_VIRTUAL:
        with contextlib.suppress(RuntimeError):  # JAX runs already; what it has is looked at below.
            jax.config.update("jax_num_cpu_devices", n)
    own = jax.devices()
    if jax.process_count() > 1:
        return Devices(_of_each_process(own, n, jax.process_count()), virtual=own[0].platform == "cpu")
    if len(own) >= n:
        is_cpu = own[0].platform == "cpu"
        return Devices(tuple(own[:n]), virtual=is_cpu and n > 1)
    virtual = jax.devices("cpu")
    if len(virtual) >= n:
        return Devices(tuple(virtual[:n]), virtual=True)
    if n > MOST_VIRTUAL:
        raise fault(
            "too-few-devices",
            f"the mesh needs {n} devices, and there are {len(own)}",
            NOWHERE,
            f"give a smaller one (--mesh, or mesh=); up to {MOST_VIRTUAL} can be virtual ones of the CPU",
        )
    raise fault(
        "too-few-devices",
        f"the mesh needs {n} devices, and JAX was started with {max(len(own), len(virtual))}",
        NOWHERE,
        f"set XLA_FLAGS=--{_FORCED}={n} before JAX is imported, or give a smaller mesh (--mesh, or mesh=)",
    )


def _of_each_process(devices: Sequence[Any], n: int, processes: int) -> tuple[Any, ...]:
    """As many devices of each process, those of a process beside each other."""
    each, rest = divmod(n, processes)
    has = [[device for device in devices if device.process_index == i] for i in range(processes)]
    fewest = min(len(own) for own in has)
    if rest or fewest < each:
        counts = ", ".join(str(len(own)) for own in has)
        raise fault(
            "too-few-devices",
            f"the mesh needs {n} devices, the same number of each of {processes} processes, and these have {counts}",
            NOWHERE,
            f"give a mesh of {processes * fewest} devices (--mesh, or mesh=)",
        )
    return tuple(device for own in has for device in own[:each])
