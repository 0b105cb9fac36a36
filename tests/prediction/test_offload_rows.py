"""FlexGen's published rows beside what the cost model gives, sizes of real models, and `offload --plan-only`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
from calibrate_offloading import calibrate, calibration_rows

from shardwright.cost.hardware.chips import load_machine
from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.offloading.policy import parse_policy
from shardwright.cost.offloading.pricing import PricedPolicy
from shardwright.cost.offloading.search import fastest, fitting_shares
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.models.built_in import built_in
from shardwright.prediction.offloading import best_plan, frontier, model_sizes, setting_of
from shardwright.reproduction.frontier_plot import frontier_picture
from shardwright.reproduction.offload_rows import (
    OffloadRow,
    checks,
    table_2,
    table_21,
    table_22,
    table_23,
)
from shardwright.reproduction.swarm_rows import petals_checks

FLEXGEN = load_runtime("flexgen")


def errors(rows: list[OffloadRow]) -> list[float]:
    return [abs(row.predicted() / row.value - 1) for row in rows if row.value]


def flexgen(rows: list[OffloadRow]) -> list[OffloadRow]:
    return [row for row in rows if row.system.startswith("flexgen")]


# ---------------------------------------------------------------- sizes from types


def test_sizes_of_opt_are_those_of_the_paper() -> None:
    """Section 3, but for the vectors, left out there: 8 h1^2 + 4 h1 h2 bytes a layer, 4 h1 a token of the cache."""
    sizes, h1, h2 = model_sizes(built_in("opt-30b").model, 512, 32), 7168, 28672
    matrices = sum(part.matrix_elements for part in (sizes.attention, sizes.feedforward))
    assert (sizes.layers, 2 * matrices) == (48, 8 * h1 * h1 + 4 * h1 * h2)
    assert sizes.layer_bytes - 2 * matrices == 2 * (9 * h1 + h2)  # 4 for norms, 4 + 1 biases of h1, one of h2
    assert [tensor.name for tensor in sizes.attention.tensors if tensor.matrix] == ["wq", "wk", "wv", "wo"]
    assert [tensor.name for tensor in sizes.feedforward.tensors if tensor.matrix] == ["w_up", "w_down"]
    assert sizes.cache_elements * sizes.cache_element_bytes == 4 * h1
    assert sizes.hidden_bytes == 2 * h1
    assert (sizes.attention.flops, sizes.feedforward.flops) == (8 * h1 * h1, 4 * h1 * h2)
    assert (sizes.attention_flops, sizes.scores) == (4 * h1, 56)
    # Of h1 five biases and two sums of two values, of h2 a bias and the function, each read and written; and two norms,
    # whose operations take 64 bytes of an element, most of them f32.
    read_and_written = 2 * ((5 * 2 + 2 * 3) * h1 + 2 * 2 * h2) + 2 * 64 * h1
    assert sizes.elementwise_bytes == pytest.approx(read_and_written, rel=1e-3)
    assert sizes.embedding.bytes == 2 * h1 * (50272 + 2048)
    assert sizes.unembedding.flops == 2 * h1 * 50272


def test_opt_175b_is_325_gib_of_weights() -> None:
    sizes = model_sizes(built_in("opt-175b").model, 512, 32)
    assert sizes.layers * sizes.layer_bytes / 2**30 == pytest.approx(325, rel=0.01)
    assert (
        sizes.layers * 512 * sizes.context * sizes.cache_elements * sizes.cache_element_bytes / 2** 40
        == pytest.approx(1.2, rel=0.02)
    )


def test_grouped_queries_and_a_gate_come_from_the_types() -> None:
    """Llama 2 70B: 8 heads of keys and values of 128, three matrices of 8192 x 28672."""
    sizes = model_sizes(built_in("llama-2-70b").model, 512, 32)
    assert sizes.cache_elements * sizes.cache_element_bytes == 2 * 2 * 8 * 128
    assert sizes.feedforward.matrix_elements == 3 * 8192 * 28672
    assert sizes.attention.matrix_elements == 2 * 8192 * 8192 + 2 * 8192 * 1024
    assert sizes.attention_flops == 4 * 64 * 128


# ---------------------------------------------------------------- published rows


def test_the_constants_are_those_that_the_rows_give() -> None:
    rows = calibration_rows()
    assert len(rows) == 34
    assert calibrate(rows, FLEXGEN) == FLEXGEN.constants


def test_rows_that_ran_are_within_10_percent_in_the_middle() -> None:
    rows = flexgen(table_2()) + table_21()
    assert len([row for row in rows if row.value]) == 27
    assert median(errors(rows)) <= 0.05
    assert max(errors(table_21())) <= 0.06


def test_rows_that_were_not_fitted_on() -> None:
    assert median(errors([row for row in flexgen(table_2()) if row.prompt == 1024])) <= 0.06
    assert max(errors([row for row in table_23() if row.value > 0.01])) <= 0.15


def test_memory_runs_out_where_it_did_and_only_there() -> None:
    for row in (*table_2(), *table_21(), *table_22()):
        assert (row.predicted() == 0) == (row.value == 0), row.name


@pytest.mark.parametrize("model", ["opt-30b", "opt-175b"])
def test_policies_come_in_the_order_that_was_measured(model: str) -> None:
    """By the times of table 22, save that 559 s contradicts the 7.32 token/s of table 21 for the same run."""
    rows = [row for row in table_22() if row.model == model and row.value and row.value != 559]
    rates = [(row.policy.block / row.value, row.policy.block / row.predicted()) for row in rows]
    measured, predicted = (sorted(range(len(rates)), key=lambda at: rates[at][side]) for side in (0, 1))
    assert measured == predicted


def test_a_slower_disk_is_slower() -> None:
    """Table 24: a persistent disk of at most 1.2 GB/s makes 0.30 token/s of 0.69."""
    t4 = load_machine("t4")
    assert t4.disk is not None
    slow = replace(t4, disk=replace(t4.disk, read_bytes_per_s=0.5e9, read_limit_bytes_per_s=1.2e9))
    setting = setting_of(built_in("opt-175b").model, slow, FLEXGEN, 512, 32)
    assert setting.price(parse_policy("32,8,0,50,0,0,0,100")).tokens_per_s == pytest.approx(0.30, rel=0.15)


def test_every_system_has_a_prediction_beside_its_figure() -> None:
    made = {check.row: check for check in checks("flexgen-2")}
    assert len(made) == 24
    assert made["opt-175b deepspeed 1024"].remark == "out of memory, published and predicted"
    for system in ("accelerate", "deepspeed"):
        rows = [check for row, check in made.items() if system in row and check.published > 0.1]
        assert max(abs(check.relative_error) for check in rows) < 0.1


def test_the_other_systems_run_the_largest_power_of_two_that_fits() -> None:
    """Figure 1: they "cannot further increase throughput due to out-of-memory issues"."""
    for row in table_2():
        if row.runtime.name in {"accelerate", "deepspeed"} and row.value:
            setting, batch = row.setting(), row.policy.gpu_batch
            assert not setting.excess(row.policy), row.name
            assert setting.excess(replace(row.policy, gpu_batch=2 * batch)), row.name


def test_a_bound_on_the_time_of_a_block_is_met_and_costs_throughput() -> None:
    """OPT-175B in 4 bits between table 19's shortest time, 612 s, and its block of 144; waiting at steps makes most
    blocks longer than their linear programs say."""
    setting = setting_of(built_in("opt-175b").model, load_machine("t4"), FLEXGEN, 512, 32)
    plans = {bound: best_plan(setting, compress=True, latency=bound).plan for bound in (650, 720, 1300, 3000)}
    assert all(plan.seconds <= bound for bound, plan in plans.items())
    rates = [plan.tokens_per_s for plan in plans.values()]
    assert rates == sorted(rates)
    assert plans[720].tokens_per_s >= 0.36  # the paper's block of 8, 693 s
    assert plans[1300].tokens_per_s > 1


def test_rates_that_no_machine_has() -> None:
    machine = load_machine("t4")
    link = replace(machine.host_link, to_device_bytes_per_s=1e-300)
    setting = setting_of(built_in("opt-1.3b").model, replace(machine, host_link=link), FLEXGEN, 64, 8)
    with pytest.raises(DiagnosticError, match="at the rates of t4 and flexgen a block takes 1e\\+30 s or more"):
        best_plan(setting)


def test_whole_tensors_that_round_far_still_fit() -> None:
    """Llama 3 70B on 24 and 125 GiB: the linear program has nothing on disk, and its shares in whole tensors exceed the
    host by 6 GiB."""
    setting = setting_of(built_in("llama-3-70b").model, load_machine("rtx-3090"), FLEXGEN, 256, 32)
    plan = fastest(setting, ((None, None),))
    assert plan is not None
    assert plan.policy.block == 1
    assert not setting.excess(plan.policy)
    assert plan.policy.weights.disk > 0


def test_a_swarm_is_as_slow_as_its_slowest_resource() -> None:
    """Section 6.3: the network tells where there are several servers, and hardly where there is one."""
    made = [check for check in petals_checks() if check.published > 0.1]
    assert median(abs(check.relative_error) for check in made) <= 0.1
    rates = {check.row: check.predicted for check in made}
    for prompt in (256, 512, 1024):
        near, far = (rates[f"opt-30b petals {prompt}, {network} Mbit/s"] for network in ("5 ms, 1000", "100 ms, 100"))
        assert far < 0.5 * near
        near, far = (rates[f"opt-6.7b petals {prompt}, {network} Mbit/s"] for network in ("5 ms, 1000", "100 ms, 100"))
        assert far > 0.8 * near


# ---------------------------------------------------------------- plans


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("model", "prompt", "system"), [("opt-30b", 512, "flexgen"), ("opt-175b", 1024, "flexgen-4bit")]
)
def test_what_is_found_is_at_least_as_good_as_the_papers(model: str, prompt: int, system: str) -> None:
    (row,) = [row for row in table_2() if (row.model, row.prompt, row.system) == (model, prompt, system)]
    plan = best_plan(row.setting(), compress=row.compressed).plan
    assert plan.tokens_per_s >= row.predicted()
    assert not row.setting().excess(plan.policy)


def test_a_pipeline_decodes_more_than_four_times_as_fast() -> None:
    """Section 6.1: with 4 devices decode is more than 4 times as fast, for the memory that each has left over; prefill
    fills the pipeline, so that all together is less."""
    settings = [setting_of(built_in("opt-30b").model, load_machine("t4"), FLEXGEN, 512, 32, devices=n) for n in (1, 4)]
    policies = [parse_policy(text) for text in ("48,3,20,80,0,100,0,100", "32,12,60,40,0,100,0,100")]
    assert not any(setting.excess(policy) for setting, policy in zip(settings, policies, strict=True))
    one, four = (setting.price(policy) for setting, policy in zip(settings, policies, strict=True))
    assert one.decode_s / one.policy.block > 4 * four.decode_s / four.policy.block
    assert one.prefill_s / one.policy.block < 4 * four.prefill_s / four.policy.block


@pytest.mark.one_in(2)
@pytest.mark.parametrize("prompts", [4, 100, 1000])
def test_a_plan_knows_how_many_prompts_there_are(prompts: int) -> None:
    """A full block for a few prompts works for nothing, and so does the rest of a last block."""
    setting = setting_of(built_in("llama-3-8b").model, load_machine("rtx-3090"), load_runtime("ours"), 128, 16)
    found, any_number = best_plan(setting, prompts=prompts), best_plan(setting)

    def tokens_per_s(plan: PricedPolicy) -> float:
        return 16 * prompts / (-(-prompts // plan.policy.block) * plan.seconds)

    assert tokens_per_s(found.plan) >= tokens_per_s(any_number.plan)
    assert found.most_tokens_per_s >= tokens_per_s(found.plan)
    assert found.plan.policy.block < prompts + 8
    blocks = [(rows, batches) for rows in (1, 4, 8, 32, 104, 144) for batches in (1, 2, 4, 8)]
    for rows, batches in blocks:
        given = fitting_shares(setting, replace(found.plan.policy, gpu_batch=rows, n_gpu_batches=batches))
        if given is not None:
            assert tokens_per_s(setting.price(given)) <= found.most_tokens_per_s * (1 + 1e-9)


def test_a_frontier_trades_time_for_throughput() -> None:
    setting = setting_of(built_in("opt-6.7b").model, load_machine("t4"), FLEXGEN, 128, 8)
    plans = frontier(setting, points=3)
    assert len(plans) == 3
    assert plans[0].policy.block == 1
    assert best_plan(setting, latency=plans[0].seconds * 1.001).plan.seconds <= plans[0].seconds * 1.001
    seconds, rates = [plan.seconds for plan in plans], [plan.tokens_per_s for plan in plans]
    assert seconds == sorted(seconds)
    assert rates == sorted(rates)


def test_a_frontier_is_the_same_picture_each_time() -> None:
    setting = setting_of(built_in("opt-1.3b").model, load_machine("t4"), FLEXGEN, 64, 8)
    plans = [setting.price(parse_policy(f"{batch},2,100,0,100,0,100,0")) for batch in (1, 4)]
    one, two = (frontier_picture(plans, "opt-1.3b on t4", "svg").decode() for _ in range(2))
    assert one == two
    assert b"CreationDate" not in frontier_picture(plans, "opt-1.3b on t4", "pdf")
    assert all(text in one for text in ("opt-1.3b on t4", "4 x 2", "throughput, token/s", "time of a block, s"))


# ---------------------------------------------------------------- the command line

PRICED = ("offload", "opt-30b", "--machine", "t4", "--plan-only", "--policy")


def test_a_given_policy_is_priced(shardwright: Callable[..., SimpleNamespace]) -> None:
    got = shardwright(*PRICED, "48,3,20,80,0,100,0,100", "--json")
    made = json.loads(got.out)
    assert made["policy"] == parse_policy("48,3,20,80,0,100,0,100").as_json()
    assert made["tokens_per_s"] == pytest.approx(7.32, rel=0.05)
    assert made["tokens_per_s"] == pytest.approx(48 * 3 * 32 / (made["prefill_s"] + made["decode_s"]))
    assert set(made["peak_bytes"]) == {"device", "host", "disk"}
    assert made["bound_by"] == "host to device"
    assert (got.status, got.err) == (0, "")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("model", "lengths", "options"),
    [
        ("opt-13b", (1024, 128), ("--compress", "4bit")),
        ("opt-30b", (512, 32), ()),  # attention on the host is slow on this machine, and would not fit
    ],
)
def test_a_policy_that_was_found_is_priced_the_same_when_it_is_given(
    model: str, lengths: tuple[int, int], options: tuple[str, ...], shardwright: Callable[..., SimpleNamespace],
    tmp_path: Path,
) -> None:  # fmt: skip
    """As eight numbers, which do not say where attention is computed, and as the file, which does."""
    ask = ("offload", model, "--machine", "rtx-3090", "--plan-only", "--json",
           "--prompt-len", lengths[0], "--gen-len", lengths[1])  # fmt: skip
    printed = shardwright(*ask, *options).out
    found = json.loads(printed)
    assert found["host_attention"] is False
    file = tmp_path / "plan.json"
    file.write_text(printed, encoding="utf-8")
    keys = ("gpu_batch", "n_gpu_batches", "wg", "wc", "cg", "cc", "hg", "hc")
    numbers = ",".join(str(found["policy"][key]) for key in keys)
    for given in ((*options, "--policy", numbers), ("--policy", file)):
        again = json.loads(shardwright(*ask, *given).out)
        assert again == found | {"most_tokens_per_s": None}


def test_our_runtime_attends_where_the_cache_lies(shardwright: Callable[..., SimpleNamespace]) -> None:
    """Where that is faster, or where it is asked for: on a T4 the cache of OPT-30B is too much for the link."""
    ask = ("offload", "opt-30b", "--machine", "t4", "--plan-only", "--json", "--runtime", "ours")
    free, device, host = (
        json.loads(shardwright(*ask, *more).out) for more in ((), ("--attention", "device"), ("--attention", "host"))
    )
    assert (free["host_attention"], device["host_attention"], host["host_attention"]) == (True, False, True)
    assert free == host
    assert free["policy"]["cc"] == 100
    assert free["tokens_per_s"] > 1.3 * device["tokens_per_s"]


def test_attention_that_cannot_be_on_the_host_is_refused(shardwright: Callable[..., SimpleNamespace]) -> None:
    got = shardwright("offload", "opt-30b", "--machine", "t4", "--plan-only", "--runtime", "accelerate", "--attention",
                      "host")  # fmt: skip
    assert got.status == 1
    assert "accelerate computes attention on the device alone" in got.err


def test_a_plan_says_in_its_program_where_attention_is(
    shardwright: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    file = tmp_path / "plan.shard"
    ask = ("offload", "opt-125m", "--machine", "t4", "--plan-only", "--runtime", "ours", "--prompt-len", 8, "--gen-len",
           4, "--policy", "2,2,20,80,0,100,0,100")  # fmt: skip
    for attention in ("device", "host"):
        made = json.loads(shardwright(*ask, "--attention", attention, "-o", file, "--json").out)
        assert made["host_attention"] is (attention == "host")
        assert ("on host = attend" in file.read_text()) is (attention == "host")
        again = json.loads(shardwright("offload", file, *ask[2:-2], "--policy", file, "--json").out)
        assert (again["host_attention"], again["tokens_per_s"]) == (made["host_attention"], made["tokens_per_s"])


def test_the_timeline_has_the_hosts_attention(shardwright: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    """Events of decode alone, which take as long as the host's memory needs for the cache."""
    file = tmp_path / "plan.json"
    shardwright(
        "offload", "opt-125m", "--machine", "t4", "--plan-only", "--runtime", "ours", "--prompt-len", 64,
        "--gen-len", 3, "--policy", "2,2,100,0,0,100,100,0", "--attention", "host", "--timeline", file,
    )  # fmt: skip
    events = json.loads(file.read_text())["predicted"]["events"]
    own = [event for event in events if event["resource"] == "host"]
    assert len(own) == 12 * 2 * 2
    rate = 0.15 * load_machine("t4").host.memory_rate
    for event in own:
        token = int(event["name"].split("token=")[1].split()[0])
        cached = 2 * 2 * 768 * 2 * (64 + token)
        assert event["end"] - event["start"] == pytest.approx(cached / rate, rel=1e-6)


