"""`reduce-into`: into which dimension of an activation its partial sums are scattered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.cost.choosing.layout_problem import PlacementOptions
from shardwright.cost.choosing.layout_solution import LayoutSolution
from shardwright.cost.choosing.limited_placement import LimitedPlacement
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.program import Func, Loop, Marking, Program, Value
from shardwright.ir.strategies import divides
from shardwright.ir.types import Axes, OpenType, TensorType, ValueType, axis_set
from shardwright.ir.verification.verifier import check_divisibility
from shardwright.ir.walk import map_program_values, values_in
from shardwright.passes.base import Pass
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.transformations.patterns import weights_of

WORDS = ("hidden", "sequence", "batch")
"""What a dimension of an activation can be."""


@dataclass(frozen=True)
class ReduceInto(Pass):
    """Chooses whether reduce-scatters go into a hidden dimension, the sequence or the batch (section 3.5).

        x: BLE_xyz, y: BLE_xyz = h @[F] w_out            # reduce_scatter[yz -> E], w_out: F_yzE_x

    becomes with `reduce-into{dim=sequence}`

        x: BL_yzE_x, y: BL_yzE_x = h @[F] w_out          # reduce_scatter[yz -> L]

    Pope et al. 2022 scatter into the hidden dimension, for looped collectives; Korthikanti et al. 2022 into the
    sequence, where a layernorm then has nothing to communicate. Either moves the same bytes. A layout is changed
    where partial sums become it, and with it every demand of the same layout in the program: the residual stream
    stays one. Norms' scales follow. Layouts that were left open are demanded where the choice would be another.
    A change is kept only if no more bytes are received in all, as `place` counts them, and if sizes divide.

    Hidden dimensions are those of matrices among the weights; of an activation's others the first is its batch, the
    last, of two or more, its sequence. A function's parameters and results may change their layouts by this.
    """

    name: ClassVar[str] = "reduce-into"
    dim: str = "hidden"

    def run(self, program: Program) -> Program:
        if self.dim not in WORDS:
            raise fault("bad-option", f"reduce-into: dim is hidden, sequence or batch, not {self.dim}", NOWHERE)
        current, placement = program, _placed(program)
        tried: set[_Change] = set()
        chosen: set[str] = set()
        while True:
            for change in _changes(current, placement, self.dim):
                if change in tried or change.source.layout_text in chosen:
                    continue
                tried.add(change)
                candidate = change.applied(current)
                try:
                    check_divisibility(candidate)
                    found = _placed(candidate)
                except DiagnosticError:
                    continue
                if found.bytes_received <= placement.bytes_received:
                    current, placement = candidate, found
                    chosen.add(change.target.layout_text)
                    break
            else:
                return current


def _placed(program: Program) -> LayoutSolution:
    """The layouts that `place` would choose: of the program in which norms have become sums."""
    plain = Cleanup().run(Decompose().run(program))
    return LimitedPlacement(plain)(PlacementOptions())


@dataclass(frozen=True)
class _Change:
    """A layout in place of another: wherever that one is demanded, or on one `value` without a demand."""

    source: TensorType
    target: TensorType
    loops: frozenset[str]
    func: str | None = None
    value: str | None = None

    def applied(self, program: Program) -> Program:
        if self.value is not None:
            return _retyped(program, self.demanded)
        return _retyped(program, self.moved)

    def demanded(self, func: Func | None, value: Value | None, kind: ValueType) -> ValueType:
        if func is None or value is None or (func.name, value.name) != (self.func, self.value):
            return kind
        return self.target

    def moved(self, _func: Func | None, _value: Value | None, kind: ValueType) -> ValueType:
        if not isinstance(kind, TensorType) or kind.partial is not None:
            return kind
        if kind.names == self.source.names and kind.splits == self.source.splits:
            return replace(kind, splits=self.target.splits)
        vector = [dim for dim in kind.names if dim not in self.loops]
        if len(vector) == 1 and kind.split(vector[0]) and kind.split(vector[0]) == self.source.split(vector[0]):
            splits = zip(kind.names, kind.splits, strict=True)
            return replace(kind, splits=tuple(self.target.split(n) if n == vector[0] else axes for n, axes in splits))
        return kind


def _changes(program: Program, placement: LayoutSolution, word: str) -> list[_Change]:
    """For each layout that partial sums are scattered into, the one with the scattered axes on the wanted dimension.

    Layouts that are demanded somewhere come first, then those of single values that were left open.
    """
    loops = frozenset(s.dim for func in program.funcs for s, _ in func.walk() if isinstance(s, Loop))
    hidden = {dim for kind in _matrices(program) for dim in kind.names} - loops
    named = {(func.name, value.name): value for func in program.funcs for value in values_in(func.body)}
    demanded = {kind.layout_text for kind in _demands(program)}
    together: list[_Change] = []
    single: list[_Change] = []
    for node in placement.nodes:
        value = named.get((node.func or "", node.name))
        if value is None or node.made < 0:
            continue
        made, home = placement.kinds[node.made], placement.kinds[node.home]
        if made.partial is None:
            continue
        reached = [home] if home != made else [b for a, b in placement.trees.get(node, []) if a == home]
        for kind in reached:
            scattered = axis_set(set(made.partial.axes) & set(kind.split_axes))
            target = _target(kind, scattered, hidden, word)
            if target is None or kind.partial is not None or not divides(target, program.mesh):
                continue
            if kind.layout_text in demanded:
                together.append(_Change(kind, target, loops))
            if isinstance(value.type, OpenType):
                single.append(_Change(kind, target, loops, node.func, node.name))
    return list(dict.fromkeys((*together, *single)))


def _demands(program: Program) -> Iterator[TensorType]:
    """The types without holes of values and results."""
    for func in program.funcs:
        for kind in (*(value.type for value in (*func.params, *values_in(func.body))), *func.results):
            if isinstance(kind, TensorType):
                yield kind


def _matrices(program: Program) -> Iterator[TensorType]:
    """Weights of two dimensions or more; where none are declared, operands that only parameters can be."""
    for func in program.funcs:
        for value in weights_of(program, func).values():
            if isinstance(value.type, TensorType):
                yield value.type


def _target(kind: TensorType, scattered: Axes, hidden: set[str], word: str) -> TensorType | None:
    """The layout with the scattered axes on the wanted dimension; None if they are there, or there is none such."""
    rows = [dim for dim in kind.names if dim not in hidden]
    columns = [dim for dim in kind.names if dim in hidden]
    match word:
        case "hidden":
            wanted = columns[:1]
        case "batch":
            wanted = rows[:1]
        case _:
            wanted = rows[1:][-1:]
    if not wanted or not scattered or not columns:
        return None
    splits = tuple(
        axis_set({*axes, *scattered}) if dim == wanted[0] else axis_set(set(axes) - set(scattered))
        for dim, axes in zip(kind.names, kind.splits, strict=True)
    )
    return None if splits == kind.splits else replace(kind, splits=splits)


Retype = Callable[[Func | None, Value | None, ValueType], ValueType]


def _retyped(program: Program, retype: Retype) -> Program:
    """The program with every type passed through `retype`, which gets no value for a function's result."""

    def changed(func: Func | None, of: Value) -> Value:
        kind = retype(func, of, of.type)
        if kind == of.type:
            return of
        marking = of.marking if isinstance(of.type, TensorType) else Marking.FOUND
        return replace(of, type=kind, marking=marking)

    return map_program_values(program, changed, lambda func, kind: retype(func, None, kind))
