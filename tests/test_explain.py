"""`explain` of programs and functions of JAX, compiled for the processor at hand, and `targets`."""

from __future__ import annotations

import inspect
import json
import math
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from conftest import Outcome

from shardwright import DiagnosticError, explain

jax = cast(Any, import_module("jax"))
jnp = cast(Any, import_module("jax.numpy"))
NamedSharding, PartitionSpec = jax.sharding.NamedSharding, jax.sharding.PartitionSpec

Run = Callable[..., Outcome]

FEEDFORWARD = """mesh x=2 y=2
dim B=8 E=16 F=32

weights { w_in: f32 E_xF_y
          w_out: f32 F_yE_x }
state { last: f32 BE_xy }

func ffn(x: f32 BE_xy) -> f32 BE_xy {
  h: f32 BF_y = x @ w_in
  y: f32 BE_xy = relu(h) @ w_out
  set last = y
  return y
}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_a_program_and_its_module(shardwright: Run, tmp_path: Path) -> None:
    program, module = tmp_path / "ffn.shard", tmp_path / "ffn.py"
    program.write_text(FEEDFORWARD)
    told = shardwright("explain", str(program), "--json")
    assert (told.status, told.err) == (0, "")
    explained = json.loads(told.out)
    assert list(explained) == ["target", "functions"]
    assert explained["target"] == "cpu"
    (func,) = explained["functions"]
    assert list(func) == [
        "name", "collectives", "bytes_received", "all_trips", "written_bytes_received", "argument_bytes",
        "temporary_bytes", "output_bytes", "predicted_peak_bytes", "kernels", "moved_bytes", "compile_s", "faults",
    ]  # fmt: skip
    assert [(c["op"], c["axes"], c["trips"], c["statements"]) for c in func["collectives"]] == [
        ("all_gather", ["y"], 1, ["x_gathered"]),
        ("all_reduce", ["x"], 1, ["h"]),
        ("reduce_scatter", ["y"], 1, ["y"]),
    ]
    assert [c["source"] for c in func["collectives"]] == [f"{program}:{line}" for line in (9, 9, 10)]
    assert all(c["bytes_received"] == c["lower_bound_bytes"] for c in func["collectives"])
    assert func["bytes_received"] == func["written_bytes_received"] == 8 * 8 * 4 // 2 + 8 * 16 * 4 + 8 * 8 * 4 // 2
    arguments = 2 * 16 * 32 // 4 * 4 + 8 * 16 // 4 * 4  # weights and x; the state is not read
    assert func["argument_bytes"] in {arguments, arguments + 128}
    assert func["kernels"] == []

    assert shardwright("compile", str(program), "-o", str(module), "--no-validate").status == 0
    (of_module,) = json.loads(shardwright("explain", str(module), "--json", "--mesh", "x=2,y=2").out)["functions"]
    same = ("op", "axes", "trips", "bytes_received", "lower_bound_bytes", "statements")
    for ours, theirs in zip(of_module["collectives"], func["collectives"], strict=True):
        assert [ours[key] for key in same] == [theirs[key] for key in same]
        file, _, line = ours["source"].rpartition(":")
        assert file == str(module)
        assert module.read_text().splitlines()[int(line) - 1].strip().startswith((*ours["statements"], "h_partial"))
    assert of_module["predicted_peak_bytes"] is None

    table = shardwright("explain", str(program)).out.splitlines()
    assert table[0] == "ffn on cpu: a chip receives 768 B, 768 B as written"
    assert [line.split()[:2] for line in table[2:5]] == [
        ["all_gather", "y"],
        ["all_reduce", "x"],
        ["reduce_scatter", "y"],
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dtype", "nbytes"), [("bf16", 120), ("f16", 120), ("f32", 216)])
def test_a_partial_softmax_goes_in_one_message(shardwright: Run, tmp_path: Path, dtype: str, nbytes: int) -> None:
    """Three chips' means of two rows and their logarithms of 4 bytes: an exchange of bits, that no compiler widens."""
    program = tmp_path / "attention.shard"
    program.write_text(
        f"mesh x=4\ndim B=2 L=1 T=64 H=4 D=8\n"
        f"func f(q: {dtype} BLHD, k: {dtype} BT_xHD, v: {dtype} BT_xHD) -> {dtype} BLH_xD {{\n"
        f"  o: {dtype} BLHD(partialsoftmax-x) = attend[T, D, scale=0.3](q, k, v)\n  return o\n}}\n"
    )
    told = shardwright("explain", str(program), "--json")
    assert (told.status, told.err) == (0, "")
    (func,) = json.loads(told.out)["functions"]
    (only,) = func["collectives"]
    assert (only["op"], only["bytes_received"], only["lower_bound_bytes"]) == ("all_to_all", nbytes, nbytes)
    assert func["written_bytes_received"] == nbytes


