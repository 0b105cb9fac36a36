"""The compiled programs that come with the package are those that reproducing the published tables asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from compile_published import asked_for

from shardwright.prediction import programs
from shardwright.prediction.programs import SHIPPED, compile_text, file_name

AGAIN = "python bench/compile_published.py writes them anew"


def refused(_text: str, _passes: str) -> str:
    """In place of the compiler."""
    raise AssertionError(AGAIN)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[tuple[str, str]]]:
    """What all tables ask for, with neither a compiler nor programs that were made before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "compile_text", refused)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        programs.own_folder.cache_clear()
        programs.compiled.cache_clear()
        yield asked_for()
    programs.own_folder.cache_clear()


def test_nothing_is_compiled_to_reproduce_what_is_published(asked: set[tuple[str, str]]) -> None:
    assert {file.name for file in SHIPPED.glob("*.shard")} == {file_name(text, passes) for text, passes in asked}, AGAIN


def test_the_compiler_still_makes_them(asked: set[tuple[str, str]]) -> None:
    """The shortest few; the bench makes all."""
    for text, passes in sorted(asked, key=lambda pair: len(pair[0]))[:3]:
        made = (SHIPPED / file_name(text, passes)).read_text(encoding="utf-8")
        assert compile_text(text, passes) == made, AGAIN
