"""The frontier of throughput against the time of a block, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardwright.backends.figure_files import figure_file

if TYPE_CHECKING:
    from shardwright.cost.offloading.pricing import PricedPolicy


def frontier_picture(plans: Sequence[PricedPolicy], title: str, fmt: str) -> bytes:
    """The frontier as `svg`, `png` or `pdf`; each point says its block. Raises ModuleNotFoundError without
    matplotlib."""
    figure: Any = import_module("matplotlib.figure").Figure(figsize=(7, 4.5), layout="constrained")
    axes: Any = figure.subplots()
    seconds, rates = [plan.seconds for plan in plans], [plan.tokens_per_s for plan in plans]
    axes.plot(seconds, rates, "o-", color="#2b6cb0", linewidth=1.5, markersize=5)
    for plan, x, y in zip(plans, seconds, rates, strict=True):
        label = f"{plan.policy.gpu_batch} x {plan.policy.n_gpu_batches}"
        below = -10 if y > 0.08 * max(rates) else 4  # off the axis
        axes.annotate(label, (x, y), textcoords="offset points", xytext=(7, below), fontsize=8)
    axes.set(xscale="log", xlabel="time of a block, s", ylabel="throughput, token/s", title=title)
    axes.set_ylim(0, 1.1 * max(rates))
    axes.margins(x=0.12)
    ticker: Any = import_module("matplotlib.ticker")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.grid(visible=True, which="both", alpha=0.25)
    return figure_file(figure, fmt, "frontier", dpi=100)
