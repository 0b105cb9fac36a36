"""Pipeline stages by hand: the passes, the bubbles, the memory of a stage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.cost.hardware.chips import load_chip

TEXT = """\
mesh {mesh}
dim N=8 B=64 E=512 F=2048
weights {{
  w: {N}EF_x
  u: {N}F_xE
  s: E
}}
func {name}(a: BE) -> BE {{
  y: BE = loop[N](h: BE = a * s) {{
    g = gelu(h @[E] w)
    o: BE = g @[F] u
    next h + o
  }}
  return y
}}
"""

LINKS, LATENCY = load_chip("tpu-v4").constants.link_efficiency, load_chip("tpu-v4").constants.latency_factor


@pytest.fixture
def cost(shardwright: Callable, tmp_path: Path) -> Callable:
    """The JSON of a program on TPU v4, with two stages or whole."""

    def run(*options: str, stages: int = 2, name: str = "f", batch: int = 64) -> dict:
        file = tmp_path / "layers.shard"
        text = TEXT.format(mesh="p=2 x=2" if stages == 2 else "x=2", N="N_p" if stages == 2 else "N", name=name)
        file.write_text(text.replace("B=64", f"B={batch}"))
        got = shardwright("cost", str(file), "--chip", "tpu-v4", "--json", *options)
        assert got.err == ""
        return json.loads(got.out)

    return run


def test_one_micro_batch_takes_as_long_as_on_one_stage(cost: Callable) -> None:
    """It only has to cross: 64 x 512 bf16 over one link of 4.5e10 B/s, and a hop."""
    piped, whole = cost(), cost(stages=1)
    crossing = 2 * 64 * 512 / 4.5e10 / LINKS + LATENCY * 1e-6
    assert piped["time_s"] == pytest.approx(whole["time_s"] + crossing)
    assert (piped["n_chips"], piped["stages"], whole["n_chips"]) == (4, 2, 2)
    assert piped["exposed_communication_s"] == pytest.approx(whole["exposed_communication_s"] + crossing)
    assert piped["bytes_received_per_chip"] == whole["bytes_received_per_chip"] // 2 + 2 * 64 * 512
    assert piped["flops_per_chip"] == whole["flops_per_chip"] / 2
    assert piped["weight_bytes_per_chip"] == (whole["weight_bytes_per_chip"] - 1024) / 2 + 1024


def test_micro_batches_fill_and_drain_the_pipeline(cost: Callable) -> None:
    """Four of 16 rows on two stages take 5 / 2 passes; in decode, where the next token waits, 4 / 2."""
    part = cost(batch=16, stages=1)["time_s"]
    crossing = 2 * 16 * 512 / 4.5e10 / LINKS + LATENCY * 1e-6
    assert cost("--micro-batches", "4")["time_s"] == pytest.approx(5 / 2 * (part + crossing))
    assert cost("--micro-batches", "4", name="decode")["time_s"] == pytest.approx(4 / 2 * (part + crossing))
    priced, whole = cost("--micro-batches", "4"), cost(stages=1)
    assert priced["tokens"] == 64
    assert priced["bytes_received_per_chip"] == whole["bytes_received_per_chip"] // 2 + 2 * 64 * 512


def test_micro_batches_divide_the_batch(shardwright: Callable, tmp_path: Path) -> None:
    file = tmp_path / "layers.shard"
    file.write_text(TEXT.format(mesh="p=2 x=2", N="N_p", name="f"))
    got = shardwright("cost", str(file), "--chip", "tpu-v4", "--micro-batches", "3")
    assert got.status == 1
    assert "3 micro-batches do not divide B=64 [not-divisible]" in got.err


def test_layouts_are_chosen_for_a_micro_batch(shardwright: Callable, tmp_path: Path) -> None:
    """12 rows would be split over all four chips of a stage, which do not divide 6: `compile` chooses others, too."""
    file = tmp_path / "layers.shard"
    file.write_text("""\
mesh p=2 x=2 y=2
dim N=4 B=12 E=8 F=16
weights { w: f32 N_pEF
          v: f32 N_pFE }
func f(a: f32 B_xE) -> f32 B_xE {
  y: f32 B_xE = loop[N](h: f32 B_xE = a) {
    g: f32 B_yF = h @[E] w
    o: f32 B_xE = g @[F] v
    next o
  }
  return y
}
""")
    halves, of_six = (
        json.loads(shardwright("cost", str(file), "--json", *options).out)
        for options in (("--micro-batches", "2"), ("--dim", "B=6"))
    )
    assert halves["ops"] == of_six["ops"]


def test_a_generation_fills_and_drains_the_stages(shardwright: Callable, tmp_path: Path) -> None:
    """Prefill and steps were priced as if each stage had all layers and nothing crossed."""
    body = """(h0: f32 BLE) -> f32 BLE {
  y: f32 BLE = loop[N](h: f32 BLE = h0) {
    set k = update[T](k, h @[E] w, pos)
    o = attend[T, D, causal=L](h @[E] w, k, k, pos=pos)
    next h + sum[D](o)
  }
  return y
}
"""
    text = "mesh p=2 x=2\ndim N=4 B=6 L=2 T=4 E=8 D=4\nweights { w: f32 N_pED }\nstate { k: f32 N_pBTD\n pos: int32 }\n"
    file = tmp_path / "generation.shard"
    file.write_text(f"{text}func prefill{body}func decode[L=1]{body}")
    options = ("--chip", "h100", "--micro-batches", "3", "--json")
    priced = json.loads(shardwright("cost", str(file), "--generate", "2", *options).out)
    prompt, full = (json.loads(shardwright("cost", str(file), "--dim", f"T={T}", *options).out) for T in (2, 3))
    assert priced["generation"]["prefill_s"] == prompt["functions"][0]["time_s"]
    assert priced["generation"]["decode_s"] == full["functions"][1]["time_s"]


def test_a_pipeline_alone_is_priced(shardwright: Callable, tmp_path: Path) -> None:
    """All chips are stages: each step runs on one chip, and the sum of both stages' passes is as on one chip."""
    file = tmp_path / "layers.shard"
    text = TEXT.replace("F_x", "F")
    times = []
    for mesh, dim in (("p=2", "N_p"), ("p=1", "N_p"), ("p=1", "N")):
        file.write_text(text.format(mesh=mesh, N=dim, name="f"))
        got = shardwright("cost", str(file), "--chip", "tpu-v4", "--json")
        assert got.status == 0, got.err
        times.append(json.loads(got.out))
    assert [cost["n_chips"] for cost in times] == [2, 1, 1]
    assert times[0]["compute_s"] == pytest.approx(times[2]["compute_s"])
    assert times[1]["time_s"] == pytest.approx(times[2]["time_s"])


def test_what_is_wrong_with_a_pipeline_is_shown_in_its_own_text(shardwright: Callable, tmp_path: Path) -> None:
    file = tmp_path / "layers.shard"
    file.write_text("# a comment moves the lines\n" + TEXT.replace("F_x", "F").format(mesh="p=2", N="N_p", name="f"))
    got = shardwright("cost", str(file), "--chip", "tpu-v4", "--mesh", "p=3")
    assert (got.status, got.err.splitlines()[0]) == (
        1,
        f"{file}:3:5: error: N=8 does not divide over 3 stages [not-divisible]",
    )
    got = shardwright("cost", str(file), "--chip", "tpu-v4", "--mesh", "x=2")
    assert got.err.splitlines()[0] == (f"{file}: error: the file has no axis x, for which x=2 is given [unknown-axis]")
