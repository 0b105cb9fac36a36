"""Attention by the kernels of accelerators, as functions that an emitted module defines for itself."""

from __future__ import annotations

ATTENTION_KERNELS: dict[str, str] = {
    "attend": '''
def attend(
    q, k, v, specs, axes, t, block, last=None, length=None, window=None, pages=None, at=(), queries=None, rows=('', 0),
    seen=None, cudnn=None, **options
):
    """Attention over the positions t along an axis of k and of v: the mean of v, and the logarithm of the sum of exp(s)
    over the scores s, in f32. On TPUs it is a kernel, on GPUs cuDNN's where that has the case, else a loop over blocks.

    specs: the scores as an einsum of k and q, the mean as one of v and weights. A query sees positions up to `last`, of
    a window the last so many of these, and those below `length`; on average so many as `seen` says first, and so many
    are read. at: the entry of each leading axis that k and v have besides, as those of a layer's within those of all.
    cudnn: as `queries` of `attend_by_cudnn`, None where that does not do. The others are those of `attend_in_blocks`.
    """
    def in_blocks(q, k, v, at, t, *masks):
        return attend_in_blocks(q, k[at], v[at], specs, axes, t, block, *masks, queries=queries, rows=rows, **options)

    def by_cudnn(q, k, v, at, t, last, length, *_):  # whose window is a number of the program
        return attend_by_cudnn(q, k[at], v[at], t, last, length, specs, cudnn, window, **options)

    @jax.custom_jvp
    def on_tpu(*args):
        return attend_on_tpu(*args[:4], specs, *args[4:], rows_of_pages=rows, seen=seen, **options)

    @on_tpu.defjvp
    def _(primals, tangents):  # a kernel has no gradient: that of the blocks, which scores them anew
        return on_tpu(*primals), jax.jvp(in_blocks, primals, tangents)[1]

    args = q, k, v, at, t, last, length, window, pages
    kernels = {}
    if q.dtype in (jnp.bfloat16, jnp.float32):
        kernels['tpu'] = on_tpu
    if cudnn is not None and jax.default_backend() == 'gpu':
        try:  # it says what the GPU and the cuDNN that are here have no kernel for
            jax.eval_shape(by_cudnn, *args)
            kernels['cuda'] = by_cudnn
        except (NotImplementedError, RuntimeError, ValueError):
            pass
    return lax.platform_dependent(*args, default=in_blocks, **kernels)
''',
    "attend_on_tpu": '''
def attend_on_tpu(
    q, k, v, at, specs, t, last, length, window=None, pages=None, rows_of_pages=('', 0), seen=None, scale=1.0,
    softcap=0.0, most=(512, 512)
):
    """Attention as one kernel, whose scores are never in memory (Dao et al. 2022): for each block of queries one block
    of positions after the other, but for those of which no query sees any, which are not read either. What is stacked
    is read where it lies (`order_on_tpu`). So are pages, of each row those that `pages` numbers: a block is of one.

    most: so many queries and positions are a block; where queries are few, four times the positions.
    """
    k_dims, q_dims, rows = specs[0].replace('->', ',').split(',')
    v_dims, _, means = specs[1].replace('->', ',').split(',')
    rows, positions = rows[:-1], rows[-1]
    depth, width = (set(q_dims) - set(rows)).pop(), means[-1]
    paged, n_shared = rows_of_pages
    before = len(at) + n_shared + (pages is not None)  # axes that number entries of what is stacked
    sizes = dict(zip(q_dims, q.shape))
    each = [dim for dim in rows if dim in k_dims or dim in v_dims]
    k_dims, v_dims = (''.join(dim for dim in dims if dim not in paged) for dims in (k_dims, v_dims))
    sizes.update(zip(v_dims, v.shape[before:]))
    D, W = sizes[depth], sizes[width]

    def number(dims):
        return math.prod(sizes[dim] for dim in dims)

    # Each of these has keys of its own. Few queries of several heads take keys as they lie, all heads' position by
    # position, of which each query sees those of its head: nothing is copied for them.
    heads = [dim for dim in k_dims[k_dims.index(positions) + 1:] if dim != depth]
    together = number(heads) * number(dim for dim in rows if dim not in each)
    lying = [
        ''.join(dims[i] for i in order_on_tpu(tuple(sizes[dim] for dim in dims), dims.index(positions)))
        for dims in (k_dims, v_dims)
    ]
    across = [dims[-1] == positions for dims in lying]
    if k_dims[:-1] != v_dims[:-1] or lying != [k_dims, v_dims] or k_dims[-1] != depth or together > 128:
        heads = []
    each = [dim for dim in each if dim not in heads]
    own = heads + [dim for dim in rows if dim not in each and dim not in heads]
    # Two or four heads are the rows of a tile, so that what a row has beyond 128 lanes lies behind the first 128 of all
    # heads: each such strip is a row of its own.
    H, N, M, T = number(heads), number(each), number(own), number([positions, *heads])
    narrow = heads[-1:] and sizes[heads[-1]] in (2, 4)
    in_strips = narrow and sizes[heads[-1]] == H and D == W and 128 % (H * D // 128) == 0 and T * D % 2**14 == 0
    strips = D // 128 if in_strips else 1
    group, entry_rows, few = H * strips, T * strips, min(M, most[0])  # an entry is a page, or has all positions
    n_pages = 1 if pages is None else pages.shape[-1]
    T = entry_rows * n_pages
    many = most[1] if 4 * few > most[0] else 4 * most[1]
    many = min(entry_rows, -(-many // group) * group if strips > 1 else many)
    if pages is not None and (entry_rows % many or many % 16 or any(across)):
        many = entry_rows  # a block that is no multiple of a tile is all of a page
    n_queries, n_blocks, per_page = -(-M // few), -(-T // many), entry_rows // many

    def laid(x, dims, *minor):  # [those of `each` that it has, the rows, the last dimension]
        major = [dim for dim in each if dim in dims]
        return jnp.einsum(f"{dims}->{''.join([*major, *minor])}", x).reshape(number(major), -1, sizes[minor[-1]])

    def stack(x, dims, last, lying, across):  # [entries, those of `each`, positions, rows; or across], and the entry
        own = [dim for dim in each if dim in dims]
        wanted = ''.join([*own, last, positions] if across else [*own, positions, *heads, last])
        there, entry = at, 0
        if wanted != lying or (narrow and strips == 1 and sizes[last] > 128):
            x, there = x[at], ()  # a copy, though not of all entries
        for index, size in zip(there, x.shape):
            entry = entry * size + index
        x = jnp.einsum(f'...{dims}->...{wanted}', x)
        if strips > 1:
            x = x.reshape(*x.shape[:-1], strips, -1).swapaxes(-3, -2)
        shape = number(own), *((sizes[last], entry_rows) if across else (entry_rows, sizes[last] // strips))
        return x.reshape(-1, *shape), entry

    def place(n, dims):  # of the entry of `each` among those of fewer dimensions
        at = 0
        for dim in dims:
            inner, size = (n.dtype.type(k) for k in (number(each[each.index(dim) + 1:]), sizes[dim]))
            at = at * size + lax.rem(lax.div(n, inner), size)
        return at

    # A query sees positions above `since` and up to `to`; those of the next head are `span` further on.
    span = (2**31 - 2) // H
    to = jnp.asarray(span - 2 if last is None else last)
    since = jnp.asarray(-1) if window is None else to - window
    if length is not None:
        to = jnp.minimum(to, jnp.maximum(length, 0) - 1)
    to, since = (jnp.clip(x.reshape((1,) * (len(rows) - x.ndim) + x.shape), -1, span - 2) for x in (to, since))
    masked = [dim for dim in each if max(x.shape[rows.index(dim)] for x in (to, since)) > 1]

    def for_queries(x):
        shape = [sizes[dim] if dim in masked or dim in own else 1 for dim in rows]
        x = jnp.einsum(f"{rows}->{''.join([*masked, *own])}", jnp.broadcast_to(x, shape))
        x = x.reshape(number(masked), M)
        return jnp.pad(x, ((0, 0), (0, n_queries * few - M)), mode='edge')

    to, since = for_queries(to), for_queries(since)
    t = jnp.repeat(t, group)
    ends = jnp.pad(t, (0, n_blocks * many - T), mode='edge').reshape(n_blocks, many)
    some = jnp.min(ends, 1) <= jnp.max(to.reshape(-1, n_queries, 1, few), 3)
    some &= jnp.max(ends, 1) > jnp.min(since.reshape(-1, n_queries, 1, few), 3)
    numbers = lax.broadcasted_iota(jnp.int32, some.shape, 2)
    first = jnp.min(jnp.where(some, numbers, n_blocks), 2).reshape(-1)
    final = jnp.max(jnp.where(some, numbers, -1), 2).reshape(-1)
    row = lax.iota(jnp.int32, T) % group
    t = jnp.where(row < H, t + row * span, 2**31 - 1)  # of a row's strips the first counts
    t = jnp.pad(t, (0, n_blocks * many - T), constant_values=2**31 - 1).reshape(n_blocks, 1, many)
    head = jnp.pad(lax.iota(jnp.int32, M) // (M // H), (0, n_queries * few - M), mode='edge') * span
    to, since = ((x + head)[:, None] for x in (to, since))

    def query_block(n, i, j, first, final, *_):
        return n, i, 0

    def mask_block(n, i, j, first, final, *_):
        return place(n, masked), 0, i

    def row_block(n, i, j, first, final, *_):
        return n, 0, i

    def position_block(n, i, j, first, final, *_):
        at = place(n, masked) * n_queries + i
        return jnp.maximum(jnp.minimum(j, final[at]), jnp.minimum(first[at], n_blocks - 1))

    def page_of(n, block, table):
        return table[place(n, paged) * n_pages + lax.div(block, per_page)]

    def block_of(which, dims, last):
        def block(n, i, j, first, final, entries, *table):
            at, entry = position_block(n, i, j, first, final), entries[which]
            if pages is not None:
                entry = entry * number(paged[:n_shared]) + place(n, paged[:n_shared])
                entry, at = entry * held + jnp.clip(page_of(n, at, *table), 0, held - 1), lax.rem(at, per_page)
            along = (0, at) if across[which] else (at, 0)
            return entry, place(n, [dim for dim in each if dim in dims]), *along

        return pl.BlockSpec((None, None, *((last, many) if across[which] else (many, last))), block)

    precision = 'highest' if q.dtype == jnp.float32 else None
    product = functools.partial(lax.dot_general, precision=precision, preferred_element_type=jnp.float32)

    def scores(q, k):  # those of each strip, where the first is
        parts = jnp.split(q[...], strips, 1)
        parts = [product(part, k[...], (((1,), (1 - across[0],)), ((), ()))) for part in parts]
        return sum((pltpu.roll(part, many - i * H, 1) for i, part in enumerate(parts) if i), parts[0])

    def weighed(powers, values):
        parts = [pltpu.roll(powers, i * H, 1) if i else powers for i in range(strips)]
        parts = [product(part.astype(values.dtype), values, (((1,), (int(across[1]),)), ((), ()))) for part in parts]
        return jnp.concatenate(parts, 1) if strips > 1 else parts[0]

    def kernel(first, final, entries, *refs):
        *table, q, k, v, t, to, since, mean, lse, upto, above, greatest, total, summed = refs
        n, i, j = (pl.program_id(axis) for axis in range(3))
        at = place(n, masked) * n_queries + i
        square = (few, few)
        diagonal = lax.broadcasted_iota(jnp.int32, square, 0) == lax.broadcasted_iota(jnp.int32, square, 1)

        @pl.when(j == 0)
        def _():
            upto[...], above[...] = (jnp.sum(jnp.where(diagonal, x[...], 0), 1, keepdims=True) for x in (to, since))
            greatest[...] = jnp.full_like(greatest, jnp.finfo(jnp.float32).min)
            total[...] = jnp.zeros_like(total)
            summed[...] = jnp.zeros_like(summed)

        here = (first[at] <= j) & (j <= final[at])
        if table:
            page = page_of(n, j, *table)
            here &= (page >= 0) & (page < held)

        @pl.when(here)
        def _():
            s = scores(q, k) * scale
            s = softcap * jnp.tanh(s / softcap) if softcap else s
            s = jnp.where((t[...] <= upto[...]) & (t[...] > above[...]), s, -jnp.inf)
            before = greatest[...]
            greatest[...] = jnp.maximum(before, jnp.max(s, 1, keepdims=True))
            powers, share = jnp.exp(s - greatest[...]), jnp.exp(before - greatest[...])
            values = v[...]
            if T % many:  # behind the last position there may be anything
                row = j * many + lax.broadcasted_iota(jnp.int32, values.shape, int(across[1]))
                values = jnp.where(row < T, values, jnp.zeros_like(values))
            total[...] = share * total[...] + jnp.sum(powers, 1, keepdims=True)
            summed[...] = share * summed[...] + weighed(powers, values)

        @pl.when(j == n_blocks - 1)
        def _():
            none = total[...] == 0
            whole = jnp.where(none, 1, total[...])
            mean[...] = (summed[...] / whole).astype(mean.dtype)
            column = jnp.where(none, -jnp.inf, greatest[...] + jnp.log(whole))
            lse[...] = jnp.sum(jnp.where(diagonal, column, 0), 0, keepdims=True)

    tables = [] if pages is None else [pages.reshape(-1)]
    held = k.shape[before - 1]

    def results():  # they vary over all axes that what they are made of varies over, the logarithm not over those of v
        scored = sum(jnp.ravel(x)[0].astype(jnp.float32) for x in (q, k, t, to, since, *tables))
        return jnp.full((N, M, W), scored + jnp.ravel(v)[0], v.dtype), jnp.full((N, 1, M), scored)

    shapes = jax.eval_shape(results)
    seen, read = seen or (sizes[positions] * n_pages,) * 2
    (k, entry_of_k), (v, entry_of_v) = map(stack, (k, v), (k_dims, v_dims), (depth, width), lying, across)
    traffic = (k.nbytes // len(k) + v.nbytes // len(v)) * read // sizes[positions] * number(paged)
    traffic += sum(x.size * x.dtype.itemsize for x in (q, *shapes))
    mean, lse = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3 + len(tables),
            grid=(N, n_queries, n_blocks),
            in_specs=[
                pl.BlockSpec((None, few, D), query_block),
                block_of(0, k_dims, D // strips),
                block_of(1, v_dims, W // strips),
                pl.BlockSpec((None, 1, many), lambda *at: (position_block(*at[:5]), 0, 0)),
                pl.BlockSpec((None, 1, few), mask_block),
                pl.BlockSpec((None, 1, few), mask_block),
            ],
            out_specs=[pl.BlockSpec((None, few, W), query_block), pl.BlockSpec((None, 1, few), row_block)],
            scratch_shapes=[
                *(pltpu.VMEM((few, 1), dtype) for dtype in (jnp.int32, jnp.int32, jnp.float32, jnp.float32)),
                pltpu.VMEM((few, W), jnp.float32),
            ],
        ),
        out_shape=shapes,
        compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'parallel', 'arbitrary')),
        cost_estimate=pl.CostEstimate(
            flops=2 * N * M * seen * (D + W), transcendentals=N * M * seen * H, bytes_accessed=traffic
        ),
        name='attend',
    )(
        first, final, jnp.array([entry_of_k, entry_of_v], jnp.int32), *tables,
        laid(q, q_dims, *own, depth), k, v, t, to, since,
    )
    queries = ''.join([*each, *own])
    mean = jnp.einsum(f'{queries}{width}->{means}', mean.reshape(*(sizes[dim] for dim in queries), W))
    return mean, jnp.einsum(f'{queries}->{rows}', lse.reshape([sizes[dim] for dim in queries]))
''',
    "attend_by_cudnn": '''
def attend_by_cudnn(q, k, v, t, last, length, specs, queries, window=None, scale=1.0):
    """Attention by cuDNN's kernel, which gives no logarithm. queries: their dimension where query l sees positions up
    to l, '' where there is one query for each group, and it sees all positions or the first so many of them."""
    k_dims, q_dims, rows = specs[0].replace('->', ',').split(',')
    v_dims, _, means = specs[1].replace('->', ',').split(',')
    rows, positions = rows[:-1], rows[-1]
    at = k_dims.index(positions)
    batch, heads = (''.join(dim for dim in part if dim in rows) for part in (k_dims[:at], k_dims[at:]))
    groups = ''.join(dim for dim in rows if dim not in batch + queries + heads)
    sizes = dict(zip(q_dims + v_dims, q.shape + v.shape))

    def number(dims):
        return math.prod(sizes[dim] for dim in dims)

    def laid(x, dims, *parts):
        return jnp.einsum(f"{dims}->{''.join(parts)}", x).reshape([number(part) for part in parts])

    depth, width = (set(q_dims) - set(rows)).pop(), means[-1]
    options = dict(is_causal=True) if queries else {}
    if window is not None:
        options['local_window_size'] = (window - 1, 0)
    shown = None
    if not queries and (last is not None or length is not None):
        ends = [x + n for x, n in ((last, 1), (length, 0)) if x is not None]
        shown = jnp.minimum(functools.reduce(jnp.minimum, ends), len(t))
        shown = shown.reshape((1,) * (len(rows) - shown.ndim) + shown.shape)
        shown = jnp.broadcast_to(shown, [sizes[dim] if dim in batch else 1 for dim in rows])
        shown = jnp.einsum(f'{rows}->{batch}', shown).reshape(number(batch))
        options['key_value_seq_lengths'] = jnp.maximum(shown, 1)
    mean = jax.nn.dot_product_attention(
        laid(q, q_dims, batch, queries, heads + groups, depth), laid(k, k_dims, batch, positions, heads, depth),
        laid(v, v_dims, batch, positions, heads, width), scale=scale, implementation='cudnn', **options,
    )
    if shown is not None:
        mean = jnp.where(shown[:, None, None, None] > 0, mean, 0)
    order = batch + queries + heads + groups
    mean = jnp.einsum(f'{order}{width}->{means}', mean.reshape([number(dim) for dim in order + width]))
    return mean, jnp.full_like(mean[..., 0], jnp.nan, jnp.float32)
''',
}
"""By name, in the order in which modules have them."""
