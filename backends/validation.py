"""Validation: a compiled program is run in the simulator, at reduced sizes, against its unsharded meaning."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import CompilerFault, DiagnosticError
from shardwright.ir.digit_orders import orders_in, typed_values
from shardwright.ir.digits import order_size
from shardwright.ir.elaborate import elaborate
from shardwright.ir.ops import Iota, Merge, Rename, Roll, Rotary, Split, Take, Topk, Update
from shardwright.ir.program import Func, Let, Loop, Program
from shardwright.ir.types import Shape
from shardwright.ir.unparse import unparse

if TYPE_CHECKING:
    from shardwright.backends.number_formats import Array
    from shardwright.backends.random_inputs import Inputs

TOLERANCE = 1e-9
"""Relative to the largest element; both sides compute in float64, in different orders of summation."""

_ROUNDINGS = 64
"""How many times farther than nudged inputs move the reference another order of summation may."""

_LARGEST = 20_000_000
"""Elements of the largest program that is run at its own sizes where they cannot be reduced."""


@dataclass(frozen=True)
class Validation:
    """What was run, and how far it came out from the unsharded meaning (relative to the largest element)."""

    sizes: Mapping[str, int]
    functions: tuple[str, ...]
    largest_difference: float
    chips: int
    seconds: float
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return f"not validated: {self.skipped}"
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        return (
            f"validated on {self.chips} simulated chips at {sizes}: largest relative difference"
            f" {self.largest_difference:.1e} from the unsharded program"
        )


class ValidationError(CompilerFault):
    """The compiled program computes something else than the program that it was compiled from."""


def validate(surface: Program, compiled: Program, seed: int = 0) -> Validation:
    """Runs every function of both on the same random inputs. Raises `ValidationError` where results or state differ."""
    began = time.perf_counter()
    sizes = reduced_sizes(compiled)
    try:
        small, small_compiled = _resized(surface, sizes), _resized(compiled, sizes)
    except DiagnosticError as error:
        total = sum(use.type.shape.elements for func in surface.funcs for use in typed_values(surface, func))
        if total > _LARGEST:
            return Validation({}, (), 0.0, surface.mesh.n_chips, 0.0, f"its sizes cannot be reduced ({error})")
        small, small_compiled = surface, compiled
        sizes = {dim.name: dim.size for dim in surface.dims}
    worst = max((compare(small, small_compiled, func, seed) for func in small.funcs), default=0.0)
    seconds = time.perf_counter() - began
    return Validation(sizes, tuple(f.name for f in small.funcs), worst, surface.mesh.n_chips, seconds)


def _resized(program: Program, sizes: Mapping[str, int]) -> Program:
    declared = {dim.name: sizes[dim.name] for dim in program.dims if dim.name in sizes and dim.expression is None}
    return elaborate(unparse(program), dims=declared)


def compare(surface: Program, compiled: Program, func: Func, seed: int = 0) -> float:
    """Runs one function of both on the same random inputs.

    Returns the largest difference of results and state, relative to the largest element. Raises `ValidationError`
    where it is more than rounding in float64.
    """
    import numpy as np

    from shardwright.backends.random_inputs import random_inputs
    from shardwright.backends.reference import evaluate
    from shardwright.backends.simulator import simulate

    inputs = random_inputs(surface, func, seed)

    def reference(given: Inputs) -> dict[str, Array]:
        results, state = evaluate(surface, func.name, given.args, given.weights, given.state)
        named = {f"result {i}": np.asarray(result, np.float64) for i, result in enumerate(results)}
        return named | {f"state {name}": np.asarray(array, np.float64) for name, array in state.items()}

    simulated = simulate(compiled, func.name, inputs.args, inputs.weights, inputs.state)
    found = {f"result {i}": result for i, result in enumerate(simulated.results)}
    found |= {f"state {name}": array for name, array in simulated.state.items()}
    wanted = reference(inputs)
    nudged: dict[str, Array] = {}
    worst = 0.0
    for what, a in wanted.items():
        b = np.asarray(found[what], np.float64)
        difference = _largest(a, b)
        relative = difference / max(float(np.abs(a[np.isfinite(a)]).max(initial=0.0)), 1e-30)
        if relative > TOLERANCE:
            # A sum that cancels is rounding and nothing else, and then rounding of the inputs moves it as far.
            nudged = nudged or reference(_nudged(inputs, surface, func, seed))
            moved = _largest(a, nudged[what])
            relative = (
                min(relative, TOLERANCE * difference / (_ROUNDINGS * moved)) if 0 < moved < math.inf else relative
            )
        if not relative <= TOLERANCE:
            raise ValidationError(
                f"{func.name}: {what} differs from the unsharded program by {relative:.3e} of its largest element;"
                " this is a fault of the compiler, please report the program"
            )
        worst = max(worst, relative)
    return worst


def _largest(a: Array, b: Array) -> float:
    """The largest difference; infinite where one is finite, or a number, and the other not."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0))


