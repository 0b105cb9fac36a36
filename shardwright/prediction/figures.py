"""Figures of Pope et al. (2022) as curves of the model's, with published points where the tables have them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, cast

from shardwright.cost.chips import load_chip
from shardwright.cost.program_cost import mfu
from shardwright.models.built_in import built_in
from shardwright.models.layouts import AttentionOver
from shardwright.prediction.feedforward import volume
from shardwright.prediction.phases import phase_cost
from shardwright.prediction.programs import Deployment
from shardwright.prediction.reproduction import compare
from shardwright.prediction.rows import published, torus_mesh

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Figure:
    """Curves by their labels; those whose label begins with "published" are drawn as points."""

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Points]
    log_x: bool = True
    log_y: bool = False


def figure_3() -> Figure:
    """Section 3.2.3: what the feedforward layer's collectives carry, by tokens per batch."""
    E, F = 16384, 65536
    tokens = [1 << exponent for exponent in range(11, 23)]
    curves = {
        name: [(n, volume(name, (4, 4, 4), n, E, F).total) for n in tokens]
        for name in ("ws2d", "wg-x", "wg-xy", "wg-xyz")
    }
    return Figure(
        "Figure 3: feedforward layer, E=16384, F=65536, 64 chips",
        "tokens per batch",
        "elements a chip's collectives carry",
        curves,
        log_y=True,
    )


def figure_7() -> Figure:
    """Section 4.1: MFU of prefill of 2048 tokens a sequence, stationary and gathered weights."""
    chip, model = load_chip("tpu-v4"), built_in("palm-540b-64-heads").model
    layouts: dict[str, tuple[AttentionOver, Sequence[int]]] = {
        "ws2d": ("head", (1, 2, 3)),
        "wg-xyz": ("batch", (64, 128, 256, 512)),
    }
    curves: dict[str, Points] = {"published best": [(512 * 2048, 0.76)], "published at batch 1 (int8)": [(2048, 0.43)]}
    for layout, (attention, batches) in layouts.items():
        deployment = Deployment(model, torus_mesh(chip, 64), layout, attention)
        curves[layout] = [
            (
                batch * 2048,
                mfu(chip, 64, 540e9, batch * 2048, phase_cost(deployment, chip, "prefill", batch, 2048, 2048).time_s),
            )
            for batch in batches
        ]
    return Figure("Figure 7: prefill of PaLM 540B on 64 chips, context 2048", "tokens per batch", "MFU", curves)


def figure_8() -> Figure:
    """Section 4.2: latency of decode by context, 8 layers, batch 256, for three ways to split attention."""
    chip = load_chip("tpu-v4")
    variants: dict[str, tuple[str, AttentionOver]] = {
        "multihead": ("palm-540b-8-layers-multihead", "head"),
        "multiquery over heads": ("palm-540b-8-layers", "head"),
        "multiquery over batch": ("palm-540b-8-layers", "batch"),
    }
    curves: dict[str, Points] = {}
    for label, (name, attention) in variants.items():
        deployment = Deployment(built_in(name).model, torus_mesh(chip, 64), "ws2d", attention)
        curves[label] = [
            (context, 1e3 * phase_cost(deployment, chip, "decode", 256, 1, context).time_s)
            for context in (128, 512, 1024, 2048, 4096, 8192)
        ]
    return Figure(
        "Figure 8: decode of 8 layers of PaLM 540B, batch 256, 64 chips", "context", "ms per step", curves, log_y=True
    )


def figure_9() -> Figure:
    """Section 5: MFU and latency of 60 tokens in and 20 out, published and predicted."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for made in compare(row for row in published("d3") if len(row.phases) == 2):
        row = made.row
        label = row.name.split(" ", 1)[0] + " " + row.model.name
        for kind, seconds in ((f"published {label}", row.measured_s), (label, made.predicted_s)):
            value = mfu(row.chip, row.n_chips, row.model.parameters, row.tokens, seconds)
            curves.setdefault(kind, []).append((seconds, value))
    return Figure("Figure 9: 60 tokens in, 20 out", "seconds in all", "MFU", curves)


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "figure_3": figure_3,
    "figure_7": figure_7,
    "figure_8": figure_8,
    "figure_9": figure_9,
}


def drawn(figure: Figure, suffix: str) -> bytes:
    """The figure as `svg`, `png` or `pdf`. Raises ModuleNotFoundError without matplotlib."""
    module = cast(Any, importlib.import_module("matplotlib.figure"))
    sheet = module.Figure(figsize=(7, 4.5), layout="constrained")
    axes = sheet.subplots()
    colours: dict[str, Any] = {}
    for label, points in figure.curves.items():
        own = label.removeprefix("published ")
        ordered = sorted(points)
        xs, ys = [x for x, _ in ordered], [y for _, y in ordered]
        style = {"marker": "o", "linestyle": "none"} if label.startswith("published") else {"linestyle": "-"}
        (line,) = axes.plot(xs, ys, label=label, color=colours.get(own), **style)
        colours[own] = line.get_color()
    axes.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
    if figure.log_x:
        axes.set_xscale("log", base=2 if figure.x_label != "seconds in all" else 10)
    if figure.log_y:
        axes.set_yscale("log")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    out = BytesIO()
    sheet.savefig(out, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
    return out.getvalue()
