"""`place`: every layout that the author left open is chosen, all of them together."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from shardwright.cost.choosing.edge_costs import orders_from
from shardwright.cost.choosing.layout_problem import Location, PlacementOptions, UseKey, ValueNode
from shardwright.cost.choosing.layout_solution import LayoutSolution
from shardwright.cost.choosing.objective import SOLVERS, Objective, chip_for
from shardwright.cost.choosing.problem_builder import restricts
from shardwright.cost.choosing.work_limit import OutOfWorkError
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault, nearest
from shardwright.ir.digit_orders import splitting_axes
from shardwright.ir.digits import Order, radix
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Number, Operand
from shardwright.ir.ops import Alias
from shardwright.ir.program import DimInfo, Func, Let, Loop, Marking, Program, SetState, Statement, Value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import DimSplits, OpenType, TensorType
from shardwright.ir.verification.verifier import Level, has_holes, verify
from shardwright.ir.walk import values_in
from shardwright.passes.base import Pass, Proof
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder, DigitConflictError, require_room

OBJECTIVES = ("time", "bytes")

EDGES = ("global", "digits")

SECONDS = 60.0
"""For choosing layouts, at most; most take far less."""

ROOMY_TRIES = 24
"""How often layouts are chosen anew, each time with one more dimension left whole, or one more split barred, for all
digits to have room."""


@dataclass(frozen=True)
class Place(Pass):
    """Fills the holes so that the predicted time is least, on a chip under its memory.

        x: bf16 BLE_xyz, w_in: bf16 E_xF_yz
        h: bf16 BLF? = x @[E] w_in

    becomes

        x_gathered :~ bf16 BLE_x = x
        h :~ bf16 BLF_yz(partialsum-x) = x_gathered @[E] w_in

    The chip is `chip`, else the one that the program names, else the reference chip (`cost.choosing.objective`);
    functions count once each, or as often as `calls=prefill:1+decode:256` says. With `objective=bytes` the fewest bytes
    are received per chip, then the fewest collectives run. The choice is exact (`passes.compiling.choosing`,
    `cost.choosing.placement`); where that is beyond the limit of work one axis after the other chooses, and a bound is
    found (`cost.choosing.limited_placement`). With `solver=ortools` HiGHS alone has the same problem, for a minute at
    most. With `proof=false` the first layouts by time have to do, those that a few axes at a time find. What
    `edge-blocks` will move counts (`passes.compiling.order_branching`), but with `edges=digits`. A change of
    layout is left as a statement that gives a value a second name with another type; `insert-moves` writes the
    collectives for it. A layout that several uses need is named once, before the first of them; inside a loop only
    where the value differs from trip to trip. In an explicit program nothing is left to choose, and it stays as it is,
    once its chip and calls are known to be there.
    """

    name: ClassVar[str] = "place"
    objective: str = "time"
    chip: str = ""
    calls: str = ""
    solver: str = "auto"
    proof: bool = True
    edges: str = "global"

    @classmethod
    def of(
        cls,
        objective: str = "time",
        chip: str = "",
        calls: Mapping[str, float] | None = None,
        solver: str = "auto",
    ) -> Place:
        """The pass with these options."""
        counts = "+".join(f"{func}:{count:.15g}".replace("+", "") for func, count in (calls or {}).items())
        return cls(objective, chip, counts, solver)

    def run(self, program: Program) -> Program:
        return self.run_with_proof(program)[0]

    def run_with_proof(self, program: Program) -> tuple[Program, Proof | None]:
        for name, known in (("objective", OBJECTIVES), ("solver", SOLVERS), ("edges", EDGES)):
            if (given := getattr(self, name)) not in known:
                raise fault("bad-option", f"place: {name} is {' or '.join(known)}, not {given}", NOWHERE)
        self.wanted(program)
        if _is_explicit(program):
            return program, None
        chosen = self.chosen(program)
        return chosen.placed, chosen.proof

    def chosen(self, program: Program, excluded: Excluded = frozenset(), seconds: float = SECONDS) -> Choice:
        """The layouts of a program after `decompose`, and the proof; `excluded` are not among them."""
        options = PlacementOptions(excluded=excluded, calls=self.calls_in(program))
        if self.objective == "bytes":
            from shardwright.passes.compiling.choosing_by_bytes import choose_by_bytes

            return choose_by_bytes(program, options, seconds, alone=self.solver == "ortools", edges=self.edges)
        from shardwright.passes.compiling.choosing import choose as choose_by_time

        return choose_by_time(program, self.wanted(program), seconds, options, proof=self.proof, edges=self.edges)

    def wanted(self, program: Program) -> Objective:
        """The chip and the calls. Raises where there is no such chip or function."""
        chip = chip_for(program, self.chip)
        return Objective(chip, chip.constants, self.calls_in(program), self.solver)

    def calls_in(self, program: Program) -> dict[str, float]:
        """How often each function is called, of those that are named."""
        made: dict[str, float] = {}
        for item in filter(None, self.calls.split("+")):
            name, _, count = item.partition(":")
            known = [func.name for func in program.funcs]
            if name not in known:
                near = nearest(name, known)
                hint = near or f"the functions are {', '.join(known)}"
                raise fault("unknown-function", f"calls: there is no function {name}", NOWHERE, hint)
            try:
                made[name] = float(count)
            except ValueError:
                made[name] = 0.0
            if not 0 < made[name] < 1e12:
                said = f"calls: {count!r} is not how often {name} is called"
                raise fault("bad-option", said, NOWHERE, "give a number above 0")
        return made


Excluded = frozenset[tuple[str | None, str, str]]
"""(function, value, layout) that may not be chosen."""


class Choice(Protocol):
    """A program with its layouts chosen, how they were found, and how far they are from the best at most."""

    @property
    def placed(self) -> Program: ...

    @property
    def placement(self) -> LayoutSolution: ...

    @property
    def proof(self) -> Proof: ...


def _is_explicit(program: Program) -> bool:
    """Tells whether every type is written and every movement a statement."""
    if has_holes(program):
        return False
    try:
        verify(program, Level.EXPLICIT)
    except DiagnosticError:
        return False
    return True


def place(
    program: Program,
    options: PlacementOptions,
    choose: Callable[[PlacementOptions], LayoutSolution],
    total: Callable[[Program], float] | None = None,
) -> tuple[Program, LayoutSolution]:
    """The program with its layouts filled in by `choose`, and how they were found.

    Where renames, splits and merges could not all keep indices on their chips under one order of digits, each of
    them in turn is barred from the splits it has, or has to leave its dimensions whole, and the cheapest of these
    programs is taken: first among those with room for all digits, then, where few tries find none, among all. What was
    chosen first may agree without that room, and cost more than was counted; it is taken where its `total` is less.
    """
    first = choose(options)
    outcomes: dict[Barred, Outcome] = {}

    def outcome(barred: Barred) -> Outcome:
        if barred not in outcomes:
            try:
                outcomes[barred] = choose(replace(options, barred_reshapes=barred))
            except (OutOfWorkError, DiagnosticError) as error:
                outcomes[barred] = error.with_traceback(None)
        return outcomes[barred]

    room, ties = require_room, ChooseDigitOrder(tied=True).run
    for orders, tries, whole in ((room, ROOMY_TRIES, False), (room, ROOMY_TRIES, True), (ties, None, True)):
        if options.orders and not whole:
            continue  # under given orders there are many choices to make, each with less time
        found = _without_conflict(program, options.barred_reshapes, outcome, first, orders, tries, whole=whole)
        if not isinstance(found, DiagnosticError):
            written, placement = found
            if placement is first:
                return written, first
            in_blocks = _written(program, first)
            if total is not None and _agrees(in_blocks) and total(in_blocks) < total(written):
                return in_blocks, first
            return written, replace(placement, relaxed=first)
    raise found


def _agrees(written: Program) -> bool:
    """Tells whether one order of digits lets all renames, splits and merges keep every index on its chip."""
    try:
        ChooseDigitOrder(tied=True).run(written)
    except DigitConflictError:
        return False
    return True


Barred = frozenset[tuple[str, str, DimSplits | None]]
"""(function, value, splits) as in `PlacementOptions.barred_reshapes`."""

Outcome = LayoutSolution | OutOfWorkError | DiagnosticError
"""The layouts beside these, or why there are none."""


def _without_conflict(
    program: Program,
    barred: Barred,
    outcome: Callable[[Barred], Outcome],
    first: LayoutSolution,
    orders: Callable[[Program], object],
    tries: int | None,
    *,
    whole: bool,
) -> tuple[Program, LayoutSolution] | DiagnosticError:
    """The cheapest program for which `orders` raises no conflict, or the conflict; after `tries` of them, if given.
    Statements that conflict leave their dimensions `whole`, or are barred from the splits they have."""
    open_ones = [(first.solution.cost, 0, barred, first)]
    seen = {barred}
    conflict: DigitConflictError | None = None
    late: OutOfWorkError | None = None
    # Barring more never costs less: the first without a conflict is the cheapest.
    while open_ones and (tries is None or len(seen) <= tries):
        _, _, barred, placement = heapq.heappop(open_ones)
        written = _written(program, placement)
        try:
            orders(written)
        except DigitConflictError as found:
            conflict = conflict or found
            for func, result, splits in dict.fromkeys(found.statements):
                origin = _origin(program, written, func, result)
                if origin is None or (tried := barred | {(func, origin, None if whole else splits)}) in seen:
                    continue
                seen.add(tried)
                following = outcome(tried)
                if isinstance(following, OutOfWorkError):
                    late = following
                elif not isinstance(following, DiagnosticError):
                    heapq.heappush(open_ones, (following.solution.cost, -len(seen), tried, following))
            continue
        return written, placement
    if late is not None:
        raise late
    assert conflict is not None
    return conflict


def _origin(program: Program, written: Program, func: str, result: str) -> str | None:
    """The value before placement that a value after it is, or was made from."""
    before = {value.name for value in values_in(program.func(func).body)}
    value = next(value for value in values_in(written.func(func).body) if value.name == result)
    return next((name for name in (value.name, *value.origin) if name in before), None)


def _written(program: Program, placement: LayoutSolution) -> Program:
    weights = tuple(_filled(value, placement) for value in program.weights)
    state = tuple(_filled(value, placement) for value in program.state)
    funcs = tuple(_Writer(program, func, placement).rewritten() for func in program.funcs)
    own = {name for func in program.funcs for name, _ in func.overrides}
    orders = {name: order for name, order in placement.orders.items() if name not in own}
    written = replace(program, weights=weights, state=state, funcs=funcs)
    used = splitting_axes(written) if orders else {}
    dims = (_ordered(dim, program.mesh, orders.get(dim.name), used.get((dim.name, None), ())) for dim in program.dims)
    return replace(written, dims=tuple(dims))


def _ordered(dim: DimInfo, mesh: Mesh, first: Order | None, used: Iterable[str]) -> DimInfo:
    """A dimension with the digits under which layouts were chosen, where movements along it depend on them: without
    room for all, and but one order that begins so. Axes of one chip that split it come last."""
    if dim.order is not None or first is None or not dim.size % mesh.n_chips:
        return dim
    order, *others = orders_from(dim, first, mesh)
    fitting = tuple(digit for digit in order if dim.size % radix(digit, mesh) == 0)
    return dim if others else replace(dim, order=(*fitting, *(axis for axis in used if axis not in fitting)))


def _filled(value: Value, placement: LayoutSolution) -> Value:
    """A weight or a state value with its holes filled."""
    if isinstance(value.type, TensorType):
        return value
    node = next(node for node in placement.nodes if node.func is None and node.name == value.name)
    return replace(value, type=placement.kinds[node.home])


class _Writer:
    """Writes one function down with the types that were chosen."""

    def __init__(self, program: Program, func: Func, placement: LayoutSolution) -> None:
        self.func = func
        self.placement = placement
        self.writer = Rewriter.of(program, func)
        self.blocks: list[list[Statement]] = []
        self.copies: dict[tuple[ValueNode, TensorType], str] = {}

    def rewritten(self) -> Func:
        func = self.func
        top: Location = func.name, ()
        params = tuple(
            replace(value, type=self.placement.kinds[self.placement.defined[top, value.name].home])
            for value in func.params
        )
        self.blocks.append([])
        self.block(func.body, top)
        returns = tuple(self.operand(name, (top, i)) for i, name in enumerate(func.returns))
        results = tuple(self.placement.kinds[self.placement.by_use[top, i][1]] for i in range(len(returns)))
        return replace(func, params=params, body=tuple(self.blocks.pop()), returns=returns, results=results)

    def block(self, body: tuple[Statement, ...], of: Location) -> None:
        for number, statement in enumerate(body):
            at = of[0], (*of[1], number)
            match statement:
                case Let():
                    self.let(statement, at)
                case SetState():
                    operand = self.operand(statement.operand, (at, 0))
                    self.blocks[-1].append(replace(statement, operand=operand))
                case Loop():
                    self.loop(statement, at)
                case _:
                    self.blocks[-1].append(statement)

    def let(self, statement: Let, at: Location) -> None:
        operands: list[Operand] = []
        for i, operand in enumerate(statement.operands):
            operands.append(operand if isinstance(operand, Number) else self.operand(operand, (at, i)))
        results: list[Value] = []
        moved: list[Statement] = []
        for value in statement.results:
            node = self.placement.defined[at, value.name]
            home, made = self.placement.kinds[node.home], self.placement.kinds[node.made]
            chosen = self.chosen(value, at)
            if home == made:
                results.append(chosen)
                continue
            raw = self.writer.like(value, f"{value.name}_{'partial' if made.partial else 'local'}", made, Marking.FOUND)
            results.append(raw)
            moved.append(Let((chosen,), Alias(), (raw.name,), statement.span))
        self.blocks[-1].append(replace(statement, results=tuple(results), operands=tuple(operands)))
        self.blocks[-1].extend(moved)

    def loop(self, statement: Loop, at: Location) -> None:
        n = len(statement.carries)
        initial = [self.operand(carry.initial, (at, i)) for i, carry in enumerate(statement.carries)]
        carries = tuple(
            replace(carry, initial=name, value=self.chosen(carry.value, at))
            for carry, name in zip(statement.carries, initial, strict=True)
        )
        self.blocks.append([])
        self.block(statement.body, at)
        following = tuple(self.operand(name, (at, n + i)) for i, name in enumerate(statement.following))
        body = tuple(self.blocks.pop())
        results = tuple(self.chosen(value, at) for value in statement.results)
        self.blocks[-1].append(replace(statement, carries=carries, body=body, following=following, results=results))

    def chosen(self, value: Value, at: Location) -> Value:
        node = self.placement.defined[at, value.name]
        kind = replace(self.placement.kinds[node.home], in_flight=value.type.in_flight)
        if not isinstance(value.type, OpenType):
            return replace(value, type=kind)
        return replace(value, type=kind, marking=Marking.DEMANDED if restricts(value.type) else Marking.FOUND)

    # ------------------------------------------------------------ uses

    def operand(self, name: str, key: UseKey) -> str:
        """The name of the value in the layout that this use takes, written down before it if it is not yet."""
        node, variable = self.placement.by_use[key]
        return self.copy(node, name, self.placement.kinds[variable])

    def copy(self, node: ValueNode, name: str, kind: TensorType) -> str:
        if kind == self.placement.kinds[node.home]:
            return name
        known = self.copies.get((node, kind))
        if known is not None:
            return known
        parent = next(a for a, b in self.placement.trees[node] if b == kind)
        source = self.copy(node, name, parent)
        value = self.writer.value(f"{name}_{change_word(parent, kind)}", kind, source=name)
        self.blocks[len(node.loops)].append(Let((value,), Alias(), (source,)))
        self.copies[node, kind] = value.name
        return value.name


def change_word(source: TensorType, target: TensorType) -> str:
    """The word that a value is called by after it has gone from one layout to another."""
    if target.partial and set(target.partial_axes) - set(source.partial_axes):
        return "addend"
    if source.partial and source.partial != target.partial:
        return "scattered" if set(source.partial_axes) & {*target.split_axes, *target.partial_axes} else "reduced"
    before, after = set(source.split_axes), set(target.split_axes)
    if before - after:
        return "gathered"
    return "sliced" if after - before else "moved"
