"""Programs over meshes under PyTorch, each chip a process of gloo, against the simulator: movements, values that live
elsewhere, and random programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from offloading.several import finished, start
from oracles.random_programs.texts import random_program
from program_text import program

from shardwright.backends.torch.movements import MOVEMENTS
from shardwright.ir import ops

WORKER = Path(__file__).parent / "torch_chips_worker.py"

FEEDFORWARD = """
mesh x=2
dim B=4 L=3 N=2 E=16 F=40

weights {
  w_in: f32 NEF_x on device 20% host 80% along F
  w_out: f32 NF_xE on disk
}

func feedforward(x: f32 BLE) -> f32 BLE {
  y: f32 BLE = loop[N](h: f32 BLE on host = x) {
    a: f32 BLF_x = relu(h @ w_in)
    b: f32 BLE(partialsum-x) = a @ w_out
    c: f32 BLE = all_reduce[x](b)
    next h + c
  }
  return y
}
"""

BLOCK = """
mesh x=2
dim B=2 L=3 T=8 N=2 E=8 H=4 D=4 F=16

weights {
  norm: f32 NE on host
  wq: f32 NEH_xD on host
  wk: f32 NEH_xD on device 25% host 75% along E
  wv: f32 NEH_xD on disk
  wo: f32 NH_xDE on device 50% disk 50% along H
  w_in: f32 NE_xF on device 20% host 30% disk 50% along F
  w_out: f32 NFE_x on host 50% disk 50% along E
}

state {
  k: f32 NBTH_xD on host
  v: f32 NBTH_xD on disk
  pos: int32 B
}

