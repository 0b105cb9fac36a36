"""Optimized HLO text executed by XLA on CPU devices: what a module computes, whatever our reader thinks of it.

The text holds what one device does. It is written again as a module of replicas, which no partitioner touches, and with
the compiler's own forms (fusions, bitcasts between layouts, asynchronous pairs) in those that the front door takes.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shardwright.backends.hlo.groups import groups_of
from shardwright.backends.hlo.module import Instruction, parse, parts_of

Arrays = list[npt.NDArray[Any]]

_LINE = re.compile(r"^(\s+(?:ROOT )?%?[\w.\-]+ = )")
_LAYOUT = re.compile(r"(?<=\])\{[\d,]*(?::[^}]*)?\}")
_DROPPED = (
    r", channel_id=\d+", r", use_global_device_ids=true", r", metadata=\{[^}]*\}", r", backend_config=.*$",
    r", frontend_attributes=\{.*?\}(?=,|$)", r", sharding=\{.*\}(?=,|$)", r", control-predecessors=\{[^}]*\}",
    r", origin=\{.*\}(?=,|$)", r", is_scheduled=true", r", allow_spmd_\w+=\{[^}]*\}", r", frontend_attributes=.*$",
    r", entry_computation_layout=\{.*\}(?=,)", r", input_output_alias=\{[^=]*\}(?=,)",
    r", async_execution_thread=\S+",
)  # fmt: skip
"""Attributes that say nothing about what is computed."""

GROUPS = re.compile(
    r"replica_groups=(?:\{(?:\{[^}]*\},?)*\}|\[[^ ]*?\]<=\[[\d,]*\](?:T\([\d,]*\))?"
    r"|mesh\[[^\]]*\](?:, device_ids=\(.*?\))? \{[^}]*\})"
)
"""All forms of groups in an instruction's attributes."""

_DTYPES = {"pred": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}


class Execution:
    """A module ready to run on `devices` virtual CPU devices. Raises what XLA raises where it refuses the text."""

    def __init__(self, text: str, devices: int = 8) -> None:
        jax = cast(Any, importlib.import_module("jax"))
        client_module = cast(Any, importlib.import_module("jaxlib.xla_client"))
        hlo, mlir = (cast(Any, importlib.import_module(f"jaxlib.{name}")) for name in ("_hlo", "_jax"))
        module = hlo.hlo_module_from_text(as_replicas(text, devices))
        proto = module.as_serialized_hlo_module_proto()
        written = mlir.mlir.xla_computation_to_mlir_module(hlo.XlaComputation(proto))
        options = client_module.CompileOptions()
        options.num_replicas, options.num_partitions = devices, 1
        build = options.executable_build_options
        build.num_replicas, build.num_partitions = devices, 1
        build.device_assignment = client_module.DeviceAssignment.create(np.arange(devices).reshape(devices, 1))
        self._devices = jax.devices()[:devices]
        listed = client_module.DeviceList(tuple(self._devices))
        self._executable = self._devices[0].client.compile_and_load(written.encode(), listed, options)
        self._jax = jax

    def __call__(self, arguments: Sequence[Arrays]) -> list[Arrays]:
        """For each result its array on each device; `arguments` likewise."""
        jax = self._jax
        mesh = jax.sharding.Mesh(np.array(self._devices), ("d",))
        sharded = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        placed = [
            jax.make_array_from_single_device_arrays(
                each[0].shape,
                sharded,
                [jax.device_put(a, device) for a, device in zip(each, self._devices, strict=True)],
            )
            for each in arguments
        ]
        out = self._executable.execute_sharded(placed).disassemble_into_single_device_arrays()
        return [[np.asarray(a) for a in each] for each in out]


def parameters(text: str) -> list[tuple[npt.DTypeLike, tuple[int, ...]]]:
    """Format and shape on one device of each parameter of the entry."""
    module = parse(text)
    found: dict[int, tuple[npt.DTypeLike, tuple[int, ...]]] = {}
    for instruction in module.computations[module.entry].instructions.values():
        if instruction.opcode == "parameter":
            dtype, extents = cast(re.Match[str], re.match(r"(\w+)\[([\d,]*)\]", instruction.type)).groups()
            shape = tuple(int(n) for n in extents.split(",") if n)
            found[int(instruction.arguments)] = (_dtype(dtype), shape)
    return [found[number] for number in sorted(found)]


