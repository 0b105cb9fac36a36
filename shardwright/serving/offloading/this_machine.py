"""The machine at hand, measured once in a process of its own and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shardwright.cost.hardware.chips import Machine, load_machine
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.own_processes import module_command, own_environment
from shardwright.ir.types import DType
from shardwright.ir.whole_files import cache_folder, code_digest, whole_file
from shardwright.serving.offloading.devices import check_device
from shardwright.serving.offloading.measuring import MEASURED_FILE, default_device, file_bytes

RATES = "t4"
"""The machine whose rates a run is planned with where this one cannot be measured."""

TIME_LIMIT_S = 60.0
"""Seconds that measuring may take; it takes less than ten where nothing else runs."""

COMMAND = (*module_command("shardwright.serving.offloading.measuring"),)
"""The process that measures, before its one argument, which is JSON."""

_POLL_S = 0.1


@dataclass(frozen=True)
class MachineRequest:
    """The run that this machine is measured for: in `dtype` on `device`, a device of PyTorch, with `readers` threads
    that read files in `spill`, and `threads` that compute; no more than `disk_bytes` of the disk are taken. None is
    what a run has that does not say it."""

    dtype: DType
    device: str | None = None
    spill: str | None = None
    readers: int = 4
    disk_bytes: int | None = None
    threads: int | None = None

    @property
    def folder(self) -> str:
        return self.spill or tempfile.gettempdir()

    def conditions(self) -> dict[str, str | int]:
        """All that the measured rates depend on, by name. Raises a `DiagnosticError` where there is no such device,
        ModuleNotFoundError without torch."""
        import torch

        if self.device is not None:
            check_device(self.device)
        device = torch.device(self.device or default_device())
        return {
            "processor": _processor(),
            "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            "threads": self.threads or torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "dtype": str(self.dtype),
            "readers": self.readers,
            "file system": _file_system(self.folder),
            "bytes of a file": file_bytes(float("inf"), self.disk_bytes),
            "torch": torch.__version__,
            "code": code_digest("backends/torch", "serving/offloading")[:16],
        }


def this_machine(request: MachineRequest, told: Callable[[str], object]) -> Machine:
    """This machine with the rates that were measured for such a run, now or by a run before; that of `RATES` where they
    cannot be.

    `told` gets pieces of one line, with its end, where there is something to say: that it is measured, how many seconds
    it took, where it is kept, and what went wrong. Raises as `MachineRequest.conditions`.
    """
    conditions = request.conditions()
    folder = cache_folder("machines")
    path = folder / f"{hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:16]}.toml"
    kept = _kept(path)
    if kept is not None:
        return kept
    told("no --machine: measuring this machine once ... ")
    began = time.monotonic()
    try:
        with _alone(folder):
            kept = _kept(path)
            if kept is not None:
                told(f"another run has; kept in {path}\n")
                return kept
            text, machine = _measured(request, str(conditions["threads"]))
            not_kept = _keep(path, "".join(f"# {name}: {value}\n" for name, value in conditions.items()) + text)
    except (OSError, subprocess.SubprocessError, DiagnosticError) as error:
        told(f"failed: {_reason(error)}; planning with the rates of {RATES}\n")
        return load_machine(RATES)
    except BaseException:
        told("\n")
        raise
    told(f"{time.monotonic() - began:.1f} s, {f'not kept: {not_kept}' if not_kept else f'kept in {path}'}\n")
    return machine


def _measured(request: MachineRequest, threads: str) -> tuple[str, Machine]:
    """The text of a machine file, and its machine, from a process of its own, whose memory is not this one's."""
    with tempfile.TemporaryDirectory(prefix="shardwright-", dir=request.folder) as folder:
        asked = {
            "folder": folder,
            "device": request.device,
            "dtype": str(request.dtype),
            "readers": request.readers,
            "disk_bytes": request.disk_bytes,
        }
        subprocess.run(
            [*COMMAND, json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=own_environment(OMP_NUM_THREADS=threads, TMPDIR=folder),
            timeout=TIME_LIMIT_S,
            check=True,
        )
        file = Path(folder, MEASURED_FILE)
        return file.read_text(encoding="utf-8"), load_machine(str(file))


def _reason(error: Exception) -> str:
    """A line that says what went wrong."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it takes longer than {error.timeout:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        lines = bytes(error.stderr or b"").decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"it ended with {error.returncode}")
    if isinstance(error, DiagnosticError):
        return error.diagnostics[0].message
    return f"{error.filename}: {(error.strerror or '').lower()}" if isinstance(error, OSError) else str(error)


# ---------------------------------------------------------------- what is kept


def _kept(path: Path) -> Machine | None:
    """The machine that is kept there, None where there is none or the file is not as it was written."""
    try:
        heading, _, text = path.read_text(encoding="utf-8").partition("\n")
        return load_machine(str(path)) if heading == _heading(text) else None
    except (OSError, UnicodeDecodeError, DiagnosticError):
        return None


def _keep(path: Path, text: str) -> str | None:
    """Keeps a machine file; why it cannot be kept, None where it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(f"{_heading(text)}\n{text}".encode())
    except OSError as error:
        return _reason(error)
    return None


def _heading(text: str) -> str:
    return f"# sha256 of what follows: {hashlib.sha256(text.encode()).hexdigest()}"


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Within it no other process of this user measures: two at once would measure each other."""
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # nothing can be kept there, and what is measured counts for this run alone
        yield
        return
    try:
        end = time.monotonic() + TIME_LIMIT_S
        while time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_S)
                continue
            except OSError:
                pass  # a file system without locks
            break
        yield
    finally:
        os.close(lock)


# ---------------------------------------------------------------- what rates depend on


def _processor() -> str:
    """The model of the processor, or its architecture where the system does not say more."""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: str) -> str:
    """The type and the device of the file system that a folder lies on, or its number where the system does not say
    more."""
    try:
        number = Path(folder).stat().st_dev
    except OSError:
        return "none"
    device = f"{os.major(number)}:{os.minor(number)}"
    with suppress(OSError), Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            mount, _, system = line.partition(" - ")
            if mount.split()[2] == device:
                return " ".join(system.split()[:2])
    return device
