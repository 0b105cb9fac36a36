"""Programs of small models with the placements of a policy."""

from __future__ import annotations

from typing import Any

from models.checkpoints import transformers_config

from shardwright.cost.offloading.policy import Policy, parse_policy
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.models.importing import import_model
from shardwright.serving.offloading.placing import placed


def config_keys(name: str, **changed: Any) -> dict[str, Any]:
    """The config of a checkpoint of the tests, without the checkpoint."""
    return transformers_config(name, **changed).to_dict()


def placed_model(
    name: str, *, rows: int, length: int, cache: int, policy: str | Policy | None = None, **changed: Any
) -> Program:  # fmt: skip
    """Prefill and decode of a model in f32, where the policy has its values; all on the device without one."""
    imported = import_model(config_keys(name, **changed), "ws2d", Mesh(()), rows, length, DType.F32, cache=cache)
    made = elaborate(parse(Source(name, imported.unformatted)))
    if policy is None:
        return made
    return placed(made, parse_policy(policy) if isinstance(policy, str) else policy, imported.mapping)
