"""Copies that are only issued, as to a CUDA device, and done later than their thread goes on."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from models.greedy_generation import FEW, truth

from shardwright.backends.torch.running import RunningFunction
from shardwright.cost.offloading.policy import parse_policy
from shardwright.cost.programs.unrolling import Resource
from shardwright.ir.types import DType
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel


class Deferring:
    """Streams whose actions, of a real run, are done by threads of their own after a while."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.errors: list[BaseException] = []
        self.queues: dict[Resource, queue.SimpleQueue[Callable[[], None] | None]] = {}
        self.threads: list[threading.Thread] = []
        self.queues[Resource.TO_DEVICE] = queue.SimpleQueue()
        self.threads.append(threading.Thread(target=self.work, args=(self.queues[Resource.TO_DEVICE],)))
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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", ["3,2,20,50,30,30,20,40", "3,2,0,0,0,0,0,0", "3,2,0,100,0,100,0,100"])
@pytest.mark.parametrize("schedule", ["zigzag", "diagonal"])
def test_tokens_where_copies_are_only_issued(
    schedule: Any, policy: str, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Done after their thread has gone on: the events alone keep order."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    call = RunningFunction.call

    def deferred(self: RunningFunction, *given: Any) -> list[torch.Tensor]:
        self.streams = Deferring()
        return call(self, *given)

    monkeypatch.setattr(RunningFunction, "call", deferred)
    request = OffloadRequest(parse_policy(policy), schedule, DType.F32, in_place=False)
    prompts = make_prompts([prompt.tolist() for prompt in wanted.prompts], 96, None)
    with OffloadedModel(folder, request, prompts, GenerationSettings(max_new_tokens=FEW)) as model:
        made = sorted(model.completions(), key=lambda completion: completion.prompt.index)
    assert [each.new_tokens for each in made] == [tuple(row) for row in wanted.tokens.tolist()]
