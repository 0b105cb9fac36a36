"""Throughput of the offloading runtime beside Hugging Face Accelerate's CPU and disk offload, in one run on the CPU.

    python bench/offload.py [--layers 8] [--hidden 512] [--prompts 64] [--new-tokens 16] [--machine FILE] [--alone]
    python bench/offload.py --gpu [--toy]

The same random checkpoint, prompts and float32 for all. Accelerate (`pip install accelerate`) runs at batch sizes up to
all prompts at once, and its best counts; --alone leaves it out. Of each the fastest of --repeats runs counts. On the
CPU there is no link to hide behind: what shows is the overhead of each and what it reads of the disk. Beside our
seconds are those that the cost model predicts for the same events on this machine, which is measured first where no
file is given (`shardwright calibrate --offloading`), and what each kind of event took.

--gpu is the comparison on a CUDA device, in `offload_on_gpu.py`; --toy runs that on the CPU with a small model.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from offload_on_gpu import compare
from offloaded_run import Run, machine_here, offloaded

from shardwright.cost.chips import Machine
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.types import DType
from shardwright.offloading.request import Request

VOCAB = 8000
POLICIES = {
    "device": "100,0,100,0,100,0",
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


def ours(folder: Path, prompts: list[list[int]], new: int, shares: str, machine: Machine) -> Run:
    batch = min(16, len(prompts))
    request = Request(parse_policy(f"{batch},{-(-len(prompts) // batch)},{shares}"), dtype=DType.F32, device="cpu")
    return offloaded(folder, prompts, new, request, machine)


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
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of so many runs counts (default: 3)")
    parser.add_argument("--machine", help="a machine file that was measured here")
    parser.add_argument("--alone", action="store_true", help="without Accelerate")
    parser.add_argument("--gpu", action="store_true", help="on a CUDA device, with a checkpoint of OPT-30B's size")
    parser.add_argument("--toy", action="store_true", help="--gpu on the CPU, with a small model")
    args = parser.parse_args()
    if args.gpu:
        compare(toy=args.toy, machine=args.machine, alone=args.alone)
        return
    rng = random.Random(0)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(args.length)] for _ in range(args.prompts)]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder), args.layers, args.hidden)
        if not args.alone and importlib.util.find_spec("accelerate") is None:
            parser.error("Accelerate is not installed: pip install accelerate, or --alone")
        size = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
        print(f"{size / 1e6:.0f} MB of weights, {args.prompts} prompts of {args.length}, {args.new_tokens} new tokens")
        machine = machine_here(args.machine, "cpu", DType.F32, Path(folder))
        for where, shares in POLICIES.items():
            runs = [ours(Path(folder), prompts, args.new_tokens, shares, machine) for _ in range(args.repeats)]
            run = min(runs, key=lambda each: each.report.seconds)
            print(f"{where}: ours {run.rate:,.1f} tokens per second; {run.against_prediction()}", flush=True)
            print("\n".join(run.breakdown()))
            batches = () if args.alone or where == "device" else (min(16, args.prompts), args.prompts)
            for batch in dict.fromkeys(batches):
                made = [accelerated(Path(folder), prompts, args.new_tokens, where, batch) for _ in range(args.repeats)]
                theirs, other = max(made, key=lambda each: each[0])
                same = sum(a == b for a, b in zip(run.tokens, other, strict=True))
                print(
                    f"{where}: Accelerate, batch {batch}, {theirs:,.1f}: ours is {run.rate / theirs:.2f} times as fast;"
                    f" {same} of {len(run.tokens)} texts are equal",
                    flush=True,
                )


if __name__ == "__main__":
    main()
