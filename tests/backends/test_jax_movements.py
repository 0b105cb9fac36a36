"""Every movement under JAX, contiguous and strided, against the unsharded meaning, with the collectives it becomes."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.jax_agreement import check, explicit

from shardwright.backends.jax.emit import emit


def moved(
    before: str, movement: str, after: str, dtype: str = "f32", a: str = "order x y z", b: str = "order x y z"
) -> str:
    head = f"mesh x=2 y=2 z=2\ndim A=16 {a}\ndim B=8 {b}\ndim C=3\n"
    signature = f"func f(v: {dtype} {before}) -> {dtype} {after}"
    return f"{head}{signature} {{\n  w: {dtype} {after} = {movement}(v)\n  return w\n}}\n"


MOVES = {
    # movement: before, after, the call in the source where blocks are contiguous
    "gather": ("CA_xyB", "all_gather[xy]", "CAB", "lax.all_gather(v, ('x', 'y'), axis=1, tiled=True, to='invarying')"),
    "gather a suffix": ("A_xyC", "all_gather[y]", "A_xC", "lax.all_gather(v, 'y', axis=0, tiled=True, to='invarying')"),
    "gather from the middle": ("A_xyzC", "all_gather[y]", "A_xzC", None),
    "gather the front": ("A_xyzC", "all_gather[x]", "A_yzC", None),
    "gather two dimensions": ("A_xzB_y", "all_gather[xy]", "A_zB", None),
    "reduce": ("A_xB(partialsum-yz)", "all_reduce[yz]", "A_xB", "lax.psum(v, ('y', 'z'))"),
    "reduce one axis": ("A_xB(partialsum-yz)", "all_reduce[y]", "A_xB(partialsum-z)", "lax.psum(v, 'y')"),
    "reduce maxima": ("A_xB(partialmax-yz)", "all_reduce[yz]", "A_xB", "all_reduce_max(v, ('y', 'z'))"),
    "scatter": ("A_xB(partialsum-yz)", "reduce_scatter[yz -> A]", "A_xyzB",
                "lax.psum_scatter(v, ('y', 'z'), scatter_dimension=0, tiled=True)"),
    "scatter on two": ("AB(partialsum-xyz)", "reduce_scatter[x -> A, y -> B]", "A_xB_y(partialsum-z)", None),
    "scatter behind": ("A_zB(partialsum-xy)", "reduce_scatter[xy -> A]", "A_xyzB", None),
    "scatter strided": ("AB(partialsum-xy)", "reduce_scatter[y -> A]", "A_yB(partialsum-x)", None),
    "scatter maxima": ("AB_z(partialmax-xy)", "reduce_scatter[xy -> A]", "A_xyB_z", None),
    "scatter maxima on two": ("AB(partialmax-xyz)", "reduce_scatter[x -> A, z -> B]", "A_xB_z(partialmax-y)", None),
    "all-to-all": ("A_xyB_z", "all_to_all[xy: A -> B]", "AB_xyz", None),
    "all-to-all of blocks": ("A_xyCB", "all_to_all[xy: A -> B]", "ACB_xy",
                             "lax.all_to_all(v, ('x', 'y'), split_axis=2, concat_axis=0, tiled=True)"),
    "all-to-all swap": ("A_xB_y", "all_to_all[x: A -> B, y: B -> A]", "A_yB_x", None),
    "all-to-all of one digit": ("A_xyzB", "all_to_all[y: A -> B]", "A_xzB_y", None),
    "all-to-all, two to two": ("A_xzB_y", "all_to_all[x: A -> B]", "A_zB_xy", None),
    "slice": ("A_xB", "slice[yz -> A]", "A_xyzB",
              "lax.dynamic_slice_in_dim(v, lax.axis_index(('y', 'z')) * 2, 2, axis=0)"),
    "slice two": ("AB", "slice[xy -> A, z -> B]", "A_xyB_z", None),
    "slice strided": ("A_xB", "slice[z -> A]", "A_xzB", None),
    "whole to partial": ("A_xB", "as_partial[yz]", "A_xB(partialsum-yz)",
                         "jnp.where(lax.axis_index(('y', 'z')) == 0, v, 0)"),
    "split to partial": ("A_xyB", "as_partial[y]", "A_xB(partialsum-y)", None),
    "both to partial": ("A_xyB", "as_partial[yz]", "A_xB(partialsum-yz)", None),
    "permute": ("A_xB", "permute[A: x -> y]", "A_yB", None),
    "permute between dimensions": ("A_xzB_y", "permute[A: x -> y, B: y -> x]", "A_yzB_x", None),
    "permute to fewer": ("CA_xyB_z", "permute[A: xy -> z, B: z -> {}]", "CA_zB", None),
    "permute to more": ("CA_xB", "permute[A: x -> {}, B: {} -> xyz]", "CAB_xyz", None),
    "permute to whole": ("A_xzCB_y", "permute[A: xz -> {}, B: y -> {}]", "ACB", None),
    "to blocks": ("CA_yzB", "permute[A, to=blocks]", "CA_yzB", None),
    "to blocks of two": ("A_xzB_y", "permute[AB, to=blocks]", "A_xzB_y", None),
    "from blocks": ("A_zB_xy", "permute[AB, from=blocks]", "A_zB_xy", None),
    "strided to partial": ("A_xyzB", "as_partial[xz]", "A_yB(partialsum-xz)", None),
}  # fmt: skip


@pytest.mark.parametrize("case", MOVES)
def test_contiguous(case: str) -> None:
    before, movement, after, call = MOVES[case]
    program = check(moved(before, movement, after))
    if call is not None:
        assert f"w = {call}  #" in emit(program)


@pytest.mark.parametrize(("a", "b"), [("order z y x", "order y x z"), ("order y 2 z x", "order z x y")])
@pytest.mark.parametrize("case", MOVES)
def test_other_orders(case: str, a: str, b: str) -> None:
    before, movement, after, _ = MOVES[case]
    check(moved(before, movement, after, a=a, b=b))


SOME = ["gather", "reduce", "scatter on two", "all-to-all swap", "slice two", "both to partial", "reduce maxima",
        "scatter maxima", "permute to fewer", "to blocks"]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "f16", "int8", "int4", "int32", "uint32"])
@pytest.mark.parametrize("case", SOME)
def test_number_formats(case: str, dtype: str) -> None:
    before, movement, after, _ = MOVES[case]
    check(moved(before, movement, after, dtype))


@pytest.mark.parametrize("case", ["gather", "all-to-all swap", "slice two", "reduce maxima", "scatter maxima"])
def test_bool(case: str) -> None:
    before, movement, after, _ = MOVES[case]
    check(moved(before, movement, after, "bool"))


@pytest.mark.parametrize("axis", ["x", "y"])
def test_axes_of_one_chip(axis: str) -> None:
    """An axis of size 1 splits nothing, and values vary over it all the same."""
    text = f"""mesh x=1 y=4
