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
    """Copies rows of the cache of `source`, and of its logits, to rows of that of `target`."""
    of, to = source.rows, target.rows
    copies = list(zip(target.state, source.state, strict=True))
    return [
        f"# Row `source` of prefill's cache and logits becomes row {to.dim} of decode's; where it is below 0 the row",
        "# stays as it is.",
        f"func adopt(source: int32 {to.dim}, logits: {source.last_logits}) -> {target.last_logits} {{",
        "  stays = less(source, 0)",
        "  loop[N] {",
        *(f"    set {mine} = where(stays, {mine}, lookup[{of.dim}]({theirs}, source))" for mine, theirs in copies),
        "  }",
        f"  set {to.position} = where(stays, {to.position}, lookup[{of.dim}]({of.position}, source))",
        f"  adopted: {target.last_logits} = lookup[{of.dim}](logits, source)",
        "  return adopted",
        "}",
    ]
