"""Rows of published times: memory and bytes of their programs, as the compilers of their chips make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwright.cost.movements.traffic import bytes_received
from shardwright.cost.programs.memory import memory_of
from shardwright.ir.program import Program
from shardwright.prediction.programs import Deployment, Phase, phase_program
from shardwright.reproduction.measuring.limit import Limit, NotMeasuredError
from shardwright.reproduction.measuring.target_modules import RefusedError, check_installed, compiled, target_of
from shardwright.reproduction.rows import PublishedRow
from shardwright.reproduction.tables import MeasuredHere, Measurements


@dataclass(frozen=True)
class _Case:
    """A program of a row: one prefill, or the last step of decode."""

    name: str
    row: PublishedRow
    phase: Phase

    @property
    def key(self) -> tuple[Deployment, Phase, int, int, int]:
        row, work = self.row, self.row.workload
        length = work.prompt if self.phase == "prefill" else 1
        context = work.prompt if self.phase == "prefill" else work.before + work.generated
        return row.deployment, self.phase, work.batch, length, context

    def program(self) -> Program:
        return phase_program(*self.key)


def measured(rows: Sequence[PublishedRow], limit: Limit) -> Measurements:
    """Bytes that a chip holds and receives in each program of the rows, the same program once."""
    here: list[MeasuredHere] = []
    reasons = dict.fromkeys([f"times are of {_listed(rows)}, and this machine has none"])
    for case in _cases(rows):
        try:
            here += _figures(case, limit)
        except NotMeasuredError as error:
            reasons[str(error)] = None
    notes = ["measured: bytes of a chip, in modules of the chips' own compilers"] if here else []
    return Measurements(here=tuple(here), notes=(*notes, *(f"not measured: {reason}" for reason in reasons)))


def _listed(rows: Sequence[PublishedRow]) -> str:
    return " and ".join(dict.fromkeys(row.chip.name for row in rows))


def _cases(rows: Sequence[PublishedRow]) -> Iterator[_Case]:
    seen: set[tuple[Deployment, Phase, int, int, int]] = set()
    for row in rows:
        for phase in row.phases:
            name = row.name if len(row.phases) == 1 else f"{row.name.rpartition(', ')[0]}, {phase}"
            case = _Case(name, row, phase)
            if row.stages == 1 and case.key not in seen:
                seen.add(case.key)
                yield case


def _figures(case: _Case, limit: Limit) -> Iterator[MeasuredHere]:
    """Bytes held and received. A program that the compiler refuses has none of either, and its reason."""
    target = target_of(case.row.chip, case.row.n_chips)
    check_installed(target)
    program = case.program()
    func = program.func(case.phase)
    held, received = memory_of(program, func).peak, bytes_received(program, func).bytes
    compiler = f"{target.platform.compiler} for {target.name}"
    try:
        report = compiled(lambda: program, case.phase, target, case.name, limit)
    except RefusedError as error:
        yield MeasuredHere(case.name, "held by a chip", "B", held, None, str(error))
        return
    yield MeasuredHere(case.name, f"held by a chip, by {compiler}", "B", held, report.held_bytes)
    yield MeasuredHere(case.name, f"received by a chip, by {compiler}", "B", received, report.bytes_received)
