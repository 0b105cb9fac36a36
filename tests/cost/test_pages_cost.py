"""The price of attention over pages: the pages of the rows on a chip, beside a cache of as many positions."""

from __future__ import annotations

from functools import partial

import pytest
from program_text import program

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.kernels.work import Work, work_of
from shardwright.cost.programs.program_cost import cost_of
from shardwright.passes.pipelines import explicit
from shardwright.prediction.generation import generation_cost

SIZES = "dim X=4 B=16 L=1 M=64 T=1024 P=1024 P1=256 S=16 K=8 G=4 D=128"


def priced(pool: str, table: str, q: str, pages: str = "") -> tuple[Work, ...]:
    made = explicit(
        program(
            f"mesh x=4\n{SIZES}\nfunc f(q: {q}, k: {pool}, v: {pool}, table: int32 {table}, pos: int32 B?) -> {q} {{\n"
            f"  return attend[P{pages}S, D, causal=L](q, k, v, pos=pos, pages=table)\n}}\n"
        )
    )
    return work_of(made, made.func("f"))


EACH = 16 * 1024 * 8 * 128 * 2 * 2
"""The bytes of 16 rows' keys and values."""


@pytest.mark.parametrize(
    ("pool", "table", "q", "wanted"),
    [
        ("PSK_xD", "BM", "BLK_xGD", EACH / 4),
        ("PSKD", "B_xM", "B_xLKGD", EACH / 4),
        ("X_xPSKD", "X_xBM", "X_xBLKGD", EACH),
        ("PSK_xD", "BK_xM", "BLK_xGD", EACH / 4),
    ],
)
def test_each_row_reads_its_pages(pool: str, table: str, q: str, wanted: float) -> None:
    """Splits of rows that pools have, too, count once."""
    made = priced(pool, table, q)
    read = sum(work.bytes_read for work in made if work.operation == "attend")
    assert read == pytest.approx(wanted, rel=0.04)  # queries beside them


def test_rows_read_no_more_than_the_pool() -> None:
    """Tables with more entries than there are pages read each page once, in bytes and in products."""
    pools = [priced(f"X_xP{n}SKD", "X_xBM", "X_xBLKGD", n) for n in ("", "1")]
    whole, part = (next(work for work in works if work.operation == "attend") for works in pools)
    assert part.bytes_read == pytest.approx(whole.bytes_read / 4, rel=0.04)
    assert part.flops == pytest.approx(whole.flops / 4)


def test_a_generation_has_more_pages_of_each_row() -> None:
    """It takes as long as one with a cache of as many positions."""
    texts = {
        "T": ("BTKD", "update[T](k, q, at)", "attend[T, D, causal=L](q, k, k, pos=at)", ""),
        "PS": (
            "PSKD",
            "update[PS](k, q, at, pages=table)",
            "attend[PS, D, causal=L](q, k, k, pos=at, pages=table)",
            ", table: int32 BM",
        ),
    }
    steps: list[float] = []
    for state, update, attend, more in texts.values():
        funcs = "".join(
            f"func {name}[L={n}](q: BLKD, at: int32 B{more}) -> BLKD {{\n  set k = {update}\n  return {attend}\n}}\n"
            for name, n in (("prefill", 16), ("decode", 1))
        )
        made = explicit(program(f"mesh x=1\n{SIZES}\nstate {{ k: {state} }}\n{funcs}"))
        steps.append(generation_cost(made, partial(cost_of, chip=load_chip("h100")), 1008).decode_s)
    assert steps[1] == pytest.approx(steps[0], rel=0.05)
