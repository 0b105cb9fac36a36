"""The time of a compiled kernel by the cost model's rules of shape, at the rates that the target's compiler assumes,
or where it says none, as GPUs' do not, at the chip's own.

The compiler's estimate of a kernel stands in its module. This one is made of nothing but the shapes of the kernel: a
product padded to the chip's tiles (`cost.kernels.demand`), arrays padded to the tiles that they lie in, instructions of
the vector units. Where the two differ, a rule of shape lacks, or the compiler does something of its own. The
rules, and what each was read off, are in docs/concepts/cost.md; the rates in `tpus.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardwright.backends.hlo.kernels import CompiledKernel
from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.constants import Constants, KernelDemand, times_of
from shardwright.cost.kernels.demand import WIDENING, compute_s
from shardwright.cost.kernels.work import Matmul
from shardwright.ir.types import DType

_FORMATS: Final = {8: DType.INT8, 16: DType.BF16}
"""Number formats of products, by the bits of their operands; products in f32 are several in bf16."""

_INSTRUCTIONS: Final[Mapping[str, int]] = {
    "cosine": 30, "divide": 6, "erf": 40, "exponential": 6, "log": 8, "logistic": 12, "power": 12, "rsqrt": 4,
    "sine": 30, "sqrt": 6, "tanh": 8,
}  # fmt: skip
"""Instructions of the vector units for an operation that is more than one."""

_WORD_BYTES = 4


@dataclass(frozen=True)
class CompilerRates:
    """The rates that a TPU's compiler assumes of a chip, by its estimates of kernels.

    `compute` and `memory` are shares of the chip's rates; memory on the chip is `on_chip` times as fast for products,
    `on_chip_vectors` times for all else. `kernel_cycles` is the least that any kernel takes, `block_cycles` the most
    that the first block of operands and the last of results do, beside which nothing runs. `vector_cycles` is an
    instruction on 1024 elements. `alone` are the passes over its elements that a kernel takes which is no fusion.
    """

    clock_hz: float
    compute: float
    memory: float
    on_chip: float
    on_chip_vectors: float
    kernel_cycles: float
    block_cycles: float
    vector_cycles: float
    alone: float


def estimated_s(kernel: CompiledKernel, chip: Chip, rates: CompilerRates) -> float | None:
    """Seconds of one trip; None for a kernel that only lays bytes otherwise, which no statement asks for, and for
    products in formats that the chip has no rate for.

    Matrix and vector units wait for each other. Memory runs beside them, but for the first block and the last. A kernel
    of the module's own takes as long as the longer of its products, in bf16, and its bytes.
    """
    if kernel.stated is not None:
        products = kernel.stated.flops / (chip.rate(str(DType.BF16)) * rates.compute)
        return max(products, kernel.stated.nbytes / (chip.memory_bytes_per_s * rates.memory))
    formats = [_FORMATS.get(product.bits) for product in kernel.products]
    if kernel.moves_only or not all(each and str(each) in chip.flops_per_s for each in formats):
        return None
    matrix = sum(
        compute_s(Matmul(p.count, p.m, p.n, p.k, dtype), chip)
        for p, dtype in zip(kernel.products, formats, strict=True)
        if dtype is not None
    )
    instructions = sum(_INSTRUCTIONS.get(opcode, 1) * elements for opcode, elements in kernel.instructions.items())
    instructions += WIDENING * sum(product.widened for product in kernel.products)
    units = matrix / rates.compute + instructions / 1024 * rates.vector_cycles / rates.clock_hz
    memory = _memory_s(kernel, chip, rates)
    alone = min(units, memory, rates.block_cycles / rates.clock_hz)
    return max(units, memory) + alone + rates.kernel_cycles / rates.clock_hz


def kernel_s(kernel: CompiledKernel, chip: Chip, rates: CompilerRates | None, constants: Constants) -> float:
    """Seconds of one trip: the cycles that the compiler says; of a kernel of the module's own the work that it states;
    of a compiler without `rates`, which says neither, `priced_s`."""
    if rates is None:
        return priced_s(kernel, chip, constants)
    return kernel.cycles / rates.clock_hz if kernel.cycles is not None else estimated_s(kernel, chip, rates) or 0.0


def priced_s(kernel: CompiledKernel, chip: Chip, constants: Constants) -> float:
    """Seconds of one trip as `cost` prices kernels: the bytes that it reads and writes and its products, on a chip with
    these constants. Raises where the chip has no rate for a product's number format."""
    nbytes = sum(each.nbytes for each in (*kernel.reads, *kernel.writes))
    matrix = sum(
        compute_s(Matmul(p.count, p.m, p.n, p.k, _FORMATS.get(p.bits, DType.F32)), chip) for p in kernel.products
    )
    return times_of(KernelDemand(compute_s=matrix, memory_s=nbytes / chip.memory_bytes_per_s), constants).total


def _memory_s(kernel: CompiledKernel, chip: Chip, rates: CompilerRates) -> float:
    """Results are made as words of 32 bits, and so are the elements that a reduction reads: a kernel that writes
    narrower ones, or fewer, passes over the words once more."""
    fast = rates.on_chip if kernel.products else rates.on_chip_vectors
    traffic = sum(each.nbytes / (fast if each.on_chip else 1.0) for each in (*kernel.reads, *kernel.writes))
    words = _WORD_BYTES * max([kernel.reduced, *(each.elements for each in kernel.writes)])
    if kernel.reduced or any(each.bits < 8 * _WORD_BYTES for each in kernel.writes):
        traffic += words / (fast if all(each.on_chip for each in kernel.writes) else 1.0)
    if kernel.alone:
        traffic += rates.alone * words
    return traffic / (chip.memory_bytes_per_s * rates.memory)
