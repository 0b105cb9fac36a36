"""One random program through the compiler, each of its outputs compared with the meaning of the tree."""

from __future__ import annotations

import random
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np
from oracles.random_programs import eight_bits
from oracles.random_programs.bounded import DECLARED, EXACT, Array, Number
from oracles.random_programs.meaning import Meaning, meaning
from oracles.random_programs.tree import INTEGER_RANGES, Decl, Func, Program, is_f8, is_float, is_integer

from shardwright import bytes_received, check, evaluate, explicit, load, print_program, simulate
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.text.format import format_module
from shardwright.ir.text.parser import parse
from shardwright.ir.verification.completion import complete
from shardwright.ir.weight_source import ArraySource, read_whole
from shardwright.passes.pipelines import parse_pipeline, run_with_weights

NUMPY = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f8e4m3": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "int8": np.int8,
    "int4": ml_dtypes.int4,
    "int32": np.int32,
    "uint32": np.uint32,
    "bool": np.bool_,
}


@dataclass(frozen=True)
class Finding:
    """Something that differs from what the documentation promises."""

    kind: str
    detail: str

    @property
    def signature(self) -> str:
        """What two findings of one fault have in common, roughly."""
        return self.kind


@dataclass
class Outcome:
    """What became of one program: findings, the code of its refusal, how much was compared."""

    findings: list[Finding] = field(default_factory=list[Finding])
    refused: str = ""
    compared: int = 0
    unknown: int = 0
    movements: int = 0
    by_hand: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])


# ------------------------------------------------------------ inputs


def inputs(program: Program, seed: int) -> dict[str, dict[str, Array]]:
    """For each function its arrays by name, and the weights and the state that all share."""
    rng = np.random.default_rng(seed)
    special = rng.random() < (0.1 if "model" in program.features else 0.35)
    eights = eight_bits.formats_in(program) if "f8" in program.features else ()
    shared = {decl.name: _array(decl, rng, special, eights) for decl in (*program.weights, *program.state)}
    return {
        func.name: shared | {decl.name: _array(decl, rng, special, eights) for decl in func.params}
        for func in program.funcs
    }


def _array(decl: Decl, rng: np.random.Generator, special: bool, eights: tuple[str, ...]) -> Array:
    dtype, shape = decl.shape.dtype, decl.shape.extents
    if decl.index_below is not None:
        low = -1 if rng.random() < 0.3 else 0
        return rng.integers(low, decl.index_below, shape).astype(NUMPY[dtype])
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if is_integer(dtype):
        low, high = INTEGER_RANGES[dtype]
        extremes = np.array([low, high, 0, 1, max(low, -1), low + 1, high - 1])
        edges, at_edges = rng.random(shape) < 0.5, rng.choice(extremes, shape)
        values: Array = np.where(edges, at_edges, rng.integers(low, high, shape, endpoint=True))
        return np.asarray(values).astype(NUMPY[dtype])
    values = rng.standard_normal(shape) * rng.choice((0.3, 1.0, 1.0, 5.0))
    ties = rng.random(shape) < 0.1
    values = np.where(ties, np.round(values), values)
    if eights and rng.random() < 0.5:
        values = np.where(rng.random(shape) < 0.3, rng.choice(eight_bits.boundaries(eights), shape), values)
    if is_f8(dtype):
        values = eight_bits.nearest(values, dtype)
    if special:
        extremes = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e4, -1e4, 1e-4])
        extremes = eight_bits.edges(dtype) if is_f8(dtype) else extremes
        values = np.where(rng.random(shape) < 0.12, rng.choice(extremes, shape), values)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(NUMPY[dtype])


# ------------------------------------------------------------ comparing


