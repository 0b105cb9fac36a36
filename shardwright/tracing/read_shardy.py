"""Reads where the arguments and results of a module in MLIR lie, by the attributes of Shardy."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, Span, fault, located
from shardwright.ir.names import is_valid_name
from shardwright.tracing.graph import Layout

_BETWEEN_MODULES = re.compile(r"// -----\s*")
_SHARDING, _GSPMD, _MEMORY = "sdy.sharding", "mhlo.sharding", "mhlo.memory_kind"
_AS_TEXT = "jax.jit(f).lower(...).as_text() is such a text, and what `export --as shardy` writes"


@dataclass(frozen=True)
class ArraySharding:
    """The layout of an argument or of a result: the mesh axes that split each dimension, most significant first,
    None where that is left open, and those along which it has still to be summed.

    `axes` is None where nothing is said. `what` names it in messages.
    """

    what: str
    shape: tuple[int, ...]
    axes: Layout | None = None
    unreduced: tuple[str, ...] = ()
    on_host: bool = False
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class ShardedModule:
    """The shardings of a module's public function. `notes` are what types have no words for, and what was taken in
    its place."""

    name: str
    mesh: dict[str, int]
    arguments: tuple[ArraySharding, ...]
    results: tuple[ArraySharding, ...]
    notes: tuple[str, ...] = ()
    span: Span = field(default=NOWHERE, compare=False)


def read_shardy(source: Source) -> list[ShardedModule]:
    """The modules of a file, with lines of `// -----` between.

    Raises a `DiagnosticError` where it is no MLIR, where its shardings are not Shardy's, and for what no type says:
    parts of an axis, devices in an order of their own, one device for all.
    """
    with located(source):
        found = [_read(text, source) for text in _modules(source)]
        if not any(each.axes is not None for module in found for each in (*module.arguments, *module.results)):
            raise unread("no argument and no result has a sharding", NOWHERE, _AS_TEXT)
    return found


def unread(message: str, span: Span, *notes: str) -> DiagnosticError:
    """The error that shardings cannot become types."""
    return fault("shardings", message, span, *notes)


def _modules(source: Source) -> Iterator[str]:
    """The text of each module, after as many empty lines as put it on its own."""
    begins = 0
    cuts = [at for at, line in enumerate(source.lines) if _BETWEEN_MODULES.fullmatch(line)]
    for end in (*cuts, len(source.lines)):
        text = "\n".join(source.lines[begins:end])
        if text.strip():
            yield "\n" * begins + text
        begins = end + 1


def _read(text: str, source: Source) -> ShardedModule:
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            first = error.error_diagnostics[0]
            place = _span(ir.Location.from_attr(first.location.attr), source)
            raise unread(f"this cannot be read as MLIR: {first.message}", place, _AS_TEXT) from None
        return _ModuleReader(module, source).read()


class _ModuleReader:
    def __init__(self, module: Any, source: Source) -> None:
        self.module, self.source = module, source
        self.mesh: dict[str, int] = {}
        self.notes: dict[str, None] = {}

    def read(self) -> ShardedModule:
        function = self.function()
        place = _span(function.location, self.source)
        ranked = list(zip(function.arguments, _dicts(function, "arg_attrs"), strict=True))
        arguments = [
            self.array(f"argument {at}{_name(each.location)}", each.type, attributes, _span(each.location, self.source))
            for at, (each, attributes) in enumerate(ranked, 1)
        ]
        typed = zip(function.type.results, _dicts(function, "res_attrs"), strict=True)
        results = [self.array(f"result {at}", type_, said, place) for at, (type_, said) in enumerate(typed, 1)]
        self.note_constraints()
        attributes = self.module.operation.attributes
        name = attributes["sym_name"].value if "sym_name" in attributes else ""
        return ShardedModule(
            name.removeprefix("jit_"), self.mesh, tuple(arguments), tuple(results), tuple(self.notes), place
        )

    def note_constraints(self) -> None:
        """Says that constraints within are left out: nothing tells which of a program's values they are on."""
        from jaxlib.mlir import ir

        lines: list[int] = []

        def see(op: Any) -> Any:
            if op.name == "sdy.sharding_constraint":
                lines.append(_span(op.location, self.source).line)
            return ir.WalkResult.ADVANCE

        self.module.operation.walk(see)
        if lines:
            said = f"{len(lines)} constraint{'s' * (len(lines) > 1)} within, the first in line {lines[0]}"
            self.notes[f"{said}: left out; those that a traced function has itself are demanded"] = None

    def function(self) -> Any:
        """The function that is called from outside: the only public one, or `main`."""
        functions = [op for op in self.module.body.operations if op.operation.name == "func.func"]
        public = [op for op in functions if op.visibility is None or op.visibility.value == "public"]
        named = [op for op in public if op.name.value == "main"]
        if len(public) != 1 and len(named) != 1:
            many = ", ".join(op.name.value for op in public) or "none"
            raise unread(
                f"a module has one public function, or one called main, and this one has {many}", NOWHERE, _AS_TEXT
            )
        return named[0] if named else public[0]

    def array(self, what: str, type_: Any, attributes: Any, span: Span) -> ArraySharding:
        from jaxlib.mlir import ir

        try:
            shape = tuple(ir.RankedTensorType(type_).shape)
        except ValueError:
            raise unread(f"{what} is {type_}, and types are of tensors", span) from None
        if any(size < 0 for size in shape):
            raise unread(f"{what} is {type_}, of no known size", span, "lower the function at the sizes of the program")
        kind = attributes[_MEMORY].value if _MEMORY in attributes else "device"
        if _SHARDING not in attributes:
            if _GSPMD in attributes:
                raise unread(
                    f"the sharding of {what} is GSPMD's, {attributes[_GSPMD]}, and not Shardy's",
                    span,
                    "jax.config.update('jax_use_shardy_partitioner', True) before lowering, which is JAX's default",
                )
            return ArraySharding(what, shape, on_host=kind.endswith("_host"), span=span)
        axes, unreduced = self.sharding(what, attributes[_SHARDING], span)
        return ArraySharding(what, shape, axes, unreduced, kind.endswith("_host"), span)

    def sharding(self, what: str, attribute: Any, span: Span) -> tuple[Layout, tuple[str, ...]]:
        """The axes of each dimension, and those that are unreduced."""
        from jaxlib.mlir.dialects import sdy

        said = sdy.TensorShardingAttr(attribute)
        self.meet(self.mesh_of(what, said.mesh_or_ref, span), what, span)
        dims = [sdy.DimensionShardingAttr(each) for each in said.dimension_shardings]
        axes = [_whole_axes(what, each.axes, span) for each in dims]
        unreduced = _whole_axes(what, said.unreduced_axes, span)
        replicated = _whole_axes(what, said.replicated_axes, span)
        if any(each.priority is not None for each in dims):
            self.notes[f"{what}: priorities are left out: they say in which order Shardy propagates"] = None
        made: list[tuple[str, ...] | None] = []
        taken = {axis for over in (*axes, unreduced) for axis in over}
        left = set(self.mesh) - taken - set(replicated)
        for over, each in zip(axes, dims, strict=True):
            is_open = not each.is_closed and bool(left)
            if is_open and replicated:
                raise unread(
                    f"{what} is whole along {' '.join(replicated)} and open along others, and a hole may take any axis",
                    span,
                    'close its dimensions, {} for {?}, or leave "replicated" out',
                )
            if is_open and over:
                self.notes[f"{what}: {{{', '.join(over)}, ?}} is taken as split over {' '.join(over)} alone"] = None
            made.append(None if is_open and not over else over)
        return tuple(made), unreduced

    def mesh_of(self, what: str, reference: Any, span: Span) -> dict[str, int]:
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import sdy

        if isinstance(reference, ir.FlatSymbolRefAttr):
            reference = ir.SymbolTable(self.module.operation)[reference.value].attributes["mesh"]
        mesh = sdy.MeshAttr(reference)
        axes = [sdy.MeshAxisAttr(each) for each in mesh.axes]
        if list(mesh.device_ids) and not axes:
            raise unread(f"{what} lies on one device of all, {mesh}", span, "leave its sharding out, or name axes")
        if list(mesh.device_ids):
            raise unread(
                f"the mesh of {what} numbers its devices in an order of its own, {mesh}",
                span,
                "devices are numbered row by row over a mesh: order its axes so",
            )
        bad = next((axis.name for axis in axes if not is_valid_name(axis.name)), None)
        if bad is not None:
            raise unread(
                f"the mesh of {what} has the axis {bad!r}, and no axis of a program can be called that",
                span,
                "axes are lower-case words, as x or data, and none of the language's or of Python's",
            )
        return {axis.name: axis.size for axis in axes}

    def meet(self, mesh: dict[str, int], what: str, span: Span) -> None:
        """Takes the mesh of an array for that of the module. An array that no axis splits may name an empty one."""
        if self.mesh and mesh and mesh != self.mesh:
            raise unread(
                f"the module has two meshes: {what} is on {mesh_text(mesh)}, those before on {mesh_text(self.mesh)}",
                span,
                "give all of them one mesh",
            )
        self.mesh = self.mesh or mesh