def test_the_best_block_is_tried_in_every_format() -> None:
    """With weights in 4 bits, too, where the search found it with the cache alone in 4 bits."""
    setting = setting_of(built_in("opt-13b").model, load_machine("rtx-3090"), FLEXGEN, 1024, 128)
    plan = best_plan(setting, compress=True).plan
    for packed in ("int4", None):
        other = replace(plan.policy, weight_format=packed)
        assert setting.excess(other) or setting.price(other).tokens_per_s <= plan.tokens_per_s


def test_a_policy_that_does_not_fit_says_by_how_much(shardwright: Callable[..., SimpleNamespace]) -> None:
    got = shardwright("offload", "opt-175b", "--machine", "t4", "--plan-only", "--policy", "32,3,0,100,0,100,0,100")
    assert got.status == 1
    assert got.err == (
        "offload: error: the policy 32 x 3, 0, 100, 0, 100, 0, 100 needs 557.5 GiB in the host's memory, 349.5 GiB more"
        " than t4 has [does-not-fit]\n"
        "note: with --compress 4bit it fits\n"
    )


@pytest.mark.parametrize(
    ("policy", "message", "note"),
    [
        (
            "4,3,0,100,100,0,100,0",
            "accelerate goes through the layers with one batch at a time, and the policy has 3",
            "give 1 for the batches in a block",
        ),
        (
            "4,1,0,100,0,100,100,0",
            "accelerate keeps cache and hidden states on the device, and 4 x 1, 0, 100, 0, 100, 100, 0 places some"
            " elsewhere",
            "give 100 percent of both to the device",
        ),
    ],
)
def test_what_a_runtime_cannot_do(
    shardwright: Callable[..., SimpleNamespace], policy: str, message: str, note: str
) -> None:
    got = shardwright(*PRICED, policy, "--runtime", "accelerate")
    assert (got.status, got.err) == (1, f"offload: error: {message} [bad-policy]\nnote: {note}\n")