def _dtype(name: str) -> npt.DTypeLike:
    if name == "bf16":
        return cast(Any, importlib.import_module("ml_dtypes")).bfloat16
    return np.dtype(_DTYPES.get(name) or {"s": "int", "u": "uint"}[name[0]] + name[1:])


def as_replicas(text: str, devices: int) -> str:
    """The text as a module of replicas, without layouts, fusions, bitcasts and asynchronous pairs."""
    module = parse(text)
    by_name = {i.name: i for each in module.computations.values() for i in each.instructions.values()}
    lines: list[str] = []
    for line in text.splitlines():
        if re.match(r"^(FileNames|FunctionNames|FileLocations|StackFrames|\d+ )", line):
            continue
        head = _LINE.match(line)
        for pattern in _DROPPED:
            line = re.sub(pattern, "", line)  # noqa: PLW2901
        line = re.sub(r"num_partitions=\d+", f"replica_count={devices}", line)  # noqa: PLW2901
        if head:
            name = head[1].replace("ROOT", "").strip().removesuffix(" =").lstrip("%")
            lines.extend(_plain(by_name[name], by_name, head[1], line, devices))
        else:
            lines.append(_LAYOUT.sub("", line))
    return "\n".join(lines)


def _plain(
    instruction: Instruction, by_name: Mapping[str, Instruction], head: str, line: str, devices: int
) -> list[str]:
    opcode = instruction.opcode
    shown = _LAYOUT.sub("", line)
    if opcode == "bitcast":
        return _bitcast(instruction, by_name[instruction.operands[0]].type, head)
    if opcode == "partition-id":
        return [shown.replace(" partition-id(", " replica-id(")]
    if opcode == "fusion":
        return [re.sub(r", kind=k\w+, calls=", ", to_apply=", shown).replace(" fusion(", " call(", 1)]
    if "replica_groups=" in shown:
        listed = "{" + ",".join("{" + ",".join(map(str, g)) + "}" for g in groups_of(instruction, devices)) + "}"
        shown = GROUPS.sub(f"replica_groups={listed}", shown)
    if opcode.endswith("-start"):
        kind = instruction.type
        if kind.startswith("(") and opcode != "all-reduce-start":
            kind = parts_of(kind)[opcode != "copy-start"]
        return [f"{head}{_LAYOUT.sub('', kind)} {opcode.removesuffix('-start')}({shown.split(f' {opcode}(', 1)[1]}"]
    if opcode.endswith("-done"):
        if instruction.type.startswith("("):
            return [f"{head}{_LAYOUT.sub('', instruction.type)} opt-barrier(%{instruction.operands[0]})"]
        return [f"{head}{_LAYOUT.sub('', instruction.type)} copy(%{instruction.operands[0]})"]
    return [shown]


def _bitcast(instruction: Instruction, operand: str, head: str) -> list[str]:
    """Through the order in memory, as a transposition, a reshape and a transposition."""
    name = "%" + instruction.name
    source, order = _shape_and_order(operand)
    target, new_order = _shape_and_order(instruction.type)
    dtype = instruction.type.partition("[")[0]

    def typed(shape: Sequence[int]) -> str:
        return f"{dtype}[{','.join(map(str, shape))}]"

    physical, new_physical = [source[i] for i in order], [target[i] for i in new_order]
    inverse = [new_order.index(i) for i in range(len(new_order))]
    listed = ",".join(map(str, order))
    indent = head[: len(head) - len(head.lstrip())]
    assert math.prod(source) == math.prod(target), instruction
    return [
        f"{indent}{name}.t = {typed(physical)} transpose(%{instruction.operands[0]}), dimensions={{{listed}}}",
        f"{indent}{name}.r = {typed(new_physical)} reshape({name}.t)",
        f"{head}{typed(target)} transpose({name}.r), dimensions={{{','.join(map(str, inverse))}}}",
    ]


def _shape_and_order(type_text: str) -> tuple[list[int], list[int]]:
    """Extents, and the dimensions from major to minor."""
    match = cast(re.Match[str], re.match(r"\w+\[([\d,]*)\](?:\{([\d,]*))?", type_text))
    shape = [int(n) for n in match[1].split(",") if n]
    minor_first = [int(n) for n in (match[2] or "").split(",") if n]
    return shape, minor_first[::-1] if minor_first else list(range(len(shape)))
