"""Pools of pages, written and attended, in the reference, on simulated chips, under JAX and PyTorch, against loops."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from combinations import all_with_slow
from interpreted_kernels import on_a_tpu
from oracles.attention import close
from oracles.gradients import check_gradients
from oracles.pages import attended_pages, written
from oracles.torch_blocks import computed
from program_text import program

from shardwright.backends.jax import attention as jax_attention
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.session import run_program
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.backends.targets.names import parse_target
from shardwright.ir import ops
from shardwright.ir.program import Let, Program
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.pipelines import explicit, run_passes

Array = np.ndarray[Any, Any]

SIZES = {"X": 2, "B": 4, "L": 3, "M": 3, "P": 14, "S": 4, "K": 2, "G": 3, "D": 4, "W": 6}


@dataclass(frozen=True)
class Case:
    """Layouts of pools, masks; with `groups` each of two groups of rows has a pool of its own."""

    keys: str = "PSK"
    values: str = "PSK"
    causal: bool = True
    length: bool = False
    window: int = 0
    softcap: float = 0.0
    table: str = "BM"
    groups: bool = False
    at: str = "B"
    """The rows that have positions of their own."""

    def program(
        self, splits: Mapping[str, str] | None = None, *, update: bool = True, lse: bool = False, mesh: str = "x=2 y=2"
    ) -> Program:
        splits = splits or {}
        X = "X" if self.groups else ""
        pools = [
            "".join(f"{d}_{splits[d]}" if d in splits else d for d in X + dims) for dims in (self.keys, self.values)
        ]
        dims = " ".join(f"{name}={size}" for name, size in SIZES.items())
        params = [f"q: f32 {X}BLKGD", f"k: f32 {pools[0]}D", f"v: f32 {pools[1]}W", f"table: int32 {X}{self.table}"]
        params += [f"new: f32 {X}BLKD"] if update else []
        params += [f"at: int32 {X if self.at else ''}{self.at}"] if self.causal or update else []
        params += [f"n: int32 {X}B"] if self.length else []
        given = ["q", "kept" if update else "k", "v", *(["pos=at"] if self.causal else [])]
        given += [*(["length=n"] if self.length else []), "pages=table"]
        statics = ["PS", "D", *(["causal=L"] if self.causal else []), "scale=0.5"]
        statics += [f"window={self.window}"] if self.window else []
        statics += [f"softcap={self.softcap}"] if self.softcap else []
        parted = [splits[name] for name in "PS" if name in splits]
        demanded = f": f32 {X}BLKGW(partialsoftmax-{''.join(parted)})" if parted else ""
        lines = ["  kept = update[PS](k, new, at, pages=table)\n"] if update else []
        lines += [f"  o{demanded}{', s' if lse else ''} = attend[{', '.join([*statics, *(['lse'] if lse else [])])}]"]
        returned = ["o", *(["s"] if lse else []), *(["kept"] if update else [])]
        kinds = [f"f32 {X}BLKGW", *([f"f32 {X}BLKG"] if lse else []), *([f"f32 {pools[0]}D"] if update else [])]
        return program(
            f"mesh {mesh}\ndim {dims}\nfunc f({', '.join(params)}) -> ({', '.join(kinds)}) {{\n"
            f"{''.join(lines)}({', '.join(given)})\n  return {', '.join(returned)}\n}}\n"
        )

    def arrays(self, seed: int = 0) -> dict[str, Array]:
        """Rows share their first page, lack their last one here and there, and name pages that there are not. Pages of
        no row, the first and the last of a pool among them, hold no numbers."""
        rng = np.random.default_rng(seed)
        n = SIZES["X"] if self.groups else 1
        made: dict[str, Array] = {}
        for name, dims in {"q": "BLKGD", "k": "PSKD", "v": "PSKW", "new": "BLKD"}.items():
            made[name] = rng.standard_normal([n, *(SIZES[d] for d in dims)]).astype(np.float32)
        table = np.stack([1 + rng.permutation(4 * 3).reshape(4, 3) for _ in range(n)])
        table[:, 1:, 0] = table[:, :1, 0]
        table[:, 0, 2], table[:, 2, 2], table[:, 3, 1] = -1, SIZES["P"], SIZES["P"] + 5
        made["table"] = table.astype(np.int32)
        for pool, named in zip((*made["k"], *made["v"]), (*table, *table), strict=True):
            pool[np.setdiff1d(np.arange(SIZES["P"]), named)] = np.nan
        made["at"] = rng.integers(4, 10, (n, 4)).astype(np.int32)
        if not self.at:
            made["at"] = np.full_like(made["at"], 5)
        made["n"] = rng.integers(0, 13, (n, 4)).astype(np.int32)
        return made

    def given(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """In the program's layouts."""
        found: dict[str, Array] = {}
        for name, array in arrays.items():
            dims = {"k": self.keys + "D", "v": self.values + "W", "table": self.table}.get(name, "")
            own = {"k": "PSKD", "v": "PSKW", "table": "BM"}.get(name, "")
            laid = array.transpose(0, *(1 + own.index(d) for d in dims)) if dims else array
            found[name] = laid if self.groups else laid[0]
        if not self.at:
            found["at"] = found["at"].reshape(-1)[0]
        if not self.length:
            del found["n"]
        return found

    def wanted(self, arrays: Mapping[str, Array], *, update: bool = True) -> tuple[Array, Array, Array]:
        """The mean, the log-sum-exp and the keys' pool."""
        made: list[tuple[Array, Array, Array]] = []
        for i in range(len(arrays["q"])):
            q, k, v, new, table, at, n = (arrays[name][i] for name in ("q", "k", "v", "new", "table", "at", "n"))
            k = written(k, new, at, table) if update else k
            mean, lse = attended_pages(
                q, k, v, table, pos=at if self.causal else None, length=n if self.length else None,
                window=self.window, scale=0.5, softcap=self.softcap,
            )  # fmt: skip
            made.append((mean, lse, k.transpose(["PSKD".index(d) for d in self.keys + "D"])))
        mean, lse, pool = (np.stack(each) for each in zip(*made, strict=True))
        return (mean, lse, pool) if self.groups else (mean[0], lse[0], pool[0])