def _nudged(inputs: Inputs, program: Program, func: Func, seed: int) -> Inputs:
    """The inputs with floats moved by a unit in the last place of float64, up or down."""
    import numpy as np

    values = (*program.weights, *program.state, *func.params)
    floats = {value.name for value in values if value.type.dtype.is_float}
    rng = np.random.default_rng(seed)

    def nudge(arrays: dict[str, Array]) -> dict[str, Array]:
        return {
            name: a.astype(np.float64) * (1 + np.finfo(np.float64).eps * rng.choice([-1.0, 1.0], a.shape))
            if name in floats
            else a
            for name, a in arrays.items()
        }

    return replace(inputs, args=nudge(inputs.args), weights=nudge(inputs.weights), state=nudge(inputs.state))


# ---------------------------------------------------------------- reduced sizes


def reduced_sizes(program: Program) -> dict[str, int]:
    """Sizes as small as the digits allow, unlike where they may be, with the same divisibility.

    A dimension whose size stands in a range (`take[E 0:32]`) or follows from others keeps its size or its
    expression; renamed dimensions of one size stay equal; a cache keeps room for what is written twice.
    """
    groups = _equal_sizes(program)
    digits = {dim.name: 1 for dim in program.dims}
    for func in program.funcs:
        overridden = dict(func.overrides)
        for name, order in orders_in(program, func).items():
            if name not in overridden:
                digits[name] = math.lcm(digits[name], order_size(order, program.mesh))
    pinned, even = _pinned(program)
    sizes: dict[str, int] = {}
    for i, dim in enumerate(program.dims):
        if dim.expression is not None:
            continue
        members = groups[dim.name]
        unit = math.lcm(*(digits[name] for name in members), 2 if even & members else 1)
        known = next((sizes[name] for name in members if name in sizes), None)
        if pinned & members or dim.size % unit:
            sizes[dim.name] = dim.size
        elif known is not None:
            sizes[dim.name] = known
        else:
            rest = dim.size // unit
            wish = (2, 3)[i % 2]
            sizes[dim.name] = unit * (
                wish if rest % wish == 0 else min(rest, wish) if unit == 1 else 1 if rest == 1 else wish
            )
            sizes[dim.name] = min(sizes[dim.name], dim.size)
    _make_room(program, sizes, digits)
    _match_parts(program, sizes, groups, pinned | {name for name, size in digits.items() if size > 1})
    return sizes


