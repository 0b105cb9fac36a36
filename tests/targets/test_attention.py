"""Attention on the compilers of TPUs and GPUs: a kernel of the module's own, without scores in memory, or a loop."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from program_text import program

from shardwright.backends.targets.names import parse_target
from shardwright.cost.kernels.work import work_of
from shardwright.explaining.explain import explain_program
from shardwright.explaining.reports import Explanation
from shardwright.ir.program import Program
from shardwright.passes.pipelines import explicit

ATTENTION = """
mesh x=2 y=2
dim B=4 L=1024 T=1024 K=4 G=4 D=128 C=8192 M=1 H=64 W=72 O=9 S=100 P=520 E=4
func prefill(q: B_xLK_yGD, k: B_xTK_yD, v: B_xTK_yD) -> B_xLK_yGD {
  o = attend[T, D, causal=L](q, k, v)
  return o
}
func windowed(q: f32 B_xPK_yGH, k: f32 B_xTK_yH, v: f32 B_xTK_yW, pos: int32 B_x) -> f32 B_xPK_yGW {
  o = attend[T, H, causal=P, window=300, softcap=30, scale=0.1](q, k, v, pos=pos)
  return o
}
func decode(q: B_xyMKGD, k: B_xyCKD, v: B_xyCKD, pos: int32 B_xy) -> B_xyMKGD {
  o = attend[C, D, causal=M](q, k, v, pos=pos)
  return o
}
func split(q: E_yMKGD, k: E_yC_xKD, v: E_yC_xKD, n: int32 E_y) -> E_yMKGD {
  o: E_yMKGD(partialsoftmax-x) = attend[C, D](q, k, v, length=n)
  return o
}
func odd(q: BOKGH, k: BS_xKH, v: BS_xKH) -> (BOKGH, f32 BOKG) {
  o, s = attend[S, H, lse](q, all_gather[x](k), all_gather[x](v))
  return o, s
}
"""
TPUS = ["tpu-v4:2x2x1", "tpu-v5e:2x2", "tpu-v5p:2x2x1", "tpu-v6e:2x2"]


@cache
def laid() -> Program:
    return explicit(program(ATTENTION))


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@cache
def explained(target: str) -> Explanation:
    return explain_program(laid(), target)


@pytest.mark.parametrize("target", TPUS)
def test_scores_of_a_kernel_are_not_in_memory(target: str) -> None:
    """Sizes that are no multiples of tiles, f32, a window and a soft cap, positions over chips, the pair: one kernel
    each, under `check_vma`. Temporaries are copies of operands, in tiles, in the order in which the kernel reads."""
    told = explained(target)
    assert told.errors == ()
    for func in told.functions:
        own = [kernel for kernel in func.kernels if kernel.estimated_s is None and kernel.predicted_s is not None]
        assert [kernel.name.partition(".")[0] for kernel in own] == ["attend"]
        assert own[0].statements[0] == "o"
        assert (func.temporary_bytes or 0) < 3 * (func.argument_bytes or 0), func.name
    prefill, windowed, decode, split, _ = told.functions
    assert (prefill.temporary_bytes or 0) < 4 * (2 * 1024 * 1024 * 2 * 4) / 4  # of what a chip's scores take in f32
    assert (windowed.temporary_bytes or 0) < 4 * (2 * 520 * 1024 * 2 * 4) / 2
    for func in (decode, split):  # the cache is read as it lies; each head's positions are numbers of 32 bits, in tiles
        assert (func.temporary_bytes or 0) < (func.argument_bytes or 0) / 3


@pytest.mark.parametrize("target", TPUS)
def test_the_price_is_the_kernels(target: str) -> None:
    """Products and bytes that the kernel states beside those of `cost`, at the rates of the target's compiler; a
    kernel always writes the logarithm, 4 bytes a row."""
    chip, rates = parse_target(target).chip, parse_target(target).rates
    assert chip is not None
    assert rates is not None
    for name in ("prefill", "decode", "split"):
        func = next(func for func in explained(target).functions if func.name == name)
        (kernel,) = (kernel for kernel in func.kernels if kernel.estimated_s is None)
        work = next(work for work in work_of(laid(), laid().func(name)) if work.operation == "attend")
        compute = work.flops / (chip.rate("bf16") * rates.compute)
        memory = (work.bytes_read + work.bytes_written) / (chip.memory_bytes_per_s * rates.memory)
        assert kernel.predicted_s == pytest.approx(max(compute, memory), rel=0.01)


def test_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop over blocks, which the compiler estimates, takes more than twice the time."""
    from shardwright.backends.jax.helpers import HELPERS

    kernel = explained("tpu-v5e:2x2").functions[0]
    monkeypatch.setitem(HELPERS, "attend", HELPERS["attend"].replace("kernels['tpu'] = on_tpu", "pass"))
    alone = replace(laid(), funcs=laid().funcs[:1])
    (loop,) = explain_program(alone, "tpu-v5e:2x2").functions
    taken = [sum((k.estimated_s or k.predicted_s or 0.0) * (k.trips or 1) for k in f.kernels) for f in (kernel, loop)]
    assert taken[0] < taken[1] / 2


