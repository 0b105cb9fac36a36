"""Long caches: what the search finds for a step of decode, and what it takes where positions must not be split.

    python bench/long_caches.py [--model NAME ...] [--chip NAME ...] [--chips N ...] [--context N ...] [--batch N]
        [--seconds S]

One sequence by default, weights in int8, every layout open. Each row: the mesh of the least time, the layout of the
cache that was found there, how queries come to attention and its results leave it, the milliseconds of a step, and
those of the best layouts on any of the meshes in which no chip attends a part of the positions alone.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwright.compiling.compile_program import load
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import Chip, load_chip
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, AllReduce, Attend, Movement, ReduceScatter
from shardwright.ir.program import Let, Program
from shardwright.ir.types import DType, TensorType
from shardwright.models.architectures import describe
from shardwright.models.built_in import built_in
from shardwright.models.config import Config
from shardwright.models.description import Model
from shardwright.models.forward import ProgramRequest, model_program
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult
from shardwright.passes.transformations.quantize_weights import QuantizeWeights


def _models() -> dict[str, Model]:
    llama = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 16384, "intermediate_size": 53248,
        "num_attention_heads": 128, "num_key_value_heads": 8, "num_hidden_layers": 126, "vocab_size": 128256,
    }  # fmt: skip
    deepseek = built_in("deepseek-v3").model
    assert deepseek.opening_feedforward is not None
    # Every layer is as the opening ones, which have no experts.
    dense = replace(deepseek, feedforward=deepseek.opening_feedforward, opening=0, opening_feedforward=None)
    return {"llama-3-405b": describe(Config(llama)), "deepseek-v3-dense": dense}


MODELS = _models()


def decode(model: str, mesh: Mesh, context: int, batch: int, *, whole: bool) -> Program:
    """The open program of a step; with `whole`, no axis may split the positions that are attended."""
    request = ProgramRequest("open", mesh, batch, 1, DType.BF16, cache=context, phases=("decode",))
    text, _ = model_program(MODELS[model], request)
    if whole:
        # Attention that also gives its log-sum-exp as a value attends all positions on each chip.
        text = re.sub(r"(\w+) = attend\[T, D,", r"\1, total = attend[T, D, lse,", text)
    return QuantizeWeights().run(load(Source(model, text)))


def meshes(n_chips: int) -> Iterator[Mesh]:
    """All chips as one axis, and nodes of 8 as the inner one of two."""
    yield Mesh.of(x=n_chips)
    if n_chips > 8:
        yield Mesh.of(x=n_chips // 8, y=8)


def best(
    model: str, chip: Chip, n_chips: int, context: int, batch: int, seconds: float, *, whole: bool
) -> tuple[Mesh, SearchResult] | None:
    """The fastest of all meshes that fits; None where none does."""
    found: list[tuple[Mesh, SearchResult]] = []
    for mesh in meshes(n_chips):
        try:
            made = search(
                decode(model, mesh, context, batch, whole=whole), Objective(chip, chip.constants, {}), seconds
            )
        except DiagnosticError as error:
            if error.diagnostics[0].code not in {"does-not-fit", "no-placement", "out-of-time"}:
                raise
            continue
        if made.fits:
            found.append((mesh, made))
    return min(found, key=lambda one: one[1].objective_s, default=None)


def around(program: Program) -> str:
    """How queries come to the attention of decode, and how its result leaves it."""
    statements = [statement for statement, _ in program.func("decode").walk() if isinstance(statement, Let)]
    makers = {value.name: statement for statement in statements for value in statement.results}
    attend = next(statement for statement in statements if isinstance(statement.operation, Attend))
    query, result = makers[str(attend.operands[0])], attend.result
    assert isinstance(result.type, TensorType)
    if not result.type.is_pair:
        return "no positions split"
    after = next(statement for statement in statements if result.name in statement.operands)
    moves = [statement.operation.moves for statement in (query, after) if isinstance(statement.operation, Movement)]
    queries = "gathered" if any(isinstance(move, AllGather) for move in moves) else "replicated"
    joined = [move.keyword for move in moves if isinstance(move, AllReduce | ReduceScatter)]
    return f"queries {queries}, results by {' and '.join(joined)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--chip", nargs="+", default=["h100", "b200"])
    parser.add_argument("--chips", nargs="+", type=int, default=[8, 16, 64])
    parser.add_argument("--context", nargs="+", type=int, default=[1 << 17, 1 << 20])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args(arguments)
    print("| model | chips | context | mesh | cache | attention | ms | no positions split, ms | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in args.model:
        for chip in map(load_chip, args.chip):
            for n_chips in args.chips:
                for context in args.context:
                    began = time.process_time()
                    cell = model, chip, n_chips, context, args.batch, args.seconds
                    found, other = (best(*cell, whole=whole) for whole in (False, True))
                    spent = time.process_time() - began
                    named = f"| {model} | {n_chips} {chip.name} | {context:,} |"
                    if found is None:
                        print(f"{named} | does not fit | | | | {spent:.0f} |", flush=True)
                        continue
                    mesh, made = found
                    cache = next(value for value in made.program.state if value.name == "k")
                    beside = "does not fit" if other is None else f"{other[1].objective_s * 1e3:.3g}"
                    print(
                        f"{named} {mesh} | {cache.concrete.layout_text} | {around(made.program)} |"
                        f" {made.objective_s * 1e3:.3g} | {beside} | {spent:.0f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
