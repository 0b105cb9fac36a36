"""Programs as a target's compiler made them: their collectives, whose statements they are, memory and kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.backends.targets.compilers import MODULE
from shardwright.explaining.reports import (
    CollectiveReport,
    Explanation,
    FaultReport,
    FunctionReport,
    KernelReport,
    UntimedKernel,
)

if TYPE_CHECKING:
    from shardwright.backends.hlo.collectives import CompiledCollective
    from shardwright.backends.hlo.kernels import CompiledKernel
    from shardwright.backends.hlo.module import HloModule, SourceFrame
    from shardwright.backends.hlo.statements import Statement
    from shardwright.backends.targets.compilers import CompiledFunction
    from shardwright.backends.targets.names import Target
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.program import Func, Program

# ---------------------------------------------------------------- the three things that can be explained


def explain(
    subject: str | Callable[..., Any],
    target: str | None = None,
    mesh: Mapping[str, int] | Any | None = None,
    dims: Mapping[str, int] | None = None,
    *,
    args: Sequence[Any] = (),
    functions: Sequence[str] | None = None,
    time_limit_s: float | None = None,
) -> Explanation:
    """Explains a file: a `.shard` program, a module that `compile` emitted (`.py`), or the text of an optimized HLO
    module; or a function of JAX with its arguments `args`, arrays or `jax.ShapeDtypeStruct` with shardings.

    They are compiled for `target`, a text excepted, which has been. Where it is None programs and modules are compiled
    for the host's processor, a function for the devices that its arguments lie on; with a target these may lie on any
    devices, or on a `jax.sharding.AbstractMesh`. Of a text and of a function `mesh` names the devices, row by row; of a
    function it may be a mesh of JAX, by default that of its arguments. Raises a `DiagnosticError` where the input is at
    fault or the target cannot be compiled for, and what the function itself raises; what the compiler refuses is among
    the explanation's `errors`.
    """
    from shardwright.ir.diagnostics import located
    from shardwright.ir.text.parser import read_source

    if not isinstance(subject, str):
        return _explain_function(subject, args, mesh, target, time_limit_s)
    file = subject
    source = read_source(file)
    with located(source):
        match Path(file).suffix:
            case ".shard":
                from shardwright.compiling.compile_program import explicit, load

                program = explicit(load(source, mesh, dims), target=target)
                return explain_program(program, target or "cpu", file, functions, time_limit_s)
            case ".py":
                return _explain_module(source, target or "cpu", mesh or {}, functions, time_limit_s)
            case _:
                return explain_text(source, mesh)


def explain_program(
    program: Program,
    target: str,
    file: str | None = None,
    functions: Sequence[str] | None = None,
    time_limit_s: float | None = None,
    *,
    in_digits: bool = False,
) -> Explanation:
    """Explains an explicit program as it stands. `file` is what sources name; without it they are left out. `in_digits`
    as of `backends.jax.emit`."""
    from shardwright.backends.jax.emit import emit
    from shardwright.backends.targets.names import parse_target
    from shardwright.cost.movements.traffic import bytes_received
    from shardwright.cost.programs.memory import memory_of

    on = parse_target(target)
    text = emit(program, in_digits=in_digits, forms=on.forms)
    explained = _explain_text_of_module(text, target, program.mesh, functions, time_limit_s)
    reports: list[FunctionReport] = []
    for report in explained.functions:
        func = program.func(report.name)
        lines = _lines(func)

        def place(*statements: str | None, lines: Mapping[str, int] = lines) -> str | None:
            named = [lines[name] for name in statements if name is not None and name in lines]
            return f"{file}:{named[0]}" if named and file else None

        reports.append(
            replace(
                report,
                collectives=tuple(replace(c, source=place(*c.statements)) for c in report.collectives),
                faults=tuple(replace(f, source=place(f.statement)) for f in report.faults),
                written_bytes_received=bytes_received(program, func).bytes,
                predicted_peak_bytes=memory_of(program, func, copied_slices=on.platform.copies_slices).peak,
            )
        )
    return replace(explained, functions=tuple(reports))


def _lines(func: Func) -> dict[str, int]:
    """The line of the program's text that each value comes from. A movement that the compiler inserted has that of the
    first statement that reads what it moves, or else of the one that made it."""
    from shardwright.ir.walk import lets_in

    lets = list(lets_in(func.body))
    lines = {let.result.name: let.span.line for let in lets if let.span.line}
    for let in reversed(lets):
        for operand in let.operands:
            if isinstance(operand, str) and let.result.name in lines:
                lines.setdefault(operand, lines[let.result.name])
    for let in lets:
        made = [lines[operand] for operand in let.operands if isinstance(operand, str) and operand in lines]
        if made:
            lines.setdefault(let.result.name, made[0])
    return lines


def explain_text(source: Source, mesh: Mapping[str, int] | None = None) -> Explanation:
    """Explains the text of an optimized HLO module, a `Source`. Without a mesh its devices are one axis, `devices`."""
    from shardwright.backends.hlo.module import HloError, parse
    from shardwright.backends.hlo.wholeness import check_whole
    from shardwright.backends.targets.compilers import CompiledFunction
    from shardwright.ir.diagnostics import NOWHERE, fault

    try:
        module = parse(source.text)
        check_whole(module, source.text)
        axes = dict(mesh) if mesh else {"devices": module.devices}
        if prod(axes.values()) != module.devices:
            listed = " ".join(f"{axis}={size}" for axis, size in axes.items())
            raise fault(
                "mesh-fit",
                f"the module {module.name} runs on {module.devices} devices, and the mesh {listed} has"
                f" {prod(axes.values())}",
                NOWHERE,
                "--mesh names the devices row by row",
            )
        func = CompiledFunction(module.name, source.text, "", None, None)
        return Explanation(None, (_report(func, module, axes, None),))
    except HloError as error:
        raise fault("bad-hlo", str(error), NOWHERE, "as compiled.as_text() or --xla_dump_to gives it") from None


def _explain_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    mesh: Mapping[str, int] | Any | None,
    target: str | None,
    time_limit_s: float | None,
) -> Explanation:
    """A function of JAX, compiled in this process, or for a target in one of its own."""
    from shardwright.backends.hlo.module import parse
    from shardwright.backends.targets.compilers import TIME_LIMIT_S, compile_lowered
    from shardwright.backends.targets.functions import compile_here, lower, without_callers
    from shardwright.backends.targets.names import parse_target

    wanted = None if target is None else parse_target(target)
    lowered = lower(function, args, mesh, wanted and wanted.platform.name)
    if wanted is None:
        where, func = compile_here(lowered)
    else:
        where = wanted.name
        limit = time_limit_s or TIME_LIMIT_S
        func = compile_lowered(wanted, lowered.name, lowered.text, lowered.mesh, time_limit_s=limit)
    if func.error is not None:
        return Explanation(where, (), (func.error,))
    return Explanation(where, (_report(func, without_callers(parse(func.text)), lowered.mesh, wanted),))


# ---------------------------------------------------------------- emitted modules


def _explain_module(
    source: Source, target: str, mesh: Mapping[str, int], functions: Sequence[str] | None, time_limit_s: float | None
) -> Explanation:
    """A module from a user's file."""
    from shardwright.ir.diagnostics import NOWHERE, fault

    own = _mesh_shape(source)
    if mesh and dict(mesh) != own:
        listed = ", ".join(f"{axis}={size}" for axis, size in own.items())
        raise fault("mesh-fit", f"the module is compiled for the mesh {listed}", NOWHERE, "leave --mesh away")
    return _explain_text_of_module(source.text, target, own, functions, time_limit_s, source.name)


