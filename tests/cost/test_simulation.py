"""Event simulation on schedules by hand, and against the cost model where its closed form is exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from program_text import program

from shardwright.cost.hardware.chips import load_machine
from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.offloading.policy import parse_policy
from shardwright.cost.offloading.pricing import OffloadSetting
from shardwright.cost.offloading.simulation import Bound, EventSpan, bounds, critical_path, simulate, step_bounds
from shardwright.cost.offloading.sizes import Sizes, WeightGroup, WeightTensor
from shardwright.cost.offloading.times import steps_of, times_of
from shardwright.cost.programs.unrolling import Action, events_of
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType
from shardwright.prediction.models import model_of
from shardwright.prediction.offload_timeline import predicted_timeline
from shardwright.prediction.offloading import setting_of
from shardwright.serving.offloading.programs import scheduled_model


@dataclass(frozen=True)
class Task:
    number: int
    resource: str
    seconds: float
    after: tuple[int, ...] = ()


def run(tasks: list[Task], shared: Mapping[str, str] | None = None) -> list[tuple[float, float]]:
    return [(span.start, span.end) for span in simulate(tasks, lambda task: task.seconds, shared)]


# ---------------------------------------------------------------- by hand


def test_resources_run_side_by_side_and_each_in_order() -> None:
    tasks = [
        Task(0, "link", 2.0),
        Task(1, "device", 1.0, (0,)),
        Task(2, "link", 2.0),
        Task(3, "device", 3.0, (2,)),
        Task(4, "device", 1.0),
    ]
    assert run(tasks) == [(0, 2), (2, 3), (2, 4), (4, 7), (7, 8)]  # 4 could start at once, and waits for its turn


def test_a_later_event_of_another_resource_may_be_waited_for() -> None:
    assert run([Task(0, "device", 1.0, (1,)), Task(1, "link", 2.0)]) == [(2, 3), (0, 2)]


def test_what_is_shared_serves_one_at_a_time_the_first_that_can_start() -> None:
    tasks = [Task(0, "device", 1.0), Task(1, "write", 5.0, (0,)), Task(2, "read", 2.0), Task(3, "read", 2.0)]
    assert run(tasks) == [(0, 1), (1, 6), (0, 2), (2, 4)]
    shared = {"read": "disk", "write": "disk"}
    assert run(tasks, shared) == [(0, 1), (2, 7), (0, 2), (7, 9)]  # at 2 both are ready, and the write comes first


def test_events_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^events 0, 1 wait for each other$"):
        run([Task(0, "device", 1.0, (1,)), Task(1, "link", 1.0, (0,))])
    with pytest.raises(ValueError, match=r"^event 3 stands at place 0 of the schedule$"):
        run([Task(3, "device", 1.0)])


def test_the_critical_path_is_what_the_end_waits_for() -> None:
    tasks = [Task(0, "link", 2.0), Task(1, "device", 3.0, (0,)), Task(2, "link", 1.0), Task(3, "device", 1.0, (2,))]
    spans = simulate(tasks, lambda task: task.seconds)
    assert critical_path(tasks, spans) == [0, 1, 3]
    assert bounds(tasks, spans) == [Bound(0, 2, "link"), Bound(2, 6, "device")]
    assert step_bounds([5.0, 6.0], bounds(tasks, spans)) == [Bound(0, 5, "device"), Bound(5, 6, "device")]
    assert critical_path([], []) == []


def test_a_path_goes_through_what_is_shared() -> None:
    tasks = [Task(0, "write", 2.0), Task(1, "read", 1.0), Task(2, "device", 1.0, (1,))]
    spans = simulate(tasks, lambda task: task.seconds, {"read": "disk", "write": "disk"})
    assert bounds(tasks, spans) == [Bound(0, 2, "write"), Bound(2, 3, "read"), Bound(3, 4, "device")]


def test_time_in_which_nothing_ran_is_bound_by_nothing() -> None:
    tasks = [Task(0, "link", 1.0), Task(1, "device", 1.0, (0,))]
    assert bounds(tasks, [EventSpan(0.5, 1.5), EventSpan(2.0, 3.0)]) == [
        Bound(0, 0.5, ""), Bound(0.5, 1.5, "link"), Bound(1.5, 2, ""), Bound(2, 3, "device"),
    ]  # fmt: skip


# ---------------------------------------------------------------- a schedule that stands in the text


LAYERS = 20
STREAMED = f"""
dim N={LAYERS} E=4
weights {{ w: f32 NE on host }}
func f(x: f32 E) -> f32 E {{
  w_0 = take[N, 0](w)
  w_first: f32 E in flight = prefetch(w_0)
  w_rest, y = loop[N](w_now: f32 E in flight = w_first, h: f32 E = x) {{
    w_next: f32 E in flight = prefetch[ahead=N](w)
    w_here = wait(w_now)
    g = h * w_here
    free w_here
    next w_next, g
  }}
  free w_rest
  return y
}}
"""


@pytest.mark.parametrize(("copy", "compute"), [(5.0, 1.0), (3.0, 2.5), (3.0, 3.0), (2.0, 9.0)])
def test_weights_that_stream_are_bound_by_the_longer_of_copy_and_computation(copy: float, compute: float) -> None:
    """All layers at the pace of the slower; the first copy and the last computation have nothing beside them."""
    text = program(STREAMED)
    seconds = {Action.COPY: copy, Action.COMPUTE: compute}
    events = events_of(text, text.func("f"))
    spans = simulate(events, lambda event: seconds.get(event.action, 0.0))
    assert spans[-1].end == LAYERS * max(copy, compute) + min(copy, compute)
    assert sum(event.nbytes for event in events) == LAYERS * 16  # each weight is copied once


# ---------------------------------------------------------------- the cost model

E, F = 512, 2048


def small(prompt: int, generated: int, layers: int = 3) -> Sizes:
    square = tuple(WeightTensor(name, E * E, 2 * E * E, True) for name in ("wq", "wk", "wv", "wo"))
    wide = tuple(WeightTensor(name, E * F, 2 * E * F, True) for name in ("w_up", "w_down"))
    table = (WeightTensor("table", 1000 * E, 2000 * E, True),)
    return Sizes(
        layers=layers,
        attention=WeightGroup("attention", square, 8.0 * E * E),
        feedforward=WeightGroup("feedforward", wide, 4.0 * E * F),
        embedding=WeightGroup("embedding", table, 0.0),
        unembedding=WeightGroup("unembedding", table, 2000.0 * E),
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


POLICIES = [
    "8,3,20,80,0,100,0,100",
    "4,1,0,100,100,0,100,0",
    "8,2,0,50,0,50,0,0",
    "2,4,0,0,0,0,0,0",
    "1,1,100,0,100,0,100,0",
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("runtime", ["flexgen", "accelerate", "deepspeed"])
def test_the_simulated_steps_of_a_runtime_that_waits_take_what_the_closed_form_says(policy: str, runtime: str) -> None:
    """Exactly so with one step of decode, for then the cache has its mean length; and a little shorter or longer with
    more, where the resource that bounds a step changes as the cache grows."""
    setting = OffloadSetting(small(64, 2), load_machine("t4"), load_runtime(runtime))
    chosen = parse_policy(policy)
    timeline = predicted_timeline(setting, chosen, "small")
    assert timeline.predicted is not None
    assert timeline.predicted.seconds == pytest.approx(setting.price(chosen).seconds, rel=1e-12)
    longer = OffloadSetting(small(64, 33), load_machine("t4"), load_runtime(runtime))
    simulated = predicted_timeline(longer, chosen, "small").predicted
    assert simulated is not None
    assert simulated.seconds == pytest.approx(longer.price(chosen).seconds, rel=1e-3)


def test_the_steps_of_a_block_come_in_the_order_of_tokens_layers_and_batches() -> None:
    setting = OffloadSetting(small(16, 2, layers=2), load_machine("t4"), load_runtime("flexgen"))
    steps = list(steps_of(setting.sizes, parse_policy("4,2,0,100,0,100,0,100"), setting.runtime, setting.rates))
    layer = ["attention", "attention", "feedforward", "feedforward"]
    once = ["embedding", "embedding", *layer, *layer, "unembedding", "unembedding"]
    assert [step.part for step in steps] == once * 2
    assert [step.batch for step in steps] == [0, 1] * 12
    assert [step.token for step in steps] == [0] * 12 + [1] * 12
    times = times_of(setting.sizes, parse_policy("4,2,0,100,0,100,0,100"), setting.runtime, setting.rates)
    assert sum(step.seconds for step in steps) == pytest.approx(times.seconds, rel=1e-12)


def test_where_copies_run_ahead_the_slowest_resource_is_the_least_that_a_schedule_takes() -> None:
    """The closed form has everything hidden behind the busiest resource; the program has a beginning and an end."""
    runtime = load_runtime("ours")
    calm = replace(runtime, constants=replace(runtime.constants, contention=0.0))
    model = model_of("opt-1.3b").model
    setting = setting_of(model, load_machine("t4"), calm, 64, 9)
    for text in ("8,3,20,80,100,0,100,0", "4,2,0,0,100,0,100,0", "1,1,100,0,100,0,100,0"):
        policy = parse_policy(text)
        program = scheduled_model(model, policy, 64, 73, DType.F16, diagonal=False)
        course = predicted_timeline(setting, policy, "small", program).predicted
        assert course is not None
        busiest = max(map(course.busy, ("to device", "device", "disk read")))
        assert busiest <= course.seconds * (1 + 1e-12)
        assert course.seconds == pytest.approx(setting.price(policy).seconds, rel=0.25)


def test_a_timeline_has_an_end() -> None:
    model = model_of("opt-1.3b").model
    many = setting_of(model, load_machine("t4"), load_runtime("ours"), 64, 1900)
    policy = parse_policy("8,8,20,80,0,100,0,100")
    with pytest.raises(DiagnosticError, match="events; one of more than 400000 is not made") as caught:
        predicted_timeline(many, policy, "it", scheduled_model(model, policy, 64, 1964, DType.F16, diagonal=False))
    assert "it has fewer" in caught.value.render()
