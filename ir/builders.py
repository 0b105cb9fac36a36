"""From a call as written, `softmax[T, causal=L](s)`, to its operation: one builder for each keyword."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwright.ir import ops, syntax
from shardwright.ir.diagnostics import Span, did_you_mean, fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Operation
from shardwright.ir.types import Axes, DType, Tier, axis_set, is_short_axis


class Statics:
    """The statics of one call, taken one by one; whatever is left over in the end is a fault."""

    def __init__(self, call: syntax.CallExpr, mesh: Mesh) -> None:
        self.keyword = call.name
        self.span = call.span
        self.mesh = mesh
        self.left = list(call.statics)
        self.options: list[str] = []
        """The options that the operation asked for."""
        self.at = call.span
        """The place of the dimensions last read."""

    def wrong(self, message: str, span: Span | None = None, *notes: str) -> Exception:
        return fault("bad-static", f"{self.keyword}: {message}", span or self.span, *notes)

    def _option(self, name: str) -> syntax.OptionStatic | None:
        self.options.append(name)
        for static in self.left:
            if isinstance(static, syntax.OptionStatic) and static.name == name:
                self.left.remove(static)
                return static
        return None

    def number(self, name: str, default: float) -> float:
        """`eps=1e-5`."""
        option = self._option(name)
        if option is None:
            return default
        value = option.value
        sign = 1.0
        if isinstance(value, syntax.NegExpr) and isinstance(value.operand, syntax.NumberExpr):
            sign, value = -1.0, value.operand
        if not isinstance(value, syntax.NumberExpr):
            raise self.wrong(f"{name} is a number", option.span, f"as in {name}={default:g}")
        return sign * float(value.value)

    def whole_number(self, name: str, default: int) -> int:
        written = next((s for s in self.left if isinstance(s, syntax.OptionStatic) and s.name == name), None)
        value = self.number(name, default)
        if not 0 <= value < 10**15 or value != int(value):
            raise self.wrong(f"{name} is a whole number, not {value:g}", written.span if written else None)
        return int(value)

    def word(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """`style=neox`."""
        option = self._option(name)
        if option is None:
            return default
        word = option.value.words[0] if isinstance(option.value, syntax.WordStatic) else ""
        if word not in allowed:
            given = f", not {word}" if word else ""
            raise self.wrong(f"{name} is {' or '.join(allowed)}{given}", option.span)
        return word

    def dim_option(self, name: str) -> str | None:
        """`causal=L`."""
        option = self._option(name)
        if option is None:
            return None
        if isinstance(option.value, syntax.DimsStatic) and len(option.value.dims) == 1:
            return option.value.dims[0].name
        if isinstance(option.value, syntax.WordStatic) and len(option.value.words) == 1:
            return option.value.words[0]
        raise self.wrong(f"{name} is a dimension", option.span)

    def axes_option(self, name: str) -> tuple[str, ...]:
        option = self._option(name)
        if option is None:
            return ()
        if not isinstance(option.value, syntax.WordStatic):
            raise self.wrong(f"{name} names mesh axes", option.span)
        return self._axes(option.value)

    def _axes(self, static: syntax.WordStatic) -> tuple[str, ...]:
        """Mesh axes in the order written."""
        words = list(static.words)
        if not static.braces and words[0] not in self.mesh:
            words = _letters(words[0])
        for word in words:
            if word not in self.mesh:
                near = did_you_mean(word, self.mesh.axes)
                raise fault(
                    "unknown-axis",
                    f"{self.keyword}: the mesh has no axis {word}",
                    static.span,
                    f"did you mean {near}?"
                    if near
                    else f"the mesh is {self.mesh}"
                    if len(self.mesh)
                    else "add a mesh line",
                )
        if len(set(words)) != len(words):
            raise self.twice(words, static.span)
        return tuple(words)

    def twice(self, axes: Sequence[str], span: Span) -> Exception:
        axis = next(axis for axis in axes if axes.count(axis) > 1)
        return fault("axis-twice", f"{self.keyword} names {axis} twice", span, f"name {axis} once")

    def axes(self) -> Axes:
        """`[yz]`."""
        for static in self.left:
            if isinstance(static, syntax.WordStatic):
                self.left.remove(static)
                return axis_set(self._axes(static))
        raise self.wrong("name the mesh axes", None, f"as in {self.keyword}[{''.join(self.mesh.axes[:1]) or 'x'}](...)")

    def arrows_from_axes(self) -> tuple[tuple[Axes, str], ...]:
        """`[x -> F, y -> B]`."""
        made: list[tuple[Axes, str]] = []
        for static in list(self.left):
            if isinstance(static, syntax.ArrowStatic):
                self.left.remove(static)
                if not isinstance(static.left, syntax.WordStatic):
                    raise self.wrong("mesh axes stand before the arrow, a dimension after it", static.span)
                made.append((axis_set(self._axes(static.left)), self._one_dim(static.right)))
        if not made:
            raise self.wrong("say which axes come to split which dimension", None, f"as in {self.keyword}[x -> E](...)")
        named = [axis for axes, _ in made for axis in axes]
        if len(set(named)) != len(named):
            raise self.twice(named, self.span)
        return tuple(made)

    def transfers(self) -> tuple[tuple[Axes, str, str], ...]:
        """`[x: H -> B, y: B -> H]`."""
        made: list[tuple[Axes, str, str]] = []
        for static in list(self.left):
            if isinstance(static, syntax.MoveStatic):
                self.left.remove(static)
                source, target = self._one_dim(static.source), self._one_dim(static.target)
                made.append((axis_set(self._axes(static.axes)), source, target))
        if not made:
            raise self.wrong("say which axes move from where to where", None, "as in all_to_all[x: H -> B](...)")
        named = [axis for axes, _, _ in made for axis in axes]
        if len(set(named)) != len(named):
            raise self.twice(named, self.span)
        return tuple(made)

    def arrows(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """`[H -> KG]` between dimensions."""
        made: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        for static in list(self.left):
            if isinstance(static, syntax.ArrowStatic):
                self.left.remove(static)
                left = _dim_names(static.left)
                if left is None:
                    raise self.wrong("dimensions stand on both sides of the arrow", static.span)
                made.append((left, tuple(dim.name for dim in static.right.dims)))
        if not made:
            raise self.wrong("say which dimension becomes which", None, f"as in {self.keyword}[L -> T](...)")
        return tuple(made)

    def _one_dim(self, static: syntax.DimsStatic) -> str:
        if len(static.dims) != 1:
            names = "".join(dim.name for dim in static.dims)
            raise self.wrong(f"one dimension stands here, not the {len(static.dims)} of {names}", static.span)
        return static.dims[0].name

    def dims(self, *, least: int = 1) -> tuple[str, ...]:
        """`[T]` or `[BL]`; a lower-case word is a dimension too."""
        for static in self.left:
            names = _dim_names(static)
            if names is not None and not (least == 0 and _is_dtype(static)):
                self.left.remove(static)
                self.at = static.span
                if len(set(names)) != len(names):
                    raise self.wrong(f"a dimension stands twice in {''.join(names)}", static.span)
                return names
        if least:
            raise self.wrong("say over which dimension", None, f"as in {self.keyword}[E](...)")
        return ()

    def dim(self) -> str:
        names = self.dims()
        if len(names) != 1:
            raise self.wrong(f"one dimension stands here, not the {len(names)} of {''.join(names)}", self.at)
        return names[0]

    def dtype(self) -> DType:
        for static in self.left:
            if isinstance(static, syntax.WordStatic) and _is_dtype(static):
                self.left.remove(static)
                return DType(static.words[0])
        raise self.wrong("name a number format", None, f"as in {self.keyword}[bf16](...); one of {', '.join(DType)}")

    def tier(self) -> Tier:
        for static in self.left:
            if isinstance(static, syntax.WordStatic) and static.words[0] in set(Tier):
                self.left.remove(static)
                return Tier(static.words[0])
        at = self.left[0].span if self.left else None
        raise self.wrong(f"name a memory: {', '.join(Tier)}", at, f"as in {self.keyword}[host](...)")

    def finish(self) -> None:
        """Raises where something was written that the operation does not know."""
        if self.left:
            static = self.left[0]
            span = static.span if static.span.line else None
            if isinstance(static, syntax.OptionStatic):
                near = did_you_mean(static.name, self.options)
                if near is None and static.name[:3] in {name[:3] for name in self.options}:
                    near = next(name for name in self.options if name[:3] == static.name[:3])
                listed = f"its options are {', '.join(self.options)}" if self.options else "it has none"
                way_out = f"did you mean {near}?" if near else listed
                raise self.wrong(f"there is no option {static.name}", span, way_out)
            names = _dim_names(static)
            what = f"`{''.join(names)}`" if names else "this"
            raise self.wrong(f"{what} does not belong between its brackets", span)


def _letters(word: str) -> list[str]:
    """`yz` as `y`, `z`, and `x0y` as `x0`, `y`; the word itself where it is not made so."""
    parts: list[str] = []
    for character in word:
        if character.isdigit() and parts:
            parts[-1] += character
        else:
            parts.append(character)
    return parts if all(is_short_axis(part) for part in parts) else [word]


def _is_dtype(static: syntax.Static) -> bool:
    return isinstance(static, syntax.WordStatic) and static.words[0] in set(DType)


def _dim_names(static: syntax.Static) -> tuple[str, ...] | None:
    if isinstance(static, syntax.DimsStatic):
        return tuple(dim.name for dim in static.dims)
    if isinstance(static, syntax.WordStatic) and not static.braces:
        return static.words
    return None


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
    by = statics.axes_option("by")
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


def _rotary(statics: Statics) -> Operation:
    return ops.Rotary(
        base=statics.number("base", 10000.0),
        style=statics.word("style", "neox", ("neox", "gptj")),
        rotated=statics.whole_number("rotated", 0),
        seq=statics.dim_option("seq"),
        dim=statics.dim(),
    )


def _softmax(statics: Statics) -> Operation:
    return ops.Softmax(
        causal=statics.dim_option("causal"), window=statics.whole_number("window", 0), dims=statics.dims()
    )


Builder = Callable[[Statics], Operation]


def _plain(operation: Callable[[], Operation]) -> Builder:
    return lambda _statics: operation()


_FUNCTIONS: tuple[Callable[[], Operation], ...] = (
    ops.Silu,
    ops.Relu,
    ops.Exp,
    ops.Log,
    ops.Sqrt,
    ops.Rsqrt,
    ops.Tanh,
    ops.Sigmoid,
    ops.Cos,
    ops.Sin,
    ops.Abs,
    ops.Maximum,
    ops.Minimum,
    ops.Less,
    ops.LessEqual,
    ops.Equal,
    ops.LogicalAnd,
    ops.LogicalOr,
    ops.LogicalNot,
    ops.Where,
    ops.Fetch,
)

BUILDERS: dict[str, Builder] = {
    **{operation().keyword: _plain(operation) for operation in _FUNCTIONS},
    "gelu": lambda s: ops.Gelu(s.word("form", "exact", ("exact", "tanh"))),
    "convert": lambda s: ops.Convert(s.dtype()),
    "sum": lambda s: ops.Sum(s.dims()),
    "max": lambda s: ops.Max(s.dims()),
    "argmax": lambda s: ops.Argmax(s.dim()),
    "layernorm": lambda s: ops.Layernorm(eps=s.number("eps", 1e-5), dims=s.dims()),
    "rmsnorm": lambda s: ops.Rmsnorm(eps=s.number("eps", 1e-6), dims=s.dims()),
    "softmax": _softmax,
    "lookup": lambda s: ops.Lookup(s.dim()),
    "iota": lambda s: ops.Iota(s.dim()),
    "full": lambda s: ops.Full(dtype=s.dtype(), dims=s.dims(least=0)),
    "rotary": _rotary,
    "update": lambda s: ops.Update(s.dim()),
    "take": _take,
    "concat": lambda s: ops.Concat(by=s.axes_option("by"), dim=s.dim()),
    "rename": _rename,
    "split": _split,
    "merge": _merge,
    "all_gather": lambda s: ops.AllGather(s.axes()),
    "all_reduce": lambda s: ops.AllReduce(s.axes()),
    "reduce_scatter": lambda s: ops.ReduceScatter(s.arrows_from_axes()),
    "all_to_all": lambda s: ops.AllToAll(s.transfers()),
    "slice": lambda s: ops.Slice(s.arrows_from_axes()),
    "as_partial": lambda s: ops.AsPartial(s.axes()),
    "store": lambda s: ops.Store(s.tier()),
}


_CONTRACT = "contraction is written a @ b, or a @[E] b to name what is summed"
_RESHAPE = "values match by the names of dimensions; split, merge and rename change them"
_ELSEWHERE = {
    **dict.fromkeys(("matmul", "dot", "einsum", "contract", "mm", "bmm", "linear"), _CONTRACT),
    **dict.fromkeys(("transpose", "permute", "reshape", "view", "swapaxes", "flatten"), _RESHAPE),
    **dict.fromkeys(("broadcast", "expand", "unsqueeze", "repeat"), "operands broadcast by the names of dimensions"),
    **dict.fromkeys(("cast", "astype", "to"), "write convert[bf16](x)"),
    **dict.fromkeys(("psum", "allreduce"), "write all_reduce[x](h)"),
    **dict.fromkeys(("psum_scatter", "reducescatter"), "write reduce_scatter[x -> E](h)"),
    **dict.fromkeys(("add", "sub", "mul", "div", "neg"), "arithmetic is written + - * /"),
    **dict.fromkeys(("zeros", "ones", "constant"), "give a number a type, as in z: f32 BE = 0"),
    **dict.fromkeys(("embedding", "gather", "take_along"), "write lookup[V](table, ids)"),
    **dict.fromkeys(("rope", "rotate"), "write rotary[D](x, pos)"),
    "mean": "write sum[E](x) / size[E]",
    "arange": "write iota[T]()",
}
"""What other libraries call things, and how this language writes them."""


def build_operation(call: syntax.CallExpr, mesh: Mesh) -> Operation:
    """The operation that a call names. Raises a located `DiagnosticError` for unknown names and wrong statics."""
    builder = BUILDERS.get(call.name)
    if builder is None:
        near = did_you_mean(call.name, list(BUILDERS))
        hint = f"did you mean {near}?" if near else f"the operations are {', '.join(sorted(BUILDERS))}"
        name = Span(call.span.line, call.span.column, call.span.line, call.span.column + len(call.name))
        raise fault("unknown-operation", f"there is no operation {call.name}", name, _ELSEWHERE.get(call.name, hint))
    statics = Statics(call, mesh)
    operation = builder(statics)
    statics.finish()
    least, most = operation.arity
    given = len(call.args or ())
    if not least <= given <= most:
        wanted = str(least) if least == most else f"{least} to {most}" if most < 1000 else f"{least} or more"
        plural = "operand" if wanted == "1" else "operands"
        raise fault("wrong-operands", f"{call.name} takes {wanted} {plural}, and {given} are given", call.span)
    return operation