def mesh_text(mesh: dict[str, int]) -> str:
    """`x=2 y=4`."""
    return " ".join(f"{axis}={size}" for axis, size in mesh.items()) or "no axes"


def _whole_axes(what: str, references: Iterable[Any], span: Span) -> tuple[str, ...]:
    from jaxlib.mlir.dialects import sdy

    found = [sdy.AxisRefAttr(each) for each in references]
    for axis in found:
        if axis.sub_axis_info is not None:
            part = sdy.SubAxisInfoAttr(axis.sub_axis_info)
            raise unread(
                f'{what} is split over a part of the axis {axis.name}, "{axis.name}":({part.pre_size}){part.size}',
                span,
                f"types name whole axes: give the mesh an axis for each part of {axis.name}",
            )
    return tuple(axis.name for axis in found)


def _dicts(function: Any, name: str) -> Sequence[Any]:
    """The attributes of each argument or result; of none where the function has none."""
    kinds = function.type.inputs if name == "arg_attrs" else function.type.results
    attributes = function.operation.attributes
    return list(attributes[name]) if name in attributes else [{} for _ in kinds]


def _name(location: Any) -> str:
    """The name that JAX has for an argument, where the text has it: ` (p['w'])`."""
    from jaxlib.mlir import ir

    return f" ({location.name_str})" if isinstance(location, ir.NameLoc) else ""


def _span(location: Any, source: Source) -> Span:
    """The place in the text; none where the text itself says where each of its parts comes from."""
    from jaxlib.mlir import ir

    if not isinstance(location, ir.FileLineColLoc) or location.filename != "-":
        return NOWHERE
    line, column = location.start_line, location.start_col
    word = re.compile(r"%?[\w$.\-]*").match(source.line(line), column - 1)
    return Span(line, column, line, max(column + 1, word.end() + 1 if word else 0))
