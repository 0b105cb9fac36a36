"""The engine: prompts in, completions out, over rows of a cache that are refilled as texts end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwright.models.description import positions_of
from shardwright.serving.generation.bad_logits import check_scores, check_token
from shardwright.serving.generation.page_table import PageTable, pool_sizes
from shardwright.serving.generation.prefix import shared_prefix
from shardwright.serving.generation.prompts import Prompt
from shardwright.serving.generation.settings import GenerationSettings

if TYPE_CHECKING:
    from shardwright.backends.jax.devices import Devices
    from shardwright.backends.jax.session import Session

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Completion:
    """The completion of a sample of a prompt. `new_tokens` has the stop token that ended it, if one did. A prompt for
    which there is no room has none, but an `error` that says why.

    With log-probabilities, `logprobs` has one for each new token, `prompt_logprobs` one for each of the prompt's,
    None for the first, which nothing precedes.
    """

    prompt: Prompt
    sample: int
    new_tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    prompt_logprobs: tuple[float | None, ...] | None = None
    error: str | None = None


Observe = Callable[[Prompt, int, int], None]
"""Told of every new token: the prompt, the number of the sample, the token."""


@dataclass
class _Text:
    """A text that is being continued in a row of decode."""

    prompt: Prompt
    sample: int
    key: int
    scores: list[float]
    new: list[int]
    logprobs: list[float]

    @property
    def position(self) -> int:
        """The position of the next token."""
        return len(self.prompt.tokens) + len(self.new)


@dataclass
class _Held:
    """A prompt that lies in a row of prefill's own, with the logits after it, until its samples have adopted it."""

    prompt: Prompt
    logits: Any
    samples: int


@dataclass(frozen=True)
class _Read:
    """Prompts that a call of prefill has read to their end, by their rows of prefill, and its logits."""

    rows: tuple[int, ...]
    logits: Any


class Engine:
    """Continues prompts with the functions of a program (`serving.generation.programs`) over a session.

    Decode has B rows. Prompts are read by prefill, a chunk of each row at a time, in the rows that are free, or, where
    prefill has rows of its own, there: once for all samples of a prompt, whose rows then adopt its cache. A prefix that
    all prompts share is read once. When a text ends, its row goes to the next. Where keys and values lie in pages of a
    pool, a row has those that its text needs, among them those that hold what it begins with, and texts wait where too
    few are free (`serving.generation.page_table`). What comes out for a prompt depends on none of this.
    """

    def __init__(self, session: Session, devices: Devices) -> None:
        self.session = session
        self.devices = devices
        program = session.program
        names = {func.name for func in program.funcs}
        self.scores_prompts = "score" in names
        reading = program.func("score" if self.scores_prompts else "prefill")
        rows, self.chunk = (dim.size for dim in reading.params[0].type.dims)
        self.prefill_rows: int = rows
        self.rows: int = program.func("decode").params[0].type.dims[0].size
        self.adopts = "adopt" in names
        self.pool = pool_sizes(program)
        self.vocab: int = program.func("decode").results[0].shape.size("V")

    def run(
        self,
        prompts: Sequence[Prompt],
        settings: GenerationSettings,
        observe: Observe | None = None,
        answered: Collection[tuple[int, int]] = (),
    ) -> Iterator[Completion]:
        """The completions of all samples of all prompts, but for those that are `answered`, each the index of a prompt
        and the number of a sample, in the order in which they end."""
        return _Run(self, prompts, settings, observe or _ignore, answered).completions()


def _ignore(_prompt: Prompt, _sample: int, _token: int) -> None:
    pass


