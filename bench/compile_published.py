"""Compiles the programs that `shardwright reproduce` needs into the package, so that nobody waits for them.

    python bench/compile_published.py [--missing]

Run it when the compiler or the programs of models have changed: `tests/prediction/test_programs.py` says so. A quarter
of an hour; with `--missing` only programs that are not there yet are made.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from shardwright.prediction import phases, programs
from shardwright.prediction.programs import SHIPPED, Deployment, Phase, WantedProgram, digest, read_shipped, shipped
from shardwright.reproduction import palm_frontiers
from shardwright.reproduction.figures import FIGURES
from shardwright.reproduction.reproduction import reproduce

EXAMPLES = Path(__file__).parents[1] / "examples/published"
"""A few of them to read."""


@contextmanager
def recorded() -> Generator[dict[str, WantedProgram], None, None]:
    """The programs that are priced meanwhile, by the names of their files."""
    asked: dict[str, WantedProgram] = {}
    known = programs.candidates

    def recording(deployment: Deployment, phase: Phase, batch: int, length: int) -> Iterator[WantedProgram]:
        for wanted in known(deployment, phase, batch, length):
            asked[f"{wanted.name}.shard"] = wanted
            yield wanted

    programs.candidates = recording
    try:
        yield asked
    finally:
        programs.candidates = known


def asked_for() -> dict[str, WantedProgram]:
    """The programs that all tables and figures ask for, by the names of their files."""
    for known in (palm_frontiers.sweep, palm_frontiers.short_prefills, phases.phase_kernels):
        known.cache_clear()  # what was priced before would not be asked for
    with recorded() as asked:
        reproduce("all")
        for figure in FIGURES.values():
            figure()
    return asked


def heading(text: str, passes: str) -> str:
    """The first line of a shipped program, which says what it was made of."""
    return f"# source {digest(text, passes)}, passes {passes}\n"


def made(wanted: WantedProgram) -> str:
    """The program as the compiler makes it, with what it was made of in its first line."""
    return heading(wanted.text, wanted.passes) + programs.compile_text(wanted.text, wanted.passes)


def write_shipped(texts: Mapping[str, str]) -> None:
    """Writes them, in one step and the same bytes for the same programs."""
    beside = SHIPPED.with_suffix(".part")
    with ZipFile(beside, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in sorted(texts.items()):
            archive.writestr(ZipInfo(name), text.encode("utf-8"), ZIP_DEFLATED)
    beside.replace(SHIPPED)
    shipped.cache_clear()


def main() -> int:
    """Writes what is asked for, removes the rest; 0."""
    known = read_shipped() if "--missing" in sys.argv else {}
    asked = asked_for()
    texts: dict[str, str] = {}
    for number, (name, wanted) in enumerate(sorted(asked.items()), 1):
        texts[name] = known.get(name, "")
        if not texts[name].startswith(heading(wanted.text, wanted.passes)):
            print(f"{number}/{len(asked)} {name}", flush=True)
            texts[name] = made(wanted)
    write_shipped(texts)
    for example in EXAMPLES.glob("*.shard"):
        example.write_text(texts[example.name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
