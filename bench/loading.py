"""What loading a checkpoint takes: bytes read, the host's memory beside the devices', and the time.

    python bench/loading.py --gigabytes 1 --mesh x=2,y=2,z=2 --weights int8

Makes a checkpoint of random numbers in a temporary folder, one file of bf16, and loads it as `shardwright generate`
does. The devices are virtual ones of the CPU, which may keep the very array that was read, so that what they hold is
counted apart: `beside the devices` is the most that numpy held at a time, less what the devices hold.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}

SMALL = "dim B=1\nweights { w: f32 B }\nfunc f(x: f32 B) -> f32 B {\n  y = x * w\n  return y\n}\n"


def make_checkpoint(folder: Path, size: int) -> Mapping[str, object]:
    """A Llama of about `size` bytes, of as many layers as that takes; its config."""
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    from shardwright.models.architectures import describe
    from shardwright.models.config import Config
    from shardwright.models.weight_map import weight_map

    per_layer = 2 * (2048 * (2 * 2048 + 2 * 1024) + 3 * 2048 * 5632)
    config = {**MODEL, "num_hidden_layers": max(1, round((size - 4 * 32000 * 2048) / per_layer))}
    mapping = weight_map(describe(Config(config)))
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(1 << 20, np.float32).astype(ml_dtypes.bfloat16)
    tensors = {
        tensor: np.resize(noise, entry.stored_shape(mapping.sizes))
        for entry in mapping.entries.values()
        for tensor in entry.tensors(mapping.sizes)
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--mesh", default="x=2,y=2,z=2")
    parser.add_argument("--weights", choices=("int8", "int4"))
    args = parser.parse_args()
    sizes = {axis: int(size) for axis, size in (word.split("=") for word in args.mesh.split(","))}
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    from shardwright.backends.jax.session import Session
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.elaboration.elaborate import elaborate
    from shardwright.ir.mesh import Mesh
    from shardwright.ir.text.parser import parse
    from shardwright.models.checkpoint import CheckpointSource
    from shardwright.models.importing import import_model
    from shardwright.passes.pipelines import EXPLICIT, explicit, parse_pipeline, run_with_weights

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = make_checkpoint(folder, int(args.gigabytes * 1e9))
        made = import_model(config, "ws2d", Mesh(tuple(sizes.items())), 8, 1, cache=64, phases=("decode",))
        program = elaborate(parse(Source("imported", made.text)))
        bits = {None: "", "int8": "quantize-weights", "int4": "quantize-weights{bits=4}"}[args.weights]
        passes = (*(parse_pipeline(bits) if bits else ()), *EXPLICIT)
        dtypes = {value.name: value.type.dtype for value in program.weights}
        with CheckpointSource(folder, made.mapping, dtypes) as stored:
            compiled, source = run_with_weights(program, passes, stored)
            peak = held = 0

            def progress(_done: int, _total: int) -> None:
                nonlocal peak, held
                peak = max(peak, tracemalloc.get_traced_memory()[1] - held)
                held = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()

            mesh = f"mesh {args.mesh.replace(',', ' ')}\n"
            Session(explicit(elaborate(parse(Source("small", mesh + SMALL)))), {"w": [0.0]})  # JAX itself is loaded
            tracemalloc.start()
            began = time.perf_counter()
            session = Session(compiled, source, progress=progress)
            seconds = time.perf_counter() - began
            tracemalloc.stop()
        parts = [array.addressable_shards[0].data.nbytes for array in session.weights.values()]
        stored_bytes = (folder / "model.safetensors").stat().st_size
        print(f"checkpoint           {stored_bytes / 1e6:8.1f} MB")
        print(f"read                 {sum(stored.bytes_read.values()) / 1e6:8.1f} MB")
        print(f"on a device          {sum(parts) / 1e6:8.1f} MB")
        print(f"largest part         {max(parts) / 1e6:8.1f} MB")
        print(f"beside the devices   {peak / 1e6:8.1f} MB")
        print(f"time                 {seconds:8.1f} s")


if __name__ == "__main__":
    main()
