"""Which points no other beats in both latency and cost, and the cheapest one within a latency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.pareto.pricing import Point


def frontier(points: Iterable[Point]) -> list[Point]:
    """The points that fit, and than which none that is as fast is cheaper; from the fastest to the cheapest."""
    best: list[Point] = []
    for point in sorted((p for p in points if p.fits), key=lambda p: (p.latency_s, p.chip_seconds_per_token, p.chips)):
        if not best or point.chip_seconds_per_token < best[-1].chip_seconds_per_token:
            best.append(point)
    return best


def cheapest(points: Sequence[Point], bound_s: float | None = None) -> Point:
    """The point that fits with the fewest chip-seconds per token, and with a latency of at most `bound_s`.

    Raises where nothing fits, or nothing is as fast.
    """
    best = frontier(points)
    if not best:
        raise _nothing_fits(points)
    within = [point for point in best if bound_s is None or point.latency_s <= bound_s]
    if not within:
        least = best[0]
        raise fault(
            "too-slow",
            f"no configuration takes {bound_s:g} s or less for {what(least.phase)}",
            NOWHERE,
            f"the least is {least.latency_s:.4g} s: {described(least)}",
            f"give --latency-bound {least.latency_s * 1.001:.3g} or more, {_lighter(least)}",
        )
    return within[-1]


def what(phase: str) -> str:
    """The subject of the latency."""
    return {"decode": "a step of decode", "generation": "the whole generation"}.get(phase, phase)


def token(phase: str) -> str:
    """The unit of the cost."""
    return "token put out" if phase == "generation" else "token"


def described(point: Point) -> str:
    """`64 chips (x=4 y=4 z=4), ws2d, attention over the batch, int8, batch 64`."""
    looped = ", looped" if point.looped else ""
    chips = f"{point.chips} chip{'s' if point.chips > 1 else ''} ({point.mesh})"
    over = f"attention over the {point.attention}"
    return f"{chips}, {layouts(point)}, {over}, {point.weights}, batch {point.batch}{looped}"


def layouts(point: Point) -> str:
    """`ws2d`, or of a generation `wg-xyz, then ws2d`."""
    return f"{point.prefill_layout}, then {point.layout}" if point.prefill_layout else point.layout


def _nothing_fits(points: Sequence[Point]) -> DiagnosticError:
    nearest = min((p for p in points if p.too_many_bytes), key=lambda p: p.too_many_bytes)
    return fault(
        "does-not-fit",
        f"none of {len(points)} configurations of {nearest.phase} fits into a chip's memory",
        NOWHERE,
        f"the nearest needs {nearest.too_many_bytes / 1e9:.3g} GB more: {described(nearest)}",
        f"take {_lighter(nearest, 'shorter texts')}",
    )


def _lighter(point: Point, *others: str) -> str:
    """Ways to ask less of a chip than a point does, of those that are left: `more chips, int8 weights or others`."""
    smaller = ["smaller batches"] if point.batch > 1 else []
    ways = ["more chips", *smaller, *(["int8 weights"] if point.weights == "bf16" else []), *others]
    return " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
