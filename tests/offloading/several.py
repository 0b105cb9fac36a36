"""Several processes of one test on this machine, found by torch.distributed as those of torchrun are."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from nursery import TORCH, Process
from nursery import start as start_one


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(count: int, *words: object) -> list[Process]:
    """`python WORDS` in each."""
    port = free_port()
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [
        start_one(TORCH, *words, env={**os.environ, **shared, "RANK": str(index), "LOCAL_RANK": str(index)})
        for index in range(count)
    ]


def finished(processes: Sequence[Process], seconds: float = 600) -> list[tuple[int, str, str]]:
    """Exit status, stdout and stderr of each; they are killed after so many seconds, which are
    enough on a machine with much else to do."""
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.wait(), *each) for process, each in zip(processes, said, strict=True)]
