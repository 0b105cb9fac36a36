"""Mixtral's experts: replicated, or with tokens sent to them by an all-to-all, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import slow_unless
from loaded_weights import load_weights
from models.checkpoints import config_of
from program_text import by_bytes

from shardwright.backends.jax.session import Session
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.validation.validate import validate
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.models.config import read_config
from shardwright.models.importing import ImportedModel, import_model
from shardwright.models.layouts import PRESETS
from shardwright.models.token_groups import ExpertsForm
from shardwright.models.transformers_logits import transformers_logits

X, XY, XYZ = Mesh.of(x=2), Mesh.of(x=2, y=2), Mesh.of(x=2, y=2, z=2)


def sending(folder: Path, layout: str, mesh: Mesh, batch: int, length: int, **options: Any) -> ImportedModel:
    return import_model(read_config(folder).keys, layout, mesh, batch, length, experts="all-to-all", **options)


def program_of(made: ImportedModel) -> Program:
    return elaborate(parse(Source("imported", made.text)))


def weights_of(folder: Path, made: ImportedModel, program: Program) -> dict[str, np.ndarray]:
    return load_weights(folder, made.mapping, {v.name: v.type.dtype for v in program.weights})


def tokens(batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(3, 96, (batch, length), dtype=np.int32)


def agree(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-5
    assert (found.argmax(-1) == expected.argmax(-1)).all()


# ---------------------------------------------------------------- each token meets the experts that it chose

ROUTED = ("mixtral", "mixtral-three", "qwen3-moe", "deepseek-v2", "deepseek-v3")


def routed(folder: Path, layout: str, mesh: Mesh, batch: int, length: int, **options: Any) -> ImportedModel:
    return import_model(read_config(folder).keys, layout, mesh, batch, length, experts="routed", **options)


@pytest.mark.parametrize("name", ROUTED)
def test_routed_unsharded(checkpoint: Callable[..., Path], name: str) -> None:
    folder, ids = checkpoint(name), tokens(2, 24)
    made = routed(folder, "ws2d", XYZ, 2, 24)
    program = program_of(made)
    (logits,), _ = evaluate(program, "forward", {"ids": ids}, weights_of(folder, made, program))
    agree(logits, transformers_logits(folder, ids))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "layout", "mesh"),
    slow_unless(
        lambda *case: case not in (("qwen3-moe", "ws2d", XY), ("qwen3-moe", "open", X)),
        [
            ("mixtral", "ws2d", XYZ), ("mixtral", "wg-xy", XY), ("mixtral", "open", XY), ("qwen3-moe", "ws2d", X),
            ("qwen3-moe", "ws2d", XY), ("qwen3-moe", "open", X), ("deepseek-v2", "megatron", XY),
            ("deepseek-v3", "open", X),
        ],
    ),
)  # fmt: skip
def test_routed_compiled(checkpoint: Callable[..., Path], name: str, layout: str, mesh: Mesh) -> None:
    """Under JAX on virtual devices, and proved on simulated chips at reduced sizes."""
    folder, ids = checkpoint(name), tokens(4, 8)
    made = routed(folder, layout, mesh, 4, 8)
    program = program_of(made)
    compiled = by_bytes(program)
    assert validate(program, compiled).largest_difference < 1e-9
    (logits,) = Session(compiled, weights_of(folder, made, program)).call("forward", {"ids": ids})
    agree(logits, transformers_logits(folder, ids))


# ---------------------------------------------------------------- no token is dropped


@pytest.mark.parametrize(
    ("name", "batch"), [("mixtral", 4), ("mixtral", 2), ("mixtral", 1), ("mixtral", 3), ("mixtral-three", 5)]
)
def test_unsharded(checkpoint: Callable[..., Path], name: str, batch: int) -> None:
    """Groups of rows, of positions, of both, and a single one."""
    folder = checkpoint(name)
    mesh = XYZ if name == "mixtral" else Mesh.of(x=5)
    made = sending(folder, "ws2d", mesh, batch, 12)
    program = program_of(made)
    (logits,), _ = evaluate(program, "forward", {"ids": tokens(batch, 12)}, weights_of(folder, made, program))
    agree(logits, transformers_logits(folder, tokens(batch, 12)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("layout", "mesh"), [("ws2d", XYZ), ("megatron", X), ("wg-xy", XY), ("open", XY)])
def test_compiled(checkpoint: Callable[..., Path], layout: str, mesh: Mesh) -> None:
    folder = checkpoint("mixtral")
    made = sending(folder, layout, mesh, 8, 6, attention="batch")
    program = program_of(made)
    compiled = by_bytes(program)
    assert validate(program, compiled).largest_difference < 1e-9
    (logits,) = Session(compiled, weights_of(folder, made, program)).call("forward", {"ids": tokens(8, 6)})
    agree(logits, transformers_logits(folder, tokens(8, 6)))


LENGTHS = np.array([6, 9, 1, 4, 6, 2, 7, 3])
"""Of the prompts, which are read in chunks of 6."""


def continued(
    run: Callable[[str, dict[str, np.ndarray]], np.ndarray], given: np.ndarray, steps: int
) -> list[np.ndarray]:
    """Logits [B, V] after the prompts, and after each of the tokens that follow."""
    last = np.zeros((len(LENGTHS), 96), np.float32)
    for start in range(0, LENGTHS.max(), 6):
        own = np.clip(LENGTHS - start, 0, 6).astype(np.int32)
        chunk = np.zeros((len(LENGTHS), 6), np.int32)
        for row, n in enumerate(own):
            chunk[row, :n] = given[row, start : start + n]
        logits = run("prefill", {"ids": chunk, "length": own})
        last[own > 0] = logits[own > 0]
    rows = np.arange(len(LENGTHS))
    return [last, *(run("decode", {"ids": given[rows, LENGTHS + step][:, None]}) for step in range(steps))]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", ["routed", "all-to-all"])
def test_prefill_and_decode(checkpoint: Callable[..., Path], form: ExpertsForm) -> None:
    """Unequal prompts, prefill in another layout than decode."""
    folder = checkpoint("mixtral")
    config = read_config(folder).keys
    made = import_model(config, "ws2d", XY, 8, 6, cache=16, prefill_layout="wg-xy", attention="batch", experts=form)
    program = program_of(made)
    session = Session(by_bytes(program), weights_of(folder, made, program))
    given = tokens(8, 11)
    found = continued(lambda func, args: session.call(func, args)[0], given, 2)
    whole = transformers_logits(folder, given)
    agree(np.stack(found), np.stack([whole[np.arange(8), LENGTHS - 1 + step] for step in range(3)]))


def test_experts_that_no_axis_divides_are_replicated() -> None:
    keys = config_of("mixtral-three")
    made = import_model(keys, "ws2d", XY, 4, 12, experts="all-to-all")
    assert made.dropped == ("X=5 is not split over x=2 and y=2: not divisible, and every expert computes every token",)
    replicated = import_model(keys, "ws2d", XY, 4, 12)
    assert made.text.partition("\nmesh")[2] == replicated.text.partition("\nmesh")[2]
    assert import_model(keys, "ws2d", Mesh(()), 4, 12, experts="all-to-all").dropped == ()


@pytest.mark.parametrize("layout", PRESETS)
def test_experts_take_their_axes_first(layout: str) -> None:
    """Whatever the preset: X over x and y, F over what is left, and no weight of an expert is gathered."""
    text = import_model(config_of("mixtral"), layout, XYZ, 8, 12, experts="all-to-all").text
    assert "  w_gate: f32 NX_xyEF_z\n  w_up: f32 NX_xyEF_z\n  w_down: f32 NX_xyF_zE\n" in text
    assert "w_gate_gathered" not in text


# ---------------------------------------------------------------- a bounded number of slots


def kept_choices(experts: np.ndarray, real: np.ndarray, groups: tuple[int, int], slots: int) -> np.ndarray:
    """Which choices [B, L, k] have a slot: the first of a group, by position and then by row, at each expert."""
    batch, length, _ = experts.shape
    rows, positions = batch // groups[0], length // groups[1]
    kept = np.zeros(experts.shape, bool)
    for j in range(groups[0]):
        for o in range(groups[1]):
            taken: dict[int, int] = {}
            for l in range(o * positions, (o + 1) * positions):  # noqa: E741
                for b in range(j * rows, (j + 1) * rows):
                    for a, expert in enumerate(experts[b, l]):
                        if real[b, l]:
                            kept[b, l, a] = taken.get(int(expert), 0) < slots
                            taken[int(expert)] = taken.get(int(expert), 0) + 1
    return kept


def dropping_logits(folder: Path, ids: np.ndarray, groups: tuple[int, int], slots: int) -> tuple[np.ndarray, int]:
    """Logits of transformers in which choices without a slot have weight 0, and how many those were."""
    import torch
    import transformers

    library: Any = transformers
    tensors: Any = torch
    model: Any = library.AutoModelForCausalLM.from_pretrained(str(folder), dtype=tensors.float32)
    dropped = 0

    def hook(_module: Any, _inputs: Any, outputs: Any) -> Any:
        nonlocal dropped
        logits, weights, experts = outputs
        chosen = experts.numpy().reshape(*ids.shape, -1)
        kept = kept_choices(chosen, np.ones(ids.shape, bool), groups, slots)
        dropped += int((~kept).sum())
        return logits, weights * tensors.from_numpy(kept.reshape(experts.shape)), experts

    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(hook)
    with torch.no_grad():
        found = model(tensors.from_numpy(ids.astype(np.int64)), use_cache=False).logits
    return found.numpy(), dropped


@pytest.mark.parametrize(
    ("batch", "groups", "slots"),
    [(8, (4, 1), 12), (2, (2, 2), 3), (3, (1, 4), 5)],  # 1.0 times 2/4 of 24, 6 and 9 tokens in a group
)
def test_tokens_beyond_the_capacity_are_dropped(
    checkpoint: Callable[..., Path], batch: int, groups: tuple[int, int], slots: int
) -> None:
    """The same ones on every mesh: which they are depends on the batch and the number of experts alone."""
    folder, ids = checkpoint("mixtral"), tokens(batch, 12)
    expected, dropped = dropping_logits(folder, ids, groups, slots)
    assert dropped > 5
    for mesh in (Mesh(()), XYZ):
        made = sending(folder, "ws2d", mesh, batch, 12, expert_capacity=1.0)
        program = program_of(made)
        (logits,), _ = evaluate(program, "forward", {"ids": ids}, weights_of(folder, made, program))
        agree(logits, expected)


def test_padding_takes_no_slots(checkpoint: Callable[..., Path]) -> None:
    """What stands after the prompts changes no logits, though there is not room for all."""
    folder = checkpoint("mixtral")
    made = sending(folder, "ws2d", XY, 8, 6, cache=16, expert_capacity=1.0)
    program = program_of(made)
    assert "real" in made.text
    weights = weights_of(folder, made, program)
    length = np.array([6, 3, 1, 0, 6, 2, 5, 3], np.int32)
    found: list[np.ndarray] = []
    for padding in (0, 1):
        ids = np.where(np.arange(6) < length[:, None], tokens(8, 6), padding * 7).astype(np.int32)
        state = {v.name: np.zeros([d.size for d in v.type.dims], np.int32) for v in program.state}
        (logits,), _ = evaluate(program, "prefill", {"ids": ids, "length": length}, weights, state)
        found.append(logits[length > 0])
    np.testing.assert_array_equal(found[0], found[1])


# ---------------------------------------------------------------- bytes


def moved(experts: int, mesh: Mesh, form: ExpertsForm = "all-to-all", **options: Any) -> tuple[int, int, int]:
    """Bytes that a chip receives in a layer: for slots, for tokens on their way to groups and back, and in all."""
    keys = config_of("mixtral", num_local_experts=experts)
    made = import_model(keys, "ws1d", mesh, 8, 12, DType.BF16, attention="head", experts=form, **options)
    compiled = by_bytes(program_of(made))
    layer = [one for one in bytes_received(compiled, compiled.funcs[0]).movements if one.trips == 2]
    slots = sum(one.bytes_once for one in layer if {"C", "E"} <= set(one.operand.names))
    # What the norm is of goes to the groups, and what the experts added comes back.
    ways = [one for one in layer if one.statement.result.name.startswith(("middle", "fed"))]
    return slots, sum(one.bytes_once for one in ways), sum(one.bytes_once for one in layer)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("experts", "mesh", "over_experts", "capacity"),
    [(4, X, 2, None), (4, XY, 4, 1.0), (2, XY, 2, None), (4, XYZ, 4, 1.0)],
)
def test_bytes_are_those_of_the_formulas(experts: int, mesh: Mesh, over_experts: int, capacity: float | None) -> None:
    """Of K chips, Y split the experts: each way slots, J*X*C*E/Y * (1 - 1/K), and tokens, B*L*E/K * (1 - 1/Y)."""
    chips, groups = mesh.n_chips, experts
    tokens_of_group = 8 * 12 // groups
    slots = tokens_of_group if capacity is None else -(-2 * tokens_of_group // experts)
    in_slots, on_their_way, _ = moved(experts, mesh, expert_capacity=capacity)
    word = 2
    assert in_slots == 2 * word * Fraction(groups * experts * slots * 32, over_experts) * (1 - Fraction(1, chips))
    assert on_their_way == 2 * word * Fraction(8 * 12 * 32, chips) * (1 - Fraction(1, over_experts))


def test_the_all_to_all_pays_with_a_capacity() -> None:
    """Replicated experts cost an all-gather of the tokens and a reduce-scatter; 4 experts on 4 chips."""
    *_, replicated = moved(4, XY, form="replicated")
    *_, exact = moved(4, XY)
    *_, bounded = moved(4, XY, expert_capacity=1.0)
    assert bounded < replicated < exact


# ---------------------------------------------------------------- what is asked for wrongly


@pytest.mark.parametrize(
    ("name", "capacity", "message"),
    [
        ("llama-grouped", None, "LlamaForCausalLM has no experts that tokens could be sent to"),
        ("mixtral", 0.0, "the capacity of experts is a number above 0, not 0.0"),
    ],
)
def test_wrong_requests(name: str, capacity: float | None, message: str) -> None:
    with pytest.raises(DiagnosticError) as raised:
        import_model(config_of(name), "ws1d", X, 4, 12, experts="all-to-all", expert_capacity=capacity)
    assert raised.value.diagnostics[0].message == message


def test_the_command_writes_either_form(
    shardwright: Callable[..., Any], checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder, program = checkpoint("mixtral"), tmp_path / "m.shard"
    words = ("import", folder, "--mesh", "x=2", "--layout", "ws2d", "--batch", "2", "--length", "6", "-o", program)
    assert shardwright(*words).status == 0
    assert "w_up: f32 NXEF_x" in program.read_text()
    assert shardwright(*words, "--experts", "routed").status == 0
    assert "grouped[X, E](b, w_up, expert)" in program.read_text()
    assert shardwright(*words, "--experts", "all-to-all", "--expert-capacity", "1").status == 0
    assert "w_up: f32 NX_xEF\n" in program.read_text()
    refused = shardwright(*words, "--experts", "routed", "--expert-capacity", "1")
    assert refused.status == 2
    assert refused.err.endswith("error: --expert-capacity needs --experts all-to-all\n")
