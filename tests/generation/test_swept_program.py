"""A program that a sweep has chosen, in the hands of `generate`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from combinations import all_with_slow


@pytest.mark.parametrize(
    ("phase", "attention"),
    all_with_slow(
        ("generation", "decode"), ("batch", "head,batch"), chosen=lambda *asked: asked == ("generation", "batch")
    ),
)
def test_it_generates_what_transformers_does(
    shardwright: Callable,
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phase: str,
    attention: str,
) -> None:
    import torch
    import transformers

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, file = checkpoint("llama-grouped"), tmp_path / "chosen.shard"
    swept = shardwright(
        "pareto", str(folder), "--chip", "tpu-v4", "--chips", "8", "--batch", "4", "--weights", "bf16",
        "--layout", "ws2d,wg-xy", "--attention", attention, "--phase", phase, "--prompt-len", "6", "--gen-len", "5",
        "--latency-bound", "1", "--program", str(file),
    )  # fmt: skip
    assert (swept.status, swept.err) == (0, "")
    assert f"written to {file}" in swept.out
    file.write_text(file.read_text().replace("bf16", "f32"))  # as the reference computes
    prompts = [[5, 9, 11], [7], [13, 4, 8, 21, 30, 6], [2, 3]]
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(f"{json.dumps({'tokens': tokens})}\n" for tokens in prompts))
    made = shardwright(
        "generate", str(folder), "--mesh", "x=2,y=2,z=2", "--decode-layout", str(file), "--prompts", str(given),
        "-o", str(out), "--max-new-tokens", "5", "--batch", "4", "--ignore-eos",
    )  # fmt: skip
    assert (made.status, made.err) == (0, "")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for tokens, line in zip(prompts, out.read_text().splitlines(), strict=True):
        wanted = model.generate(
            torch.tensor([tokens]), max_new_tokens=5, min_new_tokens=5, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        assert json.loads(line)["new_tokens"] == wanted[0, len(tokens) :].tolist()
