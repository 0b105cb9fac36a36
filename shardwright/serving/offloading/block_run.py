"""One block of prompts on its way through prefill and decode: functions called, tokens drawn, batches that end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from shardwright.ir.types import Tier
from shardwright.serving.offloading.programs import PromptBlock
from shardwright.serving.offloading.texts import Texts, TokenSampler, keys_of
from shardwright.serving.offloading.written_sizes import BOTH, ENTERS, STAYS

if TYPE_CHECKING:
    from torch import Tensor

    from shardwright.backends.torch.buffers import Buffer
    from shardwright.backends.torch.homes import Home
    from shardwright.backends.torch.running import RunningFunction
    from shardwright.ir.program import Program, Value
    from shardwright.serving.offloading.run import OffloadedModel

Turn = tuple[int, int]
"""A batch, and the number of the token that it is at; token 0 is the first after its prompt."""


@dataclass(frozen=True)
class BlockPass:
    """One call of a function. `turns` says which batches its results belong to, in order; where a batch begins in this
    call, its turn comes first. None stands for a place that no batch fills."""

    name: str
    args: dict[str, object]
    turns: tuple[tuple[Turn | None, ...], ...]


class BlockRun:
    """One block. `ended` has the texts of each batch when it has ended, then None, or what has gone wrong."""

    def __init__(self, model: OffloadedModel, block: PromptBlock) -> None:
        self.model = model
        self.block = block
        self.ended: SimpleQueue[Texts | BaseException | None] = SimpleQueue()
        settings, vocab = model.settings, model.programs.vocab
        self.texts = [Texts(bucket, settings, vocab, model.report) for bucket in block.buckets]
        sampling, drawn_by = model.programs.sampling(block.rows), model.drawn_by.setdefault(block.rows, {})
        self.drawing = [
            TokenSampler(
                sampling,
                settings,
                keys_of(bucket, block.rows, settings),
                block.lengths_of(number),
                drawn_by,
                model.collectives,
            )
            for number, bucket in enumerate(block.buckets)
        ]
        self.drawn = {number: [0] * block.rows for number in range(len(block.buckets))}
        self.tokens = max(1, settings.max_new_tokens)
        self.prefill_seconds = 0.0
        self.stopped = False
        self._began = time.perf_counter()
        self._events = 0
        self._now: RunningFunction | None = None

    def stop(self) -> None:
        """Ends it where it is."""
        self.stopped = True
        if self._now is not None:
            self._now.stopped = True

    def work(self) -> None:
        """All of it, on a thread of its own."""
        import torch

        from shardwright.backends.torch.homes import value_homes
        from shardwright.backends.torch.running import RunStopped

        model, programs = self.model, self.model.programs
        groups = programs.groups(self.block)
        made = [programs.program(self.block, number) for number in range(len(groups))]
        states = [value_homes(program, program.state, model.tiers) for program in made]
        world = model.world
        try:
            with torch.inference_mode(), world.watching(self._fail) if world is not None else nullcontext():
                for home in (home for state in states for home in state.values()):
                    home.allocate()
                    home.clear()
                homes: list[dict[str, Home]] = [{**model.weights, **state} for state in states]
                self._woven([self._course(group) for group in groups], made, homes)
            self.ended.put(None)
        except RunStopped:
            self.ended.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where completions are asked for
            self.ended.put(error)
        finally:
            for home in (home for state in states for home in state.values()):
                home.release()

    def _fail(self, error: BaseException) -> None:
        if self._now is not None:
            self._now.fail(error)

    # ------------------------------------------------------------ passes

    def _course(self, group: Sequence[int]) -> Iterator[BlockPass]:
        return self._diagonal(group) if self.block.together else self._zigzag(group)

    def _zigzag(self, group: Sequence[int]) -> Iterator[BlockPass]:
        """All batches through all tokens together."""
        for token in range(self.tokens):
            turns = (tuple((number, token) for number in group),)
            if token:
                yield BlockPass(STAYS, {"ids": [row for number in group for row in self.following(number)]}, turns)
            else:
                ids = [row for number in group for row in self.block.ids_of(number)]
                yield BlockPass(
                    ENTERS, {"ids": ids, "length": [n for b in group for n in self.block.lengths_of(b)]}, turns
                )

    def _diagonal(self, group: Sequence[int]) -> Iterator[BlockPass]:
        """A batch begins every so many passes, in the place of the one whose last token is drawn in the same pass."""
        n = len(self.model.programs.groups(self.block))
        index, steps = group[0], self.tokens - 1
        together = max(1, len(range(index, self.block.together, n)))
        places: list[Turn | None] = [None] * together
        begun, run = 0, 0
        while begun < len(group) or any(places):
            ids = [row for place in places for row in (self.following(place[0]) if place else [[0]] * self.block.rows)]
            taken = [(place[0], place[1] + 1) if place else None for place in places]
            if begun < len(group) and run >= begun * steps // together:
                number, slot = group[begun], begun % together
                entering = {f"{ENTERS}_ids": self.block.ids_of(number), "length": self.block.lengths_of(number)}
                yield BlockPass(BOTH, {"ids": ids, "slot": slot, **entering}, (((number, 0),), tuple(taken)))
                taken[slot] = number, 0
                begun += 1
            else:
                yield BlockPass(STAYS, {"ids": ids}, (tuple(taken),))
            places = [place if place and place[1] < steps else None for place in taken]
            run += 1

    def following(self, number: int) -> list[list[int]]:
        """The token of each row of a batch that comes next. One that could not be drawn is said when it is accepted."""
        return [[max(0, token)] for token in self.drawn[number]]

    def _woven(
        self, courses: Sequence[Iterator[BlockPass]], programs: Sequence[Program], homes: Sequence[dict[str, Home]]
    ) -> None:
        """A pass of each group after the other. Where the last process of several draws, the tokens of a group's pass
        are received before its next one."""
        left = dict(enumerate(courses))
        awaited: dict[int, BlockPass] = {}
        while left:
            for group, course in list(left.items()):
                if group in awaited:
                    self._learn(awaited.pop(group))
                batches = self.model.programs.groups(self.block)[group]
                step = None if all(self.texts[number].done for number in batches) else next(course, None)
                if step is None:
                    del left[group]
                    continue
                results = self._call(programs[group], step, homes[group])
                if self.model.place.stage.last:
                    self.accept(step, results)
                else:
                    self.model.links.leave(results)
                    awaited[group] = step
        for step in awaited.values():
            self._learn(step)
        if self.model.world is not None:
            self.model.links.settle()

    def _call(self, program: Program, step: BlockPass, homes: dict[str, Home]) -> list[Tensor]:
        """The results of a pass: logits, and what the layers leave where that is asked for."""
        import torch

        from shardwright.backends.torch.shards import entered

        running = self._now = self.model.running(program, step.name, homes)
        running.stopped = self.stopped
        device, args = self.model.tiers.device, dict[str, "Tensor"]()
        tables = self.model.programs.tables.get(step.name, {})
        for value in running.func.params:
            if value.name in step.args:
                args[value.name] = entered(torch.tensor(step.args[value.name]), value.type).to(device)
            elif value.name in tables:
                args[value.name] = entered(torch.tensor(tables[value.name].numbers), value.type).to(device)
        token = max((token for _, token in self._open(step)), default=0)
        arriving = [value for value in running.func.params if value.name not in args]
        if arriving:
            self._at("receive hidden", token)
            args |= self._received(arriving)
        self._at(step.name, token)
        running.first, running.around = self._events, (("token", token),)
        made = running.call(args, self._began)
        self._events = running.first
        return made

    def _at(self, what: str, token: int) -> None:
        if self.model.world is not None:
            self.model.world.at(f"{what}, token {token}")

    def _received(self, values: Sequence[Value]) -> dict[str, Tensor]:
        """Tensors that the process before has left for these parameters."""
        from shardwright.backends.torch.tensors import held_as

        model, made, taken = self.model, dict[str, "Tensor"](), list["Buffer"]()
        for value in values:
            extents, dtype = tuple(dim.size for dim in value.shape.dims), held_as(value.shape.dtype)
            nbytes = value.shape.elements * dtype.itemsize
            tier = Tier.DEVICE if model.links.backend == "nccl" else Tier.HOST
            taken.append(model.buffers.take(tier, "a buffer of hidden states from the stage before", nbytes))
            made[value.name] = taken[-1].as_tensor(extents, dtype)
        model.links.receive_hidden(list(made.values()))
        made = {name: tensor.to(model.tiers.device, copy=True) for name, tensor in made.items()}
        for buffer in taken:
            model.buffers.give_back(buffer)
        return made

    # ------------------------------------------------------------ tokens

    def accept(self, step: BlockPass, results: Sequence[Tensor]) -> None:
        """Draws the next token of the rows of batches from logits [..., V], together with the other chips; what one
        process draws is everyone's."""
        logits, left = results[: len(step.turns)], results[len(step.turns) :]
        if len(step.turns) == 2 and left:  # what begins has its hidden states behind its logits
            logits, left = (results[0], results[-1]), results[1:-1]
        tokens: list[int] = []
        scores: list[float] = []
        for place, (turns, found) in enumerate(zip(step.turns, logits, strict=True)):
            own = found.reshape(-1, found.shape[-1])
            for at, turn in enumerate(turns):
                if turn is None or self.texts[turn[0]].done:
                    continue
                rows = slice(at * self.block.rows, (at + 1) * self.block.rows)
                drawn, scored = self.choose(turn, own[rows])
                if self.model.settings.logprobs and not turn[1] and not place:
                    scored = [
                        *self._of_prompts(turn[0], at, [t.reshape(-1, self.block.rows, *t.shape[-2:]) for t in left]),
                        *scored,
                    ]
                tokens += drawn
                scores += scored
        if self.model.world is not None and not self.model.place.draws:
            tokens, scores = self.model.links.receive_tokens(len(tokens), len(scores))
        elif self.model.world is not None:
            self.model.links.send_tokens(tokens, scores)
        self._take(step, tokens, scores)

    def _learn(self, step: BlockPass) -> None:
        """Takes the tokens that the last process has drawn."""
        turns = self._open(step)
        n = len(turns) * self.block.rows
        scores = 0
        if self.model.settings.logprobs:
            scores = n + sum(self.block.rows * (self.block.length - 1) for _, token in turns if not token)
        self._at("receive tokens", max((token for _, token in turns), default=0))
        self._take(step, *self.model.links.receive_tokens(n, scores))

    def _open(self, step: BlockPass) -> list[Turn]:
        """The turns of batches that have not ended."""
        return [turn for turns in step.turns for turn in turns if turn is not None and not self.texts[turn[0]].done]

    def _take(self, step: BlockPass, tokens: Sequence[int], scores: Sequence[float]) -> None:
        rows, block = self.block.rows, self.block
        at = scored = 0
        for number, token in self._open(step):
            texts, drawn = self.texts[number], list(tokens[at : at + rows])
            at += rows
            if not token:
                texts.begin(block.length)
                self.prefill_seconds = time.perf_counter() - self._began
                if scores:
                    of_rows = [scores[scored + r * (block.length - 1) :][: block.length - 1] for r in range(rows)]
                    texts.score_prompts([of_rows[r][: n - 1] for r, n in enumerate(map(len, self._prompts(number)))])
                    scored += rows * (block.length - 1)
            new = scores[scored : scored + rows] if scores else None
            scored += rows
            self.drawn[number] = drawn
            texts.accept(token, drawn[: len(texts.new)], new)
            if texts.done:
                self.ended.put(texts)

    def _prompts(self, number: int) -> list[tuple[int, ...]]:
        return [tuple(prompt.tokens) for prompt in self.block.buckets[number].prompts]

    def choose(self, turn: Turn, logits: Tensor) -> tuple[list[int], list[float]]:
        """The next token of each row of a batch, with its log-probability where that is asked for."""
        number, token = turn
        settings, drawing, count = self.model.settings, self.drawing[number], self._count(number)
        drawn = drawing.draw(token, logits, count) if settings.max_new_tokens else [0] * len(logits)
        return drawn, drawing.scores(logits, drawn, count) if settings.logprobs else []

    def _of_prompts(self, number: int, at: int, left: Sequence[Tensor]) -> list[float]:
        """The log-probabilities of the tokens of a batch's prompts but the first, and of what pads them, row by row:
        from what the layers leave [batches, B, L, ...]."""
        import torch

        block = self.block
        positions = block.length - 1
        if not positions:
            return []
        program = self.model.programs.scoring(block.rows, positions)
        running = self._now = self.model.running(program, "score", self.model.weights)
        running.stopped = self.stopped
        following = torch.tensor(block.ids_of(number))[:, 1:].T
        args = {"following": following.contiguous().to(self.model.tiers.device)}
        for value, hidden in zip(running.func.params, left, strict=False):
            own = hidden[at][:, :-1].movedim(1, 0)
            args[value.name] = own.reshape([dim.size for dim in value.shape.dims])
        (scores,) = running.call(args)
        return [float(each) for each in scores.T.reshape(-1).cpu()]

    def _count(self, number: int) -> Callable[[int], None] | None:
        """Told what lives at once while tokens are drawn, but where PyTorch's allocator counts."""
        if self.model.tiers.device.type == "cuda":
            return None
        memory = self.model.tiers.memories[Tier.DEVICE]
        return partial(memory.working_on, f"what the tokens of batch {number} are drawn with")
