"""Letters for dimensions by what stands at the edges of a function: its arguments, its weights and its results."""

from __future__ import annotations

from collections import Counter

from shardwright.tracing.dimensions import Dimensions, Slot
from shardwright.tracing.graph import TracedFunction, Variable


def tie_by_path(traced: TracedFunction, dimensions: Dimensions) -> None:
    """Parameters whose paths differ in numbers alone, as those of two layers, have the same dimensions."""
    first: dict[tuple[object, ...], Variable] = {}
    for variable, edge in traced.stored():
        parts = tuple("".join(c for c in part if not c.isdigit()) for part in edge.path[1:])
        if not any(parts):
            continue
        other = first.setdefault((parts, variable.shape), variable)
        dimensions.tie_all(dimensions.axes(variable, frozenset()), dimensions.axes(other, frozenset()))


def hint_letters(traced: TracedFunction, dimensions: Dimensions) -> None:
    _tie_logits(traced, dimensions)
    for variable in traced.graph.parameters:
        axes = dimensions.axes(variable, frozenset())
        if variable.dtype in {"int32", "int64"}:
            for axis, letter in zip(axes[:2], "BL", strict=False):
                dimensions.hint(axis, letter, 5)
    for variable in traced.graph.parameters[-1:]:
        axes = dimensions.axes(variable, frozenset())
        rows = axes[:-1] if 1 < len(axes) < 4 and variable.dtype not in {"int32", "int64"} else axes
        for axis, letter in zip(rows, "BL", strict=False):
            dimensions.hint(axis, letter, 9)
        # A scan along the positions of (B, L, E) is over no layers.
        if len(axes) == 3 and axes[1] is not None and dimensions.hinted().get(dimensions.find(axes[1])) == "N":
            dimensions.hint(axes[1], "L", 1)
    _hint_weights(traced, dimensions)


def _tie_logits(traced: TracedFunction, dimensions: Dimensions) -> None:
    """Results as wide as the vocabulary are logits: their last dimension is that of the table."""
    tables = [slot for slot, letter in dimensions.hinted().items() if letter == "V"]
    for operand in traced.graph.results:
        last = dimensions.axes(operand, frozenset())[-1:] if isinstance(operand, Variable) else ()
        for slot in tables:
            if last and last[0] is not None and dimensions.size[dimensions.find(last[0])] == dimensions.size[slot]:
                dimensions.tie(last[0], slot)


def _hint_weights(traced: TracedFunction, dimensions: Dimensions) -> None:
    """Letters for the dimensions of weights by their company: E is in most of them, F the larger one beside it, X, F
    around it are those of experts, and H (K where there are fewer), D beside it those of attention."""
    known = dimensions.hinted()
    weights: list[list[Slot]] = []
    for variable, _ in traced.stored():
        axes = [dimensions.find(axis) for axis in dimensions.axes(variable, frozenset()) if axis is not None]
        axes = [axis for axis in axes if known.get(axis) != "N"]
        rows = len(axes) > 2 and [known.get(axis) for axis in axes[:2]] == ["B", "L"]
        if variable.dtype not in {"int32", "int64"} and len(axes) > 1 and not rows:
            weights.append(axes)
    counts = Counter(axis for axes in weights for axis in axes if known.get(axis, "E") == "E")
    if not counts:
        return
    size = dimensions.size
    features = {dimensions.find(axes[-1]) for variable in traced.graph.parameters[-1:]
                if len(axes := [a for a in dimensions.axes(variable, frozenset()) if a is not None]) > 1}  # fmt: skip
    model = next((axis for axis in counts if known.get(axis) == "E"), None)
    if model is None:  # of those that are in as many weights, what comes in, or the smaller one
        model = max(counts, key=lambda axis: (counts[axis], axis in features, -size[axis]))
    dimensions.hint(model, "E", 8)
    cut = {dimensions.find(whole) for whole, _ in dimensions.pieces}
    beside = [axis for axes in weights if len(axes) == 2 and model in axes for axis in axes
              if size[axis] > size[model] and axis not in cut]  # fmt: skip
    for axis in beside:
        dimensions.hint(axis, "F", 8)
    heads: list[Slot] = []
    for place in (1, 0, 2):  # experts first: what they are beside says what F is
        for axes in weights:
            if len(axes) == 3 and axes[place] == model:
                first, last = (axis for axis in axes if axis != model)
                if place == 1:
                    dimensions.hint(first, "X", 7)
                    dimensions.hint(last, "F", 7)
                else:
                    heads.append(first)
                    dimensions.hint(last, "D", 8 + place)
    most = max((size[axis] for axis in heads), default=0)
    for axis in heads:
        dimensions.hint(axis, "H" if size[axis] == most else "K", 8)
