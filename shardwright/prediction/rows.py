"""Published measurements as rows: what ran, on what, and how long it took."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from shardwright.cost.chips import Chip, Torus, load_chip
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, Span, fault, located
from shardwright.ir.mesh import Mesh
from shardwright.models.built_in import BuiltIn, built_in
from shardwright.models.layouts import AttentionOver
from shardwright.prediction.phases import Workload
from shardwright.prediction.programs import Deployment, Phase, Weights

_FOLDER = Path(__file__).parent / "published"

LATENCY_COLUMNS = ("system", "model", "chips", "chip", "input_tokens", "output_tokens", "batch", "phase", "time_ms")
"""Those of tables D.2 and D.3 that are needed."""

SCENARIO_COLUMNS = ("scenario", "phase", "chips", "batch", "ffn_layout", "attention_sharding", "weights", "latency_s")
"""Those of table 2 that are needed; `model`, `chip`, `input_tokens` and `output_tokens` may come with them."""

_LAYOUTS = {"ws1d": "ws1d", "ws2d": "ws2d", "wg_x": "wg-x", "wg_xy": "wg-xy", "wg_xyz": "wg-xyz"}


@dataclass(frozen=True)
class Row:
    """One measurement: `phases` ran one after the other and took `measured_s` together.

    `group` are the rows that are calibrated together, those of one system's software on one chip.
    """

    table: str
    name: str
    group: str
    measured_s: float
    model: BuiltIn
    deployment: Deployment
    chip: Chip
    phases: tuple[Phase, ...]
    workload: Workload
    stages: int = 1

    @property
    def n_chips(self) -> int:
        return self.deployment.mesh.n_chips * self.stages

    @property
    def tokens(self) -> int:
        """Input tokens where there is a prefill, output tokens where there is a decode."""
        each = {"prefill": self.workload.prompt, "decode": self.workload.generated}
        return self.workload.batch * sum(each[phase] for phase in self.phases)


class Table(NamedTuple):
    """A published table: its file, and how to read a line of it."""

    file: str
    title: str


TABLES: Mapping[str, Table] = {
    "d2": Table("pope2022_table_d2.csv", "Pope et al. 2022, table D.2: 20 tokens in, 8 out"),
    "d3": Table("pope2022_table_d3.csv", "Pope et al. 2022, table D.3: 60 tokens in, 20 out"),
    "2": Table("pope2022_table_2.csv", "Pope et al. 2022, table 2: PaLM 540B, context 2048"),
}


@cache
def published(table: str) -> tuple[Row, ...]:
    """The rows of a table of `TABLES`."""
    file = _FOLDER / TABLES[table].file
    return tuple(read_rows(file.read_text(encoding="utf-8"), TABLES[table].file, table))


def file_rows(name: str) -> list[Row]:
    """The rows of a .csv file of the user's own. Raises as `read_rows`, and where it cannot be read."""
    try:
        text = Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        with located(Source(name, "")):
            raise fault("not-utf8", "it is not a text in UTF-8", NOWHERE) from None
    return read_rows(text, name, Path(name).stem)


def read_rows(text: str, name: str, table: str) -> list[Row]:
    """Rows in the columns of table D.2 or of table 2; comments begin with #. Rows without a time (out of memory) are
    left out.

    Raises where columns are missing, or a line is nonsense, with its place.
    """
    source = Source(name, text)
    with located(source):
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if _is_data(line)]
        if not lines:
            raise fault("empty-table", "there are no rows", Span(1, 1, 1, 2), _columns())
        header_at, header = lines[0]
        columns = next(csv.reader(StringIO(header)))
        reader: Callable[[_Line], Row | None]
        if all(column in columns for column in LATENCY_COLUMNS):
            reader = _latency_row
        elif all(column in columns for column in SCENARIO_COLUMNS):
            reader = _scenario_row
        else:
            span = Span(header_at, 1, header_at, len(header) + 1)
            raise fault("unknown-columns", f"the columns {header} are those of no known table", span, _columns())
        made: list[Row] = []
        for number, line in lines[1:]:
            values = next(csv.reader(StringIO(line)))
            span = Span(number, 1, number, len(line) + 1)
            if len(values) != len(columns):
                raise fault("bad-row", f"{len(values)} values in {len(columns)} columns", span)
            read = _Line(dict(zip(columns, values, strict=True)), table, span)
            try:
                row = reader(read)
            except DiagnosticError as error:
                raise fault(error.diagnostics[0].code, error.diagnostics[0].message, span) from None
            if row is not None:
                made.append(row)
        return made


