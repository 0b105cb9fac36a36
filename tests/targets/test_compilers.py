"""Small programs on the compilers of TPUs and GPUs: what is written is what is reported, whatever they make of it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shardwright import assert_collectives
from shardwright.backends.graph.drawing import timeline_of
from shardwright.backends.targets.names import parse_target
from shardwright.compiling.compile_program import explicit, load
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.movements.movement import duration_text
from shardwright.cost.movements.traffic import bytes_received
from shardwright.cost.programs.program_cost import cost_of
from shardwright.cost_tables import cost_table
from shardwright.explaining.compiled_costs import compiled_costs
from shardwright.explaining.explain import explain, explain_program
from shardwright.explaining.reports import Explanation, FunctionReport
from shardwright.ir.diagnostics import Source
from shardwright.ir.program import Program
from shardwright.ir.text.table import bytes_text

MESHES = {8: "x=2 y=2 z=2", 16: "x=2 y=4 z=2"}
FEEDFORWARD = """
dim B=64 E=512 F=2048
func ffn(x: BE_xyz, w_in: E_xF_yz, w_out: F_yzE_x) -> BE_xyz {
  h: BF_xyz = x @ w_in
  y: BE_xyz = gelu(h) @ w_out
  return y
}
"""
LAYERS = """
dim N=6 B=64 E=512 F=2048
weights { w_in: NE_xF_yz
          w_out: NF_yzE_x }
