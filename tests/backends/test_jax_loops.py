"""Loops, weights and state under JAX: against the unsharded meaning, and what they cost in memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from oracles.jax_agreement import check, explicit

from shardwright.backends.jax.devices import arrange_devices
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module

LAYERS = """
mesh x=2 y=2 z=2
dim B=4 L=2 E=16 F=32 N=3 T=8 D=16
weights { w_in: f32 NE_xF_yz
          w_out: f32 F_yzNE_x
          scale: f32 E }
state { k: f32 NB_xTD
        pos: int32 }
"""

DECODE = (
    LAYERS
    + """
func f(x: f32 BE_x) -> f32 BE_x {
  y: f32 BE_x = loop[N](h: f32 BE_x = x) {
    g = all_gather[x](h)
    new = g * scale
    mine = slice[x -> B](new)
    row = rename[E -> D](mine)
    k2 = update[T](k, row, pos)
    set k = k2
    s = sum[T](k)
    sg = all_gather[x](s)
    se = rename[D -> E](sg)
    t = slice[x -> E](se)
    a = h @[E] w_in
    a2 = all_reduce[x](a)
    b: f32 BE_x(partialsum-yz) = a2 @[F] w_out
    b2 = all_reduce[yz](b)
    c = b2 * 0.01
    d = c + t
    next h + d
  }
  one: int32 = 1
  later = pos + one
  set pos = later
  return y
}
"""
)


def test_layers_with_a_cache() -> None:
    check(DECODE, pos=3)


def test_the_written_row_alone_is_touched() -> None:
    source = emit(explicit(DECODE))
    assert "k = rows_written(k, row.reshape(1, 2, 1, 16), (i, 0, pos, 0), 2)  # f32 NB_xTD" in source
    assert "s = jnp.sum(k[i], axis=1)  # f32 B_xD" in source
    assert "k2" not in source
    assert "(y, k), _ = lax.scan(over_n, (x, k), (lax.iota(jnp.int32, 3), w_in, jnp.moveaxis(w_out, 1, 0)))" in source


def test_state_is_donated() -> None:
    """The new cache takes the memory of the old one, and no copy of it is made on the way."""
    import jax

    text = DECODE.replace("T=8", "T=4096")
    module = load_module(emit(explicit(text)))
    mesh = module.make_mesh(arrange_devices(8).devices)
    weights = module.put({n: np.zeros(shape, np.float32) for n, (shape, _, _) in module.WEIGHTS.items()},
                         module.WEIGHTS, mesh)  # fmt: skip
    state = module.zero_state(mesh)
    x = np.zeros((4, 16), np.float32)
    memory = module.build_f(mesh).lower(weights, state, x).compile().memory_analysis()
    cache = 3 * 2 * 4096 * 16 * 4
    assert memory.alias_size_in_bytes >= cache
    assert memory.temp_size_in_bytes < cache / 2
    old = state["k"]
    _, new = module.build_f(mesh)(weights, state, x)
    jax.block_until_ready(new)
    assert old.is_deleted()
    assert new["k"].sharding.is_equivalent_to(jax.NamedSharding(mesh, module.STATE["k"][2]), 4)


def test_state_gives_its_memory_to_state_that_lies_there() -> None:
    """Also beside state that is set and not read: on the host and on the device arrays are alike to JAX."""
    text = """
dim B=4 E=4
state { first: f32 BE
        second: f32 BE on host }
func f(x: f32 BE) -> f32 E {
  set first = x
  return sum[B](x)
}
"""
    module = load_module(emit(explicit(text)))
    mesh = module.make_mesh(arrange_devices(1).devices)
    x = np.zeros((4, 4), np.float32)
    lowered = module.build_f(mesh).lower({}, module.zero_state(mesh), x).as_text()
    (main,) = (line for line in lowered.splitlines() if "@main(" in line)
    given, results = main.split(") -> (")
    kinds = re.findall(r'memory_kind = "(\w+)"', results)
    pairs = re.findall(r'memory_kind = "(\w+)"[^%]*aliasing_output = (\d)', given)
    assert [(kind, kinds[int(number)]) for kind, number in pairs] == [("device", "device"), ("pinned_host",) * 2]


BODIES = {
    "state that is read and not set": """
func f(x: f32 B_xD) -> f32 B_xD {
  y: f32 B_xD = loop[N as i](h: f32 B_xD = x) {
    s = sum[T](k)
    next h + s
  }
  return y
}
""",
    "slice set to something else": """
func f(x: f32 B_xD) -> f32 B_xD {
  y: f32 B_xD = loop[N as i](h: f32 B_xD = x) {
    n = k * 2
    old = sum[T](k)
    set k = n
    r = update[T](k, h, i)
    keep = sum[T](k)
    set k = r
    again = update[T](k, keep, pos)
    s = sum[T](again)
    set k = again
    t = s + keep
    u = t + old
    next h + u
  }
  return y
}
""",
    "index alone": """
func f(x: int32 B) -> (int32 B, int32) {
  y, z = loop[N as i](h: int32 B = x, c: int32 = pos) {
    a = h + i
    b = c * 2
    next a, b
  }
  set pos = z
  return y, z
}
""",
    "state alone": """
func f(x: f32 B_xD) -> int32 {
  loop[N] {
    k2 = update[T](k, x, pos)
    set k = k2
  }
  z: int32 = pos
  return z
}
""",
    "nothing carried, nothing set": """
