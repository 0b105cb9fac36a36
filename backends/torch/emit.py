"""From an explicit program of one chip to the source of a stand-alone module that runs it under PyTorch."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shardwright.backends.jax.code_text import Code
from shardwright.backends.jax.source_text import (
    WIDTH,
    assigned,
    bare_or_tuple,
    broken,
    check_dimension,
    check_identifier,
    docstring_lines,
    tuple_text,
)
from shardwright.backends.torch.kernels import VIEWS, keeps_format, kernel_of
from shardwright.backends.torch.kernels.call import TensorCall
from shardwright.backends.torch.tensors import Argument, NamedTensor, held_as, rounded
from shardwright.ir import ops
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault, placed
from shardwright.ir.memory_shares import rows_of
from shardwright.ir.operation import Number
from shardwright.ir.ops import Movement
from shardwright.ir.program import Free, Func, Let, Loop, Program, SetState, Statement
from shardwright.ir.rewriter import Namer
from shardwright.ir.types import ON_DEVICE, ON_HOST, DType, TensorType
from shardwright.ir.walk import names_of, states_set

if TYPE_CHECKING:
    from torch import Tensor

_FOLDER = Path(__file__).parent


def _functions() -> dict[str, tuple[str, set[str]]]:
    """The text of each function of `functions.py`, with the names that it reads."""
    text = (_FOLDER / "functions.py").read_text(encoding="utf-8")
    return {
        node.name: (
            ast.get_source_segment(text, node) or "",
            {each.id for each in ast.walk(node) if isinstance(each, ast.Name)},
        )
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


_FUNCTIONS = _functions()

_RESERVED = frozenset({"torch", "run", "weights", "state", "place", "following", "range", "float", *_FUNCTIONS})
"""Names that a module uses itself; a value of the program that has one gets a suffix."""


def _used(body: str) -> list[str]:
    """The functions that a module needs for this source, those that others call included."""
    used = {name for name in _FUNCTIONS if re.search(rf"\b{name}\(", body)}
    while more := {name for each in used for name in _FUNCTIONS[each][1] & _FUNCTIONS.keys()} - used:
        used |= more
    return [line for name in _FUNCTIONS if name in used for line in ("", "", *_FUNCTIONS[name][0].splitlines())]


@dataclass(frozen=True)
class _View:
    """A value in the source: its expression, dimensions, how many loops were around where it came to be, and if it is
    a `tensor` on the device, `far` from it, `going` there or `leaving` it. State on the device is `live`: it changes in
    place. A part of `state` far away is what it was until that is set once more."""

    code: str
    names: tuple[str, ...]
    depth: int
    kind: str = "tensor"
    live: bool = False
    state: str = ""
    version: int = 0


_PLACES = {
    "tensor": "on the device", "far": "away from the device", "going": "on its way to the device",
    "leaving": "on its way from the device",
}  # fmt: skip
"""Kinds of views in words."""


def emit(program: Program, header: Sequence[str] = ()) -> str:
    """The Python source of a module that imports torch alone. `header` lines go into its docstring.

    The program must be explicit. Raises a `DiagnosticError` for a mesh of several chips, for operations and number
    formats that the module has no form for, and where a name cannot stand in Python.
    """
    if program.mesh.n_chips > 1:
        raise _unsupported(f"a mesh of {program.mesh.n_chips} chips", "compile it for one chip, or --to jax")
    for value in (*program.weights, *program.state):
        check_identifier(value.name)
    for dim in program.dims:
        check_dimension(dim.name)
    executor = (_FOLDER / "executor.py").read_text(encoding="utf-8").partition('"""\n')[2].strip()
    body = [line for func in program.funcs for line in ("", "", *_Function(program, func).lines)]
    lines = ['"""' + "\n".join(line for text in (*header, _USE) for line in docstring_lines(text)), '"""', ""]
    lines += [*executor.splitlines(), *_used("\n".join(body)), "", "", *_placing(program), *body]
    return "\n".join(lines) + "\n"


