"""Functions that an emitted module defines for itself where its statements need them."""

from __future__ import annotations

import inspect

from shardwright.backends.jax.attention_kernels import ATTENTION_KERNELS
from shardwright.backends.jax.cache_helpers import CACHE_HELPERS
from shardwright.backends.torch_operations import schema_arguments, torch_operation

HELPERS: dict[str, str] = {
    "KERNELS": '''
KERNELS = {}
"""Functions of your own that this module calls, by name: put them here before it runs."""
''',
    "torch_operation": "\n" + "\n\n".join(map(inspect.getsource, (schema_arguments, torch_operation))),
    **ATTENTION_KERNELS,
    "attend_in_blocks": '''
def attend_in_blocks(
    q, k, v, specs, axes, t, block, last=None, length=None, window=None, pages=None, scale=1.0, softcap=0.0,
    queries=None, rows=('', 0)
):
    """Attention where one block of positions after the other is scored, backwards too (Rabe and Staats 2021), but for
    those of which no query sees any.

    queries: their axis in q, and in `last` from the end, where they are taken so many at a time. pages: those of each
    row, and `rows` its dimensions in the scores with how many of them k and v have, too, before their pages.
    """
    if queries is not None:
        axis, size = queries[1:]

        def cut(x, axis):
            x = jnp.moveaxis(x, axis, 0)
            return jnp.moveaxis(x.reshape(-1, size, *x.shape[1:]), 1, axis + (axis >= 0))

        def joined(x, axis):
            x = jnp.moveaxis(x, 0, axis - 1)
            at = x.ndim + axis
            return x.reshape(*x.shape[:at - 1], -1, *x.shape[at + 1:])

        masks = dict(last=last, length=length, window=window)
        masks = {name: jnp.asarray(x) for name, x in masks.items() if x is not None}
        own = {name: cut(x, axis) for name, x in masks.items() if x.ndim >= -axis and x.shape[axis] > 1}
        rest = dict(scale=scale, softcap=softcap)
        mean, lse = lax.map(
            lambda part: attend_in_blocks(
                part[0], k, v, specs, axes, t, block, **{**masks, **part[1]}, pages=pages, rows=rows, **rest),
            (cut(q, queries[0]), own))
        return joined(mean, axis - 1), joined(lse, axis)

    wide = dict(preferred_element_type=jnp.float32, precision='highest' if q.dtype == jnp.float32 else None)
    size = 1 if pages is None else len(t) // pages.shape[-1]
    block = max(1, block // size)
    n = (len(t) // size - 1) // block
    first = len(t) // size - n * block
    if n:
        # False, and varying over all axes that something of the scores varies over. What varies over fewer becomes so
        # here: within a block its gradient would be summed over chips of which some pass the block over.
        no = functools.reduce(jnp.logical_or, (
            jnp.ravel(x)[0].astype(bool) & False for x in (q, k, t, last, length, window, pages) if x is not None))
        q, k, v = (jnp.where(no, 0, x) for x in (q, k, v))

    def held(table):  # as the scores are, whether the chip has the page
        own, scored = rows[0], specs[0].split('->')[1][:-1]
        there = (table >= 0) & (table < k.shape[rows[1]])
        there = there.transpose(*(own.index(dim) for dim in scored if dim in own), len(own))
        there = there.reshape([table.shape[own.index(dim)] if dim in own else 1 for dim in scored] + [-1])
        return jnp.repeat(there, size, -1)

    def read(x, table, axis):  # a row's pages, one after the other; zeros where it has none, which weigh nothing
        def of(x, table):
            return x.at[table].get(mode='fill', fill_value=0, wrap_negative_indices=False)

        for _ in range(rows[1]):
            of = jax.vmap(of)
        x = jnp.moveaxis(of(x, table), table.ndim - 1, axis)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2:])

    def further(carry, part):
        keys, values, t = part
        if pages is not None:
            there, keys, values = held(keys), *(read(x, keys, axis) for x, axis in zip((k, v), axes))
        s = jnp.einsum(specs[0], keys, q, **wide) * scale
        if pages is not None:
            s = jnp.where(there, s, -jnp.inf)
        s = softcap * jnp.tanh(s / softcap) if softcap else s
        if last is not None:
            s = jnp.where(t <= jnp.asarray(last)[..., None], s, -jnp.inf)
        if window is not None:
            s = jnp.where(t > jnp.asarray(last - window)[..., None], s, -jnp.inf)
        if length is not None:
            s = jnp.where(t < jnp.asarray(length)[..., None], s, -jnp.inf)
        if pages is not None and softcap:
            s = jnp.where(there, s, -jnp.inf)
        greatest = jnp.maximum(jnp.max(lax.stop_gradient(s), -1), jnp.finfo(jnp.float32).min)
        if carry is not None:
            greatest = jnp.maximum(greatest, carry[0])
        powers = jnp.exp(s - greatest[..., None])
        total, summed = jnp.sum(powers, -1), jnp.einsum(specs[1], values, powers.astype(v.dtype), **wide)
        if carry is not None:
            share = jnp.exp(carry[0] - greatest)
            total, summed = total + share * carry[1], summed + share[..., None] * carry[2]
        return greatest, total, summed

    def seen(part):
        t, some = part[2], True
        if last is not None:
            some &= jnp.min(t) <= last
        if window is not None:
            some &= jnp.max(t) > last - window
        if length is not None:
            some &= jnp.min(t) < length
        return jnp.any(some)

    def next_block(carry, part):
        if last is None and length is None:
            return further(carry, part), None
        return lax.cond(seen(part), further, lambda carry, part: carry, carry, part), None

    def blocks(x, axis):
        x = lax.slice_in_dim(x, first, None, axis=axis)
        return jnp.moveaxis(x.reshape(*x.shape[:axis], n, block, *x.shape[axis + 1:]), axis, 0)

    parts = ((k, axes[0]), (v, axes[1])) if pages is None else ((pages, pages.ndim - 1),) * 2
    beginning = (*(lax.slice_in_dim(x, 0, first, axis=axis) for x, axis in parts), t[:first * size])
    if n:
        further = jax.checkpoint(further, prevent_cse=False)
    greatest, total, summed = further(None, beginning)
    if n:
        parts = (*(blocks(x, axis) for x, axis in parts), blocks(t.reshape(-1, size), 0).reshape(n, -1))
        carry = greatest, total, summed
        (greatest, total, summed), _ = lax.scan(next_block, carry, parts)
    none = total == 0
    total = jnp.where(none, 1, total)
    return (summed / total[..., None]).astype(v.dtype), jnp.where(none, -jnp.inf, greatest + jnp.log(total))
''',
    "grouped": '''
def grouped(x, w, place, dtype):
    """Rows of x [R, E] times the matrices of w [X, E, F] at these places; zeros for a place out of range.

    `place` has so many for each row of x. Sorted by place they are products of a block of rows with one matrix each.
    Without a kernel for it XLA multiplies every row by every matrix. On GPUs that is left to it where rows are few,
    which takes no longer than reading the matrices; infinite numbers in one of them make NaN of other rows then.
    """
    # False, and varying over all axes that an operand varies over: `ragged_dot` does not sum gradients over the others.
    no = functools.reduce(jnp.logical_or, (jnp.ravel(a)[0].astype(bool) & False for a in (x, w, place)))
    x, w = (jnp.where(no, 0, a) for a in (x, w))
    n, place = len(w), jnp.ravel(place)
    here = (place >= 0) & (place < n)
    order = jnp.argsort(jnp.where(here, place, n))
    x, here, place = x[order // (len(place) // len(x))], here[order], jnp.clip(place[order], 0, n - 1)
    # Of rows that each chip has sorted by itself, so that nobody takes its counts for addends of one.
    counts = jnp.sum(here[:, None] & (place[:, None] == lax.iota(jnp.int32, n)), 0, dtype=jnp.int32)
    wide = dict(preferred_element_type=jnp.float32, precision='highest' if x.dtype == jnp.float32 else None)

    def at_once(x):
        return lax.ragged_dot(x, w, counts, **wide).astype(dtype)

    def by_blocks(x):
        size = min(1024, max(16, 1 << (len(x) // n).bit_length()))
        begins, blocks = jnp.cumsum(counts) - counts, -(-counts // size)
        ends = jnp.cumsum(blocks)
        block = lax.iota(jnp.int32, min(n, len(x)) + len(x) // size)
        matrix = jnp.minimum(jnp.searchsorted(ends, block, side='right').astype(jnp.int32), n - 1)
        first = begins[matrix] + (block - (ends - blocks)[matrix]) * size

        def product(_, at):
            rows = jnp.minimum(at[0] + lax.iota(jnp.int32, size), len(x) - 1)
            return None, jnp.matmul(x[rows], w[at[1]], **wide).astype(dtype)

        _, made = lax.scan(product, None, (first, matrix))
        at = (ends - blocks)[place] * size + lax.iota(jnp.int32, len(x)) - begins[place]
        return made.reshape(-1, w.shape[2])[jnp.clip(at, 0, len(made) * size - 1)]

    on_gpu = at_once if len(x) <= 256 else by_blocks
    made = lax.platform_dependent(x, cpu=by_blocks, tpu=at_once, default=on_gpu)
    made = jnp.where(here[:, None], made, 0)
    return jnp.zeros_like(made).at[order].set(made, unique_indices=True)
''',
    "weighed": '''
def weighed(pair, axes):
    """This chip's addend of the mean over the chips along these axes, and the logarithm of the sum over them all."""
    mean, lse = pair
    each = lax.all_gather(lse, axes, to='invarying')
    greatest = jnp.maximum(jnp.max(lax.stop_gradient(each), 0), jnp.finfo(jnp.float32).min)
    total = jnp.sum(jnp.exp(each - greatest), 0)
    none = total == 0
    total = jnp.where(none, 1, total)
    weight = jnp.exp(lse - greatest) / total
    return (mean * weight[..., None]).astype(mean.dtype), jnp.where(none, -jnp.inf, greatest + jnp.log(total))
''',
    "joined_pieces": '''
def joined_pieces(means, lses):
    """The mean and the log-sum-exp of attention, of those over pieces of positions, which the first axis numbers."""
    greatest = jnp.maximum(jnp.max(lax.stop_gradient(lses), 0), jnp.finfo(jnp.float32).min)
    weights = jnp.exp(lses - greatest)
    total = jnp.sum(weights, 0)
    none = total == 0
    total = jnp.where(none, 1, total)
    mean = jnp.sum(means * (weights / total)[..., None], 0)
    return mean.astype(means.dtype), jnp.where(none, -jnp.inf, greatest + jnp.log(total))
''',
    "exchanged_together": '''
@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def exchanged_together(mean, lse, axes):
    """This chip's parts of the means and log-sum-exps of all chips along these axes, which the first axis numbers, as
    it numbers the receivers of what is given: sent as bits, so that one message has both."""
    bits = jnp.dtype(f'uint{8 * mean.dtype.itemsize}')
    n, of_lse = mean.shape[-1], lax.bitcast_convert_type(lse, bits)
    parts = [lax.bitcast_convert_type(mean, bits), of_lse.reshape(*lse.shape, -1)]
    both = lax.all_to_all(jnp.concatenate(parts, -1), axes, 0, 0, tiled=True)
    means, lses = both[..., :n], both[..., n:].reshape(of_lse.shape)
    return lax.bitcast_convert_type(means, mean.dtype), lax.bitcast_convert_type(lses, lse.dtype)


@exchanged_together.defjvp
def _exchanged_together_jvp(axes, primals, tangents):
    """Tangents are exchanged each by itself: bits have none."""
    return exchanged_together(*primals, axes), tuple(lax.all_to_all(x, axes, 0, 0, tiled=True) for x in tangents)
''',
    "each_half": '''
def each_half(pair, of_mean, of_lse):
    """A mean and a logarithm, each moved in its own way."""
    return of_mean(pair[0]), of_lse(pair[1])
''',
    "join_attention": '''
def join_attention(one, lse_one, other, lse_other):
    """Attention over two pieces of keys and values, of the mean and the log-sum-exp of each."""
    greatest = lax.stop_gradient(jnp.maximum(jnp.maximum(lse_one, lse_other), jnp.finfo(jnp.float32).min))
    weights = [jnp.exp(lse - greatest) for lse in (lse_one, lse_other)]
    none = sum(weights) == 0
    total = jnp.where(none, 1, sum(weights))
    mean = sum(mean * (weight / total)[..., None] for mean, weight in zip((one, other), weights))
    return mean.astype(one.dtype), jnp.where(none, -jnp.inf, greatest + jnp.log(total))
''',
    "all_reduce_max": '''
@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def all_reduce_max(x, axes):
    """The greatest over the chips along these axes, NaN where one of them has NaN.

    Compared as integers in the order of the floats, with NaN above infinity: comparisons of floats may pass over NaN.
    """
    width = 8 * x.dtype.itemsize
    integers = jnp.dtype(f'int{width}')

    def swapped(bits):  # between the bits of a float and an integer of its rank
        return bits ^ ((bits >> (width - 1)) & jnp.iinfo(integers).max)

    rank = swapped(lax.bitcast_convert_type(jnp.where(jnp.isnan(x), jnp.nan, x), integers))
    return lax.bitcast_convert_type(swapped(lax.pmax(rank, axes)), x.dtype)


@all_reduce_max.defjvp
def _all_reduce_max_jvp(axes, primals, tangents):
    """The tangents of the chips that hold the maximum, in equal shares where several do."""
    (x,), (tangent,) = primals, tangents
    y = all_reduce_max(x, axes)
    holds = x == y
    holders = lax.psum(holds.astype(x.dtype), axes)
    return y, lax.psum(jnp.where(holds, tangent, 0), axes) / holders
''',
    "global_index": '''
def global_index(digits):
    """The global indices along a dimension that this chip holds, in the order of its array.

    digits: (axis that holds the digit, or None where it is local, number of values), most significant first.
    """
    index = jnp.zeros((1,), jnp.int32)
    for axis, n in digits:
        digit = lax.iota(jnp.int32, n) if axis is None else lax.axis_index(axis)[None]
        index = (index[:, None] * n + digit).reshape(-1)
    return index
''',
    "local_place": '''
def local_place(index, digits):
    """Where this chip's array has these global indices, -1 where it does not; digits as in a PartitionSpec's order:
    (axis that holds the digit, or None where it is local, number of values), most significant first.
    """
    held, place, stride = True, 0, 1
    for axis, n in reversed(digits):
        digit = index % n
        index = index // n
        if axis is None:
            place, stride = place + digit * stride, stride * n
        else:
            held &= digit == lax.axis_index(axis)
    return jnp.where(held & (index == 0), place, -1)
''',
    "permuted": '''
def permuted(units, axes, rounds, place):
    """This chip's units [n, elements] of another layout: its own, and what other chips send it in rounds.

    rounds: (pairs of a sender and a receiver, for each chip the units that it sends). place: for each chip which units
    it ends with, its own numbered first, then those received round by round. Chips are numbered along the axes.
    """
    chip = lax.axis_index(axes)
    held = [units]
    for pairs, sent in rounds:
        passes_on = max(max(row) for row in sent) >= len(units)
        source = jnp.concatenate(held) if passes_on else units
        held.append(lax.ppermute(source[jnp.array(sent)[chip]], axes, pairs))
    return jnp.concatenate(held)[jnp.array(place)[chip]]
''',
    "alike": '''
@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def alike(x, axes):
    """An array that all chips along these axes have already, as one that does not vary along them; nothing is sent."""
    for axis in (axes,) if isinstance(axes, str) else axes:
        x = lax.pmax(x, axis, axis_index_groups=[[i] for i in range(lax.axis_size(axis))])
    return x


@alike.defjvp
def _alike_jvp(axes, primals, tangents):
    """The tangent of one of the chips; backwards, that one takes the cotangent, and nothing is sent either."""
    first = lax.axis_index(axes) == 0
    return alike(*primals, axes), lax.psum(jnp.where(first, tangents[0], 0), axes)
''',
    "halves_gathered": '''
def halves_gathered(x, axes):
    """The integers of all chips along these axes, gathered as pairs of halves."""
    halves = lax.bitcast_convert_type(x.reshape(-1), jnp.int16)
    return lax.bitcast_convert_type(lax.all_gather(halves, axes, to='invarying').reshape(-1, 2), x.dtype)
''',
    "joined": '''
def joined(units, axes, shared):
    """The first so many units [n, elements] of all chips along these axes, and behind them the rest, which they have
    alike."""
    parts = [alike(units[shared:], axes)]
    if shared:
        parts.insert(0, lax.all_gather(units[:shared], axes, to='invarying').reshape(-1, units.shape[1]))
    return jnp.concatenate(parts)
''',
    "layernorm": '''
def layernorm(x, axis, eps, scale=1.0, offset=0.0):
    """In f32, rounded to the format of x (Ba et al. 2016)."""
    v = x.astype(jnp.float32)
    v = v - jnp.mean(v, axis, keepdims=True)
    v = v * lax.rsqrt(jnp.mean(v * v, axis, keepdims=True) + eps)
    return (v * scale + offset).astype(x.dtype)
''',
    "rmsnorm": '''
def rmsnorm(x, axis, eps, scale=1.0):
    """In f32, rounded to the format of x (Zhang and Sennrich 2019)."""
    v = x.astype(jnp.float32)
    v = v * lax.rsqrt(jnp.mean(v * v, axis, keepdims=True) + eps)
    return (v * scale).astype(x.dtype)
''',
    **CACHE_HELPERS,
    "rotary": '''
def rotary(x, positions, frequencies, axis, style):
    """Rotary position embedding, in f32 (Su et al. 2021): pair i is turned by position * frequency i.

    Pairs are (i, i + n) for style neox and (2i, 2i + 1) for gptj, of n frequencies; what follows the pairs
    is left as it is. positions: as x, with size 1 along axis.
    """
    n = frequencies.shape[-1]
    v = jnp.moveaxis(x.astype(jnp.float32), axis, -1)
    angle = jnp.moveaxis(positions, axis, -1).astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = (v[..., :n], v[..., n:2 * n]) if style == 'neox' else (v[..., :2 * n:2], v[..., 1:2 * n:2])
    turned = (first * cos - second * sin, second * cos + first * sin)
    if style == 'neox':
        turned = jnp.concatenate(turned, -1)
    else:
        turned = jnp.stack(turned, -1).reshape(*v.shape[:-1], 2 * n)
    return jnp.moveaxis(jnp.concatenate((turned, v[..., 2 * n:]), -1), -1, axis).astype(x.dtype)
''',
    "scattered_in_front": '''
def scattered_in_front(x, axes, at, shape, order):
    """The reduce-scatter of x along a dimension, which is first in this shape; the layout is in order of dimensions."""
    front = jnp.moveaxis(x, at, 0)
    tiled = with_layout_constraint(front.reshape(shape), Layout(order))
    scattered = lax.psum_scatter(tiled, axes, tiled=True)
    return jnp.moveaxis(scattered.reshape(-1, *front.shape[1:]), 0, at)
''',
    "side_by_side": '''
def side_by_side(blocks, placed):
    """Blocks of a matrix [others, n, ...], each placed among the others, one beside the other along the last
    dimension. The same as a transpose libtpu copies twice."""
    return jnp.concatenate([placed(blocks[:, i]) for i in range(blocks.shape[1])], -1)
''',
    "topk": '''
def topk(x, k, axis, index, blocks=1):
    """The k greatest elements along an axis, and their entries in index; of several blocks one after the other.

    Of equal elements the first comes first; zeros of either sign are equal, NaN is greater than every number.
    """
    v = jnp.moveaxis(x, axis, -1)
    v = v.reshape(*v.shape[:-1], blocks, -1)
    if jnp.issubdtype(x.dtype, jnp.floating):
        v = jnp.where(v == 0, 0, jnp.where(jnp.isnan(v), jnp.nan, v))
    values, places = lax.top_k(v.astype(jnp.int8) if x.dtype == jnp.int4 else v, k)
    ids = index[places + v.shape[-1] * lax.iota(jnp.int32, blocks)[:, None]]
    values, ids = (a.reshape(*a.shape[:-2], -1) for a in (values.astype(x.dtype), ids))
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(ids, -1, axis)
''',
    "threefry2x32": '''
def threefry2x32(key, counter):
    """Two random words for each key and counter, pairs of uint32: 20 rounds (Salmon et al. 2011)."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = counter[0] + schedule[0], counter[1] + schedule[1]
    for i in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x = x + y
            y = (y << turn | y >> (32 - turn)) ^ x
        x, y = x + schedule[(i + 1) % 3], y + schedule[(i + 2) % 3] + np.uint32(i + 1)
    return x, y
''',
    "uniform": '''
def uniform(key, at, index):
    """Numbers between 0 and 1, both exclusive: the first word for the key (key, at) and the counter (0, index)."""
    words, _ = threefry2x32((key.astype(jnp.uint32), at.astype(jnp.uint32)), (np.uint32(0), index.astype(jnp.uint32)))
    return jnp.minimum((words.astype(jnp.float32) + 0.5) * np.float32(2**-32), np.float32(1 - 2**-24))
''',
    "floor_divide": '''
def floor_divide(a, b):
    """Integer division towards minus infinity; 0 where the divisor is 0."""
    return jnp.where(b == 0, 0, a // jnp.where(b == 0, 1, b))
''',
}
"""Helper to its source, in the order in which a module defines them."""
