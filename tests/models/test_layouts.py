"""Layout presets: what they split, on meshes of any number of axes, and what they leave whole."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from models.checkpoints import CHECKPOINTS, config_of
from program_text import by_bytes

from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Movement
from shardwright.ir.program import Let, Loop
from shardwright.ir.text.format import format_module
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType, TensorType
from shardwright.ir.verification.verifier import Level, verify
from shardwright.models.importing import ImportedModel, import_model
from shardwright.models.layouts import PRESETS, AttentionOver

MESHES = [
    Mesh(()),
    Mesh.of(x=1),
    Mesh.of(x=2),
    Mesh.of(x=4),
    Mesh.of(x=8),
    Mesh.of(x=2, y=2),
    Mesh.of(x=4, y=2),
    Mesh.of(x=2, y=2, z=2),
    Mesh.of(x=3, y=2),
    Mesh.of(x=2, y=1, z=2, w=2),
    Mesh.of(data=2, model=4),
]


def imported(name: str, layout: str, mesh: Mesh, **changes: object) -> ImportedModel:
    return import_model(config_of(name, **changes), layout, mesh, 2, 8)


def weights(name: str, layout: str, mesh: Mesh, **changes: object) -> dict[str, str]:
    """The layouts of the weights."""
    program = elaborate(parse(Source("p", imported(name, layout, mesh, **changes).text)))
    return {value.name: value.concrete.layout_text for value in program.weights}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: str(mesh) or "none")
def test_programs_are_well_typed_and_formatted(mesh: Mesh, every: int) -> None:
    """Elaboration checks that the axes which split a dimension anywhere divide it together. Every checkpoint meets
    every mesh, or two of them, and the presets, attention and phases in turn."""
    attentions: list[AttentionOver | None] = [None, "head", "batch", "positions"]
    for i, name in list(enumerate(CHECKPOINTS, start=MESHES.index(mesh)))[MESHES.index(mesh) % every :: every]:
        layout = list(PRESETS)[i % 6]
        made = import_model(
            config_of(name), layout, mesh, 2, 8, attention=attentions[i // 6 % 4], cache=32 if i // 3 % 2 else None
        )
        module = parse(Source("p", made.text))
        program = elaborate(module)
        verify(program, Level.SURFACE)
        assert format_module(module) == made.text
        assert [value.name for value in program.weights] == list(made.mapping.entries)
        for value in program.weights:
            assert tuple(dim.size for dim in value.type.dims) == made.mapping.shape(value.name)
            assert isinstance(value.type, TensorType)


def test_one_dimensional_multiquery() -> None:
    got = weights("cohere-multiquery", "ws1d", Mesh.of(x=2, y=2, z=2))
    assert got == {
        "embed": "V_xyzE",
        "block_norm": "NE_xyz",
        "wq": "NEH_xyzD",
        "wk": "NED",
        "wv": "NED",
        "wo": "NH_xyzDE",
        "w_gate": "NEF_xyz",
        "w_up": "NEF_xyz",
        "w_down": "NF_xyzE",
        "final_norm": "E_xyz",
    }


def test_two_dimensional_grouped() -> None:
    got = weights("llama-biased", "ws2d", Mesh.of(x=2, y=2, z=2))
    assert got == {
        "embed": "V_xyzE",
        "attention_norm": "NE_xyz",
        "wq": "NE_xK_yzGD",
        "bq": "NK_yzGD",
        "wk": "NE_xK_yzD",
        "bk": "NK_yzD",
        "wv": "NE_xK_yzD",
        "bv": "NK_yzD",
        "wo": "NK_yzGDE_x",
        "bo": "NE_xyz",
        "feedforward_norm": "NE_xyz",
        "w_gate": "NE_xF_yz",
        "b_gate": "NF_yz",
        "w_up": "NE_xF_yz",
        "b_up": "NF_yz",
        "w_down": "NF_yzE_x",
        "b_down": "NE_xyz",
        "final_norm": "E_xyz",
        "unembed": "V_xyzE",
    }


def types(text: str) -> dict[str, str]:
    """The type written for each value, of the last function that has it."""
    return {found[1]: found[2] for found in re.finditer(r"^ *([a-z_]+): ([^=\n{]+?)(?: =.*)?$", text, re.MULTILINE)}


@pytest.mark.parametrize("layout", ["wg-x", "wg-xy", "wg-xyz"])
def test_gathered_layouts_store_the_same_weights(layout: str) -> None:
    mesh = Mesh.of(x=2, y=2, z=2)
    for name in ("llama-grouped", "falcon", "opt", "mixtral"):
        made = import_model(config_of(name), layout, mesh, 8, 8)
        stationary = import_model(config_of(name), "ws2d", mesh, 8, 8)
        weights_of = [re.search(r"weights \{.*?\}", text, re.DOTALL) for text in (made.text, stationary.text)]
        assert weights_of[0] is not None
        assert weights_of[1] is not None
        assert weights_of[0][0] == weights_of[1][0]
        assert made.mapping == stationary.mapping


@pytest.mark.parametrize(
    ("layout", "residual", "inner", "weight"),
    [
        ("megatron", "f32 BLE", None, None),
        ("ws1d", "f32 BLE_xyz", None, None),
        ("ws2d", "f32 BLE_xyz", None, None),
        ("wg-x", "f32 B_xLE_yz", "f32 B_xLF_yz", "f32 EF_yz"),
        ("wg-xy", "f32 B_xyLE_z", "f32 B_xyLF_z", "f32 EF_z"),
        ("wg-xyz", "f32 B_xyzLE", "f32 B_xyzLF", "f32 EF"),
    ],
)
def test_activations(layout: str, residual: str, inner: str | None, weight: str | None) -> None:
    """As in section 3.2 of Pope et al. 2022."""
    found = types(import_model(config_of("llama-grouped"), layout, Mesh.of(x=2, y=2, z=2), 8, 8).text)
    assert (found["middle"], found.get("inner"), found.get("w_up_gathered")) == (residual, inner, weight)


def test_a_batch_that_does_not_divide_leaves_weights_where_they_are() -> None:
    made = import_model(config_of("llama-grouped"), "wg-xy", Mesh.of(x=2, y=2, z=2), 2, 8)
    found = types(made.text)
    assert (found["middle"], found["inner"], found["w_up_gathered"]) == ("f32 B_xLE_yz", "f32 B_xLF_yz", "f32 EF_yz")
    assert made.dropped == ("B=2 is not split over y=2 beside x=2: not divisible",)


@pytest.mark.parametrize(
    ("name", "attention", "queries", "cache"),
    [
        ("falcon", "head", "f32 BLH_xyzD", "f32 NBTD"),
        ("falcon", "batch", "f32 B_xyLH_zD", "f32 NB_xyTD"),
        ("llama-grouped", "head", "f32 BLK_xG_yzD", "f32 NBTK_xD"),
        ("llama-grouped", "batch", "f32 B_xyLKG_zD", "f32 NB_xyTKD"),
        ("opt", "head", "f32 BLH_xyzD", "f32 NBTH_xyzD"),
    ],
)
def test_attention_and_its_cache(name: str, attention: AttentionOver, queries: str, cache: str) -> None:
    mesh = Mesh.of(x=2, y=2, z=2)
    made = import_model(config_of(name), "ws1d", mesh, 4, 8, attention=attention, cache=32)
    found = types(made.text)
    assert (found["q"], found["k"], found["v"]) == (queries, cache, cache)


@pytest.mark.parametrize(
    ("name", "queries", "cache"),
    [
        ("falcon", "f32 B_xyLH_zD", "f32 NBTD"),
        ("llama-grouped", "f32 B_yLK_xG_zD", "f32 NBTK_xD"),
        ("opt", "f32 BLH_xyzD", "f32 NBTH_xyzD"),
    ],
)
def test_queries_leave_the_batch_only_where_keys_are_split(name: str, queries: str, cache: str) -> None:
    """Weights gathered over x and y, a cache over heads: along axes with copies of the keys nothing has to move."""
    mesh = Mesh.of(x=2, y=2, z=2)
    found = types(import_model(config_of(name), "wg-xy", mesh, 4, 8, attention="head", cache=32).text)
    assert (found["q"], found["k"]) == (queries, cache)


@pytest.mark.parametrize(
    ("name", "queries", "cache"),
    [
        ("cohere-multiquery", "f32 BLHD", "f32 NBT_xyzD"),
        ("llama-grouped", "f32 BLK_xGD", "f32 NBT_yzK_xD"),
        ("opt", "f32 BLH_xyzD", "f32 NBTH_xyzD"),
    ],
)
def test_positions_take_the_axes_that_the_heads_of_keys_do_not(name: str, queries: str, cache: str) -> None:
    """Interleaved: neighbours lie on different chips. Weights are stored as for attention over heads."""
    mesh = Mesh.of(x=2, y=2, z=2)
    over_heads = import_model(config_of(name), "wg-xy", mesh, 4, 8, attention="head", cache=32).text
    text = import_model(config_of(name), "wg-xy", mesh, 4, 8, attention="positions", cache=32).text
    found = types(text)
    assert (found["q"], found["k"]) == (queries, cache)
    assert found["wq"] == types(over_heads)["wq"]
    split = re.search("T_([xyz]+)", cache)
    order = f" order {32 // 2 ** len(split[1])} {' '.join(split[1])}" if split else ""
    assert f" T=32{order} N=2 " in text
    if split:
        assert f"along T over {' '.join(split[1])}.\n" in text
    else:
        assert text == over_heads


def test_a_cache_in_int8_has_a_scale_for_each_row() -> None:
    options = {"attention": "positions", "cache": 16, "cache_format": "int8"}
    for layout, wanted in (("ws1d", ("int8 NBT_yK_xD", "f32 NBT_yK_x")), ("open", ("int8 NBTKD?", "f32 NBTK?"))):
        found = types(import_model(config_of("llama-grouped"), layout, Mesh.of(x=2, y=2), 4, 8, **options).text)
        assert (found["k"], found["k_scale"]) == wanted


def test_positions_that_do_not_divide_leave_the_axis_to_the_heads() -> None:
    made = import_model(config_of("llama-grouped"), "ws1d", Mesh.of(x=2, y=2), 4, 8, attention="positions", cache=15)
    assert made.dropped == ("T=15 is not split over y=2: not divisible",)
    assert (types(made.text)["q"], types(made.text)["k"]) == ("f32 BLK_xG_yD", "f32 NBTK_xD")


def test_gathered_weights_are_gathered() -> None:
    """What the compiler makes of wg-xyz: weights move inside the layers, activations do not."""
    made = import_model(config_of("gptj"), "wg-xyz", Mesh.of(x=2, y=2), 4, 8)
    program = by_bytes(elaborate(parse(Source("p", made.text))))
    (loop,) = (statement for statement in program.funcs[0].body if isinstance(statement, Loop))
    moves = [s for s in loop.body if isinstance(s, Let) and isinstance(s.operation, Movement)]
    assert {statement.operation.keyword for statement in moves} == {"all_gather"}
    gathered = {statement.result.name.removesuffix("_gathered") for statement in moves}
    assert gathered == {"wq", "wk", "wv", "wo", "w_up", "w_down", "block_norm", "block_norm_offset", "b_up", "b_down"}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_weights_are_gathered_where_they_are_first_read(name: str) -> None:
    """No block holds them all at once: behind each gather stands the line that reads it, or the next of its gathers."""
    program = elaborate(parse(Source("p", imported(name, "wg-xy", Mesh.of(x=2, y=2)).text)))
    for loop in (statement for func in program.funcs for statement in func.body if isinstance(statement, Loop)):
        lets = [statement for statement in loop.body if isinstance(statement, Let)]
        names = [let.result.name for let in lets]
        gathers = [at for at, name in enumerate(names) if name.endswith("_gathered")]
        assert gathers
        for at in gathers:
            reader = next(let for let in lets[at + 1 :] if not let.result.name.endswith("_gathered"))
            assert names[at] in reader.operands, f"{names[at]} before {reader.result.name}"


def test_the_first_gemmas_mean_the_tanh_form() -> None:
    made = imported("gemma", "ws1d", Mesh.of(x=2), hidden_act="gelu")
    assert made == imported("gemma", "ws1d", Mesh.of(x=2), hidden_act="gelu_pytorch_tanh")
    assert "gelu[form=tanh]" in made.text


def test_on_one_axis_both_layouts_are_one() -> None:
    for name in CHECKPOINTS:
        mesh = Mesh.of(x=4)
        assert weights(name, "ws1d", mesh) == weights(name, "ws2d", mesh)


def test_axes_that_do_not_fit_the_heads_of_keys_split_the_group() -> None:
    """Two heads of keys and values, four queries for each: a chip's queries find their keys on the chip."""
    mesh = Mesh.of(x=2, y=2, z=2)
    assert weights("llama-grouped", "ws1d", mesh)["wq"] == "NEK_xG_yzD"
    assert weights("llama-grouped", "ws1d", mesh)["wk"] == "NEK_xD"
    assert "# wk and wv, of 2 heads, are not split over y z, which split the queries' heads.\n" in (
        imported("llama-grouped", "ws1d", mesh).text
    )
    assert weights("llama-grouped", "ws1d", Mesh.of(x=4, y=2))["wq"] == "NEK_yG_xD"


