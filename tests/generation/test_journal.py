"""The journal of a run: going on, in order, under the same settings, one run at a time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.serving.generation import run_settings as settings_module
from shardwright.serving.generation.file_digests import file_digests
from shardwright.serving.generation.journal import Journal
from shardwright.serving.generation.prompts import Prompt
from shardwright.serving.generation.run_settings import RunSettings, run_settings
from shardwright.serving.generation.settings import GenerationSettings

PROMPTS = [Prompt(index, (1, index), {"id": index}) for index in range(4)]


def no_files(**named: Any) -> Callable[[], RunSettings]:
    return lambda: RunSettings({"--seed": 0, **named}, {})


def answer(index: int, sample: int | None = None, token: int = 7) -> dict[str, Any]:
    keys: dict[str, Any] = {"id": index, "index": index}
    return keys | ({} if sample is None else {"sample": sample}) | {"new_tokens": [token]}


def opened(path: Path, samples: int = 1, prompts: list[Prompt] = PROMPTS, **named: Any) -> Journal:
    return Journal(str(path), prompts, no_files(**named), samples)


def refused(path: Path, **named: Any) -> str:
    with pytest.raises(DiagnosticError) as caught, opened(path, **named):
        pass
    return caught.value.render().replace(f"{path.parent}/", "")


# ---------------------------------------------------------------- lines


def test_lines_go_on_where_they_ended_and_come_into_order(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with opened(path) as journal:
        assert journal.answered == frozenset()
        journal.write(answer(2))
        journal.write(answer(0))
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [2, 0]
    path.chmod(0o640)
    with path.open("ab") as file:
        file.write(b'{"id": 1, "ind')
    with opened(path) as journal:
        assert journal.answered == {(0, 0), (2, 0)}
        journal.write(answer(3))
        journal.write(answer(1))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [answer(index) for index in range(4)]
    assert path.stat().st_mode & 0o777 == 0o640
    before = path.read_bytes()
    with opened(path) as journal:
        assert len(journal.answered) == 4
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "out.settings.json"]


def test_samples_are_texts_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with opened(path, samples=2) as journal:
        journal.write(answer(0, 1))
    with opened(path, samples=2) as journal:
        assert journal.answered == {(0, 1)}
        assert journal.texts[:3] == [(0, 0), (0, 1), (1, 0)]


def test_a_run_that_fails_leaves_whole_lines_alone(tmp_path: Path) -> None:
    path, new = tmp_path / "out", tmp_path / "new"

    def failing(target: Path, lines: int) -> None:
        with opened(target) as journal:
            for index in range(lines):
                journal.write(answer(index))
            raise RuntimeError

    for target, lines in ((path, 1), (new, 0)):
        with pytest.raises(RuntimeError):
            failing(target, lines)
    assert path.read_text() == json.dumps(answer(0)) + "\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "out.settings.json"]


def test_a_disk_that_is_full_takes_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pwrite = tmp_path / "out", os.pwrite

    def half(file: int, data: bytes, at: int) -> int:
        if len(data) <= 20:
            raise OSError(28, "No space left on device")
        return pwrite(file, data[:20], at)

    with opened(path) as journal:
        journal.write(answer(0))
        monkeypatch.setattr("os.pwrite", half)
        with pytest.raises(OSError, match="No space left") as caught:
            journal.write(answer(1))
    assert caught.value.filename == str(path)
    assert path.read_text() == json.dumps(answer(0)) + "\n"


def test_a_file_that_is_cut_off_meanwhile_is_no_answer(tmp_path: Path) -> None:
    """Lines behind what is gone would come after a hole."""
    path = tmp_path / "out"

    def cut(lines: int) -> None:
        with opened(path) as journal:
            for index in range(4):
                if index not in {text for text, _ in journal.answered}:
                    journal.write(answer(index))
                if index == lines:
                    os.truncate(path, 5)

    for lines in (2, 3):
        with pytest.raises(DiagnosticError) as caught:
            cut(lines)
        (said,) = caught.value.diagnostics
        assert (said.code, said.message.split(":")[0]) == ("cut-off", "answers are gone")
        assert path.read_text() == json.dumps(answer(0))[:5]
    cut(-1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [answer(index) for index in range(4)]


@pytest.mark.parametrize("change", ["removed", "replaced", "appended"])
def test_a_file_that_is_changed_meanwhile_is_whole_at_the_end(change: str, tmp_path: Path) -> None:
    path, other = tmp_path / "out", tmp_path / "other"
    with opened(path) as journal:
        for index in range(4):
            journal.write(answer(index))
        if change == "removed":
            path.unlink()
        elif change == "replaced":
            other.write_text("others\n")
            other.replace(path)
        else:
            with path.open("a") as file:
                file.write("others\n")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [answer(index) for index in range(4)]


def test_a_place_that_cannot_be_written_is_found_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        opened(tmp_path / "nowhere" / "out")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"id": 0, "index": 0}', "this line is not the answer to one of these prompts"),
        ('{"id": 1, "index": 0, "new_tokens": []}', "this line is not the answer to one of these prompts"),
        ('{"id": 0, "index": 0, "sample": 1, "new_tokens": []}', "this line is not the answer to one of these prompts"),
        ("what was here before", "this line is not the answer to one of these prompts"),
        ('{"id": 0, "index": 0, "new_tokens": []}\n' * 2, "prompt 0 is answered twice"),
    ],
)
def test_a_file_of_something_else_is_not_touched(lines: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(text := lines.rstrip("\n") + "\n")
    assert f"error: {said} [not-resumable]" in refused(path)
    assert path.read_text() == text
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


# ---------------------------------------------------------------- one run at a time


def test_another_process_is_refused_and_a_killed_ones_lock_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "out"
    script = (
        "import sys, time\n"
        "from shardwright.serving.generation.journal import Journal\n"
        "from shardwright.serving.generation.prompts import Prompt\n"
        "from shardwright.serving.generation.run_settings import RunSettings\n"
        "prompts = [Prompt(index, (1, index), {'id': index}) for index in range(4)]\n"
        "journal = Journal(sys.argv[1], prompts, lambda: RunSettings({'--seed': 0}, {}))\n"
        "journal.write({'id': 0, 'index': 0, 'new_tokens': [7]})\n"
        "print('open', flush=True)\n"
        "time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        assert refused(path) == (
            "out: error: another run is writing to this file [in-use]\n"
            "note: wait until it has ended, or give another file with -o"
        )
        other.send_signal(signal.SIGKILL)
        other.wait()
        with opened(path) as journal:
            assert journal.answered == {(0, 0)}
    finally:
        other.kill()
        other.communicate()


# ---------------------------------------------------------------- the same settings


def test_other_settings_are_refused_with_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with opened(path, temperature=0.5, dtype="bf16") as journal:
        journal.write(answer(0))
    before = path.read_bytes(), (tmp_path / "out.settings.json").read_bytes()
    assert refused(path, temperature=0.8, dtype="bf16", weights="int8") == (
        "out: error: the answers in this file were made with other settings: temperature was 0.5, and is 0.8 now"
        " [other-settings]\n"
        "note: weights was not given, and is int8 now\n"
        "note: go on with what it was begun with, give another file with -o, or remove out and out.settings.json to"
        " begin anew"
    )
    assert (path.read_bytes(), (tmp_path / "out.settings.json").read_bytes()) == before


def test_two_ways_of_not_being_given_are_one(tmp_path: Path) -> None:
    """`generate` keeps passes as a text, `offload` keeps none."""
    path = tmp_path / "out"
    with opened(path, seed=0, passes="") as journal:
        journal.write(answer(0))
    with opened(path, seed=0) as journal:
        assert journal.answered == {(0, 0)}
    assert "note: passes" not in refused(path, seed=1)


@pytest.mark.parametrize("text", [None, "", "[]", '{"format": "shardwright settings 0"}'])
def test_settings_that_are_not_known_are_refused(text: str | None, tmp_path: Path) -> None:
    path, beside = tmp_path / "out", tmp_path / "out.settings.json"
    with opened(path) as journal:
        journal.write(answer(0))
    beside.unlink() if text is None else beside.write_text(text)
    assert refused(path).startswith(
        "out: error: it is not known with which settings these answers were made: out.settings.json"
    )


def test_settings_of_a_run_that_answered_nothing_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("")
    with opened(path, temperature=0.5):
        pass
    with opened(path, temperature=0.8) as journal:
        journal.write(answer(0))
    assert "temperature was 0.8" in refused(path, temperature=0.5)


def changed(field: str, value: Any) -> GenerationSettings:
    return replace(GenerationSettings(temperature=1.0), **{field: value})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (changed("max_new_tokens", 65), "--max-new-tokens was 64, and is 65 now"),
        (changed("temperature", 0.5), "--temperature was 1.0, and is 0.5 now"),
        (changed("top_k", 3), "--top-k was 0, and is 3 now"),
        (changed("top_p", 0.5), "--top-p was 1.0, and is 0.5 now"),
        (changed("seed", 1), "--seed was 0, and is 1 now"),
        (changed("samples", 2), "--samples was 1, and is 2 now"),
        (changed("stop_tokens", frozenset((3, 2))), "the list of stop tokens was [], and is [2, 3] now"),
        (changed("logprobs", True), "--logprobs was false, and is true now"),
    ],
)
def test_every_setting_of_generation_counts(
    settings: GenerationSettings, said: str, checkpoint: Callable[..., Path]
) -> None:
    folder = checkpoint("llama-grouped")
    then, now = (
        settings_module.kept_settings(run_settings("offload", folder, PROMPTS, each, dtype="f32"), None)
        for each in (changed("seed", 0), settings)
    )
    assert then.differences(now) == [said]
    assert then.differences(then) == []


def test_prompts_and_what_they_carry_count(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    given = [PROMPTS, PROMPTS[:3], [*PROMPTS[:3], Prompt(3, (1, 2), {"id": 3})], [*PROMPTS[:3], Prompt(3, (1, 3), {})]]
    named = [
        run_settings("offload", folder, prompts, GenerationSettings()).named["the set of prompts"] for prompts in given
    ]
    assert len(set(named)) == 4
    assert [text.partition(",")[0] for text in named] == ["4", "3", "4", "4"]


def test_a_checkpoint_is_known_by_all_its_bytes(spoken: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(spoken, tmp_path / "checkpoint")

    def kept(before: Any = None) -> Any:
        return settings_module.kept_settings(run_settings("offload", folder, PROMPTS, GenerationSettings()), before)

    then = kept()
    assert "tokenizer.json of the checkpoint" in then.digests
    weights = folder / "model.safetensors"
    copied = shutil.copy(weights, tmp_path / "again")
    weights.unlink()
    shutil.copy(copied, weights)
    assert then.differences(kept(then)) == []
    with weights.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        (last,) = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes((last ^ 1,)))
    assert then.differences(kept(then)) == ["model.safetensors of the checkpoint has other contents than it had"]
    shutil.copy(copied, weights)
    with (folder / "tokenizer.json").open("a") as file:
        file.write(" ")
    assert then.differences(kept(then)) == ["tokenizer.json of the checkpoint has other contents than it had"]
    shutil.copy(weights, folder / "model-2.safetensors")
    weights.unlink()
    assert "model.safetensors of the checkpoint is gone" in then.differences(kept(then))
    assert "model-2.safetensors of the checkpoint is new" in then.differences(kept(then))


def test_a_file_that_has_not_changed_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwright.serving.generation import file_digests as module

    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 1000)
    whole = file_digests([path], {})
    monkeypatch.setattr(module, "_PIECE", 1 << 16)
    assert file_digests([path], {}) != whole
    read: list[int] = []
    piece = module._piece
    monkeypatch.setattr(module, "_piece", lambda path, at: read.append(at) or piece(path, at))
    first = file_digests([path], {})
    assert read == [0, 65536, 131072, 196608]
    assert file_digests([path], first) == first
    assert len(read) == 4
    os.utime(path)
    assert next(iter(file_digests([path], first).values()))["digest"] == next(iter(first.values()))["digest"]
    assert len(read) == 8
