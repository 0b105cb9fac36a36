"""Where actions are issued: on CUDA to streams with events between them, on the CPU they are done at once.

The executor has a thread for each resource. An action of a resource that has a stream is only issued by its thread;
what waits for it on a stream waits by an event, what waits on the host by synchronising with that event alone. Copies
from the device have a stream too, but their thread sees them through, because it then puts what has arrived in place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardwright.cost.programs.unrolling import Resource

if TYPE_CHECKING:
    import torch

Mark = Any
"""The end of an action in a stream; None where it is done already."""


class Streams:
    """The part of a device that an executor issues actions to; here one on which they are done at once: the CPU."""

    @contextmanager
    def thread(self, resource: Resource) -> Generator[None]:
        """A context for the thread of a resource."""
        import torch

        with torch.inference_mode():
            yield

    def wait(self, resource: Resource, mark: Mark) -> None:
        """Everything issued for the resource from now on comes after the mark."""

    def issue(self, resource: Resource, action: Callable[[], None]) -> Mark:
        """Issues the action, or does it; the mark of its end."""
        action()
        return None

    def seconds(self, mark: Mark) -> tuple[float, float] | None:
        """When what the mark stands for began and ended, once all has ended; None where it was done on the host."""
        return None

    def finish(self) -> None:
        """Returns when all that was issued is done."""


ISSUED = (Resource.TO_DEVICE, Resource.DEVICE)
"""Resources whose actions are issued and not seen through by their thread."""


class CudaStreams(Streams):
    """Streams of a CUDA device. With `timed` its events take the time."""

    def __init__(self, device: torch.device, *, timed: bool = False) -> None:
        import torch

        self._device = device
        self._timed = timed
        self._streams = {resource: torch.cuda.Stream(device) for resource in (*ISSUED, Resource.FROM_DEVICE)}
        self._began = self._event()
        self._began.record(self._streams[Resource.DEVICE])

    def _event(self) -> Any:
        import torch

        # A thread that waits for a blocking event sleeps; otherwise it would keep a core of the host busy.
        return torch.cuda.Event(enable_timing=self._timed, blocking=True)

    @contextmanager
    def thread(self, resource: Resource) -> Generator[None]:
        import torch

        # Both the device and the stream are the thread's own: a new one begins with device 0 and its default stream.
        with torch.inference_mode(), torch.cuda.device(self._device), torch.cuda.stream(self._streams.get(resource)):
            yield

    def wait(self, resource: Resource, mark: Mark) -> None:
        if mark is None:
            return
        _, end = mark
        if resource in ISSUED:
            self._streams[resource].wait_event(end)
        else:
            end.synchronize()

    def issue(self, resource: Resource, action: Callable[[], None]) -> Mark:
        if resource not in ISSUED:
            action()
            if resource in self._streams:
                self._streams[resource].synchronize()
            return None
        stream = self._streams[resource]
        begin, end = self._event() if self._timed else None, self._event()
        if begin is not None:
            begin.record(stream)
        action()
        end.record(stream)
        return begin, end

    def seconds(self, mark: Mark) -> tuple[float, float] | None:
        if mark is None or not self._timed:
            return None
        begin, end = mark
        return self._began.elapsed_time(begin) / 1e3, self._began.elapsed_time(end) / 1e3

    def finish(self) -> None:
        for stream in self._streams.values():
            stream.synchronize()


def streams_of(device: torch.device, *, timed: bool = False) -> Streams:
    """The streams of a device."""
    return CudaStreams(device, timed=timed) if device.type == "cuda" else Streams()
