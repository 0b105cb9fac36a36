"""The statements of one layer of a model, and of the norms and rotary embeddings in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.ir.types import DType
from shardwright.models.description import Llama3Scaling, Model, Norm
from shardwright.models.experts import replicated, returned, sent
from shardwright.models.value_types import ValueTypes
from shardwright.models.weights import Weight


@dataclass(frozen=True)
class Layer:
    """Writes the body of the loop over layers.

    `cached` says that keys and values go to a cache, `padded` that rows may end in padding, `decomposed` that attention
    is written as products and a softmax.
    """

    model: Model
    types: ValueTypes
    weights: dict[str, Weight]
    cached: bool
    padded: bool = False
    decomposed: bool = False

    @property
    def tells_padding(self) -> bool:
        """Tells whether padding is told from tokens: it takes no slots of experts where there are too few."""
        return self.padded and self.types.groups is not None and self.types.groups.bounded

    def lines(self) -> list[str]:
        """From `h`, the residual stream, to the next."""
        if self.model.parallel:
            return self.parallel_block()
        return self.serial_block() if self.model.norm_first else self.normed_after()

    def parallel_block(self) -> list[str]:
        norm = self.model.norm
        if self.model.shared_norm:
            lines, source = [*self.normed("a", "h", "block_norm", norm)], "a"
        else:
            lines = [*self.normed("a", "h", "attention_norm", norm), *self.normed("b", "h", "feedforward_norm", norm)]
            source = "b"
        return [*lines, *self.attention("a"), *self.feedforward(source), "    next h + (attended + fed)"]

    def serial_block(self) -> list[str]:
        norm = self.model.norm
        return [
            *self.normed("a", "h", "attention_norm", norm),
            *self.attention("a"),
            f"    middle: {self.types.residual} = h + attended",
            *self.normed("b", "middle", "feedforward_norm", norm),
            *self.feedforward("b"),
            "    next middle + fed",
        ]

    def normed_after(self) -> list[str]:
        norm, residual = self.model.norm, self.types.residual
        return [
            *self.attention("h"),
            f"    summed: {residual} = h + attended",
            *self.normed(f"middle: {residual}", "summed", "attention_norm", norm),
            *self.feedforward("middle"),
            f"    total: {residual} = middle + fed",
            *self.normed(f"following: {residual}", "total", "feedforward_norm", norm),
            "    next following",
        ]

    # ------------------------------------------------------------ norms and projections

    def normed(self, name: str, value: str, weight: str, norm: Norm, dim: str = "E", indent: str = "    ") -> list[str]:
        """`name = layernorm[E](value, weight)`, with a line before where the scale is 1 + the weight."""
        lines: list[str] = []
        operands = [value]
        if norm.scale == "one-plus":
            scale = weight if self.types.dtype is DType.F32 else f"convert[f32]({weight})"
            lines.append(f"{indent}{weight}_scale = {scale} + 1.0")
            operands.append(f"{weight}_scale")
        elif norm.scale == "weight":
            operands += [weight, f"{weight}_offset"] if norm.offset else [weight]
        return [*lines, f"{indent}{name} = {norm.kind}[{dim}, eps={number(norm.eps)}]({', '.join(operands)})"]

    def gathered(self, *names: str) -> list[str]:
        """The weights as they are used, where the layout gathers them."""
        lines = [(name, self.types.used(self.weights[name])) for name in names]
        return [f"    {name}_gathered: {used} = {name}" for name, used in lines if used is not None]

    def at_hand(self, name: str) -> str:
        return name if self.types.used(self.weights[name]) is None else f"{name}_gathered"

    def projected(self, value: str, weight: str, bias: str, over: str = "") -> str:
        return f"{value} @{over} {self.at_hand(weight)}" + (f" + {bias}" if bias in self.weights else "")

    # ------------------------------------------------------------ attention

    def attention(self, source: str) -> list[str]:
        attention, types = self.model.attention, self.types
        heads, rows = "".join(attention.query_dims), types.rows
        cache = {"k": rows.keys, "v": rows.values} if self.cached else {"k": "k", "v": "v"}
        projections = {
            name: self.projected(source, weight, bias)
            for name, weight, bias in (("q", "wq", "bq"), ("k", "wk", "bk"), ("v", "wv", "bv"))
        }
        lines = ["", f"    # {capital(attention.title)}.", *self.gathered("wq", "wk", "wv", "wo")]
        if attention.head_norm is not None:
            for name in ("q", "k"):
                lines.append(f"    {name}_raw = {projections[name]}")
                normed = self.normed("", f"{name}_raw", f"{name}_norm", attention.head_norm, "D")
                lines += normed[:-1]
                projections[name] = normed[-1].partition(" = ")[2]
        lines.append(f"    {named('q', types.queries)} = {self.turned(projections['q'])}")
        projections["k"] = self.turned(projections["k"])
        for name in ("k", "v"):
            if self.cached:
                kind = types.attention("L", attention.key_dims)
                lines.append(f"    {named(f'{name}_new', kind)} = {projections[name]}")
                lines.append(f"    set {cache[name]} = update[T]({cache[name]}, {name}_new, {rows.position})")
            else:
                kind = types.attention("T", attention.key_dims)
                lines.append(f"    {named(name, kind)} = rename[L -> T]({projections[name]})")
        window = f", window={attention.window}" if attention.window else ""
        attended = f"    attended = o @[{heads}D] {self.at_hand('wo')}" + (" + bo" if attention.out_bias else "")
        if not self.decomposed:
            scale = "" if attention.scale == 1.0 else f", scale={number(attention.scale)}"
            pos = f", pos={rows.position}" if self.cached else ""
            call = f"attend[T, D, causal=L{window}{scale}](q, {cache['k']}, {cache['v']}{pos})"
            return [*lines, f"    o = {call}", attended]
        lines.append(f"    s: f32 {rows.dim}L{heads}T? = q @[D] {cache['k']}")
        scaled = "s" if attention.scale == 1.0 else f"s * {number(attention.scale)}"
        probabilities = f"softmax[T, causal=L{window}]({scaled}{f', {rows.position}' if self.cached else ''})"
        if types.dtype is not DType.F32:
            probabilities = f"convert[{types.dtype}]({probabilities})"
        lines.append(f"    p = {probabilities}")
        return [*lines, f"    o = p @[T] {cache['v']}", attended]

    def turned(self, value: str) -> str:
        """The rotary embedding of a value, where there is one."""
        rotary = self.model.rotary
        if rotary is None:
            return value
        rotated = f", rotated={rotary.rotated}" if rotary.rotated else ""
        operands = "at" if self.cached else "pos"
        operands += "" if rotary.scaling is None else ", frequencies"
        return f"rotary[D, base={number(rotary.base)}, style={rotary.style}{rotated}]({value}, {operands})"

    # ------------------------------------------------------------ feedforward

    def feedforward(self, source: str) -> list[str]:
        feedforward, types = self.model.feedforward, self.types
        experts, sending = feedforward.experts, types.groups is not None
        names = ("w_gate", "w_up", "w_down") if feedforward.gated else ("w_up", "w_down")
        lines = ["", f"    # {capital(feedforward.title)}.", *self.gathered(*names)]
        if sending:
            lines += sent(source, types, padded=self.tells_padding)
            source = "sent"
        elif experts is not None:
            lines += replicated(source, experts, types.dtype)
        over = "" if experts is None else "[E]"
        up = self.projected(source, "w_up", "b_up", over)
        inner = f"{feedforward.activation}({up})"
        if feedforward.gated:
            gate = f"{feedforward.activation}({self.projected(source, 'w_gate', 'b_gate', over)})"
            lines.append(f"    {named('gate', types.hidden)} = {gate}")
            inner = f"gate * ({up})"
        if experts is None:
            lines.append(f"    {named('inner', types.hidden)} = {inner}")
            return [*lines, f"    fed = {self.projected('inner', 'w_down', 'b_down')}"]
        lines.append(f"    {named('each', types.hidden)} = {inner}")
        if sending:
            return [*lines, *returned(types, self.at_hand("w_down"))]
        lines.append(f"    {named('inner', types.hidden)} = each * share")
        return [*lines, f"    fed = inner @[XF] {self.at_hand('w_down')}"]


def frequencies(model: Model) -> list[str]:
    """The frequencies of a scaled rotary embedding; `rotary` knows those of the plain one."""
    rotary = model.rotary
    if rotary is None or rotary.scaling is None:
        return []
    pairs = rotary.rotated or model.attention.head_dim
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


def named(name: str, kind: str | None) -> str:
    """`name: kind`, or the name alone."""
    return name if kind is None else f"{name}: {kind}"


def number(value: float) -> str:
    """A number as the language writes it, exact in f64."""
    text = repr(float(value))
    return text.replace("e-0", "e-").replace("e+", "e")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
