"""`generate` and `offload`, ended and started again: every prompt answered once, in order, or the run refused."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from interrupting import await_output
from nursery import JAX, TORCH, start

PROMPTS = [{"tokens": [3 + i % 90, 5, 7 + i % 11][: 1 + i % 3], "id": i} for i in range(40)]
FEW = 14
"""Prompts that suffice where no process is ended in the middle."""
HOW = {
    "generate": ("--mesh", "x=1", "--batch", "4", "--chunk", "4"),
    "offload": ("--policy", "4,2,0,50,30,30,0,100"),
}
COMMON = ("--max-new-tokens", "12", "--ignore-eos", "--temperature", "0.7", "--top-k", "40")


WHOLE: dict[tuple[str, int], tuple[bytes, ...]] = {}
"""By command and count of prompts, the output of a run that was not ended, and the settings beside it."""


@dataclass(frozen=True)
class Run:
    """A command with its prompts, in a folder of its own."""

    name: str
    checkpoint: Path
    folder: Path
    count: int = FEW

    @property
    def out(self) -> Path:
        return self.folder / "out.jsonl"

    def argv(self, *more: object, out: Path | None = None, checkpoint: Path | None = None) -> list[str]:
        given = self.folder / "in.jsonl"
        if not given.exists():
            given.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS[: self.count]))
        words = [self.name, checkpoint or self.checkpoint, "--prompts", given, "-o", out or self.out]
        how = () if "--mesh" in more else HOW[self.name]
        return [*map(str, words), *how, *COMMON, *map(str, more)]

    def undisturbed(self, shardwright: Callable[..., Any]) -> bytes:
        """The output of a run that is left to end; those of the same prompts are one run."""
        whole = self.folder / "whole.jsonl"
        files = whole, self.folder / "whole.jsonl.settings.json"
        if (self.name, self.count) not in WHOLE:
            made = shardwright(*self.argv(out=whole))
            assert made.status == 0, made.err
            WHOLE[self.name, self.count] = tuple(file.read_bytes() for file in files)
        for file, content in zip(files, WHOLE[self.name, self.count], strict=True):
            file.write_bytes(content)
        return whole.read_bytes()

    def half(self, whole: bytes) -> bytes:
        """The output as a run leaves it that was ended, with part of a line; its whole lines."""
        lines = whole.splitlines(keepends=True)
        kept = b"".join(lines[: len(lines) // 2])
        self.out.write_bytes(kept + b'{"tokens": [3], "id"')
        shutil.copy(self.folder / "whole.jsonl.settings.json", f"{self.out}.settings.json")
        return kept


@pytest.fixture(params=["generate", "offload"])
def run(request: pytest.FixtureRequest, checkpoint: Callable[..., Path], tmp_path: Path) -> Run:
    return Run(request.param, checkpoint("llama-grouped"), tmp_path)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("run", "signals"),
    [
        pytest.param("generate", SIGNALS[::2], id="generate"),
        pytest.param("offload", SIGNALS[1:2], id="offload"),  # the others are in tests/offloading
        pytest.param("generate", SIGNALS, id="generate by all signals", marks=pytest.mark.slow),
        pytest.param("offload", SIGNALS, id="offload by all signals", marks=pytest.mark.slow),
    ],
    indirect=["run"],
)
def test_ended_at_random_moments(run: Run, signals: Sequence[signal.Signals], shardwright: Callable[..., Any]) -> None:
    """By signals one after the other; then the run is left to end."""
    run = replace(run, count=10 + 10 * len(signals))
    whole = run.undisturbed(shardwright)
    chosen = random.Random(run.name)
    for number in signals:
        before = run.out.stat().st_size if run.out.exists() else 0
        wanted = min(before + chosen.randrange(100, 900), len(whole) // 2)
        process = start(TORCH if run.name == "offload" else JAX, "-m", "shardwright", *run.argv())
        await_output(run.out, wanted + 1, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=100)
        assert "Traceback" not in err
        if process.returncode == 0:  # it was done before the signal came, and lines are taken away for the next
            assert run.out.read_bytes() == whole
            run.out.write_bytes(b"".join(whole.splitlines(keepends=True)[: run.count // 2]))
            continue
        assert process.returncode == (130 if number is signal.SIGINT else -number), err
        if number is signal.SIGINT:
            assert err.endswith(
                f"interrupted: {run.out} has the answers so far, and the same command goes on from there\n"
            )
    answered = run.out.read_bytes().count(b"\n")
    assert 0 < answered < run.count
    last = shardwright(*run.argv("--json"))
    assert last.status == 0, last.err
    assert json.loads(last.out)["resumed"] == answered
    assert run.out.read_bytes() == whole
    again = shardwright(*run.argv("--json"))
    assert (again.status, json.loads(again.out)["resumed"]) == (0, run.count)
    assert run.out.read_bytes() == whole


OTHERWISE: dict[str, list[tuple[str, Sequence[object]]]] = {
    "generate": [
        ("--passes was not given, and is cleanup now", ("--passes", "cleanup")),
        ("the list of stop tokens was [], and is [9] now", ("--stop-token", "9")),
        ("--samples was 1, and is 2 now", ("--samples", "2")),
        ("--weights was not given, and is int8 now", ("--weights", "int8")),
    ],
    "offload": [
        ("--sparse-attention was 1.0, and is 0.5 now", ("--sparse-attention", "0.5")),
        ("--cache-format was not given, and is int4 now", ("--compress", "4bit")),
        ("--weights was not given, and is int8 now", ("--weights", "int8")),
    ],
}
BOTH: list[tuple[str, Sequence[object]]] = [
    ("--dtype was f32, and is bf16 now", ("--dtype", "bf16")),
    ("--temperature was 0.7, and is 0.8 now", ("--temperature", "0.8")),
    ("--seed was 0, and is 1 now", ("--seed", "1")),
    ("--top-k was 40, and is 0 now", ("--top-k", "0")),
    ("--top-p was 1.0, and is 0.5 now", ("--top-p", "0.5")),
    ("--max-new-tokens was 12, and is 11 now", ("--max-new-tokens", "11")),
    ("--logprobs was false, and is true now", ("--logprobs",)),
]


def test_other_settings_are_refused_and_the_file_is_not_touched(
    run: Run, shardwright: Callable[..., Any], checkpoint: Callable[..., Path]
) -> None:
    run.half(run.undisturbed(shardwright))
    before = run.out.read_bytes()
    changes = [(said, run.argv(*more)) for said, more in (*BOTH, *OTHERWISE[run.name])]
    other = checkpoint("llama-multihead-tied")
    changes.append(("model.safetensors of the checkpoint has other contents", run.argv(checkpoint=other)))
    for said, argv in changes:
        made = shardwright(*argv)
        assert made.status == 1
        assert said in made.err
        assert " [other-settings]\n" in made.err
        assert f"remove {run.out} and {run.out}.settings.json to begin anew" in made.err
        assert run.out.read_bytes() == before
    (run.folder / "in.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS[: FEW - 1]))
    made = shardwright(*run.argv())
    assert made.status == 1
    assert f"the set of prompts was {FEW}, digest " in made.err
    assert run.out.read_bytes() == before


@pytest.mark.parametrize("run", ["generate"], indirect=True)
def test_a_mesh_that_gives_int4_other_scales_is_refused(run: Run, shardwright: Callable[..., Any]) -> None:
    """Groups do not cross chips, so that the same weights are others on more of them."""
    quantized = ("--mesh", "x=1", "--batch", "4", "--chunk", "4", "--weights", "int4")
    made = shardwright(*run.argv(*quantized, out=run.folder / "whole.jsonl"))
    assert made.status == 0, made.err
    run.half((run.folder / "whole.jsonl").read_bytes())
    assert shardwright(*run.argv(*quantized, "--decode-layout", "megatron")).status == 0
    run.half((run.folder / "whole.jsonl").read_bytes())
    made = shardwright(*run.argv("--mesh", "x=4", "--weights", "int4"))
    assert made.status == 1
    assert "--weights was int4 with a scale for " in made.err


SAME: dict[str, list[Sequence[object]]] = {
    "generate": [("--mesh", "x=2", "--batch", "6", "--chunk", "3", "--attention", "head")],
    "offload": [
        ("--policy", "3,1,100,0,100,0,100,0", "--host-memory", "1GB", "--device-memory", "1GB"),
        ("--schedule", "diagonal", "--disk-readers", "1", "--no-page-cache"),
        ("--gpus", "2"),
    ],
}


@pytest.mark.one_in(2)
def test_what_changes_no_answer_may_differ(run: Run, shardwright: Callable[..., Any]) -> None:
    whole = run.undisturbed(shardwright)
    for more in SAME[run.name]:
        run.half(whole)
        made = shardwright(*run.argv(*more))
        assert made.status == 0, made.err
        assert run.out.read_bytes() == whole
