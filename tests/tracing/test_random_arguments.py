"""Arguments drawn at random are such as the function takes: no roots of negative numbers, no division by 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright import DiagnosticError, optimize, trace
from shardwright.__main__ import main
from shardwright.tracing.comparing import random_arguments
from shardwright.tracing.graph import GraphEdge
from shardwright.tracing.rules import RULES


def test_a_second_moment_of_which_only_the_shape_is_known() -> None:
    def step(p: Any, m: Any, v: Any, g: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 0.01 * m / (jnp.sqrt(v) + 1e-8), m, v

    shape = jax.ShapeDtypeStruct((4, 8), jnp.float32)
    assert trace(step, (shape,) * 4).largest_relative_difference < 1e-6


def test_what_is_no_number_whatever_is_given_is_refused() -> None:
    made = trace(lambda x: jnp.log(-1 - jnp.abs(x)), (jax.ShapeDtypeStruct((4,), jnp.float32),))
    assert made.largest_relative_difference == np.inf


def test_divisors_are_not_0_where_the_example_has_none() -> None:
    example = np.array([-2, 3, 5, -7] * 100, np.int32)
    (drawn,) = random_arguments((example,), [GraphEdge(("0",), example.shape, "int32")], 0)
    assert drawn.all()
    assert drawn.min() == -7
    assert drawn.max() == 5


def test_a_decoder_of_16_bits_of_which_only_shapes_are_known() -> None:
    """Drawn without scale its scores would be so large that rounding decided where to attend."""
    width, heads, size = 64, 4, 16

    def norm(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)

    def block(x: Any, p: Any) -> tuple[Any, None]:
        q, k, v = (jnp.einsum("ble,ehd->blhd", norm(x), p[name]) for name in "qkv")
        scores = jnp.einsum("blhd,bthd->bhlt", q, k, preferred_element_type=jnp.float32) / size**0.5
        scores = jnp.where(jnp.tril(jnp.ones((16, 16), bool)), scores, -jnp.inf)
        o = jnp.einsum("bhlt,bthd->blhd", jax.nn.softmax(scores, -1).astype(x.dtype), v)
        x = x + jnp.einsum("blhd,hde->ble", o, p["o"])
        return x + jax.nn.silu(norm(x) @ p["up"]) @ p["down"], None

    def forward(p: Any, x: Any) -> Any:
        return jax.lax.scan(block, x, p)[0]

    def shaped(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    weights = {name: shaped(6, width, heads, size) for name in "qkv"}
    weights |= {"o": shaped(6, heads, size, width), "up": shaped(6, width, 256), "down": shaped(6, 256, width)}
    made = trace(forward, (weights, shaped(8, 16, width)))
    made.require_agreement()
    assert made.largest_relative_difference < 0.03


def test_what_prints_is_left_out() -> None:
    def shown(x: Any) -> Any:
        jax.debug.print("sum {}", x.sum())
        return x * 2

    assert dict(trace(shown, (jnp.ones((4, 8)),)).operations) == {"*": 1}


@pytest.mark.parametrize("given", ["jnp.zeros((1, 8, 16))", "{'x': jnp.zeros(3)}"])
def test_arguments_that_are_no_tuple(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.py"
    file.write_text(f"import jax.numpy as jnp\ndef f(x): return x * 2\ndef example_args(): return {given}\n")
    assert main(["trace", f"{file}:f", "-o", str(tmp_path / "out.shard")]) == 1
    told = capsys.readouterr().err
    assert "and not a tuple of arguments [not-arguments]" in told
    assert "return (x,) for one argument x" in told


def test_the_examples_own_arguments_where_random_ones_do_not_do() -> None:
    """Twelve layers amplify rounding unless their weights keep values within bounds."""

    def deep(x: Any, up: Any, down: Any) -> Any:
        for a, b in zip(up, down, strict=True):
            x = x + jnp.tanh(x @ a) @ b
        return x

    random = np.random.default_rng(0)
    args = [random.normal(size=shape).astype("f4") for shape in ((4, 64), (12, 64, 256), (12, 256, 64))]
    assert not trace(deep, args).at_examples
    traced = trace(deep, (args[0], args[1] / 20, args[2] / 20))
    assert traced.at_examples
    assert traced.as_json()["at_examples"]
    assert traced.largest_relative_difference < 1e-5


def chain(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0]


def nested(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda h, w: (chain(h, w), None), x, w)[0]


def mixed(x: Any, w: Any) -> Any:
    """Layers that are no loop, and whose weights are parts of one array."""
    for layer in range(20):
        x = (jnp.tanh if layer in (3, 7, 12) else jnp.sin)(x @ w[layer])
    return x


def shapes(*layers: int) -> tuple[Any, Any]:
    return jax.ShapeDtypeStruct((16, 32), "float32"), jax.ShapeDtypeStruct((*layers, 32, 32), "float32")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("function", "layers"), [(chain, (15,)), (chain, (30,)), (nested, (3, 5)), (mixed, (20,))])
def test_layers_that_amplify_rounding_are_compared_at_smaller_weights(function: Any, layers: tuple[int, ...]) -> None:
    """A unit in the last place is all of the result after 30 layers with weights of variance 1."""
    made = trace(function, shapes(*layers))
    made.require_agreement()
    assert made.at_smaller
    assert made.as_json()["at_smaller"]
    assert made.largest_relative_difference < 1e-5


def test_layers_that_amplify_rounding_are_optimized() -> None:
    args = [np.asarray(jax.random.normal(jax.random.key(i), s.shape)) / 6 for i, s in enumerate(shapes(3, 5))]
    made = optimize(nested, shapes(3, 5), {"x": 1})
    np.testing.assert_allclose(made(*args), nested(*args), atol=1e-5)


def sine(w: Any, op: Any) -> None:
    RULES["sin"](w, replace(op, primitive="sin"))


def transposed(w: Any, op: Any, product: Any = RULES["dot_general"]) -> None:
    product(w, replace(op, params=dict(op.params) | {"dimension_numbers": (((1,), (1,)), ((), ()))}))


@pytest.mark.parametrize(("primitive", "wrong"), [("tanh", sine), ("dot_general", transposed)])
@pytest.mark.parametrize("layers", [2, 15, 30])
def test_wrong_programs_of_layers_that_amplify_rounding(
    primitive: str, wrong: Any, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding explains as large a difference in the deepest, but not those at smaller weights."""
    monkeypatch.setitem(RULES, primitive, wrong)
    made = trace(chain, shapes(layers))
    assert made.at_smaller == (layers > 15)
    assert not made.amplified
    with pytest.raises(DiagnosticError, match="not-the-function") as caught:
        made.require_agreement()
    assert "from itself" not in str(caught.value)
    (told,) = caught.value.diagnostics
    assert caught.value.source is not None
    assert caught.value.source.line(told.span.line) == "def chain(x: Any, w: Any) -> Any:"


