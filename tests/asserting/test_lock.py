"""Lock files: what is written reads again, whatever the names of tests, and what is none is told with its place."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.asserting.lock import read_lock, write_lock
from shardwright.ir.diagnostics import DiagnosticError

printable = st.characters(min_codepoint=ord(" "), max_codepoint=ord("~"))
names = st.builds(  # far quicker than by regular expressions
    "test_{}.py::{}test_{}{}{} on {}".format,
    st.text(ascii_lowercase, min_size=1, max_size=3),
    st.just("") | st.sampled_from(ascii_uppercase).map("Test{}::".format),
    st.text(ascii_lowercase, min_size=1, max_size=2),
    st.just("") | st.text(printable, min_size=1, max_size=6).map("[{}]".format),
    st.sampled_from(["", " (decode)", " (on x)"]),
    st.sampled_from(["cpu", "gpu", "tpu-v4:2x2x1", "h100:8"]),
)
lines = st.lists(st.sampled_from(["none", "all_gather[x] 12", "2x permute[irregular] 3 * ?"]), max_size=3)


@given(st.dictionaries(names, lines, min_size=1))
def test_what_is_written_reads_again(tmp_path_factory: pytest.TempPathFactory, entries: dict[str, list[str]]) -> None:
    folder = tmp_path_factory.mktemp("locks")
    path = folder / "collectives.lock"
    write_lock(path, entries)
    first = path.read_bytes()
    lock = read_lock(path)
    assert {entry: list(lock.text_of(entry)) for entry in lock.entries} == entries
    write_lock(path, dict(reversed(entries.items())))
    assert path.read_bytes() == first
    assert list(folder.iterdir()) == [path]
    write_lock(path, {})
    assert list(folder.iterdir()) == []
    assert read_lock(path).entries == {}


WAY_OUT = "note: delete the entry, and run pytest --update-collectives"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "test_a.py::test on cpu\n  none\n<<<<<<< HEAD\n",
            "collectives.lock:3:1: error: this is neither an entry's name nor its collectives [bad-lock]\n"
            f"  <<<<<<< HEAD\n  ^^^^^^^^^^^^\n{WAY_OUT}",
        ),
        (
            "# comment\n  none\n",
            "collectives.lock:2:1: error: this is neither an entry's name nor its collectives [bad-lock]\n"
            f"    none\n  ^^^^^^\n{WAY_OUT}",
        ),
        (
            "a.py::t on cpu\n  none\n\na.py::t on cpu\n",
            "collectives.lock:4:1: error: this entry is there twice [bad-lock]\n"
            f"  a.py::t on cpu\n  ^^^^^^^^^^^^^^\n{WAY_OUT}",
        ),
    ],
)
def test_what_is_no_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("collectives.lock")
    path.write_text(text)
    with pytest.raises(DiagnosticError) as caught:
        read_lock(path)
    assert caught.value.render() == said


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "collectives.lock").write_bytes(b"\xff\xfe")
    (tmp_path / "folder.lock").mkdir()
    for name, reason in [("collectives.lock", "this is no UTF-8 text"), ("folder.lock", "is a directory")]:
        with pytest.raises(DiagnosticError) as caught:
            read_lock(Path(name))
        assert caught.value.render() == (
            f"{name}: error: the file cannot be read: {reason} [bad-lock]\n"
            "note: move it away, and run pytest --update-collectives"
        )
