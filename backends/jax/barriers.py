"""Where an optimization barrier keeps a target's compiler to what the text says.

Products are finished before the next one reads them, and large gathers begin in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from shardwright.backends.jax.source_text import concrete
from shardwright.cost.kernels.body import BodyKernels, Kernel, function_kernels
from shardwright.ir import ops
from shardwright.ir.program import Func, Let, Loop, Program
from shardwright.ir.types import ON_DEVICE, TensorType
from shardwright.ir.walk import defined, operand_names, sites

FEW_ROWS = 256
"""A product takes as long as reading its matrix up to about so many rows, by TPUs' ratio of products to bytes."""

LARGE_BYTES = 2**20
"""The bytes of a chip's result from which on a gather is a large one."""


def finished_products(program: Program, func: Func) -> set[str]:
    """The values that are computed elementwise of a product, in its kernel (`cost.kernels.fusion`), and read by another
    one."""
    found: set[str] = set()

    def visit(body: BodyKernels) -> None:
        products = [s for s in body.steps if isinstance(s, Kernel) and isinstance(s.heavy.operation, ops.Contract)]
        read = {each.name for product in products for each in product.reads}
        ends = {product.root.result.name for product in products if product.root is not product.heavy}
        found.update(ends & read)
        for step in body.steps:
            if isinstance(step, Loop):
                visit(body.inside(step))

    visit(function_kernels(program, func))
    return found


@dataclass
class GathersInTurn:
    """The large gathers of weights in a function whose products with weights have few rows, as in a decode step. They
    hide little of a gather's time, and libtpu would start several at once and keep all that they make."""

    names: set[str]
    of_weights: set[str]
    """Values that weights alone give, which no gather waits for."""

    @staticmethod
    def of(program: Program, func: Func) -> GathersInTurn:
        mesh, gathers, few = program.mesh, set[str](), True
        own = {value.name for value in program.weights}
        for site in sites(program, func):
            statement = site.statement
            read = operand_names(statement.operands) if isinstance(statement, Let) else ()
            if not isinstance(statement, Let) or own.isdisjoint(read):
                own.difference_update(value.name for value in defined(statement))  # another loop may have had the name
                continue
            operation, result = statement.operation, statement.result.name
            if own.issuperset(read):
                own.add(result)
                large = concrete(result, statement.result.type).local_bytes(mesh) >= LARGE_BYTES
                gathers.update([result] if large and isinstance(operation, ops.AllGather) else ())
            elif isinstance(operation, ops.Contract):
                (rows,) = (concrete(name, site.scope.type_of(name)) for name in read if name not in own)
                sizes = zip(rows.names, rows.local_shape(mesh), strict=True)
                few = few and prod(size for name, size in sizes if name not in operation.dims) <= FEW_ROWS
        return GathersInTurn(gathers if few else set(), own)

    def waited_for(self, statement: Let) -> frozenset[str] | None:
        """The axes along which what a gather may wait for varies; None where none waits for this."""
        (first, *others), kind = statement.results, statement.result.type
        if not self.names or others or first.name in self.of_weights or kind.placement != ON_DEVICE:
            return None
        return varies(concrete(first.name, kind))


def varies(kind: TensorType) -> frozenset[str]:
    """The axes along which chips hold different arrays of this type; those of a barrier vary along the same."""
    return frozenset((*kind.split_axes, *kind.partial_axes))
