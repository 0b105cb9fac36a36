"""The programs of examples/: as they stand, at the small sizes that their comments give, in other number formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.shard")))

_SMALL = re.compile(r"--mesh (\S+) --dim (\S+)")


@dataclass(frozen=True)
class Sizes:
    """Overrides of a file's mesh and dimensions."""

    mesh: Mapping[str, int]
    dims: Mapping[str, int]


AS_WRITTEN = Sizes({}, {})


def text(name: str) -> str:
    """The example's source."""
    return (FOLDER / f"{name}.shard").read_text(encoding="utf-8")


def small(name: str) -> Sizes:
    """The sizes of the command in the example's comment."""
    found = _SMALL.search(text(name))
    assert found is not None, f"{name}: no command with --mesh and --dim in its comment"
    return Sizes(*({k: int(v) for k, _, v in (pair.partition("=") for pair in g.split(","))} for g in found.groups()))


def load(name: str, sizes: Sizes = AS_WRITTEN, source: str | None = None) -> Program:
    """The example, or an edited source of it, at these sizes."""
    return elaborate(parse(Source(f"{name}.shard", source or text(name))), sizes.mesh, sizes.dims)


def in_format(program: Program, dtype: str) -> Program:
    """The program with another number format in place of bf16: f16, whose collectives the CPU compiler does not widen
    to f32, or f32, in which results can be compared closely."""
    from shardwright.ir.text.format import format_module
    from shardwright.ir.text.unparse import unparse

    printed = re.sub(r"\bbf16\b", dtype, format_module(unparse(program)))
    return elaborate(parse(Source(f"{dtype}.shard", printed)))
