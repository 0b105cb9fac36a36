"""Traces a function and proves the program by running both on the same random inputs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import functools
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Any

from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.models.weight_map import NUMBERED, WeightEntry, WeightMap
from shardwright.tracing.comparing import Array, Difference, difference_of
from shardwright.tracing.places import definition_of, of_file, of_function, place_of, untraceable, untraced
from shardwright.tracing.proof_sizes import MOST_WORK, PATIENCE, alike, smaller_arguments, smaller_sizes, work_of
from shardwright.tracing.random_keys import without_keys

if TYPE_CHECKING:
    from shardwright.ir import walk
    from shardwright.ir.program import Program
    from shardwright.tracing.demands import StatedShardings
    from shardwright.tracing.graph import TracedFunction
    from shardwright.tracing.writer import ValueSite


@dataclass(frozen=True)
class Trace:
    """A traced function: the program and its text, and how far its meaning is from the function."""

    program: Program
    text: str
    inputs: tuple[tuple[str, str, str], ...]
    """The path in the pytree, the parameter's name and its type."""
    results: tuple[tuple[str, str, str], ...]
    operations: Mapping[str, int]
    largest_relative_difference: float
    """Infinite where the two differ in shape or are not finite, NaN where nothing could be compared."""
    seconds: float
    weights: Mapping[str, Array]
    """Arrays that the function closes over, or a module's parameters and buffers, which are weights of the program, or
    state where a call changes them."""
    paths: Mapping[str, str]
    """The weights of a module by the program's names, as its `state_dict` names them, with `{layer}` for the number of
    those that are stacked; empty for functions."""
    sites: Mapping[str, ValueSite] = field(default_factory=dict[str, "ValueSite"], repr=False)
    """Where the function has the values that stand in the program."""
    opaque: tuple[str, ...] = ()
    """The functions that the program calls by name, because the language has no words for them."""
    compared_at: Mapping[str, int] = field(default_factory=dict[str, int])
    """The sizes of dimensions at which the two were compared, where they were not the function's own."""
    at_examples: bool = False
    """They were compared at the example's own arguments, because at random ones both differ."""
    at_smaller: bool = False
    """They were compared at random arguments drawn smaller, because at larger ones the function amplifies rounding."""
    amplified: float = 0.0
    """How far the function is from itself where its arguments change by one unit in the last place, if that explains
    why the two differ too much; else 0."""
    not_compared: str = ""
    """Why nothing could be compared, "" where something was."""
    notes: tuple[str, ...] = ()
    """Remarks on what the `shardings` say that types have no words for, or what a module changes that is no state."""
    unread: tuple[str, ...] = ()
    """Names in a module's `state_dict` that are no weights of the program: a count of batches, a weight's other name,
    or what a call changes."""
    slices: Mapping[str, ValueSite] = field(default_factory=dict[str, "ValueSite"], repr=False)
    """Where the bodies of the function's loops have slices of values, by the names of these."""
    place: str = ""
    """`FILE:LINE` where the function begins, "" where no file of the user's has it."""

    @property
    def weight_map(self) -> WeightMap:
        """The mapping of a module's weights, for `export` and for `run --weights`."""
        kinds = {value.name: value.shape for value in self.program.weights if value.name in self.paths}
        entries: dict[str, WeightEntry] = {}
        for name, shape in kinds.items():
            stored = shape.names[1:] if NUMBERED.search(self.paths[name]) else shape.names
            entries[name] = WeightEntry(shape.names, tuple((dim,) for dim in stored), self.paths[name])
        sizes = {dim.name: dim.size for shape in kinds.values() for dim in shape.dims}
        return WeightMap(self.program.funcs[0].name, sizes, entries, self.unread)

    def require_agreement(self) -> None:
        """Raises a `DiagnosticError` where the program and the function were compared and differ."""
        from shardwright.compiling.compile_program import tolerance

        if self.not_compared or self.largest_relative_difference <= tolerance(self.program):
            return
        reason = (
            f"the traced program differs from the function by {self.largest_relative_difference:.1e}, relative to "
            "the largest magnitude"
        )
        if self.amplified:
            reason += (
                f", and the function from itself by {self.amplified:.1e} where its arguments change by one unit in "
                "the last place"
            )
            way_out = (
                "rounding decides what the function gives there: give arrays that keep its values within bounds, as "
                "weights over the root of what products sum, or shapes alone, jax.ShapeDtypeStruct, which are drawn so"
            )
        else:
            way_out = (
                "give arrays as example arguments, not shapes: integers, and floats without a negative one, are drawn "
                "between their least and greatest, and where no random numbers do, their own are compared"
            )
        raise self.refused("not-the-function", reason, way_out)

    def refused(self, code: str, message: str, *notes: str) -> DiagnosticError:
        """The error of the function as a whole, at its place."""
        return of_function(code, message, self.place, self.program.funcs[0].name, *notes)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str | None:
        return self.program.html()

    def as_json(self) -> dict[str, object]:
        def edges(of: Sequence[tuple[str, str, str]]) -> list[dict[str, str]]:
            return [{"path": path, "name": name, "type": type_} for path, name, type_ in of]

        difference = self.largest_relative_difference
        return {
            "program": self.text,
            "inputs": edges(self.inputs),
            "results": edges(self.results),
            "state": edges([(self.paths[value.name], value.name, str(value.type)) for value in self.program.state]),
            "operations": dict(self.operations),
            "opaque": list(self.opaque),
            "unnamed": 0,
            "at_examples": self.at_examples,
            "at_smaller": self.at_smaller,
            "largest_relative_difference": None if math.isnan(difference) else difference,
            "compared_at": dict(self.compared_at) or None,
            "seconds": self.seconds,
        }


def trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    mesh: Mapping[str, int] | None = None,
    name: str = "",
    seed: int = 0,
    shardings: Source | str | None = None,
) -> Trace:
    """The program of a function of JAX, or of a module of PyTorch, at these example arguments: arrays, tensors or
    `jax.ShapeDtypeStruct`.

    A function that would take long at these sizes is compared with its program at smaller ones, if it gives the same
    program there (`Trace.compared_at`). `shardings` is a module in MLIR, as `jit(f).lower(...).as_text()` gives it: the
    types of its arguments and results, by Shardy, are demands in place of the function's own. Raises a
    `DiagnosticError` where the function does what the language has no word for, with the line that does it.
    """
    from shardwright.backends.targets.functions import under_mesh
    from shardwright.tracing.demands import StatedShardings

    stated = StatedShardings.of(shardings) if shardings is not None else None
    with under_mesh(args, mesh):
        return _trace(function, args, mesh or {}, name, seed, stated)


def _trace(
    function: Callable[..., Any], args: Sequence[Any], mesh: Mapping[str, int], name: str, seed: int,
    stated: StatedShardings | None, *, is_smaller: bool = False,
) -> Trace:  # fmt: skip
    from shardwright.compiling.compile_program import load, print_program
    from shardwright.passes.compiling.recognize import Recognize, swept
    from shardwright.tracing.capture_jax import capture
    from shardwright.tracing.capture_torch import exported, is_module, require_no_tensors
    from shardwright.tracing.roles import letters
    from shardwright.tracing.rolling import rolled
    from shardwright.tracing.rules import RULES
    from shardwright.tracing.writer import written

    began, place = perf_counter(), definition_of(function)
    if not is_module(function):
        require_no_tensors(args, name or _name(function), place)
        function, args = without_keys(function, args)
    module = exported(function, args) if is_module(function) else None
    try:
        if module is None:
            traced = capture(function, args, name or _name(function))
        else:
            args = module.arguments
            own = name or _name(function).lower()
            traced = capture(module.function, args, own, module.weights, module.changed)
        traced = replace(
            rolled(traced), arguments=argument_names(getattr(function, "forward", function) if module else function)
        )
    except DiagnosticError:
        raise
    except Exception as error:
        raise untraced(function, name or _name(function), error) from error

    if stated is not None:
        traced = stated.on(traced, same_sizes=not is_smaller)
    if mesh and (lacking := [axis for axis in traced.split_axes() if axis not in mesh]):
        listed = " ".join(f"{axis}={size}" for axis, size in mesh.items())
        raise untraceable(
            f"shardings of {traced.name} split over {', '.join(lacking)}, and the mesh given is {listed}", place,
            "leave --mesh away, and the mesh is that of the shardings",
        )  # fmt: skip

    def recognized(text: str) -> Program:
        loaded = Recognize().run(load(Source(f"<{traced.name}>", text)))
        return replace(loaded, funcs=tuple(map(swept, loaded.funcs)))

    made = written(traced, RULES, mesh, lambda text, firm: letters(recognized(text), firm))
    program, names = _with_used_dims(_in_any_order(recognized(made.text))), made.names
    func = program.funcs[0]
    text = print_program(program)
    stored = [value.name for value in (*program.weights, *program.state)]
    weights = dict(zip(stored, traced.graph.constants.values(), strict=True))
    seconds = perf_counter() - began
    compared_at: Mapping[str, int] = {}
    work, difference, not_compared = work_of(program), Difference(math.nan), ""
    if module is None and work > MOST_WORK and not is_smaller:
        fixed = {size for variable in traced.graph.constants for size in variable.shape}
        dims = [made.sites[parameter].dims for parameter in names]
        candidates = smaller_sizes(program, fixed, math.prod(traced.mesh.values()))
        difference, compared_at = _smaller_difference(
            program, text, candidates, dims, (function, args, name, seed, stated)
        )
    if module is not None or work <= MOST_WORK or (math.isnan(difference.largest) and work <= PATIENCE * MOST_WORK):
        asked = function, module, args, seed, is_smaller
        difference = difference_of(program, asked, (traced, names, weights))
    elif math.isnan(difference.largest):
        not_compared = "the function takes long at these sizes, and is another at smaller ones"
    types = (str(parameter.type) for parameter in func.params)
    paths = (".".join(edge.path) for edge in traced.inputs)
    return Trace(
        program, text,
        tuple(zip(paths, names, types, strict=True)),
        tuple((".".join(edge.path), str(value), str(type_))
              for edge, value, type_ in zip(traced.results, _returned(text), func.results, strict=True)),
        Counter(_operations(program)), difference.largest, seconds, weights,
        {name: edge.name for name, edge in zip(stored, traced.weights, strict=True)
         if module is not None and (edge.members or edge.name in module.weights.keys() - module.lifted)},
        made.sites, tuple(made.opaque), compared_at, *difference[1:], not_compared,
        (*(stated.notes if stated else ()), *(module.notes if module else ())),
        () if module is None else _unread(module.module, traced), made.slices, place,
    )  # fmt: skip


