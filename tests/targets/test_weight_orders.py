"""Weights lie on TPUs as their products read them: nothing of them is copied."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_text import program

from shardwright.explaining.explain import explain_program
from shardwright.explaining.reports import Explanation
from shardwright.passes.pipelines import explicit

QUERIES = """
mesh x=2 y=2
dim N=3 B=64 L=1 E=2048 K=8 G=2 D=256
weights { wq: NE_xK_yGD
          wk: NEK_yD
          wo: NK_yGDE_x }
func step(h: BLE_x) -> BLE_x {
  last: BLE_x = loop[N](a = h) {
    w: EK_yGD = wq
    q = a @[E] w
    k = a @[E] wk
    next (q * k) @[KGD] wo
  }
  return last
}
"""


def seconds(told: Explanation) -> float:
    assert told.errors == ()
    return sum((kernel.estimated_s or 0.0) * (kernel.trips or 1) for kernel in told.functions[0].kernels)


@pytest.mark.parametrize("target", ["tpu-v4:2x2x1", "tpu-v5e:2x2"])
def test_kernels_take_less(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = explicit(program(QUERIES))
    laid = seconds(explain_program(made, target))
    monkeypatch.setattr("shardwright.backends.jax.emit.weight_orders", lambda *_: {})
    assert laid < seconds(explain_program(made, target)) / 2
