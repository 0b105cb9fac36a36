"""A small model on a core of this machine, under the policies of FlexGen's tables: its runs beside their predictions.

What is measured is a run of this project's runtime here, predicted with the rates that are measured here; no published
row is of either. Its sizes are such that all runs of a table take seconds.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from shardwright.cost.hardware.chips import Machine
from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.offloading.policy import Policy
from shardwright.cost.offloading.pricing import PricedPolicy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.dummy_checkpoint import write_dummy
from shardwright.models.importing import import_model
from shardwright.prediction.offloading import priced, setting_of
from shardwright.reproduction.measuring.limit import Limit, NotMeasuredError
from shardwright.reproduction.offload_rows import OffloadRow
from shardwright.reproduction.tables import MeasuredHere, Measurements
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel
from shardwright.serving.offloading.this_machine import MachineRequest, this_machine

LAYERS: Final = 4
CONFIG: Final[dict[str, Any]] = {
    "model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 8000, "hidden_size": 512,
    "word_embed_proj_dim": 512, "ffn_dim": 2048, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
    "max_position_embeddings": 256, "do_layer_norm_before": True, "activation_function": "relu", "pad_token_id": 1,
    "bos_token_id": 2, "eos_token_id": 2, "torch_dtype": "float32",
}  # fmt: skip
"""OPT, the architecture of FlexGen's tables, of 79 MB in f32."""

PROMPT: Final = 32
GENERATED: Final = 8
BATCH: Final = 8
BATCHES: Final = 2
"""The most batches in a block."""

_RUNS = 3
"""Runs of each policy; the fastest counts, for what else runs on the machine only takes time."""


def measured(rows: Iterable[OffloadRow], limit: Limit) -> Measurements:
    """Throughput of the small model under the shares of a table's policies, each once, where this project's runtime has
    them: with copies and computation together."""
    if find_spec("torch") is None:
        return Measurements(notes=("not measured: a small model runs with PyTorch: pip install 'shardwright[torch]'",))
    policies = dict.fromkeys((_small(row.policy), row.compressed) for row in rows if row.overlapped)
    here: list[MeasuredHere] = []
    reasons: list[str] = []
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder, _one_thread():
        write_dummy(Path(folder), CONFIG, DType.F32)
        try:
            for policy, compressed in policies:
                limit.begin(f"a small OPT under {policy}{', in 4 bits' if compressed else ''}")
                here.append(_beside(Path(folder), policy, _machine(limit), compressed=compressed))
        except NotMeasuredError as error:
            reasons.append(f"not measured: {error}")
    return Measurements(here=tuple(here), notes=(*(_notes() if here else ()), *reasons))


def _machine(limit: Limit) -> Machine:
    """This machine, measured once for such runs; told where it takes its seconds."""
    told: list[str] = []
    machine = this_machine(MachineRequest(DType.F32, device="cpu", threads=1), told.append)
    if told:
        limit.told("".join(told).strip().removeprefix("no --machine: "))
    return machine


def _notes() -> Iterator[str]:
    yield (
        f"measured: OPT of {LAYERS} layers, {CONFIG['hidden_size']} wide, in f32 on a core of this machine, {PROMPT}"
        f" tokens in and {GENERATED} out, by this project's runtime; predicted with this machine's measured rates"
    )
    yield "not measured: the published rows, which are of larger models on a T4"
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy > cores:
        yield f"{busy:.0f} programs ran at once on {cores} cores: what was measured took longer than it would alone"


def _small(policy: Policy) -> Policy:
    """The policy's shares, with batches that a core computes in a moment: one, or two where it has several."""
    return replace(policy, gpu_batch=BATCH, n_gpu_batches=min(policy.n_gpu_batches, BATCHES), host_attention=True)


def _beside(folder: Path, policy: Policy, machine: Machine, *, compressed: bool) -> MeasuredHere:
    model = import_model(CONFIG, "ws2d", Mesh(()), 1, 1).model
    setting = setting_of(model, machine, load_runtime("ours"), PROMPT, GENERATED, dtype=DType.F32)
    plan: PricedPolicy = priced(setting, policy, compress=compressed)
    rates = [_tokens_per_s(folder, plan.policy, model.vocab) for _ in range(_RUNS)]
    quantized = ", in 4 bits" if compressed else ""
    return MeasuredHere(f"small OPT {policy}{quantized}", "throughput", "token/s", plan.tokens_per_s, max(rates))


def _tokens_per_s(folder: Path, policy: Policy, vocab: int) -> float:
    """One block of the policy's batches."""
    drawn = random.Random(0)
    prompts = [[drawn.randrange(3, vocab) for _ in range(PROMPT)] for _ in range(policy.block)]
    request = OffloadRequest(policy, dtype=DType.F32, device="cpu")
    settings = GenerationSettings(max_new_tokens=GENERATED)
    with OffloadedModel(folder, request, make_prompts(prompts, vocab, None), settings) as offloaded:
        list(offloaded.completions())
    return offloaded.report.new_tokens / offloaded.report.seconds


@contextmanager
def _one_thread() -> Generator[None]:
    """Within it PyTorch computes on one core, where predictions hold best."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