def difference(got: Array, expected: Number) -> tuple[str, int, int]:
    """What differs, if anything does; how many elements were compared, and how many are unknown."""
    if got.shape != expected.value.shape:
        return f"shape {got.shape}, expected {expected.value.shape}", 0, 0
    known = np.isfinite(expected.error)
    if is_float(expected.dtype):
        made = got.astype(np.float64)
        want = expected.value
        with np.errstate(invalid="ignore"):
            near = np.abs(made - want) <= 2 * expected.error + 1e-300
        same = near | (made == want) | (np.isnan(made) & np.isnan(want))
    else:
        want = expected.value
        same = got.astype(np.int64) == want.astype(np.int64)
        made = got
    wrong = known & ~same
    text = ""
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = f" at {list(at)}" if at else ""
        bound = f" within {expected.error[at]:.2g}" if is_float(expected.dtype) else ""
        text = f"{int(wrong.sum())} of {wrong.size} differ:{where} {made[at]} for {want[at]}{bound}"
    return text, int(known.sum()), int(known.size - known.sum())


def _compare(
    outcome: Outcome, kind: str, func: Func, wanted: Meaning, results: tuple[Array, ...], state: dict[str, Array]
) -> bool:
    pairs = [(f"result {at}", got, want) for at, (got, want) in enumerate(zip(results, wanted.results, strict=True))]
    pairs += [(f"state {name}", np.asarray(state[name]), want) for name, want in wanted.state.items()]
    fine = True
    for what, got, want in pairs:
        text, known, unknown = difference(np.asarray(got), want)
        outcome.compared += known
        outcome.unknown += unknown
        if text:
            outcome.findings.append(Finding(kind, f"{func.name}, {what}: {text}"))
            fine = False
    return fine


# ------------------------------------------------------------ the compiler


Inputs = dict[str, dict[str, Array]]


def arguments(program: Program, func: Func, arrays: dict[str, Array]) -> tuple[dict[str, Array], ...]:
    """A function's arguments, weights and state."""
    return (
        {decl.name: arrays[decl.name] for decl in func.params},
        {decl.name: arrays[decl.name] for decl in program.weights},
        {decl.name: arrays[decl.name].copy() for decl in program.state},
    )


