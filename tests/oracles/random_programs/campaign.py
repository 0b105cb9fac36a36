"""A seed of a campaign: the program drawn, examined, and told in a row that JSON can hold."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from oracles.campaigns import under_limit
from oracles.random_programs.agreement import Outcome, examine
from oracles.random_programs.draw import Wishes, draw_program
from oracles.random_programs.shrink import shrink
from oracles.random_programs.tree import Program


def drawn(seed: int, options: Mapping[str, bool]) -> Program:
    """The program with this number; those that are to run under JAX have at most eight chips."""
    jax, torch = options.get("jax", False), options.get("torch", False)
    return draw_program(random.Random(seed), Wishes(most_chips=8 if jax else 16, one_memory=jax or torch))


def outcome_of(program: Program, seed: int, options: Mapping[str, bool]) -> Outcome:
    return examine(program, seed, **options)


def examiner(options: Mapping[str, bool]) -> Callable[[int], dict[str, Any]]:
    """The function of a seed for `campaigns.run`."""

    def examined(seed: int) -> dict[str, Any]:
        program = drawn(seed, options)
        outcome = outcome_of(program, seed, options)
        return {
            "findings": [[finding.kind, finding.detail[:2000]] for finding in outcome.findings],
            "refused": outcome.refused[:300],
            "compared": outcome.compared,
            "unknown": outcome.unknown,
            "movements": outcome.movements,
            "by_hand": outcome.by_hand,
            "features": sorted(program.features),
        }

    return examined


def shrunk(seed: int, kind: str, options: Mapping[str, bool], limit: float, seconds: float) -> tuple[str, list[str]]:
    """The smallest program found in so many seconds that still fails in this way, and what it says."""
    until = time.monotonic() + seconds

    def details(program: Program) -> list[str]:
        def run(_: int) -> Outcome | None:
            try:
                return outcome_of(program, seed, options)
            except (KeyError, AssertionError, ValueError):  # the tree is no program any more
                return None

        ended = under_limit(run, seed, limit)
        if ended.how != "done":
            return ["it runs past its limit"] if kind == f"out of {ended.how}" else []
        findings = ended.result.findings if ended.result else []
        return [finding.detail for finding in findings if finding.kind == kind]

    program = drawn(seed, options)
    small = shrink(program, lambda smaller: time.monotonic() < until and bool(details(smaller)))
    return small.text(), details(small)
