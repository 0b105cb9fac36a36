"""`plan`: the figures are those of the program that it writes, demands are met or refused, memory binds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.compiling.compile_program import load, print_program
from shardwright.cost.choosing.layout_problem import PlacementOptions, Within
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.choosing.placement import Solver
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.cost.hardware.chips import Chip, chip_text, load_chip
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.models.built_in import built_in, built_in_names
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.found import SearchResult
from shardwright.passes.pipelines import run_passes
from shardwright.planning import (
    ServingDemand,
    ServingPlan,
    plan,
    plan_meshes,
    serving_program,
)
from shardwright.planning.page import page
from shardwright.planning.planner import halved, rounded_up
from shardwright.prediction.models import active_parameters, model_of

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 512,
    "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2,
    "vocab_size": 4096, "max_position_embeddings": 1024,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def small(name: str = "h100", gigabytes: float = 0.6) -> Chip:
    return replace(load_chip(name), memory_bytes=gigabytes * 1e9, inherited=None)


@pytest.fixture(scope="module")
def made(model: str) -> ServingPlan:
    return plan(model, small(), 2, 256, 64, batch=64, seconds=3)


@pytest.fixture
def first_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search of a plan ends with its first choice, whatever time there is: nothing here needs a proof."""

    def hurried(program: Program, objective: Objective, seconds: float, known: SearchResult | None) -> SearchResult:
        return search(program, objective, min(seconds, 0.01), known=known)

    monkeypatch.setattr("shardwright.planning.planner.search", hurried)


def test_times_and_memory_are_those_of_the_program(made: ServingPlan) -> None:
    program = load(Source("plan", print_program(made.best.found.program)))
    best, chip = made.best, made.best.demand.chip
    priced = {func.name: cost_of(program, func, chip) for func in program.funcs}
    assert priced["prefill"].time_s == best.ttft_s
    assert priced["decode"].time_s == best.tpot_s
    assert max(cost.memory.peak for cost in priced.values()) == best.found.peak <= chip.memory_bytes
    sizes = {dim.name: dim.size for dim in program.dims}
    assert (sizes["B"], sizes["B1"], sizes["L"], sizes["T"]) == (best.batch, best.prompts, 256, 320)
    fills = best.batch / best.prompts
    seconds = fills * (best.ttft_s + priced["adopted_logits"].time_s) + 63 * best.tpot_s
    seconds += best.batch * priced["adopt"].time_s
    assert best.tokens_per_s == pytest.approx(best.batch * 64 / seconds)


@pytest.mark.usefixtures("first_choices")
def test_more_rows_than_fit(made: ServingPlan, model: str) -> None:
    assert made.binding == "batch"
    assert made.next_best is None or made.next_best.tokens_per_s <= made.best.tokens_per_s
    with pytest.raises(DiagnosticError, match="does not fit on 2 h100 with 4096 sequences of 320 positions"):
        plan(model, small(), 2, 256, 64, batch=4096, seconds=2)


@pytest.mark.usefixtures("first_choices")
def test_time_per_token_is_met_and_binds(model: str) -> None:
    most = 6e-5
    held = plan(model, small(gigabytes=8), 2, 256, 64, tpot=most, seconds=4)
    assert held.best.tpot_s <= most
    assert held.binding == "tpot"


@pytest.mark.usefixtures("first_choices")
def test_bounds_are_of_the_calls_that_there_are(model: str) -> None:
    """Layouts that a demand on a phase asks for are looked for as if it were called more often: what is proved of those
    calls is no bound of fewer."""
    chip = load_chip("h100")
    free = plan(model, chip, 4, 256, 2, batch=64, seconds=1)
    held = plan(model, chip, 4, 256, 2, batch=64, tpot=0.97 * free.best.tpot_s, seconds=1).best
    assert held.tpot_s < free.best.tpot_s
    assert held.ttft_s > free.best.ttft_s
    assert all(held.bounds[phase] <= cost.time_s for phase, cost in held.costs.items())


