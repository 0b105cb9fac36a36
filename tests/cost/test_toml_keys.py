"""Every key of chip and machine files: misspelt, moved, or of another kind, it is refused where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardwright.cost.hardware.chips import load_chip, load_machine
from shardwright.ir.diagnostics import Diagnostic, DiagnosticError

TORUS = """name = "mine"
memory = "32 GB"
memory_bytes_per_s = 1e12
vector_ops_per_s = 1e12
matmul_tile = [8, 128, 128]
usd_per_hour = 3.2
inherits = "tpu-v4"
expected_error = 0.2
[flops_per_s]
bf16 = 2e14
int8 = 2e14
[interconnect]
kind = "torus"
pod = [4, 4, 8]
link_bytes_per_s = 4.5e10
hop_latency_s = 1e-6
wrap_multiple_of = 4
wrap_needs_every_axis = true
slices = [[2, 2, 1], [2, 2, 2]]
slice_multiple_of = 4
[host_link]
to_device_bytes_per_s = 1e10
from_device_bytes_per_s = "10 GiB/s"
[calibrated]
compute_efficiency = 0.9
memory_efficiency = 0.8
"""

MACHINE = """name = "here"
sustained_matmul = 0.5
usd_per_hour = 1
[chip]
name = "own"
memory = "24 GB"
memory_bytes_per_s = 9e11
[chip.flops_per_s]
f16 = 1e14
[chip.interconnect]
kind = "switched"
[[chip.interconnect.levels]]
name = "node"
units = 4
egress_bytes_per_s = 1e10
latency_s = 1e-6
messages = "direct"
[[chip.interconnect.levels]]
name = "network"
egress_bytes_per_s = 1e9
latency_s = 1e-5
messages = "direct"
[host]
memory = "208 GiB"
flops_per_s = 1e10
memory_bytes_per_s = 1.28e11
[disk]
memory = "1500 GiB"
read_bytes_per_s = "2 GiB/s"
write_bytes_per_s = "1 GiB/s"
read_limit_bytes_per_s = 2.65e9
[host_link]
to_device_bytes_per_s = 1e10
from_device_bytes_per_s = 1e10
[measured]
disk_read_bytes_per_s = 1e9
[runtimes.flexgen]
matmul = 0.5
step_overhead_s = 0.1
"""

FILES: dict[str, tuple[str, Callable[[str], object]]] = {
    "chip": (TORUS, load_chip),
    "machine": (MACHINE, load_machine),
}

OTHER_KINDS = ("true", "-1", "nan", "inf", "[]", "[[]]", "{}", "{ a = 1 }", '""', '[1, "a"]', "2020-01-01", "9" * 400)
TAKEN = {("wrap_needs_every_axis", "true"), ("slices", "[]")}

KEY = re.compile(r"(\w+) = (.*)")
HEADER = re.compile(r"(\[+)([\w.]+)(\]+)")


def keys(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines()):
        if found := KEY.fullmatch(line):
            yield number, found[1]


def changed(text: str, number: int, line: str) -> str:
    lines = text.splitlines()
    return "\n".join([*lines[:number], line, *lines[number + 1 :]])


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[str, str], Diagnostic]:
    """The first thing that is said of a file."""

    def load(kind: str, text: str) -> Diagnostic:
        file = tmp_path / "own.toml"
        file.write_text(text)
        with pytest.raises(DiagnosticError) as caught:
            FILES[kind][1](str(file))
        return caught.value.diagnostics[0]

    return load


@pytest.mark.parametrize("kind", FILES)
def test_the_files_are_right(kind: str, tmp_path: Path) -> None:
    text, load = FILES[kind]
    (tmp_path / "own.toml").write_text(text)
    load(str(tmp_path / "own.toml"))


@pytest.mark.parametrize("kind", FILES)
def test_misspelt_keys_have_the_nearest_named(kind: str, refused: Callable[[str, str], Diagnostic]) -> None:
    text = FILES[kind][0]
    for number, key in keys(text):
        line = text.splitlines()[number].replace(key, f"{key}x", 1)
        said = refused(kind, changed(text, number, line))
        assert (said.code, said.span.line) == ("unknown-key", number + 1)
        assert said.message.startswith(f"unknown key `{key}x`")
        assert said.notes[0].message == f"did you mean {key}?"


@pytest.mark.parametrize("kind", FILES)
def test_no_other_key_is_blamed_for_a_missing_one(kind: str, tmp_path: Path) -> None:
    """However alike they are, as `read_bytes_per_s` and `write_bytes_per_s`."""
    text, load = FILES[kind]
    file, blamed = tmp_path / "own.toml", list[str]()
    for number, key in keys(text):
        file.write_text(changed(text, number, ""))
        try:
            load(str(file))
        except DiagnosticError as error:
            blamed += [key for said in error.diagnostics if said.code == "unknown-key"]
    assert blamed == []


@pytest.mark.parametrize("kind", FILES)
def test_a_key_that_there_is_nowhere(kind: str, refused: Callable[[str, str], Diagnostic]) -> None:
    """At the top and in each table."""
    text = FILES[kind][0]
    for number, line in enumerate(text.splitlines()):
        if number == 0 or HEADER.fullmatch(line):
            said = refused(kind, changed(text, number, f"{line}\nzzz = 1"))
            assert (said.code, said.span.line) == ("unknown-key", number + 2)
            assert said.message.startswith("unknown key `zzz`")


@pytest.mark.parametrize("kind", FILES)
def test_tables_that_there_are_nowhere(kind: str, refused: Callable[[str, str], Diagnostic]) -> None:
    text = FILES[kind][0]
    for number, line in enumerate(text.splitlines()):
        if found := HEADER.fullmatch(line):
            said = refused(kind, changed(text, number, f"{found[1]}{found[2]}x{found[3]}"))
            assert said.code in {"unknown-key", "missing-key"}, line


@pytest.mark.parametrize("kind", FILES)
def test_values_of_another_kind(kind: str, refused: Callable[[str, str], Diagnostic]) -> None:
    text = FILES[kind][0]
    for number, key in keys(text):
        for value in OTHER_KINDS:
            if (key, value) not in TAKEN:
                said = refused(kind, changed(text, number, f"{key} = {value}"))
                assert said.code == "bad-value", (key, value)
                assert said.message.startswith(f"`{key}` must "), (key, value)
