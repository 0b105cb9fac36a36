"""Gradients through emitted modules: of every operation that has one, over split dimensions, and of the examples."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from oracles import example_programs
from oracles.elementwise import OPERANDS, call
from oracles.gradients import check_gradients
from oracles.random_programs.texts import SMOOTH, random_program
from program_text import program

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.jax.session import run_program
from shardwright.ir.elaboration.builders import BUILDERS
from shardwright.ir.ops.elementwise_table import ENTRIES, Entry
from shardwright.passes.pipelines import explicit

ONE = "a: f32 B_xE_y"
TWO = "a: f32 B_xE_y, b: f32 B_xE_y"


def elementwise(entry: Entry) -> tuple[str, str, str]:
    """The operation with its last operand in its domain."""
    params = [
        f"{name}: {'bool' if takes == 'bool' else 'f32'} B_xE_y"
        for name, takes in zip(OPERANDS, entry.takes, strict=False)
    ]
    last = OPERANDS[len(entry.takes) - 1]
    inside = last if entry.domain[0] == -math.inf else f"(1 + {last} * {last})"
    return ", ".join(params), re.sub(rf"\b{last}\b", inside, call(entry)), "f32 B_xE_y"


CASES: dict[str, tuple[str, str, str]] = {
    f"{entry.keyword} {entry.form}".strip(): elementwise(entry) for entry in ENTRIES if entry.differentiable
} | {
    # operation: parameters, expression, result
    "@": ("a: f32 B_xE_y, w: f32 E_yF", "a @ w", "f32 BF_x"),
    "@ batched": ("a: f32 B_xE_y, w: f32 B_xE_yF", "a @[E] w", "f32 B_xF_y"),
    "convert": (ONE, "convert[f32](a)", "f32 B_xE_y"),
    "sum": (ONE, "sum[BE](a)", "f32"),
    "max": (ONE, "max[E](a)", "f32 B_x"),
    "max of all": (ONE, "max[BE](a)", "f32"),
    "max behind a function": (ONE, "exp(max[E](a))", "f32 B"),
    "cumsum": (ONE, "cumsum[E](a)", "f32 B_xE_y"),
    "softmax": (ONE, "softmax[E](a)", "f32 B_xE_y"),
    "softmax causal": (ONE, "softmax[E, causal=B](a)", "f32 B_xE_y"),
    "attend": ("q: f32 B_xLHD, k: f32 B_xTD", "attend[T, D, causal=L](q, k, k, pos=1)", "f32 B_xLHD"),
    "attend over a split cache": ("q: f32 BLHD, k: f32 BT_xD", "attend[T, D, softcap=2](q, k, k)", "f32 B_xLHD"),
    "join_attention": ("q: f32 BLHD, k: f32 BTD", "attend_o + attend_s", "f32 BLHD"),
    "layernorm": (f"{ONE}, g: f32 E_y, o: f32 E", "layernorm[E](a, g, o)", "f32 B_xE_y"),
    "rmsnorm": (f"{ONE}, g: f32 E_y", "rmsnorm[E](a, g)", "f32 B_xE_y"),
    "grouped": ("a: f32 B_xE, w: f32 VE_yF, i: int32 BL", "grouped[V, E](a, w, i)", "f32 BLF"),
    "grouped split": ("a: f32 B_xE, w: f32 V_xEF_y, i: int32 BL", "grouped[V, E](a, w, i)", "f32 BLF_y"),
    "lookup": ("t: f32 V_xE_y, i: int32 B", "lookup[V](t, i)", "f32 BE_y"),
    "rotary": ("a: f32 B_xLD_y", "rotary[D](a, 3)", "f32 B_xLD_y"),
    "update": ("c: f32 BT_xE_y, n: f32 BLE_y, p: int32", "update[T](c, n, p)", "f32 BT_xE_y"),
    "take": ("a: f32 B_xE_y", "rename[E -> F](take[E 2:6](a))", "f32 B_xF"),
    "concat": (TWO, "take[E 4:12](concat[E](a, b))", "f32 B_xE"),
    "rename": ("a: f32 B_xE_y", "rename[E -> D](a)", "f32 B_xD_y"),
    "split": ("a: f32 B_xH_y", "split[H -> KG](a)", "f32 B_xK_yG"),
    "merge": ("a: f32 B_xK_yG", "merge[KG -> H](a)", "f32 B_xH_y"),
    "topk": ("a: f32 BV_y", "sum[C](topk_values)", "f32 B"),
    "all_gather": (ONE, "a * a", "f32 BE"),
    "all_to_all": ("a: f32 B_xE", "a * a", "f32 BE_x"),
    "permute": ("a: f32 BE_x, b: f32 BE_y", "a * b", "f32 BE_x"),
    "slice": ("a: f32 BE", "a * a", "f32 B_xE_y"),
    "reduce_scatter": ("a: f32 B_xE_y, w: f32 E_yF", "a @ w", "f32 B_xF_y"),
}

NO_GRADIENT = {"argmax", "bitcast", "full", "iota", "uniform"} | {
    entry.keyword for entry in ENTRIES if not entry.differentiable
}
"""Operations with integer or boolean results, or without a float operand."""

ELSEWHERE = {"all_reduce", "as_partial", "foreign", "roll", "fetch", "prefetch", "store", "wait"}
"""Movements that the passes insert: those of `sum` and of the cases below; `foreign`, below, is not in float64."""

HEAD = "mesh x=2 y=2\ndim B=4 E=8 F=4 L=2 D=8 T=8 V=8 H=8 K=4 G=2 C=2\n"


BEFORE = {
    "topk": "  topk_values, ids = topk[V -> C, k=2](a)\n",
    "join_attention": """
  o1, s1 = attend[T, D, lse](q, take[T 0:3](k), take[T 0:3](k))
  o2, s2 = attend[T, D, lse](q, take[T 3:8](k), take[T 3:8](k), length=2)
  attend_o, attend_s = join_attention(o1, s1, o2, s2)