func f(x: f32 B_xD) -> f32 B_xD {
  loop[N] {
    s = x + 1
  }
  return x
}
""",
    "zeros carried": """
func f(x: f32 B_xD) -> f32 B_xD {
  zero: f32 B_xD = 0
  y: f32 B_xD = loop[N](h: f32 B_xD = zero) {
    next h + x
  }
  return y
}
""",
    "state in no loop": """
func f(x: f32 B_xD) -> f32 NB_xTD {
  n = k + x
  set k = n
  return k
}
""",
}


@pytest.mark.parametrize("case", BODIES)
def test_loops(case: str) -> None:
    check(LAYERS + BODIES[case], pos=2)


def test_nested_loops() -> None:
    check(
        """
mesh x=2 y=4
dim N=2 M=3 B=4 E=8 T=4
weights { w: f32 MNE_y
          u: f32 NE_y
          c: f32 MB_x }
state { k: f32 NB_xMTE_y
        m: f32 ME_y
        n: f32 N }
func f(x: f32 B_xE_y, p: int32) -> f32 B_xE_y {
  y = loop[N as i](h: f32 B_xE_y = x) {
    z = loop[M as j](g: f32 B_xE_y = h) {
      k2 = update[T](k, g, p)
      before = sum[T](k)
      set k = k2
      a = g * w
      b = a + u
      d = b * c
      m2 = m * 2
      set m = m2
      e = d + n
      f2 = e + before
      q = k * 0.5
      set k = q
      next f2 + m
    }
    one = n + i2
    set n = one
    next z * u
  }
  return y
}
""".replace("one = n + i2", "one = n + 1"),
        p=2,
    )


def test_positions_and_a_split_cache() -> None:
    """A cache split over its positions inside the loop, one position for each element of the batch."""
    check("""
mesh x=2 y=2 z=2
dim N=2 B=4 T=16 D=4 L=3
dim T=16 order z y x
state { k: bf16 NB_xT_yzD
        v: bf16 B_xT_yNDT2
        pos: int32 B_x }
func f(x: bf16 LB_xD, w: bf16 B_xD) -> bf16 B_xD {
  y = loop[N](h: bf16 B_xD = w) {
    k2 = update[T](k, x, pos)
    set k = k2
    s = sum[T](k)
    t = all_reduce[yz](s)
    next t
  }
  return y
}
""".replace("dim N=2 B=4 T=16 D=4", "dim N=2 B=4 D=4").replace("        v: bf16 B_xT_yNDT2\n", ""),
        pos=np.array([0, 5, 14, 9]))  # fmt: skip


def test_functions_share_weights_and_state() -> None:
    """Prefill of a strided cache, then decode, with one state."""
    import jax

    text = """
mesh x=2 y=2
dim B=4 L=4 D=8
dim T=8 order x y
weights { w: f32 D_yB }
state { k: f32 BT_yD
        pos: int32 }
func prefill(x: f32 BLD) -> f32 BD {
  k2 = update[T](k, x, 0)
  set k = k2
  at: int32 = 4
  set pos = at
  s = sum[LD](x)
  wg = all_gather[y](w)
  r = wg @[B] s
  o: f32 BD = x @[L] x0
  return o
}
func decode[L=1](x: f32 BLD) -> f32 BD {
  k2 = update[T](k, x, pos)
  set k = k2
  s = sum[T](k)
  t = all_reduce[y](s)
  n = pos + 1
  set pos = n
  return t
}
"""
    text = text.replace("  r = wg @[B] s\n  o: f32 BD = x @[L] x0\n  return o\n", "  r: f32 BD = wg * s\n  return r\n")
    check(text, "prefill")
    check(text, "decode", pos=4)
    module = load_module(emit(explicit(text)))
    mesh = module.make_mesh(jax.devices())
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 4)).astype(np.float32)
    x = rng.standard_normal((4, 5, 8)).astype(np.float32)
    for plain in (True, False):
        state = {"k": np.zeros((4, 8, 8), np.float32), "pos": np.int32(0)}
        weights = {"w": w}
        if not plain:
            state, weights = module.put(state, module.STATE, mesh), module.put(weights, module.WEIGHTS, mesh)
            assert state["k"].shape == (4, 2, 2, 2, 8)
        first, state = module.build_prefill(mesh)(weights, state, x[:, :4])
        second, state = module.build_decode(mesh)(weights, state, x[:, 4:])
        np.testing.assert_allclose(first, w.T * x[:, :4].sum((1, 2))[:, None], rtol=1e-5)
        np.testing.assert_allclose(second, x.sum(1), rtol=1e-5, atol=1e-5)
        assert int(state["pos"]) == 5


@pytest.mark.parametrize("within", [True, False])
def test_indices_of_64_bits_elsewhere_change_nothing(within: bool) -> None:
    """`jax_enable_x64` makes 64 bits of plain numbers, which no slice takes beside a counter of 32."""
    import jax

    text = DECODE.replace("update[T](k, row, pos)", "update[T](k, row, 5)") if within else DECODE
    text += """
func attended(q: f32 B_xTD, n: int32 B_x) -> f32 B_xTD {
  o = attend[T1, D](q, keys, keys, length=n)
  return o
}
"""
    text = text.replace("state {", "state { keys: f32 B_xT1D\n").replace(" T=8 ", " T=8 T1=24 ")
    with jax.enable_x64(True):
        check(text, pos=3)
        check(text, "attended", n=np.array([0, 7, 24, 3], np.int32))
