"""Pipelines: passes by name, in order, with verification between them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from shardwright.ir.diagnostics import NOWHERE, CompilerFault, DiagnosticError, Source, fault, nearest
from shardwright.ir.placements import off_device
from shardwright.ir.program import Program
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, has_holes, verify
from shardwright.ir.weight_source import WeightSource
from shardwright.passes.base import Pass, Proof
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.edge_blocks import EdgeBlocks
from shardwright.passes.compiling.found import TimeProof
from shardwright.passes.compiling.insert_moves import InsertMoves
from shardwright.passes.compiling.place import Place

MOVEMENTS: tuple[Pass, ...] = (
    ChooseDigitOrder(tied=True),
    InsertMoves(),
    Cleanup(),
    ChooseDigitOrder(),
    EdgeBlocks(),
)
"""From a program whose layouts are chosen to one in which every movement is a statement."""

Edges = Literal["global", "digits"]
"""How functions take and return strided arrays: as global ones, or with a dimension for each digit."""


def explicit_passes(place: Place, edges: Edges = "global") -> tuple[Pass, ...]:
    """From a surface program to one in which every movement is a statement, layouts as `place` chooses them."""
    moves = MOVEMENTS if edges == "global" else tuple(p for p in MOVEMENTS if not isinstance(p, EdgeBlocks))
    return (Decompose(), Cleanup(), replace(place, edges=edges), *moves)


def chosen_as(passes: Sequence[Pass], place: Place) -> tuple[Pass, ...]:
    """The passes, with what they leave open of how layouts and memories are chosen as in `place`."""
    from shardwright.passes.compiling.choose_memories import ChooseMemories

    def filled(each: Pass) -> Pass:
        if isinstance(each, Place):
            each = replace(
                each,
                objective=each.objective if each.objective != Place.objective else place.objective,
                solver=each.solver if each.solver != Place.solver else place.solver,
            )
        if isinstance(each, Place | ChooseMemories):
            each = replace(each, chip=each.chip or place.chip, calls=each.calls or place.calls)
        return each

    return tuple(map(filled, passes))


EXPLICIT = explicit_passes(Place())


def passes_for_weights(stored: str | None) -> tuple[Pass, ...]:
    """Passes that store the weights of a program in a format, one of `FORMATS`; none for bf16 and for None."""
    from shardwright.passes.transformations.quantize_weights import FORMATS

    pipeline = FORMATS[stored] if stored is not None else ""
    return parse_pipeline(pipeline) if pipeline else ()


@dataclass(frozen=True)
class PassRecord:
    """The record of one pass: the programs after and before it, the seconds that it took, and the proof of its layouts
    where it chose any."""

    applied: Pass
    program: Program
    seconds: float
    before: Program
    proof: Proof | None = None


def run_passes(
    program: Program, passes: Sequence[Pass], observe: Callable[[PassRecord], None] | None = None
) -> Program:
    """The program after the passes. Verifies before the first and after each; `observe` sees every step.

    Raises a `DiagnosticError` where the input is at fault, a `CompilerFault` where a pass is.
    """
    verify(program, Level.SURFACE)
    level, placed = Level.SURFACE, False
    for applied in passes:
        if applied.takes is Level.EXPLICIT and level is Level.SURFACE:
            program = _taken_as_explicit(applied, program)
        began = time.perf_counter()
        before = program
        program, proof = applied.run_with_proof(program)
        seconds = time.perf_counter() - began
        try:
            level = _verified(applied, before, program, level)
        except DiagnosticError as error:
            if (lack := _lack(applied, before, error, placed=placed)) is not None:
                raise lack from error
            raise CompilerFault(f"{applied.name} left an ill-typed program: {error}") from error
        if isinstance(applied, Place) or (program != before and applied.name not in _AFTER_PLACE):
            placed = isinstance(applied, Place)
        if observe is not None:
            observe(PassRecord(applied, program, seconds, before, proof))
    return program


def proof_of(traces: Sequence[PassRecord]) -> Proof | None:
    """How far the layouts that passes chose last are from the least at most, with any memories where these were chosen
    before them; None where none were chosen."""
    proof = next((trace.proof for trace in reversed(traces) if trace.proof is not None), None)
    memories = next((trace.proof for trace in traces if trace.applied.name == "choose-memories"), None)
    return in_any_memories(proof, memories)


def in_any_memories(proof: Proof | None, memories: Proof | None) -> Proof | None:
    """The proof of layouts chosen after memories, of which the second one is: no better than both."""
    if isinstance(proof, TimeProof) and isinstance(memories, TimeProof):
        return replace(proof, bound_s=min(proof.bound_s, memories.bound_s))
    return proof


def run_with_weights(program: Program, passes: Sequence[Pass], source: WeightSource) -> tuple[Program, WeightSource]:
    """The program after the passes, and its weights, of those of the program before them.

    Nothing is read from `source` yet: what the passes do to weights is done to each part when it is asked for.
    """
    traces: list[PassRecord] = []
    made = run_passes(program, passes, traces.append)
    for trace in traces:
        source = trace.applied.weights(trace.before, source)
    return made, source


def _taken_as_explicit(applied: Pass, program: Program) -> Program:
    """The program as explicit, for a pass that takes such; raises where a movement or a layout is left implicit."""
    try:
        made = complete(program)
        verify(made, Level.EXPLICIT)
    except DiagnosticError as error:
        first = error.diagnostics[0]
        raise fault(
            first.code,
            f"{applied.name} takes programs in which every movement is a statement: {first.message}",
            first.span,
            f"run it last: --passes decompose,place,insert-moves,{applied.name}",
        ) from error
    return made


def _verified(applied: Pass, before: Program, program: Program, level: Level) -> Level:
    """The level at which the program is well-typed after a pass that took it as well-typed at `level`: it may leave
    layouts to be chosen in an explicit program, which then is explicit no more. Raises a `DiagnosticError` where it is
    not well-typed."""
    left = Level.EXPLICIT if Level.EXPLICIT in (applied.leaves, level) else Level.SURFACE
    if left is Level.EXPLICIT and applied.leaves is Level.SURFACE and has_holes(program) and not has_holes(before):
        left = Level.SURFACE
    if left is not level or program != before:
        verify(program, left)
    return left


_AFTER_PLACE = (
    "choose-digit-order", "cleanup", "insert-moves", "edge-blocks", "loop-collectives", "split-collectives",
    "gather-ahead", "pipeline-layers",
)  # fmt: skip
"""The passes that leave layouts chosen where they are."""


def _lack(applied: Pass, before: Program, error: DiagnosticError, *, placed: bool) -> DiagnosticError | None:
    """The thing that the program before a pass lacks that takes layouts, which are chosen where it is `placed`, and
    orders of digits for chosen; None where it lacks nothing."""
    first = error.diagnostics[0]
    if applied.leaves is not Level.EXPLICIT:
        return None
    if not placed or has_holes(before):
        wants, run = "every layout chosen", "place"
    elif first.code == "movement-missing" and off_device(before) and _offload().run(before) != before:
        wants, run = "copies between memories written", "offload"
    elif first.code == "digits" and ChooseDigitOrder(tied=True).run(before) != before:
        wants, run = "orders of digits that agree chosen", "choose-digit-order"
    else:
        return None
    return fault(
        first.code,
        f"{applied.name} wants {wants}: {first.message}",
        first.span,
        f"run {run} before it: --passes {run},{applied.name}",
    )


def explicit(
    program: Program,
    observe: Callable[[PassRecord], None] | None = None,
    *,
    edges: Edges = "global",
    then: Sequence[Pass] = (),
    place: Place | None = None,
) -> Program:
    """The program with every layout chosen, as `place` says, and every movement a statement.

    Where values live on host or disk, `offload` comes first, after `choose-memories` where that is open: copies between
    memories are movements too. With `edges`
    "digits" strided parameters and results keep their digits, and nothing is moved to make blocks of them. `then` are
    passes that follow, as those of a target.
    """
    chosen = place or Place()
    passes = (*explicit_passes(chosen, edges), *then)
    return run_passes(program, (*copying_passes(program, chosen), *passes), observe)


def copying_passes(program: Program, place: Place) -> tuple[Pass, ...]:
    """The passes before `decompose` that say where values live, and copy these to the device; none if all are there."""
    return (*memory_passes(program, place), _offload()) if off_device(program) else ()


def memory_passes(program: Program, place: Place) -> tuple[Pass, ...]:
    """The pass that fills memories left open; none where there are none."""
    from shardwright.passes.compiling.choose_memories import ChooseMemories, open_memories

    return (ChooseMemories(place.chip, place.calls),) if open_memories(program) else ()


def _offload() -> Pass:
    from shardwright.passes.memory.offload import Offload

    return Offload()


def describe(made: type[Pass]) -> str:
    """A pass in one line: what its docstring says first, and its options."""
    first = (made.__doc__ or "").strip().splitlines()[0]
    options = ", ".join(f"{field.name.replace('_', '-')}={field.default}" for field in fields(made))
    return f"{first} Options: {options}." if options else first


@contextmanager
def options_from(name: str, text: str) -> Generator[None]:
    """Blames the option called `name`, in whose `text` the passes were named, for values that a pass refuses when it
    runs."""
    try:
        yield
    except DiagnosticError as error:
        first = error.diagnostics[0]
        options = {"bad-option", "unknown-chip", "unreadable-file"}
        if "calls=" in text:  # not in an option of the command's own, which the program is at fault with
            options.add("unknown-function")
        if error.source is None and first.span == NOWHERE and first.code in options:
            error.source = Source(name, text)
        raise


_ITEM = re.compile(r"\s*([a-z][a-z0-9-]*)\s*(?:\{([^{}]*)\})?\s*")


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """`'decompose,place{objective=bytes}'` as passes. Raises a `DiagnosticError` that names the known ones."""
    from shardwright.passes.every_pass import PASSES

    passes: list[Pass] = []
    at = 0
    while at < len(text):
        found = _ITEM.match(text, at)
        if not found or (found.end() < len(text) and text[found.end()] != ","):
            raise fault(
                "bad-pipeline",
                f"cannot read the passes from {text[at:]!r} on",
                NOWHERE,
                "write them as in: decompose,place,insert-moves",
            )
        passes.append(_made(found[1], _options(found[1], found[2] or "")))
        at = found.end() + 1
    if not passes:
        raise fault("bad-pipeline", "no passes are named", NOWHERE, f"the passes are {', '.join(PASSES)}")
    return tuple(passes)


def _options(name: str, text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise fault(
                "bad-pipeline", f"{name}: the option {item!r} has no value", NOWHERE, f"write {name}{{{item}=...}}"
            )
        if key.strip() in options:
            raise fault("bad-pipeline", f"{name}: the option {key.strip()} is given twice", NOWHERE)
        options[key.strip()] = value.strip()
    return options


def _made(name: str, options: Mapping[str, str]) -> Pass:
    from shardwright.passes.every_pass import PASSES

    if name not in PASSES:
        raise fault(
            "unknown-pass",
            f"there is no pass {name}",
            NOWHERE,
            nearest(name, list(PASSES)) or f"the passes are {', '.join(PASSES)}",
        )
    made = PASSES[name]
    known = {field.name.replace("_", "-"): field for field in fields(made)}
    values: dict[str, Any] = {}
    for key, text in options.items():
        field = known.get(key.replace("_", "-"))
        if field is None:
            near = nearest(key.replace("_", "-"), list(known))
            listed = near or f"it takes {', '.join(known) or 'none'}"
            raise fault("unknown-option", f"{name} has no option {key}", NOWHERE, listed)
        values[field.name] = _value(name, key, text, field.default)
    return made(**values)


def _value(name: str, key: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise fault("bad-option", f"{name}: {key} is true or false, not {text}", NOWHERE)
        return text == "true"
    if isinstance(default, int):
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise fault("bad-option", f"{name}: {key} is a whole number, not {text}", NOWHERE)
        return int(text)
    return text
