"""The TPU's kernels of attention and of caches' rows under Pallas's interpreter, and what a module asks of a GPU,
against plain oracles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from interpreted_kernels import on_a_tpu
from oracles.attention import attended
from oracles.gradients import check_gradients
from oracles.pages import attended_pages
from program_text import program

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.helpers import HELPERS
from shardwright.backends.jax.module_files import abstract_arguments, load_module
from shardwright.backends.jax.session import run_program
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.targets.names import parse_target
from shardwright.passes.pipelines import explicit

Array = np.ndarray[Any, Any]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Gives a helper of an emitted module, its kernel interpreted."""
    import jax
    from jax.experimental import layout, pallas
    from jax.experimental.pallas import tpu

    library: Any = jax
    laying: Any = layout
    on_a_tpu(monkeypatch)
    names: dict[str, Any] = {
        "functools": functools, "math": math, "jax": library, "jnp": library.numpy, "lax": library.lax, "np": np,
        "pl": pallas, "pltpu": tpu, "Layout": laying.Layout,
        "with_layout_constraint": laying.with_layout_constraint,
    }  # fmt: skip
    exec(HELPERS["order_on_tpu"] + HELPERS["rows_written"], names)

    def helper(name: str) -> Any:
        exec(HELPERS[name], names)
        return names[name]

    return helper


