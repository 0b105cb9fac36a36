"""Which devices a collective joins: every form in which HLO text writes groups, as tuples of device numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shardwright.backends.hlo.module import HloError, Instruction

Groups = tuple[tuple[int, ...], ...]

_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,\s]*\},?\s*)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}")
_MESH_AXIS = re.compile(r"'?([^',=\s][^',=]*)'?=(\d+)")
_MESH_PART = re.compile(r"\s*'?([^',:]+)'?(?::\((\d+)\)(\d+))?\s*")
_ARRANGED = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PAIRS = re.compile(r'source_target_pairs="?\{((?:\{\d+,\s*\d+\},?\s*)*)\}')


def groups_of(instruction: Instruction, devices: int) -> Groups:
    """The groups of a collective; all devices are one where none is listed. Raises `HloError` where it has none, or
    its groups are none."""
    try:
        return _groups(instruction, devices)
    except (ValueError, ZeroDivisionError):
        raise HloError(f"{instruction.name} has groups that are no arrangement of devices") from None


def _groups(instruction: Instruction, devices: int) -> Groups:
    text = instruction.attributes
    if listed := _LISTED.search(text):
        rows = re.findall(r"\{([\d,\s]*)\}", listed[1])
        groups = tuple(tuple(_numbers(row)) for row in rows if row.strip())
        if not groups and devices < 2:
            raise HloError(f"{instruction.name} has no groups of known size")
        return groups or (tuple(range(devices)),)
    if iota := _IOTA.search(text):
        return _rows(_arranged(iota[2], iota[3]).reshape(_numbers(iota[1])))
    if named := _MESH.search(text):
        axes = {name: int(size) for name, size in _MESH_AXIS.findall(named[1])}
        parts = _mesh_parts(named[3])
        if lacking := next((name for name, *_ in parts if name not in axes), None):
            raise HloError(f"{instruction.name} goes along {lacking}, and its mesh has the axes {', '.join(axes)}")
        return _mesh_groups(axes, named[2], parts)
    raise HloError(f"{instruction.name} has no groups of known size")


def pairs_of(instruction: Instruction) -> tuple[tuple[int, int], ...]:
    """Source and target of each message of a permute. Raises `HloError` where it has none."""
    pairs = _PAIRS.search(instruction.attributes)
    if not pairs:
        raise HloError(f"{instruction.name} has no pairs of source and target")
    return tuple((int(a), int(b)) for a, b in re.findall(r"\{(\d+),\s*(\d+)\}", pairs[1]))


def connected(pairs: Sequence[tuple[int, int]], devices: int) -> Groups:
    """The devices that messages of a permute join, directly or over others."""
    root = list(range(devices))

    def find(device: int) -> int:
        while root[device] != device:
            device = root[device]
        return device

    for source, target in pairs:
        root[find(source)] = find(target)
    members: dict[int, list[int]] = {}
    for device in range(devices):
        members.setdefault(find(device), []).append(device)
    return tuple(map(tuple, members.values()))


def _mesh_parts(text: str) -> list[tuple[str, int, int | None]]:
    """`'a','b':(1)2` as names of axes, each with what lies outside the part of it, and its size, None for the rest."""
    matches = [_MESH_PART.fullmatch(word) for word in text.split(",") if text]
    if not all(matches):
        raise ValueError(text)
    return [(match[1], int(match[2] or 1), int(match[3]) if match[3] else None) for match in matches if match]


def _mesh_groups(axes: Mapping[str, int], ids: str | None, parts: Sequence[tuple[str, int, int | None]]) -> Groups:
    """`mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b':(1)2}`: groups along named axes, or parts of them, of a mesh of
    devices; a part is written as what lies outside it, and its size."""
    extents: list[int] = []
    varying: list[int] = []
    for name, size in axes.items():
        outside = 1
        for before, part in sorted((before, part or size) for named, before, part in parts if named == name):
            extents += [before // outside, part]
            varying.append(len(extents) - 1)
            outside = before * part
        extents.append(size // outside)
    devices = _device_ids(ids, math.prod(axes.values())).reshape(extents)
    return rows_along(devices, varying)


def rows_along(devices: npt.NDArray[np.int64], varying: Sequence[int]) -> Groups:
    """The groups of devices that some axes of an array of them go through."""
    staying = [axis for axis in range(devices.ndim) if axis not in varying]
    along = math.prod(devices.shape[axis] for axis in varying)
    return _rows(devices.transpose([*staying, *varying]).reshape(-1, along))


def _device_ids(text: str | None, count: int) -> npt.NDArray[np.int64]:
    if text is None:
        return np.arange(count)
    arranged = _ARRANGED.fullmatch(text.strip())
    return _arranged(arranged[1], arranged[2]) if arranged else np.array(_numbers(text))


def _arranged(extents: str, order: str | None) -> npt.NDArray[np.int64]:
    """Device numbers in an array of these extents, transposed."""
    shape = _numbers(extents)
    numbered = np.arange(math.prod(shape)).reshape(shape)
    return numbered.transpose(_numbers(order)) if order else numbered


def _rows(array: npt.NDArray[np.int64]) -> Groups:
    return tuple(tuple(int(device) for device in row) for row in array)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(" ", "").split(",") if word]
