"""Configurations of models whose programs are exported, and a way to export them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import Outcome

from shardwright.backends.jax.module_files import import_file

Run = Callable[..., Outcome]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 96,
    "head_dim": 4,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
# Of transformers 5.23: LlamaConfig.base_model_tp_plan.
TP_PLAN = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
}
PLAIN = """mesh x=2 y=4
dim B=16 E=32 F=64

weights {
  w_in: EF_y
  w_out: F_yE
}

func f(a: B_xE) -> B_xE_y {
  h = relu(a @ w_in)
  o = h @ w_out
  return o
}
"""


def exported(shardwright: Run, path: Path, to: str, name: str) -> Any:
    out = path.with_name(name)
    done = shardwright("export", path, "--as", to, "-o", out)
    assert done.status == 0, done.err
    return import_file(out) if name.endswith(".py") else out.read_text()
