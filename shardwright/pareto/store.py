"""Points that were priced before, in the user's cache folder: a line of JSON each, appended as they come."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, cast

from shardwright.ir.whole_files import cache_folder, code_digest
from shardwright.pareto.configurations import Sweep
from shardwright.pareto.pricing import Point

_IDENTITY = ("phase", "chips", "mesh", "layout", "attention", "weights", "batch", "looped", "prefill_layout")
_TYPES = {"str": str, "int": int, "bool": bool, "float": float}


@dataclass
class PointStore:
    """The points of sweeps with the same model, chip, constants, lengths and code, in one file.

    A line holds a point, and is written in one step, so that two processes can append to one file. What an interruption
    left of a line is passed over when the file is read, as is every line that is not as it was written.
    """

    file: Path
    _points: dict[tuple[Any, ...], Point] = field(default_factory=dict[tuple[Any, ...], Point], init=False)

    def __post_init__(self) -> None:
        with suppress(OSError, UnicodeDecodeError):
            for line in self.file.read_text(encoding="utf-8").splitlines():
                read = _read(line)
                if read is not None:
                    self._points[identity_of(read)] = read

    def get(self, identity: Point) -> Point | None:
        """The point that has this identity."""
        return self._points.get(identity_of(identity))

    def add(self, points: Iterable[Point]) -> None:
        """Keeps points. A folder that cannot be written costs time alone, and is no fault."""
        lines = [json.dumps(_finite(point), allow_nan=False) for point in points]
        text = "".join(f"{line}\n" for line in lines)
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                end = os.lseek(handle, 0, os.SEEK_END)
                torn = end > 0 and os.pread(handle, 1, end - 1) != b"\n"
                os.write(handle, (("\n" if torn else "") + text).encode())
            finally:
                os.close(handle)


def store_of(sweep: Sweep) -> PointStore:
    """The store of everything that does not change within a sweep."""
    what = [
        repr(sweep.model), repr(sweep.chip), repr(sweep.constants), str(sweep.prompt), str(sweep.generated),
        sweep.experts, str(sweep.expert_capacity),
        code_digest("ir", "cost", "passes", "models", "prediction", "pareto"),
    ]  # fmt: skip
    return PointStore(cache_folder("pareto") / f"{digest(chr(10).join(what))}.jsonl")


def identity_of(point: Point) -> tuple[Any, ...]:
    """The text that names a point among those of a store."""
    return tuple(getattr(point, name) for name in _IDENTITY)


@cache
def digest(text: str) -> str:
    """The digest of a text, the same everywhere."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _finite(point: Point) -> dict[str, Any]:
    """Its fields; what is infinite is null."""
    values: dict[str, Any] = asdict(point)
    return {name: None if isinstance(value, float) and math.isinf(value) else value for name, value in values.items()}


def _read(line: str) -> Point | None:
    """A line as it was written, else None."""
    try:
        values: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(values, Mapping):
        return None
    found = dict(cast("Mapping[str, Any]", values))
    made: dict[str, Any] = {}
    for item in fields(Point):
        value = found.get(item.name)
        if value is None and item.type == "float" and item.name in found:
            value = math.inf
        if isinstance(value, (int, float)) and not value >= 0:  # less than nothing, or no number
            return None
        if type(value) is not _TYPES[str(item.type)]:
            return None
        made[item.name] = value
    return Point(**made)