""",
}
"""Statements before the expression."""


def together(cases: Sequence[str]) -> str:
    """A function of several cases, each with inputs of its own, by whose names a fault is told."""
    params, body, results, returned = list[str](), "", list[str](), list[str]()
    for case in cases:
        given, expression, result = CASES[case]
        name = re.sub(r"\W+", "_", f"{list(CASES).index(case)} {case}").strip("_")
        operands = "|".join(re.findall(r"(\w+): ", given))

        def named(text: str, operands: str = operands, name: str = name) -> str:
            return re.sub(rf"\b({operands})\b", rf"\1_of_{name}", text)

        params.append(re.sub(r"(\w+): ", rf"\1_of_{name}: ", given))
        before = BEFORE.get(case, "")
        body += f"{named(before) if case != 'topk' else before.replace('(a)', f'(a_of_{name})')}"
        body += f"  y_of_{name}: {result} = {named(expression)}\n"
        results.append(result)
        returned.append(f"y_of_{name}")
    kinds = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"{HEAD}func f({', '.join(params)}) -> {kinds} {{\n{body}  return {', '.join(returned)}\n}}\n"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("group", range(6))
def test_gradients_of_operations(group: int) -> None:
    """Every sixth of them in one module, which takes hardly longer than one alone."""
    check_gradients(program(together(list(CASES)[group::6])))


def test_every_operation_is_tried_or_has_none() -> None:
    tried = {case.split()[0] for case in CASES}
    assert tried | NO_GRADIENT | ELSEWHERE >= set(BUILDERS)
    assert not tried & NO_GRADIENT


OTHERS = {
    "a ring": """
        mesh x=2
        dim B=4 E=8
        func f(a: f32 B_xE, b: f32 B_xE) -> f32 B_xE {
          c: f32 B_xE = roll[x, over=B](a)
          return c * b
        }""",
    "a loop over layers with state": """
        mesh x=2 y=2
        dim N=3 B=4 T=4 E=8 F=8
        weights {
          w: f32 NE_xF_y
          v: f32 NF_yE_x
        }
        state {
          k: f32 NB_yTE_x
          pos: int32
        }
        func f(h0: f32 BE_x) -> f32 BE_x {
          y: f32 BE_x = loop[N](h: f32 BE_x = h0) {
            set k = update[T](k, h, pos)
            p = softmax[T](h @[E] k)
            next h + (p @[T] k) + tanh(h @ w) @[F] v
          }
          return y
        }""",
    "a partial maximum that is scattered": """
        mesh x=2 y=2
        dim B=4 E=8
        func f(a: f32 BE_xy) -> f32 B_xy { return tanh(max[E](a)) }
        """,
    "weights on the host": """
        mesh x=2
        dim N=2 B=4 E=8
        weights { w: f32 NE_xE2 on host }
        dim E2=8
        func f(h0: f32 BE_x) -> f32 BE_x {
          y: f32 BE_x = loop[N](h: f32 BE_x = h0) { next rename[E2 -> E](tanh(h @ w)) }
          return y
        }""",
}


@pytest.mark.parametrize("case", OTHERS)
def test_gradients_of_programs(case: str) -> None:
    check_gradients(program(OTHERS[case]))


SMALL = [name for name in example_programs.NAMES if "--mesh" in example_programs.text(name)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_examples(name: str) -> None:
    check_gradients(example_programs.in_format(example_programs.load(name, example_programs.small(name)), "f32"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [0, 2, 3, 7, 10, 17, 21])
def test_gradients_of_random_programs(seed: int) -> None:
    check_gradients(program(random_program(seed, SMOOTH)), seed)


def test_equal_maxima_share_the_gradient() -> None:
    import jax

    library: Any = jax
    module = load_module(emit(explicit(program("mesh x=4\ndim E=4\nfunc f(a: f32 E_x) -> f32 { return max[E](a) }"))))
    f = module.build_f(module.make_mesh())
    assert library.grad(f)(library.numpy.asarray([1.0, 3.0, 3.0, 2.0])).tolist() == [0.0, 0.5, 0.5, 0.0]


def test_a_function_of_jax_has_the_gradient_that_jax_gives_it() -> None:
    import jax

    library: Any = jax
    jnp: Any = library.numpy
    called = "foreign[cumprod, BE, f32, splits=B, params='{\"axis\": 1}'](2 * a)"
    text = f"mesh x=2\ndim B=4 E=6\nfunc f(a: f32 B_xE) -> f32 B_xE {{ return {called} * a }}"
    module = load_module(emit(explicit(program(text))))
    built = module.build_f(module.make_mesh())
    a = jnp.asarray(np.random.default_rng(0).standard_normal((4, 6)), jnp.float32)

    def total(f: Any) -> Any:
        def of(a: Any) -> Any:
            return (f(a) * jnp.arange(24.0).reshape(4, 6)).sum()

        return library.jit(library.grad(of))(a)

    np.testing.assert_allclose(total(built), total(lambda a: jnp.cumprod(2 * a, 1) * a), rtol=1e-5, atol=1e-5)


TRANSFORMED = """
mesh x=2 y=2
dim B=4 E=8 F=8
func f(a: f32 B_xE, w: f32 EF_y, v: f32 F_yE) -> f32 B_xE { return softmax[E](tanh(a @ w) @ v) }
"""


def test_transformations_of_jax() -> None:
    """jit, vmap, remat, forward mode and second derivatives, of a built function beside plain jax.numpy."""
    import jax

    library: Any = jax
    jnp: Any = library.numpy
    module = load_module(emit(explicit(program(TRANSFORMED))))
    rng = np.random.default_rng(0)
    a, w, v = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((4, 8), (8, 8), (8, 8)))
    both = jnp.stack([a, 2 * a])

    def plain(a: Any, w: Any, v: Any) -> Any:
        return library.nn.softmax(jnp.tanh(a @ w) @ v)

    def uses(f: Any) -> list[Any]:
        def doubled(a: Any) -> Any:
            return 2 * f(a, w, v)

        def squares_of_inputs(a: Any) -> Any:
            return (f(a, w, v) ** 2).sum()

        def squares(w: Any) -> Any:
            return (f(a, w, v) ** 2).sum()

        def squares_again(w: Any) -> Any:
            return (library.checkpoint(f)(a, w, v) ** 2).sum()

        def of_weights(w: Any) -> Any:
            return f(a, w, v)

        def of_gradients(w: Any) -> Any:
            return (library.grad(squares)(w) ** 2).sum()

        return [
            library.jit(doubled)(a),
            library.vmap(f, (0, None, None))(both, w, v),
            library.vmap(library.grad(squares_of_inputs))(both),
            library.grad(squares_again)(w),
            library.jvp(of_weights, (w,), (w,))[1],
            library.grad(of_gradients)(w),
        ]

    def compiled(f: Any) -> Any:
        return library.jit(lambda: uses(f))()

    every = compiled(plain)
    for found, wanted in zip(compiled(module.build_f(module.make_mesh())), every, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)
    explicit_axes = library.make_mesh((2, 2), ("x", "y"), devices=library.devices()[:4])
    with library.set_mesh(explicit_axes):
        for found, wanted in zip(compiled(module.build_f(explicit_axes)), every, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


NAN = {
    "max over a split dimension": ("f32", "max[E](a)", "f32 B"),
    "max in bf16": ("bf16", "max[E](a)", "bf16 B"),
    "argmax over a split dimension": ("f32", "argmax[E](a)", "int32 B"),
    "softmax over a split dimension": ("f32", "softmax[E](a)", "f32 BE_x"),
}


@pytest.mark.parametrize("case", NAN)
def test_nan_and_infinities(case: str) -> None:
    """NaN is the greatest of all, as in numpy, whichever chip holds it; its first place is where it is greatest."""
    dtype, expression, result = NAN[case]
    text = f"mesh x=4\ndim B=8 E=8\nfunc f(a: {dtype} BE_x) -> {result} {{ return {expression} }}"
    a = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    a[0, 0] = a[1, 3] = a[2, 7] = a[3, 2] = a[3, 5] = np.nan
    a[4, 6], a[5, 1], a[6] = np.inf, -np.inf, -np.inf
    a[3, 0], a[7, 2], a[7, 5] = np.inf, 0.0, -0.0
    a[7] = -np.abs(a[7])
    (found,), _ = run_program(explicit(program(text)), "f", {"a": a})
    with np.errstate(invalid="ignore"):
        weights = np.exp(a - a.max(1, keepdims=True))
    wanted = {"max": a.max(1), "argmax": a.argmax(1), "softmax": weights / weights.sum(1, keepdims=True)}
    tolerance = 1e-2 if dtype == "bf16" else 1e-6
    np.testing.assert_allclose(
        np.asarray(found, np.float64), wanted[re.split(r"\W", expression)[0]], rtol=tolerance, atol=0
    )
