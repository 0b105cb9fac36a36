"""Figures of Pope et al. (2022) as curves of the model's, with the points that their tables and text give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.program_cost import mfu
from shardwright.models.built_in import built_in
from shardwright.models.layouts import AttentionOver
from shardwright.prediction.models import torus_mesh
from shardwright.prediction.phases import phase_cost
from shardwright.prediction.programs import Deployment, Phase, Weights
from shardwright.reproduction import palm_frontiers
from shardwright.reproduction.checks import published_lines
from shardwright.reproduction.feedforward import volume
from shardwright.reproduction.figure_drawing import Curve, Figure, Panel
from shardwright.reproduction.palm_frontiers import SIZES, Ran, decode_step, frontier, short_prefills, sweep
from shardwright.reproduction.reproduction import compare
from shardwright.reproduction.rows import published

# ---------------------------------------------------------------- sections 3 to 5


def figure_3() -> Figure:
    """Section 3.2.3: what the feedforward layer's collectives carry, by tokens per batch."""
    E, F = 16384, 65536
    tokens = [1 << exponent for exponent in range(11, 23)]
    curves = tuple(
        Curve(_LAYOUT_NAMES[name], [(n, volume(name, (4, 4, 4), n, E, F).total) for n in tokens])
        for name in ("ws2d", "wg-x", "wg-xy", "wg-xyz")
    )
    panel = Panel("", "tokens per batch", "elements communicated by a chip in a layer", curves, "log2", "log10")
    return Figure("Figure 3: feedforward layer, E = 16384, F = 65536, 64 chips", (panel,))


_LAYOUT_NAMES: Final = {
    "ws1d": "1D weight-stationary",
    "ws2d": "2D weight-stationary",
    "wg-x": "X weight-gathered",
    "wg-xy": "XY weight-gathered",
    "wg-xyz": "XYZ weight-gathered",
}


def figure_6() -> Figure:
    """Section 4.1: latency of a decode step of 512 sequences under 1D and 2D weight-stationary layouts, by chips."""
    curves = [
        Curve(_LAYOUT_NAMES[layout], [(n, 1e3 * decode_step(layout, n).seconds) for n in (64, 128, 256)])
        for layout in ("ws1d", "ws2d")
    ]
    row = _row_of_table_2("high-throughput", "decode")
    latency = 1e3 * float(row["latency_s"]) / palm_frontiers.GENERATED
    curves.append(Curve("table 2: 2D weight-stationary", [(64, latency)], _LAYOUT_NAMES["ws2d"], source="table 2"))
    panel = Panel("", "chips", "latency of a step, ms", tuple(curves), "log2", "log10")
    return Figure("Figure 6: decode of PaLM 540B, batch 512, bf16, context 2048", (panel,))


def figure_7() -> Figure:
    """Section 4.1: MFU of prefill of 2048 tokens a sequence, stationary and gathered weights."""
    chip, model = load_chip("tpu-v4"), built_in("palm-540b-64-heads").model
    layouts: dict[str, tuple[AttentionOver, Sequence[int]]] = {
        "ws2d": ("head", (1, 3, 9, 27, 81, 243)),
        "wg-xyz": ("batch", (64, 128, 256, 512)),
    }
    curves: list[Curve] = []
    for layout, (attention, batches) in layouts.items():
        deployment = Deployment(model, torus_mesh(chip, 64), layout, attention, decomposed=True)
        times = [phase_cost(deployment, chip, "prefill", batch, 2048, 2048).time_s for batch in batches]
        tokens = [2048 * batch for batch in batches]
        points = [(n, mfu(chip, 64, 540e9, n, seconds)) for n, seconds in zip(tokens, times, strict=True)]
        curves.append(Curve(_LAYOUT_NAMES[layout], points))
    for scenario, layout, source in (
        ("low-latency", "ws2d", "table 2, with int8 weights"),
        ("high-throughput", "wg-xyz", "table 2"),
    ):
        row = _row_of_table_2(scenario, "prefill")
        at = 2048 * int(row["batch"]), float(row["mfu_percent"]) / 100
        curves.append(Curve(f"{source}: {_LAYOUT_NAMES[layout]}", [at], _LAYOUT_NAMES[layout], source=source))
    panel = Panel("", "tokens per batch", "MFU", tuple(curves), "log2", percent=True)
    return Figure("Figure 7: prefill of PaLM 540B, 64 chips, bf16, 2048 tokens a sequence", (panel,))


