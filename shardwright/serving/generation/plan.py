"""How a checkpoint is to be compiled for generation: mesh, layouts, rows, cache, number formats."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType, StoredFormat
from shardwright.ir.verification.verifier import Level
from shardwright.models.layouts import AttentionOver
from shardwright.models.token_groups import ExpertsForm
from shardwright.models.value_types import Pages
from shardwright.passes.base import Pass
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit_passes, passes_for_weights
from shardwright.passes.transformations.pipeline_layers import PipelineLayers


@dataclass(frozen=True)
class GenerationPlan:
    """The programs to make of a checkpoint.

    A layout is a preset's name or the path of a `.shard` file with the functions of generation. Decode continues
    `batch` texts at a time; prefill reads `chunk` tokens of each of as many, or, with `prefill_batch`, in rows of its
    own. `cache` is how many tokens of a text there is room for, in `pages` of a pool where there are any. `dtype` None
    is the checkpoint's own; `weights` the format to which they are quantized, `cache_format` that of the cache,
    `passes` what else is done to the program. `scores` asks for log-probabilities of given tokens too, `sampled` for
    drawing of tokens beside taking the most probable. `experts` and `expert_capacity` are those of `import_model`.
    `place` chooses the layouts that are left open.
    """

    mesh: Mesh
    batch: int
    chunk: int
    cache: int
    decode_layout: str = "ws2d"
    prefill_layout: str | None = None
    attention: AttentionOver | None = None
    prefill_batch: int | None = None
    dtype: DType | None = None
    weights: StoredFormat | None = None
    scores: bool = False
    sampled: bool = True
    experts: ExpertsForm = "replicated"
    expert_capacity: float | None = None
    cache_format: StoredFormat | None = None
    pages: Pages | None = None
    passes: tuple[Pass, ...] = ()
    place: Place = field(default_factory=Place)

    @property
    def read_layout(self) -> str:
        """The layout of prefill."""
        return self.prefill_layout or self.decode_layout

    @property
    def stages(self) -> int:
        """The stages of a pipeline that its passes make."""
        return stages_of(self.passes)

    @property
    def n_chips(self) -> int:
        """The chips of all stages, each of which has those of the mesh."""
        return self.stages * self.mesh.n_chips

    @property
    def before_layouts(self) -> tuple[Pass, ...]:
        """The passes done to the program before its layouts are chosen."""
        stored = passes_for_weights(self.weights)
        return (*(given for given in self.passes if given.takes is Level.SURFACE), *stored)

    @property
    def pipeline(self) -> tuple[Pass, ...]:
        """All that makes an explicit program of it; passes that take explicit programs come last."""
        after = (given for given in self.passes if given.takes is Level.EXPLICIT)
        # Prompts that are scored are read by `score` in place of `prefill`.
        calls = re.sub(r"\bprefill:", "score:", self.place.calls) if self.scores else self.place.calls
        return (*self.before_layouts, *explicit_passes(replace(self.place, calls=calls)), *after)


def stages_of(passes: Iterable[Pass]) -> int:
    """The stages of a pipeline that passes make, 1 where they make none."""
    return math.prod(given.stages for given in passes if isinstance(given, PipelineLayers))


def is_file(layout: str) -> bool:
    """Tells whether a layout is a file, not a preset's name."""
    return layout.endswith(".shard") or Path(layout).is_file()


def default_mesh(devices: int) -> Mesh:
    """A mesh of all devices: x, and y where there are many.

    The residual stream is split over all of them, the weights over x along E and over y along F and the heads; with
    F = 4E the fewest bytes move if x is half the square root of their number (Pope et al. 2022, section 3.2.2). The
    nearest divisor is taken; where one of the two axes would have a single chip, x has all.
    """
    return meshes(devices)[0]


def meshes(devices: int) -> list[Mesh]:
    """The meshes of so many devices along x, or x and y, that of `default_mesh` first, then by how near they are."""
    best = math.sqrt(devices) / 2
    divisors = [n for n in range(1, devices + 1) if devices % n == 0]
    divisors.sort(key=lambda n: (round(abs(math.log(n / best)), 9), n))
    return list(
        dict.fromkeys(Mesh.of(x=devices) if x in {1, devices} else Mesh.of(x=x, y=devices // x) for x in divisors)
    )
