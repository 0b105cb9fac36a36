"""Published measurements as rows: what ran, on what, and how long it took."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from shardwright.cost.hardware.chips import Chip, chip_names, load_chip
from shardwright.cost.hardware.networks import Torus
from shardwright.ir.diagnostics import NOWHERE, Source, Span, decoded, fault, located
from shardwright.ir.text.table import counted
from shardwright.ir.types import StoredFormat
from shardwright.models.built_in import BuiltIn, built_in, built_in_names
from shardwright.models.description import LearnedPositions
from shardwright.models.layouts import PRESETS, AttentionOver
from shardwright.prediction.fitting import weight_bytes
from shardwright.prediction.models import named_model, torus_mesh
from shardwright.prediction.phases import Workload
from shardwright.prediction.programs import Deployment, Phase, Weights
from shardwright.reproduction.csv_columns import Columns, Line, column_names, data_lines, letters, read_table

_FOLDER = Path(__file__).parent / "published"

_CHIP_WORDS = {"gpu": "chip", "machine": "chip"}
"""What else the column of chips is called."""

LATENCY_COLUMNS = ("model", "chips", "chip", "input_tokens", "output_tokens", "batch", "phase", "time_ms")
"""The columns of tables D.2 and D.3 that a file needs; `system`, `ffn_layout`, `attention_sharding`, `weights`, `cache`
and `attention` may come with them."""
_LATENCY_MORE = ("system", "ffn_layout", "attention_sharding", "weights", "cache", "attention", "mfu_percent")

SCENARIO_COLUMNS = ("phase", "chips", "batch", "ffn_layout", "attention_sharding", "weights", "latency_s")
"""The columns of table 2 that a file needs; `scenario`, `model`, `chip`, `input_tokens`, `output_tokens` and
`mfu_percent` may come with them."""
_SCENARIO_MORE = ("scenario", "model", "chip", "input_tokens", "output_tokens", "mfu_percent")

_LAYOUTS = {name.replace("-", ""): name for name in PRESETS}
_WEIGHTS: Mapping[str, Weights] = {
    "int8": "int8", "bf16": "bf16", "bfloat16": "bf16", "f16": "bf16", "f8e4m3": "f8e4m3", "fp8": "f8e4m3",
}  # fmt: skip
_CACHES: Mapping[str, StoredFormat | None] = {
    "bf16": None, "f16": None, "int8": "int8", "f8e4m3": "f8e4m3", "fp8": "f8e4m3",
}  # fmt: skip
_DECOMPOSED = {"products": True, "kernel": False}
"""Attention as products and a softmax, with the scores in memory, or as a kernel that keeps them to itself."""
_ATTENTION: Mapping[str, AttentionOver] = {
    "head": "head", "heads": "head", "batch": "batch", "positions": "positions",
}  # fmt: skip
_PHASES: Mapping[str, tuple[Phase, ...]] = {
    "prefill": ("prefill",), "decode": ("decode",), "generate": ("decode",), "total": ("prefill", "decode"),
}  # fmt: skip
_MODELS = {"megatron530b": "mt-nlg-530b", "mtnlg": "mt-nlg-530b", "megatronturingnlg530b": "mt-nlg-530b"}
"""What else models are called, in letters and digits."""

_NOT_MEASURED = ("oom", "-", "n/a")
_PALM = ("palm-8b", "palm-62b", "palm-540b")


@dataclass(frozen=True)
class PublishedRow:
    """One measurement: `phases` ran one after the other and took `measured_s` together.

    `group` are the rows that are calibrated together, those of one system's software on one chip; `chip_name` is the
    chip as the row has it, by name or by file.
    """

    table: str
    name: str
    group: str
    measured_s: float
    model: BuiltIn
    deployment: Deployment
    chip: Chip
    chip_name: str
    phases: tuple[Phase, ...]
    workload: Workload
    stages: int = 1
    span: Span = NOWHERE

    @property
    def n_chips(self) -> int:
        return self.deployment.mesh.n_chips * self.stages

    @property
    def tokens(self) -> int:
        """Input tokens where there is a prefill, output tokens where there is a decode."""
        each = {"prefill": self.workload.prompt, "decode": self.workload.generated}
        return self.workload.batch * sum(each[phase] for phase in self.phases)


class PublishedTable(NamedTuple):
    """A published table: its file, and how to read a line of it."""

    file: str
    title: str


TABLES: Mapping[str, PublishedTable] = {
    "d2": PublishedTable("pope2022_table_d2.csv", "Pope et al. 2022, table D.2: 20 tokens in, 8 out"),
    "d3": PublishedTable("pope2022_table_d3.csv", "Pope et al. 2022, table D.3: 60 tokens in, 20 out"),
    "2": PublishedTable("pope2022_table_2.csv", "Pope et al. 2022, table 2: PaLM 540B, context 2048"),
    "tensorrt-llm": PublishedTable(
        "tensorrt_llm_performance.csv", "TensorRT-LLM 0.9, Llama 2 on A100 (f16), H100 and H200 (8-bit floats)"
    ),
}


@cache
def published(table: str) -> tuple[PublishedRow, ...]:
    """The rows of a table of `TABLES`."""
    file = _FOLDER / TABLES[table].file
    return tuple(read_rows(file.read_text(encoding="utf-8"), TABLES[table].file, table))


def file_source(name: str) -> Source:
    """A .csv file of the user's own. Raises where it is not UTF-8, OSError where it cannot be read."""
    return decoded(name, Path(name).read_bytes(), "save the file as UTF-8")


