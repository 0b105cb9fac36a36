"""From an explicit program of one chip to the source of a stand-alone module that runs it under PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardwright.backends.jax.code_text import Code
from shardwright.backends.jax.source_text import (
    assigned,
    bare_or_tuple,
    broken,
    check_dimension,
    check_identifier,
    docstring_lines,
    tuple_text,
)
from shardwright.ir import ops
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault, placed
from shardwright.ir.memory_shares import rows_of
from shardwright.ir.operation import Number, Operation
from shardwright.ir.ops import Movement
from shardwright.ir.program import Free, Func, Let, Loop, Program, SetState, Statement
from shardwright.ir.types import ON_DEVICE, DType, TensorType
from shardwright.ir.walk import names_of, states_set

_DTYPES = {
    DType.F32: "torch.float32",
    DType.F16: "torch.float16",
    DType.BF16: "torch.bfloat16",
    DType.INT32: "torch.int32",
    DType.INT8: "torch.int8",
    DType.BOOL: "torch.bool",
}
_RESERVED = frozenset(
    {
        "torch", "run", "weights", "state", "place", "following", "updated", "rows", "picked", "rmsnorm", "layernorm",
        "first_of_greatest", "range", "float", "list", "sum", "isinstance", "reversed", "property", "tempfile",
        "super", "enumerate", "len", "object", "str", "int", "bool", "tuple",
    }
)  # fmt: skip
"""Names that a module uses itself; a value of the program that has one gets a suffix."""


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
    executor = (Path(__file__).parent / "executor.py").read_text(encoding="utf-8").partition('"""\n')[2].strip()
    lines = ['"""' + "\n".join(line for text in (*header, _USE) for line in docstring_lines(text)), '"""', ""]
    lines += executor.splitlines()
    lines += ["", "", *_placing(program)]
    for func in program.funcs:
        lines += ["", "", *_Function(program, func).lines]
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


def _dtype(dtype: DType) -> str:
    if dtype not in _DTYPES:
        raise _unsupported(f"numbers of format {dtype}")
    return _DTYPES[dtype]


