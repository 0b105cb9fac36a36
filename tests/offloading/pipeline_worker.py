"""One of several processes that offload checkpoints as a pipeline.

`pipeline_worker.py CASES.json`: a list of {"folder", "prompts", "policy", "schedule", "settings", "quantized", "late"}.
The first process prints the new tokens of each case by prompt, and what each process measured of the last one. With
"late", hidden states are sent so many seconds later than they could be.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.backends.torch.links import PipelineLinks
from shardwright.backends.torch.world import World, joined
from shardwright.cost.offloading.group_quantization import INT4
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.types import DType
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel

SEND = PipelineLinks.send_hidden


def run(case: dict[str, Any], world: World | None) -> tuple[list[tuple[int, ...]], OffloadedModel]:
    """What one process gives."""
    policy = parse_policy(case["policy"])
    if case.get("quantized"):
        policy = replace(policy, quantized_weights=INT4, quantized_cache=INT4)
    settings = dict(case["settings"])
    settings["stop_tokens"] = frozenset(settings.get("stop_tokens", ()))
    request = OffloadRequest(policy, case["schedule"], DType.F32)
    prompts = make_prompts(case["prompts"], 96, None)
    with OffloadedModel(case["folder"], request, prompts, GenerationSettings(**settings), world=world) as model:
        made = sorted(model.completions(), key=lambda completion: completion.prompt.index)
    return [completion.new_tokens for completion in made], model


def slow_down(seconds: float) -> None:
    def late(self: PipelineLinks, values: Sequence[Any]) -> None:
        time.sleep(seconds)
        SEND(self, values)

    PipelineLinks.send_hidden = late


def main(cases: str) -> None:
    with joined() as world:
        found: list[Any] = []
        own: dict[str, Any] = {}
        for case in json.loads(Path(cases).read_text()):
            slow_down(case.get("late", 0.0))
            tokens, model = run(case, world)
            found.append(tokens)
            names = sorted({home.what(index) for home in model.weights.values() for index in home.indices})
            own = {"layers": list(model.layers), "weights": names, "peak": model.report.peak_bytes}
        world.share("measured", own)
        measured = [world.shared("measured", index) for index in range(world.count)]
        if world.writes:
            print(json.dumps({"tokens": found, "measured": measured}))


if __name__ == "__main__":
    main(*sys.argv[1:])
