"""Programs whose keys and values lie in pages of a pool, under `offload`: printed by `import` and `opt`, and run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from models.greedy_generation import truth
from offloading.test_tokens import run, tokens
from offloading.test_written_programs import FEW, request
from oracles.offloaded_models import config_keys

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.serving.generation.settings import GenerationSettings


@dataclass(frozen=True)
class Paged:
    """Writes programs of a checkpoint whose cache has pages of 4 positions, for prompts of 16 tokens."""

    shardwright: Callable[..., Any]
    folder: Path
    out: Path

    def imported(self, *more: object, rows: int = 4) -> str:
        sizes = ("--cache", 16 + FEW, "--batch", rows, "--length", 16, "--page-size", 4, "--dtype", "f32")
        words = ("--mesh", "x=1", "--layout", "ws2d", *sizes, *more, "-o", self.out)
        got = self.shardwright("import", self.folder, *words)
        assert (got.status, got.err) == (0, "")
        return self.out.read_text()

    def passed(self, text: str, passes: str) -> Any:
        self.out.write_text(text)
        return self.shardwright("opt", self.out, "--passes", passes)


@pytest.fixture
def paged(
    request: pytest.FixtureRequest, shardwright: Callable[..., Any], checkpoint: Callable[..., Path], tmp_path: Path
) -> Paged:
    return Paged(shardwright, checkpoint(getattr(request, "param", "llama-grouped")), tmp_path / "paged.shard")


def on_host(text: str) -> str:
    """The pools on the host."""
    for name in ("k", "v"):
        assert f"  {name}: f32 NT3T2K_xD" in text
        text = text.replace(f"  {name}: f32 NT3T2K_xD", f"  {name}: f32 NT3T2K_xD on host")
    return text


@pytest.mark.parametrize(
    ("placed", "passes"),
    [
        (False, ""),
        (True, ""),
        (True, "offload"),
        (True, "decompose,place,offload,insert-moves"),
        (True, "pages-to-rows,offload,schedule-blocks{batches=2}"),
        (False, "pages-to-rows,offload,schedule-blocks{batches=2,order=diagonal}"),
    ],
)
def test_what_import_and_opt_print_runs(placed: bool, passes: str, paged: Paged) -> None:
    text = paged.imported()
    text = on_host(text) if placed else text
    if passes:
        got = paged.passed(text, passes)
        assert (got.status, got.err) == (0, "")
        text = got.out
    assert ("pages=pages" in text) is ("pages-to-rows" not in passes)
    wanted = truth(paged.folder, FEW)
    settings = GenerationSettings(FEW)
    assert run(paged.folder, wanted, request(text), settings)[0] == tokens(wanted)


@pytest.mark.parametrize("paged", ["gemma2"], indirect=True)
def test_layers_without_a_window_see_all_positions_of_a_longer_cache(paged: Paged) -> None:
    """The run's cache is longer than the program's 12 positions, which `opt` has printed."""
    text = paged.passed(paged.imported("--cache", 12, "--length", 8), "cleanup").out
    wanted = truth(paged.folder, FEW)
    assert "size[T])" in text
    assert run(paged.folder, wanted, request(text), GenerationSettings(FEW))[0] == tokens(wanted)


def test_a_program_with_pages_is_planned_as_the_one_without(shardwright: Callable[..., Any], tmp_path: Path) -> None:
    config, out = tmp_path / "config.json", tmp_path / "imported.shard"
    config.write_text(json.dumps(config_keys("llama-grouped")))
    words = ("--mesh", "x=1", "--layout", "megatron", "--cache", "24", "--length", "8", "--batch", 8, "-o", out)
    said: list[tuple[str, str]] = []
    for pages in ((), ("--page-size", 8)):
        assert shardwright("import", config, *words, *pages).err == ""
        got = shardwright("offload", out, "--machine", "t4", "--plan-only")
        assert got.status == 0
        said.append((got.out, got.err))
    assert said[0] == said[1]


def refusal(paged: Paged, text: str) -> str:
    wanted = truth(paged.folder, FEW)
    with pytest.raises(DiagnosticError) as caught:
        run(paged.folder, wanted, request(text), GenerationSettings(FEW))
    return str(caught.value)


def test_a_pool_with_too_few_pages_is_refused(paged: Paged) -> None:
    """Four rows of 22 positions take 24 pages of 4 slots."""
    text = paged.passed(on_host(paged.imported("--pages", 12)), "offload").out
    said = refusal(paged, text)
    assert "T3=12 pages are too few: the rows of pages take 24 [wrong-program]" in said
    assert said.endswith("note: give it a pool of 24 pages, as import does without --pages")


def test_a_pool_of_any_size_becomes_rows(paged: Paged) -> None:
    """Without a schedule the run gives each row the positions that it needs."""
    wanted = truth(paged.folder, FEW)
    text = paged.imported("--pages", 12)
    assert run(paged.folder, wanted, request(text), GenerationSettings(FEW))[0] == tokens(wanted)


@pytest.mark.parametrize("passes", ["", "offload"])
def test_a_parameter_that_no_run_has_is_refused(passes: str, paged: Paged) -> None:
    text = on_host(paged.imported()).replace("decode[L=1](", "decode[L=1](heat: f32 B, ")
    if passes:
        text = paged.passed(text, passes).out
    said = refusal(paged, text)
    assert "decode has a parameter heat: f32 B, and a run calls it with ids [wrong-program]" in said
    assert said.endswith("note: leave it out")


def test_batches_of_a_pool_are_refused(paged: Paged) -> None:
    got = paged.passed(paged.imported(), "offload,schedule-blocks{batches=2}")
    first, *_, last = got.err.splitlines()
    assert got.status == 1
    assert first.endswith("the rows of pages share T3=24 pages [unschedulable]")
    assert last == "note: give each row pages of its own before: pages-to-rows"
