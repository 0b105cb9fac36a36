"""Complex numbers as pairs of real ones: the same function, computed of real and imaginary parts.

The language has real formats alone, and what models compute of complex numbers is little: rotations of pairs, products,
sums.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardwright.tracing.inlined import body_of, unplaced
from shardwright.tracing.places import untraceable


class Pair(NamedTuple):
    """A complex array; JAX takes it as a tree of two."""

    re: Any
    im: Any


_ALIKE = {
    "broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "dynamic_slice", "concatenate",
    "rev", "gather", "select_n", "reduce_sum", "copy", "copy_p", "stop_gradient", "neg", "add", "sub", "add_any",
    "cumsum", "dynamic_update_slice", "split", "pad", "optimization_barrier",
}  # fmt: skip
"""What the real parts and the imaginary parts go through each for itself."""


def is_complex(variable: Any) -> bool:
    return str(getattr(variable.aval, "dtype", "")).startswith("complex")


def has_complex(jaxpr: Any) -> bool:
    """Tells whether a jaxpr, or one inside it, has complex values."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return any(
        any(map(is_complex, (*equation.invars, *equation.outvars))) or any(map(has_complex, _bodies(equation.params)))
        for equation in jaxpr.eqns
    )


def _bodies(params: Mapping[str, Any]) -> list[Any]:
    values = [each for value in params.values() for each in (value if isinstance(value, list | tuple) else [value])]
    return [value for value in values if hasattr(getattr(value, "jaxpr", value), "eqns")]


def without_complex(closed: Any) -> Any:
    """The jaxpr of the same function with pairs in the place of complex values. Raises a `DiagnosticError` where an
    argument or a result is complex, and for a primitive that has no rule."""
    import jax

    if not has_complex(closed):
        return closed
    for variables, what, way_out in (
        (closed.jaxpr.invars, "argument", "take its real and its imaginary part as two arguments"),
        (closed.jaxpr.outvars, "result", "return its real and its imaginary part"),
    ):
        if any(map(is_complex, variables)):
            raise untraceable(
                f"the language has no complex numbers, and the function has a complex {what}", "", way_out
            )

    def function(*args: Any) -> list[Any]:
        return _Run().run(closed, args)

    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars))


