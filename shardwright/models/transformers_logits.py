"""The logits that `transformers` gives for a checkpoint, to compare ours with."""

from __future__ import annotations

from contextlib import redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def transformers_logits(folder: str | Path, ids: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """Logits f32 [B, L, V] of token ids [B, L] in float32 on the CPU, with the weights of a checkpoint's folder.

    Attention is the plain one (`eager`), every position attends to itself and those before. Nothing is fetched and
    no code of the checkpoint is run. Raises ModuleNotFoundError without torch and transformers.
    """
    import io

    import numpy as np
    import torch

    library: Any = import_module("transformers")
    with redirect_stderr(io.StringIO()):  # its progress bars
        model: Any = library.AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )
    model.eval()
    with torch.no_grad():
        logits: Any = model(torch.tensor(ids.astype(np.int64).tolist()), use_cache=False).logits
    return np.asarray(logits.numpy(), np.float32)
