"""Rows of one's own, in the columns of FlexGen's table 2 or of Petals' part of table 13, beside what is predicted."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from shardwright.cost.chips import chip_names, load_chip, machine_names
from shardwright.cost.offloading.policy import parse_policy
from shardwright.cost.offloading.runtimes import load_runtime, runtime_names
from shardwright.cost.offloading.swarm import Network, petals, swarm_tokens_per_s
from shardwright.ir.diagnostics import DiagnosticError, Note, Source, Span, fault, located, nearest
from shardwright.prediction.checks import Check
from shardwright.prediction.csv_columns import read_columns
from shardwright.prediction.models import model_of
from shardwright.prediction.offload_rows import OffloadRow, compared
from shardwright.prediction.offloading import model_sizes

_POLICY = ("gpu_batch", "n_gpu_batches", "wg", "wc", "cg", "cc", "hg", "hc")
POLICY_COLUMNS = ("prompt_len", "model", "system", "tokens_per_s", *_POLICY)
"""Those of table 2 that a file needs; `gen_len`, `machine` and `gpus` may come with them."""
_POLICY_MORE = ("gen_len", "machine", "gpus")
_MACHINE_WORDS = {"gpu": "machine", "chip": "machine"}
"""What else the column of machines is called."""

SWARM_COLUMNS = ("prompt_len", "model", "servers", "delay_ms", "mbit_per_s", "tokens_per_s")
"""Those of Petals' rows; `gen_len` and `chip` may come with them."""
_SWARM_MORE = ("gen_len", "chip")
_CHIP_WORDS = {"gpu": "chip", "machine": "chip"}
"""What else the column of chips is called."""


def file_checks(path: str) -> list[Check] | None:
    """The rows of a file with one of these sets of columns beside predictions, or None where the file has others.

    Comments begin with #. Raises where a line is at fault, with its place.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        return None  # said where other tables are read
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    columns = [name.strip().lower() for name in next(csv.reader(StringIO(lines[0][1])))] if lines else []
    read = _policy_row if set(POLICY_COLUMNS) <= set(columns) else _swarm_row
    if read is _swarm_row and not set(SWARM_COLUMNS) <= set(columns):
        return None
    made: list[Check] = []
    with located(Source(path, text)):
        at, header = lines[0]
        if read is _policy_row:
            columns = read_columns(header, at, _POLICY_MORE, _MACHINE_WORDS, POLICY_COLUMNS)
        else:
            columns = read_columns(header, at, _SWARM_MORE, _CHIP_WORDS, SWARM_COLUMNS)
        for number, line in lines[1:]:
            span = Span(number, 1, number, len(line) + 1)
            values = [value.strip() for value in next(csv.reader(StringIO(line)))]
            if len(values) != len(columns):
                raise fault("bad-row", f"{len(values)} values in {len(columns)} columns", span)
            try:
                made.append(read(_Line(dict(zip(columns, values, strict=True)), span), Path(path).stem))
            except DiagnosticError as error:
                first = error.diagnostics[0]
                raise fault(first.code, first.message, span, *(str(note.message) for note in first.notes)) from None
    return made


class _Line:
    """A line's values by column, and its place."""

    def __init__(self, values: Mapping[str, str], span: Span) -> None:
        self.values, self.span = values, span

    def text(self, column: str, default: str = "") -> str:
        return self.values.get(column) or default

    def spelled(self, column: str, default: str, known: Sequence[str]) -> str:
        """A name of a chip or a machine, or the path of its file; `RTX 3090` is `rtx-3090`."""
        text = self.text(column, default)
        letters = "".join(sign for sign in text.lower() if sign.isalnum())
        return next((name for name in known if name.replace("-", "") == letters), text)

    def count(self, column: str, default: int | None = None) -> int:
        text = self.text(column)
        if not text and default is not None:
            return default
        if not text.isascii() or not text.isdecimal() or not 0 < int(text[:18]) <= 10**6:
            raise fault("bad-row", f"{column} is {text!r}, and must be a whole number from 1 up", self.span)
        return int(text)

    def positive(self, column: str, *, or_oom: bool = False) -> float:
        """A number above 0; with `or_oom` also OOM or 0, which are 0."""
        text = self.text(column)
        try:
            value = 0.0 if or_oom and text.upper() == "OOM" else float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf or not (value or or_oom):
            what = "a number above 0, or OOM" if or_oom else "a number above 0"
            raise fault("bad-row", f"{column} is {text!r}, and must be {what}", self.span)
        return value


def _policy_row(line: _Line, table: str) -> Check:
    system, model = line.text("system"), line.text("model")
    name, packed = system.removesuffix("-4bit"), system.endswith("-4bit")
    if name not in runtime_names():
        raise _unknown_system(system, line)
    if packed and not load_runtime(name).quantizes:
        raise fault("no-compression", f"{name} keeps nothing in 4 bits, and the system is {system}", line.span)
    row = OffloadRow(
        table,
        f"{model} {system} {line.text('prompt_len')}",
        model,
        system,
        parse_policy(",".join(line.text(column) for column in _POLICY)),
        line.positive("tokens_per_s", or_oom=True),
        prompt=line.count("prompt_len"),
        generated=line.count("gen_len", 32),
        machine=line.spelled("machine", "t4", machine_names()),
        gpus=line.count("gpus", 1),
    )
    (check,) = compared([row])
    return check


def _unknown_system(system: str, line: _Line) -> DiagnosticError:
    known: Sequence[str] = (*runtime_names(), "flexgen-4bit", "ours-4bit")
    near = nearest(system, known)
    notes: list[str | Note] = [near] if near else []
    if system == "petals":
        notes.append(f"petals has no policy; its columns are {', '.join(SWARM_COLUMNS)}")
    return fault(
        "unknown-system", f"there is no system {system!r}", line.span, *notes, f"systems are {', '.join(known)}"
    )


def _swarm_row(line: _Line, table: str) -> Check:
    servers, prompt, generated = line.count("servers"), line.count("prompt_len"), line.count("gen_len", 32)
    delay, megabits = line.positive("delay_ms"), line.positive("mbit_per_s")
    name, published = line.text("model"), line.positive("tokens_per_s")
    sizes = model_sizes(model_of(name).model, prompt, generated)
    if servers > sizes.layers:
        raise fault("bad-row", f"{sizes.layers} layers cannot be on {servers} servers", line.span)
    network = Network(delay / 1e3, megabits * 1e6 / 8)
    predicted = swarm_tokens_per_s(
        sizes, load_chip(line.spelled("chip", "t4", chip_names())), servers, network, petals()
    )
    row = f"{name} petals {prompt}, {delay:g} ms, {megabits:g} Mbit/s"
    return Check(table, row, f"{servers} servers, token/s of one", published, predicted, None)
