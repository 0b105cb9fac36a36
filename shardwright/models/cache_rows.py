"""The functions of a program with a cache that say which rows are filled, and copy rows from one cache to another."""

from __future__ import annotations

from shardwright.models.value_types import SequenceRows, ValueTypes


def restart(rows: SequenceRows) -> list[str]:
    """Sets how many tokens of each row are in the cache: 0 frees the row, fewer than there are takes the last back."""
    batch, pos = rows.dim, rows.position
    return [
        "# Keeps the first `kept` tokens of each row; where `kept` is below 0 the row stays as it is.",
        f"func restart(kept: int32 {batch}) -> int32 {batch} {{",
        f"  now: int32 {batch} = where(less(kept, 0), {pos}, kept)",
        f"  set {pos} = now",
        "  return now",
        "}",
    ]


def adopt(source: ValueTypes, target: ValueTypes) -> list[str]:
    """Copies a row of the cache of `source` to one of that of `target`, and rows of logits."""
    of, to = source.rows, target.rows
    copies = list(zip(target.state, source.state, strict=True))

    def with_row(mine: str, theirs: str) -> str:
        return f"update[{to.dim}]({mine}, lookup[{of.dim}]({theirs}, source), row)"

    return [
        "# Row `source` of prefill's cache becomes row `row` of decode's.",
        f"func adopt(source: int32, row: int32) -> int32 {to.dim} {{",
        "  loop[N] {",
        *(f"    set {mine} = {with_row(mine, theirs)}" for mine, theirs in copies),
        "  }",
        f"  now: int32 {to.dim} = {with_row(to.position, of.position)}",
        f"  set {to.position} = now",
        "  return now",
        "}",
        "",
        "# The logits after the prompts, in the rows of decode that adopt them.",
        f"func adopted_logits(source: int32 {to.dim}, logits: {source.last_logits}) -> {target.last_logits} {{",
        f"  return lookup[{of.dim}](logits, source)",
        "}",
    ]
