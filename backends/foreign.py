"""Functions that programs call by name: some of `jax.lax` and of PyTorch, and kernels of users' own.

What stands in a program is a name and JSON. Names are looked up here and nowhere else, so that a program calls nothing
that is neither in this table nor declared by the Python that runs it.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from shardwright.backends.number_formats import Array, numpy_dtype
from shardwright.backends.torch_operations import ATEN, FORMATS, listed_path, path_of, torch_operation
from shardwright.ir import ops
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault, nearest, placed
from shardwright.ir.names import is_valid_name
from shardwright.ir.program import Let, Program, Statement
from shardwright.ir.types import TensorType
from shardwright.ir.walk import Scope, Site, map_sites, operand_names, sites

POINTWISE = frozenset((
    "floor", "ceil", "round", "erf_inv", "lgamma", "digamma", "atan2", "pow", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "nextafter", "population_count", "clz", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_not", "shift_left", "shift_right_logical", "shift_right_arithmetic", "bessel_i0e", "bessel_i1e",
    "igamma", "igammac", "regularized_incomplete_beta",
))  # fmt: skip
"""Functions of `jax.lax` that compute each element from those at its place."""

ALONG = frozenset({"cumprod", "cummax", "cummin", "cumlogsumexp"})
"""Functions of `jax.lax` along `axis`."""

_LAX = {
    **{name: name for name in (*POINTWISE, *ALONG, "conv_general_dilated", "ragged_dot", "reduce_prod")},
    "cholesky": "linalg.cholesky",
    "triangular_solve": "linalg.triangular_solve",
    "lu_pivots_to_permutation": "linalg.lu_pivots_to_permutation",
    **{name: f"linalg.{name}" for name in ("lu", "qr", "svd", "eigh")},
    "reduce_window_max": "reduce_window",
    "reduce_window_min": "reduce_window",
    "reduce_window_sum": "reduce_window",
}
_BEFORE_PARAMS = {
    "reduce_window_max": ("-jnp.inf", "lax.max"),
    "reduce_window_min": ("jnp.inf", "lax.min"),
    "reduce_window_sum": ("0", "lax.add"),
}
"""The source that the function takes between its operands and its parameters."""

_OF_SEVERAL = frozenset({"lu", "qr", "svd", "eigh"})
"""Functions of `jax.lax` with more than one result."""

_AT = {"scatter_add": "add", "scatter_max": "max", "scatter_min": "min", "scatter_mul": "multiply"}
"""Functions that combine rows with those of a table at indices along `axis`, by the method of `jnp.ndarray.at`."""

LAX = frozenset({*_LAX, *_AT, "fft", "random_seed", "random_bits", "random_split", "random_fold_in"})
"""The functions of JAX that programs may call."""

STAND_IN = "stand_in"
"""The name of what stands in for another function, at other sizes than it takes."""

PREFIX = "shardwright_kernel_"
"""The names of kernels begin with this in a jaxpr."""


@dataclass(frozen=True)
class UserKernel:
    """A function of a user's own: the axes of its operands and results by letter, and those that chips may split."""

    name: str
    function: Callable[..., Any]
    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    splits: tuple[str, ...]

    @property
    def torch_path(self) -> str:
        """The place below `torch.ops` of an operation of PyTorch, "" of a function of JAX."""
        return path_of(self.function)


KERNELS: dict[str, UserKernel] = {}
"""Those that `kernel` has declared in this process, by name."""

F = TypeVar("F", bound=Callable[..., Any])


def kernel(axes: str, *, splits: str = "", name: str = "") -> Callable[[F], F]:
    """Declares a function of JAX, as one in Pallas, that is called by name as it is: `trace` does not look inside. Or
    an operation of PyTorch: what `torch.library.custom_op` makes, or any below `torch.ops`.

    `axes` names the axes of operands and results, `"b t h d, b s h d, b s h d -> b t h d"`; `splits` those that chips
    may divide between them, `"b h"`, since the function does the same at each of their indices. Along all others a chip
    has its operands whole.

    >>> import shardwright
    >>> @shardwright.kernel("b t -> b t", splits="b")
    ... def running_product(x):
    ...     return jax.numpy.cumprod(x, axis=1)

    Raises `DiagnosticError` where `axes` or `splits` does not say that.
    """
    before, arrow, after = axes.partition("->")
    operands, results = (tuple(tuple(part.split()) for part in side.split(",")) for side in (before, after))
    split = tuple(splits.split())

    def declare(function: F) -> F:
        path = path_of(function)
        own = name or (path.split(".")[1] if path else getattr(function, "__name__", ""))
        _examine(own, arrow, operands, results, split, axes)
        KERNELS[own] = UserKernel(own, function, operands, results, split)
        if path:
            return function

        def call(*args: Any) -> Any:
            return function(*args)

        call.__name__ = f"{PREFIX}{own}"

        @functools.cache
        def jitted() -> Any:
            return _jax().jit(call)

        @functools.wraps(function)
        def called(*args: Any) -> Any:
            return jitted()(*args)

        made: Any = called
        return made

    return declare


