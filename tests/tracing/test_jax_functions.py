"""Foreign functions of JAX, traced: each program means what its function computes, and the compiler accepts it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.jax_functions import FUNCTIONS

from shardwright import DiagnosticError, trace
from shardwright.cli.front import main
from shardwright.compiling.checking import check


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_means_what_the_function_computes(name: str) -> None:
    function, args = FUNCTIONS[name]
    assert trace(function, args).largest_relative_difference < 1e-4


def test_a_row_of_each_cache_is_written_where_its_length_says() -> None:
    """`vmap` makes one scatter of it, whose index is clipped and whose other dimensions are whole."""

    def write(cache: jax.Array, rows: jax.Array, at: jax.Array) -> jax.Array:
        return jax.vmap(lambda c, r, i: jax.lax.dynamic_update_slice(c, r[None], (i, 0, 0)))(cache, rows, at)

    normal = np.random.default_rng(0).normal
    args = (normal(size=(3, 12, 2, 8)), normal(size=(3, 2, 8)), np.array([0, 7, 30]))
    args = tuple(a.astype("f4" if a.dtype.kind == "f" else "i4") for a in args)
    assert trace(write, args).largest_relative_difference < 1e-6


def test_parts_without_an_element() -> None:
    """An associative scan slices, pads and joins them."""

    def scan(a: jax.Array, b: jax.Array) -> Any:
        return jax.lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b), axis=1)

    normal = np.random.default_rng(0).normal
    args = [normal(size=(2, 8, 3)).astype("f4") for _ in range(2)]
    assert trace(scan, args).largest_relative_difference < 1e-6


def test_formats_that_meet() -> None:
    def mixed(x: jax.Array, g: jax.Array) -> Any:
        half = x.astype(jnp.bfloat16)
        return jnp.einsum("i,j->ij", jnp.arange(4), x), jnp.tile(x, (3, 2)), ((half @ half) * 3).astype("f4") * g

    traced = trace(mixed, (np.linspace(-1, 2, 6, dtype="f4"), np.ones((2, 3), "f4")))
    assert traced.largest_relative_difference < 1e-5


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

    with pytest.raises(DiagnosticError) as caught:
        trace(halve, (jnp.ones(4),))
    place, line, caret, note = caught.value.render().splitlines()
    assert re.match(r".*test_jax_functions.py:\d+:9: error: while runs until a condition holds", place)
    assert line.strip().startswith("return jax.lax.while_loop(")
    assert set(caret.strip()) == {"^"}
    assert note == "note: use jax.lax.scan, or fori_loop with bounds that are Python numbers"


@pytest.mark.parametrize(
    ("text", "wanted", "said"),
    [
        (
            "def f(x):\n    return nothing(x)\n",
            "f",
            "FILE:2:5: error: JAX cannot trace f at its example arguments: NameE",
        ),
        (
            "def f(x):\n    return x.reshape(5)\n",
            "f",
            "FILE:2:5: error: JAX cannot trace f at its example arguments: TypeE",
        ),
        ("def f(x:\n", "f", "FILE:1:1: error: the file cannot be imported: SyntaxError:"),
        ("import nothing_of_this_name\n", "f", "FILE:1:1: error: the file cannot be imported: ModuleNotFoundError:"),
        ("def f(x):\n    return x\n", "g", "FILE: error: the file has no g [undeclared]"),
        ("f = 3\n", "f", "FILE: error: f is int, and no function [not-a-function]"),
        ("\ndef f(x, y):\n    return x\n", "f", "FILE:2:1: error: JAX cannot trace f at its example arguments: TypeE"),
    ],
)
def test_faults_of_the_file_have_their_line(
    text: str, wanted: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "model.py", tmp_path / "out.shard"
    file.write_text(f"{text}\nimport jax\ndef example_args():\n    return (jax.ShapeDtypeStruct((2, 3), 'float32'),)\n")
    assert main(["trace", f"{file}:{wanted}", "-o", str(out)]) == 1
    assert capsys.readouterr().err.startswith(said.replace("FILE", str(file)))
    assert not out.exists()


def test_arguments_that_fail_have_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file is named from the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("def f(x):\n    return x\n\ndef example_args():\n    return 1 / 0\n")
    for command in (["trace", "model.py:f", "-o", "out.shard"], ["explain", "model.py:f"]):
        assert main(command) == 1
        told = capsys.readouterr().err
        assert told.startswith("model.py:5:5: error: example_args() fails: ZeroDivisionError: division by zero [untrac")


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", f"{tmp_path}/none.py:f", "-o", str(tmp_path / "out.shard")]) == 1
    assert capsys.readouterr().err == f"{tmp_path}/none.py: error: no such file [no-file]\n"


SHARDED = """import jax
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
def f(a):
    return a + 1
