"""What attention is priced at: both products over the positions that are seen, bytes of operands and results alone."""

from __future__ import annotations

import pytest
from program_text import by_bytes, program

from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.kernels.work import Work, work_of
from shardwright.cost.programs.memory import memory_of
from shardwright.ir.program import Program
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.pipelines import explicit, run_passes

HEAD = "mesh x=2 y=2\ndim B=4 L=64 T=64 S=256 K=2 G=4 D=16 W=32\n"


def of(signature: str, call: str, *, head: str = HEAD) -> tuple[Program, Work]:
    made = by_bytes(program(f"{head}func f{signature} {{\n  o = {call}\n  return o\n}}\n"))
    return made, next(work for work in work_of(made, made.func("f")) if work.operation == "attend")


def flops(rows: int, positions: int, width: int = 16) -> int:
    """Of scores over 16 elements, and of the mean of values."""
    return 2 * rows * positions * (16 + width)


def test_products_and_bytes() -> None:
    made, work = of("(q: BLKGD, k: BTKD, v: BTKD) -> BLKGD", "attend[T, D](q, k, v)")
    assert work.flops == flops(4 * 64 * 2 * 4, 64)
    q, k = 2 * 4 * 64 * 2 * 4 * 16, 2 * 4 * 64 * 2 * 16
    assert (work.bytes_read, work.bytes_written) == (q + 2 * k, q)
    assert memory_of(made, made.func("f")).activations == 2 * q + 2 * k


def test_a_causal_mask_halves_them() -> None:
    _, work = of("(q: BLKGD, k: BTKD, v: BTKD) -> BLKGD", "attend[T, D, causal=L](q, k, v)")
    assert work.flops == flops(4 * 64 * 2 * 4, 33)  # 64 - 63/2, rounded up


def test_the_last_queries_of_a_cache_see_most_of_it() -> None:
    _, work = of("(q: BLKGD, k: BSKD, v: BSKW) -> BLKGW", "attend[S, D, causal=L](q, k, v, pos=192)")
    assert work.flops == flops(4 * 64 * 2 * 4, 225, 32)  # 256 - 63/2, rounded up


def test_one_query_sees_all() -> None:
    head = HEAD.replace("L=64", "L=1")
    _, work = of("(q: BLKGD, k: BSKD, v: BSKD) -> BLKGD", "attend[S, D, causal=L](q, k, v, pos=9)", head=head)
    assert work.flops == flops(4 * 2 * 4, 256)


def test_a_window_is_what_is_read() -> None:
    head = HEAD.replace("L=64", "L=1")
    _, work = of(
        "(q: BLKGD, k: BSKD, v: BSKD) -> BLKGD", "attend[S, D, causal=L, window=32](q, k, v, pos=9)", head=head
    )
    assert work.flops == flops(4 * 2 * 4, 32)
    assert dict(work.reads) == {"q": 2 * 4 * 2 * 4 * 16, "k": 2 * 4 * 32 * 2 * 16, "v": 2 * 4 * 32 * 2 * 16}


WINDOWED = """mesh x=2
dim N=6 B=4 L={length} S=256 K=2 G=4 D=16
func f(q: BLKGD, k: BSKD, v: BSKD, pos: int32) -> BLKGD {{
  layer = iota[N]()
  windowed = less(layer - layer / 6 * 6, 5)
  windows: int32 N = where(windowed, full[N, int32](32), size[S])
  o = loop[N](h: BLKGD = q) {{
    own = windows * 1
    next attend[S, D, causal=L](h, k, v, pos=pos, window=own)
  }}
  return o
}}
"""


def test_windows_of_layers_are_averaged() -> None:
    """Five layers of six see 32 positions, one all 256, or half of them; what the window of a layer is computed from
    is known within the loop as well. What is chosen is counted at what it costs."""
    one = by_bytes(program(WINDOWED.format(length=1)))
    work = next(work for work in work_of(one, one.func("f")) if work.operation == "attend")
    assert work.flops == flops(4 * 2 * 4, 70)  # (5 * 32 + 256) / 6, rounded up
    assert dict(work.reads)["k"] == 2 * 4 * 70 * 2 * 16
    many = search(program(WINDOWED.format(length=256)), Objective.on(load_chip("h100")))
    work = next(work for work in work_of(many.program, many.program.func("f")) if work.operation == "attend")
    split = 2 if work.result.split_axes else 1
    assert work.flops == flops(4 * 256 * 2 * 4 // split, 49)  # (5 * 32 + 128.5) / 6, rounded up
    assert many.model_s == pytest.approx(many.objective_s, rel=1e-6)


def test_over_a_split_cache() -> None:
    """A chip has a quarter of the positions, and writes 4 bytes more for each of its rows of 16 elements."""
    made = explicit(
        program(
            f"{HEAD}func f(q: BLKGD, k: BS_xyKD, v: BS_xyKD) -> BLKGD {{\n"
            "  o: BLKGD(partialsoftmax-xy) = attend[S, D, causal=L](q, k, v)\n  return o\n}\n"
        )
    )
    work = work_of(made, made.func("f"))[0]
    rows = 4 * 64 * 2 * 4
    assert work.flops == flops(rows, 57)  # 225 / 4, rounded up
    assert work.bytes_written == rows * (2 * 16 + 4)


def test_decomposed_its_scores_are_in_memory() -> None:
    source = program(f"{HEAD}func f(q: BLKGD, k: BSKD, v: BSKD) -> BLKGD {{\n  return attend[S, D](q, k, v)\n}}\n")
    peaks: list[int] = []
    for made in (source, run_passes(source, [Decompose(attend=True)])):
        laid = explicit(made)
        peaks.append(memory_of(laid, laid.func("f")).activations)
    assert peaks[1] - peaks[0] > 4 * 64 * 2 * 4 * 256 * 4 // 4  # at least a chip's part of the scores, in f32
