"""The verdict on a function of JAX as it is sharded: what it receives, the least that it could, and lines to paste."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from shardwright.backends.jax.edges import ProgramEdges
from shardwright.compiling.compile_program import compile_program, explicit
from shardwright.cost.hardware.chips import REFERENCE, load_chip
from shardwright.cost.movements.movement import duration_text
from shardwright.cost.movements.traffic import Traffic, bytes_received
from shardwright.cost.programs.program_cost import cost_of
from shardwright.explaining.explain import explain
from shardwright.explaining.reports import CollectiveReport, shown_place
from shardwright.exporting.jax_specs import Constraint, constraints, layouts, spec
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.text.table import bytes_text
from shardwright.tracing.capture_jax import capture, evaluate_inlined, jaxpr_of, origins
from shardwright.tracing.complex_pairs import has_complex
from shardwright.tracing.graph import Frames, Graph
from shardwright.tracing.source_names import bodies
from shardwright.tracing.trace import Trace, argument_names, trace
from shardwright.tracing.writer import ValueSite

MOST_LINES = 12
"""So many constraints are tried at most; each is compiled."""


@dataclass(frozen=True)
class SuggestedConstraint:
    """A constraint on a value of the function, at `FILE:LINE`, by the name that it has there (`own_name`, "" within an
    expression) or else the program's; with `begins_body` at the beginning of the body of the loop there. Without it a
    chip would receive `saved_bytes` more, of all trips, as compiled beside the other fixes.

    The function has `times` values there, those of layers that are written one after the other, each of which was
    constrained. Of an argument that is several arrays `numbers` are those of the i in its name.
    """

    value: str
    own_name: str
    spec: str
    source: str
    saved_bytes: int
    begins_body: bool = False
    times: int = 1
    numbers: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The keys that `explain --json` promises; `line` has the name and the numbers."""
        told = {key: value for key, value in self.__dict__.items() if key not in ("own_name", "numbers")}
        return {**told, "line": self.pasted}

    @property
    def place(self) -> str:
        """Where the line belongs."""
        place = shown_place(self.source) or "at the beginning"
        again = f", all {self.times} times that it runs" if self.times > 1 and self.source else ""
        return f"{place}, where its body begins{again}" if self.begins_body else f"{place}{again}"

    @property
    def pasted(self) -> str:
        """The line of JAX."""
        if not self.own_name:
            return f"jax.lax.with_sharding_constraint(..., {self.spec})  # of what {self.value} gives within the line"
        line = f"jax.lax.with_sharding_constraint({self.own_name}, {self.spec})"
        if self.own_name.isidentifier():
            return f"{self.own_name} = {line}"
        each = f", i = {', '.join(map(str, self.numbers))}" if self.numbers else ""
        return f"{line}  # in the place of {self.own_name}{each}"


