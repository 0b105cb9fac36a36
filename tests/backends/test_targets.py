"""Targets by name, where a mesh lies on them, and what is said of a compiler that is not there or gives up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from interrupting import HEEDED
from oracles.jax_agreement import explicit

from shardwright.backends.jax.devices import arrange_devices
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.targets.compilers import compile_module
from shardwright.backends.targets.failures import failure_of
from shardwright.backends.targets.gpus import gpu_memory_bytes, gpu_names, target_config
from shardwright.backends.targets.names import Platform, Target, chip_names, example_name, parse_target, target_of
from shardwright.compiling.compile_program import passes_of
from shardwright.cost.hardware.chips import chip_names as priced_chips
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.hardware.networks import Switched
from shardwright.cost.hardware.topology import SwitchedTopology, topology_of
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops import AllGather, ReduceScatter
from shardwright.ir.walk import lets_in
from shardwright.passes.pipelines import run_passes


def test_every_chip_has_a_price_and_an_example() -> None:
    assert set(chip_names()) <= set(priced_chips())
    for chip in chip_names():
        assert parse_target(example_name(chip)).chip == load_chip(chip)
    assert parse_target("a100:8").chip == load_chip("a100-80g")
    assert parse_target("cpu").chip is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tpu-v4", "tpu-v4 says no shape"),
        ("tpu-v4:4by4", "'4by4' is not a shape"),
        ("tpu-v5e:3x3", "tpu-v5e:3x3: there is no slice of this shape"),
        ("h100:16", "h100:16: a node has 8 GPUs at most"),
        ("h100:2x2x2", "h100:2x2x2: a shape of GPUs is N, or NODESxN"),
        ("h10:8", "there is no target 'h10:8'"),
        ("t4:1", "there is no target 't4:1'"),
    ],
)
def test_names_that_are_none(name: str, said: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        parse_target(name)
    assert caught.value.diagnostics[0].message == said
    assert caught.value.diagnostics[0].notes


@pytest.mark.parametrize(
    ("kind", "coordinates", "name"),
    [
        ("TPU v5 lite", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)], "tpu-v5e:2x2"),
        ("TPU v6 lite", [(x, y, 0) for x in range(2) for y in range(4)], "tpu-v6e:2x4"),
        ("TPU v4", [(x, y, 0) for x in range(2) for y in range(2)], "tpu-v4:2x2x1"),
        ("TPU v5", [(2, 1, 3)], "tpu-v5p:1x1x1"),
        ("TPU v5 lite", [(0, 0, 0), (1, 0, 0), (0, 1, 0)], "tpu-v5e:3"),  # no slice, but its compiler all the same
    ],
)
def test_devices_are_a_target(kind: str, coordinates: list[tuple[int, int, int]], name: str) -> None:
    target = target_of([SimpleNamespace(device_kind=kind, coords=at) for at in coordinates])
    assert target is not None
    assert (target.name, target.platform.name) == (name, "tpu")
    assert target.forms.tile == (8, 128)
    assert bool(target.passes) == (name[:6] in ("tpu-v4", "tpu-v5") and "e" not in name)


def test_other_devices_are_none() -> None:
    assert target_of([]) is None
    assert target_of(arrange_devices(8).devices) is None
    assert target_of([SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")]) is None


def test_collectives_over_all_chips_of_a_torus_are_in_two_statements() -> None:
    written = explicit("""
    mesh x=2 y=2 z=2
    dim B=4 E=8 F=8
    func f(x: f32 BE_xyz, w: f32 EF_zxy) -> f32 BF_zyx {
      g = all_gather[xyz](x)
      h = g @[E] w
      i = all_gather[zxy](h)
      j = as_partial[xyz](i)
      y = reduce_scatter[zyx -> F](j)
      return y
    }
    """)
    assert passes_of(parse_target("tpu-v6e:2x4")) == passes_of(parse_target("h100:8")) == passes_of(None) == ()
    program = run_passes(written, passes_of(parse_target("tpu-v4:2x2x2")))
    moves = [let.operation for let in lets_in(program.funcs[0].body)]
    assert [len(m.named_axes) for m in moves if isinstance(m, AllGather | ReduceScatter)] == [2, 1, 2, 1, 1, 2]
    text = emit(program, forms=parse_target("tpu-v4:2x2x2").forms)
    assert text.count("lax.all_gather(") == 4
    module = load_module(text)
    x, w = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
    made = module.build_f(module.make_mesh(arrange_devices(8).devices))(x[:4], w)
    assert np.abs(np.asarray(made) - x[:4] @ w).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "mesh", "first"),
    [
        ("tpu-v4:2x2x2", {"x": 2, "y": 2, "z": 2}, [(0, 0, 0), (0, 0, 1), (0, 1, 0)]),
        ("tpu-v4:4x4x4", {"x": 16, "y": 4}, [(0, 0, 0), (0, 0, 1), (0, 0, 2)]),
        ("tpu-v5e:4x2", {"x": 2, "y": 4}, [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)]),
        ("tpu-v5e:2x4", {"x": 2, "y": 4}, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]),
    ],
)
def test_a_mesh_on_a_slice(name: str, mesh: Mapping[str, int], first: list[tuple[int, ...]]) -> None:
    target = parse_target(name)
    order = target.order(mesh)
    assert order is not None
    assert list(order[: len(first)]) == first
    sizes = target.shape
    assert sorted(order) == sorted({at for at in order if all(0 <= i < n for i, n in zip(at, sizes, strict=True))})
    assert len(set(order)) == len(order)


@pytest.mark.parametrize(
    ("name", "mesh", "said", "way_out"),
    [
        ("tpu-v4:2x2x2", {"x": 4}, "the mesh x=4 has 4 chips, tpu-v4:2x2x2 has 8", "--mesh"),
        ("h100:2x3", {"x": 3, "y": 2}, "the mesh takes 2 chips of each node, and h100:2x3 has 3", "h100:3x2"),
        ("h100:2x6", {"x": 3, "y": 4}, "the mesh takes 4 chips of each node, and h100:2x6 has 6", "h100:3x4"),
    ],
)
def test_a_mesh_that_does_not_lie_there(name: str, mesh: Mapping[str, int], said: str, way_out: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        parse_target(name).order(mesh)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.message) == ("mesh-fit", said)
    assert way_out in diagnostic.notes[0].message


def test_a_shape_of_nodes_says_how_many_gpus_a_node_has() -> None:
    half, whole = parse_target("h100:2x4"), parse_target("h100:2x8")
    assert half.order({"x": 2, "y": 2, "z": 2}) is None
    assert half.chip is not None
    assert whole.chip == load_chip("h100")
    assert half.chip == load_chip("h100:2x4") != load_chip("h100")
    laid = topology_of(half.chip, {"x": 2, "y": 2, "z": 2})
    assert isinstance(laid, SwitchedTopology)
    assert (laid.groups("x"), laid.groups("yz")) == ((1, 2), (4, 1))
    network = load_chip("h100").interconnect
    assert isinstance(network, Switched)
    assert laid.egress(1) == network.levels[1].egress_bytes_per_s / 2


def test_gpus_are_described_as_their_chips_are() -> None:
    for name in gpu_names():
        assert gpu_memory_bytes(name) == pytest.approx(load_chip(name).memory_bytes, rel=0.08)
    text = target_config("h100")
    assert "  core_count: 132\n" in text
    assert "  cuda_compute_capability { major: 9 minor: 0 }\n" in text
    assert text.endswith('device_description_str: "NVIDIA H100 80GB HBM3"\n')


REPORT = """Memory Space: default (color=0)
Total bytes: 51634133504 (48.09GiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
   14.75GiB( 50%);   14.75GiB;            0;                7; 7×bf16[118,8,2048,256]
   29.50GiB(100%);   14.75GiB;  15837691904;                5; 5×bf16[118,8,2048,256]
   29.50GiB(100%);    4.50MiB;  31675383808;                2; bf16[512,1,4608], f32[8,64,2048]
"""


def test_out_of_memory_in_our_words() -> None:
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (48.09G) exceeds"
        " available HBM (30.75G)."
    )
    assert failure_of("tpu-v4:4x4x4", "decode", message, REPORT).render() == (
        "--target: error: decode does not fit tpu-v4:4x4x4: it takes 51.64 GB on a chip that has 33.02 GB for it"
        " [target-memory]\n"
        "note: 2 times 15.84 GB for bf16[118,8,2048,256], padded to 16 times its size\n"
        "note: 0.004719 GB for bf16[512,1,4608], f32[8,64,2048]\n"
        "note: take more chips, a smaller batch, or layouts that split what is large"
    )


def test_whatever_else_a_compiler_says() -> None:
    failed = failure_of("h100:8", "f", "XlaRuntimeError: UNIMPLEMENTED: no thing\nmore\n", "")
    assert failed.render() == (
        "--target: error: f: the compiler of h100:8 gave up: XlaRuntimeError: UNIMPLEMENTED: no thing [target-failed]"
    )


def test_products_that_triton_does_not_tile() -> None:
    """DeepSeek-V3's prefill at small sizes has such products under jax 0.10.2."""
    message = "INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.101 = f32[192,144]{1,0} dot(%a, %b)"
    assert failure_of("h100:8", "prefill", message, "").render() == (
        f"--target: error: prefill: the compiler of h100:8 gave up: {message} [target-failed]\n"
        "note: XLA_FLAGS=--xla_gpu_enable_triton_gemm=false compiles products without Triton, which has no tiles for it"
    )


def test_a_compiler_that_is_not_installed() -> None:
    platform = Platform("tpu", "libtpu", ("jax", "no_such_module"), "tpu")
    with pytest.raises(DiagnosticError) as caught:
        compile_module(Target("tpu-v4:2x2x2", platform, load_chip("tpu-v4"), (2, 2, 2)), "", {"x": 8})
    assert caught.value.render() == (
        "--target: error: tpu-v4:2x2x2 needs no_such_module: pip install 'shardwright[tpu]' [missing-library]"
    )


MODULE = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

MESH_SHAPE = {'x': 2}
IN_SPECS = {'f': (P('x'),)}
OUT_SPECS = {'f': (P(),)}
IN_SHAPES = {'f': (((8, 4), jnp.float32),)}


def build_f(mesh):
    def f(a):
        b = jax.lax.all_gather(a, 'x', axis=0, tiled=True, to='invarying')
        return b

    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=IN_SPECS['f'], out_specs=P(), check_vma=True))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "shardwright" / "targets"


