"""The measurements of an offloaded run: tokens, times, and bytes of each memory and of each link."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """The measurements of a run. Tokens per second are of new tokens, those in decode over the passes after the first
    of each block; in the diagonal schedule, `mixed`, prefill and decode of different batches share each pass, and there
    is no such number. `padded_tokens` are all that were computed, positions of padding and of ended rows among them;
    the padded throughput is of these, the actual one of tokens of prompts and texts (Sheng et al. 2023, section 6.1 and
    table 25). `ended_tokens` are those of texts that have ended. `read_bytes` are those read of the checkpoint's
    files, each time that they are. `imports_bytes` are resident before the run takes anything, `resident_bytes` the
    most since the process began, None where the operating system does not say."""

    prompts: int = 0
    new_tokens: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    prompt_tokens: int = 0
    padded_tokens: int = 0
    ended_tokens: int = 0
    mixed: bool = False
    peak_bytes: dict[str, int] = field(default_factory=dict[str, int])
    moved_bytes: dict[str, int] = field(default_factory=dict[str, int])
    read_bytes: int = 0
    imports_bytes: int | None = None
    resident_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        decoding = self.seconds - self.prefill_seconds
        decode: float | None = self.decode_tokens / decoding if decoding > 0 else 0.0
        whole = self.prompt_tokens + self.new_tokens
        return {
            "prompts": self.prompts,
            "new_tokens": self.new_tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.new_tokens / self.seconds if self.seconds else 0.0,
            "prefill_seconds": None if self.mixed else self.prefill_seconds,
            "decode_tokens_per_second": None if self.mixed else decode,
            "actual_throughput": whole / self.seconds if self.seconds else 0.0,
            "padded_throughput": self.padded_tokens / self.seconds if self.seconds else 0.0,
            "peak_bytes": self.peak_bytes,
            "moved_bytes": self.moved_bytes,
            "read_bytes": self.read_bytes,
            "imports_bytes": self.imports_bytes,
            "resident_bytes": self.resident_bytes,
        }
