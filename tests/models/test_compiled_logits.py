"""Every architecture through the whole compiler, presets and meshes in turn: the logits of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from combinations import slow_unless
from loaded_weights import load_weights
from models.checkpoints import ARCHITECTURES

from shardwright.backends.jax.session import Session
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.parser import parse
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.models.layouts import PRESETS, AttentionOver
from shardwright.models.transformers_logits import transformers_logits
from shardwright.passes.pipelines import explicit

MESHES = [Mesh.of(x=2), Mesh.of(x=2, y=2), Mesh.of(x=2, y=2, z=2)]
ATTENTION: list[AttentionOver | None] = [None, "head", "batch"]
# Every architecture once, and over them every preset on the last two meshes and with every kind of attention.
CASES = [
    (name, list(PRESETS)[i % 6], MESHES[1 + i // 6 % 2] if i < 12 else MESHES[0], ATTENTION[(i + i // 6) % 3])
    for i, name in enumerate(ARCHITECTURES)
]


def _chosen(name: str, layout: str, mesh: Mesh, _attention: AttentionOver | None) -> bool:
    """Every preset on two axes, three on three axes, and every second of the others on one."""
    if len(mesh) == 1:
        return list(ARCHITECTURES).index(name) % 2 == 0
    return len(mesh) == 2 or layout in ("ws1d", "ws2d", "wg-xy")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "layout", "mesh", "attention"), slow_unless(_chosen, CASES))
def test_logits(
    checkpoint: Callable[..., Path], name: str, layout: str, mesh: Mesh, attention: AttentionOver | None
) -> None:
    folder = checkpoint(name)
    made = import_model(read_config(folder).keys, layout, mesh, 4, 12, attention=attention)
    program = elaborate(parse(Source("imported", made.unformatted)))
    weights = load_weights(folder, made.mapping, {v.name: v.type.dtype for v in program.weights})
    ids = np.random.default_rng(0).integers(0, 96, (4, 12), dtype=np.int32)
    (ours,) = Session(explicit(program), weights).call("forward", {"ids": ids})
    theirs = transformers_logits(folder, ids)
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-5
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()
