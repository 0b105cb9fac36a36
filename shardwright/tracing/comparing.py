"""The comparison of a traced program with its function: both at the same random arguments."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardwright.tracing.graph import bodies, uniform

if TYPE_CHECKING:
    from shardwright.ir.program import Program
    from shardwright.tracing.graph import Graph, GraphEdge, TracedFunction, Variable

Array = npt.NDArray[Any]

FAR = 1e-5
"""From here on the program's meaning is also taken with the rounding of its formats: where a mask of -1e9 is added to
scores, say, rounding is what the function computes."""


AMPLIFIED = 8
"""A difference is explained by rounding up to this many times what the function itself differs by where each of its
arguments changes by one unit in the last place. Chains of up to 30 products and `tanh` differ from sums in another
order by a fifth to a half of it."""

SHARES = (0.25, 0.5, 0.75, 1.0)
"""The powers of their scales by which arguments are drawn smaller, one after the other. Rounding has to explain the
difference at each, and at the last there may be none: a limit that a program leaves out may be met at larger ones."""


MANY = 1 << 20
"""More numbers than these are drawn in f32, which takes half the time; formats of 64 bits have their own."""


class Difference(NamedTuple):
    """How far a program's meaning is from its function, and whether that is at the example's own arguments, because at
    random ones both are not the same, or at random ones drawn smaller, because the function amplifies rounding."""

    largest: float
    at_examples: bool = False
    at_smaller: bool = False
    amplified: float = 0.0
    """How far the function is from itself where its arguments change by one unit in the last place, if that explains
    the difference; 0 where it was not asked, or does not."""


def difference_of(
    program: Program, asked: tuple[Any, ...], known: tuple[TracedFunction, Sequence[str], Any]
) -> Difference:
    """How far the program's meaning is from the function: at random arguments, or, where that is too far, at those of
    the example, as sorted times, covariances, and weights that keep many layers within bounds ask for.

    Where there are none and the function itself amplifies rounding as much, arguments of which the shape alone is known
    are drawn smaller, and what they give counts.
    """
    from shardwright.compiling.compile_program import tolerance

    (function, module, args, seed, is_smaller), (traced, names, weights) = asked, known
    scales = _scales(program, names) if is_smaller or _rounds(traced) else {}
    inputs = random_arguments(args, traced.inputs, seed, scales)
    tried, is_positive = weights, False
    if module is None:
        expected = _called(function, args, inputs)
        if any(np.isnan(result.astype(np.float64)).any() for result in expected):  # a root of a negative number, say
            is_positive = True
            inputs = random_arguments(args, traced.inputs, seed, scales, is_positive=True)
            expected = _called(function, args, inputs)
    else:
        noisy = module.random_weights(seed)
        expected, changed = module.called(noisy, inputs)
        stored = list(zip((*program.weights, *program.state), traced.weights, strict=True))
        tried = weights | {value.name: edge.of(noisy) for value, edge in stored if edge.members or edge.name in noisy}
        expected.extend(edge.of(changed) for _, edge in stored[len(program.weights) :])

    def far(inputs: Sequence[Array], expected: Sequence[Array]) -> float:
        return _far(program, dict(zip(names, inputs, strict=True)), tried, expected, rounds=_rounds(traced))

    def explained(difference: float, inputs: Sequence[Array], expected: Sequence[Array]) -> float:
        """How far the function is from itself, if rounding explains the difference; 0 where it does not."""
        changed = _called(function, args, _changed(inputs, seed))
        itself = max(map(_difference, expected, changed), default=0.0)
        return itself if difference <= AMPLIFIED * itself and math.isfinite(difference + itself) else 0.0

    bound, difference = tolerance(program), far(inputs, expected)
    if module is not None or difference <= bound:
        return Difference(difference)
    if (own := example_arguments(args, traced.inputs, seed)) is not None:
        if (at_examples := far(own, expected := _called(function, args, own))) <= bound:
            return Difference(at_examples, at_examples=True)
        if amplified := explained(at_examples, own, expected):
            return Difference(at_examples, amplified=amplified)
        return Difference(difference)
    if not (amplified := explained(difference, inputs, expected)):
        return Difference(difference)
    shapes = _shapes_alone(args)
    smallest = {
        at: scale for at, scale in _scales(program, names).items() if at in shapes and scale < scales.get(at, 1.0)
    }
    if not smallest:
        return Difference(difference, amplified=amplified)
    for share in SHARES:
        smaller = {at: min(scale**share, scales.get(at, 1.0)) for at, scale in smallest.items()}
        inputs = random_arguments(args, traced.inputs, seed, {**scales, **smaller}, is_positive=is_positive)
        expected = _called(function, args, inputs)
        difference, amplified = far(inputs, expected), 0.0
        if difference > bound and not (amplified := explained(difference, inputs, expected)):
            break
    return Difference(difference, at_smaller=True, amplified=amplified)


def _changed(inputs: Sequence[Array], seed: int) -> list[Array]:
    """The arguments with every float one or two units in the last place larger or smaller."""
    import jax.numpy as jnp

    random = np.random.default_rng(seed)
    made: list[Array] = []
    for array in inputs:
        if jnp.issubdtype(array.dtype, jnp.floating):
            change = float(jnp.finfo(array.dtype).eps) * random.choice((-1.0, 1.0), array.shape)
            made.append((array.astype(np.float64) * (1 + change)).astype(array.dtype))
        else:
            made.append(array)
    return made


def _shapes_alone(args: Sequence[Any]) -> set[int]:
    """The places of flattened arguments of which the shape alone is known."""
    import jax

    leaves = jax.tree_util.tree_leaves(args)
    return {at for at, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)}


def _far(
    program: Program, inputs: Mapping[str, Array], weights: Any, expected: Sequence[Array], *, rounds: bool
) -> float:
    """How far the program's results are from those expected, with the rounding of its formats where that is nearer."""
    from shardwright.backends.simulation.reference import evaluate

    difference, state = math.inf, {value.name: weights[value.name] for value in program.state}
    kept = {value.name: weights[value.name] for value in program.weights}
    for precision in ("declared",) if rounds else ("exact", "declared"):
        results, new = evaluate(program, program.funcs[0].name, inputs, kept, state, precision=precision)
        found = (*results, *(new[name] for name in state))
        difference = min(difference, max(map(_difference, expected, found), default=0.0))
        if difference < FAR:
            break
    return difference


