"""A campaign of mutated programs through `check`: answers with a place, in time and within memory, never a traceback.

    python bench/campaign_mutations.py [--programs N] [--seed S] [--jobs J] [--seconds LIMIT] [--memory MB] [--log FILE]

Mutant number s is the same everywhere (`tests/oracles/mutations.py`, docs/testing.md). Prints how the mutants fared, by
exit status and first code, and each kind of failure with its seeds. With --log each mutant that failed or took long is
a line of JSON. Exit status 1 if there was any failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests"), str(Path(__file__).resolve().parent.parent)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="the first mutant's number")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=10.0, help="of processor time for one mutant")
    parser.add_argument("--memory", type=int, default=4096, help="MB of address space for each job")
    parser.add_argument("--stop-after", type=float, help="seconds after which no further mutant begins")
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from oracles.campaigns import run

    began = time.monotonic()
    answers: Counter[str] = Counter()
    failures: dict[str, list[int]] = {}
    slowest: list[tuple[float, int]] = []
    until = began + args.stop_after if args.stop_after else None
    log = args.log.open("a", encoding="utf-8") if args.log else None
    ends = run(
        "oracles.mutations:examiner", (), range(args.seed, args.seed + args.programs), processes=args.jobs,
        limit=args.seconds, memory=args.memory << 20, batch=64, recycle=20000, until=until,
    )  # fmt: skip
    for ended in ends:
        row = ended.result or {"status": None, "code": "", "finding": f"out of {ended.how}"}
        answers[f"status {row['status']} {row['code']}".strip()] += 1
        if row["finding"]:
            kind = re.sub(r"\d+|`[^`]*`", "N", row["finding"])[:100]
            failures.setdefault(kind, []).append(ended.seed)
        slowest = sorted([*slowest, (ended.seconds, ended.seed)], reverse=True)[:5]
        if log and (row["finding"] or ended.seconds > 1):
            log.write(json.dumps(row | {"seed": ended.seed, "seconds": round(ended.seconds, 2)}) + "\n")
            log.flush()
    if log:
        log.close()
    print(f"mutants   {sum(answers.values())} in {time.monotonic() - began:.0f} s with {args.jobs} jobs")
    for answer, n in answers.most_common():
        print(f"{n:>9} {answer}")
    print("slowest   " + ", ".join(f"{seed}: {seconds:.1f} s" for seconds, seed in slowest))
    for kind, seeds in sorted(failures.items()):
        print(f"\n{kind}\n   {len(seeds)} mutants: {' '.join(map(str, sorted(seeds)[:12]))}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
