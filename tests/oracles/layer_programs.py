"""Single layers as a person would write them, in the layouts of a preset: feedforward and attention, no norms."""

from __future__ import annotations

from collections.abc import Iterable

from oracles.layer_formulas import Layer

PRESETS = ("megatron", "ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")


def feedforward(layer: Layer, *, gated: bool) -> str:
    """Two matrices with gelu between them, or three with SwiGLU, from residual stream to residual stream."""
    names = ["w_gate", "w_up"] if gated else ["w_up"]
    stream, hidden = _stream(layer), _split(layer, "BLF")
    weights = [f"  {name}: {_stored(layer, 'EF')}" for name in names] + [f"  w_down: {_stored(layer, 'FE')}"]
    lines = [line for name in names for line in _gathered(layer, name, "EF")] + _gathered(layer, "w_down", "FE")
    lines += [f"  {name[2:]}: {hidden} = x @[E] {_used(layer, name)}" for name in names]
    lines.append(f"  inner: {hidden} = {'silu(gate) * up' if gated else 'gelu(up)'}")
    lines.append(f"  y: {stream} = inner @[F] {_used(layer, 'w_down')}")
    body = "\n".join(lines)
    sizes = f"B={layer.B} L={layer.L} E={layer.E} F={layer.F}"
    return _program(layer, sizes, weights, "", f"func layer(x: {stream}) -> {stream} {{\n{body}\n  return y\n}}")


def attention(layer: Layer, over: str, positions: int) -> str:
    """Attention over heads or batch with a cache of so many positions, all heads of keys and values stored as they
    divide: K of them beside groups of G, H where each query has its own, no dimension where there is one."""
    heads, keys = ("H", "H") if layer.K == layer.H else ("H", "") if layer.K == 1 else ("KG", "K")
    stream = _stream(layer)
    copied = [axis for axis in layer.gathered if axis not in layer.on_kv_heads]
    queries = _at(layer, f"BL{heads}D", layer.axes if over == "batch" else copied)
    cache = _at(layer, f"BT{keys}D", layer.axes if over == "batch" else ())
    fresh = cache.replace("T", "L")
    wide, narrow = f"E{heads}D", f"E{keys}D"
    back = f"{heads}DE"
    shapes = {"wq": wide, "wk": narrow, "wv": narrow, "wo": back}
    weights = [f"  {name}: {_stored(layer, dims)}" for name, dims in shapes.items()]
    lines = [line for name, dims in shapes.items() for line in _gathered(layer, name, dims)]
    used = {name: f"{name}_gathered" if _gathered(layer, name, dims) else name for name, dims in shapes.items()}
    lines.append(f"  q: {queries} = x @[E] {used['wq']}")
    for name in "kv":
        lines.append(f"  {name}_new: {fresh} = x @[E] {used[f'w{name}']}")
        lines.append(f"  set {name} = update[T]({name}, {name}_new, pos)")
    lines.append(f"  o: {queries} = attend[T, D, causal=L](q, k, v, pos=pos)")
    lines.append(f"  y: {stream} = o @[{heads}D] {used['wo']}")
    body = "\n".join(lines)
    numbers = f"H={layer.H}" if heads == "H" else f"K={layer.K} G={layer.H // layer.K}"
    sizes = f"B={layer.B} L={layer.L} T={positions} E={layer.E} {numbers} D={layer.D}"
    state = f"state {{\n  k: {cache}\n  v: {cache}\n  pos: int32\n}}\n"
    return _program(layer, sizes, weights, state, f"func layer(x: {stream}) -> {stream} {{\n{body}\n  return y\n}}")


def _program(layer: Layer, sizes: str, weights: list[str], state: str, function: str) -> str:
    mesh = " ".join(f"{axis}={size}" for axis, size in layer.mesh.items())
    stored = "\n".join(weights)
    return f"mesh {mesh}\ndim {sizes}\nweights {{\n{stored}\n}}\n{state}{function}\n"


def _row(dims: Iterable[tuple[str, Iterable[str]]]) -> str:
    return "".join(f"{dim}_{''.join(on)}" if (on := list(axes)) else dim for dim, axes in dims)


def _stream(layer: Layer) -> str:
    return "BLE" if layer.preset == "megatron" else _split(layer, "BLE")


def _split(layer: Layer, dims: str) -> str:
    """B over the axes that are gathered over, the last dimension over the others."""
    rest = [axis for axis in layer.axes if axis not in layer.gathered]
    return _row([("B", layer.gathered), ("L", ()), (dims[-1], rest)])


def _homes(layer: Layer, axis: str) -> str:
    """The dimension of heads that an axis splits, by which keys are split too or not."""
    return "K" if axis in layer.on_kv_heads else "G"


def _on_heads(layer: Layer, dim: str, axes: Iterable[str]) -> list[str]:
    if dim == "H":
        return list(axes)
    return [axis for axis in axes if _homes(layer, axis) == dim]


def _stored(layer: Layer, dims: str) -> str:
    on = {"E": layer.on_embed, "F": layer.on_heads}
    return _row((dim, on[dim] if dim in on else _on_heads(layer, dim, layer.on_heads) if dim in "HKG" else ())
                for dim in dims)  # fmt: skip


def _gathered(layer: Layer, name: str, dims: str) -> list[str]:
    """`w_gathered: EF_z = w`, where some of the weight's axes are gathered over."""
    if not layer.gathered:
        return []
    rest = [axis for axis in layer.on_heads if axis not in layer.gathered]
    row = _row((dim, rest if dim == "F" else _on_heads(layer, dim, rest) if dim in "HKG" else ()) for dim in dims)
    return [] if row == _stored(layer, dims) else [f"  {name}_gathered: {row} = {name}"]


def _used(layer: Layer, name: str) -> str:
    return f"{name}_gathered" if layer.gathered else name


def _at(layer: Layer, dims: str, batch: Iterable[str]) -> str:
    """Queries or keys with these axes on the batch and the others on the heads that they have."""
    first = list(batch)
    rest = [axis for axis in layer.axes if axis not in first]
    return _row((dim, first if dim == "B" else _on_heads(layer, dim, rest) if dim in "HKG" else ()) for dim in dims)
