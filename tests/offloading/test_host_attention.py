"""Attention on the host, where the cache lies: the same tokens, and a small part of the bytes over the link."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from models.greedy_generation import FEW, truth
from offloading.test_tokens import asked, run, tokens
from offloading.test_written_programs import found, plain, reordered, request
from program_text import program as parsed

from shardwright.backends.torch.event_threads import TimedEvent
from shardwright.compiling.compile_program import print_program
from shardwright.cost.programs.unrolling import Action, Event, Resource, events_of
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.passes.memory.offload import Offload
from shardwright.passes.memory.schedule_blocks import ScheduleBlocks
from shardwright.passes.pipelines import run_passes
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.run import OffloadedModel
from shardwright.serving.offloading.run_options import RunOptions

MODELS = ("opt", "llama-grouped", "mistral", "gemma", "gptj", "falcon-grouped")
CACHE = "100,0,0,100,100,0"
"""All on the device but for the cache, which is on the host."""
LEAVES = "on host = attend"


def on_device(text: str) -> str:
    """The program with every attention back on the device."""
    lines = text.splitlines(keepends=True)
    return "".join(line.replace(f"? {LEAVES}", "? = attend") if LEAVES in line else line for line in lines)


def scheduled(text: str) -> str:
    return print_program(run_passes(parsed(text), [Offload(), ScheduleBlocks(batches=2)]))


def decoded(text: str) -> list[Event]:
    program = parsed(text)
    return events_of(program, program.func("decode"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("schedule", ["zigzag", "diagonal"])
@pytest.mark.parametrize("name", MODELS)
def test_the_tokens_are_those_of_transformers(name: str, schedule: Any, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(name)
    wanted = truth(folder, FEW)
    asked_for = asked("4,2,20,80,0,100,0,100", schedule=schedule, in_place=False)
    assert asked_for.policy.host_attention
    assert run(folder, wanted, asked_for)[0] == tokens(wanted)


@pytest.mark.parametrize("name", ["opt", "llama-grouped"])
def test_the_cache_stays_where_it_lies(name: str, checkpoint: Callable[..., Path]) -> None:
    """Queries, new rows and results are all that crosses the link."""
    folder = checkpoint(name)
    wanted, moved = truth(folder, FEW), dict[bool, dict[str, int]]()
    for on_host in (False, True):
        asked_for = asked(f"4,2,{CACHE}", in_place=False)
        asked_for = replace(asked_for, policy=replace(asked_for.policy, host_attention=on_host))
        made, report = run(folder, wanted, asked_for)
        assert made == tokens(wanted)
        moved[on_host] = report.moved_bytes
    fetched = [e.nbytes for e in decoded(scheduled(print_program(plain(folder, f"4,2,{CACHE}", 8)))) if e.nbytes]
    results = [e for e in decoded(scheduled(print_program(plain(folder, f"4,2,{CACHE}", 8)))) if e.name == "o_here"]
    to_device = sum(event.nbytes for event in results)
    assert 0 < to_device < sum(fetched)
    assert moved[True]["to device"] == to_device * (FEW - 1)
    assert moved[True]["to device"] * 4 < moved[False]["to device"]
    queries = to_device * (FEW - 1)
    assert moved[True]["from device"] == moved[False]["from device"] + queries


def test_a_text_moves_attention_back_to_the_device(checkpoint: Callable[..., Path]) -> None:
    """The type of its result says where it is computed: other events, the same tokens."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    there = print_program(plain(folder, f"4,2,{CACHE}", 8))
    assert LEAVES in there
    back = on_device(there)
    assert LEAVES not in back
    events = {text: decoded(scheduled(text)) for text in (there, back)}
    hosts = [event for event in events[there] if event.resource is Resource.HOST]
    assert {(event.action, event.name) for event in hosts} == {(Action.COMPUTE, "o")}
    assert len(hosts) == 2 * parsed(there).sizes()["N"]
    assert not any(event.resource is Resource.HOST for event in events[back])
    copies = {text: sum(e.nbytes for e in events[text] if e.resource is Resource.TO_DEVICE) for text in events}
    assert copies[there] * 4 < copies[back]
    for text in (there, back):
        for each in (text, scheduled(text)):
            assert found(folder, wanted, each, in_place=False) == tokens(wanted)