example_args = [jax.ShapeDtypeStruct((4,), "float32", sharding=jax.NamedSharding(mesh, jax.P("x")))]
"""


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("f = 1 +\n", ["m.py:f"], "m.py:1:1: error: the file cannot be imported: SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(0)\n", ["m.py:f"], "m.py:2:1: error: the file cannot be imported: SystemExit: 0 "),
        ("def f(): ...\n", ["m.py:"], "shardwright trace: error: FILE.py:FUNCTION is as in model.py:forward\n"),
        ("def f(): ...\n", ["m.txt:f"], "m.txt: error: this is no file of Python [not-python]\n"),
        ("def f(): ...\ndef a():\n    1 / 0\n", ["m.py:f", "--args", "m.py:a"], "m.py:3:5: error: a() fails: Zero"),
        ("def f(): ...\n", ["m.py:f", "--args", "m.py"], "--args: error: FILE.py:ARGS is as in model.py:"),
        (
            SHARDED,
            ["m.py:f", "--mesh", "a=8"],
            "m.py:3:1: error: shardings of f split over x, and the mesh given is a=",
        ),
    ],
)
def test_faults_of_a_file_beside_which_one_stands(
    text: str, words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.py", "m.txt"):
        Path(name).write_text(text, encoding="utf-8")
    assert main(["trace", *words, "-o", "out.shard"]) != 0
    assert capsys.readouterr().err.startswith(said)


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
    assert "model.py: error: the file has no backward [undeclared]" in capsys.readouterr().err


def test_letters_of_a_decoder() -> None:
    """E by what most weights share, F beside it, H, K and D of attention, N of the loop, V of the vocabulary."""

    def decoder(params: dict[str, Any], ids: jax.Array) -> jax.Array:
        def layer(x: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, None]:
            q, k, v = (jnp.einsum("ble,ehd->blhd", x, p[name]) for name in ("wq", "wk", "wv"))
            shares = jax.nn.softmax(jnp.einsum("blkgd,bmkd->blkgm", q.reshape(*q.shape[:2], 2, 3, 8), k), -1)
            o = jnp.einsum("blkgm,bmkd->blkgd", shares, v).reshape(q.shape)
            x = x + jnp.einsum("blhd,hde->ble", o, p["wo"])
            return x + jax.nn.silu(x @ p["up"]) @ p["down"], None

        return jax.lax.scan(layer, params["embed"][ids], params["layers"])[0] @ params["embed"].T

    shapes = {"wq": (4, 48, 6, 8), "wk": (4, 48, 2, 8), "wv": (4, 48, 2, 8), "wo": (4, 6, 8, 48),
              "up": (4, 48, 96), "down": (4, 96, 48)}  # fmt: skip
    layers = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    params = {"embed": jax.ShapeDtypeStruct((64, 48), jnp.float32), "layers": layers}
    made = trace(decoder, (params, np.arange(10, dtype=np.int32).reshape(2, 5)))
    types = {name: type_ for _, name, type_ in made.inputs}
    assert types["embed"] == "f32 VE?"
    assert (types["layers_wq"], types["layers_wk"]) == ("f32 NEHD?", "f32 NEKD?")
    assert (types["layers_up"], types["layers_down"]) == ("f32 NEF?", "f32 NFE?")
    assert made.results[0][2] == "f32 BLV?"
    assert made.largest_relative_difference < 1e-4


def test_numbers_of_bfloat16_are_no_integers() -> None:
    traced = trace(lambda x: x * jnp.bfloat16(0.5), (jnp.ones(8, jnp.bfloat16),))
    assert "0.5" in traced.text
    assert traced.largest_relative_difference < 1e-2


def test_a_softmax_needs_no_guard_of_its_maximum() -> None:
    text = trace(jax.nn.softmax, (jnp.ones((4, 8)),)).text
    assert "max[" in text
    assert "inf" not in text
