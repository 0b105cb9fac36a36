"""Programs over two or four chips whose values live in shares of several memories, some of them in other layouts than
they are used in: weights, state, what loops carry, and parameters."""

from __future__ import annotations

from random import Random

_TIERS = (("device", "host"), ("host", "disk"), ("device", "disk"), ("device", "host", "disk"))
_SHARES = {2: ((25, 75), (50, 50), (75, 25)), 3: ((25, 25, 50), (50, 25, 25))}


class _Types:
    def __init__(self, rng: Random, axes: str) -> None:
        self.rng = rng
        self.axes = axes

    def layout(self, dims: str, hole: float = 0.3) -> str:
        """Each axis splits some dimension, or none; or all is left to the compiler."""
        if self.rng.random() < hole:
            return f"{dims}?"
        split: dict[str, str] = {}
        for axis in self.axes:
            if self.rng.random() < 0.6:
                dim = self.rng.choice(dims.replace("N", ""))
                split[dim] = split.get(dim, "_") + axis
        return "".join(dim + split.get(dim, "") for dim in dims)

    def placement(self, dims: str) -> str:
        kind = self.rng.random()
        if kind < 0.4:
            return "" if kind < 0.2 else self.rng.choice((" on host", " on disk"))
        tiers = self.rng.choice(_TIERS)
        shares = zip(tiers, self.rng.choice(_SHARES[len(tiers)]), strict=True)
        return " on " + " ".join(f"{tier} {share}%" for tier, share in shares) + f" along {self.rng.choice(dims)}"

    def placed(self, dims: str, over: str = "") -> str:
        return f"f32 {self.layout(over + dims)}{self.placement(dims)}"


def shared_program(seed: int) -> str:
    """A program of a function `f`, the same for the same seed."""
    rng = Random(seed)
    axes = rng.choice(("x", "xy"))
    types = _Types(rng, axes)
    update = rng.choice(("update[T](k, key, pos)", "k * 0.5"))
    read = rng.choice(("softmax[T](key @[E] k) @[T] k", "sum[T](k)"))
    gate, state = rng.choice((("E", "m"), ("E", "0.5"))), rng.choice(("N", ""))
    inside, after = ("    set m = m + h", "") if state else ("", "  set m = m + r")
    return f"""
mesh {" ".join(f"{axis}=2" for axis in axes)}
dim B=8 N=2 E=8 F=8 T=4
weights {{
  w: {types.placed("EF", "N")}
  u: {types.placed("FE", "N")}
  g: {types.placed(gate[0], rng.choice(("N", "")))}
}}
state {{
  k: {types.placed("BTE", "N")}
  m: {types.placed("BE", state)}
  s: {types.placed("BF")}
  pos: int32
}}
func f(x: {types.placed("BE")}, y: f32 {types.layout("BF")}) -> f32 {types.layout("BE", 0.0)}{types.placement("BE")} {{
  a: {types.placed("BE")} = x * 0.5
  r, q = loop[N](h: {types.placed("BE")} = a, p: {types.placed("BF")} = y) {{
    key = h * 0.25
    set k = {update}
{inside}
    o: {types.placed("BE")} = {read}
    z: {types.placed("BF")} = gelu(o @[E] w) + p
    next h + z @[F] u * g + {gate[1]}, z * 0.5
  }}
  set s = s + q
{after}
  v: {types.placed("BE")} = r
  return v
}}
"""
