"""What `export` writes is read by the tool that it is for, and says where each chip's part of every weight lies."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import all_with_slow
from exporting.exports import LLAMA, MIXTRAL, PLAIN, TP_PLAN, Run, exported

from shardwright import compile_program, export, load, trace
from shardwright.backends.jax.module_files import import_file
from shardwright.models.weight_map import map_path, read_map


def stored_blocks(path: Path, name: str, chip: dict[str, int]) -> np.ndarray:
    """Which elements of a tensor of layer 0 a chip holds, counted in the tensor's own numbering, as the types say."""
    mapping = read_map(map_path(path))
    program = load(str(path))
    weight, entry = next((w, e) for w, e in mapping.entries.items() if e.tensor.replace("{layer}", "0") == name)
    shape = entry.stored_shape(mapping.sizes)
    dims = [dim for group in entry.stored for dim in group]
    numbers = np.arange(math.prod(shape)).reshape([mapping.sizes[dim] for dim in dims])
    kind = next(value.concrete for value in program.weights if value.name == weight)
    for at, dim in enumerate(dims):
        for axis in kind.split(dim):
            numbers = np.split(numbers, program.mesh[axis], at)[chip[axis]]
    return np.sort(numbers.ravel())


def chips(mesh: dict[str, int]) -> list[dict[str, int]]:
    return [dict(zip(mesh, at, strict=True)) for at in product(*(range(size) for size in mesh.values()))]


@pytest.mark.parametrize("layout", ["megatron", "ws2d", "wg-xy"])
def test_partition_specs_are_where_the_weights_lie(
    shardwright: Run, imported: Callable[..., Path], layout: str
) -> None:
    import jax

    path = imported(layout)
    made = exported(shardwright, path, "jax", "specs.py")
    mesh = jax.make_mesh(tuple(made.MESH.values()), tuple(made.MESH), devices=jax.devices()[:4])
    mapping = read_map(map_path(path))
    names = {name for entry in mapping.entries.values() for name in entry.tensors(mapping.sizes)}
    assert set(made.WEIGHTS) == names
    for entry in mapping.entries.values():
        name = entry.tensor.replace("{layer}", "0")
        shape = entry.stored_shape(mapping.sizes)
        sharding = jax.sharding.NamedSharding(mesh, made.WEIGHTS[name])
        array = jax.device_put(np.arange(math.prod(shape)).reshape(shape), sharding)
        held = {shard.device.id: np.sort(np.asarray(shard.data).ravel()) for shard in array.addressable_shards}
        for device, chip in zip(mesh.devices.ravel(), chips(made.MESH), strict=True):
            np.testing.assert_array_equal(held[device.id], stored_blocks(path, name, chip), err_msg=name)


def test_specs_of_edges_are_those_of_the_compiled_module(shardwright: Run, imported: Callable[..., Path]) -> None:
    path = imported("ws2d")
    made = exported(shardwright, path, "jax", "specs.py")
    compiled_at = path.with_name("compiled.py")
    compiled_at.write_text(compile_program(load(str(path)), validate=False).text)
    compiled = import_file(compiled_at)
    assert tuple(made.IN_SPECS["forward"].values()) == compiled.IN_SPECS["forward"]
    assert tuple(made.OUT_SPECS["forward"].values()) == compiled.OUT_SPECS["forward"]


@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
def test_constraints_bring_jit_to_the_written_layouts(shardwright: Run, tmp_path: Path, axes: str) -> None:
    import jax
    import jax.numpy as jnp

    path = tmp_path / "plain.shard"
    path.write_text(PLAIN)
    made = exported(shardwright, path, "jax", "specs.py")
    kinds = (getattr(jax.sharding.AxisType, axes),) * 2
    mesh = jax.make_mesh(tuple(made.MESH.values()), tuple(made.MESH), axis_types=kinds)

    def placed(spec: Any) -> Any:
        return jax.sharding.NamedSharding(mesh, spec)

    def f(weights: Any, a: Any) -> Any:
        h = jnp.maximum(a @ weights["w_in"], 0)
        if axes == "Explicit":
            return jnp.matmul(h, weights["w_out"], out_sharding=placed(made.CONSTRAINTS["f"]["o"]))
        return jax.lax.with_sharding_constraint(h @ weights["w_out"], placed(made.CONSTRAINTS["f"]["o"]))

    assert made.CONSTRAINTS["f"]["o"] == made.OUT_SPECS["f"][0] == jax.sharding.PartitionSpec("x", "y")
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=placed(made.WEIGHTS[name]))
               for name, shape in {"w_in": (32, 64), "w_out": (64, 32)}.items()}  # fmt: skip
    a = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=placed(made.IN_SPECS["f"]["a"]))
    text = jax.jit(f).lower(weights, a).compile().as_text()
    assert "all-gather" not in text  # the weights and the activations stay where they are
    assert "o = jax.lax.with_sharding_constraint(o, P('x', 'y')), or at its product out_sharding=P('x', 'y')" in (
        path.with_name("specs.py").read_text()
    )


