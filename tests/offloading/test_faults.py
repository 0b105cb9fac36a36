"""What goes wrong in the middle of a run: it ends at once, says why, leaves nothing behind, and goes on when asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupting import await_output
from nursery import TORCH, Process, start

from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType, Tier
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.request import OffloadRequest, ScheduleName
from shardwright.serving.offloading.run import OffloadedModel

PROMPTS = [{"tokens": [3 + i % 90, 5, 7 + i % 11][: 1 + i % 3], "id": i} for i in range(40)]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def model(folder: Path, policy: str, **changes: Any) -> OffloadedModel:
    request = OffloadRequest(parse_policy(policy), dtype=DType.F32, **changes)
    return OffloadedModel(
        folder, request, make_prompts([[3, 4, 5]] * 12, 96, None), GenerationSettings(max_new_tokens=8)
    )


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("page_cache", [True, False])
def test_a_checkpoint_that_is_cut_after_the_first_texts(
    page_cache: bool, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """Through a mapping of the file that would end the process."""
    folder = shutil.copytree(checkpoint("llama-grouped"), tmp_path / "cut")
    spill = tmp_path / "spill"
    spill.mkdir()
    before = threading.active_count()
    with model(folder, "2,2,0,0,0,50,0,100", spill=str(spill), page_cache=page_cache) as offloaded:
        completions = offloaded.completions()
        next(completions)
        os.truncate(folder / "model.safetensors", 20_000)
        with pytest.raises(DiagnosticError) as caught:
            list(completions)
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "corrupt-file"
    assert diagnostic.message.startswith("tensor model.")
    assert diagnostic.message.endswith("and the file ends at byte 20000")
    assert caught.value.source is not None
    assert caught.value.source.name == str(folder / "model.safetensors")
    assert threading.active_count() == before
    assert list(spill.iterdir()) == []


def test_a_disk_with_too_little_room(checkpoint: Callable[..., Path], prompts: Path, tmp_path: Path) -> None:
    """No file may be larger than what part of the cache needs: exit status 1, no traceback, and no half line."""
    out = tmp_path / "out"
    # Byte code that it wrote would be cut off at the limit, and every other process read it.
    limited = (
        "import resource, runpy, sys; sys.dont_write_bytecode = True;"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384));"
        " runpy.run_module('shardwright', run_name='__main__', alter_sys=True)"
    )
    done = start(
        TORCH, "-c", limited, "offload", checkpoint("llama-grouped"), "--prompts", prompts, "-o", out,
        "--policy", "4,2,0,50,0,0,0,100", "--max-new-tokens", "40", "--ignore-eos", "--spill-dir", tmp_path,
    )  # fmt: skip
    _, err = done.communicate(timeout=300)
    assert done.returncode == 1
    assert "cannot be spilled here: the disk is full [disk-full]" in err
    assert "k at N=1, M=0" in err
    assert "Traceback" not in err
    assert not out.exists() or all(line.endswith("}") for line in out.read_text().splitlines())
    assert {path.name for path in tmp_path.iterdir()} <= {"in.jsonl", "out"}


# ---------------------------------------------------------------- memory


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("tier", "policy"),
    [
        (Tier.DEVICE, "4,2,100,0,100,0,100,0"),
        (Tier.HOST, "4,2,0,100,0,100,0,100"),
        (Tier.DISK, "4,2,100,0,0,0,100,0"),
    ],
)
@pytest.mark.parametrize("schedule", ["zigzag", "diagonal"])
def test_a_cap_that_is_exceeded_names_tensor_and_policy(
    tier: Tier, policy: str, schedule: ScheduleName, checkpoint: Callable[..., Path]
) -> None:
    """Whatever the cap, it is found out with a name of what had no room, and never by going on."""
    folder = checkpoint("llama-grouped")
    with model(folder, policy, schedule=schedule) as offloaded:
        list(offloaded.completions())
    peak = offloaded.report.peak_bytes[str(tier)]
    for share in (0.05, 0.4, 0.8, 0.97):
        with (
            pytest.raises(DiagnosticError) as caught,
            model(folder, policy, schedule=schedule, caps={tier: int(share * peak)}) as capped,
        ):
            list(capped.completions())
        diagnostic = caught.value.diagnostics[0]
        assert diagnostic.code == "out-of-memory"
        assert f" on {'' if tier is Tier.DISK else 'the '}{tier}, where " in diagnostic.message
        assert diagnostic.notes[0].message.startswith("the policy is 4 x 2, ")
        assert f"--{tier}-memory" in diagnostic.notes[1].message


@pytest.mark.parametrize(("place", "what"), [("host", "embed"), ("device", "k")])
def test_a_system_without_memory(
    place: str, what: str, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the allocator refuses what no cap forbids, of a device with a memory of its own."""
    folder, empty = checkpoint("llama-grouped"), torch.empty

    def refusing(shape: Any, **options: Any) -> Any:
        if ("device" in options) == (place == "device"):
            raise RuntimeError("not enough memory: you tried to allocate 1 bytes.")
        return empty(shape, **options)

    monkeypatch.setattr(torch, "empty", refusing)
    with (
        pytest.raises(DiagnosticError) as caught,
        model(folder, "2,2,0,50,100,0,50,0", in_place=False) as refused,
    ):
        list(refused.completions())
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "out-of-memory"
    assert f"on the {place}, which has no more left" in diagnostic.message
    assert diagnostic.message.startswith(what)


