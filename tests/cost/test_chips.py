"""Chips and machines load as their sources say, and malformed files are refused at the line at fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.cost.hardware.chips import chip_names, chip_text, load_chip, load_machine, machine_names
from shardwright.cost.hardware.constants import DATASHEET
from shardwright.cost.hardware.expected_errors import error_in_words
from shardwright.cost.hardware.networks import Switched, Torus
from shardwright.ir.diagnostics import DiagnosticError

GIB = 2**30

# name, memory, memory B/s, bf16 FLOP/s, int8 OP/s
FIGURES = [
    ("tpu-v4", 32 * GIB, 1.2e12, 2.75e14, 2.75e14),
    ("tpu-v3", 32 * GIB, 9.0e11, 1.4e14, 1.4e14),
    ("tpu-v5e", 16 * GIB, 8.1e11, 1.97e14, 3.94e14),
    ("tpu-v5p", 96e9, 2.8e12, 4.59e14, 9.18e14),
    ("tpu-v6e", 32e9, 1.6e12, 9.20e14, 1.84e15),
    ("a100-40g", 40e9, 1.555e12, 3.12e14, 6.24e14),
    ("a100-80g", 80e9, 2.0e12, 3.12e14, 6.24e14),
    ("h100", 80e9, 3.35e12, 9.9e14, 2.0e15),
    ("h200", 141e9, 4.8e12, 9.9e14, 2.0e15),
    ("b200", 192e9, 8.0e12, 2.3e15, 4.5e15),
    ("t4", 16 * GIB, 3.0e11, 6.5e13, 1.3e14),
    ("rtx-3090", 24 * GIB, 9.36e11, 7.1e13, 2.84e14),
]


def test_every_published_chip_is_there() -> None:
    assert chip_names() == tuple(sorted(row[0] for row in FIGURES))
    assert machine_names() == ("rtx-3090", "t4")


@pytest.mark.parametrize(("name", "memory", "bandwidth", "bf16", "int8"), FIGURES)
def test_figures(name: str, memory: float, bandwidth: float, bf16: float, int8: float) -> None:
    chip = load_chip(name)
    assert chip.name == name
    assert (chip.memory_bytes + chip.reserved_bytes, chip.memory_bytes_per_s) == (memory, bandwidth)
    assert (chip.rate("bf16"), chip.rate("int8")) == (bf16, int8)
    assert {"memory", "flops_per_s", "links"} <= set(chip.sources)


@pytest.mark.parametrize(
    ("name", "link", "pod"),
    [
        ("tpu-v4", 4.5e10, (16, 16, 16)),
        ("tpu-v3", 1e11, (32, 32)),
        ("tpu-v5e", 4.5e10, (16, 16)),
        ("tpu-v5p", 9e10, (16, 20, 28)),
        ("tpu-v6e", 9e10, (16, 16)),
    ],
)
def test_tpu_links(name: str, link: float, pod: tuple[int, ...]) -> None:
    torus = load_chip(name).interconnect
    assert isinstance(torus, Torus)
    assert (torus.link_bytes_per_s, torus.pod, torus.hop_latency_s) == (link, pod, 1e-6)


@pytest.mark.parametrize(
    ("name", "egress"),
    [
        ("a100-40g", [3.0e11, 5.0e10]),
        ("a100-80g", [3.0e11, 8 * 2.5e10]),
        ("h100", [4.5e11, 4.0e11]),
        ("h200", [4.5e11, 4.0e11]),
        ("b200", [9.0e11, 4.0e11]),
        ("t4", [1.2e10]),
        ("rtx-3090", [2.4e10]),
    ],
)
def test_gpu_links(name: str, egress: list[float]) -> None:
    switched = load_chip(name).interconnect
    assert isinstance(switched, Switched)
    assert [level.egress_bytes_per_s for level in switched.levels] == egress
    assert switched.levels[0].units == 8
    assert [level.units for level in switched.levels[1:]] == [None] * (len(egress) - 1)


def test_wraparound_is_per_cube_on_v4_and_per_axis_on_v5e() -> None:
    v4, v5e = load_chip("tpu-v4").interconnect, load_chip("tpu-v5e").interconnect
    assert isinstance(v4, Torus)
    assert isinstance(v5e, Torus)
    assert v4.wraps((4, 4, 8)) == (True, True, True)
    assert v4.wraps((2, 2, 4)) == (False, False, False)  # optical switches close whole cubes only
    assert v5e.wraps((8, 16)) == (False, True)
    assert v4.slices_of(64) == ((4, 4, 4),)
    assert v4.slices_of(256) == ((4, 8, 8), (4, 4, 16))
    assert v4.slices_of(6) == ()
    assert v5e.slices_of(32) == ((4, 8),)


def test_flexgens_machine() -> None:
    machine = load_machine("t4")
    assert machine.chip is load_chip("t4")
    assert machine.host.memory_bytes == 208 * GIB
    assert machine.disk is not None
    assert machine.disk.memory_bytes == 1500 * GIB
    assert (machine.disk.read_bytes_per_s, machine.disk.write_bytes_per_s) == (2 * GIB, GIB)
    assert machine.host_link.to_device_bytes_per_s == 12.89 * GIB
    assert load_machine("rtx-3090").host.memory_bytes == 125 * GIB


def message(name: str) -> str:
    with pytest.raises(DiagnosticError) as caught:
        load_chip(name)
    return caught.value.render()


@pytest.mark.parametrize(
    ("parent", "heirs"),
    [("a100-80g", ("a100-40g", "h100", "h200", "b200")), ("tpu-v4", ("tpu-v5e", "tpu-v5p", "tpu-v6e"))],
)
def test_constants_are_inherited_within_a_family(parent: str, heirs: tuple[str, ...]) -> None:
    own = load_chip(parent)
    assert own.priced_by() == "calibrated"
    for heir in map(load_chip, heirs):
        assert heir.calibrated is None
        assert heir.constants == (own.family or own.calibrated)
        assert heir.priced_by() == "inherited"
        assert heir.priced_by(DATASHEET) == "datasheet"
        assert "inherits" in heir.sources


def test_chips_of_no_measured_family_have_their_datasheet() -> None:
    for name in ("tpu-v3", "t4", "rtx-3090"):
        assert load_chip(name).constants == DATASHEET
    assert error_in_words(load_chip("t4"), "datasheet") == (
        "measured times up to 2.5 times these: t4 is priced by its datasheet"
    )


def test_constants_are_inherited_from_a_chip_that_has_them(tmp_path: Path) -> None:
    text = chip_text("h100").replace('inherits = "a100-80g"\n', 'inherits = "h200"\n')
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(DiagnosticError) as refused:
        load_chip(str(path))
    assert "`inherits` must name a chip with constants of its own, which h200 has not" in str(refused.value)


def test_unknown_names() -> None:
    assert message("tpu-v4p") == (
        "<program>: error: there is no chip `tpu-v4p` [unknown-chip]\n"
        "note: did you mean tpu-v4?\n"
        "note: chips: a100-40g, a100-80g, b200, h100, h200, rtx-3090, t4, tpu-v3, tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e; "
        "or the path of a chip file, NAME.toml"
    )
    with pytest.raises(DiagnosticError) as caught:
        load_machine("t5")
    assert caught.value.render() == (
        "<program>: error: there is no machine `t5` [unknown-machine]\n"
        "note: machines: rtx-3090, t4; or the path of a machine file, NAME.toml"
    )


def test_no_rate() -> None:
    with pytest.raises(DiagnosticError) as caught:
        load_chip("tpu-v4").rate("f16")
    assert caught.value.render() == (
        "<program>: error: tpu-v4 has no rate for matrix products in f16 [no-rate]\n"
        "note: it has rates for bf16, int8, f32; convert the operands to one of these"
    )


GOOD = """\
name = "mine"
memory = "1 GiB"
memory_bytes_per_s = 1e9

