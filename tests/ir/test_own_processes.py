"""Processes that run a module find it where this one does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shardwright.ir.own_processes import module_command, own_environment


def test_modules_are_found_where_this_process_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("import os; print(os.environ['SAID'])", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    command, environment = module_command("only_here"), own_environment(SAID="found")
    ran = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("found\n", "")
