"""The statements that passes changing layouts look for: the batch, what is made of weights alone, projections,
attention."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.ir.digit_orders import splitting_axes
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import (
    Alias,
    Argmax,
    Attend,
    Contract,
    Iota,
    Layernorm,
    Max,
    Movement,
    Rename,
    Rmsnorm,
    Rotary,
    Softmax,
    Split,
    Sum,
    Update,
)
from shardwright.ir.program import Free, Func, Let, Loop, Marking, Program, SetState, Statement, Value
from shardwright.ir.types import Axes, TensorType, ValueType, is_short_axis
from shardwright.ir.verification.verifier import check_divisibility
from shardwright.ir.walk import lets_in, reads, statements, values_in


@dataclass(frozen=True)
class Projection:
    """A contraction of an activation with a weight: the statement, and which of its operands is which."""

    let: Let
    activation: int
    weight: int

    @property
    def activation_name(self) -> str:
        return str(self.let.operands[self.activation])

    @property
    def weight_name(self) -> str:
        return str(self.let.operands[self.weight])


@dataclass(frozen=True)
class AttentionStatement:
    """`attend` of activations. `heads` are the query's dimensions that number heads, those that keys have too first;
    `cached` names keys and values back to their projections, state and parameters among them, as far as nothing else
    uses them."""

    let: Let
    heads: tuple[str, ...]
    cached: frozenset[str]

    @property
    def operands(self) -> tuple[str, str, str]:
        """Query, keys, values."""
        q, k, v = map(str, self.let.operands[:3])
        return q, k, v


@dataclass(frozen=True)
class Dataflow:
    """A function with what its names are made of. A name that two loops define stands for both values."""

    program: Program
    func: Func

    @cached_property
    def lets(self) -> dict[str, list[Let]]:
        """The statements that define each name."""
        found: dict[str, list[Let]] = {}
        for let in lets_in(self.func.body):
            for value in let.results:
                found.setdefault(value.name, []).append(let)
        return found

    @cached_property
    def sources(self) -> dict[str, set[str]]:
        """The names that each name is computed from: operands, what a loop carries, what a state is set to."""
        found: dict[str, set[str]] = {}
        for statement, _ in self.func.walk():
            match statement:
                case Let():
                    for value in statement.results:
                        found.setdefault(value.name, set()).update(reads(statement))
                case SetState():
                    found.setdefault(statement.state, set()).add(statement.operand)
                case Loop():
                    for carry, following, result in zip(
                        statement.carries, statement.following, statement.results, strict=True
                    ):
                        found.setdefault(carry.value.name, set()).update((carry.initial, following))
                        found.setdefault(result.name, set()).add(carry.value.name)
                case _:
                    pass
        return found

    @cached_property
    def users(self) -> dict[str, list[Statement]]:
        """The statements that use each name."""
        found: dict[str, list[Statement]] = {}
        for statement in statements(self.func.body):
            for name in {*reads(statement), *(statement.names if isinstance(statement, Free) else ())}:
                found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def values(self) -> dict[str, Value]:
        """The values by name: weights, state and parameters, and what the statements define."""
        found = {value.name: value for value in (*self.program.weights, *self.program.state, *self.func.params)}
        found.update((value.name, value) for value in values_in(self.func.body))
        return found

    @cached_property
    def batch(self) -> str | None:
        """The batch dimension: the first of the results, and of the parameters, that only numbers sequences.

        It is in no declared weight, nothing sums over it, and no position depends on it.
        """
        taken = _dims_with_a_meaning(self.program, self.func)
        for kind in (*self.func.results, *(value.type for value in self.func.params)):
            for name in kind.names:
                if name not in taken:
                    return name
        return None

    def is_activation(self, name: str) -> bool:
        return self.batch is not None and name in self.values and self.batch in self.values[name].type.names

    @cached_property
    def weights(self) -> dict[str, Value]:
        """The values stored for multiplying with: declared weights; where there are none, parameters without batch."""
        leaves = self.program.weights or self.func.params
        return {
            value.name: value
            for value in leaves
            if value.shape.dims and self.batch not in value.shape.names and not _is_position(value)
        }

    @cached_property
    def made_of_weights(self) -> frozenset[str]:
        """Weights, and values computed from weights and numbers alone."""
        found = set(self.weights)
        for let in lets_in(self.func.body):
            names = reads(let)
            if names and all(name in found for name in names):
                found.update(value.name for value in let.results)
        return frozenset(found)

    @cached_property
    def projections(self) -> tuple[Projection, ...]:
        """Contractions of an activation with what is made of weights, in the order of the function."""
        found: list[Projection] = []
        for let in lets_in(self.func.body):
            for i in range(2) if isinstance(let.operation, Contract) else ():
                weight, other = str(let.operands[i]), str(let.operands[1 - i])
                if weight in self.made_of_weights and self.is_activation(other):
                    found.append(Projection(let, 1 - i, i))
                    break
        return tuple(found)

    @cached_property
    def attentions(self) -> tuple[AttentionStatement, ...]:
        """Every `attend` of activations, in the order of the function."""
        return tuple(
            self._attention(let, let.operation)
            for let in lets_in(self.func.body)
            if isinstance(let.operation, Attend) and all(self.is_activation(str(o)) for o in let.operands[:3])
        )

    @cached_property
    def heads(self) -> tuple[tuple[str, ...], ...]:
        """The heads of every attention, also where it is written as products around a softmax, or around its parts."""
        found = [attention.heads for attention in self.attentions]
        for let in lets_in(self.func.body):
            if isinstance(let.operation, Softmax | Max):
                found.extend(self._heads_of_scores(str(let.operands[0]), set(let.operation.dims)))
        return tuple(found)

    def _heads_of_scores(self, name: str, along: set[str]) -> Iterator[tuple[str, ...]]:
        """The heads of the products of queries and keys that a value is computed from; `along` runs over the keys."""
        seen, rest = {name}, [name]
        while rest:
            for let in self.lets.get(rest.pop(), ()):
                if not isinstance(let.operation, Contract):
                    before = set(reads(let)) - seen
                    seen |= before
                    rest.extend(before)
                    continue
                q, k = sorted(map(str, let.operands), key=lambda operand: self._has(operand, along))
                if self._has(k, along) and not self._has(q, along) and self.is_activation(q) and self.is_activation(k):
                    yield self._heads(q, k, {*along, *let.operation.dims})

    def _has(self, name: str, dims: set[str]) -> bool:
        return dims.issubset(self.values[name].type.names)

    def _attention(self, let: Let, operation: Attend) -> AttentionStatement:
        q, k, v = map(str, let.operands[:3])
        heads = self._heads(q, k, {operation.contracted, operation.causal})
        return AttentionStatement(let, heads, self._cached(k, v, let))

    def _heads(self, q: str, k: str, others: Collection[str | None]) -> tuple[str, ...]:
        """The query's dimensions that number heads, those that keys have too first; `others` do not."""
        taken = {self.batch, *others}
        own = [n for n in self.values[q].type.names if n not in taken and self._numbers_heads(n)]
        return tuple(sorted(own, key=lambda name: name not in self.values[k].type.names))

    def _numbers_heads(self, dim: str) -> bool:
        """Tells whether projections make the dimension, whole or split, as they do heads and not the queries'
        positions."""
        made = {name for p in self.projections for name in self.values[p.weight_name].type.names}
        return dim in made or any(
            isinstance(let.operation, Split) and dim in let.operation.parts and let.operation.source in made
            for let in lets_in(self.func.body)
        )

    def _cached(self, keys: str, values: str, attention: Let) -> frozenset[str]:
        found, rest = set[str](), [keys, values]
        while rest:
            name = rest.pop()
            if name not in found and self.is_activation(name) and is_numeric(self.values[name].type):
                found.add(name)
                if not any(isinstance(let.operation, Contract) for let in self.lets.get(name, ())):
                    rest.extend(self.sources.get(name, ()))
        while shared := {name for name in found if not self._used_within(name, found, attention)}:
            found -= shared
        return frozenset(found)

    def _used_within(self, name: str, found: set[str], attention: Let) -> bool:
        if name in self.program.state_names:
            return True
        users = self.users.get(name, ())
        return not any(
            isinstance(s, Loop)
            or (isinstance(s, Let) and s != attention and all(value.name not in found for value in s.results))
            for s in users
        )

    def is_demanded(self, name: str) -> bool:
        """Tells whether a value only demands a layout of another, as a query does that goes to the batch."""
        return any(is_demanded_alias(let) for let in self.lets.get(name, ()))

    def weight_path(self, name: str) -> Iterator[tuple[Let, int]]:
        """The statements, with the number of the operand, that read stored weights on the way to this value."""
        for let in self.lets.get(name, ()):
            for i, operand in enumerate(let.operands):
                if isinstance(operand, str) and operand in self.weights:
                    yield let, i
                elif isinstance(operand, str):
                    yield from self.weight_path(operand)

    def stored(self, name: str) -> list[Value]:
        """The stored weights that a value is, or is computed from."""
        if name in self.weights:
            return [self.weights[name]]
        return [self.weights[str(let.operands[i])] for let, i in self.weight_path(name)]


