"""From a function under JAX to a graph: nested functions inlined, scans kept as loops, shardings read."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.backends.foreign import KERNELS, PREFIX
from shardwright.backends.targets.functions import under_mesh
from shardwright.tracing.by_indices import by_indices
from shardwright.tracing.complex_pairs import has_complex, without_complex
from shardwright.tracing.counted_loops import trips
from shardwright.tracing.graph import (
    Application,
    Constant,
    Frames,
    Graph,
    GraphEdge,
    Layout,
    Operand,
    TracedFunction,
    Variable,
    reads,
    uniform,
)  # fmt: skip
from shardwright.tracing.inlined import body_of, unplaced
from shardwright.tracing.places import untraceable

_OWN = str(Path(__file__).parent)

_NUMBERS = ("float32", "int32", "bool")
"""Formats of the numbers that are computed where nothing but numbers gives them."""


def jaxpr_of(function: Callable[..., Any], args: Sequence[Any], *more: Any) -> tuple[Any, Any]:
    """The jaxpr of a function at these arguments, and the shapes of its results, under the mesh that the arguments lie
    on; it takes what is `more` before them."""
    import jax

    with under_mesh(args):
        return jax.make_jaxpr(function, return_shape=True)(*more, *args)


def capture(
    function: Callable[..., Any],
    args: Sequence[Any],
    name: str,
    weights: Mapping[str, Any] | None = None,
    changed: Sequence[str] = (),
) -> TracedFunction:
    """Traces the function at these example arguments, arrays or `jax.ShapeDtypeStruct`. With `weights`, arrays by path,
    the function takes these as a dict before the others, and they are the graph's constants; the last of its results
    are new values of those that are `changed`."""
    import jax

    closed, shapes = jaxpr_of(function, args, *([] if weights is None else [weights]))
    closed = without_complex(closed)
    reader = _Reader()
    graph = reader.outermost(closed)
    inputs = [reader.with_layout(edge, getattr(leaf, "sharding", None))
              for edge, leaf in zip(_edges(args), jax.tree_util.tree_leaves(args), strict=True)]  # fmt: skip
    results = list(_edges(shapes))
    if len(closed.eqns) == 1 and closed.eqns[0].primitive.name in ("jit", "pjit"):
        params = closed.eqns[0].params
        if list(closed.eqns[0].invars) == list(closed.jaxpr.invars):
            inputs = [reader.with_layout(*pair) for pair in zip(inputs, params["in_shardings"], strict=True)]
        if list(closed.eqns[0].outvars) == list(closed.jaxpr.outvars):
            results = [reader.with_layout(*pair) for pair in zip(results, params["out_shardings"], strict=True)]
    stored = tuple(GraphEdge(("weights", "constant"), variable.shape, variable.dtype) for variable in graph.constants)
    if weights is not None:
        stored += _weights_apart(graph, weights, changed)
    return TracedFunction(
        name, graph, tuple(inputs), tuple(results[: len(results) - len(changed)]), stored, reader.mesh
    )


def _weights_apart(graph: Graph, weights: Mapping[str, Any], changed: Sequence[str]) -> tuple[GraphEdge, ...]:
    """Makes constants of the parameters that are weights, as far as they are read or changed; returns their edges."""
    read = set(reads(graph))
    edges: list[GraphEdge] = []
    variables = {path: graph.parameters.pop(0) for path in sorted(weights)}  # the order of a dict's leaves
    for path in (*sorted(weights.keys() - set(changed)), *changed):
        variable = variables[path]
        if variable.number in read or path in changed:
            graph.constants[variable] = np.asarray(weights[path])
            edges.append(GraphEdge(("weights", *path.split(".")), variable.shape, variable.dtype))
    first = len(graph.results) - len(changed)
    graph.changed = {variables[path]: new for path, new in zip(changed, graph.results[first:], strict=True)}
    del graph.results[first:]
    return tuple(edges)


def _edges(tree: Any) -> tuple[GraphEdge, ...]:
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return tuple(
        GraphEdge(tuple(_key(key) for key in path), tuple(np.shape(leaf)), str(jax.numpy.result_type(leaf)))
        for path, leaf in leaves
    )


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def origins(closed: Any) -> dict[int, Any]:
    """The variables of a jaxpr by the numbers that the graph of the same function has for them; those of its arguments
    alone where others are complex, since the graph is of pairs."""
    reader = _Reader()
    if has_complex(closed):
        return {int(str(reader.variable(variable.aval).number)): variable for variable in closed.jaxpr.invars}
    reader.outermost(closed)
    return reader.origins


def evaluate_inlined(
    closed: Any, args: Sequence[Any], change: Callable[[Any, Any], Any], *, in_loops: bool = False
) -> list[Any]:
    """The results of a jaxpr, with the calls inlined that a graph has inlined; `change` is given each variable and its
    value, and says what goes on in its place. With `in_loops` also those in the bodies of loops."""
    from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

    jaxpr = getattr(closed, "jaxpr", closed)
    known: dict[Any, Any] = {v: change(v, given) for v, given in zip(jaxpr.invars, args, strict=True)}
    known.update(zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    unnamed = jaxpr.debug_info and jaxpr.debug_info.with_unknown_names()
    for equation in jaxpr.eqns:
        primitive = equation.primitive.name
        if call := body_of(equation, [value(atom) for atom in equation.invars]):
            results = evaluate_inlined(*call, change, in_loops=in_loops)
        elif primitive in ("scan", "while") and in_loops:
            looped = _scanned if primitive == "scan" else _repeated
            results = looped(equation.params, [value(atom) for atom in equation.invars], change)
        else:
            given = list(dict.fromkeys(atom for atom in equation.invars if not isinstance(atom, Literal)))
            alone = jaxpr.replace(
                eqns=[equation], constvars=[], invars=given, outvars=list(equation.outvars), debug_info=unnamed
            )
            results = jaxpr_as_fun(ClosedJaxpr(alone, ()))(*(known[atom] for atom in given))
        known.update((v, change(v, result)) for v, result in zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _scanned(params: Mapping[str, Any], operands: Sequence[Any], change: Callable[[Any, Any], Any]) -> list[Any]:
    """The results of a scan, its body as `evaluate_inlined` has it."""
    import jax

    n_consts, n_carry = params["num_consts"], params["num_carry"]
    consts, xs = operands[:n_consts], operands[n_consts + n_carry :]

    def body(carry: Any, slices: Any) -> Any:
        made = evaluate_inlined(params["jaxpr"], (*consts, *carry, *slices), change, in_loops=True)
        return tuple(made[:n_carry]), tuple(made[n_carry:])

    carried, stacked = jax.lax.scan(
        body, tuple(operands[n_consts : n_consts + n_carry]), tuple(xs), params["length"], params["reverse"],
        params["unroll"],
    )  # fmt: skip
    return [*carried, *stacked]


def _repeated(params: Mapping[str, Any], operands: Sequence[Any], change: Callable[[Any, Any], Any]) -> list[Any]:
    """The results of a `while`, its body as `evaluate_inlined` has it."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, carried = operands[:n_cond], operands[n_cond : n_cond + n_body], operands[n_cond + n_body :]

    def goes_on(state: Any) -> Any:
        (more,) = jaxpr_as_fun(params["cond_jaxpr"])(*of_cond, *state)
        return more

    def body(state: Any) -> Any:
        return tuple(evaluate_inlined(params["body_jaxpr"], (*of_body, *state), change, in_loops=True))

    return [*jax.lax.while_loop(goes_on, body, tuple(carried))]


