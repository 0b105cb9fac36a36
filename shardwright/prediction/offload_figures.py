"""Figures 1 and 4 of FlexGen (Sheng et al. 2023) as curves of the model's, beside the points that its text gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from io import BytesIO
from math import inf
from typing import TYPE_CHECKING, Any

from shardwright.cost.chips import load_chip, load_machine
from shardwright.cost.offloading.policy import Policy, parse_policy
from shardwright.cost.offloading.runtimes import load_runtime
from shardwright.cost.offloading.swarm import Network, petals, swarm_tokens_per_s
from shardwright.models.built_in import built_in
from shardwright.prediction.checks import Check, published_lines
from shardwright.prediction.offload_rows import OffloadRow, compared, table_2, table_19
from shardwright.prediction.offloading import frontier, model_sizes, priced, setting_of
from shardwright.prediction.swarm_rows import petals_checks

if TYPE_CHECKING:
    from shardwright.cost.offloading.pricing import Plan, Setting

Points = Sequence[tuple[float, float]]

SYSTEMS = {
    "flexgen": "FlexGen",
    "flexgen-4bit": "FlexGen (c)",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
}
_MODELS = {"opt-175b": "OPT-175B", "opt-30b": "OPT-30B"}
_PROMPT, _GENERATED = 512, 32

NETWORKS = {("5", "1000"): "5 ms, 1 Gbit/s", ("5", "100"): "5 ms, 100 Mbit/s", ("100", "100"): "100 ms, 100 Mbit/s"}
"""Delay in ms and Mbit/s, as table 13 has them, by what a curve is called."""

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Tokens to generate, along figure 4."""

_SERVERS = 4


@dataclass(frozen=True)
class Panel:
    """Curves that are predicted and points that were published, by their systems."""

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Points]
    published: Mapping[str, Points] = field(default_factory=dict[str, Points])


@dataclass(frozen=True)
class Panels:
    """Panels beside each other, both axes logarithmic, with one legend."""

    title: str
    panels: tuple[Panel, ...]


# ---------------------------------------------------------------- figure 1


def figure_1() -> Panels:
    """Section 6.1: throughput against the time of a block on a T4, prompt 512, output 32. The curves are the best
    policies that the search finds within a time; points are those of tables 19 (OPT-175B) and 2 (OPT-30B)."""
    panels: list[Panel] = []
    for model, title in _MODELS.items():
        curves = {label: _curve(model, system) for system, label in SYSTEMS.items()}
        published: dict[str, Points] = {}
        for system, label in SYSTEMS.items():
            rows = [row for row in _rows_of_figure_1() if (row.model, row.system) == (model, system)]
            published[label] = [(seconds_of(row), row.policy.block * row.generated / seconds_of(row)) for row in rows]
        panels.append(Panel(title, "time of a block, s", "throughput, token/s", curves, published))
    title = "FlexGen, figure 1: a T4 with 208 GiB and a disk, 512 tokens in and 32 out"
    return Panels(title, tuple(panels))


def figure_1_checks() -> list[Check]:
    """The points of figure 1, in token/s, and the times that sections 1 and 6.1 compare systems at, from the curves."""
    rows = compared(replace(_in_tokens(row), table="flexgen-figure-1") for row in _rows_of_figure_1())
    flexgen, packed, deepspeed, accelerate = (_plans("opt-175b", system) for system in SYSTEMS)
    claims = (
        ("flexgen within 5000 s", 0.421, _within(flexgen, 5000)),
        ("flexgen within 12000 s", 0.69, _within(flexgen, 12000)),
        ("flexgen-4bit within 4100 s", 1.12, _within(packed, 4100)),
        ("deepspeed within any time", 0.006, _within(deepspeed, inf)),
        ("accelerate within 5000 s", 0.0, _within(accelerate, 5000)),
        ("accelerate within any time", 0.008, _within(accelerate, inf)),
    )
    return [
        *rows,
        *(
            Check("flexgen-figure-1", f"opt-175b {row}", "the best policy found, token/s", published, predicted, None)
            for row, published, predicted in claims
        ),
    ]


def seconds_of(row: OffloadRow) -> float:
    """The published time of a row's block."""
    return row.value if row.unit == "s" else row.policy.block * row.generated / row.value


def _in_tokens(row: OffloadRow) -> OffloadRow:
    return replace(row, value=row.policy.block * row.generated / seconds_of(row), unit="token/s")


