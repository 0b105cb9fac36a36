"""Devices of PyTorch by name, and what is wrong with a name."""

from __future__ import annotations

from shardwright.ir.diagnostics import NOWHERE, fault


def check_device(name: str) -> None:
    """Raises where a run cannot have this device: the CPU, or a CUDA device that is here."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise fault(
            "bad-device", f"{name!r} is no device of PyTorch", NOWHERE, "devices are cpu, cuda, and cuda:1 of several"
        ) from None
    if device.type not in {"cpu", "cuda"}:
        raise fault("bad-device", f"the runtime has streams for CUDA and none for {device.type}", NOWHERE,
                    "devices are cpu, cuda, and cuda:1 of several")  # fmt: skip
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        here = "there is no CUDA device here" if not count else f"the last CUDA device here is cuda:{count - 1}"
        built = "" if torch.backends.cuda.is_built() else "; this PyTorch is built without CUDA"
        raise fault(
            "bad-device", f"there is no {name}: {here}{built}", NOWHERE, "leave --device out to take what there is"
        )