def read_rows(text: str, name: str, table: str) -> list[PublishedRow]:
    """Rows in the columns of table D.2 or of table 2; comments begin with #. Rows that were not measured (out of
    memory) are left out. Models, chips and layouts may be spelled with other signs between letters and digits.

    Raises where columns are missing, or a line is nonsense, with its place.
    """
    with located(Source(name, text)):
        made = read_table(text, table, _KINDS)
        if made is not None:
            return made
        lines = data_lines(text)
        if not lines:
            raise fault("empty-table", "there are no rows", Span(1, 1, 1, 2), _columns())
        header_at, header = lines[0]
        columns = {_CHIP_WORDS.get(column, column) for column in column_names(header)}
        span = Span(header_at, 1, header_at, len(header) + 1)
        known = min((LATENCY_COLUMNS, SCENARIO_COLUMNS), key=lambda known: len(set(known) - columns))
        missing = [column for column in known if column not in columns]
        found = f"the columns {header} are those of no known table"
        raise fault("unknown-columns", found, span, f"nearest is one without {', '.join(missing)}", _columns())


def _columns() -> str:
    return f"columns are {', '.join(LATENCY_COLUMNS)}, or {', '.join(SCENARIO_COLUMNS)}"


def _seconds(line: Line, column: str, unit: float) -> float:
    """0 where it says that nothing was measured."""
    return line.positive(column, "a time above 0", _NOT_MEASURED) * unit


def _latency_row(line: Line) -> PublishedRow | None:
    """Prefill of the input, decode after it, or both."""
    seconds = _seconds(line, "time_ms", 1e-3)
    if not seconds:
        return None
    phases = line.choice("phase", _PHASES)
    model = _model(line, line.text("model"))
    prefill = phases == ("prefill",)
    generated = line.count("output_tokens", 0 if prefill else None, least=0 if prefill else 1)
    workload = Workload(line.count("batch"), line.count("input_tokens"), generated)
    over = "batch" if model.model.attention.kv_heads == 1 else "head"
    label, chip = line.text("system"), line.spelled("chip", "", chip_names())
    system = re.split("[^a-z0-9]", label.lower(), maxsplit=1)[0]
    return _row(line, label, system, seconds, model, chip, phases, workload, "", over)


def _scenario_row(line: Line) -> PublishedRow | None:
    """Prefill of the whole context, or decode of the last tokens up to it, as in table 2; where the row says how many
    tokens go in, decode comes after them."""
    seconds = _seconds(line, "latency_s", 1.0)
    if not seconds:
        return None
    phases = line.choice("phase", _PHASES)
    batch, context = line.count("batch"), line.count("input_tokens", 2048)
    generated = line.count("output_tokens", 64, least=0 if phases == ("prefill",) else 1)
    chip = line.spelled("chip", "tpu-v4", chip_names())
    model = _model(line, line.text("model") or _palm_of(line, load_chip(chip), phases, context, generated, seconds))
    before = None if line.text("input_tokens") or len(phases) > 1 else max(1, context - generated)
    workload = Workload(batch, context, generated, before)
    return _row(line, line.text("scenario"), "", seconds, model, chip, phases, workload, "ws2d", "head")


_KINDS = (
    Columns(LATENCY_COLUMNS, _LATENCY_MORE, _CHIP_WORDS, _latency_row),
    Columns(SCENARIO_COLUMNS, _SCENARIO_MORE, _CHIP_WORDS, _scenario_row),
)


