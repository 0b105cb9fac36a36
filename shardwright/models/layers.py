"""The statements of one layer of a model, and of the norms and rotary embeddings in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, pairwise

from shardwright.ir.types import DType
from shardwright.models.description import Model, Norm, RotarySpec
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
        return self.parallel_block() if self.model.parallel else self.serial_block()

    def parallel_block(self) -> list[str]:
        norm = self.model.norm
        if self.model.shared_norm:
            lines, source = [*self.normed("a", "h", "block_norm", norm)], "a"
        else:
            lines = [*self.normed("a", "h", "attention_norm", norm), *self.normed("b", "h", "feedforward_norm", norm)]
            source = "b"
        added = self.scaled("(attended + fed)")
        return [*lines, *self.attention("a"), *self.feedforward(source), f"    next h + {added}"]

    def serial_block(self) -> list[str]:
        norms, norm, residual = self.model.norms, self.model.norm, self.types.residual
        attended, fed, lines, last = "attended", "fed", list[str](), list[str]()
        first, second = ("a", "b") if norms in ("before", "around") else ("h", "middle")
        if first == "a":
            lines = self.normed("a", "h", "attention_norm", norm)
        lines += self.attention(first)
        if norms in ("after", "around"):
            lines += self.normed("attended_normed", attended, "attended_norm", norm)
            attended, fed = "attended_normed", "fed_normed"
            last = self.normed(fed, "fed", "fed_norm", norm)
        added = f"h + {self.scaled(attended)}"
        if norms == "sums":
            lines.append(f"    summed: {residual} = {added}")
            lines += self.normed(f"middle: {residual}", "summed", "attention_norm", norm)
        else:
            lines.append(f"    middle: {residual} = {added}")
        if second == "b":
            lines += self.normed("b", "middle", "feedforward_norm", norm)
        lines += [*self.feedforward(second), *last]
        added = f"middle + {self.scaled(fed)}"
        if norms != "sums":
            return [*lines, f"    next {added}"]
        lines.append(f"    total: {residual} = {added}")
        return [*lines, *self.normed(f"following: {residual}", "total", "feedforward_norm", norm), "    next following"]

    def scaled(self, branch: str) -> str:
        """The branch as it is added to the residual stream."""
        return branch if self.model.residual_scale == 1.0 else f"{branch} * {number(self.model.residual_scale)}"

    # ------------------------------------------------------------ norms and projections

    def normed(
        self, name: str, value: str, weight: str, norm: Norm, dims: str = "E", indent: str = "    "
    ) -> list[str]:
        """`name = layernorm[E](value, weight)`, with a line before where the scale is 1 + the weight."""
        lines: list[str] = []
        operands = [value]
        if norm.scale == "one-plus":
            scale = weight if self.types.dtype is DType.F32 else f"convert[f32]({weight})"
            lines.append(f"{indent}{weight}_scale = {scale} + 1.0")
            operands.append(f"{weight}_scale")
        elif norm.scale == "weight":
            operands += [weight, f"{weight}_offset"] if norm.offset else [weight]
        return [*lines, f"{indent}{name} = {norm.kind}[{dims}, eps={number(norm.eps)}]({', '.join(operands)})"]

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
            for name, numbered in (("q", heads), ("k", "".join(attention.key_dims))):
                lines.append(f"    {name}_raw = {projections[name]}")
                over = f"{numbered}D" if attention.head_norm_over == "together" else "D"
                normed = self.normed("", f"{name}_raw", f"{name}_norm", attention.head_norm, over)
                lines += normed[:-1]
                projections[name] = normed[-1].partition(" = ")[2]
        queries = self.turned(projections["q"])
        if self.model.magnified:
            queries = f"{queries} * magnitude"
        lines.append(f"    {named('q', types.queries)} = {queries}")
        projections["k"] = self.turned(projections["k"])
        for name in ("k", "v"):
            if self.cached:
                kind = types.attention("L", attention.key_dims)
                lines.append(f"    {named(f'{name}_new', kind)} = {projections[name]}")
                lines += self.appended(cache[name], name)
            else:
                kind = types.attention("T", attention.key_dims)
                lines.append(f"    {named(name, kind)} = rename[L -> T]({projections[name]})")
        differ = attention.windows_differ
        window = f", window={attention.window}" if attention.window and not differ else ""
        factor = self.model.score_scale
        attended = f"    attended = o @[{heads}D] {self.at_hand('wo')}" + (" + bo" if attention.out_bias else "")
        if not self.decomposed:
            scale = "" if factor == 1.0 else f", scale={number(factor)}"
            scale += f", softcap={number(attention.softcap)}" if attention.softcap else ""
            given = (f", pos={rows.position}" if self.cached else "") + (", window=windows" if differ else "")
            call = f"attend[T, D, causal=L{window}{scale}](q, {self.kept(cache['k'])}, {self.kept(cache['v'])}{given})"
            return [*lines, f"    o = {call}", attended]
        lines.append(f"    s: f32 {rows.dim}L{heads}T? = q @[D] {self.kept(cache['k'])}")
        scaled = "s" if factor == 1.0 else f"s * {number(factor)}"
        if attention.softcap:
            cap = number(attention.softcap)
            scaled = f"tanh({scaled} / {cap}) * {cap}"
        if differ:
            at = f"{rows.position} + iota[L]()" if self.cached else "iota[L]()"
            scaled = f"where(less({at}, iota[T]() + windows), {scaled}, -inf)"
        probabilities = f"softmax[T, causal=L{window}]({scaled}{f', {rows.position}' if self.cached else ''})"
        if types.dtype is not DType.F32:
            probabilities = f"convert[{types.dtype}]({probabilities})"
        lines.append(f"    p = {probabilities}")
        return [*lines, f"    o = p @[T] {self.kept(cache['v'])}", attended]

    def appended(self, cache: str, name: str) -> list[str]:
        """New keys or values written to their cache: in 8 bits as multiples of a step, the largest of a row over the
        largest of the format."""
        new, pos = f"{name}_new", self.types.rows.position
        if self.types.cache_format is None:
            return [f"    set {cache} = update[T]({cache}, {new}, {pos})"]
        kept, steps = DType(self.types.cache_format), f"{name}_steps"
        nearest = f"round({steps})" if kept.is_integer else steps  # conversions to integers cut off
        exact = new if self.types.dtype is DType.F32 else f"convert[f32]({new})"
        return [
            f"    {name}_exact = {exact}",
            f"    {name}_step = maximum(max[D](abs({name}_exact)), 1e-20) / {kept.positive_range[1]:.1f}",
            f"    {steps} = {name}_exact / {name}_step",
            f"    set {cache} = update[T]({cache}, convert[{kept}]({nearest}), {pos})",
            f"    set {cache}_scale = update[T]({cache}_scale, {name}_step, {pos})",
        ]

    def kept(self, cache: str) -> str:
        """The cache as attention reads it."""
        if not self.cached or self.types.cache_format is None:
            return cache
        exact = f"convert[f32]({cache}) * {cache}_scale"
        return exact if self.types.dtype is DType.F32 else f"convert[{self.types.dtype}]({exact})"

    def turned(self, value: str) -> str:
        """The rotary embedding of a value, where there is one."""
        rotary = self.model.rotary
        if rotary is None:
            return value
        rotated = f", rotated={rotary.rotated}" if rotary.rotated else ""
        operands = "at" if self.cached else "pos"
        operands += ", frequencies" if self.model.computes_frequencies else ""
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


def of_layers(model: Model, dtype: DType, positions: int) -> list[str]:
    """Statements before the loop over layers, of what these have of their own or share: `windows`, the `frequencies` of
    a rotary embedding that `rotary` does not know, and the `magnitude` of what turns. A program has so many positions.
    """
    rotary, attention = model.rotary, model.attention
    lines: list[str] = []
    if attention.windows_differ:
        lines += [
            "",
            f"  # {capital(attention.title)}.",
            "  layer = iota[N]()",
            f"  windowed = {_among(attention.windowed)}",
            f"  windows: int32 N = where(windowed, full[N, int32]({attention.window}), size[T])",
        ]
    if rotary is not None and model.computes_frequencies:
        comment, *own = _frequencies(model, "frequencies" if model.local is None else "unbounded", rotary, positions)
        lines += ["", comment, "  r = convert[f32](iota[R]())", *own]
        if model.local is not None:
            lines += _frequencies(model, "bounded", model.local, positions)
            lines.append("  frequencies = where(windowed, bounded, unbounded)")
    if model.magnified and rotary is not None:
        longer = number(rotary.magnitude**2)
        lines.append(f"  magnitude = where(less(iota[D](), {rotary.rotated}), full[D, {dtype}]({longer}), 1.0)")
    return [*lines, ""] if lines else []


def _among(flags: Sequence[bool]) -> str:
    """A condition on `layer`, the number of a layer, that holds for these: ranges of it, or of its rest in a period."""
    n = len(flags)
    period = next((p for p in range(1, n // 2 + 1) if all(flags[i] == flags[i % p] for i in range(n))), n)
    at = "layer" if period == n else f"(layer - layer / {period} * {period})"
    ranges: list[str] = []
    start = 0
    for flag, run in groupby(flags[:period]):
        stop = start + len(list(run))
        if flag:
            bounds = [f"less({start - 1}, {at})"] if start else []
            bounds += [f"less({at}, {stop})"] if stop < period else []
            ranges.append(f"logical_and({', '.join(bounds)})" if len(bounds) == 2 else bounds[0])
        start = stop
    return reduce(lambda a, b: f"logical_or({a}, {b})", ranges)


def _frequencies(model: Model, name: str, rotary: RotarySpec, positions: int) -> list[str]:
    pairs = rotary.rotated or model.attention.head_dim
    plain, scaling = f"exp(r * {number(-2 * math.log(rotary.base) / pairs)})", rotary.scaling
    comment = f"  # The frequencies of the rotary embedding: {number(rotary.base)}^(-2r/{pairs})"
    if scaling is None:
        return [f"{comment}.", f"  {name} = {plain}"]
    lines = [f"{comment}, scaled.", f"  plain = {plain}"]
    factors = scaling.long if positions > scaling.context else scaling.short
    if factors:
        lines.append(f"  factor_0 = full[R, f32]({number(factors[0])})")
        changes = [i for i in range(1, len(factors)) if factors[i] != factors[i - 1]]
        for before, i in pairwise([0, *changes]):
            lines.append(f"  factor_{i} = where(less(r, {number(i)}), factor_{before}, {number(factors[i])})")
        return [*lines, f"  {name} = plain / factor_{changes[-1] if changes else 0}"]
    if scaling.kept is None:
        return [*lines, f"  {name} = plain / {number(scaling.factor)}"]
    kept, along = scaling.kept, "r"
    if kept.by == "periods":
        along = f"plain * {number(kept.context / (2 * math.pi))}"
        lines.append(
            f"  # 0 where fewer than {number(kept.none)} periods fit in {kept.context} positions,"
            f" 1 where more than {number(kept.whole)} do."
        )
    blend = f"({along} - {number(kept.none)}) / {number(kept.whole - kept.none)}"
    return [
        *lines,
        f"  kept = minimum(maximum({blend}, 0.0), 1.0)",
        f"  {name} = plain * (kept + (1.0 - kept) / {number(scaling.factor)})",
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
