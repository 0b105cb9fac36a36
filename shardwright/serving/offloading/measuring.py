"""Measures this machine as the offloading runtime uses it: products, copies, attention, disk and overheads, as a
machine file."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from shardwright.cost.hardware.chips import load_machine
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType, Tier
from shardwright.serving.offloading.devices import check_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MOST_RUNS, _LEAST_RUNS, _ENOUGH_S = 7, 3, 0.25
"""How often each thing is timed: until so many seconds are measured, within these bounds."""

_FILE_BYTES = 64 << 20
"""The size of the file that is written and read, unless the disk has no room for it: several chunks for each reader."""

_LEAST_FILE_BYTES = 1 << 20

MEASURED_FILE = "machine.toml"
"""The machine file that this module writes where it runs as a process."""

_ROWS, _FEW_ROWS = 256, 64
"""Rows of what products multiply on a CPU: in the format of the run, and in others."""

_FORMATS = (DType.F32, DType.BF16, DType.F16)
_IN_PLACE = 1e15
"""Bytes a second between a device that is the CPU and the host: nothing is copied there."""


def _llama(hidden: int, feedforward: int, heads: int, layers: int) -> dict[str, Any]:
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": hidden,
        "intermediate_size": feedforward, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }  # fmt: skip


@dataclass(frozen=True)
class _Block:
    """The policy of a run, the tokens of each prompt, and how many it makes."""

    policy: str
    prompt: int
    new: int


_TINY, _TINY_BLOCK = _llama(64, 128, 4, 8), _Block("2,2,100,0,0,100,100,0", 3, 9)
"""A model whose layers take as long as it takes to start what is in them."""

_SMALL, _SMALL_BLOCK = _llama(768, 2048, 12, 3), _Block("24,1,100,0,100,0,100,0", 40, 6)
"""One whose layers compute: about half a second of prefill."""


@dataclass(frozen=True)
class MachineMeasurement:
    """Measured values, and the text of a machine file with it. Rates are what was reached: shares of them are 1."""

    values: dict[str, Any]
    text: str

    @property
    def summary(self) -> str:
        values = self.values
        rates = ", ".join(f"{name} {rate:.3g} FLOP/s" for name, rate in values["flops_per_s"].items())
        copies = f" host to device {values['to_device_bytes_per_s']:.3g} B/s," if values["device"] != "cpu" else ""
        return f"{rates},{copies} disk {values['disk_readers_bytes_per_s']:.3g} B/s"


def measure(
    folder: str | Path | None = None,
    device: str | None = None,
    dtype: DType | None = None,
    readers: int = 4,
    disk_bytes: int | None = None,
) -> MachineMeasurement:
    """Times what a run in `dtype` would do on `device` (a device of PyTorch) with files in `folder`, which `readers`
    threads read.

    By default CUDA in f16 where there is a device, else the CPU in f32, and the folder of temporary files. A file in
    the folder has at most `disk_bytes`, 64 MiB and a quarter of what is free there, and is gone afterwards. Takes some
    seconds, 300 MB of the host and as much of the device. Raises where there is no such device or the folder cannot
    be written, ModuleNotFoundError without torch.
    """
    import torch

    if device is not None:
        check_device(device)
    on = torch.device(device or default_device())
    chosen = dtype or (DType.F16 if on.type == "cuda" else DType.F32)
    where = Path(folder or tempfile.gettempdir())
    large = on.type == "cuda"
    with torch.inference_mode():
        values: dict[str, Any] = {
            "device": on.type,
            "dtype": str(chosen),
            "device_memory_bytes": _device_memory(on),
            "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "disk_memory_bytes": shutil.disk_usage(where).free,
            "flops_per_s": {
                str(each): _product(on, each, _ROWS if each is chosen else _FEW_ROWS, large=large)
                for each in _FORMATS
                if _runs(on, each, chosen)
            },
            "weights_bytes_per_s": _weights(on, chosen, large=large),
            "to_device_bytes_per_s": _copy(on, to_device=True) if large else _IN_PLACE,
            "from_device_bytes_per_s": _copy(on, to_device=False) if large else _IN_PLACE,
            "host_attention_bytes_per_s": _attention(torch.device("cpu"), chosen)[0],
            "elementwise_bytes_per_s": _elementwise(on, chosen, large=large),
            "dequantized_per_s": _dequantized(on, chosen),
        }
        values["device_attention_bytes_per_s"], values["attention_row_s"] = _attention(on, chosen)
        values["knee"] = _knee(on, chosen, values["flops_per_s"][str(chosen)], values["weights_bytes_per_s"])
    values |= _disk(where, readers, file_bytes(values["disk_memory_bytes"], disk_bytes), None if large else chosen)
    _, values["layer_overhead_s"] = _layers(on, chosen, _TINY, _TINY_BLOCK)
    values["factors"] = (1.0, 1.0) if large or chosen is DType.F16 else _factors(on, chosen, values)
    return MachineMeasurement(values, _text(values))


def default_device() -> str:
    """The device of PyTorch that a run takes that names none. Raises ModuleNotFoundError without torch."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def file_bytes(free: float, cap: int | None = None) -> int:
    """Bytes of the file that is measured with, in a folder with so many free and with this cap; at least 1 MiB."""
    return max(_LEAST_FILE_BYTES, int(min(_FILE_BYTES, free / 4, _FILE_BYTES if cap is None else cap)))