@dataclass(frozen=True)
class Verdict:
    """A function as it is compiled, beside the best program of it under the same shardings of its arguments.

    Bytes are those that a chip receives. `expect` says how far measured times may be from `least_time_s`. `collectives`
    are those of the function that the best program does not have. `fixes` have been compiled together, which gave
    `fixed_bytes`; there are none where none gave less.
    """

    function: str
    received_bytes: int
    least_bytes: int
    is_proved: bool
    least_time_s: float
    chip: str
    collectives: tuple[CollectiveReport, ...]
    fixes: tuple[SuggestedConstraint, ...]
    fixed_bytes: int
    expect: str = ""

    def as_json(self) -> dict[str, Any]:
        """The `verdict` of `explain --json`."""
        return {
            **{key: value for key, value in self.__dict__.items() if key not in ("collectives", "fixes")},
            "collectives": [each.as_json() for each in self.collectives],
            "fixes": [fix.as_json() for fix in self.fixes],
        }

    def __repr__(self) -> str:
        compiled = f"{self.function}: a chip receives {bytes_text(self.received_bytes)} as compiled"
        found = bytes_text(self.least_bytes)
        if self.least_bytes >= self.received_bytes:
            equal = self.least_bytes == self.received_bytes
            what = f"{found} in the best program" if equal else "no less in any program"
            return f"{compiled}, and {what} that was found: nothing is known to be avoidable"
        proved = "" if self.is_proved else " or less"
        expected = f" ({self.expect})" if self.expect else ""
        least = f"{found}{proved} in the best program, {duration_text(self.least_time_s)} on {self.chip}{expected}"
        lines = [f"{compiled}, and {least}"]
        lines += [
            f"  {shown_place(each.source) or 'no line'}: {each.op}[{', '.join(each.axes)}],"
            f" {bytes_text(each.bytes_received)}"
            for each in self.collectives
        ]
        if self.fixes:
            lines.append(f"with these lines, compiled and counted, it receives {bytes_text(self.fixed_bytes)}:")
            lines += [
                f"  {fix.place}: {fix.pasted}, {bytes_text(fix.saved_bytes)} more without it" for fix in self.fixes
            ]
        else:
            tried = "no constraint that was tried makes the compiler receive less"
            lines.append(f"{tried}; shardwright.optimize runs the best program")
        return "\n".join(lines)


def advise(
    function: Callable[..., Any],
    args: Sequence[Any],
    mesh: Mapping[str, int] | Any | None = None,
    chip: str = "",
    *,
    target: str | None = "cpu",
    observe: Callable[[int], None] = lambda _: None,
) -> Verdict:
    """Compiles a function of JAX as it is, finds the best program of it, and tries the constraints that lead there.

    `args` are arrays or `jax.ShapeDtypeStruct` with shardings, over devices or over an `AbstractMesh`, which are kept;
    what lies between them is chosen: for the fewest bytes, and for the least predicted time on `chip`. `target` is
    whose compiler is asked, as of `explain`. Every constraint that is named has been compiled, and without it more is
    received; `observe` is told how often it has been compiled. Raises a `DiagnosticError` where the function cannot be
    traced or compiled.
    """
    compilations = count(1)

    def measured(tried: Callable[..., Any]) -> tuple[int, tuple[CollectiveReport, ...]]:
        explained = explain(tried, target, mesh, args=args)
        observe(next(compilations))
        for error in explained.errors:
            raise error
        (func,) = explained.functions
        return func.bytes_received, func.collectives

    sizes = mesh if isinstance(mesh, Mapping) or mesh is None else {str(a): int(n) for a, n in mesh.shape.items()}
    traced = trace(function, args, mesh=sizes)
    received, collectives = measured(function)
    compiled = compile_program(traced.program, validate=False, objective="bytes", chip=chip)
    (func,) = compiled.program.funcs
    best = bytes_received(compiled.program, func)
    fastest, on = explicit(traced.program, chip=chip), load_chip(chip or REFERENCE.name)
    least = cost_of(fastest, fastest.funcs[0], on, on.constants)
    fixes, fixed = (), received
    if best.bytes < received:
        digits = ProgramEdges(compiled.program).digits(func)
        moved = list(constraints(func, digits, parameters=True))
        fixes, fixed = _tried(function, args, _lines(function, args, _proposed(traced, moved)), received, measured)
        if not fixes:  # then what stays as it is has to be said, too
            named = {each.value.name for each in moved}
            others = [each for each in layouts(func, digits) if each.value.name not in named]
            lines = _lines(function, args, _proposed(traced, [*moved, *others]))
            written = [line for line in lines if line.suggested.own_name]
            fixes, fixed = _tried(function, args, written, received, measured)
    return Verdict(
        func.name, received, best.bytes, compiled.layouts is None or compiled.layouts.proved, least.time_s,
        chip or "the reference chip", _lacking(collectives, best) if best.bytes < received else (), fixes, fixed,
        least.error_in_brief(),
    )  # fmt: skip


