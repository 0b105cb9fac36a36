"""The offloading runtime on a CUDA device with its memory capped, beside Accelerate at its best batch.

A checkpoint of OPT-30B's size with random weights, prompts of 512 tokens and 32 new ones, 16 GB of device memory: the
case of Sheng et al. 2023, table 2. Printed are tokens per second, the share of the measured bandwidths that was
reached, seconds beside those predicted, and busy seconds by kind as in the paper's table 8. As a toy it is all the same
on the CPU, with a small OPT.
"""

from __future__ import annotations

import importlib
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from offloaded_run import Run, machine_here, offloaded

from shardwright.cost.hardware.chips import Machine
from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.programs.unrolling import Resource
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType, Tier
from shardwright.models.config import read_config
from shardwright.models.dummy_checkpoint import write_dummy
from shardwright.models.importing import import_model
from shardwright.prediction.offloading import best_plan, setting_of
from shardwright.serving.offloading.request import OffloadRequest


@dataclass(frozen=True)
class Case:
    """A model's sizes, the lengths, and the bytes of memory that a run may have."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    prompt: int
    new: int
    device_bytes: int
    host_bytes: int
    dtype: DType
    device: str

    @property
    def config(self) -> dict[str, Any]:
        return {
            "model_type": "opt", "architectures": ["OPTForCausalLM"], "num_hidden_layers": self.layers,
            "hidden_size": self.hidden, "word_embed_proj_dim": self.hidden, "num_attention_heads": self.heads,
            "ffn_dim": 4 * self.hidden, "vocab_size": self.vocab, "max_position_embeddings": 2048,
            "activation_function": "relu", "do_layer_norm_before": True, "tie_word_embeddings": True,
            "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "torch_dtype": "float16",
        }  # fmt: skip


def case_of(*, toy: bool) -> Case:
    if toy:
        return Case(4, 256, 4, 500, 32, 8, 16_000_000, 60_000_000, DType.F32, "cpu")
    host = int(0.8 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return Case(48, 7168, 56, 50272, 512, 32, 16_000_000_000, host, DType.F16, "cuda")


def compare(*, toy: bool, machine: str | None = None, alone: bool = False) -> None:
    """Writes the checkpoint, measures the machine, plans, runs, and says what came out."""
    case = case_of(toy=toy)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        size = write_dummy(path, case.config, case.dtype)
        print(f"{size / 1e9:.3g} GB of weights, {case.device_bytes / 1e9:g} GB of device memory", flush=True)
        here = _capped(machine_here(machine, case.device, case.dtype, Path(folder)), case)
        run = _ours(path, case, here)
        print(f"ours: {run.rate:,.2f} tokens per second; {run.against_prediction()}")
        print("\n".join(run.breakdown()))
        for name, resource, rate in (
            ("host to device", Resource.TO_DEVICE, here.host_link.to_device_bytes_per_s),
            ("disk", Resource.DISK_READ, here.disk.read_bytes_per_s if here.disk else 1.0),
        ):
            reached = run.reached(resource)
            print(f"{name}: {reached / 1e9:.3g} GB/s of {rate / 1e9:.3g}, {100 * reached / rate:.0f} %")
        print(f"peaks: {', '.join(f'{tier} {nbytes / 1e9:.3g} GB' for tier, nbytes in run.report.peak_bytes.items())}")
        if not alone:
            _beside_accelerate(path, case, run.rate)


def _capped(machine: Machine, case: Case) -> Machine:
    """The machine with the memory that a run may have."""
    chip = replace(machine.chip, memory_bytes=float(case.device_bytes))
    return replace(machine, chip=chip, host=replace(machine.host, memory_bytes=float(case.host_bytes)))


def _ours(path: Path, case: Case, machine: Machine) -> Run:
    """The best policy by the cost model, for as many prompts as its block has."""
    model = import_model(read_config(path).keys, "ws2d", Mesh(()), 1, 1).model
    setting = setting_of(model, machine, load_runtime("ours"), case.prompt, case.new, dtype=case.dtype)
    caps = {Tier.DEVICE: case.device_bytes, Tier.HOST: case.host_bytes}
    for share in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4):
        # What is planned must leave room for the runtime's buffers and for values that come and go.
        tight = replace(machine.chip, memory_bytes=share * machine.chip.memory_bytes)
        planned = best_plan(replace(setting, machine=replace(machine, chip=tight))).plan
        request = OffloadRequest(planned.policy, dtype=case.dtype, caps=caps, device=case.device)
        try:
            run = offloaded(path, list(_prompts(case, planned.policy.block)), case.new, request, machine)
        except DiagnosticError as error:
            if error.diagnostics[0].code != "out-of-memory":
                raise
            print(f"planned for {share:.0%} of the device's memory: {error.diagnostics[0].message}", flush=True)
            continue
        print(f"policy {planned.policy}: {planned.tokens_per_s:.3g} tokens per second by the cost model", flush=True)
        return run
    raise SystemExit("no policy fits")


def _prompts(case: Case, count: int) -> Iterator[list[int]]:
    rng = random.Random(0)
    for _ in range(count):
        yield [rng.randrange(3, case.vocab) for _ in range(case.prompt)]


# ---------------------------------------------------------------- Accelerate


def _beside_accelerate(path: Path, case: Case, ours: float) -> None:
    """At twice the batch each time, until memory does not suffice or it has got slower twice."""
    best, batch, slower = 0.0, 1, 0
    while batch <= 256:
        try:
            rate = _accelerate(path, case, batch)
        except torch.OutOfMemoryError:
            print(f"Accelerate, batch {batch}: out of memory")
            break
        print(f"Accelerate, batch {batch}: {rate:,.2f} tokens per second", flush=True)
        slower = slower + 1 if rate < best else 0
        if slower == 2:
            break
        best, batch = max(best, rate), 2 * batch
    if best:
        print(f"ours is {ours / best:.1f} times as fast as Accelerate at its best batch")


def _accelerate(path: Path, case: Case, batch: int) -> float:
    """Tokens per second of `generate` with weights where Accelerate puts them under the same caps."""
    library: Any = transformers
    hooks: Any = importlib.import_module("accelerate")
    dtype = {DType.F16: torch.float16, DType.F32: torch.float32}[case.dtype]
    ids = torch.tensor(list(_prompts(case, batch)), device=case.device)
    with tempfile.TemporaryDirectory() as offloaded_to:
        options: dict[str, Any] = {"dtype": dtype}
        if case.device == "cuda":
            cuda: Any = torch.cuda
            cuda.empty_cache()
            total = cuda.get_device_properties(0).total_memory
            cuda.set_per_process_memory_fraction(case.device_bytes / total)
            # What is left to the cache and the values of a batch is what it does not give to weights.
            cache = batch * (case.prompt + case.new) * case.layers * case.hidden * 4
            memory = {0: max(0, case.device_bytes - cache - 2_000_000_000), "cpu": case.host_bytes}
            options |= {"device_map": "auto", "max_memory": memory, "offload_folder": offloaded_to}
        model = library.AutoModelForCausalLM.from_pretrained(str(path), **options).eval()
        if case.device == "cpu":
            hooks.cpu_offload(model, execution_device=torch.device("cpu"))
        model.generation_config.eos_token_id = None
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=case.new, do_sample=False, pad_token_id=1
            )
        return batch * case.new / (time.perf_counter() - began)
