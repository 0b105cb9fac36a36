"""The time of a program by hand: compute, memory, links, and what hides behind what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from program_text import program

from shardwright.cost.hardware.chips import Chip, Disk, HostLink, load_chip
from shardwright.cost.hardware.constants import DATASHEET, Constants, KernelDemand, times_of
from shardwright.cost.kernels.demand import compute_s
from shardwright.cost.kernels.work import Matmul
from shardwright.cost.programs.program_cost import Cost, cost_of
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import DType
from shardwright.ir.verification.completion import complete
from shardwright.passes.base import Pass
from shardwright.passes.pipelines import run_passes
from shardwright.passes.transformations.gather_ahead import GatherAhead

TPU = replace(load_chip("tpu-v4"), calibrated=None)
FEEDFORWARD = """
mesh x=4 y=4 z=4
dim B=512 L=1 E=18432 F=73728
weights {
  w_in: bf16 E_xF_yz
  w_out: bf16 F_yzE_x
}
func ffn(x: bf16 BLE_xyz) -> bf16 BLE_xyz {
  a: BLE_x = all_gather[yz](x)
  h_part: BLF_yz(partialsum-x) = a @[E] w_in
  h: BLF_xyz = reduce_scatter[x -> F](h_part)
  g: BLF_xyz = gelu(h)
  whole: BLF_yz = all_gather[x](g)
  y_part: BLE_x(partialsum-yz) = whole @[F] w_out
  y: BLE_xyz = reduce_scatter[yz -> E](y_part)
  return y
}
"""


def cost(text: str, chip: Chip = TPU, constants: Constants | None = None, passes: Sequence[Pass] = ()) -> Cost:
    """Of the first function, after these passes."""
    made = run_passes(complete(program(text)), passes)
    return cost_of(made, made.funcs[0], chip, constants)


def test_a_kernel_takes_the_longer_time_and_a_share_of_the_shorter() -> None:
    constants = Constants(0.5, 0.25, 1.0, 1.0, 1e-6, 0.1)
    times = times_of(KernelDemand(compute_s=2e-6, memory_s=3e-6), constants)
    assert times.total == pytest.approx(12e-6 + 0.1 * 4e-6 + 1e-6)
    assert (times.compute, times.memory, times.bound) == (4e-6, 12e-6, "memory")


def test_a_collective_takes_its_transfer_and_its_latencies() -> None:
    times = times_of(
        KernelDemand(transfer_s=4e-6, latency_s=1e-6, kernels=0), Constants(link_efficiency=0.5, latency_factor=3)
    )
    assert times.total == pytest.approx(8e-6 + 3e-6)
    assert times.bound == "link"


def test_a_small_kernel_is_bound_by_its_overhead() -> None:
    assert times_of(KernelDemand(memory_s=1e-9), Constants(kernel_overhead_s=1e-6)).bound == "overhead"


def test_products_are_padded_to_whole_tiles_whichever_operand_stays() -> None:
    """A row by a 100 x 100 matrix is 8 rows by 128 x 128 on a TPU."""
    row = Matmul(1, 1, 100, 100, DType.BF16)
    assert row.flops == 2 * 100 * 100
    assert compute_s(row, TPU) == pytest.approx(2 * 8 * 128 * 128 / 2.75e14)
    assert compute_s(Matmul(1, 100, 1, 100, DType.BF16), TPU) == compute_s(row, TPU)
    assert compute_s(Matmul(3, 128, 256, 128, DType.BF16), TPU) == pytest.approx(6 * 128 * 256 * 128 / 2.75e14)


def test_the_feedforward_layer_of_the_paper_in_two_dimensions() -> None:
    """Appendix A.2.1: 2 BL (E/X + F/YZ) elements, of each the share that the chip lacks."""
    found = cost(FEEDFORWARD)
    B, E, F = 512, 18432, 73728
    assert found.flops_per_chip == 2 * 2 * B * E * F // 64
    assert found.bytes_received_per_chip == 2 * 2 * B * (E // 4 * 15 // 16 + F // 16 * 3 // 4)
    assert found.memory.weights == 2 * 2 * E * F // 64
    compute = 2 * B * (E // 4) * (F // 16) / 2.75e14
    weights = 2 * (E // 4) * (F // 16)
    activations = 2 * B * (E // 4 + F // 16)
    assert found.compute_s == pytest.approx(2 * compute)
    assert found.memory_s == pytest.approx((2 * (weights + activations) + 2 * 2 * B * F // 64) / 1.2e12)
    # Over y and z together on two wrapped axes, 1.8e11 B/s; over x on one, 9e10; at most 2 hops along an axis.
    yz, x = 2 * B * E / 4 * 15 / 16 / 1.8e11 + 4e-6, 2 * B * F / 16 * 3 / 4 / 9e10 + 2e-6
    assert found.communication_s == pytest.approx(2 * (yz + x))
    assert found.exposed_communication_s == pytest.approx(found.communication_s)
    assert found.time_s == pytest.approx(found.compute_s + found.memory_s + found.communication_s)  # nothing overlaps
    assert (found.tokens, found.parameters) == (512, 2 * E * F)
    assert found.mfu == pytest.approx(2 * 2 * E * F * 512 / (64 * 2.75e14 * found.time_s))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_tokens_of_arguments_in_any_order(order: tuple[int, ...]) -> None:
    """A function of JAX has its weights before the activations, which alone have dimensions of their own."""
    listed = ("x: f32 BE", "w: f32 EF", "v: f32 FE")
    taken = ", ".join(listed[at] for at in order)
    text = f"mesh x=2\ndim B=8 E=16 F=32\nfunc f({taken}) -> f32 BE {{ return tanh(x @ w) @ v }}"
    found = cost(text)
    assert (found.tokens, found.parameters) == (8, 2 * 16 * 32)


def test_tokens_of_a_training_step() -> None:
    """The tokens and what is wanted of them have their numbers in common, and neither is a weight."""
    text = """
    mesh x=2
    dim B=8 E=16 F=32
    func step(w: f32 EF, x: f32 BE, y: f32 BF) -> (f32, f32 EF) {
      off = x @ w - y
      return sum[BF](off * off), w - 0.1 * (x @[B] off)
    }
    """
    found = cost(text)
    assert (found.tokens, found.parameters) == (8, 16 * 32)


def test_calibrated_constants_are_the_chips_own() -> None:
    calibrated = load_chip("tpu-v4")
    assert calibrated.calibrated is not None
    assert cost(FEEDFORWARD, calibrated).time_s == cost(FEEDFORWARD, TPU, calibrated.calibrated).time_s
    assert cost(FEEDFORWARD, TPU).time_s == cost(FEEDFORWARD, calibrated, DATASHEET).time_s


GATHERED = """
mesh x=4 y=4 z=4
dim B={B} E={E} F={F} N=10
weights {{ w: bf16 NE_xyzF }}
func f(x: bf16 B_xyzE) -> bf16 B_xyzF {{
  zero: B_xyzF = full[BF, bf16](0.0)
  y: B_xyzF = loop[N](h: B_xyzF = zero) {{
    own: EF = all_gather[xyz](w)
    p: B_xyzF = x @[E] own
    next h + p
  }}
  return y
}}
"""


def test_weights_are_gathered_in_their_turn_or_ahead() -> None:
    text = GATHERED.format(B=131072, E=4096, F=16384)
    in_turn, ahead = cost(text), cost(text, passes=(GatherAhead(),))
    once = 2 * 4096 * 16384 * 63 / 64 / 2.7e11 + 6e-6
    assert in_turn.exposed_communication_s == pytest.approx(in_turn.communication_s) == pytest.approx(10 * once)
    assert ahead.communication_s == pytest.approx(11 * once)  # zeros after the last trip
    (first,) = (kernel.total_s for kernel in ahead.kernels if kernel.work.name == "w_first")  # the slice of trip 0
    assert ahead.time_s == pytest.approx(in_turn.time_s + first - 9 * once)


@pytest.mark.parametrize("constants", [DATASHEET, Constants(link_efficiency=0.5, latency_factor=2), TPU.constants])
@pytest.mark.parametrize(("rows", "size"), [(64, 512), (64, 4096), (65536, 4096)])
def test_no_more_is_hidden_than_the_kernels_take(constants: Constants, rows: int, size: int) -> None:
    """Each trip but the first waits for what its gather takes longer than the trip before computed."""
    found = cost(GATHERED.format(B=rows, E=size, F=4 * size), TPU, constants, (GatherAhead(),))
    once = found.communication_s / 11
    computed = sum(kernel.total_s for kernel in found.kernels if kernel.work.loops and not kernel.work.collective) / 10
    assert found.exposed_communication_s == pytest.approx(once + 9 * max(0.0, once - computed))


def test_int8_weights_halve_what_is_read_and_not_the_arithmetic_but_are_made_floats() -> None:
    text = """
