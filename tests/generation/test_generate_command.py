"""`shardwright generate`: what it reads, writes and refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_devices import with_devices

from shardwright.cli.progress import GenerationProgress
from shardwright.serving.generation.prompts import Prompt


@pytest.fixture
def generate(shardwright: Callable, spoken: Path) -> Callable[..., Any]:
    return lambda *argv: shardwright("generate", spoken, *argv)


def test_json_lines_in_and_out(generate: Callable, tmp_path: Path) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "w5 w6 w7", "id": "a"}, {"tokens": [9], "more": {"x": [None, 1.5]}}, {"prompt": "w11"}]
    given.write_text("\n".join(map(json.dumps, lines)))
    options = ("--prompts", given, "--mesh", "x=2", "--max-new-tokens", "5", "--batch", "2", "--logprobs")
    got = generate(*options, "-o", out, "--json", "--ignore-eos")
    assert (got.status, got.err) == (0, "")
    report = json.loads(got.out)
    assert report.pop("tokens_per_second") > 0
    assert report.pop("seconds") > 0
    assert report == {
        "ok": True,
        "architecture": "LlamaForCausalLM",
        "mesh": {"x": 2},
        "devices": 2,
        "virtual": True,
        "decode_layout": "ws2d",
        "prefill_layout": "ws2d",
        "batch": 2,
        "prefill_batch": 2,
        "chunk": 4,  # <s> w5 w6 w7
        "cache": 8,
        "new_tokens": 15,
        "resumed": 0,
        "output": str(out),
    }
    found = [json.loads(line) for line in out.read_text().splitlines()]
    for index, (line, wanted) in enumerate(zip(found, lines, strict=True)):
        assert list(line) == [*wanted, "index", "new_tokens", "text", "logprobs", "prompt_logprobs"]
        assert {key: line[key] for key in wanted} == wanted
        assert line["index"] == index
        assert len(line["new_tokens"]) == len(line["logprobs"]) == 5
        assert line["text"].split() == [f"w{token}" for token in line["new_tokens"] if token > 2]
    assert [len(line["prompt_logprobs"]) for line in found] == [4, 1, 2]


def test_one_prompt_is_text(generate: Callable) -> None:
    options = ("--mesh", "x=1", "--max-new-tokens", "4", "--ignore-eos", "--prompt", "w5 w6 w7")
    streamed = generate(*options, "--stream")
    shown = generate(*options, "--chip", "tpu-v4", "--objective", "bytes", "--calls", "prefill=1,decode=4")
    assert generate(*options, "--chip", "h10").err.startswith("--chip: error: there is no chip `h10` [unknown-chip]\n")
    assert (shown.status, shown.err) == (0, "")
    assert len(shown.out.split()) == 4
    assert streamed.out == shown.out


def test_pages_are_those_of_all_rows(generate: Callable) -> None:
    options = ("--mesh", "x=2", "--max-new-tokens", "4", "--ignore-eos", "--tokens", "5 6 7", "--tokens", "8", "--json")
    plain, paged, few = (
        json.loads(generate(*options, *more).out)
        for more in ((), ("--page-size", "4"), ("--page-size", "4", "--pages", "2"))
    )
    assert paged["results"] == few["results"] == plain["results"]
    assert (paged["page_size"], paged["pages"]) == (4, 2 * 2)
    assert (few["page_size"], few["pages"]) == (4, 2)
    assert "pages" not in plain


def test_standard_input_and_output(generate: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    from types import SimpleNamespace

    lines = b'{"tokens": [5]}\n{"tokens": [6]}\n'
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    options = ("--mesh", "x=1", "--max-new-tokens", "2", "--ignore-eos", "--temperature", "1", "--samples", "2")
    got = generate("--prompts", "-", *options)
    assert [list(json.loads(line)) for line in got.out.splitlines()] == [
        ["tokens", "index", "sample", "new_tokens", "text"]
    ] * 4


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "one of --prompt, --tokens and --prompts is required"),
        (["--prompt", "a", "--tokens", "1"], "--prompt and --tokens cannot be given together"),
        (["--tokens", "1,x"], "argument --tokens: '1,x' is not a list of token ids, as in '1 15 7'"),
        (["--tokens", "1", "--dim", "E=3"], "--dim E: the checkpoint gives the sizes of all dimensions but B, L and T"),
        (["--tokens", "1", "--dim", "B=3", "--batch", "3"], "--dim B and --batch both give the size of B"),
        (
            ["--tokens", "1", "--max-new-tokens", "0"],
            "--max-new-tokens 0 needs --logprobs: there is nothing else to compute",
        ),
        (
            ["--tokens", "1", "--samples", "2"],
            "--samples 2 needs --temperature above 0, and new tokens: else all are the same",
        ),
        (["--tokens", "1", "--stream", "--json"], "--stream shows text on standard output, without --json and -o"),
        (
            ["--tokens", "1", "--tokens", "2", "--stream"],
            "--stream is for one sample of one prompt, given as --prompt or --tokens, without --logprobs",
        ),
        (["--tokens", "1", "--top-p", "0"], "argument --top-p: '0' is not a number above 0 and up to 1"),
        (["--tokens", "1", "--temperature", "nan"], "argument --temperature: 'nan' is not a number from 0 up"),
        (
            ["--tokens", "1", "--device-memory", "16"],
            "argument --device-memory: '16' is not a size in bytes, as in 16GB or 512MiB",
        ),
        (["--tokens", "1", "--batch", "0"], "argument --batch: '0' is not a whole number from 1 up"),
    ],
)  # fmt: skip
def test_wrong_usage(argv: list[str], why: str, generate: Callable) -> None:
    got = generate(*argv)
    assert got.status == 2
    assert got.out == ""
    assert got.err == f"shardwright generate: error: {why}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--tokens", "1 96"], "prompt 1: error: token 96 is out of range [bad-prompt]\nnote: ids are 0 to 95\n"),
        (
            ["--tokens", "1", "--decode-layout", "ws3d"],
            "{folder}: error: there is no layout ws3d; there are megatron, ws1d, ws2d, wg-x, wg-xy, wg-xyz, and open"
            " [unknown-layout]\nnote: did you mean ws2d?\n",
        ),
        (
            ["--tokens", "1", "--mesh", "x=2,y=2", "--decode-layout", "ws1d", "--prefill-layout", "wg-x"],
            "{folder}: error: wg-x stores weights otherwise than ws1d, and they are stored once [layouts-differ]\n"
            "note: ws2d, wg-x, wg-xy and wg-xyz store them alike\n",
        ),
        (
            ["--tokens", "1 2 3", "--cache", "4", "--max-new-tokens", "9"],
            "prompt 1: error: the prompt has 3 tokens and 9 more are wanted, and the cache has 4 positions"
            " [cache-full]\n"
            "note: 2 new tokens fit: give --max-new-tokens 2, or --cache 11\n",
        ),
        (
            ["--tokens", "1", "--page-size", "4", "--prefill-batch", "1"],
            "{folder}: error: rows of prefill's own have a cache of their own, and pages lie in one pool [no-pages]\n"
            "note: leave out --prefill-batch, or --page-size\n",
        ),
        (
            ["--tokens", "1", "--pages", "4"],
            "{folder}: error: there are 4 pages, and no page size [bad-setting]\nnote: give both\n",
        ),
        (
            ["--prompts", "nowhere.jsonl"],
            "nowhere.jsonl: error: no such file or directory [file]\n",
        ),
        (
            ["--tokens", "1", "--decode-layout", "nowhere.shard"],
            "nowhere.shard: error: there is no such file [no-file]\nnote: check the path\n",
        ),
        (
            ["--tokens", "1", "-o", "no/where.jsonl"],
            "no/where.jsonl: error: no such file or directory [file]\n",
        ),
    ],
)  # fmt: skip
def test_input_at_fault(
    argv: list[str], said: str, generate: Callable, spoken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    got = generate(*argv)
    assert got.status == 1
    assert got.out == ""
    assert got.err == said.format(folder=spoken)


def test_weights_that_are_missing_leave_the_output_as_it_was(
    shardwright: Callable, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint("llama-grouped") / "config.json").read_bytes())
    kept = tmp_path / "kept.jsonl"
    kept.write_text("before\n")
    for out, said in (
        (kept, f"{kept}:1:1: error: this line is not the answer to one of these prompts [not-resumable]\n"),
        (tmp_path / "new.jsonl", f"{tmp_path}: error: the folder holds no *.safetensors [no-weights]\n"),
    ):
        got = shardwright("generate", tmp_path, "--tokens", "1", "--mesh", "x=1", "-o", out)
        assert got.status == 1
        assert got.err.startswith(said)
    assert kept.read_text() == "before\n"
    assert not (tmp_path / "new.jsonl").exists()


def test_a_stop_token_that_is_none_is_not_blamed_on_the_tokenizer(
    shardwright: Callable, spoken: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(spoken, tmp_path / "copy")
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": "x"}))
    got = shardwright("generate", folder, "--tokens", "5")
    wanted = f'{folder}/config.json: error: eos_token_id is "x", not a token id or a list of them [bad-config]\n'
    assert (got.status, got.out, got.err) == (1, "", wanted)


def test_progress_is_for_terminals_and_long_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    def run(wanted: bool) -> str:
        with GenerationProgress(2, wanted) as progress:
            for second in range(4):
                now[0] += second
                progress.loaded(second * 10**9, 3 * 10**9)
            for _ in range(11):
                now[0] += 0.5
                progress.token(Prompt(0, (1,)), 0, 5)
            progress.text()
        return capsys.readouterr().err

    assert run(wanted=False) == ""
    shown = run(wanted=True)
    assert "loading weights" in shown
    assert "11 tokens, 2.0 per second" in shown


STAGES = ("--passes", "pipeline-layers{stages=2,micro-batches=1}")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("options", "devices"),
    [((*STAGES, "--mesh", "x=2"), 4), (("--mesh", "x=2"), 2), (STAGES, 2)],
    ids=["stages of a mesh", "a mesh", "stages"],
)
def test_a_fresh_process_makes_the_devices_that_are_needed(
    options: tuple[str, ...], devices: int, spoken: Path
) -> None:
    """Nothing may start JAX before that, as asking how many processes there are does."""
    command = [sys.executable, "-m", "shardwright", "generate", str(spoken), "--tokens", "5 6 7", *options]
    done = subprocess.run(
        [*command, "--max-new-tokens", "3", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=with_devices(None),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["devices"], report["virtual"], report["new_tokens"]) == (devices, True, 3)


def test_calls_of_prefill_where_prompts_are_scored(generate: Callable) -> None:
    options = ("--tokens", "1 15 7", "--max-new-tokens", "2", "--mesh", "x=2", "--calls", "prefill=1,decode=256")
    scored = generate(*options, "--logprobs", "--json")
    assert (scored.status, scored.err) == (0, "")
