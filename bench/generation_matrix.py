"""Greedy tokens beside those of transformers' `generate`: every architecture, preset, attention, prefill and mesh.

    python bench/generation_matrix.py [--all] [--record FILE] [--recorded] [--fresh] [--processes P] [-o FILE.md]

By itself the cells that `make test` runs, which cover every pair of choices; with `--all` the whole matrix, half an
hour of one core. A line of JSON for each cell that ran goes to the record, and cells that it has are not run again, so
that a long run can be broken off; `--fresh` forgets it. Prints the tables of docs/generation-matrix.md, which `-o`
writes. Exit status 1 if any tokens differ.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(  # each program runs a few times, so that optimizing its code is not worth the time
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
)
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from models.checkpoints import ARCHITECTURES, CHECKPOINTS, make_checkpoint
from models.generation_cells import MESHES, Cell, matrix, pairwise

from shardwright.models.layouts import PRESETS

RECORD = Path(tempfile.gettempdir()) / "shardwright-generation-matrix.jsonl"
BATCH = 24
"""Cells that one process runs; what it ran is on record when it is done."""


@dataclass(frozen=True)
class Outcome:
    """One cell: whether all tokens are equal, how far the log-probabilities are (over the largest; None where they were
    not asked for), the least gap between the first and the second token at any step, what the layout had to leave
    whole, and the seconds that it took. `error` says what went wrong, if something did."""

    cell: str
    equal: bool
    difference: float | None
    gap: float
    dropped: tuple[str, ...]
    seconds: float
    error: str = ""


def run(cells: Sequence[Cell]) -> list[Outcome]:
    """The outcomes of cells of one checkpoint."""
    import jax
    from models.greedy_generation import difference, dropped, equal, generate, truth

    made: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(cells[0].checkpoint, Path(folder) / cells[0].checkpoint)
        wanted = truth(checkpoint)
        for cell in cells:
            began = time.perf_counter()
            alike, apart, error = False, None, ""
            try:
                found = generate(checkpoint, cell, wanted.prompts)
                alike, apart = equal(found, wanted), difference(found, wanted) if cell.scored else None
            except Exception as fault:  # noqa: BLE001 - any failure is a finding, and the others go on
                error = f"{type(fault).__name__}: {str(fault)[:200]}"
            seconds = round(time.perf_counter() - began, 2)
            made.append(Outcome(str(cell), alike, apart, wanted.gap, dropped(checkpoint, cell), seconds, error))
            jax.clear_caches()
    return made


def read(record: Path) -> dict[str, Outcome]:
    """What has run already, by the text of the cell; the last, where one ran several times."""
    if not record.exists():
        return {}
    outcomes = (Outcome(**json.loads(line)) for line in record.read_text(encoding="utf-8").splitlines())
    return {outcome.cell: outcome for outcome in outcomes}


def missing(cells: Sequence[Cell], record: Path) -> list[list[Cell]]:
    """The cells that the record lacks, or that failed, a few of one checkpoint together, checkpoints in turn."""
    known = {text for text, outcome in read(record).items() if not outcome.error}
    batches: list[tuple[int, list[Cell]]] = []
    for _, group in groupby((c for c in cells if str(c) not in known), key=lambda cell: cell.checkpoint):
        own = list(group)
        batches += [(at, own[at : at + BATCH]) for at in range(0, len(own), BATCH)]
    return [batch for _, batch in sorted(batches, key=lambda pair: pair[0])]


def run_missing(cells: Sequence[Cell], record: Path, processes: int) -> None:
    """Runs the cells that the record lacks, each batch in a process of its own, which gives its memory back."""
    batches = missing(cells, record)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1) as pool:
        done = 0
        for future in as_completed([pool.submit(run, batch) for batch in batches]):
            outcomes = future.result()
            with record.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
            done += len(outcomes)
            print(f"{done} of {sum(map(len, batches))}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the tables


def tables(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> str:
    """Totals, a row for each checkpoint, and presets against meshes, of the cells that have run."""
    found = {cell: outcomes[str(cell)] for cell in cells if str(cell) in outcomes}
    equal, fell_back = sum(o.equal for o in found.values()), sum(bool(o.dropped) for o in found.values())
    lines = [
        f"- {equal} of {len(found)} cells give the tokens of transformers; {len(cells) - len(found)} have not run yet.",
        f"- In {fell_back} of them the layout leaves a dimension on fewer axes, since the others do not divide it.",
        f"- In {sum(c.scored for c in found)} the log-probabilities of all tokens, given and new, were asked for too:",
        f"  they are within {_largest(found.values())} of the largest.",
        "",
        "| checkpoint | architecture | cells | equal | not divisible | log-probabilities | least gap |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in [*ARCHITECTURES, *(name for name in CHECKPOINTS if name not in ARCHITECTURES)]:
        own = [outcome for cell, outcome in found.items() if cell.checkpoint == name]
        if own:
            lines.append(
                f"| {name} | {CHECKPOINTS[name][0]} | {len(own)} | {sum(o.equal for o in own)} |"
                f" {sum(bool(o.dropped) for o in own)} | {_largest(own)} |"
                f" {min(o.gap for o in own):.1e} |"
            )
    lines += ["", "By the preset of decode and the mesh, equal of all:", ""]
    lines += [f"| preset | {' | '.join(str(mesh) for mesh in MESHES)} |", "|---|" + "---|" * len(MESHES)]
    for layout in PRESETS:
        counts = [_share(found[c] for c in found if c.layout == layout and c.mesh == mesh) for mesh in MESHES]
        lines.append(f"| `{layout}` | {' | '.join(counts)} |")
    lines += ["", "By the preset of prefill, beside that of decode, equal of all:", ""]
    lines += [f"| decode | {' | '.join(f'`{name}`' for name in PRESETS)} |", "|---|" + "---|" * len(PRESETS)]
    for layout in PRESETS:
        counts = [_share(found[c] for c in found if c.layout == layout and c.prefill == name) for name in PRESETS]
        lines.append(f"| `{layout}` | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n"


def _largest(outcomes: Iterable[Outcome]) -> str:
    return f"{max((o.difference for o in outcomes if o.difference is not None), default=0.0):.1e}"


def _share(outcomes: Iterable[Outcome]) -> str:
    own = list(outcomes)
    return f"{sum(o.equal for o in own)} of {len(own)}" if own else ""


DOCUMENT = """# Greedy generation beside transformers

    python bench/generation_matrix.py --all -o docs/generation-matrix.md

