"""Measurements of this machine beside published figures: compiled modules, and small models on its cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.reproduction import offload_rows
from shardwright.reproduction.measuring.limit import Limit
from shardwright.reproduction.tables import Measurements, ReproducedTable

_NOTHING = Measurements(notes=("not measured: no compiler and no small model here gives such figures",))


def measured(tables: Sequence[ReproducedTable], limit: Limit) -> list[ReproducedTable]:
    """The tables with what this machine can measure beside each. Statements come first, before rows of times, whose
    programs are many."""
    order = sorted(range(len(tables)), key=lambda at: bool(tables[at].rows))
    made = {at: _beside(tables[at], limit) for at in order}
    return [replace(table, measured=made[at]) for at, table in enumerate(tables)]


def _beside(table: ReproducedTable, limit: Limit) -> Measurements:
    from shardwright.reproduction.measuring import rows, statements

    if table.rows:
        return rows.measured([made.row for made in table.rows], limit)
    if table.name in statements.TABLES:
        return statements.measured(table.name, limit)
    if table.name in offload_rows.TABLES:
        from shardwright.reproduction.measuring import small_models

        return small_models.measured(offload_rows.TABLES[table.name][1](), limit)
    return _NOTHING