@pytest.mark.usefixtures("first_choices")
def test_more_rows_that_gain_nothing_lack_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the rows took too long, one and a half times as many gained nothing: `tpot` was said to bind."""
    monkeypatch.setattr("shardwright.planning.planner._GAIN", 100.0)
    chip = small(gigabytes=8)
    enough = plan(model, chip, 2, 256, 64, batch=1536, seconds=2).best.tpot_s
    held = plan(model, chip, 2, 256, 64, tpot=1.1 * enough, seconds=10)
    assert (held.best.batch, held.binding) == (1024, "memory-bandwidth")


@pytest.mark.usefixtures("first_choices")
def test_time_to_first_token_is_met(made: ServingPlan, model: str) -> None:
    most = made.best.ttft_s / 3
    held = plan(model, small(), 2, 256, 64, batch=64, ttft=most, seconds=3)
    assert held.best.ttft_s <= most
    assert held.best.prompts < made.best.prompts


@pytest.mark.usefixtures("first_choices")
@pytest.mark.parametrize(
    ("demand", "said"),
    [
        (
            "ttft",
            "the time to first token of LlamaForCausalLM on 2 h100 is {} s for 1 prompt, and 1e-07 s is asked for",
        ),
        (
            "tpot",
            "the time per output token of LlamaForCausalLM on 2 h100 is {} s for 1 sequence, and 1e-07 s is asked",
        ),
    ],
)
def test_a_demand_that_cannot_be_met(demand: str, said: str, model: str) -> None:
    asked = {"ttft": None, "tpot": None} | {demand: 1e-7}
    with pytest.raises(DiagnosticError) as caught:
        plan(model, small(), 2, 256, 64, ttft=asked["ttft"], tpot=asked["tpot"], seconds=3)
    found = caught.value.diagnostics[0]
    assert found.code == "cannot-meet"
    before, after = said.split("{}")
    assert found.message.startswith(before)
    assert after in found.message
    assert "alone takes" in found.message
    assert found.notes[-1].message.startswith(f"or ask for --{demand} ")


@pytest.mark.usefixtures("first_choices")
def test_a_model_that_is_too_large(model: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        plan(model, small(gigabytes=0.02), 1, 256, 64, seconds=3)
    found = caught.value.diagnostics[0]
    assert found.code == "does-not-fit"
    assert "does not fit on 1 h100 with 1 sequence of 320 positions" in found.message
    assert [note.message for note in found.notes][-1] == "--weights int8 halves what the weights take"


@pytest.mark.usefixtures("first_choices")
def test_a_model_that_is_too_large_for_all_chips() -> None:
    with pytest.raises(DiagnosticError) as caught:
        plan("llama-3-70b", "t4", 4, 500, 100, seconds=2)
    assert [note.message for note in caught.value.diagnostics[0].notes] == [
        "its weights alone take 141 GB, and the most of these chips, 8, have 137 GB: take larger ones"
    ]


@pytest.mark.usefixtures("first_choices")
def test_weights_that_fit_on_another_mesh_alone(model: str) -> None:
    """48 chips were refused, since 12 rows of 4 divide the weights into 4 parts; 3 rows of 16 divide them into 16."""
    served = plan(model, small(gigabytes=0.0028), 48, 16, 4, batch=1, seconds=2).best
    assert served.mesh.n_chips == 48
    assert served.mesh.sizes[0] == ("x", 3)


@pytest.mark.usefixtures("first_choices")
def test_weights_that_the_chips_cannot_divide(model: str) -> None:
    """It was said that caches would be smaller with a shorter prompt, and that int8 would halve the weights."""
    chip = small(gigabytes=0.0028)
    with pytest.raises(DiagnosticError) as caught:
        plan(model, chip, 12, 16, 4, batch=1, seconds=2)
    (note,) = caught.value.diagnostics[0].notes
    assert note.message.startswith("a chip would hold 6.")
    assert note.message.endswith("of weights, since its sizes divide over few chips alone; 16 chips may do")
    assert plan(model, chip, 16, 16, 4, batch=1, seconds=2).best.found.peak <= 2.8e6


@pytest.mark.usefixtures("first_choices")
def test_caches_that_are_too_large(model: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        plan(model, small(), 2, 256, 10**8, batch=4, seconds=3)
    assert caught.value.diagnostics[0].notes[0].message == (
        "caches are smaller with a shorter --prompt or --output, or a smaller --batch"
    )


@pytest.mark.parametrize("seconds", [0.0112, 0.00728, 3.141, 99.5, 1.0])
def test_the_time_to_ask_for_is_no_less_than_what_it_takes(seconds: float) -> None:
    assert seconds <= float(rounded_up(seconds)) <= 1.1 * seconds


def test_without_time_it_keeps_to_what_a_plan_needs(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each phase alone, both together, and one that is the next best; each search as short as there are."""
    asked: list[float] = []

    def counted(program: Program, objective: Objective, seconds: float, known: SearchResult | None) -> SearchResult:
        asked.append(seconds)
        return search(program, objective, seconds, known=known)

    monkeypatch.setattr("shardwright.planning.planner.search", counted)
    hurried = plan(model, small(gigabytes=8), 8, 256, 64, seconds=0)
    assert len(asked) == 5
    assert hurried.next_best is not None
    assert max(asked) <= 0.5
    assert hurried.best.found.peak <= 8e9