def test_the_heads_of_keys_are_split_as_far_as_they_can_be() -> None:
    """Four heads of keys over an axis of four, so that the outer axis of two has the group, and no axis is dropped."""
    changes = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4}
    made = weights("llama-grouped", "ws1d", Mesh.of(x=2, y=4), **changes)
    assert (made["wq"], made["wk"]) == ("NEK_yG_xD", "NEK_yD")


def test_two_heads_of_keys_over_eight_chips_of_one_axis() -> None:
    made = imported("llama-grouped", "ws1d", Mesh.of(x=8))
    assert weights("llama-grouped", "ws1d", Mesh.of(x=8))["wq"] == "NEKGD"
    assert made.dropped == ("K=2 G=4 are not split over x=8: not divisible",)
    assert "# K=2 G=4 are not split over x=8: not divisible.\n" in made.text


def test_the_innermost_axes_are_dropped_first() -> None:
    mesh = Mesh.of(x=2, y=2, z=2)
    changes = {"hidden_size": 36, "intermediate_size": 54, "vocab_size": 97, "head_dim": 4}
    made = imported("llama-grouped", "ws2d", mesh, **changes)
    assert made.dropped == (
        "E=36 is not split over z=2 beside x=2 y=2: not divisible",
        "F=54 is not split over z=2 beside y=2: not divisible",
        "V=97 is not split over x=2 and y=2 and z=2: not divisible",
    )
    got = weights("llama-grouped", "ws2d", mesh, **changes)
    assert (got["w_up"], got["embed"], got["final_norm"]) == ("NE_xF_y", "VE", "E_xy")


