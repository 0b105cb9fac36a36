"""Validation: a compiled program is run in the simulator, at reduced sizes, against its unsharded meaning."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardwright.backends.foreign import check_calls, standing_in
from shardwright.backends.validation.reduced_sizes import at_reduced_sizes
from shardwright.ir.diagnostics import CompilerFault, DiagnosticError
from shardwright.ir.digit_orders import typed_values
from shardwright.ir.program import Func, Program
from shardwright.ir.types import TensorType
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify

if TYPE_CHECKING:
    from shardwright.backends.number_formats import Array
    from shardwright.backends.simulation.random_inputs import Inputs

TOLERANCE = 1e-9
"""Relative to the largest element; both sides compute in float64, in different orders of summation."""

_ROUNDINGS = 64
"""How many times farther than nudged inputs move the reference another order of summation may."""

_LARGEST = 500_000_000
"""Elements of the largest program that is run, those of all values on all chips."""


@dataclass(frozen=True)
class Validation:
    """The outcome of a validation: what was run, and how far it came out from the unsharded meaning (relative to the
    largest element)."""

    sizes: Mapping[str, int]
    largest_difference: float | None
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
    check_calls(compiled, is_run_here=False)
    surface, compiled = standing_in(surface), standing_in(compiled)
    try:
        small, small_compiled = at_reduced_sizes(surface, compiled)
        verify(complete(small_compiled), Level.EXPLICIT)
        why = "even at reduced sizes"
    except DiagnosticError as error:
        small, small_compiled = surface, compiled
        why = f"its sizes cannot be reduced ({error}), and"
    elements = _elements(small_compiled)
    if elements > _LARGEST:
        reason = f"{why} its values have {elements:.1e} elements on all chips, more than {_LARGEST:.0e}"
        return Validation({}, None, surface.mesh.n_chips, 0.0, reason)
    sizes = {dim.name: dim.size for dim in small_compiled.dims if compiled.dim(dim.name).expression is None}
    worst = max((compare(small, small_compiled, func, seed) for func in small.funcs), default=0.0)
    seconds = time.perf_counter() - began
    return Validation(sizes, worst, surface.mesh.n_chips, seconds)


def _elements(program: Program) -> int:
    """The elements of all values on all chips."""
    mesh = program.mesh
    return mesh.n_chips * sum(
        use.type.local_elements(mesh)
        for func in program.funcs
        for use in typed_values(program, func)
        if isinstance(use.type, TensorType)
    )


def compare(surface: Program, compiled: Program, func: Func, seed: int = 0) -> float:
    """Runs one function of both on the same random inputs.

    Returns the largest difference of results and state, relative to the largest element. Raises `ValidationError`
    where it is more than rounding in float64.
    """
    import numpy as np

    from shardwright.backends.simulation.random_inputs import random_inputs
    from shardwright.backends.simulation.reference import evaluate
    from shardwright.backends.simulation.simulator import simulate

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
        if difference and not np.issubdtype(found[what].dtype, np.floating):
            relative = math.inf  # integers and bools are equal, however large, unless they tell of a rounding
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


def differences(a: Array, b: Array) -> Array:
    """How far apart the elements are: equal infinities, and NaN in both, not at all; infinitely where one is finite, or
    a number, and the other not."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return np.where(np.isnan(apart), np.inf, apart)


def _largest(a: Array, b: Array) -> float:
    return float(differences(a, b).max(initial=0.0))


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
