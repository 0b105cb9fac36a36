"""The assertion that a compiled function has certain collectives, and what is said where it has others."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.asserting.lock import UPDATE, read_lock
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault, located

if TYPE_CHECKING:
    from shardwright.backends.hlo.notation import CollectiveEntry
    from shardwright.explaining.reports import CollectiveReport, Explanation


@dataclass
class RunningTest:
    """The test that pytest runs: its name in the lock file, that file, and the entries asserted so far. With `update`
    they are not compared, for they are to be written."""

    name: str
    lock: Path
    update: bool
    asserted: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


running: RunningTest | None = None
"""The plugin of pytest sets it while a test's own function runs."""


def assert_collectives(
    function: Callable[..., Any],
    args: Sequence[Any],
    mesh: Mapping[str, int] | Any,
    expected: str | None = None,
    *,
    at_most: int | None = None,
    target: str | None = None,
    name: str | None = None,
) -> None:
    """Asserts that a function of JAX, compiled for `args`, has the collectives `expected` and no others.

    `expected` is a text in the notation of `backends.hlo.notation`, as `"all_gather[yz] 4423680; all_reduce[x] 1024 *
    12"`. Without it, and with `at_most`, a chip may receive that many bytes by whatever collectives. With neither, the
    running test's entry in the lock file beside it is what is expected; `name` tells several in one test apart.

    `args` are arrays or `jax.ShapeDtypeStruct`s with shardings over `mesh`, a mesh of JAX or a mapping from axis to
    size; with a `target`, as `"tpu-v4:2x2x1"`, on devices of any kind or on an abstract mesh. Raises an
    `AssertionError` that says what is missing, extra and changed, and a `DiagnosticError` where something cannot be
    compiled or read.
    """
    from shardwright.backends.targets.mesh_sizes import sizes_of

    __tracebackhide__ = True  # of pytest: the place is the line of the test
    try:
        with located(Source("assert_collectives", "")):
            wrong = _wrong(function, args, sizes_of(mesh), expected, at_most, target, name)
    except DiagnosticError as error:
        raise error.with_traceback(None) from None
    if wrong:
        raise AssertionError(wrong)


def _wrong(
    function: Callable[..., Any],
    args: Sequence[Any],
    mesh: Mapping[str, int],
    expected: object,
    at_most: int | None,
    target: str | None,
    name: str | None,
) -> str | None:
    """The message to be said where something else is expected."""
    from shardwright.backends.hlo.notation import parse_entries
    from shardwright.explaining.explain import explain

    if not isinstance(expected, str | None):
        said = f"expected is no text but a {type(expected).__name__}"
        raise fault("bad-collectives", said, NOWHERE, "write several collectives as one text, with `;` between them")
    text = Source("<expected>", expected or "")
    with located(text):
        wanted = None if expected is None else parse_entries(text, mesh)
    if expected is None and at_most is None and running is None:
        raise fault(
            "no-expectation",
            "there is no text to compare with, and no test of pytest runs that could have a lock file",
            NOWHERE,
            "pass the collectives as text, or at_most=BYTES, or call it in a test's own function",
        )
    compiled = _Compiled(explain(function, target, mesh, args=args), mesh)
    if at_most is not None and (compiled.bytes_received > at_most or not compiled.all_trips):
        return compiled.above(at_most)
    if wanted is not None:
        return compiled.difference(wanted, "expected", "")
    return _wrong_for_lock(running, compiled, name) if at_most is None and running is not None else None


def _wrong_for_lock(test: RunningTest, compiled: _Compiled, name: str | None) -> str | None:
    """Compares with the entry of a lock file, unless it is to be written."""
    from shardwright.backends.hlo.notation import entries_text, parse_entries

    entry = f"{test.name}{f' ({name})' if name else ''} on {compiled.target}"
    if entry in test.asserted:
        raise fault("entry-twice", f"{entry} is asserted twice in one test", NOWHERE, "tell them apart by name='...'")
    now = test.asserted[entry] = entries_text(compiled.entries)
    lock = read_lock(test.lock)
    if test.update:
        return None
    command = f"pytest {UPDATE} {shlex.quote(_from_here(f'{test.lock.parent}{os.sep}{test.name}'))}"
    if entry not in lock.entries:
        collectives = "\n  ".join(now)
        return f"{_from_here(test.lock)} has no entry {entry}\nnow:\n  {collectives}\nto write it: {command}"
    with located(lock.source):
        try:
            wanted = parse_entries(lock.source, compiled.mesh, lock.entries[entry])
        except DiagnosticError as error:
            error.remark(f"to write it anew: {command}")
            raise
    place = f"of {_from_here(f'{test.lock}:{lock.entries[entry].start - 1}')}"
    return compiled.difference(wanted, place, f"if this is meant: {command}")


