"""The layout problem: values and uses as variables, and what relates them, before anything is chosen.

Every operation is a table of its strategies, every value a tree of movements from the layout in which it is made
to those in which it is used. `cost.choosing.problem_builder` makes the problem of a program, `cost.choosing.placement`
solves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.layout_codes import Codes, StateNumbering
from shardwright.ir.digits import Order
from shardwright.ir.program import Let, Loop, Program
from shardwright.ir.types import ON_DEVICE, DimSplits, Placement, Shape, ValueType
from shardwright.ir.walk import Position

if TYPE_CHECKING:
    from shardwright.cost.choosing.layout_solution import CostTables
    from shardwright.cost.choosing.program_problems import ProgramProblems
    from shardwright.cost.resharding.planner import ReshardingPlan

Location = tuple[str, Position]
"""The function and the position of a statement in it; a function itself, or its body, has position ()."""

UseKey = tuple[Location, int]
"""The statement, or the function that returns, and the number of the operand within it."""


@dataclass(eq=False)
class Group:
    """Values that must be able to take the same layouts, with the set of them."""

    shape: Shape
    found: list[Codes] = field(default_factory=list[Codes])
    codes: Codes = field(default_factory=lambda: np.zeros(0, np.int64))
    parent: Group | None = None

    def root(self) -> Group:
        group = self
        while group.parent is not None:
            group = group.parent
        return group

    def join(self, other: Group) -> None:
        a, b = self.root(), other.root()
        if a is not b:
            a.found.extend(b.found)
            b.parent = a

    def index(self, code: int) -> int:
        return int(np.searchsorted(self.root().codes, code))


@dataclass(eq=False)
class ValueNode:
    """A value at one place: as an operation makes it (`made`), and as it is at home in its scope (`home`).

    The two differ only where the author demands a type. `loops` are those around its scope.
    """

    func: str | None
    name: str
    type: ValueType
    group: Group
    weight: float
    loops: tuple[Loop, ...]
    body: Location
    """The loop in whose body it is, or the function."""
    home: int = -1
    made: int = -1
    uses: list[tuple[UseKey, int, bool]] = field(default_factory=list[tuple[UseKey, int, bool]])

    @cached_property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def placement(self) -> Placement:
        return self.type.placement or ON_DEVICE

    @property
    def relaid(self) -> bool:
        """Tells whether a movement is between copies: of a value away from the device, which is fetched and stored."""
        return self.placement != ON_DEVICE and not self.type.in_flight


@dataclass(eq=False)
class StrategyTable:
    """An operation's strategies before layouts are numbered: codes per slot."""

    nodes: list[ValueNode]
    variables: list[int]
    codes: list[Codes]
    statement: Let | None = None
    """The operation's; None where a written type restricts a value."""
    operands: tuple[int, ...] = ()
    """For each operand of the statement the number of its slot, -1 for numbers."""
    at: Location = ("", ())
    """Where the statement stands."""


@dataclass
class Equal:
    """Variables, of values in joined groups, that take one layout."""

    node: ValueNode
    variables: list[int]


@dataclass
class MadeTree:
    """From where the operation leaves a value to the type that is demanded of it."""

    node: ValueNode


@dataclass
class UsesTree:
    """From a value's home to its uses."""

    node: ValueNode


@dataclass
class LoopSlice:
    """A loop's slice of a captured value lies as the value does."""

    view: ValueNode
    outer: int


@dataclass
class NotPartial:
    """A value at an edge of the program, of which no type demands that it be partial."""

    node: ValueNode
    variable: int

    @property
    def variables(self) -> list[int]:
        return [self.variable]


Entry = StrategyTable | Equal | NotPartial | MadeTree | UsesTree | LoopSlice


@dataclass(frozen=True)
class PlacementOptions:
    """The options of placement: what is minimised: bytes received per chip, then communicating steps, then work done
    more than once."""

    excluded: frozenset[tuple[str | None, str, str]] = frozenset()
    """(function, value, layout) that may not be chosen, for asking what the next best would cost."""
    barred_reshapes: frozenset[tuple[str, str, DimSplits | None]] = frozenset()
    """(function, result, splits) of renames, splits and merges whose digits conflict: their own dimensions may not be
    split in this way before and after them; None means that they leave these dimensions whole."""
    calls: Mapping[str, float] = field(default_factory=dict[str, float])
    """How often functions are called; once where they are not named."""
    orders: Mapping[str, Order] = field(default_factory=dict[str, Order])
    """The first digits of dimensions, under which strided layouts at the edges cost what `edge-blocks` would move, and
    nothing along a dimension that is not named."""
    moves: tuple[tuple[ReshardingPlan, ...], ...] = ()
    """Movements that do not cost what they cost alone: of each, its plans under all orders that begin like `orders`. It
    costs what the cheapest of them does."""
    is_limited: bool = False
    """Tells whether memory may be short: then values that nothing reads may lie split, too."""
    edges_apart: bool = False
    """Tells whether an edge costs as if its movements served nothing else: what is found so is no bound."""

    @property
    def of_problem(self) -> object:
        """The options that decide what may be chosen, and how often it counts: all but what orders cost."""
        return self.excluded, self.barred_reshapes, frozenset(self.calls.items()), self.is_limited


@dataclass(frozen=True)
class Within:
    """A part of a problem's choices: `together` are axes (by position) that do the same to every value; all axes but
    those of `free` do what `states` says ([variables, axes], numbers of `StateNumbering`), where it is given."""

    together: tuple[tuple[int, ...], ...] = ()
    free: frozenset[int] = frozenset()
    states: NDArray[np.int64] | None = None

    @property
    def whole(self) -> bool:
        """Tells whether each axis chooses for itself."""
        return self.states is None and not self.together

    @property
    def key(self) -> object:
        """A key to look the part up by."""
        return self.key_of(slice(None))

    def key_of(self, variables: Sequence[int] | slice) -> object:
        """The key of these variables alone."""
        states = None if self.states is None else self.states[variables].tobytes()
        return self.together, self.free, states

    def state(self, variable: int, axis: int) -> int | None:
        """The state that an axis has to give to a variable; None where it may choose."""
        return None if self.states is None or axis in self.free else int(self.states[variable, axis])


@dataclass(eq=False)
class LayoutProblem:
    """Everything that is to be chosen for a program, and all that constrains it.

    `variables[v]` is the value whose layout variable v is; `entries` stand in the order of the program, for each
    becomes a factor. `step_worth` is the elements of work that a communicating step is worth in ties.
    """

    problems: ProgramProblems
    """All of its program."""
    options: PlacementOptions
    coding: StateNumbering
    step_worth: float
    within: Within
    nodes: list[ValueNode] = field(default_factory=list[ValueNode])
    defined: dict[tuple[Location, str], ValueNode] = field(default_factory=dict[tuple[Location, str], ValueNode])
    """Values by the statement (or function) that defines them and their name."""
    variables: list[ValueNode] = field(default_factory=list[ValueNode])
    entries: list[Entry] = field(default_factory=list[Entry])
    by_use: dict[UseKey, tuple[ValueNode, int]] = field(default_factory=dict[UseKey, tuple[ValueNode, int]])
    priced: dict[object, CostTables] = field(default_factory=dict[object, "CostTables"])
    """The same in costs, by what prices them."""

    @property
    def program(self) -> Program:
        return self.problems.program
