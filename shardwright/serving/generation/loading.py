"""From a checkpoint and a plan to an engine: memory is looked at, the program compiled, the weights loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from shardwright.ir.diagnostics import Source, located
from shardwright.serving.generation.engine import Engine
from shardwright.serving.generation.plan import GenerationPlan


def load_engine(
    checkpoint: str | Path,
    config: Mapping[str, Any],
    plan: GenerationPlan,
    *,
    device_memory: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """An engine with the weights of the checkpoint on the devices.

    Before anything is loaded, what a chip needs is compared with `device_memory` bytes, by default what the devices
    have. `progress` is told the bytes loaded, and how many there are. On TPUs programs are written as their compiler
    keeps them. Raises a `DiagnosticError` where the plan does
    not fit the model, the devices or their memory, or the checkpoint is at fault.
    """
    from shardwright.backends.jax.devices import arrange_devices
    from shardwright.backends.jax.session import Session
    from shardwright.backends.targets.names import target_of
    from shardwright.compiling.compile_program import passes_of
    from shardwright.models.checkpoint import CheckpointSource
    from shardwright.serving.generation.memory import chip_memory, compile_within

    with located(Source(str(checkpoint), "")):
        devices = arrange_devices(plan.n_chips)
        target = target_of(devices.devices)
        plan = replace(plan, passes=(*plan.passes, *passes_of(target)))
        at_hand = cast(Any, importlib.import_module("jax")).device_count()
        chip = device_memory or chip_memory(devices)
        made = compile_within(config, plan, chip, at_hand)
    with CheckpointSource(checkpoint, made.mapping, made.dtypes) as stored:
        session = Session(made.explicit, made.weights(stored), progress=progress, forms=target and target.forms)
        return Engine(session, devices)
