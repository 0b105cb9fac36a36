"""A batch on its way through a run: its programs in stages, its prompts, and what it holds in each memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from shardwright.backends.torch.cache import CacheShape, LayerCache, Places
from shardwright.backends.torch.hidden import HiddenHome
from shardwright.backends.torch.kernels.prepared import Common
from shardwright.backends.torch.quantization import Coding
from shardwright.backends.torch.schedule import Turn
from shardwright.backends.torch.stages import Staged
from shardwright.backends.torch.tensors import Named, held_as
from shardwright.backends.torch.tiers import Tiers
from shardwright.cost.offloading.group_quantization import GroupQuantization
from shardwright.ir.memory_shares import Rows, rows_of
from shardwright.ir.ops import Update
from shardwright.ir.program import Let
from shardwright.ir.types import ON_DEVICE, Tier

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options:
    """`host_attention`: in decode the host attends what of the cache lies there. `quantized_cache`: how it is kept,
    None as it is. `sparse`: of a piece of the cache, the share of positions that decode looks at. `page`: caches begin
    with room for the prompts and grow by so many positions; where None they have room for all from the beginning.
    `at_hand` are the memories with whose values the device computes where they lie."""

    host_attention: bool = True
    quantized_cache: GroupQuantization | None = None
    sparse: float = 1.0
    page: int | None = None
    at_hand: frozenset[Tier] = frozenset((Tier.DEVICE,))


@dataclass
class Batch:
    """A batch on its way: its programs in stages, its prompts `ids` [rows][L] with their lengths, and its state.

    With `slices`, which gives decode in stages for so many rows, log-probabilities come along: `logprobs` [rows] has
    those of the prompt's tokens but the first, then those of what was drawn."""

    number: int
    prefill: Staged
    decode: Staged
    ids: list[list[int]]
    lengths: list[int]
    done: bool = False
    slices: Callable[[int], Staged] | None = None
    logprobs: list[list[float]] = field(default_factory=list[list[float]])
    caches: dict[int, LayerCache] = field(default_factory=dict[int, LayerCache])
    hidden: list[Named] = field(default_factory=list[Named])
    values: dict[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    common: Common = field(default_factory=Common)
    """What the layers of a pass have in common."""
    small: dict[str, Named] = field(default_factory=dict[str, Named])
    hidden_home: HiddenHome | None = None
    lock: Lock = field(default_factory=Lock)
    """Held while its memory is copied or given back."""

    length: int = field(init=False)
    """To which the prompts are padded."""
    _places: dict[int, Places] = field(default_factory=dict[int, Places])

    def __post_init__(self) -> None:
        self.length = len(self.ids[0])
        self.logprobs = [[] for _ in self.lengths]

    def staged(self, token: int) -> Staged:
        return self.decode if token else self.prefill

    def cached(self, token: int) -> list[int]:
        """The positions of each row that are cached before the pass of this token."""
        return [0] * len(self.lengths) if not token else [n + token - 1 for n in self.lengths]

    def longest(self, token: int) -> int:
        return max(self.cached(token))

    def places(self, token: int) -> Places:
        """Where the new positions of the pass of this token go."""
        if token not in self._places:
            # The passes of a batch follow each other: while one is computed, the last one's positions may be stored.
            self._places = {at: places for at, places in self._places.items() if at >= token - 1}
            self._places[token] = Places(tuple(self.cached(token)), 1 if token else self.length, {})
        return self._places[token]

    def n_scores(self, token: int) -> int:
        """How many log-probabilities the pass of this token gives."""
        if self.slices is None:
            return 0
        return len(self.lengths) if token else sum(self.lengths)

    def add_scores(self, scores: Sequence[float]) -> None:
        """Those of one pass: in prefill row by row those of the prompt's tokens but the first; then one of each row."""
        at = 0
        for row, n in zip(self.logprobs, self.lengths, strict=True):
            if len(scores) > len(self.lengths):
                row.extend(scores[at : at + n - 1])
                at += n - 1
        for row, score in zip(self.logprobs, scores[at:], strict=True):
            row.append(score)

    def room(self, token: int, options: Options) -> int:
        """For how many positions its caches have room once those of this token are in them."""
        needed = self.longest(token) + (1 if token else self.length)
        whole = cache_shape(self.prefill, options).positions
        if options.page is None:
            return whole
        return min(whole, self.length + -(-max(0, needed - self.length) // options.page) * options.page)

    def admit(self, tiers: Tiers, options: Options) -> None:
        """Allocates its caches, the room for its hidden states, and its small state, all 0."""
        import torch

        shape = cache_shape(self.prefill, options)
        for stage in self.prefill.stages:
            if stage.attends:
                what = f"keys and values of layer {stage.layer}, batch {self.number}"
                self.caches[stage.index] = LayerCache(tiers, shape, what, self.room(0, options))
        rows, nbytes = hidden_layout(self)
        self.hidden_home = HiddenHome(tiers, rows, nbytes, f"hidden states of batch {self.number}")
        attend = self.prefill.attention
        big = {attend.keys, attend.values} if attend else set[str]()
        for value in self.prefill.program.state:
            if value.name not in big:
                extents = [dim.size for dim in value.shape.dims]
                tensor = torch.zeros(extents, dtype=held_as(value.shape.dtype), device=tiers.device)
                self.small[value.name] = Named(tensor, value.shape.names, value.shape.dtype)

    def release(self) -> None:
        """Gives back what it took; it is done."""
        self.done = True
        with self.lock:
            for cache in self.caches.values():
                cache.release()
            if self.hidden_home is not None:
                self.hidden_home.release()
            self.hidden_home = None
            self.caches.clear()
            self.hidden, self.values, self.common = [], {}, {}


def cache_shape(staged: Staged, options: Options) -> CacheShape:
    """The cache of a layer as the types of the program's state say."""
    attend = staged.attention
    assert attend is not None
    state = staged.program.globals[attend.keys]
    sizes = {dim.name: dim.size for dim in state.shape.dims}
    time = next(s.operation.dim for s in staged.loop.body if isinstance(s, Let) and isinstance(s.operation, Update))
    heads = 1
    for name in attend.heads:
        heads *= sizes[name]
    size = sizes[attend.size]
    coding = Coding(heads * size, held_as(state.shape.dtype), options.quantized_cache)
    placement = state.type.placement or ON_DEVICE
    return CacheShape(sizes[attend.batch], heads, size, coding, rows_of(placement, sizes[time]), options.at_hand)


def cache_peaks(batches: Mapping[int, Batch], passes: Iterable[Sequence[Turn]], options: Options) -> dict[Tier, int]:
    """The most bytes of each memory that the caches take in any of these passes, in which a batch has what its token
    needs, and gives it back before the next pass where it was its last."""
    most = dict.fromkeys(Tier, 0)
    shapes = {number: cache_shape(batch.prefill, options) for number, batch in batches.items()}
    layers = {number: sum(stage.attends for stage in batch.prefill.stages) for number, batch in batches.items()}
    for turns in passes:
        for tier in Tier:
            taken = 0
            for turn in turns:
                shape, room = shapes[turn.batch], batches[turn.batch].room(turn.token, options)
                taken += layers[turn.batch] * shape.counted(room).get(tier, 0)
            most[tier] = max(most[tier], taken)
    return most


def hidden_layout(batch: Batch) -> tuple[tuple[Rows, ...], int]:
    """Where the rows of a batch's hidden states lie, and the bytes of one, in prefill."""
    values = [carry.value for carry in batch.prefill.loop.carries]
    n = len(batch.lengths)
    placement = values[0].type.placement or ON_DEVICE
    nbytes = sum(value.shape.elements * value.shape.dtype.bits // 8 // n for value in values)
    return rows_of(placement, n), nbytes
