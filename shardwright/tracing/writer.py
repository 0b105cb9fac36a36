"""Writes a graph as a program of the language: values with the names of their dimensions, statement by statement.

The graph is gone through twice with the same rules. The first time they tie dimensions and what they write is dropped;
the second time every class of dimensions has its name, and `rename` stands where two that could not be tied meet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwright.ir.names import is_valid_name
from shardwright.ir.types import axis_set, row_text
from shardwright.tracing.dimensions import Dimensions, Slot
from shardwright.tracing.graph import Application, Constant, Graph, Layout, Operand, TracedFunction, Variable
from shardwright.tracing.hints import hint_letters, tie_by_path
from shardwright.tracing.places import untraceable
from shardwright.tracing.ranges import note
from shardwright.tracing.source_names import source_names

DTYPES = {
    "float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f32", "int64": "int32", "int32": "int32",
    "uint32": "uint32", "int8": "int8", "int4": "int4", "bool": "bool", "int16": "int32", "uint8": "int32",
    "uint16": "int32",
    "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip

WRAPPED = {"uint8": (0, 256), "int16": (-32768, 65536), "uint16": (0, 65536)}
"""Formats that are kept as int32, each with its least number and how many it has: arithmetic wraps around."""

_MAY_OVERFLOW = frozenset({
    "add", "add_any", "sub", "mul", "neg", "abs", "square", "integer_pow", "convert_element_type", "reduce_sum",
    "cumsum", "reduce_prod", "cumprod", "dot_general", "scatter-add", "not", "shift_left",
})  # fmt: skip


@dataclass(frozen=True)
class ProgramValue:
    """The value that stands in the program for a variable.

    `axes` has a slot for each axis of the variable, None for an axis of size 1 and for one along which the value is
    the same everywhere and which the program's value therefore lacks. `order` are the slots as the program's value has
    them.
    """

    text: str
    axes: tuple[Slot | None, ...]
    order: tuple[Slot, ...]
    is_number: bool = False


Rule = Callable[["GraphWriter", Application], None]


class GraphWriter:
    """The statements of one function so far, and what is known of every variable."""

    def __init__(self, rules: Mapping[str, Rule], dimensions: Dimensions) -> None:
        self.rules = rules
        self.dimensions = dimensions
        self.values: dict[Hashable, ProgramValue] = {}
        self.lines: list[str] = []
        self.taken: set[str] = set()
        self.loops: tuple[Hashable, ...] = ()
        self.stems: dict[str, int] = {}
        self.opaque: dict[str, None] = {}
        self.ranges: dict[Hashable, tuple[int, int]] = {}
        """The least and the greatest of integers, by the variable's number, where they are known."""
        self.iotas: dict[str, Slot] = {}
        """Values that count the indices of a dimension, from 0 to its last."""
        self.names: Mapping[Hashable, str] = {}
        """The user's names, by the variable's number."""
        self.states: dict[Hashable, str] = {}
        """The names of what a call changes, by the variable's number."""
        self.joined: dict[Hashable, Application] = {}
        """What was put together of parts, by the variable's number."""

    # ------------------------------------------------------------ values

    def axes(self, variable: Variable) -> tuple[Slot | None, ...]:
        return self.dimensions.axes(variable, frozenset(self.loops))

    def slot(self, key: Slot, size: int) -> Slot:
        return self.dimensions.slot(key, size, inside=frozenset(self.loops))

    def value(self, operand: Operand) -> ProgramValue:
        if isinstance(operand, Constant) and operand.value != operand.value:
            infinity = self.write("infinity", "inf", dtype_of(operand.dtype))
            return ProgramValue(self.write("nan", f"{infinity} - {infinity}"), (None,) * len(operand.shape), ())
        if isinstance(operand, Constant):
            return ProgramValue(number(operand.value), (None,) * len(operand.shape), (), is_number=True)
        return self.values[operand.number]

    def name(self, slot: Slot) -> str:
        return self.dimensions.name(slot)

    def letters(self, slots: Sequence[Slot]) -> str:
        return "".join(map(self.name, slots))

    def fresh(self, stem: str) -> str:
        """A name of the language that no value has yet."""
        stem = "".join(c if c.isascii() and c.isalnum() else "_" for c in stem.lower()).strip("_") or "v"
        if stem[0].isdigit():
            stem = f"p{stem}"
        n = self.stems.get(stem, 0)
        while True:
            name = stem if n == 0 else f"{stem}_{n}"
            n += 1
            if name not in self.taken and is_valid_name(name):
                self.stems[stem] = n
                self.taken.add(name)
                return name
            if n == 1 and not is_valid_name(stem):
                stem = f"{stem}_v"
                n = 0

    def called(self, result: Variable, stem: str) -> str:
        """The user's name of a variable, `stem` where there is none."""
        return self.names.get(result.number) or stem

    def write(self, stem: str, expression: str, type_: str = "") -> str:
        name = self.fresh(stem)
        self.line(f"{name}{': ' + type_ if type_ else ''} = {expression}")
        return name

    def line(self, text: str) -> None:
        self.lines.append("  " * (len(self.loops) + 1) + text)

    def type(
        self, dtype: str, slots: Sequence[Slot], axes: Layout | None = None, place: str = "", addends: str = ""
    ) -> str:
        """The type of a value with these dimensions, split as `axes` says where that is given; `addends` is what stands
        after the row."""
        if axes is None or not slots:
            return f"{dtype_of(dtype)} {self.letters(slots)}?" if slots else f"{dtype_of(dtype)} {addends}".rstrip()
        for slot, over in zip(slots, axes, strict=True):
            if over and self.dimensions.frozen and not self.dimensions.order(slot, over):
                raise untraceable(
                    f"shardings split one dimension over {' '.join(sorted(over))} in two orders", place, "give them one"
                )
        splits = [None if over is None else axis_set(over) for over in axes]
        return f"{dtype_of(dtype)} {row_text(map(self.name, slots), splits)}{addends}"

    def put(self, result: Variable, expression: str, order: Sequence[Slot], axes: Sequence[Slot | None] | None = None,
            type_: str = "", stem: str = "") -> None:  # fmt: skip
        """Writes the statement of a variable. `order` are the slots that the expression has."""
        given = self.axes(result) if axes is None else tuple(axes)
        roots = {self.dimensions.find(slot) for slot in order}
        kept = tuple(a if a is not None and self.dimensions.find(a) in roots else None for a in given)
        self.values[result.number] = ProgramValue(
            self.write(self.called(result, stem or "v"), expression, type_), kept, tuple(order)
        )

    def alias(self, result: Variable, value: ProgramValue, axes: Sequence[Slot | None]) -> None:
        """The variable is this value, with `axes` in the place of the variable's own; an integer is its own range."""
        if value.is_number and "int" in result.dtype:
            only = int(float(value.text))
            self.ranges[result.number] = only, only
        self.values[result.number] = ProgramValue(value.text, tuple(axes), value.order, value.is_number)

    def renamed(self, value: ProgramValue, targets: Mapping[Slot, Slot | None]) -> ProgramValue:
        """The value with other dimensions: from each slot to its target; the others stay."""
        find = self.dimensions.find
        mapping = {find(a): b for a, b in targets.items() if b is not None}
        pairs = [(a, mapping[find(a)]) for a in value.order if find(a) in mapping]
        changed = [(a, b) for a, b in pairs if find(a) != find(b)]
        axes = tuple(mapping.get(find(a), a) if a is not None else None for a in value.axes)
        order = tuple(mapping.get(find(a), a) for a in value.order)
        if not changed:
            return ProgramValue(value.text, axes, order, value.is_number)
        if value.text in self.iotas:
            return ProgramValue(self.counted(order[0], f"{value.text}_r"), axes, order)
        inside = ", ".join(f"{self.name(a)} -> {self.name(b)}" for a, b in changed)
        return ProgramValue(self.write(f"{value.text}_r", f"rename[{inside}]({value.text})"), axes, order)

    def tied(
        self, value: ProgramValue, axes: Sequence[Slot | None], own: Sequence[Slot | None] | None = None
    ) -> ProgramValue:
        """The value with its axes, or these of its `own`, tied to `axes` and called as they are."""
        own = value.axes if own is None else own
        self.dimensions.tie_all(own, axes)
        return self.renamed(value, {a: b for a, b in zip(own, axes, strict=True) if a is not None})

    def counted(self, slot: Slot, stem: str = "iota") -> str:
        """The indices of a dimension."""
        text = self.write(stem, f"iota[{self.name(slot)}]()")
        self.iotas[text] = slot
        return text

    def counts(self, value: ProgramValue, size: int) -> bool:
        """Tells whether the value is the indices of a dimension of this size, all of them in their order."""
        slot = self.iotas.get(value.text)
        return slot is not None and self.dimensions.size[self.dimensions.find(slot)] == size

    def full(self, value: ProgramValue, slots: Sequence[Slot], dtype: str, stem: str = "v") -> str:
        """The value with exactly these dimensions in this order, those that it lacks broadcast."""
        find, kind = self.dimensions.find, dtype_of(dtype)
        if value.is_number:
            expression = f"full[{self.letters(slots)}, {kind}]({value.text})" if slots else value.text
            return self.write(stem, expression, "" if slots else kind)
        have = [find(slot) for slot in value.order]
        if have == [find(slot) for slot in slots]:
            return value.text
        missing = [slot for slot in slots if find(slot) not in have]
        zeros = f"full[{self.letters(missing)}, {kind}](0)" if missing else "0"
        if kind == "bool":
            text = f"logical_or({value.text}, {zeros if missing else value.text})"
        else:
            text = f"{value.text} + {zeros}"
        return self.write(stem, text, self.type(dtype, slots))

    def whole(self, operand: Operand) -> ProgramValue:
        """The operand with all dimensions of its variable, in the order of its axes."""
        value = self.value(operand)
        axes = self.axes(operand) if isinstance(operand, Variable) else self._constant_axes(operand)
        value = self.renamed(value, {a: b for a, b in zip(value.axes, axes, strict=True) if a is not None})
        slots = tuple(slot for slot in axes if slot is not None)
        return ProgramValue(self.full(value, slots, operand.dtype), axes, slots)

    def _constant_axes(self, operand: Constant) -> tuple[Slot | None, ...]:
        return tuple(
            None if size == 1 else self.slot(("constant", id(operand), axis), size)
            for axis, size in enumerate(operand.shape)
        )

    def set_states(self, changed: Sequence[tuple[Variable, Sequence[Slot | None], Operand]], kept: list[str]) -> None:
        """Sets what a call changes, here with these axes; what is `kept` of old versions, or becomes another's new
        one, is copied before."""
        new: list[str] = []
        for variable, axes, operand in changed:
            value = self.whole(operand)
            self.dimensions.tie_all(axes, value.axes)
            named = {theirs: ours for ours, theirs in zip(axes, value.axes, strict=True) if theirs is not None}
            slots = edge_axes(self, axes, operand.shape)
            name = f"{self.states[variable.number]}_new"
            new.append(self.full(self.renamed(value, named), slots, variable.dtype, name))
        formats = {self.states[variable.number]: variable.dtype for variable, _, _ in changed}
        for texts in (kept, new):
            for i, old in enumerate(texts):
                if old in formats:
                    same = f"logical_or({old}, {old})" if formats[old] == "bool" else f"{old} + 0"
                    texts[i] = self.write(f"{old}_old", same)
        for (variable, _, _), text in zip(changed, new, strict=True):
            self.line(f"set {self.states[variable.number]} = {text}")

    # ------------------------------------------------------------ bodies

    def apply(self, graph: Graph) -> None:
        for application in graph.applications:
            if all(0 in result.shape for result in application.results):  # nobody reads an element of it
                for result in application.results:
                    self.values[result.number] = ProgramValue("0", (None,) * len(result.shape), (), is_number=True)
                continue
            rule = self.rules.get(application.primitive)
            if rule is None:
                raise refusal(application, "has no counterpart in the language")
            rule(self, application)
            note(self, application)
            if application.primitive in _MAY_OVERFLOW:
                for result in application.results:
                    self._wrap(result)

    def _wrap(self, result: Variable) -> None:
        """Brings a number of a format that the language has not, and which is kept wider, into that format's range."""
        value = self.values[result.number]
        if result.dtype not in WRAPPED or value.is_number:
            return
        least, count = WRAPPED[result.dtype]
        above = f"({value.text} + {-least})" if least else value.text
        text = self.write(value.text, f"{value.text} - {above} / {count} * {count}")
        self.values[result.number] = ProgramValue(text, value.axes, value.order)


