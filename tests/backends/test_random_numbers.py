"""The generator of random numbers: published vectors, the emitted helper bit for bit, and simple statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardwright.backends.jax.helpers import HELPERS
from shardwright.backends.jax.session import Session
from shardwright.backends.simulation.random_bits import threefry2x32, uniform
from shardwright.compiling.compile_program import explicit
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.text.parser import parse

KNOWN = (
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
)
"""Key, counter and words of threefry2x32 with 20 rounds: the known answers of Random123 (Salmon et al. 2011)."""


def words(pair: tuple[int, int]) -> Any:
    return tuple(np.full(1, word, np.uint32) for word in pair)


@pytest.mark.parametrize(("key", "counter", "answer"), KNOWN)
def test_known_answers(key: tuple[int, int], counter: tuple[int, int], answer: tuple[int, int]) -> None:
    found = threefry2x32(words(key), words(counter))
    assert (int(found[0][0]), int(found[1][0])) == answer


def helpers() -> dict[str, Any]:
    """The helpers of an emitted module."""
    import jax
    import jax.numpy as jnp

    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "lax": jax.lax}
    exec(HELPERS["threefry2x32"] + HELPERS["uniform"], names)
    return names


@pytest.mark.parametrize(("key", "counter", "answer"), KNOWN)
def test_known_answers_under_jax(key: tuple[int, int], counter: tuple[int, int], answer: tuple[int, int]) -> None:
    found = helpers()["threefry2x32"](words(key), words(counter))
    assert (int(found[0][0]), int(found[1][0])) == answer


def test_jax_has_the_same_bits() -> None:
    """A hundred thousand numbers of random keys and counters."""
    rng = np.random.default_rng(0)
    key, at, index = rng.integers(-(2**31), 2**31, (3, 100_000))
    found = helpers()["uniform"](*(array.astype(np.int32) for array in (key, at, index)))
    np.testing.assert_array_equal(np.asarray(found).view(np.uint32), uniform(key, at, index).view(np.uint32))


def test_a_compiled_program_has_the_same_bits() -> None:
    text = "mesh x=2 y=2\ndim B=4 L=2 V=600\nfunc f(k: uint32 B_y) -> f32 B_yLV_x {\n  return uniform[LV](k, 5)\n}"
    made = explicit(elaborate(parse(Source("f.shard", text))))
    key = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    (found,) = Session(made, {}).call("f", {"k": key})
    wanted = uniform(key[:, None, None], np.array(5), np.arange(1200).reshape(1, 2, 600))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_both_ends_are_excluded() -> None:
    """2^22 numbers: the least and the greatest, and that small ones are not multiples of 2^-24."""
    made = uniform(np.array(1), np.array(2), np.arange(2**22))
    assert made.min() > 0
    assert made.max() < 1
    assert (made[made < 2.0**-16] % 2.0**-24 != 0).any()


def test_statistics() -> None:
    """A million numbers: mean, variance, cells, and correlation of neighbours, of streams and of keys."""
    n = 10**6
    made = uniform(np.array(1), np.array(2), np.arange(n)).astype(np.float64)
    assert abs(made.mean() - 1 / 2) < 4 / np.sqrt(12 * n)
    assert abs(made.var() - 1 / 12) < 4 / np.sqrt(180 * n)
    counts = np.bincount((made * 1000).astype(np.int64), minlength=1000)
    assert abs(float(((counts - n / 1000) ** 2 / (n / 1000)).sum()) - 999) < 4 * np.sqrt(2 * 999)
    others = (
        made[1:],
        uniform(np.array(1), np.array(3), np.arange(n)),
        uniform(np.array(2), np.array(2), np.arange(n)),
        uniform(np.array(2), np.array(1), np.arange(n)),
    )
    for other in others:
        assert abs(np.corrcoef(made[: len(other)], other)[0, 1]) < 4 / np.sqrt(n)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("uniform[B](k, p)", "uniform[B]: k: uint32 B has B too"),
        ("uniform[V](f, p)", "uniform: the key is int32 or uint32, and f is f32"),
        ("uniform[V](k, f)", "uniform: the position in its stream is int32 or uint32, and f is f32"),
        ("bitcast[int8](k)", "bitcast takes and gives formats of 32 bits, and int8 is asked for"),
        ("bitcast[int32](h)", "bitcast takes and gives formats of 32 bits, and h is bf16"),
    ],
)
def test_wrong_operands(expression: str, message: str) -> None:
    text = f"dim B=4 V=6\nfunc f(k: uint32 B, p: int32 B, f: f32 B, h: bf16 B) -> f32 BV {{\n  return {expression}\n}}"
    with pytest.raises(DiagnosticError) as raised:
        elaborate(parse(Source("f.shard", text)))
    assert raised.value.diagnostics[0].message == message
