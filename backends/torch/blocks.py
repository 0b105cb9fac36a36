"""Statements compiled once to steps over tensors, which then run for every layer, batch and token.

What can be known without the numbers is settled here: which operation has a prepared form, which names are the same
tensor, after which step a tensor is needed no more, and whose memory the next result may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels import compute
from shardwright.backends.torch.kernels.prepared import Common, Prepared, in_place, prepared
from shardwright.backends.torch.stages import Attend, Stage, Staged, without
from shardwright.backends.torch.tensors import Argument, Named
from shardwright.ir import ops
from shardwright.ir.diagnostics import fault
from shardwright.ir.operation import Number, Operand
from shardwright.ir.ops import Ahead, Movement, Roll
from shardwright.ir.program import Func, Let, Loop, Program, SetState, Statement, Value
from shardwright.ir.types import DType, Shape
from shardwright.ir.walk import captured

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass
class Values:
    """The tensors at hand, by name; what the layers of a pass have in common; and what computes attention over a cache
    from queries and new keys and values."""

    tensors: dict[str, Tensor]
    common: Common = field(default_factory=Common)
    attention: Callable[[Attend, Named, Named, Named], Tensor] | None = None


Step = Callable[[Values], None]


class Block:
    """Statements, and the `outputs` that are needed after them. `shapes` are of the values that are there before,
    `states` those of them that are written in place, `sizes` of the dimensions that loops go over."""

    def __init__(
        self,
        body: Sequence[Statement | Attend],
        shapes: Mapping[str, Shape],
        states: Iterable[str],
        outputs: Sequence[str],
        sizes: Mapping[str, int],
        device: torch.device,
    ) -> None:
        self._shapes = dict(shapes)
        self._states = frozenset(states)
        self._sizes = sizes
        self._device = device
        self._same: dict[str, str] = {}
        self._memory = {name: frozenset((name,)) for name in shapes}
        """Of each tensor by whose names its memory may go, too: the first that had it."""
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

    def _compiled(self, body: Sequence[Statement | Attend], outputs: Sequence[str]) -> list[Step]:
        statements: list[Let | SetState | Loop | Attend] = []
        for statement in body:
            if isinstance(statement, Let) and self._renames(statement):
                continue
            if isinstance(statement, Let | SetState | Loop | Attend):  # what is freed is dropped after its last use
                statements.append(statement)
        last: dict[str, int] = {self._root(name): len(statements) for name in outputs}
        for at, statement in reversed(list(enumerate(statements))):
            for name in self._read(statement):
                last.setdefault(name, at)
        return [self._step(statement, at, last) for at, statement in enumerate(statements)]

    def _renames(self, statement: Let) -> bool:
        """Whether the statement makes no tensor: what it gives is its operand by another name."""
        operation, operand = statement.operation, statement.operands[0] if statement.operands else None
        if not isinstance(operation, Movement | ops.Alias | ops.Rename) or not isinstance(operand, str):
            return False
        if isinstance(operation, Movement) and isinstance(operation.moves, Roll):
            raise fault("no-roll", "the PyTorch backend runs programs of one device, where nothing rolls")
        if isinstance(operation, Movement) and isinstance(operation.moves, Ahead) and operation.moves.ahead:
            raise fault("fetched-ahead", "a stage of offloading fetches nothing for the next one", statement.span)
        root = self._root(operand)
        (result,) = statement.results
        if root not in self._states:  # those are written in place: what was read before must not change with them
            self._same[result.name] = root
            self._shapes[result.name] = result.shape
        return root not in self._states

    def _root(self, name: str) -> str:
        return self._same.get(name, name)

    def _read(self, statement: Let | SetState | Loop | Attend) -> list[str]:
        match statement:
            case Let():
                names: Iterable[Operand] = statement.operands
            case SetState():
                names = (statement.operand,)
            case Loop():
                names = sorted(captured(statement))
            case Attend():
                names = (statement.q, statement.k_new, statement.v_new)
        return [self._root(name) for name in names if isinstance(name, str)]

    def _step(self, statement: Let | SetState | Loop | Attend, at: int, last: Mapping[str, int]) -> Step:
        read = self._read(statement)
        dead = tuple(n for n in dict.fromkeys(read) if last[n] == at and n not in self._given)
        match statement:
            case SetState():
                return _writing(statement.state, read[0], dead)
            case Attend():
                shapes = [self._shapes[name] for name in (statement.q, statement.k_new, statement.v_new)]
                self._makes(statement.result, ())
                return _attending(statement, read, shapes, dead)
            case Loop():
                return self._looping(statement, dead)
            case Let():
                return self._computing(statement, read, dead, at, last)

    def _looping(self, loop: Loop, dead: Sequence[str]) -> Step:
        """Its body is a block of its own, which sees of what has the loop's dimension the slice of its trip."""
        seen = {name: self._shapes[name] for name in sorted(captured(loop))}
        inner = {name: without(shape, loop.dim) for name, shape in seen.items()}
        inner |= {carry.value.name: carry.value.shape for carry in loop.carries}
        if loop.index is not None:
            inner[loop.index] = Shape(DType.INT32, ())
        body = Block(loop.body, inner, self._states, loop.following, self._sizes, self._device)
        initial = [self._root(carry.initial) for carry in loop.carries]
        for result, name in zip(loop.results, initial, strict=True):
            self._makes(result, [name, *map(self._root, seen)])
        sliced = [
            (name, self._root(name), shape.names.index(loop.dim) if loop.dim in shape else None)
            for name, shape in seen.items()
        ]
        trips, index, device = self._sizes[loop.dim], loop.index, self._device

        def step(values: Values) -> None:
            import torch

            carried = [values.tensors[name] for name in initial]
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
                carried = body.outputs(seen)
            _drop(values, dead)
            for result, tensor in zip(loop.results, carried, strict=True):
                values.tensors[result.name] = tensor

        return step

    def _makes(self, value: Value, parts_of: Sequence[str]) -> None:
        """The result of a step, which may be a part of these."""
        self._shapes[value.name] = value.shape
        self._memory[value.name] = frozenset((value.name,)).union(*(self._memory[name] for name in parts_of))

    def _computing(
        self, statement: Let, read: Sequence[str], dead: tuple[str, ...], at: int, last: Mapping[str, int]
    ) -> Step:
        operation, (result, *others) = statement.operation, statement.results
        operands = [o if isinstance(o, Number) else self._shapes[o] for o in statement.operands]
        run = None if others else prepared(operation, operands, result.shape)
        if run is None:
            for value in statement.results:
                self._makes(value, read)
            return _interpreting(statement, read, operands, dead, self._device)
        donor = next((n for n in read if n in dead and self._is_free(n, at, last)), None)
        reusing = in_place(operation) if all(o == result.shape for o in operands) else None
        if donor is None or reusing is None or len(set(read)) < len(read):
            self._makes(result, read if isinstance(operation, ops.Take) else ())
            return _calling(run, read, result.name, dead)
        self._makes(result, (donor,))
        return _calling(reusing, [donor, *(n for n in read if n != donor)], result.name, dead)

    def _is_free(self, name: str, at: int, last: Mapping[str, int]) -> bool:
        """Whether the memory of a tensor that dies at this step may be the result's: nothing else that lives is in it,
        and it was not there before."""
        own = self._memory[name]
        others = (n for n, memory in self._memory.items() if n != name and own & memory)
        return not own & self._given and all(last.get(n, -1) < at for n in others)


