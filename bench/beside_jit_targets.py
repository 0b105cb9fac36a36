"""Our compiled programs beside XLA's own partitioner on the targets, given the same shardings of inputs and outputs.

    python bench/beside_jit_targets.py [NAME ...] [--target T ...] [--json]

For every function of every example at its own sizes, and for a layer of Llama-3-70B and of Command R at theirs
(`llama`, `cohere`; on targets of 8 chips): bytes that a chip receives, the kernels' time as the target's compiler
estimates it, and temporaries. `ours` has the interior as the program demands it, `open` leaves it to the compiler, for
the fewest bytes; `jit` is the unsharded function under `jax.jit` (`bench/global_arrays.py`), compiled by the same
compiler. Needs the compilers (`shardwright targets`); what was compiled before is not compiled again. A table for
docs/reference/targets.md.
Exit status 1 where both of ours receive more bytes, or keep the kernels busy for more than 1.02 of the time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from global_arrays import FORMATS, global_function
from opening import opened

from shardwright.backends.targets.names import parse_target
from shardwright.compiling.compile_program import explicit, load
from shardwright.explaining.explain import explain, explain_program
from shardwright.explaining.reports import FunctionReport
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program, Value
from shardwright.models.importing import import_model

jax = cast(Any, importlib.import_module("jax"))

EXAMPLES = Path(__file__).parents[1] / "examples"
TARGETS = ("tpu-v4:4x4x4", "tpu-v5e:8x8", "tpu-v6e:8x8", "h100:8x8")
MODEL_TARGETS = ("tpu-v4:2x2x2", "tpu-v5e:2x4", "tpu-v6e:2x4", "h100:8")
MOST_TIME = 1.02
LAYER = {"num_hidden_layers": 1, "vocab_size": 1024, "max_position_embeddings": 8192, "dtype": "bfloat16"}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 8192,
    "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "attention_bias": False,
    "mlp_bias": False, **LAYER,
}  # fmt: skip
COHERE = {
    "architectures": ["CohereForCausalLM"], "model_type": "cohere", "hidden_act": "silu", "hidden_size": 8192,
    "intermediate_size": 22528, "num_attention_heads": 64, "num_key_value_heads": 64, "layer_norm_eps": 1e-5,
    "rope_theta": 8000000.0, "logit_scale": 0.0625, "use_qk_norm": False, "attention_bias": False,
    "tie_word_embeddings": True, **LAYER,
}  # fmt: skip
MODELS = {"llama": LLAMA, "cohere": COHERE}
PRESETS = ("megatron", "ws2d")


@dataclass(frozen=True)
class Figures:
    """A compiled function: bytes that a chip receives, its kernels' estimated time, and temporaries."""

    bytes_received: int
    kernels_s: float
    temporary_bytes: int


@dataclass(frozen=True)
class Row:
    """A function on a target, three ways; None is what the compiler refuses, for want of memory."""

    program: str
    function: str
    target: str
    ours: Figures | None
    open: Figures | None
    jit: Figures | None

    @property
    def time_ratio(self) -> float | None:
        """The time of our kernels, the interior as demanded, over those of jit."""
        if self.ours is None or self.jit is None or not self.jit.kernels_s:
            return None
        return self.ours.kernels_s / self.jit.kernels_s

    @property
    def is_behind(self) -> bool:
        ways = [way for way in (self.ours, self.open) if way is not None]
        if self.jit is None or not ways:
            return self.jit is not None
        least, busy = min(way.bytes_received for way in ways), min(way.kernels_s for way in ways)
        return least > self.jit.bytes_received or busy > MOST_TIME * self.jit.kernels_s


def measure(name: str, surface: Program, target: str) -> Iterator[Row]:
    """A row for each function of a program."""
    ways: dict[str, dict[str, Figures]] = {}
    for way, program in (("ours", surface), ("open", opened(surface))):
        try:
            explained = explain_program(explicit(program, target=target, objective="bytes"), target)
            ways[way] = {func.name: _figures(func) for func in explained.functions}
        except DiagnosticError as error:
            print(f"{name} on {target}, {way}: {error.diagnostics[0].message}", file=sys.stderr)
            ways[way] = {}
    for func in surface.funcs:
        jitted = _jitted(surface, func.name, target)
        yield Row(name, func.name, target, ways["ours"].get(func.name), ways["open"].get(func.name), jitted)