def figure_8() -> Figure:
    """Section 4.2: latency of decode by context, 8 layers, batch 256, for three ways to split attention."""
    chip = load_chip("tpu-v4")
    variants: dict[str, tuple[str, AttentionOver]] = {
        "multihead, over heads": ("palm-540b-8-layers-multihead", "head"),
        "multiquery, over heads": ("palm-540b-8-layers", "head"),
        "multiquery, over batch": ("palm-540b-8-layers", "batch"),
    }
    curves: list[Curve] = []
    for label, (name, attention) in variants.items():
        deployment = Deployment(built_in(name).model, torus_mesh(chip, 64), "ws2d", attention, decomposed=True)
        points = [
            (context, 1e3 * phase_cost(deployment, chip, "decode", 256, 1, context).time_s)
            for context in (128, 256, 512, 1024, 2048, 4096, 8192)
        ]
        curves.append(Curve(label, points))
    panel = Panel("", "context, positions", "latency of a step, ms", tuple(curves), "log2", "log10")
    return Figure("Figure 8: decode of 8 layers of PaLM 540B, batch 256, 64 chips, bf16", (panel,))


_SYSTEMS: Final = {
    "pope2022 palm-540b-64-heads": "PaLM 540B, 64 TPU v4",
    "pope2022 mt-nlg-530b": "MT-NLG 530B, 64 TPU v4",
    "fastertransformer-tp16 mt-nlg-530b": "FasterTransformer, TP 16",
    "fastertransformer-tp32 mt-nlg-530b": "FasterTransformer, TP 32",
    "fastertransformer-pp3-tp8 mt-nlg-530b": "FasterTransformer, PP 3, TP 8",
}


def figure_9() -> Figure:
    """Section 5: MFU and latency of 60 tokens in and 20 out, published and predicted."""
    ours: dict[str, list[tuple[float, float]]] = {}
    theirs: dict[str, list[tuple[float, float]]] = {}
    for made in compare(row for row in published("d3") if len(row.phases) == 2):
        row = made.row
        label = _SYSTEMS[row.name.split(" ", 1)[0] + " " + row.model.name]
        for curves, seconds in ((ours, made.predicted_s), (theirs, row.measured_s)):
            value = mfu(row.chip, row.n_chips, row.model.parameters, row.tokens, seconds)
            curves.setdefault(label, []).append((seconds, value))
    made_curves = [Curve(label, points) for label, points in ours.items()]
    made_curves += [Curve(f"table D.3: {label}", points, label, source="table D.3") for label, points in theirs.items()]
    panel = Panel("", "latency in all, s", "MFU", tuple(made_curves), percent=True)
    return Figure("Figure 9: 60 tokens in and 20 out, batches of 1 to 1024", (panel,))


# ---------------------------------------------------------------- frontiers of PaLM


def figure_1() -> Figure:
    """Section 4.4: cost per token against latency, at context 2048."""
    return Figure(
        "Figure 1: PaLM on TPU v4, context 2048, frontier over chips and batches",
        (
            _panel("decode", lambda ran: 1e3 * ran.cost, "cost, chip-milliseconds per token"),
            _panel("prefill", lambda ran: 1e3 * ran.cost, "cost, chip-milliseconds per token"),
        ),
    )


def figure_c_1() -> Figure:
    """Appendix C: MFU against latency, on the sweep of figure 1."""
    return Figure(
        "Figure C.1: PaLM on TPU v4, context 2048, frontier over chips and batches",
        (_panel("decode", lambda ran: ran.mfu, "MFU"), _panel("prefill", lambda ran: ran.mfu, "MFU")),
    )


