"""The schedule that stands in the text is the one that runs: programs printed by `opt`, edited, and run."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from combinations import all_with_slow
from models.greedy_generation import Truth, truth
from offloading.test_tokens import run, tokens
from program_text import program as parsed

from shardwright.backends.torch.event_threads import TimedEvent
from shardwright.compiling.compile_program import print_program
from shardwright.cost.offloading.policy import parse_policy
from shardwright.cost.programs.unrolling import Resource, events_of
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.ops import Fetch, Start
from shardwright.ir.program import Free, Func, Let, Loop, Program, Statement
from shardwright.ir.types import DType, Tier
from shardwright.ir.verification.verifier import Level, verify
from shardwright.ir.walk import names_used, states_set
from shardwright.passes.memory.offload import Offload
from shardwright.passes.memory.schedule_blocks import ScheduleBlocks
from shardwright.passes.pipelines import run_passes
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.programs import Programs
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel

FEW = 6
MIXED, HOST, DISK = "20,50,30,30,20,40", "0,100,0,100,0,100", "0,0,0,0,0,0"


def request(text: str, **changes: Any) -> OffloadRequest:
    source = Source("written.shard", text)
    return replace(OffloadRequest(parse_policy("1,1,100,0,100,0,100,0"), dtype=DType.F32, program=source), **changes)


def plain(folder: Path, policy: str, rows: int, length: int = 16) -> Program:
    programs = Programs(folder, OffloadRequest(parse_policy(policy), dtype=DType.F32), GenerationSettings(FEW))
    return programs._plain(rows, length, length + FEW)  # pyright: ignore[reportPrivateUsage]


def written(folder: Path, shares: str, *, batches: int = 2, rows: int = 4, order: str = "zigzag") -> str:
    """What `opt --passes offload,schedule-blocks` prints."""
    made = plain(folder, f"{rows},{batches},{shares}", batches * rows)
    return print_program(run_passes(made, [Offload(), ScheduleBlocks(batches=batches, order=order)]))


def found(folder: Path, wanted: Truth, text: str, **changes: Any) -> list[tuple[int, ...]]:
    return run(folder, wanted, request(text, **changes), GenerationSettings(FEW))[0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("order", "shares", "in_place"),
    all_with_slow(
        ("zigzag", "diagonal"), (MIXED, HOST, DISK), (True, False),
        chosen=lambda order, shares, in_place: (order == "zigzag") is ((shares != HOST) is in_place),
    ),
)  # fmt: skip
def test_what_opt_prints_runs(order: str, shares: str, in_place: bool, checkpoint: Callable[..., Path]) -> None:
    """`make test` has every pair of two of these."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    assert found(folder, wanted, written(folder, shares, order=order), in_place=in_place) == tokens(wanted)


@pytest.mark.parametrize("order", ["zigzag", "diagonal"])
def test_a_file_runs_whose_block_is_not_full(
    order: str, checkpoint: Callable[..., Path], shardwright: Callable[..., Any], tmp_path: Path
) -> None:
    """By the command; one of the batches has no prompts. Prefill has seconds of its own in zigzag order alone."""
    folder, program, prompts, out = checkpoint("llama-grouped"), *(tmp_path / n for n in ("w.shard", "in", "out"))
    wanted = truth(folder, FEW)
    program.write_text(written(folder, HOST, order=order))
    prompts.write_text("".join(json.dumps({"tokens": each.tolist()}) + "\n" for each in wanted.prompts[:3]))
    asked = ("--policy", program, "--dtype", "f32", "--max-new-tokens", str(FEW), "--ignore-eos", "--json")
    got = shardwright("offload", folder, "--prompts", prompts, "-o", out, *asked)
    assert got.status == 0
    assert [tuple(json.loads(line)["new_tokens"]) for line in out.read_text().splitlines()] == tokens(wanted)[:3]
    assert (json.loads(got.out)["prefill_seconds"] is None) is (order == "diagonal")


