"""Runs a function on many seeds in processes, each seed under a limit of time and of memory, none of them lost.

A limit is one of processor time, so that what else the machine does counts for nothing. A worker raises `TimeIsUp` in
what runs past it; where that is not heeded (in a library's own code, or because the process ended) the worker is
stopped, another takes its place, and the seed is reported all the same.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

GRACE, GRACE_SECONDS = 10.0, 30.0
"""How many times its limit, and seconds more, a worker may take by the clock before it counts as stuck."""


class TimeIsUp(BaseException):
    """The alarm of a seed that runs past its limit; no `except Exception` swallows it."""


@dataclass(frozen=True)
class Ended:
    """What became of a seed: `how` is "done", "time", "memory" or "lost"; `result` is what the function returned."""

    seed: int
    how: str
    result: Any
    seconds: float


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    left: list[int] = field(default_factory=list)
    since: float = 0.0
    served: int = 0


def _ring(*_: object) -> None:
    raise TimeIsUp


def under_limit(function: Any, seed: int, limit: float) -> Ended:
    """A seed in this process, under a limit of seconds of its own processor time."""
    signal.signal(signal.SIGPROF, _ring)
    begun = time.process_time()
    how, result = "done", None
    try:
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            result = function(seed)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except TimeIsUp:
        how = "time"
    except MemoryError:
        how = "memory"
    return Ended(seed, how, result, time.process_time() - begun)


def _serve(pipe: Connection, name: str, arguments: tuple[Any, ...], limit: float, memory: int) -> None:
    os.nice(5)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute)(*arguments)
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    while True:
        seeds: list[int] | None = pipe.recv()
        if seeds is None:
            return
        for seed in seeds:
            pipe.send(under_limit(function, seed, limit))


def run(
    name: str,
    arguments: tuple[Any, ...],
    seeds: Iterable[int],
    *,
    processes: int,
    limit: float,
    memory: int = 0,
    batch: int = 16,
    recycle: int = 2000,
    until: float | None = None,
) -> Iterator[Ended]:
    """The ends of all seeds, in no order. `name` is "module:factory"; factory(*arguments) is the function of a seed.

    `memory` bounds a worker's address space in bytes, 0 not at all; after `recycle` seeds a worker is replaced. No seed
    begins after `until`, of `time.monotonic`.
    """
    context = multiprocessing.get_context("spawn")
    queue = iter(seeds)
    workers: list[_Worker] = []

    def fresh() -> _Worker:
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, name, arguments, limit, memory), daemon=True)
        process.start()
        there.close()
        return _Worker(process, here)

    def feed(worker: _Worker) -> bool:
        worker.left = [] if until is not None and time.monotonic() > until else _first(queue, batch)
        worker.since = time.monotonic()
        if worker.left:
            worker.pipe.send(worker.left)
        return bool(worker.left)

    def stop(worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        workers.remove(worker)

    def replaced(left: list[int]) -> None:
        worker = fresh()
        workers.append(worker)
        worker.left, worker.since = left, time.monotonic()
        if left:
            worker.pipe.send(left)
        elif not feed(worker):
            stop(worker)

    for _ in range(processes):
        replaced([])
    try:
        while workers:
            ready = wait([worker.pipe for worker in workers], timeout=1.0)
            for worker in tuple(workers):  # some go and others come meanwhile
                if worker.pipe in ready:
                    try:
                        ended: Ended = worker.pipe.recv()
                    except EOFError:
                        seed, *rest = worker.left
                        yield Ended(seed, "lost", None, time.monotonic() - worker.since)
                        stop(worker)
                        replaced(rest)
                        continue
                    worker.left.remove(ended.seed)
                    worker.since = time.monotonic()
                    worker.served += 1
                    yield ended
                    if worker.left:
                        continue
                    if worker.served >= recycle:
                        stop(worker)
                        replaced([])
                    elif not feed(worker):
                        stop(worker)
                elif time.monotonic() - worker.since > GRACE * limit + GRACE_SECONDS:
                    seed, *rest = worker.left
                    yield Ended(seed, "time", None, time.monotonic() - worker.since)
                    stop(worker)
                    replaced(rest)
    finally:
        while workers:
            stop(workers[0])


def _first(queue: Iterator[int], n: int) -> list[int]:
    taken: list[int] = []
    for seed in queue:
        taken.append(seed)
        if len(taken) == n:
            break
    return taken
