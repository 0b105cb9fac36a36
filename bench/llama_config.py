"""Sizes of the models that `bench/generation.py` times, and their configs as transformers writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """A Llama of N layers, for B sequences of prompts of L tokens and a cache of T."""

    N: int
    E: int
    F: int
    H: int
    K: int
    D: int
    V: int
    B: int
    L: int
    T: int

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in vars(self).items())

    def config(self, dtype: str = "float32") -> dict[str, Any]:
        """The keys of a config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": dtype,
            "hidden_act": "silu",
            "vocab_size": self.V,
            "hidden_size": self.E,
            "intermediate_size": self.F,
            "num_hidden_layers": self.N,
            "num_attention_heads": self.H,
            "num_key_value_heads": self.K,
            "head_dim": self.D,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


PARTITIONED = Sizes(N=4, E=256, F=1024, H=16, K=8, D=16, V=2048, B=16, L=32, T=256)
"""For eight virtual devices of a CPU: large enough that a step is not only its calls, small enough to compile often."""
TINY = Sizes(N=2, E=32, F=64, H=8, K=2, D=8, V=96, B=8, L=8, T=32)
"""To see that a script runs."""
ONE_GPU = Sizes(N=8, E=4096, F=14336, H=32, K=8, D=128, V=32768, B=16, L=512, T=2048)
"""For decode on one GPU: a quarter of the layers of a model of 8 billion parameters, 4 GB in bf16."""
