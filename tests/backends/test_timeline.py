"""Timelines: memory over time, the file, the trace, the picture, and the recorder, on schedules by hand."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from shardwright.backends.timeline import (
    Course,
    RecordedEvent,
    Recorder,
    Timeline,
    course_of,
    read_timeline,
    write_timeline,
)
from shardwright.backends.timeline.durations import by_measurement, by_rates, token_of
from shardwright.backends.timeline.gantt import draw
from shardwright.backends.timeline.perfetto import to_trace
from shardwright.backends.torch.event_threads import TimedEvent
from shardwright.cost.offloading.simulation import EventSpan, simulate
from shardwright.cost.programs.unrolling import Action, Event, Resource
from shardwright.ir.diagnostics import DiagnosticError, Source

# Two layers, a batch, two tokens: 6 bytes of weights each, 4 from host and 2 from disk; a prompt of 3 positions, of
# each of which 2 bytes are cached on the host. Each line is a resource, an action, a token, a layer, what is waited
# for, and bytes.
SCHEDULE = """
disk read   read weights  0 0 - 2
to device   copy weights  0 0 0 6
disk read   read weights  0 1 - 2
to device   copy weights  0 1 2 6
device      compute       0 0 1 0
from device store cache   0 0 4 6
disk read   read weights  0 0 0,1 2
to device   copy weights  0 0 1,4,6 6
to device   copy cache    1 0 5 8
device      compute       0 1 3,4 0
from device store cache   0 1 9 6
disk read   read weights  0 1 2,3 2
to device   copy weights  0 1 3,9,11 6
to device   copy cache    1 1 10 8
device      compute       1 0 4,5,7,8,9 0
from device store cache   1 0 5,8,14 2
device      compute       1 1 9,10,12,13,14 0
from device store cache   1 1 10,13,16 2
"""
RATES = {"read weights": 2.0, "copy weights": 6.0, "copy cache": 8.0, "store cache": 2.0}
MEMORY = {"disk": ((0.0, 12.0),), "host": ((0.0, 2.0), (7.0, 14.0)), "device": ((1.0, 6.0), (8.0, 20.0), (12.0, 0.0))}


def seconds(event: Event) -> float:
    if event.action is Action.COMPUTE:
        return 1.0 if token_of(event) else 2.0
    return event.nbytes / RATES[event.name]


def event_of(number: int, line: str) -> Event:
    name, (token, layer, after, nbytes) = line[12:25].strip(), line[25:].split()
    trips = (("token", int(token)), ("N", int(layer)), *((("M", 0),) if "weights" not in name else ()))
    waited = tuple(map(int, after.split(","))) if after != "-" else ()
    return Event(number, Resource(line[:12].strip()), Action(name.split()[0]), name, (), trips, waited, int(nbytes))


def small() -> tuple[list[Event], list[EventSpan]]:
    events = [event_of(number, line) for number, line in enumerate(SCHEDULE.strip().splitlines())]
    return events, simulate(events, seconds)


def course() -> Course:
    return course_of(*small(), MEMORY)


# ---------------------------------------------------------------- when, and in what memory


def test_the_events_of_a_small_schedule_happen_when_they_should() -> None:
    """Reads take 1 s, copies of weights 1 s, computations 2 s and then 1 s, stores 3 s and then 1 s."""
    made = {entry.name: (entry.start, entry.end) for entry in course().entries if not entry.name.startswith("read")}
    assert made["compute compute token=0 N=0 M=0"] == (2, 4)  # after a read and a copy
    assert made["compute compute token=0 N=1 M=0"] == (4, 6)  # its weights came while the first computed
    assert made["store store cache token=0 N=0 M=0"] == (4, 7)
    assert made["store store cache token=0 N=1 M=0"] == (7, 10)
    assert made["copy copy cache token=1 N=0 M=0"] == (7, 8)  # once it is stored
    assert made["compute compute token=1 N=0 M=0"] == (8, 9)
    assert made["compute compute token=1 N=1 M=0"] == (11, 12)  # a store, a copy
    assert course().seconds == 13


def test_each_step_says_what_bounds_it() -> None:
    steps = course().steps
    assert [step.end for step in steps] == [4, 6, 9, 12]
    assert [step.resource for step in steps] == ["device", "from device", "from device", "from device"]
    assert course().busy("device") == 6
    assert course().resources == ("disk read", "to device", "device", "from device")


# ---------------------------------------------------------------- durations


def test_durations_of_a_measurement_are_means_by_resource() -> None:
    events, spans = small()
    means = by_measurement(events, spans)
    for event in events:
        if event.resource in (Resource.DEVICE, Resource.DISK_READ, Resource.FROM_DEVICE):
            assert means(event) == seconds(event)
    copies = [event for event in events if event.resource is Resource.TO_DEVICE]
    assert sum(map(means, copies)) == pytest.approx(sum(map(seconds, copies)))
    rates = by_rates({Resource.DISK_READ: 2.0}, lambda event: 5.0)
    assert [rates(event) for event in events[:3]] == [1.0, 0.0, 1.0]
    assert {rates(event) for event in events if event.action is Action.COMPUTE} == {5.0}


def test_the_recorder_keeps_the_first_block_in_the_order_of_its_schedule() -> None:
    events, spans = small()
    used = {"host": 0.0}
    recorder = Recorder(lambda: used)
    timed = [TimedEvent(event, *span) for event, span in zip(events, spans, strict=True)]
    for each in sorted(timed, key=lambda each: each.end):
        used["host"] = each.event.nbytes
        recorder(each)
    recorder(TimedEvent(events[0], 0.0, 99.0))  # the next block begins
    recorder(TimedEvent(events[1], 99.0, 99.5))
    timeline = recorder.recording.timeline("a run", {"host": 100})
    assert timeline.measured is not None
    assert timeline.predicted is not None
    assert timeline.measured.entries == course().entries
    assert [entry.name for entry in timeline.predicted.entries] == [entry.name for entry in course().entries]
    assert timeline.measured.memory["host"][0] == (1.0, 2)
    assert timeline.capacity == {"host": 100}


def test_a_run_that_was_cut_short_is_drawn_as_far_as_it_came() -> None:
    events, spans = small()
    recorder = Recorder()
    for event, span in list(zip(events, spans, strict=True))[3:8]:
        recorder(TimedEvent(event, *span))
    measured = recorder.recording.timeline("cut").measured
    assert measured is not None
    assert [entry.number for entry in measured.entries] == [0, 1, 2, 3, 4]
    assert all(before < entry.number for entry in measured.entries for before in entry.after)
    assert Recorder().recording.timeline("nothing").courses == ()


# ---------------------------------------------------------------- the file


def test_a_timeline_is_read_as_it_was_written() -> None:
    timeline = Timeline("small", course(), replace(course(), memory={}), {"device": 20.0})
    assert read_timeline(Source("t.json", write_timeline(timeline))) == timeline


EVENT = {"resource": "device", "name": "compute", "start": 0, "end": 1}


def file(**changes: object) -> str:
    return json.dumps({"format": "shardwright-timeline", "predicted": {"events": [EVENT]}} | changes)


def events(*made: object) -> str:
    return file(predicted={"events": list(made)})


def memory(points: object) -> str:
    return file(predicted={"events": [EVENT], "memory_bytes": {"host": points}})


def test_what_may_be_left_out() -> None:
    assert read_timeline(Source("t.json", file())) == Timeline(
        "", Course((RecordedEvent(0, "device", "compute", 0, 1),))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: expecting property name enclosed in double quotes"),
        ("[" * 100_000, "not JSON that can be read: it is nested too deeply"),
        ("[]", 'this is not a timeline: it lacks "format": "shardwright-timeline"'),
        ('{"policy": {}}', 'this is not a timeline: it lacks "format": "shardwright-timeline"'),
        (file(predicted=None), "there is neither a predicted nor a measured course"),
        (file(predicted=[1]), "an object was expected where there is [1]"),
        (file(measured={"events": []}), "the measured course has no events"),
        (file(capacity_bytes={"host": "1GB"}), "the capacity of host is not a number from 0 up"),
        (events(3), "an object was expected where there is 3"),
        (events(EVENT, {"resource": "device", "start": 0}), "predicted event 1 lacks name, end"),
        (events(EVENT | {"end": -1}), "the end of predicted event 0 is not a number from 0 up"),
        (events(EVENT | {"start": float("nan")}), "the start of predicted event 0 is not a number from 0 up"),
        (events(EVENT | {"start": 2}), "predicted event 0 ends at 1 s, before it starts at 2 s"),
        (events(EVENT | {"after": [0]}), "predicted event 0 has an after that is not a list of events before it"),
        (events(EVENT | {"step": -1}), "predicted event 0 has the step -1, which is not a whole number below 1"),
        (memory([[0, 1], 5]), "the predicted memory of host is not a list of [second, bytes]"),
        (memory([[1, 5], [0, 5]]), "the predicted memory of host is not in the order of time"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read_timeline(Source("t.json", text))
    place, _, said = caught.value.render().partition(": error: ")
    assert place == ("t.json:1:2" if text == "{" else "t.json")
    assert said.startswith(message)


# ---------------------------------------------------------------- the trace


def test_a_trace_has_a_process_for_each_course_and_a_thread_for_each_resource() -> None:
    trace = json.loads(to_trace(Timeline("small", course(), course())))
    found = trace["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert [e["args"]["name"] for e in found if e["name"] == "process_name"] == ["predicted", "measured"]
    assert {names[key] for key in names if key[0] == 1} == {"bound by", *course().resources}
    first = next(e for e in found if e["name"] == "compute compute token=0 N=0 M=0")
    assert (first["ph"], first["ts"], first["dur"]) == ("X", 2e6, 2e6)
    assert names[1, first["tid"]] == "device"
    assert next(e["name"] for e in found if e.get("cat") == "bound" and e["pid"] == 2) == "device"
    assert {e["name"] for e in found if e["ph"] == "C"} == {"device memory", "host memory", "disk memory"}


# ---------------------------------------------------------------- the picture

SVG = "{http://www.w3.org/2000/svg}"


def words(svg: bytes) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_picture_says_what_was_drawn_and_what_bounds_it() -> None:
    slow = course()
    slow = replace(slow, entries=tuple(replace(e, start=2 * e.start, end=2 * e.end) for e in slow.entries))
    found = words(draw(Timeline("opt on a small machine", course(), slow, {"device": 30.0}), "svg"))
    assert "opt on a small machine" in found
    assert "predicted: 13 s; bound by from device 54 %, device 23 %, to device 15 %, disk read 8 %" in found
    assert "measured: 26 s; bound by from device 54 %, device 23 %, to device 15 %, disk read 8 %" in found
    assert found.count("step bound by") == 2
    assert "device  46 %" in found
    assert "from device  62 %" in found
    assert {"device, B", "host, B", "disk, B", "capacity ", "memory predicted", "memory measured"} <= set(found)
    assert {"weights", "KV cache", "computation", "bound by device", "bound by from device"} <= set(found)
    assert "t0 N0 M0" in found  # a label that has room for the numbers alone


def test_the_same_timeline_is_the_same_picture_in_every_format() -> None:
    timeline = Timeline("small", course())
    assert draw(timeline, "svg") == draw(timeline, "svg")
    assert draw(timeline, "png").startswith(b"\x89PNG")
    assert draw(timeline, "pdf").startswith(b"%PDF")


def test_a_window_has_what_happens_in_it() -> None:
    found = words(draw(Timeline("small", course()), "svg", (0.0, 3.5)))
    assert "compute compute token=0 N=0 M=0" in found
    assert not any("token 1" in word or "t1" in word for word in found)
    with pytest.raises(DiagnosticError, match="nothing happens from 20 s on: the timeline ends at 13 s"):
        draw(Timeline("small", course()), "svg", (20.0, 30.0))


def test_many_short_events_are_drawn_together() -> None:
    entries = tuple(RecordedEvent(n, "device", "compute", 0.001 * n, 0.001 * (n + 1), step=n) for n in range(20_000))
    assert len(draw(Timeline("many", Course(entries)), "svg")) < 100_000


def test_a_measurement_alone_and_a_course_of_no_length_are_drawn() -> None:
    assert any(word.startswith("measured: 13 s") for word in words(draw(Timeline("m", None, course()), "svg")))
    at_once = Course((RecordedEvent(0, "device", "compute", 0.0, 0.0, step=0),))
    assert any(word.startswith("predicted: 0 µs") for word in words(draw(Timeline("m", at_once), "svg")))