def test_without_time_weights_are_stored_as_decode_alone_has_them(model: str) -> None:
    chip, hurried = small(gigabytes=8), plan(model, small(gigabytes=8), 8, 256, 64, batch=128, seconds=0)
    demand = hurried.best.demand
    alone = search(serving_program(demand, hurried.best.mesh, 128, phase="decode"), Objective.on(chip))
    stored = {value.name: value.type for value in hurried.best.found.program.weights}
    assert stored == {value.name: value.type for value in alone.program.weights}
    longer = plan(model, chip, 8, 256, 64, batch=128, seconds=4)
    assert longer.best.tokens_per_s >= hurried.best.tokens_per_s


@pytest.mark.usefixtures("first_choices")
def test_more_positions_than_the_model_has_are_told(model: str) -> None:
    page = str(plan(model, small(), 2, 1000, 64, batch=1, seconds=2))
    assert "positions          1063, more than the model's 1024: it was not made for them\n" in page
    assert "positions" not in str(plan(model, small(), 2, 960, 64, batch=1, seconds=2))


def test_a_chip_by_name(made: ServingPlan, model: str) -> None:
    with pytest.raises(DiagnosticError, match="h1000"):
        plan(model, "h1000", 2, 256, 64)
    assert plan(model, "h100", 2, 256, 64, batch=64, seconds=2).best.demand.chip.name == "h100"
    assert repr(made).splitlines()[2].startswith("tokens per second  ")


@pytest.mark.usefixtures("first_choices")
@pytest.mark.usefixtures("first_choices")
def test_one_new_token_takes_no_step_of_decode(model: str) -> None:
    """It comes out of prefill; a step was counted, as for two."""
    best = plan(model, small(), 2, 256, 1, batch=64, seconds=2).best
    fills = 64 / best.prompts
    of_a_fill = sum(best.costs[func].time_s for func in ("prefill", "adopted_logits"))
    assert best.round_s == pytest.approx(fills * of_a_fill + 64 * best.costs["adopt"].time_s)


def test_prompts_need_not_divide_the_sequences_that_are_given(model: str) -> None:
    """A prefill of 250 sequences had one prompt or two."""
    given = plan(model, small(), 2, 64, 16, batch=250, seconds=3).best
    assert given.prompts >= 8


