"""Failures of a target's compiler, told in our words."""

from __future__ import annotations

import re
from collections import Counter
from math import prod

from shardwright.cost.hardware.toml_files import parse_size
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault

_LACKING = (
    re.compile(
        r"required for HLO temporaries \((?P<needs>[\d.]+[KMGT]?)\) exceeds available HBM \((?P<has>[\d.]+[KMGT]?)\)"
    ),
    re.compile(r"Used (?P<needs>[\d.]+[KMGT]?) of (?P<has>[\d.]+[KMGT]?) hbm"),
)
_ROW = re.compile(r"\s*[\d.]+\w*\(\s*\d+%\);\s*(?P<size>[\d.]+)(?P<unit>[KMGT]?i?B);[^;]*;[^;]*;(?P<shapes>.*)")
_ARRAY = re.compile(r"(?:(?P<times>\d+)×)?(?P<shape>[a-z]+[0-9]*\w*\[(?P<extents>[\d,]*)\])")
_BITS = re.compile(r"\d+")
_LISTED = 3
"""Allocations that are named."""

_WAY_OUT = "take more chips, a smaller batch, or layouts that split what is large"

_UNTILED = "Couldn't find output tile sizes"
_WITHOUT_TRITON = (
    "XLA_FLAGS=--xla_gpu_enable_triton_gemm=false compiles products without Triton, which has no tiles for it"
)
"""The way out for products that XLA for GPUs gives to Triton where it cannot try kernels (jax 0.10.2)."""


def failure_of(target: str, function: str, message: str, report: str) -> DiagnosticError:
    """The diagnostic for a compiler's error: `target-memory` where the program does not fit, else `target-failed` with
    the compiler's own first line. `report` is its list of allocations, largest first, empty where there is none."""
    for lacking in _LACKING:
        if match := lacking.search(message):
            needs, has = _gigabytes(match["needs"]), _gigabytes(match["has"])
            said = f"{function} does not fit {target}: it takes {needs} on a chip that has {has} for it"
            return _failed("target-memory", said, *_largest(report), _WAY_OUT)
    first = next((line for line in message.splitlines() if line.strip()), "no reason given").strip()
    notes = [_WITHOUT_TRITON] if _UNTILED in first else []
    return _failed("target-failed", f"{function}: the compiler of {target} gave up: {first}", *notes)


def does_not_fit(target: str, function: str, needed: int, memory: int, report: str) -> DiagnosticError:
    """The diagnostic for a program that compiles but is larger than the chip's memory, in bytes."""
    said = f"{function} does not fit {target}: it takes {needed / 1e9:.4g} GB on a chip that has {memory / 1e9:.4g} GB"
    return _failed("target-memory", said, *_largest(report), _WAY_OUT)


def _largest(report: str) -> list[str]:
    """Notes on the largest allocations: size, the arrays that lie there in turn, and how much of it is padding."""
    notes: list[str] = []
    for row in list(filter(None, map(_ROW.fullmatch, report.splitlines())))[:_LISTED]:
        nbytes = parse_size(f"{row['size']} {row['unit']}") or 0.0
        arrays = list(_ARRAY.finditer(row["shapes"]))
        own = max((_array_bytes(array["shape"], array["extents"]) for array in arrays), default=0.0)
        padded = f", padded to {nbytes / own:.3g} times its size" if own and nbytes > 1.05 * own else ""
        notes.append(f"{nbytes / 1e9:.4g} GB for {', '.join(array['shape'] for array in arrays)}{padded}")
    return [f"{n} times {note}" if n > 1 else note for note, n in Counter(notes).items()]


def _array_bytes(shape: str, extents: str) -> float:
    bits = _BITS.search(shape.partition("[")[0])
    return prod(int(extent) for extent in extents.split(",") if extent) * (int(bits[0]) if bits else 8) / 8


def too_slow(target: str, limit_s: float) -> DiagnosticError:
    """The diagnostic for a compiler that was ended because it took too long."""
    said = f"the compiler of {target} was ended after {limit_s:g} s"
    return _failed("target-time", said, "give it longer: --time-limit SECONDS")


def crashed(target: str, status: int, noise: str) -> DiagnosticError:
    """The diagnostic for a compiler that ended its process; `noise` is what it had written by then."""
    last = [line for line in noise.splitlines() if line.strip()][-3:]
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return _failed("target-failed", f"the compiler of {target} ended its process ({how})", *last)


def not_installed(target: str, modules: tuple[str, ...], command: str) -> DiagnosticError:
    """The diagnostic for a compiler that is not there."""
    return _failed("missing-library", f"{target} needs {' and '.join(modules)}: {command}")


def _gigabytes(size: str) -> str:
    """`48.09G`, the compiler's for 2^30, in GB of 10^9."""
    unit = size[-1] if size[-1].isalpha() else ""
    nbytes = parse_size(f"{size.removesuffix(unit)} {unit}{'iB' if unit else 'B'}")
    return f"{(nbytes or 0) / 1e9:.4g} GB"


def _failed(code: str, message: str, *notes: str) -> DiagnosticError:
    failed = fault(code, message, NOWHERE, *notes)
    failed.source = Source("--target", "")
    return failed