class _Reader:
    def __init__(self) -> None:
        self.numbers = count()
        self.origins: dict[int, Any] = {}
        self.constants: dict[Variable, Any] = {}
        self.mesh: dict[str, int] = {}

    def layout(self, sharding: Any, rank: int) -> Layout | None:
        """The axes of a `NamedSharding`; None for what says nothing of a mesh."""
        from jax.sharding import NamedSharding, PartitionSpec

        if not isinstance(sharding, NamedSharding):
            return None
        mesh = {str(axis): int(size) for axis, size in sharding.mesh.shape.items()}
        if self.mesh and mesh and mesh != self.mesh:
            raise untraceable(f"shardings name two meshes, {self.mesh} and {mesh}", "", "give all of them one mesh")
        self.mesh = mesh or self.mesh
        entries = (*sharding.spec, *(None,) * (rank - len(sharding.spec)))
        return tuple(
            None if entry is PartitionSpec.UNCONSTRAINED
            else () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            for entry in entries
        )  # fmt: skip

    def with_layout(self, edge: GraphEdge, sharding: Any) -> GraphEdge:
        axes = self.layout(sharding, len(edge.shape))
        if axes is None:
            return edge
        return replace(edge, axes=axes, unreduced=tuple(sorted(sharding.spec.unreduced)))

    def outermost(self, closed: Any) -> Graph:
        graph = self.body(closed)
        graph.constants = self.constants
        return graph

    def body(self, closed: Any) -> Graph:
        jaxpr = closed.jaxpr
        graph = Graph([self.variable(v.aval) for v in jaxpr.invars])
        self.origins.update((int(str(made.number)), v) for made, v in zip(graph.parameters, jaxpr.invars, strict=True))
        graph.results = self.read(closed, graph.parameters, graph)
        return graph

    def variable(self, aval: Any) -> Variable:
        """Its shape and number format; a key of random numbers is the two numbers that it is made of."""
        shape, dtype = tuple(aval.shape), str(aval.dtype)
        return Variable(next(self.numbers), *(((*shape, 2), "uint32") if dtype == "key<fry>" else (shape, dtype)))

    def constant(self, value: Any, graph: Graph) -> Operand:
        """A number, what is given by its indices, as a mask is, or else a weight."""
        array = np.asarray(value)
        number = uniform(array)
        if number is not None:
            return Constant(number, array.shape, str(array.dtype))
        if array.size:
            import jax

            counted = jax.make_jaxpr(lambda: by_indices(array))()
            if not any(np.size(part) > 1 for part in counted.consts):
                return self.read(counted, (), graph, ())[0]
        made = Variable(next(self.numbers), array.shape, str(array.dtype))
        self.constants[made] = array
        return made

    def read(
        self, closed: Any, arguments: Sequence[Operand], graph: Graph, calls: Frames | None = None
    ) -> list[Operand]:
        """Appends the applications of a jaxpr and returns what it returns. `calls` led to it, where it is called."""
        from jax.extend.core import Literal

        jaxpr = getattr(closed, "jaxpr", closed)
        known: dict[Any, Operand] = dict(zip(jaxpr.invars, arguments, strict=True))
        known.update(
            (v, self.constant(c, graph)) for v, c in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True)
        )

        def operand(atom: Any) -> Operand:
            return self.constant(atom.val, graph) if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            primitive = equation.primitive.name
            if not equation.outvars:  # it prints
                continue
            operands = tuple(map(operand, equation.invars))
            params: dict[str, Any] = dict(equation.params)
            frames = own_frames(equation) if calls is None else calls and calls + own_frames(equation, jaxpr)
            if primitive in ("jit", "pjit") and _is_kernel(equation):
                primitive, params = "kernel", {"kernel": params["name"].removeprefix(PREFIX)}
            if primitive != "kernel" and (call := body_of(equation, operands)):
                known.update(zip(equation.outvars, self.read(*call, graph, frames), strict=True))
                continue
            if primitive == "platform_index":
                known[equation.outvars[0]] = Constant(_for_any_chip(params["platforms"]), (), "int32")
                continue
            if primitive == "cond" and isinstance(operands[0], Constant):
                inner = params["branches"][int(operands[0].value)]
                known.update(zip(equation.outvars, self.read(inner, operands[1:], graph, frames), strict=True))
                continue
            if primitive == "reshard" and _has_explicit(params["dst_sharding"].mesh):
                primitive, params["sharding"] = "sharding_constraint", params["dst_sharding"]
            if primitive == "sharding_constraint":
                params["axes"] = self.layout(params["sharding"], len(operands[0].shape))
            if (number := _computed(equation, operands)) is not None:
                known[equation.outvars[0]] = number
                continue
            if primitive == "while" and (length := trips(params, operands)) is not None:
                n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
                operands = operands[n_cond:]
                if not length:
                    known.update(zip(equation.outvars, operands[n_body:], strict=True))
                    continue
                primitive = "scan"
                params = {
                    "jaxpr": params["body_jaxpr"], "length": length, "num_consts": n_body,
                    "num_carry": len(operands) - n_body, "reverse": False,
                }  # fmt: skip
            if primitive == "scan":
                params["names"] = _argument_names(params["jaxpr"].jaxpr)
                params["body"] = self.body(params.pop("jaxpr"))
            if primitive == "cond":
                params["bodies"] = [self.body(branch) for branch in params.pop("branches")]
            results = tuple(self.variable(v.aval) for v in equation.outvars)
            self.origins.update((int(str(made.number)), v) for made, v in zip(results, equation.outvars, strict=True))
            known.update(zip(equation.outvars, results, strict=True))
            here = place(equation) or (":".join(map(str, calls[-1])) if calls else "")  # or where that is called
            applied = Application(primitive, operands, params, results, here, frames, columns(equation))
            graph.applications.append(applied)
        return [operand(v) for v in jaxpr.outvars]