@pytest.mark.usefixtures("first_choices")
def test_rows_lie_evenly_on_chips_whose_number_is_no_power_of_two(model: str) -> None:
    """All rows were powers of two, which 3 chips cannot divide: two had more tokens a second than three."""
    two, three = (plan(model, small(gigabytes=8), chips, 256, 64, seconds=3).best for chips in (2, 3))
    assert (three.batch % 3, three.prompts % 3) == (0, 0)
    assert three.tokens_per_s > two.tokens_per_s


@pytest.mark.usefixtures("first_choices")
def test_twice_as_many_prompts_are_tried_where_there_are_other_meshes(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of prompts are few and rounded down: on 12 chips 96 took the place of 192, which are better."""
    monkeypatch.setattr("shardwright.planning.planner._MOST_TOKENS", 256)
    best = plan(model, small(gigabytes=8), 4, 64, 16, batch=64, seconds=20).best
    assert best.prompts == 8


@pytest.mark.parametrize(("rows", "half"), [(1, 1), (2, 1), (3, 2), (7, 4), (12, 6), (15, 8)])
def test_half_of_some_rows(rows: int, half: int) -> None:
    assert halved(rows) == half


@pytest.mark.usefixtures("first_choices")
def test_int8_weights(made: ServingPlan, model: str) -> None:
    lighter = plan(model, small(), 2, 256, 64, weights="int8", batch=64, seconds=3)
    assert sum(t.local_bytes(lighter.best.mesh) for _, t in lighter.best.kept("weights")) < 0.7 * sum(
        t.local_bytes(made.best.mesh) for _, t in made.best.kept("weights")
    )


@pytest.mark.usefixtures("first_choices")
@pytest.mark.one_in(2)
@pytest.mark.parametrize("chips", [1, 2])
def test_products_of_8_bits(chips: int, model: str) -> None:
    """They take half the time of those of 16 bits where a chip has a rate for them, and are refused elsewhere."""
    plans = [plan(model, "h100", chips, 4096, 8, weights=stored, batch=64, seconds=3) for stored in ("bf16", "f8e4m3")]
    before, after = (made.best.costs["prefill"] for made in plans)
    assert after.compute_s < 0.75 * before.compute_s
    with pytest.raises(DiagnosticError, match="tpu-v4 has no rate for matrix products in f8e4m3"):
        plan(model, "tpu-v4", 8, 256, 64, weights="f8e4m3", batch=64, seconds=2)


@pytest.mark.parametrize(
    ("chip", "chips", "kv_heads", "first"),
    [
        ("h100", 8, 8, Mesh.of(x=8)),
        ("h100", 16, 8, Mesh.of(x=2, y=8)),
        ("tpu-v4", 64, 1, Mesh.of(x=4, y=4, z=4)),
        ("h100", 1, 8, Mesh.of(x=1)),
        ("h100", 48, 8, Mesh.of(x=6, y=8)),
    ],
)
def test_the_meshes_that_are_tried(chip: str, chips: int, kv_heads: int, first: Mesh) -> None:
    meshes = list(plan_meshes(load_chip(chip), chips, kv_heads))
    assert meshes[0] == first
    assert all(mesh.n_chips == chips for mesh in meshes)
    alike = [tuple(sorted(size for _, size in mesh.items() if size > 1)) for mesh in meshes]
    assert len(set(alike)) == len(alike) <= 4


def test_the_page_counts_one_of_each(made: ServingPlan) -> None:
    demand = replace(made.best.demand, prompt=1, output=1)
    said = page(replace(made, best=replace(made.best, demand=demand)))
    assert said.splitlines()[0].endswith("; prompts of 1 token, 1 new one")


def test_the_page_and_its_program(
    model: str, shardwright: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As text and as JSON, of one search: the two commands ask for the same."""
    asked: list[tuple[Any, ...]] = []
    plans: list[ServingPlan] = []

    def once(*args: Any, **options: Any) -> ServingPlan:
        asked.append((args, options))
        plans[:] = plans or [plan(*args, **options)]
        return plans[0]

    monkeypatch.setattr("shardwright.planning.plan", once)
    out = tmp_path / "plan.shard"
    argv = ("plan", model, "--chip", "h100", "--chips", "2", "--prompt", "128", "--output", "32", "--batch", "16")
    page = shardwright(*argv, "--time-limit", "2", "-o", out)
    assert page.status == 0, page.err
    for word in ("tokens per second", "first token", "each further", "memory", "what limits", "expected error",
                 "prefill: ", "decode: ", "next best: mesh", f"shardwright cost {out} --chip h100"):  # fmt: skip
        assert word in page.out
    assert "measured times 0.9 to 1.36 times these, as of H100 and H200 in published tables" in page.out
    file = tmp_path / "own.toml"
    file.write_text(chip_text("h100"))
    assert page.out.splitlines()[-1] == f"program in {out}: `shardwright cost {out} --chip h100`"
    there = shardwright(*("plan", model, "--chip", file), *argv[4:], "-o", out)
    assert there.out.splitlines()[-1] == f"program in {out}: `shardwright cost {out} --chip {file}`"
    streamed = shardwright(*argv, "-o", "-")
    assert (streamed.out, streamed.err.strip().splitlines()[0]) == (out.read_text(), page.out.splitlines()[0])
    told = json.loads(shardwright(*argv, "--time-limit", "2", "--json", "-o", out).out)
    assert asked[0] == asked[-1]
    assert {
        "chip", "n_chips", "prefill", "decode", "batch", "ttft_s", "tpot_s", "tokens_per_s", "tokens_per_s_per_chip",
        "peak_bytes_per_chip", "expected_error", "binding", "next_best", "program",
    } <= told.keys()  # fmt: skip
    assert told["program"] == out.read_text()
    costs = json.loads(shardwright("cost", out, "--chip", "h100", "--json").out)["functions"]
    times = {cost["func"]: cost["time_s"] for cost in costs}
    assert (times["prefill"], times["decode"]) == (told["ttft_s"], told["tpot_s"])
    assert max(cost["peak_bytes_per_chip"] for cost in costs) == told["peak_bytes_per_chip"]
    assert told["binding"] == "batch"
    assert told["expected_error"] == pytest.approx(0.36)
    exported = shardwright("export", out, "--as", "jax")
    assert exported.status == 0, exported.err
    assert "model.layers.{layer}.self_attn.q_proj.weight" in exported.out


@pytest.mark.parametrize("command", ["plan", "search", "pareto"])
def test_a_place_that_cannot_be_written_is_refused_before_the_search(
    command: str, model: str, shardwright: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for searching in ("planning.plan", "searching.rewriting.search_rewrites", "pareto.sweeping.sweep_points"):
        monkeypatch.setattr(f"shardwright.{searching}", None)
    (tmp_path / "p.shard").write_text("mesh x=2\ndim B=2\nfunc f(a: B) -> B {\n  return a\n}\n")
    (tmp_path / "folder.csv").mkdir()
    argv = {
        "plan": (model, "--chip", "h100", "--chips", "2", "--prompt", "8", "--output", "8"),
        "search": (tmp_path / "p.shard",),
        "pareto": (model, "--chip", "h100", "--chips", "2"),
    }[command]
    for out, said in (("none/a.csv", f"there is no folder {tmp_path}/none"), ("folder.csv", "is a directory")):
        got = shardwright(command, *argv, "-o", tmp_path / out)
        assert (got.status, got.err) == (1, f"{tmp_path / out}: error: {said} [file]\n")


def test_json_and_the_program_are_not_both_on_standard_output(model: str, shardwright: Callable[..., Any]) -> None:
    got = shardwright(
        "plan", model, "--chip", "h100", "--chips", "2", "--prompt", "8", "--output", "8", "-o", "-", "--json"
    )
    assert (got.status, got.err) == (2, "shardwright plan: error: --json needs -o, or no -o at all\n")


def test_which_built_in_models_have_checkpoints(model: str) -> None:
    """The Llamas and DeepSeek-V3: a mapping says where the weights of their checkpoints are."""
    assert {name for name in built_in_names() if built_in(name).model.has_checkpoints} == {
        name for name in built_in_names() if name.startswith(("llama", "deepseek"))
    }
    assert model_of(model).model.modules == built_in("llama-3-8b").model.modules


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("nothing-7b",), "there is no model nothing-7b"),
        (
            ("opt-13b", "--prompt", "2000", "--output", "200"),
            "a prompt of 2000 and 200 new tokens take 2199 positions, and opt-13b has 2048",
        ),
        (("llama-7b", "--chip", "tpu-v4", "--chips", "7"), "no slice of tpu-v4 has 7 chips"),
    ],
)
def test_what_is_refused(argv: tuple[str, ...], said: str, shardwright: Callable[..., Any]) -> None:
    options = {"--chip": "h100", "--chips": "8", "--prompt": "64", "--output": "64"}
    options.update(zip(argv[1::2], argv[2::2], strict=True))
    done = shardwright("plan", argv[0], *(word for pair in options.items() for word in pair))
    assert done.status == 1
    assert said in done.err


