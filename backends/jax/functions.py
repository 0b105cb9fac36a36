"""Functions of a program as nested Python functions on one chip's arrays: statements, loops and state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.backends.jax.barriers import GathersInTurn, finished_products, varies
from shardwright.backends.jax.expressions import lower, summed_as_one
from shardwright.backends.jax.indexing import SliceOf, lower_update
from shardwright.backends.jax.source_text import (
    PythonNames,
    assigned,
    bare_or_tuple,
    broken,
    commented,
    concrete,
    number_text,
    reshaped,
)
from shardwright.backends.jax.terms import Lowering, Term
from shardwright.ir import ops
from shardwright.ir.elaboration.elaborate import placed
from shardwright.ir.operation import Number, Operand
from shardwright.ir.program import Free, Func, Let, Loop, Program, Scope, SetState, Statement
from shardwright.ir.types import DType, TensorType
from shardwright.ir.walk import lets_in, names_defined, names_read, reads, statements, states_set, values_in


def moved_ahead(statement: Statement) -> ops.Ahead | None:
    """The movement that a statement is or starts, where it looks ahead."""
    if isinstance(statement, Let) and isinstance(statement.operation, ops.Movement):
        moves = statement.operation.moves
        return moves if isinstance(moves, ops.Ahead) and moves.ahead else None
    return None


def names_ahead(body: Sequence[Statement]) -> set[str]:
    """The names that are moved ahead, inner loops included: loops around cannot hand out slices of it alone."""
    return {str(let.operands[0]) for let in lets_in(body) if moved_ahead(let) is not None}


@dataclass
class View:
    """How a name is read at a point: the Python name, the slice of it where a stacked state is carried, and whether its
    dimensions but the last are one."""

    python: str
    slice: SliceOf | None = None
    merged: bool = False

    @property
    def code(self) -> str:
        return self.python + (self.slice.subscript if self.slice else "")

    @property
    def stacked(self) -> tuple[str, tuple[str, ...]] | None:
        """The whole array's name and the indices of the slice, where these are of its leading axes (`Term.stacked`)."""
        return (self.python, self.slice.entry) if self.slice and self.slice.entry else None


