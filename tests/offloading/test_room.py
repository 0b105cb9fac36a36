"""A run that is given neither a policy nor a machine: it finds a policy for the memory that it may take."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.cost.hardware.chips import load_machine
from shardwright.ir.types import Tier
from shardwright.serving.offloading.room import MemoryRoom

pytestmark = pytest.mark.usefixtures("quick_measuring")


@pytest.fixture
def run(shardwright: Callable[..., Any], checkpoint: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    given = tmp_path / "in.jsonl"
    lines = [{"tokens": [(7 * i + j) % 90 + 3 for j in range(3 + i % 9)]} for i in range(12)]
    given.write_text("\n".join(map(json.dumps, lines)))

    def made(out: str, *options: str) -> Any:
        folder = checkpoint("llama-grouped")
        words = ("--prompts", given, "-o", tmp_path / out, "--max-new-tokens", "6", "--ignore-eos", "--dtype", "f32")
        got = shardwright("offload", folder, *words, *options)
        answers = tmp_path / out
        found = [json.loads(line) for line in answers.read_text().splitlines()] if answers.exists() else []
        return got, {line["index"]: line["new_tokens"] for line in found}

    return made


def test_the_policy_is_found_and_the_caps_are_kept(run: Callable[..., Any]) -> None:
    free, wanted = run("free.jsonl")
    assert free.status == 0
    assert free.err.startswith("no --machine: measuring this machine once ... ")
    caps = ("--device-memory", "150kB", "--host-memory", "200kB", "--disk-memory", "10MB")
    capped, found = run("capped.jsonl", *caps, "--json")
    assert capped.status == 0
    assert found == wanted
    assert len(found) == 12
    peaks = json.loads(capped.out)["peak_bytes"]
    assert 0 < peaks["device"] <= 150_000
    assert 0 < peaks["host"] <= 200_000


def test_weights_on_disk_are_those_of_the_checkpoint(run: Callable[..., Any]) -> None:
    """They take none of the disk, also where it has less room than they are."""
    caps = ("--device-memory", "100kB", "--host-memory", "60kB", "--disk-memory", "5kB")
    got, found = run("files.jsonl", *caps, "--json")
    assert (got.status, len(found)) == (0, 12), got.err
    peaks = json.loads(got.out)["peak_bytes"]
    assert peaks["disk"] <= 5_000


def test_what_does_not_suffice_is_planned_for_with_less(run: Callable[..., Any]) -> None:
    """A policy of one's own is a fault there; one that was chosen is chosen anew."""
    tight = ("--device-memory", "100kB", "--host-memory", "60kB")
    given, _ = run("given.jsonl", *tight, "--policy", "12,1,100,0,100,0,100,0")
    assert given.status == 1
    assert "[out-of-memory]" in given.err
    chosen, found = run("chosen.jsonl", *tight)
    assert (chosen.status, len(found)) == (0, 12), chosen.err
    assert "of that memory" in chosen.err
    tighter, _ = run("tighter.jsonl", "--device-memory", "90kB", "--host-memory", "60kB")
    assert (tighter.status, "of that memory" in tighter.err) == (1, True)
    assert "\noffload: error: nothing fits: with one sequence, and everything as low as it goes" in tighter.err
    assert "\nnote: that is of " in tighter.err


def test_a_part_of_a_step_less_may_do(run: Callable[..., Any]) -> None:
    """Nothing fits into two whole steps less, and something into one and a half."""
    got, found = run("halfway.jsonl", "--device-memory", "92kB", "--host-memory", "60kB")
    assert (got.status, len(found)) == (0, 12), got.err


def test_room_shrinks_where_a_memory_did_not_suffice(tmp_path: Path) -> None:
    machine = load_machine("t4")
    first = MemoryRoom()
    less = first.less(Tier.DEVICE)
    caps = {Tier.DEVICE: 1000, Tier.HOST: None, Tier.DISK: None}
    assert first.of(machine, caps, "cpu", named=True).chip.memory_bytes == pytest.approx(950)
    assert less.of(machine, caps, "cpu", named=True).chip.memory_bytes == pytest.approx(950 * 0.85)
    assert less.of(machine, caps, "cpu", named=True).host.memory_bytes == 0.95 * machine.host.memory_bytes
    here = first.of(machine, {}, "cpu", str(tmp_path), named=False)
    assert here.disk is not None
    assert here.disk.memory_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    steps = 0
    while first.can_shrink(Tier.DEVICE):
        first, steps = first.less(Tier.DEVICE), steps + 1
    assert steps == 8


def test_weights_alone_in_4_bits(run: Callable[..., Any], tmp_path: Path) -> None:
    """Asked for by --weights, or by the file of a plan that has it so."""
    numbers = ("--policy", "4,2,0,100,0,0,100,0")
    packed, found = run("packed.jsonl", *numbers, "--weights", "int4", "--json")
    whole, _ = run("whole.jsonl", *numbers, "--json")
    both, compressed = run("both.jsonl", *numbers, "--compress", "4bit", "--json")
    peaks = [json.loads(got.out)["peak_bytes"] for got in (packed, whole, both)]
    # Of weights, on the host, less than half; of the cache, on disk, all.
    assert peaks[0]["host"] < 0.5 * peaks[1]["host"]
    assert peaks[0]["disk"] == peaks[1]["disk"] > peaks[2]["disk"]
    plan = tmp_path / "plan.json"
    policy = json.loads(packed.out)["policy"]
    plan.write_text(json.dumps({"policy": policy, "compressed": {"weights": True, "cache": False}}))
    assert run("planned.jsonl", "--policy", str(plan))[1] == found
    again, as_both = run(
        "again.jsonl", "--policy", str(plan), "--compress", "4bit", "--json"
    )  # which has the last word
    assert json.loads(again.out)["peak_bytes"] == peaks[2]
    assert as_both == compressed
