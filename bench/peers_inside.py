"""The part of `bench/peers.py` that runs among the peers: rows as JSON in, seconds or what went wrong out."""

# pyright: basic

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any


def llm_analysis(row: dict[str, Any]) -> float:
    from llm_analysis.analysis import LLMAnalysis
    from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig

    # It knows two matrices in a feedforward layer: of half as much more they have as many parameters as three.
    model = ModelConfig(
        "model", row["layers"], row["heads"], row["hidden"], row["vocab"], 1 << 16, row["kv_heads"],
        ffn_embed_dim=row["feedforward"] * 3 // 2 if row["gated"] else row["feedforward"],
    )  # fmt: skip
    chip = GPUConfig("chip", row["memory"] / 1e9, row["bandwidth"] / 1e9, row["links"] / 1e9, 1e-6, row["flops"] / 1e12,
                     row["flops"] / 1e12)  # fmt: skip
    dtype = DtypeConfig("w", row["bits"], 16, 16)
    analysis = LLMAnalysis(model, chip, dtype, ParallelismConfig(row["chips"]), flops_efficiency=1.0,
                           hbm_memory_efficiency=1.0)  # fmt: skip
    made = analysis.inference(row["batch"], row["before"], max(1, row["generated"]))
    seconds = {"prefill": made["prefill_latency"], "decode": made["total_decode_latency"]}
    return sum(seconds[phase] for phase in row["phases"])


def genz(row: dict[str, Any]) -> float:
    from GenZ import ModelConfig, decode_moddeling, prefill_moddeling

    model = ModelConfig(
        model="model", vocab_size=row["vocab"], hidden_size=row["hidden"], intermediate_size=row["feedforward"],
        num_ffi=2 if row["gated"] else 1, num_decoder_layers=row["layers"], num_attention_heads=row["heads"],
        head_dim=row["head_dim"], num_key_value_heads=row["kv_heads"],
    )  # fmt: skip
    system = {"Flops": row["flops"] / 1e12, "Memory_size": row["memory"] / 1e9, "Memory_BW": row["bandwidth"] / 1e9,
              "ICN": row["links"] / 1e9, "real_values": True}  # fmt: skip
    common = {
        "model": model, "batch_size": row["batch"], "system_name": system, "tensor_parallel": row["chips"],
        "bits": "int8" if row["bits"] == 8 else "bf16",
    }  # fmt: skip
    seconds = 0.0
    if "prefill" in row["phases"]:
        seconds += prefill_moddeling(input_tokens=row["before"], **common)["Latency"] / 1e3
    if "decode" in row["phases"]:
        step = decode_moddeling(input_tokens=row["before"], Bb=1, output_tokens=row["generated"], **common)["Latency"]
        seconds += row["generated"] * step / 1e3
    return seconds


PEERS: dict[str, Callable[[dict[str, Any]], float]] = {"llm-analysis": llm_analysis, "genz-llm": genz}


def attempt(peer: Callable[[dict[str, Any]], float], row: dict[str, Any]) -> dict[str, Any]:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return {"seconds": peer(row)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a peer says is what is printed
        return {"gives_up": " ".join(f"{type(error).__name__}: {error}".split())[:110]}


if __name__ == "__main__":
    print(json.dumps([{name: attempt(peer, row) for name, peer in PEERS.items()} for row in json.load(sys.stdin)]))
