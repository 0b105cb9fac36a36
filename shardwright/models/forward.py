"""A model as a program of the language: its forward pass, or the functions of generation with a KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType, StoredFormat
from shardwright.models.cache_rows import adopt, restart
from shardwright.models.description import LearnedPositions, Model
from shardwright.models.experts import real_tokens
from shardwright.models.header import header
from shardwright.models.layers import Layer, number, of_layers
from shardwright.models.layouts import AttentionOver, Preset, PresetLayout, fit_layouts
from shardwright.models.token_groups import ExpertsForm, TokenGroups, groups_of
from shardwright.models.value_types import PROMPTS, SEQUENCES, Pages, SequenceRows, ValueTypes
from shardwright.models.weights import model_weights

PHASES = ("prefill", "decode")
"""The functions of a program with a cache, where nothing else is asked."""

FILLING = ("prefill", "score")
"""Those that append several tokens of each row; they have the prefill layout."""


@dataclass(frozen=True)
class ProgramRequest:
    """The request of a program to write of a model.

    `layout` is the preset of the stored weights and of the forward pass, or of decode; `prefill_layout` that of
    prefill, the same where None. With `cache` positions in a KV cache there are the functions `phases`, else
    `forward`. `attention` is over heads, batch or positions, left to the compiler where None; with a cache None
    means heads.
    `prompts` is the number of rows of prefill, where it has rows and a cache of its own. `experts` says how tokens and
    experts come together, and `expert_capacity` bounds an expert's slots where tokens are sent to them (`TokenGroups`).
    `decomposed` writes attention as products and a softmax. `cache_format` is what the cache is quantized to; `pages`
    are those of a cache whose rows have pages of a pool (`Pages`).
    """

    layout: str | Preset
    mesh: Mesh
    batch: int
    length: int
    dtype: DType
    attention: AttentionOver | None = None
    cache: int | None = None
    prefill_layout: str | Preset | None = None
    phases: tuple[str, ...] = PHASES
    prompts: int | None = None
    experts: ExpertsForm = "replicated"
    expert_capacity: float | None = None
    decomposed: bool = False
    cache_format: StoredFormat | None = None
    pages: Pages | None = None


def model_program(model: Model, request: ProgramRequest) -> tuple[str, PresetLayout]:
    """The text of the program, formatted, and the layout of its weights as it was fitted. See `model_text`."""
    text, layout = model_text(model, request)
    return formatted(text), layout


def model_text(model: Model, request: ProgramRequest) -> tuple[str, PresetLayout]:
    """The text of the program as it is put together, and the layout of its weights as it was fitted.

    Without a cache `func forward(ids: int32 BL) -> f32 BLV` gives logits at every position, positions counted from 0.
    With one, `func prefill(ids: int32 BL, length: int32 B) -> f32 BV` appends the first `length` tokens of each row
    to the cache and `func decode[L=1](ids: int32 BL) -> f32 BV` one token; both give the logits after the last.
    `func score(ids: int32 BL, length: int32 B, target: int32 BL) -> (f32 BV, f32 BL)` does what prefill does, and
    gives the log-probability of each target, the token after. `restart` sets how much of each row's cache is filled.

    With `prompts`, prefill and score work on rows B1 and a cache of their own, `k1`, `v1` and `pos1`, which restart
    then is about. `func adopt(source: int32, row: int32) -> int32 B` copies row `source` of that cache to `row` of
    decode's, and `func adopted_logits(source: int32 B, logits: f32 B1V) -> f32 BV` rows of the logits.

    With `pages`, prefill, score and decode take `pages: int32 BT1` beside the rest, the pages of each row.

    Weights, residual stream, cache and logits have the types that the layout demands, activations and weights inside
    a layer where it gathers weights; others are left to the compiler. Scores and logits are f32, all else is `dtype`.
    Raises where there is no such layout, or two that store weights differently.
    """
    mesh, cache = request.mesh, request.cache
    pages, positions = request.pages, None
    if cache is not None:
        positions = {"T": cache} if pages is None else pages.sizes(cache, SEQUENCES.dim, model.attention.windows_differ)
    sizes = model.sizes(request.batch, request.length, positions)
    if request.prompts is not None:
        sizes[PROMPTS.dim] = request.prompts
    numbers = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if pages is not None:
        numbers["T"] = pages.size
    cached = cache is not None
    functions = {"forward": request.layout}
    if cached:
        # Decode comes first: its preset stores the weights.
        filled = request.prefill_layout or request.layout
        chosen = {"decode": request.layout, **dict.fromkeys(FILLING, filled)}
        functions = {name: layout for name, layout in chosen.items() if name in request.phases}
    rows = {name: PROMPTS if name in FILLING and request.prompts is not None else SEQUENCES for name in functions}
    groups = _token_groups(model, request, rows)
    fitted = fit_layouts(
        tuple(functions.values()),
        mesh,
        numbers,
        model.attention,
        request.attention or ("head" if cached else None),
        cached=cached,
        batches=[rows[name].dim for name in functions],
        groups=list(groups.values()),
    )
    if fitted[0].experts is None:
        groups = {}
    for own in groups.values():
        sizes |= own.sizes
    weights = {weight.name: weight for weight in model_weights(model)}
    types = {
        name: ValueTypes(
            model,
            layout,
            mesh,
            request.dtype,
            rows[name],
            groups.get(name),
            request.cache_format,
            request.experts,
            paged=pages is not None,
        )
        for name, layout in zip(functions, fitted, strict=True)
    }
    lines = [
        *header(
            model, [(name, own.layout) for name, own in types.items()], mesh, cached=cached, paged=pages is not None
        ),
        "",
    ]
    if len(mesh):
        lines.append(f"mesh {mesh}")
    orders: dict[str, tuple[str, ...]] = {"X": fitted[0].experts or ()}
    if cache is not None and pages is None and (over := (fitted[0].attention or {}).get("T")):
        # Neighbours lie on different chips, so that however full the cache is, each chip has as much to attend.
        orders["T"] = (str(cache // mesh.product(over)), *over)
    for own, layout in zip(groups.values(), fitted, strict=False):
        orders |= {dim: layout.groups[dim] for dim in own.dims}
        if own.batch % mesh.n_chips:
            # Not all axes fit the rows, and those of the groups are taken.
            elsewhere = {*layout.batch, *(layout.attention or {}).get(own.rows, ()), *orders.get(own.rows, ())}
            first = orders[own.dims[0]]
            orders[own.rows] = (*first, *mesh.sorted(elsewhere.difference(first)))
    lines.append("dim " + " ".join(_sized(name, size, orders.get(name, ())) for name, size in sizes.items()))
    storing = next(iter(types.values()))
    lines += ["", "weights {", *(f"  {weight.name}: {storing.stored(weight)}" for weight in weights.values()), "}"]
    if cached:
        caches = {own.rows: own for own in types.values()}
        lines += ["", "state {", *(line for own in caches.values() for line in _state(own)), "}"]
    for name in ("forward", "prefill", "score", "decode"):
        if name in types:
            layer = Layer(
                model, types[name], weights, model.stacks[-1], cached=cached, padded=name in FILLING,
                decomposed=request.decomposed, expanded=name != "decode",
            )  # fmt: skip
            function = _Function(name, model, types[name], layer, sizes, cache or request.length)
            lines += ["", *(function.cached() if cached else function.plain())]
    if "restart" in request.phases:
        lines += ["", *restart(PROMPTS if request.prompts is not None else SEQUENCES)]
    if request.prompts is not None:
        filling = next(own for own in types.values() if own.rows is PROMPTS)
        lines += ["", *adopt(filling, types["decode"])]
    return "\n".join(lines) + "\n", fitted[0]


def _sized(dim: str, size: int | str, order: Sequence[str]) -> str:
    """A declaration: where there is an order, only its axes split the dimension, and no axis its numbers."""
    return f"{dim}={size}" + (f" order {' '.join(order)}" if order else "")


def _token_groups(model: Model, request: ProgramRequest, rows: Mapping[str, SequenceRows]) -> dict[str, TokenGroups]:
    """The groups of each function, that of one token for each row first; none where tokens are not sent to experts."""
    made: dict[str, TokenGroups] = {}
    for name, own in rows.items():
        batch = request.batch if own is SEQUENCES or request.prompts is None else request.prompts
        length = 1 if name == "decode" else request.length
        groups = groups_of(model, request.experts, request.expert_capacity, batch, length, own.dim)
        if groups is not None:
            made[name] = groups
    return made


def _state(types: ValueTypes) -> list[str]:
    rows = types.rows
    # How many tokens of each sequence are in the cache is the position of its next one.
    declared = {**types.state, rows.position: f"int32 {rows.dim}"}
    return [f"  {name}: {kind}" for name, kind in declared.items()]


def formatted(text: str) -> str:
    """A program's text as `fmt` writes it."""
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.text.format import format_module
    from shardwright.ir.text.parser import parse

    return format_module(parse(Source("<import>", text)))


