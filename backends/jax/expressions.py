"""Contraction, elementwise operations, reductions and reshapes as JAX expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shardwright.backends import foreign
from shardwright.backends.jax.attention import lower_attend, lower_join, lower_pair
from shardwright.backends.jax.code_text import Code
from shardwright.backends.jax.helpers import HELPERS
from shardwright.backends.jax.indexing import (
    lower_concat,
    lower_grouped,
    lower_lookup,
    lower_rotary,
    lower_take,
    lower_topk,
    lower_uniform,
    lower_update,
)
from shardwright.backends.jax.movements import lower_movement
from shardwright.backends.jax.source_text import (
    JAX_DTYPES,
    axes_text,
    number_text,
    reshaped,
    transposed,
)
from shardwright.backends.jax.terms import (
    Lowering,
    Term,
    aligned,
    axes_of,
    axis_of,
    cast,
    einsum_letters,
    literal,
    near_positions,
    spread,
)
from shardwright.backends.jax_functions import FUNCTIONS
from shardwright.ir import ops
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.operation import Operation
from shardwright.ir.types import DType, TensorType


def lower(operation: Operation, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    """The expression that computes one chip's array of the result, or a tuple of arrays where there are several.

    `result` is the type of the first result. Raises `unsupported` where JAX has no such thing.
    """
    if terms and terms[0].kind is not None and terms[0].kind.is_pair:
        return lower_pair(operation, terms[0], result, lowering, lower)
    if isinstance(operation, ops.Movement):
        source = terms[0]
        return lower_movement(operation, source.code, source.tensor, result, lowering)
    lowered = LOWERINGS.get(type(operation))
    if lowered is None:
        raise fault("unsupported", f"there is no JAX source for {operation.keyword}", NOWHERE)
    return lowered(operation, terms, result, lowering)


Rule = Callable[..., str]


# ---------------------------------------------------------------- contraction


def _contract(operation: ops.Contract, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    left, right = terms[0].tensor, terms[1].tensor
    codes, names = [term.code for term in terms], [left.names, right.names]
    if summed_as_one(operation, left, right, lowering) is not None:
        first, *rest = [name for name in left.names if name in operation.dims]
        sizes = [[*kind.local_shape(lowering.mesh)] for kind in (left, right)]
        for i, own in enumerate(sizes):
            at = names[i].index(first)
            own[at : at + 1 + len(rest)] = [math.prod(own[at : at + 1 + len(rest)])]
            codes[i] = codes[i] if terms[i].merged else reshaped(codes[i], None, own)
            names[i] = tuple(name for name in names[i] if name not in rest)
    letters = einsum_letters(list(dict.fromkeys((*names[0], *names[1]))))
    subscripts = ["".join(letters[name] for name in kind) for kind in (*names, result.names)]
    spec = f"'{subscripts[0]},{subscripts[1]}->{subscripts[2]}'"
    if left.dtype.is_float:
        wide = DType.F32
        options = f"preferred_element_type={JAX_DTYPES[wide]}"
        if left.dtype is DType.F32:
            options = "precision='highest'"
    else:
        wide = DType.INT32
        options = f"preferred_element_type={JAX_DTYPES[wide]}"
        if left.dtype is not DType.INT8:
            codes = [cast(code, left.dtype, DType.INT8 if left.dtype is DType.INT4 else wide) for code in codes]
            options = options if left.dtype is DType.INT4 else ""
    batched = set(left.names) & set(right.names) & set(result.names)
    if left.dtype is DType.BF16 and batched and result.names[0] in set(left.names) - batched:
        # XLA cannot run some such products of bf16 on CPU, and can with the operands the other way round.
        spec = f"'{subscripts[1]},{subscripts[0]}->{subscripts[2]}'"
        codes.reverse()
    call = ", ".join([spec, *codes, *([options] if options else [])])
    if result.dtype is DType.BOOL:
        return f"jnp.einsum({call}) != 0"
    return cast(f"jnp.einsum({call})", wide, result.dtype)


def summed_as_one(operation: ops.Contract, left: TensorType, right: TensorType, lowering: Lowering) -> int | None:
    """The operand that is a matrix where several dimensions are summed as one: where rows have them last, and a matrix
    of whole tiles before its last, libtpu reads the matrix as it lies so, and else copies it."""
    tile, n = lowering.forms.tile, len(operation.dims)
    if tile is None or n < 2:
        return None
    for at, rows, matrix in ((1, left, right), (0, right, left)):
        if (
            set(rows.names[-n:]) == set(operation.dims)
            and rows.names[-n:] == matrix.names[-n - 1 : -1]
            and lowering.size(matrix, matrix.names[-2]) % tile[0] == 0
        ):
            return at
    return None


# ---------------------------------------------------------------- elementwise


def _elementwise(operation: ops.TableOperation, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    """The expression of the table, of the operands. XLA's int4 arithmetic does not wrap around on every backend, so it
    is done in int8."""
    entry, dtype = operation.entry, next(t.tensor.dtype for t in reversed(terms) if t.number is None)
    codes = [aligned(term, result.names, dtype) for term in terms]
    wide = DType.F32 if entry.jax_wide else DType.INT8 if dtype is DType.INT4 else dtype
    codes = [
        code if term.number is not None or takes == "bool" else cast(code, dtype, wide)
        for code, term, takes in zip(codes, terms, entry.takes, strict=True)
    ]
    function = entry.jax_bools if dtype is DType.BOOL and entry.jax_bools else entry.spelled(dtype).jax
    made: Code = function(Code(), *map(Code, codes))
    helper = made.text.partition("(")[0]
    if helper in HELPERS:
        lowering.use_helper(helper)
    if wide is dtype or entry.gives_bool:
        return made.text
    return cast(f"({made})" if made.is_operator else made.text, wide, dtype)


def _convert(operation: ops.Convert, terms: Sequence[Term], result: TensorType, _lowering: Lowering) -> str:
    """From floats to integers towards zero, saturating; to 8-bit floats saturating, too; between integers modulo the
    range; to bool not 0."""
    code, source, target = aligned(terms[0], result.names), terms[0].tensor.dtype, operation.dtype
    if source is target:
        return code
    if target is DType.BOOL:
        return f"{code} != 0"
    if source.is_float and target in (DType.INT8, DType.INT4):
        low, high = -(2 ** (target.bits - 1)), 2 ** (target.bits - 1) - 1
        wide = cast(code, source, DType.F32)
        return cast(f"jnp.clip({wide}, {low}, {high})", DType.F32, target)
    if target.is_f8:
        largest = target.positive_range[1]
        return cast(f"jnp.clip({cast(code, source, DType.F32)}, {-largest}, {largest})", DType.F32, target)
    return cast(code, source, target)


def _bitcast(operation: ops.Bitcast, terms: Sequence[Term], result: TensorType, _lowering: Lowering) -> str:
    return f"lax.bitcast_convert_type({aligned(terms[0], result.names)}, {JAX_DTYPES[operation.dtype]})"


def _full(operation: ops.Full, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    number = terms[0].number
    assert number is not None
    shape = ", ".join(map(str, result.local_shape(lowering.mesh)))
    shape = f"({shape},)" if len(result.dims) == 1 else f"({shape})"
    made = f"jnp.full({shape}, {literal(number, operation.dtype)}, {JAX_DTYPES[operation.dtype]})"
    axes = lowering.mesh.sorted((*result.split_axes, *result.partial_axes))
    return f"lax.pcast({made}, {axes_text(axes)}, to='varying')" if axes else made


def _iota(operation: ops.Iota, _terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    code = lowering.global_index(result, operation.dim)
    return code[1:-1] if code.startswith("(") else code


# ---------------------------------------------------------------- reductions


def _sum(operation: ops.Sum, terms: Sequence[Term], result: TensorType, _lowering: Lowering) -> str:
    kind = terms[0].tensor
    over = axes_of(kind, operation.dims)
    wide = DType.F32 if kind.dtype.is_float else DType.INT32 if kind.dtype is not DType.UINT32 else DType.UINT32
    if kind.dtype is wide:
        return f"jnp.sum({terms[0].code}, axis={over})"
    return cast(f"jnp.sum({terms[0].code}, axis={over}, dtype={JAX_DTYPES[wide]})", wide, result.dtype)


def _max(operation: ops.Max, terms: Sequence[Term], _result: TensorType, _lowering: Lowering) -> str:
    return f"jnp.max({terms[0].code}, axis={axes_of(terms[0].tensor, operation.dims)})"


def _cumsum(operation: ops.Cumsum, terms: Sequence[Term], result: TensorType, _lowering: Lowering) -> str:
    dtype = result.dtype
    wide = DType.F32 if dtype.is_float else DType.UINT32 if dtype is DType.UINT32 else DType.INT32
    summed = f"lax.cumsum({cast(terms[0].code, dtype, wide)}, {axis_of(result, operation.dim)})"
    return cast(summed, wide, dtype)


def _argmax(operation: ops.Argmax, terms: Sequence[Term], _result: TensorType, _lowering: Lowering) -> str:
    return f"lax.argmax({terms[0].code}, {axis_of(terms[0].tensor, operation.dim)}, jnp.int32)"


def _norm(operation: ops.Layernorm | ops.Rmsnorm, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    lowering.use_helper(operation.keyword)
    over = axes_of(result, operation.dims)
    parameters = [aligned(term, result.names, result.dtype) for term in terms[1:]]
    return f"{operation.keyword}({', '.join([terms[0].code, over, number_text(operation.eps), *parameters])})"


def _softmax(operation: ops.Softmax, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    scores = cast(terms[0].code, result.dtype, DType.F32)
    if operation.causal is not None:
        t = spread(lowering.global_index(result, operation.dims[0]), operation.dims, result.names)
        row = spread(lowering.global_index(result, operation.causal), (operation.causal,), result.names)
        pos, window = "", operation.window
        if len(terms) > 1:
            n, n_queries = (result.shape.size(name) for name in (operation.dims[0], operation.causal))
            code, window = near_positions(terms[1], result.names, n, n_queries, window)
            pos = f" + {code}"
        visible = f"{t} <= {row}{pos}"
        if window is not None:
            visible = f"({visible}) & ({t} > {row}{pos} - {window})"
        scores = f"jnp.where({visible}, {scores}, -jnp.inf)"
    return cast(f"jax.nn.softmax({scores}, axis={axes_of(result, operation.dims)})", DType.F32, result.dtype)


# ---------------------------------------------------------------- the same numbers under other names


def _same(_operation: Operation, terms: Sequence[Term], _result: TensorType, _lowering: Lowering) -> str:
    return terms[0].code


def _split(_operation: ops.Split, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    kind = terms[0].tensor
    return reshaped(terms[0].code, kind.local_shape(lowering.mesh), result.local_shape(lowering.mesh))


def _merge(operation: ops.Merge, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    kind = terms[0].tensor
    order = [kind.names.index(name) for name in operation.side_by_side(kind.names)]
    shape = kind.local_shape(lowering.mesh)
    return reshaped(
        transposed(terms[0].code, order), [shape[i] for i in order], result.local_shape(lowering.mesh)
    )  # fmt: skip


def _foreign(operation: ops.Foreign, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    if operation.name not in FUNCTIONS:
        lowering.use_helper("torch_operation" if foreign.torch_path(operation.name) else "KERNELS")
    code = str(foreign.applied(Code(), operation, *(Code(term.code) for term in terms)))
    return code if foreign.keeps_format(operation) else f"{code}.astype({JAX_DTYPES[result.dtype]})"


LOWERINGS: dict[type[Operation], Rule] = {
    ops.Contract: _contract,
    ops.Grouped: lower_grouped,
    **dict.fromkeys((ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Neg, ops.Function), _elementwise),
    ops.Convert: _convert,
    ops.Bitcast: _bitcast,
    ops.Full: _full,
    ops.Iota: _iota,
    ops.Sum: _sum,
    ops.Max: _max,
    ops.Cumsum: _cumsum,
    ops.Argmax: _argmax,
    ops.Topk: lower_topk,
    ops.Layernorm: _norm,
    ops.Rmsnorm: _norm,
    ops.Softmax: _softmax,
    ops.Attend: lower_attend,
    ops.JoinAttention: lower_join,
    ops.Uniform: lower_uniform,
    ops.Lookup: lower_lookup,
    ops.Rotary: lower_rotary,
    ops.Foreign: _foreign,
    ops.Update: lower_update,
    ops.Take: lower_take,
    ops.Concat: lower_concat,
    ops.Alias: _same,
    ops.Rename: _same,
    ops.Split: _split,
    ops.Merge: _merge,
}
"""One rule for each operation that is no movement."""
