"""The price of grouped products: rows times the experts that they chose, and the experts that can be expected."""

from __future__ import annotations

from pathlib import Path

import pytest
from models.checkpoints import config_of
from program_text import by_bytes, program

from shardwright import fit, plan
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.kernels.work import Work, work_of
from shardwright.cost.programs.program_cost import cost_of
from shardwright.models.architectures import describe
from shardwright.models.built_in import BuiltIn
from shardwright.models.config import Config
from shardwright.models.token_groups import ExpertsForm
from shardwright.passes.compiling.choosing import search
from shardwright.passes.pipelines import parse_pipeline, run_passes
from shardwright.prediction.models import active_parameters, parameters_of, torus_mesh
from shardwright.prediction.phases import phase_cost
from shardwright.prediction.programs import Deployment

HEAD = "mesh x=2 y=4\ndim B=8 L=4 A=2 X=16 E=64 F=128\n"
CHOICES = 8 * 4 * 2


def of(x: str, w: str, expert: str, result: str, head: str = HEAD) -> Work:
    text = f"func f(x: {x}, w: {w}, expert: int32 {expert}) -> {result} {{\n  o = grouped[X, E](x, w, expert)\n"
    made = by_bytes(program(f"{head}{text}  return o\n}}\n"))
    return next(work for work in work_of(made, made.func("f")) if work.operation == "grouped")


def read(experts: float, size: int, choices: int) -> float:
    """Bytes of so many experts in bf16 of which so many choices are made, of 16."""
    return 2 * size * experts * (1 - (15 / 16) ** choices)


def test_whole() -> None:
    work = of("BLE", "XEF", "BLA", "BLAF")
    assert work.flops == 2 * CHOICES * 64 * 128
    known = dict(work.reads)
    assert known["w"] == round(read(16, 64 * 128, CHOICES))
    assert (known["x"], known["expert"], work.bytes_written) == (2 * 32 * 64, 4 * CHOICES, 2 * CHOICES * 128)


def test_rows_of_a_chip_draw_fewer_experts() -> None:
    work = of("B_yLE", "XEF_x", "B_yLA", "B_yLAF_x")
    assert work.flops == 2 * (CHOICES // 4) * 64 * (128 // 2)
    assert dict(work.reads)["w"] == round(read(16, 64 * 64, CHOICES // 4))


def test_split_experts_compute_their_share_of_the_rows() -> None:
    work = of("BLE", "X_yEF_x", "BLA", "BLAF_x(partialsum-y)")
    assert work.flops == 2 * (CHOICES // 4) * 64 * 64
    assert dict(work.reads)["w"] == round(read(4, 64 * 64, CHOICES))
    assert work.bytes_written == 2 * CHOICES * 64  # zeros for the rows of others, too


def test_summed_split() -> None:
    work = of("BLE_y", "XE_yF", "BLA", "BLAF(partialsum-y)")
    assert work.flops == 2 * CHOICES * 16 * 128


def test_a_share_of_rows_that_is_none_is_one() -> None:
    work = of("BLE", "X_yEF", "BLA", "BLAF(partialsum-y)", HEAD.replace("B=8 L=4", "B=1 L=1"))
    assert work.flops == 2 * 1 * 64 * 128
    assert dict(work.reads)["w"] == round(read(4, 64 * 128, 2))


LAYER = """
mesh x=2 y=2
dim B=16 L=1 A=2 X=8 E=512 F=1024 N=2
weights {
  w_up: bf16 NXEF?
  w_down: bf16 NXFE?
}
func f(x: bf16 BLE_xy, expert: int32 BLA, share: bf16 BLA) -> bf16 BLE_xy {
  y: BLE_xy = loop[N](h: BLE_xy = x) {
    inner = silu(grouped[X, E](h, w_up, expert))
    fed = grouped[X, F](inner, w_down, expert) @[A] share
    next h + fed
  }
  return y
}
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("passes", ["", "quantize-weights", "quantize-weights{bits=4}"])
@pytest.mark.parametrize("chip", ["h100", "tpu-v4"])
@pytest.mark.parametrize("experts", ["?", "_y"])
def test_the_choice_is_priced_as_its_program(chip: str, passes: str, experts: str) -> None:
    """`search` holds the two prices against each other itself; the second layouts split the experts."""
    text = LAYER if experts == "?" else LAYER.replace("NXEF?", "NX_yEF_x").replace("NXFE?", "NX_yF_xE")
    before = run_passes(program(text), parse_pipeline(passes)) if passes else program(text)
    known = load_chip(chip)
    found = search(before, Objective(known, known.constants, {}), 10)
    total = sum(cost_of(found.program, func, known).time_s for func in found.program.funcs)
    assert sum(cost.time_s for cost in found.costs) == pytest.approx(total, rel=1e-12)


def test_int8_reads_half_and_widens_what_is_read() -> None:
    text = HEAD + (
        "func f(x: BLE, w: int8 XEF, expert: int32 BLA) -> BLAF {\n"
        "  wide = convert[bf16](w)\n  o = grouped[X, E](x, wide, expert)\n  return o\n}\n"
    )
    made = by_bytes(program(text))
    (work,) = work_of(made, made.func("f"))
    elements = read(16, 64 * 128, CHOICES) / 2
    assert (dict(work.reads)["w"], work.widened) == (round(elements), round(elements))


# ---------------------------------------------------------------- models by name

MIXTRAL = BuiltIn("mixtral", describe(Config(config_of("mixtral", num_local_experts=8))), 1.0, "")


def prefill(experts: ExpertsForm) -> int:
    """The flops of a prefill of 2 prompts of 64 tokens."""
    chip = load_chip("h100")
    deployment = Deployment(MIXTRAL.model, torus_mesh(chip, 2), "megatron", "head", experts=experts)
    return phase_cost(deployment, chip, "prefill", 2, 64, 64).flops_per_chip


def test_routed_experts_compute_a_share_of_the_work() -> None:
    """With 2 of 8 experts chosen, the three products of all are 4 times those of the chosen ones."""
    model = MIXTRAL.model
    routed = 3 * 2 * (2 * 64 * 2) * model.hidden * (model.feedforward.size // 2) * model.layers
    weighted = 2 * (2 * 64 * 2) * model.hidden * model.layers  # the sum of the chosen experts' results
    assert prefill("replicated") - prefill("routed") == 3 * routed - weighted


def test_parameters_that_a_token_meets() -> None:
    model, every = MIXTRAL.model, parameters_of(MIXTRAL.model)
    of_experts = 8 * 3 * model.hidden * model.feedforward.size * model.layers
    found = BuiltIn("mixtral", model, every, "")
    assert active_parameters(found) == every - of_experts * 3 / 4
    chip = load_chip("h100")
    deployment = Deployment(model, torus_mesh(chip, 2), "megatron", "head")
    assert phase_cost(deployment, chip, "decode", 2, 1, 64).parameters == active_parameters(found)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    import json

    folder: Path = tmp_path_factory.mktemp("mixtral")
    wide = {"hidden_size": 512, "intermediate_size": 1024, "num_local_experts": 8, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config_of("mixtral", **wide)))
    return str(folder)


@pytest.mark.slow
def test_plan_and_fit_take_either_form(config: str) -> None:
    flops: dict[str, int] = {}
    for form in ("routed", "replicated"):
        made = plan(config, "h100", 2, 128, 32, batch=16, seconds=2, experts=form)
        flops[form] = made.best.costs["decode"].flops_per_chip
        assert fit(config, "h100", chips=2, experts=form).fits
    assert flops["replicated"] > 2 * flops["routed"]