def _mesh_shape(source: Source) -> dict[str, int]:
    """MESH_SHAPE of an emitted module."""
    from shardwright.ir.diagnostics import NOWHERE, fault

    values: dict[str, Any] = {}
    try:
        for node in ast.parse(source.text).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values[node.targets[0].id] = node.value
        if "IN_SHAPES" in values:
            return dict(ast.literal_eval(values["MESH_SHAPE"]))
    except (KeyError, SyntaxError, TypeError, ValueError):
        pass
    raise fault(
        "bad-module", "this is no module of `shardwright compile`", NOWHERE,
        f"compile the program again; a function of JAX in it is {source.name}:FUNCTION",
    )  # fmt: skip


def _explain_text_of_module(
    text: str, target: str, mesh: Mapping[str, int], functions: Sequence[str] | None, time_limit_s: float | None,
    file: str = MODULE,
) -> Explanation:  # fmt: skip
    """An emitted module, called `file` where a source is named."""
    from shardwright.backends.hlo.module import parse
    from shardwright.backends.hlo.statements import statement_names
    from shardwright.backends.targets.compilers import TIME_LIMIT_S, compile_module
    from shardwright.backends.targets.names import parse_target
    from shardwright.ir.diagnostics import NOWHERE, fault

    wanted = parse_target(target)
    there = re.findall(r"^def build_(\w+)\(mesh\):$", text, re.MULTILINE)
    for name in functions or ():
        if name not in there:
            raise fault("unknown-function", f"there is no function {name}; there are {', '.join(there)}", NOWHERE)
    compiled = compile_module(wanted, text, mesh, functions, time_limit_s=time_limit_s or TIME_LIMIT_S)
    names = statement_names(text)
    return Explanation(
        wanted.name,
        tuple(
            replace(_report(func, parse(func.text), mesh, wanted, names, file), notes=_notes(text, func.name, wanted))
            for func in compiled
            if func.text
        ),
        tuple(func.error for func in compiled if func.error is not None),
    )


