"""All that the answers of a run depend on, as a file beside its output keeps it.

What does not change answers but by rounding is left out: layouts of the presets, meshes, batches, policies, schedules,
caps of memory, numbers of processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shardwright.ir.whole_files import whole_file
from shardwright.models.config import config_path
from shardwright.models.safetensors_files import file_paths
from shardwright.serving.generation.file_digests import digest_of, file_digests
from shardwright.serving.generation.prompts import Prompt
from shardwright.serving.generation.settings import GenerationSettings

FORMAT = "shardwright settings 1"
SUFFIX = ".settings.json"

_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "spiece.model")
_SHOWN = 60


@dataclass(frozen=True)
class RunSettings:
    """The settings that a run's answers depend on: `named` values, such as "--seed": 0, each a value of JSON, and the
    contents of `files`, by what each is to the run."""

    named: Mapping[str, Any]
    files: Mapping[str, Path]


def run_settings(
    command: str, checkpoint: str | Path, prompts: Sequence[Prompt], settings: GenerationSettings, **more: Any
) -> RunSettings:
    """The settings of a command; `more` are its further options that change answers, by name, with _ for -."""
    folder = Path(checkpoint)
    lines = json.dumps([[prompt.index, prompt.tokens, prompt.keys] for prompt in prompts])
    named = {
        "the command": command,
        "the set of prompts": f"{len(prompts)}, digest {digest_of(lines.encode('utf-8', 'surrogatepass'))[:12]}",
        "--max-new-tokens": settings.max_new_tokens,
        "--temperature": settings.temperature,
        "--top-k": settings.top_k,
        "--top-p": settings.top_p,
        "--seed": settings.seed,
        "--samples": settings.samples,
        "the list of stop tokens": sorted(settings.stop_tokens),
        "--logprobs": settings.logprobs,
        **{f"--{name.replace('_', '-')}": value for name, value in more.items()},
    }
    tokenizer = sorted({path for pattern in _TOKENIZER for path in folder.glob(pattern) if path.is_file()})
    files = [config_path(checkpoint), *tokenizer, *file_paths(folder)]
    return RunSettings(named, {f"{path.name} of the checkpoint": path for path in files})


def settings_path(output: str) -> Path:
    """Where the settings of a run lie, beside its output."""
    return Path(output + SUFFIX)


@dataclass(frozen=True)
class KeptSettings:
    """The settings in the file beside an output: values by name, the digest of each file by its name, and what is known
    of files by their whole names (`file_digests`)."""

    named: Mapping[str, Any]
    digests: Mapping[str, str]
    known: Mapping[str, Any]

    def differences(self, other: KeptSettings) -> list[str]:
        """The differences in `other`, a sentence each."""
        said: list[str] = []
        for name in {**self.named, **other.named}:
            then, now = self.named.get(name), other.named.get(name)
            if then != now and not (_is_absent(then) and _is_absent(now)):
                said.append(f"{name} was {_said(then)}, and is {_said(now)} now")
        for name in {**self.digests, **other.digests}:
            then, now = self.digests.get(name), other.digests.get(name)
            if then != now:
                change = "is new" if then is None else "is gone" if now is None else "has other contents than it had"
                said.append(f"{name} {change}")
        return said

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all."""
        text = json.dumps({"format": FORMAT, "settings": self.named, "files": self.digests, "known": self.known})
        with whole_file(path) as file:
            file.write(text.encode())


def kept_settings(settings: RunSettings, before: KeptSettings | None) -> KeptSettings:
    """The settings with the digests of their files, which are read where those kept `before` do not stand for them."""
    known = file_digests(settings.files.values(), {} if before is None else before.known)
    digests = {name: known[str(path.resolve())]["digest"] for name, path in settings.files.items()}
    # As JSON gives them again, so that they compare alike.
    return KeptSettings(json.loads(json.dumps(settings.named)), digests, known)


def read_settings(path: Path) -> KeptSettings | None:
    """The settings in the file; None where there is none that was written by this module."""
    try:
        value: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    keys = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    tables = [keys.get(name) for name in ("settings", "files", "known")]
    if keys.get("format") != FORMAT or not all(isinstance(table, dict) for table in tables):
        return None
    return KeptSettings(*cast("list[dict[str, Any]]", tables))


def _is_absent(value: object) -> bool:
    return value is None or value == ""


def _said(value: object) -> str:
    if _is_absent(value):
        return "not given"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
