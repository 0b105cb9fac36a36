"""The next token from logits that are split over the vocabulary: functions of the language to append to a model's."""

from __future__ import annotations

from shardwright.ir.diagnostics import NOWHERE, Source, fault
from shardwright.ir.text.parser import parse_type
from shardwright.ir.types import row_text

MASS_BITS = 31
"""The probabilities of a row are counted in units of 2^-31."""

NOT_DRAWN = {-1: "all -inf", -2: "infinite", -3: "NaN"}
"""What `greedy` and `sample` give in place of a token, and what that says of a row's logits."""


def sampling_functions(logits: str, vocab: int, *, top_k: bool = True, top_p: bool = True) -> str:
    """`greedy`, `sample` and `logprob` for logits of this type, such as `f32 BV_xyz`, as text of the language.

        func greedy(logits: f32 BV_xyz) -> int32 B
        func sample(logits: f32 BV_xyz, key: uint32 B, position: int32 B,
                    temperature: f32 B, top_k: int32 B, top_p: f32 B) -> int32 B
        func logprob(logits: f32 BV_xyz, token: int32 B) -> f32 B

    `vocab` is the number of tokens, the size of V. Where no row will ask for top-k, or for top-p, `top_k=False` or
    `top_p=False` leaves out the search for its threshold; the parameter stays, and is not looked at.

    Of `sample`, temperature 0 is greedy; temperature, top_k and top_p are those of each row, and top_k 0 and top_p 1
    leave all tokens in. They act in this order, as in `transformers`: top-p counts the probabilities, at the
    temperature, of what top-k has left. Tokens equal to the last that is kept are kept. The token is the greatest of
    logit / temperature + Gumbel noise (Gumbel 1954), whose numbers depend on (key, position, token) alone, so that a
    row's token depends neither on the batch nor on the mesh. Raises a `DiagnosticError` for a type that is not f32,
    has no V, or has holes.

    A row with a logit that is NaN or +inf, or with none above -inf, gets a negative number in place of a token
    (`NOT_DRAWN`), whatever its mesh; a logit of -inf is a token that is never chosen. Of such a row `logprob` is NaN.

    Thresholds are found by bisection on the bits of the logits, in 32 trips whose collectives carry one number for
    each row: so a chip receives O(B) bytes, whatever the vocabulary. They are counts and whole multiples of
    2^-31, whose sums do not depend on the order of addition.
    """
    written = parse_type(Source("<logits>", logits))
    dims = written.row.dims if written.row else ()
    if written.dtype != "f32" or "V" not in [dim.name for dim in dims] or written.partial or written.placement:
        raise fault("bad-type", f"sampling is from f32 logits with a dimension V, not from {logits}", NOWHERE)
    if (written.row and written.row.open) or any(dim.axes is None for dim in dims):
        raise fault("open-type", f"sampling is from logits whose layout is known, and {logits} has holes", NOWHERE)
    kept = [dim for dim in dims if dim.name != "V"]
    rows = row_text([dim.name for dim in kept], [dim.axes for dim in kept])
    types = {"logits": f"f32 {row_text([dim.name for dim in dims], [dim.axes for dim in dims])}"}
    for name, dtype in (("mask", "bool"), ("counts", "int32"), ("ranks", "uint32")):
        types[name] = types["logits"].replace("f32", dtype, 1)
    for dtype in ("f32", "int32", "uint32"):
        types[dtype] = f"{dtype} {rows}".rstrip()
    bits = min(15, MASS_BITS - (vocab - 1).bit_length())
    units = {"half": 2**bits, "whole": 4**bits, "unit": 2 ** (MASS_BITS + bits), "unit_bits": MASS_BITS}
    masks = [name for name, asked in (("k_left", top_k), ("p_left", top_p)) if asked]
    texts = {
        "weights": "where(k_left, exp(scores), 0)" if top_k else "exp(scores)",
        "masks": f"logical_and({', '.join(masks)})" if len(masks) > 1 else "".join(masks),
        "sound": _SOUND.format(**types),
        "drawn": "where(kept, scores + noise, -inf)" if masks else "scores + noise",
    }
    searches = [_TOP_K if top_k else "", _TOP_P if top_p else ""]
    parts = [_GREEDY, _SAMPLE, *([_RANKS, *searches, _KEPT] if masks else []), _DRAW, _LOGPROB]
    return "dim bits=32\n" + "".join(parts).format(**units, **texts, **types)


