"""The verdict on a function: what it names has been compiled, leads to what it says, and changes nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Outcome
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from oracles.jax_functions import FUNCTIONS
from tracing.test_optimizing import SIZES, received, sharded

from shardwright import advise, explain
from shardwright.explaining.advising import SuggestedConstraint
from shardwright.tracing.capture_jax import evaluate_inlined
from shardwright.tracing.trace import user_module


@pytest.fixture(scope="module")
def mesh() -> Any:
    return jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["causal_convolution", "closed_over", "greedy", "label_smoothing", "custom_gradient"])
def test_fixes_are_what_they_say(name: str, mesh: Any) -> None:
    function, args = FUNCTIONS[name]
    args = sharded(args, mesh, 1)
    verdict = advise(function, args, mesh, target=None)
    assert verdict.received_bytes == received(function, args, mesh)
    assert verdict.fixed_bytes <= verdict.received_bytes
    assert bool(verdict.fixes) == (verdict.fixed_bytes < verdict.received_bytes)
    assert all(fix.saved_bytes > 0 for fix in verdict.fixes)
    least = verdict.received_bytes <= verdict.least_bytes
    assert not (least and (verdict.fixes or verdict.collectives))
    assert repr(verdict).endswith("nothing is known to be avoidable") is least
    for each in verdict.collectives:
        assert each.bytes_received > 0


def test_a_function_with_constraints_computes_the_same(mesh: Any) -> None:
    """And the bytes are those of the plain function written with the line that was named."""
    function, args = FUNCTIONS["greedy"]
    args = sharded(args, mesh, 1)
    verdict = advise(function, args, mesh)
    (fix,) = verdict.fixes
    spec = eval(fix.spec, {"P": P})
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)

    def pasted(*given: Any) -> Any:
        first = jax.lax.with_sharding_constraint(given[0], NamedSharding(mesh, spec)) if fix.source == "" else given[0]
        results = evaluate_inlined(closed, jax.tree.leaves((first, *given[1:])), lambda _, value: value)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    for plain, again in zip(jax.tree.leaves(function(*args)), jax.tree.leaves(pasted(*args)), strict=True):
        np.testing.assert_allclose(np.asarray(plain), np.asarray(again), rtol=1e-6, atol=1e-6)


def scanned(mesh: Any, spec: Any = None) -> Any:
    """Layers of which each sums over the chips that hold parts of its first weight, unless that is laid out as the
    constraint says, which stands where the body begins."""

    def function(weights: Any, x: Any) -> Any:
        def body(h: Any, layer: Any) -> Any:
            up = layer["up"]
            if spec is not None:
                up = jax.lax.with_sharding_constraint(up, NamedSharding(mesh, spec))
            return h + jax.nn.relu(h @ up) @ layer["down"], None

        return jax.lax.scan(body, x, weights)

    return function


def test_fixes_within_the_body_of_a_scan(mesh: Any) -> None:
    """They are of all trips, and pasted they give what was counted."""

    def array(shape: tuple[int, ...], *axes: Any) -> Any:
        return jax.device_put(jnp.ones(shape), NamedSharding(mesh, P(*axes)))

    weights = {"up": array((4, 64, 256), None, "model"), "down": array((4, 256, 64), None, "model")}
    args = (weights, array((16, 8, 64), "data"))
    verdict = advise(scanned(mesh), args, mesh, target=None)
    assert verdict.received_bytes == received(scanned(mesh), args, mesh)
    assert {each.trips for each in verdict.collectives} == {4}
    (fix,) = verdict.fixes
    assert fix.pasted == (
        "jax.lax.with_sharding_constraint(layer['up'], P(None, 'model'))  # in the place of layer['up']"
    )
    assert fix.begins_body
    assert f"{fix.place}: jax.lax" in repr(verdict)
    assert fix.place.endswith(", where its body begins")
    assert Path(__file__).read_text().splitlines()[int(fix.source.rpartition(":")[2]) - 1].strip() == (
        "return jax.lax.scan(body, x, weights)"
    )
    assert received(scanned(mesh, P(None, "model")), args, mesh) == verdict.fixed_bytes < verdict.received_bytes
    assert fix.saved_bytes == verdict.received_bytes - verdict.fixed_bytes


def array(mesh: Any, shape: tuple[int, ...], *axes: Any) -> Any:
    return jax.device_put(jnp.full(shape, 0.01), NamedSharding(mesh, P(*axes)))


def line_of(text: str) -> int:
    """The number of the first line of this file that has this text."""
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.strip() == text)


def unrolled(mesh: Any, spec: Any = None) -> Any:
    """Layers that Python writes one after the other."""

    def function(x: Any, layers: Any) -> Any:
        for w, v in layers:
            h = jnp.tanh(x @ w)
            if spec is not None:
                h = jax.lax.with_sharding_constraint(h, NamedSharding(mesh, spec))
            x = h @ v
        return x

    return function


def test_one_line_serves_all_layers_of_a_loop_in_python(mesh: Any) -> None:
    """It is pasted once, so it is measured on the value of each layer."""
    layers = [(array(mesh, (128, 256), "data"), array(mesh, (256, 128), "data", "model")) for _ in range(2)]
    args = (array(mesh, (64, 128), "data"), layers)
    verdict = advise(unrolled(mesh), args, mesh, target=None)
    assert verdict.received_bytes == received(unrolled(mesh), args, mesh)
    (fix,) = verdict.fixes
    assert fix.times == 2
    assert fix.place.endswith(f"test_advising.py:{line_of('h = jnp.tanh(x @ w)')}, all 2 times that it runs")
    assert fix.pasted == f"h = jax.lax.with_sharding_constraint(h, {fix.spec})"
    pasted = received(unrolled(mesh, eval(fix.spec, {"P": P})), args, mesh)
    assert pasted == verdict.fixed_bytes < verdict.received_bytes


def called(h: Any, layer: Any) -> Any:
    return h + jax.nn.relu(h @ layer["up"]) @ layer["down"]


def test_arguments_of_all_layers_have_one_line(mesh: Any) -> None:
    def function(layers: Any, h: Any) -> Any:
        for layer in layers:
            h = called(h, layer)
        return h

    def pasted(layers: Any, h: Any) -> Any:
        spec = NamedSharding(mesh, P(None, "model"))
        layers = [{**each, "up": jax.lax.with_sharding_constraint(each["up"], spec)} for each in layers]
        return function(layers, h)

    layers = [{"up": array(mesh, (64, 256), "model"), "down": array(mesh, (256, 64), "model")} for _ in range(2)]
    args = (layers, array(mesh, (16, 8, 64), "data"))
    verdict = advise(function, args, mesh, target=None)
    (fix,) = verdict.fixes
    assert fix.pasted == (
        "jax.lax.with_sharding_constraint(layers[i]['up'], P(None, 'model'))"
        "  # in the place of layers[i]['up'], i = 0, 1"
    )
    assert fix.place == "at the beginning"
    assert (fix.times, fix.numbers) == (2, (0, 1))
    assert (
        received(pasted, args, mesh) == verdict.fixed_bytes < verdict.received_bytes == received(function, args, mesh)
    )


def test_fixes_within_the_body_of_a_while(mesh: Any) -> None:
    def with_product(spec: Any = None) -> Any:
        def function(up: Any, down: Any, x: Any) -> Any:
            def body(state: Any) -> Any:
                i, h = state
                product = jax.nn.relu(h @ up) @ down
                if spec is not None:
                    product = jax.lax.with_sharding_constraint(product, NamedSharding(mesh, spec))
                return i + 1, h + product

            return jax.lax.while_loop(lambda state: state[0] < 4, body, (0, x))[1]

        return function

    args = (array(mesh, (64, 256), "model"), array(mesh, (256, 64), "model"), array(mesh, (16, 8, 64), "data"))
    verdict = advise(with_product(), args, mesh, target=None)
    assert {each.trips for each in verdict.collectives} == {4}
    (fix,) = verdict.fixes
    assert (fix.own_name, fix.times) == ("product", 1)
    assert fix.source.endswith(f":{line_of('product = jax.nn.relu(h @ up) @ down')}")
    spec = eval(fix.spec, {"P": P})
    assert received(with_product(spec), args, mesh) == verdict.fixed_bytes < verdict.received_bytes


def test_layers_that_the_trace_puts_into_a_loop(mesh: Any) -> None:
    """The program has one layer where the function has two, and a constraint is on both."""
    from shardwright import trace

    random = np.random.default_rng(0)
    layers = [(jnp.asarray(random.normal(size=(64, 256)), jnp.float32),
               jnp.asarray(random.normal(size=(256, 64)), jnp.float32)) for _ in range(2)]  # fmt: skip

    def function(x: Any) -> Any:
        return unrolled(mesh)(x, layers)

    args = (array(mesh, (64, 64), None, "model"),)
    assert "loop[" in trace(function, args).text
    verdict = advise(function, args, mesh, target=None)
    assert verdict.received_bytes == received(function, args, mesh)
    assert all(fix.saved_bytes > 0 for fix in verdict.fixes)
    assert verdict.fixed_bytes <= verdict.received_bytes


def test_layers_of_several_widths_of_which_a_constraint_divides_some(mesh: Any) -> None:
    """One that the compiler refuses is no fix, and no error."""
    layers = [(array(mesh, (128, n)), array(mesh, (n, 128), None, "model")) for n in (256, 129)]
    args = (array(mesh, (64, 128), "data"), layers)
    verdict = advise(unrolled(mesh), args, mesh, target=None)
    assert verdict.fixed_bytes <= verdict.received_bytes == received(unrolled(mesh), args, mesh)


@pytest.mark.parametrize("in_loops", [False, True])
def test_inlining_keeps_loops_branches_and_calls(in_loops: bool) -> None:
    def function(x: Any, flag: Any) -> Any:
        def body(carry: Any, each: Any) -> Any:
            return carry + jnp.tanh(each), carry

        total, parts = jax.lax.scan(body, x[0], x)
        total = jax.lax.while_loop(lambda s: s.sum() < x.sum() + 40, lambda s: s + jnp.abs(x[1]) + 1, total)
        chosen = jax.lax.cond(flag, lambda a: a * 2, lambda a: a - 1, total)
        return {"sum": jax.nn.relu(chosen), "parts": jax.jit(jnp.sort)(parts)}

    args = (np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), np.bool_(True))
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    seen: list[Any] = []
    results = evaluate_inlined(
        closed, list(args), lambda variable, value: (seen.append(variable), value)[1], in_loops=in_loops
    )
    made = jax.tree.unflatten(jax.tree.structure(shapes), results)
    jax.tree.map(np.testing.assert_array_equal, made, function(*args))
    assert len(seen) > 5


MODEL = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))


def layer(x, w, v):
    h = jnp.tanh(x @ w)
    return h @ v


def example_args():
    specs = [((64, 128), P("data")), ((128, 256), P("data")), ((256, 128), P("data", "model"))]
    return [jax.ShapeDtypeStruct(s, jnp.float32, sharding=jax.NamedSharding(mesh, spec)) for s, spec in specs]
"""


