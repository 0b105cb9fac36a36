"""Modules of PyTorch, traced: each program means what the module computes, under its own weights and others."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Outcome
from torch import nn

from shardwright import DiagnosticError, evaluate, load, trace
from shardwright.backends.jax.module_files import load_module
from shardwright.compiling.checking import check
from shardwright.tracing.trace import user_module

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
         "max_position_embeddings": 40}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("Llama", "ForCausalLM", {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3", "ForCausalLM", {"num_key_value_heads": 2, "head_dim": 8}),
    "gemma2": ("Gemma2", "ForCausalLM", {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}),
    "cohere": ("Cohere", "ForCausalLM", {"num_key_value_heads": 2}),
    "gpt2": ("GPT2", "LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 40}),
    "opt": ("OPT", "ForCausalLM", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "neox": ("GPTNeoX", "ForCausalLM", {}),
    "mixtral": ("Mixtral", "ForCausalLM", {"num_key_value_heads": 2, "num_local_experts": 4}),
    "bert": ("Bert", "ForMaskedLM", {}),
    "mamba": ("Mamba", "ForCausalLM", {"state_size": 4}),
}


class Logits(nn.Module):
    """A model of transformers as a function of tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def model_of(name: str, **others: Any) -> Logits:
    import transformers

    kind, head, own = MODELS[name]
    own = own | others
    torch.manual_seed(0)
    sizes = own if name == "gpt2" else SIZES | own
    model = getattr(transformers, f"{kind}{head}")(getattr(transformers, f"{kind}Config")(**sizes))
    if name == "mixtral":
        model.set_experts_implementation("batched_mm")
    return Logits(model.eval())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_of_transformers(name: str) -> None:
    ids = torch.randint(0, 64, (2, 9))
    traced = trace(model_of(name), (ids,), name="forward")
    assert traced.largest_relative_difference < 1e-5
    assert check(traced.program)
    weights = {value.name for value in traced.program.weights}
    assert weights == set(traced.weights)
    assert all(re.search(r"V\d*\?$", result[2]) for result in traced.results)
    (found,), _ = evaluate(
        traced.program, "forward", {traced.inputs[0][1]: ids.numpy().astype(np.int32)}, traced.weights
    )
    with torch.no_grad():
        expected = model_of(name)(ids).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5 * float(np.abs(expected).max()))


