"""`make demo` runs from any folder, agrees with the reference, and leaves what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


def test_demo(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, DEMO], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert next(line for line in lines if line.startswith("13 collectives")).split()[-1] == "3,440"
    assert "3 F/YZ (1 - 1/X)) = 2,304" in done.stdout
    assert "of these 2,304 for what is gathered and summed along E and F;" in lines
    assert "agrees within 8.8e-02, half the digits of bf16" in lines
    assert "layouts found in" in done.stdout
    assert any(line.split() == ["w_up", "bf16", "NEF_x"] for line in lines)
    made = {path.name for path in (tmp_path / "demo-out").iterdir()}
    assert made == {"llama.svg", "llama.shard", "block.svg", "block.shard", "block.py"}
