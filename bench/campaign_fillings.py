"""Fillings of random small programs, priced one by one: none below the bound, none better than the answer by 0.1 %.

    python bench/campaign_fillings.py [--programs N] [--seed S] [--fillings N]

Programs are one to five statements on a mesh of two axes, on chips whose rates are drawn by chance, half of them with
less memory than the fastest takes; in a third the memories of weights are open too, and have to be. A filling demands a
layout of every value that has none, and device, host or shares of both for every such weight, drawn by chance where
there are more than so many. Prints what is at odds, and how many were priced.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import replace

from shardwright.compiling.compile_program import load
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import Chip, load_chip
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult

ALLOWED = 1e-3


def text_of(rng: random.Random) -> tuple[str, list[str]]:
    """A program whose values without a layout are written `<name:DIMS>`, and these names; a weight whose memory is open
    is followed by `<name: on DIM>`, and that is one of them, too, shared along that dimension if at all."""
    tiers = rng.random() < 1 / 3
    sizes = {name: rng.choice([8, 64, 512, 2048]) for name in "BEF"}
    open_ones: dict[str, str] = {"x": "BE"}
    lines: list[str] = []
    last, dims = "x", "BE"
    weights: list[str] = []
    for number in range(rng.randint(1, 5)):
        kind = rng.choice(["product", "product", "unary", "add", "scale"])
        name = f"v{number}"
        if kind == "product":
            other = "F" if dims == "BE" else "E"
            weight = f"w{number}"
            weights.append(f"  {weight}: bf16 <{weight}:{dims[1]}{other}>{f'<{weight}: on {other}>' if tiers else ''}")
            open_ones[weight] = dims[1] + other
            made, dims = f"{last} @[{dims[1]}] {weight}", f"B{other}"
        elif kind == "unary":
            made = f"{rng.choice(['gelu', 'tanh', 'exp'])}({last})"
        elif kind == "add":
            earlier = [each for each, of in open_ones.items() if of == dims and each != last]
            made = f"{last} + {rng.choice(earlier)}" if earlier else f"{last} * 2.0"
        else:
            made = f"{last} * rsqrt(sum[{dims[1]}]({last} * {last}))"
        lines.append(f"  {name}: bf16 <{name}:{dims}> = {made}")
        open_ones[name] = dims
        last = name
    mesh = f"mesh x={rng.choice([2, 4])} y={rng.choice([2, 4])}"
    dim = "dim " + " ".join(f"{name}={size}" for name, size in sizes.items())
    stored = "weights {\n" + "\n".join(weights) + "\n}\n" if weights else ""
    text = f"{mesh}\n{dim}\n{stored}func f(x: bf16 <x:BE>) -> bf16 <r:{dims}> {{\n" + "\n".join(lines)
    holes = [f"{name}:{of}" for name, of in [*open_ones.items(), ("r", dims)]]
    return f"{text}\n  return {last}\n}}\n", [*holes, *(re.findall(r"<(\w+: on \w)>", stored))]


def open_of(hole: str) -> str:
    """The text of a hole that is left to the search."""
    return " on ?" if ": on " in hole else f"{hole.split(':')[1]}?"


def choices_of(hole: str) -> list[str]:
    if ": on " not in hole:
        return layouts(hole.split(":")[1])
    shares = (f" on device {share}% host {100 - share}% along {hole[-1]}" for share in (25, 50, 75, 90))
    return ["", " on host", *shares]


def layouts(dims: str) -> list[str]:
    """Each axis splits one of the dimensions, or none."""
    made: list[str] = []
    for x, y in itertools.product((*dims, ""), repeat=2):
        axes = {dim: "".join(axis for axis, of in (("x", x), ("y", y)) if of == dim) for dim in dims}
        made.append("".join(dim + (f"_{axes[dim]}" if axes[dim] else "") for dim in dims))
    return made


def filled(text: str, holes: list[str], chosen: tuple[str, ...]) -> str:
    for hole, layout in zip(holes, chosen, strict=True):
        text = text.replace(f"<{hole}>", layout)
    return text


def fillings(rng: random.Random, holes: list[str], most: int) -> Iterator[tuple[str, ...]]:
    """All of them, or as many drawn by chance."""
    choices = [choices_of(hole) for hole in holes]
    count = 1
    for each in choices:
        count *= len(each)
    if count <= most:
        yield from itertools.product(*choices)
        return
    for _ in range(most):
        yield tuple(rng.choice(each) for each in choices)


def chip_of(rng: random.Random) -> Chip:
    """A chip with some rates of its own."""
    chip = load_chip(rng.choice(["h100", "tpu-v4", "a100-80g"]))
    faster = {name: rate * 10 ** rng.uniform(-1, 1) for name, rate in chip.flops_per_s.items()}
    return replace(
        chip, flops_per_s=faster, memory_bytes_per_s=chip.memory_bytes_per_s * 10 ** rng.uniform(-1, 1),
        memory_bytes=10**15,
    )  # fmt: skip


def solved(text: str, chip: Chip, seconds: float = 20.0) -> SearchResult | None:
    try:
        return search(load(Source("filling", text)), Objective.on(chip), seconds)
    except DiagnosticError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fillings", type=int, default=60)
    args = parser.parse_args()
    solved_ones = priced = proved = odd = 0
    for seed in range(args.seed, args.seed + args.programs):
        rng = random.Random(seed)
        text, holes = text_of(rng)
        roomy = chip = chip_of(rng)
        whole = filled(text, holes, tuple(map(open_of, holes)))
        best = solved(whole, chip)
        tiers = any(": on " in hole for hole in holes)
        if best is not None and (tiers or rng.random() < 0.5):
            chip = replace(chip, memory_bytes=int(best.peak * rng.uniform(0.3 if tiers else 0.5, 1.0)))
            best = solved(whole, chip)
        solved_ones += best is not None
        proved += best is not None and best.status == "optimal"
        for chosen in fillings(rng, holes, args.fillings):
            found = solved(filled(text, holes, chosen), roomy)
            if found is None or found.peak > chip.memory_bytes:
                continue
            priced += 1
            if best is None:
                wrong = "nothing was found"
            elif found.objective_s < best.bound_s * (1 - 1e-9) or (
                best.status == "optimal" and found.objective_s < best.objective_s * (1 - ALLOWED)
            ):
                wrong = f"{best.objective_s:.6g} was found, bound {best.bound_s:.6g}"
            else:
                continue
            odd += 1
            print(f"{seed}: {found.objective_s:.6g} s, and {wrong}: {chosen}", flush=True)
            break
    print(f"{solved_ones} programs that fit, {proved} proved; {priced} fillings priced, {odd} programs at odds")


if __name__ == "__main__":
    main()
