"""Bytes that a chip receives in a layer, by formulas: Pope et al. 2022 with its (K-1)/K factors, and what follows.

Written from the derivations in docs/concepts/layouts.md, without the compiler. Letters are the paper's: B sequences
of L tokens, E and F the widths of the residual stream and of the feedforward layer, H heads of queries and K of keys
and values, D elements each. Of n chips, X split E of the stored weights and n/X their F or heads; N are gathered
over. A value has 2 bytes an element, a sum of a norm 4. Over K chips an all-gather costs its result, a reduce-scatter
its operand and an all-to-all its shard, each times (K-1)/K (appendix A.1), and an all-reduce is one of each of the
first two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

WORD = 2
"""Bytes of an element of an activation or a weight."""

STATISTIC = 4
"""Bytes of a sum in a norm."""


def part(chips: int) -> Fraction:
    """(K-1)/K"""
    return Fraction(chips - 1, chips)


@dataclass(frozen=True)
class Layer:
    """Sizes, a preset, and the mesh in order.

    `heads_over` are the axes that claim the heads, all by default. A model that is imported with attention over batch
    leaves the heads to those that split them in stored weights.
    """

    preset: str
    mesh: Mapping[str, int]
    B: int
    L: int
    E: int
    F: int
    H: int
    K: int
    D: int
    heads_over: tuple[str, ...] | None = None

    # ------------------------------------------------------------ who is where

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.mesh)

    @property
    def on_embed(self) -> tuple[str, ...]:
        """The axes that split E of the stored weights: x, where there are others for F, in two-dimensional layouts."""
        two_dimensional = self.preset not in ("megatron", "ws1d")
        return self.axes[:1] if two_dimensional and len(self.axes) > 1 else ()

    @property
    def on_heads(self) -> tuple[str, ...]:
        """The axes that split F and the heads of the stored weights."""
        return tuple(axis for axis in self.axes if axis not in self.on_embed)

    @property
    def gathered(self) -> tuple[str, ...]:
        """The axes that weights are gathered over, and that split the batch of activations instead."""
        return self.axes[: {"wg-x": 1, "wg-xy": 2, "wg-xyz": len(self.axes)}.get(self.preset, 0)]

    def chips(self, axes: Iterable[str]) -> int:
        return math.prod(self.mesh[axis] for axis in axes)

    @property
    def n(self) -> int:
        return self.chips(self.axes)

    @property
    def X(self) -> int:  # noqa: N802
        return self.chips(self.on_embed)

    @property
    def N(self) -> int:  # noqa: N802
        return self.chips(self.gathered)

    @property
    def on_kv_heads(self) -> tuple[str, ...]:
        """The axes that split the heads of keys and values in attention over heads: as many as divide them, in order.

        The others split the queries in a group, and along them keys and values lie in copies.
        """
        left, found = self.K, list[str]()
        for axis in self.axes if self.heads_over is None else self.heads_over:
            if left % self.mesh[axis] == 0:
                left //= self.mesh[axis]
                found.append(axis)
        return tuple(found)

    # ------------------------------------------------------------ norms, and the way in and out

    def norm(self, sums: int, vectors: int) -> Fraction:
        """An all-reduce of each sum over E, one in an RMS norm and two in a layer norm; scale and offset gathered."""
        tokens = Fraction(self.B * self.L)
        if self.preset == "megatron":
            return Fraction(0)
        summed = 2 * STATISTIC * sums * tokens / self.N * part(self.n // self.N)
        return summed + vectors * self._gathered_vector(self.E, self.axes)

    def way_in(self) -> Fraction:
        """The all-gather of the normed input to the E that the weights have; none where the stream is whole."""
        return Fraction(0) if self.preset == "megatron" else self._way()

    def way_out(self) -> Fraction:
        """The reduce-scatter of the result onto the residual stream; an all-reduce where that is whole."""
        return 2 * self._way() if self.preset == "megatron" else self._way()

    def _way(self) -> Fraction:
        BLE = Fraction(self.B * self.L * self.E)
        if self.gathered:
            return WORD * BLE / self.N * part(self.n // self.N)
        return WORD * BLE / self.X * part(self.n // self.X)

    # ------------------------------------------------------------ feedforward layers

    def feedforward_inside(self, matrices: int) -> Fraction:
        """Two matrices, or three with a gate: weights gathered, or each product of E reduce-scattered over x, and the
        one that goes on gathered again."""
        if self.gathered:
            return WORD * matrices * self.E * self.F * Fraction(self.N, self.n) * part(self.N)
        return WORD * matrices * self.B * self.L * self.F * Fraction(self.X, self.n) * part(self.X)

    def feedforward(self, matrices: int) -> Fraction:
        return self.way_in() + self.feedforward_inside(matrices) + self.way_out()

    # ------------------------------------------------------------ attention

    def attention_inside(self, over: str, *, cached: bool) -> Fraction:
        """Projections' weights and everything between the way in and the way out.

        `over` heads or batch; where it is not `cached`, weight-gathered attention stays with the batch that it finds.
        """
        return self._gathered_projections() + self._queries_and_outputs(over, cached) + 2 * self._keys(over, cached)

    def attention(self, over: str, *, cached: bool) -> Fraction:
        return self.way_in() + self.attention_inside(over, cached=cached) + self.way_out()

    def _gathered_projections(self) -> Fraction:
        if not self.gathered:
            return Fraction(0)
        own = 2 * self.E * self.H * self.D * Fraction(self.N, self.n) * part(self.N)
        splits = {*self.on_embed, *self._stored_on_keys()}  # W_K and W_V have no more axes than their heads take
        left = self.chips(splits - set(self.gathered))
        shared = 2 * Fraction(self.E * self.K * self.D, left) * part(self.chips(splits & set(self.gathered)))
        return WORD * (own + shared)

    def _stored_on_keys(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.on_kv_heads if axis in self.on_heads)

    def _queries_and_outputs(self, over: str, cached: bool) -> Fraction:
        """q is left in addends over x; o is wanted with x whole. Over batch, and where gathered weights leave them
        elsewhere than the cache, they move there and back."""
        BLHD = Fraction(self.B * self.L * self.H * self.D)
        if not self.gathered:
            summed = BLHD * Fraction(self.X, self.n) * part(self.X)
            moved = BLHD / self.n * part(self.n // self.X) if over == "batch" else Fraction(0)
            return 2 * WORD * (summed + moved)
        moving = self._moving(over, cached)
        return 2 * WORD * BLHD / self.n * part(self.chips(moving))

    def _moving(self, over: str, cached: bool) -> tuple[str, ...]:
        """Axes of weight-gathered queries that go from the batch to the heads or the other way."""
        if over == "batch":
            return tuple(axis for axis in self.axes if axis not in self.gathered)
        if not cached:
            return ()
        return tuple(axis for axis in self.gathered if axis in self.on_kv_heads)

    def _keys(self, over: str, cached: bool) -> Fraction:
        """Keys, or values: from the projection to where attention, or its cache, has them."""
        BLKD = Fraction(self.B * self.L * self.K * self.D)
        stored = self._stored_on_keys()
        if over == "batch":
            # Each chip makes its own sequences. What x leaves in addends is scattered onto the batch, and heads follow.
            made = [axis for axis in stored if axis not in self.gathered]
            held = self.n
            summed = BLKD * Fraction(self.X, held) * part(self.X) if not self.gathered else Fraction(0)
            return WORD * (summed + BLKD / held * part(self.chips(made)))
        if self.gathered:
            if not cached:
                return Fraction(0)
            moving = self.chips(a for a in self.gathered if a in self.on_kv_heads)
            held = BLKD / self.chips({*self.gathered, *self.on_kv_heads})
            copies = self.chips(a for a in self.gathered if a not in self.on_kv_heads)
            return WORD * (held * part(moving) + held * (copies - 1))
        # Over heads, stationary: addends over x, in R copies; each of these may sum its part of the sequences.
        w, X = self.chips(stored), self.X
        R = self.n // (X * w)
        scattered = all(axis in self.on_kv_heads for axis in self.on_embed)
        if scattered:  # onto the heads
            direct = BLKD / w * part(X)
            shared = BLKD / (w * R) * part(X) + BLKD / (w * X) * part(R)
        else:  # whole on every chip along x
            direct = 2 * BLKD / w * part(X)
            shared = BLKD / (w * R) * part(X) + BLKD / w * part(X * R)
        return WORD * min(direct, shared)

    # ------------------------------------------------------------ biases

    def feedforward_biases(self, matrices: int) -> Fraction:
        """Where weights are gathered, their biases are too; elsewhere each chip takes its part of them."""
        inner = (matrices - 1) * self._gathered_vector(self.F, self.on_heads)
        return inner + self._gathered_vector(self.E, self.axes)

    def attention_biases(self, over: str, *, cached: bool) -> Fraction:
        """Where queries and keys move on to heads, their biases are added after it, and are at home there."""
        moved = over == "head" and cached
        kept = [axis for axis in self.on_heads if not (moved and axis in self._moving(over, cached))]
        left = self.H * self.D // self.chips(axis for axis in self.on_heads if axis not in kept)
        queries = self._gathered_vector(left, kept)
        keys = Fraction(0) if moved else self._gathered_vector(self.K * self.D, self._stored_on_keys())
        return queries + 2 * keys + self._gathered_vector(self.E, self.axes)

    def _gathered_vector(self, size: int, split_over: Iterable[str]) -> Fraction:
        left = self.chips(set(split_over) - set(self.gathered))
        return WORD * Fraction(size, left) * part(self.chips(set(split_over) & set(self.gathered)))

    # ------------------------------------------------------------ blocks

    def serial_block(self, over: str, matrices: int, sums: int, vectors: int, *, cached: bool) -> Fraction:
        """Norm and attention, norm and feedforward: each with its way in and out."""
        return 2 * self.norm(sums, vectors) + self.attention(over, cached=cached) + self.feedforward(matrices)

    def parallel_block(self, over: str, matrices: int, sums: int, vectors: int, *, cached: bool) -> Fraction:
        """One norm, one way in and one way out for both (section 3.4)."""
        inside = self.attention_inside(over, cached=cached) + self.feedforward_inside(matrices)
        return self.norm(sums, vectors) + self.way_in() + inside + self.way_out()