class FunctionBody:
    """Emits the statements of one function."""

    def __init__(self, program: Program, func: Func, lowering: Lowering, names: PythonNames) -> None:
        self.program = program
        self.func = func
        self.lowering = lowering
        self.names = names
        self.lines: list[str] = []
        self.finished = finished_products(program, func) if lowering.forms.finished_products else set[str]()
        self.in_turn = GathersInTurn.of(program, func) if lowering.forms.tile else GathersInTurn(set(), set())

    def emit(self, views: dict[str, View], indent: str) -> dict[str, View]:
        """Emits the body; hands back how names are read at its end."""
        self.block(self.func.body, Scope.of(self.program, self.func), views, indent, ())
        return views

    def type_of(self, name: str, scope: Scope) -> TensorType:
        return concrete(name, scope.type_of(name))

    # ------------------------------------------------------------ statements

    def block(
        self,
        body: Sequence[Statement],
        scope: Scope,
        views: dict[str, View],
        indent: str,
        after: Sequence[str],
    ) -> None:
        """Emits statements. `after` are the names that are read after the block's last statement."""
        done: set[int] = set()
        latest: dict[frozenset[str], str] = {}
        for i, statement in enumerate(body):
            match statement:
                case Let():
                    setting = self.set_in_place(body, i, views)
                    if setting is None:
                        self.wait_for(latest, statement, scope, views, indent)
                        self.let(statement, scope, views, indent)
                        if (axes := self.in_turn.waited_for(statement)) is not None:
                            latest[axes] = statement.result.name
                    else:
                        done.add(setting)
                        later = {*names_read([s for j, s in enumerate(body) if j > i and j not in done]), *after}
                        self.let_in_place(statement, scope, views, indent, keep=statement.result.name in later)
                case SetState() if i not in done:
                    self.set(statement, scope, views, indent)
                case SetState() | Free():
                    pass
                case Loop():
                    self.loop(statement, scope, views, indent)

    def terms(self, operands: Sequence[Operand], scope: Scope, views: dict[str, View]) -> list[Term]:
        made: list[Term] = []
        for operand in operands:
            if isinstance(operand, Number):
                made.append(Term(number_text(operand.value), None, operand))
            else:
                view = views[operand]
                made.append(Term(view.code, self.type_of(operand, scope), stacked=view.stacked, merged=view.merged))
        return made

    def let(self, statement: Let, scope: Scope, views: dict[str, View], indent: str) -> None:
        kinds = [concrete(value.name, value.type) for value in statement.results]
        terms = self.terms(statement.operands, scope, views)
        beyond = ""
        ahead = moved_ahead(statement)
        if ahead is not None:
            terms[0], beyond = self.ahead(ahead, terms[0], views[str(statement.operands[0])], indent)
        with placed(statement.span):
            code = lower(statement.operation, terms, kinds[0], self.at_edges(statement, terms, kinds[0]))
        if beyond:
            zero = "False" if kinds[0].dtype is DType.BOOL else "0"
            code = f"jnp.where({beyond}, {zero}, {code})"
        if not self.finished.isdisjoint(value.name for value in statement.results):
            code = f"lax.optimization_barrier({code})"
        python = [self.names[value.name] for value in statement.results]
        self.lines.extend(assigned(", ".join(python), code, "; ".join(map(str, kinds)), indent))
        for value, name in zip(statement.results, python, strict=True):
            scope.define(value)
            views[value.name] = View(name)

    def wait_for(
        self, latest: dict[frozenset[str], str], statement: Let, scope: Scope, views: dict[str, View], indent: str
    ) -> None:  # fmt: skip
        """A gather in turn begins when what was computed before it is there."""
        if statement.result.name not in self.in_turn.names:
            return
        source = str(statement.operands[0])
        computed = latest.get(varies(self.type_of(source, scope)))
        if computed is not None and views[source].slice is None:
            both = f"{views[source].python}, {views[computed].python}"
            self.lines.extend(broken(f"{both} = lax.optimization_barrier(({both}))", indent))

    def at_edges(self, statement: Let, terms: Sequence[Term], result: TensorType) -> Lowering:
        """A movement of what crosses the function's edge in blocks is one of blocks; a permute sees to it itself."""
        operation, digits = statement.operation, self.lowering.digits
        if not digits.blocks or not isinstance(operation, ops.Movement) or isinstance(operation.moves, ops.Permute):
            return self.lowering
        digits = digits.at_edge(str(statement.operands[0]), terms[0].tensor).at_edge(statement.result.name, result)
        return replace(self.lowering, digits=digits)

    def ahead(self, moves: ops.Ahead, term: Term, view: View, indent: str) -> tuple[Term, str]:
        """The slice that the trip after this one sees, and a condition under which there is none."""
        assert view.slice is not None, "`states` of a loop stack what is moved ahead"
        sizes, indices = self.program.sizes(self.func), dict(view.slice.indices)
        trip, last = "", 1
        for dim in moves.ahead:
            trip = f"{trip} * {sizes[dim]} + {indices[dim]}" if trip else indices[dim]
            trip, last = (f"({trip})" if dim != moves.ahead[-1] and "+" in trip else trip), last * sizes[dim]
        following = self.names.fresh("following")
        self.lines.extend(assigned(following, f"{trip} + 1", f"trip of {last} along {' '.join(moves.ahead)}", indent))
        after: dict[str, str] = {}
        rest = last
        for dim in moves.ahead:
            rest //= sizes[dim]
            after[dim] = f"{following} // {rest} % {sizes[dim]}" if rest > 1 else f"{following} % {sizes[dim]}"
        moved = tuple((dim, after.get(dim, index)) for dim, index in view.slice.indices)
        code = View(view.python, SliceOf(view.slice.whole, moved)).code
        return replace(term, code=code, stacked=None), "" if moves.wrap else f"{following} == {last}"

    def set_in_place(self, body: Sequence[Statement], at: int, views: dict[str, View]) -> int | None:
        """The statement that sets a stacked state to the update made by `body[at]`, if the old one is read no more.

        Then only the written rows of the stacked array are touched.
        """
        statement = body[at]
        assert isinstance(statement, Let)
        if not isinstance(statement.operation, ops.Update):
            return None
        state = statement.operands[0]
        if not isinstance(state, str) or state not in self.program.state_names or views[state].slice is None:
            return None
        for i in range(at + 1, len(body)):
            later = body[i]
            if isinstance(later, SetState) and later.state == state:
                return i if later.operand == statement.result.name else None
            if state in names_read([later]) or state in states_set([later]):
                return None
        return None

    def let_in_place(
        self, statement: Let, scope: Scope, views: dict[str, View], indent: str, *, keep: bool
    ) -> None:  # fmt: skip
        """The update of a stacked state, and its slice under the statement's own name where that is read."""
        state, value = str(statement.operands[0]), statement.result
        kind, view = concrete(value.name, value.type), views[state]
        assert isinstance(statement.operation, ops.Update)
        terms = self.terms(statement.operands, scope, views)
        terms[0] = replace(terms[0], code=view.python, stacked=None)
        code = lower_update(statement.operation, terms, kind, self.lowering, view.slice)
        whole = view.slice.whole if view.slice else kind
        self.lines.extend(assigned(view.python, code, str(whole), indent))
        scope.define(value)
        if keep:
            python = self.names[value.name]
            self.lines.extend(assigned(python, view.code, str(kind), indent))
            views[value.name] = View(python)

    def set(self, statement: SetState, scope: Scope, views: dict[str, View], indent: str) -> None:
        view, new = views[statement.state], views[statement.operand].code
        if view.slice is None:
            kind = self.type_of(statement.state, scope)
            self.lines.extend(assigned(view.python, new, str(kind), indent))
            return
        loops = view.slice.indices
        if len(loops) == 1:
            ((dim, index),) = loops
            axis = view.slice.whole.names.index(dim)
            code = f"lax.dynamic_update_index_in_dim({view.python}, {new}, {index}, {axis})"
        else:
            code = f"{view.python}.at{view.slice.subscript}.set({new})"
        self.lines.extend(assigned(view.python, code, str(view.slice.whole), indent))

    # ------------------------------------------------------------ loops

    def is_summed_as_one(self, loop: Loop, name: str, inside: Scope) -> bool:
        """Tells whether all that reads a value in a loop are products that sum all of its dimensions but the last as
        one. Of matrices that come as such libtpu takes a trip's within the product; else it writes them anew first."""
        readers = [statement for statement in statements(loop.body) if name in reads(statement)]
        if self.lowering.forms.tile is None or name in loop.following or not readers:
            return False
        defined = {value.name: value.type for value in values_in(loop.body)}
        for reader in readers:
            if reader not in loop.body or not isinstance(reader, Let) or not isinstance(reader.operation, ops.Contract):
                return False
            left, right = (concrete(n, defined.get(n) or inside.type_of(n)) for n in map(str, reader.operands))
            matrix = summed_as_one(reader.operation, left, right, self.lowering)
            rank = len(reader.operation.dims) + 1
            if matrix is None or reader.operands[matrix] != name or rank < len((left, right)[matrix].dims):
                return False
        return True

    def loop(self, loop: Loop, scope: Scope, views: dict[str, View], indent: str) -> None:
        """`lax.scan`: captured values with the loop's dimension are scanned, state that is set is carried stacked."""
        states = states_set(loop.body)
        defined = names_defined(loop.body) | {carry.value.name for carry in loop.carries} | {loop.index or ""}
        read = [*names_read(loop.body), *loop.following]
        captured = [n for n in dict.fromkeys(read) if n not in defined and n not in states]
        ahead = names_ahead(loop.body)
        whole_too = [n for n in captured if n in ahead and loop.dim in self.type_of(n, scope).names]
        scanned = [n for n in captured if loop.dim in self.type_of(n, scope).names and n not in ahead]
        trips = self.program.sizes(self.func)[loop.dim]
        stacked = [n for n in states if loop.dim in self.type_of(n, scope).names]

        inside, inner = scope.inside(loop), dict(views)
        index = ""
        if loop.index is not None and loop.index in read:
            index = self.names[loop.index]
            inner[loop.index] = View(index)
        elif stacked or whole_too:
            index = self.names[loop.index] if loop.index else self.names.fresh("i")
        carried: list[str] = []
        initial: list[str] = []
        for carry in loop.carries:
            python = self.names[carry.value.name]
            inner[carry.value.name] = View(python)
            carried.append(python)
            initial.append(views[carry.initial].code)
        for state in states:
            view = views[state]
            carried.append(view.python)
            initial.append(view.python)
            if state in stacked:
                whole = view.slice.whole if view.slice else concrete(state, self.program.globals[state].type)
                before = view.slice.indices if view.slice else ()
                inner[state] = View(view.python, SliceOf(whole, (*before, (loop.dim, index))))
        for name in whole_too:
            view = views[name]
            whole = view.slice.whole if view.slice else self.type_of(name, scope)
            before = view.slice.indices if view.slice else ()
            inner[name] = View(view.python, SliceOf(whole, (*before, (loop.dim, index))))
        elements: list[str] = [index] if index else []
        slices: list[str] = [f"lax.iota(jnp.int32, {trips})"] if index else []
        for name in scanned:
            kind, python = self.type_of(name, scope), self.names[name]
            at = kind.names.index(loop.dim)
            elements.append(python)
            stack = views[name].code if at == 0 else f"jnp.moveaxis({views[name].code}, {at}, 0)"
            merged = at == 0 and self.is_summed_as_one(loop, name, inside)
            if merged:
                stack = reshaped(stack, None, [trips, -1, kind.local_shape(self.lowering.mesh)[-1]])
            slices.append(stack)
            inner[name] = View(python, merged=merged)

        body = self.names.fresh(f"over_{loop.dim.lower()}")
        deeper = indent + "    "
        carry_name = carried[0] if len(carried) == 1 else ("carry" if carried else "_carry")
        xs_name = elements[0] if len(elements) == 1 else ("xs" if elements else "_")
        self.lines.append("")
        self.lines.append(f"{indent}def {body}({carry_name}, {xs_name}):  # one of {trips} trips along {loop.dim}")
        if len(carried) > 1:
            self.lines.extend(broken(f"{', '.join(carried)} = carry", deeper))
        for name in (*(carry.value.name for carry in loop.carries), *states):
            kind = inside.type_of(name) if name not in states else self.program.globals[name].type
            self.lines.append(f"{deeper}# {inner[name].python}: {kind}")
        if len(elements) > 1:
            self.lines.extend(broken(f"{', '.join(elements)} = xs", deeper))
        for name in scanned:
            note = ", all dimensions but the last as one" if inner[name].merged else ""
            self.lines.append(f"{deeper}# {inner[name].python}: {inside.type_of(name)}{note}")
        self.block(loop.body, inside, inner, deeper, loop.following)
        following = [inner[name].code for name in loop.following] + [views[state].python for state in states]
        self.lines.extend(broken(f"return {bare_or_tuple(following) if following else '()'}, None", deeper))
        self.lines.append("")

        results = [self.names[value.name] for value in loop.results] + [views[state].python for state in states]
        arguments = [body, bare_or_tuple(initial) if initial else "()"]
        arguments.append(bare_or_tuple(slices) if slices else f"length={trips}")
        targets = bare_or_tuple(results) if results else "_"
        kinds = "; ".join(str(value.type) for value in loop.results) or "state alone"
        scan = f"{targets}, _ = lax.scan({', '.join(arguments)})"
        label = f"{', '.join(results[: len(loop.results)])}: " if loop.results else ""
        self.lines.extend(commented(scan, kinds, indent, label))
        for value in loop.results:
            scope.define(value)
            views[value.name] = View(self.names[value.name])
