"""Our programs beside jit on targets: what counts as behind, and the table."""

from __future__ import annotations

from beside_jit_targets import Figures, Row, table

JIT = Figures(100, 1.0, 10)


def test_what_is_behind() -> None:
    def row(ours: Figures | None, interior_open: Figures | None, jit: Figures | None = JIT) -> Row:
        return Row("a", "f", "tpu-v4:1x1x1", ours, interior_open, jit)

    assert not row(Figures(120, 1.5, 0), Figures(100, 1.02, 0)).is_behind  # the compiler's choice is not
    assert row(Figures(120, 0.5, 0), Figures(101, 0.5, 0)).is_behind
    assert row(Figures(90, 1.5, 0), Figures(90, 1.03, 0)).is_behind
    assert row(None, None).is_behind
    assert not row(Figures(1, 9.0, 0), None, None).is_behind
    assert row(Figures(1, 0.5, 0), None).time_ratio == 0.5
    assert row(Figures(1, 0.0, 0), None, Figures(1, 0.0, 0)).time_ratio is None
    (line,) = table([row(Figures(1_500_000, 0.002, 0), None)]).splitlines()[2:]
    assert line == "| a f | tpu-v4:1x1x1 | 1.500, -, 0.000 | 2.000, -, 1000.000 | 0.002 | 0.000, -, 0.000 |"
