"""`reproduce`: published tables beside predictions, and beside what this machine measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from shardwright.reproduction import offload_rows
from shardwright.reproduction.reproduction import Progress, reproduced
from shardwright.reproduction.tables import Measurements, ReproducedTable

if TYPE_CHECKING:
    from shardwright.measuring.modules import Limit

TIME_LIMIT_S: Final = 180.0
"""Seconds that the measurements of all tables may take; the one that is under way then has a minute more."""

_NOTHING = Measurements(notes=("not measured: no compiler and no small model here gives such figures",))


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
    modules that the targets' compilers make, and a small model's throughput; `measuring` is told of each. Statements
    come first, before rows of times, whose programs are many. Raises where there is no such table, or the file is at
    fault.
    """
    tables = reproduced(name, progress)
    if not measure:
        return tables
    from shardwright.measuring.modules import Limit

    limit = Limit(time_limit_s, measuring)
    order = sorted(range(len(tables)), key=lambda at: bool(tables[at].rows))
    made = {at: _measured(tables[at], limit) for at in order}
    return [replace(table, measured=made[at]) for at, table in enumerate(tables)]


def _measured(table: ReproducedTable, limit: Limit) -> Measurements:
    from shardwright.measuring import rows, statements

    if table.rows:
        return rows.measured([made.row for made in table.rows], limit)
    if table.name in statements.TABLES:
        return statements.measured(table.name, limit)
    if table.name in offload_rows.TABLES:
        from shardwright.measuring import cores

        return cores.measured(offload_rows.TABLES[table.name][1](), limit)
    return _NOTHING
