"""A session whose model is a hash: it keeps what each row of the cache holds, as the compiled functions do."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

VOCAB = 50


def logits_after(tokens: Sequence[int]) -> np.ndarray:
    """Logits that depend on every token and on their order."""
    seed = zlib.crc32(np.array(tokens, np.int32).tobytes())
    return np.random.default_rng(seed).normal(size=VOCAB).astype(np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum())


class _Here(np.ndarray):
    """An array that is on this process's devices."""

    is_fully_addressable = True


@dataclass
class ToySession:
    """Decode has `rows`, prefill reads `chunk` tokens of each of them, or of `own` rows of its own."""

    rows: int
    chunk: int
    own: int | None = None
    scores: bool = False
    calls: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self.cache: list[list[int]] = [[] for _ in range(self.rows)]
        self.read = [[] for _ in range(self.own)] if self.own else self.cache
        names = ["score" if self.scores else "prefill", "decode", "restart"]
        names += ["adopt", "adopted_logits"] if self.own else []
        self.program = SimpleNamespace(funcs=[SimpleNamespace(name=name) for name in names], func=self._func)

    def _func(self, name: str) -> Any:
        sizes = (self.rows, 1) if name == "decode" else (len(self.read), self.chunk)
        dims = tuple(SimpleNamespace(size=size) for size in sizes)
        logits = SimpleNamespace(shape=SimpleNamespace(size={"V": VOCAB}.__getitem__))
        ids = SimpleNamespace(name="ids", type=SimpleNamespace(dims=dims))
        return SimpleNamespace(params=[ids], results=[logits])

    def run(self, name: str, args: dict[str, Any]) -> tuple[np.ndarray, ...]:
        self.calls[name] += 1
        return getattr(self, name)(**args)

    call = run

    def prefill(self, ids: np.ndarray, length: np.ndarray) -> tuple[np.ndarray]:
        for row, n in enumerate(length):
            self.read[row] += ids[row, :n].tolist()
        return (np.stack([logits_after(row) for row in self.read]),)

    def score(self, ids: np.ndarray, length: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        before = [len(row) for row in self.read]
        (logits,) = self.prefill(ids, length)
        found = np.full(ids.shape, np.nan).view(_Here)
        for row, n in enumerate(length):
            for i in range(n):
                scores = log_softmax(logits_after(self.read[row][: before[row] + i + 1]))
                found[row, i] = scores[target[row, i]]
        return logits, found

    def decode(self, ids: np.ndarray) -> tuple[np.ndarray]:
        for row, token in zip(self.cache, ids[:, 0], strict=True):
            row.append(int(token))
        return (np.stack([logits_after(row) for row in self.cache]),)

    def restart(self, kept: np.ndarray) -> tuple[np.ndarray]:
        for row, n in enumerate(kept):
            if n >= 0:
                assert n <= len(self.read[row])
                del self.read[row][n:]
        return (kept,)

    def adopt(self, source: int, row: int) -> tuple[np.ndarray]:
        self.cache[row] = [*self.read[source]]
        return (np.array([len(tokens) for tokens in self.cache]),)

    def adopted_logits(self, source: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray]:
        return (logits[source],)

    def greedy(self, logits: np.ndarray) -> tuple[np.ndarray]:
        return (logits.argmax(-1).astype(np.int32),)

    def sample(self, logits: np.ndarray, **rows: np.ndarray) -> tuple[np.ndarray]:
        drawn = [
            np.random.default_rng([key, position]).choice(
                VOCAB, p=np.exp(log_softmax(row)) / np.exp(log_softmax(row)).sum()
            )
            for row, key, position in zip(logits.astype(np.float64), rows["key"], rows["position"], strict=True)
        ]
        return (np.array(drawn, np.int32),)

    def logprob(self, logits: np.ndarray, token: np.ndarray) -> tuple[np.ndarray]:
        return (np.array([log_softmax(row)[t] for row, t in zip(logits, token, strict=True)]),)


@dataclass
class PagedToySession(ToySession):
    """The same with what rows hold in `pages` of `page` tokens each, of which a row has at most `per_row`. Functions
    write what compiled ones do: padding behind the tokens of a row, and a token of every row that has no text."""

    page: int = 4
    per_row: int = 8
    pages: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pool = np.full((self.pages, self.page), -1)
        self.filled = [0] * self.rows
        self.table = np.full((self.rows, self.per_row), -1)
        self.most = self.tokens_read = 0
        self.program.sizes = lambda: {"T1": self.per_row, "T2": self.page, "T3": self.pages}

    def _func(self, name: str) -> Any:
        func = super()._func(name)
        func.params.append(SimpleNamespace(name="pages", type=func.params[0].type))
        return func

    def run(self, name: str, args: dict[str, Any]) -> tuple[np.ndarray, ...]:
        rest = {**args}
        self.table = rest.pop("pages", self.table)
        return super().run(name, rest)

    call = run

    def written(self, row: int, tokens: Sequence[int]) -> None:
        for at, token in enumerate(tokens, self.filled[row]):
            page, slot = divmod(at, self.page)
            if page < self.per_row and self.table[row, page] >= 0:
                self.pool[self.table[row, page], slot] = token

    def held(self, row: int) -> list[int]:
        numbers = [self.table[row, page] for page in range(min(self.per_row, -(-self.filled[row] // self.page)))]
        tokens = [int(token) for page in numbers if page >= 0 for token in self.pool[page]]
        return tokens[: self.filled[row]]

    def logits(self) -> np.ndarray:
        self.most = max(self.most, len(np.unique(self.table[self.table >= 0])))
        return np.stack([logits_after(self.held(row)) for row in range(self.rows)])

    def prefill(self, ids: np.ndarray, length: np.ndarray) -> tuple[np.ndarray]:
        self.tokens_read += int(length.sum())
        for row, n in enumerate(length):
            self.written(row, ids[row])
            self.filled[row] += int(n)
        return (self.logits(),)

    def score(self, ids: np.ndarray, length: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        before = [*self.filled]
        (logits,) = self.prefill(ids, length)
        found = np.full(ids.shape, np.nan).view(_Here)
        for row, n in enumerate(length):
            held = self.held(row)
            for i in range(n):
                found[row, i] = log_softmax(logits_after(held[: before[row] + i + 1]))[target[row, i]]
        return logits, found

    def decode(self, ids: np.ndarray) -> tuple[np.ndarray]:
        for row in range(self.rows):
            self.written(row, ids[row])
            self.filled[row] += 1
        return (self.logits(),)

    def restart(self, kept: np.ndarray) -> tuple[np.ndarray]:
        self.filled = [int(n) if n >= 0 else now for n, now in zip(kept, self.filled, strict=True)]
        return (kept,)
