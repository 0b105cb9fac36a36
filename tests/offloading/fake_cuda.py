"""A stand-in for what the runtime uses of `torch.cuda`: streams that do things as late, or as early, as they may.

A stream that is `eager` does what is issued to it as soon as what it waits for is done; one that is not does nothing
until somebody waits for it. What is right only by luck of timing goes wrong under one or the other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

_lock = threading.RLock()
_current = threading.local()


class Event:
    def __init__(self, *, enable_timing: bool = False, blocking: bool = False) -> None:
        assert blocking, "a thread that waits for an event must not keep a core busy"
        self.done = False
        self.stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.stream = stream
        stream.issue(self)

    def synchronize(self) -> None:
        with _lock:
            assert self.stream is not None, "an event that was never recorded is waited for"
            self.stream.do_until(self)
            self.stream.cuda.go_on()

    def elapsed_time(self, other: Event) -> float:
        assert self.done
        assert other.done, "the time of an event that is still to come is asked for"
        return 0.0


class Stream:
    def __init__(self, cuda: FakeCuda, *, eager: bool) -> None:
        self.cuda = cuda
        self.eager = eager
        self.queue: deque[Event | tuple[str, Any]] = deque()

    def issue(self, what: Event | tuple[str, Any]) -> None:
        with _lock:
            self.queue.append(what)
            self.cuda.go_on()

    def wait_event(self, event: Event) -> None:
        assert event.stream is not None, "a stream waits for an event that was never recorded, which does nothing"
        self.issue(("wait", event))

    def synchronize(self) -> None:
        with _lock:
            while self.queue:
                self.step()
            self.cuda.go_on()

    def do_until(self, event: Event) -> None:
        while not event.done:
            self.step()

    def step(self) -> None:
        """Does what is first in the queue; what that waits for is done before."""
        first = self.queue[0]
        if isinstance(first, tuple) and first[0] == "wait":
            first[1].stream.do_until(first[1])
        self.queue.popleft()
        if isinstance(first, Event):
            first.done = True
        elif first[0] == "run":
            first[1]()

    def ready(self) -> bool:
        if not self.queue:
            return False
        first = self.queue[0]
        return not (isinstance(first, tuple) and first[0] == "wait" and not first[1].done)


@dataclass
class FakeCuda:
    """`eager` says of each stream, in the order in which they are made, whether it is."""

    eager: tuple[bool, ...]
    streams: list[Stream] = field(default_factory=list[Stream])
    devices: set[str] = field(default_factory=set[str])

    def go_on(self) -> None:
        moved = True
        while moved:
            moved = False
            for stream in self.streams:
                while stream.eager and stream.ready():
                    stream.step()
                    moved = True

    def stream(self, _device: torch.device) -> Stream:
        self.streams.append(Stream(self, eager=self.eager[len(self.streams) % len(self.eager)]))
        return self.streams[-1]

    @contextmanager
    def on_stream(self, stream: Stream | None) -> Generator[None]:
        _current.stream = stream
        yield
        _current.stream = None

    @contextmanager
    def on_device(self, device: torch.device) -> Generator[None]:
        self.devices.add(threading.current_thread().name)
        yield

    def launch(self, action: Callable[[], None]) -> None:
        """As a kernel or an asynchronous copy on the current stream of this thread; done at once where it has none."""
        stream: Stream | None = getattr(_current, "stream", None)
        if stream is None:
            action()
        else:
            stream.issue(("run", action))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(torch.cuda, "Stream", self.stream)
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "stream", self.on_stream)
        patch.setattr(torch.cuda, "device", self.on_device)