@pytest.mark.parametrize("order", ["zigzag", "diagonal"])
def test_what_import_writes_runs_in_any_order(
    order: str, checkpoint: Callable[..., Path], shardwright: Callable[..., Any], tmp_path: Path
) -> None:
    """On an axis of one chip, over which layouts are open; with caches on the host."""
    folder, program, scheduled = checkpoint("llama-grouped"), tmp_path / "w.shard", tmp_path / "s.shard"
    sizes = ("--cache", 16 + FEW, "--batch", 4, "--length", 16, "--mesh", "x=1", "--layout", "ws2d", "--dtype", "f32")
    assert shardwright("import", folder, *sizes, "-o", program).status == 0
    text = program.read_text()
    for name in ("k", "v"):
        text = text.replace(f"  {name}: f32 NBTK_xD", f"  {name}: f32 NBTK_xD on host")
    program.write_text(text)
    passes = f"offload,schedule-blocks{{batches=2,order={order}}}"
    assert shardwright("opt", program, "--passes", passes, "-o", scheduled).status == 0
    wanted = truth(folder, FEW)
    assert found(folder, wanted, scheduled.read_text()) == tokens(wanted)


def test_prompts_that_a_program_has_no_room_for_get_an_error_each(
    checkpoint: Callable[..., Path], shardwright: Callable[..., Any], tmp_path: Path
) -> None:
    folder, program, prompts, out = checkpoint("llama-grouped"), *(tmp_path / n for n in ("w.shard", "in", "out"))
    wanted = truth(folder, FEW)
    program.write_text(written(folder, HOST))
    lines = [wanted.prompts[0].tolist(), [1] * 17, wanted.prompts[1].tolist()]
    prompts.write_text("".join(json.dumps({"tokens": tokens}) + "\n" for tokens in lines))
    asked = ("offload", folder, "--prompts", prompts, "-o", out, "--policy", program, "--ignore-eos")
    got = shardwright(*asked, "--max-new-tokens", str(FEW), "--refuse-too-long")
    assert (got.status, "give a larger import --length" in got.err) == (1, True)
    got = shardwright(*asked, "--max-new-tokens", str(FEW))
    assert (got.status, "in:2 is too long and left out" in got.err) == (0, True)
    made = [json.loads(line) for line in out.read_text().splitlines()]
    assert made[1]["error"] == "the prompt has 17 tokens, and the program's prompts have 16 positions"
    assert [tuple(made[at]["new_tokens"]) for at in (0, 2)] == tokens(wanted)[:2]
    got = shardwright(*asked, "-o", tmp_path / "none", "--max-new-tokens", "40")
    assert (got.status, "the program's cache has 22 positions" in got.err) == (1, True)


def test_one_batch_after_another_runs(checkpoint: Callable[..., Path]) -> None:
    """Without a schedule everything is fetched when it is used."""
    folder = checkpoint("opt")
    wanted = truth(folder, FEW)
    text = print_program(run_passes(plain(folder, f"3,1,{MIXED}", 3), [Offload()]))
    assert found(folder, wanted, text) == tokens(wanted)