@pytest.mark.parametrize("layout", ["megatron", "ws2d"])
def test_placements_are_where_the_weights_lie(shardwright: Run, imported: Callable[..., Path], layout: str) -> None:
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    path = imported(layout)
    made = exported(shardwright, path, "dtensor", "dtensor_layouts.py")
    mapping = read_map(map_path(path))
    for entry in mapping.entries.values():
        name = entry.tensor.replace("{layer}", "0")
        shape = entry.stored_shape(mapping.sizes)
        numbers = np.arange(math.prod(shape)).reshape(shape)
        for chip in chips(made.MESH):
            at = list(chip.values())
            local, offset = _compute_local_shape_and_global_offset(
                shape, tuple(made.MESH.values()), at, made.PLACEMENTS[name]
            )
            box = tuple(slice(start, start + size) for start, size in zip(offset, local, strict=True))
            np.testing.assert_array_equal(np.sort(numbers[box].ravel()), stored_blocks(path, name, chip))


@pytest.mark.parametrize(
    ("mesh", "written"), [("", "{}"), ("mesh x=2\n", "{'x': 2}"), ("mesh x=2 y=4\n", "{'x': 2, 'y': 4}")]
)
def test_the_mesh_of_placements_is_written_as_a_dict(shardwright: Run, tmp_path: Path, mesh: str, written: str) -> None:
    path = tmp_path / "one.shard"
    path.write_text(
        f"{mesh}dim B=16 E=32 F=64\nweights {{ w: EF }}\nfunc f(a: BE) -> BF {{\n  h = a @ w\n  return h\n}}\n"
    )
    done = shardwright("export", path, "--as", "dtensor")
    assert f"\nMESH = {written}\n" in done.out
    lies = ", ".join(["Replicate()"] * mesh.count("="))
    assert f"PLACEMENTS = {{\n    'w': [{lies}],\n}}\n" in done.out


def test_a_plan_of_modules(shardwright: Run, imported: Callable[..., Path]) -> None:
    made = exported(shardwright, imported("megatron"), "dtensor", "dtensor_layouts.py")
    assert {name: type(style).__name__ for name, style in made.PLAN.items()} == {
        "model.embed_tokens": "RowwiseParallel",
        **{
            f"model.{name}": {"colwise": "ColwiseParallel", "rowwise": "RowwiseParallel"}[style]
            for name, style in TP_PLAN.items()
        },
        "lm_head": "ColwiseParallel",
    }
    assert made.PLAN_AXES == ("x", "y")
    done = shardwright("export", imported("ws2d"), "--as", "dtensor")
    assert "# No plan for parallelize_module: attention_norm: model.layers.{layer}.input_layernorm.weight" in done.out


TWO_LOOPS = """
mesh x=2 y=2
dim B=8 E=16 N=2

weights {
  a: f32 NE
}

func f(u: f32 BE_x) -> f32 BE_x {
  v: f32 BE_x = loop[N](h: f32 BE_x = u) {
    k: f32 BE_x = tanh(h) * a
    g: f32 B_xE = k
    next exp(g)
  }
  w: f32 BE_x = loop[N](h: f32 BE_x = v) {
    k: f32 BE_x = tanh(h) * a
    g: f32 B_xE = k
    next exp(g)
  }
  return w
}
"""


def test_a_name_that_two_loops_use_has_two_constraints(shardwright: Run, tmp_path: Path) -> None:
    path = tmp_path / "loops.shard"
    path.write_text(TWO_LOOPS)
    found = exported(shardwright, path, "jax", "specs.py").CONSTRAINTS["f"]
    spec = type(found["k"])
    assert (found["k"], found["k (2)"]) == (spec("x"), spec("x"))


def test_another_order_than_that_of_the_mesh_is_refused_to_dtensor(shardwright: Run, tmp_path: Path) -> None:
    path = tmp_path / "turned.shard"
    path.write_text(PLAIN.replace("E=32", "E=32 order y x").replace("a: B_xE)", "a: BE_xy)").replace("x=2", "x=2"))
    done = shardwright("export", path, "--as", "jax")
    assert "'a': P(None, ('y', 'x'))" in done.out
    path.write_text(path.read_text().replace("w_in: EF_y", "w_in: E_xyF"))
    done = shardwright("export", path, "--as", "dtensor")
    assert done.status == 1
    assert done.err == (
        f"{path}: error: w_in: blocks of w_in go to the chips by y x, and DTensor's by the order of the mesh, x y "
        "[not-exported]\nnote: declare that order of digits: dim ... order x y\n"
    )