GROUPED = """mesh x=2 y=3
dim B={rows} E=24 F=18 X=6 A=2

func f(x: f32 {x}, w: f32 {w}, i: int32 {i}) -> f32 {result} {{
  return grouped[X, E](x, w, i)
}}
"""


@pytest.mark.parametrize("rows", [12, 96])
@pytest.mark.parametrize(
    ("x", "w", "i", "result"),
    [("B_xyE", "XEF", "B_xyA", "B_xyAF"), ("B_xE", "X_yEF", "B_xA", "B_xAF"), ("B_yE_x", "XE_xF", "B_yA", "B_yAF")],
)
def test_rows_that_each_chip_sorts_by_expert_are_not_accused(
    x: str, w: str, i: str, result: str, rows: int, shardwright: Run, tmp_path: Path
) -> None:
    """Counts and rows that a chip takes of its own sorted rows are no addends of anything."""
    program = tmp_path / "grouped.shard"
    program.write_text(GROUPED.format(x=x, w=w, i=i, result=result, rows=rows))
    told = shardwright("explain", str(program), "--json")
    assert (told.status, json.loads(told.out)["functions"][0]["faults"]) == (0, [])


def test_a_function_that_is_not_there(shardwright: Run, tmp_path: Path) -> None:
    program = tmp_path / "ffn.shard"
    program.write_text(FEEDFORWARD)
    refused = shardwright("explain", str(program), "--func", "fnn")
    assert refused.err == f"{program}: error: there is no function fnn; there are ffn [unknown-function]\n"


def test_compile_tells_what_became_of_the_module(shardwright: Run, tmp_path: Path) -> None:
    program, module = tmp_path / "ffn.shard", tmp_path / "ffn.py"
    program.write_text(FEEDFORWARD)
    told = shardwright("compile", str(program), "-o", str(module), "--no-validate", "--target", "cpu", "--json")
    assert told.status == 0
    assert told.err.startswith("ffn on cpu: a chip receives 768 B, 768 B as written\n")
    assert json.loads(told.out)["target"]["functions"][0]["bytes_received"] == 768


# ---------------------------------------------------------------- functions of JAX


def arrays_of(mesh: Any) -> Callable[..., Any]:
    """`array(shape, axes...)`, for a mesh."""

    def array(shape: tuple[int, ...], *spec: Any) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, np.dtype("f4"), sharding=sharding)

    return array


def mesh_of(**sizes: int) -> Any:
    devices = np.array(jax.devices()[: math.prod(sizes.values())]).reshape(tuple(sizes.values()))
    return jax.sharding.Mesh(devices, tuple(sizes), axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))


def test_of_branches_the_one_that_receives_most_counts() -> None:
    """Also of those within it."""

    def body(number: Any, a: Any, b: Any) -> Any:
        def much() -> Any:
            more = jax.lax.cond(b[0, 0] > 0, lambda: jax.lax.psum(b, "x"), lambda: b * 2.0)
            return jax.lax.psum(a, ("x", "y")) + more

        return jax.lax.cond(number > 0, lambda: jax.lax.psum(a, "x"), much)

    mesh = mesh_of(x=4, y=2)
    whole = PartitionSpec()
    function = jax.shard_map(body, mesh=mesh, in_specs=(whole,) * 3, out_specs=whole, check_vma=False)
    array = arrays_of(mesh)
    args = (
        jax.ShapeDtypeStruct((), np.dtype("i4"), sharding=NamedSharding(mesh, whole)),
        array((16, 16)),
        array((16, 16)),
    )
    explained = explain(function, args=args)
    (func,) = explained.functions
    of_four, of_eight = 2 * 1024 * 3 // 4, 2 * 1024 * 7 // 8
    assert sorted(c.bytes_received for c in func.collectives) == [of_four, of_four, of_eight]
    assert func.bytes_received == of_eight + of_four
    assert repr(explained).startswith("body on cpu: a chip receives 3.33 kB in the branches that receive most\n")


