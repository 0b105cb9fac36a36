"""The processor time of what the explorer and the language server do after an edit, for the examples and whole models.

python bench/exploring.py

Each text is looked at after a change of one size, in a process that has looked at others before: faults and demanded
types, layouts with costs, and the picture; then, behind these, the layouts with their proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from shardwright.ir.diagnostics import Source
from shardwright.workbench import jobs
from shardwright.workbench.examine import ExamineSettings, examine

Made = TypeVar("Made")

CHIP = "tpu-v4"


def timed(job: Callable[..., Made], *args: object) -> tuple[Made, float]:
    began = time.process_time()
    return job(*args), time.process_time() - began


def looked_at(name: str, text: str) -> None:
    edited = Source(name, text.replace("B=512", "B=1024").replace("B=64", "B=128"))
    settings = ExamineSettings(chip=CHIP, own_chips=False, proof=False)
    faults, at_once = timed(jobs.faults, edited, settings)
    assert not faults
    found, layouts = timed(examine, edited, settings)
    assert found.explicit is not None
    _, picture = timed(jobs.picture, found, name, edited.text)
    proved, proof = timed(examine, edited, replace(settings, proof=True))
    other = "" if proved.text == found.text else "  other layouts"
    print(f"{name:<42} {1e3 * at_once:>9.0f} {1e3 * layouts:>9.0f} {1e3 * picture:>9.0f} {1e3 * proof:>9.0f}{other}")


def main() -> None:
    first = Source("first", jobs.example(jobs.example_names()[0]))
    jobs.picture(examine(first, ExamineSettings(chip=CHIP)), first.name, first.text)
    print(f"{'milliseconds of processor time':<42} {'faults':>9} {'layouts':>9} {'picture':>9} {'proof':>9}")
    for name in jobs.example_names():
        looked_at(name, jobs.example(name))
    for model, layout in (("llama-3-8b", "ws2d"), ("llama-3-8b", "open"), ("llama-3-70b", "ws2d")):
        text = jobs.begun(jobs.StartingModel(model, layout, "x=4 y=4", 64, 128, 2048))
        looked_at(f"{model}, {layout}", text)


if __name__ == "__main__":
    main()
