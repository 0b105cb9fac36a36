"""The memory of programs on a target, beside the prediction and the chip's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Outcome
from program_text import program

from shardwright.compiling.compile_program import explicit
from shardwright.cost.hardware.chips import load_chip
from shardwright.explaining.explain import explain_program

HUGE = """
mesh x=2 y=2 z=2
dim B=64 E=131072 F=1048576
func f(x: BE, w: EF) -> BF { return x @ w }
"""

GATED = """
mesh x=8
dim B=64 N=2 E=8192 F=22528
weights {
  gate: NEF_x
  up: NEF_x
  down: NF_xE
}
func decode(a: BE) -> BE {
  y: BE = loop[N](h: BE = a) {
    next all_reduce[x]((silu(h @ gate) * h @ up) @ down)
  }
  return y
}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("target", ["tpu-v4:2x2x2", "tpu-v5e:2x4", "tpu-v5p:2x2x2", "tpu-v6e:2x4", "h100:8"])
def test_what_does_not_fit_is_told_by_size(target: str) -> None:
    """The memory that the price allows a program is there for it."""
    (error,) = explain_program(explicit(program(HUGE), target=target, objective="bytes"), target).errors
    (diagnostic,) = error.diagnostics
    assert diagnostic.code == "target-memory"
    assert diagnostic.message.startswith(f"f does not fit {target}: it takes 27")
    assert diagnostic.notes[-1].message.startswith("take more chips")
    (has,) = re.findall(r"has ([\d.]+) GB", diagnostic.message)
    assert load_chip(target.partition(":")[0]).memory_bytes <= 1.001e9 * float(has)


@pytest.mark.parametrize("target", ["h100:8", "a100:8"])
def test_slices_that_gpus_copy_are_predicted(target: str) -> None:
    """Two products of one operand read 92 MB of weights in all, which XLA copies for them; on H100s it begins with what
    the third reads."""
    (func,) = explain_program(explicit(program(GATED), target=target, objective="bytes"), target).functions
    assert func.predicted_peak_bytes is not None
    assert func.temporary_bytes is not None
    held = (func.argument_bytes or 0) + func.temporary_bytes + (func.output_bytes or 0)
    weights = 2 * 3 * 8192 * 22528 * 2 // 8
    assert held > weights + 90e6
    assert abs(held - func.predicted_peak_bytes) < 64e6


def test_cost_and_explain_predict_the_same(shardwright: Callable[..., Outcome], tmp_path: Path) -> None:
    file = tmp_path / "gated.shard"
    file.write_text(GATED)
    told = shardwright("explain", file, "--target", "h100:8", "--json")
    priced = shardwright("cost", file, "--target", "h100:8", "--json")
    assert (told.status, priced.status) == (0, 0)
    (func,) = json.loads(told.out)["functions"]
    assert json.loads(priced.out)["peak_bytes_per_chip"] == func["predicted_peak_bytes"]