def test_nothing_fits_says_what_would(shardwright: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    """Without a disk OPT-175B has 325 GiB for 208."""
    machine = tmp_path / "diskless.toml"
    machine.write_text(
        'name = "diskless"\nchip = "t4"\n\n[host]\nmemory = "208 GiB"\n\n[host_link]\n'
        "to_device_bytes_per_s = 1.2e10\nfrom_device_bytes_per_s = 1.2e10\n"
    )
    got = shardwright("offload", "opt-175b", "--machine", str(machine), "--plan-only")
    assert got.err == (
        "offload: error: nothing fits: with one sequence, and everything as low as it goes, it still takes 328.8 GiB in"
        " the host's memory, 120.8 GiB more than diskless has [does-not-fit]\n"
        "note: --compress 4bit takes less than a third\nnote: --gpus N divides the layers over machines\n"
    )
    packed = shardwright(
        "offload", "opt-175b", "--machine", str(machine), "--plan-only", "--compress", "4bit", "--json"
    )
    assert json.loads(packed.out)["compressed"] == {"weights": True, "cache": True}


def test_unknown_names(shardwright: Callable[..., SimpleNamespace]) -> None:
    got = shardwright("offload", "opt-31b", "--machine", "t4", "--plan-only")
    assert got.status == 1
    lines = got.err.splitlines()
    assert lines[:2] == ["opt-31b: error: there is no model opt-31b [unknown-model]", "note: did you mean opt-30b?"]
    got = shardwright("offload", "opt-30b", "--machine", "rtx3090", "--plan-only")
    assert got.err == (
        "offload: error: there is no machine `rtx3090` [unknown-machine]\nnote: did you mean rtx-3090?\n"
        "note: machines: rtx-3090, t4; or the path of a machine file, NAME.toml\n"
    )


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (
            ("opt-30b", "--plan-only", "--machine", "t4", "--policy", "1,1,0,0,0,0,0,0", "--latency", "5"),
            "--policy and --latency cannot be given together",
        ),
        (("opt-30b", "--plan-only", "--machine", "t4", "--latency", "0"), "--latency takes more than 0 seconds"),
        (
            ("opt-30b", "--plan-only", "--machine", "t4", "--refuse-too-long"),
            "--refuse-too-long is of a run, and changes no plan: leave it out",
        ),
        (
            ("opt-30b", "--plan-only", "--machine", "t4", "--sparse-attention", "0.1"),
            "--sparse-attention is of a run, and changes no plan: leave it out",
        ),
        (
            ("opt-30b", "--plan-only", "--machine", "t4", "--schedule", "diagonal"),
            "--schedule diagonal changes no price: give it with --timeline, or leave it out",
        ),
        (
            ("opt-30b", "--prompts", "in.jsonl", "-o", "out.jsonl", "--prompt-len", "9"),
            "--prompt-len is of a plan (--plan-only); a run is planned for the prompts that it has: leave it out",
        ),
        (
            ("opt-30b", "--prompts", "in.jsonl", "-o", "out.jsonl", "--runtime", "flexgen"),
            "--runtime is of a plan (--plan-only); a run is planned for the prompts that it has: leave it out",
        ),
    ],
)
def test_wrong_usage(shardwright: Callable[..., SimpleNamespace], argv: tuple[str, ...], why: str) -> None:
    got = shardwright("offload", *argv)
    assert got.status == 2
    assert got.err.endswith(f"shardwright offload: error: {why}\n")


