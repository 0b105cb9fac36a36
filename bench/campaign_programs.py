"""A campaign of random programs against an oracle of the tests' own: in the simulator, and with --jax under JAX too.

    python bench/campaign_programs.py [--programs N] [--seed S] [--jobs J] [--seconds LIMIT] [--jax] [--log FILE]

Program number s is the same everywhere (`tests/oracles/random_programs`, docs/testing.md): drawn from the
documentation, computed in plain numpy, then checked, compiled, printed and run. Prints what ran as a table, and each
kind of failure with its seeds and, for the first of them, a shrunk program. A program that runs past its limit of
seconds is counted and listed. With --log every seed is a line of JSON as it ends, and seeds that stand there already
are not run again. Exit status 1 if there was any failure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests"), str(Path(__file__).resolve().parent.parent)]

SHRINK_SECONDS = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first program's number")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, help="limit for one program (default: 10, with --jax 120)")
    parser.add_argument("--stop-after", type=float, help="seconds after which no further program begins")
    parser.add_argument("--jax", action="store_true", help="also the emitted module, on 8 virtual devices")
    parser.add_argument("--torch", action="store_true", help="also PyTorch, on one device")
    parser.add_argument("--passes", action="store_true", help="also after a random pipeline of passes")
    parser.add_argument("--shrink", type=int, default=1, metavar="N", help="shrink the first N of each kind of failure")
    parser.add_argument("--log", type=Path, help="a file with a line of JSON for each program")
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_multi_thread_eigen=false",
    )  # fmt: skip
    limit = args.seconds or (120.0 if args.jax else 10.0)
    rows = _logged(args.log)
    seeds = [s for s in range(args.seed, args.seed + args.programs) if s not in rows]
    began = time.monotonic()
    options = {"jax": args.jax, "torch": args.torch, "passes": args.passes}
    rows |= _campaign(args, seeds, options, limit)
    rows = {seed: row for seed, row in rows.items() if args.seed <= seed < args.seed + args.programs}
    _table(rows, time.monotonic() - began, len(seeds), args.jobs)
    failures = _failures(rows)
    for kind, found in sorted(failures.items()):
        print(f"\n{kind}: {len(found)} programs: {' '.join(map(str, found[:12]))}{' ...' if len(found) > 12 else ''}")
        for seed in found[: args.shrink]:
            _show(seed, kind, options, limit)
    return 1 if failures else 0


def _campaign(args: argparse.Namespace, seeds: list[int], options: dict[str, bool], limit: float) -> dict[int, Any]:
    from oracles.campaigns import run

    rows: dict[int, Any] = {}
    until = time.monotonic() + args.stop_after if args.stop_after else None
    log = args.log.open("a", encoding="utf-8") if args.log else None
    try:
        ends = run(
            "oracles.random_programs.campaign:examiner", (options,), seeds, processes=args.jobs, limit=limit,
            memory=0, recycle=150 if args.jax else 3000, batch=4 if args.jax else 16, until=until,
        )  # fmt: skip
        for ended in ends:
            row = ended.result or {"findings": []}
            row |= {"seed": ended.seed, "ended": ended.how, "seconds": round(ended.seconds, 3)}
            rows[ended.seed] = row
            if log:
                log.write(json.dumps(row) + "\n")
                log.flush()
    finally:
        if log:
            log.close()
    return rows


def _logged(path: Path | None) -> dict[int, Any]:
    if path is None or not path.exists():
        return {}
    return {row["seed"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def _failures(rows: dict[int, Any]) -> dict[str, list[int]]:
    failures: dict[str, list[int]] = {}
    for seed, row in sorted(rows.items()):
        if row["ended"] != "done":
            failures.setdefault(f"out of {row['ended']}", []).append(seed)
        for kind in dict.fromkeys(kind for kind, _ in row["findings"]):
            failures.setdefault(kind, []).append(seed)
    return failures


def _table(rows: dict[int, Any], seconds: float, ran: int, jobs: int) -> None:
    done = [row for row in rows.values() if row["ended"] == "done"]
    accepted = [row for row in done if not row["refused"]]
    print(f"programs            {len(rows)} ({ran} of them now, in {seconds:.0f} s with {jobs} jobs)")
    print(f"checked and run     {len(accepted)}, with {sum(row['movements'] for row in accepted)} movements")
    compared, unknown = (sum(row[name] for row in accepted) for name in ("compared", "unknown"))
    print(f"elements compared   {compared}, left open by the oracle {unknown}")
    print(f"moved by hand       {sum(row['by_hand'] for row in accepted)} explicit programs")
    for code, n in Counter(row["refused"].split(":")[0] for row in done if row["refused"]).most_common():
        print(f"refused             {n} [{code}]")
    for feature, n in Counter(feature for row in accepted for feature in row["features"]).most_common():
        print(f"with {feature:<14} {n}")
    worst = sorted(rows.values(), key=lambda row: -row["seconds"])[:5]
    print("slowest             " + ", ".join(f"{row['seed']}: {row['seconds']:.1f} s" for row in worst))


def _show(seed: int, kind: str, options: dict[str, bool], limit: float) -> None:
    from oracles.random_programs.campaign import shrunk

    text, details = shrunk(seed, kind, options, limit, SHRINK_SECONDS)
    print(f"--- seed {seed}, shrunk\n{text}")
    for detail in details[:2]:
        print("   " + detail[:1500].replace("\n", "\n   "))


if __name__ == "__main__":
    raise SystemExit(main())
