"""Tokens equal to those of transformers' greedy `generate` in float32, wherever the values lie."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import all_with_slow
from models.greedy_generation import FEW, Truth, truth
from program_text import program

from shardwright.backends.torch.blocks import CompiledBlock
from shardwright.backends.torch.event_threads import TimedEvent
from shardwright.backends.torch.kernels.attention import sparse_attention
from shardwright.backends.torch.tensors import NamedTensor
from shardwright.cost.offloading.policy import Policy, parse_policy
from shardwright.ir import ops
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.report import Report
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel

MODELS = ("opt", "llama-grouped", "mistral", "qwen2", "gemma", "gptj", "falcon-grouped")

EVERYWHERE = (
    "8,1,100,0,100,0,100,0",
    "4,2,0,100,0,100,0,100",
    "3,2,0,0,0,0,0,0",
    "3,3,20,50,30,30,20,40",
    "1,4,50,50,60,0,0,50",
    "5,2,100,0,0,100,100,0",
)


def run(
    folder: Path, wanted: Truth, request: OffloadRequest, settings: GenerationSettings | None = None
) -> tuple[list[tuple[int, ...]], Report]:
    prompts = make_prompts([prompt.tolist() for prompt in wanted.prompts], 96, None)
    settings = settings or GenerationSettings(max_new_tokens=FEW)
    with OffloadedModel(folder, request, prompts, settings) as model:
        made = sorted(model.completions(), key=lambda completion: completion.prompt.index)
    return [completion.new_tokens for completion in made], model.report


def tokens(wanted: Truth) -> list[tuple[int, ...]]:
    return [tuple(row) for row in wanted.tokens.tolist()]


def asked(policy: str, **changes: Any) -> OffloadRequest:
    return replace(OffloadRequest(parse_policy(policy), dtype=DType.F32), **changes)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MODELS)
def test_each_model(name: str, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(name)
    wanted = truth(folder, FEW)
    for schedule in ("zigzag", "diagonal"):
        found, _ = run(folder, wanted, asked("3,2,20,50,30,30,20,40", schedule=schedule))
        assert found == tokens(wanted)


@pytest.mark.parametrize(
    ("name", "stored", "policy"),
    [("llama-grouped", "bfloat16", "3,2,0,0,0,0,0,0"), ("gptj", "float16", "3,2,20,50,30,30,20,40")],
)
def test_files_in_other_numbers_than_the_run(
    name: str, stored: str, policy: str, checkpoint: Callable[..., Path]
) -> None:
    """Weights on disk are widened as they are read, many at a time, by the threads that read."""
    folder = checkpoint(name, stored, "20KB")
    wanted = truth(folder, FEW)
    assert run(folder, wanted, asked(policy))[0] == tokens(wanted)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("policy", "host_attention", "in_place"),
    all_with_slow(
        EVERYWHERE, (True, False), (True, False),
        chosen=lambda policy, host, in_place: (EVERYWHERE.index(policy) % 2 == 0) is (host is in_place),
    ),
)  # fmt: skip
def test_policies_all_over_the_space(
    policy: str, host_attention: bool, in_place: bool, checkpoint: Callable[..., Path]
) -> None:
    """Not in place, what lies on the host is copied, as for a device with a memory of its own. `make test` has every
    pair of two of these."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    request = asked(policy, in_place=in_place)
    request = replace(request, policy=replace(request.policy, host_attention=host_attention))
    found, report = run(folder, wanted, request)
    assert found == tokens(wanted)
    assert report.new_tokens == 8 * FEW


def test_shares_are_kept_to_within_a_row(checkpoint: Callable[..., Path]) -> None:
    """20 % on the device is 20 % of every tensor, not a tensor of five."""
    folder = checkpoint("llama-grouped")
    prompts = make_prompts([[3, 4]], 96, None)
    with OffloadedModel(folder, asked("1,1,20,50,100,0,100,0"), prompts, GenerationSettings(max_new_tokens=2)) as model:
        for home in model.weights.values():
            for rows, share in zip(home.rows, (0.2, 0.5, 0.3), strict=False):
                assert abs(rows.count - share * home.n_rows) <= 1


def test_nothing_is_used_before_it_has_arrived(checkpoint: Callable[..., Path]) -> None:
    """As the run went: each event begins after those that it waits for have ended, and each resource does one at a
    time."""
    folder = checkpoint("llama-grouped")
    prompts = make_prompts([[3, 4, 5]] * 6, 96, None)
    seen: list[TimedEvent] = []
    lock = threading.Lock()

    def observe(timed: TimedEvent) -> None:
        with lock:
            seen.append(timed)

    request = asked("2,3,20,50,30,30,20,40")
    with OffloadedModel(folder, request, prompts, GenerationSettings(max_new_tokens=1), observe=observe) as model:
        list(model.completions())
    ends = {timed.event.number: timed.end for timed in seen}
    begins = {timed.event.number: timed.begin for timed in seen}
    assert sorted(ends) == list(range(len(seen)))
    for timed in seen:
        assert all(ends[before] <= begins[timed.event.number] + 1e-3 for before in timed.event.after)
    for resource in {timed.event.resource for timed in seen}:
        own = sorted((t.begin, t.end) for t in seen if t.event.resource is resource)
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in itertools.pairwise(own))