state { steps: int32 }
func step(x: BE_xyz) -> BE_xyz {
  y: BE_xyz = loop[N](h: BE_xyz = x) {
    next h + gelu(h @[E] w_in) @[F] w_out
  }
  set steps = steps + 1
  return y
}
"""


@cache
def explained(text: str, target: str) -> Explanation:
    chips = 1
    for size in parse_target(target).shape:
        chips *= size
    return explain_program(program(text, chips, target), target, "a.shard")


def program(text: str, chips: int, target: str | None = None) -> Program:
    return explicit(load(Source("a.shard", f"mesh {MESHES[chips]}{text}")), target=target, objective="bytes")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


TARGETS = [
    "tpu-v4:2x2x2", "tpu-v4:4x2x2", "tpu-v5e:2x4", "tpu-v5e:4x4", "tpu-v5p:2x2x2", "tpu-v6e:4x2",
    "h100:8", "h100:2x8", "h200:8", "b200:8", "a100:8",
]  # fmt: skip


def function(text: str, target: str) -> FunctionReport:
    told = explained(text, target)
    assert told.errors == ()
    (func,) = told.functions
    assert func.faults == ()
    return func


OVER_ALL_CHIPS = """
dim B=64 E=16384 F=16384
func f(x: bf16 BF_xy, w: bf16 F_xyE) -> bf16 BE_xy {
  h: bf16 BE(partialsum-xy) = x @[F] w
  return reduce_scatter[xy -> E](h)
}
func g(x: bf16 BE_xy, w: bf16 EF_xy) -> bf16 BF_xy {
  h: bf16 BE = all_gather[xy](x)
  return h @[E] w
}
"""


@pytest.mark.parametrize("target", ["tpu-v5e:16x8", "tpu-v6e:4x4", "tpu-v6e:8x8"])
def test_collectives_over_all_chips_of_a_slice_stay_what_they_are(target: str) -> None:
    """Not all-reduces, as libtpu makes of scatters on squares, and of gathers over many chips."""
    x, y = parse_target(target).shape
    text = f"mesh x={x} y={y}{OVER_ALL_CHIPS}"
    told = explain_program(explicit(load(Source("a.shard", text)), target=target), target)
    assert told.errors == ()
    assert [{c.op for c in func.collectives} for func in told.functions] == [{"reduce_scatter"}, {"all_gather"}]
    assert all(func.bytes_received == func.written_bytes_received for func in told.functions)


@pytest.mark.parametrize("target", TARGETS)
def test_every_statement_has_its_collective(target: str, capfd: pytest.CaptureFixture[str]) -> None:
    func = function(FEEDFORWARD, target)
    assert capfd.readouterr() == ("", "")
    written = [("x_gathered", ("y", "z")), ("h", ("x",)), ("y_gelu_gathered", ("x",)), ("y", ("y", "z"))]
    asked = [(name, c.axes) for c in func.collectives for name in c.statements]
    assert sorted(asked) == sorted(written)
    assert func.unmade == ()
    assert [c.op for c in func.collectives if c.statements[0].endswith("gathered")] == ["all_gather"] * 2
    assert sum(c.lower_bound_bytes for c in func.collectives) == func.written_bytes_received
    for c in func.collectives:
        assert c.source in {"a.shard:4", "a.shard:5"}
        assert c.bytes_received >= c.lower_bound_bytes
    exact = 2 * (64 * 512 + 2 * 512 * 2048) // (16 if target in {"tpu-v4:4x2x2", "tpu-v5e:4x4", "h100:2x8"} else 8)
    assert func.argument_bytes is not None
    assert exact <= func.argument_bytes <= 1.02 * exact + 65536  # tiles of 8 x 128 are padded
    assert func.compile_s


@pytest.mark.parametrize("target", ["h100:8", "h100:2x8", "b200:8"])
def test_gpus_run_what_is_written(target: str) -> None:
    func = function(FEEDFORWARD, target)
    assert func.bytes_received == func.written_bytes_received
    assert {c.op for c in func.collectives} == {"all_gather", "reduce_scatter"}
    assert func.kernels == ()


def test_gpus_copy_the_slices_of_a_loop_and_are_priced_so() -> None:
    """Every layer's weights are read and written before a product reads them, unless they are no slice."""
    looped, alone = function(LAYERS, "h100:8"), function(FEEDFORWARD, "h100:8")
    weights = 6 * 2 * 512 * 2048 * 2 // 8
    assert looped.moved_bytes is not None
    assert alone.moved_bytes is not None
    assert looped.moved_bytes[0] > 3 * weights
    assert looped.moved_bytes[1] == pytest.approx(2 * weights, rel=0.1)
    assert alone.moved_bytes[1] < weights // 6 // 8
    assert function(LAYERS, "tpu-v5e:2x4").moved_bytes is None
    both = "read and written, {} of it by copies and slices"
    assert both.format(bytes_text(looped.moved_bytes[1])) in looped.as_text("h100:8")

    made = program(LAYERS, 8, "h100:8")
    cost = cost_of(made, made.funcs[0], load_chip("h100"))
    costs = compiled_costs(cost, looped, "h100:8")
    laid = sum(each.nbytes for each in looped.untimed if each.kernel.moves_only)
    assert costs.other.estimated_s is not None
    assert costs.other.estimated_s > laid / load_chip("h100").memory_bytes_per_s
    assert "as they are priced here" in cost_table(cost, costs)


def test_kernels_of_movements_are_told_beside_their_rows() -> None:
    """Kernels that cut and copy for a collective are in the total and in no row."""
    made = program(FEEDFORWARD, 8, "tpu-v5e:2x4")
    cost = cost_of(made, made.funcs[0], load_chip("tpu-v5e"))
    costs = compiled_costs(cost, function(FEEDFORWARD, "tpu-v5e:2x4"), "tpu-v5e:2x4")
    assert costs.estimated_s is not None
    rows = sum(part.estimated_s or 0.0 for part in costs.parts.values())
    assert rows + costs.moving_s + (costs.other.estimated_s or 0.0) == pytest.approx(costs.estimated_s)
    assert costs.moving_s > 0
    assert f"{duration_text(costs.moving_s)} of it for movements" in cost_table(cost, costs)


