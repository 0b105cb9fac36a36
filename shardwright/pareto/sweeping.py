"""Runs a sweep over the cores: what was priced before is taken, the rest priced program by program and kept at once."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import wait

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.pareto.configurations import Configuration, Sweep, configurations_of
from shardwright.pareto.frontier import described, frontier
from shardwright.pareto.generations import generations
from shardwright.pareto.pricing import Point, identity, price_all
from shardwright.pareto.store import PointStore, identity_of, store_of
from shardwright.pareto.table import as_text
from shardwright.prediction.programs import wanted_program

_FEW = 4
"""So few programs are priced here rather than in processes of their own, which take a second to start."""

Progress = Callable[[int, int], None]
"""Is told how many configurations are done, of how many."""


class SweepInterrupted(KeyboardInterrupt):
    """An interrupt, after what was done has been kept."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__()
        self.done = done
        self.total = total


@dataclass(frozen=True)
class Swept:
    """The configurations of a sweep, each with its point, and how many of them had been priced before."""

    sweep: Sweep
    priced: tuple[tuple[Configuration, Point], ...]
    known: int

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(point for _, point in self.priced)

    @property
    def by_phase(self) -> dict[str, list[Point]]:
        """The points of each phase, or those of generations where the phases are put together."""
        if self.sweep.together:
            return {"generation": generations(self.sweep, self.priced)}
        return {phase: [point for point in self.points if point.phase == phase] for phase in self.sweep.phases}

    def __repr__(self) -> str:
        points = self.by_phase
        return as_text(self.sweep, points, {phase: frontier(some) for phase, some in points.items()})


def sweep_points(
    sweep: Sweep, progress: Progress | None = None, processes: int | None = None, store: PointStore | None = None
) -> Swept:
    """The points of a sweep, those that do not fit into memory or have no price among them.

    Raises `SweepInterrupted` on an interrupt; a `DiagnosticError` where the sweep is empty, or nothing has a price.
    """
    kept = store_of(sweep) if store is None else store
    asked = configurations_of(sweep)
    found: dict[tuple[object, ...], Point] = {}
    tasks: dict[str, list[Configuration]] = {}
    for one in asked:
        known = kept.get(identity(one))
        if known is None:
            tasks.setdefault(
                wanted_program(one.deployment, one.phase, one.batch, sweep.length(one.phase)).text, []
            ).append(one)
        else:
            found[identity_of(known)] = known
    total, before = len(asked), len(found)
    if progress is not None:
        progress(before, total)
    try:
        for points in _results(sweep, list(tasks.values()), processes):
            kept.add(points)
            found |= {identity_of(point): point for point in points}
            if progress is not None:
                progress(len(found), total)
    except KeyboardInterrupt:
        written = PointStore(kept.file)  # an interrupt may come between writing a point and counting it
        raise SweepInterrupted(sum(written.get(identity(one)) is not None for one in asked), total) from None
    made = tuple((one, found[identity_of(identity(one))]) for one in asked)
    if all(point.trouble for _, point in made):
        first = made[0][1]
        raise fault(
            "empty-sweep",
            f"none of {len(made)} configurations has a price: {first.trouble}",
            NOWHERE,
            f"that is said of {described(first)}",
            "take other chips, weights or layouts, or give the chip file what it lacks",
        )
    return Swept(sweep, made, before)


def _results(sweep: Sweep, tasks: list[list[Configuration]], processes: int | None) -> Iterator[list[Point]]:
    """The points of each task, as they come; the configurations of one share a program."""
    workers = min(processes or len(os.sched_getaffinity(0)), len(tasks))
    if workers < 2 or len(tasks) <= _FEW:
        for task in tasks:
            yield price_all(sweep, task)
        return
    # Not forked: libraries may have threads by now.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_serve)
    waiting: list[Future[list[Point]]] = []
    try:
        # What is blocked here stays so in the processes that are started: an interrupt from the terminal goes to all of
        # them, and this one answers it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            waiting += [pool.submit(price_all, sweep, task) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for done in as_completed(waiting):
            yield done.result()
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        # Else the pool's thread may close what the interpreter, on its way out, is about to wake it with.
        pool.shutdown(wait=True, cancel_futures=True)


def _serve() -> None:
    """In a process that prices: when the first process is gone, however it went, this one goes too. Programs are many
    small objects without cycles, which the collector would look through again and again."""
    gc.set_threshold(200_000, 20, 100)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_with, args=(parent.sentinel,), daemon=True).start()


def _leave_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
