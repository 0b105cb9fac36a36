"""`attend` and `join_attention` in the reference, on simulated chips, under JAX and PyTorch, against a plain oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from combinations import all_with_slow
from interpreted_kernels import on_a_tpu
from oracles.attention import attended, close
from oracles.gradients import check_gradients
from oracles.torch_blocks import computed
from program_text import program

from shardwright.backends.jax import attention as jax_attention
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.jax.session import Session, run_program
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.backends.torch import functions
from shardwright.ir import ops
from shardwright.ir.program import Let, Program
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.pipelines import explicit, run_passes

Array = np.ndarray[Any, Any]

SIZES = {"B": 2, "L": 4, "T": 8, "K": 2, "G": 3, "D": 4, "W": 6}


@dataclass(frozen=True)
class Case:
    """What is masked and how scores are changed; `W` is the dimension that values are wide in."""

    causal: bool = False
    pos: str = ""
    length: str = ""
    window: int | str = 0
    """A number, or the layout of an operand, as `pos` and `length` have."""
    scale: float = 1.0
    softcap: float = 0.0
    width: str = "D"
    dims: str = "BLKGD"
    """Those of q, in this order."""

    @property
    def statics(self) -> str:
        made = ["T", "D", *(["causal=L"] if self.causal else [])]
        for name in ("window", "scale", "softcap"):
            value = getattr(self, name)
            if value != getattr(Case, name) and not isinstance(value, str):
                made.append(f"{name}={value}")
        return ", ".join(made)

    @property
    def given(self) -> dict[str, str]:
        of = {name: getattr(self, name) for name in ("pos", "length", "window")}
        return {name: layout for name, layout in of.items() if layout and isinstance(layout, str)}

    def program(
        self, splits: Mapping[str, str] | None = None, *, lse: bool = False, mesh: str = "x=2 y=2", dtype: str = "f32"
    ) -> Program:
        """`splits` are the axes that split dimensions of keys and values, W's the width of values; over T's a partial
        softmax is demanded."""
        splits = splits or {}
        rows = self.dims.replace("D", "")
        cache, own = ("".join(f"{d}_{splits[d]}" if d in splits else d for d in dims) for dims in ("BTK", rows))
        width = f"{self.width}_{splits['W']}" if "W" in splits else self.width
        demanded = f": {dtype} {own}{self.width}(partialsoftmax-{splits['T']})" if "T" in splits else ""
        params = [f"q: {dtype} {self.dims}", f"k: {dtype} {cache}D", f"v: {dtype} {cache}{width}"]
        params += [f"{name}: int32 {'' if layout == 'scalar' else layout}" for name, layout in self.given.items()]
        operands = ["q", "k", "v", *(f"{name}={name}" for name in self.given)]
        dims = " ".join(f"{name}={size}" for name, size in SIZES.items())
        kinds = [f"{dtype} {rows}{width}", *([f"f32 {rows}"] if lse else [])]
        return program(
            f"mesh {mesh}\ndim {dims}\nfunc f({', '.join(params)}) -> ({', '.join(kinds)}) {{\n"
            f"  o{demanded}{', s' if lse else ''} ="
            f" attend[{self.statics}{', lse' if lse else ''}]({', '.join(operands)})\n"
            f"  return o{', s' if lse else ''}\n}}\n"
        )

    def arrays(self, seed: int = 0) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        shapes = {"q": self.dims, "k": "BTKD", "v": f"BTK{self.width}"}
        made: dict[str, Array] = {
            name: rng.standard_normal([SIZES[d] for d in dims]).astype(np.float32) for name, dims in shapes.items()
        }
        for name, layout in self.given.items():
            below = 6 if name == "pos" else 9
            made[name] = rng.integers(0, below, () if layout == "scalar" else SIZES["B"]).astype(np.int32)
        return made

    def wanted(self, arrays: dict[str, Array]) -> tuple[Array, Array]:
        q = arrays["q"].transpose([self.dims.index(name) for name in "BLKGD"])
        masks: dict[str, Any] = {name: arrays[name] for name in self.given}
        options: dict[str, Any] = {"scale": self.scale, "softcap": self.softcap}
        if isinstance(self.window, int) and self.window:
            options["window"] = self.window
        mean, lse = attended(q, arrays["k"], arrays["v"], causal=self.causal, **masks, **options)
        order = ["BLKG".index(name) for name in self.dims.replace("D", "")]
        return mean.transpose(*order, 4), lse.transpose(order)


CASES = {
    "plain": Case(),
    "scaled": Case(scale=0.5),
    "soft cap": Case(scale=2.0, softcap=1.5),
    "causal": Case(causal=True),
    "from a position": Case(causal=True, pos="scalar", scale=0.5),
    "from positions of rows": Case(causal=True, pos="B", softcap=4.0),
    "window": Case(causal=True, pos="B", window=3),
    "a window that is an operand": Case(causal=True, window="scalar"),
    "windows of rows": Case(causal=True, pos="B", length="B", window="B"),
    "lengths": Case(length="B"),
    "a length": Case(causal=True, length="scalar"),
    "all": Case(True, "B", "B", 4, 0.3, 5.0),
    "wider values": Case(causal=True, width="W"),
    "in another order": Case(causal=True, pos="B", dims="LDGBK"),
}


@pytest.mark.parametrize("name", CASES)
def test_reference(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays()
    (mean, lse), _ = evaluate(case.program(lse=True), "f", arrays)
    wanted = case.wanted(arrays)
    close(mean, wanted[0])
    close(lse, wanted[1])


SPLITS = ({"T": "x"}, {"T": "xy"}, {"B": "y", "T": "x"}, {"T": "x", "K": "y"}, {"B": "x", "K": "y"})


@pytest.mark.parametrize("splits", SPLITS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_on_simulated_chips(name: str, splits: dict[str, str]) -> None:
    case = CASES[name]
    arrays = case.arrays(1)
    laid = explicit(case.program(splits))
    close(simulate(laid, "f", arrays).results[0], case.wanted(arrays)[0])


def small_blocks(monkeypatch: pytest.MonkeyPatch, positions: int = 3) -> None:
    """Queries and positions so many at a time: of 8 in turns of 3, 3 and 2."""
    for of, number in (("BLOCK", positions), ("MOST_TOGETHER", 0), ("FEW_QUERIES", 0)):
        monkeypatch.setattr(jax_attention, of, number)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "blocks", "lse"),
    all_with_slow(
        CASES, (False, True), (False, True),
        chosen=lambda name, blocks, lse: (blocks is lse) is (list(CASES).index(name) % 2 == 0),
    ),
)  # fmt: skip
def test_jax(name: str, blocks: bool, lse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over split rows with the pair for a result, over a split cache, and over the width of values. `make test` has
    every pair of two parameters."""
    if blocks:
        small_blocks(monkeypatch)
    case = CASES[name]
    arrays = case.arrays(2)
    wanted = case.wanted(arrays)
    close(run_program(explicit(case.program({"T": "x", "K": "y"})), "f", arrays)[0][0], wanted[0], 1e-5)
    # Over the width each chip has scores of its own, the same as those of others.
    for splits in ({"B": "y"}, {"W": "x", "K": "y"}) if lse else ({"W": "x", "K": "y"},):
        results = run_program(explicit(case.program(splits, lse=lse)), "f", arrays)[0]
        for found, expected in zip(results, wanted, strict=False):
            close(found, expected, 1e-5)