def number(value: float) -> str:
    return repr(value) if isinstance(value, float) else str(int(value))


def dtype_of(dtype: str) -> str:
    if dtype not in DTYPES:
        raise untraceable(f"the number format {dtype} has no counterpart in the language", "")
    return DTYPES[dtype]


def refusal(application: Application, reason: str, way_out: str = "") -> Exception:
    advice = way_out or "write this line with other operations, or trace the parts before and after it"
    return untraceable(f"{application.primitive} {reason}", application.place, advice)


@dataclass(frozen=True)
class ValueSite:
    """A value of the program where the function has it: the variable's number, for each of its axes the name of the
    dimension, None where the program's value has none, `FILE:LINE` of the user's, and the name that it has there, ""
    within an expression."""

    number: Hashable
    dims: tuple[str | None, ...]
    place: str
    own_name: str
    begins_body: bool = False
    """Tells whether it is there at the beginning of a loop's body, the loop being at `place`."""


@dataclass(frozen=True)
class WrittenGraph:
    """A graph as text: the names of the function's parameters, where the function has the program's values, what it
    calls by name, and where the bodies of its loops have slices of the program's values."""

    text: str
    names: list[str]
    sites: dict[str, ValueSite]
    opaque: list[str]
    slices: dict[str, ValueSite]