@dataclass(frozen=True)
class _Function:
    name: str
    model: Model
    types: ValueTypes
    layer: Layer
    sizes: Mapping[str, int | str]
    positions: int
    """So many positions has the cache, or the forward pass."""

    def plain(self) -> list[str]:
        """Logits at every position."""
        return [
            f"func {self.name}(ids: int32 BL) -> {self.types.logits} {{",
            "  pos = iota[L]()",
            *of_layers(self.model, self.types, self.positions),
            *self.embedded("pos"),
            *self.loop(),
            *self.unembedded("last", self.types.logits, "f32 BLV?"),
            "  return logits",
            "}",
        ]

    def cached(self) -> list[str]:
        """Logits after the last token of each sequence; keys and values go to the cache."""
        last, rows = self.types.last_logits, self.types.rows
        batch, pos = rows.dim, rows.position
        table = f", pages: int32 {batch}T1" if self.types.paged else ""
        following, results = f"{pos} + length", last
        if self.name == "decode":
            comment = ["# Appends one token of each row to the cache."]
            parameters, following = f"[{self.overrides()}](ids: int32 {batch}L{table})", f"{pos} + 1"
        elif self.name == "prefill":
            comment = [
                "# Appends the first `length` tokens of each row to the cache; the rest of a row is padding, which",
                "# nothing sees, and which the next call overwrites. A row of length 0 is left as it is.",
            ]
            parameters = f"(ids: int32 {batch}L, length: int32 {batch}{table})"
        else:
            comment = ["# As prefill; also the log-probability of each target."]
            parameters = f"(ids: int32 {batch}L, length: int32 {batch}, target: int32 {batch}L{table})"
            results = f"({last}, f32 {batch}L)"
        return [
            *comment,
            f"func {self.name}{parameters} -> {results} {{",
            f"  at: int32 {batch}L? = {pos} + iota[L]()",
            *of_layers(self.model, self.types, self.positions),
            *(real_tokens(self.types) if self.layer.tells_padding else []),
            *self.embedded("at"),
            *self.loop(),
            f"  set {pos} = {following}",
            *(self.scored() if self.name == "score" else self.after_last()),
            "}",
        ]

    def overrides(self) -> str:
        """The sizes of decode that are not the program's."""
        made, groups = {"L": 1}, self.types.groups
        if groups is not None:
            if "O" in self.sizes:
                made["Q"] = 1
            slots = groups.dim("C")
            declared = self.sizes[slots]
            if groups.slots != (declared if isinstance(declared, int) else groups.tokens):
                made[slots] = groups.slots
        return " ".join(f"{name}={size}" for name, size in made.items())

    def after_last(self) -> list[str]:
        """Logits after the last token of each row."""
        one = "take[L, 0](last)" if self.name == "decode" else "lookup[L](last, length - 1)"
        unscaled = f"f32 {self.types.rows.dim}V?"
        return [f"  final = {one}", *self.unembedded("final", self.types.last_logits, unscaled), "  return logits"]

    def scored(self) -> list[str]:
        """Logits after the last token of each row, and log-probabilities from those at every position."""
        batch = self.types.rows.dim
        return [
            *self.unembedded("last", self.types.logits, f"f32 {batch}LV?"),
            "  most = max[V](logits)",
            "  total = sum[V](exp(logits - most))",
            "  chosen = sum[V](where(equal(iota[V](), target), logits, 0.0))",
            f"  final: {self.types.last_logits} = lookup[L](logits, length - 1)",
            f"  scores: f32 {batch}L = chosen - most - log(total)",
            "  return final, scores",
        ]

    def embedded(self, positions: str) -> list[str]:
        """`x`: the residual stream before the first layer."""
        model, residual = self.model, self.types.residual
        looked_up = "lookup[V](embed, ids)"
        learned = isinstance(model.positions, LearnedPositions)
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
        residual, lines, source = self.types.residual, list[str](), "x"
        for stack in self.model.stacks:
            name = f"{stack.prefix}last"
            head = f"  {name}: {residual} = loop[{stack.dim}](h: {residual} = {source}) {{"
            lines += [head, *replace(self.layer, stack=stack).lines(), "  }"]
            source = name
        return lines

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
        if model.logit_scale == 1.0 and not model.logit_bias and not model.logit_softcap:
            return [*lines, f"  logits: {kind} = {product}"]
        lines.append(f"  unscaled: {unscaled} = {product}")
        biased = f"unscaled + {bias}" if model.logit_bias else "unscaled"
        scaled = biased if model.logit_scale == 1.0 else f"({biased}) * {number(model.logit_scale)}"
        if model.logit_softcap:
            cap = number(model.logit_softcap)
            scaled = f"tanh(({scaled}) / {cap}) * {cap}"
        return [*lines, f"  logits: {kind} = {scaled}"]
