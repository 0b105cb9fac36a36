"""The errors of logits under rounded weights are those recorded, for every architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models.checkpoints import ARCHITECTURES, make_checkpoint
from quantized_logits import Row, logits, measure, summary, table

from shardwright.backends.jax.session import Session
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.models.checkpoint import CheckpointSource
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.passes.pipelines import EXPLICIT, passes_for_weights, run_with_weights

GOLDEN = Path(__file__).parents[1] / "goldens" / "quantized_logits.md"
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


def recorded() -> dict[str, list[float]]:
    """The figures of each row of the table, shares and percentages as numbers."""
    made: dict[str, list[float]] = {}
    for line in GOLDEN.read_text(encoding="utf-8").splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        made[name] = [float(cell[:-1]) / 100 if cell.endswith("%") else float(cell) for cell in cells]
    return made


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_errors_are_those_recorded(name: str) -> None:
    rows = measure(name)
    found = [figure for row in rows for figure in (row.largest, row.typical, row.divergence, row.agreement)]
    assert table(rows).splitlines()[2].startswith(f"| {rows[0].architecture} | ")
    np.testing.assert_allclose(found, recorded()[rows[0].architecture], rtol=0.1)


def test_the_documentation_sums_up_what_is_recorded() -> None:
    rows = [
        Row("", name, stored, *figures[4 * at : 4 * at + 4])
        for name, figures in recorded().items()
        for at, stored in enumerate(("int8", "int4", "f8e4m3"))
    ]
    assert len(rows) == 3 * len(ARCHITECTURES)
    assert summary(rows) in DOCUMENT.read_text(encoding="utf-8")


def test_weights_as_they_are() -> None:
    """The same comparison without rounding gives rounding of float32 alone."""
    (row,) = measure("qwen3", ("bf16",))
    assert row.largest < 1e-5
    assert row.agreement == 1


def test_compiled_programs_round_alike(tmp_path: Path) -> None:
    """Sharded under JAX they give the logits that the table is about; of 8-bit floats those of sums in another order,
    where a row of what is multiplied may round to another number."""
    folder = make_checkpoint("falcon", tmp_path, wide=True)
    ids = np.random.default_rng(1).integers(0, 512, (2, 8), dtype=np.int32)
    for stored, close in (("int8", 1e-5), ("int4", 1e-5), ("f8e4m3", 1e-2)):
        made = import_model(read_config(folder).keys, "ws2d", Mesh.of(x=2, y=2), *ids.shape, DType.F32)
        program = elaborate(parse(Source("imported", made.text)))
        dtypes = {value.name: value.type.dtype for value in program.weights}
        with CheckpointSource(folder, made.mapping, dtypes) as source:
            quantized, weights = run_with_weights(program, [*passes_for_weights(stored), *EXPLICIT], source)
            (found,) = Session(quantized, weights).call("forward", {"ids": ids})
        wanted = logits(folder, ids, stored)
        assert np.abs(found - wanted).max() < close * np.abs(wanted).max()
