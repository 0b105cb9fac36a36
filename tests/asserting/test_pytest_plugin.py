"""The plugin of pytest, in sessions of its own, in which functions are not compiled but say their collectives."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CONFTEST = """
import os
import sys
from types import ModuleType

from shardwright.asserting import pytest_plugin
from shardwright.explaining.reports import CollectiveReport, Explanation, FunctionReport


def explain(function, target, mesh, args):
    rows = (row.split() for row in function(*args))
    made = [CollectiveReport(op, (axis,), 1, int(received), 1, (), "model.py:3") for op, axis, received in rows]
    return Explanation(target or "cpu", (FunctionReport("step", tuple(made)),))


def not_written(path, entries):
    raise OSError(30, "Read-only file system", str(path))


# All of the compiler, whose import would take most of a session.
sys.modules["shardwright.explaining.explain"] = ModuleType("explain")
sys.modules["shardwright.explaining.explain"].explain = explain
if "READ_ONLY" in os.environ:
    pytest_plugin.write_lock = not_written
"""
TESTS = """
import os

import pytest
from shardwright import assert_collectives

MESH = {"x": 4, "y": 2}


def step(size):
    return [f"all_gather x {size}", "all_reduce y 8"]


@pytest.mark.parametrize("size", [16, 32])
def test_step(size):
    assert_collectives(step, (size * int(os.environ.get("TIMES", 1)),), MESH)


class TestTargets:
    def test_each(self):
        for target in (None, "tpu-v4:2x2x2", "h100:8"):
            assert_collectives(step, (64,), MESH, target=target)
        assert_collectives(lambda: [], (), MESH, name="nothing")


def test_text():
    assert_collectives(step, (4,), MESH, "all_gather[x] 4; all_reduce[y] 8")
"""
LOCK = """\
# What tests in this folder expect of compiled functions. `pytest --update-collectives` writes it.

test_model.py::TestTargets::test_each (nothing) on cpu
  none

test_model.py::TestTargets::test_each on cpu
  all_gather[x] 64
  all_reduce[y] 8

test_model.py::TestTargets::test_each on h100:8
  all_gather[x] 64
  all_reduce[y] 8

test_model.py::TestTargets::test_each on tpu-v4:2x2x2
  all_gather[x] 64
  all_reduce[y] 8

test_model.py::test_step[16] on cpu
  all_gather[x] 16
  all_reduce[y] 8

test_model.py::test_step[32] on cpu
  all_gather[x] 32
  all_reduce[y] 8
"""
Session = Callable[..., tuple[int, str]]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """`session("-k", "step", TIMES="2")` runs pytest over `tests/test_model.py`: its status and what it printed."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_model.py").write_text(TESTS)
    root = Path(__file__).parent.parent.parent

    def run(*options: str, **environment: str) -> tuple[int, str]:
        words = ["-p", "shardwright.asserting.pytest_plugin", "-p", "xdist", "-p", "no:cacheprovider", "-q", *options]
        own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(root), "PYTEST_ADDOPTS": ""}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=tmp_path, env=inherited | own | environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stderr == ""
        return done.returncode, done.stdout

    return run


def summary(printed: str) -> list[str]:
    """The lines of the plugin's own section."""
    section = re.search(r"^=+ collectives =+\n(.*?)(?=^=|^\d+ )", printed, re.MULTILINE | re.DOTALL)
    return section[1].splitlines() if section else []


def said(printed: str) -> list[str]:
    """The messages of errors."""
    return [line[8:] for line in printed.splitlines() if line.startswith("E   ")]


def test_a_session(session: Session, tmp_path: Path) -> None:
    lock = tmp_path / "tests" / "collectives.lock"
    status, printed = session()
    assert (status, lock.exists()) == (1, False)
    assert said(printed)[:5] == [
        "AssertionError: tests/collectives.lock has no entry test_model.py::test_step[16] on cpu",
        "now:",
        "  all_gather[x] 16",
        "  all_reduce[y] 8",
        "to write it: pytest --update-collectives 'tests/test_model.py::test_step[16]'",
    ]
    assert "in _check" not in printed
    assert said(session("--rootdir", str(tmp_path.parent))[1])[:5] == said(printed)[:5]

    status, printed = session("--update-collectives")
    assert (status, summary(printed)) == (0, ["tests/collectives.lock: entries written: 6 new"])
    assert lock.read_text() == LOCK
    assert session()[0] == 0

    status, printed = session(TIMES="2")
    assert status == 1
    assert said(printed)[:7] == [
        "AssertionError: step on cpu, mesh x=4 y=2: the collectives are not those of tests/collectives.lock:18",
        "  changed  all_gather[x] 32  expected all_gather[x] 16; least 1, from model.py:3",
        "  1 as expected; a chip receives 40 bytes, expected 24",
        "now:",
        "  all_gather[x] 32",
        "  all_reduce[y] 8",
        "if this is meant: pytest --update-collectives 'tests/test_model.py::test_step[16]'",
    ]
    assert lock.read_text() == LOCK


