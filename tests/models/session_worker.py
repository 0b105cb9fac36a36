"""One of several processes that run prefill and decode of a checkpoint.

`session_worker.py FOLDER PROGRAM COUNT INDEX PORT`, where PROGRAM is a file with the explicit program. Prints what came
out, and the bytes that it read of each tensor, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.text.parser import parse, read_source
from shardwright.models.architectures import describe
from shardwright.models.checkpoint import CheckpointSource
from shardwright.models.config import read_config
from shardwright.models.weight_map import weight_map

ROWS, CHUNK, STEPS = 4, 6, 3


def generated(folder: Path, file: Path) -> dict[str, Any]:
    """Tokens and logits of prefill and a few steps, and the bytes read by tensor."""
    from shardwright.backends.jax.session import Session, fetch

    program = elaborate(parse(read_source(str(file))))
    mapping = weight_map(describe(read_config(folder)))
    dtypes = {value.name: value.type.dtype for value in program.weights}
    with CheckpointSource(folder, mapping, dtypes) as source:
        session = Session(program, source)
        read = dict(source.bytes_read)
    ids = np.random.default_rng(0).integers(3, 96, (ROWS, CHUNK))
    (logits,) = session.run("prefill", {"ids": ids, "length": np.array([6, 2, 5, 1])})
    tokens, every = [], []
    for _ in range(STEPS):
        every.append(fetch(logits))
        tokens.append(every[-1].argmax(-1).tolist())
        (logits,) = session.run("decode", {"ids": np.array(tokens[-1])[:, None]})
    return {
        "tokens": tokens,
        "logits": np.stack(every).tolist(),
        "pos": session.state["pos"].tolist(),
        "keys": float(np.abs(session.state["k"]).sum()),
        "read": read,
    }


def main(folder: str, program: str, count: str, index: str, port: str) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from shardwright.backends.jax.processes import Processes, joined

    with joined(Processes("127.0.0.1", int(port), int(count), int(index))):
        print(json.dumps(generated(Path(folder), Path(program))))


if __name__ == "__main__":
    main(*sys.argv[1:])