# ---------------------------------------------------------------- signals, and two at once


def command(folder: Path, prompts: Path, out: Path, spill: Path) -> list[str]:
    return [
        "offload", str(folder), "--prompts", str(prompts), "-o", str(out),
        "--policy", "4,2,0,50,30,30,0,100", "--max-new-tokens", "24", "--ignore-eos", "--spill-dir", str(spill),
    ]  # fmt: skip


def begun(argv: Sequence[str], out: Path) -> Process:
    """A run that has written a few lines."""
    process = start(TORCH, "-m", "shardwright", *argv)
    await_output(out, 1, process)
    assert process.poll() is None
    return process


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_it_and_it_goes_on(
    sent: signal.Signals,
    checkpoint: Callable[..., Path],
    prompts: Path,
    tmp_path: Path,
    shardwright: Callable[..., Any],
) -> None:
    out, spill = tmp_path / "out", tmp_path / "spill"
    spill.mkdir()
    argv = command(checkpoint("llama-grouped"), prompts, out, spill)
    process = begun(argv, out)
    process.send_signal(sent)
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "Traceback" not in err
    kept = f"interrupted: {out} has the answers so far, and the same command goes on from there\n"
    assert err == (kept if sent is signal.SIGINT else "")
    assert list(spill.iterdir()) == []
    before = [json.loads(line) for line in out.read_text().splitlines()]
    assert 0 < len(before) < len(PROMPTS)
    again = shardwright(*argv, "--json")
    assert again.status == 0
    assert json.loads(again.out)["resumed"] == len(before)
    answered = [json.loads(line)["index"] for line in out.read_text().splitlines()]
    assert sorted(answered) == list(range(len(PROMPTS)))


def test_two_runs_into_one_file(
    checkpoint: Callable[..., Path], prompts: Path, tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    out, spill = tmp_path / "out", tmp_path / "spill"
    spill.mkdir()
    few = prompts.read_text().splitlines(keepends=True)[:32]
    prompts.write_text("".join(few))
    argv = command(checkpoint("llama-grouped"), prompts, out, spill)
    first = begun(argv, out)
    first.send_signal(signal.SIGSTOP)  # so that it does not end while the second is tried
    second = shardwright(*argv)
    first.send_signal(signal.SIGCONT)
    assert second.status == 1
    assert "error: another run is writing to this file [in-use]" in second.err
    first.communicate(timeout=300)
    assert first.returncode == 0
    answered = [json.loads(line)["index"] for line in out.read_text().splitlines()]
    assert sorted(answered) == list(range(len(few)))
