"""Statements compiled once to steps over tensors, which then run for every layer, batch and token.

What can be known without the numbers is settled here: which operation has a prepared form, which names are the same
tensor, after which step a tensor is needed no more, and whose memory the next result may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels import VIEWS, compute
from shardwright.backends.torch.kernels.prepared import Common, Prepared, in_place, prepared, unless_spread
from shardwright.backends.torch.movements import move
from shardwright.backends.torch.row_updates import begins_of, put_rows
from shardwright.backends.torch.shards import held_of
from shardwright.backends.torch.tensors import Argument, NamedTensor, held_as
from shardwright.ir import ops
from shardwright.ir.diagnostics import DiagnosticError, fault, placed
from shardwright.ir.operation import Number, Operand
from shardwright.ir.ops import Movement, Roll
from shardwright.ir.program import Func, Let, Loop, Program, SetState, Statement, Value
from shardwright.ir.types import DType, Shape
from shardwright.ir.walk import captured, names_read, states_set

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from shardwright.backends.torch.chip import RankShard
    from shardwright.backends.torch.movements import Collectives


@dataclass
class Values:
    """The tensors at hand, by name, and what the layers of a pass have in common."""

    tensors: dict[str, Tensor]
    common: Common = field(default_factory=Common)


Step = Callable[[Values], None]


class CompiledBlock:
    """Statements, and the `outputs` that are needed after them. `shapes` are of the values that are there before,
    `states` those of them that are written in place, `sizes` of the dimensions that loops go over. State that is
    `fragile` is set while what was read of it is still used: None for all. With `sparse` attention of one query looks
    at that share of the positions. What is `owned` is nobody else's when the statements begin, and used no more after
    them. On one chip of a mesh `held` is what it has of the values that are there before, and `to` the other chips."""

    def __init__(
        self,
        body: Sequence[Statement],
        shapes: Mapping[str, Shape],
        states: Iterable[str],
        outputs: Sequence[str],
        sizes: Mapping[str, int],
        device: torch.device,
        fragile: Set[str] | None = None,
        sparse: float = 1.0,
        owned: Set[str] = frozenset(),
        held: Mapping[str, RankShard] | None = None,
        to: Collectives | None = None,
    ) -> None:
        self._fragile = fragile
        self._owned = owned
        self._sparse = sparse
        self._shapes = dict(shapes)
        self._states = frozenset(states)
        self._sizes = sizes
        self._device = device
        self._held = dict(held or {})
        self._to = to
        self._same: dict[str, str] = {}
        self._updating: list[Let] = []
        self._last: Mapping[str, int] = {}
        self.taken_over: set[str] = set()
        """The names that are owned and overwritten."""
        self._memory = {name: frozenset((name,)) for name in shapes}
        """The names of tensors whose memory a tensor may lie in, its own among them."""
        self._given = frozenset(shapes)
        steps = self._compiled(body, outputs)
        self._steps = tuple(steps)
        self._outputs = tuple(map(self._root, outputs))
        self._most: int | None = None

    def run(
        self, values: Values, count: Callable[[int], None] | None = None, accounted: Set[int] = frozenset()
    ) -> None:
        """Computes. `count` is told the bytes of what lives at once, but for those `accounted`: after each step the
        first time, and from then on the most of these, since shapes do not change."""
        if count is None or self._most is not None:
            if count is not None and self._most is not None:
                count(self._most)
            for step in self._steps:
                step(values)
            return
        most = 0
        for step in self._steps:
            before = list(values.tensors.values())
            step(values)
            most = max(most, _nbytes([*before, *values.tensors.values()], accounted))
            count(most)
        self._most = most

    def outputs(self, values: Values) -> list[Tensor]:
        return [values.tensors[name] for name in self._outputs]

    # ------------------------------------------------------------ compilation

    def shape(self, name: str) -> Shape:
        return self._shapes[name]

    def _compiled(self, body: Sequence[Statement], outputs: Sequence[str]) -> list[Step]:
        statements: list[Let | SetState | Loop] = []
        shapes = self._shapes | {v.name: v.shape for s in body for v in s.results}
        in_place = _updates_in_place(body, self._states, shapes)
        updates = {at for at in in_place if not self._by_index(body[at])}
        for at, statement in enumerate(body):
            if isinstance(statement, Let) and self._renames(statement):
                continue
            if isinstance(statement, Let) and at in updates:
                self._same[statement.result.name] = str(statement.operands[0])
                self._declare(statement.result)
                self._updating.append(statement)
            if isinstance(statement, SetState) and self._root(statement.operand) == statement.state:
                continue
            if isinstance(statement, Let | SetState | Loop):  # what is freed is dropped after its last use
                statements.append(statement)
        last: dict[str, int] = {self._root(name): len(statements) for name in outputs}
        for at, statement in reversed(list(enumerate(statements))):
            for name in self._read(statement):
                last.setdefault(name, at)
        self._last = last
        return [self._step(statement, at, last) for at, statement in enumerate(statements)]

    def _renames(self, statement: Let) -> bool:
        """True if the statement makes no tensor: its result is its operand by another name."""
        operation, operand = statement.operation, statement.operands[0] if statement.operands else None
        if not isinstance(operation, Movement | ops.Alias | ops.Rename) or not isinstance(operand, str):
            return False
        if isinstance(operation, Movement) and self._exchanges(operation):
            return False
        if isinstance(operation, Movement) and isinstance(operation.moves, Roll):
            raise fault("no-roll", "the PyTorch backend runs programs of one device, where nothing rolls")
        root = self._root(operand)
        (result,) = statement.results
        if root not in self._states:  # those are written in place: what was read before must not change with them
            self._same[result.name] = root
            self._declare(result)
        return root not in self._states

    def _exchanges(self, operation: Movement) -> bool:
        """True if it is between chips, which hold other parts of the value afterwards, and not between memories."""
        return self._to is not None and not isinstance(operation.moves, ops.Fetch | ops.Store | ops.Wait)

    def _by_index(self, statement: Statement) -> bool:
        """True if the chip has a part of what the operation numbers, so that it depends on which part that is; or if it
        gives what only chips have."""
        match statement:
            case Let(operation=ops.Argmax(dim=dim)):
                dims: tuple[str | None, ...] = (dim,)
            case Let(operation=ops.Update() as operation):
                dims = operation.written_dims
            case Let(operation=ops.Attend() as operation):
                dims = (*operation.pool, operation.causal)
            case _:
                return False
        held = [self._held.get(self._root(name)) for name in statement.operands if isinstance(name, str)]
        held += [held_of(value.type) for value in statement.results]
        kinds = [each.kind for each in held if each is not None]
        return any(kind.is_pair or any(kind.split(dim) for dim in dims if dim in kind.names) for kind in kinds)

    def _declare(self, value: Value) -> None:
        self._shapes[value.name] = value.shape
        held = held_of(value.type)
        if held is not None:
            self._held[value.name] = held

    def _root(self, name: str) -> str:
        return self._same.get(name, name)

    def _read(self, statement: Let | SetState | Loop) -> list[str]:
        match statement:
            case Let():
                names: Iterable[Operand] = statement.operands
            case SetState():
                names = (statement.operand,)
            case Loop():
                names = sorted(captured(statement))
        return [self._root(name) for name in names if isinstance(name, str)]

    def _step(self, statement: Let | SetState | Loop, at: int, last: Mapping[str, int]) -> Step:
        read = self._read(statement)
        dead = tuple(n for n in dict.fromkeys(read) if last[n] == at and n not in self._given)
        match statement:
            case SetState():
                return _writing(statement.state, read[0], dead, self._shapes[statement.state].dtype)
            case Loop():
                return self._looping(statement, dead)
            case Let(operation=ops.Update()) if (
                not self._by_index(statement) and (step := self._writing_rows(statement, read, dead, at)) is not None
            ):
                return step
            case Let():
                return self._computing(statement, read, dead, at)

    def _writing_rows(self, statement: Let, read: Sequence[str], dead: Sequence[str], at: int) -> Step | None:
        """An update: in place of state that is then set to it, and of what is used no more; else in a copy. None where
        rows begin at positions by more than one dimension."""
        operation, shapes = statement.operation, [self._shapes[name] for name in read]
        assert isinstance(operation, ops.Update)
        names, new_names, position = shapes[0].names, shapes[1].names, statement.operands[2]
        by = () if isinstance(position, Number) else shapes[2].names
        if operation.wrap or operation.indexed or operation.page or len(by) > 1 or len(read) < 2:
            return None
        rest = [*by, *(name for name in names if name != operation.dim and name not in by)]
        order = [names.index(name) for name in (operation.dim, *rest)]
        along = [name for name in new_names if name not in rest]
        new_order = [new_names.index(name) for name in (*along, *rest)]
        through, result = statement in self._updating, statement.result.name
        own = not through and (read[0] in dead or (read[0] in self._owned and at == self._last_read(read[0])))
        own = own and self._alone(read[0], at)
        if own and read[0] in self._given:
            self.taken_over.add(read[0])
        if not through:
            self._makes(statement.result, (read[0],) if own else ())

        def step(values: Values) -> None:
            import torch

            tensors = values.tensors
            cache, new = tensors[read[0]], tensors[read[1]].permute(new_order)
            if not through and not (own and _alone_in_memory(cache)):
                cache = cache.clone(memory_format=torch.contiguous_format)
            if new.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr():
                new = new.clone()
            if isinstance(position, Number):
                positions = begins_of(torch.tensor(int(position.value)), ())
            else:
                key = "begins", tensors[read[2]].data_ptr()
                if key not in values.common:
                    values.common[key] = tensors[read[2]], begins_of(tensors[read[2]], by)
                positions = values.common[key][1]
            put_rows(cache.permute(order), new if along else new[None], positions)
            _drop(values, dead)
            if not through:
                tensors[result] = cache

        return step

    def _last_read(self, name: str) -> int:
        return self._last.get(name, -1)

    def _looping(self, loop: Loop, dead: Sequence[str]) -> Step:
        """Its body is a block of its own, which sees of what has the loop's dimension the slice of its trip."""
        seen = {name: self._shapes[name] for name in sorted(captured(loop))}
        inner = {name: without(shape, loop.dim) for name, shape in seen.items()}
        inner |= {carry.value.name: carry.value.shape for carry in loop.carries}
        if loop.index is not None:
            inner[loop.index] = Shape(DType.INT32, ())
        owned = {carry.value.name for carry in loop.carries if carry.value.name not in loop.following}
        held = {
            name: each.without((loop.dim,) if loop.dim in self._shapes[name] else ())
            for name, each in self._held.items()
            if name in seen
        }
        held |= {c.value.name: each for c in loop.carries if (each := held_of(c.value.type)) is not None}
        body = CompiledBlock(
            loop.body, inner, self._states, loop.following, self._sizes, self._device, None, self._sparse, owned,
            held, self._to,
        )  # fmt: skip
        initial = [self._root(carry.initial) for carry in loop.carries]
        for result, name in zip(loop.results, initial, strict=True):
            self._makes(result, [name, *map(self._root, seen)])
        sliced = [
            (name, self._root(name), shape.names.index(loop.dim) if loop.dim in shape else None)
            for name, shape in seen.items()
        ]
        trips, index, device = self._sizes[loop.dim], loop.index, self._device
        of_state = [name in self._states for name in loop.following]

        def step(values: Values) -> None:
            import torch

            carried = [values.tensors[name].clone() for name in initial]
            for trip in range(trips):
                tensors: dict[str, Tensor] = {}
                for name, root, at in sliced:
                    tensor = values.tensors[root]
                    tensors[name] = tensor if at is None else tensor.select(at, trip)
                tensors |= {carry.value.name: tensor for carry, tensor in zip(loop.carries, carried, strict=True)}
                if index is not None:
                    tensors[index] = torch.full((), trip, device=device)
                seen = Values(tensors, values.common)
                body.run(seen)
                following = zip(body.outputs(seen), of_state, strict=True)
                carried = [tensor.clone() if copied else tensor for tensor, copied in following]
            _drop(values, dead)
            for result, tensor in zip(loop.results, carried, strict=True):
                values.tensors[result.name] = tensor

        return step

    def _makes(self, value: Value, parts_of: Sequence[str]) -> None:
        """The result of a step, which may be a part of these."""
        self._declare(value)
        self._memory[value.name] = frozenset((value.name,)).union(*(self._memory[name] for name in parts_of))

    def _computing(self, statement: Let, read: Sequence[str], dead: tuple[str, ...], at: int) -> Step:
        operation, (result, *others) = statement.operation, statement.results
        operands = [o if isinstance(o, Number) else self._shapes[o] for o in statement.operands]
        run = None
        if not others and not self._by_index(statement):
            run = prepared(operation, operands, result.shape, self._sparse)
        kept = self._views_state(operation, read)
        if run is None and self._sparse < 1 and isinstance(operation, ops.Attend) and operation.causal is not None:
            queries = operands[0]
            if isinstance(queries, Shape) and operation.causal in queries and queries.size(operation.causal) == 1:
                raise fault(
                    "no-sparse-attention",
                    "sparse attention is of rows each of which has a whole cache of its own on the chip, without pages,"
                    " lengths or logarithms of sums",
                    statement.span,
                    "leave --sparse-attention out",
                )
        if run is None:
            before = held_as(self._shapes[read[0]].dtype) if isinstance(operation, ops.Convert) else None
            made = before is not None and before != held_as(result.shape.dtype)
            for value in statement.results:
                self._makes(value, () if made else read)
            return self._interpreting(statement, read, operands, dead, copied=kept)
        # Shapes are by the names that the statement reads: that of a root may have other names of dimensions.
        shapes = dict(zip(read, operands, strict=True)) if len(set(read)) == len(operands) else {}
        donor = next((n for n in shapes if shapes[n] == result.shape and n in dead and self._is_free(n, at)), None)
        others = [shape for name, shape in shapes.items() if name != donor and isinstance(shape, Shape)]
        fitting = donor is not None and all(shape.dtype is result.shape.dtype for shape in others)
        reusing = in_place(operation, others, result.shape) if fitting else None
        if donor is None or reusing is None:
            self._makes(result, read if isinstance(operation, ops.Take) else ())
            return _calling(_copied(run) if kept else run, read, result.name, dead)
        self._makes(result, (donor,))
        given = [donor, *(n for n in read if n != donor)]
        return _calling(unless_spread(reusing, run, [given.index(n) for n in read]), given, result.name, dead)

    def _interpreting(
        self, statement: Let, read: Sequence[str], operands: Sequence[Shape | Number], dead: Sequence[str], *,
        copied: bool,
    ) -> Step:  # fmt: skip
        """By the operation's kernel, which finds out about the shapes each time, or by an exchange between chips; a
        movement between memories copies."""
        operation, device, to = statement.operation, self._device, self._to
        shapes = [value.shape for value in statement.results]
        held_before = [self._held.get(name) for name in statement.operands if isinstance(name, str)]
        held_after = [self._held[value.name] for value in statement.results] if to is not None else None

        def made(given: Sequence[Argument]) -> Sequence[Tensor]:
            if not isinstance(operation, Movement):
                return [each.tensor for each in compute(operation, given, shapes, device, held_after)]
            (value,) = given
            assert isinstance(value, NamedTensor)
            if to is None or held_after is None or value.held is None or not self._exchanges(operation):
                return [value.tensor.clone()]
            return [move(to, operation.moves, value.tensor, value.held, held_after[0])]

        def step(values: Values) -> None:
            rest = iter(zip(read, held_before, strict=True))
            given: list[Argument] = []
            for operand in operands:
                if isinstance(operand, Number):
                    given.append(operand)
                    continue
                name, held = next(rest)
                given.append(NamedTensor(values.tensors[name], operand.names, operand.dtype, held))
            try:
                tensors = made(given)
            except DiagnosticError:
                with placed(statement.span):
                    raise
            _drop(values, dead)
            for result, tensor in zip(statement.results, tensors, strict=True):
                values.tensors[result.name] = tensor.clone() if copied else tensor

        return step

    def _views_state(self, operation: object, read: Sequence[str]) -> bool:
        """True if its result may lie in the memory of state that is set while it is used."""
        if not isinstance(operation, VIEWS) or not read or read[0] not in self._states:
            return False
        return self._fragile is None or read[0] in self._fragile

    def _is_free(self, name: str, at: int) -> bool:
        """True if the memory of a tensor that dies at this step may be the result's: nothing else that lives is in it,
        and it was not there before."""
        return not self._memory[name] & self._given and self._alone(name, at)

    def _alone(self, name: str, at: int) -> bool:
        """True if nothing else lies in the memory of a tensor that is used at this step or after it."""
        own = self._memory[name]
        return all(self._last_read(n) < at for n, memory in self._memory.items() if n != name and own & memory)


