"""What llm-analysis and GenZ predict of rows: JSON lines in, JSON lines out. Runs in the environment of `peers.py`.

Both know tensor parallelism over all chips and nothing of where a batch or a weight is gathered, so each row is given
as that. A row is {"model": {...}, "chips", "batch", "prompt", "generated", "before", "phases", "weights"}.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

TPU = {
    "name": "tpu-v4",
    "mem_per_GPU_in_GB": 32,
    "hbm_bandwidth_in_GB_per_sec": 1200,
    "intra_node_bandwidth_in_GB_per_sec": 270,
    "intra_node_min_message_latency": 1e-6,
    "inter_node_bandwidth_in_GB_per_sec": 270,
    "peak_fp16_TFLOPS": 275,
    "peak_i8_TFLOPS": 275,
    "peak_i4_TFLOPS": 275,
}


def llm_analysis(row: dict[str, Any], folder: Path) -> float:
    """Seconds, at full efficiency of compute and memory."""
    from llm_analysis import config as known
    from llm_analysis.analysis import infer

    model = row["model"]
    config = {
        "name": model["name"],
        "num_layers": model["layers"],
        "n_head": model["heads"],
        "num_key_value_heads": model["kv_heads"],
        "hidden_dim": model["hidden"],
        "vocab_size": model["vocab"],
        "max_seq_len": 1 << 20,
        # Its inference knows two matrices, so a gated layer is given as two of half as much again.
        "ffn_embed_dim": model["feedforward"] * 3 // 2 if model["gated"] else model["feedforward"],
    }
    file = folder / "model.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    known.gpu_configs["tpu-v4"] = known.GPUConfig(**TPU)
    made = infer(
        model_name=str(file),
        gpu_name="tpu-v4",
        dtype_name="w8a16e16" if row["weights"] == "int8" else "w16a16e16",
        log_level="ERROR",
        batch_size_per_gpu=row["batch"],
        tp_size=row["chips"],
        seq_len=max(row["before"], 1) if row["phases"] == ["decode"] else row["prompt"],
        num_tokens_to_generate=max(row["generated"], 1),
        flops_efficiency=1.0,
        hbm_memory_efficiency=1.0,
    )
    seconds = {"prefill": made["prefill_latency"], "decode": made["decode_latency"] * row["generated"]}
    return sum(seconds[phase] for phase in row["phases"])


def genz(row: dict[str, Any], _: Path) -> float:
    """Seconds, at its own efficiency of 1."""
    from GenZ import decode_moddeling, prefill_moddeling
    from GenZ.Models import ModelConfig

    model = row["model"]
    config = ModelConfig(
        model=model["name"],
        vocab_size=model["vocab"],
        hidden_size=model["hidden"],
        intermediate_size=model["feedforward"],
        num_ffi=2 if model["gated"] else 1,
        num_decoder_layers=model["layers"],
        num_attention_heads=model["heads"],
        head_dim=model["head_dim"],
        num_key_value_heads=model["kv_heads"],
    )
    system = {"Flops": 275, "Memory_size": 32, "Memory_BW": 1200, "ICN": 270, "real_values": True}
    common: dict[str, Any] = {
        "model": config,
        "batch_size": row["batch"],
        "system_name": system,
        "bits": "int8" if row["weights"] == "int8" else "bf16",
        "tensor_parallel": row["chips"],
    }
    total = 0.0
    if "prefill" in row["phases"]:
        total += prefill_moddeling(input_tokens=row["prompt"], **common)["Latency"] / 1e3
    if "decode" in row["phases"]:
        step = decode_moddeling(input_tokens=row["before"], output_tokens=row["generated"], Bb=1, **common)["Latency"]
        total += row["generated"] * step / 1e3
    return total


def main() -> int:
    """Answers each line with {"llm-analysis": seconds or null, "genz": seconds or null, "errors": {...}}."""
    for line in sys.stdin:
        row = json.loads(line)
        made: dict[str, Any] = {"errors": {}}
        for name, predict in (("llm-analysis", llm_analysis), ("genz", genz)):
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                try:
                    made[name] = float(predict(row, Path(folder)))
                except Exception as error:  # noqa: BLE001 a peer that gives up is a result
                    made[name] = None
                    made["errors"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
        print(json.dumps(made), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