CASES = {
    "causal": Case(),
    "all that there are": Case(causal=False),
    "lengths": Case(causal=False, length=True),
    "window, soft cap": Case(window=3, softcap=2.0, length=True),
    "heads before slots": Case(keys="PKS", values="PKS"),
    "slots before pages": Case(keys="SPK", values="PSK"),
    "heads before pages": Case(keys="KPS", values="KPS", table="MB"),
    "a pool for each group": Case(groups=True, length=True),
    "one position for all": Case(at=""),
}
SPLITS: tuple[dict[str, str], ...] = (
    {},
    {"P": "x"},
    {"S": "xy"},
    {"P": "x", "K": "y"},
    {"K": "y"},
    {"P": "y", "S": "x"},
)


@pytest.mark.parametrize("name", CASES)
def test_reference(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays()
    found = evaluate(case.program(lse=True), "f", case.given(arrays))[0]
    for ours, theirs in zip(found, case.wanted(arrays), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("splits", SPLITS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_on_simulated_chips(name: str, splits: dict[str, str]) -> None:
    case = CASES[name]
    arrays = case.arrays(1)
    mean, _, pool = case.wanted(arrays)
    found = simulate(explicit(case.program(splits)), "f", case.given(arrays)).results
    close(found[0], mean)
    close(found[1], pool)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("block", [0, 5])
@pytest.mark.parametrize("name", CASES)
def test_jax(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also so many positions at a time: a page."""
    if block:
        for of, number in (("BLOCK", block), ("MOST_TOGETHER", 0), ("FEW_QUERIES", 0)):
            monkeypatch.setattr(jax_attention, of, number)
    case, position = CASES[name], list(CASES).index(name)
    arrays = case.arrays(2)
    wanted = case.wanted(arrays)
    whole = run_program(explicit(case.program(lse=True)), "f", case.given(arrays))[0]
    for ours, theirs in zip(whole, wanted, strict=True):
        close(ours, theirs, 1e-5)
    splits = SPLITS[1 + (position + bool(block)) % (len(SPLITS) - 1)]
    found = run_program(explicit(case.program(splits)), "f", case.given(arrays))[0]
    close(found[0], wanted[0], 1e-5)
    close(found[1], wanted[2], 1e-5)


@pytest.mark.parametrize("splits", [{}, {"P": "x", "K": "y"}], ids=str)
def test_gradients_under_jax(splits: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_attention, "BLOCK", 5)
    monkeypatch.setattr(jax_attention, "MOST_TOGETHER", 0)
    check_gradients(Case(causal=False).program(splits))


@pytest.mark.parametrize("name", CASES)
def test_torch(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays(3)
    made = case.program(lse=True)
    found = computed(made, made.func("f"), case.given(arrays))
    for ours, theirs in zip(found, case.wanted(arrays), strict=True):
        close(ours.numpy(), theirs, 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_decomposed(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays(4)
    made = run_passes(case.program(lse=True), [Decompose(attend=True)])
    assert not any(isinstance(let, Let) and isinstance(let.operation, ops.Attend) for let in made.func("f").body)
    for ours, theirs in zip(evaluate(made, "f", case.given(arrays))[0], case.wanted(arrays), strict=True):
        close(ours, theirs)


LYING = """
mesh x=2 y=2
dim X=2 N=2 B=3 L=3 M=4 P=10 S=8 K=4 D=6
state {{ pool: f32 N{groups}PSK_yD }}
func f(new: f32 {groups}B{rows}KD, at: int32 {at}, table: int32 {groups}BM) -> f32 {groups}B{rows}KD {{
  y = loop[N](z = new) {{
    set pool = update[PS](pool, z, at, pages=table)
    next z * 2.0
  }}
  return y
}}
"""


@pytest.mark.parametrize(
    ("groups", "pages", "rows", "at"),
    all_with_slow(
        ("", "X"), ("P", "P_x"), ("", "L"), ("", "B"),
        chosen=lambda groups, pages, rows, at: (bool(groups) + (pages == "P_x") + bool(rows) + bool(at)) % 2 == 0,
    ),
)  # fmt: skip
def test_pools_that_libtpu_lays_otherwise(
    groups: str, pages: str, rows: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are no whole lanes, in modules for TPUs: written page by page, over two pages too, where the pool has
    no dimension of rows. `make test` has every three of these."""
    text = LYING.format(groups=groups, rows=rows, at=at and groups + at).replace("PSK_y", f"{pages}SK_y", 1)
    made = program(text)
    rng = np.random.default_rng(0)
    shapes = {value.name: [dim.size for dim in value.type.dims] for value in (*made.func("f").params, *made.state)}
    arrays = {name: rng.integers(-99, 99, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["at"] = np.resize(rng.permutation(np.array([6, 13, 30], np.int32)), shapes["at"])
    table = np.stack([rng.permutation(np.arange(-2, 10)).reshape(3, 4) for _ in range(2)]).astype(np.int32)
    arrays["table"] = table if groups else table[0]
    held = {"pool": arrays.pop("pool")}
    _, wanted = evaluate(made, "f", arrays, state=held)
    laid, forms = explicit(made), parse_target("tpu-v5e:2x2").forms
    assert ("= written_page_by_page(" in emit(laid, forms=forms)) is not bool(groups)
    monkeypatch.setattr("shardwright.backends.jax.session.emit", functools.partial(emit, forms=forms))
    on_a_tpu(monkeypatch)
    _, found = run_program(laid, "f", arrays, state=held)
    np.testing.assert_array_equal(found["pool"], wanted["pool"])


def test_rows_of_a_pool_behind_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no dimensions of a block of a page; and a row's dimension may have the letter of any other."""
    made = program(
        "mesh x=2\ndim M=4 B=3 L=3 J=3 P=14 S=4 K=4 D=4\n"
        "func f(k: f32 PSMKD, new: f32 MBLKD, at: int32 B, table: int32 MBJ) -> (f32 PSMKD, f32 MBLKD) {\n"
        "  kept = update[PS](k, new, at, pages=table)\n"
        "  o = attend[PS, D, causal=L](new, kept, kept, pos=at, pages=table)\n  return kept, o\n}\n"
    )
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("k", (14, 4, 4, 4, 4)), ("new", (4, 3, 3, 4, 4)))
    }
    table = np.stack([rng.permutation(14)[:9].reshape(3, 3) for _ in range(4)]).astype(np.int32)
    arrays |= {"at": np.array([0, 3, 8], np.int32), "table": table}
    wanted = evaluate(made, "f", arrays)[0]
    for forms in (None, parse_target("tpu-v5e:2x1").forms):
        if forms is not None:
            monkeypatch.setattr("shardwright.backends.jax.session.emit", functools.partial(emit, forms=forms))
        for ours, theirs in zip(run_program(explicit(made), "f", arrays)[0], wanted, strict=True):
            close(ours, theirs, 1e-5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_by_the_kernel_of_tpus(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Pallas's interpreter: whole pools, and pages over chips."""
    on_a_tpu(monkeypatch)
    case = CASES[name]
    arrays = case.arrays(5)
    mean, lse, pool = case.wanted(arrays)
    found = run_program(explicit(case.program(lse=True)), "f", case.given(arrays))[0]
    for ours, theirs in zip(found, (mean, lse, pool), strict=True):
        close(ours, theirs, 1e-5)
    close(run_program(explicit(case.program({"P": "x", "K": "y"})), "f", case.given(arrays))[0][0], mean, 1e-5)
