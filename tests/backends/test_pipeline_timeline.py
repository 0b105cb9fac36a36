"""The timeline of several processes, on a pipeline by hand: one clock, messages, and what each moment waits for."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence

import pytest

from shardwright.backends.timeline import Course, Recording, Timeline, read_timeline, write_timeline
from shardwright.backends.timeline.gantt import draw
from shardwright.backends.timeline.perfetto import to_trace
from shardwright.backends.timeline.pipeline import pipeline_timeline
from shardwright.backends.torch.pipeline import PipelineEvents, Place, zigzag_order
from shardwright.backends.torch.schedule import Event, Kind, Timed, Traffic, build
from shardwright.ir.diagnostics import DiagnosticError, Source

Spans = dict[str, tuple[float, float]]


def recording(index: int, origin: float, tokens: int, spans: Callable[[Event], tuple[float, float]]) -> Recording:
    """Of one process of two, each with a stage and its tables, for one batch whose hidden states are 8 bytes."""
    place = Place(index, 2)
    order = zigzag_order([0], tokens, place)
    turns = [turn for passes in order.passes for turn in passes]
    nothing = dict.fromkeys(turns, (0, 0))
    exchange = PipelineEvents(place, order.groups, dict.fromkeys(turns, 8), 1)
    events = build(Traffic([(0, 0)] * 3, [False] * 3, nothing, nothing, nothing, exchange=exchange), order.passes)
    timed = tuple(Timed(event, *spans(event)) for event in events.events)
    return Recording(timed, {"host": ((0.0, 10.0), (1.0, 20.0))}, origin)


def by_name(spans: Spans) -> Callable[[Event], tuple[float, float]]:
    return lambda event: spans.get(f"{event.kind} {event.stage}", (0.0, 0.0))


def one_token() -> list[Recording]:
    """Process 0 computes for 2 s and sends for 1 s; process 1, whose clock began a second later, waits, computes for 3
    s, and sends the token."""
    first: Spans = {"compute 0": (0, 1), "compute 1": (1, 2), "compute 2": (2, 2), "send hidden 2": (2, 3)}
    first["receive tokens 0"] = (0, 6)
    second: Spans = {"receive hidden 0": (0, 2), "compute 0": (2, 2), "compute 1": (2, 4), "compute 2": (4, 5)}
    second["send tokens 2"] = (5, 5)
    return [recording(0, 100.0, 1, by_name(first)), recording(1, 101.0, 1, by_name(second))]


def spans_of(course: Course | None) -> Spans:
    assert course is not None
    return {" ".join(entry.name.split()[:4]): (entry.start, entry.end) for entry in course.entries}


MEASURED: Sequence[Spans] = (
    {
        "compute stage 0 batch": (0, 1),
        "compute stage 1 batch": (1, 2),
        "compute stage 2 batch": (2, 2),
        "send hidden stage 2": (2, 3),
        "receive tokens stage 0": (6, 6),
    },
    {
        "receive hidden stage 0": (2, 3),
        "compute stage 0 batch": (3, 3),
        "compute stage 1 batch": (3, 5),
        "compute stage 2 batch": (5, 6),
        "send tokens stage 2": (6, 6),
    },
)


def test_messages_begin_when_both_sides_are_ready_on_one_clock() -> None:
    timeline = pipeline_timeline("two", one_token(), {"host": 30.0})
    for part, wanted in zip(timeline.processes, MEASURED, strict=True):
        assert spans_of(part.measured) == wanted
        assert spans_of(part.predicted) == wanted  # each duration is its own mean
        assert part.capacity == {"host": 30.0}
    measured = timeline.processes[1].measured
    assert measured is not None
    assert measured.memory == {"host": ((1.0, 10.0), (2.0, 20.0))}


def test_what_a_moment_waits_for_may_be_another_process() -> None:
    first, second = pipeline_timeline("two", one_token()).processes
    for _, course in first.courses:
        assert list(course.bounds) == [(0, 2, "device"), (2, 6, "process 1")]
    for _, course in second.courses:
        assert list(course.bounds) == [(0, 2, "process 0"), (2, 3, "receive"), (3, 6, "device")]


def test_the_prediction_has_all_processes_wait_for_each_other() -> None:
    """Two tokens: each layer twice as slow as the machine's model says, which has messages for nothing."""
    recordings = [recording(index, 0.0, 2, lambda event: (0.0, 9.0)) for index in range(2)]
    timeline = pipeline_timeline("two", recordings, None, [_model, _model])
    assert [course.seconds for _, course in timeline.named_courses] == [4 * 3, 9, 4 * 3, 9]
    first, last = (spans_of_tokens(part.predicted) for part in timeline.processes)
    assert first == {0: (0, 3), 1: (6, 9)}
    assert last == {0: (3, 6), 1: (9, 12)}


