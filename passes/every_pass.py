"""Every pass by name, apart from `passes.pipelines`: most commands run a few, and need not import the others."""

from __future__ import annotations

from shardwright.passes.attention_over_batch import AttentionOverBatch
from shardwright.passes.base import Pass
from shardwright.passes.choose_digit_order import ChooseDigitOrder
from shardwright.passes.choose_memories import ChooseMemories
from shardwright.passes.cleanup import Cleanup
from shardwright.passes.decompose import Decompose
from shardwright.passes.edge_blocks import EdgeBlocks
from shardwright.passes.fuse_parallel_block import FuseParallelBlock
from shardwright.passes.gather_ahead import GatherAhead
from shardwright.passes.insert_moves import InsertMoves
from shardwright.passes.loop_collectives import LoopCollectives
from shardwright.passes.offload import Offload
from shardwright.passes.pad_heads import PadHeads
from shardwright.passes.place import Place
from shardwright.passes.quantize_weights import QuantizeWeights
from shardwright.passes.recognize import Recognize
from shardwright.passes.reduce_into import ReduceInto
from shardwright.passes.schedule_blocks import ScheduleBlocks
from shardwright.passes.split_collectives import SplitCollectives
from shardwright.passes.weight_gather import WeightGather

PASSES: dict[str, type[Pass]] = {
    p.name: p
    for p in (
        Decompose,
        Place,
        ChooseDigitOrder,
        InsertMoves,
        EdgeBlocks,
        Cleanup,
        FuseParallelBlock,
        QuantizeWeights,
        WeightGather,
        AttentionOverBatch,
        PadHeads,
        Recognize,
        ReduceInto,
        LoopCollectives,
        GatherAhead,
        ChooseMemories,
        Offload,
        ScheduleBlocks,
        SplitCollectives,
    )
}
"""Every pass by name."""
