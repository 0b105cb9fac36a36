"""The operations of the language."""

from shardwright.ir.ops.attention import Attend, JoinAttention
from shardwright.ir.ops.contraction import Contract
from shardwright.ir.ops.copies import Fetch, Start, Store, Wait
from shardwright.ir.ops.elementwise import (
    Add,
    Bitcast,
    Convert,
    Div,
    Elementwise,
    Function,
    Mul,
    Neg,
    Sub,
    TableOperation,
)
from shardwright.ir.ops.foreign import Foreign
from shardwright.ir.ops.grouped import Grouped
from shardwright.ir.ops.indexing import Concat, Full, Iota, Lookup, Rotary, Take, Update
from shardwright.ir.ops.movements import (
    Ahead,
    AllGather,
    AllReduce,
    AllToAll,
    AsPartial,
    Movement,
    Permute,
    ReduceScatter,
    Roll,
    Slice,
)
from shardwright.ir.ops.random_numbers import Uniform
from shardwright.ir.ops.reductions import Argmax, Cumsum, Layernorm, Max, Rmsnorm, Softmax, Sum
from shardwright.ir.ops.reshapes import Alias, Merge, Rename, Split
from shardwright.ir.ops.selection import Topk

__all__ = [
    "Add",
    "Ahead",
    "Alias",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Argmax",
    "AsPartial",
    "Attend",
    "Bitcast",
    "Concat",
    "Contract",
    "Convert",
    "Cumsum",
    "Div",
    "Elementwise",
    "Fetch",
    "Foreign",
    "Full",
    "Function",
    "Grouped",
    "Iota",
    "JoinAttention",
    "Layernorm",
    "Lookup",
    "Max",
    "Merge",
    "Movement",
    "Mul",
    "Neg",
    "Permute",
    "ReduceScatter",
    "Rename",
    "Rmsnorm",
    "Roll",
    "Rotary",
    "Slice",
    "Softmax",
    "Split",
    "Start",
    "Store",
    "Sub",
    "Sum",
    "TableOperation",
    "Take",
    "Topk",
    "Uniform",
    "Update",
    "Wait",
]
