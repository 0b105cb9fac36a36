"""Runs a sweep over the cores: what was priced before is taken, the rest priced group by group and kept at once."""

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
from shardwright.pareto.configurations import Configuration, Group, Sweep, groups_of
from shardwright.pareto.frontier import described
from shardwright.pareto.pricing import Point, identity, passes_of, price_all, sample_text
from shardwright.pareto.store import Store, digest, identity_of, store_of

_FEW = 4
"""So few groups are priced here rather than in processes of their own, which take a second to start."""

Progress = Callable[[int, int], None]
"""Is told how many configurations are done, of how many."""


class SweepInterrupted(KeyboardInterrupt):
    """An interrupt, after what was done has been kept."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__()
        self.done = done
        self.total = total


@dataclass(frozen=True)
class _Task:
    """What of a group is still to be priced; `keys` say for each member what its price depends on."""

    group: Group
    members: tuple[Configuration, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Swept:
    """The configurations of a sweep, each with its point, and how many of them had been priced before."""

    priced: tuple[tuple[Configuration, Point], ...]
    known: int

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(point for _, point in self.priced)


def sweep_points(
    sweep: Sweep, progress: Progress | None = None, processes: int | None = None, store: Store | None = None
) -> Swept:
    """The points of a sweep, those that do not fit into memory or have no price among them.

    Raises `SweepInterrupted` on an interrupt; a `DiagnosticError` where the sweep is empty, or nothing has a price.
    """
    kept = store_of(sweep) if store is None else store
    groups = groups_of(sweep)
    keyed = [(group, tuple(zip(group.members, _keys(sweep, group), strict=True))) for group in groups]
    found: dict[tuple[object, ...], Point] = {}
    tasks: list[_Task] = []
    for group, members in keyed:
        missing: list[tuple[Configuration, str]] = []
        for one, key in members:
            known = kept.get(key, identity(one))
            if known is None:
                missing.append((one, key))
            else:
                found[identity_of(known)] = known
        if missing:
            tasks.append(_Task(group, *zip(*missing, strict=True)))
    total, known = sum(len(members) for _, members in keyed), len(found)
    if progress is not None:
        progress(known, total)
    try:
        for task, points in _results(sweep, tasks, processes):
            kept.add(zip(task.keys, points, strict=True))
            found |= {identity_of(point): point for point in points}
            if progress is not None:
                progress(len(found), total)
    except KeyboardInterrupt:
        written = Store(kept.file)  # an interrupt may come between writing a point and counting it
        done = sum(written.get(key, identity(one)) is not None for _, members in keyed for one, key in members)
        raise SweepInterrupted(done, total) from None
    made = tuple((one, found[identity_of(identity(one))]) for group in groups for one in group.members)
    if all(point.trouble for _, point in made):
        first = made[0][1]
        raise fault(
            "empty-sweep",
            f"none of {len(made)} configurations has a price: {first.trouble}",
            NOWHERE,
            f"that is said of {described(first)}",
            "take other chips, weights or layouts, or give the chip file what it lacks",
        )
    return Swept(made, known)


def _keys(sweep: Sweep, group: Group) -> list[str]:
    """What the prices of the members depend on: the program that chooses the layouts of the group, and which of those
    on the same mesh has the least batch."""
    program = digest(f"{passes_of(group.sample)}\n{sample_text(sweep, group.sample)}")
    meshes = dict.fromkeys(one.deployment.mesh for one in group.members)
    least = {mesh: group.sample_on(mesh).batch for mesh in meshes}
    return [f"{program} {least[one.deployment.mesh]}" for one in group.members]


def _results(sweep: Sweep, tasks: list[_Task], processes: int | None) -> Iterator[tuple[_Task, list[Point]]]:
    workers = min(processes or len(os.sched_getaffinity(0)), len(tasks))
    if workers < 2 or len(tasks) <= _FEW:
        for task in tasks:
            yield task, price_all(sweep, task.group, task.members)
        return
    # Not forked: libraries may have threads by now.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_serve)
    waiting: dict[Future[list[Point]], _Task] = {}
    try:
        # What is blocked here stays so in the processes that are started: an interrupt from the terminal goes to all of
        # them, and this one answers it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            waiting |= {pool.submit(price_all, sweep, task.group, task.members): task for task in tasks}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


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
