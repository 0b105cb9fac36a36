"""Throughput of the offloading runtime beside Hugging Face Accelerate's CPU and disk offload, in one run on the CPU.

    python bench/offload.py [--layers 8] [--hidden 512] [--prompts 64] [--new-tokens 16] [--machine FILE] [--alone]
    python bench/offload.py --gpu [--toy]

The same random checkpoint, prompts and float32 for all, and the same placement: weights on the host or on disk, cache
and hidden states on the device, as Accelerate (`pip install accelerate`) has them. Both run with each number of prompts
in a batch of --batches, in --repeats turns; ratios are the medians of these, since a machine's speed changes within
seconds. Our batches make one block, so that weights are loaded as often as with Accelerate's largest. --alone leaves
Accelerate out.

On the CPU there is no link to hide behind: what shows is the overhead of each and what it reads of the disk. Processor
seconds, of all threads, say more than seconds where other programs run. Beside our rate is how far off the seconds are
that the cost model predicts for the same events on this machine, which each turn measures anew where no file is given
(`shardwright calibrate --offloading`), the median of all turns; and what each kind of event took.

--gpu is the comparison on a CUDA device, in `offload_on_gpu.py`; --toy runs that on the CPU with a small model.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import random
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from offload_on_gpu import compare
from offloaded_run import Run, machine_here, offloaded

from shardwright.cost.hardware.chips import Machine
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.types import DType
from shardwright.serving.offloading.request import OffloadRequest

VOCAB = 8000
PLACES = {
    "device": "100,0,100,0,100,0",
    "host": "0,100,100,0,100,0",
    "disk": "0,0,100,0,100,0",
}


def checkpoint(folder: Path, layers: int, hidden: int) -> None:
    """A random Llama."""
    library: Any = transformers
    sizes = {"vocab_size": VOCAB, "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers}
    config = library.LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=512)
    seeded: Any = torch
    seeded.manual_seed(0)
    library.LlamaForCausalLM(config).save_pretrained(folder)


def ours(folder: Path, prompts: list[list[int]], new: int, where: str, batch: int, machine: Machine) -> Run:
    policy = parse_policy(f"{batch},{-(-len(prompts) // batch)},{PLACES[where]}")
    return offloaded(folder, prompts, new, OffloadRequest(policy, dtype=DType.F32, device="cpu"), machine)


@dataclass(frozen=True)
class Theirs:
    """A run of Accelerate's: seconds, processor seconds of all threads, and the tokens."""

    seconds: float
    processor_s: float
    tokens: list[tuple[int, ...]]


def accelerated(folder: Path, prompts: list[list[int]], new: int, where: str, batch: int) -> Theirs:
    """The same by transformers' generate with Accelerate's hooks."""
    library: Any = transformers
    library.utils.logging.disable_progress_bar()
    hooks: Any = importlib.import_module("accelerate")
    model = library.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with tempfile.TemporaryDirectory() as offloaded:
        if where == "host":
            hooks.cpu_offload(model, execution_device=torch.device("cpu"))
        else:
            hooks.disk_offload(model, offloaded, execution_device=torch.device("cpu"))
        tokens: list[tuple[int, ...]] = []
        began, processor = time.perf_counter(), time.process_time()
        for start in range(0, len(prompts), batch):
            ids = torch.tensor(prompts[start : start + batch])
            with torch.inference_mode():
                made = model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, pad_token_id=0
                )
            tokens += [tuple(row) for row in made[:, ids.shape[1] :].tolist()]
        return Theirs(time.perf_counter() - began, time.process_time() - processor, tokens)


@dataclass
class Compared:
    """The runs of both with weights at one place, by prompts in a batch."""

    where: str
    own: defaultdict[int, list[Run]] = field(default_factory=lambda: defaultdict(list[Run]))
    theirs: defaultdict[int, list[Theirs]] = field(default_factory=lambda: defaultdict(list[Theirs]))

    def turn(self, folder: Path, prompts: list[list[int]], new: int, batch: int, machine: Machine, alone: bool) -> None:
        self.own[batch].append(ours(folder, prompts, new, self.where, batch, machine))
        if not alone and self.where != "device":
            self.theirs[batch].append(accelerated(folder, prompts, new, self.where, batch))

    def fastest(self) -> list[tuple[Theirs, Run]]:
        """The fastest of each in every turn."""
        theirs = [min(turn, key=lambda run: run.seconds) for turn in zip(*self.theirs.values(), strict=True)]
        own = [min(turn, key=lambda run: run.report.seconds) for turn in zip(*self.own.values(), strict=True)]
        return list(zip(theirs, own, strict=True))

    def __str__(self) -> str:
        own = {batch: min(runs, key=lambda run: run.report.seconds) for batch, runs in self.own.items()}
        theirs = {batch: min(runs, key=lambda run: run.seconds) for batch, runs in self.theirs.items()}
        made: list[str] = []
        for batch, run in own.items():
            took = f"{run.rate:,.1f} tokens per second, {run.processor_s:.2f} processor seconds"
            errors = sorted(each.error for each in self.own[batch])
            off = f"predicted {median(errors):+.1%} ({errors[0]:+.1%} to {errors[-1]:+.1%})"
            made.append(f"{self.where}: ours, batch {batch}: {took}; {off}")
        best = min(own.values(), key=lambda each: each.report.seconds)
        made += best.breakdown()
        for batch, other in theirs.items():
            same = sum(a == b for a, b in zip(best.tokens, other.tokens, strict=True))
            rate = best.report.new_tokens / other.seconds
            took = f"{rate:,.1f} tokens per second, {other.processor_s:.2f} processor seconds"
            made.append(
                f"{self.where}: Accelerate, batch {batch}: {took}; {same} of {len(best.tokens)} texts are equal"
            )
        if theirs:
            faster = [a.seconds / b.report.seconds for a, b in self.fastest()]
            spared = [a.processor_s / b.processor_s for a, b in self.fastest()]
            made.append(
                f"{self.where}: best beside best of each turn, ours is {median(faster):.2f} times as fast"
                f" ({min(faster):.2f} to {max(faster):.2f}); Accelerate takes {median(spared):.2f} times our processor"
                " seconds"
            )
        return "\n".join(made)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 8), ("hidden", 512), ("prompts", 64), ("length", 32), ("new-tokens", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repeats", type=int, default=5, help="turns (default: 5)")
    parser.add_argument("--batches", type=int, nargs="+", help="prompts in a batch (default: 16, and all)")
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
        batches = list(dict.fromkeys(min(batch, args.prompts) for batch in args.batches or (16, args.prompts)))
        compared = [Compared(where) for where in PLACES]
        for _ in range(args.repeats):
            machine = machine_here(args.machine, "cpu", DType.F32, Path(folder))
            for each, batch in itertools.product(compared, batches):
                each.turn(Path(folder), prompts, args.new_tokens, batch, machine, args.alone)
        print("\n".join(map(str, compared)))


if __name__ == "__main__":
    main()
