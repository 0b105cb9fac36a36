"""Processes of Python that run a module of this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def module_command(module: str) -> list[str]:
    """The words that run a module of this package as a program."""
    return [sys.executable, "-m", module]


def own_environment(**variables: str) -> dict[str, str]:
    """This process's environment with these variables, in which modules are found where this process finds them, also
    where it has changed `sys.path`."""
    found = (str(Path(place).absolute()) for place in sys.path)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(found)), **variables}
