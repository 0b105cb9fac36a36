"""Random programs in which extents differ from sizes: what `check` accepts compiles, and means one thing everywhere."""

import numpy as np
import pytest
from oracles.extents import Case, random_case
from oracles.torch_blocks import computed

from shardwright.backends.jax.session import run_program
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.backends.validation.validate import validate
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.verification.verifier import Level, verify
from shardwright.passes.pipelines import explicit

SIMULATED, PER_TEST = 120, 20
UNDER_JAX, PER_JAX_TEST = 20, 5

_ABOUT_EXTENTS = ("trips, the declared size", "the declared size, and")


def accepted(case: Case) -> Program | None:
    """The program, or None where the verifier refuses it for a loop or a `size[D]`, the only faults there are."""
    try:
        program = elaborate(parse(Source("random", case.text)))
        verify(program, Level.SURFACE)
    except DiagnosticError as error:
        for diagnostic in error.diagnostics:
            assert any(words in diagnostic.message for words in _ABOUT_EXTENTS), f"{diagnostic}\n{case.text}"
        return None
    return program


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, SIMULATED, PER_TEST))
def test_the_reference_and_the_chips_compute_what_numpy_does(first: int) -> None:
    taken = 0
    for seed in range(first, first + PER_TEST):
        case = random_case(seed)
        program = accepted(case)
        if program is None:
            continue
        taken += 1
        compiled = explicit(program)
        for results in (evaluate(program, "f", case.args)[0], simulate(compiled, "f", case.args).results):
            np.testing.assert_allclose(np.asarray(results, np.float64), case.results, 1e-9, 1e-9, err_msg=case.text)
        assert not validate(program, compiled).skipped
    assert taken >= PER_TEST // 3


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", range(0, UNDER_JAX, PER_JAX_TEST))
def test_jax_and_torch_compute_what_numpy_does(first: int) -> None:
    for seed in range(first, first + PER_JAX_TEST):
        case = random_case(seed)
        program = accepted(case)
        if program is None:
            continue
        args = {name: array.astype(np.float32) for name, array in case.args.items()}
        under_jax, _ = run_program(explicit(program), "f", args)
        under_torch = computed(program, program.func("f"), args)
        for results in (under_jax, under_torch):
            np.testing.assert_allclose(np.asarray(results), case.results, 1e-3, 1e-3, err_msg=case.text)


OPERATIONS = {
    "rotary of a part": "(x: f32 BLD, p: int32) -> f32 BLM { return rename[D -> M](rotary[D](take[D 0:4](x), p)) }",
    "rotary along a part": "(x: f32 BLD, p: int32) -> f32 B { return sum[LD](rotary[D, seq=L](take[L 2:8](x), p)) }",
    "a split of what was joined": "(x: f32 BK) -> f32 BKG { return split[H -> KG](rename[K -> H](concat[K](x, x))) }",
    "a merge of a part": "(x: f32 BKG) -> f32 B { return sum[H](merge[KG -> H](take[K 0:2](x))) }",
    "a lookup in a part": "(t: f32 VE, i: int32 BL) -> f32 BE { return sum[L](lookup[V](take[V 3:9](t), i)) }",
    "a lookup round and round": "(t: f32 VE, i: int32 B) -> f32 BE { return lookup[V, wrap=true](concat[V](t, t), i) }",
    "an update of a part": "(k: f32 BTE, n: f32 BLE, p: int32) -> f32 BE "
    "{ return sum[T](update[T, wrap=true](take[T 0:10](k), n, p)) }",
    "keys and queries in parts": "(s: f32 BLT, p: int32) -> f32 BM "
    "{ return rename[L -> M](sum[T](softmax[T, causal=L](take[L 0:4](take[T 0:8](s)), p))) }",
    "a window": "(s: f32 BLT) -> f32 BL { return sum[T](softmax[T, causal=L, window=3](concat[T](s, s))) }",
    "a norm over two dimensions": "(s: f32 BHD) -> f32 BHD { return layernorm[HD](s) }",
    "a norm over a part": "(s: f32 BE, g: f32 E) -> f32 B "
    "{ return sum[E](layernorm[E](take[E 0:4](s), take[E 4:8](g))) }",
    "a size of its own": "[L=4](x: f32 BL) -> f32 B { y = loop[L](h: f32 B = 0.0) { next h + x }\nreturn y / size[L] }",
    "a name of its own": "(x: f32 BL) -> f32 B { c = rename[L -> W](concat[L](x, x))\n"
    "y = loop[W](h: f32 B = 0.0) { next h + c }\n return y / size[W] }",
    "blocks": "(x: f32 BE_xy, z: f32 BE_xy) -> f32 BE_xy { c: f32 BE_xy = concat[E, by=xy](x, z)\n"
    "a: f32 BE_xy = take[E 8:24, by=xy](c)\n return a }",
    "the best of each block": "(x: f32 BV_xy) -> f32 B { v: f32 BM_xy, i: int32 BM_xy = topk[V -> M, k=4, by=xy](x)\n"
    "return sum[M](v) }",
    "a loop in a loop": "(x: f32 NKB) -> f32 B { y = loop[N](h: f32 B = 0.0) { a = x * 2\n"
    "z = loop[K](g: f32 B = h) { next g + a }\n next z }\n return y }",
    "the declared size after a part and its return": "(q: f32 BD, k: f32 TD) -> f32 BT "
    "{ h = take[D 0:4](q)\n return (concat[D](h, h) @[D] k) / size[D] }",
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_compute_with_extents(name: str) -> None:
    head = "mesh x=2 y=2\ndim N=4 B=4 L=8 T=16 E=16 H=8 K=4 G=2 D=8 V=12 M=4 W=16\n"
    program = elaborate(parse(Source(name, f"{head}func f{OPERATIONS[name]}")))
    compiled, given = explicit(program), random_inputs(program, "f", 0)
    wanted, _ = evaluate(program, "f", given.args)
    on_chips = simulate(compiled, "f", given.args).results
    under_jax, _ = run_program(compiled, "f", given.args)
    for found, tolerance in ((on_chips, 1e-9), (under_jax, 1e-4)):
        np.testing.assert_allclose(np.asarray(found[0]), wanted[0], tolerance, tolerance)
    assert not validate(program, compiled).skipped


@pytest.mark.parametrize("result", ["DT", "DT_xy"])
def test_two_extents_of_a_dimension_are_split_over_axes_that_do_not_divide_each_other(result: str) -> None:
    text = f"""
        mesh x=4 y=2
        dim T=16 D=3 E=3
        func f(x: f32 DT, at: int32 E) -> (f32 {result}, int32) {{
          part: int32 T_y = rename[E -> T](take[E 0:2](at))
          split: f32 DT_x = x * 2
          moved: f32 {result} = split
          return moved, sum[T](part)
        }}"""
    program = elaborate(parse(Source("extents", text)))
    assert not validate(program, explicit(program)).skipped
