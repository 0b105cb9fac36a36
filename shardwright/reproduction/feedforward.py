"""The feedforward layer of Pope et al. (2022, sections 3.2 and A.2) in each layout, and what its collectives carry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from shardwright.cost.kernels.work import work_of
from shardwright.cost.movements.movement import Collective
from shardwright.cost.programs.resizing import resized
from shardwright.ir.program import Program
from shardwright.prediction.programs import compile_text, loaded

LAYOUTS = ("ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")
_TYPES = {
    "ws1d": ("BLE_xyz", "BLF_xyz", "EF_xyz", "F_xyzE", "EF_xyz", "F_xyzE"),
    "ws2d": ("BLE_xyz", "BLF_xyz", "E_xF_yz", "F_yzE_x", "E_xF_yz", "F_yzE_x"),
    "wg-x": ("B_xLE_yz", "B_xLF_yz", "E_xF_yz", "F_yzE_x", "EF_yz", "F_yzE"),
    "wg-xy": ("B_xyLE_z", "B_xyLF_z", "E_xF_yz", "F_yzE_x", "EF_z", "F_zE"),
    "wg-xyz": ("B_xyzLE", "B_xyzLF", "E_xF_yz", "F_yzE_x", "EF", "FE"),
}
"""Types of the residual stream, of the hidden layer, of the stored weights, and of the weights as they are used."""

WEIGHTS = ("w_in", "w_out")


@dataclass(frozen=True)
class Volume:
    """Elements that the collectives carry, as appendix A.1 counts them, without the factor (K - 1) / K."""

    weights: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.activations


VolumeOf = Callable[[str, tuple[int, int, int], int, int, int], Volume]
"""The volume of a layout on a mesh, of so many tokens, E and F: predicted (`volume`), or measured of a module."""


def volume(layout: str, mesh: tuple[int, int, int], tokens: int, E: int, F: int) -> Volume:
    """The volume of one layer with two E x F matrices, as the paper's formulas assume, on a mesh X x Y x Z."""
    return _collectives(layer(layout, mesh, tokens, E, F), lambda collective: collective.nbytes / 2)


def received(program: Program) -> Volume:
    """The bytes that a chip receives by the collectives of a `layer`."""
    return _collectives(program, lambda collective: float(collective.received))


def layer(layout: str, mesh: tuple[int, int, int], tokens: int, E: int, F: int) -> Program:
    """The explicit program of the layer, whose function is `ffn`."""
    return resized(_program(layout, mesh, E, F), {"L": tokens // _B})


def _collectives(program: Program, figure: Callable[[Collective], float]) -> Volume:
    """A figure of the collectives, added up over those of weights and those of activations."""
    weights = activations = 0.0
    for work in work_of(program, program.func("ffn")):
        if work.collective is not None:
            if any(name in WEIGHTS for name, _ in work.reads):
                weights += figure(work.collective)
            else:
                activations += figure(work.collective)
    return Volume(weights, activations)


_B = 512
"""Sequences; tokens are made of longer ones."""


@lru_cache(maxsize=256)
def _program(layout: str, mesh: tuple[int, int, int], E: int, F: int) -> Program:
    x, h, w_in, w_out, used_in, used_out = _TYPES[layout]
    axes = " ".join(f"{axis}={size}" for axis, size in zip("xyz", mesh, strict=True))
    text = f"""\
mesh {axes}
dim B={_B} L=1 E={E} F={F}
func ffn(x: {x}, w_in: {w_in}, w_out: {w_out}) -> {x} {{
  u_in: {used_in} = w_in
  u_out: {used_out} = w_out
  h: {h} = x @[E] u_in
  y: {x} = gelu(h) @[F] u_out
  return y
}}
"""
    return loaded(compile_text(text, "cleanup"))
