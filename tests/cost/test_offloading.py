"""Sizes from types, placement, memory and time of a policy by hand; the linear program bounds what policies cost."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from calibrate_offloading import Measurement, calibrate

from shardwright.cost.hardware.chips import load_machine
from shardwright.cost.hardware.runtimes import NAMES, Runtime, load_runtime, rates_of, runtime_names
from shardwright.cost.offloading.formats import in_groups
from shardwright.cost.offloading.linear_program import Blocks, best_shares
from shardwright.cost.offloading.memory import attends_on_host, peaks_of
from shardwright.cost.offloading.placement import place
from shardwright.cost.offloading.policy import Policy, Shares, parse_policy, policy_of_json, shares
from shardwright.cost.offloading.pricing import OffloadSetting
from shardwright.cost.offloading.search import improved, search
from shardwright.cost.offloading.sizes import Sizes, WeightGroup, WeightTensor
from shardwright.cost.offloading.times import computation, times_of
from shardwright.ir.diagnostics import DiagnosticError

GIB = 2**30
E, F, N = 1024, 4096, 4  # a small OPT without vectors


def small(prompt: int = 64, generated: int = 8) -> Sizes:
    square = [WeightTensor(name, E * E, 2 * E * E, True) for name in ("wq", "wk", "wv", "wo")]
    wide = [WeightTensor(name, E * F, 2 * E * F, True) for name in ("w_up", "w_down")]
    nothing = WeightGroup("embedding", (), 0.0)
    return Sizes(
        layers=N,
        attention=WeightGroup("attention", tuple(square), 8.0 * E * E),
        feedforward=WeightGroup("feedforward", tuple(wide), 4.0 * E * F),
        embedding=nothing,
        unembedding=replace(nothing, name="unembedding"),
        cache_elements=2 * E,
        cache_element_bytes=2,
        hidden_bytes=2 * E,
        attention_flops=4.0 * E,
        scores=8,
        prefill_working=1_000_000,
        decode_working=10_000,
        prompt=prompt,
        generated=generated,
    )


T4 = load_machine("t4")
FLEXGEN, OURS = load_runtime("flexgen"), load_runtime("ours")
LAYER = 8 * E * E + 4 * E * F  # bytes, as in the paper


# ---------------------------------------------------------------- policies


def test_a_policy_reads_and_writes_in_the_order_of_the_paper() -> None:
    policy = parse_policy("48,3,20,80,0,100,0,70")
    assert policy == Policy(48, 3, shares(20, 80), shares(0, 100), shares(0, 70))
    assert policy.hidden == Shares(0.0, 0.7, 0.3)
    assert policy.block == 144
    assert str(policy) == "48 x 3, 20, 80, 0, 100, 0, 70"
    made = policy.as_json()
    assert made == {
        "gpu_batch": 48, "n_gpu_batches": 3,
        "wg": 20, "wc": 80, "wd": 0, "cg": 0, "cc": 100, "cd": 0, "hg": 0, "hc": 70, "hd": 30,
    }  # fmt: skip
    assert policy_of_json(made) == policy


ORDER = "the order is gbs,ngb,wg,wc,cg,cc,hg,hc, as in 48,3,20,80,0,100,0,100"


@pytest.mark.parametrize(
    ("text", "message", "note"),
    [
        (
            "none.json",
            "'none.json' is neither a policy, which has 8 numbers, gbs,ngb,wg,wc,cg,cc,hg,hc, nor a file with one",
            ORDER,
        ),
        ("48,3,20", "a policy has 8 numbers, gbs,ngb,wg,wc,cg,cc,hg,hc; '48,3,20' has 3", ORDER),
        ("48,3,20,x,0,100,0,100", "'x' in the policy 48,3,20,x,0,100,0,100 is not a number", ORDER),
        (
            "0,3,20,80,0,100,0,100",
            "the policy 0,3,20,80,0,100,0,100 begins with two whole numbers from 1 up, the batch and how many make a"
            " block",
            ORDER,
        ),
        (
            "4,3,-1,80,0,100,0,100",
            "the shares of the policy 4,3,-1,80,0,100,0,100 are percentages, from 0 to 100",
            ORDER,
        ),
        (
            "4,3,20,80,30,80,0,100",
            "the policy 4,3,20,80,30,80,0,100 places 110 % of the cache: 30 on the device, 80 on the host",
            "device and host together are at most 100; the rest is on disk",
        ),
    ],
)
def test_policies_that_do_not_add_up(text: str, message: str, note: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        parse_policy(text)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.message) == ("bad-policy", message)
    assert [str(each.message) for each in diagnostic.notes] == [note]


# ---------------------------------------------------------------- placement


def test_whole_tensors_make_20_percent_8() -> None:
    """wo is the last quarter of attention; the middle of w_down is at 75 %."""
    sizes = small()
    placed = [place(part, shares(20, 80), FLEXGEN) for part in (sizes.attention, sizes.feedforward)]
    assert [each.device for each in placed] == [2 * E * E, 0]
    assert sum(each.device for each in placed) / LAYER == pytest.approx(1 / 12)
    assert place(sizes.attention, shares(20, 80), OURS).device == pytest.approx(0.2 * 8 * E * E)


def test_the_disk_comes_first() -> None:
    placed = place(small().attention, shares(0, 50), FLEXGEN)
    assert (placed.disk, placed.host, placed.device) == (4 * E * E, 4 * E * E, 0)


def test_an_element_in_4_bits_takes_its_part_of_scale_and_least_value() -> None:
    for stored, each in (("int4", 0.5), ("int8", 1)):
        sizes = in_groups(small(), (stored, None))
        assert place(sizes.attention, shares(100, 0), FLEXGEN).device == 4 * E * E * (each + 4 / 64)
        assert sizes.attention.bytes == small().attention.bytes
    assert in_groups(small(), (None, "int4")).cached_bytes == 0.5 + 4 / 64


# ---------------------------------------------------------------- memory


def test_memory_is_that_of_the_five_constraints() -> None:
    """Appendix A.3 with its slips corrected: working memory of attention in prefill whole, hidden states of one token
    in flight in decode."""
    sizes, policy = small(), Policy(4, 2, Shares(0.25, 0.5, 0.25), Shares(0.5, 0.25, 0.25), Shares(0.0, 0.5, 0.5))
    runtime = replace(OURS, whole_caches=False, host_copy_bytes=4, weights_in_files=False)
    peaks = peaks_of(sizes, policy, runtime)
    s, n, bls, gbs = 64, 8, 8, 4
    cache = 4 * (s + n) * E * bls * N
    fetched = 2 * 0.75 * LAYER
    device = 0.25 * LAYER * N + 0.5 * cache + fetched
    assert peaks.device_prefill == pytest.approx(device + 2 * gbs * 2 * s * E + gbs * sizes.prefill_working)
    assert peaks.device_decode == pytest.approx(device + 2 * gbs * 2 * E + gbs * sizes.decode_working)
    host = 0.5 * LAYER * N + 0.25 * cache + 0.25 * LAYER
    assert peaks.host_prefill == pytest.approx(host + 0.5 * bls * 2 * s * E + 2 * 0.5 * gbs * 2 * s * E)
    attention = gbs * 0.5 * 2 * E * (s + n) * 4  # f32
    assert peaks.host_decode == pytest.approx(host + 0.5 * bls * 2 * E + 2 * 0.5 * gbs * 2 * E + attention)
    assert peaks.disk == pytest.approx(0.25 * LAYER * N + 0.25 * cache + 0.5 * bls * 2 * s * E)
    assert peaks.as_json() == {
        "device": round(peaks.device_prefill), "host": round(peaks.host_decode), "disk": round(peaks.disk)
    }  # fmt: skip
    in_files = replace(runtime, weights_in_files=True)
    assert peaks_of(sizes, policy, in_files).disk == pytest.approx(peaks.disk - 0.25 * LAYER * N)
    packed, stored = replace(policy, weight_format="int4"), in_groups(sizes, ("int4", None))
    assert peaks_of(stored, packed, in_files) == peaks_of(stored, packed, runtime)


def test_a_table_that_is_used_twice_lies_there_once() -> None:
    """The runtime here has one; others keep a copy for each use. It moves for each."""
    table = WeightTensor("embed", 1000 * E, 2000 * E, True)
    apart = replace(small(), embedding=WeightGroup("embedding", (table,), 0.0),
                    unembedding=WeightGroup("unembedding", (replace(table, name="unembed"),), 0.0))  # fmt: skip
    tied = replace(apart, unembedding=replace(apart.unembedding, tensors=(table,)))
    policy = parse_policy("4,1,0,100,100,0,100,0")
    for runtime, copies in ((OURS, 1), (FLEXGEN, 0)):
        one, two = (peaks_of(sizes, policy, runtime) for sizes in (tied, apart))
        assert two.host_decode - one.host_decode == copies * table.bytes
    assert len({sum(n * part.bytes for part, n in sizes.parts()) for sizes in (apart, tied)}) == 1


def test_a_cache_in_4_bits_is_attended_on_the_device() -> None:
    policy = parse_policy("4,2,0,100,0,100,0,100")
    assert attends_on_host(policy, FLEXGEN)
    assert not attends_on_host(replace(policy, cache_format="int4"), FLEXGEN)
    assert not attends_on_host(policy, load_runtime("accelerate"))


# ---------------------------------------------------------------- time


def test_decode_from_disk_takes_what_reading_takes() -> None:
    """7 steps, 4 layers, all weights from disk, which is far slower than everything else."""
    rates = rates_of(T4, OURS)
    times = times_of(small(), parse_policy("1,1,0,0,100,0,100,0"), OURS, rates)
    assert times.decode.seconds == pytest.approx(7 * N * LAYER / rates.disk_read)
    assert times.bound_by == "disk"
    assert times.tokens == 8


def test_a_thread_that_reads_and_copies_does_one_after_the_other() -> None:
    """Weights from disk alone; the last feedforward computes while nothing is fetched."""
    rates = rates_of(T4, FLEXGEN)
    policy, last = parse_policy("1,1,0,0,100,0,100,0"), 4 * E * F / rates.memory
    relayed = N * (LAYER / rates.disk_read + LAYER / rates.to_device) + last
    assert times_of(small(), policy, FLEXGEN, rates).decode.seconds == pytest.approx(7 * relayed)
    in_pieces = N * LAYER / rates.disk_read + last
    runtime = replace(FLEXGEN, relays=False)
    assert times_of(small(), policy, runtime, rates).decode.seconds == pytest.approx(7 * in_pieces)


def test_what_a_device_does_one_after_the_other_is_added() -> None:
    """With a knee of a half, half of the shorter of reading a part's weights and multiplying with them is not hidden;
    what norms and sums read and write comes on top, for each token."""
    policy, rates = parse_policy("16,1,100,0,100,0,100,0"), rates_of(T4, OURS)
    sizes = replace(small(), elementwise_bytes=50_000.0)
    runtime = replace(OURS, knee=0.5, elementwise=2.0)

    def computed(runtime: Runtime) -> float:
        return sum(computation(sizes, policy, runtime, rates, part, 1, 64).device for part, n in sizes.parts() if n > 1)

    shorter = sum(min(16 * 2 * nbytes / 2 / rates.matmul, nbytes / rates.memory) for nbytes in (8 * E * E, 4 * E * F))
    elementwise = 16 * 50_000 * 2.0 / rates.memory
    assert computed(runtime) - computed(OURS) == pytest.approx(0.5 * shorter + elementwise)


def test_a_synchronised_runtime_waits_at_every_step() -> None:
    """Fetching two thirds of a layer during attention, a third during the feedforward: each step takes the longer of
    that and its computation, and nothing runs ahead."""
    runtime = replace(FLEXGEN, whole_tensors=False)
    sizes, policy = small(), parse_policy("2,2,0,100,100,0,100,0")
    rates = rates_of(T4, runtime)
    attention, feedforward = 8 * E * E, 4 * E * F
    cache = 2 * 2 * E * (64 + 4) * 2 * runtime.cache_passes / rates.memory  # 2 sequences, mean length of the cache
    own = (attention / rates.memory + cache, feedforward / rates.memory)
    copy = (feedforward / rates.to_device, attention / rates.to_device)
    attends, feeds = (max(computed, copied) + computed for computed, copied in zip(own, copy, strict=True))
    # The last feedforward fetches nothing, and the embedding, which computes nothing, the first attention.
    token = N * attends + (N - 1) * feeds + 2 * own[1] + copy[1]
    assert times_of(sizes, policy, runtime, rates).decode.seconds == pytest.approx(7 * token)


def test_without_overlap_everything_adds_up() -> None:
    sizes, policy = small(), parse_policy("4,2,0,50,0,50,0,100")
    runtime = replace(FLEXGEN, overlapped=False)
    times = times_of(sizes, policy, runtime, rates_of(T4, runtime))
    busy = times.decode.busy
    total = busy.device + busy.host + busy.to_device + busy.from_device + busy.disk
    assert times.decode.seconds == pytest.approx(total)
    assert times.seconds > times_of(sizes, policy, FLEXGEN, rates_of(T4, FLEXGEN)).seconds


def test_the_device_waits_for_the_hosts_attention_or_fetches_the_cache() -> None:
    """The host reads the cache from its memory, in place of bytes over the link."""
    sizes, policy = small(512), parse_policy("64,4,100,0,0,100,100,0")
    rates, elsewhere = rates_of(T4, OURS), replace(policy, host_attention=False)
    there, here = (times_of(sizes, each, OURS, rates).decode.busy for each in (policy, elsewhere))
    assert there.host > 0 == here.host
    fetched = policy.block * sizes.cache_elements * sizes.cache_element_bytes * sizes.layers
    positions = sum(512 + token for token in range(1, sizes.generated))
    assert here.to_device - there.to_device == pytest.approx(fetched * positions / rates.to_device, rel=0.01)
    assert there.host == pytest.approx(fetched * positions / (0.15 * T4.host.memory_rate), rel=0.01)
    passing = 2 * policy.gpu_batch * sizes.cache_elements * sizes.context * sizes.cache_element_bytes
    assert peaks_of(sizes, elsewhere, OURS).device_decode == peaks_of(sizes, policy, OURS).device_decode + passing


def test_ours_attends_on_the_host_over_whole_caches_alone() -> None:
    """A cache with a part elsewhere is fetched; and nothing is gained where the device is the host."""
    sizes, rates = small(512), rates_of(T4, OURS)
    for text in ("64,4,100,0,50,50,100,0", "64,4,100,0,0,50,100,0"):
        policy = parse_policy(text)
        assert attends_on_host(policy, FLEXGEN)
        assert not attends_on_host(policy, OURS)
        elsewhere = replace(policy, host_attention=False)
        assert times_of(sizes, policy, OURS, rates) == times_of(sizes, elsewhere, OURS, rates)
    shared = OURS.with_constants(replace(OURS.constants, host_attention=0))
    assert (OURS.attention_places, shared.attention_places) == ((True, False), (False,))
    assert not attends_on_host(parse_policy("64,4,100,0,0,100,100,0"), shared)


def test_files_outside_the_page_cache_cost_every_step_a_time() -> None:
    cached, uncached = rates_of(T4, FLEXGEN), rates_of(T4, FLEXGEN, page_cache=False)
    assert cached.disk_read == pytest.approx(FLEXGEN.constants.disk_read * 2.65e9)
    assert uncached.disk_read == pytest.approx(FLEXGEN.constants.disk_read * 2 * GIB)
    assert (cached.disk_step_s, uncached.disk_step_s) == (0.0, FLEXGEN.constants.uncached_step_s)


def test_a_pipeline_fills_in_prefill_and_waits_in_decode() -> None:
    """4 stages of one layer: prefill of 2 batches takes 2 + 3 rounds, a token 4 rounds where 2 have work; 8 batches go
    in 4 groups, for each of which weights are loaded."""
    one = OffloadSetting(replace(small(), layers=1), T4, OURS)
    four = OffloadSetting(small(), T4, OURS, devices=4)
    for block, group, rounds in (("2,2", "2,1", 5), ("2,8", "2,2", 7), ("2,7", "2,2", 7)):
        whole, part = (parse_policy(f"{n},0,100,100,0,100,0") for n in (block, group))
        assert four.price(whole).prefill_s == pytest.approx(one.price(part).prefill_s * rounds)
        assert four.price(whole).decode_s == pytest.approx(one.price(part).decode_s * 4)
        assert four.price(whole).times.tokens == whole.block * four.sizes.generated
        assert four.peaks(whole) == one.peaks(whole)


# ---------------------------------------------------------------- search


def tight(runtime: str = "flexgen") -> OffloadSetting:
    """A machine on which neither weights nor the cache of a large block fit on the device or the host."""
    machine = replace(T4, chip=replace(T4.chip, memory_bytes=120e6), host=replace(T4.host, memory_bytes=150e6))
    return OffloadSetting(small(), machine, replace(load_runtime(runtime), reserve_bytes=0.0))


@pytest.mark.parametrize("runtime", ["flexgen", "ours", "accelerate"])
def test_no_policy_beats_the_bound_of_the_linear_program(runtime: str) -> None:
    setting, draw = tight(runtime), random.Random(7)
    whole = shares(100, 0)
    choices = product((None, "int8"), (None, "int4"), (False, True))
    kinds = [Policy(1, 1, whole, whole, whole, *choice) for choice in choices]
    bounds = {kind: best_shares(setting, Blocks((2, 1), (12, 5)), kind) for kind in kinds}
    seen = 0
    for _ in range(400):
        kind = draw.choice(kinds)
        policy = replace(kind, gpu_batch=draw.randint(2, 12), n_gpu_batches=draw.randint(1, 5), weights=drawn(draw),
                         cache=drawn(draw), hidden=drawn(draw))  # fmt: skip
        if not setting.excess(policy):
            bound = bounds[kind]
            assert bound is not None
            assert setting.price(policy).seconds / policy.block >= bound.seconds * (1 - 1e-6)
            seen += 1
    assert seen > 50


def drawn(draw: random.Random) -> Shares:
    device = draw.randint(0, 100) * draw.choice((0, 1))
    return shares(device, draw.randint(0, 100 - device))


def test_what_is_found_fits_and_cannot_be_improved() -> None:
    setting = tight("ours")
    found = search(setting, ((None, None),))
    assert found is not None
    plan = found.plan
    assert not setting.excess(plan.policy)
    assert improved(setting, plan).tokens_per_s == plan.tokens_per_s
    assert found.most_tokens_per_s >= plan.tokens_per_s
    assert setting.price(parse_policy(str(plan.policy).replace(" x ", ","))).tokens_per_s == pytest.approx(
        plan.tokens_per_s, rel=1e-9
    )


def test_a_bound_on_the_time_of_a_block_is_kept() -> None:
    setting = tight()
    free = search(setting, ((None, None),))
    assert free is not None
    bounded = search(setting, ((None, None),), 0.9 * free.plan.seconds)
    assert bounded is not None
    assert bounded.plan.seconds <= 0.9 * free.plan.seconds
    assert bounded.plan.tokens_per_s <= free.plan.tokens_per_s
    assert search(setting, ((None, None),), 1e-6) is None


# ---------------------------------------------------------------- runtimes and calibration


def test_every_runtime_keeps_to_the_datasheet() -> None:
    assert runtime_names() == ("accelerate", "deepspeed", "flexgen", "ours")
    for name in runtime_names():
        rates = rates_of(T4, load_runtime(name))
        assert rates.matmul <= T4.chip.rate("f16")
        assert rates.memory <= T4.chip.memory_bytes_per_s
        assert max(rates.to_device, rates.unpinned_to_device) <= T4.host_link.to_device_bytes_per_s
        assert max(rates.store_cache, rates.store_hidden) <= T4.host_link.from_device_bytes_per_s
        assert rates.host_attention <= T4.host.memory_rate
        assert T4.disk is not None
        assert rates.disk_write <= T4.disk.write_bytes_per_s
        assert rates.disk_read <= (T4.disk.read_limit_bytes_per_s or 0)
        assert rates_of(T4, load_runtime(name), page_cache=False).disk_read <= T4.disk.read_bytes_per_s
    assert len(NAMES) == 8


def test_an_unknown_runtime() -> None:
    with pytest.raises(DiagnosticError) as caught:
        load_runtime("flexgn")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.message) == ("unknown-runtime", "there is no runtime flexgn")
    assert [str(note.message) for note in diagnostic.notes] == [
        "did you mean flexgen?", "the runtimes are accelerate, deepspeed, flexgen, ours"
    ]  # fmt: skip


def test_calibration_finds_the_constants_that_made_the_times() -> None:
    true = replace(FLEXGEN.constants, link=0.7, host_attention=0.13, disk_read=0.8)
    made = FLEXGEN.with_constants(true)
    sizes = small(512, 32)
    texts = ("8,1,0,100,100,0,100,0", "1,1,0,100,100,0,100,0", "64,4,0,100,0,100,0,100", "32,4,100,0,0,100,100,0",
             "1,1,0,0,100,0,100,0", "8,8,100,0,0,0,100,0", "64,8,100,0,100,0,100,0")  # fmt: skip
    rows = [Measurement(sizes, parse_policy(text), T4, 1.0) for text in texts] * 4
    rows = [replace(row, seconds=row.predicted_s(made)) for row in rows]
    found = calibrate(rows, FLEXGEN)
    assert found.link == pytest.approx(true.link, rel=0.03)
    assert found.host_attention == pytest.approx(true.host_attention, rel=0.05)
    assert found.disk_read == pytest.approx(true.disk_read, rel=0.05)
