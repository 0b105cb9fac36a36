"""Figures 1 and 4 of FlexGen (Sheng et al. 2023) as curves of the model's, beside the points that its text gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import inf
from typing import TYPE_CHECKING

from shardwright.cost.hardware.chips import load_chip, load_machine
from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.offloading.policy import Policy, parse_policy
from shardwright.cost.offloading.swarm import Network, petals, swarm_tokens_per_s
from shardwright.models.built_in import built_in
from shardwright.prediction.offloading import frontier, model_sizes, priced, setting_of
from shardwright.reproduction.checks import Check, published_lines
from shardwright.reproduction.figure_drawing import Curve, Figure, Panel, Points
from shardwright.reproduction.offload_rows import OffloadRow, compared, table_2, table_19
from shardwright.reproduction.swarm_rows import petals_checks

if TYPE_CHECKING:
    from shardwright.cost.offloading.pricing import OffloadSetting, PricedPolicy

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

# ---------------------------------------------------------------- figure 1


def figure_1() -> Figure:
    """Section 6.1: throughput against the time of a block on a T4, prompt 512, output 32. The curves are the best
    policies that the search finds within a time; points are those of tables 19 (OPT-175B) and 2 (OPT-30B)."""
    panels: list[Panel] = []
    for (model, title), source in zip(_MODELS.items(), ("table 19", "table 2"), strict=True):
        curves: list[Curve] = []
        for system, label in SYSTEMS.items():
            curves.append(Curve(label, [(plan.seconds, plan.tokens_per_s) for plan in _plans(model, system)]))
            rows = [row for row in _rows_of_figure_1() if (row.model, row.system) == (model, system)]
            points = [(seconds_of(row), row.policy.block * row.generated / seconds_of(row)) for row in rows]
            curves.append(_published(label, points, source))
        panels.append(Panel(title, "time of a block, s", "throughput, token/s", tuple(curves), y_scale="log10"))
    return Figure("FlexGen, figure 1: a T4 with 208 GiB and a disk, 512 tokens in and 32 out", tuple(panels))


def _published(label: str, points: Points, source: str) -> Curve:
    """Points beside the curve of this label, in its colour."""
    return Curve(f"{source}: {label}", points, label, source=source)


def figure_1_checks() -> list[Check]:
    """The points of figure 1, in token/s, and the times that sections 1 and 6.1 compare systems at, from the curves."""
    rows = compared(
        replace(
            row,
            value=row.policy.block * row.generated / seconds_of(row),
            unit="token/s",
            table="flexgen-figure-1",
        )
        for row in _rows_of_figure_1()
    )
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


@cache
def _rows_of_figure_1() -> tuple[OffloadRow, ...]:
    """Table 19, and of OPT-30B the points of table 2, whose time of a block is that of their tokens."""
    largest = [row for row in table_2() if row.model == "opt-30b" and row.prompt == _PROMPT]
    return tuple(row for row in (*table_19(), *largest) if row.value)


@cache
def _plans(model: str, system: str) -> tuple[PricedPolicy, ...]:
    """The frontier of a system, the fastest block first."""
    return tuple(frontier(_setting(model, system, _GENERATED), compress=system.endswith("-4bit"), points=8))


def _within(plans: Sequence[PricedPolicy], seconds: float) -> float:
    """The highest throughput of blocks that take no longer; 0 where all take longer."""
    return max((plan.tokens_per_s for plan in plans if plan.seconds <= seconds), default=0.0)


# ---------------------------------------------------------------- figure 4


def figure_4() -> Figure:
    """Section 6.3: OPT-30B, prompt 512, time and throughput of one GPU by tokens generated, Petals on 4 GPUs under
    three networks and FlexGen on one. Time is under the policy of table 22 with the shortest, throughput under that of
    table 15 with the highest; the points are table 13's, at 32 tokens."""
    latency: list[Curve] = []
    throughput: list[Curve] = []
    for label, fast, wide, compress in _FLEXGEN:
        system = "flexgen-4bit" if compress else "flexgen"
        latency.append(Curve(label, [(n, _priced(system, n, fast).seconds) for n in LENGTHS]))
        throughput.append(Curve(label, [(n, _priced(system, n, wide).tokens_per_s) for n in LENGTHS]))
        (row,) = (row for row in _rows_of_figure_1() if (row.model, row.system) == ("opt-30b", system))
        throughput.append(_published(label, [(_GENERATED, row.value)], "table 2"))
    rows = {
        (line["delay_ms"], line["mbit_per_s"]): float(line["tokens_per_s"])
        for line in published_lines("flexgen_table_13_petals.csv")
        if (line["model"], line["prompt_len"]) == ("opt-30b", str(_PROMPT))
    }
    for network, name in NETWORKS.items():
        label, own = f"Petals, {name}", petals()
        rates = [(n, petals_tokens_per_s(n, *network)) for n in LENGTHS]
        latency.append(Curve(label, [(n, own.clients * own.batch * n / (rate * _SERVERS)) for n, rate in rates]))
        throughput.append(Curve(label, rates))
        throughput.append(_published(label, [(_GENERATED, rows[network])], "table 13"))
    said = "full latency: FlexGen one sequence, Petals twelve"
    return Figure(
        "FlexGen, figure 4: OPT-30B, 512 tokens in, FlexGen on one T4, Petals on four",
        (
            Panel(said, "tokens generated", "s", tuple(latency), "log2", "log10"),
            Panel("throughput of one GPU", "tokens generated", "token/s", tuple(throughput), "log2", "log10"),
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
    latency, throughput = ({curve.label: curve.points for curve in panel.curves} for panel in figure_4().panels)
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


def _priced(system: str, generated: int, policy: Policy) -> PricedPolicy:
    return priced(_setting("opt-30b", system, generated), policy, compress=system.endswith("-4bit"))


@lru_cache(maxsize=64)
def _setting(model: str, system: str, generated: int) -> OffloadSetting:
    runtime = load_runtime(system.removesuffix("-4bit"))
    return setting_of(built_in(model).model, load_machine("t4"), runtime, _PROMPT, generated)


FIGURES: Mapping[str, tuple[str, Callable[[], list[Check]], Callable[[], Figure]]] = {
    "flexgen-figure-1": ("FlexGen, figure 1: throughput against the time of a block", figure_1_checks, figure_1),
    "flexgen-figure-4": ("FlexGen, figure 4: FlexGen and Petals by network", figure_4_checks, figure_4),
}
"""A title, the figure's numbers beside predictions, and its curves."""
