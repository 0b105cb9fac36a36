"""What a chip needs is known before anything is loaded, and what would fit is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from models.checkpoints import config_of

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.models.value_types import Pages
from shardwright.passes.transformations.pipeline_layers import PipelineLayers
from shardwright.serving.generation.memory import compile_within, compiled, declared, exhaustion
from shardwright.serving.generation.plan import GenerationPlan
from shardwright.serving.generation.programs import compile_for_generation, surface_program

KEYS = config_of("falcon")


def plan(**options: Any) -> GenerationPlan:
    return GenerationPlan(**{"mesh": Mesh.of(x=2), "batch": 8, "chunk": 4, "cache": 64, "sampled": False, **options})


def test_declarations_count_weights_and_cache() -> None:
    need = declared(surface_program(KEYS, plan()))
    # Multiquery over heads: every chip has the whole cache, keys and values of 2 layers, 8 rows, 64 tokens, 4 elements.
    assert need.state == 4 * (2 * 2 * 8 * 64 * 4 + 8)
    assert declared(surface_program(KEYS, plan(attention="batch"))).state == 4 * (2 * 2 * 4 * 64 * 4 + 8)


def test_what_fits_is_compiled() -> None:
    made = compile_within(KEYS, plan(), None, 2)
    need = compiled(made.explicit)
    least = declared(made.surface)
    assert (need.weights, need.state) == (least.weights, least.state)
    assert compile_within(KEYS, plan(), need.peak, 2).explicit == made.explicit
    with pytest.raises(DiagnosticError) as caught:
        compile_within(KEYS, plan(), need.peak - 1, 2)
    assert caught.value.diagnostics[0].says() == (
        f"a chip of the mesh x=2 would need {need.peak / 1000:.3g} kB, {need.weights / 1000:.3g} kB of weights,"
        f" {need.state / 1000:.3g} kB of KV cache, {need.activations / 1000:.3g} kB of activations,"
        f" and has {(need.peak - 1) / 1000:.3g} kB [out-of-memory]"
    )
    (note,) = caught.value.diagnostics[0].notes
    assert note.message.startswith("--attention batch would fit, with ")


def test_fewer_pages_come_first() -> None:
    """They change no token: rows wait for each other."""
    made = plan(pages=Pages(4), attention="positions")
    fewer = replace(made, pages=Pages(4, 64))
    need = compiled(compile_for_generation(surface_program(KEYS, fewer), KEYS, fewer).explicit)
    with pytest.raises(DiagnosticError) as caught:
        compile_within(KEYS, made, need.peak, 2)
    (note,) = caught.value.diagnostics[0].notes
    assert note.message.startswith("--pages 64 would fit, with ")


def test_nothing_fits() -> None:
    with pytest.raises(DiagnosticError) as caught:
        compile_within(KEYS, plan(attention="batch"), 1000, 2)
    (note,) = caught.value.diagnostics[0].notes
    assert note.message.startswith("--weights int4 --cache-format int8 comes nearest, with ")
    assert note.message.endswith(": use more chips, or chips with more memory")


LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}  # fmt: skip
ROW = {"batch": 1, "chunk": 3, "cache": 5}


def way_out(chip: int, devices: int, **options: Any) -> str:
    with pytest.raises(DiagnosticError) as caught:
        compile_within(LLAMA, plan(**options), chip, devices)
    (note,) = caught.value.diagnostics[0].notes
    return note.message


def weights_on(mesh: Mesh, **options: Any) -> int:
    return declared(surface_program(LLAMA, plan(mesh=mesh, **options))).weights


def test_another_mesh_of_as_many_chips_comes_before_quantized_weights() -> None:
    """Four heads of keys do not divide by 8: every chip of x=8 has all of them."""
    assert weights_on(Mesh.of(x=2, y=4)) < weights_on(Mesh.of(x=4)) < weights_on(Mesh.of(x=8))
    chip = weights_on(Mesh.of(x=8)) - 1
    assert way_out(chip, 8, **ROW, mesh=Mesh.of(x=8)).startswith("--mesh x=2,y=4 would fit, with ")
    assert way_out(chip, 8, **ROW, mesh=Mesh.of(x=2)).startswith("--mesh x=2,y=4 would fit, with ")
    said = way_out(1000, 8, **ROW, mesh=Mesh.of(x=8))
    assert said.startswith("--mesh x=2,y=4 --weights int4 --cache-format int8 comes nearest, with "), said


def test_the_cache_in_8_bits_comes_before_quantized_weights() -> None:
    mesh = Mesh.of(x=1)
    chip = weights_on(mesh) + declared(surface_program(LLAMA, plan(mesh=mesh, batch=1, cache=256))).state // 2
    said = way_out(chip, 1, mesh=mesh, batch=1, cache=256)
    assert said.startswith("--cache-format int8 would fit, with "), said


def test_what_takes_no_less_is_not_named() -> None:
    assert way_out(1000, 1, **ROW, mesh=Mesh.of(x=1), weights="int4") == (
        "no other mesh, layout, batch or number format takes less: use more chips, or chips with more memory"
    )


def test_stages_of_a_pipeline_have_their_own_chips() -> None:
    stages = {**ROW, "passes": (PipelineLayers(stages=2, micro_batches=1),)}
    half = weights_on(Mesh.of(x=2)) // 2
    assert way_out(half - 1, 8, **stages).startswith("--mesh x=4 would fit, with ")


def test_a_device_that_runs_out_all_the_same() -> None:
    import jax

    with pytest.raises(DiagnosticError) as caught, exhaustion("folder"):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.")
    assert caught.value.render() == (
        "folder: error: a device ran out of memory [out-of-memory]\n"
        "note: give a smaller --batch, --chunk, --cache or --pages, --weights int8, or a larger --mesh"
    )
    with pytest.raises(jax.errors.JaxRuntimeError), exhaustion("folder"):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
