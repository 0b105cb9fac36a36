"""Runs a target's compiler on an emitted module, in a process of its own, and keeps what came out by its content."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

from shardwright.backends.targets.compiler_process import EndedProcessError, ask
from shardwright.backends.targets.failures import crashed, does_not_fit, failure_of, not_installed, too_slow
from shardwright.backends.targets.gpus import gpu_memory_bytes, target_config
from shardwright.backends.targets.names import TPUS, Target
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.own_processes import own_environment
from shardwright.ir.whole_files import cache_folder, whole_file

TIME_LIMIT_S = 900.0
"""Seconds that a compiler may take for a module unless told otherwise."""

_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin")
_FORMAT = 1
"""Raised when what is kept changes its form."""

MODULE = "compiled.py"
"""The name of the emitted module's file in what is compiled of it."""
_TWO_CORES = ("tpu-v4", "tpu-v5p")
"""Chips of two cores that work as one device."""

_OWN = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""The environment of compilers: JAX itself runs on the CPU; libtpu asks no service what machine this is, and lets
another of it run beside it."""


@dataclass(frozen=True)
class CompiledMemory:
    """Bytes on one chip: arguments, temporaries, and those results that do not take over an argument's place."""

    argument_bytes: int
    temporary_bytes: int
    output_bytes: int

    @property
    def total(self) -> int:
        return self.argument_bytes + self.temporary_bytes + self.output_bytes


@dataclass(frozen=True)
class CompiledFunction:
    """A function as a compiler made it: its optimized module as HLO text, and the one it was given, `written`.

    `written` is empty of functions of JAX. `error` is set where it made nothing.
    """

    name: str
    text: str
    written: str
    memory: CompiledMemory | None
    compile_s: float | None
    error: DiagnosticError | None = None
    results: tuple[str, ...] | None = None


def compile_module(
    target: Target,
    text: str,
    mesh: Mapping[str, int],
    functions: Sequence[str] | None = None,
    *,
    time_limit_s: float = TIME_LIMIT_S,
) -> tuple[CompiledFunction, ...]:
    """Every function of an emitted module, or those named, as the target's compiler makes them.

    Raises a `DiagnosticError` where the compiler is not installed, the mesh does not lie on the target, the compiler
    takes longer than `time_limit_s` for all of them, or its process ends. What it refuses is the function's
    `error`.
    """
    request = {**_request(target, mesh), "functions": None if functions is None else sorted(functions)}
    return _compiled(target, request, text, time_limit_s)


def compile_lowered(
    target: Target, name: str, text: str, mesh: Mapping[str, int], *, time_limit_s: float = TIME_LIMIT_S
) -> CompiledFunction:
    """A function that JAX has lowered to StableHLO for the target's platform, `text`, as the target's compiler makes
    it; `written` is empty. Raises as `compile_module` does."""
    (func,) = _compiled(target, {**_request(target, mesh), "lowered": name}, text, time_limit_s)
    return func


def _compiled(target: Target, request: dict[str, Any], text: str, time_limit_s: float) -> tuple[CompiledFunction, ...]:
    missing = target.platform.missing
    if missing:
        raise not_installed(target.name, missing, target.platform.command)
    kept = cache_folder("targets") / f"{_key(request, text)}.json.gz"
    answer = _read(kept)
    if answer is None:
        answer = _run(target, request, text, time_limit_s)
        _keep(kept, answer)
    return tuple(_function(target, row) for row in answer["functions"])


