"""Functions that the language has no words for: called by name, by every backend, with the layouts that they allow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Outcome

import shardwright
from shardwright import DiagnosticError, bytes_received, compile_program, explicit, load, predict, trace
from shardwright.backends import foreign
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.jax_functions import FUNCTIONS as CALLED
from shardwright.backends.torch.session import run_program
from shardwright.backends.torch.world import alone
from shardwright.backends.validation.validate import validate
from shardwright.cli.front import main
from shardwright.ir.diagnostics import Source
from shardwright.tracing.trace import Trace

SEED = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return SEED.normal(size=shape).astype("float32")


def mixer(x: Any, taps: Any, out: Any) -> Any:
    made = jax.lax.conv_general_dilated(
        x, taps, (1,), ((3, 0),), dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=8
    )
    return jax.nn.silu(made) @ out


def patches(images: Any, weights: Any) -> Any:
    made = jax.lax.conv_general_dilated(images, weights, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return made.reshape(images.shape[0], -1, weights.shape[-1])


def dilated(x: Any, weights: Any) -> Any:
    numbers = ("NCHW", "OIHW", "NCHW")
    return jax.lax.conv_general_dilated(x, weights, (2, 1), ((1, 2), (0, 3)), (1, 2), (2, 1), numbers, 2)


def sampled(key: Any, logits: Any) -> Any:
    first, second = jax.random.split(key)
    noise = jax.random.gumbel(first, logits.shape) + jax.random.normal(jax.random.fold_in(second, 3), (1,))
    return jnp.argmax(logits + noise, -1)


def solved(a: Any, b: Any) -> Any:
    s = a @ a.T + 10 * jnp.eye(a.shape[0])
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(s), b)


def scans(x: Any) -> Any:
    pooled = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID")
    return pooled, jnp.cumprod(x, 1), jax.lax.cummax(x, 0, reverse=True), jnp.prod(x, (0, 1)), jnp.prod(x, 0)


def elements(x: Any, n: Any) -> Any:
    nearest = jnp.round(x) - jax.lax.round(x)  # to even, which is no opaque operation, and away from 0
    return jnp.floor(x), nearest, jnp.arctan2(x, 2.0), jax.scipy.special.gammaln(x * x + 1), n << 2 | n & 5, ~n


def decayed(base: Any, steps: Any) -> Any:
    return (1 - base)[:, None, None] ** jnp.maximum(steps[:, None] - steps[None], 0)


def grouped(x: Any, weights: Any, sizes: Any) -> Any:
    return jax.lax.ragged_dot(x, weights, sizes)


def transformed(x: Any, re: Any, im: Any) -> Any:
    """A layer of a Fourier neural operator, and a transform scaled both ways."""
    spectral = jnp.fft.irfft(jnp.fft.rfft(x, axis=1) * jax.lax.complex(re, im), n=x.shape[1], axis=1)
    return spectral, jnp.fft.fft2(x, norm="ortho").real, jnp.abs(jnp.fft.ifft(x, axis=1))


def definite(a: Any) -> Any:
    return jnp.einsum("bij,bkj->bik", a, a) + 3 * jnp.eye(a.shape[1])


def decomposed(a: Any) -> Any:
    left, values, right = jnp.linalg.svd(a, full_matrices=False)
    orthogonal, upper = jnp.linalg.qr(a)
    largest = jnp.linalg.norm(a, 2, axis=(1, 2))
    return (left * values[:, None]) @ right, orthogonal @ upper, jnp.linalg.eigh(definite(a))[0], left, upper, largest


def inverted(a: Any, b: Any) -> Any:
    return jnp.linalg.solve(definite(a), b), jnp.linalg.inv(definite(a)), jnp.linalg.slogdet(definite(a))[1]


def seeded(x: Any, seed: Any, step: Any) -> Any:
    """Keys that the function makes itself."""
    first, second = jax.random.split(jax.random.key(7))
    kept = jax.random.bernoulli(jax.random.fold_in(second, step), 0.5, x.shape)
    return x + jax.random.normal(first, x.shape), x * kept, x * jax.random.uniform(jax.random.PRNGKey(seed), x.shape)


def segments(x: Any, ids: Any) -> Any:
    """Sums and the greatest of so many rows that comparing each place with each index would be long."""
    return jax.ops.segment_sum(x, ids, 1500), jnp.zeros((4, 1500)).at[:, ids].max(x.T), jnp.bincount(ids, length=1600)


FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...], set[str]]] = {
    "mixer": (mixer, (normal(4, 6, 8), normal(4, 1, 8), normal(8, 10)), {"conv_general_dilated"}),
    "patches": (patches, (normal(4, 16, 12, 3), normal(4, 4, 3, 10)), {"conv_general_dilated"}),
    "dilated": (dilated, (normal(2, 4, 9, 7), normal(6, 2, 3, 2)), {"conv_general_dilated"}),
    "gradient": (jax.grad(lambda *a: mixer(*a).sum(), (0, 1)), (normal(4, 6, 8), normal(4, 1, 8), normal(8, 10)),
                 {"conv_general_dilated"}),
    "sampled": (sampled, (np.array([0, 3], np.uint32), normal(4, 11)),
                {"random_split", "random_bits", "random_fold_in", "shift_right_logical", "bitwise_or", "erf_inv"}),
    "solved": (solved, (normal(6, 8), normal(6, 3)), {"cholesky", "triangular_solve"}),
    "transformed": (transformed, (normal(4, 16, 3), normal(9, 3), normal(9, 3)), {"fft"}),
    "transformed back": (jax.grad(lambda *a: sum(jnp.sum(each**2) for each in transformed(*a)), (0, 1)),
                         (normal(4, 16, 3), normal(9, 3), normal(9, 3)), {"fft"}),
    "decomposed": (decomposed, (normal(4, 6, 5),), {"svd", "qr", "eigh"}),
    "inverted": (inverted, (normal(4, 5, 6), normal(4, 5, 2)), {"lu", "triangular_solve"}),
    "inverted back": (jax.grad(lambda *a: jnp.sum(inverted(*a)[0]), (0, 1)), (normal(4, 5, 6), normal(4, 5, 2)),
                      {"lu", "triangular_solve"}),
    "seeded": (seeded, (normal(4, 6), np.int32(5), np.int32(2)),
               {"random_seed", "random_split", "random_fold_in", "random_bits", "shift_right_logical", "bitwise_or",
                "erf_inv"}),
    "segments": (segments, (normal(3000, 4), SEED.integers(-9, 1520, 3000).astype("i4")),
                 {"scatter_add", "scatter_max"}),
    "segments back": (jax.grad(lambda x, ids: jnp.sum(jax.ops.segment_sum(x, ids, 1500) ** 2)),
                      (normal(3000, 4), np.arange(3000, dtype="i4") * 7 % 1500), {"scatter_add"}),
    "decayed": (decayed, (np.linspace(-0.5, 2, 3, dtype="f4"), np.arange(5, dtype="i4")), {"pow"}),
    "grouped": (grouped, (normal(6, 4), normal(3, 4, 5), np.array([2, 2, 2], np.int32)), {"ragged_dot"}),
    "scans": (scans, (normal(4, 6),), {"reduce_window_max", "cumprod", "cummax", "reduce_prod"}),
    "elements": (elements, (normal(4, 6), np.arange(5, dtype=np.int32)),
                 {"floor", "round", "atan2", "lgamma", "shift_left", "bitwise_and", "bitwise_or", "bitwise_not"}),
}  # fmt: skip


@cache
def traced_alone(name: str) -> Trace:
    """The trace of a function on one chip."""
    function, args, _ = FUNCTIONS[name]
    return trace(function, args)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_means_what_the_function_computes(name: str) -> None:
    traced, opaque = traced_alone(name), FUNCTIONS[name][2]
    assert traced.largest_relative_difference < 1e-5
    assert set(traced.opaque) == set(traced.as_json()["opaque"]) == opaque  # type: ignore[call-overload]
    assert traced.text.count("foreign[") >= len(opaque)
    assert ("= round(x)" in traced.text) is (name == "elements")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "name", ["mixer", "patches", "sampled", "scans", "elements", "transformed", "decomposed", "inverted", "seeded"]
)
def test_every_backend_calls_it(name: str) -> None:
    """On two chips, of which each has half of the first argument's largest dimension that may be split."""
    function, args, _ = FUNCTIONS[name]
    traced = trace(function, args, mesh={"x": 2})
    expected = jax.tree.leaves(function(*args))
    found, _ = shardwright.run(traced.program, traced.program.funcs[0].name, args, traced.weights)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=2e-5, atol=2e-5)
    on_one_chip = explicit(traced_alone(name).program)
    func = on_one_chip.funcs[0]
    given = dict(zip((value.name for value in func.params), args, strict=True))
    made, _ = run_program(on_one_chip, func.name, given, traced.weights, world=alone())
    for one, other in zip(expected, made, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=2e-5, atol=2e-5)


