"""The checker of partitioned programs on right functions of users, partitioned by XLA: none is accused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np
import pytest

from shardwright import explain
from shardwright.backends.hlo.faults import faults_of
from shardwright.backends.hlo.module import parse

jax = cast(Any, import_module("jax"))
jnp = cast(Any, import_module("jax.numpy"))

Spec = jax.sharding.PartitionSpec


def told_of_jax(
    function: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    *specs: Any,
    mesh: tuple[int, ...],
    results: Any = None,
) -> list[str]:
    """Faults of a function that XLA partitions, whose numbers are held against one device's before."""
    axes, devices = "ab"[: len(mesh)], jax.devices()[: math.prod(mesh)]
    auto = (jax.sharding.AxisType.Auto,) * len(mesh)
    grid = jax.sharding.Mesh(np.array(devices).reshape(mesh), tuple(axes), axis_types=auto)
    whole = [np.random.default_rng(at).normal(size=shape).astype(np.float32) for at, shape in enumerate(shapes)]
    args = [
        jax.device_put(array, jax.sharding.NamedSharding(grid, spec)) for array, spec in zip(whole, specs, strict=True)
    ]
    shardings = jax.tree.map(partial(jax.sharding.NamedSharding, grid), results)
    jitted = jax.jit(function, out_shardings=shardings)
    for result, wanted in zip(*map(jax.tree.leaves, (jitted(*args), jax.jit(function)(*whole))), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    return [fault.reason for fault in explain(jitted, args=args).functions[0].faults]


RIGHT: list[tuple[Callable[[Any], Any], tuple[int, ...], Any]] = [
    (lambda x: x[0], (8,), Spec("a")),
    (lambda x: x / x[0, 0], (8,), Spec("a")),
    (lambda x: jnp.where(x[0, 0] > 0, x, -x), (8,), Spec("a")),
    (lambda x: jnp.flip(x, 1), (2, 4), Spec("a", "b")),
    (lambda x: jnp.flip(x, 0) @ x, (4, 2), Spec("a", "b")),
    (lambda x: jnp.roll(x, 12, 1), (4,), Spec(None, "a")),
    (lambda x: jnp.roll(x, 12, 1) + x, (4,), Spec(None, "a")),
    (lambda x: jnp.concatenate([x[:, 12:], x[:, :12]], 1), (4,), Spec(None, "a")),
    (lambda x: jnp.concatenate([x, jnp.roll(x, 3, 1)]), (2, 4), Spec("a", "b")),
    (lambda x: jnp.swapaxes(x.reshape(2, 12, 24), 0, 1).reshape(24, 24), (2, 4), Spec("b", None)),
    (lambda x: jnp.tile(x, (2, 1)), (2, 4), Spec(("a", "b"), None)),
    (lambda x: jnp.kron(x, x[:2]), (4,), Spec("a")),
    (lambda x: x[::2], (8,), Spec("a")),
    (lambda x: x.reshape(24, 4, 6).sum(1), (4,), Spec(None, "a")),
]


@pytest.mark.parametrize(("function", "mesh", "spec"), RIGHT)
def test_right_programs_are_not_accused(function: Callable[..., Any], mesh: tuple[int, ...], spec: Any) -> None:
    """Rows that one device has, turned and rolled arrays, and blocks put together as a program asks."""
    assert told_of_jax(function, [(24, 24)], spec, mesh=mesh) == []


def scattered(x: Any) -> Any:
    """Rows added up at places of which one coordinate counts up, modulo an extent, and one is known at run time."""
    places = jnp.arange(64) % 16
    return jnp.zeros((8, 16, 32)).at[(x[:, 0] > 0).astype(int), places].add(x)


def test_places_that_count_again_from_zero_are_not_accused() -> None:
    """On eight devices these are 0 to 7 and 8 to 15 in turn, which are no blocks of a dimension of 16."""
    assert told_of_jax(scattered, [(64, 32)], Spec("a"), mesh=(8,)) == []


ROWS = """HloModule rows, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: s32[1,16], y: f32[1,16,32]) -> f32[96,32] {
  %x = s32[1,16]{1,0} parameter(0), sharding={devices=[8,1]<=[8]}
  %y = f32[1,16,32]{2,1,0} parameter(1), sharding={devices=[8,1,1]<=[8]}
  %i = s32[16,1]{1,0} reshape(%x)
  %u = f32[16,1,32]{2,1,0} reshape(%y)
  %zero = f32[] constant(0)
  %table = f32[96,32]{1,0} broadcast(%zero), dimensions={}
  %added = f32[96,32]{1,0} scatter(%table, %i, %u), update_window_dims={1,2}, inserted_window_dims={},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%sum
  ROOT %r = f32[96,32]{1,0} all-reduce(%added), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%sum
}
""".replace(",\n    ", ", ")


def test_updates_by_one_row_on_each_device_are_not_accused() -> None:
    """The rows of indices and those of updates are two names of one dimension of extent 1, as of tokens and of what is
    wanted of them in a gradient."""
    assert faults_of(parse(ROWS), {"x": 8}) == []
    crossed = ROWS.replace("devices=[8,1,1]<=[8]", "devices=[8,1,1]<=[2,4]T(1,0)")
    assert [fault.reason for fault in faults_of(parse(crossed), {"x": 8})] == [
        "splits along x what differs along x already"
    ]


def grouped_attention(heads: int, keys: int, size: int, form: str) -> Callable[..., Any]:
    """Attention of heads of queries to fewer heads of keys, which are repeated or tiled, or meet them in groups."""

    def function(x: Any, wq: Any, wk: Any, wo: Any) -> Any:
        k = (x @ wk).reshape(4, 8, keys, size)
        if form == "repeated":
            k = jnp.repeat(k, heads // keys, 2)
        elif form == "tiled":
            k = jnp.tile(k, (1, 1, heads // keys, 1))
        q = (x @ wq).reshape(4, 8, k.shape[2], -1, size)
        p = jax.nn.softmax(jnp.einsum("btkgd,bskd->bkgts", q, k))
        return jnp.einsum("bkgts,bskd->btkgd", p, k).reshape(4, 8, heads * size) @ wo

    return function


@pytest.mark.one_in(4)
@pytest.mark.parametrize("form", ["repeated", "tiled", "grouped"])
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize(("heads", "keys", "size"), [(6, 2, 8), (12, 4, 8), (12, 3, 8), (8, 2, 16), (4, 2, 4)])
def test_keys_of_fewer_heads_than_devices_are_not_accused(
    heads: int, keys: int, size: int, gradient: bool, form: str
) -> None:
    """A device has one head of keys or a part of one, a dimension of extent 1 of which no reshape leaves a trace."""
    function = grouped_attention(heads, keys, size, form)
    if gradient:
        attended = function
        function = jax.grad(lambda *args: (attended(*args) ** 2).sum(), (0, 1, 2, 3))
    shapes = [(4, 8, 32), (32, heads * size), (32, keys * size), (heads * size, 32)]
    columns, rows = Spec(None, ("a", "b")), Spec(("a", "b"))
    assert told_of_jax(function, shapes, Spec(), columns, columns, rows, mesh=(2, 4)) == []


def recurrent(x: Any, w: Any, u: Any) -> Any:
    """A scan over positions whose state is zeros before the first."""

    def step(h: Any, t: Any) -> Any:
        return (jnp.tanh(t @ w + h @ u) / 8,) * 2

    return jax.lax.scan(step, jnp.zeros((8, 64)), jnp.swapaxes(x, 0, 1))


def test_products_of_zeros_that_a_loop_begins_with_are_not_accused() -> None:
    specs, results = (Spec("a"), Spec("b"), Spec("b", "a")), (Spec("a"), Spec(None, "b"))
    assert told_of_jax(recurrent, [(8, 12, 32), (32, 64), (64, 64)], *specs, mesh=(4, 2), results=results) == []


def depthwise(x: Any, kernel: Any) -> Any:
    """A causal convolution of each channel by itself."""
    numbers = ("NLC", "LIO", "NLC")
    return jax.lax.conv_general_dilated(x, kernel, (1,), [(3, 0)], dimension_numbers=numbers, feature_group_count=8)


@pytest.mark.parametrize("gradient", [True, False])
def test_convolutions_of_one_channel_on_each_device_are_not_accused(gradient: bool) -> None:
    """Their count of groups, which is one on each device, is not in the text."""
    function = jax.grad(lambda *args: (depthwise(*args) ** 2).sum(), (0, 1)) if gradient else depthwise
    channels = Spec(None, None, "a")
    results = (channels, channels) if gradient else channels
    assert told_of_jax(function, [(4, 32, 8), (4, 1, 8)], channels, channels, mesh=(8,), results=results) == []


HEADS = """HloModule heads, num_partitions=8

ENTRY %main (x: f32[2,16], w: f32[16,2]) -> f32[1,2,1,2] {
  %x = f32[2,16]{1,0} parameter(0), sharding={devices=[8,1]<=[8]}
  %w = f32[16,2]{1,0} parameter(1), sharding={devices=[1,8]<=[8]}"""


PRODUCT, UNNAMED = 'metadata={op_name="jit(f)/dot_general"}', "frontend_attributes={}"


@pytest.mark.parametrize(
    ("name", "dot", "told"),
    [
        (PRODUCT, PRODUCT, ["splits along x what differs along x already"]),
        ('metadata={op_name="jit(f)/reshape"}', PRODUCT, []),
        (UNNAMED, UNNAMED, []),
        (UNNAMED, PRODUCT, []),
    ],
)
def test_a_dimension_is_left_out_where_a_program_parts_some(name: str, dot: str, told: list[str]) -> None:
    """Rows times columns over the same devices: of one head on each, if the program has parted rows and columns."""
    lines = [
        f"%a = f32[1,2,16] reshape(%x), {name}",
        f"%b = f32[16,1,2] reshape(%w), {name}",
        f"ROOT %r = f32[1,2,1,2] dot(%a, %b), lhs_contracting_dims={{2}}, rhs_contracting_dims={{0}}, {dot}",
    ]
    text = "\n".join([HEADS, *(f"  {line}" for line in lines), "}"])
    assert [fault.reason for fault in faults_of(parse(text), {"x": 8})] == told


ONE_HEAD = """HloModule one_head, num_partitions=4

ENTRY %main (q: f32[16,32], k: f32[24,16], v: f32[24,16]) -> f32[16,32] {
  %q = f32[16,32]{1,0} parameter(0), sharding={devices=[1,4]<=[4]}
  %k = f32[24,16]{1,0} parameter(1), sharding={devices=[1,4]<=[4]}
  %v = f32[24,16]{1,0} parameter(2), sharding={devices=[1,4]<=[4]}
  %heads = f32[16,2,16]{2,1,0} reshape(%q)
  %scores = f32[16,2,24]{2,1,0} dot(%heads, %k), lhs_contracting_dims={2}, rhs_contracting_dims={1}
  %o = f32[16,2,16]{2,1,0} dot(%scores, %v), lhs_contracting_dims={2}, rhs_contracting_dims={0}
  ROOT %r = f32[16,32]{1,0} reshape(%o)
}
"""


@pytest.mark.parametrize(
    ("crossed", "told"),
    [
        ("", []),
        ("k", ["contracts or pairs different blocks, along x: dimension 2 whole, dimension 1 split along x"]),
        ("v", ["splits along x what differs along x already"]),
    ],
)
def test_one_head_of_keys_that_no_reshape_shows_is_not_accused(crossed: str, told: list[str]) -> None:
    """Queries have two heads on each device, keys and values the one of these, unless their blocks come in another
    order."""
    order = f"%{crossed} = f32[24,16]{{1,0}} parameter({1 + (crossed == 'v')}), sharding={{devices=[1,4]<=[4]"
    text = ONE_HEAD.replace(order, order.replace("<=[4]", "<=[2,2]T(1,0)"))
    assert (text == ONE_HEAD) == (not crossed)
    assert [fault.reason for fault in faults_of(parse(text), {"x": 4})] == told
