"""Rates of the kernels and copies of the offloading runtime on this machine, each measured alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType, Tier

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MOST_RUNS, _LEAST_RUNS, _ENOUGH_S = 7, 3, 0.25
"""How often each thing is timed: until so many seconds are measured, within these bounds."""


def median_seconds(run: Callable[[], Any], on: torch.device) -> float:
    """The median of some runs, after one that warms up: what is predicted takes as long as it usually does, not as it
    does at its best."""
    import torch

    taken: list[float] = []
    while len(taken) <= _LEAST_RUNS or (len(taken) <= _MOST_RUNS and sum(taken[1:]) < _ENOUGH_S):
        began = time.perf_counter()
        run()
        if on.type == "cuda":
            torch.cuda.synchronize(on)
        taken.append(time.perf_counter() - began)
    return median(taken[1:])


def _numbers(shape: tuple[int, ...], dtype: DType, on: torch.device) -> Tensor:
    import torch

    from shardwright.backends.torch.tensors import held_as

    return torch.full(shape, 0.01, dtype=held_as(dtype), device=on)


def product_rate(on: torch.device, dtype: DType, rows: int, *, large: bool) -> float:
    """FLOP/s of large products with weights that are stored the other way round, as a layer has them: one after the
    other, none in a cache from before."""
    rows, size, n = (4096, 8192, 2) if large else (rows, 1024, 2)
    x, weights = _numbers((rows, size), dtype, on), [_numbers((size, size), dtype, on) for _ in range(n)]
    return n * 2 * rows * size * size / median_seconds(lambda: [x @ w.t() for w in weights], on)


def weight_rate(on: torch.device, dtype: DType, *, large: bool) -> float:
    """Bytes a second of weights that a few rows are multiplied with, which is what decode of a small batch does."""
    size, n = (8192, 3) if large else (2048, 6)
    x = _numbers((2, size), dtype, on)
    weights = [_numbers((size, size), dtype, on) for _ in range(n)]

    def run() -> None:
        for w in weights:
            _ = x @ w.t()

    return sum(w.numel() * w.element_size() for w in weights) / median_seconds(run, on)


def exposed_part(on: torch.device, dtype: DType, flops_per_s: float, bytes_per_s: float) -> float:
    """The part of the shorter of reading weights and multiplying with them that the longer does not hide: 0 on a device
    that reads the next while it multiplies, 1 or more on one that does one after the other. The median about the number
    of rows for which both take as long."""
    size, n = 2048, 6 if on.type == "cuda" else 3
    weights = [_numbers((size, size), dtype, on) for _ in range(n)]
    read = size * size * weights[0].element_size() / bytes_per_s
    alike = read * flops_per_s / (2 * size * size)

    def exposed(rows: int) -> float:
        x, products = _numbers((rows, size), dtype, on), 2 * rows * size * size / flops_per_s
        taken = median_seconds(lambda: [x @ w.t() for w in weights], on) / n
        return (taken - max(read, products)) / min(read, products)

    return max(0.0, median(exposed(max(1, round(share * alike))) for share in (1, 2, 4)))


_ELEMENTWISE = """
dim B={rows} H={heads} D=64 E={width} F={wide}