def _examine(name: str, arrow: str, operands: Sequence[Sequence[str]], results: Sequence[Sequence[str]],
             splits: Sequence[str], axes: str) -> None:  # fmt: skip
    """Raises where a declaration does not say what it has to."""
    example = 'as in @shardwright.kernel("b t d, d -> b t", splits="b")'
    if not is_valid_name(name):
        raise fault("bad-kernel", f"a kernel cannot be called `{name}`", NOWHERE, "name=... is a name of lower case")
    if name in LAX | ATEN.keys() | {STAND_IN}:
        whose = "an operation of PyTorch that is listed" if name in ATEN else "a function of jax.lax"
        raise fault("bad-kernel", f"{name} is {whose}", NOWHERE, "name=... is another name")
    if not arrow:
        raise fault("bad-kernel", f"`{axes}` has no arrow between operands and results", NOWHERE, example)
    for row in (*operands, *results):
        twice = next((axis for axis in row if row.count(axis) > 1), None)
        if twice is not None:
            raise fault("bad-kernel", f"{name} names the axis {twice} of an operand twice", NOWHERE, example)
    for axis in splits:
        if not any(axis in row for row in operands) or not all(axis in row for row in results):
            raise fault(
                "bad-kernel", f"{name}: splits={axis}, and it is no axis of an operand and of all results", NOWHERE,
                "what is divided between chips is so in the results, too",
            )  # fmt: skip


def params_of(operation: ops.Foreign) -> dict[str, Any]:
    """The parameters of the text, with tuples for lists. Raises `bad-static` where they are no JSON object."""
    try:
        made: Any = json.loads(operation.params or "{}")
    except ValueError as error:
        raise fault("bad-static", f"foreign: params are no JSON: {error}", NOWHERE) from None
    given = cast("dict[str, Any]", made) if isinstance(made, dict) else {"": None}
    if not all(key.isidentifier() for key in given):
        raise fault("bad-static", "foreign: params are an object of JSON, as in params='{\"axis\": 1}'", NOWHERE)
    formats: dict[str, Any] = given.get("formats") or {}
    if type(formats) is not dict or not set(map(str, formats.values())) <= set(FORMATS):
        raise fault("bad-static", f"foreign: formats are those of integers: {', '.join(FORMATS)}", NOWHERE)
    return {key: _tuples(value) for key, value in given.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, cast("list[Any]", value))) if isinstance(value, list) else value


def torch_path(name: str) -> str:
    """The place below `torch.ops` of an operation of PyTorch that programs may call, "" of other functions."""
    return KERNELS[name].torch_path if name in KERNELS else listed_path(name)


def kernel_at(path: str) -> str:
    """The name by which programs call an operation of PyTorch, declared or listed, "" where there is none."""
    own = (name for name, kernel in KERNELS.items() if kernel.torch_path == path)
    return next(own, next((name for name in ATEN if listed_path(name) == path), "")) if path else ""


def kernel_of(name: str) -> UserKernel:
    """The axes of a kernel as declared, or of an operation of PyTorch as listed."""
    if name in KERNELS:
        return KERNELS[name]
    axes, splits = ATEN[name]
    operands, results = (tuple(tuple(part.split()) for part in side.split(",")) for side in axes.split("->"))
    return UserKernel(name, torch_operation, operands, results, tuple(splits.split()))


def unknown(name: str) -> DiagnosticError:
    """The fault of a name that is neither in the table nor declared."""
    return fault(
        "unknown-kernel",
        f"the program calls {name}, which is no function of jax.lax that programs may call and no kernel declared here",
        NOWHERE,
        "declare it with @shardwright.kernel in the Python that runs the program",
        *([near] if (near := nearest(name, [*LAX, *ATEN, *KERNELS])) else []),
    )


