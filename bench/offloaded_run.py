"""One run of the offloading runtime with its events, beside the cost model: seconds, and what each kind took."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.backends.timeline.durations import token_of
from shardwright.backends.torch.event_threads import TimedEvent
from shardwright.cost.hardware.chips import Machine, load_machine
from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.offloading.policy import Policy
from shardwright.cost.offloading.pricing import OffloadSetting
from shardwright.cost.offloading.simulation import EventSpan, simulate
from shardwright.cost.programs.unrolling import Event, Resource
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.prediction.offload_timeline import event_seconds
from shardwright.prediction.offloading import setting_of
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.measuring import measure
from shardwright.serving.offloading.report import Report
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel

ROWS = {
    "compute": (Resource.DEVICE,),
    "disk (R)": (Resource.DISK_READ,),
    "to device": (Resource.TO_DEVICE,),
    "from device": (Resource.FROM_DEVICE,),
    "disk (W)": (Resource.DISK_WRITE,),
}
"""What is busy, with what of the text's movements it does."""


@dataclass(frozen=True)
class Run:
    """`timed` are the events of all blocks, one block after the other; `predicted` are the cost model's seconds,
    `processor_s` those of all threads while tokens were made."""

    tokens: list[tuple[int, ...]]
    report: Report
    timed: list[TimedEvent]
    predicted: float
    processor_s: float

    @property
    def rate(self) -> float:
        return self.report.new_tokens / self.report.seconds

    @property
    def error(self) -> float:
        """How far off the predicted seconds are, as a part of those that it took."""
        return self.predicted / self.report.seconds - 1

    def against_prediction(self) -> str:
        return f"{self.report.seconds:.2f} s, predicted {self.predicted:.2f} s, {100 * self.error:+.1f} %"

    def reached(self, resource: Resource) -> float:
        """Bytes a second that the resource moved, over the whole run."""
        return self.report.moved_bytes.get(str(resource), 0) / self.report.seconds

    def breakdown(self) -> list[str]:
        """Busy seconds by resource, in prefill and in decode: what runs at the same time counts in each."""
        made = [f"{'':10}" + "".join(f"{name:>12}" for name in ROWS)]
        for phase, chosen in (("prefill", True), ("decode", False)):
            taken: defaultdict[Resource, float] = defaultdict(float)
            for timed in self.timed:
                if (token_of(timed.event) == 0) is chosen:
                    taken[timed.event.resource] += timed.end - timed.begin
            made.append(f"{phase:10}" + "".join(f"{sum(taken[k] for k in kinds):12.2f}" for kinds in ROWS.values()))
        return made


def machine_here(file: str | None, device: str, dtype: DType, folder: Path) -> Machine:
    """The machine of this file, or the one at hand, measured now."""
    if file is not None:
        return load_machine(file)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as made:
        made.write(measure(folder, device, dtype).text)
        made.flush()
        return load_machine(made.name)


def offloaded(
    folder: Path, prompts: list[list[int]], new: int, request: OffloadRequest, machine: Machine | None
) -> Run:
    """The prompts, all of one length, continued; with `machine` predicted too."""
    model = import_model(read_config(folder).keys, "ws2d", Mesh(()), 1, 1).model
    blocks: list[list[TimedEvent]] = []
    lock = threading.Lock()

    def observe(timed: TimedEvent) -> None:
        with lock:
            seen[timed.event.number] += 1
            while len(blocks) < seen[timed.event.number]:
                blocks.append([])
            blocks[seen[timed.event.number] - 1].append(timed)

    seen: defaultdict[int, int] = defaultdict(int)
    made = make_prompts(prompts, model.vocab, None)
    with OffloadedModel(folder, request, made, GenerationSettings(max_new_tokens=new), observe=observe) as offloading:
        began = time.process_time()
        done = sorted(offloading.completions(), key=lambda completion: completion.prompt.index)
        processor_s = time.process_time() - began
    predicted = 0.0
    if machine is not None:
        dtype = request.dtype or DType.F16
        cached, runtime = request.page_cache is not False, load_runtime("ours")
        setting = setting_of(model, machine, runtime, len(prompts[0]), new, page_cache=cached, dtype=dtype)
        for block in blocks:
            events: list[Event] = [timed.event for timed in sorted(block, key=lambda timed: timed.event.number)]
            predicted += run_prediction(setting, request.policy, events) if events else 0.0
    timed = [each for block in blocks for each in block]
    return Run([completion.new_tokens for completion in done], offloading.report, timed, predicted, processor_s)


def run_prediction(setting: OffloadSetting, policy: Policy, events: Sequence[Event]) -> float:
    """Seconds of a run of these events; where copies take some of the device, that part of the time in
    which both are under way comes on top."""
    spans = simulate(events, event_seconds(setting, policy, events), {"disk read": "disk", "disk write": "disk"})
    end = max((span.end for span in spans), default=0.0)
    return end + setting.runtime.shares_device * _both(events, spans)


def _both(events: Sequence[Event], spans: Sequence[EventSpan]) -> float:
    """Seconds in which the device computes while something is copied."""
    changes = sorted(
        (at, change, event.resource is Resource.DEVICE)
        for event, span in zip(events, spans, strict=True)
        if span.end > span.start
        for at, change in ((span.start, 1), (span.end, -1))
    )
    total, last, computing, copying = 0.0, 0.0, 0, 0
    for at, change, is_computation in changes:
        total += at - last if computing and copying else 0.0
        last = at
        computing, copying = (computing + change, copying) if is_computation else (computing, copying + change)
    return total
