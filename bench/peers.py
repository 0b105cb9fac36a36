"""Other analytic models beside ours on tables 2 and D.2: llm-analysis and GenZ, in an environment of their own.

    python bench/peers.py [FOLDER]

FOLDER (a temporary one by default) gets the environment, from PyPI, and keeps it for the next run. They are given
tensor parallelism over all 64 chips, since neither knows 2D weight-stationary or weight-gathered layouts, or attention
over the batch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from statistics import median
from typing import Any

from shardwright.prediction.reproduction import Compared, compare
from shardwright.prediction.rows import Row, published

PACKAGES = ("llm-analysis==0.2.2", "genz-llm==0.0.16")
PEERS = ("llm-analysis", "genz")


def environment(folder: Path) -> Path:
    """The Python of an environment with both packages."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def asked(row: Row) -> dict[str, Any]:
    """The row as `peers_worker.py` takes it."""
    model, load = row.model.model, row.workload
    attention = model.attention
    return {
        "model": {
            "name": row.model.name,
            "layers": model.layers,
            "hidden": model.hidden,
            "heads": attention.heads,
            "kv_heads": attention.kv_heads,
            "head_dim": attention.head_dim,
            "feedforward": model.feedforward.size,
            "gated": model.feedforward.gated,
            "vocab": model.vocab,
        },
        "chips": row.n_chips,
        "batch": load.batch,
        "prompt": load.prompt,
        "generated": load.generated,
        "before": load.before,
        "phases": list(row.phases),
        "weights": row.deployment.weights,
    }


def answers(python: Path, rows: list[Row]) -> list[dict[str, Any]]:
    """What the peers predict, row by row."""
    lines = "".join(json.dumps(asked(row)) + "\n" for row in rows)
    worker = Path(__file__).with_name("peers_worker.py")
    ran = subprocess.run([python, worker], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def shown(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.0f} %"


def report(ours: list[Compared], theirs: list[dict[str, Any]]) -> None:
    """A line for each row, then the median of absolute errors."""
    errors: dict[str, list[float]] = {name: [] for name in ("ours", *PEERS)}
    print(f"{'row':<100} {'published':>10} {'ours':>8} " + " ".join(f"{name:>13}" for name in PEERS))
    for made, other in zip(ours, theirs, strict=True):
        found: dict[str, float | None] = {"ours": made.relative_error}
        for name in PEERS:
            seconds = other.get(name)
            found[name] = None if seconds is None else seconds / made.row.measured_s - 1
        for name, error in found.items():
            if error is not None:
                errors[name].append(abs(error))
        tail = " ".join(f"{shown(found[name]):>13}" for name in PEERS)
        print(f"{made.row.name:<100} {made.row.measured_s:>9.3f}s {shown(found['ours']):>8} {tail}")
    for name, values in errors.items():
        if values:
            print(f"{name}: median {100 * median(values):.1f} % over {len(values)} rows")
    for why in sorted({f"{name}: {text}" for other in theirs for name, text in other["errors"].items()}):
        print(f"gave up, {why}")


def main() -> int:
    """Prints the comparison; 0."""
    rows = [row for table in ("2", "d2") for row in published(table) if row.group == "pope2022 tpu-v4"]
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "peers")
        report(compare(rows), answers(python, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
