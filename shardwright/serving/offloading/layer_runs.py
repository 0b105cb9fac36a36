"""Small models run by the offloading runtime to see what a layer takes beside the operations in it."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from shardwright.cost.hardware.chips import Machine
from shardwright.ir.types import DType

if TYPE_CHECKING:
    import torch


def _llama(hidden: int, feedforward: int, heads: int, layers: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": hidden,
        "intermediate_size": feedforward, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }  # fmt: skip


@dataclass(frozen=True)
class _Block:
    """The policy of a run, the tokens of each prompt, and how many it makes."""

    policy: str
    prompt: int
    new: int


_TINY, _TINY_BLOCK = _llama(64, 128, 4, 8), _Block("2,2,100,0,0,100,100,0", 3, 9)
"""A model whose layers take as long as it takes to start what is in them."""

_SMALL, _SMALL_BLOCK = _llama(768, 2048, 12, 3), _Block("24,1,100,0,100,0,100,0", 40, 6)
"""One whose layers compute: about half a second of prefill."""


def layer_overhead_s(on: torch.device, dtype: DType) -> float:
    """Seconds that a layer of one batch takes in decode where there is next to nothing to compute."""
    return _layers(on, dtype, _TINY, _TINY_BLOCK)[1]


def layer_factors(on: torch.device, dtype: DType, machine: Machine) -> tuple[float, float]:
    """The seconds of a layer in prefill and in decode, times what its operations take alone on a machine measured so
    far: results lie in new memory, and operands in no cache of the processor."""
    from shardwright.cost.hardware.runtimes import load_runtime
    from shardwright.cost.offloading.policy import parse_policy
    from shardwright.cost.offloading.times import computation
    from shardwright.ir.mesh import ONE_CHIP
    from shardwright.models.importing import import_model
    from shardwright.prediction.offloading import setting_of

    model = import_model(_SMALL, "ws1d", ONE_CHIP, 1, 1).model
    policy, prompt, new = parse_policy(_SMALL_BLOCK.policy), _SMALL_BLOCK.prompt, _SMALL_BLOCK.new
    setting = setting_of(model, machine, load_runtime("ours"), prompt, new, dtype=dtype)
    sizes, runtime = setting.sizes, replace(setting.runtime, step_overhead_s=0.0)
    prefill, decode = (
        sum(
            computation(sizes, policy, runtime, setting.rates, part, tokens, context).device
            for part in (sizes.attention, sizes.feedforward)
        )
        for tokens, context in ((prompt, prompt), (1, prompt + new // 2))
    )
    prefill_s, decode_s = _layers(on, dtype, _SMALL, _SMALL_BLOCK)
    overhead_s = 2 * setting.runtime.step_overhead_s  # of both parts
    return (prefill_s - overhead_s) / prefill, (decode_s - overhead_s) / decode


def _layers(on: torch.device, dtype: DType, config: dict[str, Any], block: _Block) -> tuple[float, float]:
    """Seconds from one layer of a batch to the next, in prefill and in decode: with what the runtime does between."""
    from shardwright.backends.torch.event_threads import TimedEvent
    from shardwright.cost.offloading.policy import parse_policy
    from shardwright.cost.programs.unrolling import Action, Resource
    from shardwright.models.dummy_checkpoint import write_dummy
    from shardwright.serving.generation.prompts import make_prompts
    from shardwright.serving.generation.settings import GenerationSettings
    from shardwright.serving.offloading.request import OffloadRequest
    from shardwright.serving.offloading.run import OffloadedModel

    begins: defaultdict[int, dict[tuple[tuple[str, int], ...], float]] = defaultdict(dict)

    def observe(timed: TimedEvent) -> None:
        event, trips = timed.event, dict(timed.event.trips)
        computes = event.action is Action.COMPUTE and event.resource is Resource.DEVICE
        if computes and "N" in trips and ("M" in trips or not trips.get("token")):
            begins[trips.get("token", 0)].setdefault(event.trips, timed.begin)

    policy = parse_policy(block.policy)
    with tempfile.TemporaryDirectory() as folder:
        write_dummy(Path(folder), config, dtype)
        request = OffloadRequest(policy, dtype=dtype, device=str(on))
        prompts = make_prompts([[1] * block.prompt] * policy.block, config["vocab_size"], None)
        settings = GenerationSettings(max_new_tokens=block.new)
        with OffloadedModel(folder, request, prompts, settings, observe=observe) as model:
            list(model.completions())
    layers = {token: (max(of.values()) - min(of.values())) / (len(of) - 1) for token, of in begins.items()}
    return layers.pop(0), median(layers.values())
