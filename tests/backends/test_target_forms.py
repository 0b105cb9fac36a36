"""The forms in which a module is written for a target's compiler: they compute the same under JAX."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from oracles.jax_agreement import explicit

from shardwright.backends.jax.devices import arrange_devices
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import abstract_arguments, load_module
from shardwright.backends.jax.tiled_forms import AddendExchange, Front, gather_form, scatter_form
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.targets.names import parse_target
from shardwright.ir.types import DType

FORMS = [
    ((512, 1, 2048), 2, 4, None),  # 4 times 128 lanes each
    ((4, 2048, 18432), 2, 4, None),
    ((512, 1, 4608), 2, 4, Front((4608, 512), (0, 1))),  # 9 times
    ((4, 2048, 4608), 2, 4, Front((4608, 4, 2048), (1, 0, 2))),
    ((8, 16, 4608), 2, 4, Front((4608, 128), (0, 1))),
    ((64, 4608), 1, 4, Front((4, 64, 1152), (0, 1, 2), blocks=True)),
    ((8, 4608), 1, 4, AddendExchange()),  # 9 tiles
    ((4, 8192), 1, 4, AddendExchange()),  # less than a tile's rows
    ((4, 1024, 4, 256), 2, 4, Front((4, 4096, 256), (0, 1, 2))),  # one head each
    ((4, 1024, 256), 1, 16, Front((1024, 4, 256), (1, 0, 2))),
    ((64, 1, 256), 0, 4, Front((64, 256), (0, 1))),
    ((64, 2048), 0, 16, Front((64, 16, 128), (0, 1, 2))),
    ((64, 256), 0, 16, AddendExchange()),  # one tile
    ((64,), 0, 4, AddendExchange()),
]


@pytest.mark.parametrize(("shape", "at", "chips", "form"), FORMS)
def test_the_form_of_a_reduce_scatter(
    shape: tuple[int, ...], at: int, chips: int, form: Front | AddendExchange | None
) -> None:
    """Tried on the compilers of TPU v4, v5e, v5p and v6e (`backends/targets/tpus.toml`)."""
    assert scatter_form(shape, at, chips, (8, 128)) == form


@pytest.mark.parametrize(
    ("shape", "dtype", "form"),
    [
        ((288,), DType.F32, (8, 36)),
        ((1, 64), DType.BF16, (8, 8)),
        ((512,), DType.F32, None),
        ((100,), DType.F32, None),
        ((8, 1), DType.INT32, (0, 0)),
        ((1, 1), DType.INT32, (0, 0)),
        ((8, 36), DType.F32, None),
        ((), DType.F32, None),
    ],
)
def test_the_form_of_a_gather(shape: tuple[int, ...], dtype: DType, form: tuple[int, int] | None) -> None:
    assert gather_form(shape, dtype, (8, 128)) == form


def test_vectors_are_gathered_in_the_form_that_the_compiler_keeps() -> None:
    program = explicit("""
    mesh x=2 y=2
    dim B=4 L=1 E=96
    func f(ids: int32 B_xyL, scale: f32 E_xy) -> (int32 BL, f32 E) {
      i = all_gather[xy](ids)
      s = all_gather[xy](scale)
      return i, s
    }
    """)
    text = emit(program, forms=parse_target("tpu-v5e:2x2").forms)
    assert "halves_gathered(ids, ('x', 'y')).reshape(4, 1)" in text
    assert "lax.all_gather(scale.reshape(8, 3), ('x', 'y'), to='invarying').reshape(96,)" in text
    module = load_module(text)
    ids, scale = np.arange(-2, 2, dtype=np.int32)[:, None] * 70_000, np.linspace(-1, 1, 96, dtype=np.float32)
    made = module.build_f(module.make_mesh(arrange_devices(4).devices))(ids, scale)
    assert np.array_equal(made[0], ids)
    assert np.array_equal(made[1], scale)


@pytest.mark.parametrize(
    ("split", "order", "joined"),
    [
        ("E_xF_y", "", True),
        ("KE_xF_y", "", True),
        ("K_zE_xF_y", "", True),
        ("K_zE_xF_y", "E=8 order y x", True),
        ("K_zxEF_y", "", True),
        ("K_xEF_yz", "", True),
        ("K_xE_zF_y", "F=512 order z y", False),  # what comes lies between what stays
        ("F_xE_y", "", False),  # E has no whole lanes
        ("K_xE_yF", "", False),
        ("E_xF_y", "F=512 order 2 y", False),  # blocks of F are no whole ones
        ("EF_xy", "", False),
    ],
)
def test_blocks_along_the_lanes_are_put_side_by_side(split: str, order: str, joined: bool) -> None:
    """Gathers along several dimensions, of which the last comes in blocks of whole lanes."""
    names = [letter for letter in split if letter.isupper()]
    sizes = {"K": 4, "E": 8, "F": 512}
    dims = " ".join(order if order.startswith(name) else f"{name}={sizes[name]}" for name in names)
    axes = "".join(sorted({axis for axis in split if axis.islower()}))
    whole = "".join(names)
    program = explicit(f"""
    mesh x=2 y=2 z=2
    dim {dims}
    func f(w: {split}) -> {whole} {{
      w_moved: {split} = w + w
      g: {whole} = all_gather[{axes}](w_moved)
      return g
    }}
    """)
    text = emit(program, forms=parse_target("tpu-v5e:2x4").forms)
    assert ("g = side_by_side(" in text) == joined
    assert "side_by_side" not in emit(program)
    module = load_module(text)
    w = np.random.default_rng(0).integers(-4, 5, [sizes[name] for name in names]).astype(np.float32)
    mesh = module.make_mesh(arrange_devices(8).devices)
    (given,) = abstract_arguments(module, "f", mesh)  # digit by digit where blocks are strided
    made = module.build_f(mesh)(jnp.asarray(w.reshape(given.shape), jnp.bfloat16))
    assert np.array_equal(np.asarray(made, np.float32), 2 * w)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("rows", "embed", "in_turn"),
    [
        (64, 2048, True),
        (512, 2048, True),  # 256 on a chip
        (1024, 2048, False),  # the time of the products hides more of a gather's
        (64, 256, False),  # small gathers
    ],
)
def test_large_gathers_of_weights_in_turn(rows: int, embed: int, in_turn: bool) -> None:
    """Each begins when what the text computes before it is there, and the compiler keeps no two of what they make."""
    program = explicit(f"""
    mesh x=2
    dim B={rows} N=2 E={embed} F=1024
    weights {{
      up: NE_xF
      down: NFE_x
    }}
    func f(x: B_xE) -> B_xE {{
      y: B_xE = loop[N](h: B_xE = x) {{
        u: EF = all_gather[x](up)
        a = relu(h @ u)
        d: FE = all_gather[x](down)
        next h + a @ d
      }}
      return y
    }}
    """)
    forms = parse_target("tpu-v5e:1x2").forms
    text = emit(program, forms=replace(forms, finished_products=False))
    assert text.count("lax.optimization_barrier(") == in_turn
    assert ("down, a = lax.optimization_barrier((down, a))" in text) == in_turn
    assert "optimization_barrier" not in emit(program)
    module = load_module(text)
    mesh = module.make_mesh(arrange_devices(2).devices)
    rng = np.random.default_rng(0)
    shapes = ((rows, embed), (2, embed, 1024), (2, 1024, embed))
    x, up, down = (rng.standard_normal(shape).astype("float32") / 16 for shape in shapes)
    weights = module.put({"up": up, "down": down}, module.WEIGHTS, mesh)
    made, _ = module.build_f(mesh)(weights, {}, jnp.asarray(x, jnp.bfloat16))
    (wanted,), _ = evaluate(program, "f", {"x": x}, weights={"up": up, "down": down})
    np.testing.assert_allclose(np.asarray(made, np.float32), wanted, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("rows", "matrix", "sizes", "expected"),
    [
        ("BLH_xD", "H_xDE", "H=4 D=16 E=6", "'blh,he->ble', x.reshape(2, 3, 32), w.reshape(32, 6)"),
        ("H_xDE", "BLH_xD", "H=4 D=16 E=6", "'he,blh->ble', x.reshape(32, 6), w.reshape(2, 3, 32)"),
        ("BLH_xD", "H_xDE", "H=4 D=12 E=6", "'blhd,hde->ble', x, w"),  # a matrix that is in parts of tiles
        ("BLH_xD", "EH_xD", "H=4 D=16 E=6", "'blhd,ehd->ble', x, w"),  # it has them along the lanes
        ("BLDH_x", "H_xDE", "H=4 D=16 E=6", "'bldh,hde->ble', x, w"),  # they stand in another order
    ],
)
def test_dimensions_that_are_summed_as_one(rows: str, matrix: str, sizes: str, expected: str) -> None:
    program = explicit(
        f"mesh x=2\ndim B=2 L=3 {sizes}\n"
        f"func f(x: {rows}, w: {matrix}) -> BLE {{ y: BLE(partialsum-x) = x @[HD] w\n return all_reduce[x](y) }}"
    )
    text = emit(program, forms=parse_target("tpu-v5e:1x2").forms)
    assert f"einsum({expected},".replace(" ", "") in "".join(text.split())
    assert "reshape" not in emit(program).partition("\ndef build_f")[2]
    module = load_module(text)
    rng = np.random.default_rng(0)
    x, w = (
        rng.integers(-4, 5, [program.sizes()[dim] for dim in dims.replace("_x", "")]).astype(np.float32)
        for dims in (rows, matrix)
    )
    made = module.build_f(module.make_mesh(arrange_devices(2).devices))(*(jnp.asarray(a, jnp.bfloat16) for a in (x, w)))
    wanted = np.einsum(f"{rows},{matrix}->BLE".replace("_x", ""), x, w)
    np.testing.assert_allclose(np.asarray(made, np.float32), wanted, rtol=1e-2)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("next c @[HD] w", "w.reshape(3, -1, 64)"),
        ("a = c @[HD] w\n next a + c @[HD] w", "w.reshape(3, -1, 64)"),
        ("a = c @[HD] w\n next a * sum[HD](w)", "w"),  # read by something else, too
        ("z = loop[M](a = c) { next a @[HD] w }\n next z", "w"),  # in another loop
        ("next gathered[HD](w)", "w"),
    ],
)
def test_weights_of_loops_come_as_they_are_summed(body: str, expected: str) -> None:
    """All layers' as matrices before the loop, so that libtpu takes each trip's within the product."""
    body = body.replace("c @", "split[E -> HD](c) @").replace("a @", "split[E -> HD](a) @")
    body = body.replace("gathered[HD](w)", "split[E -> HD](c) @[HD] all_gather[x](w)")
    split = "E_x" if "all_gather" in body else "E"
    program = explicit(
        f"mesh x=2\ndim B=4 N=3 M=2 H=4 D=16 E=64\nweights {{ w: NHD{split} }}\n"
        f"func f(x: BE) -> BE {{ y: BE = loop[N](c = x) {{ {body} }}\n return y }}"
    )
    text = emit(program, forms=parse_target("tpu-v5e:1x2").forms)
    assert f"lax.scan(over_n, x, {expected})" in text
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((4, 64)), "w": rng.standard_normal((3, 4, 16, 64)) / 8}
    module = load_module(text)
    mesh = module.make_mesh(arrange_devices(2).devices)
    weights = module.put({"w": arrays["w"]}, module.WEIGHTS, mesh)
    made, _ = module.build_f(mesh)(weights, {}, jnp.asarray(arrays["x"], jnp.bfloat16))
    (wanted,), _ = evaluate(program, "f", {"x": arrays["x"]}, weights={"w": arrays["w"]})
    np.testing.assert_allclose(np.asarray(made, np.float32), wanted, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(("target", "tiled"), [("tpu-v4:2x2x1", True), ("tpu-v6e:2x2", True), ("h100:4", False)])
def test_a_reduce_scatter_in_the_form_that_the_compiler_keeps(target: str, tiled: bool) -> None:
    shapes = [shape for shape, _, chips, _ in FORMS if chips == 4 and np.prod(shape) < 3_000_000]
    forms = Counter(type(form).__name__ for shape, _, chips, form in FORMS if chips == 4 and np.prod(shape) < 3_000_000)
    dims, funcs = [], []
    for i, (shape, at) in enumerate((shape, at) for shape, at, chips, _ in FORMS if chips == 4 and shape in shapes):
        names = [f"{letter}{i + 1}" for letter in "ABCD"[: len(shape)]]
        dims += [f"{name}={size}" for name, size in zip(names, shape, strict=True)]
        layout = "".join(names)
        scattered = "".join(f"{name}_xy" if k == at else name for k, name in enumerate(names))
        funcs.append(
            f"func f{i}(x: {layout}(partialsum-xy)) -> {scattered} {{"
            f" y = reduce_scatter[xy -> {names[at]}](x)\n return y }}"
        )
    program = explicit("mesh x=2 y=2\ndim " + " ".join(dims) + "\n" + "\n".join(funcs))
    text = emit(program, forms=parse_target(target).forms)
    assert text.count("= scattered_in_front(") == (forms["Front"] if tiled else 0)
    assert text.count("lax.all_to_all(") == (forms["AddendExchange"] if tiled else 0)
    module = load_module(text)
    mesh = module.make_mesh(arrange_devices(4).devices)
    for i, shape in enumerate(shapes):
        addends = np.random.default_rng(i).integers(-4, 5, (2, 2, *shape)).astype(np.float32)
        made = getattr(module, f"build_f{i}")(mesh)(jnp.asarray(addends, jnp.bfloat16))
        assert np.array_equal(np.asarray(made, np.float32), addends.sum((0, 1)))


@pytest.mark.parametrize(
    ("rows", "columns", "form"),
    [(16, 2048, "scattered_in_front("), (8, 64, "lax.all_to_all("), (1, 512, "lax.all_to_all(")],
)
def test_strided_parts_are_scattered_in_whole_tiles_too(rows: int, columns: int, form: str) -> None:
    """Parts come in pieces, here two, which a gather puts back."""
    program = explicit(f"""
    mesh x=2 y=2
    dim B={rows} E={columns} order x y
    func f(x: bf16 BE(partialsum-y)) -> bf16 BE {{
      a = x + x
      y: bf16 BE_y = reduce_scatter[y -> E](a)
      g: bf16 BE = all_gather[y](y)
      return g
    }}
    """)
    text = emit(program, forms=parse_target("tpu-v4:2x2x1").forms)
    assert form in text.partition("def f(x):")[2]
    module = load_module(text)
    addends = np.random.default_rng(0).integers(-4, 5, (2, rows, columns)).astype(np.float32)
    made = module.build_f(module.make_mesh(arrange_devices(4).devices))(jnp.asarray(addends, jnp.bfloat16))
    assert np.array_equal(np.asarray(made, np.float32), 2 * addends.sum(0))