class Stem(nn.Module):
    """Convolutions with strides and groups, a sort, and rows scattered by indices."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(6, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(4, 6, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = self.first(x)
        values, order = torch.sort(made, dim=1, descending=True)
        back = torch.zeros_like(made).scatter(1, order, values * 2)
        return values, back, self.second(image)


def test_what_one_call_computes() -> None:
    traced = trace(Stem().eval(), (torch.randn(2, 6, 9), torch.randn(2, 4, 5, 7)))
    assert traced.largest_relative_difference < 1e-5
    assert traced.opaque == ("conv_general_dilated",)


def test_a_llama_of_transformers_reads_as_one() -> None:
    """Norms, SwiGLU, rotary embeddings of queries and keys, causal attention, once for all layers."""
    traced = trace(model_of("llama", num_hidden_layers=4), (torch.randint(0, 64, (2, 9)),), name="forward")
    assert traced.largest_relative_difference < 1e-5
    found = {name: traced.operations.get(name, 0) for name in ("rmsnorm", "silu", "rotary", "attend", "softmax", "cos")}
    assert found == {"rmsnorm": 3, "silu": 1, "rotary": 2, "attend": 1, "softmax": 0, "cos": 0}
    assert len(re.findall(r"causal=\w+", traced.text)) == 1
    two = trace(model_of("llama"), (torch.randint(0, 64, (2, 9)),), name="forward")
    assert two.text.replace(" N=2 ", " N=4 ") == traced.text


def test_weights_go_by_their_paths_and_shared_ones_once() -> None:
    traced = trace(model_of("opt"), (torch.randint(0, 64, (2, 9)),))
    tables = [name for name in traced.weights if "embed_tokens" in name or "lm_head" in name]
    assert len(tables) == 1
    types = {value.name: str(value.type) for value in traced.program.weights}
    assert types["model_model_decoder_layers_fc1_weight"] == "f32 NFE?"
    assert "constant" not in traced.weights


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(24, 16)
        self.norm, self.rms = nn.LayerNorm(16), nn.RMSNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.batch_norm = nn.BatchNorm1d(16)
        self.register_buffer("mask", torch.ones(6, 6).tril().bool())

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        x = self.table(batch["ids"])
        x = x + self.attention(self.norm(x), x, x, attn_mask=~self.mask, need_weights=False)[0]
        x = self.batch_norm(self.rms(self.layer(x)).transpose(1, 2)).transpose(1, 2)
        logits = torch.nn.functional.linear(x, self.table.weight)
        return logits, {"best": logits.argmax(-1), "scaled": logits * batch["scale"]}


def test_layouts_go_back_to_the_paths_of_the_module() -> None:
    import shardwright

    traced = trace(model_of("llama"), (torch.randint(0, 64, (2, 9)),), mesh={"x": 2})
    done = shardwright.export(traced.program, "jax", weights=traced.weight_map)
    names = re.findall(r"""^    (?:\*\*\{f)?['"](model\.[\w.{}]+)['"]: P\(""", done.text, re.MULTILINE)
    assert set(names) == set(traced.paths.values())
    mapping = traced.weight_map
    tensors = {name for entry in mapping.entries.values() for name in entry.tensors(mapping.sizes)}
    assert {name for name, _ in model_of("llama").named_parameters()} <= tensors


def test_own_modules_with_trees_of_arguments() -> None:
    torch.manual_seed(1)
    args = ({"ids": torch.randint(0, 24, (3, 6)), "scale": torch.rand(6, 1)},)
    traced = trace(Block(), args)
    assert traced.largest_relative_difference < 1e-5
    assert [path for path, _, _ in traced.inputs] == ["0.ids", "0.scale"]
    assert "mask" in traced.weights


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.taps = nn.Conv2d(3, 16, 4, stride=4), nn.Conv1d(16, 16, 3, padding=1, groups=16)
        self.mix = nn.Conv1d(16, 6, 2)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.taps(self.patch(image).flatten(2))
        blocks = image.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(len(image), 6, 48)
        return self.mix(x), image.unfold(3, 3, 2).mean(-1).sum() + blocks


def test_patches_and_taps() -> None:
    assert trace(Patches(), (torch.randn(2, 3, 8, 12),)).largest_relative_difference < 1e-5


def test_half_precision() -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(torch.bfloat16)
    traced = trace(module, (torch.randn(4, 16, dtype=torch.bfloat16),))
    assert "bf16" in traced.text
    assert traced.largest_relative_difference < 2e-2


def test_refuses_with_the_line() -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    with pytest.raises(DiagnosticError) as caught:
        trace(Chosen(), (torch.randn(4, 8),))
    place, line, *_, note = caught.value.render().splitlines()
    assert re.match(r".*test_torch.py:\d+:\d+: error: aten.\S+ has no counterpart in the language", place)
    assert line.strip() == "return torch.special.bessel_j0(x)"
    assert note == (
        'note: write this line with other operations, or declare this one: shardwright.kernel("a b, b c -> a c")'
        "(torch.ops.aten.special_bessel_j0), with its own axes"
    )


def test_what_depends_on_data_is_refused_with_the_line(tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\n\n\nclass Branches(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x if x.sum() > 0 else -x\n\n\nclass Called(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))\n\n\n"
        "class Number(torch.nn.Module):\n    def forward(self, x):\n        return x * x.mean().item()\n\n\n"
        "def example_args():\n    return (torch.randn(4),)\n"
    )
    said: dict[str, list[str]] = {}
    for name in ("Branches", "Called", "Number"):
        with warnings.catch_warnings(action="ignore"):  # PyTorch's own
            done = shardwright("trace", f"{file}:{name}", "-o", tmp_path / "out.shard")
        assert done.status == 1
        said[name] = done.err.replace(str(file), "FILE").splitlines()
    assert said["Branches"][0].startswith("FILE:6:9: error: torch.export cannot trace Branches: GuardOnDataDependent")
    assert said["Called"][0] == (
        "FILE:11:9: error: cond calls a graph, which has no counterpart in the language [untraceable]"
    )
    assert said["Number"][0] == "FILE:16:9: error: aten.item.default has no counterpart in the language [untraceable]"
    assert {name: lines[3:] for name, lines in said.items()} == {
        "Branches": [
            "note: where values decide what runs, or how large results are, torch.where chooses among what is there"
        ],
        "Called": ["note: write this line with other operations, or trace the parts before and after it"],
        "Number": ["note: leave it a tensor of no dimension to compute with; a size is a number of the module's own"],
    }


def test_a_function_of_tensors_is_no_module() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(DiagnosticError, match=r"doubled is no torch\.nn\.Module, and its example arguments are"):
        trace(doubled, (torch.randn(4),))


def test_a_module_that_has_several_paths_stays_as_it_is() -> None:
    """One layer under three names, and one weight in two modules, as of encoder-decoders."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(8, 8)
            self.first = self.middle = self.last
            self.other = nn.Linear(8, 8, bias=False)
            self.other.weight = nn.Parameter(self.last.weight.data)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.last(self.middle(self.first(x))))

    module, x = Shared(), torch.randn(4, 8)
    before = module(x)
    traced = trace(module, (x,))
    assert traced.largest_relative_difference < 1e-6
    assert torch.equal(module(x), before)
    assert list(traced.weights) == ["last_bias", "last_weight"]


def test_numbers_written_where_a_mask_says() -> None:
    class Written(nn.Module):
        def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x[x > 1] = 0.5
            x[rows] = -3.0
            x[:, :, rows] = 7.0
            x[..., 0].fill_(2.0)
            return x

    traced = trace(Written(), (torch.randn(4, 3, 4), torch.rand(4) > 0.5))
    assert traced.largest_relative_difference < 1e-6


def test_the_command(shardwright: Callable[..., Outcome], tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\n\n\ndef model():\n    torch.manual_seed(0)\n    return torch.nn.Linear(16, 8)\n\n\n"
        "def example_args():\n    return (torch.randn(4, 16),)\n"
    )
    out = tmp_path / "own.shard"
    done = shardwright("trace", f"{file}:model", "--mesh", "x=2", "-o", out, "--json")
    assert done.status == 0, done.err
    said = json.loads(done.out)
    assert said["largest_relative_difference"] < 1e-5
    assert [each["path"] for each in said["inputs"]] == ["0"]
    assert "func model(" in out.read_text()
    assert "weight: f32" in out.read_text()
    # Its weights go by the paths of the module, so that layouts are carried back under these.
    text = out.read_text()
    letters = re.search(r"\bweight: f32 (\w)(\w)\?", text)
    assert letters is not None
    out.write_text(text.replace(letters.group(), f"weight: f32 {letters[1]}_x{letters[2]}"))
    done = shardwright("export", out, "--as", "dtensor")
    assert "'weight': [Shard(0)]," in done.out, done.err
    own = "class Own(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    file.write_text(f"{file.read_text()}\n\n{own}")
    done = shardwright("trace", f"{file}:Own", "-o", out)
    assert done.status == 0, done.err
    file.write_text(file.read_text().replace("torch.nn.Linear(16, 8)", "3"))
    done = shardwright("trace", f"{file}:model", "-o", out)
    assert done.status == 1
    assert "model" in done.err


@pytest.mark.parametrize(
    "module",
    [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1, count_include_pad=False)],
    ids=str,
)
def test_pools(module: nn.Module) -> None:
    traced = trace(module.eval(), (torch.randn(2, 3, 8, 8),))
    assert traced.largest_relative_difference < 1e-6
    assert traced.opaque in (("reduce_window_max",), ("reduce_window_sum",))


def test_an_argument_that_is_none() -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None, y: torch.Tensor) -> torch.Tensor:
            made = self.linear(x) if mask is None else self.linear(x) * mask
            return made + y

    made = trace(Masked(), (torch.randn(2, 8), None, torch.randn(2, 4)))
    assert [name for _, name, _ in made.inputs] == ["x", "y"]
    assert made.largest_relative_difference < 1e-6


def test_faults_of_a_module_have_a_reason_and_a_way_out() -> None:
    import transformers

    with pytest.raises(DiagnosticError, match="Embedding fails at these arguments: IndexError: index out of range"):
        trace(torch.nn.Embedding(10, 4), (torch.tensor([[1, 12]]),))
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    with pytest.raises(DiagnosticError) as caught:
        trace(transformers.LlamaForCausalLM(config), (torch.tensor([[1, 2]]),))
    (diagnostic,) = caught.value.diagnostics
    assert [note.message for note in diagnostic.notes] == [
        "it returns a cache, which is no array: set model.config.use_cache = False"
    ]


def test_what_a_module_stores_and_its_program_does_not_read(
    shardwright: Callable[..., Outcome], tmp_path: Path
) -> None:
    """A normalization of batches counts them; no engine of language models serves what has one."""
    from safetensors.torch import save_file

    source = tmp_path / "own.py"
    source.write_text(
        "import torch\ndef made():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))\n"
        "def example_args(): return (torch.randn(4, 8),)\n"
    )
    path = tmp_path / "out.shard"
    assert shardwright("trace", f"{source}:made", "-o", path).status == 0
    mapping = json.loads((tmp_path / "out.weights.json").read_text())
    assert mapping["ignored"] == ["1.num_batches_tracked"]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    (tmp_path / "stored").mkdir()
    save_file(module.state_dict(), tmp_path / "stored" / "model.safetensors")
    done = shardwright("run", path, "--weights", tmp_path / "stored")
    assert done.status == 0, done.err
    done = shardwright("export", path, "--as", "vllm")
    assert done.status == 1
    assert done.err == (
        f"{path}: error: an engine serves a language model, and this program looks up no table by tokens "
        "[not-exported]\n"
        "note: --as jax and --as dtensor have layouts for any program\n"
    )


def test_one_tensor_twice_is_two_arguments() -> None:
    class Both(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * 2 + b

    x = torch.randn(3, 4)
    assert trace(Both(), (x, x)).largest_relative_difference < 1e-6


def test_widths_below_zero_cut() -> None:
    class Shifted(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(a, (0, 0, 1, -1)) + nn.functional.pad(a, (-1, 1), value=2.0)

    assert trace(Shifted(), (torch.randn(2, 5, 4),)).largest_relative_difference < 1e-6


def test_overloads_of_spreads_and_extremes() -> None:
    class Spread(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            both = torch.var_mean(a, 1, correction=0), torch.std_mean(a, unbiased=False)
            plain = torch.var(a, False), a.std(-1, unbiased=False), a.var(), a.std((0, 1), keepdim=True)
            return both, plain, torch.max(a, b), torch.min(a, b), torch.concat([a, b], -1), a.max(1)[0], b.min()

    args = torch.randn(3, 5), torch.randn(3, 5)
    assert trace(Spread(), args).largest_relative_difference < 1e-6


def test_convolutions_padded_by_name_and_weights_of_no_elements() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.same = nn.Conv2d(3, 4, (3, 2), padding="same")
            self.valid = nn.Conv1d(4, 4, 3, padding="valid", groups=2)
            self.registers = nn.Parameter(torch.zeros(1, 0, 6))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            rows = self.valid(nn.functional.hardtanh(self.same(a), -0.5, 2.0).flatten(2))
            return torch.cat([self.registers.expand(2, -1, -1), rows[..., :6]], 1)

    assert trace(Same(), (torch.randn(2, 3, 4, 5),)).largest_relative_difference < 1e-6


def test_pools_of_one_window() -> None:
    class Pooled(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            pool = nn.functional.avg_pool2d
            whole = pool(a, 2560, ceil_mode=True) + nn.functional.max_pool2d(a, (4, 9), padding=(0, 4))[..., :1]
            return whole + pool(a, (7, 5), (1, 9), (2, 0)) + pool(a, 1, (9, 2), ceil_mode=True)[..., :1]

    assert trace(Pooled(), (torch.randn(2, 300, 4, 5),)).largest_relative_difference < 1e-6


def test_buffers_of_bools_and_integers_are_loaded(shardwright: Callable[..., Outcome], tmp_path: Path) -> None:
    """A causal mask and an index of relative positions, as modules register them."""
    from safetensors.torch import save_file

    source = tmp_path / "own.py"
    source.write_text(
        "import torch\nclass Own(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        torch.manual_seed(0)\n        self.table = torch.nn.Parameter(torch.randn(7, 4))\n"
        "        self.register_buffer('mask', torch.randn(8, 8) > 0)\n"
        "        self.register_buffer('index', torch.randint(0, 7, (8,)))\n"
        "    def forward(self, x):\n"
        "        return (x @ self.mask.float()).masked_fill(self.mask, 2.0) @ self.table[self.index]\n"
        "def example_args(): return (torch.randn(8, 8),)\n"
    )
    path, folder = tmp_path / "out.shard", tmp_path / "stored"
    assert shardwright("trace", f"{source}:Own", "--mesh", "x=2", "-o", path).status == 0
    module = user_module(str(source)).Own()
    folder.mkdir()
    save_file(module.state_dict(), folder / "model.safetensors")
    done = shardwright("run", path, "--weights", folder)
    assert (done.status, "agrees within" in done.out) == (0, True), done.err
    assert shardwright("compile", path, "-o", tmp_path / "out.py").err == ""
    made = load_module((tmp_path / "out.py").read_text())
    mesh, x = made.make_mesh(), torch.randn(8, 8)
    run = getattr(made, f"build_{load(str(path)).funcs[0].name}")(mesh)
    found, _ = run(made.load_weights(folder, mesh), {}, x.numpy())
    np.testing.assert_allclose(found, module(x).detach().numpy(), atol=1e-5)
    save_file(module.state_dict() | {"index": torch.zeros(8)}, folder / "model.safetensors")
    done = shardwright("run", path, "--weights", folder)
    assert "error: tensor index in model.safetensors is F32, not one of I64, I32 [wrong-tensor]" in done.err
