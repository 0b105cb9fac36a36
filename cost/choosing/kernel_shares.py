"""The bytes that the statements of a program read and write in their kernels, as shares of their operands and results.

Which statements run as one kernel does not depend on layouts (`cost.kernels.fusion`). So the kernels of a program are
found once, and what each statement adds to its kernel follows from the layouts of its own operands and results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.cost.choosing.layout_problem import Location
from shardwright.cost.kernels.fusion import Charge, Fusion, windows_of
from shardwright.ir.program import Let, Loop, Program, Scope, Statement

Named = tuple[Location, str]
"""A value by the body that it is in, and its name: bodies of two loops may use one name."""


@dataclass(frozen=True)
class Structure:
    """The kernels of a program: of `cost.kernels.fusion.Fusion` what statements add, by where they stand, and what
    movements of values do, by body and name. `within` has for each statement those whose kernels it is computed in;
    itself, where its result goes to memory. `windows` has those of attention, where they are a known operand."""

    charges: dict[Location, Charge] = field(default_factory=dict[Location, Charge])
    parted: dict[Named, Charge] = field(default_factory=dict[Named, Charge])
    after: dict[Named, Charge] = field(default_factory=dict[Named, Charge])
    moved: set[Named] = field(default_factory=set[Named])
    slices: set[Named] = field(default_factory=set[Named])
    within: dict[Location, tuple[Location, ...]] = field(default_factory=dict[Location, tuple[Location, ...]])
    windows: dict[Location, tuple[int, ...]] = field(default_factory=dict[Location, tuple[int, ...]])

    def add(
        self,
        program: Program,
        body: Sequence[Statement],
        scope: Scope,
        returned: Sequence[str],
        of: Location,
        outside: Mapping[str, Location],
    ) -> None:
        """Adds the kernels of a body that stands there, and those of the loops in it; `outside` has the bodies of the
        values that it has from without."""
        func, position = of
        fusion = Fusion.of(program, body, scope, returned)
        places = [(func, (*position, number)) for number in range(len(body))]
        at = {value.name: place for place, s in zip(places, body, strict=True) for value in s.results}
        owner = {**outside, **dict.fromkeys(at, of)}

        def named(name: str) -> Named:
            return owner.get(name, ("", ())), name

        self.charges.update((at[name], charge) for name, charge in fusion.charges.items())
        self.parted.update((named(name), charge) for name, charge in fusion.parted.items())
        self.after.update((named(name), charge) for name, charge in fusion.after.items())
        self.moved.update(map(named, fusion.moved))
        self.slices.update(map(named, fusion.slices))
        for name, roots in fusion.within.items():
            self.within[at[name]] = tuple(at[root] for root in roots)
        visible = dict(outside)
        for place, statement in zip(places, body, strict=True):
            if isinstance(statement, Let) and (windows := windows_of(statement, scope)):
                self.windows[place] = windows
            if isinstance(statement, Loop):
                carried = {carry.value.name: place for carry in statement.carries}
                within = {**visible, **carried}
                self.add(program, statement.body, scope.inside(statement), statement.following, place, within)
            visible.update((value.name, of) for value in statement.results)


def structure_of(program: Program) -> Structure:
    """The kernels of a surface program without norms and softmax (`decompose`)."""
    made = Structure()
    for func in program.funcs:
        top = (func.name, ())
        given = {value.name: top for value in func.params}
        made.add(program, func.body, Scope.of(program, func), func.returns, top, given)
    return made
