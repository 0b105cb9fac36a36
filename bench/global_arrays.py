"""A program as a plain jax.numpy function of global arrays, which XLA's own partitioner may lay out as it likes.

Layouts and movements mean nothing here: every value is whole. Norms, softmax and the like are decomposed first, as
they are for the compiler, so that both sides compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy
from jax import lax

from shardwright.ir import ops
from shardwright.ir.operation import Arg, Number
from shardwright.ir.program import Func, Let, Loop, Program, SetState, Statement
from shardwright.ir.types import DType
from shardwright.passes.compiling.decompose import Decompose

jnp: Any = jax.numpy
MODULE = SimpleNamespace(jax=jax, jnp=jnp, lax=lax)

Arrays = Mapping[str, Any]

FORMATS = {
    DType.F32: jnp.float32, DType.BF16: jnp.bfloat16, DType.F16: jnp.float16, DType.INT8: jnp.int8,
    DType.INT32: jnp.int32, DType.UINT32: jnp.uint32, DType.BOOL: jnp.bool_,
}  # fmt: skip


class Named(NamedTuple):
    """An array with the names of its dimensions."""

    array: Any
    names: tuple[str, ...]

    def aligned(self, names: Sequence[str]) -> Any:
        """The array with its dimensions in this order, extent 1 where it has none of that name."""
        ours = [name for name in names if name in self.names]
        turned = self.array.transpose([self.names.index(name) for name in ours])
        extents = dict(zip(ours, turned.shape, strict=True))
        return turned.reshape([extents.get(name, 1) for name in names])


Env = dict[str, Named]


def global_function(program: Program, func_name: str) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """`f(weights, state, *args) -> (results, state)` on global arrays."""
    program = Decompose(attend=True).run(program)
    func = program.func(func_name)

    def run(weights: Arrays, state: Arrays, *args: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        env: Env = {}
        for values, arrays in ((program.weights, weights), (program.state, state)):
            env.update({v.name: Named(arrays[v.name], v.shape.names) for v in values})
        env.update({v.name: Named(a, v.shape.names) for v, a in zip(func.params, args, strict=True)})
        _Tracer(program, func).block(func.body, env)
        results = tuple(env[name].aligned(kind.names) for name, kind in zip(func.returns, func.results, strict=True))
        return results, {v.name: env[v.name].array for v in program.state}

    return run


class _Tracer:
    def __init__(self, program: Program, func: Func) -> None:
        self.program = program
        self.sizes = program.sizes(func)

    def block(self, body: Sequence[Statement], env: Env) -> None:
        for statement in body:
            match statement:
                case Let():
                    env[statement.result.name] = self.let(statement, env)
                case SetState(state=state, operand=operand):
                    env[state] = Named(env[operand].aligned(env[state].names), env[state].names)
                case Loop():
                    self.loop(statement, env)
                case _:
                    pass

    def loop(self, loop: Loop, env: Env) -> None:
        """A scan: weights by slices, state carried whole and written in place."""
        state = self.program.state_names
        sliced = {n: v for n, v in env.items() if loop.dim in v.names and n not in state}
        stacked = {n: v for n, v in env.items() if loop.dim in v.names and n in state}
        single = {n: v for n, v in env.items() if n in state and n not in stacked}

        def without(value: Named) -> tuple[str, ...]:
            return tuple(name for name in value.names if name != loop.dim)

        def step(carry: Any, xs: Any) -> Any:
            values, caches, scalars = carry
            i, slices = xs
            inner = dict(env)
            for name, value in sliced.items():
                inner[name] = Named(slices[name], without(value))
            for name, value in stacked.items():
                at = value.names.index(loop.dim)
                inner[name] = Named(lax.dynamic_index_in_dim(caches[name], i, at, keepdims=False), without(value))
            for name, value in single.items():
                inner[name] = Named(scalars[name], value.names)
            for into, array in zip(loop.carries, values, strict=True):
                inner[into.value.name] = Named(array, into.value.shape.names)
            if loop.index is not None:
                inner[loop.index] = Named(i, ())
            self.block(loop.body, inner)
            caches: dict[str, Any] = {
                name: lax.dynamic_update_index_in_dim(
                    caches[name], inner[name].aligned(without(value)), i, value.names.index(loop.dim)
                )
                for name, value in stacked.items()
            }
            carried = tuple(
                inner[name].aligned(into.value.shape.names)
                for name, into in zip(loop.following, loop.carries, strict=True)
            )
            return (carried, caches, {name: inner[name].array for name in single}), None

        first = tuple(env[c.initial].aligned(c.value.shape.names) for c in loop.carries)
        slices = {n: jnp.moveaxis(v.array, v.names.index(loop.dim), 0) for n, v in sliced.items()}
        start = (first, {n: v.array for n, v in stacked.items()}, {n: v.array for n, v in single.items()})
        (values, caches, scalars), _ = lax.scan(step, start, (jnp.arange(self.sizes[loop.dim]), slices))
        for result, into, array in zip(loop.results, loop.carries, values, strict=True):
            env[result.name] = Named(array, into.value.shape.names)
        for name, array in {**caches, **scalars}.items():
            env[name] = Named(array, env[name].names)

    def let(self, statement: Let, env: Env) -> Named:
        shape = statement.result.shape
        operation, names = statement.operation, shape.names
        args = [o if isinstance(o, Number) else env[o] for o in statement.operands]
        array = self.compute(operation, args, names, FORMATS[shape.dtype], statement, env)
        extents = tuple(dim.size for dim in shape.dims)
        return Named(jnp.broadcast_to(array, extents).astype(FORMATS[shape.dtype]), names)

    def compute(
        self, operation: Any, args: list[Any], names: tuple[str, ...], dtype: Any, statement: Let, env: Env
    ) -> Any:
        """The result's array, its dimensions as `names` has them."""
        if operation.is_movement or isinstance(operation, ops.Alias | ops.Rename):
            return args[0].array
        if isinstance(operation, ops.TableOperation):
            return operation.entry.spelling.jax(
                MODULE, *(a.value if isinstance(a, Number) else a.aligned(names) for a in args)
            )
        match operation:
            case ops.Convert():
                return args[0].aligned(names).astype(dtype)
            case ops.Contract():
                return _contract(args[0], args[1], names, dtype)
            case ops.Sum(dims=dims) | ops.Max(dims=dims):
                axes = tuple(args[0].names.index(d) for d in dims)
                kept = tuple(n for n in args[0].names if n not in dims)
                reduce = jnp.sum if isinstance(operation, ops.Sum) else jnp.max
                return Named(reduce(args[0].array, axis=axes), kept).aligned(names)
            case ops.Iota(dim=dim):
                return jnp.arange(self.sizes[dim], dtype=dtype)
            case ops.Full():
                return jnp.asarray(args[0].value, dtype)
            case ops.Lookup(dim=dim):
                table, ids = args
                rest = tuple(n for n in table.names if n != dim)
                if ids.names and set(ids.names) <= set(rest):  # one for each row
                    others = tuple(n for n in rest if n not in ids.names)
                    at = ids.array.reshape(*ids.array.shape, *(1,) * (1 + len(others)))
                    rows = jnp.take_along_axis(table.aligned((*ids.names, dim, *others)), at, len(ids.names))
                    return Named(rows.squeeze(len(ids.names)), (*ids.names, *others)).aligned(names)
                return Named(table.aligned((dim, *rest))[ids.array], (*ids.names, *rest)).aligned(names)
            case ops.Rotary():
                return _rotary(operation, args, names)
            case ops.Update(dim=dim):
                shapes = [Arg("", None, a) if isinstance(a, Number) else Arg("", _shape(a)) for a in args]
                written = operation.written_dim(shapes)
                rows = args[1].aligned([(written or dim) if n == dim else n for n in names])
                start = args[2].value if isinstance(args[2], Number) else args[2].array
                if isinstance(args[2], Named) and args[2].names:  # one for each row
                    (of_row,) = args[2].names
                    at, along = names.index(of_row), [n for n in names if n != of_row].index(dim)

                    def write(cache: Any, row: Any, start: Any) -> Any:
                        return lax.dynamic_update_slice_in_dim(cache, row, start, along)

                    return jax.vmap(write, (at, at, 0), at)(args[0].aligned(names), rows, start)
                return lax.dynamic_update_slice_in_dim(args[0].aligned(names), rows, start, names.index(dim))
            case ops.Take(dim=dim, start=start, stop=stop):
                at = args[0].names.index(dim)
                if stop is None:
                    return lax.index_in_dim(args[0].array, start, at, keepdims=False)
                return lax.slice_in_dim(args[0].array, start, stop, axis=at)
            case ops.Concat(dim=dim):
                return jnp.concatenate([a.aligned(names) for a in args], axis=names.index(dim))
            case _:
                raise ValueError(f"{operation.keyword} is in none of the examples")


