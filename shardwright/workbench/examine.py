"""A text looked at: at once for its faults, and in depth for its layouts and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Source, Span, fault, located
from shardwright.ir.program import Func, Marking, Program, Statement, Value
from shardwright.ir.types import TensorType
from shardwright.ir.walk import as_written, defined, reads, statements, values_in

if TYPE_CHECKING:
    from shardwright.cost.programs.program_cost import Cost
    from shardwright.ir.text import syntax

Level = Literal["surface", "explicit"]


@dataclass(frozen=True)
class ExamineSettings:
    """How a text is looked at. `chip` "" is the program's own, else the reference chip. Unless `own_chips`, a chip is
    one that comes with the package, and no file is read. Without `proof` layouts are the first that are found."""

    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    chip: str = ""
    objective: str = "time"
    level: Level = "surface"
    own_chips: bool = True
    proof: bool = True


@dataclass(frozen=True)
class Glance:
    """The facts known of a text at once: its tree, its program, and the faults where it has none."""

    source: Source
    module: syntax.Module | None = None
    program: Program | None = None
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class ValueFacts:
    """A value that the author named: its type, and what a chip holds of it. `place` is its name in the text."""

    name: str
    place: Span
    type: str
    found: bool
    chip_shape: tuple[int, ...]
    chip_bytes: int


@dataclass(frozen=True)
class Hint:
    """A type that was found for a value, to be shown at the end of `place`; `written` is the type with holes that
    stands there, None where none does."""

    place: Span
    facts: ValueFacts
    written: Span | None

    @property
    def label(self) -> str:
        return f" = {self.facts.type}" if self.written else f" :~ {self.facts.type}"


@dataclass(frozen=True)
class LineCost:
    """The time that the kernels and movements of one line take of a call of its function."""

    func: str
    line: int
    seconds: float
    share: float
    received: int
    """Bytes that a chip receives from others."""
    bounds: tuple[str, ...]
    values: tuple[str, ...]
    """What these kernels and movements make, by the names of the explicit program."""


@dataclass(frozen=True)
class Examination:
    """The findings of a look in depth: types, the explicit program and its costs; or faults alone."""

    diagnostics: tuple[Diagnostic, ...] = ()
    values: tuple[ValueFacts, ...] = ()
    hints: tuple[Hint, ...] = ()
    explicit: Program | None = None
    text: str = ""
    """The explicit program as it is printed."""
    costs: tuple[Cost, ...] = ()
    lines: tuple[LineCost, ...] = ()
    chip: str = ""
    warnings: tuple[Diagnostic, ...] = ()


def glance(source: Source, settings: ExamineSettings | None = None) -> Glance:
    """The faults of a text that need no choice of layouts; takes milliseconds. Raises nothing."""
    from shardwright.compiling.compile_program import load
    from shardwright.ir.text.parser import parse

    settings = settings or ExamineSettings()
    module: syntax.Module | None = None
    try:
        module = parse(source)
        program = load(source, settings.mesh, settings.dims)
        with located(source):
            _check_chip(program, settings)
    except DiagnosticError as error:
        return Glance(source, module, None, error.diagnostics)
    return Glance(source, module, program)


def examine(source: Source, settings: ExamineSettings | None = None) -> Examination:
    """The layouts of a text and what they cost. Faults of the text are in the answer, not raised."""
    settings = settings or ExamineSettings()
    seen = glance(source, settings)
    if seen.program is None:
        return Examination(seen.diagnostics)
    assert seen.module is not None
    try:
        with located(source):
            return _examined(seen.module, seen.program, settings)
    except DiagnosticError as error:
        return Examination(error.diagnostics)


def _examined(module: syntax.Module, program: Program, settings: ExamineSettings) -> Examination:
    from shardwright.compiling.checking import warnings_of
    from shardwright.compiling.compile_program import print_program
    from shardwright.cost.hardware.chips import REFERENCE, load_chip
    from shardwright.cost.programs.program_cost import cost_of
    from shardwright.ir.verification.completion import complete
    from shardwright.ir.verification.verifier import Level as Strictness
    from shardwright.ir.verification.verifier import verify
    from shardwright.passes.compiling.place import Place
    from shardwright.passes.pipelines import PassRecord, explicit

    traces: list[PassRecord] = []
    chip = settings.chip or program.chip
    if settings.level == "explicit":
        typed = made = complete(program)
        verify(typed, Strictness.EXPLICIT)
    else:
        place = replace(Place.of(settings.objective, chip), proof=settings.proof)
        made = explicit(program, traces.append, place=place)
        typed = next((trace.program for trace in traces if isinstance(trace.applied, Place)), made)
    values = tuple(_values(program, typed))
    priced = chip or REFERENCE.name
    costs = tuple(cost_of(made, func, load_chip(priced)) for func in made.funcs)
    lines = tuple(line for cost in costs for line in _lines(made.func(cost.func), cost))
    hints, text = tuple(_hints(module, values)), print_program(made)
    warnings = tuple(warnings_of(program, typed))
    return Examination((), values, hints, made, text, costs, lines, priced, warnings)


def _hints(module: syntax.Module, values: Sequence[ValueFacts]) -> Iterator[Hint]:
    """The types that the author left open."""
    from shardwright.ir.text import syntax
    from shardwright.workbench.symbols import head_of

    facts_at = {(facts.place.line, facts.place.column): facts for facts in values}
    for node in syntax.nodes(module):
        if isinstance(node, syntax.AssignedName | syntax.Decl):
            facts = facts_at.get((node.span.line, node.span.column))
            if facts is None or not facts.found or facts.name != node.name:
                continue
            if node.type is None:
                yield Hint(head_of(node, node.name), facts, None)
            elif not (isinstance(node, syntax.AssignedName) and node.found):
                yield Hint(node.type.span, facts, node.type.span)


def _check_chip(program: Program, settings: ExamineSettings) -> None:
    """Raises where a chip is unknown, or a file where no file may be read."""
    from shardwright.cost.choosing.objective import chip_for
    from shardwright.cost.hardware.chips import chip_names

    for name in filter(None, (settings.chip, program.chip)):
        if not settings.own_chips and name not in chip_names():
            listed = f"those that come with the package are {', '.join(chip_names())}"
            raise fault("unknown-chip", f"there is no chip {name} here", program.chip_span, listed)
    for named in (settings.chip, ""):
        chip_for(program, named)


def _values(program: Program, typed: Program) -> Iterator[ValueFacts]:
    from shardwright.compiling.checking import named_globals, named_values

    for value, _ in named_globals(program):
        yield from _facts(program, value, typed.globals[value.name])
    for func in program.funcs:
        done = typed.func(func.name)
        named = [value for value, _ in named_values(func)]
        made = as_written(named, [*done.params, *values_in(done.body)])
        for value, known in zip(named, made, strict=True):
            yield from _facts(program, value, known)


def _facts(program: Program, value: Value, typed: Value) -> Iterator[ValueFacts]:
    kind, start = typed.type, value.span
    if isinstance(kind, TensorType) and start.line:
        place = Span(start.line, start.column, start.line, start.column + len(value.name))
        found = value.marking is not Marking.DEMANDED or not isinstance(value.type, TensorType)
        shape, held = kind.local_shape(program.mesh), kind.local_bytes(program.mesh)
        yield ValueFacts(value.name, place, str(kind), found, shape, held)


def _lines(func: Func, cost: Cost) -> list[LineCost]:
    """The time that the kernels of each line take, those that passes wrote among them at the line that they are for."""
    readers: dict[str, list[Statement]] = {}
    for statement in statements(func.body):
        for name in reads(statement):
            readers.setdefault(name, []).append(statement)
    by_line: dict[int, LineCost] = {}
    for kernel in cost.kernels:
        work = kernel.work
        line = _line_of(work.statement, readers)
        was = by_line.get(line, LineCost(cost.func, line, 0.0, 0.0, 0, (), ()))
        by_line[line] = LineCost(
            cost.func,
            line,
            was.seconds + kernel.total_s,
            was.share + (kernel.total_s * cost.rounds / cost.time_s if cost.time_s else 0.0),
            was.received + (work.collective.received * work.trips if work.collective else 0),
            tuple(dict.fromkeys((*was.bounds, kernel.times.bound))),
            (*was.values, work.name),
        )
    return [by_line[line] for line in sorted(by_line) if line]


def _line_of(statement: Statement, readers: Mapping[str, list[Statement]]) -> int:
    """The line of a statement, or of the first that reads what it makes where a pass wrote it; 0 where none does."""
    ahead, seen = [statement], set[int]()
    while ahead:
        first = ahead.pop(0)
        if first.span.line:
            return first.span.line
        for value in defined(first):
            for reader in readers.get(value.name, ()):
                if id(reader) not in seen:
                    seen.add(id(reader))
                    ahead.append(reader)
    return 0