def _placing(program: Program) -> list[str]:
    lines = [
        "def place(run, weights, state=None):",
        '    """Weights and state by name, each in the memories that the program says."""',
        "    state, placed_weights, placed_state = state or {}, {}, {}",
    ]
    for table, values in (("weights", program.weights), ("state", program.state)):
        for value in values:
            kind, given = value.concrete, f"{table}[{value.name!r}]"
            extents = tuple_text([str(dim.size) for dim in kind.dims]) if kind.dims else "()"
            if table == "state":
                given = f"state[{value.name!r}] if {value.name!r} in state else torch.zeros({extents})"
            axis, shares = _shares(kind)
            code = f"run.place({given}, {_dtype(kind.dtype)}, {shares}, {axis})"
            if kind.placement == ON_DEVICE:
                code += ".pieces[0]"
            lines += assigned(f"placed_{table}[{value.name!r}]", code, str(kind), "    ")
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
        values = (*program.weights, *program.state, *func.params)
        self.dtypes: dict[str, DType] = {value.name: value.concrete.dtype for value in values}
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
                body += assigned(name, f"{table}[{value.name!r}]", str(kind), "    ")
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

    def fresh(self, wish: str) -> str:
        while wish in self.taken:
            wish += "_"
        self.taken.add(wish)
        return wish

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

    def near(self, view: _View, name: str) -> str:
        """A tensor on the device, which does not change any more."""
        here = self.here(view)
        if here.kind in {"going", "leaving"}:
            raise _unsupported(f"{name} in flight where its value is needed", "wait for it before")
        if here.kind == "far":
            return f"run.wait(run.prefetch({here.code}))"
        return f"{here.code}.clone()" if here.live else here.code

    def far_alone(self, view: _View) -> _View:
        """As `here`, of what no state changes while a loop carries it."""
        here = self.here(view)
        if here.kind == "far" and (here.state or view.code in self.homes):
            raise _unsupported(f"{view.code}, state away from the device that a loop carries", "fetch it before")
        return here

    # ------------------------------------------------------------ statements

    def emit(self, statements: Sequence[Statement], views: dict[str, _View], indent: str) -> None:
        for statement in statements:
            self.dtypes |= {value.name: value.concrete.dtype for value in statement.results}
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
            self.dtypes[carry.value.name] = carry.value.concrete.dtype
            self.body += assigned(name, code, str(carry.value.concrete), indent)
            inner[carry.value.name] = _View(name, carry.value.concrete.names, len(self.loops) + 1, first.kind)
        self.body.append(f"{indent}for {trip} in range({self.sizes[loop.dim]}):")
        self.loops.append((loop.dim, trip))
        deeper = indent + "    "
        if loop.index is not None:
            name = self.python(loop.index)
            self.body.append(f"{deeper}{name} = torch.tensor({trip}, dtype=torch.int32, device=run.device)")
            self.dtypes[loop.index] = DType.INT32
            inner[loop.index] = _View(name, (), len(self.loops))
        for name in states_set(loop.body):
            self.versions[name] += 1
        before = len(self.body)
        self.emit(loop.body, inner, deeper)
        carried = [inner[carry.value.name] for carry in loop.carries]
        following = [self.far_alone(inner[name]) for name in loop.following]
        for old, new, carry in zip(carried, following, loop.carries, strict=True):
            if old.kind != new.kind:
                raise _unsupported(
                    f"{carry.value.name}, which is in one memory before the loop and in another after it"
                )
        codes = [f"{view.code}.clone()" if view.live else view.code for view in following]
        if carried:
            self.body += broken(f"{', '.join(v.code for v in carried)} = {', '.join(codes)}", deeper)
        elif len(self.body) == before:
            self.body.append(f"{deeper}pass")
        self.loops.pop()
        for result, view in zip(loop.results, carried, strict=True):
            name = self.python(result.name)
            self.body += assigned(name, view.code, str(result.concrete), indent)
            views[result.name] = replace(view, code=name, depth=len(self.loops))

    def let(self, let: Let, views: dict[str, _View], indent: str) -> None:
        if len(let.results) > 1:
            raise _unsupported(let.operation.keyword)
        result, operation = let.result, let.operation
        kind = result.concrete
        name = self.python(result.name)
        dtype = _dtype(kind.dtype)
        code, where, state = "", "tensor", ""
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
            code = self.computed(operation, let, views, kind)
            code = code if isinstance(operation, _KEEPS) else f"{code}.to({dtype})"
            if not isinstance(operation, _KEEPS):
                code = f"{code}.expand({tuple_text([str(dim.size) for dim in kind.dims]) if kind.dims else '()'})"
        self.body += assigned(name, code, str(kind), indent)
        views[result.name] = _View(
            name, kind.names, len(self.loops), where, state=state, version=self.versions[state] if state else 0
        )

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
                    past, sizes = self.fresh("past"), [str(self.sizes[dim]) for dim in moves.ahead]
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

    def computed(self, operation: Operation, let: Let, views: Mapping[str, _View], kind: TensorType) -> str:
        """The expression of a result; what is not `_KEEPS` is then rounded and expanded to its type."""
        names = kind.names
        near = {o: self.near(views[o], o) for o in let.operands if isinstance(o, str)}
        dims = {o: self.here(views[o]).names for o in near}
        codes = [near[o] if isinstance(o, str) else "" for o in let.operands]
        given = [dims[o] if isinstance(o, str) else () for o in let.operands]

        def at(i: int, wanted: Sequence[str] = names) -> str:
            operand = let.operands[i]
            if isinstance(operand, Number):
                return f"torch.tensor({_value(operand)}, device=run.device)"
            return _aligned(codes[i], given[i], wanted)

        match operation:
            case ops.Tabled():
                dtypes = [self.dtypes[o] for o in near]
                if DType.BOOL in dtypes and "value" in operation.entry.takes and "bool" not in operation.entry.takes:
                    raise _unsupported(f"{operation.keyword} of bools")
                own = next(self.dtypes[o] for o in reversed(let.operands) if isinstance(o, str))
                parts = [
                    Code(f"torch.full((), {_value(o)}, dtype={_dtype(own)}, device=run.device)")
                    if isinstance(o, Number) else Code(at(i)) for i, o in enumerate(let.operands)
                ]  # fmt: skip
                try:
                    return f"({operation.entry.spelled(own).torch(Code('torch'), *parts)})"
                except (TypeError, AttributeError):
                    raise _unsupported(operation.keyword) from None
            case ops.Convert() if operation.dtype.is_float or self.dtypes[str(let.operands[0])] is DType.BOOL:
                return at(0)
            case ops.Full():
                return f"torch.tensor({_value(let.operands[0])}, device=run.device)"
            case ops.Iota():
                return f"torch.arange({kind.dims[0].size}, device=run.device)"
            case ops.Contract():
                letters = {n: chr(97 + i) for i, n in enumerate(dict.fromkeys((*given[0], *given[1])))}
                if len(letters) > 26 or self.dtypes[str(let.operands[0])] is DType.BOOL:
                    raise _unsupported("this product")
                left, right, out = ("".join(letters[n] for n in each) for each in (given[0], given[1], names))
                return f'torch.einsum("{left},{right}->{out}", {codes[0]}, {codes[1]})'
            case ops.Sum():
                return f"{codes[0]}.sum(dim={_axes(given[0], operation.dims)})"
            case ops.Max():
                return f"{codes[0]}.amax(dim={_axes(given[0], operation.dims)})"
            case ops.Softmax(causal=None) if len(operation.dims) == 1:
                return f"torch.softmax({codes[0]}.float(), dim={given[0].index(operation.dims[0])})"
            case ops.Argmax():
                return f"first_of_greatest({codes[0]}, {given[0].index(operation.dim)})"
            case ops.Rmsnorm() | ops.Layernorm():
                function = "rmsnorm" if isinstance(operation, ops.Rmsnorm) else "layernorm"
                scaled = f"{function}({codes[0]}, {_axes(given[0], operation.dims)}, {operation.eps!r})"
                scaled += f" * {at(1)}" if len(codes) > 1 else ""
                scaled += f" + {at(2)}" if len(codes) > 2 else ""
                return f"({scaled})"
            case ops.Lookup(wrap=False) if not set(given[0]) & set(given[1]):
                made = (*given[1], *(n for n in given[0] if n != operation.dim))
                return _aligned(f"rows({codes[0]}, {codes[1]}, {given[0].index(operation.dim)})", made, names)
            case ops.Lookup(wrap=False):
                table = _aligned(codes[0], given[0], (*names, operation.dim))
                return f"picked({table}, {at(1)})"
            case ops.Update(wrap=False):
                along = [n for n in given[1] if n == operation.dim or n not in given[0]]
                wanted = [along[0] if along and n == operation.dim else n for n in names]
                axis = names.index(operation.dim)
                return f"updated({codes[0]}, {at(1, wanted)}, {at(2)}, {axis})"
            case ops.Take(by=()):
                axis = given[0].index(operation.dim)
                if operation.stop is None:
                    return f"{codes[0]}.select({axis}, {operation.start})"
                return f"{codes[0]}.narrow({axis}, {operation.start}, {operation.stop - operation.start})"
            case ops.Concat(by=()):
                parts = ", ".join(at(i) for i in range(len(codes)))
                return f"torch.cat([{parts}], dim={names.index(operation.dim)})"
            case ops.Alias() | ops.Rename():
                return codes[0]
            case ops.Split():
                return f"{codes[0]}.reshape({tuple_text([str(dim.size) for dim in kind.dims])})"
            case ops.Merge():
                order: list[str] = []
                for name in given[0]:
                    if name == operation.parts[0]:
                        order += operation.parts
                    elif name not in operation.parts:
                        order.append(name)
                return f"{at(0, order)}.reshape({tuple_text([str(dim.size) for dim in kind.dims])})"
            case _:
                raise _unsupported(operation.keyword or type(operation).__name__.lower())


_KEEPS = (ops.Take, ops.Alias, ops.Rename, ops.Split, ops.Merge, ops.Concat, ops.Update)
"""Operations whose results have the format and the extents of their operands."""

_ALONE = (ops.AllGather, ops.AllReduce, ops.ReduceScatter, ops.AllToAll, ops.Slice, ops.AsPartial)
"""Movements between chips that move nothing on one chip."""

_PARTS = (ops.Take, ops.Alias, ops.Rename)
"""Operations whose result can be a part of a value away from the device."""


def _value(operand: object) -> str:
    if not isinstance(operand, Number):
        raise _unsupported("a value here, where a number is meant")
    value = operand.value
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _axes(names: Sequence[str], dims: Sequence[str]) -> str:
    return tuple_text([str(names.index(dim)) for dim in dims])


def _aligned(code: str, names: Sequence[str], wanted: Sequence[str]) -> str:
    """The tensor with its dimensions in the order of `wanted`, and extent 1 where it lacks one."""
    order = [names.index(name) for name in wanted if name in names]
    if order != sorted(order):
        code += f".permute({', '.join(map(str, order))})"
    if order and len(order) < len(wanted):
        code += f"[{', '.join(':' if name in names else 'None' for name in wanted)}]"
    return code
