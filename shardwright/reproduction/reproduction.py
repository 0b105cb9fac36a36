"""Published rows beside predictions, with the chip's constants calibrated on one table or taken from its datasheet."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Final

from shardwright.cost.hardware.calibration import Fit, Sample, calibrate, predicted_s
from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.constants import DATASHEET, Constants
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault, located, nearest
from shardwright.prediction.phases import demands, wanted_of
from shardwright.prediction.programs import WantedProgram, compiled_text, is_compiled
from shardwright.reproduction import offload_figures, offload_files, offload_rows, swarm_rows
from shardwright.reproduction.checks import Check
from shardwright.reproduction.claims import claims
from shardwright.reproduction.published_checks import chen, table_1
from shardwright.reproduction.rows import TABLES, PublishedRow, file_source, published, read_rows
from shardwright.reproduction.tables import ReproducedTable, RowComparison


def sample_of(row: PublishedRow, constants: Constants | None = None) -> Sample:
    """The measured time with the kernels that ran in it, those that loops hide under the constants left out."""
    made = [
        pair
        for phase in row.phases
        for pair in demands(row.deployment, row.chip, phase, row.workload, row.stages, constants)
    ]
    return Sample(row.measured_s, tuple(made))


def credible(row: PublishedRow) -> Sample:
    """`sample_of` a row whose time says something of its chip.

    Raises where it is less than half of what the chip's units and memory take at their datasheet's rates, everything
    else for nothing, or more than a thousand times what all of it takes there.
    """
    sample = sample_of(row)
    least = sum(n * max(d.compute_s, d.vector_s, d.memory_s) for n, d in sample.demands)
    most = predicted_s(sample, DATASHEET)
    if not least / 2 <= row.measured_s <= 1000 * most:
        took = f"{row.measured_s:.3g} s, where the datasheet's rates give {least:.3g} to {most:.3g} s"
        note = "is the time in the unit of its column and of all output tokens, and did this model run on these chips?"
        raise fault("bad-row", f"{row.name} took {took}", row.span, note)
    return sample


def calibration_rows(group: str) -> list[PublishedRow]:
    """The rows of table D.2 that the constants of a group are fitted on: of Pope et al.'s system PaLM's alone."""
    rows = [row for row in published("d2") if row.group == group]
    return [row for row in rows if not group.startswith("pope2022") or row.model.name.startswith("palm")]


@cache
def fitted(group: str) -> Fit | None:
    """The constants of a group; None where table D.2 has none of its rows."""
    rows = calibration_rows(group)
    return calibrate([sample_of(row) for row in rows]) if rows else None


def _fit_of(row: PublishedRow) -> Fit | None:
    """The constants that were fitted to the system and the very chip of a row; None where there are none. A file of the
    user's own may have the name of a chip and other constants."""
    rows = calibration_rows(row.group)
    return fitted(row.group) if rows and rows[0].chip == row.chip else None


def compare(rows: Iterable[PublishedRow], constants: Mapping[str, Constants] | None = None) -> list[RowComparison]:
    """Predicts each row with the constants of its group."""
    made: list[RowComparison] = []
    for row in rows:
        own = (constants or {}).get(row.group)
        fit = _fit_of(row) if own is None else None
        chosen = own or (fit.constants if fit is not None else None)
        best, datasheet = (predicted_s(sample_of(row, c), c) for c in (chosen or row.chip.constants, DATASHEET))
        how = "calibrated" if chosen is not None else _constants_in_words(row.chip)
        made.append(RowComparison(row, best, datasheet, chosen is not None, how))
    return made


def _constants_in_words(chip: Chip) -> str:
    """The constants that price a row of a system that nothing was fitted on."""
    if chip.calibrated is not None:
        return f"constants of {chip.name}"
    return "datasheet" if chip.inherited is None else f"constants inherited from {chip.inherited.chip}"


CHECKS: Mapping[str, tuple[str, Callable[[], list[Check]]]] = {
    "1": ("Pope et al. 2022, table 1: the longest context on 64 TPU v4", table_1),
    "claims": ("Pope et al. 2022: what is said in sentences", claims),
    "chen": ("Chen 2022, Transformer Inference Arithmetic", chen),
    **{name: (title, partial(offload_rows.checks, name)) for name, (title, _) in offload_rows.TABLES.items()},
    "flexgen-13": (swarm_rows.TITLE, swarm_rows.petals_checks),
}
"""Published numbers that are no rows of times: a title, and what compares them."""