CACHED = """
mesh x=2 y=2
dim N=4 B=64 L=1 T=2048 H=4 G=4 D=128
state { k: NB_xTH_yD
        v: NB_xTH_yD
        pos: int32 }
func decode(q: B_xLH_yGD, new: B_xLH_yD, start: B_xLH_yGD) -> B_xLH_yGD {
  mean: B_xLH_yGD = loop[N](before: B_xLH_yGD = start) {
    set k = update[T](k, new, pos)
    set v = update[T](v, new * 2, pos)
    next before + attend[T, D, causal=L](q, k, v, pos=pos)
  }
  set pos = pos + 1
  return mean
}
"""


CACHES = (
    (80, 4, 1, "int32"),
    (80, 4, 1, "int32 B_x"),
    (80, 4, 8, "int32 B_x"),
    (128, 4, 1, "int32 B_x"),
    (128, 6, 1, "int32 B_x"),
    (128, 10, 1, "int32"),
    (256, 8, 1, "int32 B_x"),
)
"""The size of a head, heads, rows that are written, and their place."""


@pytest.mark.parametrize(
    ("target", "size", "heads", "rows", "pos"),
    [(target, *case) for number, case in enumerate(CACHES) for target in TPUS[number % 2 :: 2]],
)
def test_caches_are_read_and_written_where_they_lie(target: str, size: int, heads: int, rows: int, pos: str) -> None:
    """A layer's within those of all; of rows that are no whole lanes, with positions along the lanes; of heads that
    fill no tiles, with positions behind them; of two or four heads, in strips of 128 lanes."""
    text = CACHED.replace("pos: int32", f"pos: {pos}").replace("128", str(size)).replace("L=1", f"L={rows}")
    text = text.replace("H=4", f"H={heads}")
    told = explain_program(explicit(program(text)), target)
    assert told.errors == ()
    (func,) = told.functions
    assert (func.temporary_bytes or 0) < 2048 * 32 * 2 * size * 2 / 8  # of what a layer's keys take


PAGED = """
mesh x=2 y=2
dim N=2 B=32 L=1 M=16 P=256 S=128 H=8 G=4 D=128
state { k: NPSH_yD
        v: NPSH_yD }
func decode(q: B_xLH_yGD, new: BLH_yD, at: int32 B, pages: int32 BM) -> B_xLH_yGD {
  mean: B_xLH_yGD = loop[N](before: B_xLH_yGD = q) {
    set k = update[PS](k, new, at, pages=pages)
    set v = update[PS](v, new * 2, at, pages=pages)
    next before + attend[PS, D, causal=L](q, k, v, pos=at, pages=pages)
  }
  return mean
}
"""
POOLS = ((128, 8, 1), (64, 8, 1), (128, 10, 1), (64, 8, 3))
"""The size of a head, heads, rows that are written."""


@pytest.mark.parametrize(
    ("target", "size", "heads", "rows"),
    [(target, *case) for target, case in zip(TPUS, POOLS, strict=True)],
)
def test_pages_are_read_and_written_where_they_lie(target: str, size: int, heads: int, rows: int) -> None:
    """Pools of pages with as many slots as a tile has lanes: a step copies none of them."""
    text = PAGED.replace("D=128", f"D={size}").replace("H=8", f"H={heads}").replace("L=1", f"L={rows}")
    told = explain_program(explicit(program(text)), target)
    assert told.errors == ()
    (func,) = told.functions
    assert (func.temporary_bytes or 0) < 256 * 128 * heads // 2 * size * 2 / 8  # of what a layer's pool takes
    kernels = [kernel.name.partition(".")[0] for kernel in func.kernels if kernel.estimated_s is None]
    assert "attend" in kernels


@pytest.mark.parametrize("pool", ["NP_xSH_yD", "NPS_xH_yD"])
@pytest.mark.parametrize("target", ["tpu-v5e:2x2", "h100:4"])
def test_pages_over_chips(target: str, pool: str) -> None:
    """Each chip attends to the pages, or to the slots, that it has; the checker accuses none of it."""
    text = PAGED.replace("NPSH_yD", pool).replace("B_xLH_yGD", "BLH_yGD")
    assert explain_program(explicit(program(text)), target).errors == ()


def test_gpus_ask_cudnn_when_they_run(tmp_path: Path) -> None:
    """Without a GPU the loop is compiled, and `explain` says so."""
    told = explained("h100:4")
    assert told.errors == ()
    notes = {func.name: func.notes for func in told.functions}
    loop = "attention: a loop over blocks, 1 in all"
    asks = f"{loop}; without a GPU there is no cuDNN, which 1 of them ask when they run on one"
    assert notes["prefill"] == notes["decode"] == (asks,)
    assert notes["windowed"] == notes["split"] == notes["odd"] == (f"{loop}; cuDNN has no kernel for it",)
    assert asks in repr(told)
