"""Layouts that are files: programs of the user's own, for prefill, decode, or both."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from models.checkpoints import config_of

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.models.architectures import describe
from shardwright.models.config import Config
from shardwright.models.importing import import_model
from shardwright.models.value_types import Pages
from shardwright.serving.generation.plan import GenerationPlan
from shardwright.serving.generation.planning import PlanOptions, make_plan
from shardwright.serving.generation.programs import compile_for_generation, surface_program
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings

X2Y2 = Mesh.of(x=2, y=2)
KEYS = config_of("llama-grouped")


def write(path: Path, layout: str, prefill: str | None = None, edit: Callable[[str], str] = str) -> str:
    text = import_model(KEYS, layout, X2Y2, 2, 4, cache=16, prefill_layout=prefill).text
    path.write_text(edit(text))
    return str(path)


def plan(decode: str, prefill: str | None = None, *, scores: bool = False) -> GenerationPlan:
    return GenerationPlan(X2Y2, 2, 4, 16, decode, prefill, scores=scores)


def names(made: GenerationPlan) -> list[str]:
    return [func.name for func in surface_program(KEYS, made).funcs]


def test_what_is_missing_is_added(tmp_path: Path) -> None:
    assert names(plan(write(tmp_path / "m.shard", "ws2d"))) == ["prefill", "decode", "restart", "greedy", "sample"]


def test_what_generation_wrote_is_taken_as_it_is(tmp_path: Path) -> None:
    from shardwright.ir.text.format import format_module
    from shardwright.ir.text.unparse import unparse

    written = surface_program(KEYS, GenerationPlan(X2Y2, 2, 4, 16, scores=True))
    path = tmp_path / "m.shard"
    path.write_text(format_module(unparse(written)))
    again = surface_program(KEYS, plan(str(path), scores=True))
    assert [func.name for func in again.funcs] == ["score", "decode", "restart", "greedy", "sample", "logprob"]
    assert again == written


def test_weights_of_another_checkpoint_are_placed_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.shard", "ws2d")
    other = {**KEYS, "vocab_size": 80}
    with pytest.raises(DiagnosticError) as caught:
        compile_for_generation(surface_program(KEYS, plan(path)), other, plan(path))
    place = next(n for n, line in enumerate(Path(path).read_text().splitlines(), 1) if line.startswith("  embed:"))
    assert caught.value.render().startswith(
        f"{path}:{place}:3: error: embed is V=96 E=32 in the program, and V=80 E=32 in the checkpoint [weight-map]\n"
    )


def test_prefill_of_one_file_and_decode_of_another(tmp_path: Path) -> None:
    decode, prefill = write(tmp_path / "d.shard", "ws2d"), write(tmp_path / "p.shard", "ws2d", "wg-xy")
    both = surface_program(KEYS, plan(decode, prefill))
    wanted = surface_program(KEYS, plan("ws2d", "wg-xy"))
    assert both.func("prefill").body == wanted.func("prefill").body
    assert both.func("decode").body == wanted.func("decode").body
    assert surface_program(KEYS, plan("ws2d", prefill)).func("prefill").body == wanted.func("prefill").body


def test_sizes_are_those_of_the_plan(tmp_path: Path) -> None:
    path = write(tmp_path / "m.shard", "ws2d")
    made = surface_program(KEYS, GenerationPlan(X2Y2, 6, 3, 32, path))
    assert {name: made.sizes()[name] for name in "BLT"} == {"B": 6, "L": 3, "T": 32}


def test_pages_of_a_file(tmp_path: Path) -> None:
    """Rows have pages for the positions of the plan, and where the file has no number of them, all do."""
    path = tmp_path / "m.shard"
    wanted = GenerationPlan(X2Y2, 6, 3, 30, str(path))
    for number, pages in ((None, 6 * 8), (9, 9)):
        path.write_text(import_model(KEYS, "ws2d", X2Y2, 2, 4, cache=16, pages=Pages(4, number)).text)
        made = surface_program(KEYS, wanted)
        sizes = {name: made.sizes()[name] for name in ("B", "L", "T1", "T2", "T3")}
        assert sizes == {"B": 6, "L": 3, "T1": 8, "T2": 4, "T3": pages}
    prompts = make_prompts([[1, 2, 3]], 96, None)
    settings, model = GenerationSettings(4), describe(Config(KEYS))
    more = make_plan(model, prompts, settings, PlanOptions(decode_layout=str(path), pages=20))
    assert (more.pages, surface_program(KEYS, more).sizes()["T3"]) == (Pages(4, 20), 20)
    other = tmp_path / "other.shard"
    other.write_text(import_model(KEYS, "ws2d", X2Y2, 2, 4, cache=16, pages=Pages(8, 9)).text)
    with pytest.raises(DiagnosticError) as caught:
        surface_program(KEYS, replace(wanted, prefill_layout=str(other)))
    assert "NT3T2K_xD with N=2 T3=9 T2=8 K=2 D=4 here, and " in caught.value.render()
    long = PlanOptions(decode_layout=str(path), cache=None)
    path.write_text(import_model(KEYS, "ws2d", X2Y2, 2, 4, cache=64, pages=Pages(24, 9)).text)
    assert make_plan(model, prompts, settings, long).cache == 64  # of the 72 positions of a row's pages
    path.write_text(import_model(KEYS, "ws2d", X2Y2, 2, 4, cache=16).text)
    with pytest.raises(DiagnosticError, match="--pages is for caches of pages, and there is none here"):
        make_plan(model, prompts, settings, PlanOptions(decode_layout=str(path), pages=20))
    path.write_text(import_model(KEYS, "ws2d", X2Y2, 2, 4, cache=16, pages=Pages(4, 9)).text.replace("B", "R"))
    with pytest.raises(DiagnosticError, match="there is no dimension B here"):
        make_plan(model, prompts, settings, PlanOptions(decode_layout=str(path)))
    path.write_text(import_model(KEYS, "ws2d", X2Y2, 2, 4, cache=16, pages=Pages(4, 9)).text)
    text = path.read_text()
    path.write_text(text.replace("T2", "S"))
    with pytest.raises(DiagnosticError) as caught:
        surface_program(KEYS, wanted)
    assert "there is no dimension T2 here; T1 is pages of a row, T2 slots of a page, T3" in caught.value.render()
    path.write_text(
        text.replace("length: int32 B, pages: int32 BT1", "length: int32 B, pages: int32 BT1, more: int32 B")
    )
    with pytest.raises(DiagnosticError) as caught:
        surface_program(KEYS, wanted)
    said = "prefill is not func prefill(ids: int32 BL, length: int32 B) -> f32 BV, with pages: int32 BT1"
    assert said in caught.value.render()


def without(name: str) -> Callable[[str], str]:
    return lambda text: re.sub(rf"\nfunc {name}.*?\n}}\n", "\n", text, flags=re.DOTALL)


def with_length(text: str) -> str:
    return text.replace("decode[L=1](ids: int32 BL)", "decode[L=1](ids: int32 BL, length: int32 B)")


def without_position(text: str) -> str:
    return re.sub(r"\bpos\b(?!=)", "place", text)  # the operand of attend keeps its name


IMPORT = "note: shardwright import CHECKPOINT --cache T -o FILE writes such a program"


@pytest.mark.parametrize(
    ("edit", "scores", "said"),
    [
        (
            without("decode"),
            False,
            "{path}: error: generation calls func decode[L=1](ids: int32 BL) -> f32 BV, and there is no decode here"
            f" [no-function]\n{IMPORT}",
        ),
        (
            str,
            True,
            "{path}: error: generation calls func score(ids: int32 BL, length: int32 B, target: int32 BL) ->"
            " (f32 BV, f32 BL), and there is no score here [no-function]\n"
            "note: it is for --logprobs; leave that out, or take a preset",
        ),
        (
            with_length,
            False,
            "{path}:88:1: error: decode is not func decode[L=1](ids: int32 BL) -> f32 BV [wrong-function]\n",
        ),
        (
            without_position,
            False,
            "{path}: error: generation needs state {{ pos: int32 B }}, how full each row is [wrong-state]\n" + IMPORT,
        ),
    ],
)  # fmt: skip
def test_a_file_at_fault(edit: Callable[[str], str], scores: bool, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.shard", "ws2d", edit=edit)
    with pytest.raises(DiagnosticError) as caught:
        surface_program(KEYS, plan(path, scores=scores))
    wanted = said.format(path=path)
    found = caught.value.render()
    assert re.sub(r":\d+:\d+:", ":", found[: len(wanted)]) == re.sub(r":\d+:\d+:", ":", wanted)


def test_a_file_whose_prefill_has_rows_of_its_own_adopts_them(tmp_path: Path) -> None:
    text = import_model(KEYS, "ws2d", X2Y2, 2, 4, cache=16, prompts=1).text
    path = tmp_path / "m.shard"
    path.write_text(text)
    made = [func.name for func in surface_program(KEYS, plan(str(path))).funcs]
    assert made == ["prefill", "decode", "adopt", "adopted_logits", "restart", "greedy", "sample"]
    path.write_text(text.replace("func adopt(source: int32, row: int32)", "func adopt(source: int32, row: int32 B)"))
    path.write_text(path.read_text().replace(", source), row)", ", source), 0)"))
    with pytest.raises(DiagnosticError, match=r"adopt is not func adopt\(source: int32, row: int32\) -> int32 B"):
        surface_program(KEYS, plan(str(path)))


def test_weights_are_stored_once(tmp_path: Path) -> None:
    path = write(tmp_path / "p.shard", "ws1d")
    with pytest.raises(DiagnosticError) as caught:
        surface_program(KEYS, plan("ws2d", path))
    assert caught.value.render() == (
        f"{path}: error: the weight wq is f32 NEK_xG_yD here, and f32 NE_xKG_yD in the decode layout; the two are"
        " stored once [layouts-differ]\n"
        "note: give both functions the same declarations, in one file or two"
    )


def test_what_search_finds_for_an_open_program_says_the_same(
    spoken: Path, tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    """On a chip whose memory is so slow that weights are split; some of them are packed."""
    fast = (Path(__file__).parents[2] / "cost" / "hardware" / "chips" / "h100.toml").read_text()
    chip, opened, found = (str(tmp_path / name) for name in ("slow.toml", "open.shard", "found.shard"))
    Path(chip).write_text(fast.replace("memory_bytes_per_s = 3.35e12", "memory_bytes_per_s = 1e6"))
    mesh = ("--mesh", "x=2")
    sizes = ("--cache", "16", "--batch", "2", "--length", "4")
    assert shardwright("import", spoken, *mesh, "--layout", "open", *sizes, "-o", opened).status == 0
    got = shardwright("search", opened, "--chip", chip, "--rewrite", "fuse-parallel-block", "-o", found)
    assert got.status == 0
    assert "after fuse-parallel-block" in got.out
    text = Path(found).read_text()
    assert re.search(r"wq_wk_wv: f32 N\S*_\S*", text)
    given = ("--prompt", "w5 w6 w7", "--max-new-tokens", "6", "--ignore-eos")
    assert shardwright("generate", spoken, *given, "--decode-layout", found).out == (
        shardwright("generate", spoken, *given, *mesh).out
    )


def test_frequencies_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path / "m.shard", "ws2d", edit=lambda text: text.replace("base=10000", "base=500000"))
    with pytest.raises(DiagnosticError) as caught:
        surface_program(KEYS, plan(path))
    assert "rotary turns by base=500000, style=neox, rotated=0 here, and base=10000, style=neox, rotated=0 by" in (
        caught.value.render()
    )
    assert "[other-rotary]" in caught.value.render()
