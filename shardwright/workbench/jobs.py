"""The jobs that the explorer has done in other processes: each takes plain data, and gives plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.ir.diagnostics import NOWHERE, Diagnostic, Source, fault, located
from shardwright.workbench.examine import Examination, ExamineSettings, glance

EXAMPLES = Path(__file__).parent / "examples"

REASONS_SECONDS = 30.0
"""For the next best layouts."""


@dataclass(frozen=True)
class StartingModel:
    """A model to begin from: its name, the preset of its layouts, and the sizes of the program. A `mesh` is as in
    `x=4 y=2`."""

    model: str
    layout: str
    mesh: str
    batch: int
    length: int
    cache: int


def faults(source: Source, settings: ExamineSettings) -> tuple[Diagnostic, ...]:
    """The faults of a text, found without choosing layouts."""
    return glance(source, settings).diagnostics


def picture(found: Examination, name: str, text: str) -> str:
    """The explicit program of a text as SVG, its operations coloured by their share of the time."""
    from shardwright.backends.graph import draw
    from shardwright.backends.graph.annotations import of_costs

    assert found.explicit is not None
    return draw(found.explicit, source=Source(name, text), annotations=of_costs(found.costs)).svg


def timeline(found: Examination, func: str) -> str:
    """When a call of a function computes and communicates, as SVG; of a long loop its first two trips."""
    from shardwright.backends.timeline.gantt import draw
    from shardwright.backends.timeline.predicted import predicted_timeline

    assert found.explicit is not None
    cost = next(cost for cost in found.costs if cost.func == func)
    made = predicted_timeline(found.explicit, found.explicit.func(func), cost)
    assert made.predicted is not None
    return draw(made, "svg", _two_trips(made.predicted.entries, cost.time_s)).decode()


def _two_trips(entries: Sequence[object], seconds: float) -> tuple[float, float] | None:
    """From the beginning to where something is done for the third time, if that is long before the end."""
    from shardwright.backends.timeline.record import RecordedEvent

    times: dict[str, int] = {}
    for entry in entries:
        assert isinstance(entry, RecordedEvent)
        times[entry.name] = times.get(entry.name, 0) + 1
        if times[entry.name] == 3:
            return (0.0, entry.start) if 0 < entry.start < 0.5 * seconds else None
    return None


def reasons(source: Source, settings: ExamineSettings) -> list[str]:
    """Why each layout is what it is, and the next best, as far as the time goes."""
    from shardwright.passes.compiling.place import Place
    from shardwright.searching.next_best import explain

    program = glance(source, settings).program
    assert program is not None
    with located(source):
        chip = settings.chip or program.chip
        return explain(program, Place.of(settings.objective, chip), REASONS_SECONDS)


def module(found: Examination) -> str:
    """The explicit program as a module of JAX."""
    from shardwright.compiling.compile_program import compile_program

    assert found.explicit is not None
    return compile_program(found.explicit).text


def exported(found: Examination, form: str) -> str:
    """The layouts for another tool."""
    from shardwright.exporting.export import export

    assert found.explicit is not None
    return export(found.explicit, form).text


def begun(beginning: StartingModel) -> str:
    """The text of a model's program. Raises a `DiagnosticError` where its sizes do not go with the mesh."""
    from shardwright.ir.mesh import Mesh
    from shardwright.ir.types import DType
    from shardwright.models.built_in import built_in
    from shardwright.models.forward import ProgramRequest, model_program

    with located(Source(beginning.model, "")):
        axes = parse_sizes(beginning.mesh)
        mesh = Mesh(tuple(axes.items()))
        request = ProgramRequest(
            beginning.layout, mesh, beginning.batch, beginning.length, DType.BF16, cache=beginning.cache or None
        )
        return model_program(built_in(beginning.model).model, request)[0]


def parse_sizes(text: str) -> dict[str, int]:
    """`x=4 y=2`, with commas or spaces between. Raises a `DiagnosticError` at what is not one."""
    made: dict[str, int] = {}
    for part in text.replace(",", " ").split():
        name, _, size = part.partition("=")
        if not name.isidentifier() or not size.isascii() or not size.isdigit() or not 0 < int(size[:19]) < 10**12:
            raise fault("bad-size", f"{part} is not a size", NOWHERE, "write names with sizes, as in x=4 y=2")
        if name in made:
            raise fault("bad-size", f"{name} is given twice", NOWHERE)
        made[name] = int(size)
    return made


def example_names() -> list[str]:
    """The programs that come with the package, by their files' names."""
    return sorted(path.stem for path in EXAMPLES.glob("*.shard"))


def example(name: str) -> str:
    """The text of one of `example_names`."""
    return (EXAMPLES / f"{name}.shard").read_text(encoding="utf-8") if name in example_names() else ""
