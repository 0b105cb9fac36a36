"""The messages between processes that are none of a program's: hidden states from each stage of a pipeline to the next,
and tokens from the process that draws to all others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.tiers import Tiers
from shardwright.backends.torch.world import World, torch_distributed

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    import torch

_HIDDEN, _TOKENS, _SCORES = 1, 2, 3
"""Tags: which kind of message this is."""

_ON_THE_WAY = 64
"""Messages with tokens that are sent before the oldest must have arrived."""


class ProcessLinks:
    """The links of one process. Hidden states are sent by a thread, so that nobody waits for who is still busy."""

    def __init__(self, world: World, tiers: Tiers, chips: int = 1) -> None:
        """To be made by all processes together, since it makes their groups. Each stage has so many `chips`, one
        process each, and sends to the same chips of the next; the first chip of the last stage draws."""
        self.world = world
        self.chips = chips
        self.drawer = world.count - chips
        world.at("loading weights")
        everyone = tuple(range(world.count))
        self.backend = world.backend(tiers.device)
        self._hidden = world.group(everyone, self.backend)
        self._tokens = world.group(everyone, "gloo")
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()
        self._sender: ThreadPoolExecutor | None = None
        self._leaving: deque[Future[None]] = deque()

    # ------------------------------------------------------------ hidden states

    def receive_hidden(self, tensors: Sequence[torch.Tensor]) -> None:
        """Fills these, in memory that messages go to, from the stage before."""
        import torch

        for tensor in tensors:
            with torch.cuda.device(tensor.device) if tensor.is_cuda else torch.no_grad():
                torch_distributed().irecv(tensor, self.world.index - self.chips, group=self._hidden, tag=_HIDDEN).wait()
                if tensor.is_cuda:
                    torch.cuda.current_stream().synchronize()

    def leave(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sends these to the next stage, on a thread of its own; raises what an earlier one has raised."""
        from concurrent.futures import ThreadPoolExecutor

        if self._sender is None:
            self._sender = ThreadPoolExecutor(1, thread_name_prefix="send")
        self._leaving.append(self._sender.submit(self.send_hidden, tensors))
        while self._leaving and self._leaving[0].done():
            self._leaving.popleft().result()

    def send_hidden(self, tensors: Sequence[torch.Tensor]) -> None:
        """To the next stage; done when it has them."""
        import torch

        for tensor in tensors:
            sent = tensor.contiguous()
            if self.backend != "nccl":
                sent = sent.cpu()
            with torch.cuda.device(sent.device) if sent.is_cuda else torch.no_grad():
                torch_distributed().isend(sent, self.world.index + self.chips, group=self._hidden, tag=_HIDDEN).wait()
                if sent.is_cuda:
                    torch.cuda.current_stream().synchronize()

    # ------------------------------------------------------------ tokens

    def receive_tokens(self, rows: int, scores: int) -> tuple[list[int], list[float]]:
        """The next token of every row of a batch, and so many log-probabilities, from who draws."""
        import torch

        tokens, numbers = torch.empty(rows, dtype=torch.int64), torch.empty(scores)
        torch_distributed().irecv(tokens, self.drawer, group=self._tokens, tag=_TOKENS).wait()
        if scores:
            torch_distributed().irecv(numbers, self.drawer, group=self._tokens, tag=_SCORES).wait()
        return [int(token) for token in tokens], [float(number) for number in numbers]

    def send_tokens(self, tokens: Sequence[int], scores: Sequence[float]) -> None:
        """To all other processes, without waiting until they have them: they may be busy with what comes before."""
        import torch

        messages = [(_TOKENS, torch.tensor(tokens, dtype=torch.int64))]
        if scores:
            messages.append((_SCORES, torch.tensor(scores)))
        for other in (index for index in range(self.world.count) if index != self.world.index):
            for tag, sent in messages:
                self._sent.append((torch_distributed().isend(sent, other, group=self._tokens, tag=tag), sent))
        while len(self._sent) > _ON_THE_WAY * (self.world.count - 1):
            self._sent.popleft()[0].wait()

    def settle(self) -> None:
        """Waits until everything has arrived."""
        while self._leaving:
            self._leaving.popleft().result()
        while self._sent:
            self._sent.popleft()[0].wait()
