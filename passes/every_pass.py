"""Every pass by name, apart from `passes.pipelines`: most commands run a few, and need not import the others."""

from __future__ import annotations

from shardwright.passes.base import Pass
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder
from shardwright.passes.compiling.choose_memories import ChooseMemories
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.edge_blocks import EdgeBlocks
from shardwright.passes.compiling.insert_moves import InsertMoves
from shardwright.passes.compiling.place import Place
from shardwright.passes.compiling.recognize import Recognize
from shardwright.passes.compiling.split_collectives import SplitCollectives
from shardwright.passes.memory.offload import Offload
from shardwright.passes.memory.pages_to_rows import PagesToRows
from shardwright.passes.memory.schedule_blocks import ScheduleBlocks
from shardwright.passes.rings.loop_collectives import LoopCollectives
from shardwright.passes.transformations.attention_over_batch import AttentionOverBatch
from shardwright.passes.transformations.fuse_parallel_block import FuseParallelBlock
from shardwright.passes.transformations.gather_ahead import GatherAhead
from shardwright.passes.transformations.pad_heads import PadHeads
from shardwright.passes.transformations.pipeline_layers import PipelineLayers
from shardwright.passes.transformations.quantize_weights import QuantizeWeights
from shardwright.passes.transformations.reduce_into import ReduceInto
from shardwright.passes.transformations.weight_gather import WeightGather

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
        PipelineLayers,
        LoopCollectives,
        GatherAhead,
        ChooseMemories,
        PagesToRows,
        Offload,
        ScheduleBlocks,
        SplitCollectives,
    )
}
"""Every pass by name."""
