"""What gathers need to bring, beside what devices lack of their parts, counted index by index for all reshardings."""

from __future__ import annotations

import re
from importlib import import_module
from itertools import product
from typing import Any, cast

import numpy as np
import pytest

from shardwright import explain
from shardwright.backends.hlo.collectives import collectives_of
from shardwright.backends.hlo.gathered_parts import with_needed_bytes
from shardwright.backends.hlo.module import parse

jax = cast(Any, import_module("jax"))
P = jax.P
MESH = {"x": 4, "y": 2}
DIMS: list[Any] = [None, "x", "y", ("x", "y"), ("y", "x")]


def layouts(rank: int) -> list[tuple[Any, ...]]:
    """Every way to split the dimensions of an array over the axes."""

    def used(spec: tuple[Any, ...]) -> list[str]:
        return [axis for dim in spec if dim for axis in ((dim,) if isinstance(dim, str) else dim)]

    return [spec for spec in product(DIMS, repeat=rank) if len(used(spec)) == len(set(used(spec)))]


def lacking(shape: tuple[int, ...], before: Any, after: Any) -> int:
    """Elements of a device's part that it does not hold before, for the device that lacks most."""
    parts = [sharding.devices_indices_map(shape) for sharding in (before, after)]

    def held(part: Any, device: Any) -> Any:
        mask = np.zeros(shape, bool)
        mask[part[device]] = True
        return mask

    return max(int((held(parts[1], device) & ~held(parts[0], device)).sum()) for device in parts[0])


@pytest.fixture(scope="module")
def mesh() -> Any:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


@pytest.mark.parametrize(
    ("shape", "share"),
    [((16, 24), 1), ((16, 8, 24), 7), pytest.param((16, 8, 24), 3, marks=pytest.mark.slow)],
)
def test_every_resharding(mesh: Any, shape: tuple[int, ...], share: int, capfd: Any) -> None:
    gathered = 0
    for before, after in list(product(layouts(len(shape)), repeat=2))[::share]:
        source, result = (jax.NamedSharding(mesh, P(*spec)) for spec in (before, after))
        function = jax.jit(lambda a: a * 2, out_shardings=result)
        array = jax.ShapeDtypeStruct(shape, np.dtype("f4"), sharding=source)
        (func,) = explain(function, args=[array]).functions
        least = sum(c.lower_bound_bytes for c in func.collectives)
        information = 4 * lacking(shape, source, result)
        assert information <= least <= func.bytes_received, (before, after)
        if {c.op for c in func.collectives} == {"all_gather"}:
            assert least == information, (before, after)
            gathered += least < func.bytes_received
    assert gathered >= 4
    capfd.readouterr()  # XLA writes of each involuntary gather


GATHERED = """HloModule two, num_partitions=4

%part (whole: f32[8,8], table: s32[4], at: u32[]) -> f32[4,4] {
  %whole = f32[8,8]{1,0} parameter(0)
  %sine = f32[8,8]{1,0} sine(%whole)
  %table = s32[4]{0} parameter(1)
  %at = u32[] parameter(2)
  %row = s32[1]{0} dynamic-slice(%table, %at), dynamic_slice_sizes={1}
  %first = s32[] reshape(%row)
  %column = u32[] constant(2)
  %half = u32[] remainder(%at, %column)
  %four = u32[] constant(4)
  %second = u32[] multiply(%half, %four)
  ROOT %cut = f32[4,4]{1,0} dynamic-slice(%sine, %first, %second), dynamic_slice_sizes={4,4}
}

ENTRY %main (p: f32[4,4]) -> f32[4,4] {
  %p = f32[4,4]{1,0} parameter(0)
  %at = u32[] partition-id()
  %table = s32[4]{0} constant({TABLE})
  %rows = f32[16,4]{1,0} all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}
  %apart = f32[2,2,4,4]{3,2,1,0} bitcast(%rows)
  %turned = f32[2,4,2,4]{3,2,1,0} transpose(%apart), dimensions={0,2,1,3}
  %whole = f32[8,8]{1,0} reshape(%turned)
  ROOT %mine = f32[4,4]{1,0} fusion(%whole, %table, %at), kind=kLoop, calls=%part
}
"""


