"""`pipeline-layers`: the layers divided over stages of chips, through which micro-batches go one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Span
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.operation import Arg, Context, Number, Operand, Operation
from shardwright.ir.ops import (
    Add,
    AllReduce,
    Attend,
    Fetch,
    Foreign,
    Full,
    Function,
    Iota,
    Lookup,
    Merge,
    Mul,
    Roll,
    Rotary,
    Slice,
    Split,
    Start,
    Store,
    Sub,
    Sum,
    Update,
    Wait,
)  # fmt: skip
from shardwright.ir.program import Carry, Func, Let, Loop, Program, Scope, SetState, Statement, Value
from shardwright.ir.rewriter import Rewriter, rename_dims
from shardwright.ir.strategies import differing_digits
from shardwright.ir.types import Dim, DType, Partial, Reduction, Shape, TensorType
from shardwright.ir.verification.verifier import Level
from shardwright.ir.walk import captured, names_read, rename_operands, states_set
from shardwright.passes.base import Pass
from shardwright.passes.micro_batches import RowCheck
from shardwright.passes.transformations.stage_types import StageOptions, StageTypes, concrete, no_pipeline

_COPIES = (Fetch, Store, Start, Wait)


@dataclass(frozen=True)
class PipelineLayers(StageOptions, Pass):
    """The loop over layers runs over `stages` groups of chips, along a new axis of the mesh, each with its own layers.

        weights { w: f32 NEF_x }                weights { w: f32 N_pEF_x }
        y = loop[N](h: BE = x) { ... }   -->    loop[R as r](held: S_pBE, ...) {
                                                  entering = where(stage == 0, the micro-batch r of x, held)
                                                  out = loop[N2](h: S_pBE = entering) { ... }
                                                  next roll[p, over=S, shift=1](out), ...
                                                }

    In each of R = M + P - 1 rounds a stage has the micro-batch that the stage before it had in the last one (Huang et
    al. 2019, section 2.3); the first rounds of the last stages and the last of the first ones are idle, and what they
    compute is dropped. Micro-batch m has the rows b of the batch with b mod M = m, so that no row changes chips. State
    of the layers is stored by stage, layer of the stage, micro-batch and row, and written where it lies. Takes explicit
    programs in which each row of the batch is computed from that row alone.
    """

    name: ClassVar[str] = "pipeline-layers"
    takes: ClassVar[Level] = Level.EXPLICIT
    leaves: ClassVar[Level] = Level.EXPLICIT

    def run(self, program: Program) -> Program:
        stages = StageTypes(program, self)
        loops = (statement for func in program.funcs for statement in func.body if isinstance(statement, Loop))
        if all(loop.dim != stages.layers for loop in loops):
            raise no_pipeline(f"no function has a loop over {stages.layers} whose trips stages could share")
        return stages.rewritten(tuple(_Function(stages, func).run() for func in program.funcs))


class _Function:
    """One function: its loops over the layers become loops over rounds."""

    def __init__(self, stages: StageTypes, func: Func) -> None:
        self.stages, self.func = stages, func
        self.writer = Rewriter.of(stages.program, func)
        self.int32 = TensorType(DType.INT32, (), ())
        self.stage_numbers = ""

    def run(self) -> Func:
        scope = Scope.of(self.stages.program, self.func)
        for statement in self.func.body:
            if isinstance(statement, Loop) and statement.dim == self.stages.layers:
                self.writer.span = statement.span
                self.layers(statement, scope)
            else:
                self.outside(statement)
                self.writer.put(statement)
            scope.define(*statement.results)
        return replace(self.func, body=self.writer.written())

    def outside(self, statement: Statement) -> None:
        """Raises where a statement outside the layers uses what is stored by stage."""
        used = self.stages.layered.intersection((*names_read((statement,)), *states_set((statement,))))
        if used:
            name = min(used)
            raise no_pipeline(
                f"{name}, of which each stage has its own layers, is used outside the loop over {self.stages.layers}",
                getattr(statement, "span", NOWHERE),
            )

    # ------------------------------------------------------------ the rounds

    def layers(self, loop: Loop, scope: Scope) -> None:
        """Writes the rounds in place of the loop over the layers."""
        stages, writer, P = self.stages, self.writer, self.stages.options.stages
        self._check(loop, scope)
        if not self.stage_numbers:
            kind = stages.each_stage(self.int32)
            self.stage_numbers = writer.let(Iota(stages.stage.name), (), "stage", kind)
        body = _Body(self, loop, scope)
        held = [body.kind(carry.value) for carry in loop.carries]
        gathered = [stages.each_stage(stages.kept_by_micro_batch(carry.value.concrete)) for carry in loop.carries]
        starts = [self.zeros(kind, "idle") for kind in held], [self.zeros(kind, "left") for kind in gathered]
        entering = [self.parts(carry.initial, carry.value.concrete) for carry in loop.carries]
        body.outside()

        inner = writer.aside()
        turn = writer.namer.fresh("r")
        here = [writer.value(f"{carry.value.name}_held", kind) for carry, kind in zip(loop.carries, held, strict=True)]
        made = [writer.value(f"{c.value.name}_done", kind) for c, kind in zip(loop.carries, gathered, strict=True)]
        slot, first = self.slots(inner, turn)
        inputs = [
            self.where(inner, first, self.at_round(inner, name, carry, turn), now.name, kind, f"{carry.value.name}_in")
            for name, carry, now, kind in zip(entering, loop.carries, here, held, strict=True)
        ]
        outputs = body.run(inner, inputs, slot)
        following = [
            inner.let(Roll((stages.axis,), stages.stage.name, 1), (name,), f"{name}_passed", kind)
            for name, kind in zip(outputs, held, strict=True)
        ]
        done = [
            inner.let(Update(stages.count.name), (all_of.name, name, slot), f"{name}_kept", kind)
            if stages.several
            else name
            for name, all_of, kind in zip(outputs, made, gathered, strict=True)
        ]
        ends = [writer.value(f"{r.name}_held", kind) for r, kind in zip(loop.results, held, strict=True)]
        ready = [writer.value(f"{r.name}_done", kind) for r, kind in zip(loop.results, gathered, strict=True)]
        carries = [Carry(value, start) for value, start in zip((*here, *made), (*starts[0], *starts[1]), strict=True)]
        rounds, handed_on = inner.written(), (*following, *done)
        writer.put(Loop((*ends, *ready), stages.rounds.name, turn, tuple(carries), rounds, handed_on, loop.span))
        last = self.equal(writer, self.stage_numbers, P - 1, "last")
        for value, result in zip(ready, loop.results, strict=True):
            self.result(value, result, last)

    def _check(self, loop: Loop, scope: Scope) -> None:
        stages, batch = self.stages, self.stages.options.batch
        check, inside = RowCheck(stages.batches, _mixed), scope.inside(loop)
        for carry in loop.carries:
            kind = carry.value.concrete
            if kind.partial is not None or kind.dtype is DType.BOOL:
                why = "numbers that are whole, or split, can be passed on"
                raise no_pipeline(f"{carry.value.name}: {kind} goes from layer to layer", loop.span, why)
            if stages.several and batch not in kind.names:
                what = f"{carry.value.name}: {kind}, which goes from layer to layer, has no rows of {batch}"
                raise no_pipeline(what, loop.span, "leave micro-batches=1")
        for statement in loop.body:
            if isinstance(statement, Loop):
                raise no_pipeline("there is a loop within the layers", statement.span, "run other passes later")
            if isinstance(statement, Let):
                if isinstance(statement.operation, (*_COPIES, Foreign)):
                    what = f"{statement.operation.keyword} stands within the layers"
                    raise no_pipeline(what, statement.span, "stages compute on what their devices hold")
                if isinstance(statement.operation, Attend | Update) and statement.operation.page:
                    why = "stages that are idle write nowhere, and in pages there is no such place"
                    raise no_pipeline("keys and values lie in pages", statement.span, why)
                if stages.several:
                    check.statement(statement, inside)
                inside.define(*statement.results)

    def slots(self, inner: Rewriter, turn: str) -> tuple[str, str]:
        """The number of the micro-batch that each stage has in round `turn`, as many as there are where it is idle; and
        which stage is the first."""
        kind, count = self.stages.each_stage(self.int32), self.stages.options.micro_batches
        own = inner.let(Sub(), (turn, self.stage_numbers), "own", kind)
        before = inner.let(Function("less"), (own, Number("0")), "before", replace(kind, dtype=DType.BOOL))
        slot = inner.let(Function("where"), (before, Number(str(count)), own), "slot", kind)
        return slot, self.equal(inner, self.stage_numbers, 0, "first")

    def equal(self, writer: Rewriter, name: str, number: int, wish: str) -> str:
        kind = replace(self.stages.each_stage(self.int32), dtype=DType.BOOL)
        return writer.let(Function("equal"), (name, Number(str(number))), wish, kind)

    def where(self, writer: Rewriter, mask: str, a: Operand, b: Operand, kind: TensorType, wish: str) -> str:
        return writer.let(Function("where"), (mask, a, b), wish, kind)

    def zeros(self, kind: TensorType, wish: str) -> str:
        return self.writer.let(Full(kind.names, kind.dtype), (Number("0"),), wish, kind)

    def parts(self, name: str, kind: TensorType) -> str:
        """A value by micro-batches."""
        stages, batch = self.stages, self.stages.options.batch
        if not stages.several or batch not in kind.names:
            return name
        split, parts = Split(batch, (stages.rows.name, stages.count.name)), stages.by_micro_batch(kind)
        order = orders_in(stages.program, self.func).get(batch, ())
        orders = {batch: order, stages.rows.name: order}
        if (differing := differing_digits(split, kind, parts, orders, stages.program.mesh)) is not None:
            raise no_pipeline(
                f"chips hold the rows of {name}: {kind} by the digits {differing[0]}, not as many of each micro-batch",
                self.writer.span,
                f"ask for another number of micro-batches, or pin the order of {batch}",
            )
        return self.writer.let(split, (name,), f"{name}_parts", parts)

    def at_round(self, inner: Rewriter, name: str, carry: Carry, turn: str) -> str:
        """The micro-batch that enters in a round; after the last zeros."""
        stages = self.stages
        if not stages.several:
            return name
        kind = stages.own_rows(carry.value.concrete)
        return inner.let(Lookup(stages.count.name), (name, turn), f"{carry.value.name}_entering", kind)

    def result(self, value: Value, result: Value, last: str) -> None:
        """Hands what the last stage has of all micro-batches to all stages."""
        stages, writer, batch = self.stages, self.writer, self.stages.options.batch
        ready, kind = value.concrete, result.concrete
        own = self.where(writer, last, value.name, Number("0"), ready, f"{result.name}_last")
        whole = stages.kept_by_micro_batch(kind)
        addends = replace(whole, partial=Partial(Reduction.SUM, (stages.axis,)))
        summed = writer.let(Sum((stages.stage.name,)), (own,), f"{result.name}_sum", addends)
        gather = AllReduce((stages.axis,))
        if whole is kind:
            writer.put(Let((result,), gather, (summed,), writer.span))
            return
        parts = writer.let(gather, (summed,), f"{result.name}_parts", whole)
        writer.put(Let((result,), Merge((stages.rows.name, stages.count.name), batch), (parts,), writer.span))


def _mixed(message: str, span: Span, *notes: str) -> DiagnosticError:
    return no_pipeline(message, span, *notes, "or leave micro-batches=1")


class _Body:
    """The layers of one stage, for the micro-batch that it has: the loop in the rounds.

    `turn` writes the body of the rounds, `inner` that of the loop over the stage's layers. `names` are those under
    which the layers see what they read, `known` the types of these.
    """

    def __init__(self, function: _Function, loop: Loop, scope: Scope) -> None:
        self.function, self.stages, self.writer = function, function.stages, function.writer
        self.loop, self.scope = loop, scope
        self.names: dict[str, str] = {}
        self.known: dict[str, TensorType] = {}
        self.stored = {name: name for name in self.stages.layered}
        """The state of layers, and that of which a value is a new version, with rows written where it lies."""
        self.own: dict[str, str] = {}
        """The rows of the stage's micro-batch in each of `stored`, which are all that the layers see."""
        for name in states_set(loop.body):
            kind = concrete(scope.type_of(name))
            lacks = self.stages.layers if name not in self.stages.layered else self.stages.options.batch
            if lacks not in kind.names and (self.stages.several or lacks == self.stages.layers):
                raise no_pipeline(f"{name}, which has no dimension {lacks}, is set within the layers", loop.span)
        read = {*names_read(loop.body), *loop.following, *states_set(loop.body)}
        self.captured = [name for name in sorted(captured(loop)) if name in read]

    def kind(self, value: Value) -> TensorType:
        """The type of a value of the layers."""
        return self.stages.each_stage(self.stages.own_rows(value.concrete))

    def is_state(self, name: str) -> bool:
        """Tells whether it is state that is stored by stage."""
        return name in self.stages.layered and name in self.stages.program.state_names

    def outside(self) -> None:
        """Writes, before the rounds, what the layers see of what stands around them: by stage, by micro-batch."""
        stages, writer = self.stages, self.writer
        for name in self.captured:
            if self.is_state(name):
                continue
            kind, here = concrete(self.scope.type_of(name)), name
            if stages.layers in kind.names:
                split = Split(stages.layers, (stages.stage.name, stages.own.name))
                parted = stages.parted(kind)
                kind = stages.staged(kind, parted)
                if name in stages.layered:
                    here = writer.let(split, (here,), f"{name}_stages", kind)
                else:
                    here = writer.let(split, (here,), f"{name}_all", parted)
                    to_stages = Slice((((stages.axis,), stages.stage.name),))
                    here = writer.let(to_stages, (here,), f"{name}_stages", kind)
            self.names[name] = self.function.parts(here, kind)
            self.known[name] = kind

    def run(self, turn: Rewriter, inputs: Sequence[str], slot: str) -> list[str]:
        """Writes the loop over the stage's own layers in the body of the rounds; gives the names of what it leaves."""
        stages, writer, inner = self.stages, self.writer, turn.aside()
        for name in self.captured:
            if self.is_state(name):
                self.names[name], self.known[name] = name, self._stored(name)
            else:
                self._own(turn, name, slot)
        index = self._index(turn, inner) if self.loop.index is not None else None
        carries = tuple(
            Carry(replace(carry.value, type=self.kind(carry.value)), start)
            for carry, start in zip(self.loop.carries, inputs, strict=True)
        )
        self.known.update((carry.value.name, carry.value.concrete) for carry in carries)
        for statement in self.loop.body:
            inner.span = getattr(statement, "span", NOWHERE)
            self._statement(inner, rename_operands(statement, self.names), slot)
        results = [writer.value(f"{value.name}_out", self.kind(value)) for value in self.loop.results]
        following = [
            self._each_stage(inner, self._seen(inner, self.names.get(name, name), slot), carry.value.concrete)
            for name, carry in zip(self.loop.following, carries, strict=True)
        ]
        body, span = inner.written(), self.loop.span
        turn.put(Loop(tuple(results), stages.own.name, index, carries, body, tuple(following), span))
        return [value.name for value in results]

    def _own(self, turn: Rewriter, name: str, slot: str) -> None:
        """Picks what a round sees of a value from around it: of the rows those of each stage's micro-batch."""
        stages, here, kind = self.stages, self.names[name], self.known.pop(name)
        if stages.several and stages.options.batch in kind.names:
            kind = stages.own_rows(kind)
            kind = stages.stage_first(kind) if stages.stage in kind.dims else stages.each_stage(kind)
            here = turn.let(Lookup(stages.count.name), (here, slot), f"{name}_own", kind)
        self.names[name] = here
        self.known[here] = kind.without_dim(stages.own.name) if stages.own.name in kind.names else kind

    def _stored(self, name: str) -> TensorType:
        """The type of a layer's state as the loop over a stage's layers sees it."""
        return self.stages.of_state(concrete(self.scope.type_of(name))).without_dim(self.stages.own.name)

    def _seen(self, inner: Rewriter, name: str, slot: str) -> str:
        """The part of a value that layers see: of state the rows of the stage's micro-batch, any of an idle one."""
        count = self.stages.count
        if name not in self.stored or count not in self.known[name].dims:
            return name
        if name not in self.own:
            kind = self.known[name].without_dim(count.name)
            self.own[name] = inner.let(Lookup(count.name, wrap=True), (name, slot), f"{name}_own", kind)
            self.known[self.own[name]] = kind
        return self.own[name]

    def _index(self, turn: Rewriter, inner: Rewriter) -> str:
        """The index of the loop over a stage's layers, beside which the number of the layer among all is written."""
        stages, name = self.stages, str(self.loop.index)
        index, kind = self.writer.namer.fresh(f"{name}_own"), stages.each_stage(self.function.int32)
        size = Number(str(stages.own.size))
        first = turn.let(Mul(), (self.function.stage_numbers, size), f"{name}_first", kind)
        self.names[name] = inner.let(Add(), (first, index), f"{name}_here", kind)
        self.known[self.names[name]] = kind
        return index

    def _statement(self, inner: Rewriter, statement: Statement, slot: str) -> None:
        match statement:
            case Let(operation=Update() as operation, operands=(cache, *_)) if cache in self.stored and (
                self.stages.count in self.known[str(cache)].dims or not (self.stages.several or operation.wrap)
            ):
                inner.put(self._update(inner, statement, operation, slot))
            case Let():
                inner.put(self._let(inner, statement, slot))
            case SetState():
                inner.put(replace(statement, operand=self._new(inner, statement, slot)))
            case _:
                raise no_pipeline("something within the layers is freed", inner.span)

    def _let(self, inner: Rewriter, let: Let, slot: str) -> Let:
        stages, operation = self.stages, rename_dims(let.operation, self.stages.renamed)
        operands = self._operands(inner, let.operands, slot)
        staged = any(stages.stage in self.known[o].dims for o in operands if isinstance(o, str) and o in self.known)
        kinds = [stages.own_rows(value.concrete) for value in let.results]
        if staged:
            kinds = [stages.each_stage(kind) for kind in kinds]
            operation, operands = self._by_stage(inner, operation, operands, [kind.shape for kind in kinds])
        results = tuple(replace(v, type=kind) for v, kind in zip(let.results, kinds, strict=True))
        self.known.update((value.name, value.concrete) for value in results)
        return replace(let, results=results, operation=operation, operands=operands)

    def _by_stage(
        self, inner: Rewriter, operation: Operation, operands: tuple[Operand, ...], results: list[Shape]
    ) -> tuple[Operation, tuple[Operand, ...]]:
        """The operation, with operands from which it gives `results` for each stage: where it takes only operands that
        have the dimension of stages, those without it are repeated for each stage. Raises if that does not help."""
        stages = self.stages
        if isinstance(operation, Rotary):
            operation, operands = self._positions(inner, operation, operands)
        if self._lack(operation, operands, results) is None:
            return operation, operands
        same = {o: self.known[o] for o in operands if isinstance(o, str) and stages.stage not in self.known[o].dims}
        own = {o: self._each_stage(inner, o, stages.each_stage(kind)) for o, kind in same.items() if kind.dims}
        operands = tuple(own.get(o, o) if isinstance(o, str) else o for o in operands)
        if (lack := self._lack(operation, operands, results)) is not None:
            what = f"{operation.keyword} within the layers cannot be computed for all stages at once"
            raise no_pipeline(what, inner.span, lack)
        return operation, operands

    def _lack(self, operation: Operation, operands: Sequence[Operand], results: list[Shape]) -> str | None:
        """Why the operation does not give `results` of these operands; None where it does."""
        sizes = self.stages.program.sizes(self.function.func)
        args = [Arg(str(o), self.known[o].shape) if isinstance(o, str) else Arg(str(o), None, o) for o in operands]
        try:
            given = operation.shapes(args, Context(sizes, results[0] if len(results) == 1 else None))
        except DiagnosticError as error:
            return error.diagnostics[0].message
        same = [shape.names for shape in given] == [shape.names for shape in results]
        return None if same else f"it gives {', '.join(map(str, given))}"

    def _positions(
        self, inner: Rewriter, rotary: Rotary, operands: tuple[Operand, ...]
    ) -> tuple[Operation, tuple[Operand, ...]]:
        """The rotation by the positions themselves, where they are counted from one of each stage."""
        x, start, *others = operands
        kind = self.known[str(x)]
        along = rotary.positions_dim([Arg(str(x), kind.shape), Arg(str(start), None)])
        if along is None or not isinstance(start, str) or self.known[start].names != (self.stages.stage.name,):
            return rotary, operands
        counted = TensorType(DType.INT32, (Dim(along, kind.shape.size(along)),), ((),))
        index = inner.let(Iota(along, kind.shape.size(along)), (), f"{start}_index", counted)
        here = self.stages.each_stage(counted)
        positions = inner.let(Add(), (start, index), f"{start}_positions", here)
        self.known[positions] = here
        return replace(rotary, seq=None), (x, positions, *others)

    def _operands(self, inner: Rewriter, operands: Sequence[Operand], slot: str) -> tuple[Operand, ...]:
        changed = {*self.stages.renamed, self.stages.layers}
        seen = (self._seen(inner, operand, slot) if isinstance(operand, str) else operand for operand in operands)
        return tuple(o.fixed(changed) if isinstance(o, Number) else o for o in seen)

    def _update(self, inner: Rewriter, let: Let, operation: Update, slot: str) -> Let:
        """The rows that a stage writes into a layer's state where it lies: none if it is idle."""
        stages, cache, result = self.stages, str(let.operands[0]), let.result
        kind = self.known[cache]
        new, position, *others = self._operands(inner, let.operands[1:], slot)
        if stages.stage not in self.known[str(new)].dims:
            new = self._each_stage(inner, str(new), stages.each_stage(self.known[str(new)]))
        if stages.several:
            operation, others = replace(operation, indexed=(*operation.indexed, stages.count.name)), [*others, slot]
        else:
            position = self._unless_idle(inner, position, Number(str(kind.shape.size(operation.dim))), slot)
        self.known[result.name], self.stored[result.name] = kind, self.stored[cache]
        operands = (cache, new, position, *others)
        return replace(let, results=(replace(result, type=kind),), operation=operation, operands=operands)

    def _unless_idle(self, inner: Rewriter, position: Operand, beyond: Number, slot: str) -> str:
        """A position, in stages that are idle one beyond all: nothing is written there."""
        kind = self.known[position] if isinstance(position, str) else self.function.int32
        kind = kind if self.stages.stage in kind.dims else self.stages.each_stage(kind)
        busy = self.function.equal(inner, slot, 0, "busy")
        return self.function.where(inner, busy, position, beyond, kind, "place")

    def _new(self, inner: Rewriter, statement: SetState, slot: str) -> str:
        """The new version of a layer's state: nothing of it is that of a stage which is idle."""
        state, kind, count = statement.state, self._stored(statement.state), self.stages.count.name
        self.names[state] = statement.operand
        if self.stored.get(statement.operand) == state:
            return statement.operand
        new = self._seen(inner, statement.operand, slot)
        if self.stages.several:
            new = self._each_stage(inner, new, kind.without_dim(count))
            return inner.let(Update(count), (state, new, slot), f"{state}_stored", kind)
        new = self._each_stage(inner, new, kind)
        busy = self.function.equal(inner, slot, 0, "busy")
        return self.function.where(inner, busy, new, state, kind, f"{state}_stored")

    def _each_stage(self, inner: Rewriter, name: str, kind: TensorType) -> str:
        """A value for each stage, though it may be the same for all."""
        if self.stages.stage in self.known[name].dims:
            return name
        stage = self.stages.stage
        zeros = replace(kind, dims=(stage,), splits=(kind.split(stage.name),))
        nothing = inner.let(Full(zeros.names, kind.dtype), (Number("0"),), f"{name}_nothing", zeros)
        made = inner.let(Add(), (name, nothing), f"{name}_each", kind)
        self.known[made] = kind
        return made
