"""Rules for branches and loops."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Hashable, Sequence

from shardwright.tracing.dimensions import Slot
from shardwright.tracing.graph import Application, Constant, Graph, Operand, Variable
from shardwright.tracing.rules.elementwise import same
from shardwright.tracing.rules.shapes import of_one
from shardwright.tracing.rules.table import do, rule
from shardwright.tracing.writer import GraphWriter, ProgramValue, dtype_of, refusal

# ------------------------------------------------------------ bodies


@rule("cond")
def _cond(w: GraphWriter, op: Application) -> None:
    """Both branches are computed, and one is chosen: programs of the language have no branches."""
    which, *operands = op.operands
    chosen: list[Sequence[Operand]] = []
    for body in op.params["bodies"]:
        for parameter, operand in zip(body.parameters, operands, strict=True):
            value = w.value(operand)
            w.dimensions.tie_all(value.axes, w.axes(parameter))
            w.alias(parameter, value, value.axes)
        w.apply(body)
        chosen.append(body.results)
    for k, result in enumerate(op.results):
        best = chosen[-1][k]
        for n, branch in reversed(list(enumerate(chosen[:-1]))):
            here = do(w, op, ("is", k, n), "eq", [which, Constant(n, (), "int32")], (), "bool")
            best = do(w, op, ("case", k, n), "where", [here, branch[k], best], result.shape, result.dtype)
        same(w, Application("copy", (best,), {}, (result,), op.place))


@rule("while")
def _while(_w: GraphWriter, op: Application) -> None:
    raise refusal(op, "runs until a condition holds, and loops of the language have a fixed number of trips",
                  "use jax.lax.scan, or fori_loop with bounds that are Python numbers")  # fmt: skip


@rule("scan")
def _scan(w: GraphWriter, op: Application) -> None:
    params = op.params
    body, length = params["body"], params["length"]
    n_consts, n_carry = params["num_consts"], params["num_carry"]
    consts, inits, xs = (
        op.operands[:n_consts], op.operands[n_consts : n_consts + n_carry], op.operands[n_consts + n_carry :],
    )  # fmt: skip
    if length == 1:
        _once(w, op, body, [*consts, *inits], xs)
        return
    loop = op.results[0].number
    inside = frozenset((*w.loops, loop))
    tie, find = w.dimensions.tie, w.dimensions.find
    trips = w.dimensions.slot((loop, "trips"), length, loop=loop, inside=frozenset(w.loops))
    w.dimensions.hint(trips, "N", 2 if xs else 7)
    stacked = w.dimensions.slot((loop, "stacked"), length, inside=inside)
    inner = [w.dimensions.axes(v, inside) for v in body.parameters]
    index = w.fresh("i")
    for operand, parameter, axes in zip(consts, body.parameters, inner, strict=False):
        value = w.tied(w.value(operand), axes)
        w.alias(parameter, value, value.axes)
    carried = []
    for i, (init, parameter, axes) in enumerate(zip(inits, body.parameters[n_consts:], inner[n_consts:], strict=False)):
        value = w.tied(w.value(init), axes)
        order = tuple(axis for axis in axes if axis is not None)
        text = w.full(value, order, init.dtype)
        following = body.results[i]
        own = w.names.get(following.number) if isinstance(following, Variable) else None
        name = w.fresh(own or ("carry" if n_carry > 1 else "h"))
        carried.append(f"{name}: {w.type(init.dtype, order)} = {text}")
        w.values[parameter.number] = ProgramValue(name, axes, order)
        w.dimensions.hint(axes[-1] if len(axes) > 1 else None, "E", 3)
    sliced = []
    for operand, parameter, axes in zip(xs, body.parameters[n_consts + n_carry :], inner[n_consts + n_carry :],
                                        strict=True):  # fmt: skip
        value = w.value(operand)
        first = value.axes[0]
        if first is not None and not (params["reverse"]):
            tie(first, trips)
            value = w.renamed(value, {first: trips})
        elif first is not None:
            tie(first, stacked)
        value = w.tied(value, axes, value.axes[1:])
        seen = tuple(s for s in value.order if find(s) != find(trips))
        w.values[parameter.number] = ProgramValue(value.text, value.axes[1:], seen, value.is_number)
        if first is not None and params["reverse"]:
            sliced.append((parameter, value))
    ys = list(zip(body.results[n_carry:], op.results[n_carry:], strict=True))
    buffers: list[tuple[str, tuple[Slot, ...]]] = []
    for out, _ in ys:
        order = (stacked, *(a for a in _axes_inside(w, out, inside) if a is not None))
        name = w.fresh("stack")
        buffers.append((name, order))
        full = f"full[{w.letters(order)}, {dtype_of(out.dtype)}](0)"
        carried.append(f"{name}: {w.type(out.dtype, order)} = {full}")
    stems = ["carry_out" if n_carry > 1 else "y"] * len(inits) + ["stacked"] * len(buffers)
    names = [w.fresh(w.names.get(result.number) or stem) for result, stem in zip(op.results, stems, strict=True)]
    w.line(f"{', '.join(names)} = loop[{w.name(trips)} as {index}]({', '.join(carried)}) {{")
    outer, w.loops = w.loops, (*w.loops, loop)
    at = index
    if params["reverse"] and (sliced or buffers):
        at = w.write("back", f"{length - 1} - {index}")
    for parameter, value in sliced:
        slot = value.axes[0]
        text = w.write("slice", f"lookup[{w.name(slot)}]({value.text}, {at})")
        seen = tuple(s for s in value.order if find(s) != find(slot))
        w.values[parameter.number] = ProgramValue(text, value.axes[1:], seen)
    w.apply(body)
    nexts = []
    for out, parameter in zip(body.results, body.parameters[n_consts : n_consts + n_carry], strict=False):
        value, axes = w.value(out), w.dimensions.axes(parameter, inside)
        value = w.tied(value, axes)
        text = w.full(value, tuple(a for a in axes if a is not None), out.dtype)
        nexts.append(text)
    for (out, _), (name, order) in zip(ys, buffers, strict=True):
        whole = w.whole(out)
        target = dict(zip(whole.order, order[1:], strict=True))
        for a, b in target.items():
            tie(a, b)
        whole = w.renamed(whole, target)
        row = of_one(w, whole.text, out.dtype, stacked, order)
        nexts.append(f"update[{w.name(stacked)}]({name}, {row}, {at})")
    new = [(state, w.axes(state)[1:], out) for state, out in params.get("changed", {}).values()]
    w.set_states(new, nexts)
    w.line(f"next {', '.join(nexts)}")
    w.loops = outer
    w.line("}")
    for name, result, axes in zip(names, op.results, inner[n_consts : n_consts + n_carry], strict=False):
        _leave_body(w, name, result, axes)
    for name, (out, result), (_, order) in zip(names[n_carry:], ys, buffers, strict=True):
        given = iter(order[1:])
        axes = (stacked, *(None if size == 1 else next(given) for size in out.shape))
        _leave_body(w, name, result, axes, stacked if params["reverse"] else trips)


def _once(w: GraphWriter, op: Application, body: Graph, others: Sequence[Operand], xs: Sequence[Operand]) -> None:
    """A loop of one trip is its body."""
    for parameter, operand in zip(body.parameters, (*others, *xs), strict=True):
        value = w.value(operand)
        axes = value.axes[len(value.axes) - len(parameter.shape) :]
        w.dimensions.tie_all(axes, w.axes(parameter))
        w.alias(parameter, value, axes)
    w.apply(body)
    for out, result in zip(body.results, op.results, strict=True):
        value = w.value(out)
        axes = (*[None] * (len(result.shape) - len(value.axes)), *value.axes)
        w.dimensions.tie_all(axes, w.axes(result))
        w.alias(result, value, axes)


def _axes_inside(w: GraphWriter, out: Operand, inside: frozenset[Hashable]) -> tuple[Slot | None, ...]:
    if isinstance(out, Variable):
        return w.dimensions.axes(out, inside)
    return tuple(
        None if size == 1 else w.dimensions.slot(("constant", id(out), axis), size, inside=inside)
        for axis, size in enumerate(out.shape)
    )


def _leave_body(
    w: GraphWriter, name: str, result: Variable, axes: Sequence[Slot | None], trips: Slot | None = None
) -> None:
    own = w.axes(result)
    value = ProgramValue(name, tuple(axes), tuple(a for a in axes if a is not None))
    for k, (a, b) in enumerate(zip(axes, own, strict=True)):
        w.dimensions.tie(trips if trips is not None and k == 0 else a, b)
    w.values[result.number] = w.renamed(value, {a: b for a, b in zip(axes, own, strict=True) if a is not None})
