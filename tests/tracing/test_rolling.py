"""Layers that a framework unrolled, found again: one loop over stacked weights, however many they are."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from conftest import Outcome
from torch import nn

import shardwright
from shardwright import Trace, trace
from shardwright.models.weight_map import read_map, to_json


class Layer(nn.Module):
    def __init__(self, wide: int = 12) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, wide), nn.Linear(wide, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Layers one after the other; what each gives is a result where `keeps`."""

    def __init__(self, layers: Sequence[nn.Module], *, keeps: bool = False) -> None:
        super().__init__()
        self.layers, self.head, self.keeps = nn.ModuleList(layers), nn.Linear(8, 5), keeps

    def forward(self, x: torch.Tensor) -> Any:
        made = [x]
        for layer in self.layers:
            made.append(layer(made[-1]))
        return [self.head(made[-1]), *made[1:]] if self.keeps else self.head(made[-1])


class Scaled(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 2 * torch.tanh(super().forward(x))


def traced(*layers: nn.Module, keeps: bool = False, mesh: dict[str, int] | None = None) -> Trace:
    made = trace(Stack(list(layers), keeps=keeps).eval(), (torch.randn(2, 3, 8),), name="forward", mesh=mesh)
    assert made.largest_relative_difference < 1e-5
    return made


def loops(made: Trace) -> list[int]:
    sizes = {dim.name: dim.size for dim in made.program.dims}
    return [sizes[dim] for dim in re.findall(r"loop\[(\w+) as", made.text)]


def paths(made: Trace) -> set[str]:
    mapping = made.weight_map
    return {name for entry in mapping.entries.values() for name in entry.tensors(mapping.sizes)}


def test_four_layers_are_as_long_as_two() -> None:
    short, long = traced(*(Layer() for _ in range(2))), traced(*(Layer() for _ in range(4)))
    assert short.text.replace("N=2", "N=4") == long.text
    assert loops(long) == [4]
    assert long.paths["layers_up_weight"] == "layers.{layer}.up.weight"
    assert long.weights["layers_up_weight"].shape == (4, 12, 8)
    stack = Stack([Layer() for _ in range(4)])
    assert paths(long) == {name for name, _ in stack.named_parameters()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("layers", "lengths", "weight"),
    [
        ([Layer(12), Layer(16)], [], "layers.0.up.weight"),
        ([Layer(16), Layer(), Layer(), Layer()], [3], "layers.{layer+1}.up.weight"),
        ([Layer(), Scaled(), Layer(), Scaled(), Layer(), Scaled()], [3], "layers.{2*layer+1}.up.weight"),
        ([Layer(), Layer(), Scaled(), Scaled(), Scaled()], [2, 3], "layers.{layer+2}.up.weight"),
    ],
    ids=["none", "first", "alternating", "two stacks"],
)
def test_layers_that_differ_stay_apart(layers: list[nn.Module], lengths: list[int], weight: str) -> None:
    made = traced(*layers)
    assert loops(made) == lengths
    assert weight in made.paths.values()
    assert paths(made) == {name for name, _ in Stack(layers).named_parameters()}


def test_a_shared_layer_is_no_stack() -> None:
    layer = Layer()
    assert loops(traced(layer, layer, layer)) == []


def test_what_each_layer_gives_is_taken_from_all() -> None:
    made = traced(*(Layer() for _ in range(3)), keeps=True)
    assert loops(made) == [3]
    assert [type_ for _, _, type_ in made.results][1:] == ["f32 BLE?"] * 3


@pytest.mark.parametrize("to", ["jax", "dtensor"])
def test_layouts_name_the_tensor_of_every_layer(to: str, tmp_path: Any) -> None:
    layers = [Layer(16), Layer(), Scaled(), Layer(), Scaled()]
    made = traced(*layers, mesh={"x": 2})
    file = tmp_path / "f.weights.json"
    file.write_text(to_json(made.weight_map), encoding="utf-8")
    assert read_map(file) == made.weight_map
    text = shardwright.export(made.program, to, weights=made.weight_map).text
    known: dict[str, Any] = {}
    names = {"P": jax.P, "Replicate": str, "Shard": str}
    table = re.search(r"^(?:WEIGHTS|PLACEMENTS) = \{$.*?^\}$", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    exec(table[0], names, known)
    (weights,) = known.values()
    assert set(weights) == {name for name, _ in Stack(layers).named_parameters()}


def test_a_folder_of_the_module_is_loaded(tmp_path: Any, shardwright: Callable[..., Outcome]) -> None:
    from safetensors.torch import save_file

    stack = Stack([Layer(16), Layer(), Layer(), Layer()])
    made = trace(stack.eval(), (torch.randn(2, 3, 8),), name="forward")
    (tmp_path / "f.shard").write_text(made.text, encoding="utf-8")
    (tmp_path / "f.weights.json").write_text(to_json(made.weight_map), encoding="utf-8")
    save_file(stack.state_dict(), tmp_path / "model.safetensors")
    done = shardwright("compile", tmp_path / "f.shard", "-o", tmp_path / "f.py")
    assert done.status == 0, done.err
    from shardwright.backends.jax.module_files import load_module

    module = load_module((tmp_path / "f.py").read_text(encoding="utf-8"))
    loaded = module.load_weights(tmp_path, module.make_mesh(jax.devices("cpu")))
    for name, array in made.weights.items():
        np.testing.assert_array_equal(np.asarray(loaded[name]), array)


def test_loops_of_python_over_closed_weights() -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    weights = [(jax.random.normal(k, (8, 12)), jax.random.normal(k, (12, 8))) for k in keys]

    def forward(x: jax.Array) -> jax.Array:
        for up, down in weights:
            x = x + jnp.tanh(x @ up) @ down
        return x

    made = trace(forward, (jnp.ones((4, 8)),))
    assert made.largest_relative_difference < 1e-5
    assert loops(made) == [6]

    def given(weights: Any, x: jax.Array) -> jax.Array:
        for up, down in weights:
            x = x + jnp.tanh(x @ up) @ down
        return x

    apart = trace(given, (weights, jnp.ones((4, 8))))
    assert loops(apart) == []  # parameters of the function, which stacking would copy
    assert len(apart.inputs) == 13