def written(
    traced: TracedFunction,
    rules: Mapping[str, Rule],
    mesh: Mapping[str, int],
    letters: Callable[[str, set[str]], Mapping[str, str]],
) -> WrittenGraph:
    """The graph as a program. `letters` says of the text, once it stands, and of the names that are to stay, which
    dimensions go by another letter; where any does, it is written again."""
    dimensions = Dimensions()
    _function(traced, GraphWriter(rules, dimensions))
    tie_by_path(traced, dimensions)
    dimensions.tie_pieces()
    hint_letters(traced, dimensions)
    dimensions.freeze()
    made = _written(traced, rules, mesh or traced.mesh, dimensions)
    others = letters(made.text, dimensions.firm())
    if others:
        dimensions.call(others)
        dimensions.orders = {}
        made = _written(traced, rules, mesh or traced.mesh, dimensions)
    return made


def _written(
    traced: TracedFunction, rules: Mapping[str, Rule], mesh: Mapping[str, int], dimensions: Dimensions
) -> WrittenGraph:
    writer = GraphWriter(rules, dimensions)
    called = source_names(traced.graph)
    writer.names = {number: name for number, (name, _) in called.items()}
    header, names = _function(traced, writer)
    items = [f"mesh {' '.join(f'{axis}={size}' for axis, size in mesh.items())}"] if mesh else []
    if declared := dimensions.declared():
        items.append(f"dim {declared}")
    sites: dict[str, ValueSite] = {}
    for variable, name in zip(traced.graph.parameters, names, strict=True):
        dims = tuple(None if slot is None else writer.name(slot) for slot in writer.axes(variable))
        sites[name] = ValueSite(variable.number, dims, "", "")
    slices: dict[str, ValueSite] = {}
    for name, site in _sites(traced.graph, writer, called):
        if site.begins_body and name in sites and site.dims != sites[name].dims:
            slices.setdefault(name, site)
        else:
            sites.setdefault(name, site)
    text = "\n".join([*items, *header, *writer.lines, "}", ""])
    return WrittenGraph(text, names, sites, list(writer.opaque), slices)