def test_flags_for_gpus_are_taken_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Triton's kernels a product is a call of cuBLAS, which has a workspace."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false --xla_backend_optimization_level=0")
    flagged = explain_program(program(LAYERS, 8, "h100:8"), "h100:8", "a.shard").functions[0]
    assert flagged.temporary_bytes is not None
    assert flagged.temporary_bytes > 32 << 20 > (function(LAYERS, "h100:8").temporary_bytes or 0)
    assert flagged.moved_bytes is not None


@pytest.mark.parametrize("target", ["tpu-v4:4x2x2", "tpu-v5p:4x2x2"])
def test_a_reduce_scatter_of_a_product_stays_one(target: str) -> None:
    """Along the second dimension libtpu makes an all-reduce of it, and a slice."""
    text = FEEDFORWARD.replace("B=64 E=512 F=2048", "B=512 E=4096 F=16384")
    func = function(text, target)
    assert {c.op for c in func.collectives} == {"all_gather", "reduce_scatter"}
    assert func.bytes_received == func.written_bytes_received


@pytest.mark.parametrize("target", ["tpu-v4:2x2x2", "tpu-v5p:2x2x2"])
def test_collectives_over_all_chips_of_a_torus_stay_what_they_are(target: str) -> None:
    """Over three axes libtpu makes all-reduces of them."""
    text = FEEDFORWARD.replace("E_xF_yz", "EF_xyz").replace("F_yzE_x", "F_xyzE")
    func = function(text.replace("B=64 E=512 F=2048", "B=512 E=4096 F=16384"), target)
    assert {c.op for c in func.collectives} == {"all_gather", "reduce_scatter"}
    assert func.bytes_received == func.written_bytes_received


BLOCKS_OF_TWO = """
dim B=32 L=64 E=2048 order z x y
func f(a: B_zLE_xy, p: BLE(partialsum-y)) -> (BLE, BLE) {
  whole = all_gather[xyz](a)
  strided: BLE_y = reduce_scatter[y -> E](p)
  sums: BLE = all_gather[y](strided)
  return whole, sums
}
"""


@pytest.mark.parametrize("target", ["tpu-v4:2x2x2", "tpu-v5p:2x2x2"])
def test_collectives_of_two_dimensions_and_of_strided_ones_stay_what_they_are(target: str) -> None:
    func = function(BLOCKS_OF_TWO, target)
    assert sorted(c.op for c in func.collectives) == ["all_gather", "all_gather", "all_gather", "reduce_scatter"]
    assert func.bytes_received == func.written_bytes_received


CACHED = """
dim N=4 B=512 T=2048 E=512 D=256
weights { wk: NE_xD }
state { k: NB_xyzTD
        pos: int32 }
func decode(x: B_xyzE) -> f32 B_xyzE {
  y: f32 B_xyzE = loop[N](h: f32 B_xyzE = convert[f32](x)) {
    row: B_xyzD = convert[bf16](h) @[E] wk
    set k = update[T](k, row, pos)
    near: f32 B_xyzT = convert[f32](row @[D] k)
    next h + sum[T](near)
  }
  set pos = pos + 1
  return y
}
"""


EIGHT_BITS = """
dim B=256 E=1024 F=2048
func f(w: f8e4m3 EF_xyz, v: f8e5m2 B_xyzE) -> (f8e4m3 EF, f8e5m2 BE_xyz) {
  return w, v
}
"""


