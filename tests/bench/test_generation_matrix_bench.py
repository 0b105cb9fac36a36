"""The record of generation beside transformers: what is run again, what the tables say, and that they are of today."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from generation_matrix import DOCUMENT, Outcome, document, missing, tables
from models.generation_cells import matrix, pairwise

RECORDED = Path(__file__).parents[2] / "docs" / "generation-matrix.md"


def outcome(cell: object, **changes: object) -> Outcome:
    return Outcome(**{**asdict(Outcome(str(cell), True, None, 1e-3, (), 1.0)), **changes})


def test_what_is_on_record_is_not_run_again(tmp_path: Path) -> None:
    cells, record = pairwise(), tmp_path / "record.jsonl"  # fewer of each checkpoint than make a batch
    assert list(chain(*missing(cells, record))) == cells
    outcomes = [outcome(cells[0]), outcome(cells[2], equal=False, error="KeyError: x"), outcome(cells[3], equal=False)]
    record.write_text("".join(json.dumps(asdict(each)) + "\n" for each in outcomes), encoding="utf-8")
    assert list(chain(*missing(cells, record))) == [cells[1], cells[2], *cells[4:]]
    batches = missing(matrix(), record)
    assert all(len({cell.checkpoint for cell in batch}) == 1 for batch in batches)
    assert len({batch[0].checkpoint for batch in batches[:35]}) == 35


def test_the_tables() -> None:
    cells = [cell for cell in matrix() if cell.checkpoint == "opt" and cell.layout == "ws2d"]
    outcomes = {str(cell): outcome(cell, difference=1e-6 if cell.scored else None) for cell in cells}
    wrong = cells[0]
    outcomes[str(wrong)] = outcome(wrong, equal=False, dropped=("B=1 is not split",), gap=2e-4)
    lines = tables(cells, outcomes).splitlines()
    assert lines[:4] == [
        "- 15 of 16 cells give the tokens of transformers; 0 have not run yet.",
        "- In 1 of them the layout leaves a dimension on fewer axes, since the others do not divide it.",
        "- In 8 the log-probabilities of all tokens, given and new, were asked for too:",
        "  they are within 1.0e-06 of the largest.",
    ]
    assert "| opt | OPT | 16 | 15 | 1 | 1.0e-06 | 2.0e-04 |" in lines
    assert "| `ws2d` | 3 of 4 | 4 of 4 | 4 of 4 | 4 of 4 |" in lines
    assert document(cells, outcomes).startswith(DOCUMENT)


def test_the_record_is_of_this_matrix() -> None:
    """docs/generation-matrix.md counts cells of today's matrix, and all that ran are equal."""
    text = RECORDED.read_text(encoding="utf-8")
    assert text.startswith(DOCUMENT)
    total = re.search(r"^- (\d+) of (\d+) cells give the tokens of transformers; (\d+) have not", text, re.MULTILINE)
    assert total is not None
    equal, ran, left = map(int, total.groups())
    assert (equal, ran + left) == (ran, len(matrix()))
    rows = re.findall(r"^\| ([\w-]+) \| \w+ \| (\d+) \| (\d+) \| (\d+) \|", text, re.MULTILINE)
    assert sum(int(count) for _, count, _, _ in rows) == ran
    assert all(count == equal for _, count, equal, _ in rows)
    whole = Counter(cell.checkpoint for cell in matrix())
    assert all(int(count) <= whole[name] for name, count, _, _ in rows)