class _Compiled:
    """A compiled function's collectives as entries."""

    def __init__(self, explained: Explanation, mesh: Mapping[str, int]) -> None:
        from shardwright.backends.hlo.notation import CollectiveEntry

        if explained.errors:
            raise explained.errors[0]
        (func,) = explained.functions
        self.name, self.target, self.mesh = func.name, explained.target, mesh
        self.bytes_received, self.all_trips = func.bytes_received, func.all_trips
        self.reports: dict[CollectiveEntry, list[CollectiveReport]] = {}
        for report in func.collectives:
            if report.trips != 0:
                entry = CollectiveEntry(
                    report.op, report.axes, report.bytes_received // (report.trips or 1), report.trips
                )
                self.reports.setdefault(entry, []).append(report)
        self.entries = Counter({entry: len(reports) for entry, reports in self.reports.items()})

    @property
    def _head(self) -> str:
        sizes = " ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        return f"{self.name} on {self.target}, mesh {sizes}"

    def above(self, at_most: int) -> str:
        """The message where a chip receives too much: every collective, those that receive most first."""
        said = f"{self._head}: a chip receives {self.bytes_received} bytes, more than the {at_most} allowed"
        if self.bytes_received <= at_most:
            said = (
                f"{self._head}: at most {at_most} bytes are allowed, and how many trips a loop makes is not in the"
                " module: give the collectives, as `* ?`, in place of at_most"
            )
        order = sorted(self.entries.elements(), key=lambda entry: -entry.bytes_received)
        return "\n".join([said, *_table(Counter(("", str(entry), self._where(entry)) for entry in order))])

    def difference(self, wanted: Counter[CollectiveEntry], of: str, way_out: str) -> str | None:
        """The message where other collectives are wanted, which are those `of` something: what is missing, what is
        extra, and of what the bytes or the trips are others; then all of them in a form to be copied."""
        from shardwright.backends.hlo.notation import entries_text

        if wanted == self.entries:
            return None
        missing, extra = (list(entries.elements()) for entries in (wanted - self.entries, self.entries - wanted))
        rows: Counter[tuple[str, str, str]] = Counter()
        for entry in missing:
            now = next((each for each in extra if (each.op, each.axes) == (entry.op, entry.axes)), None)
            if now is None:
                rows["missing", str(entry), ""] += 1
            else:
                extra.remove(now)
                rows["changed", str(now), f"expected {entry}; {self._where(now)}"] += 1
        rows.update(("extra", str(entry), self._where(entry)) for entry in extra)
        same = (wanted & self.entries).total()
        received, before = (sum(e.bytes_received for e in entries.elements()) for entries in (self.entries, wanted))
        return "\n".join(
            [
                f"{self._head}: the collectives are not those {of}",
                *_table(rows),
                f"  {same} as expected; a chip receives {received} bytes, expected {before}",
                "now:",
                *(f"  {line}" for line in entries_text(self.entries)),
                *([way_out] if way_out else []),
            ]
        )

    def _where(self, entry: CollectiveEntry) -> str:
        """The least that the movement needs, in one trip, and the lines that it comes from."""
        reports = self.reports[entry]
        least = dict.fromkeys(str(report.lower_bound_bytes // (report.trips or 1)) for report in reports)
        places = dict.fromkeys(_from_here(report.source) for report in reports if report.source)
        return f"least {' or '.join(least)}{', from ' if places else ''}{', '.join(places)}"


def _from_here(source: str | Path) -> str:
    """FILE:LINE, or a file, relative to the working directory where it lies in it."""
    return str(source).removeprefix(f"{Path.cwd()}{os.sep}")


def _table(rows: Counter[tuple[str, str, str]]) -> list[str]:
    """Lines of what a collective is, the collective with how many there are, and what is to be said of it."""
    cells = [(kind, f"{count}x {entry}" if count > 1 else entry, said) for (kind, entry, said), count in rows.items()]
    kinds, entries = (max((len(row[i]) for row in cells), default=0) for i in range(2))
    return [f"  {kind:<{kinds}}  {entry:<{entries}}  {said}".rstrip() for kind, entry, said in cells]