func block(x: f32 BLE_x) -> f32 BLE_x {
  at = pos + iota[L]()
  last: f32 BLE_x = loop[N](h: f32 BLE_x on host = x) {
    own: f32 BLE_x = fetch(h)
    here: f32 BLE = all_gather[x](own)
    a = rmsnorm[E, eps=1e-6](here, norm)
    q: f32 BLH_xD = rotary[D, base=10000.0, style=neox](a @ wq, at)
    k_new: f32 BLH_xD = rotary[D, base=10000.0, style=neox](a @ wk, at)
    set k = update[T](k, k_new, pos)
    v_new: f32 BLH_xD = a @ wv
    set v = update[T](v, v_new, pos)
    s: f32 BLH_xT = q @[D] k
    p = softmax[T, causal=L](s * 0.5, pos)
    o = p @[T] v
    addends: f32 BLE(partialsum-x) = o @[HD] wo
    attended: f32 BLE_x = reduce_scatter[x -> E](addends)
    middle: f32 BLE_x = own + attended
    products: f32 BLF(partialsum-x) = middle @ w_in
    inner: f32 BLF = silu(all_reduce[x](products))
    fed: f32 BLE_x = inner @ w_out
    next middle + fed
  }
  set pos = pos + 3
  return last
}
"""

ATTENTION = """
mesh x=2
dim B=2 L=3 T=8 K=2 G=2 D=4 H=4 E=8
func f(q: bf16 BLKGD, k: bf16 BT_xKD, v: bf16 BT_xKD, pos: int32 B, length: int32 B) -> (bf16 BLHD, bf16 BLK_xGD) {
  o: bf16 BLKGD(partialsoftmax-x) = attend[T, D, causal=L, window=4, scale=0.5](q, k, v, pos=pos, length=length)
  p: bf16 BLKGD(partialsoftmax-x) = attend[T, D, softcap=2.0](q, k, v)
  return merge[KG -> H](o), p
}
"""

ALONG_X = {
    "gather": ("A_xB", "all_gather[x]", "AB"),
    "gather inside": ("BA_x", "all_gather[x]", "BA"),
    "reduce": ("AB(partialsum-x)", "all_reduce[x]", "AB"),
    "reduce maxima": ("AB(partialmax-x)", "all_reduce[x]", "AB"),
    "scatter": ("AB(partialsum-x)", "reduce_scatter[x -> B]", "AB_x"),
    "scatter maxima": ("AB(partialmax-x)", "reduce_scatter[x -> A]", "A_xB"),
    "all-to-all": ("CA_xB", "all_to_all[x: A -> B]", "CAB_x"),
    "slice": ("CAB", "slice[x -> A]", "CA_xB"),
    "whole to partial": ("AB", "as_partial[x]", "AB(partialsum-x)"),
    "split to partial": ("A_xB", "as_partial[x]", "AB(partialsum-x)"),
    "roll": ("A_xB", "roll[x, over=A, shift=1]", "A_xB"),
    "permute": ("A_xB", "permute[A: x -> {}, B: {} -> x]", "AB_x"),
    "permute to whole": ("A_xB", "permute[A: x -> {}]", "AB"),
}

ON_TWO_AXES = {
    "gather": ("CA_xyB", "all_gather[xy]", "CAB"),
    "gather two dimensions": ("A_xB_y", "all_gather[xy]", "AB"),
    "gather the front": ("A_xyB", "all_gather[x]", "A_yB"),
    "gather a suffix": ("A_xyB", "all_gather[y]", "A_xB"),
    "reduce one axis": ("AB(partialsum-xy)", "all_reduce[y]", "AB(partialsum-x)"),
    "reduce": ("CAB(partialsum-xy)", "all_reduce[xy]", "CAB"),
    "scatter": ("AB(partialsum-xy)", "reduce_scatter[xy -> A]", "A_xyB"),
    "scatter on two": ("AB(partialsum-xy)", "reduce_scatter[x -> A, y -> B]", "A_xB_y"),
    "scatter behind": ("A_yB(partialsum-x)", "reduce_scatter[x -> A]", "A_xyB"),
    "scatter maxima": ("AB(partialmax-xy)", "reduce_scatter[x -> B]", "AB_x(partialmax-y)"),
    "all-to-all": ("A_xyB", "all_to_all[xy: A -> B]", "AB_xy"),
    "all-to-all swap": ("A_xB_y", "all_to_all[x: A -> B, y: B -> A]", "A_yB_x"),
    "all-to-all of one digit": ("A_xyB", "all_to_all[x: A -> B]", "A_yB_x"),
    "slice": ("AB", "slice[x -> A, y -> B]", "A_xB_y"),
    "slice strided": ("A_xB", "slice[y -> A]", "A_xyB"),
    "whole to partial": ("A_xB", "as_partial[y]", "A_xB(partialsum-y)"),
    "split to partial": ("A_xyB", "as_partial[xy]", "AB(partialsum-xy)"),
    "roll": ("A_xyB", "roll[xy, over=A, shift=3]", "A_xyB"),
    "permute": ("A_xB", "permute[A: x -> y]", "A_yB"),
    "permute swap": ("A_xB_y", "permute[A: x -> y, B: y -> x]", "A_yB_x"),
    "permute and gather": ("CA_xyB", "permute[A: xy -> {}, B: {} -> y]", "CAB_y"),
    "to blocks": ("CA_yB", "permute[A, to=blocks]", "CA_yB"),
    "from blocks": ("A_xB_y", "permute[AB, from=blocks]", "A_xB_y"),
}


def moved(mesh: str, before: str, movement: str, after: str, dtype: str, a: str, b: str) -> str:
    head = f"mesh {mesh}\ndim A=8 {a}\ndim B=12 {b}\ndim C=3\n"
    signature = f"func f(v: {dtype} {before}) -> {dtype} {after}"
    return f"{head}{signature} {{\n  w: {dtype} {after} = {movement}(v)\n  return w\n}}\n"


def of_mesh(text: str, mesh: str) -> str:
    head, _, rest = text.partition("\n")
    assert head.startswith("mesh ")
    return f"mesh {mesh}\n{rest}"


def random_on(n_chips: int, seeds: Iterable[int]) -> list[str]:
    """Those of the random programs whose mesh has so many chips, by their numbers."""
    return [f"random {seed}" for seed in seeds if program(random_program(seed)).mesh.n_chips == n_chips]


def agree(texts: list[str], path: Path, count: int) -> list[dict[str, Any]]:
    """Runs the programs on so many processes; what the first says of each."""
    path.write_text("\n---\n".join(texts))
    ((status, out, err), *others) = finished(start(count, WORKER, path), 400)
    assert status == 0, err
    assert [status for status, _, _ in others] == [0] * (count - 1)
    found: list[dict[str, Any]] = json.loads(out)
    for text, each in zip(texts, found, strict=True):
        assert each["difference"] < each["tolerance"], text
    return found


def test_two_processes_are_two_chips(tmp_path: Path) -> None:
    """Tensor-parallel layers whose weights, caches and hidden states live elsewhere, every movement in several number
    formats, and random programs."""
    moves = [
        moved("x=2", before, movement, after, dtype, "order x", "order x")
        for dtype in ("f32", "bf16", "int8", "bool")
        for before, movement, after in ALONG_X.values()
        if dtype != "bool" or "partial" not in before + after
    ]
    # Interleaved, a value that is split enters and leaves the function by an exchange that names no axis.
    moves += [
        moved("x=2", *ALONG_X[name], "f32", "order 2 x", "order 2 x") for name in ("gather", "scatter", "permute")
    ]
    found = agree([FEEDFORWARD, BLOCK, ATTENTION, *moves, *random_on(2, range(40))], tmp_path / "programs", 2)
    for peaks in found[0]["peaks"]:
        # A chip has 20 columns of w_in, 4 of them on the device, 16 on the host; there h lies, too, and w_out passes on
        # its way from the disk.
        assert peaks["host"] == 4 * (2 * 16 * 16 + 4 * 3 * 16 + 20 * 16)
        assert peaks["disk"] == 4 * 2 * 20 * 16


def test_a_program_of_one_chip_from_the_command_line(tmp_path: Path, shardwright: Callable[..., Any]) -> None:
    file = tmp_path / "block.shard"
    file.write_text(BLOCK)
    made = shardwright("run", file, "--to", "torch", "--mesh", "x=1", "--json")
    assert made.status == 0, made.err
    report = json.loads(made.out)
    assert (report["devices"], report["virtual"]) == (1, False)
    assert [state["name"] for state in report["functions"][0]["state"]] == ["k", "v", "pos"]


def test_a_collective_without_a_function_is_named_where_it_stands(
    tmp_path: Path, shardwright: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was passed over, and the chip went on with its own part."""
    monkeypatch.delitem(MOVEMENTS, ops.AllGather)
    path = tmp_path / "gathered.shard"
    path.write_text("mesh x=1\ndim E=8\nfunc f(a: f32 E_x) -> f32 E {\n  return all_gather[x](a)\n}\n")
    made = shardwright("run", path, "--to", "torch")
    assert made.status == 1
    assert f"{path}:4:10: error: PyTorch programs have no all_gather [unsupported]" in made.err


@pytest.mark.slow
def test_four_processes_are_a_mesh(tmp_path: Path) -> None:
    """2 x 2: joint and strided movements, and random programs."""
    moves = [
        moved("x=2 y=2", before, movement, after, "f32", f"order {a}", f"order {b}")
        for before, movement, after in ON_TWO_AXES.values()
        for a, b in (("x y", "x y"), ("y x", "x y"))
    ]
    block = of_mesh(BLOCK.strip(), "x=2 y=2").replace("NE_xF", "NE_xF_y").replace("NFE_x", "NF_yE_x")
    agree([block, *moves, *random_on(4, range(60))], tmp_path / "programs", 4)
