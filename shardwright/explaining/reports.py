"""Reports of compiled functions: collectives, kernels, faults and memory, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.backends.hlo.collectives import Receivers
    from shardwright.backends.hlo.executed import Branches
    from shardwright.backends.hlo.kernels import CompiledKernel
    from shardwright.ir.diagnostics import DiagnosticError


@dataclass(frozen=True)
class CollectiveReport:
    """A compiled collective. Bytes are those that one chip receives in all trips, for the chip that receives most.

    `lower_bound_bytes` is what its movement can do with: what its statements ask for, where there are any. `statements`
    are the values whose movements it makes, none where nothing asked for it. `source` is FILE:LINE of what asked.
    `beside` are the kernels that run between its start and its end, none where the chip waits for it; `beside_s` their
    seconds in one trip as the compiler estimates them, None where it estimates none.
    """

    op: str
    axes: tuple[str, ...]
    trips: int | None
    bytes_received: int
    lower_bound_bytes: int
    statements: tuple[str, ...]
    source: str | None
    beside: tuple[str, ...] = ()
    beside_s: float | None = None
    branches: Branches = ()
    """The branches that it runs in: conditionals by numbers of their own, the outermost first, each with its branch."""
    receivers: Receivers = None
    """The chips that receive something."""

    def as_json(self) -> dict[str, Any]:
        """The keys that `explain --json` promises."""
        lists = {
            "axes": list(self.axes), "statements": list(self.statements), "beside": list(self.beside),
            "branches": [list(each) for each in self.branches],
        }  # fmt: skip
        return {key: value for key, value in {**self.__dict__, **lists}.items() if key != "receivers"}

    @property
    def hidden_by(self) -> str:
        """The kernels that hide a collective: the time of the kernels beside it, or how many there are."""
        from shardwright.cost.movements.movement import duration_text

        if not self.beside:
            return ""
        if self.beside_s is None:
            return f"{len(self.beside)} kernel{'s'[: len(self.beside) > 1]}"
        return duration_text(self.beside_s)


@dataclass(frozen=True)
class KernelReport:
    """A kernel with the seconds of one trip: as its compiler estimates them, and as the cost model's rules of shape
    predict them at the rates that the compiler assumes (`backends.targets.estimates`), None where it only lays bytes
    otherwise. Of a kernel of the module's own, as attention's is, the compiler estimates nothing. `statements` are the
    values that it works on, the one of its product first."""

    name: str
    trips: int | None
    estimated_s: float | None
    predicted_s: float | None
    statements: tuple[str, ...] = ()
    branches: Branches = ()
    """The branches that it runs in, as a collective's."""

    @property
    def total_s(self) -> float:
        """Seconds of all trips, as estimated; where nothing is, 0."""
        return (self.estimated_s or 0.0) * (self.trips or 1)

    def as_json(self) -> dict[str, Any]:
        """The keys that `explain --json` promises."""
        lists = {"statements": list(self.statements), "branches": [list(each) for each in self.branches]}
        return {**self.__dict__, **lists}


@dataclass(frozen=True)
class UntimedKernel:
    """A kernel of a GPU, whose compiler estimates none, and the values that it works on, the one of its product
    first."""

    kernel: CompiledKernel
    statements: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """The bytes that it reads and writes in all trips."""
        arrays = (*self.kernel.reads, *self.kernel.writes)
        return (self.kernel.trips or 1) * sum(array.nbytes for array in arrays)


