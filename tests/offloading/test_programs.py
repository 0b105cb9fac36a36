"""The programs of batches of all sizes come from one, and are those that an import at these sizes gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from models.checkpoints import CHECKPOINTS
from oracles.offloaded_models import config_keys

from shardwright import print_program
from shardwright.cost.offloading.policy import parse_policy
from shardwright.generation.sampling import sampling_functions
from shardwright.generation.settings import Settings
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.parser import parse
from shardwright.ir.types import DType
from shardwright.models.importing import import_model
from shardwright.offloading.placing import placed
from shardwright.offloading.programs import Programs
from shardwright.offloading.request import Request
from shardwright.passes.offload import Offload
from shardwright.passes.pipelines import run_passes

POLICIES = ("1,1,100,0,100,0,100,0", "3,2,0,0,50,50,100,0", "5,2,20,50,30,30,20,40")
SIZES = ((1, 1, 1), (3, 7, 20), (1, 4, 5), (2, 2, 3))


@pytest.mark.parametrize(("number", "name"), list(enumerate(CHECKPOINTS)), ids=list(CHECKPOINTS))
def test_the_program_at_other_sizes_is_that_of_its_own_import(number: int, name: str, tmp_path: Path) -> None:
    policy, keys = parse_policy(POLICIES[number % len(POLICIES)]), config_keys(name)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    programs = Programs(tmp_path, Request(policy, dtype=DType.F32), Settings(max_new_tokens=1))
    for sizes in (SIZES[number % len(SIZES)], (4, 1, 6)):
        rows, length, cache = sizes
        imported = import_model(keys, "ws2d", Mesh(()), rows, length, DType.F32, cache=cache)
        sampling = sampling_functions("f32 BV", imported.model.vocab, top_k=False, top_p=False)
        whole = elaborate(parse(Source("<import>", imported.unformatted + sampling)))
        wanted = run_passes(placed(whole, policy, imported.mapping), [Offload()])
        made = programs.program(*sizes)
        assert made == wanted
        assert print_program(made) == print_program(wanted)
