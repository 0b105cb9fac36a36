"""Timelines of schedules: copies and computation per resource, predicted and measured, as files and as pictures."""

from __future__ import annotations

from shardwright.backends.timeline.record import (
    Course,
    RecordedEvent,
    Timeline,
    course_of,
    read_timeline,
    write_timeline,
)
from shardwright.backends.timeline.recorder import Recorder, Recording

__all__ = [
    "Course",
    "RecordedEvent",
    "Recorder",
    "Recording",
    "Timeline",
    "course_of",
    "read_timeline",
    "write_timeline",
]
