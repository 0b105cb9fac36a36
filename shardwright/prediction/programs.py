"""Explicit programs of models under a layout, made once and kept."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from shardwright.cost.resizing import resized
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.parser import parse
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.models.description import Model
from shardwright.models.forward import Request, model_program
from shardwright.models.layouts import AttentionOver

Phase = Literal["prefill", "decode"]
Weights = Literal["bf16", "int8"]

CONTEXT = 2048
"""Positions of the cache that layouts are chosen for; programs are resized to the context that is priced."""

SHIPPED = Path(__file__).parent / "compiled"
"""Explicit programs of the published rows; `bench/compile_published.py` writes them."""

_FUSED = {"bf16": "fuse-parallel-block", "int8": "fuse-parallel-block,quantize-weights"}
_APART = {"bf16": "cleanup", "int8": "quantize-weights"}


@dataclass(frozen=True)
class Deployment:
    """A model on a mesh: its layout, over what attention is split, and the number format of its weights."""

    model: Model
    mesh: Mesh
    layout: str
    attention: AttentionOver
    weights: Weights = "bf16"


def phase_program(deployment: Deployment, phase: Phase, batch: int, length: int, context: int) -> Program:
    """The explicit program of one phase: `length` tokens of each of `batch` sequences (1 in decode), a cache of
    `context` positions.

    Layouts are chosen once for all batches that the same axes divide, at the least of them.
    """
    text, passes = surface_text(deployment, phase, batch, length), _passes(deployment, batch)
    return resized(compiled(text, passes), {"B": batch, "T": context})


def _passes(deployment: Deployment, batch: int) -> str:
    """Projections are packed, save where weights are gathered over axes that the batch does not fill: the digits of
    packed parts then conflict in so many ways that the choice of layouts takes minutes."""
    gathered = deployment.layout.startswith("wg") and _representative(deployment.mesh, batch) < deployment.mesh.n_chips
    return (_APART if gathered else _FUSED)[deployment.weights]


def surface_text(deployment: Deployment, phase: Phase, batch: int, length: int) -> str:
    """The program as it is written before the compiler chooses layouts, for the least batch of its kind."""
    return _surface_text(deployment, phase, _representative(deployment.mesh, batch), 1 if phase == "decode" else length)


def compile_text(text: str, passes: str) -> str:
    """The explicit program that the compiler makes of a program's text, after these passes."""
    from shardwright.ir.format import format_module
    from shardwright.ir.unparse import unparse
    from shardwright.passes.pipelines import EXPLICIT, parse_pipeline, run_passes

    return format_module(unparse(run_passes(loaded(text), (*parse_pipeline(passes), *EXPLICIT))))


def _representative(mesh: Mesh, batch: int) -> int:
    least = 1
    for size in mesh.values():
        if batch % (least * size) == 0:
            least *= size
    return least if least > 1 else batch


@lru_cache(maxsize=512)
def _surface_text(deployment: Deployment, phase: Phase, batch: int, length: int) -> str:
    cache = max(CONTEXT, length)
    request = Request(
        deployment.layout, deployment.mesh, batch, length, DType.BF16, deployment.attention, cache, None, (phase,)
    )
    return model_program(deployment.model, request)[0]


def file_name(text: str, passes: str) -> str:
    """Of the compiled program, the same for the same text and passes."""
    return hashlib.sha256(f"{passes}\n{text}".encode()).hexdigest()[:16] + ".shard"


@lru_cache(maxsize=512)
def compiled(text: str, passes: str) -> Program:
    """The explicit program of a text after these passes: one that comes with the package, one that was made before, or
    made now."""
    name = file_name(text, passes)
    own = own_folder() / name
    for file in (SHIPPED / name, own):
        with suppress(OSError):
            return loaded(file.read_text(encoding="utf-8"))
    made = compile_text(text, passes)
    with suppress(OSError):  # a cache that cannot be written is no loss but time
        own.parent.mkdir(parents=True, exist_ok=True)
        beside = own.with_suffix(f".{os.getpid()}.part")
        beside.write_text(made, encoding="utf-8")
        beside.replace(own)
    return loaded(made)


def loaded(text: str) -> Program:
    return elaborate(parse(Source("<model>", text)))


@lru_cache(maxsize=1)
def own_folder() -> Path:
    """Under the user's cache folder, apart for each state of the compiler."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for folder in ("ir", "cost", "passes"):
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return Path(home) / "shardwright" / "programs" / digest.hexdigest()[:12]
