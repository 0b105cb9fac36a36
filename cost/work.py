"""What one chip does for a function of an explicit program: kernel by kernel its operations, bytes and messages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwright.cost.fusion import Kernel, Read, fused
from shardwright.cost.movements import Collective, collective_of
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.digits import Order
from shardwright.ir.ops import Contract, Convert, Movement
from shardwright.ir.program import Func, Let, Loop, Program, Scope, Statement
from shardwright.ir.types import DType, TensorType


@dataclass(frozen=True, slots=True)
class Matmul:
    """A contraction on one chip: `count` products of [m, k] and [k, n], operands in `dtype`."""

    count: int
    m: int
    n: int
    k: int
    dtype: DType

    @property
    def flops(self) -> int:
        """A multiplication and an addition each: 2 m n k."""
        return 2 * self.count * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel: what it computes, reads, writes and sends in one execution, and how often it is executed.

    `name` is the value that it makes, `operation` the keyword of the operation that it is named after. `reads` are
    what it reads of each value, in bytes. `collective` is None but for movements between chips, `matmul` but for
    contractions. `widened` are the elements of integers of a few bits that it makes floats. `loops` are the dimensions
    of the loops around it, and `body` the numbers of these loops among the steps around them, which tell bodies apart.
    `ahead` says that it is in a loop and works on weights alone, such as their gathering, so that it can run a trip
    ahead.
    """

    name: str
    operation: str
    statement: Let
    loops: tuple[str, ...]
    body: tuple[int, ...]
    ahead: bool
    trips: int
    matmul: Matmul | None
    collective: Collective | None
    reads: tuple[tuple[str, int], ...]
    bytes_written: int
    result: TensorType
    widened: int = 0

    @property
    def bytes_read(self) -> int:
        return sum(nbytes for _, nbytes in self.reads)

    @property
    def flops(self) -> int:
        return self.matmul.flops if self.matmul else 0


def work_of(program: Program, func: Func) -> tuple[Work, ...]:
    """The kernels of a function in program order, those of loops once, with their trips.

    Raises TypeError where a type still has holes.
    """
    scope = Scope.of(program, func)
    return tuple(_body(program, program.sizes(func), orders_in(program, func), func.body, scope, func.returns, (), ()))


def _body(
    program: Program,
    sizes: Mapping[str, int],
    orders: Mapping[str, Order],
    body: Sequence[Statement],
    scope: Scope,
    returned: Sequence[str],
    loops: tuple[Loop, ...],
    path: tuple[int, ...],
) -> Iterator[Work]:
    block = fused(program, body, scope, returned)
    of_weights = {value.name for value in program.weights}
    for number, step in enumerate(block.steps):
        match step:
            case Kernel():
                alone = all(read.name in of_weights for read in step.reads)
                if alone:
                    of_weights.update(value.name for value in step.root.results)
                yield _work(program, sizes, orders, step, block.types, loops, path, ahead=alone and bool(loops))
            case Loop():
                inner = scope.inside(step)
                yield from _body(
                    program, sizes, orders, step.body, inner, step.following, (*loops, step), (*path, number)
                )
            case _:
                pass


def _work(
    program: Program,
    sizes: Mapping[str, int],
    orders: Mapping[str, Order],
    kernel: Kernel,
    types: Mapping[str, TensorType],
    loops: tuple[Loop, ...],
    path: tuple[int, ...],
    *,
    ahead: bool,
) -> Work:
    mesh, root = program.mesh, kernel.root
    written = sum(_written(kernel, types[value.name], mesh) for value in root.results)
    operation = root.operation
    collective = (
        collective_of(operation, types[str(root.operands[0])], mesh, orders)
        if isinstance(operation, Movement) and operation.communicates
        else None
    )
    matmul = _matmul(kernel.heavy, types, mesh) if isinstance(kernel.heavy.operation, Contract) else None
    return Work(
        root.results[0].name,
        kernel.heavy.operation.keyword,
        kernel.heavy,
        tuple(loop.dim for loop in loops),
        path,
        ahead,
        math.prod(sizes[loop.dim] for loop in loops),
        matmul,
        collective,
        tuple((read.name, _read_bytes(read)) for read in kernel.reads),
        written,
        types[root.results[0].name],
        sum(_widened(statement, types, mesh) for statement in kernel.statements),
    )


def _widened(statement: Let, types: Mapping[str, TensorType], mesh: Mapping[str, int]) -> int:
    return types[statement.result.name].local_elements(mesh) if widens(statement, types) else 0


def widens(statement: Let, types: Mapping[str, TensorType]) -> bool:
    """Whether it makes floats of integers of a few bits, as of quantized weights."""
    if not isinstance(statement.operation, Convert):
        return False
    before, after = types[str(statement.operands[0])].dtype, types[statement.result.name].dtype
    return before in (DType.INT8, DType.INT4) and after.is_float


def _read_bytes(read: Read) -> int:
    return read.type.bytes_of(read.elements)


def _written(kernel: Kernel, kind: TensorType, mesh: Mapping[str, int]) -> int:
    """An update writes its new rows, everything else its result."""
    if kernel.in_place:
        return sum(_read_bytes(read) for read in kernel.reads[:1])
    return kind.local_bytes(mesh)


def _matmul(statement: Let, types: Mapping[str, TensorType], mesh: Mapping[str, int]) -> Matmul:
    """m of what the left operand has alone, n the right, k what is summed; shared dimensions that stay are batched."""
    left, right = (types[str(operand)] for operand in statement.operands)
    operation = statement.operation
    assert isinstance(operation, Contract)
    sizes = [dict(zip(kind.names, kind.local_shape(mesh), strict=True)) for kind in (left, right)]
    m = math.prod(size for name, size in sizes[0].items() if name not in sizes[1])
    n = math.prod(size for name, size in sizes[1].items() if name not in sizes[0])
    k = math.prod(sizes[0][name] for name in operation.dims)
    count = math.prod(size for name, size in sizes[0].items() if name in sizes[1] and name not in operation.dims)
    return Matmul(count, m, n, k, left.dtype)