def _model(event: Event) -> float:
    return 1.0 if event.kind is Kind.COMPUTE else 0.0


def spans_of_tokens(course: Course | None) -> dict[int, tuple[float, float]]:
    """From the first to the last computation of each token."""
    assert course is not None
    found: dict[int, tuple[float, float]] = {}
    for entry in course.entries:
        if entry.resource == "device":
            token = int(entry.name.split()[-1])
            begin, end = found.get(token, (entry.start, entry.end))
            found[token] = min(begin, entry.start), max(end, entry.end)
    return found


def test_what_only_one_side_recorded_is_drawn_without_the_other() -> None:
    """A run that was cut short."""
    first, second = one_token()
    timeline = pipeline_timeline("cut", [Recording(first.timed[:2]), second])
    assert timeline.processes[0].measured is not None
    assert len(timeline.processes[0].measured.entries) == 2
    assert len(pipeline_timeline("none", [Recording(), second]).named_courses) == 2


# ---------------------------------------------------------------- files and pictures


def test_recordings_and_timelines_are_read_as_they_were_written() -> None:
    for each in one_token():
        read = Recording.of_json(json.loads(json.dumps(each.as_json())))
        assert (read.spans, read.memory, read.origin) == (each.spans, each.memory, each.origin)
        assert [str(event) for event in read.events] == [str(event) for event in each.events]
    timeline = pipeline_timeline("two", one_token(), {"host": 30.0})
    assert read_timeline(Source("t.json", write_timeline(timeline))) == timeline


@pytest.mark.parametrize(
    ("processes", "message"),
    [
        ("[]", "its processes are not a list of courses"),
        ("3", "its processes are not a list of courses"),
        ("[{}]", "there is neither a predicted nor a measured course of process 0"),
        ('["x"]', 'an object was expected where there is "x"'),
    ],
)
def test_what_is_wrong_with_processes_is_said(processes: str, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read_timeline(Source("t.json", f'{{"format": "shardwright-timeline", "processes": {processes}}}'))
    assert caught.value.render().splitlines()[0].startswith(f"t.json: error: {message}")


@pytest.mark.parametrize("bounds", [3, [3], [[0, 1]], [[0, 1, 2]], [[0, -1, "device"]]])
def test_what_is_wrong_with_bounds_is_said(bounds: object) -> None:
    table = json.loads(write_timeline(pipeline_timeline("two", one_token())))
    table["processes"][1]["measured"]["bounds"] = bounds
    with pytest.raises(DiagnosticError, match="bound"):
        read_timeline(Source("t.json", json.dumps(table)))


def timeline() -> Timeline:
    return pipeline_timeline("two processes", one_token(), {"host": 30.0})


def test_the_picture_has_the_courses_of_each_process() -> None:
    svg = ET.fromstring(draw(timeline(), "svg"))
    words = [text.text or "" for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    titles = [word for word in words if word.startswith("process ") and "bound by" in word]
    assert titles == [
        "process 0, predicted: 6 s; bound by process 1 67 %, device 33 %",
        "process 0, measured: 6 s; bound by process 1 67 %, device 33 %",
        "process 1, predicted: 6 s; bound by device 50 %, process 0 33 %, receive 17 %",
        "process 1, measured: 6 s; bound by device 50 %, process 0 33 %, receive 17 %",
    ]
    assert words.count("host, B") == 2
    assert {"hidden states", "computation", "bound by device", "bound by process 0"} <= set(words)


def test_the_trace_has_a_process_for_each_course() -> None:
    found = json.loads(to_trace(timeline()))["traceEvents"]
    assert [event["args"]["name"] for event in found if event["name"] == "process_name"] == [
        "process 0, predicted", "process 0, measured", "process 1, predicted", "process 1, measured",
    ]  # fmt: skip
