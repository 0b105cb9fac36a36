"""From a call as written, `softmax[T, causal=L](s)`, to its operation: one builder for each keyword."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwright.ir import ops
from shardwright.ir.diagnostics import Span, fault, nearest
from shardwright.ir.elaboration.statics import Statics
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Operation
from shardwright.ir.ops.elementwise_table import FORMS
from shardwright.ir.text import syntax
from shardwright.ir.text.syntax_errors import OPTIONS


def _split(statics: Statics) -> Operation:
    ((source, parts),) = _exactly_one(statics)
    if len(source) != 1:
        raise statics.wrong("splits one dimension", None, "as in split[H -> KG](q)")
    return ops.Split(source[0], parts)


def _merge(statics: Statics) -> Operation:
    ((parts, target),) = _exactly_one(statics)
    if len(target) != 1:
        raise statics.wrong("merges into one dimension", None, "as in merge[KG -> H](o)")
    return ops.Merge(parts, target[0])


def _exactly_one(statics: Statics) -> tuple[tuple[tuple[str, ...], tuple[str, ...]]]:
    arrows = statics.arrows()
    if len(arrows) != 1:
        raise statics.wrong("takes one arrow")
    return (arrows[0],)


def _rename(statics: Statics) -> Operation:
    pairs: list[tuple[str, str]] = []
    for old, new in statics.arrows():
        if len(old) != len(new):
            raise statics.wrong(
                "as many dimensions before the arrow as after it", None, "split and merge change their number"
            )
        pairs.extend(zip(old, new, strict=True))
    return ops.Rename(tuple(pairs))


def _take(statics: Statics) -> Operation:
    by = statics.blocks()
    for static in statics.left:
        if isinstance(static, syntax.RangeStatic):
            statics.left.remove(static)
            return ops.Take(static.dim, static.start, static.stop, by)
    dim = statics.dim()
    for static in statics.left:
        if isinstance(static, syntax.IntStatic):
            statics.left.remove(static)
            return ops.Take(dim, static.value, None, by)
    raise statics.wrong("say which indices", None, f"as in take[{dim} 0:32](x), or take[{dim}, 15](x) for a single one")


def _topk(statics: Statics) -> Operation:
    ((source, target),) = _exactly_one(statics)
    if len(source) != 1 or len(target) != 1:
        raise statics.wrong("goes from one dimension to one", None, "as in topk[V -> C, k=40](l)")
    k = statics.whole_number("k", 0)
    if k == 0:
        raise statics.wrong("say how many elements", None, f"as in topk[{source[0]} -> {target[0]}, k=40](l)")
    return ops.Topk(source[0], target[0], k, statics.blocks())


def _iota(statics: Statics) -> Operation:
    extent = next((static for static in statics.left if isinstance(static, syntax.IntStatic)), None)
    if extent is not None:
        statics.left.remove(extent)
    return ops.Iota(statics.dim(), None if extent is None else extent.value)


def _update(statics: Statics) -> Operation:
    page, dim, indexed = _pool(statics, statics.operands(("pages",)))
    wrap = _wraps(statics)
    if wrap and page is not None:
        raise statics.wrong("pages have no wrap: what is behind a row's last page is dropped")
    return ops.Update(dim, indexed, wrap, page)


def _pool(statics: Statics, given: Sequence[str]) -> tuple[str | None, str, tuple[str, ...]]:
    """The dimension of pages where a table of them is given, that of positions, and those behind."""
    dims = statics.dims()
    if "pages" not in given:
        return None, dims[0], dims[1:]
    if len(dims) == 1:
        way_out = f"as in {statics.keyword}[PS{', D' if statics.keyword == 'attend' else ''}](..., pages=table)"
        raise statics.wrong("with pages name their dimension, then that of the slots of a page", statics.at, way_out)
    return dims[0], dims[1], dims[2:]


def _rotary(statics: Statics) -> Operation:
    return ops.Rotary(
        base=statics.number("base", 10000.0),
        style=statics.word("style", "neox", ("neox", "gptj")),
        rotated=statics.whole_number("rotated", 0),
        seq=statics.dim_option("seq"),
        dim=statics.dim(),
    )


def _roll(statics: Statics) -> Operation:
    dim, shift = statics.dim_option("over"), int(statics.number("shift", 1))
    if dim is None:
        raise statics.wrong("say along which dimension", None, "as in roll[x, over=E](a)")
    return ops.Roll(statics.axes(), dim, shift)


def _permute(statics: Statics) -> Operation:
    to, source = statics.word("to", "", ("blocks",)), statics.word("from", "", ("blocks",))
    if not to and not source:
        return ops.Permute(statics.relayouts())
    if to and source:
        raise statics.wrong("to=blocks or from=blocks, not both")
    return ops.Permute(dims=statics.dims(), blocks="to" if to else "from")


def _wraps(statics: Statics) -> bool:
    return statics.word("wrap", "false", ("true", "false")) == "true"


def _softmax(statics: Statics) -> Operation:
    return ops.Softmax(causal=statics.dim_option("causal"), window=_window(statics), dims=statics.dims())


def _window(statics: Statics) -> int | None:
    """How many positions a query sees at most; None for all up to its own, as for a number beyond int32, the format of
    positions."""
    window = statics.whole_number("window", 2**31, least=1, way_out="leave it out where there is no window")
    return window if window < 2**31 else None


def _attend(statics: Statics) -> ops.Attend:
    lse, given = statics.flag("lse"), statics.operands(("pos", "length", "window", "pages"))
    page, along, more = _pool(statics, given)
    if more:
        way_out = f"attend[{page or along}{along if page else more[0]}, ...](..., pages=table) reads pages"
        raise statics.wrong("one dimension numbers positions, and with a table of pages two", statics.at, way_out)
    if not any(isinstance(static, syntax.DimsStatic | syntax.WordStatic) for static in statics.left):
        raise statics.wrong("name the positions, then what scores are summed over", None, "as in attend[T, D](q, k, v)")
    return ops.Attend(
        along,
        statics.dim(),
        causal=statics.dim_option("causal"),
        window=_window(statics),
        scale=statics.number("scale", 1.0),
        softcap=statics.number("softcap", 0.0),
        lse=lse,
        given=given,
        page=page,
    )


def _grouped(statics: Statics) -> ops.Grouped:
    index = statics.dim()
    if not any(isinstance(static, syntax.DimsStatic | syntax.WordStatic) for static in statics.left):
        raise statics.wrong("name what is indexed, then what is summed", None, "as in grouped[X, E](x, w, expert)")
    return ops.Grouped(index, statics.dims())


def _foreign(statics: Statics) -> ops.Foreign:
    return ops.Foreign(
        statics.name(),
        splits=statics.dims_option("splits"),
        flops=statics.number("flops", 0),
        params=statics.text("params"),
        result=statics.whole_number("result", 0),
        dtype=statics.dtype(),
        dims=statics.dims(least=0),
    )


def _fetch(statics: Statics) -> ops.Fetch:
    ahead, wrap = _ahead(statics, "")
    return ops.Fetch(ahead=ahead, wrap=wrap)


def _all_gather(statics: Statics) -> ops.AllGather:
    axes = statics.axes()
    ahead, wrap = _ahead(statics, "x, ")
    return ops.AllGather(axes, ahead=ahead, wrap=wrap)


def _ahead(statics: Statics, before: str) -> tuple[tuple[str, ...], bool]:
    ahead, wrap = statics.dims_option("ahead"), _wraps(statics)
    if wrap and not ahead:
        raise statics.wrong("wrap goes with ahead", None, f"as in {statics.keyword}[{before}ahead=N, wrap=true](w)")
    return ahead, wrap


Builder = Callable[[Statics], Operation]


def _function(name: str) -> Builder:
    forms = FORMS[name]
    return lambda statics: ops.Function(name, statics.word("form", forms[0], forms) if len(forms) > 1 else "")


BUILDERS: dict[str, Builder] = {
    **{name: _function(name) for name in FORMS if name.isidentifier() and name != "neg"},
    "convert": lambda s: ops.Convert(s.dtype()),
    "bitcast": lambda s: ops.Bitcast(s.dtype()),
    "sum": lambda s: ops.Sum(s.dims()),
    "max": lambda s: ops.Max(s.dims()),
    "argmax": lambda s: ops.Argmax(s.dim()),
    "cumsum": lambda s: ops.Cumsum(s.dim()),
    "layernorm": lambda s: ops.Layernorm(eps=s.number("eps", 1e-5), dims=s.dims()),
    "rmsnorm": lambda s: ops.Rmsnorm(eps=s.number("eps", 1e-6), dims=s.dims()),
    "softmax": _softmax,
    "attend": _attend,
    "join_attention": lambda _: ops.JoinAttention(),
    "grouped": _grouped,
    "lookup": lambda s: ops.Lookup(wrap=_wraps(s), dim=s.dim()),
    "iota": _iota,
    "full": lambda s: ops.Full(dtype=s.dtype(), dims=s.dims(least=0)),
    "foreign": _foreign,
    "rotary": _rotary,
    "update": _update,
    "uniform": lambda s: ops.Uniform(s.dims()),
    "topk": _topk,
    "take": _take,
    "concat": lambda s: ops.Concat(by=s.blocks(), dim=s.dim()),
    "rename": _rename,
    "split": _split,
    "merge": _merge,
    "all_gather": _all_gather,
    "all_reduce": lambda s: ops.AllReduce(s.axes()),
    "reduce_scatter": lambda s: ops.ReduceScatter(s.arrows_from_axes()),
    "all_to_all": lambda s: ops.AllToAll(s.transfers()),
    "slice": lambda s: ops.Slice(s.arrows_from_axes()),
    "as_partial": lambda s: ops.AsPartial(s.axes()),
    "roll": _roll,
    "permute": _permute,
    "fetch": _fetch,
    "prefetch": lambda s: ops.Start(_fetch(s)),
    "store": lambda s: ops.Store(s.tier()),
    "wait": lambda _: ops.Wait(),
}


_CONTRACT = "contraction is written a @ b, or a @[E] b to name what is summed"
_RESHAPE = "values match by the names of dimensions; split, merge and rename change them"
_ELSEWHERE = {
    **dict.fromkeys(("matmul", "dot", "einsum", "contract", "mm", "bmm", "linear"), _CONTRACT),
    **dict.fromkeys(("transpose", "reshape", "view", "swapaxes", "flatten"), _RESHAPE),
    **dict.fromkeys(("broadcast", "expand", "unsqueeze", "repeat"), "operands broadcast by the names of dimensions"),
    **dict.fromkeys(("cast", "astype", "to"), "write convert[bf16](x)"),
    **dict.fromkeys(("psum", "allreduce"), "write all_reduce[x](h)"),
    **dict.fromkeys(("psum_scatter", "reducescatter"), "write reduce_scatter[x -> E](h)"),
    **dict.fromkeys(("add", "sub", "mul", "div", "neg"), "arithmetic is written + - * /"),
    **dict.fromkeys(("zeros", "ones", "constant"), "give a number a type, as in z: f32 BE = 0"),
    **dict.fromkeys(("embedding", "gather", "take_along"), "write lookup[V](table, ids)"),
    **dict.fromkeys(("ragged_dot", "grouped_mm", "gmm"), "write grouped[X, E](x, w, expert)"),
    **dict.fromkeys(("rope", "rotate"), "write rotary[D](x, pos)"),
    "mean": "write sum[E](x) / size[E]",
    "arange": "write iota[T]()",
}
"""What other libraries call things, and how this language writes them."""


def build_operation(call: syntax.CallExpr, mesh: Mesh) -> Operation:
    """The operation that a call names. Raises a located `DiagnosticError` for unknown names and wrong statics."""
    if call.name == "start":
        return _started(call, mesh)
    builder = BUILDERS.get(call.name)
    if builder is None:
        known = [*BUILDERS, "start"]
        listed = f"the operations are {', '.join(sorted(known))}"
        way_out = _ELSEWHERE.get(call.name) or nearest(call.name, known) or listed
        name = Span(call.span.line, call.span.column, call.span.line, call.span.column + len(call.name))
        raise fault("unknown-operation", f"there is no operation {call.name}", name, way_out)
    statics = Statics(call, mesh)
    operation = builder(statics)
    statics.finish()
    least, most = operation.arity
    given = len(call.args or ()) - len(operation.keywords)
    for arg in call.args or ():
        if isinstance(arg, syntax.KeywordExpr) and arg.name not in operation.keywords:
            message = f"{call.name} has no operand {arg.name}="
            note = f"those that it may do without are {', '.join(statics.named)}" if statics.named else ""
            if arg.name in statics.options:
                note = OPTIONS
            raise fault("wrong-operands", message, arg.span, note or "write it without a name")
    if not least <= given <= most:
        wanted = str(least) if least == most else f"{least} to {most}" if most < 1000 else f"{least} or more"
        plural = "operand" if wanted == "1" else "operands"
        raise fault("wrong-operands", f"{call.name} takes {wanted} {plural}, and {given} are given", call.span)
    return operation


def _started(call: syntax.CallExpr, mesh: Mesh) -> Operation:
    """`start(store[host](h))`: its operand is a movement, not a value."""
    args = call.args or ()
    moved = args[0] if len(args) == 1 and not call.statics else None
    operation = build_operation(moved, mesh) if isinstance(moved, syntax.CallExpr) else None
    if not isinstance(operation, ops.Movement) or isinstance(operation, ops.Start | ops.Wait):
        raise fault(
            "wrong-operands",
            "start takes one movement",
            call.span,
            "write it inside: start(store[host](h)), start(all_gather[x](w)); prefetch(w) is start(fetch(w))",
        )
    return ops.Start(operation)


def operands_of(call: syntax.CallExpr) -> tuple[syntax.Expr, ...]:
    """The expressions that a call's operation is applied to: of `start(store[host](h))`, h."""
    args = call.args or ()
    if call.name == "start" and args and isinstance(args[0], syntax.CallExpr):
        return operands_of(args[0])
    return tuple(arg.value if isinstance(arg, syntax.KeywordExpr) else arg for arg in args)
