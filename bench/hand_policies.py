"""The planned policy beside 24 that a person might try, in throughput, under caps on the memory of device and host.

    python bench/hand_policies.py [--hidden 512] [--layers 6] [--dtype f32] [--prompts 64] [--caps 0.5 1 2]

Blocks of 8 x 1, 8 x 4, 32 x 1 and 32 x 4 sequences, weights on the device, the host or the disk, the cache on the
device or the host; those that do not fit are left out. A Llama of random weights and prompts of 16 tokens, 8 new ones.
Device and host may each have so many times the weights as --caps says. The plan is that of `shardwright offload`
without --policy and --machine: this machine is measured once and kept. All run in turns, --repeats times, and of each
the least seconds count, and the least processor seconds of all threads, which say more where other programs run
(OMP_NUM_THREADS=1 then: threads that wait for each other take them too). Beside them is what the cost model predicts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

from offloaded_run import Run, offloaded

from shardwright.backends.torch.memory import OutOfMemoryError
from shardwright.cli.offload_run import tell
from shardwright.ir.types import DType, Tier
from shardwright.models.dummy_checkpoint import write_dummy
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.offloading.policy_files import read_policy
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run_options import RunOptions

VOCAB, LENGTH, NEW = 8000, 16, 8
WEIGHTS = {"device": "100,0", "host": "0,100", "disk": "0,0"}
CACHES = {"device": "100,0", "host": "0,100"}
BLOCKS = ("8,1", "8,4", "32,1", "32,4")


def config(hidden: int, layers: int, dtype: DType) -> dict[str, Any]:
    """A Llama's."""
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": hidden,
        "intermediate_size": hidden * 43 // 16, "num_hidden_layers": layers, "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "dtype": {"f32": "float32", "bf16": "bfloat16"}[str(dtype)],
    }  # fmt: skip


def in_turns(
    options: RunOptions, policies: dict[str, str], prompts: list[list[int]], repeats: int
) -> dict[str, list[Run]]:
    """The runs of each policy that fits."""
    made: dict[str, list[Run]] = {}
    fitting = dict(policies)
    for _ in range(repeats):
        for name, policy in list(fitting.items()):
            request = OffloadRequest(read_policy(policy), dtype=options.dtype, caps=options.caps, device="cpu")
            try:
                run = offloaded(Path(options.checkpoint), prompts, NEW, request, None)
            except OutOfMemoryError:
                del fitting[name]
                continue
            made.setdefault(name, []).append(run)
    return made


def compare(folder: Path, cap: int, prompts: list[list[int]], dtype: DType, repeats: int) -> tuple[float, float]:
    """The planned policy's tokens a second, and a processor second, as shares of the best hand policy's; prints all."""
    caps = {Tier.DEVICE: cap, Tier.HOST: cap, Tier.DISK: None}
    options = RunOptions(folder, NEW, dtype=dtype, caps=caps, device="cpu").on_this_machine(tell)
    made = make_prompts(prompts, VOCAB, None)
    began = time.perf_counter()

    def tried(request: OffloadRequest) -> str:
        offloaded(folder, prompts, NEW, request, None)
        return request.policy.numbers

    planned = options.with_room(made, options.request(made), tried, lambda line: print(line, file=sys.stderr))
    print(f"planned in {time.perf_counter() - began:.1f} s with its first run")
    hand = {
        f"{blocks} weights on {w} cache on {c}": f"{blocks},{WEIGHTS[w]},{CACHES[c]},100,0"
        for blocks, w, c in product(BLOCKS, WEIGHTS, CACHES)
    }
    policies = {f"planned ({planned})": planned, **hand}
    runs = in_turns(options, policies, prompts, repeats)
    setting, tokens = options.setting(made), len(prompts) * NEW
    rates = {name: tokens / min(run.report.seconds for run in each) for name, each in runs.items()}
    by_processor = {name: tokens / min(run.processor_s for run in each) for name, each in runs.items()}
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        policy = read_policy(policies[name])
        batches = min(policy.n_gpu_batches, ceil(len(prompts) / policy.gpu_batch))  # no more than there are prompts for
        price = setting.price(replace(policy, n_gpu_batches=batches))
        predicted = tokens / (price.seconds * ceil(len(prompts) / price.policy.block))
        processor = f"{by_processor[name]:8.1f} a processor second"
        print(f"{rate:8.1f} tokens/s, {processor}, predicted {predicted:8.1f} tokens/s: {name}")
    shares = [each[next(iter(policies))] / max(each.get(name, 0.0) for name in hand) for each in (rates, by_processor)]
    return shares[0], shares[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("hidden", 512), ("layers", 6), ("prompts", 64), ("repeats", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--caps", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    args = parser.parse_args()
    rng = random.Random(0)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(LENGTH)] for _ in range(args.prompts)]
    with tempfile.TemporaryDirectory() as folder:
        size = write_dummy(Path(folder), config(args.hidden, args.layers, DType(args.dtype)), DType(args.dtype))
        print(f"{size / 1e6:.0f} MB of weights, {args.prompts} prompts of {LENGTH}, {NEW} new tokens")
        for factor in args.caps:
            share, processor = compare(Path(folder), int(factor * size), prompts, DType(args.dtype), args.repeats)
            said = f"planned is {share:.2f} of the best hand policy, by processor seconds {processor:.2f}"
            print(f"caps {factor:g} times the weights: {said}", flush=True)


if __name__ == "__main__":
    main()