def test_a_resharding_that_gathers_all() -> None:
    """openxla/xla issue 15207: two all-gathers and the whole tensor, where an all-to-all of 1,792 bytes would do."""
    mesh = mesh_of(x=4, y=2)
    array = arrays_of(mesh)
    out = NamedSharding(mesh, PartitionSpec(None, ("x", "y"), None))

    def doubled(a: Any) -> Any:
        return a * 2

    function = jax.jit(doubled, out_shardings=out)
    explained = explain(function, args=[array((16, 16, 16), "y", None, "x")])
    (func,) = explained.functions
    assert [(c.op, c.axes, c.bytes_received, c.lower_bound_bytes) for c in func.collectives] == [
        ("all_gather", ("x",), 8 * 16 * 16 * 4 * 3 // 4, 1792),  # for both, which make one movement
        ("all_gather", ("y",), 16 * 16 * 16 * 4 // 2, 0),
    ]
    assert all(c.statements == () and c.source and c.source.startswith(__file__) for c in func.collectives)
    assert (func.argument_bytes, func.output_bytes) == (2048, 2048)
    (renamed,) = explain(function, mesh={"a": 8}, args=[array((16, 16, 16), "y", None, "x")]).functions
    assert [c.axes for c in renamed.collectives] == [("a:(1)4",), ("a:(4)2",)]


def rotary(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None, None] * 1e4 ** (-jnp.arange(half) / half)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1)


def llama_layer(x: Any, weights: Any) -> Any:
    """Eight heads of queries and two of keys and values."""
    wq, wk, wv, wo, up, down = weights
    q, k, v = ((x @ w).reshape(*x.shape[:2], -1, 16) for w in (wq, wk, wv))
    q = rotary(q)
    k = rotary(k)
    k, v = (jnp.repeat(each, 4, 2) for each in (k, v))
    p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 4)
    x = x + jnp.einsum("bhts,bshd->bthd", p, v).reshape(*x.shape[:2], -1) @ wo
    return x + jax.nn.silu(x @ up) @ down, None


def test_two_heads_of_keys_over_four_devices() -> None:
    """Rotary embedding splits and joins a head that is itself split: five of seven collectives on the path of keys."""
    array = arrays_of(mesh_of(tp=4))
    columns, rows = (None, None, "tp"), (None, "tp", None)
    shapes = [(128, 128), (128, 32), (128, 32), (128, 128), (128, 256), (256, 128)]
    specs = [columns, columns, columns, rows, columns, rows]
    weights = [array((3, *shape), *spec) for shape, spec in zip(shapes, specs, strict=True)]

    def layers(x: Any, weights: Any) -> Any:
        return jax.lax.scan(llama_layer, x, weights)[0]

    (func,) = explain(layers, args=[array((2, 32, 128)), weights]).functions
    assert {c.trips for c in func.collectives} == {3}
    assert Counter((c.op, c.axes) for c in func.collectives) == {
        ("all_gather", ("tp:(2)2",)): 2,
        ("permute", ("tp:(2)2",)): 2,
        ("all_to_all", ("tp:(2)2",)): 3,
        ("all_reduce", ("tp",)): 2,
    }
    source, begins = inspect.getsourcelines(rotary)
    lines = {f"{__file__}:{line}" for line in range(begins, begins + len(source))}
    assert len([c for c in func.collectives if c.source in lines]) == 5


def constrained(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    array = arrays_of(mesh)

    def step(d: Any, w: Any) -> Any:
        h = jax.lax.with_sharding_constraint(d["a"] @ w, NamedSharding(mesh, PartitionSpec("x")))
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w.T @ w), None), h, None, length=5)[0]

    return jax.jit(step, donate_argnums=0), ({"a": array((64, 64), "x", "y")}, array((64, 64), "x", "y"))