def _is_data(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _columns() -> str:
    return f"columns are {', '.join(LATENCY_COLUMNS)}, or {', '.join(SCENARIO_COLUMNS)}"


@dataclass(frozen=True)
class _Line:
    values: Mapping[str, str]
    table: str
    span: Span

    def text(self, column: str, default: str = "") -> str:
        return self.values.get(column, "").strip() or default

    def count(self, column: str, default: int | None = None) -> int:
        text = self.text(column)
        if not text and default is not None:
            return default
        if not text.isdigit() or not int(text):
            raise fault("bad-row", f"{column} is {text!r}, and must be a whole number from 1 up", self.span)
        return int(text)

    def seconds(self, column: str, unit: float) -> float:
        text = self.text(column)
        try:
            value = float(text) * unit
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise fault("bad-row", f"{column} is {text!r}, and must be a time above 0", self.span)
        return value

    def choice(self, column: str, known: Sequence[str]) -> str:
        text = self.text(column)
        if text not in known:
            raise fault("bad-row", f"{column} is {text!r}, and must be one of {', '.join(known)}", self.span)
        return text


def _latency_row(line: _Line) -> Row | None:
    if line.text("time_ms").upper() == "OOM":
        return None
    phase = line.choice("phase", ("prefill", "decode", "total"))
    phases: tuple[Phase, ...] = ("prefill", "decode") if phase == "total" else (_phase(phase),)
    chips, chip, system = line.count("chips"), load_chip(line.text("chip")), line.text("system")
    model = _model(line.text("model"), chips)
    workload = Workload(line.count("batch"), line.count("input_tokens"), line.count("output_tokens"))
    stages = 1
    if isinstance(chip.interconnect, Torus):
        attention: AttentionOver = "batch" if model.model.attention.kv_heads == 1 else "head"
        deployment = Deployment(model.model, torus_mesh(chip, chips), "ws2d", attention)
    else:
        stages = _stages(system)
        if chips % stages:
            raise fault("bad-row", f"{chips} chips do not make {stages} stages", line.span)
        deployment = Deployment(model.model, Mesh.of(x=chips // stages), "megatron", "head")
    name = f"{system} {model.name} {chips} chips, batch {workload.batch}, {phase}"
    group = f"{system.partition('-')[0]} {chip.name}"
    seconds = line.seconds("time_ms", 1e-3)
    return Row(line.table, name, group, seconds, model, deployment, chip, phases, workload, stages)


def _scenario_row(line: _Line) -> Row | None:
    """Prefill of the whole context, or decode of the last tokens up to it."""
    phase = _phase(line.choice("phase", ("prefill", "decode")))
    layout = _LAYOUTS[line.choice("ffn_layout", tuple(_LAYOUTS))]
    attention: AttentionOver = "head" if line.choice("attention_sharding", ("head", "batch")) == "head" else "batch"
    weights: Weights = "int8" if line.choice("weights", ("int8", "bf16")) == "int8" else "bf16"
    chips, chip = line.count("chips"), load_chip(line.text("chip", "tpu-v4"))
    model = _model(line.text("model", "palm-540b"), chips)
    context, generated = line.count("input_tokens", 2048), line.count("output_tokens", 64)
    batch = line.count("batch")
    workload = Workload(batch, context, generated, max(1, context - generated))
    deployment = Deployment(model.model, torus_mesh(chip, chips), layout, attention, weights)
    name = (
        f"{line.text('scenario')} {model.name} {chips} chips, batch {batch}, {layout}, {attention}, {weights}, {phase}"
    )
    seconds = line.seconds("latency_s", 1.0)
    return Row(line.table, name, f"pope2022 {chip.name}", seconds, model, deployment, chip, (phase,), workload)


def _phase(text: str) -> Phase:
    return "prefill" if text == "prefill" else "decode"


def _model(name: str, chips: int) -> BuiltIn:
    """PaLM 540B has its 48 heads padded to 64 on 64 chips and more (Pope et al. 2022, section 4)."""
    return built_in("palm-540b-64-heads" if name == "palm-540b" and chips >= 64 else name)


def _stages(system: str) -> int:
    """Of `fastertransformer-pp3-tp8` 3."""
    parts = [part.removeprefix("pp") for part in system.split("-") if part.startswith("pp")]
    return int(parts[0]) if parts and parts[0].isdigit() and int(parts[0]) else 1


def preset_of(chip: Chip) -> str:
    """The layout that a model has on such chips where none is named."""
    return "ws2d" if isinstance(chip.interconnect, Torus) else "megatron"


def torus_mesh(chip: Chip, n_chips: int) -> Mesh:
    """x, y and z on the most compact slice of a torus; x, along which the paper splits E, is the axis nearest to half
    the root of the chips (Pope et al. 2022, A.2.1). On a switched network the largest part is in a node."""
    if not isinstance(chip.interconnect, Torus):
        return Mesh.of(x=n_chips)
    slices = chip.interconnect.slices_of(n_chips)
    if not slices:
        sizes = ", ".join(map(str, chip.interconnect.slice_sizes()[:12]))
        raise fault("mesh-fit", f"no slice of {chip.name} has {n_chips} chips; there are slices of {sizes}, ...")
    shape = list(slices[0])
    best = 0.5 * math.sqrt(n_chips)
    first = min(shape, key=lambda size: (abs(math.log(size / best)), -size))
    shape.remove(first)
    return Mesh(tuple(zip("xyz", (first, *shape), strict=False)))
