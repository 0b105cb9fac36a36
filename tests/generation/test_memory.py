"""What a chip needs is known before anything is loaded, and what would fit is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from models.checkpoints import config_of

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.models.value_types import Pages
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
    assert compile_within(KEYS, plan(), need.total, 2).explicit == made.explicit
    with pytest.raises(DiagnosticError) as caught:
        compile_within(KEYS, plan(), need.total - 1, 2)
    assert caught.value.diagnostics[0].says() == (
        f"a chip of the mesh x=2 would need {need.total / 1000:.3g} kB, {need.weights / 1000:.3g} kB of weights,"
        f" {need.state / 1000:.3g} kB of KV cache, {need.activations / 1000:.3g} kB of activations,"
        f" and has {(need.total - 1) / 1000:.3g} kB [out-of-memory]"
    )
    (note,) = caught.value.diagnostics[0].notes
    assert note.message.startswith("--attention batch would fit, with ")


def test_fewer_pages_come_first() -> None:
    """They change no token: rows wait for each other."""
    made = plan(pages=Pages(4), attention="positions")
    fewer = replace(made, pages=Pages(4, 64))
    need = compiled(compile_for_generation(surface_program(KEYS, fewer), KEYS, fewer).explicit)
    with pytest.raises(DiagnosticError) as caught:
        compile_within(KEYS, made, need.total, 2)
    (note,) = caught.value.diagnostics[0].notes
    assert note.message.startswith("--pages 64 would fit, with ")


def test_nothing_fits() -> None:
    with pytest.raises(DiagnosticError) as caught:
        compile_within(KEYS, plan(attention="batch"), 1000, 2)
    (note,) = caught.value.diagnostics[0].notes
    assert note.message.startswith("--weights int4 --batch 1 would need ")
    assert note.message.endswith(", and no layout less: give a larger --mesh")


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
