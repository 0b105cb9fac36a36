"""`pages-to-rows`: programs compute over rows what they do over pages of each row, wherever these are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.checkpoints import CHECKPOINTS
from oracles.offloaded_models import config_keys
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.passes.memory.pages_to_rows import PagesToRows
from shardwright.passes.pipelines import explicit

Arrays = dict[str, np.ndarray[Any, Any]]

LAYER = """
mesh x=2 y=2
dim N=2 B=4 L=3 M=3 S=4 P=B*M E=8 K=2 G=3 D=4
weights {
  wq: f32 NEKGD
  wk: f32 NEKD
  wv: f32 NEKD
}
state {
  k: f32 NPSKD
  v: f32 NPSKD
}
func append(x: f32 BLE, at: int32 B, length: int32 B, pages: int32 BM) -> f32 BLE {
  out = loop[N](h: f32 BLE = x) {
    set k = update[PS](k, h @[E] wk, at, pages=pages)
    set v = update[PS](v, h @[E] wv, at, pages=pages)
    o = attend[PS, D, causal=L, scale=0.5](h @[E] wq, k, v, pos=at, length=length, pages=pages)
    next h + o @[KGD] wq
  }
  return out
}
"""


def given(seed: int) -> tuple[Arrays, Arrays, Arrays]:
    """Arguments with a table of own pages in a random order, weights, and pools."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype(np.float32)

    at = rng.integers(0, 9, 4).astype(np.int32)
    args = {"x": normal(4, 3, 8), "at": at, "length": at + rng.integers(0, 4, 4).astype(np.int32)}
    args["pages"] = rng.permutation(12).reshape(4, 3).astype(np.int32)
    weights = {"wq": normal(2, 8, 2, 3, 4), "wk": normal(2, 8, 2, 4), "wv": normal(2, 8, 2, 4)}
    return args, weights, {"k": normal(2, 12, 4, 2, 4), "v": normal(2, 12, 4, 2, 4)}


def in_rows(pools: Arrays, table: np.ndarray[Any, Any]) -> Arrays:
    """Pools [N, P, S, K, D] as rows [N, B, M * S, K, D]."""
    return {name: pool[:, table].reshape(2, 4, 12, 2, 4) for name, pool in pools.items()}


@pytest.mark.parametrize(
    ("pool", "rows"),
    [
        ("NPSKD", "NBTKD"),
        ("NPSK_xD", "NBTK_xD"),
        ("NPS_xK_yD", "NBT_xK_yD"),
        ("NP_xS_yKD", "NBT_xyKD"),
        ("NPSKD?", "NBTKD?"),
    ],
)
def test_rows_compute_what_their_pages_do(pool: str, rows: str) -> None:
    before = program(LAYER.replace("f32 NPSKD", f"f32 {pool}"))
    after = PagesToRows().run(before)
    assert [str(value.type) for value in after.state] == [f"f32 {rows}"] * 2
    assert "pages" not in printed(after)
    args, weights, pools = given(len(pool))
    wanted, kept = evaluate(before, "append", args, weights, pools)
    table = args.pop("pages")
    caches = in_rows(pools, table)
    found, left = evaluate(after, "append", args, weights, caches)
    np.testing.assert_array_equal(found[0], wanted[0])
    for name, cache in in_rows(kept, table).items():
        np.testing.assert_array_equal(left[name], cache)
    on_chips = simulate(explicit(after), "append", args, weights, caches)
    np.testing.assert_allclose(on_chips.results[0], wanted[0], rtol=1e-9)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("cache", ["", "int8"])
def test_an_import_with_pages_becomes_the_one_without(
    name: str, cache: str, shardwright: Callable[..., Any], tmp_path: Path
) -> None:
    """Up to comments, and the letters of positions."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(config_keys(name)))
    words = ("import", config, "--mesh", "x=1", "--layout", "ws2d", "--cache", 24, "--length", 8, "--batch", 4)
    words = (*words, *(("--cache-format", cache) if cache else ()))
    texts = [shardwright(*words, *pages).out for pages in ((), ("--page-size", 8))]
    wanted, found = program(texts[0]), PagesToRows().run(program(texts[1]))
    assert printed(found) == printed(wanted)


def test_shares_of_a_pool_are_shares_of_rows() -> None:
    text = LAYER.replace("k: f32 NPSKD", "k: f32 NPSKD on device 25% host 75% along P").replace(
        "v: f32 NPSKD", "v: f32 NPSKD on device 25% host 75% along S"
    )
    made = PagesToRows().run(program(text))
    kinds = [str(value.type) for value in made.state]
    assert kinds == ["f32 NBTKD on device 25% host 75% along B", "f32 NBTKD on device 25% host 75% along T"]


def test_a_program_without_pages_stays() -> None:
    made = program("mesh x=2\ndim A=4\nfunc f(a: A_x) -> A_x { return a + 1 }")
    assert PagesToRows().run(made) is made


ALONE = "func count(k: f32 PSKD) -> f32 PKD {\n  return sum[S](k)\n}\n"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("next h + o @[KGD] wq", "next h + o @[KGD] wq + sum[PSKD](k)", "is made from the pool page by page"),
        (
            "return out",
            "return out + convert[f32](sum[M](pages))",
            "append reads its table of pages pages",
        ),
        ("  return out", "  return out * size[P]", None),
        ("set v = update[PS](v, h @[E] wv, at, pages=pages)", "v2 = v", None),
        (
            "pages: int32 BM) -> f32 BLE {\n",
            "table: int32 BM) -> f32 BLE {\n  pages = table + 0\n",
            "the table of pages pages is no parameter of append",
        ),
        (
            "x: f32 BLE, at: int32 B, length: int32 B, pages: int32 BM) -> f32 BLE {",
            "x: f32 BLE, at: int32 B, length: int32 B, pages: int32 BM, more: int32 BM) -> f32 BLE {",
            "append has several tables of pages",
        ),
        ("NPSKD\n}", "NP_xSKD\n  extra: f32 P\n}", "extra: f32 P has the pages of the pool, or their slots, alone"),
        ("NPSKD\n}", "NPSKD\n  extra: f32 BPS\n}", "extra: f32 BPS has pages, and B beside them"),
        ("M=3 S=4 P=B*M", "M=3 S=4 P=12 T=B*M", None),
        ("func append(", "func append[B=2](", "append has other rows than the program"),
        ("k: f32 NPSKD", "k: f32 NP_xyS_zKD", "splits pages over 8 chips, and the 12 positions of a row do not divide"),
    ],
)
def test_refused(before: str, after: str, said: str | None) -> None:
    assert before in LAYER
    text = LAYER.replace(before, after)
    if "more: int32" in after:
        text = text.replace("wv, at, pages=pages", "wv, at, pages=more")
    if "B=2" in after:
        text = text.replace("P=B*M", "P=12")
    if "_z" in after:
        text = text.replace("mesh x=2 y=2", "mesh x=2 y=2 z=2")
    if said is None:
        PagesToRows().run(program(text))
        return
    with pytest.raises(DiagnosticError) as caught:
        PagesToRows().run(program(text))
    first, *_, last = str(caught.value).splitlines()
    assert said in first
    assert first.endswith("[no-pages]")
    assert last == "note: import it without --page-size"