def _figures(func: FunctionReport) -> Figures:
    busy = func.kernels_s
    return Figures(func.bytes_received, busy, func.temporary_bytes or 0)


def _jitted(program: Program, func_name: str, target: str) -> Figures | None:
    """The function on global arrays, with the program's shardings at its edges and none inside."""
    func, axes = program.func(func_name), tuple(program.mesh)
    types = (jax.sharding.AxisType.Auto,) * len(axes)
    mesh = jax.sharding.AbstractMesh(tuple(program.mesh[axis] for axis in axes), axes, axis_types=types)

    def sharding(kind: Any) -> Any:
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(split or None for split in kind.splits)))

    def array(value: Value) -> Any:
        extents = tuple(dim.size for dim in value.shape.dims)
        return jax.ShapeDtypeStruct(extents, FORMATS[value.shape.dtype], sharding=sharding(value.type))

    weights = {value.name: array(value) for value in program.weights}
    state = {value.name: array(value) for value in program.state}
    results = tuple(sharding(kind) for kind in func.results), {v.name: sharding(v.type) for v in program.state}
    jitted = jax.jit(global_function(program, func_name), out_shardings=results, donate_argnums=1)
    explained = explain(jitted, target, args=(weights, state, *map(array, func.params)))
    for error in explained.errors:
        print(f"{func_name} on {target}, jit: {error.diagnostics[0].message}", file=sys.stderr)
    return _figures(explained.functions[0]) if explained.functions else None


def programs(names: Sequence[str], targets: Sequence[str] | None) -> Iterator[tuple[str, Program, str]]:
    """Names, programs and targets."""
    for path in sorted(EXAMPLES.glob("*.shard")):
        if not names or path.stem.startswith(tuple(names)):
            for target in targets or TARGETS:
                yield path.stem, load(str(path)), target
    for name, config in MODELS.items():
        for preset in PRESETS if not names or name in names else ():
            mesh = Mesh.of(x=2, y=2, z=2) if preset == "ws2d" else Mesh.of(x=8)
            of_8_chips = [target for target in targets or MODEL_TARGETS if math.prod(parse_target(target).shape) == 8]
            for target in of_8_chips:
                text = import_model(config, preset, mesh, 32, 512, cache=2048, phases=("prefill", "decode")).text
                yield f"{name}, {preset}", load(Source(name, text)), target


def table(rows: Sequence[Row]) -> str:
    """The rows as a table of Markdown."""
    lines = [
        "| program, function | target | received, MB: ours, open, jit | kernels, ms: ours, open, jit | ours / jit |"
        " temporaries, MB: ours, open, jit |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ways = (row.ours, row.open, row.jit)
        moved, held = _shown(ways, "bytes_received", 1e-6), _shown(ways, "temporary_bytes", 1e-6)
        ratio = row.time_ratio
        busy = "" if ratio is None else _shown(ways, "kernels_s", 1e3)
        shown = "" if ratio is None else f"{ratio:.3f}"
        lines.append(f"| {row.program} {row.function} | {row.target} | {moved} | {busy} | {shown} | {held} |")
    return "\n".join(lines)


def _shown(ways: Sequence[Figures | None], name: str, scale: float) -> str:
    return ", ".join("-" if way is None else f"{getattr(way, name) * scale:.3f}" for way in ways)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="examples, by the beginning of their names; llama, cohere"
    )
    parser.add_argument("--target", action="append", metavar="CHIP:SHAPE", help=f"by default {', '.join(TARGETS)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    rows = [row for each in programs(given.names, given.target) for row in measure(*each)]
    ratios = [row.time_ratio for row in rows if row.time_ratio is not None]
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    else:
        print(table(rows))
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"\nkernels, ours / jit: geometric mean {mean:.3f} of {len(ratios)}, most {max(ratios):.3f}")
    behind = [row for row in rows if row.is_behind]
    for row in behind:
        print(f"{row.program} {row.function} on {row.target}: jit is ahead", file=sys.stderr)
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
