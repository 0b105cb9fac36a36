"""Gradients of emitted JAX modules against slopes of the unsharded meaning, which is computed in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.simulation.random_inputs import Inputs, random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.ir.program import Func, Program
from shardwright.passes.pipelines import explicit

STEP = 1e-5
"""Of a central difference in float64: its error is of the order of the step's square."""
TOLERANCE = 2e-4
"""Of a slope, relative to the sum of the magnitudes that it adds up: some hundred roundings of f32."""


def check_gradients(program: Program, seed: int = 0) -> None:
    """Compares the gradients of every function of a program, through one emitted module, with slopes of its meaning."""
    module = load_module(emit(explicit(program)))
    for func in program.funcs:
        Differentiated(module, program, func, seed).check()


class Differentiated:
    """A function of a program as a scalar: the sum of its float results and new state, with random weights for each."""

    def __init__(self, module: Any, program: Program, func: Func, seed: int) -> None:
        self.module, self.program, self.func = module, program, func
        self.inputs = random_inputs(program, func, seed)
        values = (*func.params, *program.weights, *program.state)
        self.floats = [value.name for value in values if value.type.dtype.is_float]
        self.results = [i for i, kind in enumerate(func.results) if kind.dtype.is_float]
        self.states = [value.name for value in program.state if value.type.dtype.is_float]
        self.rng = np.random.default_rng(seed)
        results, state = self.reference(self.given())
        self.weights = [self.rng.standard_normal(np.shape(r)) for r in (*results, *state)]

    def given(self) -> dict[str, np.ndarray]:
        """Every float input by name."""
        return {name: np.asarray(a, np.float64) for name, a in _arrays(self.inputs).items() if name in self.floats}

    def reference(self, floats: Mapping[str, np.ndarray]) -> tuple[list[Any], list[Any]]:
        """The float results and the float state, unsharded, in float64."""
        args, weights, state = (
            {name: floats.get(name, array) for name, array in group.items()}
            for group in (self.inputs.args, self.inputs.weights, self.inputs.state)
        )
        results, new = evaluate(self.program, self.func.name, args, weights, state)
        return [results[i] for i in self.results], [new[name] for name in self.states]

    def total(self, floats: Mapping[str, np.ndarray]) -> float:
        results, state = self.reference(floats)
        made = [np.asarray(r, np.float64) for r in (*results, *state)]
        return float(sum((w * r).sum() for w, r in zip(self.weights, made, strict=True)))

    def gradients(self) -> dict[str, np.ndarray]:
        """Those of the emitted module by `jax.grad`, of every float input."""
        import jax

        library: Any = jax
        jnp: Any = library.numpy
        module = self.module
        built = getattr(module, f"build_{self.func.name}")(module.make_mesh())
        weighted = [jnp.asarray(w, jnp.float32) for w in self.weights]
        fixed = {name: jnp.asarray(a) for name, a in _arrays(self.inputs).items() if name not in self.floats}

        def total(floats: dict[str, Any]) -> Any:
            given = {**fixed, **floats}
            args = [given[value.name] for value in self.func.params]
            if self.program.weights or self.program.state:
                tables = (
                    {name: given[name].reshape(shape) for name, (shape, _, _) in table.items()}
                    for table in (module.WEIGHTS, module.STATE)
                )
                results, state = built(*tables, *args)
            else:
                results, state = built(*args), {}
            results = results if len(self.func.results) != 1 else (results,)
            made: list[Any] = [*(results[i] for i in self.results), *(state[name] for name in self.states)]
            return sum((w * r.reshape(w.shape)).sum() for w, r in zip(weighted, made, strict=True))

        floats = {name: jnp.asarray(array, jnp.float32) for name, array in self.given().items()}
        found = library.jit(library.grad(total))(
            floats
        )  # compiled as a whole, which takes half as long as step by step
        return {name: np.asarray(array, np.float64) for name, array in found.items()}

    def check(self) -> None:
        """Compares, along a random direction of every input, the gradient with the slope of the meaning."""
        found, given = self.gradients(), self.given()
        assert found.keys() == given.keys()
        for name, gradient in found.items():
            assert np.isfinite(gradient).all(), f"{name}: the gradient is not finite"
            direction = self.rng.standard_normal(given[name].shape)
            ends = [self.total({**given, name: given[name] + sign * STEP * direction}) for sign in (1, -1)]
            slope = (ends[0] - ends[1]) / (2 * STEP)
            terms = (gradient.reshape(direction.shape) * direction).reshape(-1)
            scale = max(float(np.abs(terms).sum()), 1e-3)
            assert abs(terms.sum() - slope) <= TOLERANCE * scale, f"{name}: {terms.sum()} and a slope of {slope}"


def _arrays(inputs: Inputs) -> dict[str, np.ndarray]:
    return {**inputs.args, **inputs.weights, **inputs.state}