def _request(target: Target, mesh: Mapping[str, int]) -> dict[str, Any]:
    topology: dict[str, Any] = {}
    order: list[list[int]] | None = None
    options: dict[str, Any] = {}
    flags: list[str] = []
    laid = target.order(mesh)
    chip = target.chip_name
    if target.platform.name == "tpu":
        assert laid is not None
        # libtpu wants the axes with most chips first, since a host has 2 x 2 of them.
        axes = sorted(range(len(target.shape)), key=lambda axis: -target.shape[axis])
        shape = [target.shape[axis] for axis in axes]
        whole = [*shape, *[1] * (3 - len(shape))]
        order = [[*(row[axis] for axis in axes), *[0] * (3 - len(axes))] for row in laid]
        topology = {
            "topology_name": f"{TPUS[chip]}:{'x'.join(map(str, whole if chip in _TWO_CORES else shape))}",
            "chips_per_host_bounds": [min(2, whole[0]), min(2, whole[1]), 1],
        }
        if chip in _TWO_CORES:
            topology["chip_config_name"] = "megacore"
    elif target.platform.name == "cuda":
        nodes = target.shape[0] if len(target.shape) == 2 else 1
        config = target_config(target.gpu)
        topology = {"topology_name": "", "target_config": config, "topology": f"1x{nodes}x{target.shape[-1]}"}
        options = {"xla_gpu_autotune_level": 0}  # there is no device to measure on
        flags = [word for word in os.environ.get("XLA_FLAGS", "").split() if word.startswith("--xla_gpu_")]
    return {
        "format": _FORMAT,
        "platform": target.platform.name,
        "topology": topology,
        "order": order,
        "options": options,
        "flags": flags,
        "devices": prod(mesh.values()),
    }


def _function(target: Target, row: Mapping[str, Any]) -> CompiledFunction:
    name: str = row["name"]
    if "error" in row:
        return CompiledFunction(name, "", "", None, 0.0, failure_of(target.name, name, row["error"], row["report"]))
    figures: dict[str, int] | None = row["memory"]
    memory = None
    if figures is not None:
        memory = CompiledMemory(figures["argument"], figures["temporary"], figures["output"] - figures["alias"])
    error = None
    if memory is not None and target.chip is not None and target.platform.name == "cuda":
        has = gpu_memory_bytes(target.gpu)
        error = does_not_fit(target.name, name, memory.total, has, row["report"]) if memory.total > has else None
    results = None if row.get("results") is None else tuple(row["results"])
    return CompiledFunction(name, row["text"], row["written"], memory, row["compile_s"], error, results)


# ---------------------------------------------------------------- the process


def _run(target: Target, request: dict[str, Any], text: str, time_limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shardwright-") as name:
        file, answered = (Path(name) / part for part in (MODULE, "answer.json"))
        file.write_text(text, encoding="utf-8")
        asked = {**request, "file": str(file)}
        try:
            ask(target.platform.name, own_environment(**_OWN), _flags(request), asked, answered, time_limit_s)
        except TimeoutError:
            raise too_slow(target.name, time_limit_s) from None
        except EndedProcessError as ended:
            raise crashed(target.name, ended.status, ended.printed) from None
        answer: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8").replace(f"{name}/", ""))
        if "error" in answer:
            raise failure_of(target.name, "the module", answer["error"], "")
        return answer


def _flags(request: Mapping[str, Any]) -> list[str]:
    """The flags of XLA. Processors alone are as many devices as are asked for; others are described."""
    own: list[str] = request["flags"]
    if request["platform"] != "cpu":
        return own
    return [*own, f"--xla_force_host_platform_device_count={request['devices']}"]


# ---------------------------------------------------------------- what was compiled before


def _key(request: Mapping[str, Any], text: str) -> str:
    """By everything that the result depends on."""
    versions: dict[str, str] = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return hashlib.sha256(json.dumps([request, versions, text], sort_keys=True).encode()).hexdigest()


def _read(file: Path) -> dict[str, Any] | None:
    """The result that was kept; None where nothing was, or what is there cannot be read."""
    with suppress(OSError, EOFError, ValueError, gzip.BadGzipFile):
        answer: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
        return answer
    return None


def _keep(file: Path, answer: Mapping[str, Any]) -> None:
    """A folder that cannot be written costs time alone."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as kept:
            kept.write(gzip.compress(json.dumps(answer).encode(), 6))
