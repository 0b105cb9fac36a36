"""What the compilers of TPUs and GPUs make of imported models: 13 families under every preset, prefill and decode.

    python bench/target_models.py [--model NAME ...] [--layout NAME ...] [--target T ...] [--page-size S]
                                  [--record FILE] [--processes P]

Each family is a published model at its own sizes but for two layers and a vocabulary of 4,096: 64 sequences of 128
tokens, a cache of 512 positions, with `--page-size` in pages for a quarter of these. A line of JSON for each function
goes to the record, and cells that it has are not run again. Prints for each target how many functions are as written
and within the memory predicted, and a row for each that is not. Needs the compilers (`shardwright targets`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from targets import Row, rows_of, table

from shardwright.compiling.compile_program import load
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.importing import import_model
from shardwright.models.layouts import PRESETS
from shardwright.models.value_types import Pages

MESHES = {
    "tpu-v5e:4x4": {"x": 4, "y": 4},
    "h100:8": {"x": 2, "y": 4},
    "tpu-v6e:2x4": {"x": 2, "y": 4},
    "h100:2x8": {"x": 2, "y": 8},
    "tpu-v4:4x4x4": {"x": 4, "y": 4, "z": 4},
}
BATCH, LENGTH, CACHE = 64, 128, 512
RECORD = Path(tempfile.gettempdir()) / "shardwright-target-models.jsonl"
MEMORY_SHARE, MEMORY_BYTES = 0.03, 64e6
"""How far what is held may be from the prediction: the larger of the two."""

_COMMON = {
    "num_hidden_layers": 2,
    "n_layer": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "n_positions": 2048,
}


def _config(architecture: str, **own: Any) -> dict[str, Any]:
    keys = {"architectures": [f"{architecture}ForCausalLM"], "torch_dtype": "bfloat16", **_COMMON}
    return {
        **keys,
        "model_type": architecture.lower().replace("gptneox", "gpt_neox").replace("bigcode", "_bigcode"),
        **own,
    }


def _sizes(hidden: int, feedforward: int, heads: int, kv_heads: int, head_dim: int | None = None) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": feedforward, "num_attention_heads": heads}
    return {**sizes, "num_key_value_heads": kv_heads, "head_dim": head_dim or hidden // heads}


CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "command-r": _config("Cohere", **_sizes(8192, 22528, 64, 64), layer_norm_eps=1e-5, logit_scale=0.0625),
    "llama-3-8b": _config("Llama", **_sizes(4096, 14336, 32, 8)),
    "opt-6.7b": _config("OPT", hidden_size=4096, ffn_dim=16384, num_attention_heads=32, word_embed_proj_dim=4096),
    "gptj-6b": _config("GPTJ", n_embd=4096, n_head=16, rotary_dim=64, n_inner=16384),
    "gpt-neox-20b": _config(
        "GPTNeoX", hidden_size=6144, intermediate_size=24576, num_attention_heads=64, rotary_pct=0.25
    ),
    "falcon-40b": _config(
        "Falcon", hidden_size=8192, num_attention_heads=128, num_kv_heads=8, new_decoder_architecture=True,
        ffn_hidden_size=32768,
    ),
    "starcoder": _config("GPTBigCode", n_embd=6144, n_head=48, n_inner=24576, multi_query=True),
    "mistral-7b": _config("Mistral", **_sizes(4096, 14336, 32, 8), sliding_window=None),
    "qwen2-7b": _config("Qwen2", **_sizes(3584, 18944, 28, 4)),
    "qwen3-8b": _config("Qwen3", **_sizes(4096, 12288, 32, 8, 128)),
    "gemma-7b": _config("Gemma", **_sizes(3072, 24576, 16, 16, 256), hidden_activation="gelu_pytorch_tanh"),
    "phi-2": _config("Phi", **_sizes(2560, 10240, 32, 32), partial_rotary_factor=0.4),
    "mixtral-8x7b": _config("Mixtral", **_sizes(4096, 14336, 32, 8), num_local_experts=8, num_experts_per_tok=2),
}  # fmt: skip
"""The families, each as the config.json of a published model with two layers and a small vocabulary."""


def measure(cell: tuple[str, str, str, int | None]) -> list[Row]:
    """The rows of one model under one preset on one target, with pages of so many positions if any."""
    model, layout, target, page_size = cell
    name = named(model, layout, page_size)
    pages = None if page_size is None else Pages(page_size, BATCH * CACHE // page_size // 4)
    try:
        text = import_model(
            CONFIGS[model], layout, Mesh.of(**MESHES[target]), BATCH, LENGTH, DType.BF16, attention="head",
            cache=CACHE, pages=pages,
        ).text  # fmt: skip
        return rows_of(name, load(Source(name, text)), target)
    except DiagnosticError as error:
        return [Row(name, "", target, refused=error.diagnostics[0].message)]


def named(model: str, layout: str, page_size: int | None) -> str:
    """The name of a row's program."""
    return f"{model} {layout}" if page_size is None else f"{model} {layout} in pages of {page_size}"


def memory_differs(row: Row) -> bool:
    """Tells whether what a decode step holds is not what was predicted."""
    allowed = max(MEMORY_BYTES, MEMORY_SHARE * row.predicted_bytes)
    return row.function == "decode" and abs(row.held_bytes - row.predicted_bytes) > allowed


def summary(rows: Sequence[Row]) -> str:
    """A line for each target."""
    lines = ["| target | functions | refused | as written | decode within memory predicted |", "|---|---|---|---|---|"]
    for target in dict.fromkeys(row.target for row in rows):
        mine = [row for row in rows if row.target == target]
        compiled = [row for row in mine if not row.refused]
        written = sum(not row.differs for row in compiled)
        decodes = [row for row in compiled if row.function == "decode"]
        held = sum(not memory_differs(row) for row in decodes)
        counts = f"{len(compiled)} | {len(mine) - len(compiled)} | {written} | {held} of {len(decodes)}"
        lines.append(f"| {target} | {counts} |")
    return "\n".join(lines)


def recorded(file: Path) -> list[Row]:
    """The rows of a record."""
    if not file.exists():
        return []
    return [Row(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=CONFIGS, help="by default all")
    parser.add_argument("--layout", action="append", choices=PRESETS, help="by default all presets")
    parser.add_argument("--target", action="append", choices=MESHES, help="by default all")
    parser.add_argument("--page-size", type=int, metavar="S", help="positions of a page; without it there are none")
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE", help=f"by default {RECORD}")
    parser.add_argument("--processes", type=int, default=1, metavar="P", help="compilers at once (default: 1)")
    given = parser.parse_args()
    cells = [
        (model, layout, target, given.page_size)
        for target in given.target or MESHES
        for layout in given.layout or PRESETS
        for model in given.model or CONFIGS
    ]
    known = {(row.example, row.target) for row in recorded(given.record)}
    missing = [cell for cell in cells if (named(cell[0], cell[1], cell[3]), cell[2]) not in known]
    with Pool(given.processes) as pool, given.record.open("a", encoding="utf-8") as record:
        for made in pool.imap_unordered(measure, missing):
            record.writelines(json.dumps(asdict(row)) + "\n" for row in made)
            record.flush()
    wanted = {(named(model, layout, page_size), target) for model, layout, target, page_size in cells}
    rows = [row for row in recorded(given.record) if (row.example, row.target) in wanted]
    print(summary(rows))
    print()
    print(table([row for row in rows if row.refused or row.differs or memory_differs(row)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