def test_a_limit_left_out_that_the_smallest_weights_do_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, w: (jnp.sin(jnp.minimum(h @ w, 3.5)), None), x, w)[0]

    right = trace(limited, shapes(30))
    right.require_agreement()
    assert right.at_smaller
    monkeypatch.setitem(
        RULES, "min", lambda w, op: RULES["copy"](w, replace(op, primitive="copy", operands=op.operands[:1]))
    )
    with pytest.raises(DiagnosticError, match="not-the-function"):
        trace(limited, shapes(30)).require_agreement()


def test_arrays_at_which_rounding_decides_are_refused() -> None:
    """Their numbers are the user's, so none smaller are drawn."""
    random = np.random.default_rng(0)
    x, w = (random.normal(size=shape.shape).astype("f4") for shape in shapes(30))
    number = r"\d\.\de[+-]\d\d"
    told = (
        rf"test_random_arguments\.py:\d+:1: error: the traced program differs from the function by {number}, relative"
        rf" to the largest magnitude, and the function from itself by {number} where its arguments change by one unit"
        r" in the last place \[not-the-function\]\n  def chain\(x: Any, w: Any\) -> Any:\n  \^+\n"
        "note: rounding decides what the function gives there: give arrays that keep its values within bounds, as"
        " weights over the root of what products sum, or shapes alone, jax.ShapeDtypeStruct, which are drawn so$"
    )
    for args in ((x, w), (shapes(30)[0], w)):
        with pytest.raises(DiagnosticError, match=told):
            optimize(chain, args, {"x": 1})
    assert trace(chain, (x, shapes(30)[1])).at_smaller
    assert trace(chain, (x, w / 32**0.5)).at_examples


def test_a_program_that_differs_is_told_under_the_name_of_a_function_without_a_file() -> None:
    named: dict[str, Any] = {}
    exec("def f(x): return x[5:9]", named)
    made = replace(trace(named["f"], (jnp.ones(12),)), largest_relative_difference=1.0)
    with pytest.raises(DiagnosticError) as caught:
        made.require_agreement()
    assert str(caught.value).startswith("f: error: the traced program differs from the function by 1.0e+00, relative")


def test_arrays_of_one_number_are_varied() -> None:
    """A function that is wrong away from zero is not taken for right because its example is all zeros."""
    edges = [GraphEdge((name,), (4, 8), "float32") for name in ("zeros", "ones")]
    zeros, ones = random_arguments([np.zeros((4, 8), "f4"), np.ones((4, 8), "f4")], edges, seed=0)
    assert 0 <= zeros.min() < zeros.max() < 1
    assert 1 <= ones.min() < ones.max() < 2


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_bits_of_narrow_integers(dtype: Any) -> None:
    weights = (np.arange(3, 256, 16) * 257 % 65536).astype(dtype)
    for function in (
        lambda w: w & 15,
        lambda w: w >> 4,
        lambda w: ~w,
        lambda w: (w << 4) | 1,
        lambda w: w + 200,
        lambda w: w * w,
    ):
        made = optimize(function, (weights,), {"x": 1})(weights)
        assert made.dtype == dtype
        np.testing.assert_array_equal(np.asarray(made), np.asarray(function(jnp.asarray(weights))))


def test_counts_on_a_named_chip() -> None:
    ids = np.array([1, 3, 3, 7, 0, 2, 2, 2], np.int32)
    counted = optimize(lambda i: jnp.bincount(i, length=8), (ids,), {"x": 1}, "h100")
    np.testing.assert_array_equal(np.asarray(counted(ids)), np.bincount(ids, minlength=8))


@pytest.mark.parametrize("function", [jnp.expm1, jax.nn.elu, jax.scipy.special.erf, jax.scipy.special.erfc])
def test_small_results_are_exact(function: Any) -> None:
    x = np.array([1e-8, -1e-8, 1e-6, -1e-6, 3.0, 0.0, -5.0, 1e-3], np.float32)
    found = optimize(function, (x,), {"x": 1})(x)
    np.testing.assert_allclose(np.asarray(found), np.asarray(function(jnp.asarray(x))), rtol=1e-5)
