"""Functions of tensors that kernels of operations call; an emitted module defines those that it uses."""

from __future__ import annotations

import torch
from torch import Tensor


def rows(table: Tensor, index: Tensor, axis: int) -> Tensor:
    """Rows of a table, the index's dimensions first; zeros for an index out of range."""
    held = (index >= 0) & (index < table.shape[axis])
    found = table.movedim(axis, 0)[torch.where(held, index, 0).long()]
    return torch.where(held.reshape((*held.shape, *[1] * (table.ndim - 1))), found, torch.zeros_like(found))


def gathered(values: Tensor, axis: int, index: Tensor) -> Tensor:
    """`values.gather`; of 8-bit floats, for which PyTorch has none, by their bytes."""
    if values.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return values.view(torch.uint8).gather(axis, index).view(values.dtype)
    return values.gather(axis, index)


def picked(table: Tensor, index: Tensor) -> Tensor:
    """The elements of the last dimension of a table that an index aligned to the others says; zeros for an index out of
    range."""
    held = (index >= 0) & (index < table.shape[-1])
    at = torch.where(held, index, 0).long()[..., None]
    extents = [max(a, b) for a, b in zip(table.shape[:-1], at.shape[:-1], strict=True)]
    found = gathered(table.expand(*extents, table.shape[-1]), -1, at.expand(*extents, 1))[..., 0]
    return torch.where(held, found, torch.zeros_like(found))