def _runs(on: torch.device, each: DType, chosen: DType) -> bool:
    return on.type == "cuda" or each is chosen or each is not DType.F16  # f16 may be emulated on a CPU, minutes


def _seconds(run: Callable[[], Any], on: torch.device) -> float:
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


def _product(on: torch.device, dtype: DType, rows: int, *, large: bool) -> float:
    """FLOP/s of large products with weights that are stored the other way round, as a layer has them: one after the
    other, none in a cache from before."""
    rows, size, n = (4096, 8192, 2) if large else (rows, 1024, 2)
    x, weights = _numbers((rows, size), dtype, on), [_numbers((size, size), dtype, on) for _ in range(n)]
    return n * 2 * rows * size * size / _seconds(lambda: [x @ w.t() for w in weights], on)


def _weights(on: torch.device, dtype: DType, *, large: bool) -> float:
    """Bytes a second of weights that a few rows are multiplied with, which is what decode of a small batch does."""
    size, n = (8192, 3) if large else (2048, 6)
    x = _numbers((2, size), dtype, on)
    weights = [_numbers((size, size), dtype, on) for _ in range(n)]

    def run() -> None:
        for w in weights:
            _ = x @ w.t()

    return sum(w.numel() * w.element_size() for w in weights) / _seconds(run, on)


def _knee(on: torch.device, dtype: DType, flops_per_s: float, bytes_per_s: float) -> float:
    """The part of the shorter of reading weights and multiplying with them that the longer does not hide: 0 on a device
    that reads the next while it multiplies, 1 or more on one that does one after the other. The median about the number
    of rows for which both take as long."""
    size, n = 2048, 6 if on.type == "cuda" else 3
    weights = [_numbers((size, size), dtype, on) for _ in range(n)]
    read = size * size * weights[0].element_size() / bytes_per_s
    alike = read * flops_per_s / (2 * size * size)

    def exposed(rows: int) -> float:
        x, products = _numbers((rows, size), dtype, on), 2 * rows * size * size / flops_per_s
        taken = _seconds(lambda: [x @ w.t() for w in weights], on) / n
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
"""What is no product in a layer whose feedforward is four times as wide."""


def _elementwise(on: torch.device, dtype: DType, *, large: bool) -> float:
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
    seconds = _seconds(lambda: block.run(Values(dict(given), common)), on)
    return rows * (13 * width + 8 * wide) * dtype.bits / 8 / seconds


def _copy(on: torch.device, *, to_device: bool) -> float:
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
        return nbytes / _seconds(lambda: target.copy_(source, non_blocking=True), on)
    finally:
        memory.close()


_LONG_CACHES, _SHORT_CACHES = (16, 256, 2), (32, 32, 8)
"""Rows, positions and layers of caches that are attended to: as many bytes of both, too many to be in a cache of the
processor when their turn comes again."""

_ATTENDING = 8
"""Heads of what attends."""


def _attention(on: torch.device, dtype: DType) -> tuple[float, float]:
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
    return nbytes, _seconds(lambda: [compute(operation, [q, *kept], [result], on) for kept in caches], on)


def _dequantized(on: torch.device, dtype: DType) -> float:
    """Numbers a second that are brought from 4 bits."""
    from shardwright.backends.torch.quantization import dequantize, quantize
    from shardwright.backends.torch.tensors import held_as

    size = 2048
    coded = quantize(_numbers((size, size), dtype, on))
    return size * size / _seconds(lambda: dequantize(coded, size, held_as(dtype)), on)


