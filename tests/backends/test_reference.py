"""The unsharded meaning of every operation, against formulas written independently in plain numpy."""

from __future__ import annotations

import cmath
import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from program_text import program

from shardwright.backends.simulation.reference import evaluate

Array = np.ndarray[Any, Any]
DIMS = "dim A=3 B=2 C=4 D=6 G=3 K=2 L=3 T=5 V=7 I=3 N=2\n"


def run(head: str, expression: str, /, precision: Any = "exact", **args: npt.ArrayLike) -> Array:
    """The value of one expression: `run("x: f32 AB -> f32 AB", "relu(x)", x=...)`."""
    params, result = head.split("->")
    text = f"{DIMS}func f({params}) -> {result} {{\n  result: {result} = {expression}\n  return result\n}}\n"
    (found,), _ = evaluate(program(text), "f", args, precision=precision)
    return found


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def close(found: Array, wanted: npt.ArrayLike) -> None:
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)


X, Y = normal(3, 2), normal(2, seed=1)

ARITHMETIC = {
    "x + y": X + Y,
    "x - y": X - Y,
    "x * y": X * Y,
    "x / y": X / Y,
    "-x": -X,
    "2 * x - 0.5": 2 * X - 0.5,
    "maximum(x, y)": np.where(X > Y, X, Y),
    "minimum(x, 0)": np.where(X < 0, X, 0),
    "where(less(x, y), x, y)": np.where(X < Y, X, Y),
    "where(less_equal(x, x), x, 0)": X,
    "where(logical_not(equal(x, x)), x, y)": np.broadcast_to(Y, (3, 2)),
    "where(logical_and(less(x, y), less(x, 0)), 1, y)": np.where((X < Y) & (X < 0), 1, Y),
    "where(logical_or(less(x, y), less(x, 0)), 1, y)": np.where((X < Y) | (X < 0), 1, Y),
}


@pytest.mark.parametrize("expression", ARITHMETIC)
def test_arithmetic(expression: str) -> None:
    close(run("x: f32 AB, y: f32 B -> f32 AB", expression, x=X, y=Y), ARITHMETIC[expression])


FUNCTIONS = {
    "gelu": lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))),
    "gelu[form=tanh]": lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
    "silu": lambda v: v / (1 + math.exp(-v)),
    "relu": lambda v: max(v, 0.0),
    "exp": math.exp,
    "tanh": math.tanh,
    "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "cos": math.cos,
    "sin": math.sin,
    "abs": abs,
    "round": round,
}
POSITIVE = {"log": math.log, "sqrt": math.sqrt, "rsqrt": lambda v: v**-0.5}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    close(run("x: f32 AB -> f32 AB", f"{name}(x)", x=X), np.vectorize(FUNCTIONS[name])(X))


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers(name: str) -> None:
    x = abs(X) + 0.1
    close(run("x: f32 AB -> f32 AB", f"{name}(x)", x=x), np.vectorize(POSITIVE[name])(x))


def test_gelu_far_out() -> None:
    """The exact form keeps its digits where 1 + erf would cancel."""
    found = run("x: f32 -> f32", "gelu(x)", x=np.float64(-9))
    assert found == pytest.approx(-9 * 0.5 * math.erfc(9 / math.sqrt(2)), rel=1e-12)


def test_integer_arithmetic() -> None:
    a, b = np.array([7, -7, 2**31 - 1]), np.array([2, 2, 1])
    assert run("a: int32 A, b: int32 A -> int32 A", "a / b", a=a, b=b).tolist() == [3, -4, 2**31 - 1]
    assert run("a: int32 A, b: int32 A -> int32 A", "a + b", a=a, b=b).tolist() == [9, -5, -(2**31)]
    assert run("a: uint32 A -> uint32 A", "a - 1", a=np.array([0, 1, 2])).tolist() == [2**32 - 1, 0, 1]


def test_contraction() -> None:
    x, w = normal(3, 2, 4), normal(4, 6, 3, seed=1)
    close(run("x: f32 ABC, w: f32 CDA -> f32 ABD", "x @[C] w", x=x, w=w), np.einsum("abc,cda->abd", x, w))
    close(run("x: f32 ABC, w: f32 CDA -> f32 DB", "x @ w", x=x, w=w), np.einsum("abc,cda->db", x, w))
    close(run("a: f32 A, b: f32 B -> f32 AB", "a @ b", a=X[:, 0], b=Y), np.outer(X[:, 0], Y))