_USE = """
A program as PyTorch, written by Shardwright; it needs torch alone.

    run = Run("cpu")  # or "cuda"
    weights, state = place(run, weights, state)
    results = FUNCTION(run, weights, state, ...)
    run.close()

place takes tensors or arrays by name, all weights and what of the state is not zeros. Functions set state in place."""


def _unsupported(what: str, way_out: str = "compile it for JAX: --to jax") -> DiagnosticError:
    return fault("unsupported", f"PyTorch modules have no form for {what}", NOWHERE, way_out)


def _dtype(dtype: DType) -> Code:
    return held_as(dtype, Code("torch"))


def _placing(program: Program) -> list[str]:
    lines = [
        "def place(run, weights, state=None):",
        '    """Weights and state by name, each in the memories that the program says."""',
        "    state, placed_weights, placed_state = state or {}, {}, {}",
    ]
    for table, values in (("weights", program.weights), ("state", program.state)):
        for value in values:
            kind, given = value.concrete, f'{table}["{value.name}"]'
            extents = tuple_text([str(dim.size) for dim in kind.dims]) if kind.dims else "()"
            if table == "state":
                given = f'state["{value.name}"] if "{value.name}" in state else torch.zeros({extents})'
            axis, shares = _shares(kind)
            code = f"run.place({given}, {_dtype(kind.dtype)}, {shares}, {axis})"
            if kind.placement == ON_DEVICE:
                code += ".pieces[0]"
            lines += assigned(f'placed_{table}["{value.name}"]', code, str(kind), "    ")
    return [*lines, "    return placed_weights, placed_state"]


def _shares(kind: TensorType) -> tuple[int, str]:
    """The axis of a value's pieces, and its pieces as memories and extents."""
    along = kind.placement.along
    axis = kind.names.index(along) if along is not None else 0
    size = kind.dims[axis].size if kind.dims else 1
    if kind.placement.tier is not None:
        return axis, tuple_text([f'("{kind.placement.tier}", {size})'])
    return axis, tuple_text(
        [f'("{r.tier}", {r.stop - r.start})' for r in rows_of(kind.placement, size) if r.stop > r.start]
    )


