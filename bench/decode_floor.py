"""Decode on one device, beside the least time that its memory allows and beside transformers on the same checkpoint.

A step of decode reads every weight but the embedding table, of which it reads a row for each sequence, and the cache.
Those bytes over the measured bandwidth of a copy are the floor. Run by `bench/generation.py --gpu`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from llama_config import Sizes

from shardwright.backends.jax.session import Session
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.models.checkpoint import CheckpointSource
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.passes.pipelines import explicit

Platform = Literal["gpu", "cpu"]


@dataclass(frozen=True)
class Decode:
    """Seconds of a step of decode of B sequences, and what they are to be held against.

    `cache_bytes` are those of the whole cache, which a program of static shapes reads; `bandwidth` is bytes read and
    written by a copy, a second. `transformers_s` is None where torch does not see the device.
    """

    device: str
    sizes: str
    weight_bytes: int
    cache_bytes: int
    bandwidth: float
    ours_s: float
    transformers_s: float | None

    @property
    def floor_s(self) -> float:
        return (self.weight_bytes + self.cache_bytes) / self.bandwidth


def measure_decode(sizes: Sizes, platform: Platform, steps: int) -> Decode | None:
    """On the first device of the platform, in bf16 on a GPU and f32 on a CPU; None where there is none."""
    import jax

    try:
        device = jax.devices(platform)[0]
    except RuntimeError:
        return None
    dtype = "bfloat16" if platform == "gpu" else "float32"
    with tempfile.TemporaryDirectory() as made:
        folder = _checkpoint(sizes, dtype, Path(made))
        weights, cache, ours = _ours(folder, sizes, steps)
        copied = copy_bandwidth(1 << 30 if platform == "gpu" else 1 << 24, steps)
        theirs = _transformers(folder, sizes, dtype, platform, steps)
    return Decode(device.device_kind, str(sizes), weights, cache, copied, ours, theirs)


def _checkpoint(sizes: Sizes, dtype: str, folder: Path) -> Path:
    """A random one."""
    import torch
    import transformers

    library: Any = transformers
    library.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    keys = {key: value for key, value in sizes.config(dtype).items() if key not in ("architectures", "model_type")}
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        library.LlamaForCausalLM(library.LlamaConfig(**keys)).save_pretrained(folder)
    finally:
        torch.set_default_dtype(default)
    return folder


def copy_bandwidth(nbytes: int, steps: int) -> float:
    """Bytes a second that a copy of an array reads and writes, together."""
    import jax
    import jax.numpy as jnp

    # Adding keeps the compiler from returning the array itself.
    source = jnp.zeros(nbytes // 4, jnp.float32)
    copy: Any = jax.jit(lambda array: array + 1)
    return 2 * nbytes / _median(lambda: jax.block_until_ready(copy(source)), steps)


def _ours(folder: Path, sizes: Sizes, steps: int) -> tuple[int, int, float]:
    """Bytes of weights and of the cache that a step reads, and its seconds."""
    import jax

    keys = read_config(folder).keys
    made = import_model(keys, "megatron", Mesh.of(x=1), sizes.B, sizes.L, cache=sizes.T, attention="head")
    surface = elaborate(parse(Source("imported", made.text)))
    dtypes: dict[str, DType] = {value.name: value.type.dtype for value in surface.weights}
    with CheckpointSource(folder, made.mapping, dtypes) as source:
        session = Session(explicit(surface), source)
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, sizes.V, (sizes.B, sizes.L), dtype=np.int32)
    session.run("prefill", {"ids": prompts, "length": np.full(sizes.B, sizes.L, np.int32)})
    following = prompts[:, :1]
    seconds = _median(lambda: jax.block_until_ready(session.run("decode", {"ids": following})), steps)
    embedded = session.weights["embed"].nbytes
    weights = sum(array.nbytes for array in session.weights.values()) - embedded
    cache = 2 * sizes.N * sizes.B * sizes.T * sizes.K * sizes.D * session.weights["embed"].dtype.itemsize
    return weights, cache, seconds


def _transformers(folder: Path, sizes: Sizes, dtype: str, platform: Platform, steps: int) -> float | None:
    """Seconds of a step of `generate` with its default cache: what `steps` more tokens take."""
    import torch
    import transformers

    if platform == "gpu" and not torch.cuda.is_available():
        return None
    where = "cuda" if platform == "gpu" else "cpu"
    library: Any = transformers
    model = library.AutoModelForCausalLM.from_pretrained(str(folder), dtype=getattr(torch, dtype)).to(where).eval()
    model.generation_config.eos_token_id = None
    ids = torch.zeros((sizes.B, sizes.L), dtype=torch.int64, device=where)

    def generate(count: int) -> float:
        began = time.perf_counter()
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        int(made[0, -1])  # waits for the device
        return time.perf_counter() - began

    generate(2)
    few, many = 2, 2 + steps
    return (generate(many) - generate(few)) / (many - few)


def _median(step: Callable[[], object], steps: int) -> float:
    """Seconds of a step; the first two are not counted."""
    taken: list[float] = []
    for _ in range(steps + 2):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


def report(decode: Decode | None) -> str:
    """The figures in words."""
    if decode is None:
        return "no GPU is at hand: nothing was measured (--platform cpu runs this on the CPU)"
    theirs = (
        "torch does not see the device" if decode.transformers_s is None else f"{decode.transformers_s * 1e3:.2f} ms"
    )
    return "\n".join(
        [
            f"{decode.device}, {decode.sizes}",
            f"weights           {decode.weight_bytes / 1e9:.3f} GB",
            f"cache             {decode.cache_bytes / 1e9:.3f} GB",
            f"copy bandwidth    {decode.bandwidth / 1e9:.1f} GB/s",
            f"floor of a step   {decode.floor_s * 1e3:.2f} ms",
            f"ours              {decode.ours_s * 1e3:.2f} ms, {decode.ours_s / decode.floor_s:.2f} of the floor",
            f"transformers      {theirs}",
        ]
    )