def test_what_was_compiled_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (compiled,) = compile_module(parse_target("cpu"), MODULE, {"x": 2})
    assert (compiled.name, compiled.error) == ("f", None)
    assert "all-gather" in compiled.text
    assert "all-gather" in compiled.written
    assert compiled.memory is not None
    assert (compiled.memory.argument_bytes, compiled.memory.output_bytes) == (64, 128)
    (kept,) = cache.iterdir()
    monkeypatch.setattr(sys, "executable", "/nowhere")  # no process is started
    assert compile_module(parse_target("cpu"), MODULE, {"x": 2}) == (compiled,)
    kept.write_bytes(b"torn")
    with pytest.raises(OSError, match="nowhere"):
        compile_module(parse_target("cpu"), MODULE, {"x": 2})


def test_a_function_that_is_refused(cache: Path) -> None:
    (refused,) = compile_module(parse_target("cpu"), MODULE.replace("tiled=True", "tiled=1 / 0"), {"x": 2})
    assert refused.error is not None
    assert refused.error.diagnostics[0].message == (
        "f: the compiler of cpu gave up: ZeroDivisionError: division by zero"
    )


def test_a_module_that_cannot_be_loaded(cache: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        compile_module(parse_target("cpu"), "MESH_SHAPE = 1 / 0", {"x": 2})
    assert caught.value.diagnostics[0].message.endswith("gave up: ZeroDivisionError: division by zero")
    assert not cache.exists()


def test_a_compiler_that_takes_too_long(cache: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        compile_module(parse_target("cpu"), "import time\ntime.sleep(60)", {"x": 2}, time_limit_s=1)
    assert caught.value.render() == (
        "--target: error: the compiler of cpu was ended after 1 s [target-time]\n"
        "note: give it longer: --time-limit SECONDS"
    )


def test_a_compiler_that_ends_its_process(cache: Path) -> None:
    text = "import os, sys\nprint('last words', file=sys.stderr, flush=True)\nos.abort()"
    with pytest.raises(DiagnosticError) as caught:
        compile_module(parse_target("cpu"), text, {"x": 2})
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == "the compiler of cpu ended its process (killed by signal 6)"
    assert [note.message for note in diagnostic.notes] == ["last words"]


ASKING = """
import sys
from shardwright.backends.targets.compilers import compile_module
from shardwright.backends.targets.names import parse_target
compile_module(parse_target("cpu"), sys.argv[1], {"x": 2})
"""
SLEEPING = "import os, time\nopen({!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"


def test_a_compiler_ends_with_who_asked(cache: Path, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    asking = subprocess.Popen([sys.executable, "-c", ASKING, SLEEPING.format(str(told))])
    assert _within(300, lambda: told.exists() and told.read_text() != "")
    asking.kill()
    asking.wait()
    assert _within(300, lambda: not _runs(int(told.read_text())))


TELLING = "import os\nopen({!r}, 'a').write(str(os.getpid()) + ' ')\n"


def test_one_process_answers_until_it_ends_or_something_else_is_set(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "pids"

    def asked(more: str = "") -> None:
        compile_module(parse_target("cpu"), TELLING.format(str(told)) + MODULE + more, {"x": 2})

    asked()
    asked("\n# another")
    with pytest.raises(DiagnosticError, match="killed by signal 6"):
        asked("\nos.abort()")
    asked("\n# yet another")
    monkeypatch.setenv("SOMETHING", "else")
    asked("\n# and another")
    first, second, third, after, other = told.read_text().split()
    assert first == second == third
    assert len({first, after, other}) == 3
    assert not _runs(int(after))


def test_an_interrupt_ends_the_compiler(cache: Path, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    asking = subprocess.Popen(
        [sys.executable, "-c", HEEDED + ASKING, SLEEPING.format(str(told))], stderr=subprocess.PIPE, text=True
    )
    assert _within(300, lambda: told.exists() and told.read_text() != "")
    asking.send_signal(signal.SIGINT)
    assert asking.communicate(timeout=60)[1].endswith("KeyboardInterrupt\n")
    assert not _runs(int(told.read_text()))


def _within(seconds: float, so: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not so() and time.monotonic() < end:
        time.sleep(0.1)
    return so()


def _runs(pid: int) -> bool:
    """Whether a process computes; one that has ended may still be listed until somebody asks for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_nothing_is_printed(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compile_module(parse_target("cpu"), f"import os\nos.write(1, b'noise')\nos.write(2, b'noise'){MODULE}", {"x": 2})
    assert capfd.readouterr() == ("", "")


def test_nothing_is_written_where_the_target_refuses(shardwright: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "a.shard"
    file.write_text("mesh x=2\ndim B=4\nfunc f(a: B_x) -> B_x { return -a }\n")
    told = shardwright("compile", file, "-o", tmp_path / "a.py", "--target", "h100:4")
    assert told.status == 1
    assert told.err.startswith("--target: error: ")
    assert not (tmp_path / "a.py").exists()