FIGURES: Mapping[str, tuple[str, Callable[[], list[Check]]]] = {
    name: (title, checks) for name, (title, checks, _) in offload_figures.FIGURES.items()
}
"""Figures whose numbers take a search for policies, so that they are not among `all`."""


Progress = Callable[[int, int, str], None]
"""Is told before a program is compiled: its number from 1, of how many, and its name."""


def _compare_file(source: Source, progress: Progress | None) -> Iterator[RowComparison]:
    """The rows of a file; what is said of one is said at its line."""
    rows = read_rows(source.text, source.name, Path(source.name).stem)
    with located(source):
        wanted: dict[str, WantedProgram] = {}
        for row in rows:
            with _said_of(row):
                made = [
                    one for phase in row.phases for one in wanted_of(row.deployment, phase, row.workload, row.stages)
                ]
            wanted |= {one.name: one for one in made if not is_compiled(one)}
        for number, one in enumerate(wanted.values(), 1):
            if progress is not None:
                progress(number, len(wanted), one.name)
            with suppress(DiagnosticError):  # said of its row below
                compiled_text(one.text, one.passes)
        for row in rows:
            with _said_of(row):
                (compared,) = compare([row])
            yield compared


@contextmanager
def _said_of(row: PublishedRow) -> Generator[None, None, None]:
    try:
        yield
    except DiagnosticError as error:
        found = error.diagnostics[0]
        notes = [note.message for note in found.notes]
        raise fault(found.code, f"{row.name}: {found.message}", row.span, *notes) from None


TIME_LIMIT_S: Final = 180.0
"""Seconds that the measurements of all tables may take; the one that is under way then has a minute more."""


def reproduce(
    name: str,
    progress: Progress | None = None,
    *,
    measure: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    measuring: Callable[[str], object] = lambda _: None,
) -> list[ReproducedTable]:
    """A table or figure by its name (`d2`, `table_2`, `flexgen-figure-1`), all tables for `all`, or a .csv file's rows,
    whose programs may have to be compiled first, which `progress` is told of.

    With `measure` each has beside it what this machine can measure, in so many seconds for all of them: bytes of
    modules that the targets' compilers make, and a small model's throughput; `measuring` is told of each. Raises where
    there is no such table, or the file is at fault.
    """
    tables = _predicted(name, progress)
    if not measure:
        return tables
    from shardwright.reproduction.measuring import measured
    from shardwright.reproduction.measuring.limit import Limit

    return measured(tables, Limit(time_limit_s, measuring))


def _predicted(name: str, progress: Progress | None) -> list[ReproducedTable]:
    names = [*TABLES, *CHECKS]
    if name.endswith(".csv"):
        offloaded = offload_files.file_checks(source := file_source(name))
        rows = tuple(_compare_file(source, progress)) if offloaded is None else ()
        if not rows and not offloaded:
            with located(Source(name, "")):
                note = "a row without one has OOM or - in its place, and is left out"
                raise fault("no-rows", f"{Path(name).name} has no measured times", NOWHERE, note)
        return [ReproducedTable(name, rows, tuple(offloaded or ()))]
    key = name.lower().removeprefix("table").strip(" _.-").replace(".", "").replace("_", "-")
    if name != "all" and key not in (*names, *FIGURES):
        near = nearest(name, (*names, *FIGURES))
        with located(Source(name, "")):
            listed = f"the tables are {', '.join((*names, *FIGURES))}; or the path of a .csv file"
            raise fault("unknown-table", f"there is no table {name}", NOWHERE, near, listed)
    made: list[ReproducedTable] = []
    for chosen in names if name == "all" else [key]:
        if chosen in TABLES:
            made.append(ReproducedTable(TABLES[chosen].title, tuple(compare(published(chosen))), name=chosen))
        else:
            title, checks = (CHECKS if chosen in CHECKS else FIGURES)[chosen]
            made.append(ReproducedTable(title, checks=tuple(checks()), name=chosen))
    return made


def rows_of(name: str) -> list[PublishedRow]:
    """The rows of times of a table or a .csv file. Raises as `reproduce`."""
    return [made.row for table in reproduce(name) for made in table.rows]