def _unread(module: Any, traced: TracedFunction) -> tuple[str, ...]:
    stored = zip(traced.graph.constants, traced.weights, strict=True)
    read = {p for v, edge in stored if v not in traced.graph.changed for p in (edge.name, *edge.members)}
    return tuple(path for path in module.state_dict() if path not in read)


def _smaller_difference(
    program: Program,
    text: str,
    candidates: Iterable[Mapping[str, int]],
    dims: Sequence[Sequence[str | None]],
    asked: tuple[Any, ...],
) -> tuple[Difference, Mapping[str, int]]:
    """The difference of the same function at smaller sizes, and these, where it gives the same program but for sizes;
    NaN where it gives another at all that are tried."""
    function, args, name, seed, stated = asked
    for sizes in candidates:
        if work_of(program, sizes) > MOST_WORK:
            continue
        try:
            small = _trace(function, smaller_arguments(args, dims, sizes), {}, name, seed, stated, is_smaller=True)
        except (DiagnosticError, TypeError, ValueError):
            continue  # the function counts on its own sizes
        if alike(small.text, text) and not math.isnan(small.largest_relative_difference):
            compared = small.largest_relative_difference, small.at_examples, small.at_smaller, small.amplified
            return Difference(*compared), sizes
    return Difference(math.nan), {}


def _in_any_order(program: Program) -> Program:
    """The program without the statements that give a value its dimensions in another order, which names make needless;
    as it is where a reader counts on the order."""
    from shardwright.compiling.compile_program import load, print_program
    from shardwright.ir import ops
    from shardwright.ir.program import Let, Marking, Statement
    from shardwright.ir.walk import lets, map_sites, operand_names, rename_operands, with_values
    from shardwright.passes.compiling.recognize import asks_nothing

    func = program.funcs[0]
    kept: dict[str, str] = {}
    counted = {  # a function of JAX counts the dimensions of its operands, and parts that are joined are alike
        name
        for let, _ in lets(program, func)
        if isinstance(let.operation, ops.Foreign | ops.Concat)
        for name in operand_names(let.operands)
    }
    state = {value.name for value in program.state}  # of which an old version may be kept
    any_order = (ops.Merge, ops.Split, ops.Contract, ops.Attend, ops.Rename)

    def rewrite(site: walk.Site) -> Sequence[Statement]:
        statement = rename_operands(site.statement, kept)
        if not isinstance(statement, Let) or len(statement.results) > 1 or not asks_nothing(statement.result):
            return (statement,)
        if isinstance(statement.operation, ops.Add) and statement.result.name not in counted:
            source, nought = statement.operands
            if isinstance(source, str) and source not in state and not isinstance(nought, str) and nought.value == 0:
                before, after = site.scope.type_of(source).shape, statement.result.type.shape
                if set(before.dims) == set(after.dims) and before.dtype is after.dtype:
                    kept[statement.result.name] = source
                    return ()
        elif isinstance(statement.operation, any_order):
            return (with_values(statement, lambda value: replace(value, marking=Marking.UNWRITTEN)),)
        return (statement,)

    shorter = map_sites(program, func, rewrite)
    if not kept:
        return program
    shorter = replace(shorter, returns=tuple(kept.get(name, name) for name in shorter.returns))
    try:
        return load(Source(f"<{func.name}>", print_program(replace(program, funcs=(shorter,)))))
    except DiagnosticError:
        return program


