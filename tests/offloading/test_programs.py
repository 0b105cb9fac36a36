"""The programs of a run are what an import at their sizes, placed and scheduled, gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from models.checkpoints import CHECKPOINTS
from oracles.offloaded_models import config_keys

from shardwright import print_program
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import ONE_CHIP, Mesh
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.models.importing import import_model
from shardwright.passes.pipelines import parse_pipeline, run_passes
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.placing import placed
from shardwright.serving.offloading.program_parts import ProcessPlace
from shardwright.serving.offloading.programs import Programs
from shardwright.serving.offloading.request import OffloadRequest, ScheduleName

POLICIES = ("1,1,100,0,100,0,100,0", "3,2,0,0,50,50,100,0", "2,3,20,50,30,30,20,40")


OPENING = ("deepseek-v3", "deepseek-v2-greedy")
"""Checkpoints whose layers are in two loops, which no schedule takes."""

SCHEDULED = tuple(name for name in CHECKPOINTS if name not in OPENING)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("number", "name"), list(enumerate(SCHEDULED)), ids=SCHEDULED)
def test_each_program_is_what_opt_prints_of_its_import(number: int, name: str, tmp_path: Path) -> None:
    policy, keys = parse_policy(POLICIES[number % len(POLICIES)]), config_keys(name)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    programs = Programs(tmp_path, OffloadRequest(policy, dtype=DType.F32), GenerationSettings(max_new_tokens=4))
    seen: set[tuple[int, int, int, int]] = set()
    for block in programs.blocks(make_prompts([[3, 4, 5]] * (policy.block + 1), 32, None)):
        batches, rows = len(block.buckets), block.rows
        sizes = (batches, rows, block.length, block.cache)
        if sizes in seen:
            continue
        imported = import_model(keys, "ws2d", Mesh(()), batches * rows, block.length, DType.F32, cache=block.cache)
        whole = elaborate(parse(Source("<import>", imported.unformatted)))
        passes = parse_pipeline(f"offload,schedule-blocks{{batches={batches}}}")
        wanted = run_passes(placed(whole, policy, imported.mapping), passes)
        made = print_program(programs.program(block, 0))
        assert made == print_program(wanted)
        assert print_program(elaborate(parse(Source("<printed>", made)))) == made
        seen.add(sizes)


@pytest.mark.parametrize(
    ("schedule", "stages", "said"),
    [
        ("zigzag", 1, "there are two loops over layers one after the other"),
        ("diagonal", 1, "prefill has 2 loops over layers, and the diagonal order is one pass over the layers"),
        ("zigzag", 2, "prefill has 2 loops, and a pipeline goes by the trips of one loop over layers"),
    ],
)
@pytest.mark.parametrize("name", OPENING)
def test_opening_layers_are_refused(name: str, schedule: ScheduleName, stages: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_keys(name)))
    request = OffloadRequest(parse_policy(POLICIES[0]), schedule, DType.F32)
    place = ProcessPlace.of(0, stages, ONE_CHIP)
    programs = Programs(tmp_path, request, GenerationSettings(max_new_tokens=4), place)
    (block,) = programs.blocks(make_prompts([[3, 4, 5]], 32, None))
    with pytest.raises(DiagnosticError, match=said) as caught:
        programs.program(block, 0)
    assert "generate runs models with opening layers" in str(caught.value)


@pytest.mark.parametrize("process", [0, 2])
def test_stages_over_meshes_have_any_vocabulary(process: int, tmp_path: Path) -> None:
    """A stage before the last hands on states split along E, whose digits are none of the vocabulary's."""
    keys, mesh = config_keys("llama-grouped") | {"vocab_size": 33}, Mesh.of(x=2)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    request = OffloadRequest(parse_policy(POLICIES[0]), dtype=DType.F32, mesh=mesh)
    settings = GenerationSettings(max_new_tokens=4)
    programs = Programs(tmp_path, request, settings, ProcessPlace.of(process, 4, mesh))
    (block,) = programs.blocks(make_prompts([[3, 4, 5]], 32, None))
    programs.program(block, 0)
    assert print_program(programs.sampling(block.rows)).startswith("mesh x=2\ndim B=1 V=33 bits=32\n")