def without(shape: Shape, dim: str) -> Shape:
    """The slice of a value of this shape that one trip of a loop over `dim` sees."""
    return Shape(shape.dtype, tuple(each for each in shape.dims if each.name != dim))


def block_of(program: Program, func: Func, device: torch.device, to: Collectives | None = None) -> CompiledBlock:
    """A whole function that reads neither weights nor state; on one chip of a mesh `to` are the others."""
    shapes = {value.name: value.shape for value in func.params}
    held = {value.name: each for value in func.params if (each := held_of(value.type)) is not None}
    sizes = program.sizes(func)
    return CompiledBlock(func.body, shapes, (), func.returns, sizes, device, held=held, to=to)


def _updates_in_place(body: Sequence[Statement], states: Set[str], shapes: Mapping[str, Shape]) -> set[int]:
    """The numbers of updates of state that is set to what they make before anything else reads it, and only then."""
    found: set[int] = set()
    for number, statement in enumerate(body):
        if (
            not isinstance(statement, Let)
            or not isinstance(statement.operation, ops.Update)
            or statement.operation.wrap
            or statement.operation.indexed
            or statement.operation.page
        ):
            continue
        state, position = statement.operands[0], statement.operands[2]
        if isinstance(position, str) and len(shapes[position].names) > 1:
            continue
        if state not in states or not isinstance(state, str):
            continue
        sets = [at for at, s in enumerate(body) if state in states_set((s,))]
        if len(sets) != 1 or sets[0] < number:
            continue
        setting = body[sets[0]]
        between = names_read(body[number + 1 : sets[0]])
        if isinstance(setting, SetState) and setting.operand == statement.result.name and state not in between:
            found.add(number)
    return found