def test_contraction_of_integers_is_in_int32() -> None:
    a = np.full((3, 4), 127)
    found = run("a: int8 AC, b: int8 CB -> int32 AB", "a @ b", a=a, b=np.full((4, 2), -128))
    assert found.dtype == np.int32
    assert found.tolist() == [[4 * 127 * -128] * 2] * 3


def test_reductions() -> None:
    x = normal(3, 2, 4)
    close(run("x: f32 ABC -> f32 B", "sum[AC](x)", x=x), x.sum((0, 2)))
    close(run("x: f32 ABC -> f32 AC", "max[B](x)", x=x), x.max(1))


def test_cumsum() -> None:
    x = normal(3, 2, 4)
    close(run("x: f32 ABC -> f32 ABC", "cumsum[A](x)", x=x), x.cumsum(0))
    wrapped = run("x: int8 A -> int8 A", "cumsum[A](x)", x=np.array([100, 100, -1]))
    assert wrapped.tolist() == [100, -56, -57]


def test_argmax_of_ties_is_the_least_index() -> None:
    found = run("x: f32 AV -> int32 A", "argmax[V](x)", x=np.array([[0, 5, 5, 1, 5, 0, 0], [2] * 7, [0] * 6 + [1]]))
    assert found.tolist() == [1, 0, 6]


def test_norms() -> None:
    x, g, b = normal(3, 4), normal(4, seed=1), normal(4, seed=2)
    centred = x - x.mean(1, keepdims=True)
    normed = centred / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    close(run("x: f32 AC -> f32 AC", "layernorm[C, eps=1e-5](x)", x=x), normed)
    close(
        run("x: f32 AC, g: f32 C, b: f32 C -> f32 AC", "layernorm[C, eps=1e-5](x, g, b)", x=x, g=g, b=b),
        normed * g + b,
    )
    wanted = x / np.sqrt((x**2).mean(1, keepdims=True) + 0.5) * g
    close(run("x: f32 AC, g: f32 C -> f32 AC", "rmsnorm[C, eps=0.5](x, g)", x=x, g=g), wanted)


