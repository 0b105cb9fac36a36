"""What follows from prompts, devices and options: the mesh, the rows, the cache, and whether it has room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from models.checkpoints import config_of

from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.mesh import Mesh
from shardwright.models.architectures import describe
from shardwright.models.config import Config
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import EXPLICIT
from shardwright.serving.generation.plan import default_mesh, meshes
from shardwright.serving.generation.planning import PlanOptions, default_new_tokens, make_plan, read_passes
from shardwright.serving.generation.prefix import shared_prefix
from shardwright.serving.generation.prompts import Prompt, read_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.generation.stopping import stop_tokens

MODEL = describe(Config(config_of("llama-grouped")))
X2Y2 = Mesh.of(x=2, y=2)


def prompts_of(*lengths: int) -> list[Prompt]:
    return [Prompt(index, (1,) * length) for index, length in enumerate(lengths)]


def plan(lengths: tuple[int, ...], settings: GenerationSettings | None = None, **options: Any) -> dict[str, Any]:
    made = make_plan(
        MODEL, prompts_of(*lengths), settings or GenerationSettings(max_new_tokens=5), PlanOptions(X2Y2, **options)
    )
    return {name: getattr(made, name) for name in ("batch", "prefill_batch", "chunk", "cache")}


def test_sizes_follow_from_the_prompts() -> None:
    assert plan((3, 7)) == {"batch": 2, "prefill_batch": None, "chunk": 7, "cache": 11}


def test_rows_are_few_and_divisible_where_they_are_split() -> None:
    assert plan((3,) * 40)["batch"] == 16
    assert plan((3,) * 5)["batch"] == 5
    assert plan((3,) * 5, attention="batch")["batch"] == 8
    assert plan((3, 7), attention="positions")["cache"] == 12
    assert plan((3,) * 5, prefill_layout="wg-xy")["batch"] == 8


def test_new_tokens_are_as_many_as_fit() -> None:
    assert default_new_tokens(MODEL, prompts_of(3, 7), PlanOptions()) == 58
    assert default_new_tokens(MODEL, prompts_of(3, 7), PlanOptions(cache=9)) == 3
    assert default_new_tokens(MODEL, prompts_of(1), PlanOptions()) == 64
    assert default_new_tokens(MODEL, prompts_of(3, 7), PlanOptions(page_size=4, pages=3)) == 6
    assert default_new_tokens(MODEL, prompts_of(70), PlanOptions()) == 1  # which make_plan then refuses


def test_samples_are_read_in_rows_of_their_own() -> None:
    settings = GenerationSettings(max_new_tokens=5, temperature=1.0, samples=4)
    assert plan((3,) * 2, settings, page_size=4)["prefill_batch"] is None  # which would have a cache of their own
    assert plan((3,) * 2, settings) == {"batch": 8, "prefill_batch": 2, "chunk": 3, "cache": 7}
    assert plan((3,) * 40, settings)["prefill_batch"] == 4
    assert plan((3,) * 2, settings, prefill_batch=1)["prefill_batch"] == 1


def test_what_is_given_stands() -> None:
    assert plan((3, 7), batch=9, chunk=2, cache=32, prefill_batch=3) == {
        "batch": 9, "prefill_batch": 3, "chunk": 2, "cache": 32,
    }  # fmt: skip
    assert plan((3, 7), chunk=50, cache=32)["chunk"] == 32


@pytest.mark.parametrize(
    ("devices", "mesh"),
    [(1, "x=1"), (2, "x=2"), (4, "x=4"), (8, "x=8"), (16, "x=2 y=8"), (64, "x=4 y=16"), (256, "x=8 y=32"), (7, "x=7")],
)
def test_all_devices_make_a_mesh(devices: int, mesh: str) -> None:
    assert str(default_mesh(devices)) == mesh


def test_meshes_of_one_and_two_axes() -> None:
    assert [str(mesh) for mesh in meshes(8)] == ["x=8", "x=2 y=4", "x=4 y=2"]
    assert [str(mesh) for mesh in meshes(16)] == ["x=2 y=8", "x=16", "x=4 y=4", "x=8 y=2"]


@pytest.mark.parametrize(
    ("options", "new", "said"),
    [
        (
            {"cache": 9},
            8,
            "in.jsonl:2:1: error: the prompt has 3 tokens and 8 more are wanted, and the cache has 9 positions"
            " [cache-full]\n"
            '  {"tokens": [1, 2, 3]}\n'
            "  ^^^^^^^^^^^^^^^^^^^^^\n"
            "note: 7 new tokens fit: give --max-new-tokens 7, or --cache 10",
        ),
        (
            {"cache": 2},
            2,
            "in.jsonl:2:1: error: the prompt has 3 tokens, and the cache has 2 positions [cache-full]\n"
            '  {"tokens": [1, 2, 3]}\n'
            "  ^^^^^^^^^^^^^^^^^^^^^\n"
            "note: shorten the prompt, or give a larger --cache",
        ),
        (
            {},
            63,
            "in.jsonl:2:1: error: the prompt has 3 tokens and 63 more are wanted, and the model has 64 positions"
            " [cache-full]\n"
            '  {"tokens": [1, 2, 3]}\n'
            "  ^^^^^^^^^^^^^^^^^^^^^\n"
            "note: 62 new tokens fit: give --max-new-tokens 62",
        ),
        (
            {"page_size": 4, "pages": 2},
            8,
            "in.jsonl:2:1: error: the prompt has 3 tokens and 8 more are wanted, and the pages have 8 positions"
            " [cache-full]\n"
            '  {"tokens": [1, 2, 3]}\n'
            "  ^^^^^^^^^^^^^^^^^^^^^\n"
            "note: 6 new tokens fit: give --max-new-tokens 6, or --pages 3",
        ),
        (
            {"page_size": 2, "pages": 1},
            2,
            "in.jsonl:2:1: error: the prompt has 3 tokens, and the pages have 2 positions [cache-full]\n"
            '  {"tokens": [1, 2, 3]}\n'
            "  ^^^^^^^^^^^^^^^^^^^^^\n"
            "note: shorten the prompt, or give a larger --pages",
        ),
        (
            {"cache": 65},
            8,
            "folder: error: the cache is 65, and the model has max_position_embeddings=64 [too-long]\n"
            "note: give --cache 64 or less",
        ),
    ],
)
def test_a_cache_that_is_full_is_foreseen(options: dict[str, Any], new: int, said: str) -> None:
    prompts = read_prompts(Source("in.jsonl", '{"tokens": [1]}\n{"tokens": [1, 2, 3]}\n'), 96, None)
    with pytest.raises(DiagnosticError) as caught:
        make_plan(MODEL, prompts, GenerationSettings(max_new_tokens=new), PlanOptions(X2Y2, **options), "folder")
    assert caught.value.render() == said


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0, not 1 or more"),
        ({"temperature": -1.0}, "temperature is -1.0, not 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan, not 0 or more"),
        ({"top_k": -1}, "top_k is -1, not 0 or more"),
        ({"top_p": 0.0}, "top_p is 0.0, not above 0 and at most 1"),
        ({"seed": -1}, "seed is -1, not 0 or more"),
        ({"seed": "a"}, "seed is 'a', not a whole number"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5, not a whole number"),
        ({"samples": 0}, "samples is 0, not 1 or more"),
        ({"samples": 2}, "samples is 2, and all are the same at temperature 0"),
        ({"samples": 2, "max_new_tokens": 0, "logprobs": True}, "samples is 2, and no token is to be drawn"),
    ],
)
def test_settings_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        GenerationSettings(**values)
    assert caught.value.diagnostics[0].says() == f"{message} [bad-setting]"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": 0}, "batch is 0, not 1 or more"),
        ({"chunk": -1}, "chunk is -1, not 1 or more"),
        ({"attention": "heads"}, "attention is 'heads', not one of head, batch, positions"),
        ({"weights": "int3"}, "weights is 'int3', not one of int8, int4, f8e4m3"),
        ({"expert_capacity": 1.5}, "expert_capacity needs experts='all-to-all'"),
    ],
)
def test_options_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        PlanOptions(**values)
    assert caught.value.diagnostics[0].says() == f"{message} [bad-setting]"


def test_no_expert_has_room_for_nothing() -> None:
    with pytest.raises(DiagnosticError, match=r"the capacity of experts is a number above 0, not 0\.0"):
        PlanOptions(experts="all-to-all", expert_capacity=0.0)


def test_a_prefix_is_shared_where_that_saves_calls() -> None:
    long = [(*range(20), 90 + i) for i in range(6)]
    assert shared_prefix(long, rows=2, chunk=5) == 19
    assert shared_prefix(long, rows=6, chunk=5) == 0  # one group reads it once anyway
    assert shared_prefix(long, rows=2, chunk=32) == 0
    assert shared_prefix(long[:1], rows=1, chunk=5) == 0
    assert shared_prefix([(1, 2), (3, 4), (5, 6)], rows=1, chunk=1) == 0
    assert shared_prefix([(1,) * 9] * 3, rows=1, chunk=1) == 8


def test_stop_tokens_are_the_checkpoints(tmp_path: Path) -> None:
    assert stop_tokens(tmp_path, {"eos_token_id": 2}) == {2}
    assert stop_tokens(tmp_path, {}) == frozenset()
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert stop_tokens(tmp_path, {"eos_token_id": 2}) == {5, 7}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "two"}')
    with pytest.raises(DiagnosticError) as caught:
        stop_tokens(tmp_path, {})
    path = tmp_path / "generation_config.json"
    assert caught.value.render() == (
        f'{path}: error: eos_token_id is "two", not a token id or a list of them [bad-config]'
    )


def test_layouts_are_chosen_as_is_asked() -> None:
    place = Place.of("bytes", "tpu-v4", {"decode": 8})
    made = make_plan(MODEL, prompts_of(3), GenerationSettings(5), PlanOptions(X2Y2, place=place))
    assert [applied for applied in made.pipeline if applied.name == "place"] == [place]


def test_passes_on_explicit_programs_come_last() -> None:
    passes = read_passes("loop-collectives,fuse-parallel-block")
    made = make_plan(MODEL, prompts_of(3), GenerationSettings(5), PlanOptions(X2Y2, passes=passes, weights="int8"))
    names = [applied.name for applied in made.pipeline]
    assert names[:2] == ["fuse-parallel-block", "quantize-weights"]
    assert names[2:-1] == [applied.name for applied in EXPLICIT]
    assert names[-1] == "loop-collectives"
    with pytest.raises(DiagnosticError) as caught:
        read_passes("fuse")
    assert caught.value.render().startswith("--passes: error: there is no pass fuse [unknown-pass]\nnote: ")
    with pytest.raises(DiagnosticError) as caught:
        read_passes("place,insert-moves")
    assert caught.value.render() == (
        "--passes: error: insert-moves is part of every compilation, after all that is done to the program"
        " [bad-pipeline]\nnote: leave it out"
    )


def test_what_a_file_says_cannot_be_said_otherwise(tmp_path: Path) -> None:
    (tmp_path / "f.shard").write_text("dim B=2 L=2\nfunc f(x: f32 B) -> f32 B {\n  return x\n}\n")
    path = str(tmp_path / "f.shard")
    with pytest.raises(DiagnosticError) as caught:
        plan((3,), decode_layout=path, attention="batch")
    assert (
        caught.value.diagnostics[0].says() == f"--attention is for presets, and {path} says that itself [layout-file]"
    )
    with pytest.raises(DiagnosticError) as caught:
        plan((3,), decode_layout=path, experts="all-to-all")
    assert caught.value.diagnostics[0].says() == f"--experts is for presets, and {path} says that itself [layout-file]"
    with pytest.raises(DiagnosticError) as caught:
        plan((3,), decode_layout=path)
    assert caught.value.diagnostics[0].says() == (
        "there is no dimension T here; B is rows, L tokens of a chunk, T positions of the cache [no-dimension]"
    )
