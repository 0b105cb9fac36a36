"""Weights and caches in few bits are in the text: what `quantize-weights` and `import --cache-format` write runs as it
is written, as what the options ask for does, and as `generate` does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from combinations import all_with_slow
from models.greedy_generation import truth
from offloading.test_tokens import run, tokens
from offloading.test_written_programs import FEW, HOST, MIXED, found, plain, request, written

import shardwright
from shardwright.compiling.compile_program import print_program
from shardwright.cost.offloading.policy import parse_policy
from shardwright.cost.offloading.sizes import sizes_of
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType, StoredFormat
from shardwright.ir.weight_source import ArraySource
from shardwright.passes.memory.offload import Offload
from shardwright.passes.memory.schedule_blocks import ScheduleBlocks
from shardwright.passes.pipelines import EXPLICIT, passes_for_weights, run_passes
from shardwright.passes.transformations.quantized_weights import QuantizedWeights
from shardwright.serving.offloading.request import OffloadRequest

DEVICE = "100,0,100,0,100,0"


def stored(folder: Path, name: str, shares: str = HOST, *, scheduled: bool = False) -> str:
    """The text of a program whose weights are in few bits."""
    made = plain(folder, f"4,2,{shares}", 8)
    passes = [Offload(), ScheduleBlocks(batches=2)] if scheduled else []
    return print_program(run_passes(made, [*passes_for_weights(name), *passes]))


def generated(folder: Path, weights: StoredFormat | None, cache: StoredFormat | None = None) -> list[tuple[int, ...]]:
    """The new tokens of `generate` for the prompts."""
    prompts = [prompt.tolist() for prompt in truth(folder, FEW).prompts]
    done = shardwright.generate(
        folder, prompts, mesh={"x": 1}, weights=weights, cache_format=cache, dtype="f32", max_new_tokens=FEW,
        stop_tokens=(),
    )  # fmt: skip
    return [completion.new_tokens for completion in done]


@pytest.mark.parametrize(
    ("name", "weights", "cache"),
    all_with_slow(
        ("llama-grouped", "mixtral", "gpt2", "gemma2"),
        ("int8", "int4", "f8e4m3", None),
        (None, "int4", "int8", "f8e4m3"),
        chosen=lambda name, weights, cache: (
            (name, weights, cache)
            in {("llama-grouped", "int4", "int4"), ("mixtral", "int8", None), ("gpt2", "f8e4m3", "int8")}
        ),
    ),
)
def test_generate_and_offload_have_one_format(
    name: str, weights: StoredFormat | None, cache: StoredFormat | None, checkpoint: Callable[..., Path]
) -> None:
    folder = checkpoint(name)
    policy = replace(parse_policy(f"4,2,{MIXED}"), weight_format=weights, cache_format=cache)
    ours = run(folder, truth(folder, FEW), OffloadRequest(policy, dtype=DType.F32))[0]
    assert ours == generated(folder, weights, cache)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shares", [HOST, MIXED, DEVICE])
@pytest.mark.parametrize("name", ["int8", "int4", "f8e4m3"])
def test_a_program_runs_as_its_text_stores_weights(name: str, shares: str, checkpoint: Callable[..., Path]) -> None:
    """Scheduled or not; where all lies on the device a schedule has no movement."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    made = [found(folder, wanted, stored(folder, name, shares, scheduled=scheduled)) for scheduled in (False, True)]
    assert made[0] == made[1]
    policy = replace(parse_policy(f"4,2,{shares}"), weight_format=name)
    assert run(folder, wanted, OffloadRequest(policy, dtype=DType.F32))[0] == made[0]


