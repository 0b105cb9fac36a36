"""Compiles the programs that `shardwright reproduce` needs into the package, so that nobody waits for them.

    python bench/compile_published.py [--missing]

Run it when the compiler or the programs of models have changed: `tests/prediction/test_programs.py` says so. A quarter
of an hour; with `--missing` only programs that are not there yet are made.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from shardwright.prediction import palm_frontiers, phases, programs
from shardwright.prediction.figures import FIGURES
from shardwright.prediction.programs import SHIPPED, Deployment, Phase, Wanted, heading
from shardwright.prediction.reproduction import reproduce


@contextmanager
def recorded() -> Generator[dict[str, Wanted], None, None]:
    """The programs that are priced meanwhile, by the names of their files."""
    asked: dict[str, Wanted] = {}
    known = programs.candidates

    def recording(deployment: Deployment, phase: Phase, batch: int) -> Iterator[Wanted]:
        for wanted in known(deployment, phase, batch):
            asked[f"{wanted.name}.shard"] = wanted
            yield wanted

    programs.candidates = recording
    try:
        yield asked
    finally:
        programs.candidates = known


def asked_for() -> dict[str, Wanted]:
    """The programs that all tables and figures ask for, by the names of their files."""
    for known in (palm_frontiers.sweep, palm_frontiers.short_prefills, phases.phase_kernels):
        known.cache_clear()  # what was priced before would not be asked for
    with recorded() as asked:
        reproduce("all")
        for figure in FIGURES.values():
            figure()
    return asked


def write(file: Path, wanted: Wanted) -> None:
    """The program as the compiler makes it, with what it was made of in its first line."""
    made = programs.compile_text(wanted.text, wanted.passes)
    file.write_text(heading(wanted.text, wanted.passes) + made, encoding="utf-8")


def main() -> int:
    """Writes what is asked for, removes the rest; 0."""
    SHIPPED.mkdir(exist_ok=True)
    if "--missing" not in sys.argv:
        for file in SHIPPED.glob("*.shard"):
            file.unlink()
        programs.shipped.cache_clear()
    asked = asked_for()
    for file in SHIPPED.glob("*.shard"):
        if file.name not in asked:
            file.unlink()
    for number, (name, wanted) in enumerate(sorted(asked.items()), 1):
        file = SHIPPED / name
        first = heading(wanted.text, wanted.passes)
        if not file.exists() or not file.read_text(encoding="utf-8").startswith(first):
            print(f"{number}/{len(asked)} {name}", flush=True)
            write(file, wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
