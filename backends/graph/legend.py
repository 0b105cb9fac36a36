"""The head of a picture: its title, the mesh and the sizes, and a legend of what occurs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardwright.backends.graph.annotations import heat_colour
from shardwright.backends.graph.labels import bytes_text, escaped, font, shortened
from shardwright.backends.graph.palette import (
    CARRIED,
    COMPUTE,
    FAINT,
    INK,
    INPUT,
    LINE,
    MOVEMENTS,
    PARTIAL,
    RESULT,
    SMALL,
    STATE,
    WEIGHT,
    Look,
)
from shardwright.ir.program import Func, Program
from shardwright.ir.text.table import counted

_ORDER = (INPUT, RESULT, WEIGHT, STATE, COMPUTE, SMALL, CARRIED, *MOVEMENTS.values())
_COLUMNS = 4
_SIZES_WIDTH = 72


@dataclass
class Tally:
    """The count of what occurs in a picture. `received` sums each collective's bytes per chip, over all trips of
    loops."""

    looks: dict[str, int] = field(default_factory=dict[str, int])
    received: dict[str, int] = field(default_factory=dict[str, int])
    demanded: bool = False
    found: bool = False
    partial: bool = False
    heat: bool = False

    def count(self, look: Look, received: int | None = None, trips: int = 1) -> None:
        """Note a node, and what a chip receives for it on each of its trips."""
        self.looks[look.name] = self.looks.get(look.name, 0) + 1
        if received is not None:
            self.received[look.name] = self.received.get(look.name, 0) + received * trips


def head_label(title: str, program: Program, funcs: Sequence[Func], tally: Tally) -> str:
    """The label of the whole picture."""
    rows = [f'<TR><TD ALIGN="LEFT">{font(f"<B>{escaped(shortened(title))}</B>", size=15, colour=INK)}</TD></TR>']
    chips = counted(program.mesh.n_chips, "chip")
    mesh = f"mesh {program.mesh}   ({chips})" if len(program.mesh) else "one chip"
    rows.append(_line(font(escaped(mesh), size=10, colour=LINE)))
    used = _dims_of(program, funcs)
    rows.extend(
        _line(font(escaped(line), size=10, colour=LINE))
        for line in _wrapped(f"{dim.name}={dim.size}" for dim in program.dims if dim.name in used)
    )
    rows.append(f"<TR><TD>{_legend(tally)}</TD></TR>")
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="2">{"".join(rows)}</TABLE>>'


def _line(content: str) -> str:
    return f'<TR><TD ALIGN="LEFT">{content}</TD></TR>'


def _wrapped(words: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < _SIZES_WIDTH:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines


def _dims_of(program: Program, funcs: Sequence[Func]) -> set[str]:
    """The dimensions that the values of these functions have."""
    from shardwright.ir.program import Loop
    from shardwright.ir.walk import lets_in, names_of, statements

    used: set[str] = set()
    for func in funcs:
        mentioned = names_of(func)
        used.update(name for name, value in program.globals.items() if name in mentioned for name in value.type.names)
        used.update(name for value in func.params for name in value.type.names)
        used.update(name for let in lets_in(func.body) for value in let.results for name in value.type.names)
        used.update(loop.dim for loop in statements(func.body) if isinstance(loop, Loop))
    return used


def _legend(tally: Tally) -> str:
    entries = [_swatch(look, _entry(look, tally)) for look in _ORDER if look.name in tally.looks]
    if tally.demanded:
        entries.append(_sample(font("<B>h</B> E<SUB>x</SUB>", colour=INK), "type demanded"))
    if tally.found:
        entries.append(_sample(font("<I>h E<SUB>x</SUB></I>", colour=FAINT), "type found"))
    if tally.partial:
        entries.append(_sample(font("━━", colour=PARTIAL), "partial values"))
    if tally.heat:
        cells = "".join(f'<TD BGCOLOR="{heat_colour(i / 4)}" WIDTH="7" HEIGHT="9"></TD>' for i in range(5))
        entries.append(_sample(f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0"><TR>{cells}</TR></TABLE>', "share"))
    cells = [entries[i : i + _COLUMNS] for i in range(0, len(entries), _COLUMNS)]
    rows = "".join(f"<TR>{''.join(row)}</TR>" for row in cells)
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="3" CELLPADDING="1">{rows}</TABLE>'


def _entry(look: Look, tally: Tally) -> str:
    if look.name not in tally.received:
        return look.name
    count = tally.looks[look.name]
    times = f"{count} × " if count > 1 else ""
    return f"{times}{look.name}, {bytes_text(tally.received[look.name])} per chip"


def _swatch(look: Look, text: str) -> str:
    box = (
        f'<TABLE BORDER="1" COLOR="{look.line}" BGCOLOR="{look.fill}" STYLE="ROUNDED" CELLBORDER="0" CELLPADDING="0">'
        '<TR><TD FIXEDSIZE="TRUE" WIDTH="16" HEIGHT="8"></TD></TR></TABLE>'
    )
    return _sample(box, text)


def _sample(sample: str, text: str) -> str:
    label = font(escaped(text), size=9, colour=LINE)
    return f'<TD>{sample}</TD><TD ALIGN="LEFT">{label}&nbsp;&nbsp;</TD>'
