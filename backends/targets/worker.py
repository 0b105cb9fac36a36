"""Compiles the functions of emitted modules, or lowered ones, for targets: `python -m ... PARENT`.

Requests are lines of JSON on standard input (`backends.targets.compilers` makes them). The answer to each is written
as JSON to the file that it names, and then a line to standard output. What compilers print, and how they end a process
that they cannot go on with, stays in here.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from shardwright.backends.jax.module_files import abstract_arguments, import_file
from shardwright.backends.targets.functions import result_shardings

_REPORT_LENGTH = 4000


def main(parent: int) -> None:
    """Answers requests until there are no more. To a terminal's interrupt the process that asks has the answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    # Compilers write to descriptors, not to sys.stderr; the process that asks gave this one a file for what they print.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        shutil.rmtree(request["dumps"], ignore_errors=True)
        Path(request["answer"]).write_text(json.dumps(_answer_to(request)), encoding="utf-8")
        replies.write("answered\n")
        replies.flush()


def _answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Makes `{"functions": [{"name", "text", "written", "memory", "compile_s", "report", "results"} or {"name",
    "error", "report"}]}`, or `{"error"}` where the compiler is not there at all. A report is the head of the compiler's
    list of the largest allocations."""
    try:
        devices = _devices(request)
        if "lowered" in request:
            return {"functions": [_compiled_text(request, devices)]}
        module = import_file(Path(request["file"]))
        mesh = _mesh(module, devices)
        return {"functions": [_compiled(module, mesh, name, request) for name in _functions(module, request)]}
    except Exception as error:  # noqa: BLE001 - whatever it is, the process that asked says it
        return {"error": f"{type(error).__name__}: {error}"}


def _leave_with(parent: int) -> None:
    """Ends this process when the one that asked is no more, so that no compiler goes on for nobody."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _devices(request: dict[str, Any]) -> list[Any]:
    """The target's devices, row by row over the mesh."""
    jax = cast(Any, importlib.import_module("jax"))
    if request["platform"] == "cpu":
        return list(jax.devices("cpu"))
    topologies = cast(Any, importlib.import_module("jax.experimental.topologies"))
    described = topologies.get_topology_desc(platform=request["platform"], **request["topology"])
    devices: list[Any] = sorted(described.devices, key=lambda device: device.id)
    if request["order"] is None:
        return devices
    at = {tuple(device.coords): device for device in devices}
    return [at[tuple(coordinates)] for coordinates in request["order"]]


def _mesh(module: ModuleType, devices: list[Any]) -> Any:
    sharding = cast(Any, importlib.import_module("jax.sharding"))
    shape: dict[str, int] = module.MESH_SHAPE
    grid = np.array(devices[: prod(shape.values())]).reshape(tuple(shape.values()))
    return sharding.Mesh(grid, tuple(shape), axis_types=(sharding.AxisType.Auto,) * len(shape))


def _functions(module: ModuleType, request: dict[str, Any]) -> list[str]:
    return [name for name in module.IN_SPECS if request["functions"] is None or name in request["functions"]]


def _compiled(module: ModuleType, mesh: Any, name: str, request: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        lowered = getattr(module, f"build_{name}")(mesh).lower(*abstract_arguments(module, name, mesh))
        compiled = lowered.compile(compiler_options=request["options"] or None)
    except Exception as error:  # noqa: BLE001 - the compiler's word for what it cannot do
        return {"name": name, "error": f"{type(error).__name__}: {error}", "report": _report(request, name)}
    taken = time.perf_counter() - began
    written = lowered.as_text("hlo", debug_info=True)
    report = _report(request, name)
    results = result_shardings(compiled.runtime_executable())
    return _answer(name, compiled.as_text(), written, compiled.memory_analysis(), taken, report, results)


def _compiled_text(request: dict[str, Any], devices: list[Any]) -> dict[str, Any]:
    """A function that was lowered elsewhere, compiled as `jit` does it: the compiler chooses the shardings of arguments
    and results that have none."""
    backend, mlir, ir, xla_client = (
        cast(Any, importlib.import_module(name))
        for name in ("jax.extend.backend", "jax.interpreters.mlir", "jaxlib.mlir.ir", "jaxlib.xla_client")
    )
    name: str = request["lowered"]
    devices = devices[: request["devices"]]
    client = devices[0].client
    began = time.perf_counter()
    try:
        with mlir.make_ir_context():
            module = ir.Module.parse(Path(request["file"]).read_text(encoding="utf-8"))
            options = backend.get_compile_options(
                1, len(devices), np.array([devices]), env_options_overrides=request["options"], backend=client
            )
            build = options.executable_build_options
            build.allow_spmd_sharding_propagation_to_parameters = _unsharded(module, "arg_attrs")
            build.allow_spmd_sharding_propagation_to_output = _unsharded(module, "res_attrs")
            # Devices that are there have no compiler apart from them.
            compiler = client.compile_and_load if request["platform"] == "cpu" else client.compile
            made = compiler(module, xla_client.DeviceList(tuple(devices)), options)
    except Exception as error:  # noqa: BLE001 - the compiler's word for what it cannot do
        return {"name": name, "error": f"{type(error).__name__}: {error}", "report": _report(request)}
    taken = time.perf_counter() - began
    text = "\n\n".join(each.to_string() for each in made.hlo_modules())
    return _answer(name, text, "", made.get_compiled_memory_stats(), taken, _report(request), result_shardings(made))


def _unsharded(module: Any, attributes: str) -> list[bool]:
    """Tells of each argument, or each result, of a module's function whether it has no sharding."""
    main = next(each for each in module.body if str(each.attributes["sym_name"]) == '"main"')
    rows: list[Any] = list(main.attributes.get(attributes, ()))
    return [not any(key in row for key in ("sdy.sharding", "mhlo.sharding")) for row in rows]


def _answer(
    name: str,
    text: str,
    written: str,
    memory: Any | None,
    compile_s: float,
    report: str,
    results: tuple[str, ...] | None,
) -> dict[str, Any]:
    figures = memory and {
        "argument": memory.argument_size_in_bytes,
        "output": memory.output_size_in_bytes,
        "alias": memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
    }
    return {
        "name": name,
        "text": text,
        "written": written,
        "memory": figures,
        "compile_s": compile_s,
        "report": report,
        "results": results,
    }


def _report(request: dict[str, Any], name: str = "*") -> str:
    """The compiler's dump on the memory of a function, by default of the only one."""
    written = sorted(Path(request["dumps"]).glob(f"*jit_{name}.*memory-usage-report.txt"))
    return written[-1].read_text(encoding="utf-8", errors="replace")[:_REPORT_LENGTH] if written else ""


if __name__ == "__main__":
    main(int(sys.argv[1]))
