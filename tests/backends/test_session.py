"""Sessions: weights put on the devices part by part, state made there, results left there."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest
from program_text import program

from shardwright.backends.jax import session as session_module
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.session import Session
from shardwright.backends.targets.names import parse_target
from shardwright.ir.index_boxes import Index
from shardwright.ir.program import Program
from shardwright.ir.weight_source import ArraySource
from shardwright.passes.pipelines import explicit

TEXT = """
mesh x=2 y=2 z=2
dim B=8 E=32 F=64 order x y
weights {
  w: E_xF_y
  u: f32 F_xE_yz
  whole: f32 EF
  scale: f32
}
state {
  seen: f32 B_zE
  pos: int32
}
func step(x: f32 B_zE) -> (f32 B_zE, int32) {
  h: f32 B_zF_y = x @[E] convert[f32](w) + x @[E] whole
  y: f32 B_zE = (h @[F] u) * scale
  set seen = seen + y
  set pos = pos + 1
  at = pos + 0
  return y, at
}
func twice(x: f32 B_zE) -> f32 B_zE {
  y: f32 B_zE = x * 2.0
  return y
}
"""


class Counted(ArraySource):
    """Counts what is read of each array, and remembers the largest part."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        super().__init__(arrays)
        self.elements: Counter[str] = Counter()
        self.boxes: list[tuple[str, Index]] = []

    def read(self, name: str, index: Index) -> npt.NDArray[Any]:
        found = super().read(name, index)
        self.elements[name] += found.size
        self.boxes.append((name, index))
        return found


def arrays_of(made: Program) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(0)
    return {v.name: rng.standard_normal([d.size for d in v.type.dims], np.float32) for v in made.weights}


@pytest.fixture(scope="module")
def compiled() -> Program:
    return explicit(program(TEXT))


def test_each_part_is_read_once(compiled: Program) -> None:
    source = Counted(arrays_of(compiled))
    told: list[tuple[int, int]] = []
    session = Session(compiled, source, progress=lambda done, total: told.append((done, total)))
    # 4 parts of w, each on two chips and of two blocks, as the digit of x lies outside that of y in F.
    assert source.elements == {name: array.size for name, array in arrays_of(compiled).items()}
    assert sum(name == "w" for name, _ in source.boxes) == 8
    assert sum(name == "whole" for name, _ in source.boxes) == 1
    held = sum(shard.data.nbytes for array in session.weights.values() for shard in array.addressable_shards)
    assert told[-1] == (held, held)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(told) == 4 * 8
    for name, array in arrays_of(compiled).items():
        placed = np.asarray(session.weights[name]).reshape(array.shape)
        assert np.array_equal(placed, array.astype(placed.dtype))


def test_memory_beside_the_devices_is_one_part() -> None:
    """A weight of 64 MiB in 8 parts, whose devices' arrays are of JAX, and which is read in blocks and converted."""
    made = explicit(
        program("""
        mesh x=2 y=4
        dim B=2 E=4096 F=4096
        weights { w: f32 E_xF_y }
        func f(x: f32 BE_x) -> f32 BF_y {
          y: f32 BF_y = x @[E] w
          return y
        }
        """)
    )

    class Ones:
        names = ("w",)
        largest = 0

        def shape(self, name: str) -> tuple[int, ...]:
            return (4096, 4096)

        def dtype(self, name: str) -> np.dtype[Any]:
            return np.dtype(np.float16)

        def read(self, name: str, index: Index) -> npt.NDArray[Any]:
            part = np.ones([taken.stop - taken.start for taken in index], np.float16)
            self.largest = max(self.largest, part.nbytes)
            return part

    source = Ones()
    part = 4 * 4096 * 4096 // 8
    Session(made, ArraySource({"w": np.zeros((4096, 4096), np.float16)}))  # what JAX keeps from a first time
    peaks: list[int] = []
    before = 0

    def progress(done: int, total: int) -> None:
        nonlocal before
        current, peak = tracemalloc.get_traced_memory()
        # The CPU's devices may keep the very array that was read: what they hold is not the host's.
        peaks.append(peak - before)
        before = current
        tracemalloc.reset_peak()

    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    Session(made, source, progress=progress)
    tracemalloc.stop()
    assert source.largest == part // 2
    assert len(peaks) == 8
    assert max(peaks) < 1.6 * part