class _Function:
    """One function; `lines` is its source."""

    def __init__(self, program: Program, func: Func) -> None:
        self.sizes = program.sizes(func)
        self.taken = {check_identifier(name) for name in names_of(func)} | _RESERVED | {f.name for f in program.funcs}
        self.fresh = Namer(self.taken).fresh
        values = (*program.weights, *program.state, *func.params)
        self.kinds = {value.name: value.concrete for value in values}
        self.state = program.state_names
        check_identifier(func.name)
        views: dict[str, _View] = {}
        params: list[str] = []
        body: list[str] = []
        used = names_of(func)
        for value in (*program.weights, *program.state):
            if value.name in used:
                kind, name, table = value.concrete, self.python(value.name), "weights"
                if value.name in self.state:
                    table = "state"
                near = kind.placement == ON_DEVICE
                views[value.name] = _View(name, kind.names, 0, "tensor" if near else "far", near and table == "state")
                body += assigned(name, f'{table}["{value.name}"]', str(kind), "    ")
        for value in func.params:
            views[value.name] = _View(self.python(value.name), value.concrete.names, 0)
            params.append(views[value.name].code)
            given = f"torch.as_tensor({params[-1]}).to(run.device, {_dtype(value.concrete.dtype)})"
            body += assigned(params[-1], given, str(value.concrete), "    ")
        self.body = body
        self.loops: list[tuple[str, str]] = []
        self.homes = {views[name].code for name in self.state & views.keys()}
        self.versions = dict.fromkeys(self.state, 0)
        self.emit(func.body, views, "    ")
        results = [self.near(views[name], name) for name in func.returns]
        body.append("    run.finish()")
        body += broken(f"return {bare_or_tuple(results) if results else '()'}", "    ")
        name = func.name if func.name not in _RESERVED else f"{func.name}_"
        self.lines = [f"def {name}({', '.join(['run', 'weights', 'state', *params])}):", *body]

    def python(self, name: str) -> str:
        made = name
        while made in _RESERVED or (made != name and made in self.taken):
            made += "_"
        self.taken.add(made)
        return made

    # ------------------------------------------------------------ values

    def here(self, view: _View, trips: Mapping[str, str] | None = None) -> _View:
        """The slice of a value that this trip of the loops sees, or the one of other `trips`."""
        if view.state and view.version != self.versions[view.state]:
            raise _unsupported(f"{view.code}, a part of {view.state} that is read after it is set", "fetch it before")
        code, names = view.code, list(view.names)
        for dim, index in self.loops[view.depth :]:
            if dim in names:
                code += f".select({names.index(dim)}, {(trips or {}).get(dim, index)})"
                names.remove(dim)
        return replace(view, code=code, names=tuple(names), depth=len(self.loops))

    def near(self, view: _View, name: str, *, kept: bool = True) -> str:
        """A tensor on the device; one that is `kept` does not change any more."""
        here = self.here(view)
        if here.kind in {"going", "leaving"}:
            raise _unsupported(f"{name} in flight where its value is needed", "wait for it before")
        if here.kind == "far":
            return f"run.wait(run.prefetch({here.code}))"
        return f"{here.code}.clone()" if here.live and kept else here.code

    def far_alone(self, view: _View) -> _View:
        """As `here`, of what no state changes while a loop carries it."""
        here = self.here(view)
        if here.kind == "far" and (here.state or view.code in self.homes):
            raise _unsupported(f"{view.code}, state away from the device that a loop carries", "fetch it before")
        return here

    # ------------------------------------------------------------ statements

    def emit(self, statements: Sequence[Statement], views: dict[str, _View], indent: str) -> None:
        for statement in statements:
            self.kinds |= {value.name: value.concrete for value in statement.results}
            with placed(statement.span):
                match statement:
                    case Let():
                        self.let(statement, views, indent)
                    case SetState():
                        target, value = self.here(views[statement.state]), self.here(views[statement.operand])
                        if value.kind in {"going", "leaving"}:
                            raise _unsupported(f"{statement.operand} in flight as state", "wait for it before")
                        if target.kind == "far":
                            given = f"{value.code}.clone()" if value.live else value.code
                            self.body += broken(f"run.set({target.code}, {given})", indent)
                        else:
                            given = self.near(views[statement.operand], statement.operand)
                            self.body += broken(f"{target.code}.copy_({given})", indent)
                        self.versions[statement.state] += 1
                    case Free():
                        gone = [views[name].code for name in statement.names]
                        self.body.append(f"{indent}del {', '.join(gone)}")
                    case Loop():
                        self.loop(statement, views, indent)

    def loop(self, loop: Loop, views: dict[str, _View], indent: str) -> None:
        inner, trip = dict(views), self.fresh(f"{loop.dim.lower()}_trip")
        for carry in loop.carries:
            first = self.far_alone(views[carry.initial])
            code = f"{first.code}.clone()" if first.live else first.code
            name = self.python(carry.value.name)
            self.kinds[carry.value.name] = carry.value.concrete
            self.body += assigned(name, code, str(carry.value.concrete), indent)
            inner[carry.value.name] = _View(name, carry.value.concrete.names, len(self.loops) + 1, first.kind)
        self.body.append(f"{indent}for {trip} in range({self.sizes[loop.dim]}):")
        self.loops.append((loop.dim, trip))
        deeper = indent + "    "
        if loop.index is not None:
            name = self.python(loop.index)
            self.body.append(f"{deeper}{name} = torch.tensor({trip}, dtype=torch.int32, device=run.device)")
            self.kinds[loop.index] = TensorType(DType.INT32, (), ())
            inner[loop.index] = _View(name, (), len(self.loops))
        for name in states_set(loop.body):
            self.versions[name] += 1
        before = len(self.body)
        self.emit(loop.body, inner, deeper)
        carried = [inner[carry.value.name] for carry in loop.carries]
        following = [self.far_alone(inner[name]) for name in loop.following]
        for old, new, carry in zip(carried, following, loop.carries, strict=True):
            if old.kind != new.kind:
                said = f"which is {_PLACES[old.kind]} before the loop and {_PLACES[new.kind]} at its end"
                raise _unsupported(f"{carry.value.name}, {said}", "carry it on the device")
        codes = [f"{view.code}.clone()" if view.live else view.code for view in following]
        if carried:
            names, line = [view.code for view in carried], f"{deeper}{', '.join(v.code for v in carried)} ="
            if len(line) + len(", ".join(codes)) < WIDTH:
                self.body.append(f"{line} {', '.join(codes)}")
            else:
                sides = ([f"{deeper}    {each}," for each in side] for side in (names, codes))
                self.body += [f"{deeper}(", *next(sides), f"{deeper}) = (", *next(sides), f"{deeper})"]
        elif len(self.body) == before:
            self.body.append(f"{deeper}pass")
        self.loops.pop()
        for result, view in zip(loop.results, carried, strict=True):
            name = self.python(result.name)
            self.body += assigned(name, view.code, str(result.concrete), indent)
            views[result.name] = replace(view, code=name, depth=len(self.loops))

    def let(self, let: Let, views: dict[str, _View], indent: str) -> None:
        operation = let.operation
        where, state = "tensor", ""
        given = let.operands[0] if let.operands and isinstance(let.operands[0], str) else None
        first = self.here(views[given]) if given is not None else None
        if isinstance(operation, Movement):
            assert given is not None
            code, where = self.moved(operation, views[given], indent)
        elif first is not None and given is not None and first.kind == "far" and isinstance(operation, _PARTS):
            code, where, state = first.code, "far", given if given in self.state else first.state
            if isinstance(operation, ops.Take):
                if operation.stop is not None:
                    raise _unsupported("a range of what is away from the device", "fetch it before")
                code += f".select({first.names.index(operation.dim)}, {operation.start})"
        else:
            return self.computed(let, views, indent)
        kind = let.result.concrete
        name = self.python(let.result.name)
        self.body += assigned(name, code, str(kind), indent)
        views[let.result.name] = _View(
            name, kind.names, len(self.loops), where, state=state, version=self.versions[state] if state else 0
        )
        return None

    def moved(self, operation: Movement, view: _View, indent: str) -> tuple[str, str]:
        """A copy between memories, and where its result is."""
        moves, here = operation.moves, self.here(view)
        match moves:
            case ops.Wait() if here.kind in {"going", "leaving"}:
                return f"run.wait({here.code})", "tensor" if here.kind == "going" else "far"
            case ops.Store() if here.kind == "tensor":
                given = f"{here.code}.clone()" if here.live else here.code
                code, kinds = f'run.store({given}, "{moves.tier}")', ("leaving", "far")
            case ops.Fetch() if here.kind in {"far", "tensor"}:
                over = ""
                if moves.ahead:
                    trips = {dim: index for dim, index in self.loops if dim in moves.ahead}
                    nexts = {dim: self.fresh(f"{dim.lower()}_next_trip") for dim in moves.ahead}
                    past = "_" if moves.wrap else self.fresh("past")
                    sizes = [str(self.sizes[dim]) for dim in moves.ahead]
                    trip = f"following({tuple_text([trips[dim] for dim in moves.ahead])}, {tuple_text(sizes)})"
                    self.body += broken(f"{tuple_text(list(nexts.values()))}, {past} = {trip}", indent)
                    here, over = self.here(view, nexts), "" if moves.wrap else f", {past}"
                given = f"{here.code}.clone()" if here.live else here.code
                given = given if here.kind == "far" else f"Far(({given},))"
                code, kinds = f"run.prefetch({given}{over})", ("going", "tensor")
            case _ if isinstance(operation, _ALONE) and here.kind == "tensor" and not getattr(moves, "ahead", ()):
                return f"{here.code}.clone()" if here.live else here.code, "tensor"
            case _:
                raise _unsupported(f"{moves.keyword} of what is {here.kind}")
        return (code, kinds[0]) if isinstance(operation, ops.Start) else (f"run.wait({code})", kinds[1])

    # ------------------------------------------------------------ operations

    def computed(self, let: Let, views: dict[str, _View], indent: str) -> None:
        """Calls the operation's kernel, on the device or where its operands lie on the host."""
        if isinstance(let.operation, ops.Attend | ops.Update) and let.results[0].concrete.placement == ON_HOST:
            self.on_host(let, views, indent)
            return
        args: list[Argument] = []
        for operand in let.operands:
            if isinstance(operand, Number):
                args.append(operand)
                continue
            code = self.near(views[operand], operand, kept=isinstance(let.operation, VIEWS))
            args.append(self.argument(code, operand, views))
        for value, code in zip(let.results, self.kernel(let, args, Code("run.device"), indent), strict=True):
            name = self.python(value.name)
            self.body += assigned(name, code, str(value.concrete), indent)
            views[value.name] = _View(name, value.concrete.names, len(self.loops))

    def on_host(self, let: Let, views: dict[str, _View], indent: str) -> None:
        """A function of its own, which the host runs over values as they lie there."""
        args: list[Argument] = []
        params: list[str] = []
        given: list[str] = []
        for operand in let.operands:
            if isinstance(operand, Number):
                args.append(operand)
                continue
            view = self.here(views[operand])
            given.append(view.code if view.kind == "far" else self.near(views[operand], operand, kept=False))
            params.append(self.fresh(operand))
            args.append(self.argument(params[-1], operand, views))
        function = self.fresh(f"{let.results[0].name}_on_host")
        around, self.body = self.body, list[str]()
        codes = self.kernel(let, args, Code('torch.device("cpu")'), indent + "    ")
        inside, self.body = self.body, around
        if not self.body[-1].endswith(":"):
            self.body.append("")
        self.body += [f"{indent}def {function}({', '.join(params)}):", *inside]
        self.body += [*broken(f"return {bare_or_tuple(codes)}", indent + "    "), ""]
        names = [self.python(value.name) for value in let.results]
        kinds = ", ".join(str(value.concrete) for value in let.results)
        self.body += assigned(", ".join(names), f"run.on_host({', '.join([function, *given])})", kinds, indent)
        for name, value in zip(names, let.results, strict=True):
            views[value.name] = _View(name, value.concrete.names, len(self.loops), "far")

    def argument(self, code: str, operand: str, views: Mapping[str, _View]) -> NamedTensor:
        names, kind = self.here(views[operand]).names, self.kinds[operand]
        extents = [kind.shape.size(name) for name in names]
        return NamedTensor(cast("Tensor", Code(code)), names, kind.dtype, None, extents)

    def kernel(self, let: Let, args: list[Argument], device: Code, indent: str) -> list[str]:
        """The results of the operation's kernel, written down, and rounded where it is not of their format."""
        operation, results, torch = let.operation, let.results, Code("torch")

        def named(value: Code, *wishes: str) -> Any:
            made = [self.fresh(wish) for wish in wishes]
            self.body += broken(f"{', '.join(made)} = {value}".replace("'", '"'), indent)
            return Code(made[0]) if len(made) == 1 else tuple(map(Code, made))

        call = TensorCall(args, [value.shape for value in results], device, None, torch, Code(), named)
        made = kernel_of(operation)(operation, call)
        exact = keeps_format(operation, args, results[0].shape.dtype)
        codes = [
            each if exact else rounded(each, value.shape.dtype, torch)
            for value, each in zip(results, made if isinstance(made, tuple) else (made,), strict=True)
        ]
        return [str(code).replace("'", '"') for code in codes]


_ALONE = (ops.AllGather, ops.AllReduce, ops.ReduceScatter, ops.AllToAll, ops.Slice, ops.AsPartial)
"""Movements between chips that move nothing on one chip."""

_PARTS = (ops.Take, ops.Alias, ops.Rename)
"""Operations whose result can be a part of a value away from the device."""
