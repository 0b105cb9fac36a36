"""A chip's array as its digits: how a movement reshapes what a chip holds before and after it communicates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from shardwright.backends.simulation.local_values import common, fitting
from shardwright.ir.digit_orders import edge_orders, in_blocks, orders_in
from shardwright.ir.digits import Order, is_contiguous, local_digits, order_size, ordered, radix
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Func, Program
from shardwright.ir.types import TensorType

Fate = Literal["stays", "leaves", "arrives"]


@dataclass(frozen=True)
class Factor:
    """A factor of a dimension's index: `stays` on the chip, or is the digit of an axis.

    A digit that `leaves` was local and becomes the chip's own coordinate; one that `arrives` becomes local.
    """

    fate: Fate
    size: int
    axis: str | None = None


@dataclass(frozen=True)
class Digits:
    """The orders of digits in force in a function, on its mesh, and what crosses its edges in blocks."""

    mesh: Mesh
    orders: Mapping[str, Order]
    blocks: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @staticmethod
    def of(program: Program, func: Func) -> Digits:
        """The digits of a function of a program."""
        return Digits(program.mesh, orders_in(program, func), in_blocks(func))

    def at_edge(self, name: str, kind: TensorType) -> Digits:
        """The digits of the parameter, or the result, of this name as the function's caller sees it."""
        dims = self.blocks.get(name)
        return self if dims is None else replace(self, orders=edge_orders(self.orders, kind, dims, self.mesh))

    def order(self, kind: TensorType, dim: str) -> Order:
        """The digits of a dimension of this value."""
        return fitting(self.orders, kind, dim, self.mesh)

    def ordered_axes(self, kind: TensorType, dim: str) -> tuple[str, ...]:
        """The axes that split the dimension, most significant digit first."""
        return ordered(self.order(kind, dim), kind.split(dim))

    def is_contiguous(self, kind: TensorType, dim: str) -> bool:
        """Tells whether each chip's part of the dimension is one block."""
        return is_contiguous(self.order(kind, dim), kind.split(dim), self.mesh)

    def layout(self, kind: TensorType, dim: str) -> list[tuple[str | None, int]]:
        """The dimension as digits, most significant first: (axis that holds it, or None where it is local, radix).

        Neighbouring local digits are one, and local digits of one value are left out.
        """
        order, split = self.order(kind, dim), kind.split(dim)
        made: list[tuple[str | None, int]] = []
        rest = kind.shape.size(dim) // order_size(order, self.mesh)
        for digit in (*order, rest):
            n = radix(digit, self.mesh)
            if isinstance(digit, str) and digit in split:
                made.append((digit, n))
            elif n > 1:
                if made and made[-1][0] is None:
                    made[-1] = (None, made[-1][1] * n)
                else:
                    made.append((None, n))
        return made

    def factors(self, before: TensorType, after: TensorType) -> list[list[Factor]]:
        """For each dimension the factors of its local index before and after a movement, most significant first.

        Digits of one value (axes of one chip) and those that stay with their chips are left out.
        """
        made: list[list[Factor]] = []
        for dim in before.dims:
            was, becomes = set(before.split(dim.name)), set(after.split(dim.name))
            row: list[Factor] = []
            if was == becomes:
                size = before.local_shape(self.mesh)[before.names.index(dim.name)]
                made.append([Factor("stays", size)] if size > 1 else [])
                continue
            order = common(self.orders, before, after, dim.name, self.mesh)
            (*_, (_, rest)) = local_digits(order, (), dim.size, self.mesh)
            for digit in (*order, rest):
                n = radix(digit, self.mesh)
                if n == 1 or (digit in was and digit in becomes):
                    continue
                if digit in becomes:
                    row.append(Factor("leaves", n, str(digit)))
                elif digit in was:
                    row.append(Factor("arrives", n, str(digit)))
                elif row and row[-1].fate == "stays":
                    row[-1] = Factor("stays", row[-1].size * n)
                else:
                    row.append(Factor("stays", n))
            made.append(row)
        return made


def leads(row: list[Factor], fate: Fate) -> bool:
    """Tells whether the factors of this fate are the most significant of the row, with at most one other behind
    them."""
    fates = [factor.fate for factor in row]
    n = fates.count(fate)
    return fates[:n] == [fate] * n and fates[n:] in ([], ["stays"])
