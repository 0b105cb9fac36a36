"""Policies as programs: what `--plan-only` writes, holes that it fills, and who reads these files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from oracles.offloaded_models import placed_model
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.cost.hardware.chips import load_machine
from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.offloading.policy import parse_policy
from shardwright.cost.offloading.pricing import OffloadSetting
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.placements import on_device
from shardwright.ir.program import Loop, Marking, Program
from shardwright.ir.text.parser import parse
from shardwright.ir.types import ON_DEVICE
from shardwright.serving.offloading.plan_files import filled, outline_of, planned, policy_in, sizes_in, with_batches

EVERYWHERE = ("8,1,100,0,100,0,100,0", "4,2,0,100,0,100,0,100", "3,2,0,0,0,0,0,0", "3,3,20,50,30,30,20,40")


def opened(made: Program, *names: str) -> str:
    """The program's text with the placements of these groups left open."""
    text = printed(on_device(made))
    lines = text.splitlines()
    inside = ""
    for number, line in enumerate(lines):
        inside = line.split()[0] if line.endswith("{") and not line.startswith(" ") else inside
        if "weights" in names and inside == "weights" and ":" in line:
            lines[number] += " on ?"
        if "cache" in names and inside == "state" and line.lstrip().startswith(("k:", "v:")):
            lines[number] += " on ?"
        if "hidden" in names:
            lines[number] = lines[number].replace("BLE = x) {", "BLE on ? = x) {")
    return "\n".join(lines) + "\n"


def model(policy: str | None, rows: int) -> Program:
    return placed_model("opt", rows=rows, length=8, cache=12, policy=policy, hidden_size=64, num_hidden_layers=4)


def setting_of(text: str, **limits: float) -> OffloadSetting:
    """The program on a T4 whose memories are as small as the model is."""
    source = Source("p.shard", text)
    sizes = sizes_in(parse(source), outline_of(program(text)))
    machine = load_machine("t4")
    chip = replace(machine.chip, memory_bytes=limits.get("device", machine.chip.memory_bytes))
    host = replace(machine.host, memory_bytes=limits.get("host", machine.host.memory_bytes))
    return OffloadSetting(sizes, replace(machine, chip=chip, host=host), load_runtime("ours"), dtype="f16")


@pytest.mark.parametrize("text", EVERYWHERE)
def test_a_policy_is_read_from_the_program_that_has_it(text: str) -> None:
    policy = parse_policy(text)
    made = with_batches(model(text, policy.block), policy.n_gpu_batches)
    assert policy_in(program(printed(made))) == policy


def test_holes_are_filled_and_marked() -> None:
    text = opened(model(None, 12), "weights", "cache", "hidden")
    made = program(text)
    outline = outline_of(made)
    assert (outline.holes, outline.rows, outline.prompt, outline.generated) == (
        ("weights", "cache", "hidden"),
        12,
        8,
        4,
    )
    policy = parse_policy("4,3,25,50,0,100,50,50")
    full = filled(made, outline, policy)
    kinds = {value.name: str(value.type) for value in (*full.weights, *full.state)}
    assert kinds["w_up"] == "f32 NEF on device 25% host 50% disk 25% along E"
    assert kinds["embed"] == "f32 VE on device 25% host 50% disk 25% along V"
    assert (kinds["k"], kinds["pos"]) == ("f32 NBTHD on host", "int32 B")
    (loop,) = (s for s, _ in full.func("decode").walk() if isinstance(s, Loop))
    assert str(loop.carries[0].value.type) == "f32 BLE on device 50% host 50% along B"
    assert loop.carries[0].value.marking is Marking.FOUND
    assert policy_in(program(printed(full))) == policy


def test_what_is_written_stays() -> None:
    text = opened(model(None, 12), "cache").replace("NEF", "NEF on host").replace("NFE", "NFE on host")
    made = program(text)
    outline = outline_of(made)
    assert outline.holes == ("cache",)
    on_host = outline.shares("weights").host
    assert 0.2 < on_host < 0.4
    plan = planned(setting_of(text), outline)
    assert plan.policy.weights.host == pytest.approx(on_host)
    assert (plan.policy.hidden.device, plan.policy.block) == (1.0, 12)
    full = filled(made, outline, plan.policy)
    changed = {v.name for v, w in zip(full.weights, made.weights, strict=True) if v.type != w.type}
    assert (changed, {v.name for v in full.state if v.type.placement != ON_DEVICE}) == (set(), set())


