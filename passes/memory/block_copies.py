"""The copies of a block schedule: what is prefetched for the next layer or batch, stored early, and freed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.ir.ops import Alias, Fetch, Merge, Rename, Split, Start, Store, Take, Update, Wait
from shardwright.ir.program import Free, Let, Marking, Scope, SetState, Statement, Value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import ON_DEVICE, ValueType
from shardwright.ir.walk import names_freed, names_read, rename_operands
from shardwright.passes.micro_batches import MicroBatches

_VIEWS = (Alias, Rename, Split, Merge)

_LINE = 80
"""Columns of names in one `free`."""


def forwarded(rows: Sequence[Statement], scope: Scope) -> tuple[list[Statement], dict[str, str]]:
    """The statements without fetches of what was stored just before; and the names that what was fetched had.

    k_stored = store[disk](k_new)
    set k = k_stored
    k_here = fetch(k)              # k_new
    """
    made: list[Statement] = []
    names: dict[str, str] = {}
    copies: dict[str, str] = {}
    stored: dict[str, str] = {}
    for original in rows:
        statement = rename_operands(original, names)
        match statement:
            case Let(operation=Fetch(), operands=(str() as source,)) if source in copies:
                names[statement.result.name] = copies[source]
                continue
            case Let(operation=Store() | Alias(), operands=(str() as source,)) if (
                statement.result.type.placement != ON_DEVICE and scope.type_of(source).placement == ON_DEVICE
            ):
                stored[statement.result.name] = source
            case SetState():
                copies.pop(statement.state, None)
                if statement.operand in stored:
                    copies[statement.state] = stored[statement.operand]
            case _:
                pass
        made.append(statement)
    return made, names


def stored_early(rows: Sequence[Statement], scope: Scope, writer: Rewriter) -> list[Statement]:
    """The statements of a batch's turn with stores that begin at once and end, with the `set`, at the turn's end.

    Of a state that is updated, only the new rows are stored, and written where it lives:

        k_here = fetch(k)                                 k_here = fetch(k)
        k_new = update[T](k_here, rows, pos)      -->     rows_f = start(store[disk](rows))
        k_stored = store[disk](k_new)                     k_new = update[T](k_here, rows, pos)
        set k = k_stored                                  ...
                                                          set k = update[T](k, wait(rows_f), pos)
    """
    lets = {s.result.name: s for s in rows if isinstance(s, Let) and len(s.results) == 1}
    sets = [s for s in rows if isinstance(s, SetState)]
    made = list(rows)
    for setting in sets:
        store = lets.get(setting.operand)
        if store is None or not isinstance(store.operation, Store) or not _alone(made, setting, store):
            continue
        update = lets.get(str(store.operands[0]))
        row = update is not None and isinstance(update.operation, Update) and _fetched(update, setting.state, lets)
        source = str(update.operands[1]) if update is not None and row else str(store.operands[0])
        kind = replace(scope.type_of(source), placement=store.result.type.placement)
        flying = writer.value(f"{source}_going", replace(kind, in_flight=True), source=source)
        begun = Let((flying,), Start(store.operation), (source,), store.span)
        at = made.index(update if update is not None and row else store)
        made[at:at] = [begun]
        made.remove(store)
        made.remove(setting)
        if update is not None and row:
            arrived = writer.value(f"{source}_stored", kind, source=source)
            made.append(Let((arrived,), Wait(), (flying.name,)))
            operands = (setting.state, arrived.name, *update.operands[2:])
            made.append(Let(store.results, update.operation, operands, update.span))
        else:
            made.append(Let(store.results, Wait(), (flying.name,), store.span))
        made.append(setting)
        for value in (flying, Value(store.result.name, store.result.type)):
            scope.define(value)
    return made


def _alone(rows: Sequence[Statement], setting: SetState, store: Let) -> bool:
    """Tells whether nothing reads the state after it is set, nor what is stored but the `set`."""
    at = rows.index(setting)
    later = names_read(rows[at + 1 :])
    twice = sum(isinstance(s, SetState) and s.state == setting.state for s in rows) > 1
    name = store.result.name
    return setting.state not in later and not twice and name not in names_read(s for s in rows if s is not setting)


def _fetched(update: Let, state: str, lets: Mapping[str, Let]) -> bool:
    """Tells whether what is updated, along one dimension, is the state as it was fetched."""
    cache = lets.get(str(update.operands[0])) if len(update.operands) == 3 else None
    return cache is not None and isinstance(cache.operation, Fetch) and cache.operands == (state,)


@dataclass(frozen=True)
class Flight:
    """A value that is prefetched a turn ahead, and its names: before the loop over layers, in it, in the loop over
    batches, for the next turn, after the loop over batches, and after all.

    One that goes `round` stays under way from one run of the loop over layers to the next, in a loop around it, where
    it has that name, and `over` after it.
    """

    source: str
    kind: ValueType
    ahead: tuple[str, ...]
    wrap: bool
    begun: str
    now: str
    this: str
    following: str
    left: str
    end: str
    round: str | None = None
    over: str = ""

    def value(self, name: str) -> Value:
        return Value(name, self.kind, Marking.FOUND, origin=(self.source,))


class Flights:
    """The transfers that a schedule has under way: weights of the next layer, caches and hidden states of the next
    batch."""

    def __init__(
        self, batches: str, layers: str, sizes: Mapping[str, int], writer: Rewriter, lasting: Collection[str]
    ) -> None:
        """`lasting` are sources of which a loop around the layers sees the same in every trip."""
        self.batches = batches
        self.layers = layers
        self.sizes = sizes
        self.writer = writer
        self.lasting = lasting
        self.weights: list[Flight] = []
        self.rows: list[Flight] = []

    @property
    def all(self) -> list[Flight]:
        return [*self.weights, *self.rows]

    def of_weights(self, once: Sequence[Statement], scope: Scope, states: Collection[str]) -> list[Statement]:
        """The statements of a layer before its batches, with waits for weights in place of fetches."""
        made: list[Statement] = []
        for statement in once:
            source = self._ahead(statement, made)
            if source is None or source in states or source not in scope.values:
                made.append(statement)
                continue
            kind = scope.type_of(source)
            if self.layers not in kind.names or self.sizes[self.layers] == 1 or self._shared_along(kind):
                made.append(statement)
                continue
            assert isinstance(statement, Let)
            flight = self._flight(source, statement, (self.layers,), wrap=False)
            self.weights.append(flight)
            made.append(replace(statement, operation=Wait(), operands=(flight.now,)))
        return made

    def of_rows(
        self, rows: Sequence[Statement], scope: Scope, outside: Collection[str], states: Collection[str],
        batching: MicroBatches,
    ) -> list[Statement]:  # fmt: skip
        """The statements of a batch's turn, with waits for what it reads of others' in place of fetches."""
        made: list[Statement] = []
        for statement in rows:
            source = self._ahead(statement, made)
            if source is None or source not in outside or not batching.has_rows(scope.type_of(source)):
                made.append(statement)
                continue
            full = scope.values[source][0]
            ahead = (self.layers, self.batches) if self.layers in full.names else (self.batches,)
            turns = 1
            for dim in ahead:
                turns *= self.sizes[dim]
            if turns == 1 or self._shared_along(full) or (source in states and self._read_by_name(source, made)):
                made.append(statement)
                continue
            assert isinstance(statement, Let)
            flight = self._flight(source, statement, ahead, wrap=self.layers not in ahead)
            self.rows.append(flight)
            made.append(replace(statement, operation=Wait(), operands=(flight.this,)))
        return made

    def _ahead(self, statement: Statement, before: Sequence[Statement]) -> str | None:
        """The value that a statement fetches, where it can be fetched a turn before: not if it was set in this turn."""
        if not isinstance(statement, Let) or not isinstance(statement.operation, Fetch) or statement.operation.ahead:
            return None
        source = str(statement.operands[0])
        return None if any(isinstance(s, SetState) and s.state == source for s in before) else source

    def _read_by_name(self, source: str, before: Sequence[Statement]) -> bool:
        return any(flight.source == source for flight in self.rows) and bool(before)

    def _shared_along(self, kind: ValueType) -> bool:
        """Tells whether its parts in several memories lie along what a loop slices."""
        return kind.placement is not None and kind.placement.along in (self.layers, self.batches)

    def _flight(self, source: str, fetch: Let, ahead: tuple[str, ...], *, wrap: bool) -> Flight:
        kind = replace(fetch.result.type, placement=ON_DEVICE, in_flight=True)
        fresh = self.writer.namer.fresh
        names = [fresh(f"{source}_{word}") for word in ("first", "now", "this", "next", "left", "rest")]
        if source not in self.lasting:
            return Flight(source, kind, ahead, wrap, *names)
        around = [fresh(f"{source}_{word}") for word in ("round", "over")]
        return Flight(source, kind, ahead, True, *names, *around)

    def next(self, flight: Flight) -> Statement:
        """The prefetch for the next turn."""
        return Let(
            (flight.value(flight.following),), Start(Fetch(ahead=flight.ahead, wrap=flight.wrap)), (flight.source,)
        )

    def first(self, flight: Flight, whole: ValueType) -> list[Statement]:
        """The prefetch for the first turn of all. `whole` is the type of what is fetched of, as it is outside."""
        made: list[Statement] = []
        name, kind = flight.source, whole
        for dim in flight.ahead:
            kind = kind.without_dim(dim)
            value = self.writer.value(f"{flight.source}_0", kind, source=name)
            made.append(Let((value,), Take(dim, 0), (name,)))
            name = value.name
        begun = replace(flight.value(flight.begun), type=replace(kind, placement=ON_DEVICE, in_flight=True))
        return [*made, Let((begun,), Start(Fetch()), (name,))]


def freed(body: Sequence[Statement], ending: Sequence[str]) -> tuple[Statement, ...]:
    """The statements with a `free` of each copy on the device after its last use, its views' among them.

    What is written into a copy that nothing else reads any more takes its place.
    """
    roots: dict[str, str] = {}
    last: dict[str, int] = {}
    kept = set(ending)
    for number, statement in enumerate(body):
        for name in names_read((statement,)):
            if name in roots:
                last[roots[name]] = number
        if isinstance(statement, Free):
            kept.update(statement.names)
        if not isinstance(statement, Let) or len(statement.results) != 1:
            continue
        value, operation = statement.result, statement.operation
        if value.type.placement != ON_DEVICE:
            continue
        source = roots.get(str(statement.operands[0])) if statement.operands else None
        if isinstance(operation, Fetch | Wait):
            roots[value.name] = value.name
            last[value.name] = number
        elif source is None:
            continue
        elif isinstance(operation, _VIEWS):
            roots[value.name] = source
            last[source] = number
        elif isinstance(operation, Update) and not _read_later(roots, source, body[number + 1 :], ending):
            last.pop(source)
            roots[value.name] = value.name
            last[value.name] = number
    held = {roots.get(name, name) for name in kept}
    made: list[Statement] = []
    for number, statement in enumerate(body):
        made.append(statement)
        made += frees([name for name in last if last[name] == number and name not in held])
    return tuple(made)


def _read_later(
    roots: Mapping[str, str], source: str, body: Sequence[Statement], ending: Sequence[str]
) -> bool:  # fmt: skip
    """Tells whether a copy, or a view of it, is read again."""
    later = {*ending, *names_read(body), *names_freed(body)}
    return any(root == source and name in later for name, root in roots.items())


def frees(names: Sequence[str]) -> list[Statement]:
    """Statements that free these values, none of them a long line."""
    made: list[Statement] = []
    line: list[str] = []
    for name in names:
        if line and sum(len(other) + 2 for other in line) + len(name) > _LINE:
            made.append(Free(tuple(line)))
            line = []
        line.append(name)
    return [*made, Free(tuple(line))] if line else made
