"""From an explicit program to the source of a stand-alone module that runs it under JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from shardwright.backends.jax.edges import EdgeArray, ProgramEdges
from shardwright.backends.jax.functions import FunctionBody, View
from shardwright.backends.jax.helpers import HELPERS
from shardwright.backends.jax.module_head import (
    docstring,
    has_globals,
    import_lines,
    mesh_lines,
    on_mesh_lines,
    placement,
    signature,
    spec_lines,
    table_lines,
)
from shardwright.backends.jax.source_text import (
    Forms,
    PythonNames,
    assigned,
    bare_or_tuple,
    broken,
    check_dimension,
    check_identifier,
)
from shardwright.backends.jax.terms import Lowering
from shardwright.backends.jax.weight_loading import WeightRecipe, loading_lines
from shardwright.backends.jax.weight_orders import weight_orders
from shardwright.ir.program import Func, Program
from shardwright.ir.walk import names_of


def emit(
    program: Program,
    header: Sequence[str] = (),
    *,
    in_digits: bool = False,
    forms: Forms | None = None,
    recipes: Mapping[str, WeightRecipe] | None = None,
) -> str:
    """The Python source of a module that imports jax and numpy only.

    It defines MESH_SHAPE, make_mesh(devices=None), IN_SPECS, OUT_SPECS, and build_NAME(mesh) for each function. The
    program must be explicit: every type without holes, every movement a statement. `header` lines go into the module's
    docstring. With `in_digits` every strided array that no permute makes blocks of has a dimension for each digit, also
    where the movements beside it would take blocks. `forms` are those that a target's compiler keeps. With
    `recipes`, where each weight lies in a checkpoint, it also defines `load_weights(folder, mesh)`. Raises a
    `DiagnosticError` where a name cannot stand in Python, a type has holes, or a value is in a memory that JAX does not
    have.
    """
    for name in (*program.mesh.axes, *(value.name for value in (*program.weights, *program.state))):
        check_identifier(name)
    for dim in program.dims:
        check_dimension(dim.name)
    return _Module(program, ProgramEdges(program, in_digits), forms or Forms()).source(header, recipes or {})


class _Module:
    def __init__(self, program: Program, edges: ProgramEdges, forms: Forms) -> None:
        self.program = program
        self.forms = forms
        self.edges = edges
        self.has_globals = has_globals(program)
        self.helpers: set[str] = set()

    def source(self, header: Sequence[str], recipes: Mapping[str, WeightRecipe]) -> str:
        functions = [line for func in self.program.funcs for line in ["", "", *self.function(func)]]
        orders = weight_orders(self.program, self.edges, self.forms.tile)
        place, laying = placement(self.program, self.edges, orders)
        body = [
            *mesh_lines(self.program),
            *spec_lines(self.program, self.edges),
            *(table_lines(self.program, self.edges, place, laying) if self.has_globals else []),
            *(loading_lines(recipes, self.edges, place) if recipes else []),
            *on_mesh_lines(self.program),
            *self.used_helpers(),
            *functions,
        ]
        return "\n".join([*docstring(self.program, header, self.edges), *import_lines(body), *body]) + "\n"

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
        digits = self.edges.digits(func)
        names = PythonNames((*names_of(func), *(value.name for value in (*program.weights, *program.state)), func.name))
        lowering = Lowering(digits, self.helpers.add, self.forms)
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
        edges = dict(self.edges.params(func)) | {value.name: self.edges.stored(value) for value in here}
        for value in here:
            python = names[value.name]
            views[value.name] = View(python)
            table = "state" if value.name in program.state_names else "weights"
            code = opened(f"{table}[{value.name!r}]", edges[value.name])
            lines.extend(assigned(python, code, str(value.type), indent))
        for value in func.params:
            python = names[value.name]
            views[value.name] = View(python)
            if edges[value.name].is_reshaped:
                lines.extend(assigned(python, opened(python, edges[value.name]), str(value.type), indent))
            else:
                lines.append(f"{indent}# {python}: {value.type}")

        body.emit(views, indent)
        lines.extend(body.lines)

        results = [closed(views[name].code, edge) for name, edge in self.edges.results(func)]
        returned = bare_or_tuple(results) if results else "()"
        if self.has_globals:
            new = [f"{v.name!r}: {closed(names[v.name], edges[v.name])}" for v in here if v.name in program.state_names]
            untouched = len(new) < len(program.state)
            state = f"{{{', '.join([*(['**state'] if untouched else []), *new])}}}" if new else "state"
            returned = f"{returned}, {state}"
        lines.extend(broken(f"return {returned}", indent))
        donate = ", donate_argnums=1" if self.has_globals and self.donates(func) else ""
        states = [self.edges.stored(value) for value in program.state]
        if donate and any(memories_apart(one, other) for one, other in combinations(states, 2)):
            donate += ", keep_unused=True"  # each state is paired with itself, also one that is set and not read
        return [*lines, "", f"    return jax.jit(on_mesh({func.name!r}, {inner}, mesh){donate})"]

    def builder_docstring(self, func: Func) -> list[str]:
        lines = signature(self.program, func)
        lines[0] = '"""' + lines[0]
        if len(lines) == 1:
            return [lines[0] + '."""']
        return [*lines, '"""']

    def donates(self, func: Func) -> bool:
        """Tells whether the state's memory can be given to what the function returns.

        JAX pairs what is donated with what is returned by shape and number format alone, results before state: a
        result on the device would get the memory of a state of its shape on the host.
        """
        states = [self.edges.stored(value) for value in self.program.state]
        return not any(memories_apart(state, result) for state in states for _, result in self.edges.results(func))


def memories_apart(one: EdgeArray, other: EdgeArray) -> bool:
    """True if two arrays that JAX takes for alike lie in different memories."""
    return one.on_host != other.on_host and (one.shape, one.kind.dtype) == (other.shape, other.kind.dtype)


def opened(code: str, edge: EdgeArray) -> str:
    """A chip's part of a placed array as the array that its type gives the chip."""
    return f"{code}.reshape({', '.join(map(str, edge.chip_shape)) or '()'})" if edge.is_reshaped else code


def closed(code: str, edge: EdgeArray) -> str:
    """The reverse of `opened`: with a dimension for each digit, and for each axis with addends."""
    return f"{code}.reshape({', '.join(map(str, edge.local))})" if edge.is_reshaped else code