mesh x=4 y=4 z=4
dim B=512 E=4096 F=16384
func f(x: bf16 BE, w: {dtype} EF_xyz) -> bf16 BF_xyz {{
  wide: bf16 EF_xyz = {convert}
  y: BF_xyz = x @[E] wide
  return y
}}
"""
    wide = cost(text.format(dtype="bf16", convert="w"))
    narrow = cost(text.format(dtype="int8", convert="convert[bf16](w)"))
    assert wide.flops_per_chip == narrow.flops_per_chip
    assert wide.compute_s == pytest.approx(narrow.compute_s)  # of the vector units, less than the products
    assert wide.memory_s - narrow.memory_s == pytest.approx(4096 * 256 / 1.2e12)
    (product,) = [kernel for kernel in narrow.kernels if kernel.work.matmul is not None]
    widening = 4 * 4096 * 256 / 4.3e12
    assert product.demand.vector_s == pytest.approx(widening)
    assert product.times.total == pytest.approx(sum((product.times.compute, product.times.memory, widening)))


def test_a_chip_without_a_rate_for_a_format_says_which_it_has() -> None:
    text = (
        "mesh x=2\ndim B=4 E=8 F=8\nfunc f(a: f16 BE, w: f16 EF) -> f16 BF {\n  y: f16 BF = a @[E] w\n  return y\n}\n"
    )
    with pytest.raises(DiagnosticError) as caught:
        cost(text)
    assert caught.value.diagnostics[0].message == "tpu-v4 has no rate for matrix products in f16"


def test_calibrated_constants_in_a_file_are_checked(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "cost" / "hardware" / "chips" / "tpu-v4.toml").read_text()
    file = tmp_path / "own.toml"
    file.write_text(re.sub(r"compute_efficiency = [\d.]+", "compute_efficiency = 1.5", text))
    with pytest.raises(DiagnosticError) as caught:
        load_chip(str(file))
    assert "must be a share of the chip's rate, above 0 and at most 1" in caught.value.diagnostics[0].message
    file.write_text(text.replace("compute_efficiency", "compute_eficiency"))
    with pytest.raises(DiagnosticError) as caught:
        load_chip(str(file))
    assert "compute_eficiency" in caught.value.diagnostics[0].message


COPIES = """
mesh x={x}
dim E=4096 F=8192
weights {{
  w: bf16 EF_x on host
  v: bf16 EF_x on disk
  s: bf16 EF_x on device 50% host 25% disk 25% along E
}}
func f(x: bf16 EF_x) -> bf16 EF_x {{
  up = fetch(w)
  far = fetch(v)
  rest = fetch(s)
  down = store[host](up)
  again = fetch(down)
  return up + far + rest + again
}}
"""


def test_copies_between_memories_take_what_the_links_allow() -> None:
    """One link of 10 and 5 GB/s for each chip, or for two; a disk of 1 GB/s that four chips share."""
    disk = Disk(1e12, 1e9, 5e8, shared_by=4)
    whole = 2 * 4096 * 8192 / 4
    for shared in (1, 2):
        chip = replace(TPU, host_link=HostLink(1e10, 5e9, shared), disk=disk)
        made = {kernel.work.name: kernel for kernel in cost(COPIES.format(x=4), chip).kernels}
        assert made["up"].total_s == pytest.approx(shared * whole / 1e10) == made["again"].total_s
        assert made["down"].total_s == pytest.approx(shared * whole / 5e9)
        assert made["far"].total_s == pytest.approx(4 * whole / 1e9)
        assert made["rest"].total_s == pytest.approx(max(shared * whole / 2 / 1e10, 4 * whole / 4 / 1e9))
    alone = {
        k.work.name: k
        for k in cost(COPIES.format(x=1), replace(TPU, host_link=HostLink(1e10, 5e9, 2), disk=disk)).kernels
    }
    assert alone["up"].total_s == pytest.approx(4 * whole / 1e10)  # nobody to share with


def test_a_chip_without_a_disk_says_so() -> None:
    with pytest.raises(DiagnosticError) as caught:
        cost(COPIES.format(x=1))
    only = caught.value.diagnostics[0]
    assert only.message == "the file of tpu-v4 says nothing of its disk"
    assert only.notes[0].message == "add to it [disk]: memory, read_bytes_per_s, write_bytes_per_s, shared_by"