def test_plans_for_named_machines_keep_to_caps(shardwright: Callable[..., SimpleNamespace]) -> None:
    """They were made for all that the machine has; more than that is not planned for."""
    ask = ("offload", "opt-1.3b", "--machine", "t4", "--plan-only", "--prompt-len", 32, "--gen-len", 4, "--json")
    caps = ("--device-memory", "1500MB", "--host-memory", "1GB", "--disk-memory", "900TB")
    made = json.loads(shardwright(*ask, *caps).out)
    assert made["capacity_bytes"] == {"device": 1_500_000_000, "host": 1_000_000_000, "disk": 1_610_612_736_000}
    assert all(made["peak_bytes"][tier] <= made["capacity_bytes"][tier] for tier in made["capacity_bytes"])
    got = shardwright(*ask, "--host-memory", "1GB", "--policy", "4,1,0,100,0,100,0,100")
    assert (got.status, "1.7 GiB more than t4 has" in got.out) == (1, True)


def test_too_short_a_time_says_what_is_the_least(shardwright: Callable[..., SimpleNamespace]) -> None:
    got = shardwright(
        "offload", "opt-1.3b", "--machine", "t4", "--plan-only", "--latency", "0.001", "--prompt-len", "32",
        "--gen-len", "4",
    )  # fmt: skip
    assert got.status == 1
    assert got.err.startswith(
        "offload: error: no block takes 0.001 s or less [too-slow]\nnote: the fastest takes about"
    )


def test_rows_of_ones_own(shardwright: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text(
        "prompt_len,gen_len,machine,model,system,tokens_per_s,gpu_batch,n_gpu_batches,wg,wc,cg,cc,hg,hc\n"
        "256,32,t4,opt-6.7b,flexgen,53.29,4,1,100,0,100,0,100,0\n"
    )
    (row,) = json.loads(shardwright("reproduce", str(file), "--json").out)["rows"]
    assert abs(row["relative_error"]) < 0.1
    assert not row["calibrated"]


def test_our_runtime_keeps_weights_in_4_bits_where_it_does_the_cache() -> None:
    """Its runs do so; others leave them where that is faster."""
    made = {
        name: best_plan(
            setting_of(built_in("opt-1.3b").model, load_machine("t4"), load_runtime(name), 64, 8), compress=True
        ).plan.policy.formats
        for name in ("ours", "flexgen")
    }
    assert made == {"ours": ("int4", "int4"), "flexgen": (None, "int4")}