def test_a_schedule_without_movements_is_one(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("opt")
    text = written(folder, DEVICE)
    assert "fetch" not in text
    assert found(folder, truth(folder, FEW), text) == tokens(truth(folder, FEW))


@pytest.mark.parametrize("mesh", ["x=1", "x=2"])
def test_a_schedule_of_an_import_leaves_layouts_open(
    mesh: str, checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    """As `import` and `opt` print it for one chip or two; `iota` has no layout of its own."""
    folder, wanted = checkpoint("llama-grouped"), truth(checkpoint("llama-grouped"), FEW)
    imported, scheduled, given = (tmp_path / name for name in ("a.shard", "b.shard", "in.jsonl"))
    sizes = ("--cache", "32", "--batch", "8", "--length", "16", "--layout", "ws2d", "--mesh", mesh)
    assert shardwright("import", folder, *sizes, "--dtype", "f32", "-o", imported).status == 0
    scheduled.write_text(shardwright("opt", imported, "--passes", "offload,schedule-blocks{batches=2}").out)
    given.write_text("".join(json.dumps({"tokens": prompt.tolist()}) + "\n" for prompt in wanted.prompts))
    out = tmp_path / "out.jsonl"
    got = shardwright("offload", folder, "--prompts", given, "--policy", scheduled, "-o", out, "--max-new-tokens", FEW)
    assert got.status == 0, got.err
    assert [tuple(json.loads(line)["new_tokens"]) for line in out.read_text().splitlines()] == tokens(wanted)


def test_a_change_of_the_scales_changes_what_runs(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    wanted, text = truth(folder, FEW), stored(folder, "int8")
    edited = text.replace("q_dot_unscaled * wq_scale", "q_dot_unscaled - wq_scale")
    assert edited != text
    assert found(folder, wanted, edited) != found(folder, wanted, text)


def test_scales_are_what_the_pass_would_write(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    wanted, text = truth(folder, FEW), stored(folder, "int8")
    lines = text.splitlines(keepends=True)
    scale = next(at for at, line in enumerate(lines) if "w_up_scale:" in line)
    apart = [*lines[: scale - 1], *lines[scale + 1 : scale + 3], *lines[scale - 1 : scale + 1], *lines[scale + 3 :]]
    assert found(folder, wanted, "".join(apart)) == found(folder, wanted, text)
    kind = lines[scale].strip().partition(": ")[2]
    unused = text.replace("_unscaled * w_up_scale", "_unscaled * 2.0")
    converted = text.replace("lookup[V](embed, ids)", "convert[f32](lookup[V](embed, ids))")
    for changed, said in (
        (converted.replace("  embed: f32", "  embed: int8"), "more than multiplied with"),
        (unused.replace(lines[scale], ""), "w_up: int8 NEF on host has no scales behind it"),
        (
            unused.replace(lines[scale], lines[scale].replace(kind, "f32 NE on host")),
            "w_up_scale: f32 NE on host are no scales of w_up: int8 NEF on host",
        ),
    ):
        with pytest.raises(DiagnosticError, match="w") as caught:
            found(folder, wanted, changed)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weight_format": "int4"}, "the program says how its weights are stored, and int4 is asked for"),
        ({"cache_format": "int4"}, "the program says how its cache is stored, and int4 is asked for"),
    ],
)
def test_two_words_on_one_thing_are_refused(
    changes: dict[str, str], said: str, checkpoint: Callable[..., Path]
) -> None:
    folder = checkpoint("llama-grouped")
    asked = request(stored(folder, "int8"))
    asked = replace(asked, policy=replace(asked.policy, **changes))  # pyright: ignore[reportArgumentType]
    with pytest.raises(DiagnosticError) as caught:
        run(folder, truth(folder, FEW), asked)
    assert said in str(caught.value)


def test_an_option_stores_the_weights_of_a_program_without_a_schedule(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    asked = request(print_program(plain(folder, f"4,2,{HOST}", 8)))
    asked = replace(asked, policy=replace(asked.policy, weight_format="int4"))
    assert run(folder, wanted, asked)[0] == found(folder, wanted, stored(folder, "int4"))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_sizes_say_what_is_stored_and_what_is_multiplied_with(name: str, checkpoint: Callable[..., Path]) -> None:
    made = plain(checkpoint("llama-grouped"), f"1,1,{DEVICE}", 1)

    whole, few = (
        sizes_of(run_passes(made, [*passes_for_weights(stored), *EXPLICIT]), 16, FEW) for stored in (None, name)
    )
    for own, other in ((whole.attention, few.attention), (whole.feedforward, few.feedforward)):
        scales = [tensor for tensor in other.tensors if tensor.name.endswith("_scale")]
        assert other.flops == own.flops
        assert other.bytes == own.bytes + sum(tensor.bytes for tensor in scales)
        assert other.widened_elements == own.matrix_elements
        each = DType(name).bits / 8
        assert sum(tensor.stored_bytes for tensor in other.made.tensors) == each * own.matrix_elements + sum(
            tensor.bytes for tensor in scales
        )


def test_what_a_pass_leaves_stays_in_its_files(checkpoint: Callable[..., Path]) -> None:
    """Arrays that are in no files have no place in them."""
    made = plain(checkpoint("llama-grouped"), f"1,1,{DEVICE}", 1)
    arrays = {v.name: [[[0.0] * 2] * 2] for v in made.weights}
    source = QuantizedWeights((), ArraySource(arrays))
    assert source.file_ranges("embed", (slice(0, 1),) * 3) is None