def test_state_is_made_on_the_devices(compiled: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = arrays_of(compiled)
    session = Session(compiled, weights)
    state = session.state
    assert state["seen"].shape == (8, 32)
    assert state["seen"].dtype == np.float32
    assert not state["seen"].any()
    assert state["pos"] == 0
    forbidden = Session(compiled, session.weights)
    monkeypatch.setattr(np, "zeros", None)  # not from the host
    forbidden.reset()


def test_results_stay_on_the_devices(compiled: Program) -> None:
    session = Session(compiled, arrays_of(compiled))
    x = np.random.default_rng(1).standard_normal((8, 32), np.float32)
    y, at = session.run("step", {"x": x})
    assert isinstance(y, jax.Array)
    assert y.sharding.spec == jax.sharding.PartitionSpec("z")
    assert int(at) == 1
    (double,) = session.run("twice", {"x": y})
    again = session.call("twice", {"x": np.asarray(y)})
    assert isinstance(again[0], np.ndarray)
    assert np.array_equal(np.asarray(double), again[0])
    assert not y.is_deleted()
    session.run("step", {"x": y})
    assert session.state["pos"] == 2
    session.reset({"seen": np.ones((8, 32)), "pos": np.array(7)})
    assert session.state["pos"] == 7
    assert session.state["seen"].sum() == 8 * 32
    session.reset()
    assert session.state["pos"] == 0


def test_what_comes_out_is_what_the_program_means(compiled: Program) -> None:
    from shardwright.backends.simulation.reference import evaluate

    weights = arrays_of(compiled)
    x = np.random.default_rng(1).standard_normal((8, 32), np.float32)
    state = {"seen": np.zeros((8, 32)), "pos": np.zeros(())}
    (wanted, at), after = evaluate(compiled, "step", {"x": x}, weights, state)
    session = Session(compiled, ArraySource(weights))
    found, found_at = session.call("step", {"x": x})
    assert np.abs(found - wanted).max() < 2e-2 * np.abs(wanted).max()
    assert found_at == at
    assert session.state["pos"] == after["pos"]


def test_arrays_of_the_caller_stay_theirs(compiled: Program) -> None:
    """State is donated and arguments are read later, but not those that were given."""
    session = Session(compiled, arrays_of(compiled))
    given = np.zeros((8, 32), np.float32)
    session.reset({"seen": given, "pos": 0})
    x = np.ones((8, 32), np.float32)
    wanted = session.call("twice", {"x": x})[0].copy()
    (y,) = session.run("twice", {"x": x})
    x[:] = 7
    assert np.array_equal(np.asarray(y), wanted)
    session.run("step", {"x": x})
    assert not given.any()


def test_sessions_share_weights(compiled: Program) -> None:
    first = Session(compiled, arrays_of(compiled))
    second = Session(compiled, first.weights)
    assert all(second.weights[name] is array for name, array in first.weights.items())
    x = np.ones((8, 32), np.float32)
    assert np.array_equal(first.call("step", {"x": x})[0], second.call("step", {"x": x})[0])
    assert first.state["pos"] == second.state["pos"] == 1


ORDERED = """
mesh x=2 y=2
dim B=8 E=16 K=4 G=6 D=128
weights { wq: f32 E_xK_yGD
          wk: f32 EK_yD }
func f(h: f32 BE_x) -> f32 BK_yGD { return (h @ wq) * (h @ wk) }
"""


def test_weights_lie_as_products_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On TPUs; here the CPU is asked, which knows orders as well. Another session shares them where they lie so."""
    made = explicit(program(ORDERED))
    arrays, h = arrays_of(made), np.random.default_rng(1).standard_normal((8, 16), np.float32)
    plain = Session(made, arrays)
    (wanted,) = plain.call("f", {"h": h})

    def emitted(program: Program, **options: Any) -> str:
        return emit(program, **options).replace("platform == 'tpu'", "platform == 'cpu'")

    monkeypatch.setattr(session_module, "emit", emitted)
    forms = parse_target("tpu-v5e:2x2").forms
    first = Session(made, arrays, forms=forms)
    assert {name: array.format.layout.major_to_minor for name, array in first.weights.items()} == {
        "wq": (1, 2, 0, 3),
        "wk": (1, 0, 2),
    }
    np.testing.assert_allclose(first.call("f", {"h": h})[0], wanted, rtol=1e-5, atol=1e-5)
    assert all(np.array_equal(np.asarray(array), arrays[name]) for name, array in first.weights.items())
    second, third = Session(made, first.weights, forms=forms), Session(made, plain.weights, forms=forms)
    assert all(second.weights[name] is array for name, array in first.weights.items())
    assert third.weights["wq"].format.layout.major_to_minor == (1, 2, 0, 3)
    np.testing.assert_allclose(third.call("f", {"h": h})[0], wanted, rtol=1e-5, atol=1e-5)


def test_weights_on_other_devices_are_placed_anew(compiled: Program) -> None:
    weights = {name: jax.device_put(array, jax.devices()[0]) for name, array in arrays_of(compiled).items()}
    session = Session(compiled, weights)
    assert len(session.weights["whole"].sharding.device_set) == 8


FAULTS: list[tuple[Callable[[dict[str, Any]], dict[str, Any]], type[Exception], str]] = [
    (
        lambda w: {**w, "w": w["w"].T},
        ValueError,
        "w: an array of shape (64, 32) for bf16 E_xF_y, whose shape is (32, 64)",
    ),
    (
        lambda w: {name: array for name, array in w.items() if name != "u"},
        ValueError,
        "there is no array for u: f32 F_xE_yz",
    ),
]


@pytest.mark.parametrize(("change", "kind", "said"), FAULTS)
@pytest.mark.parametrize("as_source", [True, False])
def test_weights_at_fault(compiled: Program, change: Any, kind: type[Exception], said: str, as_source: bool) -> None:
    changed = change(arrays_of(compiled))
    with pytest.raises(kind) as caught:
        Session(compiled, ArraySource(changed) if as_source else changed)
    assert str(caught.value) == said


def test_arguments_at_fault(compiled: Program) -> None:
    session = Session(compiled, arrays_of(compiled))
    with pytest.raises(ValueError, match=r"x: an array of shape \(8, 31\) for f32 B_zE, whose shape is \(8, 32\)"):
        session.run("twice", {"x": np.zeros((8, 31))})
    (y,) = session.run("twice", {"x": np.zeros((8, 32))})
    with pytest.raises(ValueError, match=r"x: an array of shape \(8, 16\) for f32 B_zE, whose shape is \(8, 32\)"):
        session.run("twice", {"x": y[:, :16]})
    with pytest.raises(ValueError, match=r"^twice: no array for the argument x$"):
        session.run("twice", {})


def test_strided_weights_are_read_block_by_block() -> None:
    """F is split over y alone, and x is the outer digit: a chip holds two blocks."""
    made = explicit(
        program(
            """
        mesh x=2 y=2
        dim B=2 F=16 order x y
        weights { w: f32 F_y  v: f32 F_xy }
        func f(x: f32 B) -> f32 BF_y {
          y: f32 BF_y = x * w
          return y
        }
        func g(x: f32 B) -> f32 BF_xy {
          y: f32 BF_xy = x * v
          return y
        }
        """.replace("f32 F_y  v", "f32 F_y\n v")
        )
    )
    source = Counted(arrays_of(made))
    session = Session(made, source)
    read = [(taken.start, taken.stop) for name, (taken,) in source.boxes if name == "w"]
    assert read == [(0, 4), (8, 12), (4, 8), (12, 16)]
    assert session.weights["w"].shape == (2, 2, 4)
    (y,) = session.call("f", {"x": np.ones(2)})
    assert np.array_equal(y[0], source.read("w", (slice(0, 16),)))


def test_the_module_of_sessions_has_one_way_to_run() -> None:
    """`run_program` is a session for one call."""
    made = explicit(program(TEXT))
    weights, x = arrays_of(made), np.ones((8, 32), np.float32)
    results, state = session_module.run_program(made, "step", [x], weights)
    session = Session(made, weights)
    assert all(np.array_equal(a, b) for a, b in zip(results, session.call("step", {"x": x}), strict=True))
    assert math.prod(state["seen"].shape) == 8 * 32
    assert state["pos"] == 1