def _rounds(traced: TracedFunction) -> bool:
    """Formats of 16 bits round in the function too, so the program's meaning is taken with its formats."""
    return bool({"bfloat16", "float16"}.intersection(variable.dtype for variable in _variables(traced.graph)))


def _variables(graph: Graph) -> Iterator[Variable]:
    """The values that a function takes and makes, those of loops' bodies and branches included."""
    yield from graph.parameters
    for application in graph.applications:
        yield from application.results
        for body in bodies(application):
            yield from _variables(body)


def _scales(program: Program, names: Sequence[str]) -> dict[int, float]:
    """The `product_scales` of parameters by their places."""
    from shardwright.backends.simulation.random_inputs import product_scales

    scales = product_scales(program, program.funcs[0], names)
    return {at: scales[name] for at, name in enumerate(names) if name in scales}


def random_arguments(
    args: Sequence[Any],
    edges: Sequence[GraphEdge],
    seed: int,
    scales: Mapping[int, float] | None = None,
    *,
    is_positive: bool = False,
) -> list[Array]:
    """Random arrays in the order of the flattened arguments.

    Integers lie between the example's least and greatest, without 0 where that has none, bools and floats without a
    negative number likewise, a little above the number where they are one throughout; other floats, and what has a
    shape alone, are normal, times the `scales` of their places;
    with `is_positive`, magnitudes.
    """
    import jax

    random = np.random.default_rng(seed)
    leaves = jax.tree_util.tree_leaves(args)
    made = [_random(leaf, edge, random) for leaf, edge in zip(leaves, edges, strict=True)]
    for at, scale in (scales or {}).items():
        if made[at].dtype.kind not in "biu":
            made[at] = made[at] * made[at].dtype.type(scale)
    return [array if array.dtype.kind in "biu" else np.abs(array) for array in made] if is_positive else made


def example_arguments(args: Sequence[Any], edges: Sequence[GraphEdge], seed: int) -> list[Array] | None:
    """The example's own arrays, with noise on floats that are one number throughout, as biases are before training;
    None where one has a shape alone."""
    import jax

    random = np.random.default_rng(seed)
    made: list[Array] = []
    for leaf, edge in zip(jax.tree_util.tree_leaves(args), edges, strict=True):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return None
        array = np.asarray(jax.numpy.asarray(leaf))
        if edge.dtype.startswith(("float", "bfloat")) and array.size > 1 and uniform(array) is not None:
            array = (array + 0.1 * np.abs(random.normal(size=array.shape))).astype(array.dtype)
        made.append(array)
    return made


def _random(leaf: Any, edge: GraphEdge, random: np.random.Generator) -> Array:
    is_float = edge.dtype.startswith(("float", "bfloat"))
    known = None if type(leaf).__name__ == "ShapeDtypeStruct" or not np.size(leaf) else np.asarray(leaf)
    with np.errstate(invalid="ignore"):  # NaN is not 0 or more
        drawn = known is not None and (not is_float or float(known.min()) >= 0)
    if known is not None and drawn:
        low, high = known.astype(np.float64).min(), known.astype(np.float64).max()
        made = (
            random.uniform(low, high, edge.shape) if is_float else random.integers(int(low), int(high) + 1, edge.shape)
        )
        if is_float and low == high and known.size > 1:  # as biases are before training
            made = low + 0.1 * np.abs(random.normal(size=edge.shape))
        if low < 0 < high and not is_float and known.all():
            made = np.where(made == 0, int(high), made)
    else:
        made = _normal(edge, random) if is_float else random.integers(0, 2, edge.shape)
    import jax.numpy as jnp

    return np.asarray(jnp.asarray(made, edge.dtype))


def _normal(edge: GraphEdge, random: np.random.Generator) -> Array:
    if math.prod(edge.shape) > MANY and edge.dtype != "float64":
        return random.standard_normal(edge.shape, np.float32)
    return random.normal(size=edge.shape)


def _called(function: Callable[..., Any], args: Sequence[Any], inputs: Sequence[Array]) -> list[Array]:
    import jax

    from shardwright.tracing.constraints import unconstrained

    tree = jax.tree_util.tree_structure(tuple(args))
    arrays = [jax.numpy.asarray(array) for array in inputs]
    try:
        results = function(*jax.tree_util.tree_unflatten(tree, arrays))
    except (TypeError, ValueError, RuntimeError):  # it was traced, so what it names lies on no devices
        results = unconstrained(function, args)(*arrays)
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(results)]


def _difference(expected: Array, found: Array) -> float:
    """The largest difference, relative to the largest magnitude; NaN counts as infinitely far."""
    a, b = expected.astype(np.float64), np.asarray(found).astype(np.float64)
    if a.shape != b.shape or np.isnan(a).any() or np.isnan(b).any():
        return math.inf
    if not a.size or np.array_equal(a, b):
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b)).max()
    if not np.isfinite(apart):
        return math.inf
    return float(apart / max(float(np.abs(a).max()), 1e-30))