@pytest.mark.parametrize("target", ["tpu-v4:2x2x2", "tpu-v5e:2x4", "h100:8"])
def test_floats_of_8_bits_travel_in_8_bits(target: str) -> None:
    """XLA makes 16 of them on CPUs."""
    func = function(EIGHT_BITS, target)
    assert func.unmade == ()
    assert func.bytes_received == func.written_bytes_received == (1024 * 2048 + 256 * 1024 // 8) * 7 // 8


@pytest.mark.parametrize("target", ["tpu-v4:2x2x2", "tpu-v5e:2x4", "h100:8"])
def test_a_cache_is_written_in_place(target: str) -> None:
    """libtpu copies the whole of a cache into another tiling where its rows are scattered."""
    func = function(CACHED, target)
    cache = 4 * 512 * 2048 * 256 * 2 // 8
    assert func.argument_bytes is not None
    assert func.temporary_bytes is not None
    assert func.argument_bytes > cache
    assert func.temporary_bytes < cache // 16


@pytest.mark.parametrize("pos", ["pos: int32 }", "pos: int32 B_y }"])
@pytest.mark.parametrize("target", ["tpu-v4:2x2x2", "tpu-v5e:2x4", "h100:8"])
def test_caches_of_micro_batches_are_written_in_place(target: str, pos: str) -> None:
    """A fourth of a chip's cache is what a layer has of a micro-batch: none of it is copied."""
    text = CACHED.replace("NE_x", "N_pE").replace("NB_", "N_pB_").replace("xyz", "y").replace("pos: int32 }", pos)
    told = explain_program(load(Source("a.shard", f"mesh p=2 y=4{text}"), micro_batches=2), target)
    assert told.errors == ()
    assert told.functions[0].temporary_bytes is not None
    assert told.functions[0].temporary_bytes < 4 * 512 * 2048 * 256 * 2 // 8 // 64


@pytest.mark.parametrize("target", ["tpu-v4:2x2x2", "tpu-v5e:2x4", "h100:8"])
def test_loops_count_by_their_trips(target: str) -> None:
    func = function(LAYERS, target)
    assert {c.trips for c in func.collectives} == {6}
    compiled = program(LAYERS, 8, target)
    written = bytes_received(compiled, compiled.func("step"))
    assert func.written_bytes_received == written.bytes
    moved = {str(each.statement.result.name) for each in written.movements if each.communicates}
    assert {name for c in func.collectives for name in c.statements} == moved
    assert sum(c.lower_bound_bytes for c in func.collectives) == written.bytes


GATHERED = """
dim B=64 E=512 F=2048
func ffn(x: B_xE_yz, w_in: E_xF_yz, w_out: F_yzE_x) -> B_xE_yz {
  h: B_xF_yz = all_gather[yz](x) @ all_gather[x](w_in)
  y: B_xE_yz = gelu(h) @ all_gather[x](w_out)
  return y
}
"""


@pytest.mark.parametrize("target", ["tpu-v5e:2x4", "tpu-v6e:2x4"])
def test_a_collective_beside_kernels_counts_once(target: str) -> None:
    """libtpu writes a gather that runs beside a product down in each kernel that it passes through."""
    func = function(GATHERED, target)
    assert len(func.collectives) == 4
    assert sum(c.lower_bound_bytes for c in func.collectives) == func.written_bytes_received


SCATTERED = """
dim B=2048 E=2048 F=560
func f(x: BE_y, w: E_yF) -> BF_y {
  h: BF(partialsum-y) = x @ w
  return reduce_scatter[y -> F](h)
}
"""


def test_a_fused_reduce_scatter_is_one() -> None:
    """libtpu for v5e makes a fusion of a padded all-reduce and a slice, and shifts what the padding put elsewhere."""
    func = function(SCATTERED, "tpu-v5e:4x4")
    assert "reduce_scatter" in {c.op for c in func.collectives}
    scattered = next(c for c in func.collectives if c.op == "reduce_scatter")
    assert scattered.axes == ("y",)
    assert len(scattered.statements) == 1
    assert scattered.lower_bound_bytes == 2048 * 560 * 2 * 3 // 4
    assert scattered.lower_bound_bytes <= scattered.bytes_received <= 1.1 * scattered.lower_bound_bytes


PRODUCT = """
dim B=512 E=4608 F=4608
func f(x: BE, w: EF) -> BF { return x @ w }
"""


@pytest.mark.parametrize(
    ("target", "rate"), [("tpu-v4:2x2x2", 2.75e14), ("tpu-v5e:2x4", 1.97e14), ("tpu-v6e:2x4", 9.18e14)]
)
def test_kernels_have_times(target: str, rate: float) -> None:
    func = function(PRODUCT, target)
    (longest, *_) = sorted(func.kernels, key=lambda kernel: -(kernel.estimated_s or 0.0))
    arithmetic = 2 * 512 * 4608 * 4608 / rate
    assert longest.trips == 1
    assert longest.estimated_s is not None
    assert arithmetic < longest.estimated_s < 3 * arithmetic
    assert longest.predicted_s == pytest.approx(longest.estimated_s, rel=0.2 if target.startswith("tpu-v6e") else 0.15)
    assert longest.statements == ("result_0",)


FUNCTION = """
import jax
import jax.numpy as jnp


def step(d, w):
    h = jax.lax.with_sharding_constraint(d["a"] @ w, jax.NamedSharding(mesh, jax.P("x")))
    h = jax.lax.scan(lambda c, _: (jnp.tanh(c @ w.T @ w), None), h, None, length=5)[0]
    summed = jax.shard_map(lambda v: jax.lax.psum(v, "y"), mesh=mesh, in_specs=jax.P("x", "y"), out_specs=jax.P("x"))
    return {"summed": summed(h), "h": h}


def array(*spec):
    return jax.ShapeDtypeStruct((512, 512), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P(*spec)))
"""
DIRECT = """
import sys
import numpy as np
from jax.experimental import topologies

devices = topologies.get_topology_desc(topology_name="v5e:2x2", platform="tpu").devices
grid = np.array(sorted(devices, key=lambda device: device.id)).reshape(2, 2)
mesh = jax.sharding.Mesh(grid, ("x", "y"))
args = {"a": array("x", "y")}, array("x", "y")
compiled = jax.jit(step, donate_argnums=0).lower(*args).compile()
open(sys.argv[1], "w").write(compiled.as_text())
"""


def test_a_function_is_what_jit_makes_of_it_for_the_target(tmp_path: Path) -> None:
    """Compiled for the target's devices by `jit` itself, in another process."""
    file, made = tmp_path / "own.py", tmp_path / "made.txt"
    file.write_text(FUNCTION + DIRECT)
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    subprocess.run([sys.executable, file, made], env=environment, check=True, capture_output=True)
    (wanted,) = explain(str(made), mesh={"x": 2, "y": 2}).functions

    jax: Any = importlib.import_module("jax")
    names: dict[str, Any] = {"mesh": jax.sharding.AbstractMesh((2, 2), ("x", "y"))}
    exec(compile(FUNCTION, file, "exec"), names)  # the same lines
    function = jax.jit(names["step"], donate_argnums=0)
    args = {"a": names["array"]("x", "y")}, names["array"]("x", "y")
    explained = explain(function, "tpu-v5e:2x2", args=args)
    assert explained.target == "tpu-v5e:2x2"
    (func,) = explained.functions
    # A text has no target, and so no times of the kernels beside its collectives.
    assert tuple(replace(each, beside_s=None) for each in func.collectives) == wanted.collectives
    assert {c.op for c in func.collectives} == {"all_gather", "all_reduce"}
    assert {c.trips for c in func.collectives} == {1, 5}
    assert all(c.source and c.source.startswith(f"{file}:") for c in func.collectives)
    assert [k.name for k in func.kernels] == [k.name for k in wanted.kernels]
    assert all(k.estimated_s is not None for k in func.kernels)
    quarter = 512 * 512 * 4 // 4
    assert func.argument_bytes == 2 * quarter
    assert func.output_bytes is not None
    assert quarter <= func.output_bytes <= 2 * quarter  # `h` takes the place of `d`

    (on_gpus,) = explain(function, "h100:4", args=args).functions
    assert {(c.op, c.axes) for c in on_gpus.collectives} == {(c.op, c.axes) for c in func.collectives}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("tpu-v4:2x2x2", "all_gather[xy] 14336"),
        ("tpu-v5e:2x4", "all_gather[xy] 14336"),
        ("h100:8", "all_gather[x] 6144; all_gather[y] 8192"),
    ],
)
def test_a_resharding_that_gathers_all(target: str, expected: str) -> None:
    """openxla/xla issue 15207: whichever compiler it is, an all-to-all of 1,792 bytes would do."""
    jax: Any = importlib.import_module("jax")
    mesh = jax.sharding.AbstractMesh((4, 2), ("x", "y"))
    before, after = (jax.NamedSharding(mesh, jax.P(*spec)) for spec in (("y", None, "x"), (None, ("x", "y"))))
    function = jax.jit(lambda a: a * 2, out_shardings=after)
    args = (jax.ShapeDtypeStruct((16, 16, 16), jax.numpy.float32, sharding=before),)
    assert_collectives(function, args, mesh, expected, target=target)
    (func,) = explain(function, target, args=args).functions
    assert sum(c.lower_bound_bytes for c in func.collectives) == 1792
    with pytest.raises(AssertionError, match=f"^<lambda> on {target}, mesh x=4 y=2: a chip receives 14336 bytes"):
        assert_collectives(function, args, mesh, at_most=1792, target=target)