def test_columns_that_nothing_takes_have_no_plan() -> None:
    """Attention whose queries, keys and values are made by heads, and gathered before the product after it."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = (f(x).view(*x.shape[:2], -1, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
            mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            return x + self.o(mixed.transpose(1, 2).reshape(*x.shape))

    traced = trace(Attention().eval(), (torch.randn(2, 12, 32),), mesh={"data": 2, "model": 4})
    text = export(traced.program, "dtensor", weights=traced.weight_map).text
    assert "'q.weight': [Replicate(), Shard(0)]" in text
    assert "# No plan for parallelize_module: k is split by columns, and no module beside it is by rows" in text


def test_constants_of_a_module_have_no_placements() -> None:
    import torch
    from torch import nn

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x) * torch.tensor([1.0, -2.0, 3.0, 0.5])

    traced = trace(Shifted().eval(), (torch.randn(2, 3),), mesh={"x": 2})
    assert len(traced.program.weights) == 3
    text = export(traced.program, "dtensor", weights=traced.weight_map).text
    assert re.findall(r"^    '(.*)':", text, re.MULTILINE) == ["up.bias", "up.weight"]


def test_experts_that_chips_divide_have_no_specs(shardwright: Run, imported: Callable[..., Path]) -> None:
    path = imported("megatron", "x=2", MIXTRAL)
    text = path.read_text().replace("w_up: f32 NXEF_x", "w_up: f32 NX_xEF")
    assert "NX_xEF" in text
    path.write_text(text)
    done = shardwright("export", path, "--as", "jax")
    assert done.status == 1
    stored = "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight is one tensor for each index of X"
    assert done.err == (
        f"{path}: error: w_up: f32 NX_xEF divides X over x, and {stored} [not-exported]\nnote: leave X whole\n"
    )


@pytest.mark.parametrize("to", ["jax", "dtensor"])
def test_weights_have_their_dimensions_in_any_order(shardwright: Run, imported: Callable[..., Path], to: str) -> None:
    path = imported("megatron")
    before = shardwright("export", path, "--as", to).out
    text = path.read_text().replace("w_up: f32 NEF_xy", "w_up: f32 NF_xyE")
    assert "NF_xyE" in text
    path.write_text(text)
    assert shardwright("export", path, "--as", to).out == before


def test_split_parts_of_a_fused_tensor_have_no_specs(shardwright: Run, imported: Callable[..., Path]) -> None:
    path = imported("megatron", "x=2", LLAMA | {"architectures": ["Phi3ForCausalLM"], "pad_token_id": 0})
    done = shardwright("export", path, "--as", "jax")
    assert done.status == 1
    assert done.err == (
        f"{path}: error: wq is 0:8 of 16 in a dimension of model.layers.{{layer}}.self_attn.qkv_proj.weight, and chips "
        "that split it would hold a piece of each part [not-exported]\nnote: leave K whole\n"
    )


@pytest.mark.parametrize("change", ["sizes", "dims"])
def test_mappings_of_other_programs_are_refused(shardwright: Run, imported: Callable[..., Path], change: str) -> None:
    path = imported("megatron")
    beside = map_path(path)
    mapping = json.loads(beside.read_text())
    if change == "sizes":
        mapping["sizes"]["F"] *= 2
    else:
        mapping["weights"]["w_gate"] |= {"dims": ["E", "F"], "tensor": "gate", "stored": [["F"], ["E"]]}
    beside.write_text(json.dumps(mapping))
    done = shardwright("export", path, "--as", "jax")
    assert done.status == 1
    assert done.err == (
        f"{path}: error: w_gate: f32 NEF_xy has another shape than in the checkpoint [not-exported]\n"
        "note: OUT.weights.json is of another program, or of other sizes: write it with shardwright import\n"
    )


NO_NAMES = ("w{x}", "a'b", 'a"b', "model.{layer}.{layer.real}", "a b")


@pytest.mark.parametrize(
    ("to", "name"),
    all_with_slow(
        ("jax", "dtensor"), NO_NAMES, chosen=lambda to, name: (to == "jax") == (NO_NAMES.index(name) % 2 == 0)
    ),
)
def test_names_that_could_be_code_are_refused(
    shardwright: Run, imported: Callable[..., Path], name: str, to: str
) -> None:
    path = imported("megatron")
    beside = map_path(path)
    value = json.loads(beside.read_text())
    value["weights"]["w_up"]["tensor"] = f"{name}.{{layer}}"
    beside.write_text(json.dumps(value))
    done = shardwright("export", path, "--as", to)
    assert done.status == 1
    assert "of which w_up is made, is no name of a tensor [not-exported]" in done.err


def test_shardy_is_parsed_and_compiled_again(shardwright: Run, imported: Callable[..., Path]) -> None:
    import jax
    from jax.extend import backend
    from jax.interpreters import mlir
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    text = exported(shardwright, imported("ws2d"), "shardy", "out.mlir")
    for word in ('sdy.mesh @mesh = <["x"=2, "y"=2]>', "sdy.sharding = #sdy.sharding<@mesh", "sdy.manual_computation"):
        assert word in text
    devices = jax.devices()[:4]
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        assert module.operation.verify()
        options = backend.get_compile_options(1, 4, np.array([devices]), backend=devices[0].client)
        options.executable_build_options.use_shardy_partitioner = True
        made = devices[0].client.compile_and_load(module, xla_client.DeviceList(tuple(devices)), options)
    hlo = made.hlo_modules()[0].to_string()
    assert "reduce-scatter" in hlo
    assert "all-gather" in hlo


def test_a_graph_for_model_explorer(shardwright: Run, imported: Callable[..., Path]) -> None:
    made = json.loads(exported(shardwright, imported("ws2d"), "model-explorer", "graph.json"))
    (graph,) = made["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"])
    for node in nodes.values():
        for edge in node["incomingEdges"]:
            outputs = {output["id"] for output in nodes[edge["sourceNodeId"]]["outputsMetadata"]}
            assert edge["sourceNodeOutputId"] in outputs
    (data,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    moved = {edge["targetNodeId"] for overlay in data["overlays"] for edge in overlay["edges"]}
    assert {nodes[each]["label"] for each in moved} == {"all_to_all", "all_gather", "all_reduce", "reduce_scatter"}
    gathered = next(node for node in nodes.values() if node["label"] == "all_gather")
    assert {attr["key"] for attr in gathered["outputsMetadata"][0]["attrs"]} >= {"type", "bytes on a chip"}
    assert any(node["namespace"].endswith("loop[N]") for node in nodes.values())


def test_state_in_pieces_is_refused_as_weights_are(shardwright: Run, tmp_path: Path) -> None:
    """No array of JAX lies so that is no array of digits."""
    (tmp_path / "f.shard").write_text("""
        mesh x=2 y=2
        dim B=8 E=16 order x y
        state { c: f32 BE_y }
        func f(x: f32 BE_xy) -> f32 BE {
          set c = c + x
          return x
        }
    """)
    done = shardwright("export", tmp_path / "f.shard", "--as", "jax")
    assert done.status == 1
    assert "c: f32 BE_y is not in blocks under the order of its digits [not-exported]" in done.err


def test_a_program_without_a_mesh_has_one_chip_in_shardy(shardwright: Run, tmp_path: Path) -> None:
    (tmp_path / "f.shard").write_text("dim B=4\nfunc f(a: f32 B) -> f32 B { return a + 1 }\n")
    done = shardwright("export", tmp_path / "f.shard", "--as", "shardy")
    assert done.status == 0, done.err
    assert 'sdy.mesh @mesh = <["chips"=1]>' in done.out


@pytest.mark.parametrize(
    ("to", "shared", "lines"),
    [
        ("dtensor", " on device 25% disk 75% along E", (
            "    'u': [Shard(0)],\n    'v': [Shard(0)],  # on device 25% disk 75% along E\n"
            "    'w': [Shard(0)],  # on host\n"
        )),
        ("jax", "", "    'u': P('x'),\n    'v': P('x'),\n    'w': P('x'),  # on host: memory_kind='pinned_host'\n"),
    ],
)  # fmt: skip
def test_memories_stand_beside_layouts(to: str, shared: str, lines: str, shardwright: Run, tmp_path: Path) -> None:
    (tmp_path / "f.shard").write_text(f"""
        mesh x=2
        dim B=8 E=16
        weights {{
          u: f32 E_x
          v: f32 E_x{shared}
          w: f32 E_x on host
        }}
        func f(x: f32 BE_x) -> f32 BE_x {{
          return x * u * v * w
        }}
    """)
    done = shardwright("export", tmp_path / "f.shard", "--as", to)
    assert done.status == 0, done.err
    assert lines in done.out