def _sites(
    graph: Graph, writer: GraphWriter, called: Mapping[Hashable, tuple[str, str]]
) -> Iterator[tuple[str, ValueSite]]:
    """The values that a graph makes by their names in the program, then those in the bodies of loops."""

    def site(
        variable: Variable, place: str, own: str = "", *, begins_body: bool = False
    ) -> Iterator[tuple[str, ValueSite]]:
        value = writer.values.get(variable.number)
        if value is not None and not value.is_number:
            dims = tuple(None if slot is None else writer.name(slot) for slot in value.axes)
            yield value.text, ValueSite(variable.number, dims, place, own, begins_body)

    for application in graph.applications:
        for result in application.results:
            own, place = called.get(result.number, ("", application.place))
            yield from site(result, place, own)
    for application in graph.applications:
        if application.primitive == "scan":  # of what was written out and is a loop here, nothing begins a body
            body, names = application.params["body"], application.params.get("names", ())
            for variable, own in zip(body.parameters, names, strict=False):
                yield from site(variable, application.place, own, begins_body=True)
            yield from _sites(body, writer, called)


def edge_axes(writer: GraphWriter, edge_axes: Sequence[Slot | None], shape: Sequence[int]) -> list[Slot]:
    """The dimensions at an edge, where axes of size 1 are there, too."""
    return [
        writer.slot(("one", shape[:axis].count(1)), 1) if slot is None else slot for axis, slot in enumerate(edge_axes)
    ]