func layer(
  x: {dtype} BE, scale: {dtype} E, q: {dtype} BHD, at: int32 B, up: {dtype} BF
) -> ({dtype} BE, {dtype} BHD, {dtype} BF) {{
  normed = rmsnorm[E](x, scale)
  turned = rotary[D](q, at)
  gated = silu(up + up) * up
  return x + normed, turned, gated
}}
"""
"""The operations of a layer that are no products, its feedforward four times as wide."""


def elementwise_rate(on: torch.device, dtype: DType, *, large: bool) -> float:
    """Bytes a second of what operations of a layer that are no products read and write, as `cost.offloading.sizes`
    counts them: of x 8 in a norm, 2 as it is turned and 3 as it is added, of what is wide 8."""
    import torch

    from shardwright.backends.torch.blocks import Values, block_of
    from shardwright.backends.torch.kernels.prepared import Common

    rows, width = (4096, 4096) if large else (1024, 512)
    wide, heads = 4 * width, width // 64
    text = _ELEMENTWISE.format(rows=rows, heads=heads, width=width, wide=wide, dtype=dtype)
    program = elaborate(parse(Source("<elementwise>", text)))
    func, common = program.func("layer"), Common()
    block = block_of(program, func, on)
    shapes = {value.name: tuple(dim.size for dim in value.shape.dims) for value in func.params}
    given = {name: _numbers(shape, dtype, on) for name, shape in shapes.items() if name != "at"}
    given["at"] = torch.arange(rows, device=on)
    seconds = median_seconds(lambda: block.run(Values(dict(given), common)), on)
    return rows * (13 * width + 8 * wide) * dtype.bits / 8 / seconds


def copy_rate(on: torch.device, *, to_device: bool) -> float:
    """Bytes a second between the device and memory of the host as the runtime has it."""
    import torch

    from shardwright.backends.torch.host_memory import HostMemory
    from shardwright.backends.torch.memory import MemoryAccount

    nbytes = 1 << (27 if on.type == "cuda" else 26)
    memory = HostMemory(MemoryAccount(Tier.HOST, None, ""), pinned=on.type == "cuda")
    try:
        host, there = memory.take("a buffer", nbytes), torch.zeros(nbytes, dtype=torch.uint8, device=on)
        host.zero_()
        target, source = (there, host) if to_device else (host, there)
        return nbytes / median_seconds(lambda: target.copy_(source, non_blocking=True), on)
    finally:
        memory.close()


_LONG_CACHES, _SHORT_CACHES = (16, 256, 2), (32, 32, 8)
"""Rows, positions and layers of caches that are attended to: as many bytes of both, too many to be in a cache of the
processor when their turn comes again."""

_ATTENDING = 8
"""Heads of what attends."""


def attention_rate(on: torch.device, dtype: DType) -> tuple[float, float]:
    """Bytes a second of keys and values, as a cache has them, that queries of one position attend to; and the seconds
    that a row of queries of one head takes beside them."""
    (nbytes, long), (_, short) = (_attended(on, dtype, *sizes) for sizes in (_LONG_CACHES, _SHORT_CACHES))
    few, many = (rows * layers * _ATTENDING for rows, _, layers in (_LONG_CACHES, _SHORT_CACHES))
    each = max(0.0, short - long) / (many - few)
    return nbytes / (long - few * each if few * each < long / 2 else long / 2), each


def _attended(on: torch.device, dtype: DType, rows: int, positions: int, layers: int) -> tuple[float, float]:
    """The bytes of keys and values in caches, and the seconds that attention to them takes."""
    from shardwright.backends.torch.kernels import compute
    from shardwright.backends.torch.tensors import NamedTensor
    from shardwright.ir import ops
    from shardwright.ir.types import Dim, Shape

    sizes = {"T": positions, "B": rows, "K": _ATTENDING, "D": 64}
    operation = ops.Attend("T", "D", scale=0.125)
    caches = [
        [NamedTensor(_numbers(tuple(sizes.values()), dtype, on), tuple(sizes), dtype) for _ in range(2)]
        for _ in range(layers)
    ]
    q = NamedTensor(_numbers((rows, _ATTENDING, 64), dtype, on), ("B", "K", "D"), dtype)
    result = Shape(dtype, tuple(Dim(name, sizes[name]) for name in "BKD"))
    nbytes = sum(each.tensor.numel() * each.tensor.element_size() for kept in caches for each in kept)
    return nbytes, median_seconds(lambda: [compute(operation, [q, *kept], [result], on) for kept in caches], on)


def dequantized_rate(on: torch.device, dtype: DType) -> float:
    """Numbers a second that are brought from 4 bits, a scale for each 64 of them."""
    from shardwright.backends.torch.row_coding import packed, unpacked
    from shardwright.backends.torch.tensors import held_as

    size, group = 2048, 64
    kept = packed(_numbers((size, size), dtype, on).mul(4).clamp(-7, 7).to(held_as(DType.INT8)))
    scales = _numbers((size, size // group, 1), dtype, on)

    def widened() -> Tensor:
        return unpacked(kept, size).to(held_as(dtype)).reshape(size, size // group, group) * scales

    return size * size / median_seconds(widened, on)


def beside_reading(dtype: DType, read: Callable[[], None], alone_s: float) -> tuple[float, float]:
    """The part of the shorter of computation on the CPU and reading that the longer does not hide; and the seconds of
    reading, more than the `alone_s` that it takes alone where the two are in each other's way."""
    import torch

    cpu = torch.device("cpu")
    x, w = _numbers((64, 1024), dtype, cpu), _numbers((1024, 1024), dtype, cpu)
    products = 1

    def computed() -> None:
        with torch.inference_mode():
            for _ in range(products):
                _ = x @ w.t()

    products = max(1, round(alone_s / median_seconds(computed, cpu)))
    computing_s = median_seconds(computed, cpu)

    def both() -> None:
        thread = threading.Thread(target=read)
        thread.start()
        computed()
        thread.join()

    both_s = median_seconds(both, cpu)
    exposed = (both_s - max(computing_s, alone_s)) / min(computing_s, alone_s)
    return min(1.0, max(0.0, exposed)), max(alone_s, both_s - computing_s)
