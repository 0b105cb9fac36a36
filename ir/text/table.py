"""Columns of text under each other."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str) -> list[str]:
    """Lines of a table; `right` has for each column `r` where it is aligned to the right, else `l`."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            f"{cell:>{width}}" if side == "r" else f"{cell:<{width}}"
            for cell, width, side in zip(row, widths, right, strict=True)
        ]
        return "  ".join(cells).rstrip()

    return [line(head), *(line(row) for row in rows)]


def to_three_digits(number: float) -> float:
    """The number that is shown: the unit is chosen by it, so that 999,700 bytes are 1 MB."""
    return float(f"{number:.3g}")


def bytes_text(nbytes: float) -> str:
    """`1.98 GB`, to three digits; GB is 10^9."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if to_three_digits(nbytes) >= size:
            return f"{to_three_digits(nbytes / size):g} {unit}"
    return f"{nbytes:.0f} B"


def counted(count: int, noun: str) -> str:
    """So many of them in words: `1 chip`, `8 chips`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
