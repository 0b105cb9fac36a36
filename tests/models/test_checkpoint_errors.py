"""What is said where a checkpoint's files, or the mapping of its weights, are at fault."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loaded_weights import load_weights
from models.checkpoints import config_of
from safetensors.numpy import load_file, save_file

from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.models.architectures import describe
from shardwright.models.checkpoint import CheckpointSource
from shardwright.models.config import Config, read_config
from shardwright.models.importing import import_model
from shardwright.models.weight_map import WeightMap, check_map, read_map, to_json, weight_map

Q1 = "model.layers.1.self_attn.q_proj.weight"

NOT_JSON = "not JSON: expecting property name enclosed in double quotes"


def mapping_of(name: str) -> WeightMap:
    return weight_map(describe(Config(config_of(name))))


def said(folder: Path, mapping: WeightMap | None = None) -> str:
    """The diagnostics of loading, with FOLDER for the folder."""
    made = mapping or mapping_of("llama-grouped")
    with pytest.raises(DiagnosticError) as caught:
        load_weights(folder, made, dict.fromkeys(made.entries, DType.F32))
    return caught.value.render().replace(str(folder), "FOLDER")


@pytest.fixture
def copy(checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("llama-grouped"), tmp_path / "copy"))


def change(folder: Path, tensors: dict[str, np.ndarray | None]) -> None:
    """Rewrites the weights with some replaced, or left out where None."""
    file = folder / "model.safetensors"
    merged = {**load_file(file), **tensors}
    save_file({name: array for name, array in merged.items() if array is not None}, file)


# ---------------------------------------------------------------- tensors


def test_missing_tensor(copy: Path) -> None:
    change(copy, {Q1: None})
    assert said(copy) == (
        f"FOLDER: error: tensor {Q1}, for wq, is not in model.safetensors [missing-tensor]\n"
        "note: did you mean model.layers.1.self_attn.v_proj.weight?"
    )


def test_many_missing_tensors(copy: Path) -> None:
    save_file({}, copy / "model.safetensors")
    text = said(copy)
    assert text.startswith("FOLDER: error: tensor model.embed_tokens.weight, for embed, is not in any file [missing-")
    assert text.count("error: ") == 5
    assert ", and so on: 21 such tensors [missing-tensor]" in text


def test_superfluous_tensor(copy: Path) -> None:
    change(copy, {"model.extra.weight": np.zeros(3, np.float32)})
    assert said(copy) == (
        "FOLDER: error: tensor model.extra.weight in model.safetensors is no weight of the program"
        " [superfluous-tensor]\n"
        "note: the config does not describe this checkpoint, or it was changed since the import"
    )


def test_known_buffers_are_left_out(copy: Path) -> None:
    made = mapping_of("llama-grouped")
    before = load_weights(copy, made, dict.fromkeys(made.entries, DType.F32))
    change(copy, {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(2, np.float32)})
    after = load_weights(copy, made, dict.fromkeys(made.entries, DType.F32))
    assert all((before[name] == after[name]).all() for name in made.entries)


def test_a_tied_copy_of_the_embeddings_is_left_out(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("llama-multihead-tied"), tmp_path / "copy"))
    change(folder, {"lm_head.weight": (embed := load_file(folder / "model.safetensors")["model.embed_tokens.weight"])})
    made = mapping_of("llama-multihead-tied")
    assert load_weights(folder, made, {"embed": DType.F32})["embed"].any()
    change(folder, {"lm_head.weight": embed + np.float32(1e-3)})  # which transformers uses, from version 5 on
    assert said(folder, made) == (
        "FOLDER: error: tensor lm_head.weight in model.safetensors is no copy of model.embed_tokens.weight, to which"
        " the config ties it [untied-tensor]\n"
        'note: set "tie_word_embeddings" to false in config.json to have it used, or leave it out'
    )


def test_wrong_shape(copy: Path) -> None:
    change(copy, {Q1: np.zeros((32, 16), np.float32)})
    assert said(copy) == (
        f"FOLDER: error: tensor {Q1} in model.safetensors has the shape [32, 16], not [32, 32] [wrong-tensor]"
    )


def test_wrong_number_format(copy: Path) -> None:
    change(copy, {Q1: np.zeros((32, 32), np.int8)})
    assert said(copy) == (
        f"FOLDER: error: tensor {Q1} in model.safetensors is I8, not one of F64, F32, BF16, F16 [wrong-tensor]"
    )


def test_a_tensor_in_two_files(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "a.safetensors")
    save_file({Q1: np.zeros((32, 32), np.float32)}, copy / "b.safetensors")
    assert said(copy) == f"FOLDER/b.safetensors: error: tensor {Q1} is also in a.safetensors [duplicate-tensor]"


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("kept", "reason", "notes"),
    [
        (0, "header too small", ""),
        (20, "invalid header length", ""),
        (
            -7,
            "incomplete metadata, file not fully covered",
            "note: tensor model.norm.weight ends at byte 96944\n",
        ),
    ],
)
def test_truncated_file(copy: Path, kept: int, reason: str, notes: str) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[: kept or 0])
    size = file.stat().st_size
    assert said(copy) == (
        f"FOLDER/model.safetensors: error: the file is truncated or corrupt: {reason} [corrupt-file]\n{notes}"
        f"note: it has {size} bytes; fetch it again"
    )


def test_a_file_that_is_cut_off_after_it_was_opened(copy: Path) -> None:
    made = mapping_of("llama-grouped")
    with CheckpointSource(copy, made, {"wq": DType.F32}) as source:
        file = copy / "model.safetensors"
        os.truncate(file, 50000)
        with pytest.raises(DiagnosticError) as caught:
            source.read("wq", tuple(slice(0, n) for n in source.shape("wq")))
    assert caught.value.render() == (
        f"{file}: error: tensor model.layers.0.self_attn.q_proj.weight cannot be read: the file had 96944 bytes when it"
        " was opened, and has 50000 now [corrupt-file]\n"
        "note: something changed it in the meantime; begin again when it is complete"
    )


LIES: list[tuple[dict[str, object], str, str]] = [
    ({"shape": [3]}, "invalid shape, data type, or offset for tensor", ""),
    ({"data_offsets": [4, 12]}, "invalid offset for tensor `a`", "note: tensor a ends at byte 82\n"),
    ({"data_offsets": [-8, 8]}, "", ""),
    (
        {"data_offsets": [0, 4000], "shape": [1000]},
        "incomplete metadata, file not fully covered",
        "note: tensor a ends at byte 4075\n",
    ),
]


@pytest.mark.parametrize(("changes", "reason", "notes"), LIES)
def test_a_header_that_is_untrue(copy: Path, changes: dict[str, object], reason: str, notes: str) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}).encode()
    file = copy / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    lines = said(copy).splitlines()
    first = f"FOLDER/model.safetensors: error: the file is truncated or corrupt: {reason}"
    if reason:
        assert lines[0] == f"{first} [corrupt-file]"
    else:
        assert lines[0].startswith(f"{first}invalid JSON in header: invalid value: integer `-8`")
    assert lines[1:] == [*notes.splitlines(), f"note: it has {file.stat().st_size} bytes; fetch it again"]


def test_a_folder_in_place_of_a_file(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "a.safetensors").mkdir()
    assert said(copy) == "FOLDER/a.safetensors: error: the file cannot be read: is a directory [unreadable-file]"


def test_corrupt_file(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\xff" * 4096)
    assert said(copy) == (
        "FOLDER/model.safetensors: error: the file is truncated or corrupt: header too large [corrupt-file]\n"
        "note: it has 4096 bytes; fetch it again"
    )


def test_no_files(tmp_path: Path) -> None:
    assert said(tmp_path) == "FOLDER: error: the folder holds no *.safetensors [no-weights]"
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert said(tmp_path) == (
        "FOLDER: error: the folder holds no *.safetensors; pytorch_model.bin is a pickle, which could run code and"
        " is not read [no-weights]\n"
        "note: save it as safetensors: model.save_pretrained(FOLDER)"
    )
    assert said(tmp_path / "pytorch_model.bin").endswith(
        "error: this is not a folder; weights are read from a folder with *.safetensors files [no-weights]"
    )


def test_index(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("llama-grouped", shard="20KB"), tmp_path / "copy"))
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    first, second = sorted(set(good["weight_map"].values()))[:2]
    at_home = f"FOLDER/{index.name}"

    def with_place(tensor: str, file: object) -> str:
        index.write_text(json.dumps({"weight_map": {**good["weight_map"], tensor: file}}))
        return said(folder)

    assert with_place(Q1, "../other.safetensors") == (
        f'{at_home}: error: tensor {Q1}: "../other.safetensors" is not the name of a file in this folder [bad-index]'
    )
    assert with_place(Q1, "gone.safetensors") == (
        f"{at_home}: error: tensor {Q1} is in gone.safetensors, and there is no such file [missing-file]"
    )
    away = next(file for file in (first, second) if file != good["weight_map"][Q1])
    assert with_place(Q1, away) == (
        f"FOLDER/{away}: error: tensor {Q1} is missing; {index.name} says that it is here [missing-tensor]"
    )
    index.write_text("[1]")
    assert said(folder) == (f"{at_home}: error: the index has no weight_map, an object from tensor to file [bad-index]")
    index.write_text("{")
    assert said(folder) == f"{at_home}:1:2: error: {NOT_JSON} [bad-index]\n  {{\n   ^"


# ---------------------------------------------------------------- the mapping's file


def test_the_mapping_survives_its_file(tmp_path: Path) -> None:
    for name in ("cohere-grouped-normed", "cohere-multiquery", "llama3", "falcon-grouped", "bigcode", "opt", "mixtral"):
        made = mapping_of(name)
        (tmp_path / "a.weights.json").write_text(to_json(made))
        assert read_map(tmp_path / "a.weights.json") == made


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda m: m.update(format="other"), 'the format is "other", not "shardwright weights 1"'),
        (lambda m: m["sizes"].update(E=0), "sizes: E is 0, not a whole number from 1 up"),
        (lambda m: m["sizes"].update({"E x": 2}), 'sizes: "E x" is not the name of a dimension'),
        (lambda m: m["sizes"].pop("E"), "embed: dimension E has no size"),
        (
            lambda m: m["weights"].update({"print": m["weights"]["wq"]}),
            'weights: "print" cannot be the name of a weight',
        ),
        (lambda m: m["weights"].update(wq=3), "wq is 3, not an object"),
        (lambda m: m["weights"]["wq"].update(dims="NEKGD"), 'wq: dims is "NEKGD", not a list of texts'),
        (lambda m: m["weights"]["wq"].update(stored=None), "wq: stored is null, not a list of lists"),
        (
            lambda m: m["weights"]["wq"].update(stored=[["K"], ["E"]]),
            "wq: stored has K E, and of dims a tensor has E K G D",
        ),
        (
            lambda m: m["weights"]["wq"].update(stored=[["K", {"of": 4, "take": [1, 6], "as": "G"}, "D"], ["E"]]),
            'wq: stored: {"of": 4, "take": [1, 6], "as": "G"} is no part of a dimension, like'
            ' {"of": 6, "take": [0, 4], "as": "G"}',
        ),
        (
            lambda m: m["weights"]["wq"].update(stored=[["K", {"of": 9, "take": [1, 3]}, "D"], ["E"]]),
            'wq: stored: {"of": 9, "take": [1, 3]} is no part of a dimension, like'
            ' {"of": 6, "take": [0, 4], "as": "G"}',
        ),
        (
            lambda m: m["weights"]["wq"].update(stored=[["D", {"of": 9, "take": [1, 9], "as": ["K", "G"]}], ["E"]]),
            "wq: stored: a part of several dimensions, K G, stands first of its list",
        ),
        (lambda m: m["weights"]["wq"].update(stored=[["K", 3], ["E"]]), 'wq: stored is ["K", 3], not a list of texts'),
        (
            lambda m: m["weights"]["wq"].update(tensor="{layer}.{expert}"),
            "wq: {expert} stands in the tensor's name, and dims have no X",
        ),
        (lambda m: m["weights"]["wq"].update(tensor=1), "wq: tensor is 1, not a name"),
        (
            lambda m: m["weights"]["wq"].update(tensor="q"),
            "wq: stored has K G D E, and of dims a tensor has N E K G D",
        ),
        (
            lambda m: m["weights"]["embed"].update(tensor="{layer}"),
            "embed: {layer} stands in the tensor's name, and dims have no N",
        ),
        (lambda m: m.update(architecture=None), "architecture is null, not a text"),
        (lambda m: m.update(ignored=[1]), "ignored is [1], not a list of texts"),
    ],
)
def test_faults_of_the_mapping(tmp_path: Path, change: Callable[[dict], object], what: str) -> None:
    value = json.loads(to_json(mapping_of("llama-grouped")))
    change(value)
    assert refused(tmp_path, json.dumps(value)) == what


def test_a_mapping_that_is_not_json(tmp_path: Path) -> None:
    assert refused(tmp_path, "{", ":1:2") == NOT_JSON
    assert refused(tmp_path, "[]") == "the file is [], not an object"
    assert refused(tmp_path, b"\xff") == "this is not a text file in UTF-8"


def refused(folder: Path, content: str | bytes, place: str = "") -> str:
    path = folder / "a.weights.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DiagnosticError) as caught:
        read_map(path)
    (only,) = caught.value.diagnostics
    assert caught.value.render().startswith(f"{path}{place}: error: ")
    assert (only.code, only.notes[0].message) == ("bad-weight-map", "write it anew with shardwright import")
    return only.message


def test_a_mapping_of_another_program() -> None:
    made = mapping_of("llama-grouped")

    def check(declaration: str) -> str:
        text = f"dim N=2 E=32 D=4 K=2 G=4\nweights {{ {declaration} }}\nfunc f(x: f32 E) -> f32 E {{\n  return x\n}}\n"
        source = Source("p.shard", text)
        with pytest.raises(DiagnosticError) as caught:
            check_map(made, elaborate(parse(source)))
        (only,) = caught.value.diagnostics
        return "\n".join([only.message, *(note.message for note in only.notes)])

    assert check("wqq: f32 NEKGD") == "the checkpoint's mapping has no weight wqq\ndid you mean wq?"
    assert check("wq: f32 NEGKD") == (
        "wq is N=2 E=32 G=4 K=2 D=4 in the program, and N=2 E=32 K=2 G=4 D=4 in the checkpoint\n"
        "--dim may change B and L of an imported program, not the sizes of its weights"
    )
    assert check("wq: int8 NEKGD") == "wq is int8, and checkpoints give f32, bf16, f16, int32 or bool"


# ---------------------------------------------------------------- configs


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read_config(tmp_path)
    assert caught.value.render() == (
        f"{tmp_path}: error: the folder holds no config.json [no-config]\n"
        "note: a checkpoint is a folder with config.json and, for its weights, *.safetensors"
    )
    with pytest.raises(DiagnosticError) as caught:
        read_config(tmp_path / "none")
    assert caught.value.render() == (
        f"{tmp_path}/none: error: there is no such file or folder [no-file]\n"
        "note: name a checkpoint on this machine: a folder with config.json, or that file"
    )


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"[1]", "the config is [1], not an object"),
        (b"\xff", "this is not a text file in UTF-8"),
        (b"[" * 100_000, "not JSON that can be read: it is nested too deeply"),
        (b"1" * 10_000, "not JSON that can be read: a number has thousands of digits"),
    ],
)
def test_a_config_that_is_not_one(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(DiagnosticError) as caught:
        read_config(tmp_path)
    assert caught.value.render() == f"{tmp_path}/config.json: error: {what} [bad-config]"


def test_a_config_that_is_no_json_is_shown_where_it_is_none(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, place, said in (
        ("{", "1:2", f"{NOT_JSON} [bad-config]\n  {{\n   ^"),
        (
            '{"model_type": "llama",\n "size" 4}\n',
            "2:9",
            "not JSON: expecting ':' delimiter [bad-config]\n   \"size\" 4}\n          ^",
        ),
    ):
        path.write_text(text)
        with pytest.raises(DiagnosticError) as caught:
            read_config(tmp_path)
        assert caught.value.render() == f"{path}:{place}: error: {said}"


KNOWN = (
    "CohereForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, FalconForCausalLM, GPT2LMHeadModel,"
    " GPTBigCodeForCausalLM, GPTJForCausalLM,"
    " GPTNeoXForCausalLM, Gemma2ForCausalLM, Gemma3ForCausalLM, GemmaForCausalLM, GraniteForCausalLM,"
    " LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, OPTForCausalLM, Olmo2ForCausalLM, Phi3ForCausalLM,"
    " PhiForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, StableLmForCausalLM,"
    " Starcoder2ForCausalLM"
)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {"architectures": ["LlamaForCausalML"]},
            f"the architecture LlamaForCausalML is not known; known are {KNOWN}\ndid you mean LlamaForCausalLM?",
        ),
        (
            {"architectures": ["T5ForConditionalGeneration"]},
            f"the architecture T5ForConditionalGeneration is not known; known are {KNOWN}",
        ),
        ({"architectures": "Llama"}, 'architectures is "Llama" in the config, not a list of names'),
        (
            {"architectures": None, "model_type": None},
            "the config names no architecture: it has neither architectures nor model_type",
        ),
        ({"architectures": None, "model_type": "bert"}, f"the architecture bert is not known; known are {KNOWN}"),
        ({"hidden_size": None}, "the config has no hidden_size"),
        ({"hidden_size": "32"}, 'hidden_size is "32" in the config, not a whole number from 1 up'),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0 in the config, not a whole number from 1 up"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000 in the config, not below 1e12"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1 in the config, not a number above 0"),
        ({"attention_bias": 1}, "attention_bias is 1 in the config, not true or false"),
        (
            {"hidden_act": "gelu_fst"},
            'hidden_act "gelu_fst" is not known; known are silu, swish, gelu, gelu_fast, gelu_new,'
            " gelu_pytorch_tanh, relu\ndid you mean gelu_fast?",
        ),
        ({"num_key_value_heads": 3}, "num_attention_heads=8 is not a multiple of num_key_value_heads=3"),
        (
            {"hidden_size": 36, "head_dim": None},
            "hidden_size=36 is not a multiple of num_attention_heads=8, and there is no head_dim",
        ),
        (
            {"rope_parameters": {"rope_type": "yarm", "factor": 2.0}},
            'rotary embeddings of rope_type "yarm" are not supported; default, linear, dynamic, llama3, yarn and'
            " longrope are",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 0.5}},
            "rope_parameters.rope_theta is 0.5, and yarn takes its logarithm: it is above 1",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, 2.0]}},
            "the config has no rope_parameters.long_factor",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, 2.0, 3.0], "long_factor": [1.0, 2.0]}},
            "rope_parameters.short_factor is [1.0, 2.0, 3.0] in the config, not a list of 2 numbers",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, -2.0]}},
            "rope_parameters.short_factor is -2.0 in the config, not a number above 0",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 1}},
            "longrope takes the logarithm of original_max_position_embeddings: it is above 1",
        ),
        ({"rope_parameters": {"rope_type": "linear"}}, "the config has no rope_parameters.factor"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor other than 1 is not supported here",
        ),
        (
            {"quantization_config": {"bits": 4}},
            "the checkpoint is quantized (quantization_config) with quant_method null and weight_block_size null, and"
            ' f32, bf16 and f16 weights are read, and "fp8" in blocks of [128, 128]\n'
            "import the checkpoint that it was quantized from",
        ),
        (
            {"max_position_embeddings": 16},
            "the length is 40, and the model has max_position_embeddings=16\ngive --length 16 or less",
        ),
    ],
)
def test_configs_at_fault(changes: dict[str, object], what: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_model(config_of("llama-grouped", **changes), "ws1d", Mesh.of(x=2), 2, 40)
    (only,) = caught.value.diagnostics
    assert "\n".join([only.message, *(note.message for note in only.notes)]) == what


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("falcon", {"alibi": True}, "position biases (ALiBi) are not supported (alibi)"),
        (
            "falcon",
            {"num_ln_in_parallel_attn": 2},
            "num_ln_in_parallel_attn=2 with parallel_attn true and new_decoder_architecture false is not supported",
        ),
        ("falcon", {"hidden_size": 36}, "the hidden size, 36, is not a multiple of the 8 heads"),
        (
            "falcon-grouped",
            {"num_kv_heads": 3},
            "the number of attention heads, 8, is not a multiple of the 3 heads of keys and values",
        ),
        (
            "qwen2-window",
            {"layer_types": ["full_attention", "chunked_attention"]},
            'layer_types is ["full_attention", "chunked_attention"] in the config, not a list of 2 of'
            " sliding_attention and full_attention",
        ),
        (
            "gemma3",
            {"layer_types": ["full_attention"]},
            'layer_types is ["full_attention"] in the config, not a list of 4 of sliding_attention and full_attention',
        ),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}},
            "rope_type yarn and longrope are not supported here: they would scale the scores of some layers alone",
        ),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scores that are scaled otherwise in each layer are not supported (scale_attn_by_inverse_layer_idx)",
        ),
        ("gpt2", {"add_cross_attention": True}, "attention to an encoder is not supported (add_cross_attention)"),
        (
            "stablelm",
            {"qk_layernorm": True},
            "a norm of each head whose weights are tensors of their own is not supported (qk_layernorm)",
        ),
        (
            "qwen3-moe",
            {"mlp_only_layers": [0]},
            "feedforward layers without experts among those with experts are not supported (mlp_only_layers,"
            " decoder_sparse_step)",
        ),
        (
            "deepseek-v3",
            {"first_k_dense_replace": -1},
            "first_k_dense_replace is -1 in the config, not a whole number from 0 up",
        ),
        (
            "deepseek-v3",
            {"topk_group": 1},
            "n_group=4, topk_group=1 and num_experts_per_tok=3 do not go with 8 experts",
        ),
        (
            "deepseek-v2",
            {"topk_method": "noaux"},
            'topk_method "noaux" is not known; greedy and group_limited_greedy are',
        ),
        ("deepseek-v2", {"attention_bias": True}, "biases of latent attention are not supported (attention_bias)"),
        ("qwen3-moe", {"num_experts_per_tok": 7}, "num_experts_per_tok=7 of num_local_experts=4"),
        (
            "gemma",
            {"use_bidirectional_attention": True},
            "attention to later positions is not supported (use_bidirectional_attention)",
        ),
        ("mixtral", {"num_experts_per_tok": 7}, "num_experts_per_tok=7 of num_local_experts=4"),
        (
            "phi",
            {"rope_parameters": {"partial_rotary_factor": 0.4}},
            "rotary embeddings turn pairs, and 0.4 of 8 elements is 3",
        ),
        ("llama-grouped", {"head_dim": 7}, "rotary embeddings turn pairs, and a head has 7 elements"),
        ("gptj", {"rotary_dim": 3}, "rotary embeddings turn pairs of a head's 4 elements, and rotary_dim is 3"),
        ("gptj", {"rotary_dim": None}, "rotary embeddings turn pairs of a head's 4 elements, and rotary_dim is 64"),
        ("gptj", {"n_positions": 20}, "the length is 40, and the model has n_positions=20\ngive --length 20 or less"),
        (
            "opt",
            {"activation_function": "gelu_10"},
            'activation_function "gelu_10" is not known; known are silu, swish, gelu, gelu_fast, gelu_new,'
            " gelu_pytorch_tanh, relu\ndid you mean gelu?",
        ),
    ],
)
def test_configs_of_other_architectures_at_fault(name: str, changes: dict[str, object], what: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_model(config_of(name, **changes), "ws1d", Mesh.of(x=2), 2, 40)
    (only,) = caught.value.diagnostics
    assert "\n".join([only.message, *(note.message for note in only.notes)]) == what


def test_unknown_layout() -> None:
    with pytest.raises(DiagnosticError) as caught:
        import_model(config_of("llama-grouped"), "ws3d", Mesh.of(x=2), 2, 40)
    (only,) = caught.value.diagnostics
    assert only.message == "there is no layout ws3d; there are megatron, ws1d, ws2d, wg-x, wg-xy, wg-xyz, and open"
    assert only.notes[0].message in {"did you mean ws1d?", "did you mean ws2d?"}


def test_a_model_type_alone_names_the_architecture() -> None:
    named = import_model(config_of("llama-grouped"), "ws1d", Mesh.of(x=2), 2, 40)
    assert import_model(config_of("llama-grouped", architectures=None), "ws1d", Mesh.of(x=2), 2, 40) == named