dim A=8 B=8
func f(v: f32 A_yB) -> f32 A_yB_x {{
  s = slice[x -> B](v)
  g = all_gather[{axis}](s)
  p = as_partial[x]({"g" if axis == "x" else "v"})
  r = reduce_scatter[x -> B](p)
  t = all_to_all[xy: B -> A, y: A -> B](s)
  return r
}}
"""
    if axis == "y":
        text = text.replace("all_to_all[xy: B -> A, y: A -> B]", "all_to_all[x: B -> A, y: A -> B]")
    else:
        text = text.replace("all_to_all[xy: B -> A, y: A -> B]", "all_to_all[x: B -> A]")
    check(text)


@pytest.mark.parametrize("first", ["A_xB_yz", "A_yzB_x", "A_zB"])
@pytest.mark.parametrize("second", ["A_y", "A_xz"])
def test_strided_edges(first: str, second: str) -> None:
    """Arguments and results are plain global arrays whatever the layout."""
    text = f"""mesh x=2 y=2 z=2
dim A=16 order x y z
dim B=8 order z x y
func f(v: bf16 {first}, u: int8 {second}, s: f32) -> (bf16 {first}, int8 {second}, f32) {{
  w: bf16 {first} = -v
  return w, u, s
}}
"""
    check(text)


def test_a_sharded_module_says_what_is_strided() -> None:
    source = emit(explicit(moved("A_yB", "exp", "A_yB")))
    assert "'f': (P(None, 'y'),),  # v" in source
    assert "v = v.reshape(8, 8)" in source
    assert "return w.reshape(2, 1, 4, 8)" in source


def test_no_mesh() -> None:
    check("dim A=4\nfunc f(v: f32 A) -> f32 A {\n  w = exp(v)\n  return w\n}\n")


def random_movement(rng: np.random.Generator) -> tuple[str, str, str]:
    """A random movement on the dimensions A, B and C: the type before, the statement, the type after."""
    axes = "wxyz"
    word = rng.choice(["all_gather", "all_to_all", "reduce_scatter", "reduce_max", "slice", "as_partial"])
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    statics: list[str] = []
    for axis in axes:
        bystander = str(rng.choice(["A", "B", "C", "none", "none"]))
        source, target = (str(name) for name in rng.permutation(["A", "B", "C"])[:2])
        if rng.random() < 0.35 and not (axis == "z" and not statics):
            before[axis] = after[axis] = bystander
        elif word == "all_gather":
            before[axis], after[axis] = source, "none"
            statics.append(axis)
        elif word == "all_to_all":
            before[axis], after[axis] = source, target
            statics.append(f"{axis}: {source} -> {target}")
        elif word == "as_partial":
            before[axis], after[axis] = (source if rng.random() < 0.7 else "none"), "sum"
            statics.append(axis)
        else:
            before[axis] = {"slice": "none", "reduce_max": "max"}.get(str(word), "sum")
            after[axis] = target
            statics.append(f"{axis} -> {target}")
    joined = "".join(statics) if word in ("all_gather", "as_partial") else ", ".join(statics)
    keyword = "reduce_scatter" if word == "reduce_max" else word

    def text(states: dict[str, str]) -> str:
        splits = {
            name: "".join(axis for axis in axes if states[axis] == name) for name in ("A", "B", "C", "sum", "max")
        }
        row = "".join(f"{name}_{splits[name]}" if splits[name] else name for name in "ABC")
        partial = [f"(partial{kind}-{splits[kind]})" for kind in ("sum", "max") if splits[kind]]
        return f"f32 {row}{''.join(partial)}"

    return text(before), f"{keyword}[{joined}]", text(after)


@pytest.mark.parametrize("seed", range(6))
def test_random_movements(seed: int) -> None:
    """Twelve movements at a time of any digits between any of three dimensions, an axis of one chip among them."""
    rng = np.random.default_rng(seed)
    moves = [random_movement(rng) for _ in range(12)]
    orders = [" ".join(rng.permutation([*"wxyz", "2"])) for _ in "ABC"]
    lines = [f"  w{i}: {after} = {call}(v{i})" for i, (_, call, after) in enumerate(moves)]
    check(
        "mesh w=1 x=2 y=2 z=2\n"
        + "".join(f"dim {name}=16 order {order}\n" for name, order in zip("ABC", orders, strict=True))
        + f"func f({', '.join(f'v{i}: {before}' for i, (before, _, _) in enumerate(moves))})"
        + f" -> ({', '.join(after for _, _, after in moves)}) {{\n"
        + "\n".join(lines)
        + f"\n  return {', '.join(f'w{i}' for i in range(len(moves)))}\n}}\n"
    )