def _shares(dtype: DType, read: Callable[[], None]) -> float:
    """Where the device is the CPU: of the shorter of computation and reading, the part that the longer does not hide;
    more than 1 where they are in each other's way."""
    import torch

    cpu = torch.device("cpu")
    x, w = _numbers((64, 1024), dtype, cpu), _numbers((1024, 1024), dtype, cpu)
    products = 1

    def computed() -> None:
        with torch.inference_mode():
            for _ in range(products):
                _ = x @ w.t()

    reading = _seconds(read, cpu)
    products = max(1, round(reading / _seconds(computed, cpu)))
    alone = _seconds(computed, cpu), reading

    def both() -> None:
        thread = threading.Thread(target=read)
        thread.start()
        computed()
        thread.join()

    return max(0.0, (_seconds(both, cpu) - max(alone)) / min(alone))


def _disk(folder: Path, readers: int, nbytes: int, dtype: DType | None) -> dict[str, float]:
    """Bytes a second of writing, and of reading by one reader and by several, past the page cache and through it; and,
    with the format of computations where these are the CPU's, what reading takes of them."""
    import torch

    from shardwright.backends.torch.disk import Readers, page_aligned

    data = torch.empty(nbytes // 8, dtype=torch.int64).random_().view(torch.uint8)
    nbytes = data.numel()
    rates = {"shares_device": 0.0}
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        file.write(data.numpy().data)
        file.flush()
        os.fsync(file.fileno())
        rates["disk_write_bytes_per_s"] = nbytes / (time.perf_counter() - began)
        del data
        target = page_aligned(nbytes)
        for name, threads, direct in (
            ("disk_read_bytes_per_s", 1, True),
            ("disk_readers_bytes_per_s", readers, True),
            ("page_cache_bytes_per_s", readers, False),
        ):
            pool = Readers(threads, direct=direct)
            try:
                opened = pool.open(file.name)
                run = pool.jobs(opened, "what is measured", target, 0)
                rates[name] = nbytes / _seconds(lambda pool=pool, run=run: pool.run(run), torch.device("cpu"))
                if not direct and dtype is not None:
                    rates["shares_device"] = _shares(dtype, lambda pool=pool, run=run: pool.run(run))
            finally:
                pool.close()
    return rates


def _factors(on: torch.device, dtype: DType, values: Mapping[str, Any]) -> tuple[float, float]:
    """Times what its parts take alone, the seconds of a layer in prefill and in decode: new memory for each result,
    operands that no cache has."""
    from shardwright.cost.hardware.runtimes import load_runtime
    from shardwright.cost.offloading.policy import parse_policy
    from shardwright.cost.offloading.times import computation
    from shardwright.ir.mesh import ONE_CHIP
    from shardwright.models.importing import import_model
    from shardwright.prediction.offloading import setting_of

    model = import_model(_SMALL, "ws1d", ONE_CHIP, 1, 1).model
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, MEASURED_FILE)
        file.write_text(_text({**values, "factors": (1.0, 1.0)}), encoding="utf-8")
        machine = load_machine(str(file))
    policy, prompt, new = parse_policy(_SMALL_BLOCK.policy), _SMALL_BLOCK.prompt, _SMALL_BLOCK.new
    setting = setting_of(model, machine, load_runtime("ours"), prompt, new, dtype=dtype)
    sizes = setting.sizes
    taken = _layers(on, dtype, _SMALL, _SMALL_BLOCK)
    alone = [
        sum(
            computation(sizes, policy, setting.runtime, setting.rates, part, tokens, context).device
            for part in (sizes.attention, sizes.feedforward)
        )
        for tokens, context in ((prompt, prompt), (1, prompt + new // 2))
    ]
    prefill, decode = (seconds / each for seconds, each in zip(taken, alone, strict=True))
    return prefill, decode


def _layers(on: torch.device, dtype: DType, config: dict[str, Any], block: _Block) -> tuple[float, float]:
    """Seconds that a layer of one batch takes, in prefill and in decode."""
    from shardwright.backends.torch.event_threads import TimedEvent
    from shardwright.cost.offloading.policy import parse_policy
    from shardwright.cost.programs.unrolling import Action
    from shardwright.models.dummy_checkpoint import write_dummy
    from shardwright.serving.generation.prompts import make_prompts
    from shardwright.serving.generation.settings import GenerationSettings
    from shardwright.serving.offloading.request import OffloadRequest
    from shardwright.serving.offloading.run import OffloadedModel

    of_layers: dict[tuple[tuple[str, int], ...], float] = {}

    def observe(timed: TimedEvent) -> None:
        trips = dict(timed.event.trips)
        if timed.event.action is Action.COMPUTE and "N" in trips and ("M" in trips or not trips.get("token")):
            of_layers[timed.event.trips] = of_layers.get(timed.event.trips, 0.0) + timed.end - timed.begin

    policy = parse_policy(block.policy)
    with tempfile.TemporaryDirectory() as folder:
        write_dummy(Path(folder), config, dtype)
        request = OffloadRequest(policy, dtype=dtype, device=str(on))
        prompts = make_prompts([[1] * block.prompt] * policy.block, config["vocab_size"], None)
        settings = GenerationSettings(max_new_tokens=block.new)
        with OffloadedModel(folder, request, prompts, settings, observe=observe) as model:
            list(model.completions())
    prefill = [seconds for trips, seconds in of_layers.items() if not dict(trips).get("token")]
    decode = [seconds for trips, seconds in of_layers.items() if dict(trips).get("token")]
    return median(prefill), median(decode)


def _device_memory(on: torch.device) -> float:
    import torch

    if on.type == "cuda":
        cuda: Any = torch.cuda
        return float(cuda.get_device_properties(on).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _text(values: dict[str, Any]) -> str:
    rates = "".join(f"{name} = {rate:.4g}\n" for name, rate in values["flops_per_s"].items())
    shared = values["device"] == "cpu"
    memory = values["host_memory_bytes"] / (2 if shared else 1)
    device = memory if shared else values["device_memory_bytes"]
    attention = values["weights_bytes_per_s"] / values["device_attention_bytes_per_s"]
    return f"""\
# Measured by shardwright calibrate --offloading in {values["dtype"]}: rates are what was reached.
name = "this-machine"

[chip]
name = "this-machine"
memory = "{device:.0f} B"
memory_bytes_per_s = {values["weights_bytes_per_s"]:.4g} # of weights that a few rows are multiplied with

[chip.flops_per_s]
{rates}
[chip.interconnect]
kind = "switched"

[[chip.interconnect.levels]]
name = "one device"
units = 1
egress_bytes_per_s = {values["to_device_bytes_per_s"]:.4g}
latency_s = 0
messages = "direct"

[host]
memory = "{memory:.0f} B"{" # half, where the device is the host itself" if shared else ""}
memory_bytes_per_s = {values["host_attention_bytes_per_s"]:.4g} # of a cache that the host attends to

[host_link]
to_device_bytes_per_s = {values["to_device_bytes_per_s"]:.4g}
from_device_bytes_per_s = {values["from_device_bytes_per_s"]:.4g}

[disk]
memory = "{values["disk_memory_bytes"]:.0f} B"
read_bytes_per_s = {values["disk_readers_bytes_per_s"]:.4g}
write_bytes_per_s = {values["disk_write_bytes_per_s"]:.4g}
read_limit_bytes_per_s = {values["page_cache_bytes_per_s"]:.4g} # through the page cache

[runtimes.ours]
matmul = 1
memory = 1
link = 1
host_attention = {0 if shared else 1}{" # the device is the host" if shared else ""}
disk_read = 1
disk_write = 1
store_hidden = 1
cache_passes = {attention:.4g} # attention on the device, against reading weights
attention_row_s = {values["attention_row_s"]:.4g} # a row of queries of one head, beside its scores
prefill_factor = {values["factors"][0]:.4g} # a layer, times what its parts take alone
decode_factor = {values["factors"][1]:.4g}
elementwise = {values["weights_bytes_per_s"] / values["elementwise_bytes_per_s"]:.4g}
knee = {values["knee"]:.3g}
quantization_bytes = {values["weights_bytes_per_s"] / values["dequantized_per_s"]:.4g}
step_overhead_s = {values["layer_overhead_s"] / 2:.4g} # of attention and of the feedforward layer, for each batch
shares_device = {values["shares_device"]:.3g}

[sources]
measured = "shardwright calibrate --offloading on {values["device"]}"
disk = "one reader alone gets {values["disk_read_bytes_per_s"]:.3g} B/s"
"""


def _main(asked: dict[str, Any]) -> None:
    """Writes the machine file of what `this_machine` asks for into its folder, and removes the folder where the process
    that asked is gone."""
    parent, folder = os.getppid(), asked["folder"]
    try:
        found = measure(folder, asked["device"], DType(asked["dtype"]), asked["readers"], asked["disk_bytes"])
        Path(folder, MEASURED_FILE).write_text(found.text, encoding="utf-8")
    finally:
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
