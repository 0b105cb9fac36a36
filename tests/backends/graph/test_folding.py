"""What one node shows, and parts side by side: nothing is lost, nothing goes in circles, no picture is a strip."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from shardwright.backends.graph import draw
from shardwright.backends.graph.folding import folds, used_in
from shardwright.compiling.compile_program import explicit, load
from shardwright.ir.diagnostics import Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Attend, Movement
from shardwright.ir.program import Let, Loop, Program, Statement
from shardwright.ir.types import DType
from shardwright.models.built_in import built_in
from shardwright.models.forward import ProgramRequest, model_program

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.shard"))


@cache
def example(name: str) -> tuple[Program, Source]:
    path = EXAMPLES / f"{name}.shard"
    return explicit(load(str(path))), Source(str(path), path.read_text())


def labels(dot: str) -> list[str]:
    """What nodes are called: the text of their labels without markup."""
    found = re.findall(r"^\s*n\d+ \[.*label=<(.*?)>(?: \w+=|\])", dot, re.MULTILINE)
    return [re.sub(r"<[^>]*>", " ", label).strip() for label in found]


def bodies(statements: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    yield statements
    for statement in statements:
        if isinstance(statement, Loop):
            yield from bodies(statement.body)


def test_norms_rotary_and_swiglu_are_one_node_between_collectives() -> None:
    program, source = example("10_palm_parallel_block")
    folded = labels(draw(program, source=source).dot)
    assert sum(label.startswith("layernorm[E, eps=1e-5]") for label in folded) == 3
    assert sum(label.startswith("rotary[D, base=10000, style=gptj]") for label in folded) == 2
    assert "silu, ×" in folded
    assert not any("rsqrt" in label for label in folded)
    every = labels(draw(program, source=source, folded=False).dot)
    assert any("rsqrt" in label for label in every)
    assert len(every) > len(folded) + 10


def test_a_page_has_what_each_fold_shows() -> None:
    """Each statement of a fold once, where nothing else has its node's name."""
    program, source = example("10_palm_parallel_block")
    page = draw(program, source=source).rendered("html").decode()
    folded = {statement.result.name for func in program.funcs for one in bodies(func.body) for statement in let(one)}
    inside = re.findall(r'<template data-node="(n\d+)">(.*?)</template>', page, re.DOTALL)
    titles = [title for _, text in inside for title in re.findall(r"<title>(\w+)[ :].*?</title>", text, re.DOTALL)]
    assert folded <= set(titles)
    assert len(folded) > 10
    names = re.findall(r'<g id="(n\d+)"', page)
    assert len(names) == len(set(names))
    assert {node for node, _ in inside} <= set(names)


def let(body: tuple[Statement, ...]) -> list[Let]:
    return [member for fold in {id(fold): fold for fold in folds(body).values()}.values() for member in fold.members]


def test_without_the_text_a_fold_says_what_it_computes() -> None:
    program, _ = example("10_palm_parallel_block")
    assert any(label.startswith("sum[E]") for label in labels(draw(program).dot))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_collectives_products_and_attention_never_fold_away(name: str) -> None:
    program, source = example(name)
    kept = re.compile(r"all_gather|reduce_scatter|all_reduce|all_to_all|permute|roll|@ |attend|set |return")
    folded, every = (
        sorted(label for label in labels(draw(program, source=source, folded=one).dot) if kept.match(label))
        for one in (True, False)
    )
    assert folded == every
    for func in program.funcs:
        for body in bodies(func.body):
            for fold in set(folds(body).values()):
                operations = [member.operation for member in fold.members]
                assert not any(each.is_product or isinstance(each, Movement | Attend) for each in operations)


@pytest.mark.parametrize("name", NAMES)
def test_what_follows_from_a_fold_does_not_lead_back_into_it(name: str) -> None:
    program, _ = example(name)
    for func in program.funcs:
        for body in bodies(func.body):
            folded = folds(body)
            unit = {v.name: id(folded.get(id(s), s)) for s in body for v in s.results}
            after: dict[int, set[int]] = {}
            for statement in body:
                own = id(folded.get(id(statement), statement))
                after.setdefault(own, set()).update({unit[n] for n in used_in(statement) if n in unit} - {own})
            seen: set[int] = set()
            path: set[int] = set()

            def walk(one: int) -> None:
                assert one not in path  # noqa: B023 - walked at once
                if one not in seen:  # noqa: B023
                    path.add(one)  # noqa: B023
                    for other in after[one]:  # noqa: B023
                        walk(other)
                    path.discard(one)  # noqa: B023
                    seen.add(one)  # noqa: B023

            for one in after:
                walk(one)


def test_statements_of_one_line_around_a_movement_are_two_nodes() -> None:
    """`a` and `c` stand on one line, and what is between them is a collective."""
    text = "mesh x=2\ndim B=4 E=8\n\nfunc f(v: f32 BE_x) -> f32 BE {\n  y: f32 BE = exp(silu(v)) - 1\n  return y\n}\n"
    program = explicit(load(Source("f", text)))
    (body,) = [func.body for func in program.funcs]
    folded = folds(body)
    gathers = [s for s in body if isinstance(s, Let) and isinstance(s.operation, Movement)]
    assert gathers
    assert all(id(gather) not in folded for gather in gathers)


def test_shapes_of_a_chip_stand_in_the_picture_when_asked_for() -> None:
    program, source = example("10_palm_parallel_block")
    assert "512 × 1 × 288" not in "".join(labels(draw(program, source=source).dot))
    assert "512 × 1 × 288" in "".join(labels(draw(program, source=source, shapes=True).dot))


@pytest.mark.parametrize("cache", [None, 2048])
@pytest.mark.parametrize("model", ["llama-3-8b", "opt-30b", "palm-540b", "mt-nlg-530b"])
def test_no_picture_of_a_model_is_taller_than_twice_its_width(model: str, cache: int | None) -> None:
    request = ProgramRequest("megatron", Mesh((("x", 4),)), 8, 128, DType.BF16, cache=cache)
    program = explicit(load(Source(model, model_program(built_in(model).model, request)[0])))
    for func in [None, *(func.name for func in program.funcs)] if len(program.funcs) > 1 else [None]:
        size = re.search(r'viewBox="0.00 0.00 ([0-9.]+) ([0-9.]+)"', draw(program, func=func).svg)
        assert size is not None
        assert float(size[2]) <= 2 * float(size[1])