def _function(traced: TracedFunction, writer: GraphWriter) -> tuple[list[str], list[str]]:
    graph = traced.graph
    header: list[str] = []
    names: list[str] = []
    typed: list[str] = []
    for variable, edge in zip(graph.constants, traced.weights, strict=True):
        name = writer.fresh("_".join(filter(None, (re.sub(r"_?\{.*?\}", "", part) for part in edge.path[1:]))))
        slots = edge_axes(writer, writer.axes(variable), variable.shape)
        header.append(f"  {name}: {writer.type(variable.dtype, slots)}")
        _enter(writer, variable, name, slots)
        if variable in graph.changed:
            writer.states[variable.number] = name
    kept = len(header) - len(writer.states)
    stored = [("weights", header[:kept]), ("state", header[kept:])]
    weights = [line for word, lines in stored if lines for line in (f"{word} {{", *lines, "}")]
    within = Counter("_".join(edge.path[1:]) for edge in traced.inputs)
    for variable, edge in zip(graph.parameters, traced.inputs, strict=True):
        first = int(edge.path[0]) if edge.path and edge.path[0].isdigit() else len(traced.arguments)
        own = traced.arguments[first] if first < len(traced.arguments) else "x"
        path = "_".join(edge.path[1:])
        # Of two arguments with the same names within, and of numbered parts, the argument's own name says which.
        name = writer.fresh(f"{own}_{path}" if path and (within[path] > 1 or path[0].isdigit()) else path or own)
        slots = edge_axes(writer, writer.axes(variable), variable.shape)
        names.append(name)
        typed.append(f"{name}: {writer.type(variable.dtype, slots, edge.axes, addends=edge.addends)}")
        _enter(writer, variable, _before_loops(writer, name, variable.dtype, slots, edge.axes), slots)
    if not traced.results:
        raise untraceable(f"{traced.name} returns no array", "", "return what is to be computed")
    writer.apply(graph)
    results: list[str] = []
    types: list[str] = []
    for operand, edge in zip(graph.results, traced.results, strict=True):
        whole = writer.whole(operand)
        slots = edge_axes(writer, whole.axes, operand.shape)
        results.append(writer.full(whole, slots, operand.dtype, "_".join(edge.path) or "result"))
        types.append(writer.type(operand.dtype, slots, edge.axes, addends=edge.addends))
    writer.set_states([(v, writer.axes(v), new) for v, new in graph.changed.items() if new is not None], results)
    returned = f" -> ({', '.join(types)})" if len(types) > 1 else f" -> {types[0]}"
    writer.line(f"return {', '.join(results)}")
    name = traced.name if is_valid_name(traced.name) else f"{traced.name}_v".lower()
    return [*weights, f"func {name}({', '.join(typed)}){returned} {{"], names


def _before_loops(writer: GraphWriter, name: str, dtype: str, slots: Sequence[Slot], axes: Layout | None) -> str:
    """The name of a parameter inside the function: of a value with another layout where chips divide between them a
    dimension that a loop goes along, which the language does not."""
    pairs = zip(slots, axes or (), strict=False)
    if any(over and writer.dimensions.is_of_loop(slot) for slot, over in pairs):
        return writer.write(name, name, writer.type(dtype, slots))
    return name


def _enter(writer: GraphWriter, variable: Variable, name: str, slots: Sequence[Slot]) -> None:
    axes = writer.axes(variable)
    for slot, axis in zip(slots, axes, strict=True):
        if axis is None:
            name = writer.write(name, f"take[{writer.name(slot)}, 0]({name})")
    writer.values[variable.number] = ProgramValue(name, axes, tuple(axis for axis in axes if axis is not None))
