"""Published statements on bytes, beside the bytes of modules that a target's compiler made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

from shardwright.backends.targets.names import Target
from shardwright.cost.hardware.chips import load_chip
from shardwright.ir.program import Program
from shardwright.ir.walk import lets_in
from shardwright.prediction.programs import phase_program, positions
from shardwright.reproduction import feedforward
from shardwright.reproduction.claims import FORMULAS
from shardwright.reproduction.feedforward import Volume, VolumeOf
from shardwright.reproduction.measuring.limit import Limit, NotMeasuredError
from shardwright.reproduction.measuring.target_modules import check_installed, compiled, target_of
from shardwright.reproduction.published_checks import LongestContext, chen_52b, kv_capacity, longest_contexts
from shardwright.reproduction.tables import Measurements

_Figures = Iterator[tuple[str, Callable[[], float]]]
_CHEN_CHIPS, _CHEN_POSITIONS = 4, 2048


def measured(name: str, limit: Limit) -> Measurements:
    """The figures of a table of statements that compilers can give, one of `TABLES`."""
    figures: dict[str, float] = {}
    reasons: dict[str, None] = {}
    of_table, how, not_these = TABLES[name]
    for row, figure in of_table(limit):
        try:
            figures[row] = figure()
        except NotMeasuredError as error:
            reasons[str(error)] = None
    notes = [f"measured: {how}"] if figures else []
    notes += [f"not measured: {reason}" for reason in (*reasons, *([not_these] if not_these else []))]
    return Measurements(figures, notes=tuple(notes))


# ---------------------------------------------------------------- volumes of the feedforward layer


def _volumes(limit: Limit) -> _Figures:
    volume = cache(partial(compiled_volume, limit))
    for row, formula in FORMULAS.items():
        yield row, partial(_found, formula, volume)


def _found(formula: Callable[[VolumeOf], tuple[float, float]], volume: VolumeOf) -> float:
    return formula(volume)[1]


def compiled_volume(limit: Limit, layout: str, mesh: tuple[int, int, int], tokens: int, E: int, F: int) -> Volume:
    """The volume of a compiled layer in the elements that the paper counts: those of the text, by the bytes that a chip
    receives as compiled over those of the text. Raises NotMeasuredError."""
    target = target_of(load_chip("tpu-v4"), mesh[0] * mesh[1] * mesh[2])
    check_installed(target)
    program = feedforward.layer(layout, mesh, tokens, E, F)
    what = f"{layout}, {tokens} tokens over {'x'.join(map(str, mesh))}"
    report = compiled(lambda: program, "ffn", target, what, limit)
    moved = _weights_in(program)
    weights = sum(c.bytes_received for c in report.collectives if _is_of(c.statements, moved))
    written, volume = feedforward.received(program), feedforward.volume(layout, mesh, tokens, E, F)
    return Volume(
        _scaled(volume.weights, weights, written.weights),
        _scaled(volume.activations, report.bytes_received - weights, written.activations),
    )


def _scaled(elements: float, compiled: float, written: float) -> float:
    """A collective that nobody wrote counts as so many elements of 2 bytes."""
    return elements * compiled / written if written else compiled / 2


def _weights_in(program: Program) -> frozenset[str]:
    """The weights of a layer, and the names that they have after movements."""
    moved = set[str](feedforward.WEIGHTS)
    for let in lets_in(program.func("ffn").body):
        if len(let.operands) == 1 and let.operands[0] in moved:
            moved.add(let.result.name)
    return frozenset(moved)


def _is_of(statements: tuple[str, ...], values: frozenset[str]) -> bool:
    """Tells whether a collective is of some of the values: statements that a target's passes split are called
    `value_gathered` and the like."""
    return any(name == value or name.startswith(f"{value}_") for name in statements for value in values)


# ---------------------------------------------------------------- caches


def _contexts(limit: Limit) -> _Figures:
    target = target_of(load_chip("tpu-v4"), 64)
    for case in longest_contexts():
        yield case.row, partial(_context, limit, target, case)


def _context(limit: Limit, target: Target, case: LongestContext) -> float:
    """The positions of a cache as the compiler lays it out, from a decode step at the published ones."""
    deployment = case.deployment

    def program() -> Program:
        return phase_program(deployment, "decode", case.batch, 1, case.published)

    report = compiled(program, "decode", target, f"{case.row}, decode", limit)
    return case.positions((report.state_bytes or 0) / positions(deployment, case.batch, case.published))


def _caches(limit: Limit) -> _Figures:
    @cache
    def kv_bytes() -> float:
        target = target_of(load_chip("a100-40g"), _CHEN_CHIPS)

        def program() -> Program:
            return phase_program(chen_52b(_CHEN_CHIPS), "decode", 1, 1, _CHEN_POSITIONS)

        report = compiled(program, "decode", target, "52B, decode", limit)
        return _CHEN_CHIPS * (report.state_bytes or 0) // _CHEN_POSITIONS

    yield "kv_52b", kv_bytes
    yield "kv_capacity_3", lambda: kv_capacity(3, kv_bytes())
    yield "kv_capacity_4", lambda: kv_capacity(4, kv_bytes())


TABLES: Mapping[str, tuple[Callable[[Limit], _Figures], str, str]] = {
    "claims": (
        _volumes,
        "bytes that a chip receives in modules of libtpu for 64 TPU v4, in the formulas' elements",
        "times, ratios and shares of time are of TPU v4 chips, of which there is none here; the crossover of 1D and 2D"
        " and the order of figure 3 take dozens of modules",
    ),
    "1": (_contexts, "bytes of the cache among the arguments of modules of libtpu for 64 TPU v4", ""),
    "chen": (
        _caches,
        "bytes of the cache among the arguments of a module of XLA for four A100s",
        "times are of A100s, of which there is none here",
    ),
}
"""For each table what can be measured, how, and why the rest is not."""
