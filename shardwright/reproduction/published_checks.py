"""Table 1 of Pope et al. (2022) and the figures of Chen (2022), beside what programs give for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from shardwright.cost.hardware.chips import Chip, NetworkLevel, Switched, load_chip
from shardwright.cost.hardware.constants import Constants
from shardwright.cost.programs.program_cost import Cost
from shardwright.ir.mesh import Mesh
from shardwright.models.built_in import built_in
from shardwright.models.layouts import AttentionOver
from shardwright.prediction.fitting import decode_memory
from shardwright.prediction.models import torus_mesh
from shardwright.prediction.phases import phase_cost
from shardwright.prediction.programs import Deployment, Phase
from shardwright.reproduction.checks import Check, published_lines

_CACHE_SHARE = 0.3
_VARIANTS = {"mha": "palm-540b-multihead", "mqa": "palm-540b-64-heads"}


def table_1() -> list[Check]:
    """The longest context in 30 % of the memory of 64 TPU v4. The paper rounds to three digits: 2 % apart at most."""
    chip = load_chip("tpu-v4")
    made: list[Check] = []
    for line in published_lines("pope2022_table_1.csv"):
        attention: AttentionOver = "batch" if line["kv_sharding"] == "batch" else "head"
        model = built_in(_VARIANTS[line["attention"]]).model
        deployment = Deployment(model, torus_mesh(chip, 64), "ws2d", attention, decomposed=True)
        batch = int(line["batch"])
        one, two = (decode_memory(deployment, batch, positions).state for positions in (1, 2))
        longest = int(_CACHE_SHARE * chip.memory_bytes // (two - one))
        statement = f"{line['variant']}, {attention}, batch {batch}: longest context, positions"
        row = f"{line['variant']} batch {batch}"
        made.append(Check("1", row, statement, float(line["max_context"]), longest, 0.02))
    return made


# ---------------------------------------------------------------- Chen

_CHEN = Constants(unoverlapped=0.0)
"""His arithmetic: the longer of compute and memory, at the datasheet's rates."""


def _article_chip() -> Chip:
    """His A100: 1.5e12 B/s, and 300 GB/s each way between any two."""
    chip = load_chip("a100-40g")
    between = Switched((NetworkLevel("NVLink", None, 3e11, 8e-6, "direct"),))
    return replace(chip, memory_bytes_per_s=1.5e12, interconnect=between, calibrated=None)


def _call(model: str, n: int, phase: Phase, batch: int, length: int, context: int, chip: Chip, how: Constants) -> Cost:
    deployment = Deployment(built_in(model).model, Mesh.of(x=n), "megatron", "head", decomposed=True)
    return phase_cost(deployment, chip, phase, batch, length, context, how)


def _step(model: str, n: int, batch: int = 1) -> Cost:
    return _call(model, n, "decode", batch, 1, 1, _article_chip(), _CHEN)


def _critical_batch() -> float:
    chip = _article_chip()
    return chip.rate("bf16") / chip.memory_bytes_per_s


def _capacity(n: int) -> float:
    """Positions whose keys and values fit beside 2 bytes for each of 52e9 weights."""
    return (n * load_chip("a100-40g").memory_bytes - 2 * 52e9) / _kv_bytes()


def _kv_bytes() -> float:
    deployment = Deployment(built_in("chen-52b").model, Mesh.of(x=1), "megatron", "head", decomposed=True)
    one, two = (decode_memory(deployment, 1, positions).state for positions in (1, 2))
    return float(two - one)


def _measured(phase: Phase, n: int) -> float:
    # As FasterTransformer's rows of Pope et al. say that an A100 of 40 GB runs.
    chip = replace(load_chip("a100-40g"), calibrated=load_chip("a100-80g").calibrated)
    return 1e3 * _call("chen-13b", n, phase, 1, 512, 512, chip, chip.constants).time_s


def _transfer(model: str, n: int, batch: int) -> float:
    """Without latencies, as he drops them at large batches."""
    cost = _step(model, n, batch)
    return 1e3 * sum(kernel.demand.transfer_s * kernel.work.trips for kernel in cost.kernels)


_ANALYTIC, _TIMED = 0.06, 0.25
_CHEN_FIGURES: dict[str, tuple[Callable[[], float], float, str]] = {
    "critical_batch": (_critical_batch, 0.01, ""),
    "w52b_forward": (lambda: 1e3 * _step("chen-52b", 1).memory_s, _ANALYTIC, ""),
    "kv_52b": (_kv_bytes, 0.0, ""),
    "kv_capacity_3": (partial(_capacity, 3), 0.06, "he rounds; 7629"),
    "kv_capacity_4": (partial(_capacity, 4), 0.2, "a slip of his: (160 - 104) GB are 26,700 positions"),
    "decode_260b_small": (lambda: 1e3 * _step("chen-260b", 16).memory_s, _ANALYTIC, ""),
    "decode_260b_512_compute": (lambda: 1e3 * _step("chen-260b", 16, 512).compute_s, _ANALYTIC, ""),
    "decode_260b_512_comm": (partial(_transfer, "chen-260b", 16, 512), 0.1, "with the factor (K-1)/K that he drops"),
    "decode_13b_1gpu_pred": (lambda: 1e3 * _step("chen-13b", 1).memory_s, _ANALYTIC, ""),
    "decode_13b_1gpu_meas": (partial(_measured, "decode", 1), _TIMED, "FasterTransformer's constants of table D.2"),
    "decode_13b_2gpu_meas": (partial(_measured, "decode", 2), _TIMED, "FasterTransformer's constants of table D.2"),
    "prefill_13b_1gpu_meas": (partial(_measured, "prefill", 1), _TIMED, "FasterTransformer's constants of table D.2"),
    "prefill_13b_2gpu_meas": (partial(_measured, "prefill", 2), _TIMED, "FasterTransformer's constants of table D.2"),
    "decode_52b_b256_compute": (lambda: 1e3 * _step("chen-52b", 4, 256).compute_s, _ANALYTIC, ""),
    "decode_52b_b256_comm": (
        partial(_transfer, "chen-52b", 4, 256),
        0.35,
        "3.6 rounded, and without his missing factor 3/4",
    ),
}
"""For each figure what predicts it, how far it may be off (his arithmetic leaves the embeddings out and rounds), and a
remark."""


def chen() -> list[Check]:
    """Every figure of the article."""
    made: list[Check] = []
    for line in published_lines("chen2022_inference_arithmetic.csv"):
        predict, tolerance, remark = _CHEN_FIGURES[line["id"]]
        statement = f"{line['statement']}, {line['unit']}"
        measured = line["id"].endswith("_meas")
        check = Check("chen", line["id"], statement, float(line["value"]), predict(), tolerance, remark, measured)
        made.append(check)
    return made
