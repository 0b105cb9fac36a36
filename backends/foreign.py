"""Functions that programs call by name: some of `jax.lax` and of PyTorch, and kernels of users' own.

What stands in a program is a name and JSON. Names are looked up here and nowhere else, so that a program calls nothing
that is neither in this table nor declared by the Python that runs it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np

from shardwright.backends.jax_functions import ALONG, FUNCTIONS, POINTWISE, has_several
from shardwright.backends.number_formats import Array, numpy_dtype
from shardwright.backends.torch_operations import ATEN, FORMATS, listed_path, path_of, torch_operation
from shardwright.ir import ops
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault, nearest, placed
from shardwright.ir.names import is_valid_name
from shardwright.ir.program import Let, Program, Statement
from shardwright.ir.types import TensorType
from shardwright.ir.walk import Scope, Site, lets, map_sites, operand_names

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
            return importlib.import_module("jax").jit(call)

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
    if name in FUNCTIONS.keys() | ATEN.keys() | {STAND_IN}:
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
        *([near] if (near := nearest(name, [*FUNCTIONS, *ATEN, *KERNELS])) else []),
    )


def applied(m: Any, operation: ops.Foreign, *operands: Any) -> Any:
    """The result of the function. `m` has `jax`, `jnp`, `lax`, `KERNELS` and `torch_operation` for attributes: those of
    this process, for arrays, or pieces of source, as operands then are, for the call in an emitted module."""
    name, params = operation.name, params_of(operation)
    if name in FUNCTIONS:
        made = FUNCTIONS[name](m, params, *operands)
    elif path := torch_path(name):
        made = m.torch_operation(path, *operands, **params)
    else:
        made = m.KERNELS[name](*operands, **params)
    several = operation.result or has_several(name, params) or (name in KERNELS and len(KERNELS[name].results) > 1)
    if several or isinstance(made, tuple | list):
        return cast("Sequence[Any]", made)[operation.result]
    return made


def function_of(operation: ops.Foreign) -> Callable[..., Any]:
    """The function that gives the result of arrays of JAX. Raises `unknown-kernel` where there is none of this name."""
    if not is_known(operation.name):
        raise unknown(operation.name)
    jax = importlib.import_module("jax")
    here = SimpleNamespace(jax=jax, jnp=jax.numpy, lax=jax.lax, KERNELS=functions(), torch_operation=torch_operation)
    return functools.partial(applied, here, operation)


def is_known(name: str) -> bool:
    """Tells whether programs may call a function of this name, in this process."""
    return name in FUNCTIONS or name in ATEN or name in KERNELS


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
    function = function_of(operation)
    as_jax = importlib.import_module("jax").numpy.asarray
    with _failing_here(operation):
        made = np.asarray(function(*map(as_jax, arrays)))
    _check_shape(operation, made.shape, shape)
    return made


def check_calls(program: Program, *, is_run_here: bool = True) -> None:
    """Raises, at its place, `bad-call` where a function of JAX does not take a chip's operands or parameters, or gives
    another shape, in an explicit program; and `unknown-kernel`, where it is run here, for what is not known here."""
    for let, scope in lets(program):
        if isinstance(let.operation, ops.Foreign) and (is_run_here or let.operation.name in FUNCTIONS):
            with placed(let.span):
                _check_call(program, let, let.operation, scope)


def _check_call(program: Program, statement: Let, operation: ops.Foreign, scope: Scope) -> None:
    function = function_of(operation)
    kinds = [scope.type_of(name) for name in operand_names(statement.operands)]
    given = [kind for kind in kinds if isinstance(kind, TensorType)]
    result = statement.results[0].type
    if torch_path(operation.name) or not isinstance(result, TensorType) or len(given) < len(statement.operands):
        return  # PyTorch tells when it runs
    jax = importlib.import_module("jax")
    shapes = [jax.ShapeDtypeStruct(kind.local_shape(program.mesh), numpy_dtype(kind.dtype)) for kind in given]
    with _failing_here(operation):
        made = jax.eval_shape(function, *shapes)
    _check_shape(operation, made.shape, result.local_shape(program.mesh))


@contextlib.contextmanager
def _failing_here(operation: ops.Foreign) -> Generator[None]:
    """Raises `bad-call` for whatever the function raises, which is JAX's or a user's and may be anything."""
    try:
        yield
    except DiagnosticError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        message = f"{operation.name} fails with these operands and parameters: {said}"
        raise fault("bad-call", message, NOWHERE, "params='{...}' are those that the function has by name") from error


def _check_shape(operation: ops.Foreign, made: Sequence[int], stated: Sequence[int]) -> None:
    if tuple(made) != tuple(stated):
        gives, says = (" x ".join(map(str, shape)) or "a number" for shape in (made, stated))
        raise fault("bad-call", f"{operation.name} gives {gives} on a chip, and its type says {says}", NOWHERE)


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
