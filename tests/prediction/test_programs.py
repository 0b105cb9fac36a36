"""The compiled programs that come with the package are those that reproducing tables and figures asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from compile_published import EXAMPLES, asked_for, heading

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.memory import device_bytes
from shardwright.ir.mesh import Mesh
from shardwright.ir.walk import values_in
from shardwright.models.built_in import built_in
from shardwright.prediction import programs
from shardwright.prediction.models import torus_mesh
from shardwright.prediction.phases import batches_of, micro_batch
from shardwright.prediction.programs import (
    Deployment,
    WantedProgram,
    batch_axes,
    compile_text,
    phase_program,
    read_shipped,
    wanted_program,
)

AGAIN = "python bench/compile_published.py writes them anew"


def refused(_text: str, _passes: str) -> str:
    """In place of the compiler."""
    raise AssertionError(AGAIN)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, WantedProgram]]:
    """What all tables and figures ask for, with neither a compiler nor programs that were made before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "compile_text", refused)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        programs.compiled.cache_clear()
        yield asked_for()


def test_nothing_is_compiled_to_reproduce_what_is_published(asked: Mapping[str, WantedProgram]) -> None:
    assert set(read_shipped()) == set(asked), AGAIN


def test_a_few_are_there_to_read() -> None:
    texts = read_shipped()
    files = list(EXAMPLES.glob("*.shard"))
    assert len(files) == 3
    assert all(file.read_text(encoding="utf-8") == texts[file.name] for file in files)


def test_each_file_says_what_it_was_made_of(asked: Mapping[str, WantedProgram]) -> None:
    texts = read_shipped()
    for name, wanted in asked.items():
        first = texts[name].partition("\n")[0]
        assert f"{first}\n" == heading(wanted.text, wanted.passes), AGAIN


def test_the_compiler_still_makes_them(asked: Mapping[str, WantedProgram]) -> None:
    """The shortest few; the bench makes all."""
    for name, wanted in sorted(asked.items(), key=lambda pair: len(pair[1].text))[:3]:
        made = heading(wanted.text, wanted.passes) + compile_text(wanted.text, wanted.passes)
        assert made == read_shipped()[name], AGAIN


def palm(n_chips: int, layout: str = "ws2d", attention: programs.AttentionOver = "batch") -> Deployment:
    model = built_in("palm-540b-64-heads").model
    return Deployment(model, torus_mesh(load_chip("tpu-v4"), n_chips), layout, attention, decomposed=True)


def test_names_say_what_a_program_is() -> None:
    assert wanted_program(palm(64), "decode", 512, 1).name == "palm-540b-64-heads-decode-ws2d-batch-bf16-4x4x4-b64"


def test_one_program_serves_all_meshes_batches_and_lengths_that_the_same_axes_split() -> None:
    names = {
        wanted_program(palm(n), "decode", batch, 1).name for n, batch in ((64, 64), (64, 1024), (128, 256), (32, 96))
    }
    assert len(names) == 1
    made = phase_program(palm(128), "prefill", 128, 100, 100)
    assert dict(made.mesh) == {"x": 8, "y": 4, "z": 4}
    assert made.func("prefill").params[0].shape.size("L") == 100
    assert made.func("prefill").params[0].shape.size("B") == 128


def test_an_embedding_is_moved_where_there_are_more_tokens_than_words() -> None:
    """A sum of all chips' rows of every token would take 64 times what a chip keeps of them."""
    for length, name, share in ((64, "x_partial", 1), (2048, "x_local", 64)):
        program = phase_program(palm(64, "wg-xyz"), "prefill", 512, length, 2048)
        values = {value.name: value for value in values_in(program.funcs[0].body)}
        assert device_bytes(values[name], program.mesh) == 512 * length * 18432 * 2 // share


def test_an_axis_that_does_not_divide_the_batch_is_left_out() -> None:
    mesh = Mesh.of(x=4, y=4, z=2)
    assert batch_axes(mesh, 32) == ("x", "y", "z")
    assert batch_axes(mesh, 8) == ("x", "z")
    assert batch_axes(mesh, 6) == ("z",)


def test_batches_are_padded_to_the_axes_that_they_are_large_enough_for() -> None:
    assert batches_of(palm(64), 96) == [96, 128]
    assert batches_of(palm(64), 65) == [65, 68, 80, 128]
    assert batches_of(palm(64), 2) == [2]
    assert batches_of(palm(64, attention="head"), 65) == [65, 68, 80, 128]


def test_micro_batches_of_a_pipeline() -> None:
    """A part for each stage where that is whole; at most 2048 tokens, by halves."""
    assert [micro_batch(batch, 1, 3) for batch in (1, 32, 33, 256)] == [1, 32, 11, 256]
    assert [micro_batch(batch, 60, 3) for batch in (32, 64, 256)] == [32, 32, 32]
    assert micro_batch(256, 128, 3) == 16
