"""Movements as JAX: the direct collective where blocks are contiguous, else digits brought into place around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from shardwright.backends.jax.source_text import JAX_DTYPES, axes_text, block_start, reshaped, transposed, tuple_text
from shardwright.backends.jax.terms import Lowering, subscript
from shardwright.backends.jax.tiled_forms import AddendExchange, gather_form, scatter_form
from shardwright.backends.simulation.digit_factors import Digits, Factor, leads
from shardwright.cost.movements.exchange import Table, exchange_of
from shardwright.ir import ops
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.ops import Movement
from shardwright.ir.types import DType, Reduction, TensorType, Tier

Combine = Callable[[str], str]
"""From the array's code to that of a collective on it."""


def lower_movement(operation: Movement, code: str, before: TensorType, after: TensorType, lowering: Lowering) -> str:
    """The expression of a movement of the array that `code` names."""
    digits = lowering.digits
    operation = operation.moves  # XLA finds itself what may run beside a copy or a collective
    match operation:
        case ops.Wait():
            return code
        case ops.AllReduce():
            return _all_reduce(operation, code, before, lowering)
        case ops.AllGather():
            return _Plan(digits, before, after).all_gather(code, operation.axes, lowering)
        case ops.ReduceScatter():
            return _Plan(digits, before, after).reduce_scatter(code, operation.named_axes, lowering)
        case ops.AllToAll():
            return _Plan(digits, before, after).all_to_all(code, operation.named_axes)
        case ops.Slice():
            return _Plan(digits, before, after).slice(code, operation.named_axes)
        case ops.AsPartial():
            return _Plan(digits, before, after).as_partial(code, operation.axes)
        case ops.Roll():
            return _roll(operation, code, before, digits)
        case ops.Permute():
            return _permute(operation, code, before, after, lowering)
        case ops.Fetch():
            return _between_memories(code, before, "Device")
        case ops.Store(tier=Tier.DEVICE):
            return code
        case ops.Store():
            return _between_memories(code, after, "Host")
        case _:
            raise fault("unsupported", f"JAX source has no {operation.keyword} to {after}", NOWHERE)


def parts_for_all(
    code: str, before: TensorType, after: TensorType, named: Sequence[str], lowering: Lowering
) -> tuple[str, str]:
    """The parts of an array that go to the chips along the named axes, numbered by the first dimension, and the axes
    in the order of these numbers."""
    plan = _Plan(lowering.digits, before, after)
    axes = plan.axes(named)
    front, shape = plan.to_front(code, axes)
    return reshaped(front, shape, [shape[0], *plan.result]), axes_text(axes)


def _between_memories(code: str, elsewhere: TensorType, space: str) -> str:
    if elsewhere.placement.tier not in (Tier.HOST, Tier.DEVICE):
        raise fault(
            "unsupported",
            f"a value on {elsewhere.placement} cannot be held by JAX, which has device and host memory",
            NOWHERE,
            "compile it to torch, which reads and writes disk",
        )
    return f"jax.device_put({code}, jax.memory.Space.{space})"


def _roll(operation: ops.Roll, code: str, before: TensorType, digits: Digits) -> str:
    """Pairs (from, to) of chips, which `ppermute` numbers along the axes in the order of the mesh, whatever the names'
    order; the ring follows the order of the digits."""
    mesh = digits.mesh
    axes = mesh.sorted(operation.axes)
    ring = [axis for axis in digits.ordered_axes(before, operation.dim) if axis in axes]
    K = mesh.product(axes)
    if tuple(ring) == axes:
        pairs = f"[(i, (i + {operation.shift % K}) % {K}) for i in range({K})]"
    else:
        numbered = np.arange(K).reshape([mesh[axis] for axis in axes])
        chips = numbered.transpose([axes.index(axis) for axis in ring]).reshape(-1)
        sent = zip(chips.tolist(), np.roll(chips, -operation.shift).tolist(), strict=True)
        pairs = f"[{', '.join(f'({i}, {j})' for i, j in sorted(sent))}]"
    return f"lax.ppermute({code}, {axes_text(axes)}, {pairs})"