def test_half_precision_programs_keep_scores_and_logits_in_f32() -> None:
    made = import_model(config_of("llama-grouped"), "ws1d", Mesh.of(x=2), 2, 8, DType.BF16)
    assert "func forward(ids: int32 BL) -> f32 BLV_x {" in made.text
    assert "o = attend[T, D, causal=L, scale=0.5](q, k, v)" in made.text  # whose scores are f32


@pytest.mark.parametrize("cache", [None, 32])
def test_number_formats_fit_in_half_precision(cache: int | None) -> None:
    for name in CHECKPOINTS:
        made = import_model(config_of(name), "ws2d", Mesh.of(x=2), 2, 8, DType.BF16, cache=cache, phases=("prefill",))
        verify(elaborate(parse(Source("p", made.text))), Level.SURFACE)


def test_the_length_may_be_overridden() -> None:
    made = imported("llama3", "ws2d", Mesh.of(x=2, y=2))
    program = elaborate(parse(Source("p", made.text)), {}, {"L": 16, "B": 3})
    assert program.sizes()["T"] == 16


def test_the_text_of_a_program(golden: object) -> None:
    assert callable(golden)
    for name, layout in itertools.product(("cohere-multiquery", "llama3"), ("ws1d", "ws2d")):
        golden(f"models/{name}-{layout}.shard", imported(name, layout, Mesh.of(x=2, y=2, z=2)).text)
    mesh = Mesh.of(x=2, y=2, z=2)
    cached = import_model(
        config_of("falcon"), "ws2d", mesh, 8, 16, DType.BF16, attention="batch", cache=64, prefill_layout="wg-xy"
    )
    golden("models/falcon-cached.shard", cached.text)
    golden("models/mixtral-megatron.shard", imported("mixtral", "megatron", mesh).text)
    latent = import_model(config_of("deepseek-v3"), "ws2d", mesh, 8, 16, DType.BF16, cache=64)
    golden("models/deepseek-v3-cached.shard", latent.text)
    sending = import_model(
        config_of("mixtral"), "ws2d", mesh, 8, 16, DType.BF16, cache=64, experts="all-to-all", expert_capacity=1.25
    )
    golden("models/mixtral-all-to-all.shard", sending.text)


