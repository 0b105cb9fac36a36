"""Random programs as texts, by number."""

from __future__ import annotations

import random

from oracles.random_programs.draw import Wishes, draw_program

from shardwright.compiling.compile_program import load
from shardwright.ir.diagnostics import Source
from shardwright.ir.program import Program

TYPED = Wishes(most_chips=8, statements=(1, 5), one_memory=True, fitting=True)
"""Programs that are well-typed as they stand: all their digits fit into the sizes."""


SMOOTH = Wishes(most_chips=8, statements=(1, 5), one_memory=True, fitting=True, smooth=True)
"""The same of f32, with derivatives everywhere."""


def random_program(seed: int, wishes: Wishes = TYPED) -> str:
    """The text of the well-typed program with this number."""
    return draw_program(random.Random(seed), wishes).text()


def surface_program(seed: int, wishes: Wishes = TYPED) -> Program:
    """The well-typed program with this number."""
    return load(Source(f"random program {seed}", random_program(seed, wishes)))
