"""The orders in which weights lie on TPUs: which weights have one, what modules then do, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from program_text import program

from shardwright.backends.jax.edges import ProgramEdges
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import abstract_arguments, load_module
from shardwright.backends.jax.weight_orders import weight_orders
from shardwright.backends.targets.names import parse_target
from shardwright.passes.pipelines import explicit

TPU = parse_target("tpu-v5e:2x2").forms
HEAD = "mesh x=2 y=2\ndim N=3 M=2 B=8 L=2 E=16 F=32 K=4 G=6 D=128 H=16 A=20\n"


def orders(weights: str, func: str) -> dict[str, tuple[int, ...]]:
    made = explicit(program(f"{HEAD}weights {{ {weights} }}\n{func}\n"))
    return weight_orders(made, ProgramEdges(made), TPU.tile)


QUERIES = "func f(h: BE) -> BK_yGD { return h @ wq }"


@pytest.mark.parametrize(
    ("weights", "func", "expected"),
    [
        ("wq: EK_yGD", QUERIES, {"wq": (1, 2, 0, 3)}),
        (
            "wq: NEK_yD\n wo: NK_yDE",
            "func f(h: BE) -> BE { y: BE = loop[N](a = h) { q = a @[E] wq\n b = q @[KD] wo\n next b }\n return y }",
            {"wq": (0, 2, 1, 3)},
        ),
        ("wq: E_xK_yGD", "func f(h: BE) -> BK_yGD { w: EK_yGD = wq\n return h @ w }", {"wq": (1, 2, 0, 3)}),
        ("wq: AK_yD", "func f(h: BE) -> BK_yD { return h @[E] take[E 0:16](rename[A -> E](wq)) }", {}),
        ("wq: HK_yD", "func f(h: BE) -> BK_yD { return h @[E] rename[H -> E](wq) }", {"wq": (1, 0, 2)}),
        ("wq: int8 EK_yGD", QUERIES.replace("wq }", "convert[bf16](wq) }"), {"wq": (1, 2, 0, 3)}),
        # Several summed dimensions, which lie in the weight's order; a name that another loop uses for something else.
        ("w: EHK_yD", "func f(h: BEH) -> BK_yD { return h @[HE] w }", {"w": (2, 0, 1, 3)}),
        ("w: EGK_yD", "func f(h: BEG) -> BK_yD { return h @[GE] w }", {}),
        (
            "wq: NE_xK_yD\n u: FK",
            "func f(h: BE, g: AF) -> (BK_yD, AF) {\n"
            " y: BK_yD = loop[N](a: BK_yD = h @[E] take[N, 0](wq)) { w: EK_yD = wq\n next a + h @[E] w }\n"
            " z: AF = loop[M](w: AF = g) { k: AK = w @[F] u\n next k @[K] u }\n return y, z }",
            {"wq": (0, 2, 1, 3)},
        ),
        # A matrix, which lies right; what is summed last; one head on each chip; rows that are no whole lanes.
        ("w: EF_y", "func f(h: BE) -> BF_y { return h @ w }", {}),
        ("wo: K_yGDE", "func f(o: BK_yGD) -> BE { return o @ wo }", {}),
        ("wq: EK_xyD", "func f(h: BE) -> BK_xyD { return h @ wq }", {}),
        ("wq: EK_yGH", "func f(h: BE) -> BK_yGH { return h @ wq }", {}),
        # On the host; read by something else besides; by products that want different orders.
        ("wq: EK_yGD on host", QUERIES, {}),
        ("wq: EK_yGD", "func f(h: BE) -> BK_yGD { return (h @ wq) * sum[E](wq) }", {}),
        ("wq: EK_yGD", QUERIES + "\nfunc g(h: BG) -> BEK_yD { return h @ wq }", {}),
        ("wq: EK_yGD", QUERIES + "\nfunc g(h: LE) -> LK_yGD { return h @ wq }", {"wq": (1, 2, 0, 3)}),
    ],
)
def test_which_weights(weights: str, func: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert orders(weights, func) == expected


def test_targets_without_tiles() -> None:
    made = explicit(program(f"{HEAD}weights {{ wq: EK_yGD }}\n{QUERIES}\n"))
    assert "ORDERS" not in emit(made)
    assert "ORDERS" not in emit(made, forms=parse_target("h100:4").forms)


def test_what_a_module_does() -> None:
    """`put` lays weights so on TPUs alone, and a function reads an array in either order; its callers' gradients too.
    Here the CPU is asked, which knows orders as well."""
    import jax

    library: Any = jax
    text = emit(explicit(program(f"{HEAD}weights {{ wq: f32 EK_yGD }}\n{QUERIES.replace('B', 'f32 B')}\n")), forms=TPU)
    assert "ORDERS = {'wq': (1, 2, 0, 3)}" in text
    rng = np.random.default_rng(0)
    wq, h = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 4, 6, 128), (8, 16)))
    found: list[Any] = []
    for platform, order in (("tpu", (0, 1, 2, 3)), ("cpu", (1, 2, 0, 3))):
        module = load_module(text.replace("platform == 'tpu'", f"platform == '{platform}'"))
        mesh = module.make_mesh()
        weights = module.put({"wq": wq}, module.WEIGHTS, mesh)
        assert weights["wq"].format.layout.major_to_minor == order
        built = module.build_f(mesh)
        assert built.lower(weights, {}, h).compile().input_formats[0][0]["wq"].layout.major_to_minor == order
        abstract = built.lower(*abstract_arguments(module, "f", mesh)).compile()
        assert abstract.input_formats[0][0]["wq"].layout.major_to_minor == order
        result, _ = built(weights, {}, h)
        gradient = library.grad(lambda given, built=built: built(given, {}, h)[0].sum())(weights)["wq"]
        found.append((np.asarray(result), np.asarray(gradient)))
    np.testing.assert_allclose(found[0][0], np.einsum("be,ekgd->bkgd", h, wq), rtol=1e-4, atol=1e-4)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