def test_descriptions_are_values() -> None:
    from shardwright.models.architectures import describe
    from shardwright.models.config import Config
    from shardwright.models.weights import model_weights

    model = describe(Config(config_of("llama-grouped")))
    names = [weight.name for weight in model_weights(replace(model, parallel=True, tied=True))]
    assert "block_norm" in names
    assert not {"attention_norm", "feedforward_norm", "unembed"} & set(names)


def test_open_demands_the_logits_alone() -> None:
    """Everything else is a hole; what the compiler fills in is a program like any other."""
    made = import_model(config_of("llama-grouped"), "open", Mesh.of(x=2, y=2), 2, 8, cache=32)
    program = elaborate(parse(Source("p", made.text)))
    assert format_module(parse(Source("p", made.text))) == made.text
    assert "Layouts are left open, but that of the logits" in made.text
    assert all(str(value.type).endswith("?") for value in (*program.weights, *program.state[:2]))
    assert [str(func.results[0]) for func in program.funcs] == ["f32 BV_xy", "f32 BV_xy"]
    named = re.findall(r"_[xy]+", re.sub(r"^#.*$", "", made.text, flags=re.MULTILINE))
    assert set(named) == {"_xy"}
    assert verify(by_bytes(program), Level.EXPLICIT) is None


def test_open_says_where_experts_have_all_tokens_after_all() -> None:
    said = "X=4 is not split over x=3: not divisible, and every expert computes every token"
    made = import_model(config_of("mixtral"), "open", Mesh.of(x=3), 2, 8, experts="all-to-all")
    assert made.dropped == (said,)
    assert f"# {said}.\n" in made.text
    assert "groups of M rows" not in made.text
    sent = import_model(config_of("mixtral"), "open", Mesh.of(x=2), 2, 8, experts="all-to-all")
    assert sent.dropped == ()
    assert "J groups of M rows and O of Q positions, S tokens" in " ".join(sent.text.replace("\n#", "").split())


def test_open_goes_with_no_preset() -> None:
    with pytest.raises(DiagnosticError, match="open stores weights otherwise than ws2d"):
        import_model(config_of("llama-grouped"), "ws2d", Mesh.of(x=2, y=2), 2, 8, cache=32, prefill_layout="open")
