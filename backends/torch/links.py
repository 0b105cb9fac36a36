"""The messages of a pipeline: hidden states from each process to the next, and tokens from the last to all others."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.pipeline import Place
from shardwright.backends.torch.tensors import Named, held_as
from shardwright.backends.torch.tiers import Tiers
from shardwright.backends.torch.world import World, torch_distributed

if TYPE_CHECKING:
    import torch

    from shardwright.ir.program import Value

_HIDDEN, _TOKENS, _SCORES = 1, 2, 3
"""Tags: which kind of message this is."""

_ON_THE_WAY = 64
"""Messages with tokens that are sent before the oldest must have arrived."""


class Links:
    """Those of one process. Buffers for what it receives are allocated once, on the device where NCCL fills them, else
    on the host. Hidden states are awaited as they are sent and received, each kind by one thread."""

    def __init__(self, world: World, place: Place, tiers: Tiers) -> None:
        """To be made by all processes together, since it makes their groups."""
        self.world = world
        world.at("loading weights")
        self.place = place
        self.tiers = tiers
        everyone = tuple(range(world.count))
        self._backend = world.backend(tiers.device)
        self._hidden = world.group(everyone, self._backend)
        self._tokens = world.group(everyone, "gloo")
        self._slots: list[torch.Tensor] = []
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()

    def reserve(self, slots: int, nbytes: int) -> None:
        """Buffers for so many hidden states on their way, each of at most so many bytes."""
        import torch

        if not self.place.first:
            make = self.tiers.on_device if self._backend == "nccl" else self.tiers.on_host
            what = "a buffer of hidden states from the stage before"
            self._slots = [make(what, (nbytes,), torch.uint8) for _ in range(slots)]

    # ------------------------------------------------------------ hidden states

    def receive_hidden(self, values: Sequence[Value], order: int) -> list[Named]:
        """The `order`-th hidden states that come, of the shapes and formats of these values; views of a buffer."""
        import torch

        made: list[Named] = []
        begin = 0
        buffer = self._slots[order % len(self._slots)]
        for value in values:
            dtype = held_as(value.shape.dtype)
            shape = [dim.size for dim in value.shape.dims]
            nbytes = math.prod(shape) * dtype.itemsize
            part = buffer[begin : begin + nbytes]
            begin += nbytes
            with torch.cuda.device(part.device) if part.is_cuda else torch.no_grad():
                torch_distributed().irecv(part, self.place.index - 1, group=self._hidden, tag=_HIDDEN).wait()
                if part.is_cuda:
                    torch.cuda.current_stream().synchronize()
            made.append(Named(part.view(dtype).reshape(shape), value.shape.names, value.shape.dtype))
        return made

    def send_hidden(self, values: Sequence[Named]) -> None:
        """To the next process; done when it has them."""
        import torch

        for value in values:
            sent = value.tensor.contiguous().reshape(-1).view(torch.uint8)
            if self._backend != "nccl":
                sent = sent.cpu()
            with torch.cuda.device(sent.device) if sent.is_cuda else torch.no_grad():
                torch_distributed().isend(sent, self.place.index + 1, group=self._hidden, tag=_HIDDEN).wait()
                if sent.is_cuda:
                    torch.cuda.current_stream().synchronize()

    # ------------------------------------------------------------ tokens

    def receive_tokens(self, rows: int, scores: int) -> tuple[list[int], list[float]]:
        """The next token of every row of a batch, and so many log-probabilities, from the last process."""
        import torch

        tokens, numbers = torch.empty(rows, dtype=torch.int64), torch.empty(scores)
        torch_distributed().irecv(tokens, self.place.count - 1, group=self._tokens, tag=_TOKENS).wait()
        if scores:
            torch_distributed().irecv(numbers, self.place.count - 1, group=self._tokens, tag=_SCORES).wait()
        return [int(token) for token in tokens], [float(number) for number in numbers]

    def send_tokens(self, tokens: Sequence[int], scores: Sequence[float]) -> None:
        """To all other processes, without waiting until they have them: they may be busy with what comes before."""
        import torch

        messages = [(_TOKENS, torch.tensor(tokens, dtype=torch.int64))]
        if scores:
            messages.append((_SCORES, torch.tensor(scores)))
        for other in range(self.place.count - 1):
            for tag, sent in messages:
                self._sent.append((torch_distributed().isend(sent, other, group=self._tokens, tag=tag), sent))
        while len(self._sent) > _ON_THE_WAY * (self.place.count - 1):
            self._sent.popleft()[0].wait()

    def settle(self) -> None:
        """Waits until everything has arrived."""
        while self._sent:
            self._sent.popleft()[0].wait()
