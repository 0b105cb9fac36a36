"""A model as a program of the language: its forward pass, or prefill and decode with a KV cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.description import Learned, Model
from shardwright.models.header import header
from shardwright.models.layers import Layer, frequencies, number
from shardwright.models.layouts import AttentionOver, Layout, fit_layouts
from shardwright.models.value_types import ValueTypes
from shardwright.models.weights import model_weights

PHASES = ("prefill", "decode")
"""The functions of a program with a cache."""


@dataclass(frozen=True)
class Request:
    """What program to write of a model.

    `layout` is the preset of the stored weights and of the forward pass, or of decode; `prefill_layout` that of
    prefill, the same where None. With `cache` positions in a KV cache there are the functions `phases`, else
    `forward`. `attention` is over heads or batch, left to the compiler where None; with a cache None means heads.
    """

    layout: str
    mesh: Mesh
    batch: int
    length: int
    dtype: DType
    attention: AttentionOver | None = None
    cache: int | None = None
    prefill_layout: str | None = None
    phases: tuple[str, ...] = PHASES


def model_program(model: Model, request: Request) -> tuple[str, Layout]:
    """The text of the program, and the layout of its weights as it was fitted.

    Without a cache `func forward(ids: int32 BL) -> f32 BLV` gives logits at every position, positions counted from 0.
    With one, `func prefill(ids: int32 BL, length: int32 B) -> f32 BV` appends the first `length` tokens of each row
    to the cache and `func decode[L=1](ids: int32 BL) -> f32 BV` one token; both give the logits after the last.

    Weights, residual stream, cache and logits have the types that the layout demands, activations and weights inside
    a layer where it gathers weights; others are left to the compiler. Scores and logits are f32, all else is `dtype`.
    Raises where there is no such layout, or two that store weights differently.
    """
    mesh, cache = request.mesh, request.cache
    sizes = model.sizes(request.batch, request.length, cache)
    numbers = {name: size for name, size in sizes.items() if isinstance(size, int)}
    cached = cache is not None
    functions = {"forward": request.layout}
    if cached:
        # Decode comes first: its preset stores the weights.
        chosen = {"decode": request.layout, "prefill": request.prefill_layout or request.layout}
        functions = {name: chosen[name] for name in ("decode", "prefill") if name in request.phases}
    attention = request.attention or ("head" if cached else None)
    fitted = fit_layouts(tuple(functions.values()), mesh, numbers, model.attention.query_dims, attention, cached=cached)
    layouts = dict(zip(functions, fitted, strict=True))
    weights = {weight.name: weight for weight in model_weights(model)}
    types = ValueTypes(model, fitted[0], mesh, request.dtype)
    lines = [*header(model, list(layouts.items()), mesh, cached=cached), ""]
    if len(mesh):
        lines.append(f"mesh {mesh}")
    lines.append("dim " + " ".join(f"{name}={size}" for name, size in sizes.items()))
    lines += ["", "weights {", *(f"  {weight.name}: {types.stored(weight)}" for weight in weights.values()), "}"]
    if cached:
        # How many tokens of each sequence are in the cache is the position of its next one.
        lines += ["", "state {", f"  k: {types.cache}", f"  v: {types.cache}", "  pos: int32 B", "}"]
    for name in ("forward", *PHASES):
        if name in layouts:
            own = replace(types, layout=layouts[name])
            function = _Function(name, model, own, Layer(model, own, weights, cached=cached))
            lines += ["", *(function.cached() if cached else function.plain())]
    return _formatted("\n".join(lines) + "\n"), fitted[0]


def _formatted(text: str) -> str:
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.format import format_module
    from shardwright.ir.parser import parse

    return format_module(parse(Source("<import>", text)))


@dataclass(frozen=True)
class _Function:
    name: str
    model: Model
    types: ValueTypes
    layer: Layer

    def plain(self) -> list[str]:
        """Logits at every position."""
        return [
            f"func {self.name}(ids: int32 BL) -> {self.types.logits} {{",
            "  pos = iota[L]()",
            *frequencies(self.model),
            *self.embedded("pos"),
            *self.loop(),
            *self.unembedded("last", self.types.logits, "f32 BLV?"),
            "  return logits",
            "}",
        ]

    def cached(self) -> list[str]:
        """Logits after the last token of each sequence; keys and values go to the cache."""
        last = self.types.last_logits
        if self.name == "prefill":
            comment = [
                "# Appends the first `length` tokens of each row to the cache; the rest of a row is padding, which",
                "# nothing sees, and which the next call overwrites. A row of length 0 is left as it is.",
            ]
            parameters, one = "(ids: int32 BL, length: int32 B)", "lookup[L](last, length - 1)"
            following = "pos + length"
        else:
            comment = ["# Appends one token of each row to the cache."]
            parameters, one, following = "[L=1](ids: int32 BL)", "take[L, 0](last)", "pos + 1"
        return [
            *comment,
            f"func {self.name}{parameters} -> {last} {{",
            "  at: int32 BL? = pos + iota[L]()",
            *frequencies(self.model),
            *self.embedded("at"),
            *self.loop(),
            f"  set pos = {following}",
            f"  final = {one}",
            *self.unembedded("final", last, "f32 BV?"),
            "  return logits",
            "}",
        ]

    def embedded(self, positions: str) -> list[str]:
        """`x`: the residual stream before the first layer."""
        model, residual = self.model, self.types.residual
        looked_up = "lookup[V](embed, ids)"
        learned = isinstance(model.positions, Learned)
        if not (learned or model.embedding_size is not None or model.embedding_scale != 1.0):
            return [f"  x: {residual} = {looked_up}"]
        lines, made = [f"  tokens = {looked_up}"], "tokens"
        if model.embedding_size is not None:
            made = f"{made} @[W] project_in"
        if model.embedding_scale != 1.0:
            made = f"{made} * {number(model.embedding_scale)}"
        if learned:
            made = f"{made} + lookup[P](positions, {positions})"
        return [*lines, f"  x: {residual} = {made}"]

    def loop(self) -> list[str]:
        residual = self.types.residual
        return [f"  last: {residual} = loop[N](h: {residual} = x) {{", *self.layer.lines(), "  }"]

    def unembedded(self, value: str, kind: str, unscaled: str) -> list[str]:
        """`logits` of the residual stream after the last layer."""
        model, lines = self.model, list[str]()
        if model.final_norm:
            lines += self.layer.normed("y", value, "final_norm", model.norm, indent="  ")
            value = "y"
        if model.embedding_size is not None:
            lines.append(f"  narrow = {value} @[E] project_out")
            value = "narrow"
        product = f"{value} @[{model.table_dim}] {'embed' if model.tied else 'unembed'}"
        bias = "unembed_bias" if self.types.dtype is DType.F32 else "convert[f32](unembed_bias)"
        if model.logit_scale == 1.0 and not model.logit_bias:
            return [*lines, f"  logits: {kind} = {product}"]
        lines.append(f"  unscaled: {unscaled} = {product}")
        biased = f"unscaled + {bias}" if model.logit_bias else "unscaled"
        scaled = biased if model.logit_scale == 1.0 else f"({biased}) * {number(model.logit_scale)}"
        return [*lines, f"  logits: {kind} = {scaled}"]