def needed(text: str) -> list[int | None]:
    module = parse(text)
    return [collective.needed_once for collective in with_needed_bytes(module, collectives_of(module))]


@pytest.mark.parametrize(
    ("table", "nbytes"),
    [
        ("0, 0, 4, 4", 0),  # each its own block again
        ("4, 4, 0, 0", 4 * 4 * 4),  # that of another
        ("9, 9, 4, 4", 4 * 4 * 4),  # beyond the end is the end
        ("1, 1, 4, 4", None),  # three rows of a block and one of the next: no product of digits
    ],
)
def test_what_parts_lack(table: str, nbytes: int | None) -> None:
    assert needed(GATHERED.replace("TABLE", table)) == [nbytes]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("sine(%whole)", "custom-call(%whole)"),
        ("f32[8,8]{1,0} reshape(%turned)", "f32[8,8]{1,0} reverse(%turned)"),
        ("remainder(%at, %column)", "custom-call(%at, %column)"),
        ("ROOT %mine", "%sum = f32[8,8] reduce-window(%whole)\n  ROOT %mine"),
        ("all-gather(%p)", "all-gather(%p, %p)"),
    ],
)
def test_what_is_not_known_is_not_said(was: str, now: str) -> None:
    text = GATHERED.replace("TABLE", "0, 0, 4, 4")
    assert was in text
    assert needed(text.replace(was, now)) == [None]


def test_a_place_that_is_found_in_many_steps() -> None:
    """Each number is read twice by the next: asked for once, and in no deep recursion."""
    text = GATHERED.replace("TABLE", "0, 0, 4, 4")
    way = ["%n0 = s32[] reshape(%row)", *(f"%n{i + 1} = s32[] minimum(%n{i}, %n{i})" for i in range(2000))]
    lines = "\n".join(f"  {line}" for line in [*way, "%first = s32[] copy(%n2000)"])
    assert needed(text.replace("  %first = s32[] reshape(%row)", lines)) == [0]
    assert needed(text.replace("s32[] reshape(%row)", "s32[] add(%first, %second)")) == [None]  # of itself


def test_a_part_a_long_way_behind() -> None:
    way = ["%s0 = f32[8,8] sine(%whole)", *(f"%s{i + 1} = f32[8,8] sine(%s{i})" for i in range(1000))]
    lines = "\n".join(f"  {line}" for line in [*way, "%sine = f32[8,8] copy(%s1000)"])
    text = GATHERED.replace("TABLE", "4, 4, 0, 0").replace("  %sine = f32[8,8]{1,0} sine(%whole)", lines)
    assert "%s1000" in text
    assert needed(text) == [4 * 4 * 4]


def test_a_way_that_branches() -> None:
    """One part is read after one gather, and another after two: what is needed is the more."""
    text = """HloModule two, num_partitions=4

ENTRY %main (p: f32[4]) -> f32[2] {
  %p = f32[4]{0} parameter(0)
  %two = f32[8]{0} all-gather(%p), replica_groups={{0,1},{2,3}}, dimensions={0}
  %early = f32[2]{0} slice(%two), slice={[6:8]}
  %start = (f32[8]{0}, f32[16]{0}) all-gather-start(%two), replica_groups={{0,2},{1,3}}, dimensions={0}
  %four = f32[16]{0} all-gather-done(%start)
  %late = f32[LATE]{0} slice(%four), slice={[0:LATE]}
  %e = f32[1]{0} custom-call(%early)
  ROOT %l = f32[1]{0} custom-call(%late)
}
"""
    assert needed(text.replace("LATE", "1")) == [2 * 4, 0]
    assert needed(text.replace("LATE", "4")) == [4 * 4, 0]
    assert needed(re.sub("late = .*", "late = f32[16]{0} copy(%four)", text)) == [None, None]