def source(operation: ops.Foreign, codes: Sequence[str]) -> str:
    """The call in an emitted module, which has `lax`, `jax`, `jnp`, `KERNELS` and `torch_operation`."""
    name, params = operation.name, params_of(operation)
    key = f"jax.random.wrap_key_data({codes[0]})"
    if name == "fft":
        given = codes[0] if len(codes) == 1 else f"lax.complex({', '.join(codes)})"
        part = "" if params["kind"] == "IRFFT" else (".real", ".imag")[operation.result]
        return f"lax.fft({given}, {params['kind']!r}, {params['lengths']!r}){part}"
    if name in _AT:
        table, ids, rows = codes
        place = ", ".join((":",) * params["axis"] + (ids,))
        return f"{table}.at[{place}].{_AT[name]}({rows}, mode='drop', wrap_negative_indices=False)"
    if name == "random_seed":
        made = f"jax.random.key_data(jax.random.key({codes[0]}))"
    elif name == "random_bits":
        made = f"jax.random.bits({key}, {params['shape']!r}, jnp.uint32)"
    elif name == "random_split":
        made = f"jax.random.key_data(jax.random.split({key}, {params['shape']!r}))"
    elif name == "random_fold_in":
        made = f"jax.random.key_data(jax.random.fold_in({key}, {codes[1]}))"
    elif name in _LAX:
        given = (*codes, *_BEFORE_PARAMS.get(name, ()), *(f"{key}={value!r}" for key, value in params.items()))
        made = f"lax.{_LAX[name]}({', '.join(given)})"
    else:
        path = torch_path(name)
        given = (*([repr(path)] if path else []), *codes, *(f"{key}={value!r}" for key, value in params.items()))
        made = f"{'torch_operation' if path else f'KERNELS[{name!r}]'}({', '.join(given)})"
    return f"{made}[{operation.result}]" if operation.result or _has_several(name) else made


def _has_several(name: str) -> bool:
    """Tells whether the function has several results, of which a statement takes one."""
    return name in _OF_SEVERAL or (name in KERNELS and len(KERNELS[name].results) > 1)


def function_of(operation: ops.Foreign) -> Callable[..., Any]:
    """The function that is called, of arrays of JAX. Raises `unknown-kernel` where there is none of this name."""
    name, params = operation.name, params_of(operation)
    jax = _jax()
    lax, random = jax.lax, jax.random

    def fourier(real: Any, *imaginary: Any) -> Any:
        made = lax.fft(lax.complex(real, *imaginary) if imaginary else real, params["kind"], params["lengths"])
        return made if params["kind"] == "IRFFT" else (made.real, made.imag)

    def combined(table: Any, ids: Any, rows: Any) -> Any:
        at = table.at[(*(slice(None),) * params["axis"], ids)]
        return getattr(at, _AT[name])(rows, mode="drop", wrap_negative_indices=False)

    def seed(number: Any) -> Any:
        return random.key_data(random.key(number))

    def bits(key: Any) -> Any:
        return random.bits(random.wrap_key_data(key), params["shape"], "uint32")

    def split(key: Any) -> Any:
        return random.key_data(random.split(random.wrap_key_data(key), params["shape"]))

    def fold_in(key: Any, data: Any) -> Any:
        return random.key_data(random.fold_in(random.wrap_key_data(key), data))

    own = {"fft": fourier, "random_seed": seed, "random_bits": bits, "random_split": split, "random_fold_in": fold_in}
    if name in own or name in _AT:
        return own.get(name, combined)
    if name in _LAX:
        function: Any = functools.reduce(getattr, _LAX[name].split("."), lax)
        words: Mapping[str, Any] = {
            "-jnp.inf": -math.inf, "jnp.inf": math.inf, "0": 0,
            "lax.max": lax.max, "lax.min": lax.min, "lax.add": lax.add,
        }  # fmt: skip
        between = [words[word] for word in _BEFORE_PARAMS.get(name, ())]
        return lambda *args: function(*args, *between, **params)
    if path := torch_path(name):
        return functools.partial(torch_operation, path, **params)
    if name not in KERNELS:
        raise unknown(name)
    return KERNELS[name].function


def functions() -> dict[str, Callable[..., Any]]:
    """The kernels of this process by name, as functions of arrays of JAX."""
    return {
        name: functools.partial(torch_operation, kernel.torch_path) if kernel.torch_path else kernel.function
        for name, kernel in KERNELS.items()
    }


def keeps_format(operation: ops.Foreign) -> bool:
    """Tells whether the function of `jax.lax` gives the number format of its first operand."""
    return operation.name in POINTWISE | ALONG


def call(operation: ops.Foreign, arrays: Sequence[Array], shape: Sequence[int]) -> Array:
    """The result of the function for these arrays, on one chip, where it has this shape. Raises `bad-call` where the
    function does not take them, or gives another shape."""
    made = np.asarray(_answered(operation, lambda: function_of(operation)(*map(_jax().numpy.asarray, arrays))))
    _check_shape(operation, made.shape, shape)
    return made


