"""Several processes of one command on this machine, stages of a pipeline or chips of a mesh, which end together."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence

from shardwright.ir.diagnostics import NOWHERE, Source, fault
from shardwright.ir.own_processes import module_command, own_environment

LEAST_MOST = 8
"""Processes that a machine gets however few its cores are: as many as there are GPUs in most."""

_GRACE = 15
"""Seconds that the others have to end when one has failed; they need less (`backends.torch.world.GRACE`)."""


PLAN = "SHARDWRIGHT_PLAN"
"""The variable of the environment in which processes find what the one that starts them has planned."""


def run_together(argv: Sequence[str], count: int, plan: str = "") -> int:
    """Runs `shardwright ARGV` in so many processes, which find each other as those of torchrun do, and a `plan`. The
    exit status: 0 where all have done their work.

    When one fails the others end, and so they do when this process is killed. Raises a `DiagnosticError` where one was
    killed and none is left to say so.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SHARDWRIGHT_PARENT_PIPE": "1",
        PLAN: plan,
        "OMP_NUM_THREADS": str(threads_of(count)),
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index in range(count):
            own = {"RANK": str(index), "LOCAL_RANK": str(index)}
            words = [*module_command("shardwright"), *argv]
            processes.append(subprocess.Popen(words, stdin=subprocess.PIPE, env=own_environment(**shared, **own)))
        statuses = _wait(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
    killed = [i for i, status in enumerate(statuses) if status < 0]
    if len(killed) == count:
        failed = fault("lost-process", f"all {count} processes have been killed", NOWHERE)
        failed.source = Source("shardwright", "")
        raise failed
    return 1 if any(statuses) else 0


def check_count(count: int) -> None:
    """Raises where this machine is not one for so many processes."""
    cores = os.cpu_count() or 1
    most = max(LEAST_MOST, cores)
    if count > most:
        raise fault(
            "too-many-processes",
            f"these are {count} processes, and a machine with {cores} cores gets {most} at most",
            NOWHERE,
            "give a smaller --mesh or --gpus, or start them on several hosts:"
            " torchrun --nproc-per-node N -m shardwright offload ...",
        )


def threads_of(count: int) -> int:
    """The threads that each of so many processes computes with."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() and int(said) else max(1, (os.cpu_count() or 1) // count)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """The exit statuses of all; once one has failed the others are not waited for long, and who is stopped not at
    all."""
    deadline = None
    while left := [process for process in processes if process.poll() is None]:
        failed = any(process.returncode for process in processes)
        deadline = time.monotonic() + _GRACE if failed and deadline is None else deadline
        if deadline is not None and (time.monotonic() > deadline or all(map(_stopped, left))):
            break
        time.sleep(0.02)
    return [1 if process.poll() is None else process.returncode for process in processes]


def _stopped(process: subprocess.Popen[bytes]) -> bool:
    """True if a process is stopped, as by SIGSTOP; it stays to be waited for."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False
