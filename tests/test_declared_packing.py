"""Packed weights that a program declares: read back as what was packed, or refused."""

from __future__ import annotations

import pytest
from models.checkpoints import config_of

from shardwright.compiling.declared_packing import declared_packing, parts_of, stored_dtypes
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.text.format import format_module
from shardwright.ir.text.parser import parse
from shardwright.ir.text.unparse import unparse
from shardwright.ir.types import DType
from shardwright.models.architectures import describe
from shardwright.models.config import Config
from shardwright.models.importing import import_model
from shardwright.models.weight_map import check_map, weight_map
from shardwright.passes.pipelines import run_passes
from shardwright.passes.transformations.fuse_parallel_block import FuseParallelBlock
from shardwright.passes.transformations.packing import packing


def read(text: str) -> Program:
    return elaborate(parse(Source("p", text)))


@pytest.mark.parametrize("name", ["llama-grouped", "gptj", "cohere-grouped-normed"])
@pytest.mark.parametrize("layout", ["ws2d", "open"])
def test_read_back_as_it_was_packed(name: str, layout: str) -> None:
    keys = config_of(name)
    before = read(import_model(keys, layout, Mesh.of(x=2, y=2), 2, 4, cache=16).text)
    wanted = packing(before)
    after = read(format_module(unparse(run_passes(before, [FuseParallelBlock()]))))
    assert wanted
    mapping = weight_map(describe(Config(keys)))
    found = declared_packing(after, mapping)
    assert found == wanted
    check_map(mapping, after, parts_of(found))
    dtypes = stored_dtypes(after, found)
    assert dtypes == {value.name: value.type.dtype for value in before.weights}
    assert {*dtypes.values()} <= {DType.F32, DType.BF16, DType.F16}


def test_what_is_no_sum_of_the_checkpoints_weights_is_unknown() -> None:
    keys = config_of("llama-grouped")
    after = run_passes(read(import_model(keys, "ws2d", Mesh.of(x=2, y=2), 2, 4, cache=16).text), [FuseParallelBlock()])
    text = format_module(unparse(after)).replace("w_gate_w_up", "w_gate_w_other")
    mapping = weight_map(describe(Config(keys)))
    renamed = read(text)
    found = declared_packing(renamed, mapping)
    assert "w_gate_w_other" not in [packed.name for packed in found]
    with pytest.raises(DiagnosticError, match="the checkpoint's mapping has no weight w_gate_w_other"):
        check_map(mapping, renamed, parts_of(found))


def test_parts_of_other_sizes_are_refused() -> None:
    keys = config_of("llama-grouped")
    after = run_passes(read(import_model(keys, "ws2d", Mesh.of(x=2, y=2), 2, 4, cache=16).text), [FuseParallelBlock()])
    other = weight_map(describe(Config({**keys, "intermediate_size": 2 * keys["intermediate_size"]})))
    with pytest.raises(DiagnosticError, match=r"w_gate is .* in the program, and .* in the checkpoint"):
        check_map(other, after, parts_of(declared_packing(after, other)))
