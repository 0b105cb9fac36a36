"""Every architecture through the whole compiler, presets and meshes in turn: the logits of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models.checkpoints import ARCHITECTURES
from quick import one_in

from shardwright.backends.jax.session import Session
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.parser import parse
from shardwright.models.checkpoint import load_weights
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.models.layouts import PRESETS, AttentionOver
from shardwright.models.transformers_logits import transformers_logits
from shardwright.passes.pipelines import explicit

MESHES = [Mesh.of(x=2), Mesh.of(x=2, y=2), Mesh.of(x=2, y=2, z=2)]
ATTENTION: list[AttentionOver | None] = [None, "head", "batch"]
# Every architecture once, and over them every preset on two axes, and every kind of attention; on three axes three.
ON_THREE = (7, 8, 10)  # ws1d, ws2d and wg-xy
CASES = [
    (name, list(PRESETS)[i % 6], MESHES[1 if i < 6 else 2 if i in ON_THREE else 0], ATTENTION[(i + i // 6) % 3])
    for i, name in enumerate(ARCHITECTURES)
]
OTHERS = [case for i, case in enumerate(CASES) if i >= 6 and i not in ON_THREE]


@pytest.mark.parametrize(
    ("name", "layout", "mesh", "attention"), [*(case for case in CASES if case not in OTHERS), *one_in(2, OTHERS)]
)
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