def _nbytes(tensors: Sequence[Tensor], accounted: Set[int]) -> int:
    """The bytes of the storages that they lie in, each counted once; those at the addresses `accounted` are not."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(nbytes for address, nbytes in storages.items() if address not in accounted)


# ---------------------------------------------------------------- steps


def _drop(values: Values, names: Sequence[str]) -> None:
    for name in names:
        del values.tensors[name]


def _alone_in_memory(tensor: Tensor) -> bool:
    """True if nothing else can lie in the memory of a tensor."""
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _copied(run: Prepared) -> Prepared:
    def copied(common: Common, *tensors: Tensor) -> Tensor:
        return run(common, *tensors).clone()

    return copied


def _writing(state: str, name: str, dead: Sequence[str], dtype: DType) -> Step:
    def step(values: Values) -> None:
        values.tensors[state].copy_(values.tensors[name])
        if dtype.is_integer:  # positions, of which something may be known
            values.common.clear()
        _drop(values, dead)

    return step


def _calling(run: Prepared, read: Sequence[str], result: str, dead: Sequence[str]) -> Step:
    def step(values: Values) -> None:
        tensors = values.tensors
        made = run(values.common, *[tensors[name] for name in read])
        for name in dead:
            del tensors[name]
        tensors[result] = made

    return step