def test_the_host_waits_for_rows_and_queries_and_the_device_for_the_result(checkpoint: Callable[..., Path]) -> None:
    text = scheduled(print_program(plain(checkpoint("opt"), f"4,2,{CACHE}", 8)))
    events = decoded(text)
    for event in events:
        before = {(events[n].action, events[n].name) for n in event.after}
        if event.resource is Resource.HOST:
            assert {(Action.STORE, "q_stored"), (Action.WRITE, "k"), (Action.WRITE, "v")} <= before
        if event.name == "o_here" and event.action is Action.COPY:
            assert (Action.COMPUTE, "o") in before
        if event.resource is Resource.DEVICE:
            assert not any(events[n].resource is Resource.HOST for n in event.after) or event.action is Action.WAIT


def test_the_trace_is_the_unrolling(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    wanted, lock, seen = truth(folder, FEW), threading.Lock(), list[TimedEvent]()

    def observe(timed: TimedEvent) -> None:
        with lock:
            seen.append(timed)

    prompts = make_prompts([prompt.tolist() for prompt in wanted.prompts], 96, None)
    text = scheduled(print_program(plain(folder, f"4,2,{CACHE}", 8)))
    with OffloadedModel(
        folder, request(text, in_place=False), prompts, GenerationSettings(2), observe=observe
    ) as model:
        list(model.completions())
    first_of_decode = len(events_of(parsed(text), parsed(text).func("prefill")))
    own = [each for each in seen if each.event.number >= first_of_decode]
    expected = decoded(text)
    assert len(own) == len(expected)
    for resource in Resource:
        done = [(t.event.action, t.event.name, t.event.at) for t in own if t.event.resource is resource]
        assert done == [(e.action, e.name, e.at) for e in expected if e.resource is resource]
    ends = {each.event.number: each.end for each in seen}
    for each in seen:
        assert all(ends[before] <= each.begin + 1e-3 for before in each.event.after)


def test_legal_orders_never_change_the_tokens(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    wanted, rng = truth(folder, FEW), random.Random(7)
    program = parsed(scheduled(print_program(plain(folder, f"4,2,{CACHE}", 8))))
    for _ in range(5):
        text = print_program(reordered(program, rng, legal=True, swaps=60))
        assert found(folder, wanted, text, in_place=False) == tokens(wanted)


def test_new_rows_that_are_no_state_yet_are_attended_to(checkpoint: Callable[..., Path]) -> None:
    """The rows that are read by the name of the updated cache, before or after it is set."""
    folder = checkpoint("opt")
    wanted = truth(folder, FEW)
    text = scheduled(print_program(plain(folder, f"4,2,{CACHE}", 8)))
    named = text.replace("(q_stored, k, v, pos=pos)", "(q_stored, k_new_2, v_new_2, pos=pos)")
    assert named != text
    assert found(folder, wanted, named, in_place=False) == tokens(wanted)
    assert found(folder, wanted, named) == tokens(wanted)


def test_four_bits_and_disk_are_attended_to_on_the_device(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    for shares in ("100,0,0,0,100,0", "100,0,50,50,100,0"):
        assert LEAVES not in print_program(plain(folder, f"4,2,{shares}", 8))


def test_what_is_asked_for_is_done_or_refused(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("opt")
    prompts = make_prompts([[3, 4, 5]], 96, None)
    for asked_for, on_host in ((None, False), ("device", False), ("host", True)):
        options = RunOptions(folder, 4, f"4,2,{CACHE}", attention=asked_for)
        assert options.request(prompts).policy.host_attention is on_host
    with pytest.raises(DiagnosticError) as caught:
        RunOptions(folder, 4, "4,2,100,0,50,50,100,0", attention="host").request(prompts)
    assert caught.value.diagnostics[0].message == (
        "the host attends to a cache that lies there whole, and the policy 4 x 2, 100, 0, 50, 50, 100, 0 has 50 % of it"
        " there"
    )
