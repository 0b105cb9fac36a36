"""PyTorch's recurrent layers: a scan over positions, each layer and direction one."""

# Imported by `capture_torch` alone, and only when a module is traced.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shardwright.tracing.aten.table import OPERATIONS

Step = Callable[..., tuple[Any, ...]]
"""From gates of the input, gates of the state, and the state, to the next state, whose first part is the output."""


def _lstm_step(given: Any, own: Any, _h: Any, c: Any) -> tuple[Any, ...]:
    i, f, g, o = jnp.split(given + own, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru_step(given: Any, own: Any, h: Any) -> tuple[Any, ...]:
    (r, z, n), (own_r, own_z, own_n) = jnp.split(given, 3, -1), jnp.split(own, 3, -1)
    z = jax.nn.sigmoid(z + own_z)
    return ((1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + own_r) * own_n) + z * h,)


def _simple_step(function: Callable[[Any], Any]) -> Step:
    return lambda given, own, _h: (function(given + own),)


_STEPS: dict[str, Step] = {
    "lstm": _lstm_step, "gru": _gru_step, "rnn_tanh": _simple_step(jnp.tanh), "rnn_relu": _simple_step(jax.nn.relu)
}  # fmt: skip


def _gates(x: Any, weight: Any, bias: Any) -> Any:
    made = jnp.einsum("...i,oi->...o", x, weight)
    return made if bias is None else made + bias


def _direction(step: Step, x: Any, state: Sequence[Any], params: Sequence[Any], reverse: bool) -> tuple[Any, Any]:
    """The outputs at all positions, which are the first axis, and the last state. The gates of all inputs are one
    product before the scan, as in PyTorch."""
    weight, own_weight, bias, own_bias, project = params

    def body(state: Any, given: Any) -> Any:
        h, *others = step(given, _gates(state[0], own_weight, own_bias), *state)
        h = h if project is None else h @ project.T
        return (h, *others), h

    last, outputs = jax.lax.scan(body, tuple(state), _gates(x, weight, bias), reverse=reverse)
    return outputs, last


def _layers(name: str) -> Callable[..., Any]:
    step = _STEPS[name]

    def run(x: Any, state: Any, params: Any, has_biases: bool, n_layers: int, _dropout: float, _train: bool,
            bidirectional: bool, batch_first: bool) -> Any:  # fmt: skip
        if not isinstance(has_biases, bool):
            raise NotImplementedError("sequences of several lengths that are packed")
        states = list(state) if isinstance(state, Sequence) else [state]
        ways, biases = 1 + bidirectional, 2 if has_biases else 0
        each = len(params) // (n_layers * ways)
        turned = batch_first and x.ndim == 3
        x = jnp.swapaxes(x, 0, 1) if turned else x
        last: list[Any] = []
        for layer in range(n_layers):
            sides: list[Any] = []
            for way in range(ways):
                at = layer * ways + way
                own = params[at * each : (at + 1) * each]
                weights = [*own[:2], *(own[2:4] if biases else (None, None)), own[-1] if each > 2 + biases else None]
                outputs, state = _direction(step, x, [part[at] for part in states], weights, way == 1)
                sides.append(outputs)
                last.append(state)
            x = sides[0] if ways == 1 else jnp.concatenate(sides, -1)
        x = jnp.swapaxes(x, 0, 1) if turned else x
        return (x, *(jnp.stack(parts) for parts in zip(*last, strict=True)))

    return run


def _cell(name: str) -> Callable[..., Any]:
    step = _STEPS[name]

    def run(x: Any, state: Any, weight: Any, own_weight: Any, bias: Any = None, own_bias: Any = None) -> Any:
        states = state if isinstance(state, Sequence) else [state]
        h, *others = step(_gates(x, weight, bias), _gates(states[0], own_weight, own_bias), *states)
        return (h, *others) if others else h

    return run


for _name in _STEPS:
    OPERATIONS[_name] = _layers(_name)
    OPERATIONS[f"{_name}_cell"] = _cell(_name)
