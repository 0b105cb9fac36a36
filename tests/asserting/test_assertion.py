"""`assert_collectives`: functions of JAX on eight devices, beside texts, and what is said of others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import getsourcelines
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from shardwright import DiagnosticError, assert_collectives, explain

jax = cast(Any, import_module("jax"))
jnp = cast(Any, import_module("jax.numpy"))
lax = jax.lax
P = jax.P
MESH = {"x": 4, "y": 2}


@pytest.fixture
def mesh() -> Any:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def array(mesh: Any, *spec: Any) -> Any:
    return jax.ShapeDtypeStruct((16, 16), np.dtype("f4"), sharding=jax.NamedSharding(mesh, P(*spec)))


def layers(x: Any, w: Any) -> Any:
    def layer(h: Any, w: Any) -> Any:
        whole = lax.all_gather(h, "y", axis=1, tiled=True)
        return lax.psum(whole @ w, "x")

    def body(h: Any, w: Any) -> Any:
        h = lax.fori_loop(0, 3, lambda _, h: layer(h, w), h)
        first = lax.psum(h, "y")
        return lax.psum(jnp.sin(first) + h, "y")

    split = P(None, "y")
    return jax.shard_map(body, in_specs=(split, split), out_specs=P(), check_vma=False)(x, w)


@pytest.fixture
def compiled(mesh: Any) -> Callable[..., None]:
    """`compiled("all_gather[x] 12")` asserts it of three layers and two sums behind them."""

    def check(*expected: str, **options: Any) -> None:
        with jax.set_mesh(mesh):
            assert_collectives(layers, (array(mesh, None, "y"),) * 2, mesh, *expected, **options)

    return check


HERE = "all_gather[y] 512 * 3; all_reduce[x] 768 * 3; 2x all_reduce[y] 512"


def test_the_expected_ones(compiled: Callable[..., None]) -> None:
    for text in (HERE, "; ".join(reversed(HERE.split("; "))), HERE.replace(";", "\n")):
        compiled(text)
        compiled(text, target="cpu")
    compiled(at_most=3 * (512 + 768) + 2 * 512)
    compiled(HERE, at_most=3 * (512 + 768) + 2 * 512)


def test_nothing_moves(mesh: Any) -> None:
    for empty in ("none", ""):
        assert_collectives(lambda x: x * 2, (array(mesh, "x"),), MESH, empty)


def line_of(text: str) -> str:
    lines, begins = getsourcelines(layers)
    shown = __file__.removeprefix(f"{Path.cwd()}/")
    return f"{shown}:{begins + next(i for i, line in enumerate(lines) if text in line)}"


def test_others(compiled: Callable[..., None]) -> None:
    with pytest.raises(AssertionError) as caught:
        compiled("all_gather[y] 512 * 4; all_reduce[x] 768 * 3; all_to_all[xy] 12")
    assert str(caught.value) == (
        "layers on cpu, mesh x=4 y=2: the collectives are not those expected\n"
        f"  changed  all_gather[y] 512 * 3  expected all_gather[y] 512 * 4; least 512, from {line_of('all_gather')}\n"
        "  missing  all_to_all[xy] 12\n"
        f"  extra    2x all_reduce[y] 512   least 512, from {line_of('first =')}, {line_of('jnp.sin')}\n"
        "  1 as expected; a chip receives 4864 bytes, expected 4364\n"
        "now:\n"
        "  all_gather[y] 512 * 3\n"
        "  all_reduce[x] 768 * 3\n"
        "  2x all_reduce[y] 512"
    )


def test_trips_that_the_module_does_not_say(mesh: Any) -> None:
    """How much a chip receives is not known then; the collectives are."""

    def looped(x: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda _, c: jnp.tanh(c @ c.T @ c), x)

    with jax.set_mesh(mesh):
        args = array(mesh, None, "y"), jax.ShapeDtypeStruct((), np.dtype("i4"))
        said = repr(explain(looped, args=args)).splitlines()[0]
        assert " in one trip of loops of which the module does not say how many they make" in said
        with pytest.raises(AssertionError, match="how many trips a loop makes is not in the module") as caught:
            assert_collectives(looped, args, mesh, at_most=1 << 20)
        entries = [line.partition("least")[0].strip() for line in str(caught.value).splitlines()[1:]]
        assert any(entry.endswith("* ?") for entry in entries)
        assert_collectives(looped, args, mesh, "; ".join(entries))


def test_too_much(compiled: Callable[..., None]) -> None:
    with pytest.raises(AssertionError) as caught:
        compiled(at_most=4863)
    assert str(caught.value) == (
        "layers on cpu, mesh x=4 y=2: a chip receives 4864 bytes, more than the 4863 allowed\n"
        f"    all_reduce[x] 768 * 3  least 768, from {line_of('whole @ w')}\n"
        f"    all_gather[y] 512 * 3  least 512, from {line_of('all_gather')}\n"
        f"    2x all_reduce[y] 512   least 512, from {line_of('first =')}, {line_of('jnp.sin')}"
    )


def test_names_of_the_mesh_are_those_given(mesh: Any) -> None:
    args = (array(mesh, "x"), array(mesh))
    with pytest.raises(AssertionError, match=r"mesh data=4 model=2: .*\n  missing  all_gather\[data\] 12"):
        assert_collectives(jnp.add, args, {"data": 4, "model": 2}, "all_gather[data] 12")


def test_a_mesh_that_contradicts_that_of_the_arguments(mesh: Any) -> None:
    told = (
        "sin: error: the arguments of sin lie on the mesh x=4 y=2, and the mesh given is x=2 y=4 [mesh-fit]\n"
        "note: x and y differ: give the mesh of the arguments"
    )
    for over in (mesh, mesh.abstract_mesh):
        args = (array(over, "x", "y"),)
        assert refused(jnp.sin, args, {"x": 2, "y": 4}, "none", target="cpu").render() == told
        with pytest.raises(DiagnosticError) as caught:
            explain(jnp.sin, "cpu", {"x": 2, "y": 4}, args=args)
        assert caught.value.render() == told


def refused(function: Any, args: Any, mesh: Any, *expected: Any, **options: Any) -> DiagnosticError:
    with pytest.raises(DiagnosticError) as caught:
        assert_collectives(function, args, mesh, *expected, **options)
    assert caught.traceback[-1].name == "assert_collectives"
    return caught.value


def test_bad_notation_is_told_before_anything_is_compiled() -> None:
    error = refused(None, None, MESH, "all_gather[x] 12;\nall_gather[z] 12")
    told = (
        "<expected>:2:12: error: the mesh has no axis z [unknown-axis]\n"
        "  all_gather[z] 12\n"
        "             ^\n"
        "note: the mesh is x=4 y=2"
    )
    assert error.render() == str(error) == told


def test_an_expectation_that_is_no_text() -> None:
    assert refused(None, None, MESH, ["all_gather[x] 12", "all_gather[y] 12"]).render() == (
        "assert_collectives: error: expected is no text but a list [bad-collectives]\n"
        "note: write several collectives as one text, with `;` between them"
    )


def test_no_expectation(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.asserting.assertion.running", None)
    assert refused(jnp.sin, (array(mesh),), mesh).render() == (
        "assert_collectives: error: there is no text to compare with, and no test of pytest runs that could have a lock"
        " file [no-expectation]\n"
        "note: pass the collectives as text, or at_most=BYTES, or call it in a test's own function"
    )


def test_arguments_without_shardings() -> None:
    bare = jax.ShapeDtypeStruct((16, 16), np.dtype("f4"))
    assert refused(jnp.add, (bare, bare), MESH, "none").render() == (
        "add: error: add is lowered for 1 device, and the mesh x=4 y=2 has 8 [mesh-fit]\n"
        "note: args[0] has no sharding over a mesh: jax.ShapeDtypeStruct(shape, dtype,"
        " sharding=jax.NamedSharding(mesh, jax.P('x')))"
    )


@pytest.mark.parametrize("given", ["none", None, 8])
def test_what_is_no_mesh(given: Any) -> None:
    error = refused(jnp.sin, (), given)
    assert str(error) == (
        f"assert_collectives: error: {given!r} is neither a mesh of JAX nor a mapping from axis to size [bad-mesh]\n"
        "note: as in jax.make_mesh((4, 2), ('x', 'y')), or {'x': 4, 'y': 2}"
    )


class Network:
    def __call__(self, x: Any) -> Any:
        return x.sum()


@pytest.mark.parametrize(
    ("function", "name"), [(Network(), "Network"), (partial(jnp.sum, axis=0), "sum"), (jax.jit(jnp.sum), "sum")]
)
def test_names(mesh: Any, function: Any, name: str) -> None:
    with pytest.raises(AssertionError, match=f"^{name} on cpu, mesh x=4 y=2: "):
        assert_collectives(function, (array(mesh, "x"),), mesh, "none")


def no_such_kernel(x: Any) -> Any:
    return jax.ffi.ffi_call("no_such_kernel", x)(x)


@pytest.mark.parametrize("target", [None, "cpu"])
def test_a_function_that_does_not_compile(mesh: Any, target: str | None) -> None:
    error = refused(no_such_kernel, (array(mesh),), mesh, "none", target=target)
    assert error.diagnostics[0].says() == (
        "no_such_kernel: the compiler of cpu gave up: JaxRuntimeError: NOT_FOUND: No FFI handler registered for"
        " no_such_kernel on a platform Host (canonical host) [target-failed]"
    )


def test_errors_of_the_function_are_its_own(mesh: Any) -> None:
    with pytest.raises(TypeError, match="dot_general"):
        assert_collectives(lambda x: x @ x[:3], (array(mesh),), mesh, "none")


def test_assertions_of_the_function_keep_their_place(mesh: Any) -> None:
    def square(x: Any) -> Any:
        assert x.shape[0] == 8
        return x * x

    with pytest.raises(AssertionError) as caught:
        assert_collectives(square, (array(mesh),), mesh, "none")
    assert caught.traceback[-1].name == "square"


def test_no_such_target(mesh: Any) -> None:
    assert refused(jnp.sin, (array(mesh),), mesh, "none", target="tpu-v4").render() == (
        "--target: error: tpu-v4 says no shape [unknown-target]\nnote: a target is CHIP:SHAPE, as in tpu-v4:4x4x4"
    )
