"""The environment of a process that has devices of its own."""

from __future__ import annotations

import os

_COUNT = "--xla_force_host_platform_device_count="


def with_devices(count: int | None) -> dict[str, str]:
    """This environment with so many virtual devices, or with none told of, and all else that makes compiling quick."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_COUNT)]
    counted = [] if count is None else [f"{_COUNT}{count}"]
    return os.environ | {"XLA_FLAGS": " ".join([*counted, *flags])}