def test_softmax() -> None:
    x = normal(3, 5)
    close(run("x: f32 AT -> f32 AT", "softmax[T](x)", x=x), np.exp(x) / np.exp(x).sum(1, keepdims=True))
    shifted = run("x: f32 AT -> f32 AT", "softmax[T](x)", x=x + 1000)
    np.testing.assert_allclose(shifted, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("pos", [None, 1, (0, 2)])
def test_causal_softmax(pos: int | tuple[int, int] | None) -> None:
    """Query l of batch element b sees keys 0 to l + pos[b]."""
    x = normal(2, 3, 5)
    wanted = np.zeros((2, 3, 5))
    for b in range(2):
        for l in range(3):  # noqa: E741
            first = 0 if pos is None else pos if isinstance(pos, int) else pos[b]
            seen = np.exp(x[b, l, : l + first + 1])
            wanted[b, l, : l + first + 1] = seen / seen.sum()
    if pos is None:
        found = run("x: f32 BLT -> f32 BLT", "softmax[T, causal=L](x)", x=x)
    else:
        row = "B" if isinstance(pos, tuple) else ""
        found = run(f"x: f32 BLT, p: int32 {row} -> f32 BLT", "softmax[T, causal=L](x, p)", x=x, p=np.array(pos))
    close(found, wanted)


@pytest.mark.parametrize("window", [1, 2, 4, 9])
def test_softmax_in_a_window(window: int) -> None:
    """Query l at position l + pos[b] sees itself and the `window` - 1 keys before."""
    x, pos = normal(2, 3, 5), (0, 2)
    wanted = np.zeros((2, 3, 5))
    for b, l in np.ndindex(2, 3):  # noqa: E741
        near = slice(max(0, l + pos[b] - window + 1), l + pos[b] + 1)
        wanted[b, l, near] = np.exp(x[b, l, near]) / np.exp(x[b, l, near]).sum()
    text = f"softmax[T, causal=L, window={window}](x, p)"
    close(run("x: f32 BLT, p: int32 B -> f32 BLT", text, x=x, p=np.array(pos)), wanted)


def turned(x: Array, pairs: list[tuple[int, int]], positions: Array, frequencies: list[float]) -> Array:
    """Rotary embedding as multiplication of complex numbers: x [L, D], positions [L]."""
    made = x.copy()
    for row, position in enumerate(positions):
        for (a, b), frequency in zip(pairs, frequencies, strict=True):
            z = complex(x[row, a], x[row, b]) * cmath.exp(1j * float(position) * frequency)
            made[row, a], made[row, b] = z.real, z.imag
    return made


NEOX, GPTJ = [(0, 3), (1, 4), (2, 5)], [(0, 1), (2, 3), (4, 5)]
FREQUENCIES = [100.0 ** (-i / 3) for i in range(3)]


@pytest.mark.parametrize(("style", "pairs"), [("neox", NEOX), ("gptj", GPTJ)])
def test_rotary(style: str, pairs: list[tuple[int, int]]) -> None:
    x, given = normal(3, 6), np.array([4, 0, 9])
    statics = f"D, base=100, style={style}"
    close(
        run("x: f32 LD, p: int32 L -> f32 LD", f"rotary[{statics}](x, p)", x=x, p=given),
        turned(x, pairs, given, FREQUENCIES),
    )
    wanted = turned(x, pairs, np.array([7, 8, 9]), FREQUENCIES)
    close(run("x: f32 LD, p: int32 -> f32 LD", f"rotary[{statics}](x, p)", x=x, p=np.array(7)), wanted)
    close(run("x: f32 AD, p: int32 -> f32 AD", f"rotary[{statics}, seq=A](x, p)", x=x, p=np.array(7)), wanted)


def test_rotary_counts_positions_in_int32() -> None:
    x, last = normal(3, 6), 2**31 - 1
    found = run("x: f32 LD, p: int32 -> f32 LD", "rotary[D, base=100](x, p)", x=x, p=np.array(last))
    wanted = turned(x, NEOX, np.array([last, -last - 1, -last]), FREQUENCIES)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_rotary_of_a_part() -> None:
    x, pos = normal(3, 6), np.array([1, 2, 3])
    found = run("x: f32 LD, p: int32 L -> f32 LD", "rotary[D, base=100, rotated=4](x, p)", x=x, p=pos)
    close(found, turned(x, [(0, 2), (1, 3)], pos, [1.0, 0.1]))


def test_rotary_with_given_frequencies() -> None:
    x, pos = normal(3, 6), np.array([1, 2, 3])
    found = run(
        "x: f32 LD, p: int32 L, w: f32 I -> f32 LD", "rotary[D](x, p, w)", x=x, p=pos, w=np.array([0.5, 0.25, 2.0])
    )
    close(found, turned(x, NEOX, pos, [0.5, 0.25, 2.0]))
    both, each = np.stack([x, 2 * x]), np.array([[0.5, 0.25, 2.0], [1.0, 3.0, 0.125]])
    signature = "x: f32 BLD, p: int32 L, w: f32 IB -> f32 BLD"
    found = run(signature, "rotary[D](x, p, w)", x=both, p=pos, w=each.T)
    close(found, np.stack([turned(row, NEOX, pos, list(own)) for row, own in zip(both, each, strict=True)]))


def test_lookup() -> None:
    table, ids = normal(7, 4), np.array([[3, 0], [6, 3], [1, 1]])
    close(run("t: f32 VC, i: int32 AB -> f32 ABC", "lookup[V](t, i)", t=table, i=ids), table[ids])
    batched = normal(3, 7, 4)
    wanted = np.stack([batched[a][ids[a]] for a in range(3)])
    close(run("t: f32 AVC, i: int32 AB -> f32 ABC", "lookup[V](t, i)", t=batched, i=ids), wanted)


def test_lookup_out_of_range_gives_zeros() -> None:
    found = run("t: f32 V, i: int32 A -> f32 A", "lookup[V](t, i)", t=np.arange(1.0, 8), i=np.array([-1, 7, 6]))
    assert found.tolist() == [0, 0, 7]


def test_update() -> None:
    cache, new = np.zeros((2, 5)), np.array([[1.0, 2, 3], [4, 5, 6]])
    one = run("c: f32 BT, n: f32 B, p: int32 -> f32 BT", "update[T](c, n, p)", c=cache, n=new[:, 0], p=np.array(3))
    assert one.tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 4, 0]]
    some = run("c: f32 BT, n: f32 BL, p: int32 -> f32 BT", "update[T](c, n, p)", c=cache, n=new, p=np.array(1))
    assert some.tolist() == [[0, 1, 2, 3, 0], [0, 4, 5, 6, 0]]
    each = run("c: f32 BT, n: f32 BL, p: int32 B -> f32 BT", "update[T](c, n, p)", c=cache, n=new, p=np.array([0, 2]))
    assert each.tolist() == [[1, 2, 3, 0, 0], [0, 0, 4, 5, 6]]
    past = run("c: f32 BT, n: f32 BL, p: int32 B -> f32 BT", "update[T](c, n, p)", c=cache, n=new, p=np.array([4, -1]))
    assert past.tolist() == [[0, 0, 0, 0, 1], [5, 6, 0, 0, 0]]
    for index, wanted in ((1, [[0] * 5, [6, 0, 0, 4, 5]]), (2, [[0] * 5] * 2)):
        signature = "c: f32 BT, n: f32 L, p: int32, b: int32 -> f32 BT"
        given = {"c": cache, "n": new[1], "p": np.array(3), "b": np.array(index)}
        assert run(signature, "update[TB, wrap=true](c, n, p, b)", **given).tolist() == wanted


