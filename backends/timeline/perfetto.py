"""A timeline as a trace file for Perfetto (ui.perfetto.dev): Chrome's JSON of trace events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from shardwright.backends.timeline.record import Course, Timeline


def to_trace(timeline: Timeline) -> str:
    """The text of the trace file: a process for each course, a thread for each resource and one for what bounds the
    steps, a counter for the memory of each tier. Times are in microseconds."""
    events = [
        event
        for process, (name, course) in enumerate(timeline.named_courses, start=1)
        for event in _events(process, name, course)
    ]
    made = {"displayTimeUnit": "ms", "otherData": {"title": timeline.title}, "traceEvents": events}
    return json.dumps(made, separators=(",", ":"), allow_nan=False) + "\n"


def _events(process: int, name: str, course: Course) -> Iterator[dict[str, Any]]:
    yield _named("process_name", process, 0, f"{name} ({course.told})" if course.told else name)
    threads = {resource: number for number, resource in enumerate(course.resources, start=1)}
    for resource, thread in threads.items():
        yield _named("thread_name", process, thread, resource)
    if course.steps:
        yield _named("thread_name", process, 0, "bound by")
    for number, step in enumerate(course.steps):
        args = {"step": number}
        yield _slice(process, 0, step.resource or "nothing", "bound", step.start, step.end, args)
    for entry in course.entries:
        args = {"event": entry.number, "bytes": entry.bytes, "after": list(entry.after)}
        yield _slice(process, threads[entry.resource], entry.name, entry.resource, entry.start, entry.end, args)
    for tier, points in course.memory.items():
        for second, nbytes in points:
            yield {"ph": "C", "pid": process, "name": f"{tier} memory", "ts": 1e6 * second, "args": {"bytes": nbytes}}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def _slice(
    process: int, thread: int, name: str, kind: str, start: float, end: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {"ph": "X", "pid": process, "tid": thread, "name": name, "cat": kind,
            "ts": 1e6 * start, "dur": 1e6 * (end - start), "args": args}  # fmt: skip