def _row(
    line: Line, label: str, system: str, seconds: float, model: BuiltIn, chip_name: str, phases: tuple[Phase, ...],
    workload: Workload, layout: str, over: AttentionOver,
) -> PublishedRow:  # fmt: skip
    """`layout` and `over` are what a row has that does not say; no layout is the chip's own. A row of a torus without a
    system is one of Pope et al.'s."""
    chip, chips = load_chip(chip_name), line.count("chips")
    torus = isinstance(chip.interconnect, Torus)
    preset = line.choice("ffn_layout", _LAYOUTS, layout or ("ws2d" if torus else "megatron"))
    attention = line.choice("attention_sharding", _ATTENTION, over if torus else "head")
    weights = line.choice("weights", _WEIGHTS, "bf16")
    stages, tensor = _parallel(line, label, chips, model, chip)
    mesh = torus_mesh(chip, tensor, model.model.attention.kv_heads)
    positions, longest = model.model.positions, workload.before + workload.generated
    if isinstance(positions, LearnedPositions) and longest > positions.size:
        raise fault(
            "bad-row", f"{longest} positions, and {model.name} has {positions.size}", line.span, "take fewer tokens"
        )
    needed, there = weight_bytes(model.model, weights), chips * chip.memory_bytes
    if needed > there:
        found = f"{model.name} has {needed / 1e9:.0f} GB of {weights} weights"
        note = "take more chips, or int8 weights" if weights == "bf16" else "take more chips"
        raise fault("bad-row", f"{found}, and {chips} {chip.name} hold {there / 1e9:.0f} GB", line.span, note)
    decomposed, cache = line.choice("attention", _DECOMPOSED, "products"), line.choice("cache", _CACHES, "bf16")
    deployment = Deployment(model.model, mesh, preset, attention, weights, decomposed, cache)
    told = f"{counted(chips, 'chip')}, batch {workload.batch}"
    if line.text("ffn_layout"):
        told += f", {preset}, {attention}, {weights}"
    phase = "total" if len(phases) > 1 else "".join(phases)
    name = f"{label} {model.name} {told}, {phase}".strip()
    group = f"{system or ('pope2022' if torus else '')} {chip.name}".strip()
    return PublishedRow(
        line.table, name, group, seconds, model, deployment, chip, chip_name, phases, workload, stages, line.span
    )


def _model(line: Line, name: str) -> BuiltIn:
    """PaLM 540B has its 48 heads padded to 64 on 64 chips and more (Pope et al. 2022, section 4)."""
    known = {letters(own): own for own in built_in_names()} | _MODELS
    found = named_model(known.get(letters(name), name))
    padded = found.name == "palm-540b" and line.count("chips") >= 64
    return built_in("palm-540b-64-heads") if padded else found


def _palm_of(line: Line, chip: Chip, phases: tuple[Phase, ...], context: int, generated: int, seconds: float) -> str:
    """Tables 2 and 3 of the paper have the same columns, and none for the model; the MFU of a row says its size."""
    try:
        share = float(line.text("mfu_percent")) / 100
    except ValueError:
        return _PALM[-1]
    tokens = line.count("batch") * sum(context if phase == "prefill" else generated for phase in phases)
    size = share * line.count("chips") * chip.rate("bf16") * seconds / (2 * tokens) if tokens else 0.0
    if not 0 < size < math.inf:
        return _PALM[-1]
    return min(_PALM, key=lambda name: abs(math.log(built_in(name).parameters / size)))


def _parallel(line: Line, system: str, chips: int, model: BuiltIn, chip: Chip) -> tuple[int, int]:
    """The stages of a system, and the chips of each: of `fastertransformer-pp3-tp8` 3, each over 8. A torus has one,
    and layouts that need not split heads over all its chips."""
    numbers = dict(re.findall(r"(pp|tp)[ =_]?(\d+)", system.lower()))
    stages = int(numbers.get("pp", 1))
    if stages < 1 or chips % stages or int(numbers.get("tp", chips // stages)) != chips // stages:
        note = "chips are the stages times the tensor parallelism"
        raise fault("bad-row", f"{chips} chips are not those of {system}", line.span, note)
    tensor, heads, F = chips // stages, model.model.attention.heads, model.model.feedforward.size
    if isinstance(chip.interconnect, Torus):
        if stages > 1:
            found = f"stages of a pipeline are priced behind switches, and {chip.name} is a torus"
            raise fault("bad-row", found, line.span, "leave `pp` out of `system`")
    elif heads % tensor or F % tensor:
        raise fault(
            "bad-row",
            f"tensor parallelism over {tensor} chips does not divide {heads} heads and F={F}",
            line.span,
            "name the stages of a pipeline in `system`, such as fastertransformer-pp3-tp8",
        )
    return stages, tensor