def product_in_parts(sums: str, a: Tensor, b: Tensor, wide: torch.dtype, most: int = 1 << 21) -> Tensor:
    """The einsum of two tensors in a format as wide as theirs or wider. Of one with more than so many numbers parts are
    brought to it, and laid as a matrix, one after the other: whole it might be larger than all that has room."""
    left, right, made = sums.replace("->", ",").split(",")
    sizes = {**dict(zip(left, a.shape, strict=True)), **dict(zip(right, b.shape, strict=True))}
    large, names = (b, right) if b.numel() >= a.numel() else (a, left)
    along = max((name for name in made if name in names), key=lambda name: sizes[name], default="")
    if large.numel() <= most or sizes.get(along, 1) == 1:
        return torch.einsum(sums, a.to(wide), b.to(wide))
    step, axis = max(1, most * sizes[along] // large.numel()), made.index(along)
    whole = a.new_empty([sizes[name] for name in made], dtype=wide)
    for at in range(0, sizes[along], step):
        part = whole.narrow(axis, at, min(step, sizes[along] - at))
        n = part.shape[axis]
        some_a = a.narrow(left.index(along), at, n) if along in left else a
        some_b = b.narrow(right.index(along), at, n) if along in right else b
        part.copy_(product_in_parts(sums, some_a, some_b, wide, most))
    return whole


def grouped(x: Tensor, w: Tensor, expert: Tensor) -> Tensor:
    """Rows of x [R, E] times the matrices of w [X, E, F] that they chose; zeros for an index out of range."""
    made = x.new_zeros(len(x), w.shape[-1])
    for number, matrix in enumerate(w.unbind()):
        rows = torch.where(torch.eq(expert, number))[0]
        if len(rows):
            made[rows] = x[rows] @ matrix
    return made


def updated(cache: Tensor, new: Tensor, offset: Tensor, axis: int) -> Tensor:
    """The cache with new rows where the offset from the first of them is one of theirs."""
    n = new.shape[axis]
    index = offset.clamp(0, n - 1).expand(cache.shape).long()
    source = [n if i == axis else extent for i, extent in enumerate(cache.shape)]
    return torch.where((offset >= 0) & (offset < n), gathered(new.expand(source), axis, index), cache)


def places_in_pages(table: Tensor, at: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The page and the slot of positions `at`, of so many slots a page, in a table aligned to them and the pages of
    their rows; -1 for a page that a row lacks."""
    page = torch.div(at, size, rounding_mode="floor")
    inside = (page >= 0) & (page < table.shape[-1])
    return torch.where(inside, picked(table, page), -1), at % size


def written_at(pool: Tensor, rows: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    """The pool with rows at these indices of its first dimensions, but for those that it has not."""
    made, inside = pool.clone(), torch.ones_like(places[0], dtype=torch.bool)
    for place, extent in zip(places, pool.shape, strict=False):
        inside = inside & (place >= 0) & (place < extent)
    made[tuple(place[inside].long() for place in places)] = rows[inside]
    return made


def topk(value: Tensor, axis: int, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest in descending order, the first of equals first, NaN before all; and their indices."""
    values, indices = torch.sort(value, dim=axis, descending=True, stable=True)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)


def rmsnorm(value: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x / sqrt(mean x^2 + eps), in f32."""
    wide = value.float()
    return wide * torch.rsqrt((wide * wide).mean(dim=axes, keepdim=True) + eps)


def layernorm(value: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """(x - mean x) / sqrt(variance of x + eps), in f32."""
    wide = value.float()
    return rmsnorm(wide - wide.mean(dim=axes, keepdim=True), axes, eps)


def softmax(scores: Tensor, axes: tuple[int, ...], visible: Tensor | None = None) -> Tensor:
    """exp(s) over its sum, in f32, of what is visible."""
    wide = scores.float() if visible is None else torch.where(visible, scores.float(), -torch.inf)
    powers = torch.exp(wide - wide.amax(dim=axes, keepdim=True))
    return powers / powers.sum(dim=axes, keepdim=True)


def softmax_weights(scores: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """exp(s) over its sum along a dimension, 0 where all s are -inf; and the logarithm of the sum, with extent 1."""
    greatest = scores.amax(dim=dim, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    powers = torch.exp(scores - greatest)
    total = powers.sum(dim=dim, keepdim=True)
    return powers / torch.where(total == 0, 1, total), greatest + torch.log(total)


def join_attention(one: Tensor, lse_one: Tensor, other: Tensor, lse_other: Tensor) -> tuple[Tensor, Tensor]:
    """Two pieces of attention as one: the means weighed by their sums of exponentials."""
    weights, lse = softmax_weights(torch.stack([lse_one, lse_other], dim=-1), -1)
    return weights[..., :1] * one + weights[..., 1:] * other, lse.squeeze(-1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float,
    lse: bool,
    together: int = 1 << 24,
) -> tuple[Tensor, Tensor] | Tensor:
    """Attention of q [S, H, R, D] to k [S, 1, T, D] and v [S, 1, T, W]: the mean of v, 0 where nothing is visible; with
    `lse` also the logarithm of the sum of exponentials, [S, H, R] in f32. `visible` is [S or 1, H or 1, R, T];
    at most so many elements of it are added `together`."""
    if visible is None:
        mean, total = attend_some(q, k, v, None, causal, scale, softcap, lse)
        return (mean, total) if lse else mean
    n = max(1, together // (visible.shape[0] * visible.shape[1] * visible.shape[3]))
    parts = [
        attend_some(q[:, :, i : i + n], k, v, visible[:, :, i : i + n], False, scale, softcap, lse)
        for i in range(0, q.shape[2], n)
    ]
    mean, total = parts[0] if len(parts) == 1 else [torch.cat(each, dim=2) for each in zip(*parts, strict=True)]
    seen = visible.any(dim=-1)
    mean = torch.where(seen[..., None], mean, 0)
    return (mean, torch.where(seen, total, -torch.inf)) if lse else mean


def attend_some(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, causal: bool, scale: float, softcap: float, lse: bool
) -> tuple[Tensor, Tensor]:
    """Attention, of so few queries that the mask has room, by the kernel that fits; the sum with `lse` alone.

    A CPU's products in 16 bits are slow: of few queries they are in f32, of as many rows as lie in its caches. Its
    kernel is, where a row has few scores.
    """
    if q.device.type == "cpu" and q.element_size() == 2 and q.shape[1] * q.shape[2] <= 8:
        n = max(1, (torch.get_num_threads() << 20) // (8 * k.shape[2] * k.shape[3]))
        parts: list[tuple[Tensor, Tensor]] = []
        for i in range(0, q.shape[0], n):
            seen = visible if visible is None or len(visible) == 1 else visible[i : i + n]
            rows, keys, values = (x[i : i + n].float() for x in (q, k, v))
            parts.append(attend_some(rows, keys, values, seen, causal, scale, softcap, lse))
        mean, total = parts[0] if len(parts) == 1 else [torch.cat(each) for each in zip(*parts, strict=True)]
        return mean.to(q.dtype), total
    few = q.device.type == "cpu" and q.shape[1] * q.shape[2] * k.shape[2] <= 512
    if few or softcap or (lse and (q.device.type != "cpu" or v.shape[-1] != q.shape[-1])):
        queries = q.shape[:3]
        scores = torch.matmul(q.float().flatten(1, 2), k.float().squeeze(1).mT).reshape(*queries, k.shape[2]) * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril() if causal else visible
        scores = scores if visible is None else torch.where(visible, scores, -torch.inf)
        weights, total = softmax_weights(scores, -1)
        weighed = torch.matmul(weights.to(v.dtype).float().flatten(1, 2), v.float().squeeze(1))
        return weighed.reshape(*queries, v.shape[3]), total.squeeze(-1)
    mask = None if visible is None else torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, -torch.inf)
    if q.device.type == "cpu" and v.shape[-1] == q.shape[-1]:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))  # it reads rows as if they lay so
        mean, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
        if mask is None:  # to the kernel a query none of whose scores is a number sees nothing
            lost = (q.isnan() | k[:, :, :1].isnan()).any(dim=-1)
            mean, total = mean.masked_fill(lost[..., None], torch.nan), total.masked_fill(lost, torch.nan)
        return mean, total
    attended = torch.nn.functional.scaled_dot_product_attention
    mean = attended(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] > 1)
    return mean, mean.new_empty(mean.shape[:3])


def angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of positions [...] times frequencies [..., F], in f32."""
    turned = positions[..., None].float() * frequencies.float()
    return torch.cos(turned), torch.sin(turned)


def frequencies(base: float, rotated: int, device: torch.device) -> Tensor:
    """base^(-2i / rotated) for each pair i."""
    exponents = torch.arange(0, rotated, 2, dtype=torch.float64, device=device) / rotated
    return (base**-exponents).float()


def turned(x: Tensor, angles: tuple[Tensor, Tensor], rotated: int, neox: bool) -> Tensor:
    """x with the first `rotated` numbers of its last dimension turned in pairs: halves (GPT-NeoX), or neighbours."""
    cos, sin = angles
    half = rotated // 2
    first, second = (slice(0, half), slice(half, rotated)) if neox else (slice(0, rotated, 2), slice(1, rotated, 2))
    wide = x.float()
    made = torch.empty_like(wide) if rotated == x.shape[-1] else wide.clone()
    x1, x2 = wide[..., first], wide[..., second]
    torch.mul(x1, cos, out=made[..., first]).addcmul_(x2, sin, value=-1)
    torch.mul(x2, cos, out=made[..., second]).addcmul_(x1, sin)
    return made.to(x.dtype)


def uniform(key: Tensor, at: Tensor, index: Tensor) -> Tensor:
    """Numbers between 0 and 1 in f32, both exclusive, for the key (key, at) and the counter (0, index), broadcast:
    threefry2x32 of 20 rounds (Salmon et al. 2011), its words of 32 bits in int64."""
    word, rotations = 0xFFFFFFFF, ((13, 15, 26, 6), (17, 29, 16, 24))
    k0, k1 = key.long() & word, at.long() & word
    schedule = k0, k1, k0 ^ k1 ^ 0x1BD11BDA
    x0, x1 = k0, (index.long() & word) + k1 & word
    for i in range(5):
        for turn in rotations[i % 2]:
            x0 = x0 + x1 & word
            x1 = ((x1 << turn | x1 >> 32 - turn) & word) ^ x0
        x0 = x0 + schedule[(i + 1) % 3] & word
        x1 = x1 + schedule[(i + 2) % 3] + i + 1 & word
    return ((x0.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