# ---------------------------------------------------------------- kernels of one's own


@pytest.fixture
def flash() -> Iterator[Any]:
    @shardwright.kernel("b h t d, b h s d, b h s d -> b h t d", splits="b h")
    def flash(q: Any, k: Any, v: Any) -> Any:
        return jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(jnp.einsum("bhtd,bhsd->bhts", q, k)), v)

    yield flash
    del foreign.KERNELS["flash"]


def attention(flash: Any) -> Any:
    def attend(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
        return flash(*(jnp.einsum("bte,ehd->bhtd", x, w) for w in (wq, wk, wv)))

    return attend


ARGS = (normal(2, 6, 10), normal(10, 4, 8), normal(10, 4, 8), normal(10, 4, 8))


def test_a_kernel_stays_whole_and_its_heads_are_divided(flash: Any) -> None:
    traced = trace(attention(flash), ARGS, mesh={"x": 2, "y": 2})
    assert traced.largest_relative_difference < 1e-5
    assert traced.opaque == ("flash",)
    assert "softmax" not in traced.text
    assert "exp" not in traced.text
    compiled = compile_program(traced.program, objective="bytes")
    # The weights are whole everywhere and so is x: over both axes the heads or the rows can be divided for nothing.
    assert bytes_received(compiled.program, compiled.program.funcs[0]).bytes == 0
    assert validate(traced.program, explicit(traced.program)).largest_difference < 1e-12
    found, _ = shardwright.run(traced.program, "attend", ARGS)
    np.testing.assert_allclose(found[0], attention(flash)(*ARGS), rtol=1e-5, atol=1e-5)


def test_the_emitted_module_names_what_it_needs(flash: Any) -> None:
    program = explicit(trace(attention(flash), ARGS).program)
    module = load_module(compile_program(program).text)
    assert module.KERNELS.keys() == {"flash"}
    assert "KERNELS['flash'](" in compile_program(program).text
    foreign.KERNELS["other"] = foreign.KERNELS.pop("flash")  # another process, that has not declared it
    with pytest.raises(DiagnosticError, match=r"the program calls flash, which is no function of jax\.lax") as caught:
        shardwright.evaluate(program, "attend", dict(zip((p.name for p in program.funcs[0].params), ARGS, strict=True)))
    assert "declare it with @shardwright.kernel" in str(caught.value)
    foreign.KERNELS["flash"] = foreign.KERNELS.pop("other")


def test_derivatives_of_a_kernel_are_not_the_kernel() -> None:
    @shardwright.kernel("b t -> b t", splits="b")
    def running(x: Any) -> Any:
        return jnp.cumsum(x, 1)

    def function(x: Any) -> Any:
        return (
            running(jnp.sin(x)),
            jax.grad(lambda x: (running(x) * jnp.arange(6.0)).sum())(x),
            jax.vmap(running)(x[None]),
        )

    traced = trace(function, (normal(4, 6),))
    assert traced.largest_relative_difference < 1e-6
    del foreign.KERNELS["running"]


@pytest.mark.parametrize(
    ("axes", "splits", "name", "said"),
    [
        ("b t", "", "", "`b t` has no arrow between operands and results"),
        ("b b -> b", "", "", "made names the axis b of an operand twice"),
        ("b t -> t", "b", "", "made: splits=b, and it is no axis of an operand and of all results"),
        ("b t -> t", "", "Made", "a kernel cannot be called `Made`"),
        ("b t -> t", "", "cumprod", "cumprod is a function of jax.lax"),
    ],
)
def test_declarations_at_fault(axes: str, splits: str, name: str, said: str) -> None:
    def made(x: Any) -> Any:
        return x

    with pytest.raises(DiagnosticError) as caught:
        shardwright.kernel(axes, splits=splits, name=name)(made)
    assert caught.value.diagnostics[0].message == said
    assert caught.value.diagnostics[0].notes


# ---------------------------------------------------------------- in programs

TEXT = """mesh x=2
dim B=4 T=6
func f(a: f32 B_xT) -> f32 BT? {{
  b = foreign[{}](a)
  return b
}}
"""


@pytest.mark.parametrize(
    ("statics", "said"),
    [
        ("BT, f32", "foreign: its first word is a function's name"),
        ("cumprod, BT", "foreign: name a number format"),
        ("cumprod, BU, f32", "dimension U is not declared"),
        ("cumprod, T, f32, splits=B", "cumprod: splits=B, and the result has no B"),
        ("cumprod, BT, f32, params=3", "foreign: params is text between quotes"),
        ("cumprod, BT, f32, axis=3", "foreign: there is no option axis"),
        ("cumprod, BT, f32, params='{'", "foreign: params are no JSON: "),
        ("cumprod, BT, f32, params='[1]'", "foreign: params are an object of JSON"),
        ("system, BT, f32", "the program calls system, which is no function of jax.lax that programs may call"),
        ("cumpord, BT, f32", "the program calls cumpord, which is no function of jax.lax that programs may call"),
    ],
)
def test_calls_at_fault(statics: str, said: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        shardwright.evaluate(load(Source("<f>", TEXT.format(statics))), "f", {"a": normal(4, 6)})
    assert caught.value.diagnostics[0].message.startswith(said)


def test_a_program_calls_what_is_listed_alone() -> None:
    """Names are looked up in tables of ours, and never in a module."""
    assert not {name for name in CALLED if name.startswith("_") or "." in name}
    with pytest.raises(DiagnosticError, match="did you mean cumprod"):
        shardwright.evaluate(load(Source("<f>", TEXT.format("cumpord, BT, f32"))), "f", {"a": normal(4, 6)})


def test_text_and_price() -> None:
    said = """foreign[cumprod, BT, f32, splits=B, flops=5.5e14, params='{"axis": 1}'](a)"""
    text = TEXT.format(said.removeprefix("foreign[").removesuffix("](a)"))
    program = load(Source("<f>", text))
    assert said in shardwright.print_program(program)
    assert load(Source("<f>", shardwright.print_program(program))) == program
    (cost,) = predict(load(Source("<f>", text.replace("f32", "bf16"))), "tpu-v4")
    assert cost.flops_per_chip == 2.75e14  # half of it on each chip of two
    assert cost.time_s == pytest.approx(1, rel=0.5)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "import jax.numpy as jnp\nimport numpy as np\nimport shardwright\n\n"
        '@shardwright.kernel("b t -> b t", splits="b")\ndef running(x):\n    return jnp.cumsum(x, 1) * 2\n\n'
        "def f(x):\n    return running(x) + jnp.cumprod(x, 1)\n\n"
        "def example_args():\n    return (np.ones((4, 6), np.float32),)\n"
    )
    out = tmp_path / "f.shard"
    assert main(["trace", f"{tmp_path}/mine.py:f", "--mesh", "x=2", "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["opaque"] == ["running", "cumprod"]
    for framework in ("jax", "torch"):
        mesh = ["--mesh", "x=1"] if framework == "torch" else []
        assert main(["run", str(out), "--kernels", f"{tmp_path}/mine.py", "--to", framework, *mesh]) == 0
        assert "agrees within" in capsys.readouterr().out
    assert main(["compile", str(out), "-o", str(tmp_path / "f.py")]) == 0  # needs no kernel
    capsys.readouterr()
    foreign.KERNELS.clear()
    assert main(["run", str(out)]) == 1
    assert "declare it with @shardwright.kernel in the Python that runs the program" in capsys.readouterr().err
    assert main(["compile", str(out), "--to", "torch", "--mesh", "x=1", "-o", str(tmp_path / "t.py")]) == 1
    assert "is a function of JAX, which a module of PyTorch does not call" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compile", "run", "run --to torch"])
def test_a_call_that_the_function_does_not_take_is_refused_where_it_stands(
    command: str, shardwright: Callable[..., Outcome], tmp_path: Path
) -> None:
    file = tmp_path / "own.shard"
    for called, said in (
        (
            """cumprod, BT, f32, params='{"axes": 1}'""",
            "cumprod fails with these operands and parameters: TypeError",
        ),
        ("""cumprod, B, f32, params='{"axis": 1}'""", "cumprod gives 4 x 6 on a chip, and its type says 4"),
    ):
        rows = called.split(",")[1].strip()
        file.write_text(f"dim B=4 T=6\nfunc f(a: f32 BT) -> f32 {rows} {{ return foreign[{called}](a) }}\n")
        made = shardwright(*command.split(), str(file))
        assert made.status == 1
        assert f"{file}:2:" in made.err
        assert said in made.err
        assert "Traceback" not in made.err