def test_what_did_not_run_stays(session: Session, tmp_path: Path) -> None:
    lock = tmp_path / "tests" / "collectives.lock"
    lock.write_text(LOCK)
    changed = LOCK.replace("all_gather[x] 32", "all_gather[x] 64")
    for chosen in (["-k", "32"], ["tests/test_model.py::test_step[32]"], ["-k", "32", "-n", "1"]):
        lock.write_text(LOCK)
        status, printed = session("--update-collectives", *chosen, TIMES="2")
        assert (status, summary(printed)) == (0, ["tests/collectives.lock: entries written: 1 changed"])
        assert lock.read_text() == changed
    written = lock.stat().st_mtime_ns
    assert summary(session("--update-collectives", "-k", "32", TIMES="2")[1]) == []
    assert lock.stat().st_mtime_ns == written


STALE = {
    "test_gone.py::test_a on cpu": "a file that is gone",
    "test_model.py::test_step[64] on h100:8": "parameters that are gone",
    "test_model.py::test_text on cpu": "a test that passes a text now",
    "test_model.py::test_step[16] (old) on cpu": "a name that is gone",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", [[], ["-n", "2"], ["-n", "1", "--dist", "loadgroup"]])
def test_entries_that_no_test_asserts(session: Session, tmp_path: Path, workers: list[str]) -> None:
    lock = tmp_path / "tests" / "collectives.lock"
    elsewhere = "\ntest_model.py::test_step[16] on gpu\n  none\n"  # on a machine with other devices
    lock.write_text(LOCK + "".join(f"\n{entry}\n  none\n" for entry in STALE) + elsewhere)
    status, printed = session(*workers)
    assert status == 0
    way_out = "pytest --update-collectives removes it"
    assert summary(printed) == [
        f"tests/collectives.lock: no test asserts {entry} any more; {way_out}" for entry in STALE
    ]
    assert len(summary(session("-k", "step", *workers)[1])) == len(STALE) - 1
    status, printed = session("--update-collectives", *workers)
    assert (status, summary(printed)) == (0, ["tests/collectives.lock: entries written: 4 removed"])
    assert lock.read_text() == LOCK.replace(
        "\ntest_model.py::test_step[32]", f"{elsewhere}\ntest_model.py::test_step[32]"
    )


def test_workers_write_once(session: Session, tmp_path: Path) -> None:
    status, printed = session("--update-collectives", "-n", "2")
    assert (status, summary(printed)) == (0, ["tests/collectives.lock: entries written: 6 new"])
    assert (tmp_path / "tests" / "collectives.lock").read_text() == LOCK
    assert sorted(path.name for path in (tmp_path / "tests").iterdir() if path.is_file()) == [
        "collectives.lock", "conftest.py", "test_model.py",
    ]  # fmt: skip


MORE = """
from shardwright import assert_collectives
import pytest

def test_twice():
    for size in (1, 2):
        assert_collectives(lambda: ["permute x 8"], (), {"x": 4})

@pytest.fixture
def early():
    assert_collectives(lambda: [], (), {"x": 4})

def test_in_a_fixture(early):
    pass

def test_of_another_mesh():
    assert_collectives(lambda: ["permute x 8"], (), {"x": 4})
"""


def test_what_is_refused(session: Session, tmp_path: Path) -> None:
    (tmp_path / "tests" / "test_model.py").write_text(MORE)
    lock = tmp_path / "tests" / "collectives.lock"
    entry = "test_model.py::{} on cpu\n  permute[{}] 8\n\n"
    lock.write_text(entry.format("test_twice", "x") + entry.format("test_of_another_mesh", "y"))
    status, printed = session()
    assert status == 1
    messages = "\n".join(said(printed))
    for each in (
        "test_model.py::test_twice on cpu is asserted twice in one test [entry-twice]",
        "note: tell them apart by name='...'",
        "there is no text to compare with, and no test of pytest runs that could have a lock file [no-expectation]",
        f"{lock}:5:11: error: the mesh has no axis y [unknown-axis]\n    permute[y] 8\n            ^\n"
        "note: the mesh is x=4\nnote: to write it anew: pytest --update-collectives ",
    ):
        assert each in messages
    torn = "<<<<<<< ours\n"
    lock.write_text(torn)
    status, printed = session("--update-collectives", "-k", "mesh")
    assert status == 1
    assert "this is neither an entry's name nor its collectives [bad-lock]" in "\n".join(said(printed))
    assert lock.read_text() == torn


def test_the_plugin_is_light() -> None:
    """It is imported at the start of every session of pytest where the package is installed."""
    script = (
        "import json, sys, pytest; before = {*sys.modules}; import shardwright.asserting.pytest_plugin;"
        " print(json.dumps(sorted({*sys.modules} - before)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        "shardwright", "shardwright.asserting", "shardwright.asserting.assertion", "shardwright.asserting.lock",
        "shardwright.asserting.pytest_plugin", "shardwright.ir", "shardwright.ir.diagnostics",
        "shardwright.ir.whole_files",
    ]  # fmt: skip


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_file_that_cannot_be_written_fails_the_session(session: Session, tmp_path: Path, workers: str) -> None:
    status, printed = session("--update-collectives", "-n", workers, READ_ONLY="1")
    lock = tmp_path / "tests" / "collectives.lock"
    assert (status, summary(printed)) == (1, [f"{lock}: not written: Read-only file system"])
    assert session("-k", "text", "-n", workers, READ_ONLY="1")[0] == 0