class _Run:
    def run(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        from jax.extend.core import Literal

        jaxpr = getattr(closed, "jaxpr", closed)
        known: dict[Any, Any] = dict(zip(jaxpr.invars, args, strict=True))
        known.update(zip(jaxpr.constvars, map(_pair_of, getattr(closed, "consts", ())), strict=True))
        for equation in jaxpr.eqns:
            given = [_pair_of(atom.val) if isinstance(atom, Literal) else known[atom] for atom in equation.invars]
            known.update(zip(equation.outvars, self.apply(jaxpr, equation, given), strict=True))
        return [_pair_of(atom.val) if isinstance(atom, Literal) else known[atom] for atom in jaxpr.outvars]

    def apply(self, jaxpr: Any, equation: Any, given: Sequence[Any]) -> Sequence[Any]:
        import jax

        name, params = equation.primitive.name, equation.params
        inside = any(map(has_complex, _bodies(params)))
        if not inside and not any(map(is_complex, (*equation.invars, *equation.outvars))):
            return _alone(jaxpr, equation, given)
        if call := body_of(equation, given):
            return self.run(*call)
        if all(map(_is_known, given)) and all(not variable.aval.shape for variable in equation.outvars):
            with jax.ensure_compile_time_eval():  # a number of numbers, as a transform is scaled by
                placed = equation.replace(params=unplaced(params))
                made = _alone(jaxpr, placed, [_joined(each) for each in given])
            return [_pair_of(np.asarray(each)) for each in made]
        if name == "cond":
            branches = [self.body(branch) for branch in params["branches"]]
            return jax.lax.switch(given[0], branches, *given[1:])
        if name == "scan":
            return self.scan(params, given)
        if name in _ALIKE:
            parts = [
                _alone(jaxpr, equation, [pair[k] if isinstance(pair, Pair) else pair for pair in given], real=True)
                for k in range(2)
            ]
            return [Pair(re, im) for re, im in zip(*parts, strict=True)]
        rule = _RULES.get(name)
        if rule is None:
            raise untraceable(f"{name} of complex numbers has no counterpart in the language", _place(equation),
                              "write it with real and imaginary parts")  # fmt: skip
        return [rule(params, *given)]

    def body(self, closed: Any) -> Callable[..., list[Any]]:
        def run(*args: Any) -> list[Any]:
            return self.run(closed, args)

        return run

    def scan(self, params: Mapping[str, Any], given: Sequence[Any]) -> list[Any]:
        import jax

        first, second = params["num_consts"], params["num_consts"] + params["num_carry"]

        def trip(carry: Any, x: Any) -> tuple[Any, Any]:
            made = self.run(params["jaxpr"], (*given[:first], *carry, *x))
            return tuple(made[: second - first]), tuple(made[second - first :])

        carry, stacked = jax.lax.scan(trip, tuple(given[first:second]), tuple(given[second:]), length=params["length"],
                                      reverse=params["reverse"])  # fmt: skip
        return [*carry, *stacked]


def _alone(jaxpr: Any, equation: Any, given: Sequence[Any], *, real: bool = False) -> list[Any]:
    """The results of one equation, which keeps its place in the user's file; `real` where its complex values are
    real now."""
    from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

    if real:
        return equation.primitive.bind(*given, **equation.params) if equation.primitive.multiple_results else [
            equation.primitive.bind(*given, **equation.params)]  # fmt: skip
    by_name = {atom: value for atom, value in zip(equation.invars, given, strict=True) if not isinstance(atom, Literal)}
    unnamed = jaxpr.debug_info and jaxpr.debug_info.with_unknown_names()
    alone = jaxpr.replace(
        eqns=[equation], constvars=[], invars=list(by_name), outvars=list(equation.outvars), debug_info=unnamed
    )
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*by_name.values())


def _is_known(value: Any) -> bool:
    from jax.core import Tracer

    return not any(isinstance(part, Tracer) for part in (value if isinstance(value, Pair) else (value,)))


def _joined(value: Any) -> Any:
    return np.asarray(value.re + 1j * value.im, np.complex64) if isinstance(value, Pair) else value


def _pair_of(value: Any) -> Any:
    if np.iscomplexobj(value):
        array = np.asarray(value)
        return Pair(np.real(array).astype(np.float32), np.imag(array).astype(np.float32))
    return value


def _place(equation: Any) -> str:
    from shardwright.tracing.capture_jax import place

    return place(equation)


def _times(_: Any, a: Pair, b: Pair) -> Pair:
    return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def _over(_: Any, a: Pair, b: Pair) -> Pair:
    size = b.re * b.re + b.im * b.im
    return Pair((a.re * b.re + a.im * b.im) / size, (a.im * b.re - a.re * b.im) / size)


def _exp(_: Any, a: Pair) -> Pair:
    import jax.numpy as jnp

    return Pair(jnp.exp(a.re) * jnp.cos(a.im), jnp.exp(a.re) * jnp.sin(a.im))


def _abs(_: Any, a: Pair) -> Any:
    import jax.numpy as jnp

    return jnp.sqrt(a.re * a.re + a.im * a.im)


def _convert(params: Mapping[str, Any], a: Any) -> Any:
    import jax.numpy as jnp

    if not str(params["new_dtype"]).startswith("complex"):
        return a.re
    return a if isinstance(a, Pair) else Pair(jnp.asarray(a, jnp.float32), jnp.zeros(jnp.shape(a), jnp.float32))


def _conjugate(_: Any, a: Any) -> Pair:
    import jax.numpy as jnp

    return Pair(a.re, -a.im) if isinstance(a, Pair) else Pair(a, jnp.zeros_like(a))


