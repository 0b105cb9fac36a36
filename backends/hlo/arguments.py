"""The arguments of a compiled module, by the names that JAX gave them, and the bytes that each takes on a chip."""

from __future__ import annotations

from shardwright.backends.hlo.kernels import traffic_of
from shardwright.backends.hlo.module import HloModule


def argument_bytes(module: HloModule) -> dict[str, int]:
    """Bytes of each argument of the entry, `weights['embed']` or `state['k']`, padded to the tiles that it lies in. An
    argument whose name the text does not say has its parameter's."""
    entry = module.computations[module.entry]
    return {
        (each.op_name.replace("\\'", "'") or each.name): sum(array.nbytes for array in traffic_of(each.type))
        for each in entry.instructions.values()
        if each.opcode == "parameter"
    }


def state_bytes(module: HloModule) -> int:
    """Bytes of the arguments that are an emitted module's state."""
    return sum(nbytes for name, nbytes in argument_bytes(module).items() if name.startswith("state["))