def figure_b_1() -> Figure:
    """Appendix B: cost per token against latency of prefill of one sequence of 32 to 1024 tokens."""
    curves = [
        _frontier_curve(
            f"PaLM {size}", short_prefills(size, "int8"), lambda ran: 1e3 * ran.cost, f"PaLM {size}", length=True
        )
        for size in SIZES
    ]
    panel = Panel("", "latency of prefill, s", "cost, chip-milliseconds per token", tuple(curves), "log10", "log10")
    title = "Figure B.1: PaLM prefill on TPU v4, batch 1, sequences of 32 to 1024 tokens, int8"
    return Figure(title, (panel,))


def _panel(phase: Phase, value: Callable[[Ran], float], y_label: str) -> Panel:
    """Both weight formats of each size; published are the rows of table 2 and the latencies of section 4.4."""
    formats: tuple[Weights, ...] = ("int8", "bf16")
    costs = y_label != "MFU"
    curves = [
        _frontier_curve(
            f"PaLM {size}, {weights}",
            sweep(size, phase, weights),
            value,
            f"PaLM {size}",
            weights == "bf16",
            told_ends=costs and weights == "int8",
        )
        for size in SIZES
        for weights in formats
    ]
    given = _published_540b(phase)
    for source in dict.fromkeys(where for where, _ in given):
        points = sorted((ran.seconds, value(ran)) for where, ran in given if where == source)
        curves.append(Curve(f"{source}: PaLM 540B", points, "PaLM 540B", source=source))
    decode = phase == "decode"
    return Panel(
        "decode, one token of each sequence" if decode else "prefill of 2048 tokens of each sequence",
        "latency of a step, s" if decode else "latency, s",
        y_label,
        tuple(curves),
        y_scale="log10" if costs else "linear",
        percent=not costs,
    )


def _frontier_curve(
    label: str,
    swept: Iterable[Ran],
    value: Callable[[Ran], float],
    hue: str,
    dashed: bool = False,
    *,
    told_ends: bool = True,
    length: bool = False,
) -> Curve:
    """The frontier of latency and cost; its ends may say with how many chips C, and of which batch B or length S."""
    best = frontier(swept)

    def told(ran: Ran) -> str:
        return f"C{ran.chips} S{ran.tokens}" if length else f"C{ran.chips} B{ran.batch}"

    marks = {0: told(best[0]), len(best) - 1: told(best[-1])} if told_ends else {}
    return Curve(label, [(ran.seconds, value(ran)) for ran in best], hue, dashed, marks=marks)


def _row_of_table_2(scenario: str, phase: Phase) -> Mapping[str, str]:
    lines = published_lines("pope2022_table_2.csv")
    return next(line for line in lines if (line["scenario"], line["phase"]) == (scenario, phase))


def _published_540b(phase: Phase) -> list[tuple[str, Ran]]:
    """The points of table 2, and of section 4.4 where it gives latencies that table 2 has not; a step for decode."""
    made: list[tuple[str, Ran]] = []
    for line in published_lines("pope2022_table_2.csv"):
        if line["phase"] == phase:
            batch, chips = int(line["batch"]), int(line["chips"])
            steps = palm_frontiers.GENERATED if phase == "decode" else 1
            tokens = batch * (1 if phase == "decode" else palm_frontiers.CONTEXT)
            made.append(("table 2", Ran(chips, batch, tokens, "", float(line["latency_s"]) / steps, 540e9)))
    if phase == "decode":
        values = {
            line["id"]: float(line["value"])
            for line in published_lines("pope2022_claims.csv")
            if "_decode" in line["id"]
        }
        made.append(("section 4.4", Ran(64, 64, 64, "", 1e-3 * values["bf16_decode"], 540e9)))
    return made


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "figure_1": figure_1,
    "figure_3": figure_3,
    "figure_6": figure_6,
    "figure_7": figure_7,
    "figure_8": figure_8,
    "figure_9": figure_9,
    "figure_b_1": figure_b_1,
    "figure_c_1": figure_c_1,
}