def _crash(kind: str, error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((f for f in reversed(frames) if "site-packages" not in f.filename), frames[-1])
    where = f"{Path(frame.filename).name}:{frame.name}"
    return Finding(kind, f"{type(error).__name__} in {where}: {str(error)[:300]}")


def examine(
    program: Program, seed: int, *, jax: bool = False, torch: bool = False, passes: bool = False, moves: int = 3
) -> Outcome:
    """Everything that is promised of one program."""
    outcome = Outcome()
    begun = perf_counter()

    def lap(name: str) -> None:
        nonlocal begun
        now = perf_counter()
        outcome.seconds[name] = outcome.seconds.get(name, 0) + now - begun
        begun = now

    checked = False
    text = program.text()
    arrays = inputs(program, seed)
    wanted = {func.name: meaning(program, func, arrays[func.name], EXACT) for func in program.funcs}
    lap("oracle")
    try:
        surface = load(Source("drawn.shard", text))
        if seed % 8 == 1:  # `explicit` finds the same layouts again, which is most of what a program costs
            check(surface)
            checked = True
    except DiagnosticError as error:
        first = error.diagnostics[0]
        outcome.refused = f"{first.code}: {first.message}"
        if error.diagnostics[0].span.line < 1:
            outcome.findings.append(Finding("no place", outcome.refused))
        return outcome
    except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
        outcome.findings.append(_crash("check crashes", error))
        return outcome
    lap("check")
    try:
        compiled = explicit(surface)
    except DiagnosticError as error:
        first = error.diagnostics[0]
        said = f"{first.code}: {first.message}"
        if not checked and _refused(outcome, surface):
            return outcome
        outcome.findings.append(Finding("compile refuses", said))
        return outcome
    except Exception as error:  # noqa: BLE001
        outcome.findings.append(_crash("compile crashes", error))
        return outcome
    lap("explicit")
    printed = _printing(outcome, text, compiled)
    lap("printing")
    for func in program.funcs:
        args, weights, state = arguments(program, func, arrays[func.name])
        try:
            results, kept = evaluate(surface, func.name, args, weights, state)
            _compare(outcome, "reference", func, wanted[func.name], results, kept)
            lap("reference")
            run = simulate(compiled, func.name, args, weights, state)
            _compare(outcome, "simulator", func, wanted[func.name], run.results, run.state)
            traffic = bytes_received(compiled, compiled.func(func.name))
            outcome.movements += len(traffic.movements)
            if traffic.bytes != run.total:
                outcome.findings.append(Finding("bytes", f"{func.name}: {run.total} received, {traffic.bytes} planned"))
            if "f8" in program.features:  # under `exact` they are stopped at their ends, and not rounded
                rounded = meaning(program, func, arrays[func.name], DECLARED)
                results, kept = evaluate(surface, func.name, args, weights, state, "declared")
                _compare(outcome, "reference, rounded", func, rounded, results, kept)
                run = simulate(compiled, func.name, args, weights, state, "declared")
                _compare(outcome, "simulator, rounded", func, rounded, run.results, run.state)
        except Exception as error:  # noqa: BLE001
            outcome.findings.append(_crash("run crashes", error))
        lap("simulator")
    if passes and "placement" not in program.features:
        _after_passes(outcome, program, surface, seed, arrays, wanted)
        lap("passes")
    if moves and printed and seed % 3 == 0 and not outcome.findings:
        from oracles.random_programs.movements import moved_by_hand

        for moved in moved_by_hand(printed, random.Random(seed), dict(program.mesh), moves):
            outcome.by_hand += 1
            for func in program.funcs:
                args, weights, state = arguments(program, func, arrays[func.name])
                try:
                    run = simulate(moved, func.name, args, weights, state)
                    if not _compare(outcome, "moved by hand", func, wanted[func.name], run.results, run.state):
                        outcome.findings.append(Finding("moved by hand", print_program(moved)))
                    typed = complete(moved)
                    traffic = bytes_received(typed, typed.func(func.name))
                    if traffic.bytes != run.total:
                        outcome.findings.append(
                            Finding("bytes", f"{run.total} for {traffic.bytes}\n{print_program(moved)}")
                        )
                except Exception as error:  # noqa: BLE001
                    outcome.findings.append(_crash("moved by hand crashes", error))
                    outcome.findings.append(Finding("moved by hand crashes", print_program(moved)))
        lap("by hand")
    if jax:
        _under_jax(outcome, program, compiled, arrays)
        lap("jax")
    if torch:
        _under_torch(outcome, program, surface, arrays)
        lap("torch")
    return outcome


def _refused(outcome: Outcome, surface: Any) -> bool:
    """Whether `check` refuses what `compile` did."""
    try:
        check(surface)
    except DiagnosticError as error:
        outcome.refused = f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"
        return True
    except Exception as error:  # noqa: BLE001
        outcome.findings.append(_crash("check crashes", error))
    return False


_SURFACE_PASSES = (
    "decompose", "cleanup", "place", "place{objective=bytes}", "choose-digit-order", "weight-gather",
    "weight-gather{axes=x}", "weight-gather{axes=none}", "attention-over-batch", "attention-over-batch{axes=x}",
    "reduce-into{dim=hidden}", "reduce-into{dim=sequence}", "reduce-into{dim=batch}", "fuse-parallel-block",
)  # fmt: skip
_TO_EXPLICIT = "decompose,cleanup,place,choose-digit-order{tied=true},insert-moves,cleanup,choose-digit-order"


def pipeline(seed: int, *, axes: bool = True) -> str:
    """A random pipeline that leaves an explicit program of the same meaning."""
    choose = random.Random(f"passes {seed}")
    first = choose.sample([name for name in _SURFACE_PASSES if axes or "=x" not in name], choose.randint(0, 3))
    last = choose.sample(
        (
            "cleanup",
            "loop-collectives",
            "loop-collectives{ways=2}",
            "insert-moves",
            "split-collectives{gathers=1,scatters=1}",
        ),
        choose.randint(0, 2),
    )
    return ",".join([*first, _TO_EXPLICIT, *last])


def _after_passes(
    outcome: Outcome, program: Program, surface: Any, seed: int, arrays: Inputs, wanted: dict[str, Meaning]
) -> None:
    """After a random pipeline the program means the same, with the weights that the passes make of its weights."""
    text = pipeline(seed, axes="x" in dict(program.mesh))
    weights = {decl.name: arrays[program.funcs[0].name][decl.name] for decl in program.weights}
    try:
        made, source = run_with_weights(surface, parse_pipeline(text), ArraySource(weights))
    except DiagnosticError:
        return  # a pass may refuse sizes, and what it demands may not be met together
    except Exception as error:  # noqa: BLE001
        outcome.findings.append(_crash("passes crash", error))
        outcome.findings.append(Finding("passes crash", text))
        return
    for func in program.funcs:
        args, _, state = arguments(program, func, arrays[func.name])
        try:
            stored = {value.name: read_whole(source, value.name) for value in made.weights}
            run = simulate(made, func.name, args, stored, state)
        except Exception as error:  # noqa: BLE001
            outcome.findings.append(_crash("run after passes crashes", error))
            outcome.findings.append(Finding("run after passes crashes", text))
            return
        if not _compare(outcome, "after passes", func, wanted[func.name], run.results, run.state):
            outcome.findings.append(Finding("after passes", f"{text}\n{print_program(made)}"))


def _printing(outcome: Outcome, text: str, compiled: object) -> str:
    """Printed programs parse to themselves, are explicit, and formatting twice is formatting once."""
    printed = ""
    try:
        once = format_module(parse(Source("drawn.shard", text))) if len(text) % 4 == 0 else ""
        if once and format_module(parse(Source("drawn.shard", once))) != once:
            outcome.findings.append(Finding("fmt twice", once))
        printed = print_program(compiled)  # type: ignore[arg-type]
        again = load(Source("printed.shard", printed))
        if print_program(again) != printed:
            outcome.findings.append(Finding("printed", f"{printed}\nreads as\n{print_program(again)}"))
        check(again, explicit=True)
    except DiagnosticError as error:
        outcome.findings.append(Finding("printed is refused", f"{error.diagnostics[0].message}\n{printed}"))
    except Exception as error:  # noqa: BLE001
        outcome.findings.append(_crash("printing crashes", error))
    return printed


def _under_jax(outcome: Outcome, program: Program, compiled: object, arrays: dict[str, dict[str, Array]]) -> None:
    from shardwright.backends.jax.session import run_program

    for func in program.funcs:
        args, weights, state = arguments(program, func, arrays[func.name])
        wanted = meaning(program, func, arrays[func.name], DECLARED)
        try:
            results, kept = run_program(compiled, func.name, args, weights, state)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001
            outcome.findings.append(_crash("jax crashes", error))
            continue
        _compare(outcome, "jax", func, wanted, results, kept)


def _under_torch(outcome: Outcome, program: Program, surface: Any, arrays: Inputs) -> None:
    """On one device, where movements and layouts mean nothing; the results alone."""
    from oracles.torch_blocks import computed

    for func in program.funcs:
        given, made = arrays[func.name], surface.func(func.name)
        wanted = meaning(program, func, given, DECLARED).results
        try:
            results = computed(surface, made, given)
        except Exception as error:  # noqa: BLE001
            outcome.findings.append(_crash("torch crashes", error))
            continue
        for at, (result, want) in enumerate(zip(results, wanted, strict=True)):
            text, known, unknown = difference(result.double().numpy(), want)
            outcome.compared += known
            outcome.unknown += unknown
            if text:
                outcome.findings.append(Finding("torch", f"{func.name}, result {at}: {text}"))
