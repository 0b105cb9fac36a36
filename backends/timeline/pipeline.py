"""The timeline of a pipeline: what each process recorded, on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.backends.timeline.durations import Seconds
from shardwright.backends.timeline.record import Course, Timeline
from shardwright.backends.timeline.recorder import Recording


def pipeline_timeline(
    title: str,
    recordings: Sequence[Recording],
    capacity: Mapping[str, float] | None = None,
    seconds: Sequence[Seconds] | None = None,
) -> Timeline:
    """The timelines of several processes, each as that of one, from when the first of them began: the clocks are
    those of the hosts, and as far apart in the picture as in truth."""
    began = min((each.origin for each in recordings if each.timed), default=0.0)
    limits, parts = dict(capacity or {}), list[Timeline]()
    for process, each in enumerate(recordings):
        own = each.timeline(f"process {process}", limits, seconds[process] if seconds else None)
        predicted, measured = (_later(course, each.origin - began) for course in (own.predicted, own.measured))
        parts.append(Timeline(f"process {process}", predicted, measured, limits))
    return Timeline(title, None, None, limits, tuple(parts))


def _later(course: Course | None, seconds: float) -> Course | None:
    if course is None:
        return None
    entries = tuple(replace(e, start=e.start + seconds, end=e.end + seconds) for e in course.entries)
    memory = {tier: tuple((time + seconds, n) for time, n in points) for tier, points in course.memory.items()}
    return Course(entries, memory)