_SOUND = """

  # The greatest logit of a row says whether they are numbers: it is -inf where all are, and NaN where one is.
  infinite: {int32} = where(less(greatest, inf), chosen, -2)
  number: {int32} = where(less(-inf, greatest), infinite, -3)
  token: {int32} = where(equal(greatest, -inf), -1, number)"""

_GREEDY = """
func greedy(logits: {logits}) -> {int32} {{
  greatest: {f32} = max[V](logits)
  chosen: {int32} = argmax[V](logits){sound}
  return token
}}
"""

_SAMPLE = """
func sample(
  logits: {logits}, key: {uint32}, position: {int32}, temperature: {f32}, top_k: {int32}, top_p: {f32}
) -> {int32} {{
  greatest: {f32} = max[V](logits)
  cold = equal(temperature, 0)
  scores: {logits} = (logits - greatest) / where(cold, 1, temperature)
"""

_RANKS = """
  # Whole numbers in the order of the logits: the bits of a float, with negative ones turned round.
  raw: {ranks} = bitcast[uint32](logits)
  rank: {ranks} = where(less(raw, 2147483648), raw + 2147483648, -raw)
"""

_TOP_K = """
  # The least rank above which fewer than top_k tokens lie, bit by bit.
  wanted = where(equal(top_k, 0), size[V], top_k)
  k_rank, k_step = loop[bits](k_floor: {uint32} = 0, k_bit: uint32 = 2147483648) {{
    k_above: {mask} = less(k_floor + (k_bit - 1), rank)
    k_ones: {counts} = convert[int32](k_above)
    k_count: {int32} = sum[V](k_ones)
    next where(less(k_count, wanted), k_floor, k_floor + k_bit), k_bit / 2
  }}
  k_left: {mask} = less_equal(k_rank, rank)
"""

_TOP_P = """
  # The probabilities of what is left in units of 2^-{unit_bits}. They are divided by their sum, which is made of the
  # sums of two whole numbers for the sake of its precision.
  weight: {logits} = {weights}
  fine: {ranks} = convert[uint32](weight * {whole})
  coarse: {ranks} = fine / {half}
  rest: {ranks} = fine - coarse * {half}
  coarse_sum: {uint32} = sum[V](coarse)
  rest_sum: {uint32} = sum[V](rest)
  total = convert[f32](coarse_sum) + convert[f32](rest_sum) / {half}
  mass: {ranks} = convert[uint32](weight * ({unit}.0 / total) + 0.5)
  mass_sum: {uint32} = sum[V](mass)

  # The least rank above which less than top_p of the probability lies.
  budget = where(less(top_p, 1), maximum(top_p * convert[f32](mass_sum), 0.5), inf)
  p_rank, p_step = loop[bits](p_floor: {uint32} = 0, p_bit: uint32 = 2147483648) {{
    p_above: {mask} = less(p_floor + (p_bit - 1), rank)
    p_part: {ranks} = where(p_above, mass, 0)
    p_mass: {uint32} = sum[V](p_part)
    next where(less(convert[f32](p_mass), budget), p_floor, p_floor + p_bit), p_bit / 2
  }}
  p_left: {mask} = less_equal(p_rank, rank)
"""

_KEPT = """
  kept: {mask} = {masks}
"""

_DRAW = """
  # The greatest of scores and Gumbel noise is distributed as the softmax of the scores.
  noise: {logits} = -log(-log1p(-uniform[V](key, position)))
  noisy: {logits} = {drawn}
  drawn: {logits} = where(cold, scores, noisy)
  chosen: {int32} = argmax[V](drawn){sound}
  return token
}}
"""

_LOGPROB = """
func logprob(logits: {logits}, token: {int32}) -> {f32} {{
  greatest: {f32} = max[V](logits)
  shifted: {logits} = logits - greatest
  total: {f32} = sum[V](exp(shifted))
  chosen: {f32} = lookup[V](shifted, token)
  return chosen - log(total)
}}
"""
