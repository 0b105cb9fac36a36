"""Compiles the programs that `shardwright reproduce` needs into the package, so that nobody waits for them.

    python bench/compile_published.py [--missing]

Run it when the compiler or the programs of models have changed: `tests/prediction/test_programs.py` says so. Minutes;
with `--missing` only programs that are not there yet are made.
"""

from __future__ import annotations

import sys

from shardwright.ir.program import Program
from shardwright.prediction import programs
from shardwright.prediction.programs import SHIPPED, file_name
from shardwright.prediction.reproduction import reproduce


def asked_for() -> set[tuple[str, str]]:
    """The text of every model's program that reproducing all tables asks for, with the passes that are run on it."""
    asked: set[tuple[str, str]] = set()
    compiled = programs.compiled

    def recording(text: str, passes: str) -> Program:
        asked.add((text, passes))
        return compiled(text, passes)

    programs.compiled = recording
    try:
        reproduce("all")
    finally:
        programs.compiled = compiled
    return asked


def main() -> int:
    """Writes what is asked for, removes the rest; 0."""
    SHIPPED.mkdir(exist_ok=True)
    if "--missing" not in sys.argv:
        for file in SHIPPED.glob("*.shard"):
            file.unlink()
    asked = {file_name(text, passes): (text, passes) for text, passes in asked_for()}
    for file in SHIPPED.glob("*.shard"):
        if file.name not in asked:
            file.unlink()
    for number, (name, (text, passes)) in enumerate(sorted(asked.items()), 1):
        if not (SHIPPED / name).exists():
            print(f"{number}/{len(asked)} {name}", flush=True)
            made = programs.own_folder() / name
            (SHIPPED / name).write_text(
                made.read_text(encoding="utf-8") if made.exists() else programs.compile_text(text, passes),
                encoding="utf-8",
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
