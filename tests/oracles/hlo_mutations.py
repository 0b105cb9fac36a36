"""Partitioned programs made wrong: a collective left out, made twice, or made over other devices."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oracles.hlo_execution import GROUPS

from shardwright.backends.hlo.groups import Groups, groups_of, pairs_of
from shardwright.backends.hlo.module import Instruction, parse, parts_of

_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True)
class Mutant:
    """A changed module: how, and at which collective."""

    kind: str
    instruction: str
    text: str


def mutants(text: str, rng: random.Random, devices: int = 8) -> list[Mutant]:
    """Every collective of a module left out, made twice, and made over other groups, in random order."""
    module = parse(text)
    made: list[Mutant] = []
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            if instruction.opcode.removesuffix("-start") in _COLLECTIVES:
                for kind, lines in _changes(instruction, rng, devices):
                    made.append(Mutant(kind, instruction.name, _with(text, instruction.name, lines)))
    rng.shuffle(made)
    return made


def _with(text: str, name: str, changed: list[str]) -> str:
    """The text with the line of an instruction replaced."""
    pattern = re.compile(rf"^(\s+(?:ROOT )?)%?{re.escape(name)} = .*$", re.MULTILINE)
    match = pattern.search(text)
    assert match is not None, name
    indent = "  "
    lines = [f"{indent}{line}" for line in changed[:-1]] + [f"{match[1]}{changed[-1]}"]
    return text[: match.start()] + "\n".join(lines) + text[match.end() :]


def _changes(i: Instruction, rng: random.Random, devices: int) -> Iterator[tuple[str, list[str]]]:
    opcode, result = i.opcode.removesuffix("-start"), _result_type(i)
    operands = ", ".join(f"%{name}" for name in i.operands)
    is_tuple = result.startswith("(")
    rest = i.attributes.lstrip()

    def line(kind: str, of: str, attributes: str, name: str = i.name, type_: str = result) -> str:
        return f"%{name} = {type_} {kind}({of}){attributes}"

    where = re.search(r", metadata=\{.*?\}(?=,|$)", i.attributes)
    told = where[0] if where else ""
    # ---- left out
    if is_tuple:
        yield "dropped", [line("tuple", operands, told)]
    elif opcode in {"all-reduce", "collective-permute", "all-to-all"}:
        yield "dropped", [line("copy", operands, told)]
    elif opcode == "all-gather":
        axis, times = _axis(i), len(groups_of(i, devices)[0])
        copies = ", ".join([operands] * times)
        yield "dropped", [line("concatenate", copies, f", dimensions={{{axis}}}{told}")]
    else:
        extents = ", ".join(f"[0:{n}]" for n in i.arrays[0].extents)
        yield "dropped", [line("slice", operands, f", slice={{{extents}}}{told}")]
    # ---- made twice
    if opcode in {"all-reduce", "collective-permute"} and not is_tuple:
        first = line(opcode, operands, f" {rest}" if rest else "", f"{i.name}.first")
        again = line(opcode, f"%{i.name}.first", f" {rest}" if rest else "")
        yield "doubled", [_joined(first), _joined(again)]
    if opcode == "all-to-all" and not is_tuple:
        yield (
            "doubled",
            [
                _joined(line(opcode, operands, rest, f"{i.name}.first")),
                _joined(line(opcode, f"%{i.name}.first", rest)),
            ],
        )
    if is_tuple and opcode in {"all-reduce", "all-to-all"}:
        parts = parts_of(result)
        lines = [_joined(line(opcode, operands, rest, f"{i.name}.first"))]
        lines += [line("get-tuple-element", f"%{i.name}.first", f", index={at}", f"{i.name}.part{at}", part)
                  for at, part in enumerate(parts)]  # fmt: skip
        again = ", ".join(f"%{i.name}.part{at}" for at in range(len(parts)))
        yield "doubled", [*lines, _joined(line(opcode, again, rest))]
    # ---- over other devices
    if opcode == "collective-permute":
        pairs = pairs_of(i)
        targets = [b for _, b in pairs]
        for shift in {1, max(1, devices // 2)}:
            turned = targets[shift:] + targets[:shift]
            other = ",".join(f"{{{a},{b}}}" for (a, _), b in zip(pairs, turned, strict=True))
            if turned != targets:
                changed = re.sub(r"source_target_pairs=\{(?:\{[^}]*\},?)*\}", f"source_target_pairs={{{other}}}", rest)
                yield "regrouped", [_joined(line(opcode, operands, changed))]
        return
    for groups in _other_groups(groups_of(i, devices), rng, devices, same_size=opcode != "all-reduce"):
        listed = ",".join("{" + ",".join(map(str, group)) + "}" for group in groups)
        changed = GROUPS.sub(f"replica_groups={{{listed}}}", rest)
        yield "regrouped", [_joined(line(opcode, operands, changed))]


def _joined(line: str) -> str:
    """As the text writes attributes, after a comma."""
    return re.sub(r"\)\s*,\s*", "), ", line, count=1)


def _result_type(i: Instruction) -> str:
    if i.opcode.endswith("-start") and i.type.startswith("(") and i.opcode != "all-reduce-start":
        return parts_of(i.type)[1]
    return i.type


def _axis(i: Instruction) -> int:
    found = re.search(r"dimensions=\{(\d+)\}", i.attributes)
    assert found is not None
    return int(found[1])


def _other_groups(groups: Groups, rng: random.Random, devices: int, *, same_size: bool) -> Iterator[Groups]:
    """Groups of another stride, for reductions halves and pairs joined too, and two members exchanged."""
    size = len(groups[0])
    own = {frozenset(group) for group in groups}
    sizes = [size] if same_size else sorted({size, size * 2, max(2, size // 2)})
    candidates: list[Groups] = []
    for count in sizes:
        if count > devices or count < 2:
            continue
        for stride in (1, 2, 4):
            if count * stride <= devices:
                lines = [tuple(start + stride * k for k in range(count)) for start in range(devices)
                         if start // stride % count == 0]  # fmt: skip
                candidates.append(tuple(line for line in lines if len(line) == count))
    swapped = [list(group) for group in groups]
    if len(swapped) > 1:
        swapped[0][-1], swapped[1][-1] = swapped[1][-1], swapped[0][-1]
        candidates.append(tuple(map(tuple, swapped)))
    if same_size:
        candidates.append(tuple(group[::-1] for group in groups))
    different = [c for c in candidates if {frozenset(group) for group in c} != own or (same_size and c != groups)]
    regular = [c for c in different if sorted(d for group in c for d in group) == list(range(devices))]
    yield from rng.sample(regular, min(2, len(regular)))
