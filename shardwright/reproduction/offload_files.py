"""Rows of one's own, in the columns of FlexGen's table 2 or of Petals' part of table 13, beside what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardwright.cost.hardware.chips import chip_names, load_chip, machine_names
from shardwright.cost.hardware.runtimes import load_runtime, runtime_names
from shardwright.cost.offloading.policy import POLICY_KEYS, parse_policy
from shardwright.cost.offloading.swarm import Network, petals, swarm_tokens_per_s
from shardwright.ir.diagnostics import DiagnosticError, Source, fault, located, nearest
from shardwright.prediction.models import model_of
from shardwright.prediction.offloading import model_sizes
from shardwright.reproduction.checks import Check
from shardwright.reproduction.csv_columns import Columns, Line, read_table
from shardwright.reproduction.offload_rows import OffloadRow, compared

POLICY_COLUMNS = ("prompt_len", "model", "system", "tokens_per_s", *POLICY_KEYS)
"""Those of table 2 that a file needs; `gen_len`, `machine` and `gpus` may come with them."""
_POLICY_MORE = ("gen_len", "machine", "gpus")
_MACHINE_WORDS = {"gpu": "machine", "chip": "machine"}
"""What else the column of machines is called."""

SWARM_COLUMNS = ("prompt_len", "model", "servers", "delay_ms", "mbit_per_s", "tokens_per_s")
"""Those of Petals' rows; `gen_len` and `chip` may come with them."""
_SWARM_MORE = ("gen_len", "chip")
_CHIP_WORDS = {"gpu": "chip", "machine": "chip"}
"""What else the column of chips is called."""


def file_checks(source: Source) -> list[Check] | None:
    """The rows of a file with one of these sets of columns beside predictions, or None where the file has others.

    Comments begin with #. Raises where a line is at fault, with its place.
    """
    with located(source):
        return read_table(source.text, Path(source.name).stem, _KINDS)


def _policy_row(line: Line) -> Check:
    system, model = line.text("system"), line.text("model")
    name, packed = system.removesuffix("-4bit"), system.endswith("-4bit")
    if name not in runtime_names():
        raise _unknown_system(system, line)
    if packed and not load_runtime(name).can_quantize:
        raise fault("no-compression", f"{name} keeps nothing in 4 bits, and the system is {system}", line.span)
    row = OffloadRow(
        line.table,
        f"{model} {system} {line.text('prompt_len')}",
        model,
        system,
        parse_policy(",".join(line.text(column) for column in POLICY_KEYS)),
        line.positive("tokens_per_s", "a number above 0, or OOM", ("oom", "0")),
        prompt=line.count("prompt_len"),
        generated=line.count("gen_len", 32),
        machine=line.spelled("machine", "t4", machine_names()),
        gpus=line.count("gpus", 1),
    )
    (check,) = compared([row])
    return check


def _unknown_system(system: str, line: Line) -> DiagnosticError:
    known: Sequence[str] = (*runtime_names(), "flexgen-4bit", "ours-4bit")
    swarm = f"petals has no policy; its columns are {', '.join(SWARM_COLUMNS)}" if system == "petals" else None
    listed = f"systems are {', '.join(known)}"
    near = nearest(system, known)
    return fault("unknown-system", f"there is no system {system!r}", line.span, near, swarm, listed)


def _swarm_row(line: Line) -> Check:
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
    return Check(line.table, row, f"{servers} servers, token/s of one", published, predicted, None)


_KINDS = (
    Columns(POLICY_COLUMNS, _POLICY_MORE, _MACHINE_WORDS, _policy_row),
    Columns(SWARM_COLUMNS, _SWARM_MORE, _CHIP_WORDS, _swarm_row),
)
