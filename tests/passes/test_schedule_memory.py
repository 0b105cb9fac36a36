"""Memory of a schedule as a program, value by value, beside the formulas of a policy (`cost/offloading/memory.py`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from oracles.offloaded_models import placed_model
from program_text import program

from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.offloading.memory import Peaks, peaks_of
from shardwright.cost.offloading.policy import parse_policy
from shardwright.cost.offloading.sizes import Sizes, sizes_of
from shardwright.cost.programs.memory import memory_of
from shardwright.ir.program import Program
from shardwright.ir.types import Tier
from shardwright.ir.verification.completion import complete
from shardwright.passes.pipelines import EXPLICIT, parse_pipeline, run_passes

ROWS, BATCHES, PROMPT, GENERATED = 2, 3, 16, 16
MODEL: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 32}


def both(shares: str, *, on_host: bool = False) -> tuple[Sizes, Peaks, Program]:
    """The model's sizes, its peaks by formula, with attention on the device or `on_host`, and its schedule."""
    policy = replace(parse_policy(f"{ROWS},{BATCHES},{shares}"), host_attention=on_host)
    cache = PROMPT + GENERATED
    one = run_passes(placed_model("opt", rows=1, length=PROMPT, cache=cache, **MODEL), EXPLICIT)
    sizes = sizes_of(one, PROMPT, GENERATED)
    plain = placed_model("opt", rows=ROWS * BATCHES, length=PROMPT, cache=cache, policy=policy, **MODEL)
    passes = parse_pipeline(f"decompose,cleanup,offload,schedule-blocks{{batches={BATCHES}}}")
    return sizes, peaks_of(sizes, policy, load_runtime("ours")), complete(run_passes(plain, passes))


def peak(made: Program, func: str, tier: Tier) -> int:
    return memory_of(made, made.func(func), tier).peak


def test_everything_in_host_memory() -> None:
    sizes, formula, made = both("0,100,0,100,0,100")
    cached = ROWS * sizes.cache_elements * sizes.cache_element_bytes * sizes.context  # of a batch in a layer
    positions = sum(value.shape.elements * 4 for value in made.state if value.name == "pos")

    # On the device: two layers, two batches' caches and hidden states, and a batch's values at work, of which the
    # formula has those of one sequence, times the rows.
    in_flight = {"prefill": PROMPT, "decode": 1}
    working = {"prefill": sizes.prefill_working, "decode": sizes.decode_working}
    for func, tokens in in_flight.items():
        moved = 2 * sizes.layer_bytes + 2 * cached + 2 * ROWS * tokens * sizes.hidden_bytes
        rest = peak(made, func, Tier.DEVICE) - moved - positions
        assert 0.5 * ROWS * working[func] < rest <= ROWS * working[func]
    assert peak(made, "decode", Tier.DEVICE) == pytest.approx(formula.device_decode, rel=0.01)
    # Prefill appends to a cache that may hold something: the program reads it, the formula begins with an empty one.
    assert peak(made, "prefill", Tier.DEVICE) == pytest.approx(formula.device_prefill + 2 * cached, rel=0.03)

    # In host memory: the program has hidden states for each function, and, until they are where they belong, a batch's
    # new keys and values.
    for func, tokens, host in (("prefill", PROMPT, formula.host_prefill), ("decode", 1, formula.host_decode)):
        other = (1 if func == "prefill" else PROMPT) * sizes.hidden_bytes * ROWS * BATCHES
        arriving = ROWS * tokens * sizes.cache_elements * sizes.cache_element_bytes
        assert peak(made, func, Tier.HOST) == host + other + arriving
    assert peak(made, "decode", Tier.DISK) == formula.disk == 0


def test_attention_on_the_host_keeps_the_cache_off_the_device() -> None:
    sizes, formula, made = both("0,100,0,100,0,100", on_host=True)
    _, fetched, other = both("0,100,0,100,0,100")
    passing = 2 * ROWS * sizes.cache_elements * sizes.cache_element_bytes * sizes.context
    assert fetched.device_decode - formula.device_decode == passing
    saved = peak(other, "decode", Tier.DEVICE) - peak(made, "decode", Tier.DEVICE)
    assert saved == pytest.approx(passing, rel=0.1)
    assert peak(made, "decode", Tier.DEVICE) == pytest.approx(formula.device_decode, rel=0.05)


def test_spread_over_all_memories() -> None:
    """Homes are those of the formulas to the byte; on the device a fetched value is whole, its rows from there too."""
    sizes, formula, made = both("25,25,0,50,0,50")
    hidden = (PROMPT + 1) * sizes.hidden_bytes * ROWS * BATCHES
    prompt_hidden = PROMPT * sizes.hidden_bytes * ROWS * BATCHES
    assert peak(made, "decode", Tier.DISK) == formula.disk + 0.5 * (hidden - prompt_hidden)
    weights = sizes.layers * sizes.layer_bytes + sizes.embedding.bytes + sizes.unembedding.bytes
    at_home = 0.25 * (weights - sizes.unembedding.tensors[-1].bytes)  # the tied table is there once
    moved = 2 * sizes.layer_bytes + 2 * ROWS * sizes.cache_elements * sizes.cache_element_bytes * sizes.context
    rest = peak(made, "decode", Tier.DEVICE) - at_home - moved
    assert 0 < rest <= ROWS * (sizes.decode_working + 2 * sizes.hidden_bytes) + 64
    assert 2 * 0.25 * sizes.layer_bytes == pytest.approx(
        peak(made, "decode", Tier.DEVICE) - formula.device_decode, rel=0.1
    )


def test_a_value_in_flight_takes_its_place_from_the_start() -> None:
    text = """
dim N=3 E=8 F=16
weights { w: f32 NEF on host }
func f(x: f32 E) -> f32 E {
  w_0 :~ f32 EF on host = take[N, 0](w)
  w_first = prefetch(w_0)
  y, w_rest = loop[N](h: f32 E = x, w_now = w_first) {
    w_next = prefetch[ahead=N](w)
    w_here = wait(w_now)
    g = h @[E] w_here
    %s
    next sum[F](g @[F] w_0), w_next
  }
  free w_rest
  return y
}
""".replace("next sum[F](g @[F] w_0), w_next", "next h * sum[F](g), w_next")
    early = complete(program(text.replace("%s", "free w_here")))
    assert memory_of(early, early.func("f")).activations == 2 * 8 * 16 * 4 + (8 + 8 + 16) * 4
    assert memory_of(early, early.func("f"), Tier.HOST).peak == 3 * 8 * 16 * 4


def test_free_ends_a_life_where_it_stands() -> None:
    text = """
dim E=8 F=16
weights { w: f32 EF on host }
func f(x: f32 E) -> f32 E {
  w_here = fetch(w)
  a = sum[F](x @[E] w_here)
  EARLY
  b = fetch(w)
  c = x * a * sum[F](x @[E] b)
  LATE
  return c
}
"""
    early = complete(program(text.replace("EARLY", "free w_here").replace("LATE", "free b")))
    late = complete(program(text.replace("EARLY\n", "").replace("LATE", "free w_here, b")))
    one, two = (memory_of(made, made.func("f")).activations for made in (early, late))
    assert two - one == 8 * 16 * 4
