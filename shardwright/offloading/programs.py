"""The programs of a run: a model for batches of each size, with its values placed as the policy says."""

from __future__ import annotations

from pathlib import Path

from shardwright.generation.sampling import sampling_functions
from shardwright.generation.settings import Settings
from shardwright.ir.diagnostics import Source, located
from shardwright.ir.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.parser import parse
from shardwright.ir.program import Program
from shardwright.models.config import config_path, read_config
from shardwright.models.importing import Imported, checkpoint_dtype, import_model
from shardwright.models.weight_map import WeightMap
from shardwright.offloading.placing import placed
from shardwright.offloading.request import Request
from shardwright.passes.offload import Offload
from shardwright.passes.pipelines import run_passes


class Programs:
    """Programs of one checkpoint, made when they are first asked for. Raises where its config is at fault."""

    def __init__(self, checkpoint: Path, request: Request, settings: Settings) -> None:
        self.folder = checkpoint
        self.request = request
        self.settings = settings
        self.config = read_config(checkpoint)
        self.dtype = request.dtype or checkpoint_dtype(self.config)
        self._made: dict[tuple[int, int, int], Program] = {}
        imported = self._first = self._imported(1, 1, 1)
        self.vocab = imported.model.vocab
        self.longest = imported.model.longest
        self.layers = imported.model.layers
        self.mapping: WeightMap = imported.mapping

    def program(self, rows: int, length: int, cache: int) -> Program:
        """For batches of `rows` prompts of `length` tokens and `cache` positions, with placements and movements."""
        key = rows, length, cache
        if key not in self._made:
            imported = self._first if key == (1, 1, 1) else self._imported(rows, length, cache)
            settings = self.settings
            sampling = sampling_functions("f32 BV", self.vocab, top_k=bool(settings.top_k), top_p=settings.top_p < 1.0)
            program = elaborate(parse(Source("<import>", imported.unformatted + sampling)))
            program = placed(program, self.request.policy, imported.mapping)
            self._made[key] = run_passes(program, [Offload()])
        return self._made[key]

    def _imported(self, rows: int, length: int, cache: int) -> Imported:
        with located(Source(str(config_path(self.folder)), "")):
            return import_model(self.config.keys, "ws2d", Mesh(()), rows, length, self.request.dtype, cache=cache)
