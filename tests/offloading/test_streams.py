"""The order of what is issued to a CUDA device, on streams that do things as late or as early as they may."""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models.greedy_generation import STEPS, truth
from offloading.fake_cuda import FakeCuda

from shardwright.backends.torch.executor import Executor
from shardwright.backends.torch.schedule import (
    Event,
    Resource,
    Schedule,
    Traffic,
    build,
    diagonal_passes,
    zigzag_passes,
)
from shardwright.backends.torch.streams import ISSUED, CudaStreams
from shardwright.cost.offloading.policy import parse_policy
from shardwright.generation.prompts import make_prompts
from shardwright.generation.settings import Settings
from shardwright.ir.types import DType
from shardwright.offloading.request import Request
from shardwright.offloading.run import OffloadedModel

ON_DEVICE = (*ISSUED, Resource.FROM_DEVICE)


def schedules() -> Iterator[Schedule]:
    for passes in (zigzag_passes(1, 3), zigzag_passes(3, 3), diagonal_passes(5, 4, 2)):
        turns = [turn for turns in passes for turn in turns]
        for host in (False, True):
            yield build(
                Traffic(
                    [(8, 8)] * 5,
                    [False, True, True, True, False],
                    dict.fromkeys(turns, (4, 4)),
                    dict.fromkeys(turns, (1, 1)),
                    dict.fromkeys(turns, (2, 2)),
                    host,
                    2,
                ),
                passes,
            )


class Watched:
    """Events that look whether the buffers that they read hold what they should, when they are really done."""

    def __init__(self, schedule: Schedule, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.wanted: dict[int, dict[str, int]] = {}
        self.left: Counter[tuple[str, int]] = Counter()
        self.holds: dict[str, int] = {}
        self.faults: list[str] = []
        self.done: list[int] = []
        self.lock = threading.Lock()
        filled: dict[str, int] = {}
        for event in schedule.events:
            self.wanted[event.number] = {buffer: filled[buffer] for buffer in event.reads}
            self.left.update((buffer, filled[buffer]) for buffer in event.reads)
            filled.update(dict.fromkeys(event.fills, event.number))

    def act(self, event: Event) -> None:
        if event.resource in ON_DEVICE:
            self.cuda.launch(lambda: self.look(event))
        else:
            self.look(event)

    def look(self, event: Event) -> None:
        with self.lock:
            for buffer, filler in self.wanted[event.number].items():
                if self.holds.get(buffer) != filler:
                    self.faults.append(f"{event.number} reads {buffer}, which holds {self.holds.get(buffer)}")
                self.left[buffer, filler] -= 1
            for buffer in event.fills:
                if buffer in self.holds and self.left[buffer, self.holds[buffer]]:
                    self.faults.append(f"{event.number} fills {buffer}, which has still to be read")
                self.holds[buffer] = event.number
            self.done.append(event.number)


def faults(schedule: Schedule, eager: tuple[bool, ...], patch: pytest.MonkeyPatch) -> list[str]:
    cuda = FakeCuda(eager)
    cuda.install(patch)
    watched = Watched(schedule, cuda)
    Executor(schedule, watched.act, CudaStreams(torch.device("cpu"))).run()
    assert sorted(watched.done) == list(range(len(schedule.events)))
    assert len(cuda.devices) >= 3, "each thread must choose the device for itself"
    return watched.faults


@pytest.mark.parametrize("eager", list(itertools.product([False, True], repeat=3)), ids=str)
def test_nothing_is_used_before_its_event(eager: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for schedule in schedules():
        assert faults(schedule, eager, monkeypatch) == []


def test_without_waits_between_streams_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above finds it: on late streams what is read is not there, and early ones overwrite what is read."""

    def no_wait(*_: object) -> None:
        pass

    monkeypatch.setattr(CudaStreams, "wait", no_wait)
    schedule = list(schedules())[2]
    assert any("reads" in fault for fault in faults(schedule, (False,), monkeypatch))
    assert any("fills" in fault for fault in faults(schedule, (True, False, False), monkeypatch))


def test_a_failure_on_the_host_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda((False,))
    cuda.install(monkeypatch)
    schedule = next(schedules())
    watched = Watched(schedule, cuda)

    def failing(event: Event) -> None:
        if event.number == 20:
            raise RuntimeError("the link broke")
        watched.act(event)

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="the link broke"):
        Executor(schedule, failing, CudaStreams(torch.device("cpu"))).run()
    assert threading.active_count() == before
    assert not any(stream.queue for stream in cuda.streams), "what was issued is done before memory is given back"


def test_times_are_asked_for_when_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda((False,))
    cuda.install(monkeypatch)
    schedule = next(schedules())
    seen: list[int] = []
    executor = Executor(
        schedule,
        Watched(schedule, cuda).act,
        CudaStreams(torch.device("cpu"), timed=True),
        lambda timed: seen.append(timed.event.number),
    )
    executor.run()
    assert sorted(seen) == list(range(len(schedule.events)))


# ---------------------------------------------------------------- a whole model


class Deferring:
    """Streams whose actions, of a real run, are done by threads of their own after a while."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.errors: list[BaseException] = []
        self.queues: dict[Resource, queue.SimpleQueue[Callable[[], None] | None]] = {}
        self.threads: list[threading.Thread] = []
        for resource in ISSUED:
            self.queues[resource] = queue.SimpleQueue()
            self.threads.append(threading.Thread(target=self.work, args=(self.queues[resource],)))
            self.threads[-1].start()

    def work(self, actions: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        with torch.inference_mode():
            while (action := actions.get()) is not None:
                try:
                    action()
                except BaseException as error:  # noqa: BLE001 - raised by finish
                    self.errors.append(error)

    @contextmanager
    def thread(self, resource: Resource) -> Generator[None]:
        with torch.inference_mode():
            yield

    def wait(self, resource: Resource, mark: Any) -> None:
        if mark is not None:
            if resource in self.queues:
                self.queues[resource].put(lambda: mark.wait(30) or None)
            else:
                assert mark.wait(30)

    def issue(self, resource: Resource, action: Callable[[], None]) -> Any:
        if resource not in self.queues:
            action()
            return None
        done = threading.Event()
        seconds = self.random.choice([0.0, 0.0, 0.002])

        def later() -> None:
            time.sleep(seconds)
            try:
                action()
            finally:
                done.set()

        self.queues[resource].put(later)
        return done

    def seconds(self, mark: Any) -> None:
        return None

    def finish(self) -> None:
        for actions in self.queues.values():
            actions.put(None)
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


@pytest.mark.parametrize("host_attention", [True, False])
@pytest.mark.parametrize("schedule", ["zigzag", "diagonal"])
def test_tokens_where_actions_are_only_issued(
    host_attention: bool, schedule: Any, checkpoint: Callable[..., Path]
) -> None:
    """A model's own copies and computations, done after their threads have gone on: the events alone keep order."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder)
    request = Request(parse_policy("3,2,20,50,30,30,20,40"), schedule, DType.F32, in_place=False)
    request = replace(request, policy=replace(request.policy, host_attention=host_attention))
    prompts = make_prompts([prompt.tolist() for prompt in wanted.prompts], 96, None)
    with OffloadedModel(folder, request, prompts, Settings(max_new_tokens=STEPS)) as model:
        run = model.runtime.run

        def deferred(*given: Any) -> Schedule:
            model.runtime.streams = Deferring()
            return run(*given)

        model.runtime.run = deferred  # type: ignore[method-assign]
        made = sorted(model.completions(), key=lambda completion: completion.prompt.index)
    assert [each.new_tokens for each in made] == [tuple(row) for row in wanted.tokens.tolist()]
