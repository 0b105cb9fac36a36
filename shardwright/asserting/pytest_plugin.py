"""The plugin of pytest behind lock files: `--update-collectives` writes them; entries that nothing asserts are named.

Under pytest-xdist workers compare, and send with each report what the test asserted; the controller alone writes.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from shardwright.asserting import assertion
from shardwright.asserting.lock import FILE, UPDATE, Lock, read_lock, write_lock
from shardwright.ir.diagnostics import DiagnosticError

_ASSERTED = "shardwright_asserted"
_COLLECTED = "shardwright_collected"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("shardwright").addoption(
        UPDATE, action="store_true", help=f"write what assert_collectives finds into {FILE} beside the tests that run"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Locks(config), "shardwright-locks")


class _Locks:
    """The collectives that the tests of a session assert, by lock file and test, and what becomes of the files."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.worker: Any = config if hasattr(config, "workeroutput") else None  # of pytest-xdist
        self.update = bool(config.getoption(UPDATE))
        self.running: assertion.RunningTest | None = None
        self.asserted: dict[str, dict[str, list[str]]] = {}  # of a lock file, by entry
        self.passed: set[tuple[str, str]] = set()  # lock files and tests
        self.collected: dict[str, list[str]] = {}
        self.said: list[str] = []

    # ------------------------------------------------------------ where tests run

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Which tests there are, before any is deselected; unless only parts of modules were looked at."""
        if any("::" in arg for arg in self.config.args) or self.config.getoption("lf", False):
            return
        for item in items:
            self.collected.setdefault(str(item.path.with_name(FILE)), []).append(_name(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        lock, name = item.path.with_name(FILE), _name(item)
        assertion.running = self.running = assertion.RunningTest(name, lock, self.update)
        try:
            return (yield)
        finally:
            assertion.running = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "call" and self.running is not None:
            setattr(report, _ASSERTED, [str(self.running.lock), self.running.name, self.running.asserted])
        return report

    # ------------------------------------------------------------ where reports arrive

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        sent: tuple[str, str, dict[str, list[str]]] | None = getattr(report, _ASSERTED, None)
        if sent is not None:
            lock, name, asserted = sent
            self.asserted.setdefault(lock, {}).update(asserted)
            if report.passed:
                self.passed.add((lock, name))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended."""
        self.collected = getattr(node, "workeroutput", {}).get(_COLLECTED) or self.collected

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.worker is not None:
            if self.worker.workerinput["workerid"] == "gw0":  # all collect the same
                self.worker.workeroutput[_COLLECTED] = self.collected
            return
        for path in sorted({*self.asserted, *self.collected}):
            if self.asserted.get(path) or Path(path).exists():
                try:
                    self._finish(Path(path), read_lock(Path(path)))
                except DiagnosticError as error:
                    self.said.append(error.render())
                except OSError as error:
                    self.said.append(f"{path}: not written: {error.strerror}")
                    session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _finish(self, path: Path, lock: Lock) -> None:
        """Writes a lock file, or names its entries that no test asserts."""
        asserted = self.asserted.get(str(path), {})
        stale = [entry for entry in lock.entries if entry not in asserted and self._is_stale(path, entry)]
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        if not self.update:
            self.said += [f"{shown}: no test asserts {entry} any more; pytest {UPDATE} removes it" for entry in stale]
            return
        before = {entry: list(lock.text_of(entry)) for entry in lock.entries}
        after = {entry: lines for entry, lines in (before | asserted).items() if entry not in stale}
        if after != before:
            write_lock(path, after)
            changed = sum(entry in before and before[entry] != lines for entry, lines in after.items())
            counts = {"new": len({*after} - {*before}), "changed": changed, "removed": len(stale)}
            self.said.append(f"{shown}: entries written: {', '.join(f'{n} {what}' for what, n in counts.items() if n)}")

    def _is_stale(self, path: Path, entry: str) -> bool:
        """Tells whether the test of an entry is gone, or has passed without it. Nothing is known of an entry for
        devices at hand where others are at hand."""
        file = entry.partition("::")[0]
        if not path.with_name(file).exists():
            return True
        there = self.collected.get(str(path), ())
        tests = [name for name in there if name.startswith(f"{file}::")]
        if tests and not any(_is_of(entry, name) for name in tests):
            return True
        where = entry.rpartition(" on ")[2]
        devices = {name.rpartition(" on ")[2] for entries in self.asserted.values() for name in entries}
        return (":" in where or where in devices) and any(
            lock == str(path) and _is_of(entry, name) for lock, name in self.passed
        )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.said:
            terminalreporter.section("collectives")
            for line in self.said:
                terminalreporter.write_line(line)


def _name(item: pytest.Item) -> str:
    """FILE.py::CLASS::TEST[PARAMETERS]: a test's id without the folder, and without what plugins add to it."""
    within = [node.name for node in item.listchain() if node.path == item.path]
    return "::".join([item.path.name, *within[1:]])


def _is_of(entry: str, test: str) -> bool:
    return entry.startswith((f"{test} on ", f"{test} ("))