def _permute(operation: ops.Permute, code: str, before: TensorType, after: TensorType, lowering: Lowering) -> str:
    """Units exchanged in rounds of `ppermute`; where chips end with the same, their shares are then gathered."""
    mesh = lowering.mesh
    made = exchange_of(operation, before, after, mesh, lowering.digits.orders)
    if not made.axes:
        return code
    local, result, flat = before.local_shape(mesh), after.local_shape(mesh), (-1, made.unit_elements)
    shape, order = made.opened(local)
    code = transposed(reshaped(code, local, shape), order)
    units = reshaped(code, [shape[i] for i in order], (before.local_elements(mesh) // flat[1], flat[1]))
    rounds = [(list(each.pairs), _rows(each.sent)) for each in made.rounds]
    lowering.use_helper("permuted")
    code = f"permuted({units}, {axes_text(made.axes)}, {rounds}, {_rows(made.place)})"
    if made.whole:
        whole = axes_text(made.whole)
        if made.shared < len(made.place[0]):
            lowering.use_helper("alike")
            lowering.use_helper("joined")
            code = _through_integers(before.dtype, code, lambda c: f"joined({c}, {whole}, {made.shared})")
        else:
            code = f"lax.all_gather({code}, {whole}, to='invarying').reshape{flat}"
        kept = [axis for axis in made.axes if axis not in made.whole]
        chip = f"[lax.axis_index({axes_text(kept)})]" if kept else "[0]"
        code = f"{code}[jnp.array({_rows(made.order)}){chip}]"
    shape, order = made.opened(result)
    opened = [shape[i] for i in order]
    code = reshaped(code, (after.local_elements(mesh) // flat[1], flat[1]), opened)
    return reshaped(transposed(code, np.argsort(order).tolist()), shape, result)


def _rows(table: Table) -> list[list[int]]:
    return [list(row) for row in table]


def _all_reduce(operation: ops.AllReduce, code: str, before: TensorType, lowering: Lowering) -> str:
    function = "lax.psum"
    if before.partial and before.partial.kind is Reduction.MAX:
        function = "all_reduce_max" if before.dtype.is_float else "lax.pmax"
        if before.dtype.is_float:
            lowering.use_helper(function)
    return _through_integers(before.dtype, code, lambda c: f"{function}({c}, {axes_text(operation.axes)})")


def _through_integers(dtype: DType, code: str, combine: Combine) -> str:
    """Collectives that combine take no bool (what is not 0 afterwards is true), and int4 does not wrap around."""
    if dtype is DType.BOOL:
        return f"({combine(f'{code}.astype(jnp.int32)')} != 0)"
    if dtype is DType.INT4:
        return f"{combine(f'{code}.astype(jnp.int8)')}.astype(jnp.int4)"
    return combine(code)


class _Plan:
    """How a chip's array is reshaped around one collective.

    The input as factors is [digits that leave and factors that stay, dimension by dimension]; the digits that
    leave are brought to the front in the order of the axes, are exchanged there for those that arrive, and these
    are brought to their places.
    """

    def __init__(self, digits: Digits, before: TensorType, after: TensorType) -> None:
        self.digits = digits
        self.mesh = digits.mesh
        self.before, self.after = before, after
        self.rows = digits.factors(before, after)
        self.flat = list(chain.from_iterable(self.rows))
        self.local = list(before.local_shape(self.mesh))
        self.result = list(after.local_shape(self.mesh))

    def axes(self, named: Sequence[str]) -> tuple[str, ...]:
        """The named axes in the order in which their digits stand; those of one chip last."""
        standing: list[str] = []
        for fate in ("leaves", "arrives"):
            standing.extend(
                f.axis for f in self.flat if f.axis and f.fate == fate and f.axis in named and f.axis not in standing
            )
        return (*standing, *(axis for axis in self.mesh.sorted(named) if axis not in standing))

    def changed(self) -> list[int]:
        """The dimensions whose splits change."""
        return [i for i in range(len(self.before.dims)) if self.before.splits[i] != self.after.splits[i]]

    def only(self) -> int | None:
        """The one dimension whose split changes; None where there are several."""
        changed = self.changed()
        return changed[0] if len(changed) == 1 else None

    def inputs(self) -> list[Factor]:
        return [factor for factor in self.flat if factor.fate != "arrives"]

    def to_front(self, code: str, axes: Sequence[str], part: Sequence[int] | None = None) -> tuple[str, list[int]]:
        """The array as [digits that leave, what stays] and its shape, the digits as one dimension; what stays factor by
        factor, or in the shape of a part."""
        factors = self.inputs()
        code = reshaped(code, self.local, [factor.size for factor in factors])
        leaving = [i for axis in axes for i, f in enumerate(factors) if f.axis == axis]
        staying = [i for i, f in enumerate(factors) if f.fate == "stays"]
        code = transposed(code, [*leaving, *staying])
        chips = self.mesh.product(axes)
        shape = [chips, *([factors[i].size for i in staying] if part is None else part)]
        return reshaped(code, [factors[i].size for i in (*leaving, *staying)], shape), shape

    def into_place(self, code: str, axes: Sequence[str], shape: Sequence[int]) -> str:
        """The result, from [digits that arrive in the order of the axes, what stays factor by factor]."""
        factors = [factor for factor in self.flat if factor.fate != "leaves"]
        arriving = [i for axis in axes for i, f in enumerate(factors) if f.fate == "arrives" and f.axis == axis]
        staying = [i for i, f in enumerate(factors) if f.fate == "stays"]
        sources = [*arriving, *staying]
        spread = [factors[i].size for i in sources]
        code = reshaped(code, shape, spread)
        code = transposed(code, [sources.index(i) for i in range(len(factors))])
        return reshaped(code, [factor.size for factor in factors], self.result)

    # ------------------------------------------------------------ collectives

    def all_gather(self, code: str, named: Sequence[str], lowering: Lowering) -> str:
        axes = self.axes(named)
        at = self.only()
        if at is not None and leads(self.rows[at], "arrives"):
            tile = lowering.forms.tile
            rows = None if tile is None else gather_form(self.local, self.before.dtype, tile)
            if rows == (0, 0):
                lowering.use_helper("halves_gathered")
                return f"halves_gathered({code}, {axes_text(axes)}).reshape{tuple_text([*map(str, self.result)])}"
            if rows is None:
                return f"lax.all_gather({code}, {axes_text(axes)}, axis={at}, tiled=True, to='invarying')"
            gathered = f"lax.all_gather({code}.reshape{rows}, {axes_text(axes)}, to='invarying')"
            return f"{gathered}.reshape{tuple_text([*map(str, self.result)])}"
        own = self.along_lanes(lowering) if at is None else []
        rest = [axis for axis in axes if axis not in own]
        gathered = f"lax.all_gather({code}, {axes_text([*rest, *own])}, to='invarying')"
        if not own:
            return self.into_place(gathered, axes, [self.mesh.product(axes), *self.local])
        lowering.use_helper("side_by_side")
        chips, n = self.mesh.product(rest), self.mesh.product(own)
        blocks = reshaped(gathered, [chips * n, *self.local], [chips, n, *self.local])
        others = _Plan(
            self.digits, self.before, replace(self.after, splits=(*self.after.splits[:-1], self.before.splits[-1]))
        )
        return f"side_by_side({blocks}, lambda block: {others.into_place('block', rest, [chips, *self.local])})"

    def along_lanes(self, lowering: Lowering) -> list[str]:
        """The axes of the last dimension's blocks that arrive, where these are whole lanes of a target's tiles."""
        tile, last = lowering.forms.tile, self.rows[-1] if self.rows else []
        if tile is None or not leads(last, "arrives") or self.local[-1] % tile[1]:
            return []
        return [str(factor.axis) for factor in last if factor.fate == "arrives"]

    def reduce_scatter(self, code: str, named: Sequence[str], lowering: Lowering) -> str:
        axes = self.axes(named)
        partial = self.before.partial
        if partial is not None and partial.kind is Reduction.MAX:
            return _through_integers(self.before.dtype, code, lambda c: self._exchanged(c, axes, "jnp.max"))
        return _through_integers(self.before.dtype, code, lambda c: self._sum_scatter(c, axes, lowering))

    def _sum_scatter(self, code: str, axes: Sequence[str], lowering: Lowering) -> str:
        at, chips, tile = self.only(), self.mesh.product(axes), lowering.forms.tile
        local, result, parts = self.local, self.result, code
        if at is None or not leads(self.rows[at], "leaves"):  # each chip's part is brought to the front
            if tile is None:
                front, shape = self.to_front(code, axes)
                scattered = f"lax.psum_scatter({front}, {axes_text(axes)}, scatter_dimension=0)"
                return reshaped(scattered, shape[1:], result)
            parts, local = self.to_front(code, axes, result)
            at, result = 0, [1, *result]
        if tile is None:
            return f"lax.psum_scatter({parts}, {axes_text(axes)}, scatter_dimension={at}, tiled=True)"
        form = scatter_form(local, at, chips, tile)
        if isinstance(form, AddendExchange):
            return self._exchanged(code, axes, "jnp.sum")
        if form is not None:
            lowering.use_helper("scattered_in_front")
            cut = [*local[:at], chips, *result[at:]] if form.blocks else local
            if form.blocks:
                parts = f"lax.optimization_barrier({parts})"
            call = f"{axes_text(axes)}, {at}, {form.shape}, {form.order}"
            made = f"scattered_in_front({reshaped(parts, local, cut)}, {call})"
            return reshaped(made, [*result[:at], 1, *result[at:]] if form.blocks else result, self.result)
        several = [n for i, n in enumerate(local) if n > 1 or i == at]
        call = f"{axes_text(axes)}, scatter_dimension={sum(n > 1 for n in local[:at])}, tiled=True"
        scattered = f"lax.psum_scatter({reshaped(parts, local, several)}, {call})"
        return reshaped(scattered, [n for i, n in enumerate(result) if local[i] > 1 or i == at], self.result)

    def _exchanged(self, code: str, axes: Sequence[str], combine: str) -> str:
        """Each chip gets everyone's part of its own, and combines them."""
        front, shape = self.to_front(code, axes)
        exchanged = f"lax.all_to_all({front}, {axes_text(axes)}, 0, 0, tiled=True)"
        return reshaped(f"{combine}({exchanged}, axis=0)", shape[1:], self.result)

    def all_to_all(self, code: str, named: Sequence[str]) -> str:
        axes = self.axes(named)
        sources = [i for i in self.changed() if any(f.fate == "arrives" for f in self.rows[i])]
        targets = [i for i in self.changed() if any(f.fate == "leaves" for f in self.rows[i])]
        if len(sources) == 1 and len(targets) == 1 and sources != targets:
            source, target = sources[0], targets[0]
            arriving = [f.axis for f in self.rows[source] if f.fate == "arrives"]
            leaving = [f.axis for f in self.rows[target] if f.fate == "leaves"]
            if arriving == leaving and leads(self.rows[source], "arrives") and leads(self.rows[target], "leaves"):
                call = f"{axes_text(axes)}, split_axis={target}, concat_axis={source}, tiled=True"
                return f"lax.all_to_all({code}, {call})"
        front, shape = self.to_front(code, axes)
        return self.into_place(f"lax.all_to_all({front}, {axes_text(axes)}, 0, 0, tiled=True)", axes, shape)

    # ------------------------------------------------------------ nothing is received

    def slice(self, code: str, named: Sequence[str]) -> str:
        axes = self.axes(named)
        at = self.only()
        if at is not None and leads(self.rows[at], "leaves"):
            n = self.result[at]
            return f"lax.dynamic_slice_in_dim({code}, {block_start(axes, n)}, {n}, axis={at})"
        factors = self.inputs()
        code = reshaped(code, self.local, [factor.size for factor in factors])
        index = self.indexed(factors, "leaves")
        left = [factor.size for factor in factors if factor.fate == "stays"]
        return self.varying(reshaped(f"{code}{index}", left, self.result), axes)

    def as_partial(self, code: str, axes: Sequence[str]) -> str:
        """Zeros with the chip's part at its place; what was whole counts on the chip with coordinate 0 only."""
        split = [axis for axis in axes if axis in self.before.split_axes]
        whole = [axis for axis in axes if axis not in split]
        if split:
            factors = [factor for factor in self.flat if factor.fate != "leaves"]
            shape = tuple_text([str(factor.size) for factor in factors]) if factors else "()"
            stays = [factor.size for factor in factors if factor.fate == "stays"]
            index = self.indexed(factors, "arrives")
            part = reshaped(code, self.local, stays)
            if index:
                zeros = f"jnp.zeros({shape}, {JAX_DTYPES[self.before.dtype]})"
                part = f"{zeros}.at{index}.set({part})"
            code = reshaped(part, [factor.size for factor in factors], self.result)
        if whole:
            code = f"jnp.where(lax.axis_index({axes_text(whole)}) == 0, {code}, 0)"
        return code

    def indexed(self, factors: Sequence[Factor], fate: str) -> str:
        """`[lax.axis_index('x'), :, ...]`: this chip's digits of a fate; empty where there are none."""
        return subscript([f"lax.axis_index('{f.axis}')" if f.fate == fate else ":" for f in factors])

    def varying(self, code: str, axes: Sequence[str]) -> str:
        """Says that the value differs along axes of one chip, which no index tells."""
        single = [axis for axis in axes if self.mesh[axis] == 1]
        return f"lax.pcast({code}, {axes_text(single)}, to='varying')" if single else code
