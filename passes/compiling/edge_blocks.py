"""`edge-blocks`: strided parameters come in, and strided results go out, as contiguous blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.digit_orders import gathered_or_cut, in_blocks, orders_in, strided_dims
from shardwright.ir.digits import Order
from shardwright.ir.ops import Permute
from shardwright.ir.program import Func, Program
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import ON_DEVICE, TensorType, ValueType
from shardwright.ir.verification.verifier import Level
from shardwright.ir.walk import rename_operands
from shardwright.passes.base import Pass


@dataclass(frozen=True)
class EdgeBlocks(Pass):
    """Writes down what moves where a strided parameter or result is one global array outside.

        dim E=64 order x y
        func f(a: BE_y) -> BE_y { b: BE_y = gelu(a)   return b }

    becomes

        func f(a: BE_y) -> BE_y {
          a_digits :~ bf16 BE_y = permute[E, from=blocks](a)
          b: bf16 BE_y = gelu(a_digits)
          b_blocks :~ bf16 BE_y = permute[E, to=blocks](b)
          return b_blocks
        }

    A caller's array has no dimension for each digit, so that somebody has to bring every chip its digits; here it is a
    statement, with its bytes. A parameter that is gathered and nothing else comes in blocks at no cost, also when an
    element of another dimension was taken of it before, and so does a result go that is scattered or sliced of a whole
    dimension. Weights and state are laid out in digits while they are
    loaded, and stay as they are; so does what a function takes from the host's memory or leaves there. Takes explicit
    programs whose dimensions have their orders (`choose-digit-order`).
    """

    name: ClassVar[str] = "edge-blocks"
    takes: ClassVar[Level] = Level.EXPLICIT
    leaves: ClassVar[Level] = Level.EXPLICIT

    def run(self, program: Program) -> Program:
        return replace(program, funcs=tuple(_with_blocks(program, func) for func in program.funcs))


def _with_blocks(program: Program, func: Func) -> Func:
    orders, known, free = orders_in(program, func), in_blocks(func), gathered_or_cut(func)
    writer = replace(Rewriter.of(program, func), span=func.span)

    def strided(name: str, kind: ValueType) -> tuple[str, ...]:
        dims = () if name in known else _to_permute(kind, orders, program)
        return () if set(dims).issubset(free.get(name, ())) else dims

    def permute(name: str, operation: Permute, kind: ValueType) -> str:
        writer.source = name
        return writer.let(operation, [name], f"{name}_{'blocks' if operation.blocks == 'to' else 'digits'}", kind)

    renamed: dict[str, str] = {}
    for value in func.params:
        if dims := strided(value.name, value.type):
            renamed[value.name] = permute(value.name, Permute(dims=dims, blocks="from"), value.type)
    writer.put(*(rename_operands(statement, renamed) for statement in func.body))
    returned: dict[str, str] = {}
    for name, kind in zip(func.returns, func.results, strict=True):
        if name not in returned and (dims := strided(name, kind)):
            returned[name] = permute(renamed.get(name, name), Permute(dims=dims, blocks="to"), kind)
    returns = tuple(returned.get(name, name) for name in func.returns)
    return replace(func, body=writer.written(), returns=returns)


def _to_permute(kind: ValueType, orders: Mapping[str, Order], program: Program) -> tuple[str, ...]:
    """The dimensions that a value on the chips' own memory has in strides."""
    if not isinstance(kind, TensorType) or kind.placement != ON_DEVICE or kind.in_flight:
        return ()
    return strided_dims(kind, orders, program.mesh)
