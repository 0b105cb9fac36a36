"""The branch of TPUs in emitted modules, its kernels interpreted."""

from __future__ import annotations

import functools
from typing import Any

import pytest


def on_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the branch of TPUs, and interprets kernels. Interpreted values do not vary as a kernel declares, so that
    nothing is checked of it here; what is compiled for TPUs is (`tests/targets`)."""
    import jax
    from jax.experimental import pallas

    def chosen(*args: Any, default: Any, **others: Any) -> Any:
        return others.get("tpu", default)(*args)

    monkeypatch.setattr(pallas, "pallas_call", functools.partial(pallas.pallas_call, interpret=True))
    monkeypatch.setattr(jax.lax, "platform_dependent", chosen)
    monkeypatch.setattr(jax, "shard_map", functools.partial(_unchecked, jax.shard_map))


def _unchecked(shard_map: Any, function: Any, **options: Any) -> Any:
    return shard_map(function, **{**options, "check_vma": False})