def _is_position(value: Value) -> bool:
    """Tells whether the values are indices or masks, which are small and stay where they are."""
    dtype = value.shape.dtype
    return (dtype.is_integer and dtype.bits == 32) or (not dtype.is_float and not dtype.is_integer)


def is_numeric(kind: ValueType) -> bool:
    """Tells whether a type is of numbers that are multiplied and not of indices or masks."""
    return not _is_position(Value("", kind))


def _dims_with_a_meaning(program: Program, func: Func) -> set[str]:
    """Dimensions in weights, summed over, looped over, or along which positions run."""
    found = {name for value in program.weights for name in value.type.names}
    for statement, _ in func.walk():
        match statement:
            case Loop():
                found.add(statement.dim)
            case Let(operation=Contract() | Sum() | Max() | Layernorm() | Rmsnorm() as operation):
                found.update(operation.dims)
            case Let(operation=Attend() as operation):
                found.update((*operation.pool, operation.contracted, operation.causal or ""))
            case Let(operation=Softmax() as operation):
                found.update((*operation.dims, operation.causal or ""))
            case Let(operation=Rotary() as operation):
                found.update((operation.dim, operation.seq or ""))
            case Let(operation=Update() as operation):
                found.update(operation.written_dims)
            case Let(operation=Iota() | Argmax() as operation):
                found.add(operation.dim)
            case Let(operation=Rename() as operation):
                found.update(name for pair in operation.pairs for name in pair)
            case _:
                pass
    return found


