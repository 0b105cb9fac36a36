"""From an explicit program to the source of a stand-alone module that runs it under JAX."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.backends.digit_factors import Digits
from shardwright.backends.jax.edges import Edge, edge_of
from shardwright.backends.jax.functions import FunctionBody, View, concrete
from shardwright.backends.jax.helpers import HELPERS
from shardwright.backends.jax.module_head import (
    docstring,
    global_edge,
    has_globals,
    import_lines,
    mesh_lines,
    signature,
    table_lines,
)
from shardwright.backends.jax.movements import lower_movement
from shardwright.backends.jax.source_text import (
    Names,
    assigned,
    bare_or_tuple,
    broken,
    check_dimension,
    check_identifier,
    tuple_text,
)
from shardwright.backends.jax.terms import Lowering
from shardwright.ir import ops
from shardwright.ir.ops import Movement
from shardwright.ir.program import Func, Program
from shardwright.ir.types import Reduction, TensorType
from shardwright.ir.walk import names_of


def emit(program: Program, header: Sequence[str] = ()) -> str:
    """The Python source of a module that imports jax and numpy only.

    It defines MESH_SHAPE, make_mesh(devices=None) and build_NAME(mesh) for each function. The program must be
    explicit: every type without holes, every movement a statement. `header` lines go into the module's docstring.
    Raises a `DiagnosticError` where a name cannot stand in Python, a type has holes, or a value is in a memory that
    JAX does not have.
    """
    for name in (*program.mesh.axes, *(value.name for value in (*program.weights, *program.state))):
        check_identifier(name)
    for dim in program.dims:
        check_dimension(dim.name)
    return _Module(program).source(header)


class _Module:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.has_globals = has_globals(program)
        self.helpers: set[str] = set()

    def source(self, header: Sequence[str]) -> str:
        functions = [line for func in self.program.funcs for line in ["", "", *self.function(func)]]
        tables = table_lines(self.program) if self.has_globals else []
        body = [*mesh_lines(self.program), *tables, *self.used_helpers(), *functions]
        return "\n".join([*docstring(self.program, header), *import_lines(body), *body]) + "\n"

    def used_helpers(self) -> list[str]:
        lines: list[str] = []
        for name, text in HELPERS.items():
            if name in self.helpers:
                lines.extend(["", "", *text.strip().splitlines()])
        return lines

    # ------------------------------------------------------------ one function

    def function(self, func: Func) -> list[str]:
        program = self.program
        check_identifier(func.name)
        digits = Digits.of(program, func)
        names = Names((*names_of(func), *(value.name for value in (*program.weights, *program.state)), func.name))
        lowering = Lowering(digits, self.helpers.add)
        body = FunctionBody(program, func, lowering, names)
        used = names_of(func)
        here = [value for value in (*program.weights, *program.state) if value.name in used]

        inner = names[func.name]
        params = [names[value.name] for value in func.params]
        parameters = [*(["weights", "state"] if self.has_globals else []), *params]
        lines = [
            f"def build_{func.name}(mesh):",
            *(f"    {line}" for line in self.builder_docstring(func)),
            "",
            f"    def {inner}({', '.join(parameters)}):",
        ]
        indent = " " * 8
        views: dict[str, View] = {}
        edges = {v.name: edge_of(v.name, concrete(v.name, v.type), digits) for v in (*here, *func.params)}
        for value in here:
            views[value.name] = View(names[value.name])
            table = "state" if value.name in program.state_names else "weights"
            loaded = f"{table}[{value.name!r}]" + _opened(edges[value.name])
            entered = self.entered(loaded, edges[value.name].kind, digits)
            lines.extend(assigned(names[value.name], entered, str(value.type), indent))
        for value in func.params:
            python, edge = names[value.name], edges[value.name]
            views[value.name] = View(python)
            entered = self.entered(python + _opened(edge), edge.kind, digits)
            if entered == python:
                lines.append(f"{indent}# {python}: {value.type}")
            else:
                lines.extend(assigned(python, entered, str(value.type), indent))

        body.emit(views, indent)
        lines.extend(body.lines)

        result_edges = [
            edge_of(name, concrete(name, kind), digits) for name, kind in zip(func.returns, func.results, strict=True)
        ]
        results = [self.left(views[name].code, edge) for name, edge in zip(func.returns, result_edges, strict=True)]
        returned = bare_or_tuple(results) if results else "()"
        if self.has_globals:
            new = [
                f"{v.name!r}: {self.left(names[v.name], edges[v.name])}" for v in here if v.name in program.state_names
            ]
            untouched = len(new) < len(program.state)
            state = f"{{{', '.join([*(['**state'] if untouched else []), *new])}}}" if new else "state"
            returned = f"{returned}, {state}"
        lines.extend(broken(f"return {returned}", indent))
        lines.append("")
        param_edges = [edges[value.name] for value in func.params]
        lines.extend(self.wrapped(inner, params, param_edges, result_edges))
        return lines

    def builder_docstring(self, func: Func) -> list[str]:
        lines = signature(self.program, func)
        lines[0] = '"""' + lines[0]
        if len(lines) == 1:
            return [lines[0] + '."""']
        return [*lines, '"""']

    def entered(self, code: str, kind: TensorType, digits: Digits) -> str:
        """A partial value enters as the whole one: an addend of it on the first chips, or its maximum on all."""
        if kind.partial is None:
            return code
        whole = TensorType(kind.dtype, kind.dims, kind.splits)
        if kind.partial.kind is Reduction.MAX:
            return f"lax.pcast({code}, {bare_or_tuple([repr(a) for a in kind.partial.axes])}, to='varying')"
        return lower_movement(ops.AsPartial(kind.partial.axes), code, whole, kind, digits, self.helpers.add)

    def left(self, code: str, edge: Edge) -> str:
        """A value as it leaves: partial ones reduced, strided ones with one dimension per digit."""
        kind = edge.kind
        if kind.partial is not None:
            reduce: Movement = ops.AllReduce(kind.partial.axes)
            digits = Digits(self.program.mesh, {})
            code = lower_movement(
                reduce, code, kind, TensorType(kind.dtype, kind.dims, kind.splits), digits, self.helpers.add
            )
        return f"{code}.reshape({', '.join(map(str, edge.local))})" if edge.is_strided else code

    def donates(self, results: Sequence[Edge]) -> bool:
        """Whether the state's memory can be given to what the function returns.

        JAX pairs what is donated with what is returned by shape and number format alone, results before state: a
        result on the device would get the memory of a state of its shape on the host.
        """
        states = [global_edge(self.program, value) for value in self.program.state]
        return not any(
            state.on_host != result.on_host
            and (state.global_shape, state.kind.dtype) == (result.global_shape, result.kind.dtype)
            for state in states
            for result in results
        )

    def wrapped(
        self, inner: str, params: Sequence[str], param_edges: Sequence[Edge], result_edges: Sequence[Edge]
    ) -> list[str]:
        """The shard_map of the function on one chip's arrays, jitted; strided arrays are reshaped around it."""
        ins = [edge.spec for edge in param_edges]
        outs = [edge.spec for edge in result_edges]
        out_specs = bare_or_tuple(outs) if outs else "()"
        donate = ""
        prologue: list[str] = []
        if self.has_globals:
            prologue = [
                "    weight_specs = {name: spec for name, (_, _, spec) in WEIGHTS.items()}",
                "    state_specs = {name: spec for name, (_, _, spec) in STATE.items()}",
            ]
            ins = ["weight_specs", "state_specs", *ins]
            out_specs = f"({out_specs}, state_specs)"
            donate = ", donate_argnums=1" if self.donates(result_edges) else ""
        in_specs = tuple_text(ins) if ins else "()"
        mapped = f"jax.shard_map({inner}, mesh=mesh, in_specs={in_specs}, out_specs={out_specs}, check_vma=True)"
        table_edges = [global_edge(self.program, value) for value in (*self.program.weights, *self.program.state)]
        if not any(edge.is_strided for edge in (*param_edges, *result_edges, *table_edges)):
            return [*prologue, *broken(f"return jax.jit({mapped}{donate})", "    ")]

        arguments = [_reshaped(p, e.shape, e.is_strided) for p, e in zip(params, param_edges, strict=True)]
        lines = [*prologue, *broken(f"sharded = {mapped}", "    "), ""]
        indent = " " * 8
        outer = [*(["weights", "state"] if self.has_globals else []), *params]
        lines.append(f"    def on_global_arrays({', '.join(outer)}):")
        if self.has_globals:
            lines.append(f"{indent}given = {{name: a.shape for name, a in state.items()}}")
            lines.append(
                f"{indent}weights = {{name: weights[name].reshape(shape) for name, (shape, _, _) in WEIGHTS.items()}}"
            )
            lines.append(
                f"{indent}state = {{name: state[name].reshape(shape) for name, (shape, _, _) in STATE.items()}}"
            )
            arguments = ["weights", "state", *arguments]
        call = f"sharded({', '.join(arguments)})"
        strided = any(edge.is_strided for edge in result_edges)
        made = [f"y{i}" if len(result_edges) > 1 else "y" for i in range(len(result_edges))]
        returned = [_reshaped(y, e.global_shape, e.is_strided) for y, e in zip(made, result_edges, strict=True)]
        if self.has_globals:
            lines.extend(broken(f"{bare_or_tuple(made) if made else '_'}, state = {call}", indent))
            lines.append(f"{indent}state = {{name: a.reshape(given[name]) for name, a in state.items()}}")
            lines.extend(broken(f"return {bare_or_tuple(returned) if returned else '()'}, state", indent))
        elif strided:
            lines.extend(broken(f"{bare_or_tuple(made)} = {call}", indent))
            lines.extend(broken(f"return {bare_or_tuple(returned)}", indent))
        else:
            lines.extend(broken(f"return {call}", indent))
        return [*lines, "", f"    return jax.jit(on_global_arrays{donate})"]


def _opened(edge: Edge) -> str:
    """The reshape from a placed array's part, with one dimension per digit, to the chip's array."""
    if not edge.is_strided:
        return ""
    return f".reshape({', '.join(map(str, edge.chip_shape))})"


def _reshaped(code: str, shape: Sequence[int], strided: bool) -> str:
    return f"{code}.reshape({', '.join(map(str, shape))})" if strided else code
