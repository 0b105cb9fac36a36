"""The tokens after which a text ends, as a checkpoint names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
from shardwright.ir.json_texts import json_of, shown
from shardwright.ir.settings import require_whole

FILE = "generation_config.json"


def stop_tokens(folder: str | Path, config: Mapping[str, Any]) -> frozenset[int]:
    """`eos_token_id` of generation_config.json or, where that has none, of the config: one id, several, or none.

    Raises where it is neither, or generation_config.json is no JSON object.
    """
    path = Path(folder) / FILE
    if path.is_file():
        with located(Source(str(path), "")):
            keys = _object(path)
            if keys.get("eos_token_id") is not None:
                return _ids(keys["eos_token_id"])
    with located(Source(str(Path(folder) / "config.json"), "")):
        return _ids(config.get("eos_token_id"))


def asked_for(tokens: Iterable[int], vocab: int) -> frozenset[int]:
    """Stop tokens that a user gives. Raises where the model has no such token, since no text would end there."""
    given = frozenset(tokens)
    for token in given:
        require_whole("a stop token", token)
    for token in sorted(given):
        if not 0 <= token < vocab:
            with located(Source("stop token", "")):
                raise fault(
                    "bad-stop-token",
                    f"{token} is no token of the model, which has 0 to {vocab - 1}",
                    NOWHERE,
                    "without it texts end at the checkpoint's own stop tokens, or after so many new ones",
                )
    return given


def _object(path: Path) -> dict[str, Any]:
    value = json_of(path, path.read_bytes(), "bad-config")
    if not isinstance(value, dict):
        raise fault("bad-config", f"this is {shown(value)}, not an object")
    return cast("dict[str, Any]", value)


def _ids(value: object) -> frozenset[int]:
    listed = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    ids = [item for item in listed if isinstance(item, int) and not isinstance(item, bool)]
    if len(ids) != len(listed):
        raise fault("bad-config", f"eos_token_id is {shown(cast('object', value))}, not a token id or a list of them")
    return frozenset(ids)