def manual(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    def body(v: Any, w: Any) -> Any:
        return jax.lax.psum_scatter(jax.lax.all_gather(v, "y", axis=1, tiled=True) @ w, "x", tiled=True)

    specs = PartitionSpec(None, ("x", "y")), PartitionSpec("x", "y")
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("x", "y"))
    array = arrays_of(mesh)
    return mapped, (array((16, 32), *specs[0]), array((32, 32), *specs[1]))


def unsharded_arguments(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """The compiler chooses the shardings of `b` and of the results."""

    def product(a: Any, b: Any) -> Any:
        return a @ b, b + 1

    array = arrays_of(mesh)
    return product, (array((64, 32), "x", "y"), jax.ShapeDtypeStruct((32, 64), np.dtype("f4")))


def given_to_jit(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    split, whole = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("x", "y"), ()))
    shapes = tuple(jax.ShapeDtypeStruct((64, 64), np.dtype("f4")) for _ in range(2))
    return jax.jit(lambda a, b: a @ b, in_shardings=(split, split), out_shardings=whole), shapes


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [constrained, manual, unsharded_arguments, given_to_jit])
def test_a_function_compiled_elsewhere_is_what_jit_compiles_here(case: Callable[..., Any]) -> None:
    function, args = case(mesh_of(x=2, y=2))
    (here,) = explain(function, args=args).functions
    (elsewhere,) = explain(function, "cpu", args=args).functions
    assert here.collectives
    assert elsewhere.collectives == here.collectives
    for figure in ("argument_bytes", "temporary_bytes", "output_bytes", "kernels"):
        assert getattr(elsewhere, figure) == getattr(here, figure)


def test_a_function_on_a_mesh_without_devices() -> None:
    mesh = jax.sharding.AbstractMesh((8, 4), ("x", "y"))  # this process has eight devices
    function, args = constrained(mesh)
    explained = explain(function, "cpu", mesh, args=args)
    assert explained.target == "cpu"
    assert {c.axes for c in explained.functions[0].collectives} == {("x",), ("y",)}
    with pytest.raises(DiagnosticError) as caught:
        explain(function, args=args)
    assert caught.value.render() == (
        "step: error: the arguments of step lie on an abstract mesh, which has no devices [no-devices]\n"
        "note: say a target, as target='cpu'; `shardwright targets` lists all"
    )


def total(x: Any) -> Any:
    return x["a"].sum()


@pytest.mark.parametrize(
    ("args", "mesh", "said"),
    [
        (
            [{"a": jax.ShapeDtypeStruct((8,), np.dtype("f4"))}],
            {"x": 4},
            "total: error: total is lowered for 1 device, and the mesh x=4 has 4 [mesh-fit]\n"
            "note: args[0]['a'] has no sharding over a mesh: jax.ShapeDtypeStruct(shape, dtype,"
            " sharding=jax.NamedSharding(mesh, jax.P('x')))",
        ),
        (
            [{"a": arrays_of(jax.sharding.AbstractMesh((2,), ("x",)))((8,), "x")}],
            {"data": 4, "model": 2},
            "total: error: total is lowered for 2 devices, and the mesh data=4 model=2 has 8 [mesh-fit]\n"
            "note: its arguments lie on the mesh x=2",
        ),
        (
            {"a": 1},
            None,
            "total: error: args is a tuple of the arguments of total [bad-args]\nnote: as in args=(x,)",
        ),
    ],
)
def test_arguments_that_are_refused(args: Any, mesh: Any, said: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        explain(total, "cpu", mesh, args=args)
    assert caught.value.render() == said


def test_a_function_that_is_not_traced_raises_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError):
        explain(lambda x: x / (1 // 0), args=[1.0])


def test_targets(shardwright: Run) -> None:
    listed = json.loads(shardwright("targets", "--json").out)["targets"]
    assert [row["chip"] for row in listed if row["chip"].startswith(("cpu", "tpu"))] == [
        "cpu", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e",
    ]  # fmt: skip
    for row in listed:
        assert (row["install"] is None) == row["installed"]
    assert listed[0] == {
        "chip": "cpu",
        "example": "cpu",
        "compiler": "XLA for CPUs",
        "installed": True,
        "install": None,
    }
    lines = shardwright("targets").out.splitlines()
    assert lines[0].split() == ["chip", "a", "target", "of", "it", "compiler"]
    assert len([line for line in lines if ":" in line]) >= len(listed) - 1
