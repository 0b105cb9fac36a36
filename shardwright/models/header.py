"""The comment above a model's program: what the model is, its layouts, and the letters of its dimensions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from shardwright.ir.mesh import Mesh
from shardwright.models.description import LearnedPositions, Model
from shardwright.models.layers import capital
from shardwright.models.layouts import PresetLayout, Role


def header(
    model: Model, layouts: Sequence[tuple[str, PresetLayout]], mesh: Mesh, *, cached: bool, paged: bool = False
) -> list[str]:
    """Comment lines. `layouts` are those of the functions, by their names, the one that stores the weights first."""
    stored = layouts[0][1]
    whole = "the whole forward pass" if not cached else f"{_listed([name for name, _ in layouts])} with a KV cache"
    whole += " of pages" if paged else ""
    if stored.open:
        names = ["Layouts are left open, but that of the logits: `shardwright search` finds them, or `place`."]
    elif len({layout.name for _, layout in layouts}) == 1:
        names = [f"Layout {stored.name}: {_where(model, stored, mesh)}."]
    else:
        names = [f"Weights as in {stored.name}: {_weights(model, stored, mesh)}."]
        names += [f"{capital(name)} in layout {layout.name}: {_residual(layout)}." for name, layout in layouts]
    paragraphs = [
        f"{model.architecture}: {whole}. {capital(', '.join(_pieces(model)))}.",
        *names,
        *(_dropped(stored) if stored.open else _choices(model, layouts, mesh)),
        _letters(
            model,
            cached=cached,
            paged=paged,
            prompts=any("B1" in (layout.attention or {}) for _, layout in layouts),
            groups=sorted({dim[0] for _, layout in layouts for dim in layout.groups if dim[0] in "JO"}),
        ),
    ]
    wrapped = (line for each in paragraphs for line in textwrap.wrap(each, 100, break_on_hyphens=False))
    return [f"# {line}" for line in wrapped]


def _choices(model: Model, layouts: Sequence[tuple[str, PresetLayout]], mesh: Mesh) -> list[str]:
    """How attention and experts are split, and what could not be."""
    stored = layouts[0][1]
    return [
        *(sentence for _, layout in _by_attention(layouts) for sentence in _attention(layout)),
        *_experts(layouts),
        *_dropped(stored),
        *(f"{sentence}." for sentence in _whole_keys(model, stored, mesh)),
    ]


def _dropped(layout: PresetLayout) -> list[str]:
    return [f"{sentence}." for sentence in layout.dropped]


def _pieces(model: Model) -> list[str]:
    blocks = "parallel blocks" if model.parallel else "serial blocks"
    if model.parallel and not model.shared_norm:
        blocks += " with two norms"
    where = {"after": "after each branch", "around": "around each branch", "sums": "after the sums"}
    if model.norms in where:
        blocks += f" with norms {where[model.norms]}"
    tied = "tied embeddings" if model.tied else "separate embeddings of input and output"
    if isinstance(model.positions, LearnedPositions):
        tied += ", learned positions"
    return [blocks, model.norm.title, model.attention.title, model.feedforward.title, tied]


def _where(model: Model, layout: PresetLayout, mesh: Mesh) -> str:
    return f"{_residual(layout)}; {_weights(model, layout, mesh)}"


def _residual(layout: PresetLayout) -> str:
    splits = [_splits("B", layout.batch), _splits("E", layout.residual)]
    return f"the residual stream is split {', '.join(filter(None, splits)) or 'over no axis'}"


def _weights(model: Model, layout: PresetLayout, mesh: Mesh) -> str:
    split = layout.split
    heads = tuple(axis for dim in model.attention.query_dims for axis in split(Role.HEADS, dim))
    weights = [
        _splits("E", split(Role.EMBED, "E")),
        _splits("F", split(Role.FEEDFORWARD, "F")),
        _splits("heads", mesh.sorted(heads)),
    ]
    over, looked_up = (_splits("V", split(role, "V")) or "over no axis" for role in (Role.VOCAB, Role.TABLE))
    tables = f"embedding tables {over}"
    if looked_up != over and not model.tied:
        tables = f"the embedding table of the output {over}, that of the input {looked_up}"
    return f"weights are split {', '.join(filter(None, weights)) or 'over no axis'}; {tables}"


def _by_attention(layouts: Sequence[tuple[str, PresetLayout]]) -> list[tuple[str, PresetLayout]]:
    """The layouts of attention that differ, each once."""
    return [item for at, item in enumerate(layouts) if item[1].attention not in [a.attention for _, a in layouts[:at]]]


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _attention(layout: PresetLayout) -> list[str]:
    if layout.attention is None:
        return []
    splits = [_splits(dim, axes) for dim, axes in layout.attention.items()]
    return [f"Attention is split {', '.join(filter(None, splits)) or 'over no axis'}."]


def _experts(layouts: Sequence[tuple[str, PresetLayout]]) -> list[str]:
    """How tokens come to experts that they are sent to, in each function."""
    axes = layouts[0][1].experts
    if axes is None:
        return []
    made = [f"Tokens are sent to the experts, which are split {_splits('X', axes) or 'over no axis'}."]
    for name, layout in layouts:
        groups = [_splits(dim, split) for dim, split in layout.groups.items() if dim != "E"]
        made.append(f"In {name} their groups are split {', '.join(filter(None, groups)) or 'over no axis'}.")
    return [" ".join(made)]


def _whole_keys(model: Model, layout: PresetLayout, mesh: Mesh) -> list[str]:
    """The lines to be said of keys and values that have fewer heads than the mesh could split."""
    attention = model.attention
    queries = [axis for dim in attention.query_dims for axis in layout.split(Role.HEADS, dim)]
    keys = [axis for dim in attention.key_dims for axis in layout.split(Role.HEADS, dim)]
    left = mesh.sorted(set(queries) - set(keys))
    if not left:
        return []
    if attention.latent is not None:
        return [f"Latent vectors are not split over {' '.join(left)}, which split the heads"]
    heads = "a single head" if attention.kv_heads == 1 else f"{attention.kv_heads} heads"
    return [f"wk and wv, of {heads}, are not split over {' '.join(left)}, which split the queries' heads"]


def _letters(model: Model, *, cached: bool, paged: bool, prompts: bool, groups: Sequence[str]) -> str:
    attention = model.attention
    grouped, latent = attention.query_dims == ("K", "G"), attention.latent
    experts, opening = model.feedforward.experts, "" if len(model.stacks) == 1 else ", N1 opening layers, F1 of theirs"
    pieces = [
        "B batch" + (", B1 batch of prefill" if prompts else "") + ", L positions of the queries",
        "T1 pages of a row, T2 slots of a page, T3 pages" if paged else "",
        "T positions of a row" if paged and attention.windows_differ else "",
        "" if paged else f"T of the {'cache' if cached else 'keys'}",
        f"N layers, E embedding, F feedforward{opening}, V vocabulary",
        "W width of the embedding tables" if model.embedding_size is not None else "",
        "X experts, A of them for each token" if experts is not None else "",
        "X1 groups of X2 experts, X3 of them open" if experts is not None and experts.grouped else "",
        "F2 of what computes every token" if experts is not None and experts.shared else "",
        f"J groups of M rows{' and O of Q positions' if 'O' in groups else ''}, S tokens of a group" if groups else "",
        "C slots of an expert for it, Z of all" if groups else "",
        "P learned positions" if isinstance(model.positions, LearnedPositions) else "",
        "K heads of keys and values, G heads of queries for each" if grouped else "H heads",
        "D elements of a head" if latent is None else "D elements of a position in the cache, I of them latent",
        "" if latent is None else "D1 plain and D2 turned elements of a query, D3 of a value",
        "U of the latent vector of queries" if latent is not None and latent.queries else "",
        "R pairs of elements that turn" if model.computes_frequencies else "",
    ]
    return ", ".join(filter(None, pieces)) + "."


def _splits(what: str, axes: Sequence[str]) -> str:
    return f"along {what} over {' '.join(axes)}" if axes else ""
