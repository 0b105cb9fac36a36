"""vLLM's flags, and what it asks of their values.

Of vLLM's `vllm/config/parallel.py` (`ParallelConfig`), `vllm/config/model.py` (`verify_with_parallel_config`),
`vllm/distributed/utils.py` (`get_pp_indices`) and `docs/serving/context_parallel_deployment.md`, as of August 2026:
chips are those of tensor parallelism times stages times copies; decode context parallelism takes no chips of its own
but splits the positions of a cache over those chips of tensor parallelism that would hold the same heads of keys and
values, position i on the chip i % N of N; layers are dealt out evenly over stages, and as many batches are in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.exporting.stored import refused
from shardwright.ir.program import Program, Value
from shardwright.ir.types import DType


@dataclass(frozen=True)
class VllmSizes:
    """How many chips share each weight, stages follow each other, copies serve other sequences, and hold each other's
    positions of a cache."""

    tensor: int
    stages: int = 1
    copies: int = 1
    context: int = 1
    experts: bool = False

    def __str__(self) -> str:
        """The flags."""
        flags = [f"--tensor-parallel-size {self.tensor}"]
        for flag, size in (
            ("pipeline-parallel-size", self.stages),
            ("data-parallel-size", self.copies),
            ("decode-context-parallel-size", self.context),
        ):
            if size > 1:
                flags.append(f"--{flag} {size}")
        if self.experts:
            flags.append("--enable-expert-parallel")
        return " ".join(flags)


@dataclass(frozen=True)
class Heads:
    """The heads of queries, none where there is no attention, and those of keys and values that a cache holds."""

    queries: int
    keys: int

    def divide(self, tensor: int) -> bool:
        """Tells whether so many chips have equal shares of the heads of queries, as engines ask."""
        return self.queries % tensor == 0

    def broken_rule(self, context: int, tensor: int) -> str:
        """The first rule that splitting positions over so many of the chips that share each weight breaks, "" where
        vLLM does it."""
        for said, holds in _CONTEXT_RULES:
            if not holds(self, context, tensor):
                return said.format(context=context, tensor=tensor, keys=self.keys, each=self.queries // self.keys)
        return ""


_CONTEXT_RULES: tuple[tuple[str, Callable[[Heads, int, int], bool]], ...] = (
    (
        "they have to divide the {tensor} that share each weight",
        lambda heads, context, tensor: tensor % context == 0,
    ),
    (
        "only {tensor} share each weight, and have to be more than the {keys} heads of keys",
        lambda heads, context, tensor: tensor > heads.keys,
    ),
    (
        "{tensor} share each weight and {keys} heads of keys, which leaves fewer chips with the same heads",
        lambda heads, context, tensor: context <= tensor // heads.keys,
    ),
    (
        "they have to divide the {each} heads of queries for each head of keys",
        lambda heads, context, tensor: (heads.queries // heads.keys) % context == 0,
    ),
)
"""vLLM's rules of `--decode-context-parallel-size` for models that cache keys and values, and when each holds."""

_SLOTS = "T2"
"""The dimension of the positions of a page, beside T3, the pages that there are."""

_ENGINE_CACHES = {DType.F8E4M3: "fp8_e4m3", DType.F8E5M2: "fp8_e5m2"}
"""vLLM's names of what caches are kept in; it has no integers there."""


def format_flags(program: Program) -> str:
    """vLLM's flags for numbers of 8 bits, each after a space.

    Raises a `DiagnosticError` for formats that it has none for.
    """
    weights = {value.type.dtype for value in program.weights}
    caches = {value.type.dtype for value in program.state}
    for what, held, way_out in (
        ("weights", weights, "export the program before quantize-weights, or with its floats and products"),
        ("a cache", caches, "import it with --cache-format f8e4m3"),
    ):
        for dtype in sorted(held & {DType.INT8, DType.INT4}):
            raise refused(f"vLLM has no flag for {what} in {dtype}", way_out)
    flags = [f" --kv-cache-dtype {_ENGINE_CACHES[dtype]}" for dtype in sorted(caches & set(_ENGINE_CACHES))]
    return "".join([*([" --quantization fp8"] if DType.F8E4M3 in weights else []), *flags])


def page_flag(program: Program) -> str:
    """vLLM's flag for the positions of a page that a chip holds, after a space; empty where caches have no pages.

    Raises a `DiagnosticError` for sizes that its kernels of attention do not take (`vllm/v1/attention/backends`,
    `flash_attn.py`).
    """
    held = _pages(program, lambda value: program.mesh.product(value.concrete.split(_SLOTS)))
    return f" --block-size {min(held)}" if held else ""


def require_flags(program: Program) -> None:
    """Raises a `DiagnosticError` where vLLM has no flags for a program's formats and pages, whatever the layouts."""
    format_flags(program)
    _pages(program, lambda value: 1)


def _pages(program: Program, chips: Callable[[Value], int]) -> set[int]:
    """The positions of a page that each of so many chips holds."""
    paged = (value for value in program.state if {_SLOTS, "T3"} <= set(value.shape.names))
    held = {value.shape.size(_SLOTS) // chips(value) for value in paged}
    for size in held:
        if size % 16:
            way_out = "import it with a --page-size of which each chip has a multiple of 16"
            raise refused(f"vLLM has no pages of which a chip holds {size} positions", way_out)
    return held