def _match_parts(program: Program, sizes: dict[str, int], groups: Mapping[str, set[str]], kept: set[str]) -> None:
    """Where a dimension of its own size is split into others of their own, the sizes come to fit again.

    Those in `kept` stay; of the other parts the last takes up the difference. Loops round a ring of chips have such.
    """
    cuts: dict[str, set[tuple[str, ...]]] = {}
    for func in program.funcs:
        for statement, _ in func.walk():
            match statement:
                case Let(operation=Split(source=whole, parts=parts)) | Let(operation=Merge(target=whole, parts=parts)):
                    if all(name in sizes for name in (whole, *parts)):
                        cuts.setdefault(whole, set()).add(parts)
                case _:
                    pass

    def least(dim: str) -> int:
        """The least multiple of the size so far that its parts can make up."""
        return math.lcm(sizes[dim], *(math.prod(map(least, parts)) for parts in cuts.get(dim, ())))

    def settle(dim: str, size: int) -> None:
        sizes[dim] = size
        for parts in cuts.get(dim, ()):
            free = next((name for name in reversed(parts) if name not in kept), parts[-1])
            wanted = {name: least(name) for name in parts}
            wanted[free] *= size // math.prod(wanted.values())
            for name in parts:
                settle(name, wanted[name])

    inner = {name for rows in cuts.values() for parts in rows for name in parts}
    for whole in cuts:
        if whole not in inner:
            members = [name for name in groups[whole] if name in sizes]
            size = math.lcm(*map(least, members))
            for name in members:
                settle(name, size)


def _equal_sizes(program: Program) -> dict[str, set[str]]:
    """Dimensions that are renamed into one another and have one size, so that values of both may meet."""
    groups = {dim.name: {dim.name} for dim in program.dims}
    for func in program.funcs:
        sizes = program.sizes(func)
        for statement, _ in func.walk():
            if isinstance(statement, Let) and isinstance(statement.operation, Rename):
                for old, new in statement.operation.pairs:
                    if sizes[old] == sizes[new]:
                        merged = groups[old] | groups[new]
                        for name in merged:
                            groups[name] = merged
    return groups


def _pinned(program: Program) -> tuple[set[str], set[str]]:
    """Dimensions that keep their size, and those that stay even."""
    pinned: set[str] = set()
    even: set[str] = set()
    for func in program.funcs:
        overridden = {name for name, _ in func.overrides}
        shapes = _shapes(program, func)
        for statement, _ in func.walk():
            match statement:
                case Let(operation=Rotary(dim=dim), operands=(_, _, frequencies)):  # half as many as D has elements
                    pinned.update((dim, *shapes[str(frequencies)].names))
                case Let(operation=Take(dim=dim)) if dim not in overridden:
                    pinned.add(dim)
                case Let(operation=Topk(dim=dim, target=target)):
                    pinned.update({dim, target} - overridden)
                case Let(operation=Iota(dim=dim, extent=int())) if dim not in overridden:
                    pinned.add(dim)
                case Loop(dim=dim, body=body) if any(
                    isinstance(s, Let) and isinstance(s.operation, Roll) for s in body
                ):
                    pinned.add(dim)  # a trip less than chips in the ring
                case Let(operation=Rotary() as rotary):
                    (pinned if rotary.rotated else even).add(rotary.dim)
                case _:
                    pass
    return pinned, even


def _shapes(program: Program, func: Func) -> dict[str, Shape]:
    return {use.value: use.type.shape for use in typed_values(program, func)}


def _make_room(program: Program, sizes: dict[str, int], digits: Mapping[str, int]) -> None:
    """A cache holds at least twice what one update writes."""
    for func in program.funcs:
        shapes = _shapes(program, func)
        inside = {**sizes, **dict(func.overrides)}
        for statement, _ in func.walk():
            if not isinstance(statement, Let) or not isinstance(statement.operation, Update):
                continue
            dim = statement.operation.dim
            new, cache = shapes[str(statement.operands[1])], shapes[str(statement.operands[0])]
            written = [d.name for d in new.dims if d.name not in cache] or [d.name for d in new.dims if d.name == dim]
            least = 2 * (inside.get(written[0], new.size(written[0])) if written and written[0] != dim else 1)
            if dim in sizes and sizes[dim] < least:
                room = digits[dim] * -(-least // digits[dim])
                sizes[dim] = min(program.dim(dim).size, room)
