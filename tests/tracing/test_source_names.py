"""Values are called as the user's statements call them, whoever computes them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp

from shardwright import trace

WIDTH, HIDDEN = 16, 40


def shape(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def norm(x: Any) -> Any:
    mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
    return x / jnp.sqrt(mean_square)


@jax.jit
def feedforward(w: dict[str, Any], x: Any) -> Any:
    """JAX traces it once, at the first of its calls."""
    inner = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
    return inner @ w["down"]


def model(w: dict[str, Any], x: Any) -> Any:
    normed = norm(x)
    first = x + feedforward(w, normed)
    second = feedforward(w, norm(first))
    both, _ = jax.lax.scan(lambda h, _: (norm(h), None), first + second, length=3)
    return both - second


WEIGHTS = {"gate": shape(WIDTH, HIDDEN), "up": shape(WIDTH, HIDDEN), "down": shape(HIDDEN, WIDTH)}


def assigned(text: str) -> list[str]:
    return re.findall(r"^ *(\w+)(?:: [^=\n]*)? =", text, re.MULTILINE)


def test_names_are_those_of_the_outermost_statement_that_lets_a_value_out() -> None:
    names = assigned(trace(model, (WEIGHTS, shape(8, WIDTH))).text)
    own = [name for name in names if re.sub(r"_\d+$", "", name) in model.__code__.co_varnames]
    assert own == ["normed", "first", "second", "both_1", "both_2"]  # `both` is what the loop carries
    assert [name for name in names if "inner" in name] == ["inner", "inner_1"]


def test_a_function_that_was_traced_elsewhere_is_named_as_here() -> None:
    def once(w: dict[str, Any], x: Any) -> Any:
        elsewhere = feedforward(w, x)
        return elsewhere * elsewhere

    def again(w: dict[str, Any], x: Any) -> Any:
        here = feedforward(w, x)
        return here * here

    args = (WEIGHTS, shape(4, WIDTH))
    assert "elsewhere" in assigned(trace(once, args).text)
    names = assigned(trace(again, args).text)
    assert "here" in names
    assert "inner" in names
    assert "elsewhere" not in names


def test_gradients_have_no_names_of_the_values_that_they_are_of() -> None:
    def loss(w: dict[str, Any], x: Any) -> Any:
        hidden = x @ w["up"]
        error = hidden @ w["down"] - x
        return (error * error).mean()

    names = assigned(trace(jax.value_and_grad(loss), (WEIGHTS, shape(8, WIDTH)), name="loss").text)
    assert [name for name in names if name.startswith(("hidden", "error"))] == ["hidden", "error"]


def test_rows_of_features_are_a_batch_and_the_width_of_the_model() -> None:
    program = trace(model, (WEIGHTS, shape(8, WIDTH))).program
    assert {"B": 8, "E": WIDTH, "F": HIDDEN}.items() <= {dim.name: dim.size for dim in program.dims}.items()


def test_parts_of_an_array_have_their_names() -> None:
    def parts(x: Any) -> Any:
        low, high = jnp.split(x, 2, axis=-1)
        best, places = jax.lax.top_k(low, 2)
        base = jax.random.key(3)
        left, _values, right = jnp.linalg.svd(high, full_matrices=False)  # not in the order of the primitive's results
        return best, places, left @ right * jax.random.uniform(base, (4, 5))

    text = trace(parts, (shape(4, 10),)).text
    assert {"low", "high", "base"} <= set(assigned(text))
    assert "best, places = topk[" in text
    assert not {"left", "right"} & set(assigned(text))