def is_demanded_alias(let: Let) -> bool:
    """Tells whether a statement only demands a layout: `q: B_xyzLHD = q_heads`."""
    value = let.result
    return isinstance(let.operation, Alias) and value.marking is Marking.DEMANDED and isinstance(value.type, TensorType)


# ---------------------------------------------------------------- options and faults


def axes_named(option: str, text: str, mesh: Mesh) -> Axes:
    """The mesh axes that an option names: `xy`, or `data+model` where a name is longer; `none` and `all` are words.

    Raises a `DiagnosticError` where the mesh has no such axis, or one is named twice.
    """
    if text in ("", "none"):
        return ()
    if text == "all":
        return mesh.axes
    names = text.split("+") if "+" in text or text in mesh else re.findall(r"[a-z][0-9]*|.", text)
    for name in names:
        if name not in mesh:
            raise fault(
                "bad-option",
                f"{option}: the mesh {mesh} has no axis {name}",
                NOWHERE,
                nearest(name, list(mesh)) or "write axes as in xy, data+model where names are longer, or all",
            )
        if names.count(name) > 1:
            raise fault("bad-option", f"{option}: {name} is named twice", NOWHERE, "name each axis once")
    return mesh.sorted(names)


def functions_named(option: str, text: str, program: Program) -> tuple[Func, ...]:
    """The functions that an option names, joined by `+`; `all` is every one."""
    if text == "all":
        return program.funcs
    known = {func.name: func for func in program.funcs}
    for name in text.split("+"):
        if name not in known:
            raise fault(
                "bad-option", f"{option}: the program has no function {name}", NOWHERE, f"it has {', '.join(known)}"
            )
    return tuple(known[name] for name in text.split("+"))


def require_surface(what: str, func: Func) -> None:
    """Raises where a movement is written in the function, which a new layout would make wrong."""
    for let in lets_in(func.body):
        if isinstance(let.operation, Movement):
            raise fault(
                "explicit-movement",
                f"{what} demands other layouts, and {func.name} has the movement {let.operation.keyword} written in it",
                let.span,
                "run it before insert-moves, or leave the movement to the compiler",
            )


def require_divisible(what: str, program: Program, func: Func, dim: str, axes: Axes) -> None:
    """Raises where the axes do not divide the dimension together."""
    mesh, size = program.mesh, program.sizes(func)[dim]
    if size % mesh.product(axes):
        product = "*".join(f"{axis}={mesh[axis]}" for axis in axes)
        joined = ("" if all(map(is_short_axis, axes)) else "+").join(axes)
        raise fault(
            "not-divisible",
            f"{what} splits {dim} over {joined}, and {dim}={size} of {func.name} is not divisible by {product}",
            func.span,
            f"name fewer axes, or make {dim} a multiple of {mesh.product(axes)}",
        )


def with_room(program: Program) -> Program:
    """The program with pinned orders extended by the digits that its layouts have come to need.

    They go behind those that are there, which leaves every index of a layout without them where it was. Raises a
    `DiagnosticError` where a dimension's size has no room for all axes that split it anywhere.
    """
    used: dict[str, set[str]] = {}
    for (name, _), uses in splitting_axes(program).items():
        used.setdefault(name, set()).update(uses)
    dims = tuple(
        dim
        if dim.order is None
        else replace(dim, order=(*dim.order, *program.mesh.sorted(used.get(dim.name, set()) - set(dim.order))))
        for dim in program.dims
    )
    made = replace(program, dims=dims)
    check_divisibility(made)
    return made