def test_problems_of_two_loops_over_one_cache_are_whole_at_once(model: str) -> None:
    """`adopt` and `prefill` both slice prefill's cache: what one of them allows is there for the other too."""
    demand = ServingDemand(model_of(model), load_chip("h100"), 8, 64, 16)
    program = run_passes(serving_program(demand, Mesh.of(x=8), 16, 4), (Decompose(), Cleanup()))
    problem = ProgramProblems(program).of(PlacementOptions(), Within())
    solver = Solver(problem)
    solver.build()
    before = [len(node.group.root().codes) for node in problem.variables]
    solver.widen_slices()
    assert [len(node.group.root().codes) for node in problem.variables] == before


MIXTRAL = {
    **CONFIG, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 1024,
    "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.usefixtures("first_choices")
def test_tokens_may_be_sent_to_experts(tmp_path: Path) -> None:
    """The layouts of experts are searched as all others are, and each token counts the experts that it meets."""
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    made = plan(
        str(tmp_path), small(), 4, 256, 64, batch=64, seconds=4, experts="all-to-all", expert_capacity=1.0,
    )  # fmt: skip
    program = made.best.found.program
    sizes = {dim.name: dim.size for dim in program.dims}
    assert (sizes["J"], sizes["C"]) == (8, 2)  # 8 groups of 8 rows, of which a fourth chooses an expert
    assert made.best.costs["decode"].parameters == active_parameters(model_of(str(tmp_path)))


def test_tokens_are_sent_where_there_are_experts(shardwright: Callable[..., Any], model: str) -> None:
    asked = ("--chip", "h100", "--chips", "2", "--experts", "all-to-all")
    where = {
        "plan": ("--prompt", "8", "--output", "8"),
        "fit": (),
        "cost": (),
        "pareto": ("--batch", "8", "--prompt-len", "8"),
    }
    for command, more in where.items():
        refused = shardwright(command, model, *asked, *more)
        assert (refused.status, refused.err) == (
            1, f"{model}: error: LlamaForCausalLM has no experts that tokens could be sent to [no-experts]\n"
            "note: leave --experts out\n",
        )  # fmt: skip
    for capacity, form, said in ((2.0, "routed", "expert_capacity needs"), (-1.0, "all-to-all", "a number above 0")):
        with pytest.raises(DiagnosticError, match=said):
            plan(model, small(), 2, 256, 64, seconds=2, experts=form, expert_capacity=capacity)
    refused = shardwright("fit", model, "--chip", "h100", "--expert-capacity", "2")
    assert refused.err.endswith("error: --expert-capacity needs --experts all-to-all\n")
