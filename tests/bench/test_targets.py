"""The table of examples on targets."""

from __future__ import annotations

from targets import Row, measure, table


def test_the_table() -> None:
    rows = [
        Row(
            "02_ffn", "ffn", "tpu-v4:4x4x4", 24_000_000, 16_000_000, "all_reduce of h", 86_000_000, 0, 95_000_000, 2e-4
        ),
        Row("13_palm", "", "tpu-v4:4x4x4", refused="decode does not fit"),
    ]
    assert table(rows).splitlines()[2:] == [
        "| 02_ffn ffn | tpu-v4:4x4x4 | 24.000 (16.000) | 86.0 (0.0; 95.0) | 0.200 | all_reduce of h |",
        "| 13_palm | tpu-v4:4x4x4 | | | | decode does not fit |",
    ]


def test_a_target_that_the_mesh_does_not_lie_on_is_a_row() -> None:
    (row,) = measure("11_explicit_feedforward", ["tpu-v4:2x2x2"])
    assert row.refused == "the mesh x=4 y=4 z=4 has 64 chips, tpu-v4:2x2x2 has 8"
