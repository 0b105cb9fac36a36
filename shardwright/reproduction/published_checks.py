"""Table 1 of Pope et al. (2022) and the figures of Chen (2022), beside what programs give for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from shardwright.cost.hardware.chips import Chip, load_chip
from shardwright.cost.hardware.constants import Constants
from shardwright.cost.hardware.networks import NetworkLevel, Switched
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


@dataclass(frozen=True)
class LongestContext:
    """A row of table 1: `published` positions of `batch` sequences each."""

    row: str
    statement: str
    published: int
    deployment: Deployment
    batch: int

    def positions(self, bytes_per_position: float) -> int:
        """The positions that fit, where a chip holds so many bytes of each."""
        chip = load_chip("tpu-v4")
        return int(_CACHE_SHARE * (chip.memory_bytes + chip.reserved_bytes) // bytes_per_position)


def longest_contexts() -> list[LongestContext]:
    """The rows of table 1."""
    made: list[LongestContext] = []
    for line in published_lines("pope2022_table_1.csv"):
        attention: AttentionOver = "batch" if line["kv_sharding"] == "batch" else "head"
        model, mesh = built_in(_VARIANTS[line["attention"]]).model, torus_mesh(load_chip("tpu-v4"), 64)
        deployment = Deployment(model, mesh, "ws2d", attention, decomposed=True)
        batch = int(line["batch"])
        statement = f"{line['variant']}, {attention}, batch {batch}: longest context, positions"
        row = f"{line['variant']} batch {batch}"
        made.append(LongestContext(row, statement, int(line["max_context"]), deployment, batch))
    return made


def table_1() -> list[Check]:
    """The longest context in 30 % of the memory of 64 TPU v4. The paper rounds to three digits: 2 % apart at most."""
    made: list[Check] = []
    for case in longest_contexts():
        one, two = (decode_memory(case.deployment, case.batch, positions).state for positions in (1, 2))
        made.append(Check("1", case.row, case.statement, case.published, case.positions(two - one), 0.02))
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


def kv_capacity(n: int, kv_bytes: float) -> float:
    """Positions whose keys and values, of so many bytes, fit on n A100s beside 2 bytes for each of 52e9 weights."""
    return (n * load_chip("a100-40g").memory_bytes - 2 * 52e9) / kv_bytes


def chen_52b(n: int) -> Deployment:
    """His 52B on n chips."""
    return Deployment(built_in("chen-52b").model, Mesh.of(x=n), "megatron", "head", decomposed=True)


def _kv_bytes() -> float:
    one, two = (decode_memory(chen_52b(1), 1, positions).state for positions in (1, 2))
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
    "kv_capacity_3": (lambda: kv_capacity(3, _kv_bytes()), 0.06, "he rounds; 7629"),
    "kv_capacity_4": (lambda: kv_capacity(4, _kv_bytes()), 0.2, "a slip of his: (160 - 104) GB are 26,700 positions"),
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
