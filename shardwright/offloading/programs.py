"""The programs of a run: a model for batches of each size, with its values placed as the policy says."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from shardwright.cost.resizing import resized
from shardwright.generation.sampling import sampling_functions
from shardwright.generation.settings import Settings
from shardwright.ir.diagnostics import Source, located
from shardwright.ir.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.parser import parse
from shardwright.ir.program import Program
from shardwright.models.config import config_path, read_config
from shardwright.models.importing import checkpoint_dtype, import_model
from shardwright.models.weight_map import WeightMap
from shardwright.offloading.placing import placed
from shardwright.offloading.request import Request
from shardwright.passes.offload import Offload
from shardwright.passes.pipelines import run_passes

_SIZES = {"B": 2, "L": 3, "T": 5}
"""Rows, tokens of a prompt and positions of a cache that no value has but by these dimensions: 1 has the single token
of decode as well."""


class Programs:
    """Programs of one checkpoint, made when they are first asked for. Raises where its config is at fault."""

    def __init__(self, checkpoint: Path, request: Request, settings: Settings) -> None:
        self.folder = checkpoint
        self.request = request
        self.settings = settings
        self.config = read_config(checkpoint)
        self.dtype = request.dtype or checkpoint_dtype(self.config)
        self._made: dict[tuple[int, int, int], Program] = {}
        with located(Source(str(config_path(checkpoint)), "")):
            imported = import_model(self.config.keys, "ws2d", Mesh(()), 1, 1, request.dtype, cache=1)
        self._text = imported.unformatted
        self.vocab = imported.model.vocab
        self.longest = imported.model.longest
        self.layers = imported.model.layers
        self.mapping: WeightMap = imported.mapping

    def program(self, rows: int, length: int, cache: int) -> Program:
        """For batches of `rows` prompts of `length` tokens and `cache` positions, with placements and movements."""
        key = rows, length, cache
        if key not in self._made:
            self._made[key] = resized(self._of_any_size, dict(zip(_SIZES, key, strict=True)))
        return self._made[key]

    @cached_property
    def _of_any_size(self) -> Program:
        """The program at `_SIZES`, of which that at others has the same statements."""
        settings = self.settings
        sampling = sampling_functions("f32 BV", self.vocab, top_k=bool(settings.top_k), top_p=settings.top_p < 1.0)
        program = elaborate(parse(Source("<import>", self._text + sampling)), dims=_SIZES)
        return run_passes(placed(program, self.request.policy, self.mapping), [Offload()])