def test_take_and_concat() -> None:
    x = normal(3, 6)
    close(run("x: f32 AD -> f32 AD", "concat[D](take[D 4:6](x), take[D 0:4](x))", x=x), np.roll(x, 2, axis=1))
    close(run("x: f32 AD -> f32 A", "take[D, 5](x)", x=x), x[:, 5])


def test_take_and_concat_by_blocks() -> None:
    """Over x=2 each half of D holds its own part of what is packed."""
    text = """
    mesh x=2
    dim D=8 order x
    func f(d: f32 D_x) -> (f32 D_x, f32 D_x, f32 D_x) {
      a = take[D 0:2, by=x](d)
      b = take[D 2:8, by=x](d)
      c = concat[D, by=x](a, b)
      return a, b, c
    }
    """
    text = text.replace("(f32 D_x, f32 D_x, f32 D_x)", "f32 D_x").replace("return a, b, c", "return c")
    found, _ = evaluate(program(text), "f", {"d": np.arange(8.0)})
    assert found[0].tolist() == list(range(8))
    text = text.replace("return c", "d1: f32 D_x = concat[D, by=x](b, a)\n      return d1")
    found, _ = evaluate(program(text), "f", {"d": np.arange(8.0)})
    assert found[0].tolist() == [1, 2, 3, 0, 5, 6, 7, 4]


def test_reshapes() -> None:
    x = normal(6, 3)
    close(run("x: f32 DA -> f32 KGA", "split[D -> KG](x)", x=x), x.reshape(2, 3, 3))
    y = normal(2, 3, 3)
    close(run("x: f32 KAG -> f32 DA", "merge[KG -> D](x)", x=y), y.transpose(0, 2, 1).reshape(6, 3))
    close(run("x: f32 DA -> f32 DL", "rename[A -> L](x)", x=x), x)


def test_iota_and_full() -> None:
    assert run("x: f32 A -> int32 T", "iota[T]()", x=np.zeros(3)).tolist() == [0, 1, 2, 3, 4]
    assert run("x: f32 A -> f32 B", "full[B, f32](0.5)", x=np.zeros(3)).tolist() == [0.5, 0.5]