class _Run:
    """One run of an engine."""

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        settings: GenerationSettings,
        observe: Observe,
        answered: Collection[tuple[int, int]],
    ) -> None:
        self.engine = engine
        self.session = engine.session
        self.settings = settings
        self.observe = observe
        texts = [(prompt, sample) for prompt in prompts for sample in range(settings.samples)]
        self.waiting = deque((prompt, sample) for prompt, sample in texts if (prompt.index, sample) not in answered)
        self.samples = Counter(prompt.index for prompt, _ in self.waiting)
        self.texts: list[_Text | None] = [None] * engine.rows
        self.held: dict[int, _Held] = {}
        self.scores: dict[int, list[float]] = {row: [] for row in range(engine.prefill_rows)}
        self.prefix_scores: list[float] = []
        self.pages = None if engine.pool is None else PageTable(engine.pool, scored=engine.scores_prompts)
        self.prefix = shared_prefix([p.tokens for p in prompts], engine.prefill_rows, engine.chunk)
        if self.prefix:
            self.read_prefix(prompts[0])

    def read_prefix(self, prompt: Prompt) -> None:
        """Reads what all prompts begin with: into every row of prefill, or into pages, from which they have it."""
        if self.pages is None:
            rows = range(self.engine.prefill_rows)
            for _ in self.read(dict.fromkeys(rows, prompt), dict.fromkeys(rows, 0), self.prefix):
                pass
            self.prefix_scores = self.scores[0]
        elif whole := self.prefix - self.prefix % self.pages.sizes.page:
            self.pages.seat(0, prompt.tokens, whole)
            for _ in self.read({0: prompt}, {0: 0}, whole):
                pass
            self.pages.release(0)

    # ------------------------------------------------------------ the loop

    def completions(self) -> Iterator[Completion]:
        while self.waiting or any(self.texts):
            yield from self.fill()
            if any(self.texts):
                yield from self.step()

    def free(self) -> list[int]:
        return [row for row, text in enumerate(self.texts) if text is None]

    def fill(self) -> Iterator[Completion]:
        """Reads prompts into free rows, if there are enough of them, and of pages, to be worth a call of prefill."""
        fill = self.fill_by_adoption if self.engine.adopts else self.fill_in_place
        together = min(self.engine.prefill_rows, self.engine.rows)
        while self.waiting:
            least = 1 if self.held else min(max(1, together // 4), len(self.waiting))
            free = self.free()
            if self.pages is not None:
                following = islice(self.waiting, len(free))
                free = free[: self.pages.fitting([self.needs(prompt) for prompt, _ in following])]
                least = least if any(self.texts) else 1
                if not free and not any(self.texts):
                    raise self.waiting[0][0].fault("cache-full", "its text needs more pages than there are")
            if len(free) < least:
                break
            yield from fill(free)

    def needs(self, prompt: Prompt) -> tuple[tuple[int, ...], int]:
        """The tokens of a prompt, and how many positions of the cache its text may take: the last needs none."""
        return prompt.tokens, positions_of(len(prompt.tokens), self.settings.max_new_tokens)

    def table(self) -> dict[str, Any]:
        """The argument that says which pages rows have, where there are pages."""
        return {} if self.pages is None else {"pages": self.pages.array}

    def step(self) -> Iterator[Completion]:
        """One token more of every text."""
        ids = np.zeros((self.engine.rows, 1), np.int32)
        for row, text in enumerate(self.texts):
            if text is not None:
                ids[row, 0] = text.new[-1]
        (logits,) = self.session.run("decode", {"ids": ids, **self.table()})
        yield from self.choose(logits, [row for row, text in enumerate(self.texts) if text is not None])

    # ------------------------------------------------------------ reading prompts

    def fill_in_place(self, free: Sequence[int]) -> Iterator[Completion]:
        """Reads prompts in rows of decode, which prefill shares; every sample reads its own, but for what pages have
        of it."""
        given: dict[int, tuple[Prompt, int]] = {}
        starts: dict[int, int] = {}
        for row in free:
            if not self.waiting:
                break
            starts[row], self.scores[row] = self.prefix, [*self.prefix_scores]
            if self.pages is not None:
                needs = self.needs(self.waiting[0][0])
                if not self.pages.fitting([needs]):
                    break
                starts[row], self.scores[row] = self.pages.seat(row, *needs)
            given[row] = self.waiting.popleft()
        for read in self.read({row: prompt for row, (prompt, _) in given.items()}, starts):
            for row in read.rows:
                self.start(row, *given[row], self.scores[row])
            yield from self.choose(read.logits, read.rows)

    def fill_by_adoption(self, free: Sequence[int]) -> Iterator[Completion]:
        """Lets rows of decode adopt prompts that prefill has read, the next ones where all have been adopted."""
        if not self.held:
            self.read_ahead()
        by_logits: dict[int, tuple[Any, dict[int, int]]] = {}
        sources = {held.prompt.index: row for row, held in self.held.items()}
        for row in free:
            if not self.waiting or self.waiting[0][0].index not in sources:
                break
            prompt, sample = self.waiting.popleft()
            source = sources[prompt.index]
            held = self.held[source]
            by_logits.setdefault(id(held.logits), (held.logits, {}))[1][row] = source
            self.start(row, prompt, sample, self.scores[source])
            held.samples -= 1
        self.held = {row: held for row, held in self.held.items() if held.samples}
        for logits, adopted in by_logits.values():
            yield from self.adopt(logits, adopted)

    def read_ahead(self) -> None:
        """Reads as many of the next prompts as prefill has rows."""
        following: dict[int, Prompt] = {}
        for prompt, _ in self.waiting:
            if prompt.index not in following and len(following) == self.engine.prefill_rows:
                break
            following[prompt.index] = prompt
        given = dict(enumerate(following.values()))
        self.scores |= {row: [*self.prefix_scores] for row in given}
        for read in self.read(given, dict.fromkeys(given, self.prefix)):
            for row in read.rows:
                self.held[row] = _Held(given[row], read.logits, self.samples[given[row].index])

    def adopt(self, logits: Any, sources: Mapping[int, int]) -> Iterator[Completion]:
        source = np.zeros(self.engine.rows, np.int32)
        for row, of in sources.items():
            source[row] = of
            self.session.run("adopt", {"source": np.int32(of), "row": np.int32(row)})
        (adopted,) = self.session.run("adopted_logits", {"source": source, "logits": logits})
        yield from self.choose(adopted, list(sources))

    def read(
        self, prompts: Mapping[int, Prompt], starts: Mapping[int, int], stop: int | None = None
    ) -> Iterator[_Read]:
        """Prefill of these rows, each from its start on, chunk by chunk; gives each row when its last one is read."""
        engine = self.engine
        kept = np.full(engine.prefill_rows, -1, np.int32)
        kept[list(prompts)] = [starts[row] for row in prompts]
        self.session.run("restart", {"kept": kept})
        ends = {row: stop or len(prompt.tokens) for row, prompt in prompts.items()}
        for step in range(0, max((ends[row] - starts[row] for row in prompts), default=0), engine.chunk):
            ids, target = (np.zeros((engine.prefill_rows, engine.chunk), np.int32) for _ in range(2))
            length = np.zeros(engine.prefill_rows, np.int32)
            at = {row: starts[row] + step for row in prompts}
            for row, prompt in prompts.items():
                length[row] = n = min(max(ends[row] - at[row], 0), engine.chunk)
                ids[row, :n] = prompt.tokens[at[row] : at[row] + n]
                after = prompt.tokens[at[row] + 1 : at[row] + n + 1]
                target[row, : len(after)] = after
            if engine.scores_prompts:
                logits = self.scored(prompts, ids, length, target, at)
            else:
                (logits,) = self.session.run("prefill", {"ids": ids, "length": length, **self.table()})
            ended = tuple(row for row, end in ends.items() if at[row] < end <= at[row] + engine.chunk)
            if self.pages is not None:
                for row in ended:
                    self.pages.read(row, prompts[row].tokens, ends[row], self.scores[row])
            yield _Read(ended, logits)

    def scored(
        self, prompts: Mapping[int, Prompt], ids: IntArray, length: IntArray, target: IntArray, at: Mapping[int, int]
    ) -> Any:
        from shardwright.backends.jax.session import fetch

        logits, given = self.session.run("score", {"ids": ids, "length": length, "target": target, **self.table()})
        scores = fetch(given)
        for row, prompt in prompts.items():
            n = max(0, min(int(length[row]), len(prompt.tokens) - 1 - at[row]))
            found = [float(score) for score in scores[row, :n]]
            check_scores(prompt, 0, found, at[row] + 2, new=False)
            self.scores[row] += found
        return logits

    # ------------------------------------------------------------ choosing tokens

    def start(self, row: int, prompt: Prompt, sample: int, scores: Sequence[float]) -> None:
        self.texts[row] = _Text(prompt, sample, row_key(self.settings.seed, prompt.index, sample), [*scores], [], [])

    def choose(self, logits: Any, rows: Sequence[int]) -> Iterator[Completion]:
        """The next token of the texts in these rows, and those that it ends."""
        settings = self.settings
        texts = {row: text for row in rows if (text := self.texts[row]) is not None}
        if settings.max_new_tokens:
            tokens = self.sampled(logits)
            for row, text in texts.items():
                check_token(text.prompt, text.sample, len(text.new) + 1, int(tokens[row]), self.engine.vocab)
            if settings.logprobs:
                (found,) = self.session.call("logprob", {"logits": logits, "token": tokens})
                for row, text in texts.items():
                    score = float(found[row])
                    check_scores(text.prompt, text.sample, [score], len(text.new) + 1, new=True)
                    text.logprobs.append(score)
            for row, text in texts.items():
                token = int(tokens[row])
                text.new.append(token)
                self.observe(text.prompt, text.sample, token)
        for row, text in texts.items():
            if len(text.new) == settings.max_new_tokens or text.new[-1] in settings.stop_tokens:
                self.texts[row] = None
                if self.pages is not None:
                    self.pages.release(row)
                yield self.completion(text)

    def sampled(self, logits: Any) -> IntArray:
        settings, rows = self.settings, self.engine.rows
        if not settings.temperature:
            (tokens,) = self.session.call("greedy", {"logits": logits})
            return tokens
        keys = [0 if text is None else text.key for text in self.texts]
        positions = [0 if text is None else text.position for text in self.texts]
        arguments = {
            "logits": logits,
            "key": np.array(keys, np.uint32),
            "position": np.array(positions, np.int32),
            "temperature": np.full(rows, settings.temperature, np.float32),
            "top_k": np.full(rows, min(settings.top_k, self.engine.vocab), np.int32),
            "top_p": np.full(rows, settings.top_p, np.float32),
        }
        (tokens,) = self.session.call("sample", arguments)
        return tokens

    def completion(self, text: _Text) -> Completion:
        if not self.settings.logprobs:
            return Completion(text.prompt, text.sample, tuple(text.new))
        given = (None, *text.scores) if self.engine.scores_prompts else None
        return Completion(text.prompt, text.sample, tuple(text.new), tuple(text.logprobs), given)


def row_key(seed: int, index: int, sample: int) -> int:
    """The key of the random numbers of a sample of a prompt: 32 bits, well mixed."""
    return int(np.random.SeedSequence([seed, index, sample]).generate_state(1)[0])
