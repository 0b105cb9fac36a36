"""From a checkpoint and a plan to an engine: the program is compiled, memory looked at, the weights loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.generation.engine import Engine
from shardwright.generation.plan import Plan
from shardwright.generation.programs import GenerationProgram, compile_for_generation
from shardwright.ir.weight_source import WeightSource


def load_engine(checkpoint: str | Path, config: Mapping[str, Any], plan: Plan) -> Engine:
    """An engine with the weights of the checkpoint on the devices.

    Raises a `DiagnosticError` where the plan does not fit the model or the devices, or the checkpoint is at fault.
    """
    from shardwright.backends.jax.devices import arrange_devices
    from shardwright.backends.jax.session import Session
    from shardwright.models.checkpoint import CheckpointSource

    arrange_devices(plan.mesh.n_chips)
    made = compile_for_generation(config, plan)
    dtypes = {value.name: value.type.dtype for value in made.surface.weights}
    with CheckpointSource(checkpoint, made.mapping, dtypes) as source:
        return Engine(Session(made.explicit, _stored(made, source)))


def _stored(made: GenerationProgram, source: WeightSource) -> WeightSource:
    """The weights as the compiled program stores them."""
    program = made.surface
    for applied in made.passes:
        source = applied.weights(program, source)
        program = applied.run(program)
    return source