def _integer_power(params: Mapping[str, Any], a: Pair) -> Pair:
    made = a
    for _ in range(abs(params["y"]) - 1):
        made = _times(params, made, a)
    one = Pair(np.float32(1), np.float32(0))
    return one if params["y"] == 0 else made if params["y"] > 0 else _over(params, one, made)


def _dot(params: Mapping[str, Any], a: Pair, b: Pair) -> Pair:
    import jax

    def dot(x: Any, y: Any) -> Any:
        return jax.lax.dot_general(x, y, params["dimension_numbers"], preferred_element_type=np.float32)

    return Pair(dot(a.re, b.re) - dot(a.im, b.im), dot(a.re, b.im) + dot(a.im, b.re))


def _log(_: Any, a: Pair) -> Pair:
    import jax.numpy as jnp

    return Pair(jnp.log(a.re * a.re + a.im * a.im) / 2, jnp.arctan2(a.im, a.re))


def _sign(_: Any, a: Pair) -> Pair:
    import jax.numpy as jnp

    size = _abs(_, a)
    safe = jnp.where(size == 0, 1, size)
    return Pair(a.re / safe, a.im / safe)


def _equal(_: Any, a: Pair, b: Pair) -> Any:
    return (a.re == b.re) & (a.im == b.im)


def _unequal(_: Any, a: Pair, b: Pair) -> Any:
    return (a.re != b.re) | (a.im != b.im)


def _fft(params: Mapping[str, Any], a: Any) -> Any:
    made = _fft_of_parts().bind(*(a if isinstance(a, Pair) else (a,)), **params)
    return made[0] if len(made) == 1 else Pair(*made)


@functools.cache
def _fft_of_parts() -> Any:
    """The transform of real and imaginary parts as a primitive, for which the graph has a rule."""
    import jax
    from jax.core import ShapedArray
    from jax.extend.core import Primitive

    primitive = Primitive("fft_of_parts")
    primitive.multiple_results = True

    def shapes(*parts: Any, fft_type: Any, fft_lengths: Sequence[int]) -> list[Any]:
        operand = jax.ShapeDtypeStruct(parts[0].shape, np.float32 if len(parts) == 1 else np.complex64)
        made = jax.eval_shape(functools.partial(jax.lax.fft, fft_type=fft_type, fft_lengths=fft_lengths), operand)
        return [ShapedArray(made.shape, np.dtype("float32"))] * (2 if made.dtype.kind == "c" else 1)

    primitive.def_abstract_eval(shapes)
    return primitive


def _scattered(name: str) -> Callable[..., Any]:
    """Writes, or adds, real parts and imaginary parts each for themselves."""

    def scatter(params: Mapping[str, Any], base: Any, ids: Any, updates: Any) -> Pair:
        import jax

        function = {"scatter": jax.lax.scatter, "scatter-add": jax.lax.scatter_add}[name]
        words = ("indices_are_sorted", "unique_indices", "mode")
        parts = [
            function(a, ids, b, params["dimension_numbers"], **{word: params[word] for word in words})
            for a, b in zip(base, updates, strict=True)
        ]
        return Pair(*parts)

    return scatter


def _real(_: Any, a: Pair) -> Any:
    return a.re


def _imaginary(_: Any, a: Pair) -> Any:
    return a.im


def _complex(_: Any, re: Any, im: Any) -> Pair:
    return Pair(re, im)


_RULES: Mapping[str, Callable[..., Any]] = {
    "mul": _times, "div": _over, "exp": _exp, "abs": _abs, "convert_element_type": _convert, "conj": _conjugate,
    "integer_pow": _integer_power, "dot_general": _dot, "real": _real, "log": _log, "sign": _sign, "eq": _equal,
    "ne": _unequal, "imag": _imaginary, "complex": _complex, "fft": _fft,
    "scatter": _scattered("scatter"), "scatter-add": _scattered("scatter-add"),
}  # fmt: skip