def test_each_tensor_lies_where_it_is_written(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("opt")
    wanted = truth(folder, FEW)
    text = print_program(plain(folder, "4,2,100,0,100,0,100,0", 8))
    text = text.replace("w_up: f32 NEF", "w_up: f32 NEF on disk").replace("wq: f32 NEHD", "wq: f32 NEHD on host")
    assert "NEF on disk" in text
    prompts = make_prompts([prompt.tolist() for prompt in wanted.prompts], 96, None)
    with OffloadedModel(folder, request(text, in_place=False), prompts, GenerationSettings(FEW)) as model:
        made = sorted(model.completions(), key=lambda completion: completion.prompt.index)
        tiers = {name: {rows.tier for rows in home.rows} for name, home in model.weights.items()}
    assert [each.new_tokens for each in made] == tokens(wanted)
    assert (tiers["w_up"], tiers["wq"], tiers["wk"]) == ({Tier.DISK}, {Tier.HOST}, {Tier.DEVICE})


def test_an_edit_changes_what_runs(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("opt")
    wanted = truth(folder, FEW)
    for text in (written(folder, HOST), print_program(plain(folder, f"4,2,{HOST}", 8))):
        assert "middle + fed" in text
        assert found(folder, wanted, text) == tokens(wanted)
        assert found(folder, wanted, text.replace("middle + fed", "middle - fed")) != tokens(wanted)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("placement", "in_place"),
    [("on host", True), ("on host", False), ("on device 50% host 50% along F", True), ("on disk", True)],
)
def test_all_layers_weights_are_read_at_once(placement: str, in_place: bool, checkpoint: Callable[..., Path]) -> None:
    """By a sum over all of them, from wherever they lie. A CPU has what is on the host at hand, layer by layer."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    text = print_program(plain(folder, "4,2,100,0,100,0,100,0", 8))
    text = text.replace("  x: f32 BLE = lookup", "  looked_up: f32 BLE = lookup")
    text = re.sub(r"(  looked_up: .*\n)", r"\1  x: f32 BLE = looked_up + sum[NF](w_gate)\n", text)
    made = found(folder, wanted, text)
    assert made != tokens(wanted)
    assert (
        found(folder, wanted, text.replace("w_gate: f32 NEF", f"w_gate: f32 NEF {placement}"), in_place=in_place)
        == made
    )


@pytest.mark.parametrize(
    ("old", "new", "changes", "message"),
    [
        (
            "w_up: f32 NEF", "w_up: f32 NEF on device 50% host 50% along N", {},
            "w_up: f32 NEF on device 50% host 50% along N is shared along N, over which a loop goes, and a run shares"
            " each trip's slice alike",
        ),
        ("pos: int32 B", "pos: int32 B on disk", {}, "pos: int32 B on disk: a run reads positions from the device or"),
        ("", "", {"dtype": DType.BF16}, "the program's weights are f32, and bf16 is asked for"),
    ],
)  # fmt: skip
def test_what_a_run_cannot_do_is_refused(
    old: str, new: str, changes: dict[str, Any], message: str, checkpoint: Callable[..., Path]
) -> None:
    folder = checkpoint("llama-grouped")
    text = print_program(plain(folder, "4,2,100,0,100,0,100,0", 8)).replace(old, new, 1)
    with pytest.raises(DiagnosticError) as caught:
        Programs(folder, request(text, **changes), GenerationSettings(FEW))
    assert caught.value.diagnostics[0].message.startswith(message)
    assert caught.value.diagnostics[0].notes


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"schedule": "diagonal"}, {}, "in a schedule that is not the diagonal one"),
        ({}, {"logprobs": True}, "and no function of it scores prompts"),
    ],
)
def test_what_written_movements_cannot_do_is_refused(
    changes: dict[str, Any], settings: dict[str, Any], message: str, checkpoint: Callable[..., Path]
) -> None:
    folder = checkpoint("llama-grouped")
    with pytest.raises(DiagnosticError) as caught:
        Programs(folder, request(written(folder, HOST), **changes), GenerationSettings(FEW, **settings))
    assert caught.value.diagnostics[0].message == f"the program has its movements written down, {message}"
    assert caught.value.diagnostics[0].notes


def test_a_pipeline_of_written_movements_is_refused_once(
    checkpoint: Callable[..., Path], shardwright: Callable[..., Any], tmp_path: Path
) -> None:
    """Before its processes start, which would all say it, and nothing is left of the output."""
    folder, program, prompts, out = checkpoint("llama-grouped"), *(tmp_path / n for n in ("w.shard", "in", "out"))
    program.write_text(written(folder, HOST))
    prompts.write_text('{"tokens": [3, 4]}\n')
    asked = ("--policy", program, "--dtype", "f32", "--gpus", "2", "--max-new-tokens", "6")
    got = shardwright("offload", folder, "--prompts", prompts, "-o", out, *asked)
    assert got.status == 1
    said = "the program has its movements written down, for all layers, and each process of a pipeline has some of them"
    way = "leave --gpus out, or give a program without movements"
    assert got.err == f"{program}: error: {said} [wrong-program]\nnote: {way}\n"
    assert not out.exists()


# ---------------------------------------------------------------- the trace


def test_the_trace_is_the_unrolling(checkpoint: Callable[..., Path]) -> None:
    """Of each call every event, statement by statement: on each resource in the order of the text, and after those that
    it waits for."""
    folder = checkpoint("llama-grouped")
    wanted, lock, seen = truth(folder, FEW), threading.Lock(), list[TimedEvent]()

    def observe(timed: TimedEvent) -> None:
        with lock:
            seen.append(timed)

    made, text = make_prompts([prompt.tolist() for prompt in wanted.prompts], 96, None), written(folder, MIXED)
    with OffloadedModel(folder, request(text, in_place=False), made, GenerationSettings(3), observe=observe) as model:
        list(model.completions())
    program = parsed(text)
    begin = 0
    for token, name in enumerate(("prefill", "decode", "decode")):
        events = events_of(program, program.func(name))
        own = [each for each in seen if begin <= each.event.number < begin + len(events)]
        for resource in Resource:
            done = [
                (t.event.action, t.event.name, t.event.at, t.event.trips[1:])
                for t in own
                if t.event.resource is resource
            ]
            assert done == [(e.action, e.name, e.at, e.trips) for e in events if e.resource is resource]
        assert all(each.event.trips[0] == ("token", token) for each in own)
        begin += len(events)
    ends = {each.event.number: each.end for each in seen}
    assert len(ends) == begin
    for each in seen:
        assert all(ends[before] <= each.begin + 1e-3 for before in each.event.after)


# ---------------------------------------------------------------- other orders


def _touches(statement: Statement) -> tuple[set[str], set[str]]:
    """What a statement needs to stand after, and what must not come before it: names that it uses, and makes."""
    freed = set(statement.names) if isinstance(statement, Free) else set[str]()
    inner = statement.body if isinstance(statement, Loop) else ()
    states = set(states_set((statement, *inner)))
    return names_used((statement,)) | freed, {value.name for value in statement.results} | states | freed


def _apart(one: Statement, other: Statement) -> bool:
    """Whether two statements that follow each other may change places."""
    (reads, makes), (others_read, others_make) = _touches(one), _touches(other)
    return not (makes & (others_read | others_make) or others_make & reads)


def _swapped(body: tuple[Statement, ...], at: int) -> tuple[Statement, ...]:
    return (*body[:at], body[at + 1], body[at], *body[at + 2 :])


def _bodies(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    yield body
    for statement in body:
        if isinstance(statement, Loop):
            yield from _bodies(statement.body)


def _changed(func: Func, old: tuple[Statement, ...], new: tuple[Statement, ...]) -> Func:
    def visit(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        if body is old:
            return new
        return tuple(replace(s, body=visit(s.body)) if isinstance(s, Loop) else s for s in body)

    return replace(func, body=visit(func.body))


def reordered(program: Program, rng: random.Random, *, legal: bool, swaps: int) -> Program:
    funcs: list[Func] = []
    for each in program.funcs:
        func, done = each, 0
        while done < swaps:
            body = rng.choice([body for body in _bodies(func.body) if len(body) > 1])
            at = rng.randrange(len(body) - 1)
            if _apart(body[at], body[at + 1]) is legal:
                func = _changed(func, body, _swapped(body, at))
                done += 1
        funcs.append(func)
    return replace(program, funcs=tuple(funcs))


@pytest.mark.parametrize("count", [15, pytest.param(50, marks=pytest.mark.slow)])
def test_legal_orders_change_the_timeline_and_never_the_tokens(count: int, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    wanted, rng = truth(folder, FEW), random.Random(0)
    program = parsed(written(folder, MIXED))
    before = {str(event) for event in events_of(program, program.func("decode"))}
    changed = 0
    for number in range(count):
        text = print_program(reordered(program, rng, legal=True, swaps=rng.choice((5, 40, 200))))
        made = parsed(text)
        changed += {str(event) for event in events_of(made, made.func("decode"))} != before
        new = 2 if number % 5 else FEW
        assert run(folder, wanted, request(text, in_place=bool(number % 2)), GenerationSettings(new))[0] == [
            row[:new] for row in tokens(wanted)
        ]
    assert changed > 0.8 * count


@pytest.mark.parametrize("count", [20, pytest.param(50, marks=pytest.mark.slow)])
def test_illegal_orders_are_refused_with_their_place(count: int, checkpoint: Callable[..., Path]) -> None:
    """A use before its wait, a wait before what sets out, what was freed before its last use."""
    folder = checkpoint("llama-grouped")
    program, rng = parsed(written(folder, MIXED)), random.Random(1)
    refused = 0
    for _ in range(count):
        text = print_program(reordered(program, rng, legal=False, swaps=1))
        prompts = make_prompts([[1, 2]], 96, None)
        if not _order_of_state(text, program):
            with pytest.raises(DiagnosticError) as caught:
                OffloadedModel(folder, request(text), prompts, GenerationSettings(1)).__enter__()
            refused += 1
            assert caught.value.source is not None
            assert caught.value.source.name == "written.shard"
            assert caught.value.diagnostics[0].span.line > 0
    assert refused > count // 2


def _order_of_state(text: str, other: Program) -> bool:
    """Whether a text is a program that reads or sets state in another order: another program, and a legal one."""
    try:
        one = parsed(text)
        verify(one, Level.SURFACE)
    except DiagnosticError:
        return False

    def orders(program: Program) -> list[list[str]]:
        return [
            [name for s in body for name in sorted(names_used((s,)) & program.state_names)]
            for func in program.funcs
            for body in _bodies(func.body)
        ]

    assert orders(one) != orders(other)
    return True


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("wait(k_this)", "wait(v_this)", "k_this is in flight and never lands"),
        ("wait(wq_now)", "wait(wq)", "wq: f32 EKGD on host is not in flight, and wait lands what is"),
        ("  free h_moved\n", "  free h_moved, h_moved\n", "h_moved is freed twice"),
        ("w_up: f32 NEF on host", "w_up: f32 NEF on disk", "take leaves its result on disk, and w_up_0 is f32 EF on"),
        (
            "decode_h: f32 MBL3E on host", "decode_h: f32 MBL3E on disk",
            "decode_h is set to x_stored_set: f32 BL3E on host, where f32 BL3E on disk is needed",
        ),
    ],
)  # fmt: skip
def test_what_the_runtime_needs_is_held_to(old: str, new: str, message: str, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    text = written(folder, HOST)
    assert old in text
    with pytest.raises(DiagnosticError) as caught:
        Programs(folder, request(text.replace(old, new, 1)), GenerationSettings(FEW))
    assert message in str(caught.value)


def test_without_a_prefetch_it_is_slower(checkpoint: Callable[..., Path]) -> None:
    """By the simulation of the events: what is fetched when it is used is waited for."""
    from shardwright.cost.offloading.simulation import simulate

    folder = checkpoint("llama-grouped")
    program = parsed(written(folder, HOST))

    def seconds(made: Program) -> float:
        events = events_of(made, made.func("decode"))
        spans = simulate(events, lambda e: 1e-3 if e.action == "compute" else e.nbytes * 1e-7)
        return max(span.end for span in spans)

    late = replace(program, funcs=tuple(_delayed(func) for func in program.funcs))
    assert seconds(late) > 1.02 * seconds(program)
    wanted = truth(folder, FEW)
    assert found(folder, wanted, print_program(late)) == tokens(wanted)


def _delayed(func: Func) -> Func:
    """The function with what is prefetched for the next layer fetched after the batches."""

    def visit(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        early = [
            s
            for s in body
            if isinstance(s, Let) and isinstance(s.operation, Start) and s.operation.movement == Fetch(ahead=("N",))
        ]
        rest = tuple(replace(s, body=visit(s.body)) if isinstance(s, Loop) else s for s in body if s not in early)
        return (*rest, *early)

    return replace(func, body=visit(func.body))
