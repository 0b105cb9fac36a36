"""One of several processes that offload checkpoints, as a pipeline or over a mesh.

`pipeline_worker.py CASES.json`: a list of {"folder", "prompts", "policy", "schedule", "settings", "quantized", "late",
"mesh", "layout", "caps", "program"}. The first process prints the new tokens of each case by prompt, their
log-probabilities, and what each process measured of each. With "late", hidden states are sent so many seconds later
than they could be.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.backends.torch.links import ProcessLinks
from shardwright.backends.torch.world import World, joined
from shardwright.cost.offloading.policy import parse_policy
from shardwright.ir.diagnostics import Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType, Tier
from shardwright.serving.generation.engine import Completion
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel

SEND = ProcessLinks.send_hidden


def run(case: dict[str, Any], world: World | None) -> tuple[list[tuple[int, ...]], OffloadedModel]:
    """What one process gives."""
    completions, model = completed(case, world)
    return [completion.new_tokens for completion in completions], model


def completed(case: dict[str, Any], world: World | None) -> tuple[list[Completion], OffloadedModel]:
    policy = parse_policy(case["policy"])
    if case.get("quantized"):
        policy = replace(policy, weight_format="int4", cache_format="int4")
    settings = dict(case["settings"])
    settings["stop_tokens"] = frozenset(settings.get("stop_tokens", ()))
    mesh = Mesh(tuple(case.get("mesh", {}).items()))
    caps = {Tier(tier): nbytes for tier, nbytes in case.get("caps", {}).items()}
    program = Source("text", case["program"]) if "program" in case else None
    request = OffloadRequest(
        policy, case["schedule"], DType.F32, caps, program=program, mesh=mesh, layout=case.get("layout", "ws2d")
    )
    prompts = make_prompts(case["prompts"], 96, None)
    with OffloadedModel(case["folder"], request, prompts, GenerationSettings(**settings), world=world) as model:
        made = sorted(model.completions(), key=lambda completion: completion.prompt.index)
    return made, model


def slow_down(seconds: float) -> None:
    def late(self: ProcessLinks, values: Sequence[Any]) -> None:
        time.sleep(seconds)
        SEND(self, values)

    ProcessLinks.send_hidden = late


def main(cases: str) -> None:
    with joined() as world:
        tokens: list[Any] = []
        scores: list[Any] = []
        measured: list[Any] = []
        for number, case in enumerate(json.loads(Path(cases).read_text())):
            slow_down(case.get("late", 0.0))
            made, model = completed(case, world)
            tokens.append([completion.new_tokens for completion in made])
            scores.append([[*(c.prompt_logprobs or ())[1:], *(c.logprobs or ())] for c in made])
            name = f"measured {number}"
            world.share(name, measurements(model))
            measured.append([world.shared(name, index) for index in range(world.count)])
        if world.writes:
            print(json.dumps({"tokens": tokens, "scores": scores, "each": measured, "measured": measured[-1]}))


def measurements(model: OffloadedModel) -> dict[str, Any]:
    names = sorted({home.what(index) for home in model.weights.values() for index in home.indices})
    report = model.report
    measured = {"peak": report.peak_bytes, "moved": report.moved_bytes, "read": report.read_bytes}
    return {"layers": list(model.layers), "weights": names, **measured}


if __name__ == "__main__":
    main(*sys.argv[1:])
