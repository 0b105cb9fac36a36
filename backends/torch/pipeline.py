"""A pipeline of processes, each with some of the layers: who has which, in which order batches go through, and the
events of receiving and sending (Sheng et al. 2023, section 4.4).

The batches of a block are divided into as many groups as there are processes. In a pass a process takes one group
through its own layers, whose weights it loads once for all batches of the group; then comes the next group. So while
one group is in the first layers, another is in the next, and a group's token has gone through all of them when its turn
comes again. The last process draws tokens and sends them to all others, so that all know which batches have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwright.backends.torch.schedule import Add, Kind, Turn, diagonal_passes, zigzag_passes
from shardwright.backends.torch.stages import Attend, Stage, Staged
from shardwright.ir.diagnostics import fault
from shardwright.ir.program import Let, SetState, Statement
from shardwright.ir.walk import names_used

Passes = tuple[tuple[Turn, ...], ...]


@dataclass(frozen=True)
class Place:
    """This is process `index` of `count` in a pipeline."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.count - 1

    def layers(self, n: int) -> range:
        """Which of n layers are here; their numbers differ by at most one between processes.

        Raises where there are fewer layers than processes.
        """
        if n < self.count:
            raise fault("too-many-stages", f"{n} layers cannot be divided into {self.count} stages of a pipeline")
        return range(n * self.index // self.count, n * (self.index + 1) // self.count)


# ---------------------------------------------------------------- which statements run here


def part_of(staged: Staged, place: Place) -> Staged:
    """The function as this process runs it: all that comes before and after the layers where it is the first or the
    last, and elsewhere only what later statements here, or state, need of that; its own layers between.

    Raises where that needs weights or hidden states, which are elsewhere.
    """
    if place.count == 1:
        return staged
    before, *layers, after = staged.stages
    here = place.layers(len(layers))
    own = [replace(layer, takes=_read(layer)) for layer in layers[here.start : here.stop]]
    if not place.last:
        after = replace(after, body=_needed(staged, after.body, set()), gives=(), weights=())
    after = replace(after, takes=_read(after))
    gives = tuple(sorted(set[str]().union(*(stage.takes for stage in (*own, after)))))
    if place.first:
        before = replace(before, gives=gives)
    else:
        before = Stage(0, None, _needed(staged, before.body, set(gives)), (), gives, ())
    stages = tuple(replace(stage, index=i) for i, stage in enumerate((before, *own, after)))
    return replace(staged, stages=stages, first=place.first, last=place.last)


def _read(layer: Stage) -> tuple[str, ...]:
    """What its statements read of what it takes: without what only begins the loop."""
    read = set[str]().union(*map(_uses, layer.body))
    return tuple(name for name in layer.takes if name in read)


def _uses(statement: Statement | Attend) -> set[str]:
    return set() if isinstance(statement, Attend) else names_used((statement,))


def _slice(body: Sequence[Statement | Attend], wanted: set[str]) -> tuple[Statement | Attend, ...]:
    """The statements that set state, those that define what is wanted, and what they need."""
    kept: list[Statement | Attend] = []
    for statement in reversed(body):
        made = {value.name for value in statement.results} if isinstance(statement, Let) else set[str]()
        if isinstance(statement, SetState) or made & wanted:
            kept.append(statement)
            wanted = wanted | _uses(statement)
    return tuple(reversed(kept))


def _needed(staged: Staged, body: Sequence[Statement | Attend], wanted: set[str]) -> tuple[Statement | Attend, ...]:
    kept = _slice(body, wanted)
    elsewhere = {value.name for value in staged.program.weights} | {value.name for value in staged.loop.results}
    for statement in kept:
        wanting = sorted(_uses(statement) & elsewhere)
        if wanting and not isinstance(statement, Attend):
            raise fault(
                "no-pipeline",
                f"every stage of a pipeline would need {', '.join(wanting)}, which only one has",
                statement.span,
            )
    return kept


# ---------------------------------------------------------------- in which order


@dataclass(frozen=True)
class Order:
    """Passes, with the group of each."""

    passes: Passes
    groups: tuple[int, ...]


def n_groups(place: Place, batches: int) -> int:
    """Into how many groups so many batches are divided."""
    return max(1, min(place.count, batches))


def zigzag_order(batches: Sequence[int], tokens: int, place: Place) -> Order:
    """A block: all groups go through all tokens together, one after the other at each."""
    return _woven([zigzag_passes(len(g), tokens) for g in _groups(batches, place)], _groups(batches, place))


def diagonal_order(batches: Sequence[int], tokens: int, together: int, place: Place) -> Order:
    """Of all batches `together` at a time: each group has a share of them and is a diagonal schedule of its own."""
    groups = _groups(batches, place, together)
    shares = [len(range(i, together, len(groups))) for i in range(len(groups))]
    made = [diagonal_passes(len(g), tokens, n) for g, n in zip(groups, shares, strict=True)]
    return _woven(made, groups)


def _groups(batches: Sequence[int], place: Place, together: int | None = None) -> list[Sequence[int]]:
    n = n_groups(place, len(batches) if together is None else min(together, len(batches)))
    return [batches[i::n] for i in range(n)]


def _woven(schedules: Sequence[Passes], groups: Sequence[Sequence[int]]) -> Order:
    """One pass of each group after the other."""
    passes: list[tuple[Turn, ...]] = []
    numbers: list[int] = []
    for p in range(max((len(schedule) for schedule in schedules), default=0)):
        for g, (schedule, batches) in enumerate(zip(schedules, groups, strict=True)):
            if p < len(schedule) and schedule[p]:
                passes.append(tuple(Turn(batches[turn.batch], turn.token) for turn in schedule[p]))
                numbers.append(g)
    return Order(tuple(passes), tuple(numbers))


# ---------------------------------------------------------------- receiving and sending


@dataclass
class PipelineEvents:
    """The events of one process that come from others and go to them, for `schedule.build`.

    `groups` are those of the passes, `nbytes` the hidden states of each turn, and `slots` the buffers for those that
    have been received. Hidden states come from the process before; tokens come from the last one, before the first
    batch of the group's next pass, so that it is known by then which batches have ended. The last process receives
    nothing of a batch before it has drawn its token, since it may have ended.
    """

    place: Place
    groups: Sequence[int]
    nbytes: Mapping[Turn, int]
    slots: int
    _passed: dict[int, tuple[Turn, ...]] = field(default_factory=dict[int, tuple[Turn, ...]])
    _awaited: deque[tuple[Turn, ...]] = field(default_factory=deque[tuple[Turn, ...]])
    _ended: list[str] = field(default_factory=list[str])
    _visits: int = 0

    def begins(self, add: Add, run: int, turns: Sequence[Turn]) -> None:
        """Before a pass: the tokens of the pass before of the same group, and of those before it, as they are sent."""
        group = self.groups[run]
        before = self._passed.get(group, ())
        if before:
            self._tokens(add, run, before)
        still = {turn.batch for turn in turns}
        self._ended = [] if self.place.last else [f"tokens {t.batch}" for t in before if t.batch not in still]
        self._passed[group] = tuple(turns)
        self._awaited.append(self._passed[group])

    def ends(self, add: Add, run: int) -> None:
        """After the last pass: the tokens that are still to come."""
        if self._awaited:
            self._tokens(add, run, self._awaited[-1])

    def _tokens(self, add: Add, run: int, last: tuple[Turn, ...]) -> None:
        """Those of all passes up to this one that have not been received."""
        passed = None
        while passed is not last:
            passed = self._awaited.popleft()
            for turn in () if self.place.last else passed:
                add(Kind.RECEIVE_TOKENS, run, 0, turn, 0, [f"tokens {turn.batch}"])

    def arrives(self, add: Add, run: int, turn: Turn) -> list[str]:
        """Before the first computation of a batch in a pass; gives the buffers that it reads."""
        reads: list[str] = []
        if not self.place.first:
            slot = f"received {self._visits % self.slots}"
            drawn = [f"chosen {turn.batch}"] if self.place.last and turn.token else []
            add(Kind.RECEIVE_HIDDEN, run, 0, turn, self.nbytes[turn], [slot], drawn, order=self._visits)
            reads.append(slot)
            self._visits += 1
        if not self.place.last:
            reads += [f"tokens {turn.batch}"] if turn.token else self._ended
        return reads

    def makes(self, turn: Turn) -> list[str]:
        """The buffers that the last computation of a batch in a pass fills for others."""
        return [f"chosen {turn.batch}"] if self.place.last else []

    def leaves(self, add: Add, run: int, stage: int, turn: Turn, hidden: Sequence[str]) -> None:
        """After the last computation of a batch in a pass; `hidden` are the buffers with its hidden states, which are
        sent from where they are."""
        if self.place.last:
            add(Kind.SEND_TOKENS, run, stage, turn, 0, [], self.makes(turn))
        else:
            add(Kind.SEND_HIDDEN, run, stage, turn, self.nbytes[turn], [], hidden)