def test_the_best_for_the_rows_that_the_program_has() -> None:
    text = opened(model(None, 12), "weights", "cache", "hidden")
    outline = outline_of(program(text))
    setting = setting_of(text, device=3.2e5 + 2**20, host=6e5)
    plan = planned(setting, outline)
    assert plan.policy.block == 12
    assert not setting.excess(plan.policy)
    for other in ("12,1,0,100,0,0,0,0", "6,2,0,100,0,0,0,100", "4,3,0,50,0,50,0,50", "1,12,50,0,0,0,100,0"):
        policy = parse_policy(other)
        assert setting.excess(policy) or setting.price(policy).tokens_per_s <= plan.tokens_per_s * (1 + 1e-9)


def test_nothing_fits() -> None:
    text = opened(model(None, 12), "weights")
    with pytest.raises(DiagnosticError) as caught:
        planned(setting_of(text, device=1e5), outline_of(program(text)))
    assert caught.value.render().splitlines() == [
        "<program>: error: no placement lets a block of 12 sequences fit t4 [does-not-fit]",
        "note: give fewer rows: change B, or leave more of the placements open",
    ]


def test_programs_that_are_no_policies() -> None:
    made = model("4,1,0,100,0,100,0,100", 4)
    cases = {
        "embed: f32 VE on ? leaves its placement open": program(opened(made, "weights")),
        "offloading needs functions prefill and decode": replace(made, funcs=made.funcs[:1]),
        "4 rows cannot be divided into the 3 batches of M": with_batches(made, 3),
    }
    for message, case in cases.items():
        with pytest.raises(DiagnosticError, match=r".*") as caught:
            policy_in(case)
        assert message in str(caught.value)


def test_what_leaves_its_placement_open_is_told_with_its_line() -> None:
    text = opened(model("4,1,0,100,0,100,0,100", 4), "weights")
    with pytest.raises(DiagnosticError) as caught:
        policy_in(program(text))
    line = caught.value.diagnostics[0].span.line
    assert text.splitlines()[line - 1].strip() == "embed: f32 VE on ?"


def test_the_mean_of_placements_that_differ() -> None:
    made = model("4,1,0,100,0,100,0,100", 4)
    weights = tuple(
        replace(value, type=replace(value.type, placement=ON_DEVICE)) if value.name == "embed" else value
        for value in made.weights
    )
    shares = policy_in(replace(made, weights=weights)).weights
    assert 0 < shares.device < shares.host < 1
    assert shares.device + shares.host == pytest.approx(1)


# ---------------------------------------------------------------- the command


def test_a_plan_is_run_by_offload_and_by_generate(
    checkpoint: Callable[[str], Path], shardwright: Callable, tmp_path: Path
) -> None:  # fmt: skip
    folder, plan = checkpoint("opt"), tmp_path / "plan.shard"
    policy = "2,2,30,40,0,50,0,100"
    prompts = tmp_path / "in.jsonl"
    prompts.write_text('{"tokens": [1, 15, 7]}\n{"tokens": [4, 9, 30, 2]}\n{"tokens": [8]}\n', encoding="utf-8")
    got = shardwright("offload", folder, "--machine", "t4", "--prompt-len", "8", "--gen-len", "4", "--plan-only",
                      "--dtype", "f32", "--policy", policy, "-o", plan)  # fmt: skip
    assert (got.status, got.err) == (0, "")
    assert shardwright("check", plan).status == 0
    found: list[dict[int, list[int]]] = []
    for command, how in (
        ("offload", ("--policy", policy)),
        ("offload", ("--policy", plan)),
        ("generate", ("--decode-layout", plan, "--mesh", "x=1")),
    ):
        out = tmp_path / f"out{len(found)}.jsonl"
        got = shardwright(command, folder, "--prompts", prompts, "-o", out, *how, "--max-new-tokens", "4",
                          "--ignore-eos", *(("--dtype", "f32") if command == "offload" else ()))  # fmt: skip
        assert got.status == 0, got.err
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        found.append({line["index"]: line["new_tokens"] for line in lines})
    assert found[0] == found[1] == found[2]
    priced = shardwright("offload", folder, "--machine", "t4", "--prompt-len", "8", "--gen-len", "4", "--plan-only",
                         "--policy", plan, "--json")  # fmt: skip
    assert json.loads(priced.out)["policy"] == parse_policy(policy).as_json()


