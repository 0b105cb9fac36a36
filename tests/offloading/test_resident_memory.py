"""Runs in processes of their own: what the operating system counts as theirs stays within the caps and the imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from offloading.quick_measuring import quick_command

from shardwright.ir.types import DType
from shardwright.models.dummy_checkpoint import write_dummy

MB = 1_000_000
PROMPTS = [[3 + i, 5] for i in range(8)]
NEW = 2


def config(hidden: int, layers: int) -> dict[str, Any]:
    """Weights of some hundreds of MB, each of which multiplies few tokens: in bf16 processors take long for many."""
    import transformers

    made = transformers.LlamaConfig(
        vocab_size=4000,
        hidden_size=hidden,
        intermediate_size=hidden * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        max_position_embeddings=128,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    return made.to_dict()


def run(folder: Path, caps: int, *words: str, how: Sequence[str] = ("-m", "shardwright")) -> tuple[Any, int]:
    """What a run with so many MB, half of it the device's, reports, and the most that was resident, seen from here."""
    given, out = folder / "in.jsonl", folder / "out.jsonl"
    given.write_text("".join(json.dumps({"tokens": prompt}) + "\n" for prompt in PROMPTS))
    argv = [
        sys.executable, *how, "offload", str(folder), "--prompts", str(given), "-o", str(out), "--json",
        "--max-new-tokens", str(NEW), "--ignore-eos", "--spill-dir", str(folder), *words,
        "--device-memory", f"{caps // 2}MB", "--host-memory", f"{caps // 2}MB",
    ]  # fmt: skip
    # Not the process's own ru_maxrss: that of a child begins with what its parent had.
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    most, status = 0, Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        lines = status.read_text().splitlines()
        most = max([most, *(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))])
        time.sleep(0.02)
    said, err = process.communicate()
    assert process.returncode == 0, err
    report: dict[str, Any] = json.loads(said)
    assert report["prompts"] == len(PROMPTS)
    assert report["resident_bytes"] <= most
    return report, most


def filling(caps: int, weights: float, layers: int, hidden: int, widened: bool) -> str:
    """A policy that all but fills both halves of so many MB. A layer is twice in the buffers on the device, and once
    more where it is widened; there are the caches of all rows as well, half as wide."""
    half, layer = caps * MB / 2, weights / (layers + 0.4)
    cache = layers * len(PROMPTS) * (len(PROMPTS[0]) + NEW) * hidden * (4 if weights > caps * 2 * MB else 2)
    device = (0.97 * half - 2 * layer - cache - 10 * MB - (1.9 * layer if widened else 0)) / weights
    return f"4,2,{100 * device:.2f},{97 * half / weights:.2f},100,0,100,0"


def check(report: dict[str, Any], most: int, caps: int) -> None:
    """The caps are filled, and no more is resident than they and the imports."""
    taken = report["peak_bytes"]["device"] + report["peak_bytes"]["host"]
    assert 0.85 * caps * MB <= taken <= caps * MB
    assert most <= 1.05 * (caps * MB + report["imports_bytes"])


SLOW = pytest.mark.slow
"""Weights are converted one by one, or there are gigabytes of them: over a minute where the machine has others."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("caps", "hidden", "layers", "options"),
    [
        (300, 1024, 16, ""),
        (700, 1024, 32, ""),
        pytest.param(2000, 2048, 28, "", marks=SLOW),
        pytest.param(300, 1024, 16, "--logprobs", marks=SLOW),
        pytest.param(300, 1024, 16, "--dtype f32", marks=SLOW),
        pytest.param(300, 1024, 20, "--weights int8", marks=SLOW),
        pytest.param(700, 1024, 32, "--dtype f32", marks=SLOW),
    ],
)
def test_caps_that_are_filled(caps: int, hidden: int, layers: int, options: str, tmp_path: Path) -> None:
    factor = {"--dtype f32": 2.0, "--weights int8": 1.0625 / 2}.get(options, 1.0)
    weights = factor * write_dummy(tmp_path, config(hidden, layers), DType.BF16)
    policy = filling(caps, weights, layers, hidden, widened=options == "--weights int8")
    report, most = run(tmp_path, caps, *options.split(), "--policy", policy)
    check(report, most, caps)


PLANNED = """
import runpy, sys
from types import SimpleNamespace
from shardwright.cost.offloading.policy import parse_policy
from shardwright.prediction import offloading
from shardwright.serving.offloading import this_machine
this_machine.COMMAND = sys.argv.pop(1).split("|")
planned = [parse_policy(policy) for policy in sys.argv.pop(1).split()]
offloading.best_plan = lambda *_, **__: SimpleNamespace(plan=SimpleNamespace(policy=planned.pop(0)))
runpy.run_module("shardwright", run_name="__main__", alter_sys=True)
"""
"""The command, a command that measures, and one policy after another as what is planned."""


def test_a_policy_that_did_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    """Without --policy one is tried and given up when its weights fill both halves, and layers to compute on have no
    room beside them: they are gone when the next is loaded, which all but fills both halves again. The machine is
    measured first, by a process that takes more than the caps, and none of this one's memory."""
    caps, hidden, layers = 300, 1024, 16
    weights = write_dummy(tmp_path, config(hidden, layers), DType.BF16)
    fits = filling(caps, weights, layers, hidden, widened=False)
    batch, batches, device, host, *rest = fits.split(",")
    beyond = ",".join((batch, batches, host, host, *rest))
    measuring = "|".join(quick_command(tmp_path, f"ballast = b'x' * {2 * caps * MB}"))
    report, most = run(tmp_path, caps, how=("-c", PLANNED, measuring, f"{beyond} {fits}"))
    assert (tmp_path / "measured.jsonl").exists()
    assert report["policy"]["wg"] == float(device)
    check(report, most, caps)


GIVEN_BACK = """
from numpy import ones
from shardwright.backends.torch.resident import (
    give_back_now, give_back_what_is_freed, peak_resident_bytes, resident_bytes
)
give_back_what_is_freed()
give_back_now()
before = resident_bytes()
assert before <= peak_resident_bytes()
for nbytes in (24 << 20, 16 << 20):
    many = [ones(nbytes, "uint8") for _ in range(4)]
    assert resident_bytes() > before + 3 * nbytes
    del many
    assert resident_bytes() < before + (4 << 20)
"""


def test_large_blocks_go_back_when_they_are_freed() -> None:
    """Whatever was freed before: glibc's threshold grows with that, unless it is set. In a process of its own, since
    threads and garbage of other tests change what is resident."""
    subprocess.run([sys.executable, "-c", GIVEN_BACK], check=True, timeout=300)