def _argument_names(jaxpr: Any) -> tuple[str, ...]:
    """The names that the user's function has for the arguments of a body, `l['up']` say; "" for what it closes over."""
    names = getattr(jaxpr.debug_info, "arg_names", None) or ()
    return tuple(str(name or "") for name in names) if len(names) == len(jaxpr.invars) else ("",) * len(jaxpr.invars)


def _computed(equation: Any, operands: Sequence[Operand]) -> Constant | None:
    """The one number that a function of numbers alone gives."""
    aval = equation.outvars[0].aval
    if len(equation.outvars) > 1 or aval.shape or equation.effects or equation.primitive.name.startswith("random"):
        return None
    numbers = [np.asarray(each.value, each.dtype) for each in operands if isinstance(each, Constant) and not each.shape]
    if not numbers or len(numbers) < len(operands) or aval.dtype not in map(np.dtype, _NUMBERS):
        return None
    if equation.primitive.name in ("reshard", "sharding_constraint"):  # where a number lies does not matter
        (number,) = operands
        return number if isinstance(number, Constant) else None
    made = np.asarray(equation.primitive.bind(*numbers, **unplaced(equation.params)))
    value = uniform(made)
    return None if value is None else Constant(value, (), str(made.dtype))


def _is_kernel(equation: Any) -> bool:
    """Tells whether a call is one of a kernel as declared, and not what a derivative or a batch has made of it."""
    import jax

    params = equation.params
    kernel = KERNELS.get(str(params["name"]).removeprefix(PREFIX))
    if kernel is None or not params["name"].startswith(PREFIX):
        return False
    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    try:
        own: Any = jax.make_jaxpr(kernel.function)(*shapes)
    except Exception:  # noqa: BLE001 - a function of the user's, at operands that it may not take
        return False
    return str(own.jaxpr) == str(params["jaxpr"].jaxpr)