def test_a_checkpoint_is_planned_in_its_own_format(shardwright: Callable, tmp_path: Path) -> None:
    """A plan in another format would give other tokens once it is given back."""
    config, plan = tmp_path / "config.json", tmp_path / "plan.shard"
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
    keys = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "vocab_size": 96, **layers}
    config.write_text(json.dumps(keys), encoding="utf-8")
    got = shardwright("offload", config, "--machine", "t4", "--prompt-len", "8", "--gen-len", "4", "--plan-only",
                      "--policy", "2,2,0,100,0,100,0,100", "-o", plan)  # fmt: skip
    assert (got.status, got.err) == (0, "")
    assert {str(weight.type.dtype) for weight in program(plan.read_text(encoding="utf-8")).weights} == {"bf16"}


def test_an_open_program_is_filled(shardwright: Callable, tmp_path: Path) -> None:
    file, out = tmp_path / "open.shard", tmp_path / "full.shard"
    file.write_text(opened(model(None, 12), "weights", "cache", "hidden"), encoding="utf-8")
    got = shardwright("offload", file, "--machine", "t4", "--plan-only", "-o", out)
    assert (got.status, got.err) == (0, "")
    assert got.out.startswith(f"{file} on t4, 8 tokens in and 4 out")
    full = program(out.read_text(encoding="utf-8"))
    assert outline_of(full).holes == ()
    assert shardwright("opt", out, "--passes", "offload,schedule-blocks{batches=3}").status == 0
    again = shardwright("offload", file, "--machine", "t4", "--plan-only", "--json", "--policy", out)
    given = json.loads(again.out)
    assert program(given["program"]).weights == full.weights
    assert {"policy", "tokens_per_s", "prefill_s", "decode_s", "peak_bytes", "bound_by"} <= set(given)


@pytest.mark.parametrize("model_too", [False, True])
def test_a_written_schedule_is_not_planned(model_too: bool, shardwright: Callable, tmp_path: Path) -> None:
    """A plan would price its shares under another schedule."""
    plain, written = tmp_path / "plain.shard", tmp_path / "written.shard"
    plain.write_text(printed(model("4,3,0,100,0,100,0,100", 12)), encoding="utf-8")
    assert shardwright("opt", plain, "--passes", "offload,schedule-blocks{batches=3}", "-o", written).status == 0
    asked = (written,) if not model_too else ("opt-125m", "--policy", written)
    got = shardwright("offload", *asked, "--machine", "t4", "--plan-only")
    assert got.status == 1
    said = "the program has its movements written down, and a plan prices placements under a schedule of its own"
    way = f"price what is written: shardwright cost {written}; or plan the program that it was made of"
    assert got.err == f"{written}: error: {said} [bad-policy]\nnote: {way}\n"


def test_what_a_program_cannot_be_asked_for(shardwright: Callable, tmp_path: Path) -> None:
    file = tmp_path / "open.shard"
    file.write_text(opened(model(None, 12), "weights"), encoding="utf-8")
    plan = ("offload", file, "--machine", "t4", "--plan-only")
    for arguments, message in (
        (("offload", file, "--machine", "t4"), "a program is planned, not run"),
        ((*plan, "--latency", "5"), "--latency is for models"),
        ((*plan, "--gpus", "2"), "--gpus is for models"),
        (("offload", "opt-30b", "--machine", "t4", "--plan-only", "-o", "a.txt"), "end the name in .shard"),
        (("offload", "a", "--prompts", "b", "-o", "c", "--machine", "t4", "--policy", "d"), "leave it out"),
    ):
        got = shardwright(*arguments)
        assert (got.status, message in got.err) == (2, True), got.err
    got = shardwright(*plan, "--policy", "5,2,100,0,100,0,100,0")
    assert got.status == 1
    assert "the policy 5 x 2, 100, 0, 100, 0, 100, 0 has 10 sequences in a block, and the program 12 rows" in got.err
    for option, given in (("--prompt-len", "7"), ("--gen-len", "99"), ("--dtype", "f16")):
        got = shardwright(*plan, option, given)
        assert (got.status, f"{option} {given} is asked for, and the program has" in got.err) == (1, True), got.err
    file.write_text("mesh x=2\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    got = shardwright(*plan)
    assert (got.status, "a policy is of one device, and the mesh is x=2" in got.err) == (1, True)