def _proposed(traced: Trace, layouts: Sequence[Constraint]) -> list[tuple[str, ValueSite, Layout]]:
    """Layouts of the program's values where the function has these."""
    made: list[tuple[str, ValueSite, Layout]] = []
    for each in layouts:
        is_slice = each.dims != each.value.shape.names
        site = (traced.slices if is_slice else traced.sites).get(each.value.name)
        if site is not None:
            axes = dict(zip(each.dims, each.layout, strict=True))
            made.append((each.value.name, site, tuple(axes.get(dim or "", ()) for dim in site.dims)))
    return made


Layout = tuple[tuple[str, ...], ...]
"""The mesh axes that split each axis of an array."""


@dataclass(frozen=True)
class TriedConstraint:
    """A constraint to try, as it is suggested, on the variables of these numbers."""

    suggested: SuggestedConstraint
    axes: Layout
    variables: frozenset[Hashable]


def _lines(
    function: Callable[..., Any], args: Sequence[Any], proposed: Sequence[tuple[str, ValueSite, Layout]]
) -> list[TriedConstraint]:
    """A line for each place, with the layout that most of its values are proposed in, on all that the function has
    there: a line in the user's loop, or in a function that is called again, is of every layer. One line stands for
    arguments whose paths differ in numbers alone."""
    import jax

    graph = capture(function, args, "f").graph
    # Of a function with complex values the graph is of pairs, which alone the arguments are not.
    written = {} if has_complex(jaxpr_of(function, args)[0]) else dict(_written(graph))
    leaves = jax.tree_util.tree_flatten_with_path(tuple(args))[0]
    names = argument_names(function)
    arguments = {
        variable.number: _argument(path, names) for variable, (path, _) in zip(graph.parameters, leaves, strict=True)
    }
    groups: dict[Hashable, list[tuple[str, ValueSite, Layout]]] = {}
    for name, site, axes in proposed:
        if site.number in arguments:
            groups.setdefault((arguments[site.number][0], axes), []).append((name, site, axes))
        elif site.number in written:
            way = written[site.number].down_from(site.place)
            alike = frozenset(number for number, each in written.items() if each.down_from(site.place) == way)
            groups.setdefault(alike, []).append((name, site, axes))
    made: list[TriedConstraint] = []
    for key, members in groups.items():
        ((axes, _),) = Counter(axes for *_, axes in members).most_common(1)
        value, site, _ = max(members, key=lambda each: each[1].own_name != "")
        own, variables, numbers = site.own_name, key, ()
        if site.number in arguments:
            pattern, _, alone = arguments[site.number]
            own = pattern if len(members) > 1 else alone
            variables = frozenset(member.number for _, member, _ in members)
            numbers = tuple(sorted(arguments[each][1] for each in variables)) if len(members) > 1 else ()
        assert isinstance(variables, frozenset)
        suggested = SuggestedConstraint(
            value, own, spec(axes), site.place, 0, site.begins_body, len(variables), numbers
        )  # fmt: skip
        made.append(TriedConstraint(suggested, axes, variables))
    return made


@dataclass(frozen=True)
class _Written:
    """Where a value is written: the calls that lead there, the expression's columns, and which of its values it is."""

    frames: Frames
    place: str
    which: Hashable

    def down_from(self, place: str) -> Hashable:
        """The way to it from the line `FILE:LINE`, by which a line that is pasted there tells it; None without any."""
        at = next((i for i, (file, line) in enumerate(self.frames) if f"{file}:{line}" == place), None)
        if at is not None:
            return self.frames[at:], self.which
        return (place, self.which) if self.place == place else None


def _written(graph: Graph) -> Iterator[tuple[Hashable, _Written]]:
    """Where each variable is written, by its number, those of loops' bodies included."""
    for application in graph.applications:
        kind = application.primitive, application.columns
        for k, result in enumerate(application.results):
            yield result.number, _Written(application.frames, application.place, (*kind, k, len(result.shape)))
        for at, body in enumerate(bodies(application)):
            for k, parameter in enumerate(body.parameters):
                yield parameter.number, _Written(application.frames, application.place, (*kind, "body", at, k))
            yield from _written(body)


