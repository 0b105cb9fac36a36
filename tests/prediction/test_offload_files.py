"""`reproduce FILE.csv` with rows of offloading: what is read, and what of a line is at fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

HEAD = "prompt_len,gen_len,machine,gpus,model,system,tokens_per_s,gpu_batch,n_gpu_batches,wg,wc,cg,cc,hg,hc"
ALL = "100,0,100,0,100,0"


@pytest.fixture
def compare(shardwright: Callable[..., SimpleNamespace], tmp_path: Path) -> Callable[..., SimpleNamespace]:
    def compared(*lines: str, options: tuple[str, ...] = ("--json",)) -> SimpleNamespace:
        (tmp_path / "own.csv").write_text("\n".join(("# rows", *lines)) + "\n")
        got = shardwright("reproduce", str(tmp_path / "own.csv"), *options)
        return SimpleNamespace(status=got.status, out=got.out, err=got.err.replace(f"{tmp_path}/", ""))

    return compared


def test_lengths_machines_and_pipelines(compare: Callable[..., SimpleNamespace]) -> None:
    """Longer prompts take longer, another machine another time, and two stages less than one."""
    rows = (
        f"64,8,t4,,opt-1.3b,flexgen,1,4,2,{ALL}",
        f"128,8,t4,,opt-1.3b,flexgen,1,4,2,{ALL}",
        f"128,8,rtx-3090,,opt-1.3b,flexgen,1,4,2,{ALL}",
        f"128,8,t4,2,opt-1.3b,flexgen,1,4,2,{ALL}",
        "128,8,,,opt-1.3b,deepspeed,OOM,400,1,0,100,100,0,100,0",
    )
    made = json.loads(compare(HEAD, *rows).out)["rows"]
    short, long, other, two, none = (row["predicted"] for row in made)
    assert short > long
    assert other > long
    assert long < two < 2 * long
    assert none == 0
    assert made[-1]["remark"] == "out of memory, published and predicted"


@pytest.mark.parametrize(
    ("line", "error", "note"),
    [
        (f"64,8,t4,,opt-1.3b,flexgen,1,4,2,{ALL},7", "16 values in 15 columns [bad-row]", None),
        (f"x,8,t4,,opt-1.3b,flexgen,1,4,2,{ALL}", "prompt_len is 'x', and must be a whole number from 1 up", None),
        (f"64,8,t4,,opt-1.3b,flexgen,fast,4,2,{ALL}", "tokens_per_s is 'fast', and must be a number above 0", None),
        (f"64,8,t4,,opt-1.3b,flexgen,-1,4,2,{ALL}", "tokens_per_s is '-1', and must be a number above 0", None),
        (f"64,8,t4,,opt-1.3b,flexgem,1,4,2,{ALL}", "there is no system 'flexgem'", "did you mean flexgen?"),
        (f"64,8,t4,,opt-1.3b,petals,1,4,2,{ALL}", "there is no system 'petals'", "petals has no policy"),
        (f"64,8,t4,,opt-1.3b,deepspeed-4bit,1,4,1,{ALL}", "deepspeed keeps nothing in 4 bits", None),
        (f"64,8,t5,,opt-1.3b,flexgen,1,4,2,{ALL}", "there is no machine `t5`", "machines: rtx-3090, t4"),
        ("64,8,t4,,opt-1.3b,flexgen,1,4,2,80,30,100,0,100,0", "places 110 % of the weights", "at most 100"),
        (f"64,8,t4,,opt-1.3b,accelerate,1,4,2,{ALL}", "accelerate goes through the layers with one batch", "give 1"),
    ],
)
def test_a_line_at_fault_is_named(
    line: str, error: str, note: str | None, compare: Callable[..., SimpleNamespace]
) -> None:
    got = compare(HEAD, line, options=())
    assert (got.status, got.out) == (1, "")
    assert got.err.startswith("own.csv:3:1: error: ")
    assert error in got.err
    assert line in got.err
    assert note is None or f"note: {note}" in got.err or note in got.err.partition("note: ")[2]


def test_a_gpu_is_a_machine_that_is_known_or_the_row_is_refused(compare: Callable[..., SimpleNamespace]) -> None:
    head = HEAD.replace("machine", "gpu")
    row = f"128,8,{{}},,opt-1.3b,flexgen,1,4,2,{ALL}"
    mine, theirs = json.loads(compare(head, row.format("RTX 3090"), row.format("T4")).out)["rows"]
    assert mine["predicted"] != theirs["predicted"]
    assert "there is no machine `A100`" in compare(head, row.format("A100"), options=()).err
    assert compare(HEAD.replace("machine", "colour"), row.format("red"), options=()).err.splitlines()[0] == (
        "own.csv:2:20: error: there is no column colour, and nothing would be made of it [unknown-column]"
    )


def test_petals_of_ones_own(compare: Callable[..., SimpleNamespace]) -> None:
    """A worse network is slower; servers cannot be more than layers."""
    head = "prompt_len,model,servers,delay_ms,mbit_per_s,tokens_per_s"
    made = json.loads(compare(head, "64,opt-1.3b,4,5,1000,1", "64,opt-1.3b,4,100,100,1").out)["rows"]
    assert made[0]["predicted"] > made[1]["predicted"]
    assert "24 layers cannot be on 25 servers" in compare(head, "64,opt-1.3b,25,5,1000,1", options=()).err
