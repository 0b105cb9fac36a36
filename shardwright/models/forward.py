"""The forward pass of a model as a program of the language, with comments that say what is what."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.description import Llama3Scaling, Model, Norm
from shardwright.models.layouts import Layout, Role, fit_layout
from shardwright.models.weights import Weight, model_weights

RESIDUAL = ("B", "L", "E")


def forward_program(model: Model, layout: str, mesh: Mesh, batch: int, length: int, dtype: DType) -> tuple[str, Layout]:
    """The text of the program, and the layout as it was fitted.

    `func forward(ids: int32 BL) -> f32 BLV`: logits at every position, positions counted from 0. Weights, the
    residual stream and the logits have the types that the layout demands; all others are left to the compiler.
    Scores and logits are f32, all else is `dtype`. Raises where there is no such layout.
    """
    sizes = model.sizes(batch, length)
    numbers = {name: size for name, size in sizes.items() if isinstance(size, int)}
    fitted = fit_layout(layout, mesh, numbers, model.attention.query_dims)
    writer = _Writer(model, fitted, mesh, dtype)
    lines = [*writer.header(), ""]
    if len(mesh):
        lines.append(f"mesh {mesh}")
    lines.append("dim " + " ".join(f"{name}={size}" for name, size in sizes.items()))
    lines += ["", *writer.declarations(), "", *writer.forward()]
    return _formatted("\n".join(lines) + "\n"), fitted


def _formatted(text: str) -> str:
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.format import format_module
    from shardwright.ir.parser import parse

    return format_module(parse(Source("<import>", text)))


class _Writer:
    def __init__(self, model: Model, layout: Layout, mesh: Mesh, dtype: DType) -> None:
        self.model = model
        self.layout = layout
        self.mesh = mesh
        self.dtype = dtype
        self.weights = {weight.name: weight for weight in model_weights(model)}

    # ------------------------------------------------------------ types

    def type(self, dtype: DType, dims: Sequence[str], roles: Iterable[Role | None]) -> str:
        """A type with the layout's splits."""
        from shardwright.ir.format import format_type
        from shardwright.ir.syntax import Row, RowDim, TypeExpr

        row = Row(tuple(RowDim(dim, self.layout.split(role, dim)) for dim, role in zip(dims, roles, strict=True)))
        return format_type(TypeExpr(str(dtype), row))

    def weight_type(self, weight: Weight) -> str:
        return self.type(self.dtype, weight.dims, weight.roles)

    @property
    def residual(self) -> str:
        return self.type(self.dtype, RESIDUAL, (None, None, Role.RESIDUAL))

    @property
    def logits(self) -> str:
        return self.type(DType.F32, ("B", "L", "V"), (None, None, Role.VOCAB))

    # ------------------------------------------------------------ what stands above the function

    def header(self) -> list[str]:
        model = self.model
        blocks = "parallel blocks" if model.parallel else "serial blocks"
        tied = "tied embeddings" if model.tied else "separate embeddings of input and output"
        pieces = [blocks, model.norm.title, model.attention.title, model.feedforward.title, tied]
        paragraphs = [
            f"{model.architecture}: the whole forward pass. {_capital(', '.join(pieces))}.",
            f"Layout {self.layout.name}: {self.where()}.",
            *(f"{sentence}." for sentence in (*self.layout.dropped, *self.whole_keys())),
            "B batch, L positions of the queries, T of the keys, N layers, E embedding, F feedforward, V vocabulary,"
            f" {self.heads_key()}D elements of a head{self.frequencies_key()}.",
        ]
        return [line for paragraph in paragraphs for line in _comment(paragraph)]

    def heads_key(self) -> str:
        if self.model.attention.query_dims == ("K", "G"):
            return "K heads of keys and values, G heads of queries for each, "
        return "H heads, "

    def frequencies_key(self) -> str:
        return "" if self.model.rotary.scaling is None else ", R pairs of elements that turn"

    def where(self) -> str:
        split = self.layout.split
        heads = tuple(axis for dim in self.model.attention.query_dims for axis in split(Role.HEADS, dim))
        weights = [
            _splits("E", split(Role.EMBED, "E")),
            _splits("F", split(Role.FEEDFORWARD, "F")),
            _splits("heads", self.mesh.sorted(heads)),
        ]
        return "; ".join(
            [
                f"the residual stream is split {_splits('E', split(Role.RESIDUAL, 'E')) or 'over no axis'}",
                f"weights are split {', '.join(filter(None, weights)) or 'over no axis'}",
                f"embedding tables {_splits('V', split(Role.VOCAB, 'V')) or 'over no axis'}",
            ]
        )

    def whole_keys(self) -> list[str]:
        """What is to be said of keys and values that have fewer heads than the mesh could split."""
        attention = self.model.attention
        queries = [axis for dim in attention.query_dims for axis in self.layout.split(Role.HEADS, dim)]
        keys = [axis for dim in attention.key_dims for axis in self.layout.split(Role.HEADS, dim)]
        left = self.mesh.sorted(set(queries) - set(keys))
        if not left:
            return []
        heads = "a single head" if attention.kv_heads == 1 else f"{attention.kv_heads} heads"
        return [f"wk and wv, of {heads}, are not split over {' '.join(left)}, which split the queries' heads"]

    def declarations(self) -> list[str]:
        lines = [f"  {weight.name}: {self.weight_type(weight)}" for weight in self.weights.values()]
        return ["weights {", *lines, "}"]

    # ------------------------------------------------------------ the function

    def forward(self) -> list[str]:
        model = self.model
        table = "embed" if model.tied else "unembed"
        lines = [f"func forward(ids: int32 BL) -> {self.logits} {{", "  pos = iota[L]()", *self.frequencies()]
        lines.append(f"  x: {self.residual} = lookup[V](embed, ids)")
        lines.append(f"  last: {self.residual} = loop[N](h: {self.residual} = x) {{")
        lines += self.parallel_block() if model.parallel else self.serial_block()
        lines += ["  }", f"  y = {self.normed('last', 'final_norm', model.norm)}"]
        if model.logit_scale == 1.0:
            lines.append(f"  logits: {self.logits} = y @[E] {table}")
        else:
            lines.append(f"  unscaled: f32 BLV? = y @[E] {table}")
            lines.append(f"  logits: {self.logits} = unscaled * {number(model.logit_scale)}")
        return [*lines, "  return logits", "}"]

    def parallel_block(self) -> list[str]:
        return [
            f"    a = {self.normed('h', 'block_norm', self.model.norm)}",
            *self.attention("a"),
            *self.feedforward("a"),
            "    next h + (attended + fed)",
        ]

    def serial_block(self) -> list[str]:
        return [
            f"    a = {self.normed('h', 'attention_norm', self.model.norm)}",
            *self.attention("a"),
            f"    middle: {self.residual} = h + attended",
            f"    b = {self.normed('middle', 'feedforward_norm', self.model.norm)}",
            *self.feedforward("b"),
            "    next middle + fed",
        ]

    def normed(self, value: str, weight: str, norm: Norm, dim: str = "E") -> str:
        offset = f", {weight}_offset" if norm.offset else ""
        return f"{norm.kind}[{dim}, eps={number(norm.eps)}]({value}, {weight}{offset})"

    def projected(self, value: str, weight: str, bias: str) -> str:
        return f"{value} @ {weight}" + (f" + {bias}" if bias in self.weights else "")

    def attention(self, source: str) -> list[str]:
        attention = self.model.attention
        rows = "".join(attention.query_dims)
        queries, keys = self.projected(source, "wq", "bq"), self.projected(source, "wk", "bk")
        lines = ["", f"    # {_capital(attention.title)}."]
        if attention.head_norm is not None:
            lines.append(f"    q_raw = {queries}")
            lines.append(f"    k_raw = {keys}")
            queries = self.normed("q_raw", "q_norm", attention.head_norm, "D")
            keys = self.normed("k_raw", "k_norm", attention.head_norm, "D")
        lines.append(f"    q = {self.turned(queries)}")
        lines.append(f"    k = rename[L -> T]({self.turned(keys)})")
        lines.append(f"    v = rename[L -> T]({self.projected(source, 'wv', 'bv')})")
        lines.append(f"    s: f32 BL{rows}T? = q @[D] k")
        probabilities = f"softmax[T, causal=L](s * {number(attention.scale)})"
        if self.dtype is not DType.F32:
            probabilities = f"convert[{self.dtype}]({probabilities})"
        lines.append(f"    p = {probabilities}")
        lines.append("    o = p @[T] v")
        lines.append(f"    attended = o @[{rows}D] wo" + (" + bo" if attention.out_bias else ""))
        return lines

    def turned(self, value: str) -> str:
        """The rotary embedding of a value."""
        rotary = self.model.rotary
        rotated = f", rotated={rotary.rotated}" if rotary.rotated else ""
        operands = "pos" if rotary.scaling is None else "pos, frequencies"
        return f"rotary[D, base={number(rotary.base)}, style={rotary.style}{rotated}]({value}, {operands})"

    def frequencies(self) -> list[str]:
        """The frequencies of a scaled rotary embedding; `rotary` knows those of the plain one."""
        rotary = self.model.rotary
        if rotary.scaling is None:
            return []
        pairs = rotary.rotated or self.model.attention.head_dim
        lines = [
            "",
            f"  # The frequencies of the rotary embedding: {number(rotary.base)}^(-2r/{pairs}), scaled.",
            "  r = convert[f32](iota[R]())",
            f"  plain = exp(r * {number(-2 * math.log(rotary.base) / pairs)})",
        ]
        scaling = rotary.scaling
        if not isinstance(scaling, Llama3Scaling):
            return [*lines, f"  frequencies = plain / {number(scaling.factor)}", ""]
        periods = number(scaling.context / (2 * math.pi))
        blend = f"(plain * {periods} - {number(scaling.low)}) / {number(scaling.high - scaling.low)}"
        return [
            *lines,
            f"  # 0 where fewer than {number(scaling.low)} periods fit in {scaling.context} positions,"
            f" 1 where more than {number(scaling.high)} do.",
            f"  kept = minimum(maximum({blend}, 0.0), 1.0)",
            f"  frequencies = plain * (kept + (1.0 - kept) / {number(scaling.factor)})",
            "",
        ]

    def feedforward(self, source: str) -> list[str]:
        feedforward = self.model.feedforward
        up = self.projected(source, "w_up", "b_up")
        lines = ["", f"    # {_capital(feedforward.title)}."]
        if feedforward.gated:
            lines.append(f"    gate = {feedforward.activation}({self.projected(source, 'w_gate', 'b_gate')})")
            lines.append(f"    inner = gate * ({up})")
        else:
            lines.append(f"    inner = {feedforward.activation}({up})")
        lines.append(f"    fed = {self.projected('inner', 'w_down', 'b_down')}")
        return lines


def number(value: float) -> str:
    """A number as the language writes it, exact in f64."""
    text = repr(float(value))
    return text.replace("e-0", "e-").replace("e+", "e")


def _splits(what: str, axes: Sequence[str]) -> str:
    return f"along {what} over {' '.join(axes)}" if axes else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _comment(paragraph: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(paragraph, 100, break_on_hyphens=False)]