PASSED_OVER: dict[str, dict[str, str]] = {
    "causal": {}, "from positions of rows": {"T": "x"}, "window": {}, "windows of rows": {"T": "x"},
    "lengths": {"T": "x"}, "all": {"B": "x", "K": "y"}, "in another order": {"T": "x"},
}  # fmt: skip
"""Masks, each with what `make test` splits; of "causal" it has every split."""

WITH_THE_PAIR = ("scaled", "from a position")
"""Cases whose gradients `make test` looks at with the pair alone, as of masks that others pass over in blocks."""
OVER_A_SPLIT_CACHE = ("soft cap", "a length")
"""And those over a split cache alone."""


def _chosen(name: str, blocks: bool, lse: bool) -> bool:
    elsewhere = {each for each, splits in PASSED_OVER.items() if each == "causal" or "T" in splits}
    return blocks is not lse and name not in (elsewhere.union(WITH_THE_PAIR) if blocks else OVER_A_SPLIT_CACHE)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "blocks", "lse"), all_with_slow(CASES, (False, True), (False, True), chosen=_chosen))
def test_gradients_under_jax(name: str, blocks: bool, lse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a split cache, whose pairs are joined, and with the pair for a result."""
    if blocks:
        small_blocks(monkeypatch)
    check_gradients(CASES[name].program(lse=True) if lse else CASES[name].program({"T": "x", "K": "y"}))


@pytest.mark.parametrize("name", ["plain", "all"])
def test_gradients_where_the_width_of_values_is_split(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    check_gradients(CASES[name].program({"W": "x", "K": "y"}, lse=True))


@pytest.mark.parametrize("together", [1 << 24, 20])
@pytest.mark.parametrize("name", CASES)
def test_torch(name: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions.attend, "__defaults__", (together,))
    case = CASES[name]
    arrays = case.arrays(3)
    wanted = case.wanted(arrays)
    for lse in (True, False):
        made = case.program(lse=lse)
        func = made.func("f")
        found = computed(made, func, arrays)
        for ours, theirs in zip(found, wanted, strict=False):
            close(ours.numpy(), theirs, 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_decomposed(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays(4)
    wanted = case.wanted(arrays)
    made = run_passes(case.program(lse=True), [Decompose(attend=True)])
    assert not any(isinstance(let, Let) and isinstance(let.operation, ops.Attend) for let in made.func("f").body)
    (mean, lse), _ = evaluate(made, "f", arrays)
    close(mean, wanted[0])
    close(lse, wanted[1])
    # Without a second result, over a split cache: `place` makes partial sums and maxima.
    split = run_passes(case.program({"B": "x", "K": "y"}), [Decompose(attend=True)])
    close(simulate(explicit(split), "f", arrays).results[0], wanted[0])


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "splits"),
    all_with_slow(
        PASSED_OVER, ({}, {"T": "x"}, {"B": "x", "K": "y"}),
        chosen=lambda name, splits: name == "causal" or splits == PASSED_OVER[name],
    ),
    ids=str,
)  # fmt: skip
def test_blocks_that_no_query_sees_are_passed_over(
    name: str, splits: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries two at a time, positions two at a time: results and gradients are the same, chips that pass over other
    blocks than others among them. Values that are no numbers, which any weight of 0 would let through, stay out."""
    small_blocks(monkeypatch, 2)
    case = CASES[name]
    arrays = case.arrays(5)
    session = Session(explicit(case.program(splits)), {})
    close(session.call("f", arrays)[0], case.wanted(arrays)[0], 1e-5)
    check_gradients(case.program(splits))
    if name == "causal" and "T" not in splits:  # of 8 positions 4 queries see 4, and the first two 2
        arrays["v"][:, 4:] = np.nan
        assert np.isfinite(session.call("f", arrays)[0]).all()
        arrays["v"][:, 2:] = np.nan
        (found,) = session.call("f", arrays)
        assert (np.isfinite(found).all((0, 2, 3, 4)) == [True, True, False, False]).all()


def test_scores_are_not_in_memory() -> None:
    """Neither forwards nor backwards: 134 MB of them on a chip."""
    import jax

    library: Any = jax
    made = program(
        "mesh x=2\ndim B=2 L=4096 T=4096 D=16 H=2\n"
        "func f(q: f32 B_xLHD, k: f32 B_xTD, v: f32 B_xTD) -> f32 B_xLHD { return attend[T, D, causal=L](q, k, v) }"
    )
    module = load_module(emit(explicit(made)))
    f = module.build_f(module.make_mesh())
    given = [library.ShapeDtypeStruct(shape, dtype) for shape, dtype in module.IN_SHAPES["f"]]

    def temporary(function: Any) -> int:
        return library.jit(function).lower(*given).compile().memory_analysis().temp_size_in_bytes

    scores = 4 * 4096 * 4096 * 2
    assert temporary(f) < scores / 3

    def total(*args: Any) -> Any:
        return f(*args).sum()

    assert temporary(library.grad(total, argnums=(0, 1, 2))) < scores


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    """Where a softmax would give NaN; over a split cache, too."""
    case = Case(length="B")
    arrays = case.arrays() | {"length": np.array([0, 1], np.int32)}
    for laid in (explicit(case.program()), explicit(case.program({"T": "xy"}))):
        found = [simulate(laid, "f", arrays).results[0], run_program(laid, "f", arrays)[0][0]]
        for result in found:
            assert (np.asarray(result)[0] == 0).all()
            close(np.asarray(result)[1], np.broadcast_to(arrays["v"][1, 0][None, :, None], (4, 2, 3, 4)), 1e-6)


LEAST, MOST = -(2**31), 2**31 - 1

FAR = {
    "positions": (Case(causal=True, pos="B"), [{"pos": [MOST, LEAST]}, {"pos": [MOST - 2, -1]}]),
    "a small window": (Case(causal=True, pos="B", window=3), [{"pos": [MOST, LEAST]}, {"pos": [9, 12]}]),
    "a great window": (Case(causal=True, pos="B", window=MOST), [{"pos": [MOST, LEAST]}, {"pos": [MOST - 9, -1]}]),
    "a greater window": (Case(causal=True, pos="B", window=2**31 + 5), [{"pos": [5, 2]}]),
    "windows from the first position": (Case(causal=True, window="B"), [{"window": [MOST, LEAST]}]),
    "windows and lengths": (
        Case(causal=True, pos="B", length="B", window="B"),
        [
            {"pos": [MOST, MOST], "length": [MOST, 8], "window": [MOST, LEAST]},
            {"pos": [-1, LEAST], "length": [MOST, 8], "window": [MOST, MOST]},
            {"pos": [9, 4], "length": [7, LEAST], "window": [4, MOST]},
        ],
    ),
}
"""Positions, lengths and windows at both ends of int32."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FAR)
def test_positions_at_the_ends_of_int32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, given = FAR[name]
    made, laid = case.program(lse=True), explicit(case.program({"T": "x", "K": "y"}))
    decomposed = run_passes(made, [Decompose(attend=True)])
    tried: list[tuple[dict[str, Array], tuple[Array, Array]]] = []
    for each in given:
        far = {operand: np.array(values, np.int64) for operand, values in each.items()}
        arrays = {**case.arrays(6), **far}
        wanted = case.wanted(arrays)
        arrays |= {operand: values.astype(np.int32) for operand, values in far.items()}
        tried.append((arrays, wanted))
        for program_of in (made, decomposed):
            for ours, theirs in zip(evaluate(program_of, "f", arrays)[0], wanted, strict=True):
                close(ours, theirs)
        for ours, theirs in zip(computed(made, made.func("f"), arrays), wanted, strict=True):
            close(ours.numpy(), theirs, 1e-5)
        close(simulate(laid, "f", arrays).results[0], wanted[0])

    def under_jax(program: Program) -> None:
        session = Session(program, {})
        for arrays, (wanted, _) in tried:
            close(session.call("f", arrays)[0], wanted, 1e-5)

    under_jax(laid)
    with monkeypatch.context() as patch:
        small_blocks(patch)
        under_jax(explicit(case.program()))
    with monkeypatch.context() as patch:
        on_a_tpu(patch)
        under_jax(laid)


@pytest.mark.parametrize("window", [None, 3, 20])
@pytest.mark.parametrize("operand", [False, True])
def test_one_query_beyond_the_positions_under_torch(window: int | None, operand: bool) -> None:
    """Where all rows are at one position, before the first or behind the last."""
    static = "" if window is None or operand else f", window={window}"
    param, given = (", w: int32", ", window=w") if operand else ("", "")
    made = program(
        f"dim B=2 L=1 T=8 K=2 D=4\nfunc f(q: f32 BLKD, k: f32 BTKD, pos: int32 B{param}) -> f32 BLKD {{\n"
        f"  return attend[T, D, causal=L{static}](q, k, k, pos=pos{given})\n}}\n"
    )
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        name: rng.standard_normal((2, n, 2, 4)).astype(np.float32) for name, n in (("q", 1), ("k", 8))
    }
    arrays["w"] = np.array(window or 0, np.int32)
    for pos in (LEAST, -1, 0, 4, 7, 8, 9, 11, 30, MOST):
        arrays["pos"] = np.full(2, pos, np.int32)
        (wanted,), _ = evaluate(made, "f", {value.name: arrays[value.name] for value in made.func("f").params})
        close(computed(made, made.func("f"), arrays)[0].numpy(), np.asarray(wanted), 1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_what_is_no_number_stays_none_under_torch(name: str, causal: bool) -> None:
    """Queries, keys or values: their rows are NaN, and no others."""
    seen = ", causal=L" if causal else ""
    made = program(
        "dim B=2 L=5 T=5 K=2 D=4\nfunc f(q: f32 BLKD, k: f32 BTKD, v: f32 BTKD) -> f32 BLKD {\n"
        f"  return attend[T, D{seen}](q, k, v)\n}}\n"
    )
    rng = np.random.default_rng(0)
    arrays = {each: rng.standard_normal((2, 5, 2, 4)).astype(np.float32) for each in ("q", "k", "v")}
    arrays[name][1, :, 0, 2] = np.nan
    (found,) = computed(made, made.func("f"), arrays)
    lost = np.isnan(found.numpy())
    assert lost[1, :, 0, 2].all()
    assert lost[1, :, 0].all() == (name != "v")
    assert not lost[0].any()
    assert not lost[:, :, 1].any()


def test_bytes_of_a_partial_softmax() -> None:
    """Those of both halves: 2 bytes for each element and 4 for each row."""
    made = program(
        "mesh x=4\ndim B=8 T=16 H=4 D=64\n"
        "func f(q: BHD, k: BT_xHD) -> (BHD, BH_xD) {\n"
        "  o = attend[T, D](q, k, k)\n  r = all_reduce[x](o)\n  s = reduce_scatter[x -> H](o)\n  return r, s\n}"
    )
    found = simulate(made, "f", {"q": np.ones((8, 4, 64)), "k": np.ones((8, 16, 4, 64))})
    shard = 8 * 4 * (2 * 64 + 4)
    assert found.bytes_received == {"r": 2 * shard * 3 // 4, "s": shard * 3 // 4}


PIECES = """
mesh x=2
dim B=2 L=3 T=8 H=2 D=4
func f(q: f32 BLHD, k: f32 B_xTHD, v: f32 B_xTHD, pos: int32 B) -> f32 B_xLHD {
  o1, s1 = attend[T, D, causal=L, lse](q, take[T 0:5](k), take[T 0:5](v), pos=pos)
  o2, s2 = attend[T, D, causal=L, lse](q, take[T 5:8](k), take[T 5:8](v), pos=pos - 5)
  o, s = join_attention(o1, s1, o2, s2)
  return o
}
"""


def test_pieces_are_joined() -> None:
    """As attention over all of them; some rows see nothing of the second one."""
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 3, 2, 4), "k": (2, 8, 2, 4), "v": (2, 8, 2, 4)}
    arrays: dict[str, Array] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["pos"] = np.array([1, 5], np.int32)
    wanted, _ = attended(arrays["q"][:, :, :, None], arrays["k"], arrays["v"], causal=True, pos=arrays["pos"])
    made = program(PIECES)
    close(evaluate(made, "f", arrays)[0][0], wanted[:, :, :, 0])
    close(simulate(explicit(made), "f", arrays).results[0], wanted[:, :, :, 0])
    close(run_program(explicit(made), "f", arrays)[0][0], wanted[:, :, :, 0], 1e-5)
    check_gradients(made)