@cache
def _rows_of_figure_1() -> tuple[OffloadRow, ...]:
    """Table 19, and of OPT-30B the points of table 2, whose time of a block is that of their tokens."""
    largest = [row for row in table_2() if row.model == "opt-30b" and row.prompt == _PROMPT]
    return tuple(row for row in (*table_19(), *largest) if row.value)


def _curve(model: str, system: str) -> Points:
    return [(plan.seconds, plan.tokens_per_s) for plan in _plans(model, system)]


@cache
def _plans(model: str, system: str) -> tuple[Plan, ...]:
    """The frontier of a system, the fastest block first."""
    return tuple(frontier(_setting(model, system, _GENERATED), compress=system.endswith("-4bit"), points=8))


def _within(plans: Sequence[Plan], seconds: float) -> float:
    """The highest throughput of blocks that take no longer; 0 where all take longer."""
    return max((plan.tokens_per_s for plan in plans if plan.seconds <= seconds), default=0.0)


# ---------------------------------------------------------------- figure 4


def figure_4() -> Panels:
    """Section 6.3: OPT-30B, prompt 512, time and throughput of one GPU by tokens generated, Petals on 4 GPUs under
    three networks and FlexGen on one. Time is under the policy of table 22 with the shortest, throughput under that of
    table 15 with the highest; the points are table 13's, at 32 tokens."""
    latency: dict[str, Points] = {}
    throughput: dict[str, Points] = {}
    for label, fast, wide, compress in _FLEXGEN:
        system = "flexgen-4bit" if compress else "flexgen"
        plans = [(n, _priced(system, n, fast), _priced(system, n, wide)) for n in LENGTHS]
        latency[label] = [(n, plan.seconds) for n, plan, _ in plans]
        throughput[label] = [(n, plan.tokens_per_s) for n, _, plan in plans]
    for (delay, megabits), label in NETWORKS.items():
        rates = [(n, petals_tokens_per_s(n, delay, megabits)) for n in LENGTHS]
        own = petals()
        latency[f"Petals, {label}"] = [(n, own.clients * own.batch * n / (rate * _SERVERS)) for n, rate in rates]
        throughput[f"Petals, {label}"] = rates
    published: dict[str, Points] = {
        f"Petals, {NETWORKS[line['delay_ms'], line['mbit_per_s']]}": [(_GENERATED, float(line["tokens_per_s"]))]
        for line in published_lines("flexgen_table_13_petals.csv")
        if (line["model"], line["prompt_len"]) == ("opt-30b", str(_PROMPT))
    }
    for label, _, _, compress in _FLEXGEN:
        system = "flexgen-4bit" if compress else "flexgen"
        (row,) = (row for row in _rows_of_figure_1() if (row.model, row.system) == ("opt-30b", system))
        published[label] = [(_GENERATED, row.value)]
    return Panels(
        "FlexGen, figure 4: OPT-30B, 512 tokens in, FlexGen on one T4, Petals on four",
        (
            Panel("full latency: FlexGen one sequence, Petals twelve", "tokens generated", "s", latency),
            Panel("throughput of one GPU", "tokens generated", "token/s", throughput, published),
        ),
    )


_FAST = parse_policy("1,1,20,80,100,0,100,0")
_FLEXGEN: tuple[tuple[str, Policy, Policy, bool], ...] = (
    ("FlexGen", _FAST, parse_policy("48,3,20,80,0,100,0,100"), False),
    ("FlexGen (c)", _FAST, parse_policy("16,20,20,80,0,100,100,0"), True),
)
"""Each curve with the policy for time and the one for throughput."""


def figure_4_checks() -> list[Check]:
    """Table 13's throughput at 32 tokens, and what section 6.3 reads off figure 4."""
    rows = [
        replace(check, table="flexgen-figure-4")
        for check in petals_checks()
        if check.row.startswith(f"opt-30b petals {_PROMPT},")
    ]
    rows += [
        replace(check, table="flexgen-figure-4")
        for check in compared(row for row in _rows_of_figure_1() if row.model == "opt-30b" and "flexgen" in row.system)
    ]
    latency, throughput = (panel.curves for panel in figure_4().panels)
    slow, flexgen = dict(latency[f"Petals, {NETWORKS['100', '100']}"]), dict(latency["FlexGen"])
    ahead = [n for n in LENGTHS if flexgen[n] < slow[n]]
    least = min(
        ours / dict(points)[n]
        for label, points in throughput.items()
        if label.startswith("Petals")
        for n, ours in throughput["FlexGen"]
    )
    crosses = 0 < len(ahead) < len(LENGTHS) and ahead == list(LENGTHS[: len(ahead)])
    return [
        *rows,
        Check(
            "flexgen-figure-4",
            "FlexGen's throughput is above Petals' under every network",
            "1 where it is, at every length",
            1,
            float(least > 1),
            None,
            f"at least {least:.1f} times",
        ),
        Check(
            "flexgen-figure-4",
            "FlexGen is sooner than Petals at 100 ms for short generation, later for long",
            "1 where the curves cross so",
            1,
            float(crosses),
            None,
            f"sooner up to {ahead[-1]} tokens" if ahead else "never sooner",
        ),
    ]


