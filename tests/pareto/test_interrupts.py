"""A real sweep in processes of its own, interrupted as a terminal does it: to the whole group of processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from interrupting import interruptible

COMMAND = (
    "pareto", "opt-125m", "--chip", "tpu-v4", "--chips", "8..32", "--batch", "1..16", "--prompt-len", "64",
    "--gen-len", "8", "--jobs", "2",
)  # fmt: skip


def started(cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        interruptible(*COMMAND),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
    )


def lines_of(cache: Path) -> list[str]:
    return [line for file in cache.rglob("*.jsonl") for line in file.read_text().splitlines()]


def wait_for_points(sweep: subprocess.Popen[str], cache: Path) -> None:
    until = time.monotonic() + 300
    while not lines_of(cache):
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < until, "no configuration is priced"
        time.sleep(0.05)


def group_is_gone(group: int) -> bool:
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_interrupted_twice_it_says_once_what_is_kept(tmp_path: Path) -> None:
    sweep = started(tmp_path)
    wait_for_points(sweep, tmp_path)
    os.killpg(sweep.pid, signal.SIGINT)
    time.sleep(0.05)
    os.killpg(sweep.pid, signal.SIGINT)
    out, err = sweep.communicate(timeout=300)
    assert (sweep.returncode, out) == (130, "")
    said = re.fullmatch(
        r"interrupted: (\d+) of (\d+) configurations are priced and kept; the same command goes on from there\n", err
    )
    assert said is not None, err
    kept = lines_of(tmp_path)
    assert 0 < int(said[1]) == len(kept) < int(said[2])
    assert all(json.loads(line)["phase"] for line in kept)
    assert group_is_gone(sweep.pid)


def test_processes_go_with_the_one_that_started_them(tmp_path: Path) -> None:
    sweep = started(tmp_path)
    wait_for_points(sweep, tmp_path)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait(timeout=300)
    assert group_is_gone(sweep.pid)
    assert sweep.stdout is not None
    assert sweep.stderr is not None
    sweep.stdout.close()
    sweep.stderr.close()