def test_the_command(tmp_path: Path, shardwright: Callable[..., Outcome]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    got = shardwright("explain", f"{tmp_path}/model.py:layer", "--json")
    assert got.status == 0, got.err
    made = json.loads(got.out)
    verdict = made["verdict"]
    assert list(verdict) == [
        "function", "received_bytes", "least_bytes", "is_proved", "least_time_s", "chip", "fixed_bytes", "expect",
        "collectives", "fixes",
    ]  # fmt: skip
    assert verdict["received_bytes"] == made["functions"][0]["bytes_received"]
    assert (verdict["received_bytes"], verdict["least_bytes"], verdict["fixed_bytes"]) == (98_304, 38_912, 57_344)
    (fix,) = verdict["fixes"]
    assert list(fix) == ["value", "spec", "source", "saved_bytes", "begins_body", "times", "line"]
    assert fix["line"] == "h = jax.lax.with_sharding_constraint(h, P(None, 'data'))"
    assert (fix["source"], fix["saved_bytes"]) == (f"{tmp_path}/model.py:10", 40_960)
    told = shardwright("explain", f"{tmp_path}/model.py:layer").out
    assert f"layer: a chip receives {verdict['received_bytes'] / 1000:.3g} kB as compiled" in told
    wrong = shardwright("explain", "model.shard", "--args", "model.py:args")
    assert (wrong.status, "--args goes with FILE.py:FUNCTION" in wrong.err) == (2, True)


def test_what_has_no_name_in_the_file_is_said() -> None:
    within = SuggestedConstraint("select_n", "", "P('data')", "f.py:3", 64)
    assert within.pasted == (
        "jax.lax.with_sharding_constraint(..., P('data'))  # of what select_n gives within the line"
    )
    named = SuggestedConstraint("product", "h", "P('data')", "f.py:3", 64)
    assert named.pasted == "h = jax.lax.with_sharding_constraint(h, P('data'))"


def test_the_line_that_is_suggested_runs_there(tmp_path: Path) -> None:
    """It names axes alone, of the mesh that the arguments lie on."""
    line = "    h = jax.lax.with_sharding_constraint(h, P(None, 'data'))\n    return h @ v"
    (tmp_path / "model.py").write_text(MODEL.replace("    return h @ v", line))
    model = user_module(f"{tmp_path}/model.py")
    (func,) = explain(model.layer, "cpu", args=model.example_args()).functions
    assert func.bytes_received == 57_344


def test_faults_and_errors_of_a_function(tmp_path: Path, shardwright: Callable[..., Outcome]) -> None:
    """A sum that is still to be made is told beside what has no verdict, what the function raises with its place."""
    body = "lambda x, w: jnp.tanh(x @ w)"
    specs = "in_specs=(P('data', 'model'), P('model')), out_specs=P('data'), check_vma=False"
    text = MODEL.replace(
        "    h = jnp.tanh(x @ w)\n    return h @ v", f"    return jax.shard_map({body}, mesh=mesh, {specs})(x, w)"
    )
    laid = text.replace('((64, 128), P("data"))', '((64, 128), P("data", "model"))')
    (tmp_path / "model.py").write_text(laid.replace('((128, 256), P("data"))', '((128, 256), P("model"))'))
    got = shardwright("explain", f"{tmp_path}/model.py:layer")
    assert got.status == 1
    assert re.search(
        r"model.py:10: error: layer: %\S+ tanh uses a sum over model as whole,.*\[wrong-partition\]", got.err
    )
    (tmp_path / "model.py").write_text(MODEL.replace("jnp.tanh(x @ w)", "jnp.tanh(w @ x)"))
    got = shardwright("explain", f"{tmp_path}/model.py:layer")
    assert got.status == 1
    assert got.err.startswith(f"{tmp_path}/model.py:10:5: error: JAX cannot trace layer at its example arguments: Typ")


def test_a_function_without_a_verdict(tmp_path: Path, shardwright: Callable[..., Outcome]) -> None:
    """The function as compiled is shown, and why the least is not known."""
    loop = "jax.lax.while_loop(lambda h: h.sum() < 1e4, jnp.exp, jnp.tanh(x @ w))"
    (tmp_path / "model.py").write_text(MODEL.replace("jnp.tanh(x @ w)", loop))
    got = shardwright("explain", f"{tmp_path}/model.py:layer")
    assert got.status == 1
    assert "all_gather" in got.out
    assert "while runs until a condition holds" in got.err


def test_what_stays_where_it_is_has_to_be_said_too(mesh: Any) -> None:
    """The best program carries blocks through the loop that no statement moves: naming them saves most of it."""

    def laid(shape: tuple[int, ...], *axes: str | None) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))

    def layers(spec: Any = None) -> Any:
        def run(ws: Any, x: Any) -> Any:
            def layer(x: Any, w: Any) -> Any:
                if spec is not None:
                    x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
                h = jnp.tanh(x @ w[0])
                return x + h @ w[1], None

            return jax.lax.scan(layer, x, ws)[0]

        return run

    args = (laid((6, 128, 512), None, "data"), laid((6, 512, 128), None, "data")), laid((64, 128), "data")
    verdict = advise(layers(), args, mesh, target=None)
    (fix,) = verdict.fixes
    assert fix.pasted == "x = jax.lax.with_sharding_constraint(x, P('model', 'data'))"
    assert fix.begins_body
    assert received(layers(P("model", "data")), args, mesh) == verdict.fixed_bytes < verdict.received_bytes / 5


def test_arguments_of_a_function_with_complex_values() -> None:
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

    def spectral(w: Any, x: Any) -> Any:
        return jnp.fft.irfft(jnp.fft.rfft(x) * (1 + 1j)) @ w

    def laid(shape: tuple[int, ...], *axes: str | None) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))

    verdict = advise(spectral, (laid((64, 8)), laid((16, 64), None, "data")), mesh, target=None)
    assert all(not fix.source for fix in verdict.fixes)
    assert verdict.fixed_bytes <= verdict.received_bytes
