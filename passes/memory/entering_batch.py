"""A batch that begins while others go on: the diagonal block schedule's pass over the layers.

Two functions with a loop over the same layers become one with one such loop: the batches of a block take a step of
the function that `stays`, and one batch a step of the function that `enters`, into the place of the batch that ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.operation import Number, Operand, Operation
from shardwright.ir.ops import Alias, Fetch, Full, Store, Update
from shardwright.ir.program import (
    Carry,
    DimInfo,
    Func,
    Let,
    Loop,
    Marking,
    Program,
    Scope,
    SetState,
    Statement,
    Value,
)
from shardwright.ir.rewriter import Rewriter, derived, rename_dims
from shardwright.ir.types import ON_DEVICE, Dim, DType, TensorType, ValueType
from shardwright.ir.walk import names_of, names_read, reads, rename_operands, with_body, with_operands, with_values
from shardwright.passes.memory.block_batches import OPENING, unschedulable
from shardwright.passes.memory.block_copies import forwarded
from shardwright.passes.memory.hidden_states import over_layers
from shardwright.passes.micro_batches import MicroBatches, fresh_dim

_Known = dict[tuple[Operation, tuple[Operand, ...]], Value]


def function_of(program: Program, name: str, role: str) -> Func:
    """A function of the two. Raises where the program has none of this name."""
    for func in program.funcs:
        if func.name == name:
            return func
    listed = ", ".join(func.name for func in program.funcs)
    does = "begins" if role == "enters" else "goes on"
    raise fault(
        "bad-option",
        f"schedule-blocks: {role}: the diagonal order needs a function {name} in which a batch {does}, and the program"
        f" has {listed}",
        NOWHERE,
        f"name it: schedule-blocks{{order=diagonal,{role}=...}}",
    )


def layers_of(program: Program, func: Func, made: MicroBatches) -> tuple[int, Loop]:
    """Where the one loop over layers stands in a function. Raises where there is none, or none at the top."""
    found = [(at, s) for at, s in enumerate(func.body) if isinstance(s, Loop) and over_layers(s, program, made)]
    if len(found) == 1:
        return found[0]
    inside = any(isinstance(s, Loop) and over_layers(s, program, made) for s, loops in func.walk() if loops)
    what = "goes through its layers in a loop around" if inside else f"has {len(found) or 'no'} loops over layers"
    raise unschedulable(
        f"{func.name} {what}, and the diagonal order is one pass over the layers",
        func.span,
        OPENING if len(found) > 1 else "a call of each function is one pass: a loop over tokens stays with the caller",
    )


class EnteringBatch:
    """The statements of the function that `enters`, for one batch, to stand among those of the one that `stays`.

        before(...)          before the layers
        in_layers(...)       at the end of a trip over the layers
        after(...)           at the end of the function

    State begins as zeros, which is what it is before a program's first call; what the function sets is written to place
    `slot` of the block, in a trip over the layers and at the end. The batch that has this place takes its last step
    in the same pass: its row of each layer's state is read before it is written anew.
    """

    def __init__(
        self, program: Program, enters: Func, stays: Func, made: MicroBatches, writer: Rewriter, dims: Sequence[DimInfo]
    ) -> None:
        self.program, self.func, self.made, self.writer = program, enters, made, writer
        namer = writer.namer
        self.at, self.loop = layers_of(program, enters, made)
        stays_at, other = layers_of(program, stays, made)
        if self.loop.dim != other.dim:
            raise unschedulable(
                f"the layers of {enters.name} are {self.loop.dim} and those of {stays.name} {other.dim}",
                self.loop.span,
                "both go through the same weights",
            )
        self.rows = [value for value in program.state if made.has_rows(value.type)]
        self._check_state(enters, stays, stays.body[stays_at + 1 :])
        self.dims: list[DimInfo] = []
        self.renamed = self._dims(stays, [dim.name for dim in dims])
        self.names = {name: namer.fresh(name) for name in sorted(self._own()) if name != self.loop.index}
        if self.loop.index is not None:
            self.index = other.index or namer.fresh(self.loop.index)
            self.names[self.loop.index] = self.index
        else:
            self.index = other.index
        taken = {value.name for value in stays.params}
        for value in enters.params:
            if value.name in taken:
                self.names[value.name] = namer.fresh(f"{enters.name}_{value.name}")
        self.slot = Value(namer.fresh("slot"), TensorType(DType.INT32, (), ()))
        self.scope = Scope.of(program, enters)
        self.versions: dict[str, str] = {}
        self.same: dict[str, str] = {}
        """Values that need not be computed, by name, with those of the batches that stay which they equal."""
        self.set: set[str] = set()

    # ------------------------------------------------------------ what is allowed

    def _check_state(self, enters: Func, stays: Func, after: Sequence[Statement]) -> None:
        layered = {value.name for value in self.rows if self.loop.dim in value.type.names}
        having = {value.name for value in self.rows}
        written = set[str]()
        for func in (enters, stays):
            for statement, loops in func.walk():
                if not isinstance(statement, SetState):
                    continue
                written.add(statement.state)
                if statement.state not in having:
                    raise unschedulable(
                        f"{statement.state}: {self.program.globals[statement.state].type} is set, and has no rows of"
                        f" {self.made.batch}: in the diagonal order each batch is at a token of its own",
                        statement.span,
                        f"give it the batch's dimension: {statement.state}: int32 {self.made.batch}",
                    )
                wanted = (self.loop,) if statement.state in layered else ()
                if func is enters and loops != wanted:
                    where = "inside a loop" if loops else f"outside the loop over {self.loop.dim}"
                    raise unschedulable(
                        f"{statement.state} is set {where}, where the batch that begins cannot take its place",
                        statement.span,
                        f"state of each layer is set in the loop over {self.loop.dim}, other state outside of it",
                    )
        self.written = written
        carried = f"read it in the loop over {self.loop.dim}, and carry what is made of it"
        outside = [s for i, s in enumerate(enters.body) if i != self.at]
        for name in sorted(layered.intersection(names_read(outside))):
            raise unschedulable(
                f"{enters.name} reads {name} outside its loop over {self.loop.dim}", enters.span, carried
            )
        for name in sorted((layered & written).intersection(names_read(after))):
            raise unschedulable(
                f"{stays.name} reads {name} after its layers, where the batch that begins has taken its place",
                stays.span,
                carried,
            )
        for name in sorted((having - written).intersection(names_read(enters.body))):
            raise unschedulable(
                f"{name} is state that nothing sets: what it is for a batch that begins is not said",
                self.program.globals[name].span,
                "make it a parameter",
            )

    # ------------------------------------------------------------ names

    def _own(self) -> set[str]:
        return names_of(self.func) - set(self.program.globals)

    def _dims(self, stays: Func, taken: Sequence[str]) -> dict[str, str]:
        """Dimensions to which the functions give different sizes have names of their own here."""
        ours, theirs = self.program.sizes(self.func), self.program.sizes(stays)
        renamed: dict[str, str] = {}
        for dim in self.program.dims:
            if ours[dim.name] == theirs[dim.name]:
                continue
            if dim.name in self.program.mesh:
                raise unschedulable(f"{dim.name} is a dimension and a mesh axis", dim.span, "rename one of them")
            own = fresh_dim(self.program, {self.made.outer, *taken, *renamed.values()}, dim.name)
            renamed[dim.name] = own
            self.dims.append(DimInfo(own, ours[dim.name], None, dim.order))
        return renamed

    def kind(self, kind: ValueType) -> ValueType:
        """The type of one batch's share, with the dimensions' names of the function for both."""
        part = self.made.part(kind)
        return replace(part, dims=tuple(Dim(self.renamed.get(dim.name, dim.name), dim.size) for dim in part.dims))

    def value(self, value: Value) -> Value:
        named = derived(value, self.names[value.name]) if value.name in self.names else value
        return replace(named, type=self.kind(value.type))

    def _spelled(self, statement: Statement) -> Statement:
        """The statement for one batch under the names that it has in the function for both."""
        named = with_operands(with_values(statement, self.value), self.names)
        match with_body(named, lambda body: tuple(map(self._spelled, body))):
            case Let() as let:
                operands = tuple(o.renamed(self.renamed) if isinstance(o, Number) else o for o in let.operands)
                return replace(let, operation=rename_dims(let.operation, self.renamed), operands=operands)
            case Loop() as loop:
                index = self.names.get(loop.index, loop.index) if loop.index else None
                return replace(loop, dim=self.renamed.get(loop.dim, loop.dim), index=index)
            case other:
                return other

    # ------------------------------------------------------------ the statements

    @property
    def params(self) -> tuple[Value, ...]:
        return (self.slot, *map(self.value, self.func.params))

    @property
    def results(self) -> tuple[ValueType, ...]:
        return tuple(map(self.kind, self.func.results))

    @property
    def returns(self) -> tuple[str, ...]:
        return tuple(self.names.get(name, name) for name in self.func.returns)

    @property
    def carries(self) -> tuple[Carry, ...]:
        return tuple(Carry(self.value(c.value), self.names.get(c.initial, c.initial)) for c in self.loop.carries)

    @property
    def loop_results(self) -> tuple[Value, ...]:
        return tuple(map(self.value, self.loop.results))

    def before(self, beside: Sequence[Statement]) -> list[Statement]:
        """The statements before the layers. What is computed `beside` it already is not computed again."""
        return self._once(self._block(self.func.body[: self.at], self.scope), beside)

    def in_layers(self, beside: Sequence[Statement]) -> tuple[list[Statement], tuple[str, ...]]:
        """A trip over the layers, and what it hands on."""
        inside = self.scope.inside(self.loop)
        for statement in self.loop.body:
            inside.define(*statement.results)
        body, names = forwarded(self.loop.body, inside)
        outer, self.versions = self.versions, dict(self.versions)
        made = self._block(body, inside)
        layered = [value for value in self.rows if self.loop.dim in value.type.names and value.name in self.written]
        made += self._placed_all(layered, inside)
        self.versions = outer
        self.scope.define(*self.loop.results)
        following = tuple(names.get(name, name) for name in self.loop.following)
        return self._once(made, beside), tuple(self.names.get(name, name) for name in following)

    def after(self, beside: Sequence[Statement]) -> list[Statement]:
        """The statements after the layers, and the state that is set outside of them."""
        made = self._block(self.func.body[self.at + 1 :], self.scope)
        others = [value for value in self.rows if self.loop.dim not in value.type.names and value.name in self.written]
        return self._once([*made, *self._placed_all(others, self.scope)], beside)

    def _block(self, body: Sequence[Statement], scope: Scope) -> list[Statement]:
        """The statements with a version of their own of what is state."""
        made: list[Statement] = []
        states = {value.name for value in self.rows}
        for statement in body:
            match statement:
                case SetState():
                    self.versions[statement.state] = self.versions.get(statement.operand, statement.operand)
                    continue
                case Let(operation=Fetch(), operands=(str() as source,)) if source in states - set(self.versions):
                    made.append(self._spelled(self._zeros(statement.result)))
                    scope.define(statement.result)
                    continue
                case _:
                    pass
            for name in sorted((states - set(self.versions)).intersection(names_read((statement,)))):
                made += self._begun(name, scope)
            spelled = self._spelled(rename_operands(statement, self.versions))
            made.append(spelled)
            scope.define(*statement.results)
        return made

    def _zeros(self, value: Value) -> Let:
        dtype = value.type.shape.dtype
        return Let((value,), Full(value.type.names, dtype), (Number("0.0" if dtype.is_float else "0"),))

    def _begun(self, name: str, scope: Scope) -> list[Statement]:
        """State as it is for a batch that begins, where it lives."""
        kind = scope.type_of(name)
        fresh = self._fresh(f"{name}_begun", replace(kind, placement=ON_DEVICE), Marking.FOUND, name)
        made: list[Statement] = [self._spelled(self._zeros(fresh))]
        scope.define(fresh)
        self.versions[name] = fresh.name
        if kind.placement is not None and kind.placement != ON_DEVICE:
            tier = kind.placement.tier
            marking = Marking.FOUND if tier is not None else Marking.DEMANDED
            placed = self._fresh(f"{name}_placed", kind, marking, fresh.name)
            operation = Alias() if tier is None else Store(tier)
            made.append(self._spelled(Let((placed,), operation, (fresh.name,))))
            scope.define(placed)
            self.versions[name] = placed.name
        return made

    def _fresh(self, wish: str, kind: ValueType, marking: Marking, source: str) -> Value:
        """A value whose name stays as it is."""
        value = self.writer.value(wish, kind, marking, source)
        self.names[value.name] = value.name
        return value

    def _placed_all(self, values: Sequence[Value], scope: Scope) -> list[Statement]:
        """The batch's own version of each state as that of place `slot` of the block."""
        made: list[Statement] = []
        for value in values:
            if value.name not in self.versions:
                made += self._begun(value.name, scope)
            kind = self.made.whole(scope.type_of(value.name))
            whole = self.writer.value(f"{value.name}_entered", kind, source=value.name)
            version = self.versions[value.name]
            operands = (value.name, self.names.get(version, version), self.slot.name)
            made.append(Let((whole,), Update(self.made.outer), operands))
            made.append(SetState(value.name, whole.name))
        return made

    def _once(self, statements: Sequence[Statement], beside: Sequence[Statement]) -> list[Statement]:
        """The statements without what is computed, or fetched, beside them for the batches that stay."""
        known: _Known = {
            (s.operation, s.operands): s.result for s in beside if isinstance(s, Let) and len(s.results) == 1
        }
        made: list[Statement] = []
        states = self.program.state_names
        for original in statements:
            statement = rename_operands(original, self.same)
            single = isinstance(statement, Let) and len(statement.results) == 1
            if isinstance(statement, Let) and single and not states.intersection(reads(statement)):
                found = known.get((statement.operation, statement.operands))
                if found is not None and found.type == statement.result.type:
                    self.same[statement.result.name] = found.name
                    continue
            made.append(statement)
        return made
