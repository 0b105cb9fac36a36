"""A model of a thousand layers compiles with the work of one of two: the same statements, search and source."""

from __future__ import annotations

import re
from dataclasses import dataclass

from models.checkpoints import config_of
from program_text import by_bytes, place_layouts, program

from shardwright.backends.jax.emit import emit
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.importing import import_model
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose


@dataclass(frozen=True)
class Work:
    """What compiling a model comes to, and what its layers receive."""

    imported: str
    variables: int
    nodes: int
    statements: int
    source: str
    per_layer: int


def work(name: str, layers: int) -> Work:
    config = config_of(name, num_hidden_layers=layers)
    mesh = Mesh.of(x=2, y=2)
    text = import_model(config, "ws2d", mesh, 4, 1, DType.F32, attention="head", cache=16, phases=("decode",)).text
    source = program(text)
    placed = place_layouts(Cleanup().run(Decompose().run(source)))
    made = by_bytes(source)
    received = bytes_received(made, made.func("decode")).movements
    return Work(
        text,
        len(placed.nodes),
        placed.solution.nodes,
        sum(1 for func in made.funcs for _ in func.walk()),
        emit(made),
        sum(moved.bytes_once for moved in received if moved.trips == layers),
    )


def words(text: str) -> list[str]:
    """Words and signs, whatever the numbers and wherever lines end."""
    return re.findall(r"[^\W\d]+|[^\w\s,]", text)


def test_work_does_not_grow_with_layers() -> None:
    few, many = work("llama-grouped", 2), work("llama-grouped", 1000)
    assert words(few.imported) == words(many.imported)
    assert (few.variables, few.statements, few.per_layer) == (many.variables, many.statements, many.per_layer)
    assert many.nodes <= 2 * few.nodes
    assert words(few.source) == words(many.source)
