"""A process that stands for the one that measures this machine: it takes no time and finds a T4."""

from __future__ import annotations

import sys
from pathlib import Path

from shardwright.cost.hardware import chips

T4 = (Path(chips.__file__).parent / "machines" / "t4.toml").read_text(encoding="utf-8")

_SCRIPT = """\
import json, os, sys, time
from pathlib import Path
asked = json.loads(sys.argv[1])
with Path({log!r}).open("a") as log:
    log.write(json.dumps({{**asked, "threads": os.environ["OMP_NUM_THREADS"]}}) + "\\n")
print("noise that nobody is to see")
{does}
Path(asked["folder"], "machine.toml").write_text({text!r})
"""


def quick_command(folder: Path, does: str = "", text: str = T4) -> tuple[str, ...]:
    """The command of such a process, which does this first and writes this text. Each notes what it was asked for as a
    line of JSON in `measured.jsonl`."""
    script = folder / "measuring.py"
    script.write_text(_SCRIPT.format(log=str(folder / "measured.jsonl"), does=does, text=text))
    return (sys.executable, "-S", str(script))
