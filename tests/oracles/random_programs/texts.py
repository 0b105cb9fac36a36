"""Random programs as texts, by number."""

from __future__ import annotations

import random

from oracles.random_programs.draw import Wishes, draw_program

TYPED = Wishes(most_chips=8, statements=(1, 5), one_memory=True, fitting=True)
"""Programs that are well-typed as they stand: all their digits fit into the sizes."""


def random_program(seed: int) -> str:
    """The text of the well-typed program with this number."""
    return draw_program(random.Random(seed), TYPED).text()