def _jax() -> Any:
    return importlib.import_module("jax")


def check_calls(program: Program, *, is_run_here: bool = True) -> None:
    """Raises, at its place, `bad-call` where a function of JAX does not take a chip's operands or parameters, or gives
    another shape, in an explicit program; and `unknown-kernel`, where it is run here, for what is not known here."""
    for func in program.funcs:
        for site in sites(program, func):
            statement = site.statement
            operation = statement.operation if isinstance(statement, Let) else None
            if (
                isinstance(statement, Let)
                and isinstance(operation, ops.Foreign)
                and (is_run_here or operation.name in LAX)
            ):
                with placed(statement.span):
                    _check_call(program, statement, operation, site.scope)


def _check_call(program: Program, statement: Let, operation: ops.Foreign, scope: Scope) -> None:
    if operation.name not in LAX | ATEN.keys() | KERNELS.keys():
        raise unknown(operation.name)
    kinds = [scope.type_of(name) for name in operand_names(statement.operands)]
    result = statement.results[0].type
    if torch_path(operation.name) or not isinstance(result, TensorType):
        return
    jax = _jax()
    given = [
        jax.ShapeDtypeStruct(kind.local_shape(program.mesh), numpy_dtype(kind.dtype))
        for kind in kinds if isinstance(kind, TensorType)
    ]  # fmt: skip
    if len(given) < len(statement.operands):  # a number stands there
        return
    made = _answered(operation, lambda: jax.eval_shape(function_of(operation), *given))
    _check_shape(operation, made.shape, result.local_shape(program.mesh))


def _check_shape(operation: ops.Foreign, made: Sequence[int], stated: Sequence[int]) -> None:
    if tuple(made) != tuple(stated):
        gives, says = (" x ".join(map(str, shape)) or "a number" for shape in (made, stated))
        raise fault("bad-call", f"{operation.name} gives {gives} on a chip, and its type says {says}", NOWHERE)


def _answered(operation: ops.Foreign, function: Callable[[], Any]) -> Any:
    """The result of the function. Raises `bad-call` where it takes no such operands or parameters."""
    try:
        made = function()
        several = cast("Sequence[Any]", made) if isinstance(made, (tuple, list)) else [made]
        return several[operation.result]
    except DiagnosticError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise fault(
            "bad-call", f"{operation.name} does not take these operands and parameters: {said}", NOWHERE,
            "params='{...}' are those that the function has by name",
        ) from error  # fmt: skip


def standing_in(program: Program) -> Program:
    """The program with others in the place of foreign functions."""

    def rewrite(site: Site) -> Sequence[Statement]:
        statement = site.statement
        if isinstance(statement, Let) and isinstance(statement.operation, ops.Foreign):
            return (replace(statement, operation=replace(statement.operation, name=STAND_IN, params="", result=0)),)
        return (statement,)

    return replace(program, funcs=tuple(map_sites(program, func, rewrite) for func in program.funcs))


def stand_in(
    operation: ops.Foreign, arrays: Sequence[Array], names: Sequence[Sequence[str]], sizes: Mapping[str, int]
) -> Array:
    """Another function in the place of this one, for programs at other sizes than it takes: every element depends on
    every element that the operation says it may depend on, and on its own place along dimensions that are not split."""
    kept = operation.splits
    rest = [name for name in operation.dims if name not in kept]
    made: Array = (np.arange(math.prod(sizes[name] for name in rest)) % 3).reshape([sizes[name] for name in rest])
    for at, (array, own) in enumerate(zip(arrays, names, strict=True)):
        here = [name for name in kept if name in own]
        order = [*map(own.index, here), *(i for i, name in enumerate(own) if name not in kept)]
        rows = array.transpose(order).reshape([*(sizes[name] for name in here), -1])
        weights: Array = np.arange(rows.shape[-1], dtype=np.int64) * 7 % 5 + 1 + at
        exact = rows.dtype.kind in "biu"
        weighted: Array = np.ascontiguousarray(rows.astype(np.int64 if exact else np.float64) * weights)
        mixed: Array = weighted.sum(axis=-1) if exact else weighted.sum(axis=-1) / rows.shape[-1]
        shape = [*(sizes[name] if name in here else 1 for name in kept), *(1 for _ in rest)]
        made = np.asarray(made + mixed.reshape(shape))
    order = [*kept, *rest]
    made = np.broadcast_to(made, [sizes[name] for name in order])
    return made.transpose([order.index(name) for name in operation.dims])
