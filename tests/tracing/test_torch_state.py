"""Buffers that a module changes are state of its program: after several calls both hold the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Outcome
from torch import nn

from shardwright import evaluate, trace
from shardwright.backends.jax.module_files import load_module
from shardwright.compiling.compile_program import compile_program, load
from shardwright.ir.diagnostics import Source
from shardwright.tracing.trace import Trace


class CachedLayer(nn.Module):
    """Attention over rows that earlier calls have left."""

    def __init__(self, features: int, rows: int) -> None:
        super().__init__()
        for name in ("wq", "wk", "wo"):
            setattr(self, name, nn.Linear(features, features, bias=False))
        self.register_buffer("rows", 0.1 * torch.randn(3, rows, features))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(1, at, self.wk(x)[:, None])
        scores = torch.softmax(torch.einsum("be,bte->bt", self.wq(x), self.rows), -1)
        return x + self.wo(torch.einsum("bt,bte->be", scores, self.rows))


class CachedLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList([CachedLayer(10, 7) for _ in range(3)])

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, at)
        return x


class Exchanged(nn.Module):
    """Buffers that take each other's place, one that nothing reads, a count, and an argument that is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.arange(4.0))
        self.register_buffer("b", torch.ones(4))
        self.register_buffer("last", torch.zeros(1, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool), persistent=False)
        self.register_buffer("fixed", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before, after, seen = self.a.clone(), self.b.clone(), self.seen.clone()
        self.b.copy_(self.a)
        self.a.copy_(after)
        self.last.copy_(x[None])
        self.calls += 1
        self.seen.logical_or_(x > 0)
        x.mul_(self.fixed)
        return before, x + self.a, self.calls, seen


def called_twice(traced: Trace, module: nn.Module, calls: list[list[Any]]) -> dict[str, Any]:
    """Calls the module and its program in turn, and compares what they give; returns the program's state."""
    state = {value.name: traced.weights[value.name] for value in traced.program.state}
    weights = {value.name: traced.weights[value.name] for value in traced.program.weights}
    for given in calls:
        inputs = {name: each.numpy().copy() for (_, name, _), each in zip(traced.inputs, given, strict=True)}
        found, state = evaluate(traced.program, traced.program.funcs[0].name, inputs, weights, state)
        with torch.no_grad():
            expected = module(*given)
        for one, other in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-6)
    return dict(state)


def test_caches_of_layers_are_one_state_that_a_loop_sets() -> None:
    module = CachedLayers().eval()
    calls = [[torch.randn(3, 10), torch.tensor([at])] for at in (2, 3, 6)]
    traced = trace(module, calls[0])
    assert [value.name for value in traced.program.state] == ["layers_rows"]
    assert "    set layers_rows = " in traced.text
    state = called_twice(traced, module, calls)
    expected = np.stack([layer.rows.numpy() for layer in module.layers])
    np.testing.assert_allclose(state["layers_rows"], expected, rtol=1e-5, atol=1e-6)
    assert "layers_rows" not in traced.weight_map.entries
    assert "layers.0.rows" in traced.weight_map.ignored


def test_old_versions_are_kept_where_they_are_returned_or_exchanged() -> None:
    module = Exchanged().eval()
    traced = trace(module, [torch.randn(4)])
    assert [value.name for value in traced.program.weights] == ["fixed"]
    assert traced.notes == ("Exchanged changes its argument x in place, and the program does not",)
    before = {path: buffer.clone() for path, buffer in module.named_buffers()}
    state = called_twice(traced, module, [[torch.randn(4)] for _ in range(3)])
    for path, buffer in module.named_buffers():
        if path != "fixed":
            np.testing.assert_array_equal(state[path], buffer.numpy())
    assert before["calls"] == 0  # tracing has left the module as it was


def test_the_module_of_a_static_cache_decodes() -> None:
    """A model with a cache of a fixed length, in the form in which transformers exports it."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    config = LlamaConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).eval()
    model.generation_config.use_cache, model.generation_config.cache_implementation = True, "static"
    tokens = torch.randint(0, 50, (2, 5))
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
    module = TorchExportableModuleWithStaticCache(model, 2, 9)
    traced = trace(module, (tokens[:, :1], None, torch.tensor([0])), name="decode")
    assert {"key_cache", "value_cache"} <= {value.name for value in traced.program.state}
    assert traced.operations["attend"] == 1
    compiled = compile_program(load(Source("decode.shard", traced.text), {"x": 2}))
    module = load_module(compiled.text)
    mesh = module.make_mesh()
    kept = [
        {value.name: traced.weights[value.name] for value in values}
        for values in (traced.program.weights, traced.program.state)
    ]
    weights, state = module.put(kept[0], module.WEIGHTS, mesh), module.put(kept[1], module.STATE, mesh)
    step = module.build_decode(mesh)
    for at in range(5):
        inputs = tokens[:, at : at + 1].numpy().astype(np.int32), np.array([at], np.int32)
        logits, state = step(weights, state, *inputs)
        np.testing.assert_allclose(np.asarray(logits)[:, 0], expected[:, at].numpy(), rtol=1e-4, atol=1e-5)


def test_the_command_tells_of_state_and_of_what_is_lost(
    shardwright: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("counts.py").write_text(
        "import torch\n"
        "class Counts(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('n', torch.zeros(3))\n"
        "    def forward(self, x):\n"
        "        self.n += 1\n"
        "        return x.add_(self.n)\n"
        "def example_args():\n"
        "    return (torch.randn(3),)\n"
    )
    made = shardwright("trace", "counts.py:Counts", "-o", "counts.shard", "--json")
    assert made.err == "counts.py: note: Counts changes its argument x in place, and the program does not\n"
    assert json.loads(made.out)["state"] == [{"path": "n", "name": "n", "type": "f32 B?"}]