For every checkpoint, small and random in every weight, 8 prompts of 1 to 11 tokens are continued by 16 tokens in
float32: by the `generate` of transformers, each prompt by itself, and by `shardwright.generate`, all prompts together,
read in chunks of 5 tokens, on virtual CPU devices. A cell is a checkpoint, the preset of decode, attention over heads
or batch, a mesh, the preset of prefill, and whether log-probabilities are asked for. Each architecture meets every
preset, attention and mesh with prefill in the same preset, and again with one of the others that store weights alike,
which take turns; the variants meet every preset, all else in turn. `make test-all` runs every cell, `make test` a
subset with each architecture, in which each feature of one (grouped heads, a window, experts) meets each attention and
each way to store weights over several chips, and each pair of the other choices occurs
(`tests/models/test_generation_matrix.py`).

The *gap* is by how much the greedy token is ahead of the next, over the largest logit, at its least: prompts are chosen
so that no step is nearer to a tie than rounding could turn.

"""


def document(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> str:
    """docs/generation-matrix.md."""
    return DOCUMENT + tables(cells, outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="the whole matrix")
    parser.add_argument("--record", type=Path, default=RECORD, help=f"a line for each cell (default: {RECORD})")
    parser.add_argument("--recorded", action="store_true", help="run nothing: only what is on record")
    parser.add_argument("--fresh", action="store_true", help="forget the record")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, help="write the document with the tables")
    given = parser.parse_args()
    choose: Callable[[], list[Cell]] = matrix if given.all else pairwise
    cells = choose()
    if given.fresh:
        given.record.unlink(missing_ok=True)
    if not given.recorded:
        run_missing(cells, given.record, given.processes)
    outcomes = read(given.record)
    ran = [outcomes[str(cell)] for cell in cells if str(cell) in outcomes]
    wrong = [outcome for outcome in ran if not outcome.equal]
    for outcome in wrong:
        print(f"{outcome.cell}: {outcome.error or 'tokens differ'}")
    if given.output is not None:
        given.output.write_text(document(cells, outcomes), encoding="utf-8")
    else:
        print(tables(cells, outcomes))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