def _notes(text: str, name: str, target: Target) -> tuple[str, ...]:
    """The kernels that a function of an emitted module asks for when it runs, and that no compiler makes before."""
    from shardwright.backends.jax.attention import attention_calls

    calls, asked = attention_calls(text, name)
    if target.platform.name != "cuda" or not calls:
        return ()
    loops = f"attention: a loop over blocks, {calls} in all"
    if not asked:
        return (f"{loops}; cuDNN has no kernel for it",)
    return (f"{loops}; without a GPU there is no cuDNN, which {asked} of them ask when they run on one",)


def _report(
    func: CompiledFunction, module: HloModule, mesh: Mapping[str, int], target: Target | None,
    names: Mapping[int, str] | None = None, file: str = MODULE,
) -> FunctionReport:  # fmt: skip
    """Collectives, memory, kernels and faults of a function, and how long those kernels take that run beside each of
    its collectives. Of an emitted module `names` has the values by their lines; then it is also said what was asked."""
    from shardwright.backends.hlo.arguments import state_bytes
    from shardwright.backends.hlo.collectives import collectives_of
    from shardwright.backends.hlo.faults import faults_of
    from shardwright.backends.hlo.gathered_parts import with_needed_bytes
    from shardwright.backends.hlo.kernels import kernels_of
    from shardwright.backends.hlo.module import parse
    from shardwright.backends.hlo.statements import Statement, matched, statement_of, written_statements

    compiled, statements, of_module = collectives_of(module), list[Statement](), names is not None
    names = names or {}
    if of_module:
        devices = prod(mesh.values())
        statements = written_statements(replace(parse(func.written), devices=devices), MODULE, names)
        asked = matched(compiled, statements, MODULE, names, devices)
    else:
        compiled = with_needed_bytes(module, compiled)
        asked = [list[Statement]() for _ in compiled]

    def place_of(stack: Sequence[SourceFrame]) -> str | None:
        own = bool(stack) and stack[0].file == MODULE
        return f"{file if own else stack[0].file}:{stack[0].line}" if stack else None

    faults: list[FaultReport] = []
    for found in faults_of(module, mesh, func.results, typed=of_module):
        place = statement_of(found.stack, MODULE, names)
        at = f"{file}:{place[1]}" if place else place_of(found.stack)
        faults.append(FaultReport(found.instruction, found.reason, at, place and place[0]))
    collectives = _collective_reports(module, compiled, asked, mesh, names, file)
    if not of_module:
        places = [place_of(each.stack or each.made_by) for each in compiled]
        collectives = tuple(replace(each, source=at) for each, at in zip(collectives, places, strict=True))
    kernels = tuple(_kernel_report(kernel, target, names) for kernel in kernels_of(module))
    on_gpu = target is not None and target.platform.name == "cuda"
    untimed = [UntimedKernel(each, _worked_on(each, names)) for each in kernels_of(module, untimed=True) if on_gpu]
    seconds = {kernel.name: kernel.estimated_s for kernel in kernels if kernel.estimated_s is not None}
    if seconds:
        busy = [sum(seconds.get(name, 0.0) for name in each.beside) for each in collectives]
        collectives = tuple(replace(each, beside_s=s) for each, s in zip(collectives, busy, strict=True))
    memory, made = func.memory, {id(statement) for each in asked for statement in each}
    return FunctionReport(
        func.name,
        collectives,
        sum(statement.collective.bytes for statement in statements) if of_module else None,
        memory and memory.argument_bytes,
        memory and memory.temporary_bytes,
        memory and memory.output_bytes,
        kernels=kernels,
        untimed=tuple(untimed),
        compile_s=func.compile_s,
        unmade=tuple(dict.fromkeys(statement.name for statement in statements if id(statement) not in made)),
        faults=tuple(faults),
        state_bytes=state_bytes(module) if of_module else None,
    )