def test_convert() -> None:
    x = np.array([1.9, -1.9, 300.0])
    assert run("x: f32 A -> int8 A", "convert[int8](x)", x=x).tolist() == [1, -1, 127]
    assert run("x: f32 A -> int4 A", "convert[int4](x)", x=x).tolist() == [1, -1, 7]
    assert run("x: f32 A -> int8 A", "convert[int8](x)", x=np.array([np.nan, -np.inf, 0])).tolist() == [0, -128, 0]
    assert run("x: int32 A -> int8 A", "convert[int8](x)", x=np.array([200, -1, 127])).tolist() == [-56, -1, 127]
    assert run("x: int4 A -> f32 A", "convert[f32](x)", x=np.array([-8, 7, 0], ml_dtypes.int4)).tolist() == [-8, 7, 0]
    assert run("x: bool A -> int32 A", "convert[int32](x)", x=np.array([True, False, True])).tolist() == [1, 0, 1]


def test_movements_change_nothing() -> None:
    text = """
    mesh x=2
    dim E=4
    func f(a: f32 E_x) -> f32 E_x {
      b: f32 E(partialsum-x) = as_partial[x](a)
      c: f32 E = all_reduce[x](b)
      d: f32 E_x = slice[x -> E](c)
      return d
    }
    """
    (found,), _ = evaluate(program(text), "f", {"a": np.arange(4.0)})
    assert found.tolist() == [0, 1, 2, 3]


LOOP = """
dim N=2 B=3 T=4
weights { w: f32 NB }
state { k: f32 NBT
        pos: int32 }
func f(x: f32 B) -> f32 B {
  y: f32 B = loop[N as i](h: f32 B = x) {
    before = sum[T](k)
    set k = update[T](k, h, pos)
    written = sum[T](k) - before
    next h * w + written + convert[f32](i)
  }
  set pos = pos + 1
  return y
}
"""


def test_loop_slices_what_carries_its_dimension_and_sets_slices_of_state() -> None:
    w, x = np.array([[1.0, 2, 3], [4, 5, 6]]), np.array([1.0, 10, 100])
    state = {"k": np.zeros((2, 3, 4)), "pos": np.array(2)}
    (y,), new = evaluate(program(LOOP), "f", {"x": x}, {"w": w}, state)
    h = x * w[0] + x
    assert new["k"][0, :, 2].tolist() == x.tolist()
    assert new["k"][1, :, 2].tolist() == h.tolist()
    assert np.count_nonzero(new["k"]) == 6
    assert y.tolist() == (h * w[1] + h + 1).tolist()
    assert new["pos"] == 3
    assert not state["k"].any(), "the caller's arrays are left alone"


def test_declared_precision_rounds_every_value() -> None:
    x = np.array([1 + 2**-8, 1 + 2**-7, 3.0])
    found = run("x: bf16 A -> bf16 A", "x + 0", "declared", x=x)
    assert found.dtype == ml_dtypes.bfloat16
    assert found.astype(float).tolist() == [1, 1 + 2**-7, 3]  # ties to even
    product = run("x: bf16 A -> bf16 A", "x * x", "declared", x=np.array([1 + 2**-7] * 3))
    assert product.astype(float).tolist() == [1 + 2**-6] * 3
    assert run("x: f16 A -> f16 A", "x * x", "declared", x=np.array([300.0, 1, 2])).tolist() == [math.inf, 1, 4]


def test_declared_sums_accumulate_in_f32() -> None:
    x = np.full(256, 1 + 2**-7)
    text = "dim A=256\nfunc f(x: bf16 A) -> bf16 {\n  y: bf16 = sum[A](x)\n  return y\n}\n"
    (found,), _ = evaluate(program(text), "f", {"x": x}, precision="declared")
    assert float(found) == 258


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "f: no array for the argument x"),
        ({"x": np.zeros(3), "z": np.zeros(3)}, "f: there is no argument z"),
        ({"x": np.zeros(4)}, "f: the argument x: f32 B is (3,), not (4,)"),
    ],
)
def test_wrong_arrays(args: dict[str, Array], message: str) -> None:
    state = {"k": np.zeros((2, 3, 4)), "pos": np.array(2)}
    with pytest.raises(ValueError) as error:  # noqa: PT011
        evaluate(program(LOOP), "f", args, {"w": np.zeros((2, 3))}, state)
    assert str(error.value) == message