@dataclass(frozen=True)
class FaultReport:
    """A place where a partitioned module contradicts itself: an instruction, why, and FILE:LINE of what it comes from.
    `statement` is the value of an emitted module that it belongs to."""

    instruction: str
    reason: str
    source: str | None
    statement: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The keys of `explain --json`."""
        return {"instruction": self.instruction, "reason": self.reason, "source": self.source}


@dataclass(frozen=True)
class FunctionReport:
    """A function as it was compiled. Bytes are those of one chip; None is what is not known.

    `written_bytes_received` is what its statements receive; `unmade` are those that have no collective of their own.
    `output_bytes` leaves out results that take over the place of an argument, so that the three are what is held; of
    the arguments `state_bytes` are those of the program's state. `untimed` are a GPU's kernels.
    `notes` say what is otherwise where the module runs.
    """

    name: str
    collectives: tuple[CollectiveReport, ...]
    written_bytes_received: int | None = None
    argument_bytes: int | None = None
    temporary_bytes: int | None = None
    output_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    kernels: tuple[KernelReport, ...] = ()
    untimed: tuple[UntimedKernel, ...] = ()
    compile_s: float | None = None
    unmade: tuple[str, ...] = ()
    faults: tuple[FaultReport, ...] = ()
    notes: tuple[str, ...] = ()
    state_bytes: int | None = None

    @property
    def bytes_received(self) -> int:
        """The bytes of the chip that receives most, in the branches of conditionals where that is most."""
        from shardwright.backends.hlo.collectives import most_received

        return most_received([(each.branches, each.bytes_received, each.receivers) for each in self.collectives])

    @property
    def kernels_run(self) -> tuple[KernelReport, ...]:
        """The kernels that run, of a conditional those of the branch that takes longest."""
        from shardwright.backends.hlo.executed import taken

        times = [(k.branches, k.total_s or (k.predicted_s or 0.0) * (k.trips or 1)) for k in self.kernels]
        return tuple(self.kernels[place] for place in taken(times))

    @property
    def kernels_s(self) -> float:
        """Seconds of the kernels that run, as the compiler estimates them."""
        return sum(kernel.total_s for kernel in self.kernels_run)

    @property
    def all_trips(self) -> bool:
        """Tells whether the module says how often each collective runs; one of which it does not counts as one trip."""
        return all(collective.trips is not None for collective in self.collectives if collective.bytes_received)

    @property
    def held_bytes(self) -> int | None:
        """Arguments, temporaries and results together."""
        parts = (self.argument_bytes, self.temporary_bytes, self.output_bytes)
        return sum(part or 0 for part in parts) if any(part is not None for part in parts) else None

    @property
    def moved_bytes(self) -> tuple[int, int] | None:
        """The bytes that a GPU's kernels read and write, and those of them that only lay an array otherwise, such as
        the copy of a layer's weights out of all layers'; None where the compiler estimates kernels."""
        if not self.untimed:
            return None
        from shardwright.backends.hlo.executed import taken

        run = [self.untimed[place] for place in taken([(each.kernel.branches, each.nbytes) for each in self.untimed])]
        return sum(each.nbytes for each in run), sum(each.nbytes for each in run if each.kernel.moves_only)

    def as_json(self) -> dict[str, Any]:
        """The keys that `explain --json` promises."""
        return {
            "name": self.name,
            "collectives": [collective.as_json() for collective in self.collectives],
            "bytes_received": self.bytes_received,
            "all_trips": self.all_trips,
            "written_bytes_received": self.written_bytes_received,
            "argument_bytes": self.argument_bytes,
            "temporary_bytes": self.temporary_bytes,
            "output_bytes": self.output_bytes,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "kernels": [kernel.as_json() for kernel in self.kernels],
            "moved_bytes": None if self.moved_bytes is None else list(self.moved_bytes),
            "compile_s": self.compile_s,
            "faults": [fault.as_json() for fault in self.faults],
        }

    def as_text(self, target: str | None) -> str:
        """The report as a table; `target` is where it was compiled for."""
        from shardwright.ir.text.table import bytes_text, text_table

        on = f" on {target}" if target else ""
        head = f"{self.name}{on}: a chip receives {bytes_text(self.bytes_received)}"
        if any(collective.branches for collective in self.collectives):
            head += " in the branches that receive most"
        if not self.all_trips:
            head += " in one trip of loops of which the module does not say how many they make"
        if self.written_bytes_received is not None:
            head += f", {bytes_text(self.written_bytes_received)} as written"
        lines = [head]
        if self.collectives:
            rows = [
                (
                    c.op,
                    " ".join(c.axes),
                    "?" if c.trips is None else str(c.trips),
                    bytes_text(c.bytes_received),
                    bytes_text(c.lower_bound_bytes),
                    c.hidden_by,
                    ", ".join(c.statements) or ("" if self.written_bytes_received is None else "no statement"),
                    shown_place(c.source),
                )
                for c in self.collectives
            ]
            columns = ("collective", "axes", "trips", "received", "least", "beside", "asked for by", "source")
            lines.extend(f"  {line}" for line in text_table(columns, rows, "llrrrrll"))
        if self.unmade:
            lines.append(f"  made without a collective: {', '.join(self.unmade)}")
        if self.argument_bytes is not None and self.temporary_bytes is not None and self.output_bytes is not None:
            parts = (self.argument_bytes, self.temporary_bytes, self.output_bytes)
            held = " + ".join(bytes_text(part) for part in parts)
            predicted = ""
            if self.predicted_peak_bytes is not None:
                predicted = f"; {bytes_text(self.predicted_peak_bytes)} predicted"
            lines.append(f"  memory: {held} of arguments, temporaries, results = {bytes_text(sum(parts))}{predicted}")
        timed = [k for k in self.kernels_run if k.estimated_s is not None]
        if timed:
            lines.append(f"  kernels: {len(timed)}, {self.kernels_s * 1e3:.4g} ms as the compiler estimates them")
        if self.moved_bytes is not None:
            moved, laid = map(bytes_text, self.moved_bytes)
            lines.append(f"  kernels: {len(self.untimed)}, {moved} read and written, {laid} of it by copies and slices")
        own = [k for k in self.kernels_run if k.estimated_s is None and k.predicted_s is not None]
        if own:
            total = sum((k.predicted_s or 0.0) * (k.trips or 1) for k in own)
            lines.append(f"  kernels of its own: {len(own)}, {total * 1e3:.4g} ms by their products and bytes")
        lines.extend(f"  {note}" for note in self.notes)
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """The functions of a program as a target's compiler made them, and what it refused. `target` is JAX's name of the
    platform where a function was compiled for devices at hand, None of a text."""

    target: str | None
    functions: tuple[FunctionReport, ...]
    errors: tuple[DiagnosticError, ...] = ()

    def __repr__(self) -> str:
        return "\n\n".join(func.as_text(self.target) for func in self.functions)

    def refuse(self) -> None:
        """Raises the diagnostics of what the compiler refused, if any."""
        from shardwright.ir.diagnostics import DiagnosticError

        if self.errors:
            found = [diagnostic for error in self.errors for diagnostic in error.diagnostics]
            raise DiagnosticError(found, self.errors[0].source)

    def as_json(self) -> dict[str, Any]:
        """The object of `explain --json`."""
        return {"target": self.target, "functions": [func.as_json() for func in self.functions]}


def shown_place(source: str | None) -> str:
    """`FILE:LINE` for people: files below the working directory without it."""
    return "" if source is None else source.removeprefix(f"{Path.cwd()}/")