def test_a_function_that_does_not_fit() -> None:
    jax: Any = importlib.import_module("jax")
    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    huge = jax.ShapeDtypeStruct((131072, 131072), jax.numpy.float32, sharding=jax.NamedSharding(mesh, jax.P()))
    (error,) = explain(lambda a: a @ a, "tpu-v5e:2x2", args=(huge,)).errors
    assert error.diagnostics[0].message.startswith("<lambda> does not fit tpu-v5e:2x2: it takes ")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("tpu-v5e:2x4", "order and cycles by the compiler, collectives estimated by the cost model"),
        ("h100:8", "order by the compiler, kernels and collectives estimated by the cost model"),
    ],
)
def test_a_schedule_stands_beneath_the_prediction(target: str, told: str) -> None:
    """Every trip, in about the time that is predicted."""
    text = LAYERS.replace("B=64 E=512 F=2048", "B=2048 E=8192 F=32768")
    drawn = timeline_of(program(text, 8, target), None, "", target=target)
    assert drawn.title.startswith(f"step on 8 {target.partition(':')[0]}")
    assert drawn.predicted is not None
    assert drawn.scheduled is not None
    assert drawn.scheduled.told == told
    links = {name for name in drawn.scheduled.resources if name.startswith("links")}
    assert links == {name for name in drawn.predicted.resources if name.startswith("links")}
    for links_or_device in (*links, "device"):
        seconds = [course.busy(links_or_device) for course in (drawn.predicted, drawn.scheduled)]
        assert seconds[1] == pytest.approx(seconds[0], rel=0.25), links_or_device
    made = [entry.name for entry in drawn.scheduled.entries if entry.name.startswith("all_gather h_gathered")]
    assert len(made) == 6


def test_two_compilers_at_once() -> None:
    texts = [PRODUCT.replace("512", str(size)) for size in (256, 1024)]
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(explained, texts, ["tpu-v5e:2x4"] * 2))
    assert [told.errors for told in made] == [(), ()]


def test_the_commands(shardwright: Callable[..., Any], tmp_path: Path) -> None:
    listed: list[Mapping[str, Any]] = json.loads(shardwright("targets", "--json").out)["targets"]
    assert all(row["installed"] and row["install"] is None for row in listed)
    file = tmp_path / "a.shard"
    file.write_text(f"mesh {MESHES[8]}{FEEDFORWARD}")
    told = shardwright("compile", file, "-o", tmp_path / "a.py", "--no-validate", "--target", "tpu-v4:2x2x2")
    assert told.status == 0
    assert told.err.startswith("ffn on tpu-v4:2x2x2: a chip receives ")
    of_module = json.loads(shardwright("explain", tmp_path / "a.py", "--target", "tpu-v4:2x2x2", "--json").out)
    assert of_module["functions"][0]["collectives"][0]["source"].startswith(str(tmp_path / "a.py"))