def _shape(value: Named) -> Any:
    from shardwright.ir.types import Dim, Shape

    return Shape(DType.F32, tuple(Dim(n, e) for n, e in zip(value.names, value.array.shape, strict=True)))


def _contract(left: Named, right: Named, names: tuple[str, ...], dtype: Any) -> Any:
    letters = {name: chr(ord("a") + i) for i, name in enumerate(dict.fromkeys((*left.names, *right.names)))}
    words = ["".join(letters[n] for n in row) for row in (left.names, right.names, names)]
    wider = dtype if dtype != left.array.dtype else None
    spec = f"{words[0]},{words[1]}->{words[2]}"
    return jnp.einsum(spec, left.array, right.array, preferred_element_type=wider)


def _rotary(operation: ops.Rotary, args: list[Any], names: tuple[str, ...]) -> Any:
    if len(args) > 2:
        raise ValueError("rotary with frequencies of its own is in none of the examples")
    others = tuple(n for n in names if n != operation.dim)
    x = args[0].aligned((*others, operation.dim)).astype(jnp.float32)
    rotated = operation.rotated or x.shape[-1]
    positions = args[1].value if isinstance(args[1], Number) else args[1].aligned(others)
    angles = jnp.asarray(positions, jnp.float32)[..., None] * operation.base ** (-jnp.arange(0, rotated, 2) / rotated)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turning, still = x[..., :rotated], x[..., rotated:]
    if operation.style == "neox":
        a, b = jnp.split(turning, 2, axis=-1)
        turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    else:
        a, b = turning[..., ::2], turning[..., 1::2]
        turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(turning.shape)
    return Named(jnp.concatenate([turned, still], axis=-1), (*others, operation.dim)).aligned(names)
