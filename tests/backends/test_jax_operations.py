"""Every operation that is no movement, under JAX on eight virtual devices, against its unsharded meaning."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.jax_agreement import check, check_each

from shardwright.backends.jax.expressions import LOWERINGS
from shardwright.backends.simulation.kernels import KERNELS

HEAD = "mesh x=2 y=2 z=2\ndim B=4 L=4 T=8 E=16 F=24 V=32 H=8 K=4 G=2 D=8 D2=4 E2=4 long=4\n"


def test_every_operation_has_an_expression() -> None:
    assert set(LOWERINGS) == set(KERNELS)


def body(signature: str, *lines: str, head: str = HEAD) -> str:
    return head + f"func f{signature} {{\n  " + "\n  ".join(lines) + "\n}\n"


CONTRACTIONS = {
    "split result": body("(a: f32 B_xE, b: f32 EF_y) -> f32 B_xF_y", "r = a @[E] b", "return r"),
    "partial sum": body("(a: f32 BE_xy, b: f32 E_xyF) -> f32 BF", "r = a @[E] b", "s = all_reduce[xy](r)", "return s"),
    "batched": body("(a: f32 B_xLE, b: f32 B_xET) -> f32 B_xTL", "r: f32 B_xTL = a @[E] b", "return r"),
    "outer": body("(a: f32 B_x, b: f32 F_y) -> f32 F_yB_x", "r: f32 F_yB_x = a @ b", "return r"),
    "letters that meet": body("(a: f32 EE2_x, b: f32 E2_xF) -> f32 EF(partialsum-x)", "r = a @[E2] b", "return r"),
    "rounded": body("(a: bf16 B_xE, b: bf16 EF_y) -> bf16 B_xF_y", "r = a @[E] b", "return r"),
    "batched within": body("(a: bf16 LTB_xE, b: bf16 B_xEF) -> bf16 LTB_xF", "r = a @[E] b", "return r"),
    "kept wide": body("(a: f16 B_xE, b: f16 EF_y) -> f32 B_xF_y", "r: f32 B_xF_y = a @[E] b", "return r"),
    "int8": body("(a: int8 B_xE, b: int8 EF_y) -> int32 B_xF_y", "r = a @[E] b", "return r"),
    "int4": body("(a: int4 B_xE, b: int4 EF_y) -> int32 B_xF_y", "r = a @[E] b", "return r"),
    "uint32": body("(a: uint32 B_xE, b: uint32 EF_y) -> int32 B_xF_y", "r = a @[E] b", "return r"),
    "partial operand": body(
        "(a: f32 BE(partialsum-x), b: f32 EF_y) -> f32 BF_y(partialsum-x)", "r = a @[E] b", "return r"
    ),
}

ARITHMETIC = {
    "broadcast": body("(a: f32 B_xLE_y, b: f32 E_y, c: f32 L) -> f32 B_xLE_y", "s = a + b", "t = s * c", "return t"),
    "transposed": body("(a: f32 LB_x, b: f32 B_xE) -> f32 B_xLE", "s: f32 B_xLE = a * b", "return s"),
    "scalar": body("(a: f32 B_x, p: f32) -> f32 B_x", "s = a - p", "t = 3 / s", "return t"),
    "literals": body("(a: bf16 B_xE) -> bf16 B_xE", "s = a * 0.5", "t = -1 + s", "u = t / size[E]", "v = -u",
                     "return v"),
    "partial sums": body(
        "(a: f32 BE(partialsum-x), b: f32 BE(partialsum-x), c: f32 E) -> f32 BE(partialsum-x)",
        "s = a + b", "t = s * c", "u = t / 4", "v = -u", "return v",
    ),
    "integers": body("(a: int32 B_xE, b: int32 E) -> int32 B_xE", "s = a / 3", "t = s - b", "u = t / b", "return u"),
    "int8 wraps": body("(a: int8 B_x) -> int8 B_x", "s = a * 100", "t = s + 300", "return t"),
    "int4": body("(a: int4 B_x) -> int4 B_x", "s = a + a", "t = maximum(s, a)", "return t"),
    "bool": body(
        "(a: bool B_x, b: bool B_x) -> (bool B_x, bool B_x, bool B_x)",
        "s = a + b", "t = a * b", "u = a - b", "return s, t, u",
    ),
    "extrema": body("(a: f32 B_xE, b: f32 E) -> f32 B_xE", "s = maximum(a, 0)", "t = minimum(s, b)", "return t"),
    "comparison": body(
        "(a: f32 B_xE, b: f32 E) -> (bool B_xE, bool B_xE, bool B_xE)",
        "p = less(a, b)", "q = less_equal(b, 0)", "r = equal(a, a)",
        "o = logical_or(p, q)", "n = logical_and(o, r)", "m = logical_not(n)", "return o, n, m",
    ),
    "where": body(
        "(a: f32 B_xE, m: bool E, c: f32 B_x) -> f32 B_xE", "s = where(m, a, -inf)", "t = where(m, s, c)", "return t"
    ),
}  # fmt: skip

CONVERSIONS = {
    f"{source} to {target}": body(f"(a: {source} B_xE) -> {target} B_xE", f"d = convert[{target}](a)", "return d")
    for source in ("f32", "bf16", "int8", "int4", "int32", "uint32")
    for target in ("f32", "bf16", "f16", "int8", "int4", "int32", "bool")
    if source != target
}

CONVERSIONS["bits"] = body(
    "(a: f32 B_xE, b: uint32 E, c: int32 B_x) -> (uint32 B_xE, int32 B_xE, int32 E, f32 B_x)",
    "p = bitcast[uint32](a)", "q = bitcast[int32](a)", "r = bitcast[int32](b)", "s = bitcast[f32](c)",
    "return p, q, r, s",
)  # fmt: skip
CONVERSIONS["uint32 literals"] = body(
    "(a: uint32 B_x) -> (uint32 B_x, bool B_x)", "b = a + 4294967295", "c = 2147483648 - b",
    "d = less(c, 2147483649)", "e: uint32 B_x = 3000000000", "f = c * e", "return f, d",
)  # fmt: skip

REDUCTIONS = {
    "sum": body("(a: f32 B_xLE_y) -> f32 B_x(partialsum-y)", "s = sum[LE](a)", "return s"),
    "sum bf16": body("(a: bf16 B_xLE) -> bf16 B_xL", "s = sum[E](a)", "return s"),
    "sum int8": body("(a: int8 B_xLE) -> int8 B_x", "s = sum[LE](a)", "return s"),
    "max": body("(a: f32 B_xLE_y) -> f32 B_xL", "s = max[E](a)", "t = all_reduce[y](s)", "return t"),
    "max scattered": body(
        "(a: f32 BE_xyL) -> f32 B_xyL", "s = max[E](a)", "t = reduce_scatter[xy -> B](s)", "return t"
    ),
    "max scattered on two": body(
        "(a: f32 BE_xzLT_y) -> f32 B_zL_xy", "s = max[ET](a)", "t = reduce_scatter[z -> B, xy -> L](s)", "return t"
    ),
    "sum scattered on two": body(
        "(a: f32 BE_xzLT_y) -> f32 B_zL_xy", "s = sum[ET](a)", "t = reduce_scatter[z -> B, xy -> L](s)", "return t"
    ),
    "max int4": body("(a: int4 B_xL) -> int4 B_x", "s = max[L](a)", "return s"),
    "cumsum": body("(a: f32 B_xTL_y) -> f32 B_xTL_y", "s = cumsum[T](a)", "return s"),
    "cumsum bf16": body("(a: bf16 TB_xy) -> bf16 TB_xy", "s = cumsum[T](a)", "return s"),
    "cumsum int8": body("(a: int8 B_xV) -> int8 B_xV", "s = cumsum[V](a)", "return s"),
    "argmax": body("(a: f32 B_xVL_y) -> int32 B_xL_y", "s = argmax[V](a)", "return s"),
    "argmax of equals": body("(a: int32 B_xV) -> int32 B_x", "s = argmax[V](a)", "return s"),
    "layernorm": body("(a: f32 B_xLE, g: f32 E, b: f32 E) -> f32 B_xLE", "s = layernorm[E](a, g, b)", "return s"),
    "layernorm bare": body("(a: bf16 B_xEL) -> bf16 B_xEL", "s = layernorm[EL, eps=1e-3](a)", "return s"),
    "rmsnorm": body("(a: f32 EB_x, g: f32 E) -> f32 EB_x", "s = rmsnorm[E](a, g)", "return s"),
    "softmax": body("(a: f32 B_xTL) -> f32 B_xTL", "s = softmax[T](a)", "return s"),
    "softmax of two": body("(a: bf16 B_xTL) -> bf16 B_xTL", "s = softmax[TL](a)", "return s"),
    "softmax causal": body("(a: f32 B_xLH_yT) -> f32 B_xLH_yT", "s = softmax[T, causal=L](a)", "return s"),
    "softmax at positions": body(
        "(a: f32 B_xTLH_y, p: int32 B_x) -> f32 B_xTLH_y", "s = softmax[T, causal=L](a, p)", "return s"
    ),
    "softmax at one position": body(
        "(a: f32 B_xLT, p: int32) -> f32 B_xLT", "s = softmax[T, causal=L](a, p)", "return s"
    ),
    "softmax in a window": body(
        "(a: f32 B_xLT, p: int32 B_x) -> f32 B_xLT", "s = softmax[T, causal=L, window=3](a, p)", "return s"
    ),
}

ATTENTION = {
    "bf16": body("(q: bf16 B_xLK_yGD, k: bf16 B_xTK_yD) -> bf16 B_xLK_yGD", "o = attend[T, D](q, k, k)", "return o"),
    "one row of queries": body("(q: bf16 D, k: bf16 TD) -> bf16 D", "o = attend[T, D](q, k, k)", "return o"),
    "split queries": body(
        "(q: f32 BL_xHD, k: f32 BT_yD, p: int32 B) -> f32 BL_xHD",
        "o = attend[T, D, causal=L, window=5](q, k, k, pos=p)",
        "r = all_reduce[y](o)",
        "return r",
    ),
    "one axis after another": body(
        "(q: bf16 BLHD, k: bf16 BT_xyD, p: int32) -> bf16 BLH_xD",
        "o = attend[T, D, causal=L](q, k, k, length=p)",
        "r = reduce_scatter[x -> H](o)",
        "s = all_reduce[y](r)",
        "return s",
    ),
    "scattered on the width": body(
        "(q: f32 BLHD, k: f32 BT_xyD) -> f32 BLHD_xy",
        "o = attend[T, D](q, k, k)",
        "r = reduce_scatter[xy -> D](o)",
        "return r",
    ),
    "named anew": body(
        "(q: f32 BLKGD, k: f32 BT_xKD) -> f32 BT_xHD2",
        "o = attend[T, D](q, k, k)",
        "m = merge[KG -> H](o)",
        "n = rename[L -> T, D -> D2](m)",
        "r = reduce_scatter[x -> T](n)",
        "return r",
        head=HEAD.replace("D2=4", "D2=8").replace("T=8", "T=4"),
    ),
    "moved along other axes": body(
        "(q: f32 B_yLHD, k: f32 B_yT_xD) -> f32 BLH_yD",
        "o = attend[T, D](q, k, k)",
        "a = all_to_all[y: B -> H](o)",
        "s = slice[z -> L](a)",
        "g = all_gather[z](s)",
        "r = all_reduce[x](g)",
        "return r",
    ),
    "joined": body(
        "(q: bf16 B_xLHD, k: bf16 B_xTD, n: int32 B_x) -> (bf16 B_xLHD, f32 B_xLH)",
        "o, s = attend[T, D, lse](q, k, k)",
        "p, t = attend[T, D, lse](q, k, k, length=n)",
        "r, u = join_attention(o, s, p, t)",
        "return r, u",
    ),
}

ALL = {
    **{f"attention: {k}": v for k, v in ATTENTION.items()},
    **{f"contraction: {k}": v for k, v in CONTRACTIONS.items()},
    **{f"arithmetic: {k}": v for k, v in ARITHMETIC.items()},
    **{f"convert: {k}": v for k, v in CONVERSIONS.items()},
    **{f"reduction: {k}": v for k, v in REDUCTIONS.items()},
}


@pytest.mark.parametrize("case", ALL)
def test_operation(case: str) -> None:
    check(ALL[case], high=4 if "position" in case else None)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_functions(dtype: str) -> None:
    names = ("gelu", "gelu[form=tanh]", "silu", "relu", "exp", "tanh", "sigmoid", "cos", "sin", "abs", "round")
    lines = [f"v{i} = {name}(a)" for i, name in enumerate(names)]
    lines += ["p = exp(a)", "l = log(p)", "m = log1p(p)", "q = sqrt(p)", "r = rsqrt(p)"]
    made = [f"v{i}" for i in range(len(names))] + ["l", "m", "q", "r"]
    results = ", ".join([f"{dtype} B_xE_yz"] * len(made))
    check(body(f"(a: {dtype} B_xE_yz) -> ({results})", *lines, f"return {', '.join(made)}"))


def test_saturation() -> None:
    """Conversions from floats to integers saturate, round towards zero, and make NaN 0."""
    text = body("(a: f32 B) -> (int8 B, int4 B, int32 B)", "b = convert[int8](a)", "c = convert[int4](a)",
                "d = convert[int32](a)", "return b, c, d")  # fmt: skip
    check(text, a=np.array([300.7, -1e12, np.nan, -1.9], np.float32))


INDEXING = {
    "lookup": body("(t: f32 VE_x, i: int32 B_yL) -> f32 B_yLE_x", "r = lookup[V](t, i)", "return r"),
    "lookup scalar": body("(t: f32 E_xV, i: int32) -> f32 E_x", "r = lookup[V](t, i)", "return r"),
    "lookup split": body("(t: f32 V_yzE_x, i: int32 BL) -> f32 BLE_x(partialsum-yz)", "r = lookup[V](t, i)",
                         "return r"),
    "lookup batched": body("(t: f32 B_xVE, i: int32 LB_x) -> f32 LB_xE", "r = lookup[V](t, i)", "return r"),
    "lookup batched split": body(
        "(t: f32 EB_xV_y, i: int32 B_xL) -> f32 B_xLE(partialsum-y)", "r = lookup[V](t, i)", "return r"
    ),
    "lookup int8": body("(t: bf16 V_xE, i: int8 L) -> bf16 LE(partialsum-x)", "r = lookup[V](t, i)", "return r"),
    "grouped": body(
        "(a: f32 B_xLE, w: f32 VEF_y, i: int32 B_xLD2) -> f32 B_xLD2F_y", "r = grouped[V, E](a, w, i)", "return r"
    ),
    "grouped split": body(
        "(a: bf16 BLE_x, w: bf16 V_yzE_xF, i: int32 B) -> bf16 BLF(partialsum-xyz)",
        "r: BLF(partialsum-xyz) = grouped[V, E](a, w, i)", "return r",
    ),
    "grouped over two": body(
        "(a: f32 HB_xE_y, w: f32 V_zFE_yHT, i: int8 LB_x) -> f32 B_xLTF(partialsum-yz)",
        "r: f32 B_xLTF(partialsum-yz) = grouped[V, EH](a, w, i)", "return r",
        head=HEAD.replace("H=8", "H=2"),
    ),
    "grouped scalar": body("(a: bf16 E, w: bf16 VE, i: int32) -> f32", "r: f32 = grouped[V, E](a, w, i)", "return r"),
    "grouped number": body(
        "(a: f32 E, w: f32 VE, i: int32) -> f32 E", "n: f32 = grouped[V, E](a, w, i)",
        "m: f32 E = minimum(n, a)", "r: f32 E = cumsum[E](m)", "return r",
    ),
    "iota": body("() -> (int32 V, int32 V_xy)", "a: int32 V = iota[V]()", "b: int32 V_xy = iota[V]()", "return a, b"),
    "full": body("() -> (f32 B_xE, bool, f32 B)", "a: f32 B_xE = 0.5", "b: bool = 1", "c: f32 B(partialsum-x) = 0",
                 "d = all_reduce[x](c)", "return a, b, d"),
    "uniform": body(
        "(k: uint32 B_x, p: int32 L) -> (f32 B_xLV_yz, f32 LTE_y, f32 BLB2_zV)",
        "a: f32 B_xLV_yz = uniform[V](k, p)", "b: f32 LTE_y = uniform[TE](3000000000, p)",
        "m = all_gather[x](k)", "c: f32 BLB2_zV = uniform[B2V](m, p)", "return a, b, c",
        head=HEAD + "dim B2=2\n",
    ),
    "take": body("(a: f32 B_xE) -> (f32 B_xE, f32 B_x)", "r = take[E 3:9](a)", "one = take[E, 5](a)",
                 "b = concat[E](a, r)", "c = take[E 6:22](b)", "return c, one"),
    "concat": body("(a: f32 B_xE, b: f32 B_xE) -> f32 B_xE",
                   "c = concat[E](a, b)", "d = take[E 8:24](c)", "return d"),
    "blocks": body("(a: f32 B_xE_yz, b: f32 B_xE_yz) -> f32 B_xE_yz", "c = concat[E, by=yz](a, b)",
                   "d = take[E 8:24, by=yz](c)", "return d",
                   head=HEAD.replace("E=16", "E=16 order y z").replace(" F=24", "\ndim F=24")),
    "blocks at hand": body("(a: f32 BE_z, b: f32 BE_z) -> f32 BE_z", "g = all_gather[z](a)", "h = all_gather[z](b)",
                           "c = concat[E, by=yz](g, h)", "d = take[E 8:24, by=yz](c)", "e = slice[z -> E](d)",
                           "return e",
                           head=HEAD.replace("E=16", "E=16 order y z").replace(" F=24", "\ndim F=24")),
    "rename": body("(a: f32 B_xL) -> f32 [B_{x} long]", "b = rename[L -> long](a)", "return b"),
    "split": body("(a: f32 H_xB) -> f32 K_xGB", "b: f32 K_xGB = split[H -> KG](a)", "return b"),
    "merge": body("(a: f32 K_xBG) -> f32 H_xB", "b: f32 H_xB = merge[KG -> H](a)", "return b"),
    "merge out of order": body("(a: f32 GB_yK_x) -> f32 B_yH_x", "b: f32 B_yH_x = merge[KG -> H](a)", "return b"),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEXING)
def test_indexing(case: str) -> None:
    check(INDEXING[case], high=32)


@pytest.mark.parametrize("layout", ["V", "V_xz", "V_y"])
def test_lookup_out_of_range(layout: str) -> None:
    """An index that the table does not have gives zeros on every layout."""
    partial = f"(partialsum-{layout[2:]})" if "_" in layout else ""
    text = body(f"(t: f32 {layout}E, i: int32 B, u: f32 V_xyz) -> f32 BE{partial}", "r = lookup[V](t, i)", "return r")
    check(text, i=np.array([-1, 31, 32, 5]))


@pytest.mark.parametrize("layout", ["V", "V_xz", "V_y"])
def test_grouped_out_of_range(layout: str) -> None:
    """A row whose index is out of range is zeros, whatever else it holds."""
    partial = f"(partialsum-{layout[2:]})" if "_" in layout else ""
    text = body(
        f"(a: f32 BE, w: f32 {layout}EF, i: int32 B) -> f32 BF{partial}", "r = grouped[V, E](a, w, i)", "return r"
    )
    a = np.ones((4, 16), np.float32)
    a[0], a[1] = np.inf, np.nan
    check(text, a=a if not partial else np.ones((4, 16), np.float32), i=np.array([-1, 32, 31, 5]))


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_numbers_that_are_not_finite_stay_with_their_matrix(number: float) -> None:
    text = body("(a: f32 B_xE, w: f32 VEF_y, i: int32 B_x) -> f32 B_xF_y", "r = grouped[V, E](a, w, i)", "return r")
    w = np.ones((32, 16, 24), np.float32)
    w[7, 3, 5] = number
    check(text, w=w, i=np.array([7, 0, 31, 7]))


@pytest.mark.parametrize("used", [1, 2, 3])
def test_many_rows_of_few_matrices(used: int) -> None:
    """Blocks of rows end where a matrix does, in the middle of a block or at its end."""
    text = body("(a: f32 BE, w: f32 V_xEF, i: int32 B) -> f32 BF(partialsum-x)", "r = grouped[V, E](a, w, i)",
                "return r", head="mesh x=2\ndim B=700 E=8 F=4 V=4\n")  # fmt: skip
    check(text, i=np.random.default_rng(used).integers(0, used + 1, 700))


@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize(
    ("signature", "call"),
    [
        ("(q: f32 B_xLH_yD, p: int32) -> f32 B_xLH_yD", "rotary[D, style={}](q, p)"),
        ("(q: bf16 B_xLH_yD, p: int32 B_xL) -> bf16 B_xLH_yD", "rotary[D, base=500, style={}](q, p)"),
        ("(q: f32 DT_xB, p: int32 T_x) -> f32 DT_xB", "rotary[D, style={}, rotated=4](q, p)"),
        ("(q: f32 BTD, p: int32) -> f32 BTD", "rotary[D, style={}, seq=T](q, 3)"),
        ("(q: f32 TD(partialsum-x), p: int32 T, w: f32 D2) -> f32 TD(partialsum-x)", "rotary[D, style={}](q, p, w)"),
        ("(q: f32 BDH_xT, p: int32 T, w: f32 D2H_xB) -> f32 BDH_xT", "rotary[D, style={}](q, p, w)"),
    ],
)
def test_rotary(style: str, signature: str, call: str) -> None:
    check(body(signature, f"r = {call.format(style)}", "return r"), high=9)


@pytest.mark.parametrize(
    "signature",
    [
        "(c: f32 B_xTD, n: f32 B_xD, p: int32) -> f32 B_xTD",
        "(c: f32 B_xTD, n: f32 LB_xD, p: int32) -> f32 B_xTD",
        "(c: f32 BT_yzD, n: f32 BD, p: int32) -> f32 BT_yzD",
        "(c: f32 DT_xzB_y, n: f32 DLB_y, p: int32) -> f32 DT_xzB_y",
        "(c: f32 BT_xzD, n: f32 BLD, p: int32) -> f32 BT_xzD",
        "(c: int4 BT_xD, n: int4 BLD, p: int32) -> int4 BT_xD",
    ],
)
def test_update_at_one_position(signature: str) -> None:
    positions = (0, 3, 7, -1, 9, -3, 2**31 - 1, -(2**31))
    check_each(body(signature, "r = update[T](c, n, p)", "return r"), [{"p": position} for position in positions])


@pytest.mark.parametrize(
    "signature",
    [
        "(c: f32 B_xTD, n: f32 B_xD, p: int32 B_x) -> f32 B_xTD",
        "(c: f32 B_xHTD, n: f32 LB_xHD, p: int32 B_x) -> f32 B_xHTD",
        "(c: bf16 HT_zBD, n: bf16 LBHD, p: int32 B) -> bf16 HT_zBD",
        "(c: f32 T_yzB_xD, n: f32 DB_x, p: int32 B_x) -> f32 T_yzB_xD",
    ],
)
def test_update_at_positions(signature: str) -> None:
    check(body(signature, "r = update[T](c, n, p)", "return r"), p=np.array([0, 6, 2, 9]))


@pytest.mark.parametrize(
    "signature",
    ["(c: f32 BT, n: f32 BL, p: int32) -> f32 BT", "(c: f32 B_xT_yD, n: f32 B_xLD, p: int32 B_x) -> f32 B_xT_yD"],
)
@pytest.mark.parametrize("options", ["T", "T, wrap=true"])
def test_update_at_the_ends_of_int32(signature: str, options: str) -> None:
    shape = (4,) if "int32 B" in signature else ()
    given = [{"p": np.full(shape, p)} for p in (2**31 - 1, 2**31 - 2, -(2**31))]
    check_each(body(signature, f"r = update[{options}](c, n, p)", "return r"), given)


@pytest.mark.parametrize("options", ["TH", "TH, wrap=true"])
@pytest.mark.parametrize(
    "signature",
    [
        "(c: f32 HTD_x, n: f32 LD_x, p: int32, h: int32) -> f32 HTD_x",
        "(c: f32 B_xHT_yD, n: f32 B_xD, p: int32, h: int32) -> f32 B_xHT_yD",
        "(c: f32 H_xBTD, n: f32 LBD, p: int32, h: int32 B) -> f32 H_xBTD",
        "(c: bf16 B_xTH_yD, n: bf16 DB_xL, p: int32 B_x, h: int32) -> bf16 B_xTH_yD",
    ],
)
def test_update_at_an_index(signature: str, options: str) -> None:
    """Nothing is written where there is no such index."""
    places = [(position, index) for position in (0, 7, -1) for index in (0, 3, -1, 64)]
    shapes = [() if f"{name}: int32 B" not in signature else (4,) for name in "ph"]
    given = [{"p": np.full(shapes[0], p), "h": np.full(shapes[1], h)} for p, h in places]
    check_each(body(signature, f"r = update[{options}](c, n, p, h)", "return r"), given)