[flops_per_s]
bf16 = 1e12

[interconnect]
kind = "torus"
pod = [4, 4]
link_bytes_per_s = 1e9
hop_latency_s = 1e-6
slices = [[1, 1], [4, 4]]
"""

LEVELS = """\
[interconnect]
kind = "switched"

[[interconnect.levels]]
name = "node"
units = 8
egress_bytes_per_s = 1e9
latency_s = 1e-6
messages = "direct"

[[interconnect.levels]]
name = "network"
egress_bytes_per_s = 1e9
latency_s = 1e-6
messages = "tree"
"""


@pytest.fixture
def chip_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("mine.toml")


def test_a_file_of_ones_own(chip_file: Path) -> None:
    chip_file.write_text(GOOD)
    chip = load_chip("mine.toml")
    assert (chip.name, chip.memory_bytes, chip.usd_per_hour, chip.host_link) == ("mine", GIB, None, None)
    chip_file.write_text(GOOD[: GOOD.index("[interconnect]")] + LEVELS)
    switched = load_chip(str(chip_file.resolve())).interconnect
    assert isinstance(switched, Switched)
    assert [level.name for level in switched.levels] == ["node", "network"]


def test_a_file_that_reserves_nothing_and_begins_with_a_mark_of_its_encoding(chip_file: Path) -> None:
    text = GOOD.replace('"1 GiB"', '"1 GiB"\nreserved = "0 GB"')
    chip_file.write_text(text, encoding="utf-8-sig")
    chip = load_chip("mine.toml")
    assert (chip.memory_bytes, chip.reserved_bytes) == (GIB, 0)
    assert chip_text("mine.toml").startswith('name = "mine"\n')


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "memory_bytes_per_s = 1e9",
            "",
            'mine.toml:1:1: error: the file lacks the key `memory_bytes_per_s` [missing-key]\n  name = "mine"\n  ^',
        ),
        (
            "memory_bytes_per_s = 1e9",
            "memory_bytes_per_s = 1e9\nmemmory = 3",
            "mine.toml:4:1: error: unknown key `memmory` [unknown-key]\n"
            "  memmory = 3\n"
            "  ^^^^^^^\n"
            "note: did you mean memory?",
        ),
        (
            'memory = "1 GiB"',
            "",
            'mine.toml:1:1: error: the file lacks the key `memory` [missing-key]\n  name = "mine"\n  ^',
        ),
        (
            "memory_bytes_per_s = 1e9",
            "memory_byte_per_s = 1e9",
            "mine.toml:3:1: error: unknown key `memory_byte_per_s` [unknown-key]\n"
            "  memory_byte_per_s = 1e9\n"
            "  ^^^^^^^^^^^^^^^^^\n"
            "note: did you mean memory_bytes_per_s?",
        ),
        (
            "hop_latency_s = 1e-6",
            "",
            "mine.toml:8:1: error: [interconnect] lacks the key `hop_latency_s` [missing-key]\n"
            "  [interconnect]\n"
            "  ^^^^^^^^^^^^^^",
        ),
        (
            "hop_latency_s = 1e-6",
            "hop_latency_s = 1e-6\nwrap = true",
            "mine.toml:13:1: error: unknown key `wrap` in [interconnect] [unknown-key]\n"
            "  wrap = true\n"
            "  ^^^^\n"
            "note: did you mean wrap_multiple_of?",
        ),
        (
            '"1 GiB"',
            "1e9",
            'mine.toml:2:1: error: `memory` must be a size with its unit, such as "32 GiB" (2^30 bytes each) or '
            '"80 GB" (10^9) [bad-value]\n'
            "  memory = 1e9\n"
            "  ^^^^^^",
        ),
        (
            '"1 GiB"',
            '"0 GiB"',
            'mine.toml:2:1: error: `memory` must be a size above 0 [bad-value]\n  memory = "0 GiB"\n  ^^^^^^',
        ),
        (
            '"1 GiB"',
            '"1 GiB"\nreserved = "1.1 GB"',
            "mine.toml:3:1: error: `reserved` must be less than `memory`: it is the part that programs do not get"
            ' [bad-value]\n  reserved = "1.1 GB"\n  ^^^^^^^^',
        ),
        (
            "bf16 = 1e12",
            "bf16 = -1",
            "mine.toml:6:1: error: `bf16` must be a number above 0 [bad-value]\n  bf16 = -1\n  ^^^^",
        ),
        (
            "bf16 = 1e12",
            "bf16 = 1e-320",
            "mine.toml:6:1: error: `bf16` must be a number from 1e-30 to 1e+30 [bad-value]\n  bf16 = 1e-320\n  ^^^^",
        ),
        (
            "bf16 = 1e12",
            "bf16 = nan",
            "mine.toml:6:1: error: `bf16` must be a number above 0 [bad-value]\n  bf16 = nan\n  ^^^^",
        ),
        (
            "bf16 = 1e12",
            "bfloat16 = 1e12",
            "mine.toml:6:1: error: unknown key `bfloat16` in [flops_per_s] [unknown-key]\n"
            "  bfloat16 = 1e12\n"
            "  ^^^^^^^^\n"
            "note: did you mean bf16?",
        ),
        (
            "bf16 = 1e12\n",
            "",
            "mine.toml:5:1: error: `flops_per_s` must give at least one rate, such as `bf16 = 2.75e14` [bad-value]\n"
            "  [flops_per_s]\n"
            "  ^^^^^^^^^^^^^",
        ),
        (
            '"torus"',
            '"tours"',
            "mine.toml:9:1: error: `kind` must be one of torus, switched [bad-value]\n"
            '  kind = "tours"\n'
            "  ^^^^\n"
            "note: did you mean torus?",
        ),
        (
            "[[1, 1], [4, 4]]",
            "[[1, 1], [4, 8]]",
            "mine.toml:13:1: error: `slices` must fit into the pod [4, 4]; [4, 8] does not [bad-value]\n"
            "  slices = [[1, 1], [4, 8]]\n"
            "  ^^^^^^",
        ),
        (
            "[[1, 1], [4, 4]]",
            "[[1, 1, 1]]",
            "mine.toml:13:1: error: `slices` must have as many axes as the pod, 2; [1, 1, 1] has 3 [bad-value]\n"
            "  slices = [[1, 1, 1]]\n"
            "  ^^^^^^",
        ),
        (
            "slices = [[1, 1], [4, 4]]",
            "",
            "mine.toml:10:1: error: `pod` must come with `slices`, a list of shapes, or with `slice_multiple_of` "
            "[bad-value]\n"
            "  pod = [4, 4]\n"
            "  ^^^",
        ),
        (
            "pod = [4, 4]",
            "pod = [4, true]",
            "mine.toml:10:1: error: `pod` must give a shape as whole numbers, 1 or more, such as [4, 4, 4] "
            "[bad-value]\n"
            "  pod = [4, true]\n"
            "  ^^^",
        ),
        (
            "slices = [[1, 1], [4, 4]]",
            "slice_multiple_of = 1",
            "mine.toml:10:1: error: `pod` must have at most 10000 slices of multiples of 1 [bad-value]\n"
            "  pod = [4000000, 4]\n"
            "  ^^^",
        ),
        (
            "bf16 = 1e12",
            f"bf16 = {10**400}",
            f"mine.toml:6:1: error: `bf16` must be a number above 0 [bad-value]\n  bf16 = 1{'0' * 152}\n  ^^^^",
        ),
        (
            "bf16 = 1e12",
            f"bf16 = 1{'0' * 5000}",
            'mine.toml:1:1: error: a number has too many digits [toml-syntax]\n  name = "mine"\n  ^',
        ),
        (
            "[flops_per_s]\nbf16 = 1e12",
            "flops_per_s = 3",
            "mine.toml:5:1: error: `flops_per_s` must be a table, [flops_per_s] [bad-value]\n"
            "  flops_per_s = 3\n"
            "  ^^^^^^^^^^^",
        ),
        (
            "pod = [4, 4]",
            "pod = [4, 4",
            "mine.toml:11:1: error: this is not TOML: unclosed array [toml-syntax]\n  link_bytes_per_s = 1e9\n  ^",
        ),
    ],
)
def test_malformed_files(chip_file: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    if "slice_multiple_of" in new:
        text = text.replace("pod = [4, 4]", "pod = [4000000, 4]")
    chip_file.write_text(text)
    assert message("mine.toml") == expected


def test_malformed_levels(chip_file: Path) -> None:
    head = GOOD[: GOOD.index("[interconnect]")]
    chip_file.write_text(head + LEVELS.replace('messages = "tree"', 'messages = "trees"'))
    assert message("mine.toml") == (
        "mine.toml:22:1: error: `messages` must be one of direct, tree, ring [bad-value]\n"
        '  messages = "trees"\n'
        "  ^^^^^^^^\n"
        "note: did you mean tree?"
    )
    chip_file.write_text(head + LEVELS.replace("units = 8\n", ""))
    assert message("mine.toml") == (
        "mine.toml:12:1: error: `name` must come with `units`: only the outermost level may join any number "
        "[bad-value]\n"
        '  name = "node"\n'
        "  ^^^^"
    )


def test_unreadable_files(chip_file: Path, tmp_path: Path) -> None:
    assert message("mine.toml") == (
        "<program>: error: cannot read mine.toml: no such file or directory [unreadable-file]"
    )
    (tmp_path / "folder.toml").mkdir()
    assert message("folder.toml") == "<program>: error: cannot read folder.toml: is a directory [unreadable-file]"
    chip_file.write_bytes(b"\xff\xfe\x00")
    assert message("mine.toml") == "<program>: error: mine.toml is not a text in UTF-8 [unreadable-file]"
    chip_file.write_text("#" * (1 << 20) + "\n")
    assert message("mine.toml") == (
        "<program>: error: mine.toml is larger than 1 MiB, so it is not a chip or machine file [unreadable-file]"
    )
    chip_file.write_text("x = " + "[" * 100_000)
    assert message("mine.toml").startswith("mine.toml:1:1: error: brackets are nested too deeply [toml-syntax]\n")


def test_malformed_machine(chip_file: Path) -> None:
    chip_file.write_text('name = "m"\nchip = "t5"\n')
    with pytest.raises(DiagnosticError) as caught:
        load_machine("mine.toml")
    head = 'mine.toml:2:1: error: there is no chip `t5` [unknown-chip]\n  chip = "t5"\n  ^^^^\nnote: chips: a100-40g, '
    assert caught.value.render().startswith(head)
    chip_file.write_text(
        'name = "m"\nchip = "t4"\n\n[host]\nmemory = "1 GB"\n\n[host_link]\n'
        'to_device_bytes_per_s = "12 GB"\nfrom_device_bytes_per_s = 1e9\n'
    )
    with pytest.raises(DiagnosticError) as caught:
        load_machine("mine.toml")
    assert caught.value.render() == (
        "mine.toml:8:1: error: `to_device_bytes_per_s` must be bytes a second: a number above 0, "
        'or a text such as "12.89 GiB/s" [bad-value]\n'
        '  to_device_bytes_per_s = "12 GB"\n'
        "  ^^^^^^^^^^^^^^^^^^^^^"
    )


def test_a_machine_names_its_chip_beside_it(tmp_path: Path) -> None:
    (tmp_path / "gpu.toml").write_text(GOOD)
    links = "[host_link]\nto_device_bytes_per_s = 1e9\nfrom_device_bytes_per_s = 2e9\n"
    (tmp_path / "machine.toml").write_text(f'name = "m"\nchip = "gpu.toml"\n[host]\nmemory = "1 GB"\n{links}')
    machine = load_machine(str(tmp_path / "machine.toml"))
    assert (machine.chip.name, machine.disk, machine.host_link.from_device_bytes_per_s) == ("mine", None, 2e9)


def test_of_a_chip_alone_in_its_machine_no_interconnect_need_be_said(tmp_path: Path) -> None:
    links = "[host_link]\nto_device_bytes_per_s = 1e9\nfrom_device_bytes_per_s = 2e9\n"
    chip = '[chip]\nname = "c"\nmemory = "1 GB"\nmemory_bytes_per_s = 1e9\n[chip.flops_per_s]\nf16 = 1e12\n'
    path = tmp_path / "machine.toml"
    path.write_text(f'name = "m"\n[host]\nmemory = "1 GB"\n{links}{chip}')
    assert load_machine(str(path)).chip.rate("f16") == 1e12
    (tmp_path / "c.toml").write_text(chip.replace("[chip]\n", "").replace("[chip.", "["))
    with pytest.raises(DiagnosticError, match="lacks the key `interconnect`"):
        load_chip(str(tmp_path / "c.toml"))
