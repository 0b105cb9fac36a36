"""Other analytic models beside ours on tables 2 and D.2 of Pope et al. 2022: llm-analysis and genz-llm, from PyPI.

Run with `python bench/peers.py`; `--env FOLDER` keeps the environment that they are installed into. Both know tensor
parallelism as Megatron has it and no other layout, so a row's layout is not told to them; their efficiencies are 1.
Where one refuses a row, what it says stands in place of a time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from shardwright.cost.hardware.networks import Torus
from shardwright.reproduction.reproduction import compare
from shardwright.reproduction.rows import PublishedRow, published

PACKAGES = ("llm-analysis==0.2.2", "genz-llm==0.0.16")


def python_of(folder: Path) -> Path:
    """The interpreter of an environment with the peers, which is made where it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def told(row: PublishedRow) -> dict[str, Any]:
    """What a peer is told of a row."""
    model, chip = row.model.model, row.chip
    torus = chip.interconnect
    assert isinstance(torus, Torus)
    return {
        "layers": model.layers, "hidden": model.hidden, "feedforward": model.feedforward.size, "vocab": model.vocab,
        "heads": model.attention.heads, "kv_heads": model.attention.kv_heads, "head_dim": model.attention.head_dim,
        "gated": model.feedforward.gated, "chips": row.n_chips, "batch": row.workload.batch,
        "bits": 8 if row.deployment.weights == "int8" else 16, "before": row.workload.before,
        "generated": row.workload.generated, "phases": list(row.phases), "memory": chip.memory_bytes,
        "bandwidth": chip.memory_bytes_per_s, "flops": chip.flops_per_s["bf16"],
        "links": 2 * len(torus.pod) * torus.link_bytes_per_s,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", type=Path, help="a folder for the environment, made if need be (default: temporary)")
    args = parser.parse_args()
    rows = [row for table in ("2", "d2") for row in published(table) if isinstance(row.chip.interconnect, Torus)]
    with tempfile.TemporaryDirectory() as temporary:
        python = python_of(args.env or Path(temporary) / "peers")
        inside = Path(__file__).parent / "peers_inside.py"
        asked = json.dumps([told(row) for row in rows])
        ran = subprocess.run([python, "-W", "ignore", inside], input=asked, capture_output=True, text=True, check=False)
    if ran.returncode:
        print(ran.stderr, file=sys.stderr)
        return 1
    answers = json.loads(ran.stdout.splitlines()[-1])
    print(f"{'row':84} {'published':>10} {'ours':>8} {'llm-analysis':>13} {'genz-llm':>9}")
    for ours, answer in zip(compare(rows), answers, strict=True):
        said = [error(answer[peer], ours.row.measured_s) for peer in ("llm-analysis", "genz-llm")]
        print(
            f"{ours.row.table + ' ' + ours.row.name:84} {1e3 * ours.row.measured_s:7.4g} ms"
            f" {100 * ours.relative_error:+7.1f}% {said[0]:>13} {said[1]:>9}"
        )
    reasons = {
        f"{peer}: {made['gives_up']}" for answer in answers for peer, made in answer.items() if "gives_up" in made
    }
    print(*sorted(reasons), sep="\n")
    return 0


def error(answer: dict[str, Any], measured_s: float) -> str:
    """The signed error in percent, or that there is no answer."""
    return "gives up" if "gives_up" in answer else f"{100 * (answer['seconds'] / measured_s - 1):+.1f}%"


if __name__ == "__main__":
    sys.exit(main())