def block_of(program: Program, func: Func, device: torch.device) -> Block:
    """A whole function that reads neither weights nor state."""
    shapes = {value.name: value.shape for value in func.params}
    return Block(func.body, shapes, (), func.returns, program.sizes(func), device)


class Blocks:
    """The blocks of the stages of programs, each compiled when it is first asked for; layers have one together."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], tuple[Staged, Block]] = {}

    def of(self, staged: Staged, stage: Stage, device: torch.device) -> Block:
        key = id(staged), 1 if stage.layer is not None else -stage.index
        if key not in self._made:
            program, sizes = staged.program, staged.program.sizes(staged.func)
            outputs = staged.outputs(stage)
            made = Block(stage.body, staged.shapes(stage), program.state_names, outputs, sizes, device)
            self._made[key] = staged, made
        return self._made[key][1]


def _nbytes(tensors: Sequence[Tensor], accounted: Set[int]) -> int:
    """Of the storages that they lie in, each counted once; those at the addresses `accounted` are not."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(nbytes for address, nbytes in storages.items() if address not in accounted)


# ---------------------------------------------------------------- steps


def _drop(values: Values, names: Sequence[str]) -> None:
    for name in names:
        del values.tensors[name]


def _writing(state: str, name: str, dead: Sequence[str]) -> Step:
    def step(values: Values) -> None:
        values.tensors[state].copy_(values.tensors[name])
        _drop(values, dead)

    return step


def _attending(attend: Attend, read: Sequence[str], shapes: Sequence[Shape], dead: Sequence[str]) -> Step:
    names = [(shape.names, shape.dtype) for shape in shapes]

    def step(values: Values) -> None:
        tensors = values.tensors
        assert values.attention is not None
        q, k_new, v_new = (Named(tensors[name], *each) for name, each in zip(read, names, strict=True))
        made = values.attention(attend, q, k_new, v_new)
        _drop(values, dead)
        tensors[attend.result.name] = made

    return step


def _calling(run: Prepared, read: Sequence[str], result: str, dead: Sequence[str]) -> Step:
    def step(values: Values) -> None:
        tensors = values.tensors
        made = run(values.common, *[tensors[name] for name in read])
        for name in dead:
            del tensors[name]
        tensors[result] = made

    return step


def _interpreting(
    statement: Let, read: Sequence[str], operands: Sequence[Shape | Number], dead: Sequence[str], device: torch.device
) -> Step:
    """By the operation's kernel, which finds out about the shapes each time; a movement copies."""
    shapes = [value.shape for value in statement.results]

    def step(values: Values) -> None:
        rest = iter(read)
        given: list[Argument] = [
            o if isinstance(o, Number) else Named(values.tensors[next(rest)], o.names, o.dtype) for o in operands
        ]
        if isinstance(statement.operation, Movement):
            (value,) = given
            assert isinstance(value, Named)
            made: Sequence[Named] = (Named(value.tensor.clone(), value.names, value.dtype),)
        else:
            made = compute(statement.operation, given, shapes, device)
        _drop(values, dead)
        for result, named in zip(statement.results, made, strict=True):
            values.tensors[result.name] = named.tensor

    return step