def _argument(path: Sequence[Any], names: Sequence[str]) -> tuple[str, int, str]:
    """How the function names an argument: with i for its last number, that number (-1 without), and with that."""
    import jax

    first = getattr(path[0], "idx", len(names))
    root = names[first] if first < len(names) else f"args[{first}]"
    texts = [jax.tree_util.keystr((key,)) for key in path[1:]]
    at = max((i for i, key in enumerate(path[1:]) if hasattr(key, "idx")), default=-1)
    alone = root + "".join(texts)
    if at < 0:
        return alone, -1, alone
    return root + "".join("[i]" if i == at else text for i, text in enumerate(texts)), path[1 + at].idx, alone


def _lacking(own: Sequence[CollectiveReport], best: Traffic) -> tuple[CollectiveReport, ...]:
    """The collectives of a function that its best program does not have: none that is alike and receives as much."""
    there = Counter((moved.operation.keyword, moved.bytes) for moved in best.movements)
    left: list[CollectiveReport] = []
    for each in sorted(own, key=lambda each: -each.bytes_received):
        key = (each.op, each.bytes_received)
        if there[key]:
            there[key] -= 1
        elif each.bytes_received:
            left.append(each)
    return tuple(left)


def _tried(
    function: Callable[..., Any],
    args: Sequence[Any],
    lines: Sequence[TriedConstraint],
    received: int,
    measured: Callable[[Callable[..., Any]], tuple[int, object]],
) -> tuple[tuple[SuggestedConstraint, ...], int]:
    """The lines that together make the compiler receive less, none of them for nothing, and what it receives, of the
    first `MOST_LINES`.

    Lines are left out one by one, from the first on, until what each of them saves has been counted beside those that
    stay, and no others.
    """
    counts: dict[tuple[int, ...], int] = {(): received}

    def counted(tried: Sequence[TriedConstraint]) -> int:
        key = tuple(map(id, tried))
        if key not in counts:
            try:
                counts[key] = measured(constrained(function, args, tried))[0]
            except (DiagnosticError, ValueError):  # of layers of several widths, say, not all of which it divides
                counts[key] = sys.maxsize
        return counts[key]

    kept, before = list(lines[:MOST_LINES]), None
    while kept != before:
        before = kept
        for line in before:
            without = [each for each in kept if each is not line]
            if counted(without) <= counted(kept):
                kept = without
    best = counted(kept)
    if best >= received:
        return (), received
    saved = [counted([each for each in kept if each is not line]) - best for line in kept]
    return tuple(
        replace(line.suggested, saved_bytes=saving) for line, saving in zip(kept, saved, strict=True)
    ), best  # fmt: skip


def constrained(
    function: Callable[..., Any], args: Sequence[Any], lines: Sequence[TriedConstraint]
) -> Callable[..., Any]:
    """The function of JAX with these constraints in it."""
    import jax

    closed, shapes = jaxpr_of(function, args)
    variables = origins(closed)
    mesh = next(
        leaf.sharding.mesh
        for leaf in jax.tree_util.tree_leaves(tuple(args))
        if isinstance(getattr(leaf, "sharding", None), jax.NamedSharding)
    )
    where = {
        variables[int(str(number))]: jax.NamedSharding(mesh, jax.P(*(axes or None for axes in line.axes)))
        for line in lines
        for number in line.variables
    }

    def changed(variable: Any, value: Any) -> Any:
        return jax.lax.with_sharding_constraint(value, where[variable]) if variable in where else value

    def run(*given: Any) -> Any:
        results = evaluate_inlined(closed, jax.tree_util.tree_leaves(given), changed, in_loops=True)
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), results)

    run.__name__ = getattr(function, "__name__", "f")
    return run
