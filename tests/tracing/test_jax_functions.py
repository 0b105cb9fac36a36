"""Foreign functions of JAX, traced: each program means what its function computes, and the compiler accepts it."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from oracles.jax_functions import FUNCTIONS

from shardwright import DiagnosticError, trace
from shardwright.checking import check
from shardwright.cli.front import main


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_means_what_the_function_computes(name: str) -> None:
    function, args = FUNCTIONS[name]
    assert trace(function, args).largest_relative_difference < 1e-4


def test_layers_that_meet_nowhere_share_their_dimensions() -> None:
    function, args = FUNCTIONS["llama"]
    types = {name: type_.removesuffix("?") for _, name, type_ in trace(function, args).inputs}
    embed = types["embed"].removeprefix("f32 ")
    assert types["layers_wq"].removeprefix("f32 ")[1] == embed[1] == types["norm"].removeprefix("f32 ")
    assert types["layers_w1"] == types["layers_w3"]


def test_32_scanned_layers_trace_in_5_seconds() -> None:
    def stack(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x, w)[0]

    traced = trace(stack, (jax.ShapeDtypeStruct((4, 16), "float32"), jax.ShapeDtypeStruct((32, 16, 16), "float32")))
    assert traced.seconds < 5
    assert check(traced.program)


def test_refuses_with_the_line() -> None:
    def halve(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    with pytest.raises(DiagnosticError, match=r"test_jax_functions.py:\d+: while runs until a condition holds"):
        trace(halve, (jnp.ones(4),))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "model.py"
    source.write_text(
        "import jax.numpy as jnp\n"
        "def forward(params, x):\n    return jnp.tanh(x @ params['w'])\n"
        "def example_args():\n    return {'w': jnp.ones((8, 4))}, jnp.ones((2, 8))\n"
    )
    out = tmp_path / "out.shard"
    assert main(["trace", f"{source}:forward", "--mesh", "x=2,y=2", "-o", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["program"] == out.read_text()
    assert [(of["path"], of["name"]) for of in report["inputs"]] == [("0.w", "w"), ("1", "x")]
    assert (report["opaque"], report["unnamed"]) == ([], 0)
    assert report["largest_relative_difference"] < 1e-6
    assert main(["check", str(out)]) == 0
    assert main(["compile", str(out), "--to", "jax", "-o", str(tmp_path / "out.py")]) == 0
    assert main(["trace", f"{source}:backward", "-o", str(out)]) == 1
    assert "model.py has no backward" in capsys.readouterr().err
