"""Compiles the programs of all published rows into the package, so that `shardwright reproduce` need not.

    python bench/compile_published.py

Run it when the compiler or the programs of models have changed: `tests/prediction/test_programs.py` says so. Minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shardwright.prediction.programs import PASSES, SHIPPED, compile_text, compiled_file, surface_text
from shardwright.prediction.rows import TABLES, Row, published


def wanted(rows: list[Row]) -> dict[Path, tuple[str, str]]:
    """The file of each program with its text and the passes that are run on it."""
    made: dict[Path, tuple[str, str]] = {}
    for row in rows:
        for phase in row.phases:
            deployment, batch = row.deployment, row.workload.batch
            micro = [batch >> i for i in range(3) if row.stages > 1 and batch % (1 << i) == 0] or [batch]
            for size in micro:
                file = compiled_file(deployment, phase, size, row.workload.prompt)
                text = surface_text(deployment, phase, size, row.workload.prompt)
                made[file] = text, PASSES[deployment.weights]
    return made


def main() -> int:
    """Writes what is missing or differs, removes what no row needs; 0."""
    files = wanted([row for table in TABLES for row in published(table)])
    SHIPPED.mkdir(exist_ok=True)
    for stale in set(SHIPPED.glob("*.shard")) - set(files):
        stale.unlink()
    for number, (file, (text, passes)) in enumerate(sorted(files.items()), 1):
        print(f"{number}/{len(files)} {file.name}", flush=True)
        if "--missing" not in sys.argv or not file.exists():
            file.write_text(compile_text(text, passes), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