def test_texts_end_where_they_are_told_to(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("opt")
    wanted = truth(folder, FEW)
    stop = tokens(wanted)[0][3]
    found, _ = run(
        folder, wanted, asked("3,2,0,100,0,100,0,100"), GenerationSettings(FEW, stop_tokens=frozenset({stop}))
    )
    for row, whole in zip(found, tokens(wanted), strict=True):
        end = whole.index(stop) + 1 if stop in whole else FEW
        assert row == whole[:end]


def test_draws_depend_on_the_seed_alone(checkpoint: Callable[..., Path]) -> None:
    """Not on batches, places and schedules."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    settings = GenerationSettings(max_new_tokens=8, temperature=1.0, top_k=20, top_p=0.9, seed=5)
    first, _ = run(folder, wanted, asked("8,1,100,0,100,0,100,0"), settings)
    second, _ = run(folder, wanted, asked("3,2,0,50,50,0,0,100", schedule="diagonal"), settings)
    third, _ = run(folder, wanted, asked("8,1,100,0,100,0,100,0"), replace(settings, seed=6))
    assert first == second
    assert first != third


def quantized(policy: str) -> Policy:
    return replace(parse_policy(policy), weight_format="int4", cache_format="int4")


def test_four_bits_give_the_same_wherever_they_lie(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("opt")
    wanted = truth(folder, FEW)
    found = [
        run(folder, wanted, OffloadRequest(quantized(policy), dtype=DType.F32))[0]
        for policy in ("8,1,100,0,100,0,100,0", "3,2,0,0,0,0,0,0", "3,2,30,30,40,40,100,0")
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", ["llama-grouped", "gemma2"])
def test_sparse_attention_that_looks_at_all_is_attention(name: str, checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(name)
    wanted = truth(folder, FEW)
    assert run(folder, wanted, asked("4,2,100,0,50,50,100,0", sparse=0.999))[0] == tokens(wanted)
    few, _ = run(folder, wanted, asked("4,2,100,0,50,50,100,0", sparse=0.1))
    assert [len(row) for row in few] == [FEW] * 8


@pytest.mark.parametrize(("share", "looked"), [(0.15, 15), (0.151, 16), (0.29, 29), (1e-9, 1)])
def test_sparse_attention_rounds_the_share_up_as_it_is_written(share: float, looked: int) -> None:
    """There are 100 positions before a query's own, which it sees too; values say which position they are."""
    attend = ops.Attend("T", "D", causal="L")
    q, k, v, pos = torch.ones(1, 1), torch.ones(101, 1), torch.eye(101), torch.tensor(100)
    args = [NamedTensor(x, n, DType.F32) for x, n in ((q, ("L", "D")), (k, ("T", "D")), (v, ("T", "E")))]
    made = sparse_attention(attend, args, NamedTensor(pos, (), DType.INT32), share, ("L", "E"))
    assert int((made > 0).sum()) == looked + 1


def test_sparse_attention_is_refused_where_all_positions_would_be_looked_at() -> None:
    """With a logarithm of sums, say, as of positions split over chips."""
    source = """
    dim B=1 L=1 T=4 D=2
    func f(q: f32 BLD, k: f32 BTD, p: int32 B) -> f32 BLD {
      o, total = attend[T, D, causal=L, lse](q, k, k, pos=p)
      return o
    }
    """
    func = program(source).func("f")
    shapes = {value.name: value.shape for value in func.params}
    with pytest.raises(DiagnosticError, match="no-sparse-attention"):
        CompiledBlock(func.body, shapes, set(), func.returns, {}, torch.device("cpu"), sparse=0.5)


def test_sparse_attention_of_a_row_depends_on_no_other(checkpoint: Callable[..., Path]) -> None:
    """Whatever rows are beside it, and in the diagonal schedule ended ones, whose position is behind the cache."""
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    policies = ("8,1,100,0,100,0,100,0", "1,1,100,0,100,0,100,0", "3,2,0,50,30,30,0,100")
    made = [run(folder, wanted, asked(policy, sparse=0.4))[0] for policy in policies]
    made.append(run(folder, wanted, asked("2,2,0,0,0,0,0,0", sparse=0.4, schedule="diagonal"))[0])
    assert made[0] != tokens(wanted)
    assert made == made[:1] * 4


def test_padding_is_counted(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint("llama-grouped")
    wanted = truth(folder, FEW)
    _, report = run(folder, wanted, asked("8,1,100,0,100,0,100,0"))
    lengths: Sequence[int] = [len(prompt) for prompt in wanted.prompts]
    assert report.prompt_tokens == sum(lengths)
    assert report.padded_tokens == 8 * 16 + 8 * FEW