def _with_used_dims(program: Program) -> Program:
    """The program without the dimensions of what recognizing has taken out."""
    from shardwright.compiling.compile_program import print_program

    said = re.sub(r"^dim .*$", "", print_program(program), count=1, flags=re.MULTILINE)
    used = set(re.findall(r"[A-Z]\d*", said))
    return replace(program, dims=tuple(dim for dim in program.dims if dim.name in used))


def argument_names(function: Any) -> tuple[str, ...]:
    """The names of the positional arguments, up to those that have none of their own."""
    try:
        takes = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    named = takewhile(lambda each: each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD), takes)
    return tuple(each.name for each in named)


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__).strip("_<>") or "f"


def _returned(text: str) -> list[str]:
    return text.rsplit("return ", 1)[1].split("\n", 1)[0].split(", ")


def _operations(program: Program) -> list[str]:
    from shardwright.ir.walk import lets

    return [let.operation.keyword for let, _ in lets(program)]


def from_file(name: str, path: str, arguments: str | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function FUNCTION of FILE.py, or the module of PyTorch that it returns where it takes no arguments, and the
    example arguments that ARGS gives."""
    module = user_module(path)
    function = _made(_member(module, path, name, "FUNCTION"), path, name)
    other, _, member = (arguments or f"{path}:example_args").rpartition(":")
    if not (other and member):
        raise of_file("not-arguments", "FILE.py:ARGS is as in model.py:inputs", "--args")
    made = _member(module if other == path else user_module(other), other, member, "--args FILE.py:ARGS")
    args: Any = _call(made, other, member) if callable(made) else made
    if not isinstance(args, tuple | list):
        reason = f"{member} gives {type(args).__name__}, and not a tuple of arguments"
        hint = "return (x,) for one argument x; arguments by keyword are those of a functools.partial of the function"
        raise of_file("not-arguments", reason, other, hint)
    return function, tuple(args)


def _made(function: Any, path: str, name: str) -> Any:
    """A module of PyTorch that its class or a callable without arguments makes; anything else as it is."""
    from shardwright.tracing.capture_torch import is_module, is_module_class

    if not callable(function):
        raise of_file("not-a-function", f"{name} is {type(function).__name__}, and no function", path)
    try:
        takes = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    if is_module(function) or (takes and not (isinstance(function, type) and is_module_class(function))):
        return function
    made = _call(function, path, name)
    return made if is_module(made) else function


def _call(function: Callable[[], Any], path: str, name: str) -> Any:
    """The result of a function of the user's file. Raises with its line where it fails."""
    try:
        return function()
    except Exception as error:
        place = place_of(error, path) or f"{path}:"
        raise untraceable(f"{name}() fails: {type(error).__name__}: {error}", place) from error


def user_module(path: str) -> Any:
    """Imports the user's file, which is what the command was asked to do."""
    import sys
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    if not Path(path).is_file():
        raise of_file("no-file", "no such file", path)
    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise of_file("not-python", "this is no file of Python", path, "name one that ends in .py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        reason = f"the file cannot be imported: {type(error).__name__}: {error}"
        place = place_of(error, path) or f"{path}:"
        hint = 'what runs it as a script belongs below `if __name__ == "__main__":`'
        raise untraceable(reason, place, *([hint] if isinstance(error, SystemExit) else [])) from error
    finally:
        sys.path.pop(0)
    return module


def _member(module: Any, path: str, name: str, option: str) -> Any:
    if not hasattr(module, name):
        raise of_file("undeclared", f"the file has no {name}", path, f"{option} names what the file defines")
    return getattr(module, name)