def petals_tokens_per_s(generated: int, delay_ms: str, mbit_per_s: str) -> float:
    """The throughput of one of four GPUs, for OPT-30B at prompt 512."""
    sizes = model_sizes(built_in("opt-30b").model, _PROMPT, generated)
    network = Network(float(delay_ms) / 1e3, float(mbit_per_s) * 1e6 / 8)
    return swarm_tokens_per_s(sizes, load_chip("t4"), _SERVERS, network, petals())


def _priced(system: str, generated: int, policy: Policy) -> Plan:
    return priced(_setting("opt-30b", system, generated), policy, compress=system.endswith("-4bit"))


@lru_cache(maxsize=64)
def _setting(model: str, system: str, generated: int) -> Setting:
    runtime = load_runtime(system.removesuffix("-4bit"))
    return setting_of(built_in(model).model, load_machine("t4"), runtime, _PROMPT, generated)


FIGURES: Mapping[str, tuple[str, Callable[[], list[Check]], Callable[[], Panels]]] = {
    "flexgen-figure-1": ("FlexGen, figure 1: throughput against the time of a block", figure_1_checks, figure_1),
    "flexgen-figure-4": ("FlexGen, figure 4: FlexGen and Petals by network", figure_4_checks, figure_4),
}
"""A title, the figure's numbers beside predictions, and its curves."""


# ---------------------------------------------------------------- files

_COLOURS = ("#1b5fa8", "#d1495b", "#2e8b57", "#e08e0b", "#7a4fa3")
_MARKERS = ("o", "s", "^", "D", "v")


def drawn(figure: Panels, suffix: str) -> bytes:
    """The figure as `svg`, `png` or `pdf`: predictions as lines, what was published as points of the same colour.
    Raises ModuleNotFoundError without matplotlib."""
    from importlib import import_module

    mpl: Any = import_module("matplotlib")
    ticker: Any = import_module("matplotlib.ticker")
    lines: Any = import_module("matplotlib.lines")
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "figure", "font.size": 9}):
        sheet: Any = import_module("matplotlib.figure").Figure(figsize=(10, 4.6), layout="constrained")
        sheet.suptitle(figure.title, fontsize=11)
        labels = list(dict.fromkeys(label for panel in figure.panels for label in panel.curves))
        styles = dict(zip(labels, zip(_COLOURS, _MARKERS, strict=True), strict=False))
        for axes, panel in zip(sheet.subplots(1, len(figure.panels), squeeze=False)[0], figure.panels, strict=True):
            for label, points in panel.curves.items():
                colour, marker = styles[label]
                # One plan alone is a short line where a dot would be taken for a published point.
                alone = {"marker": "_", "markersize": 14, "markeredgewidth": 2} if len(points) == 1 else {}
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.8, alpha=0.9, **alone)
                for x, y in panel.published.get(label, ()):
                    axes.plot(x, y, marker, color=colour, markersize=6.5, markeredgecolor="white", markeredgewidth=0.7)
            axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label, xscale="log", yscale="log")
            for axis in (axes.xaxis, axes.yaxis):
                low, high = axis.get_view_interval()
                # One decade has too few powers of ten to be read.
                axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high / low < 3000 else (1,)))
                axis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
                axis.set_minor_formatter(ticker.NullFormatter())
            if panel.x_label == "tokens generated":
                axes.xaxis.set_major_locator(ticker.FixedLocator(LENGTHS))
            axes.grid(visible=True, which="major", alpha=0.3)
        handles = [lines.Line2D([], [], color=styles[label][0], linewidth=1.8, label=label) for label in labels]
        handles += [
            lines.Line2D([], [], color="#444", linewidth=1.8, label="lines: predicted"),
            lines.Line2D([], [], color="#444", marker="o", linestyle="none", markersize=5, label="points: published"),
        ]
        sheet.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
        out = BytesIO()
        sheet.savefig(out, format=suffix, dpi=110, metadata={"Date": None} if suffix == "svg" else None)
        return out.getvalue()