def _kernel_report(kernel: CompiledKernel, target: Target | None, names: Mapping[int, str]) -> KernelReport:
    from shardwright.backends.targets.estimates import estimated_s

    statements = _worked_on(kernel, names)
    rates = target and target.rates
    if target is None or target.chip is None or rates is None:
        return KernelReport(kernel.name, kernel.trips, None, None, statements, kernel.branches)
    predicted = estimated_s(kernel, target.chip, rates)
    estimated = None if kernel.cycles is None else kernel.cycles / rates.clock_hz
    return KernelReport(kernel.name, kernel.trips, estimated, predicted, statements, kernel.branches)


def _worked_on(kernel: CompiledKernel, names: Mapping[int, str]) -> tuple[str, ...]:
    """The values that a kernel works on, the one of its product first."""
    from shardwright.backends.hlo.statements import statement_of

    places = [statement_of(stack, MODULE, names) for stack in kernel.stacks]
    return tuple(dict.fromkeys(place[0] for place in places if place))


def _collective_reports(
    module: HloModule,
    compiled: Sequence[CompiledCollective],
    asked: Sequence[Sequence[Statement]],
    mesh: Mapping[str, int],
    names: Mapping[int, str],
    file: str,
) -> tuple[CollectiveReport, ...]:
    from shardwright.backends.hlo.overlap import kernels_beside
    from shardwright.backends.hlo.statements import statement_of

    beside = kernels_beside(module)
    reports: list[CollectiveReport] = []
    given: set[int] = set()
    for collective, statements in zip(compiled, asked, strict=True):
        bound = collective.lower_bound
        new = [statement for statement in statements if id(statement) not in given]
        if statements:
            bound = min(bound, sum(statement.collective.bytes for statement in new))
        given.update(map(id, statements))
        stacks = [collective.stack, *(statement.collective.stack for statement in statements)]
        place = next(filter(None, (statement_of(stack, MODULE, names) for stack in stacks)), None)
        reports.append(
            CollectiveReport(
                collective.op,
                collective.axes(mesh),
                collective.trips,
                collective.bytes,
                bound,
                tuple(dict.fromkeys(statement.name for statement in statements if statement.name)),
                f"{file}:{place[1]}" if place else None,
                beside.get(collective.name, ()),
                branches=collective.branches,
                receivers=collective.receivers,
            )
        )
    return tuple(reports)
