"""Explicit programs by trial: movements written in by hand, kept where the verifier takes them.

A value of a printed program wanders: gathered, sliced, moved between dimensions, made addends, reduced again, over one
axis or several at once. Then it comes home to the type that it had, or stays where it is and what follows follows from
it. None of this changes what the program means.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shardwright import check, load
from shardwright.ir.diagnostics import DiagnosticError, Source

_LET = re.compile(r"^(\s+)([a-z][a-z0-9_]*)( :~ |: )([^=]*) = ([^{]*)$")
_TYPE = re.compile(r"(\w+) ?((?:[A-Z][0-9]*(?:_[a-z0-9]+)?)*)(?:\((partialsum|partialmax)-([a-z0-9]+)\))?$")
_DIM = re.compile(r"([A-Z][0-9]*)(?:_([a-z0-9]+))?")
_AXIS = re.compile(r"[a-z][0-9]*")


@dataclass(frozen=True)
class _Lie:
    """Where a value lies: the dimension that each axis splits, and the axes over which it is partial."""

    dims: tuple[str, ...]
    split: tuple[tuple[str, str], ...]
    partial: tuple[str, ...] = ()
    kind: str = ""
    is_bool: bool = False

    def at(self, axis: str, dim: str | None) -> _Lie:
        rest = tuple((a, d) for a, d in self.split if a != axis)
        return replace(
            self,
            split=rest if dim is None else (*rest, (axis, dim)),
            partial=tuple(a for a in self.partial if a != axis),
        )

    def addends(self, axis: str) -> _Lie:
        return replace(self.at(axis, None), partial=(*self.partial, axis), kind="partialsum")


def moved_by_hand(printed: str, rng: random.Random, mesh: dict[str, int], tries: int) -> Iterator[Any]:
    """Programs that `check --level explicit` takes: one after the other, with more and more movements."""
    lines = printed.splitlines()
    for trial in range(tries):
        places = [n for n, line in enumerate(lines) if _LET.match(line) and "loop[" not in line]
        if not places:
            return
        at = rng.choice(places)
        match = _LET.match(lines[at])
        lie = _lie(match[4]) if match else None
        if not match or lie is None:
            continue
        steps, end = _walk(lie, rng, mesh)
        if rng.random() < 0.7:
            steps += _home(end, lie)
        if not steps:
            continue
        pad, name, _, _, value = match.groups()
        names = [f"{name}_moved{trial}_{n}" for n in range(len(steps))]
        made = [f"{pad}{names[0]} = {value}"]
        made += [f"{pad}{to} = {step}({of})" for of, to, step in zip(names, [*names[1:], name], steps, strict=True)]
        text = [*lines[:at], *made, *lines[at + 1 :]]
        if rng.random() < 0.4:  # whatever follows may follow from it
            text = [_untyped(line, rng) for line in text]
        try:
            program = load(Source("moved.shard", "\n".join(text) + "\n"))
            check(program, explicit=True)
        except DiagnosticError:
            continue
        lines = text
        yield program


def _lie(text: str) -> _Lie | None:
    match = _TYPE.match(text)
    if not match:
        return None
    dims = _DIM.findall(match[2])
    split = tuple((axis, dim) for dim, axes in dims for axis in _AXIS.findall(axes))
    partial = tuple(_AXIS.findall(match[4] or ""))
    return _Lie(tuple(dim for dim, _ in dims), split, partial, match[3] or "", match[1] == "bool")


def _untyped(line: str, rng: random.Random) -> str:
    match = _LET.match(line)
    if not match or match[3] != " :~ " or "loop[" in line or rng.random() < 0.3:
        return line
    return f"{match[1]}{match[2]} = {match[5]}"


def _walk(lie: _Lie, rng: random.Random, mesh: dict[str, int]) -> tuple[list[str], _Lie]:
    steps: list[str] = []
    for _ in range(rng.randint(1, 3)):
        options = _steps(lie, rng, mesh)
        if options:
            text, lie = rng.choice(options)
            steps.append(text)
    return steps, lie


def _steps(lie: _Lie, rng: random.Random, mesh: dict[str, int]) -> list[tuple[str, _Lie]]:
    """The movements that may apply here, with where they lead."""
    options: list[tuple[str, _Lie]] = []
    names = lie.dims
    idle = [axis for axis in mesh if axis not in lie.partial and axis not in dict(lie.split)]
    addable = not lie.is_bool and lie.kind != "partialmax"
    for axis, dim in lie.split:
        options.append((f"all_gather[{axis}]", lie.at(axis, None)))
        options += [(f"all_to_all[{axis}: {dim} -> {to}]", lie.at(axis, to)) for to in names if to != dim]
        if addable:
            options.append((f"as_partial[{axis}]", lie.addends(axis)))
    if len(lie.split) > 1:
        (a, d), (b, e) = rng.sample(lie.split, 2)
        options.append((f"all_gather[{a}{b}]", lie.at(a, None).at(b, None)))
        if d != e:
            options.append((f"all_to_all[{a}: {d} -> {e}, {b}: {e} -> {d}]", lie.at(a, e).at(b, d)))
    for axis in idle:
        options += [(f"slice[{axis} -> {dim}]", lie.at(axis, dim)) for dim in names]
        if addable:
            options.append((f"as_partial[{axis}]", lie.addends(axis)))
    for axis in lie.partial:
        options.append((f"all_reduce[{axis}]", lie.at(axis, None)))
        options += [(f"reduce_scatter[{axis} -> {dim}]", lie.at(axis, dim)) for dim in names]
    if len(lie.partial) > 1:
        a, b = rng.sample(lie.partial, 2)
        options.append((f"all_reduce[{a}{b}]", lie.at(a, None).at(b, None)))
        if len(names) > 1:
            to = rng.sample(names, 2)
            options.append((f"reduce_scatter[{a} -> {to[0]}, {b} -> {to[1]}]", lie.at(a, to[0]).at(b, to[1])))
    return options


def _home(lie: _Lie, home: _Lie) -> list[str]:
    """Movements from here to there, one axis after the other."""
    return [
        *(f"all_reduce[{axis}]" for axis in lie.partial if axis not in home.partial),
        *(f"all_gather[{axis}]" for axis, dim in lie.split if (axis, dim) not in home.split),
        *(f"slice[{axis} -> {dim}]" for axis, dim in home.split if (axis, dim) not in lie.split),
        *(f"as_partial[{axis}]" for axis in home.partial if axis not in lie.partial),
    ]