LAYOUTS = {
    "BLKGD": ("btkd,blkgd->blkgt", "btkw,blkgt->blkgw"),
    "heads before positions": ("bktd,blkgd->blkgt", "bktw,blkgt->blkgw"),
    "in another order": ("tkbd,ldgbk->lgbkt", "tbkw,lgbkt->lgbkw"),
    "elements before positions": ("bkdt,blkgd->blkgt", "btkw,blkgt->blkgw"),
    "heads last": ("btdk,blkgd->blkgt", "bwtk,blkgt->blkgw"),
    "two dimensions of heads": ("btkgd,blkgd->blkgt", "btkgw,blkgt->blkgw"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(22))
def test_random_cases(seed: int, interpreted: Callable[[str], Any]) -> None:
    """Shapes that are no multiples of blocks, blocks of odd sizes, positions in any order; keys and values by
    themselves or within a stack of others, of rows that are whole lanes or are not."""
    import jax

    library: Any = jax
    jnp = library.numpy
    rng = np.random.default_rng(seed)

    def upto(n: int) -> int:
        return int(rng.integers(1, n + 1))

    specs = list(LAYOUTS.values())[seed % 3 if seed < 12 else 0 if seed < 16 else 3 + seed % 3]
    dtype = ("float32", "bfloat16")[seed // 3 % 2]
    sizes = {"b": upto(3), "k": upto(3), "g": upto(4), "d": upto(9), "w": upto(9), "l": upto(21), "t": upto(40)}
    sizes |= {name: 128 for name in ("d", "w") if rng.integers(2)}
    if seed % 4 == 0:
        sizes["l"] = 1
    if 12 <= seed < 16:  # heads that fill no tiles, and rows of several strips
        sizes |= {"k": (3, 4)[seed % 2], "t": 16 * upto(4), "d": (128, 256)[seed % 2], "w": (128, 256)[seed % 2]}
        sizes |= {"k": 2, "t": 128, "d": 384, "w": 384} if seed == 15 else {}
        sizes["l"] = upto(8)
    if "kg" in specs[0][:5]:
        sizes |= {"k": 2, "g": 2, "t": 64, "d": 256, "w": 256, "l": upto(8)}
    k_dims, q_dims, scores = specs[0].replace("->", ",").split(",")
    v_dims, _, means = specs[1].replace("->", ",").split(",")
    arrays = {
        name: rng.standard_normal([sizes[d] for d in dims]).astype(jnp.dtype(dtype))
        for name, dims in (("q", q_dims), ("k", k_dims), ("v", v_dims))
    }
    causal, window = bool(rng.integers(2)), upto(9) * int(rng.integers(2)) or None
    pos = rng.integers(-3, sizes["t"], sizes["b"]).astype(np.int32)  # some see nothing
    length = rng.integers(0, sizes["t"] + 1, sizes["b"]).astype(np.int32) if rng.integers(2) else None
    changed: dict[str, Any] = {"scale": float(rng.uniform(0.2, 2)), "softcap": float(rng.integers(2)) * 1.5}
    order = rng.permutation(sizes["t"]).astype(np.int32)

    def row(values: Array, dim: str) -> Array:
        return values.reshape([-1 if d == dim else 1 for d in scores[:-1]])

    last = row(np.arange(sizes["l"], dtype=np.int32), "l") + row(pos, "b") if causal else None
    options = {"most": (upto(8), upto(8)), "window": window if causal else None, **changed}
    k_and_v = (arrays[name][_along(dims, order)] for name, dims in (("k", k_dims), ("v", v_dims)))
    stack = [upto(3) for _ in range(rng.integers(3))]
    at = tuple(int(rng.integers(n)) for n in stack)
    k_and_v = (_within(stack, at, x) for x in k_and_v)
    given = (arrays["q"], *k_and_v, at, order, last, None if length is None else row(length, "b"))

    def attend(q: Any, k: Any, v: Any, at: Any, *masks: Any) -> Any:
        return interpreted("attend_on_tpu")(q, k, v, at, specs, *masks, **options)

    mean, lse = library.jit(attend)(*given)
    groups = "kg" if "g" in k_dims else "k"
    q, k, v = (
        arrays[name].astype(np.float32).transpose([dims.index(d) for d in wanted])
        for name, dims, wanted in (("q", q_dims, "blkgd"), ("k", k_dims, f"bt{groups}d"), ("v", v_dims, f"bt{groups}w"))
    )
    shape = q.shape[:-1]
    k, v = (x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in (k, v))
    q = q.reshape(*shape[:2], k.shape[2], -1, q.shape[-1])
    expected = attended(q, k, v, causal=causal, pos=pos, length=length, window=window, **changed)
    expected = (expected[0].reshape(*shape, -1), expected[1].reshape(shape))
    tolerance = 2e-5 if dtype == "float32" else 2e-2
    found = np.asarray(mean, np.float32).transpose([means.index(d) for d in "blkgw"])
    np.testing.assert_allclose(found, expected[0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        np.asarray(lse).transpose([scores.index(d) for d in "blkg"]), expected[1], rtol=1e-4, atol=1e-4
    )


POOLS = ("skd", "ksd", "skd", "ksd", "kds")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(15))
def test_random_pages(seed: int, interpreted: Callable[[str], Any]) -> None:
    """Pools within stacks, of pages in several blocks or in one, with pages that are not there; a pool for all rows or
    one for each group of them."""
    import jax

    library: Any = jax
    jnp = library.numpy
    rng = np.random.default_rng(seed)

    def upto(n: int) -> int:
        return int(rng.integers(1, n + 1))

    pool, dtype = POOLS[seed % 5], ("float32", "bfloat16")[seed // 5 % 2]
    sizes = {"x": upto(2), "b": upto(3), "m": upto(4), "p": upto(9) + 3, "s": 8 * upto(6), "k": upto(3)}
    sizes |= {"g": upto(4), "l": upto(7), "d": 128 if seed % 3 else upto(9)}
    if seed in (0, 5):  # rows of several strips
        sizes |= {"k": 2, "d": 256, "s": 64}
    groups = seed % 2 * "x"
    q_dims, rows = f"{groups}blkgd", f"{groups}blkg"
    keys, values = f"{groups}b{pool.replace('s', 't')}", f"{groups}btkd"
    specs = f"{keys},{q_dims}->{rows}t", f"{values},{rows}t->{rows}d"
    stack = [upto(3) for _ in range(rng.integers(3))]
    at = tuple(int(rng.integers(n)) for n in stack)

    def drawn(dims: str) -> Array:
        return rng.standard_normal([sizes["x"] if d == "x" else sizes[d] for d in dims]).astype(np.float32)

    q, k, v = drawn("xblkgd"), drawn("xpskd"), drawn("xpskd")
    if not groups:
        q, k, v = q[:1], k[:1], v[:1]
    table = rng.integers(-1, sizes["p"] + 1, (len(q), sizes["b"], sizes["m"])).astype(np.int32)
    pos = rng.integers(0, sizes["s"] * sizes["m"], (len(q), sizes["b"])).astype(np.int32)
    last = pos[:, :, None, None, None] + np.arange(sizes["l"], dtype=np.int32)[:, None, None]
    t = np.arange(sizes["m"] * sizes["s"], dtype=np.int32)

    def given(array: Array, dims: str) -> Any:
        array = array.transpose(0, *(1 + "pskd".index(d) for d in dims)) if dims else array
        return (array if groups else array[0]).astype(jnp.dtype(dtype) if array.dtype == np.float32 else array.dtype)

    pools = [_within(stack, at, x) for x in (given(k, "p" + pool), given(v, "pskd"))]

    def attend(q: Any, k: Any, v: Any, pages: Any) -> Any:
        helper, masks = interpreted("attend_on_tpu"), (jnp.asarray(t), given(last, ""), None)
        options = {"pages": pages, "rows_of_pages": (f"{groups}b", len(groups)), "scale": 0.3, "most": (8, 64)}
        return helper(q, k, v, at, specs, *masks, **options)

    mean, lse = library.jit(attend)(given(q, ""), *pools, given(table, ""))
    rounded = [x.astype(jnp.dtype(dtype)).astype(np.float32) for x in (q, k, v)]
    wanted = [attended_pages(*(x[i] for x in rounded), table[i], pos=pos[i], scale=0.3) for i in range(len(q))]
    tolerance = 2e-5 if dtype == "float32" else 2e-2
    for found, expected in zip((mean, lse), zip(*wanted, strict=True), strict=True):
        stacked = np.stack(expected) if groups else expected[0]
        np.testing.assert_allclose(np.asarray(found, np.float32), stacked, rtol=tolerance, atol=tolerance)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(16))
def test_random_rows(seed: int, interpreted: Callable[[str], Any]) -> None:
    """One row or several at places of all sorts, outside too, in batches of one or two dimensions, within stacks; and
    the derivative."""
    import jax

    library: Any = jax
    jnp = library.numpy
    rng = np.random.default_rng(seed)
    stack, batch, rest = ([int(n) for n in rng.integers(1, 4, rng.integers(low, 3))] for low in (0, 1, 0))
    batch[0] = 150 if seed % 4 == 0 else batch[0]  # of more than a tile's lanes
    size, width = (int(rng.integers(1, n)) for n in (300, 9))
    if seed >= 12:  # heads that fill no tiles
        rest, size, width = [int(rng.integers(5, 8))], size // 8 * 8 + 8, 128
    dtype = ("float32", "bfloat16")[seed % 2]
    x = rng.standard_normal((*stack, *batch, size, *rest, width)).astype(jnp.dtype(dtype))
    n = 1 if rng.integers(2) else int(rng.integers(2, 2 * size + 2))  # more than there are places, too
    rows = rng.standard_normal((*batch, n, *rest, width)).astype(jnp.dtype(dtype))
    place = rng.integers(-size // 2, 2 * size, batch).astype(np.int32)
    at = tuple(int(rng.integers(n)) for n in stack)
    wanted = x.astype(np.float32)
    for *entry, row in np.ndindex(*batch, n):
        if 0 <= place[*entry] + row < size:
            wanted[(*at, *entry, place[*entry] + row)] = rows[*entry, row]

    def written(x: Any, rows: Any) -> Any:
        return interpreted("rows_written_apart")(x, rows, at, jnp.asarray(place))

    @library.jit
    def both(*given: Any) -> Any:
        return library.jvp(written, given, given)  # which is linear

    found, tangent = both(x, rows)
    np.testing.assert_array_equal(np.asarray(found, np.float32), wanted)
    np.testing.assert_array_equal(np.asarray(tangent, np.float32), wanted)


def _within(stack: Sequence[int], at: tuple[int, ...], array: Array) -> Array:
    """An array within a stack of others, which are no numbers."""
    made = np.full((*stack, *array.shape), np.nan, array.dtype)
    made[at] = array
    return made


def _along(dims: str, order: Array) -> Any:
    return tuple(order if dim == "t" else slice(None) for dim in dims)


SPLIT = """
mesh x=2 y=2
dim B=2 L=5 T=8 K=2 G=3 D=4
func f(q: f32 BLKGD, k: f32 BT_xK_yD, v: f32 BT_xK_yD, pos: int32 B, length: int32 B) -> f32 BLKGD {
  o: f32 BLKGD(partialsoftmax-x) = attend[T, D, causal=L, window=3, softcap=2.0](q, k, v, pos=pos, length=length)
  return o
}
"""


def test_over_a_split_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chip's kernel gives the pair that is weighed; one chip sees nothing of some rows."""
    on_a_tpu(monkeypatch)
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((2, *s, 4)).astype(np.float32) for n, s in (("q", (5, 2, 3)), ("k", (8, 2)))}
    arrays |= {"v": arrays["k"] + 1, "pos": np.array([0, 3], np.int32), "length": np.array([2, 8], np.int32)}
    (found,), _ = run_program(explicit(program(SPLIT)), "f", arrays)
    wanted, _ = attended(
        arrays["q"],
        arrays["k"],
        arrays["v"],
        causal=True,
        pos=arrays["pos"],
        length=arrays["length"],
        window=3,
        softcap=2.0,
    )
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_tpu(monkeypatch)
    check_gradients(
        program(
            "mesh x=2\ndim B=2 L=4 T=4 D=4 H=2\n"
            "func f(q: f32 B_xLHD, k: f32 B_xTD, v: f32 B_xTD) -> f32 B_xLHD { return attend[T, D, causal=L](q, k, v) }"
        )
    )


CUDNN = {
    "causal": ("L=8", "attend[T, D, causal=L, scale=0.5](q, k, v)", ""),
    "a window": ("L=8", "attend[T, D, causal=L, window=3](q, k, v)", ""),
    "one query of each row": ("L=1", "attend[T, D, causal=L](q, k, v, pos=pos)", ", pos: int32 B"),
    "lengths": ("L=5", "attend[T, D](q, k, v, length=pos)", ", pos: int32 B"),
}


def _answer(answer: int, *_: Any) -> int:
    return answer


@pytest.mark.parametrize("name", CUDNN)
def test_what_cudnn_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call in what is lowered for GPUs, under `check_vma`; and the same arguments given to XLA's implementation."""
    import jax
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    size, call, more = CUDNN[name]
    made = program(
        f"mesh x=2 y=2\ndim B=2 {size} T=8 K=2 G=3 D=8\n"
        f"func f(q: BLK_yGD, k: BTK_yD, v: BTK_yD{more}) -> BLK_yGD {{\n  o = {call}\n  return o\n}}\n"
    )
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "q": rng.standard_normal((2, made.sizes()["L"], 2, 3, 8)), "k": rng.standard_normal((2, 8, 2, 8)),
        "v": rng.standard_normal((2, 8, 2, 8)), **({"pos": np.array([0, 5], np.int32)} if more else {}),
    }  # fmt: skip
    (wanted,), _ = evaluate(made, "f", arrays)
    for of, answer in (
        ("check_cudnn_version", 91100), ("check_compute_capability", True), ("is_cuda_compute_capability_equal", False),
    ):  # fmt: skip
        monkeypatch.setattr(cudnn, of, functools.partial(_answer, answer))
    module = load_module(emit(explicit(made)))
    mesh = module.make_mesh()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    lowered = module.build_f(mesh).trace(*abstract_arguments(module, "f", mesh)).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("@__cudnn$fmhaSoftmax") == 1

    asked: Any = jax.nn.dot_product_attention

    def here(*args: Any, implementation: str, **options: Any) -> Any:
        assert implementation == "cudnn"
        return asked(*args, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", here)

    def on_a_gpu(*args: Any, **branches: Any) -> Any:
        return branches["cuda"](*args)

    monkeypatch.setattr(jax.lax, "platform_dependent", on_a_gpu)
    (found,), _ = run_program(explicit(made), "f", arrays)
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(wanted), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize(
    ("signature", "call"),
    [
        ("q: f32 BLHD, k: f32 BTHD, v: f32 BTHD", "attend[T, D, causal=L](q, k, v)"),
        ("q: BLHD, k: BTHD, v: BTHD", "attend[T, D, softcap=3](q, k, v)"),
        ("q: BLHD, k: BTHD, v: BTHD, pos: int32 B", "attend[T, D, causal=L](q, k, v, pos=pos)"),
        ("q: BLHD, k: BT_xHD, v: BT_xHD", "attend[T, D](q, k, v)"),
        ("q: BLHD, k: BTHD, v: BTHD, pos: int32 L", "attend[T, D](q, k, v, length=pos)"),
    ],
)
def test_cudnn_is_not_asked(signature: str, call: str) -> None:
    """For f32, a soft cap, queries that begin anywhere, positions over chips, and lengths of their own."""
    demanded = ": BLHD(partialsoftmax-x)" if "_x" in signature else ""
    kind = "f32 BLHD" if "f32" in signature else "BLHD"
    text = (
        f"mesh x=2\ndim B=2 L=4 T=4 H=2 D=8\nfunc f({signature}) -> {kind} {{\n  o{demanded} = {call}\n  return o\n}}"
    )
    assert "cudnn='" not in emit(explicit(program(text)))


LOWERED = """
mesh x=2 y=2
dim B=4 L=520 T=1000 K=4 G=4 D=64 W=72 M=1 O=9 S=100
func windowed(q: f32 B_xLK_yGD, k: f32 B_xTK_yD, v: f32 B_xTK_yW, pos: int32 B_x) -> f32 B_xLK_yGW {
  return attend[T, D, causal=L, window=300, softcap=30](q, k, v, pos=pos)
}
func split(q: B_yMKGD, k: B_yT_xKD, v: B_yT_xKD, n: int32 B_y) -> B_yMKGD {
  o: B_yMKGD(partialsoftmax-x) = attend[T, D](q, k, v, length=n)
  return o
}
func odd(q: OGD, k: SD, v: SD) -> (OGD, f32 OG) {
  o, s = attend[S, D, lse](q, k, v)
  return o, s
}
"""


@pytest.mark.parametrize("name", ["windowed", "split", "odd"])
def test_lowered_for_tpus(name: str) -> None:
    """Under `check_vma`, with blocks of whole tiles or whole dimensions, which is checked as kernels are lowered; its
    derivative has the kernel's value."""
    import jax

    library: Any = jax
    module = load_module(emit(explicit(program(LOWERED))))
    mesh = module.make_mesh()
    function, given = getattr(module, f"build_{name}")(mesh), abstract_arguments(module, name, mesh)

    def derivative(*args: Any) -> Any:
        floats = [x for x in args if x.dtype != np.int32]

        def of_floats(*x: Any) -> Any:
            return function(*x, *args[len(floats) :])

        return library.jvp(of_floats, floats, floats)

    for each in (function, library.jit(derivative)):
        lowered = each.trace(*given).lower(lowering_platforms=("tpu",))
        assert lowered.as_text().count("@tpu_custom_call") == 1


UPDATES = {
    "a stack of caches": (
        "k: f32 NB_xTHD",
        "row: f32 B_xLHD, at: int32 B_x",
        "loop[N](h: f32 B_xLHD = row) {{ set k = {update}(k, h, at)\n next h * 2.0 }}",
    ),
    "several rows": (
        "k: f32 NB_xTHD",
        "row: f32 B_xSHD, at: int32 B_x",
        "loop[N](h = row) {{ set k = {update}(k, h, at)\n next h * 2.0 }}",
    ),
    "positions over chips": ("k: f32 BT_xHD", "row: f32 BLHD, at: int32 B", "{update}(k, row, at)"),
    "no dimension that is written": ("k: f32 B_xTD", "row: f32 B_xD, at: int32 B_x", "{update}(k, row, at)"),
    "heads before positions": ("k: f32 B_xH_yTD", "row: f32 B_xLH_yD, at: int32 B_x", "{update}(k, row, at)"),
    "a place for each head": ("k: f32 B_xHTD", "row: f32 B_xLHD, at: int32 HB_x", "{update}(k, row, at)"),
}


@pytest.mark.parametrize("sizes", ["T=6 H=2 D=5", "T=16 H=6 D=128"])
@pytest.mark.parametrize("update", ["update[T]", "update[T, wrap=true]"])
@pytest.mark.parametrize("name", UPDATES)
def test_rows_at_places_of_their_own(name: str, update: str, sizes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of caches whose rows are no whole lanes, or whose heads are no whole tiles, in modules for TPUs, against
    their meaning."""
    state, params, text = UPDATES[name]
    made = program(
        f"mesh x=2 y=2\ndim N=2 B=4 L=1 S=3 {sizes}\nstate {{ {state} }}\n"
        f"func f({params}) -> f32 {params.split()[2].rstrip(',')} {{\n"
        f"  {'y' if 'loop' in text else 'set k'} = {text.format(update=update)}\n  return row\n}}\n"
    )
    rng = np.random.default_rng(0)
    shapes = {value.name: [dim.size for dim in value.type.dims] for value in (*made.func("f").params, *made.state)}
    arrays = {name: rng.integers(-99, 99, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["at"] = rng.permuted(np.resize(np.array([-3, 0, 2, 5, 6, 9, 15, 16], np.int32), shapes["at"]))
    held = {"k": arrays.pop("k")}
    _, wanted = evaluate(made, "f", arrays, state=held)
    laid = explicit(made)
    forms = parse_target("tpu-v5e:2x2").forms
    parted = name == "several rows" and "wrap" in update  # at the cache's end, so that they are no block
    in_order = "128" in sizes and not state.endswith(("THD", "T_xHD"))
    assert ("= rows_written_apart(" in emit(laid, forms=forms)) is not (parted or in_order)
    monkeypatch.setattr("shardwright.backends.jax.session.emit", functools.partial(emit, forms=forms))
    on_a_tpu(monkeypatch)
    _, found = run_program(laid, "f", arrays, state=held)
    np.testing.assert_array_equal(found["k"], wanted["k"])


@pytest.mark.parametrize(("k", "v"), [("BDT", "BTD"), ("BTDH", "BTHD"), ("BHTD", "BDTH")])
def test_layouts_that_no_kernel_reads_as_they_lie(k: str, v: str) -> None:
    """Modules for all platforms, of which each has to be traced."""
    made = program(
        "mesh x=2\ndim B=4 L=2 T=6 H=2 D=8\n"
        f"func f(q: f32 B_xLHD, k: f32 {k}, v: f32 {v}) -> f32 B_xLHD {{ return attend[T, D](q, k, v) }}\n"
    )
    rng = np.random.default_rng(0)
    arrays = {
        value.name: rng.standard_normal([dim.size for dim in value.type.dims]).astype(np.float32)
        for value in made.func("f").params
    }
    (wanted,), _ = evaluate(made, "f", arrays)
    (found,), _ = run_program(explicit(made), "f", arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
