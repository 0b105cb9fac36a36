"""Throughput of the offloading runtime beside Hugging Face Accelerate's CPU and disk offload, in one run on the CPU.

    python bench/offload.py [--layers 8] [--hidden 512] [--prompts 64] [--new-tokens 16]

The same random checkpoint, prompts and float32 for all. Accelerate (`pip install accelerate`) runs at batch sizes up to
all prompts at once, and its best counts. On the CPU there is no link to hide behind: what shows is the overhead of each
and what it reads of the disk.
"""

from __future__ import annotations

import argparse
import importlib
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from shardwright.cost.offloading.policy import parse_policy
from shardwright.generation.prompts import make_prompts
from shardwright.generation.settings import Settings
from shardwright.ir.types import DType
from shardwright.offloading.run import OffloadedModel, Request

VOCAB = 8000
POLICIES = {
    "host": "0,100,0,100,0,100",
    "disk": "0,0,0,100,0,100",
}


def checkpoint(folder: Path, layers: int, hidden: int) -> None:
    """A random Llama."""
    library: Any = transformers
    sizes = {"vocab_size": VOCAB, "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers}
    config = library.LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=512)
    seeded: Any = torch
    seeded.manual_seed(0)
    library.LlamaForCausalLM(config).save_pretrained(folder)


def ours(folder: Path, prompts: list[list[int]], new: int, shares: str) -> tuple[float, list[tuple[int, ...]]]:
    """Tokens per second, loading apart, and the tokens."""
    batch = min(16, len(prompts))
    request = Request(parse_policy(f"{batch},{-(-len(prompts) // batch)},{shares}"), dtype=DType.F32, device="cpu")
    made = make_prompts(prompts, VOCAB, None)
    with OffloadedModel(folder, request, made, Settings(max_new_tokens=new)) as model:
        done = sorted(model.completions(), key=lambda completion: completion.prompt.index)
    return model.report.new_tokens / model.report.seconds, [completion.new_tokens for completion in done]


def accelerated(folder: Path, prompts: list[list[int]], new: int, where: str, batch: int) -> tuple[float, Any]:
    """The same by transformers' generate with Accelerate's hooks."""
    library: Any = transformers
    hooks: Any = importlib.import_module("accelerate")
    model = library.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with tempfile.TemporaryDirectory() as offloaded:
        if where == "host":
            hooks.cpu_offload(model, execution_device=torch.device("cpu"))
        else:
            hooks.disk_offload(model, offloaded, execution_device=torch.device("cpu"))
        tokens: list[tuple[int, ...]] = []
        began = time.perf_counter()
        for start in range(0, len(prompts), batch):
            ids = torch.tensor(prompts[start : start + batch])
            with torch.inference_mode():
                made = model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, pad_token_id=0
                )
            tokens += [tuple(row) for row in made[:, ids.shape[1] :].tolist()]
        seconds = time.perf_counter() - began
    return len(prompts) * new / seconds, tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 8), ("hidden", 512), ("prompts", 64), ("length", 32), ("new-tokens", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    rng = random.Random(0)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(args.length)] for _ in range(args.prompts)]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder), args.layers, args.hidden)
        size = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
        print(f"{size / 1e6:.0f} MB of weights, {args.prompts} prompts of {args.length}, {args.new_tokens} new tokens")
        for where, shares in POLICIES.items():
            rate, tokens = ours(Path(folder), prompts, args.new_tokens, shares)
            print(f"{where}: ours {rate:,.1f} tokens per second", flush=True)
            for batch in dict.fromkeys((min(16, args.prompts), args.prompts)):
                theirs, other = accelerated(Path(folder), prompts, args.new_tokens, where, batch)
                same = sum(a == b for a, b in zip(tokens, other, strict=True))
                print(
                    f"{where}: Accelerate, batch {batch}, {theirs:,.1f}: ours is {rate / theirs:.2f} times as fast;"
                    f" {same} of {len(tokens)} texts are equal",
                    flush=True,
                )


if __name__ == "__main__":
    main()
