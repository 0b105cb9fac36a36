"""Descriptions of GPUs for their compiler: TOML files, as the text that it reads."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


@cache
def gpu_names() -> tuple[str, ...]:
    """The GPUs that are described, sorted."""
    return tuple(sorted(file.stem for file in _HERE.glob("*.toml")))


def gpu_memory_bytes(name: str) -> int:
    """The memory that the compiler takes a GPU to have."""
    return int(_described(name)["device"]["device_memory_size"])


def target_config(name: str) -> str:
    """A GPU's description as a `GpuTargetConfigProto` in text form."""
    described = _described(name)
    lines = [f"  {key}: {value}" for key, value in described["device"].items()]
    capability = _message(("major", "minor"), described["compute_capability"])
    cudnn = _message(("major", "minor", "patch"), described["cudnn"])
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            f"  cuda_compute_capability {capability}",
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {cudnn}",
            f'device_description_str: "{described["description"]}"',
            "",
        ]
    )


def _message(keys: tuple[str, ...], version: str) -> str:
    fields = " ".join(f"{key}: {part}" for key, part in zip(keys, version.split("."), strict=True))
    return f"{{ {fields} }}"


@cache
def _described(name: str) -> dict[str, Any]:
    return tomllib.loads((_HERE / f"{name}.toml").read_text(encoding="utf-8"))
