"""`schedule-blocks`: a loop over layers becomes a block schedule, where batches share a layer's weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.operation import Number
from shardwright.ir.ops import Full, Rename, Update
from shardwright.ir.program import Carry, Func, Let, Loop, Marking, Program, Scope, SetState, Statement, Value
from shardwright.ir.rewriter import Rewriter, rename_dims
from shardwright.ir.types import ValueType
from shardwright.ir.verification.lifetimes import has_lifetimes
from shardwright.ir.walk import names_read, rename_operands, states_set
from shardwright.passes.base import Pass
from shardwright.passes.memory.block_batches import OPENING, divided, unschedulable
from shardwright.passes.memory.block_copies import Flight, Flights, forwarded, freed, frees, stored_early
from shardwright.passes.memory.entering_batch import EnteringBatch, function_of
from shardwright.passes.memory.hidden_states import CarriedState, HiddenStates, over_layers
from shardwright.passes.micro_batches import MicroBatches


@dataclass(frozen=True)
class ScheduleBlocks(Pass):
    """A block schedule (Sheng et al. 2023), zig-zag (algorithm 1) or diagonal (appendix A.2), of an offloaded program.

        state { k: f32 NBTD on disk }
        y: BE on host = loop[N](h: BE on host = x) {
          h_here = fetch(h)
          w_here = fetch(w)
          g = h_here @ w_here ...
          next store[host](g)
        }

    becomes, with B the rows of one batch and M the batches of a block,

        state { k: f32 NMBTD on disk
                h: f32 MBE on host }
        set h = x
        w_1 = prefetch(take[N, 0](w))
        h_1 = prefetch(take[M, 0](h))
        loop[N](w_now in flight = w_1, h_now in flight = h_1) {
          w_next = prefetch[ahead=N](w)                          # the next layer's weights, while this one computes
          w_here = wait(w_now)
          h_left = loop[M](h_this in flight = h_now) {
            h_next = prefetch[ahead=M, wrap=true](h)             # the next batch's hidden states
            h_here = wait(h_this)
            g = h_here @ w_here ...
            free h_here
            set h = store[host](g)
            next h_next
          }
          free w_here
          next w_next, h_left
        }

    `batches` is the number of batches in a block, which divides the dimension `batch`: every value of the program with
    rows of it has M before it afterwards, state, parameters and results too, row b = m |B| + b'. What a loop over
    layers carried is state. What is set on host or disk by an update is stored as the rows that are new, from when they
    are there to the end of the batch's turn. Before the layers and after them, what is computed for each batch is in a
    loop over batches of its own. Raises where a statement mixes the rows of the batch, or where a loop over layers
    carries what has none.

    With `order=diagonal` a function of both `enters` and `stays` is in place of the first, `prefill_and_decode`, one
    pass over the layers, in which the block's batches take a step of `stays`, each at a token of its own, and one batch
    begins, in the place `slot` of the batch whose last step this is:

        loop[N](...) {
          w_here = wait(w_now)
          loop[M](...) { ... }                                   # a step of decode for each batch of the block
          k_begun = 0.0
          ... w_here ...                                         # prefill of the batch that begins
          set k = update[M](k, k_new, slot)
        }

    Raises where a batch could not be at a token of its own: where state is set that has no rows of the batch.
    """

    name: ClassVar[str] = "schedule-blocks"
    batches: int = 2
    order: str = "zigzag"
    batch: str = "B"
    enters: str = "prefill"
    stays: str = "decode"

    def run(self, program: Program) -> Program:
        if self.order not in ("zigzag", "diagonal"):
            raise fault("bad-option", f"schedule-blocks: order is zigzag or diagonal, not {self.order}", NOWHERE)
        if self.batches < 1:
            raise fault("bad-option", f"schedule-blocks: batches is 1 or more, not {self.batches}", NOWHERE)
        scheduled = next((func for func in program.funcs if has_lifetimes(func)), None)
        if scheduled is not None:
            raise unschedulable(f"{scheduled.name} has a schedule already", scheduled.span)
        made = divided(program, self.batch, self.batches)
        enters = function_of(program, self.enters, "enters") if self.order == "diagonal" else None
        remaining = replace(program, funcs=tuple(func for func in program.funcs if func is not enters))
        hidden = HiddenStates(remaining, made)
        if not hidden.values:
            raise unschedulable(
                f"no function has a loop over layers that carries rows of {self.batch}",
                NOWHERE,
                "the loop goes over a dimension of the weights and carries the hidden states",
            )
        dims = [*made.dims(program), *hidden.dims]
        funcs: list[Func] = []
        for func in program.funcs:
            if func is not enters:
                funcs.append(_Function(program, func, made, hidden).rewritten())
                continue
            both = _Function(program, function_of(program, self.stays, "stays"), made, hidden)
            both.entering = EnteringBatch(program, func, both.func, made, both.writer, dims)
            dims += both.entering.dims
            funcs.append(both.rewritten())
        state = (*map(made.whole_value, program.state), *hidden.values)
        return replace(program, dims=tuple(dims), state=state, funcs=tuple(funcs))


class _Function:
    def __init__(self, program: Program, func: Func, made: MicroBatches, hidden: HiddenStates) -> None:
        self.program = program
        self.func = func
        self.made = made
        self.hidden = hidden
        self.writer = Rewriter.of(program, func, [value.name for value in hidden.values])
        self.rounds: list[list[tuple[Flight, list[Statement]]]] = []
        """For each loop around, what stays under way between its trips, with how it begins."""
        self.sizes = program.sizes(func) | {made.outer: made.count, made.batch: made.size}
        self.entering: EnteringBatch | None = None

    def rewritten(self) -> Func:
        func, made, entering = self.func, self.made, self.entering
        scheduled = replace(
            func,
            params=tuple(map(made.whole_value, func.params)),
            body=self.block(func.body, Scope.of(self.program, func), func.returns),
            results=tuple(made.whole(kind) for kind in func.results),
        )
        if entering is None:
            return scheduled
        return replace(
            scheduled,
            name=f"{entering.func.name}_and_{func.name}",
            params=(*entering.params, *scheduled.params),
            returns=(*entering.returns, *scheduled.returns),
            results=(*entering.results, *scheduled.results),
        )

    def block(self, body: Sequence[Statement], scope: Scope, ending: Sequence[str]) -> tuple[Statement, ...]:
        """The statements of a body for all batches, its loop over layers scheduled."""
        layers = [i for i, s in enumerate(body) if isinstance(s, Loop) and over_layers(s, self.program, self.made)]
        if len(layers) > 1:
            raise unschedulable(
                "there are two loops over layers one after the other",
                body[layers[1]].span,
                OPENING,
            )
        if layers:
            return self.scheduled(body, layers[0], scope, ending)
        made: list[Statement] = []
        for statement in body:
            whole = self.made.whole_statement(statement)
            if isinstance(whole, Loop) and isinstance(statement, Loop):
                self.rounds.append([])
                inner = self.block(statement.body, scope.inside(statement), statement.following)
                made += self.around(replace(whole, body=inner), self.rounds.pop())
            else:
                made.append(whole)
            _define(statement, scope)
        return tuple(made)

    def around(self, loop: Loop, rounds: Sequence[tuple[Flight, list[Statement]]]) -> list[Statement]:
        """A loop around the layers, which carries what is under way from one run of them to the next."""
        if not rounds:
            return [loop]
        flights = [flight for flight, _ in rounds]
        kinds = [self.made.part(flight.kind) for flight in flights]
        names = [flight.round or "" for flight in flights]
        carries = tuple(
            Carry(Value(name, kind, Marking.FOUND), flight.begun)
            for name, kind, flight in zip(names, kinds, flights, strict=True)
        )
        results = tuple(Value(f.over, kind, Marking.FOUND) for f, kind in zip(flights, kinds, strict=True))
        carrying = replace(
            loop,
            carries=(*loop.carries, *carries),
            following=(*loop.following, *(flight.end for flight in flights)),
            results=(*loop.results, *results),
        )
        first = [statement for _, begun in rounds for statement in begun]
        return [*first, carrying, *frees([flight.over for flight in flights])]

    def lasting(self, body: Sequence[Statement], at: int, scope: Scope) -> set[str]:
        """The values that a loop around sees the same of in every trip, and nothing but the layers sets."""
        if not scope.loops:
            return set()
        set_here = states_set(s for i, s in enumerate(body) if i != at)
        outside, around = len(scope.loops), scope.loops[-1].dim
        return {
            name
            for name, (kind, loops) in scope.values.items()
            if loops < outside and around not in kind.names and name not in set_here
        }

    # ------------------------------------------------------------ the schedule of one block

    def scheduled(
        self, body: Sequence[Statement], at: int, scope: Scope, ending: Sequence[str]
    ) -> tuple[Statement, ...]:
        loop, after = body[at], list(body[at + 1 :])
        assert isinstance(loop, Loop)
        for carry in loop.carries:
            if not self.made.has_rows(carry.value.type):
                raise unschedulable(
                    f"the loop over {loop.dim} carries {carry.value.name}: {carry.value.type}, which has no rows of"
                    f" {self.made.batch}", loop.span, "carry it in a loop around, or as state",
                )  # fmt: skip
        carried = [self.hidden.carried[self.func.name, carry.value.name] for carry in loop.carries]
        later = {*ending, *names_read((*loop.body, *after)), *loop.following}
        made = self.before(body[:at], carried, later, scope)
        flights = Flights(self.made.outer, loop.dim, self.sizes, self.writer, self.lasting(body, at, scope))
        layers = self.layers(loop, carried, scope, flights)
        last = {result.name: each for result, each in zip(loop.results, carried, strict=True)}
        states = {each.state.name: each for each in carried}
        early = [f for f in flights.all if f.source not in states and f.round is None]
        late = [f for f in flights.all if f.source in states]
        fill = next((i for i, s in enumerate(made) if isinstance(s, Loop) and s.dim == self.made.outer), len(made))
        if any(isinstance(s, SetState) and s.state in {f.source for f in early} for s in made):
            fill = len(made)
        made[fill:fill] = [s for flight in early for s in flights.first(flight, self.whole_of(flight.source, scope))]
        made += [s for flight in late for s in flights.first(flight, self.whole_of(flight.source, scope, states))]
        if self.entering is not None:
            made += self.entering.before(made)
            layers = rename_operands(layers, self.entering.same)
        made.append(layers)
        for each in carried:
            scope.define(each.state)
        made += frees([flight.end for flight in flights.all if flight.round is None])
        rounds = [flight for flight in flights.all if flight.round is not None]
        if rounds:
            self.rounds[-1] += [(f, flights.first(f, self.whole_of(f.source, scope))) for f in rounds]
        following = self.after(after, last, ending, scope)
        made += following
        if self.entering is not None:
            made += self.entering.after(following)
            ending = (*self.entering.returns, *ending)
        return freed(made, (*ending, *(flight.end for flight in rounds)))

    def whole_of(self, name: str, scope: Scope, states: dict[str, CarriedState] | None = None) -> ValueType:
        """The type for all batches of a value outside the loop over layers."""
        kind = states[name].state.type if states and name in states else scope.type_of(name)
        return self.made.whole(kind)

    def over_batches(
        self, body: Sequence[Statement], carries: Sequence[Carry] = (), following: Sequence[str] = (),
        results: Sequence[Value] = (), index: str | None = None,
    ) -> Loop:  # fmt: skip
        """A loop over the batches, whose body is typed for all rows yet."""
        parts = freed([self.made.part_statement(s) for s in body], following)
        return Loop(tuple(results), self.made.outer, index, tuple(carries), parts, tuple(following))

    def set_hidden(self, each: CarriedState, name: str, kind: ValueType) -> list[Statement]:
        if not each.renamed:
            return [SetState(each.state.name, name)]
        value = self.writer.value(f"{name}_set", replace(kind, dims=each.state.type.dims), source=name)
        return [Let((value,), Rename(each.renamed), (name,)), SetState(each.state.name, value.name)]

    # ------------------------------------------------------------ before the layers

    def before(
        self, body: Sequence[Statement], carried: Sequence[CarriedState], later: set[str], scope: Scope
    ) -> list[Statement]:
        """Computes what the layers read for all batches; the hidden states batch by batch."""
        started = max((i + 1 for i, s in enumerate(body) if not isinstance(s, Let)), default=0)
        needed = set(later)
        together: set[int] = set(range(started))
        for i in range(len(body) - 1, started - 1, -1):
            statement = body[i]
            if needed.intersection(_names(statement)):
                needed.update(names_read((statement,)))
                together.add(i)
        made: list[Statement] = []
        rows: list[Statement] = []
        for i, statement in enumerate(body):
            _define(statement, scope)
            has_rows = isinstance(statement, Let) and self.made.has_rows(statement.result.type)
            if i in together or not has_rows:
                made.append(self.made.whole_statement(statement))
            else:
                rows.append(statement)
        apart = {value.name for s in rows if isinstance(s, Let) for value in s.results}
        for each in carried:
            name = each.carry.initial
            if name in apart:
                rows += self.set_hidden(each, name, scope.type_of(name))
            else:
                made += [self.made.whole_statement(s) for s in self.set_hidden(each, name, scope.type_of(name))]
        return [*made, self.over_batches(rows)] if apart else made

    # ------------------------------------------------------------ the layers

    def layers(self, loop: Loop, carried: Sequence[CarriedState], scope: Scope, flights: Flights) -> Loop:
        inside = scope.inside(loop)
        once: list[Statement] = []
        rows: list[Statement] = []
        seen: dict[str, str] = {}
        for each in carried:
            inside.define(each.state)
            if not each.renamed:
                seen[each.carry.value.name] = each.state.name
        for original in loop.body:
            statement = rename_operands(original, seen)
            _define(original, inside)
            if not self.by_rows(statement, inside):
                once.append(statement)
                continue
            rows += self.renamed_reads(statement, carried, inside)
        following = [seen.get(name, name) for name in loop.following]
        states = {s.state for s in rows if isinstance(s, SetState)} | {each.state.name for each in carried}
        rows, names = forwarded(rows, inside)
        rows = stored_early(rows, inside, self.writer)
        for each, name in zip(carried, (names.get(name, name) for name in following), strict=True):
            rows += self.set_hidden(each, name, inside.type_of(name))
        outside = set(scope.values) | {each.state.name for each in carried}
        rows = flights.of_rows(rows, inside, outside, states, self.made)
        batch = self.entering
        entering, entered = batch.in_layers(once) if batch is not None else ([], ())
        once = flights.of_weights(once, scope, states)
        inner = [Carry(flight.value(flight.this), flight.now) for flight in flights.rows]
        ahead = [flights.next(flight) for flight in flights.rows]
        results = tuple(flight.value(flight.left) for flight in flights.rows)
        turn = self.over_batches(
            [*ahead, *rows], [self._part(c) for c in inner], [f.following for f in flights.rows],
            [replace(v, type=self.made.part(v.type)) for v in results],
        )  # fmt: skip
        body = [*(flights.next(flight) for flight in flights.weights), *once, turn, *entering]
        carries = [Carry(flight.value(flight.now), flight.round or flight.begun) for flight in flights.all]
        handed_on = [f.following if f in flights.weights else f.left for f in flights.all] + [*entered]
        results = [replace(f.value(f.end), type=self.made.part(f.kind)) for f in flights.all]
        return Loop(
            (*results, *(batch.loop_results if batch is not None else ())),
            loop.dim,
            batch.index if batch is not None else loop.index,
            (*map(self._part, carries), *(batch.carries if batch is not None else ())),
            freed(body, handed_on),
            tuple(handed_on),
            loop.span,
        )

    def _part(self, carry: Carry) -> Carry:
        return Carry(replace(carry.value, type=self.made.part(carry.value.type)), carry.initial)

    def by_rows(self, statement: Statement, scope: Scope) -> bool:
        """Tells whether a statement of the layers is done for each batch; raises where it is done for the whole
        block."""
        match statement:
            case SetState():
                if not self.made.has_rows(scope.type_of(statement.state)):
                    raise unschedulable(
                        f"{statement.state}, which has no rows of {self.made.batch}, is set in the loop over layers",
                        statement.span,
                        "set it outside",
                    )
                return True
            case Let():
                return any(self.made.has_rows(value.type) for value in statement.results)
            case _:
                names = names_read((statement,))
                return any(name in scope.values and self.made.has_rows(scope.type_of(name)) for name in names)

    def renamed_reads(self, statement: Statement, carried: Sequence[CarriedState], scope: Scope) -> list[Statement]:
        """A statement that reads a carried value whose state has other dimensions, with these renamed back."""
        made: list[Statement] = []
        for each in carried:
            name = each.carry.value.name
            if not each.renamed or name not in names_read((statement,)):
                continue
            back = Rename(tuple((new, old) for old, new in each.renamed))
            if isinstance(statement, Let) and statement.operation.is_movement:
                kind = replace(statement.result.type, dims=each.state.type.dims)
                moved = self.writer.like(statement.result, f"{name}_moved", kind, Marking.FOUND)
                movement = rename_dims(statement.operation, dict(each.renamed))
                made.append(Let((moved,), movement, (each.state.name,), statement.span))
                scope.define(moved)
                return [*made, Let(statement.results, back, (moved.name,), statement.span)]
            value = self.writer.value(f"{name}_seen", each.carry.value.type, source=name)
            made.append(Let((value,), back, (each.state.name,)))
            scope.define(value)
            statement = rename_operands(statement, {name: value.name})
        return [*made, statement]

    # ------------------------------------------------------------ after the layers

    def after(
        self, body: Sequence[Statement], last: dict[str, CarriedState], ending: Sequence[str], scope: Scope
    ) -> list[Statement]:
        """Computes what depends on the last hidden states batch by batch, all else for all batches."""
        names: dict[str, str] = {}
        made: list[Statement] = []
        for name, each in last.items():
            scope.define(Value(name, each.state.type))
            if not each.renamed:
                names[name] = each.state.name
                continue
            if name in names_read(body) or name in ending:
                value = self.made.whole_value(Value(name, each.carry.value.type, Marking.FOUND))
                back = Rename(tuple((new, old) for old, new in each.renamed))
                made.append(Let((value,), back, (each.state.name,)))
                scope.define(Value(name, each.carry.value.type))
        run = _Run(set(last) | {each.state.name for each in last.values()})
        rest = list(body)
        for position, original in enumerate(rest):
            statement = rename_operands(original, names)
            _define(original, scope)
            rows = isinstance(statement, Let) and self.made.has_rows(statement.result.type)
            read = set(names_read((statement,)))
            if isinstance(statement, Let) and rows and read & run.depending:
                run.body.append(statement)
                run.depending.update(_names(statement))
                continue
            if not isinstance(statement, Let) or read & {v for s in run.body for v in _names(s)}:
                wanted = {*ending, *names_read(rest[position:])}
                made += self.closed(run, wanted, scope)
            made.append(self.made.whole_statement(statement))
        made += self.closed(run, set(ending), scope)
        for name in ending:
            if name in names:
                raise unschedulable(f"{name}, what the layers leave, is handed on as it is", self.func.span,
                                    "compute something of it")  # fmt: skip
        return made

    def closed(self, run: _Run, wanted: set[str], scope: Scope) -> list[Statement]:
        """The statements of a run as a loop over batches, with what is wanted of it afterwards gathered in M."""
        body, run.body = run.body, []
        if not body:
            return []
        outputs = [v for s in body if isinstance(s, Let) for v in s.results if v.name in wanted]
        index = self.writer.namer.fresh("m") if outputs else None
        made: list[Statement] = []
        inner: list[Statement] = list(body)
        carries: list[Carry] = []
        following: list[str] = []
        results: list[Value] = []
        for value in outputs:
            own = self.writer.namer.fresh(f"{value.name}_part")
            inner = [_renamed_result(rename_operands(s, {value.name: own}), value.name, own) for s in inner]
            whole = self.made.whole(value.type)
            begins = self.writer.value(f"{value.name}_0", whole, source=value.name)
            zero = "0" if not value.shape.dtype.is_float else "0.0"
            made.append(Let((begins,), Full(whole.names, value.shape.dtype), (Number(zero),)))
            carried = self.writer.value(f"{value.name}_all", whole, source=value.name)
            grown = self.writer.value(f"{value.name}_next", whole, source=value.name)
            assert index is not None
            inner.append(Let((grown,), Update(self.made.outer), (carried.name, own, index)))
            carries.append(Carry(carried, begins.name))
            following.append(grown.name)
            results.append(Value(value.name, whole, value.marking))
        return [*made, self.over_batches(inner, carries, following, results, index)]


@dataclass
class _Run:
    """Statements that a loop over batches will hold, and the names that depend on the last hidden states."""

    depending: set[str]

    def __post_init__(self) -> None:
        self.body: list[Statement] = []


def _define(statement: Statement, scope: Scope) -> None:
    scope.define(*statement.results)


def _names(statement: Statement) -> Iterable[str]:
    return [value.name for value in statement.results] if isinstance(statement, Let) else []


def _renamed_result(statement: Statement, old: str, new: str) -> Statement:
    if not isinstance(statement, Let):
        return statement
    return replace(statement, results=tuple(replace(v, name=new) if v.name == old else v for v in statement.results))
