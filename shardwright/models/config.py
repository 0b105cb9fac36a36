"""A checkpoint's config.json: finding it, reading it, and taking checked values out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shardwright.ir.diagnostics import DiagnosticError, Source, fault, located
from shardwright.ir.json_texts import json_of, shown

FILE = "config.json"


@dataclass(frozen=True)
class Config:
    """The keys of a config.json. The getters raise a `DiagnosticError` that names the key where a value is wrong.

    A key that holds null counts as absent, as it does in `transformers`.
    """

    keys: Mapping[str, Any]

    def whole(self, key: str, default: int | None = None, *, of: str = "") -> int:
        """A whole number from 1 up; without a default the key must be there."""
        return self._count(key, default, 1, of)

    def natural(self, key: str, default: int) -> int:
        """A whole number from 0 up."""
        return self._count(key, default, 0)

    def number(self, key: str, default: float | None = None, *, of: str = "") -> float:
        """A finite number above 0; without a default the key must be there."""
        return float(self._value(key, default, lambda v: _is_number(v) and v > 0, "a number above 0", of))

    def whole_or_zero(self, key: str, default: int) -> int:
        """A whole number from 1 up, or 0 where null stands for none: only a key that is absent has a default."""
        return 0 if self._null(key) else self.whole(key, default)

    def number_or_zero(self, key: str, default: float) -> float:
        """A finite number above 0, or 0 where null stands for none: only a key that is absent has a default."""
        return 0.0 if self._null(key) else self.number(key, default)

    def _null(self, key: str) -> bool:
        return key in self.keys and self.keys[key] is None

    def numbers(self, key: str, count: int, *, of: str = "") -> tuple[float, ...]:
        """So many finite numbers above 0; the key must be there."""

        def listed(value: Any) -> bool:
            return isinstance(value, list) and len(cast("list[object]", value)) == count

        value = self._value(key, None, listed, f"a list of {count} numbers", of)
        return tuple(Config({key: each}).number(key, of=of) for each in value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        return self._value(key, default, lambda v: isinstance(v, bool), "true or false")

    def word(self, key: str, default: str) -> str:
        """A text."""
        return self._value(key, default, lambda v: isinstance(v, str), "a text")

    def table(self, key: str) -> Config:
        """The keys of an object inside, none where it is absent."""
        return Config(self._value(key, {}, lambda v: isinstance(v, dict), "an object"))

    def _value(self, key: str, default: Any, is_right: Callable[[Any], bool], wanted: str, of: str = "") -> Any:
        """The value of a key, or the default where it is absent; where that is None too it must be there."""
        value = self.keys.get(key)
        if value is None:
            if default is None:
                raise fault("bad-config", f"the config has no {of}{key}")
            return default
        if not is_right(value):
            raise self.wrong(f"{of}{key}", value, wanted)
        return value

    def _count(self, key: str, default: int | None, least: int, of: str = "") -> int:
        value = self._value(key, default, lambda v: _is_whole(v) and v >= least, f"a whole number from {least} up", of)
        if value >= _TOO_LARGE:
            raise self.wrong(f"{of}{key}", value, "below 1e12")
        return value

    def refuse(self, key: str, what: str) -> None:
        """Raises where a key that says what is not supported is true."""
        if self.flag(key, False):
            raise fault("unsupported-config", f"{what} not supported ({key})")

    def wrong(self, key: str, value: object, wanted: str) -> DiagnosticError:
        return fault("bad-config", f"{key} is {shown(value)} in the config, not {wanted}")


_TOO_LARGE = 10**12
"""No size of a model is as large."""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def config_path(checkpoint: str | Path) -> Path:
    """The config.json of a folder, or the file itself. Raises where there is none."""
    path = Path(checkpoint)
    with located(Source(str(checkpoint), "")):
        if path.is_dir():
            if not (path / FILE).is_file():
                raise fault(
                    "no-config",
                    f"the folder holds no {FILE}",
                    *_nowhere("a checkpoint is a folder with config.json and, for its weights, *.safetensors"),
                )
            return path / FILE
        if not path.exists():
            raise fault(
                "no-file",
                "there is no such file or folder",
                *_nowhere("name a checkpoint on this machine: a folder with config.json, or that file"),
            )
        return path


def read_config(checkpoint: str | Path) -> Config:
    """The config of a checkpoint folder, or of a config.json. Raises a `DiagnosticError` with the file's name."""
    path = config_path(checkpoint)
    with located(Source(str(path), "")):
        value = json_of(path, path.read_bytes(), "bad-config")
        if not isinstance(value, dict):
            raise fault("bad-config", f"the config is {shown(value)}, not an object")
        return Config(cast("dict[str, Any]", value))


def _nowhere(note: str) -> tuple[Any, str]:
    from shardwright.ir.diagnostics import NOWHERE

    return NOWHERE, note
