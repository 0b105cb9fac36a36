"""Runs an emitted module's copies: one thread does them in the order of the text while the caller computes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Far(NamedTuple):
    """A value in host or disk memory, in pieces along `axis`; files are mapped, so that each piece is a tensor."""

    pieces: tuple[Tensor, ...]
    axis: int = 0

    def select(self, axis: int, index: int) -> Far:
        """The slice at `index` of a dimension."""
        if axis != self.axis or len(self.pieces) == 1:
            axis_of_pieces = self.axis - (axis < self.axis)
            return Far(tuple(piece.select(axis, index) for piece in self.pieces), axis_of_pieces)
        for piece in self.pieces:
            if index < piece.shape[axis]:
                return Far((piece.select(axis, index),))
            index -= piece.shape[axis]
        raise IndexError(index)

    def read(self, device: torch.device) -> Tensor:
        """A copy on the device."""
        pieces = [piece.to(device, copy=True) for piece in self.pieces]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, self.axis)

    def joined(self, device: torch.device) -> Tensor:
        """All of it where it lies, or on the device where that is in several memories."""
        return self.pieces[0] if len(self.pieces) == 1 else self.read(device)

    def write(self, value: Tensor) -> None:
        """New numbers for the whole value."""
        start = 0
        for piece in self.pieces:
            if len(self.pieces) == 1:
                piece.copy_(value)
            else:
                piece.copy_(value.narrow(self.axis, start, piece.shape[self.axis]))
                start += piece.shape[self.axis]


class Run:
    """The memories of a run. What is fetched, stored and set takes its turn on one thread, in the order of the text."""

    def __init__(self, device: str | torch.device = "cpu", folder: str | Path | None = None) -> None:
        """Files lie in `folder`; in a temporary one, which goes with the run, where it is None."""
        self.device = torch.device(device)
        self._temporary = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = Path(folder or (self._temporary.name if self._temporary else "."))
        self._files = 0
        self._copies = ThreadPoolExecutor(1)
        self._sets: list[Future[None]] = []
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def close(self) -> None:
        """Ends the thread, after the copies under way."""
        self._copies.shutdown()
        if self._temporary is not None:
            self._temporary.cleanup()

    def place(self, value: object, dtype: torch.dtype, shares: Sequence[tuple[str, int]] = (), axis: int = 0) -> Far:
        """A value spread over memories: of each, how long its piece is along `axis`."""
        whole, start = torch.as_tensor(value).to(dtype), 0
        pieces: list[Tensor] = []
        for tier, extent in shares:
            part = whole.narrow(axis, start, extent) if whole.ndim else whole
            pieces.append(self._piece(part, tier))
            start += extent
        return Far(tuple(pieces), axis)

    def _piece(self, part: Tensor, tier: str) -> Tensor:
        if tier == "device":
            return part.to(self.device, copy=True)
        if tier == "host":
            kept = torch.empty(part.shape, dtype=part.dtype, pin_memory=self.device.type == "cuda")
        else:
            self._files += 1
            path = str(self.folder / f"{self._files}.bin")
            kept = torch.from_file(path, shared=True, size=part.numel(), dtype=part.dtype).reshape(part.shape)
        return kept.copy_(part)

    def prefetch(self, value: Far, past_the_end: bool = False) -> Future[Tensor]:
        """Begins to copy a value to the device; zeros come of what is past the end, for which nothing moves."""
        if not past_the_end:
            return self._copies.submit(self._on_stream, lambda: value.read(self.device))
        extents = list(value.pieces[0].shape)
        if extents:
            extents[value.axis] = sum(piece.shape[value.axis] for piece in value.pieces)
        made: Future[Tensor] = Future()
        made.set_result(torch.zeros(extents, dtype=value.pieces[0].dtype, device=self.device))
        return made

    def store(self, value: Tensor, tier: str) -> Future[Far]:
        """Begins to copy a value from the device to the host or to a file."""
        self._computed()
        return self._copies.submit(self._on_stream, lambda: Far((self._piece(value, tier),)))

    def set(self, state: Far, value: Far | Tensor) -> None:
        """New numbers for state, or for its slice, in its turn among the copies."""
        self._computed()
        self._sets = [each for each in self._sets if not each.done() or each.exception() is not None]
        self._sets.append(
            self._copies.submit(
                self._on_stream, lambda: state.write(value.joined(self.device) if isinstance(value, Far) else value)
            )
        )

    def on_host(self, function: Callable[..., Tensor | tuple[Tensor, ...]], *given: Far | Tensor) -> Any:
        """Computes on the host, in its turn among the copies, with values in its memory: a value there, or several."""
        self._computed()
        cpu = torch.device("cpu")

        def computed() -> Far | tuple[Far, ...]:
            made = function(*(each.joined(cpu) if isinstance(each, Far) else each.to(cpu) for each in given))
            return tuple(Far((each,)) for each in made) if isinstance(made, tuple) else Far((made,))

        return self._copies.submit(self._on_stream, computed).result()

    def finish(self) -> None:
        """Waits for what has been set; raises what the first failure among these has raised."""
        for each in self._sets:
            each.result()
        self._sets.clear()

    def wait(self, handle: Future[T]) -> T:
        """The value, once it has arrived."""
        value = handle.result()
        if isinstance(value, Tensor) and value.is_cuda:
            value.record_stream(torch.cuda.current_stream(self.device))
        return value

    def _computed(self) -> None:
        """The other stream may read what this one has computed."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _on_stream(self, job: Callable[[], T]) -> T:
        if self._stream is None:
            return job()
        with torch.cuda.stream(self._stream):
            made = job()
            self._stream.synchronize()
        return made


def following(trips: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], bool]:
    """The trip after this one of nested loops, the last going round fastest; and if it is past the end."""
    at = list(trips)
    for i in reversed(range(len(at))):
        at[i] = (at[i] + 1) % sizes[i]
        if at[i]:
            return at, False
    return at, True
