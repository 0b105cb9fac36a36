"""`offload`: from a checkpoint that is larger than the device, and prompts, to completions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from shardwright.ir.types import StoredFormat
    from shardwright.serving.generation.engine import Completion
    from shardwright.serving.offloading.request import OffloadRequest, ScheduleName


def offload(
    checkpoint: str | Path,
    prompts: Sequence[str | Sequence[int]],
    *,
    policy: str | None = None,
    machine: str | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    logprobs: bool = False,
    stop_tokens: Sequence[int] | None = None,
    dtype: str | None = None,
    weights: StoredFormat | None = None,
    cache_format: StoredFormat | None = None,
    compress: Literal["4bit"] | None = None,
    schedule: ScheduleName = "zigzag",
    sparse_attention: float = 1.0,
    device_memory: int | None = None,
    host_memory: int | None = None,
    disk_memory: int | None = None,
    spill_dir: str | None = None,
    device: str | None = None,
    attention: Literal["device", "host"] | None = None,
) -> list[Completion]:
    """The completions of prompts, texts or lists of token ids, in their order, with weights, cache and hidden states on
    device, host and disk.

    `policy` is eight numbers in the paper's order, "4,4,0,100,0,100,0,100", or a file, a program that is run as it is
    written among them; without one the best for `machine` and the memory is planned. Without `machine` either this one
    is measured once, which takes some seconds, and kept; a T4's rates stand for it where that fails. `device_memory`,
    `host_memory` and `disk_memory` are caps in bytes. The other options are as of the command. Raises a
    `DiagnosticError` where the checkpoint, a prompt or an option is at fault, or memory does not suffice.
    """
    from shardwright.backends.torch.resident import give_back_what_is_freed
    from shardwright.cost.offloading.policy import AttentionPlace
    from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
    from shardwright.ir.settings import require_word
    from shardwright.ir.types import DType, StoredFormat, Tier
    from shardwright.models.importing import DTYPES
    from shardwright.serving.generation.inputs import generation_inputs
    from shardwright.serving.generation.settings import GenerationSettings
    from shardwright.serving.offloading.devices import check_device
    from shardwright.serving.offloading.request import ScheduleName
    from shardwright.serving.offloading.run import OffloadedModel
    from shardwright.serving.offloading.run_options import RunOptions

    require_word("dtype", dtype, DTYPES)
    require_word("weights", weights, get_args(StoredFormat))
    require_word("cache_format", cache_format, get_args(StoredFormat))
    require_word("compress", compress, ("4bit",))
    require_word("schedule", schedule, get_args(ScheduleName))
    require_word("attention", attention, get_args(AttentionPlace))
    if not 0 < sparse_attention <= 1:
        raise fault("bad-setting", f"sparse_attention is {sparse_attention}, not above 0 and at most 1", NOWHERE)
    if device is not None:
        check_device(device)
    inputs = generation_inputs(checkpoint, prompts, stop_tokens or (), own_stops=stop_tokens is None)
    made, stops = inputs.prompts, inputs.stop_tokens
    settings = GenerationSettings(max_new_tokens, temperature, top_k, top_p, seed, stop_tokens=stops, logprobs=logprobs)
    options = RunOptions(
        checkpoint, max_new_tokens, policy, machine, schedule,
        None if dtype is None else DType(dtype),
        {Tier.DEVICE: device_memory, Tier.HOST: host_memory, Tier.DISK: disk_memory},
        spill_dir, device, sparse_attention,
        compress=compress is not None,
        formats=(weights, cache_format),
        attention=attention,
    )  # fmt: skip
    for room in options.rooms(inputs.model.longest):
        for prompt in made:
            room.check(prompt, max_new_tokens)
    give_back_what_is_freed()

    def run(request: OffloadRequest) -> list[Completion]:
        with OffloadedModel(checkpoint, request, made, settings) as offloaded:
            return sorted(offloaded.completions(), key=lambda completion: completion.prompt.index)

    with located(Source(str(checkpoint), "")):
        options = options.on_this_machine(lambda text: None)
        return options.with_room(made, options.request(made), run, lambda line: None)
