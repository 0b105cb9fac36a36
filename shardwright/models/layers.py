"""The statements of one layer of a model, and of the norms and rotary embeddings in it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, pairwise

from shardwright.ir.types import DType
from shardwright.models.description import Feedforward, Latent, Model, Norm, RotarySpec, Stack
from shardwright.models.experts import replicated, returned, routed, sent
from shardwright.models.value_types import ValueTypes
from shardwright.models.weights import Weight

_GATHERED = re.compile(r"\b(\w+)_gathered\b")
"""The names of weights in a line that reads what the layout gathers of them."""


@dataclass(frozen=True)
class Layer:
    """Writes the body of the loop over the layers of a stack.

    `expanded` says that latent vectors are made keys and values of every head, `cached` that keys and values go to a
    cache, `padded` that rows may end in padding, `decomposed` that attention is written as products and a softmax.
    """

    model: Model
    types: ValueTypes
    weights: dict[str, Weight]
    stack: Stack
    cached: bool
    padded: bool = False
    decomposed: bool = False
    expanded: bool = False

    @property
    def tells_padding(self) -> bool:
        """Tells whether padding is told from tokens: it takes no slots of experts where there are too few."""
        return self.padded and self.types.groups is not None and self.types.groups.bounded

    def lines(self) -> list[str]:
        """From `h`, the residual stream, to the next. What the layout gathers of a weight is gathered where it is first
        read, so that no more of them are held at once than have to be."""
        made, gathered = list[str](), set[str]()
        for line in self.parallel_block() if self.model.parallel else self.serial_block():
            for name in _GATHERED.findall(line):
                if name not in gathered:
                    gathered.add(name)
                    used = self.types.used(self.weights[self.own(name)])
                    made.append(f"    {name}_gathered: {used} = {self.own(name)}")
            made.append(line)
        return made

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
        operands, weight = [value], self.own(weight)
        if norm.scale == "one-plus":
            scale = weight if self.types.dtype is DType.F32 else f"convert[f32]({weight})"
            lines.append(f"{indent}{weight}_scale = {scale} + 1.0")
            operands.append(f"{weight}_scale")
        elif norm.scale == "weight":
            operands += [weight, f"{weight}_offset"] if norm.offset else [weight]
        return [*lines, f"{indent}{name} = {norm.kind}[{dims}, eps={number(norm.eps)}]({', '.join(operands)})"]

    def own(self, name: str) -> str:
        """The name of a weight of the stack's layers, or of the model."""
        own = f"{self.stack.prefix}{name}"
        return own if own in self.weights else name

    def at_hand(self, name: str) -> str:
        return self.own(name) if self.types.used(self.weights[self.own(name)]) is None else f"{name}_gathered"

    def projected(self, value: str, weight: str, bias: str = "", over: str = "") -> str:
        plus = f" + {self.own(bias)}" if self.own(bias) in self.weights else ""
        return f"{value} @{over} {self.at_hand(weight)}{plus}"

    # ------------------------------------------------------------ attention

    def attention(self, source: str) -> list[str]:
        """`attended` of the normed residual stream."""
        latent = self.model.attention.latent
        return self.attention_of_heads(source) if latent is None else self.latent_attention(source, latent)

    def attention_of_heads(self, source: str) -> list[str]:
        attention, types = self.model.attention, self.types
        heads = "".join(attention.query_dims)
        projections = {
            name: self.projected(source, weight, bias)
            for name, weight, bias in (("q", "wq", "bq"), ("k", "wk", "bk"), ("v", "wv", "bv"))
        }
        lines = ["", f"    # {capital(attention.title)}."]
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
        lines.append(f"    {named('q', types.queries())} = {queries}")
        projections["k"] = self.turned(projections["k"])
        caches = types.caches(self.stack) if self.cached else ("k", "v")
        for name, cache in zip("kv", caches, strict=True):
            lines += self.remembered(name, cache, projections[name])
        keys, values = (self.kept(cache) for cache in caches)
        return [*lines, *self.attended(keys, values, "D"), self.returned("o", f"{heads}D")]

    def latent_attention(self, source: str, latent: Latent) -> list[str]:
        """Attention whose cache holds a latent vector and shared keys of each position, beside each other along D.

        Queries are brought to the latent vectors, which are the values too, and the results back (the products that
        DeepSeek-V2 calls absorbed); or, `expanded`, every head's keys and values are made of the vectors.
        """
        attention, width = self.model.attention, latent.width
        cache = self.types.caches(self.stack)[0] if self.cached else "k"
        lines = [
            "",
            f"    # {capital(attention.title)}.",
            f"    kv_down = {self.projected(source, 'w_dkv')}",
            *self.normed("latent", "kv_down", "kv_latent_norm", latent.norm, "I"),
            f"    k_turned = {self.turned(self.projected(source, 'w_kr'), 'D2')}",
            *self.remembered("k", cache, "concat[D](rename[I -> D](latent), rename[D2 -> D](k_turned))"),
        ]
        if latent.queries:
            lines.append(f"    q_down = {self.projected(source, 'w_dq')}")
            lines += self.normed("q_latent", "q_down", "q_latent_norm", latent.norm, "U")
            source = "q_latent"
        lines += [
            f"    q_plain = {self.projected(source, 'w_uq')}",
            f"    q_turned = {self.turned(self.projected(source, 'w_qr'), 'D2')}{self.magnitude}",
        ]
        kept = self.kept(cache)
        if kept != cache:
            lines.append(f"    k_kept = {kept}")
            kept = "k_kept"
        if not self.expanded:
            queries = named("q", self.types.queries())
            lines += [
                f"    q_brought = {self.projected('q_plain', 'w_uk', over='[D1]')}",
                f"    {queries} = concat[D](rename[I -> D](q_brought), rename[D2 -> D](q_turned))",
                *self.attended(kept, kept, "D", result="o_rows"),
                f"    o_latent = rename[D -> I](take[D 0:{width}](o_rows))",
                f"    o = {self.projected('o_latent', 'w_uv', over='[I]')}",
            ]
            return [*lines, self.returned("o", "HD3")]
        dtype = self.types.dtype
        return [
            *lines,
            f"    latents = rename[D -> I](take[D 0:{width}]({kept}))",
            f"    k_plain = {self.projected('latents', 'w_uk')}",
            f"    values = {self.projected('latents', 'w_uv')}",
            f"    k_shared = rename[D -> D1](take[D {width}:{attention.head_dim}]({kept}))",
            f"    k_each: {self.types.hole([*self.types.cached_rows, 'H', 'D1'])} = k_shared + full[H, {dtype}](0.0)",
            "    keys = concat[D1](k_plain, k_each)",
            f"    {named('q', self.types.queries('D1'))} = concat[D1](q_plain, rename[D2 -> D1](q_turned))",
            *self.attended("keys", "values", "D1"),
            self.returned("o", "HD3"),
        ]

    @property
    def magnitude(self) -> str:
        """The factor of the part of a query that turns, where turning makes it longer."""
        rotary = self.model.rotary
        longer = 1.0 if rotary is None else rotary.magnitude**2
        return "" if longer == 1.0 else f" * {number(longer)}"

    def remembered(self, name: str, cache: str, made: str) -> list[str]:
        """New keys or values, in the cache where there is one."""
        attention, types = self.model.attention, self.types
        if self.cached:
            kind = types.attention("L", attention.key_dims)
            return [f"    {named(f'{name}_new', kind)} = {made}", *self.appended(cache, name)]
        kind = types.attention("T", attention.key_dims)
        return [f"    {named(name, kind)} = rename[L -> T]({made})"]

    def attended(self, keys: str, values: str, over: str, result: str = "o") -> list[str]:
        """`result` of queries `q`: attention along T, products of queries and keys over `over`."""
        attention, types, rows = self.model.attention, self.types, self.types.rows
        differ = attention.windows_differ
        window = f", window={attention.window}" if attention.window and not differ else ""
        factor = self.model.score_scale
        if not self.decomposed:
            scale = "" if factor == 1.0 else f", scale={number(factor)}"
            scale += f", softcap={number(attention.softcap)}" if attention.softcap else ""
            given = (f", pos={rows.position}" if self.cached else "") + (", window=windows" if differ else "")
            kept = f"{keys}, {values}{given}{types.by_pages}"
            return [f"    {result} = attend[{types.positions}, {over}, causal=L{window}{scale}](q, {kept})"]
        keys, values = (f"({each})" if " " in each else each for each in (keys, values))
        lines = [f"    s: f32 {rows.dim}L{''.join(attention.query_dims)}T? = q @[{over}] {keys}"]
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
        return [*lines, f"    p = {probabilities}", f"    {result} = p @[T] {values}"]

    def returned(self, heads: str, over: str) -> str:
        """`attended`: the heads' results as a branch of the residual stream."""
        return f"    attended = {self.projected(heads, 'wo', 'bo', f'[{over}]')}"

    def appended(self, cache: str, name: str) -> list[str]:
        """New keys or values written to their cache: in 8 bits as multiples of a step, the largest of a row over the
        largest of the format."""
        new = f"{name}_new"
        over, at = f"update[{self.types.positions}]", f"{self.types.rows.position}{self.types.by_pages}"
        if self.types.cache_format is None:
            return [f"    set {cache} = {over}({cache}, {new}, {at})"]
        kept, steps = DType(self.types.cache_format), f"{name}_steps"
        nearest = f"round({steps})" if kept.is_integer else steps  # conversions to integers cut off
        exact = new if self.types.dtype is DType.F32 else f"convert[f32]({new})"
        return [
            f"    {name}_exact = {exact}",
            f"    {name}_step = maximum(max[D](abs({name}_exact)), 1e-20) / {kept.positive_range[1]:.1f}",
            f"    {steps} = {name}_exact / {name}_step",
            f"    set {cache} = {over}({cache}, convert[{kept}]({nearest}), {at})",
            f"    set {cache}_scale = {over}({cache}_scale, {name}_step, {at})",
        ]

    def kept(self, cache: str) -> str:
        """The cache as attention reads it."""
        if not self.cached or self.types.cache_format is None:
            return cache
        exact = f"convert[f32]({cache}) * {cache}_scale"
        return exact if self.types.dtype is DType.F32 else f"convert[{self.types.dtype}]({exact})"

    def turned(self, value: str, over: str = "D") -> str:
        """The rotary embedding of a value along `over`, where there is one."""
        rotary = self.model.rotary
        if rotary is None:
            return value
        rotated = f", rotated={rotary.rotated}" if rotary.rotated else ""
        operands = "at" if self.cached else "pos"
        operands += ", frequencies" if self.model.computes_frequencies else ""
        return f"rotary[{over}, base={number(rotary.base)}, style={rotary.style}{rotated}]({value}, {operands})"

    # ------------------------------------------------------------ feedforward

    def feedforward(self, source: str) -> list[str]:
        """`fed` of the normed residual stream."""
        feedforward, types = self.stack.feedforward, self.types
        experts, sending, routes = feedforward.experts, types.groups is not None, types.experts == "routed"
        lines = ["", f"    # {capital(feedforward.title)}."]
        if experts is None:
            return [*lines, *self.inside("inner", source, feedforward, self.stack.width), self.fed("fed", "inner")]
        result, read = ("routed", source) if experts.shared else ("fed", source)
        if sending:
            lines += sent(source, types, padded=self.tells_padding)
            read = "sent"
        elif routes:
            lines += routed(source, experts, types.dtype)
        else:
            lines += replicated(source, experts, types.dtype)
        lines += self.inside("each", read, feedforward, "F")
        if sending:
            lines += returned(types, self.at_hand("w_down"), result)
        elif routes:
            lines.append(f"    {result} = grouped[X, F](each, {self.at_hand('w_down')}, expert) @[A] share")
        else:
            lines += [
                f"    {named('inner', types.hidden('F', of_experts=True))} = each * share",
                f"    {result} = inner @[XF] {self.at_hand('w_down')}",
            ]
        if experts.shared:
            lines += self.inside("of_all", source, replace(feedforward, experts=None), "F2", "shared_")
            lines += [self.fed("shared", "of_all", "shared_"), "    fed = routed + shared"]
        return lines

    def inside(self, name: str, source: str, feedforward: Feedforward, width: str, prefix: str = "") -> list[str]:
        """`name`: what goes into the last product of a feedforward layer, or of each expert."""
        apart = feedforward.experts is not None
        over, hidden = "[E]" if apart else "", self.types.hidden(width, of_experts=apart)

        def product(weight: str, bias: str) -> str:
            if apart and self.types.experts == "routed":
                return f"grouped[X, E]({source}, {self.at_hand(weight)}, expert)"
            return self.projected(source, weight, bias, over)

        up = product(f"{prefix}w_up", f"{prefix}b_up")
        if not feedforward.gated:
            return [f"    {named(name, hidden)} = {feedforward.activation}({up})"]
        gate = f"{feedforward.activation}({product(f'{prefix}w_gate', f'{prefix}b_gate')})"
        return [f"    {named(f'{prefix}gate', hidden)} = {gate}", f"    {named(name, hidden)} = {prefix}gate * ({up})"]

    def fed(self, name: str, inner: str, prefix: str = "") -> str:
        return f"    {name} = {self.projected(inner, f'{prefix}w_down', f'{prefix}b_down')}"


def of_layers(model: Model, types: ValueTypes, positions: int) -> list[str]:
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
        lines.append(f"  magnitude = where(less(iota[D](), {rotary.rotated}), full[D, {types.dtype}]({longer}), 1.0)")
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
    pairs = rotary.rotated or model.attention.turned
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
