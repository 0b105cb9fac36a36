"""Tensors in 8-bit floats with a scale for each block of rows and columns, which another tensor has.

DeepSeek-V3 is published so (DeepSeek-AI 2024, section 3.3.2); a block's numbers are multiplied by its scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.index_boxes import Index
from shardwright.models.config import Config, shown
from shardwright.models.safetensors_files import TensorFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SUFFIX = "_scale_inv"
"""The scales of a tensor are called as it is, with this at the end."""

FORMAT = "F8_E4M3"

BLOCK = 128
"""The rows and the columns of a block."""


def check_quantization(config: Config) -> None:
    """Raises where the weights are quantized otherwise than in blocks of 8-bit floats."""
    if config.keys.get("quantization_config") is None:
        return
    keys = config.table("quantization_config")
    method, block = keys.keys.get("quant_method"), keys.keys.get("weight_block_size")
    if method != "fp8" or block != [BLOCK, BLOCK]:
        raise fault(
            "unsupported-config",
            f"the checkpoint is quantized (quantization_config) with quant_method {shown(method)} and weight_block_size"
            f' {shown(block)}, and f32, bf16 and f16 weights are read, and "fp8" in blocks of [{BLOCK}, {BLOCK}]',
            NOWHERE,
            "import the checkpoint that it was quantized from",
        )


def scales_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the scales of a tensor."""
    return tuple(-(-size // BLOCK) for size in shape)


def with_scales(piece: NDArray[Any], box: Index, tensor: str, file: TensorFile) -> NDArray[np.float32]:
    """A box of a tensor in f32, each block of it times its scale, of which `file` has the tensor."""
    import numpy as np

    blocks = tuple(slice(part.start // BLOCK, -(-part.stop // BLOCK)) for part in box)
    scales: NDArray[np.float32] = np.asarray(file.read(f"{tensor}{SUFFIX}", blocks), np.float32)
    made = np.asarray(piece, np.float32)
    for axis, part in enumerate(box):
        first, last = int(part.start), int(part.stop)
        scales = np.take(scales, np.arange(first, last) // BLOCK - first // BLOCK, axis)
    made *= scales
    return made