def _has_explicit(mesh: Any) -> bool:
    """Tells whether a `reshard` over the mesh says where values lie: those that gradients write over automatic axes
    do not."""
    return any(kind.name != "Auto" for kind in mesh.axis_types)


def _for_any_chip(platforms: Sequence[Sequence[str] | None]) -> int:
    """The branch of `platform_dependent` for chips that no branch names, or else for CPUs."""
    return next((i for i, names in enumerate(platforms) if names is None or "cpu" in names), 0)


def place(equation: Any) -> str:
    """`FILE:LINE` of the innermost frame that is the user's."""
    frame = _user_frame(equation)
    return f"{frame.file_name}:{frame.start_line}" if frame else ""


def columns(equation: Any) -> tuple[int, int]:
    """Where the expression begins and ends in that line."""
    frame = _user_frame(equation)
    return (int(frame.start_column), int(frame.end_column)) if frame else (0, 0)


def _user_frame(equation: Any) -> Any:
    try:
        from jax._src.source_info_util import user_frame

        return user_frame(equation.source_info.traceback)
    except (ImportError, AttributeError, TypeError):
        return None


def own_frames(equation: Any, called: Any = None) -> Frames:
    """File and line of the user's frames that an equation was traced in, the outermost first; none of a gradient.

    With `called`, the jaxpr of a function that JAX traced once for all calls of it, those within that function alone,
    since the frames around it are of its first call.
    """
    try:
        from jax._src.source_info_util import user_frames

        frames = list(user_frames(equation.source_info.traceback))
        is_gradient = equation.primitive.name == "add_any" or "transpose" in str(equation.source_info.name_stack)
        about = called.debug_info.func_src_info if called is not None else ""
    except (ImportError, AttributeError, TypeError):
        return ()
    if is_gradient:
        return ()
    inside = [frame for frame in frames if "site-packages" not in frame.file_name]
    first = next((i for i, frame in enumerate(inside) if _OWN in frame.file_name), len(inside))
    if called is not None:
        names = [(frame.function_name.rpartition(".")[2], frame.file_name) for frame in inside[:first]]
        name, _, where = about.partition(" at ")
        here = (name.rpartition(".")[2], where.rpartition(":")[0])
        first = names.index(here) + 1 if here in names else 0
    return tuple((frame.file_name, frame.start_line) for frame in reversed(inside[:first]))
