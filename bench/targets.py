"""What the compilers of TPUs and GPUs make of the examples at their own sizes, beside what the programs say.

    python bench/targets.py [NAME ...] [--target T ...] [--json]

For every function: bytes that a chip receives as compiled and as written, the collectives that became others, arguments
and temporaries beside the predicted peak, and the compiler's estimate of its kernels. Needs the compilers (`shardwright
targets`); what was compiled before is not compiled again. A table for docs/reference/targets.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shardwright.compiling.compile_program import explicit, load
from shardwright.explaining.explain import explain_program
from shardwright.explaining.reports import FunctionReport
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program

EXAMPLES = Path(__file__).parents[1] / "examples"
TARGETS = ("tpu-v4:4x4x4", "tpu-v5p:4x4x4", "tpu-v5e:8x8", "tpu-v6e:8x8", "h100:8x8")


@dataclass(frozen=True)
class Row:
    """A function on a target. `differs` says which statements' collectives are not as written; `refused`, why there is
    nothing else to say. What the checker of partitioned modules accuses is told there, too."""

    example: str
    function: str
    target: str
    bytes_received: int = 0
    written_bytes: int = 0
    differs: str = ""
    held_bytes: int = 0
    temporary_bytes: int = 0
    predicted_bytes: int = 0
    kernels_s: float = 0.0
    compile_s: float = 0.0
    refused: str = ""


def measure(name: str, targets: Sequence[str]) -> list[Row]:
    """A row for each function of an example on each target."""
    program = load(str(EXAMPLES / f"{name}.shard"))
    return [row for target in targets for row in rows_of(name, program, target)]


def rows_of(name: str, program: Program, target: str) -> list[Row]:
    """A row for each function of a program on a target, and for each that its compiler refuses."""
    try:
        explained = explain_program(explicit(program, target=target), target)
    except DiagnosticError as error:
        return [Row(name, "", target, refused=error.diagnostics[0].message)]
    rows = [_row(name, target, func) for func in explained.functions]
    return rows + [Row(name, "", target, refused=error.diagnostics[0].message) for error in explained.errors]


def _row(name: str, target: str, func: FunctionReport) -> Row:
    changed = Counter({f"no collective for {name}": 1 for name in func.unmade})
    changed.update(
        f"{c.op} of {', '.join(c.statements) or 'nothing'}"
        for c in func.collectives
        if c.bytes_received > c.lower_bound_bytes or not c.statements
    )
    changed.update(f"{found.instruction} accused: {found.reason}" for found in func.faults)
    arguments, temporary, output = func.argument_bytes or 0, func.temporary_bytes or 0, func.output_bytes or 0
    return Row(
        name,
        func.name,
        target,
        func.bytes_received,
        func.written_bytes_received or 0,
        "; ".join(f"{count} {what}" if count > 1 else what for what, count in changed.items()),
        arguments + temporary + output,
        temporary,
        func.predicted_peak_bytes or 0,
        func.kernels_s,
        func.compile_s or 0.0,
    )


def table(rows: list[Row]) -> str:
    """The rows as a table of Markdown."""
    lines = [
        "| example, function | target | received, MB (as written) | held, MB (temporaries; predicted) | kernels, ms |"
        " otherwise than written |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = f"{row.example} {row.function}".strip()
        if row.refused:
            lines.append(f"| {name} | {row.target} | | | | {row.refused} |")
            continue
        held = f"{row.held_bytes / 1e6:.1f} ({row.temporary_bytes / 1e6:.1f}; {row.predicted_bytes / 1e6:.1f})"
        moved = f"{row.bytes_received / 1e6:.3f} ({row.written_bytes / 1e6:.3f})"
        kernels = f"{row.kernels_s * 1e3:.3f}" if row.kernels_s else ""
        lines.append(f"| {name} | {row.target} | {moved} | {held} | {kernels} | {row.differs} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="examples, by the beginning of their names")
    parser.add_argument("--target", action="append", metavar="CHIP:SHAPE", help=f"by default {', '.join(TARGETS)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    names = sorted(path.stem for path in EXAMPLES.glob("*.shard"))
    chosen = [name for name in names if not given.names or name.startswith(tuple(given.names))]
    rows = [row for name in chosen for row in measure(name, given.target or TARGETS)]
    print(json.dumps({"rows": [asdict(row) for row in rows]}) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
