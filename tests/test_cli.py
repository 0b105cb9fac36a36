"""The front door: exit statuses, wrong usage, shared options, files, and `fmt`."""

from __future__ import annotations

import argparse
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from shardwright.backends.targets.names import PLATFORMS
from shardwright.cli import front
from shardwright.cli.options import Parser, add_output, add_sizes, one_of
from shardwright.cli.output import write_output
from shardwright.ir.diagnostics import Source, Span, fault

COMMANDS = ["check", "fmt", "opt", "reshard", "compile", "run", "draw", "targets", "explain", "trace", "export", "cost",
            "search", "plan", "fit", "pareto", "calibrate", "reproduce", "import", "generate",
            "offload", "explore", "lsp"]  # fmt: skip

UGLY = "mesh   x=2\ndim E=4   # width\nfunc f(x:BE_x)->BE_x{\n  return x\n}\n"


# ---------------------------------------------------------------- the list of commands


def test_help_lists_every_command(shardwright: Callable[..., Any]) -> None:
    got = shardwright("--help")
    assert got.status == 0
    assert got.err == ""
    assert list(front.COMMANDS) == COMMANDS
    for name, entry in front.COMMANDS.items():
        assert f"  {name:9}  {entry.help}\n" in got.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(shardwright: Callable[..., Any], command: str) -> None:
    got = shardwright(command, "--help")
    assert got.status == 0
    assert got.out.startswith(f"usage: shardwright {command}")


def test_version(shardwright: Callable[..., Any]) -> None:
    assert shardwright("--version").out == "shardwright 0.1.0\n"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("shardwright ex", {"explain", "export", "explore"}),
        ("shardwright check --obj", {"--objective"}),
        ("shardwright check --objective ", {"time", "bytes"}),
        ("shardwright draw --", {"--timeline", "--window", "--help-all"}),
    ],
)
def test_shells_are_told_what_could_follow(line: str, wanted: set[str], tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    shell = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n",
             "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}  # fmt: skip
    subprocess.run([sys.executable, "-m", "shardwright"], env={**os.environ, **shell}, check=True, timeout=300)
    assert wanted <= {word.strip() for word in answer.read_text().splitlines()}


# ---------------------------------------------------------------- wrong usage: status 2, a line of usage, a line of why


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "shardwright: error: a command is needed, one of " + ", ".join(COMMANDS)),
        (["chek"], "shardwright: error: unknown command chek; did you mean check?"),
        (["zzz"], "shardwright: error: unknown command zzz; there are " + ", ".join(COMMANDS)),
        (["--json", "check"], "shardwright: error: unknown option --json; options come after the command"),
        (["check"], "shardwright check: error: the following arguments are required: FILE"),
        (["check", "a.shard", "b.shard"], "shardwright check: error: unexpected argument b.shard"),
        (["check", "a.shard", "--jsn"], "shardwright check: error: unknown option --jsn; did you mean --json?"),
        (["check", "a.shard", "--qq=1"], "shardwright check: error: unknown option --qq"),
        (["fmt", "a.shard", "--chek"], "shardwright fmt: error: unknown option --chek; did you mean --check?"),
        (
            ["opt", "a.shard"],
            "shardwright opt: error: one of the arguments --passes --list-passes --shardings is required",
        ),
        (["opt", "--passes", "place"], "shardwright opt: error: the following arguments are required: FILE"),
        (
            ["reshard", "E_x", "E", "--dim", "E=4"],
            "shardwright reshard: error: the following arguments are required: --mesh",
        ),
        (
            ["reshard", "E_x", "E", "--mesh", "x=2"],
            "shardwright reshard: error: the following arguments are required: --dim",
        ),
        (
            ["reshard", "E_x", "E", "--mesh", "x=2", "--dim", "E=4", "--minimize", "time"],
            "shardwright reshard: error: --minimize time needs --chip",
        ),
        (
            ["draw", "a.shard", "-o", "a.gif"],
            "shardwright draw: error: argument -o/--output: 'a.gif' does not say which picture; "
            "end it in .svg, .png, .pdf, .dot, .html, .trace.json",
        ),
        (["draw", "a.shard"], "shardwright draw: error: the following arguments are required: -o/--output"),
        (
            ["compile", "a.shard", "--json"],
            "shardwright compile: error: --json needs -o: both would use standard output",
        ),
        (
            ["import", "folder", "--layout", "ws1d"],
            "shardwright import: error: the following arguments are required: --mesh",
        ),
        (
            ["run", "a.shard", "--seed", "x"],
            "shardwright run: error: argument --seed: 'x' is not a whole number from 0 up",
        ),
    ],
)
def test_wrong_usage(shardwright: Callable[..., Any], argv: list[str], why: str) -> None:
    got = shardwright(*argv)
    assert (got.status, got.out) == (2, "")
    assert got.err == f"{why}\n"


# ---------------------------------------------------------------- --mesh and --dim


def sizes(*argv: str) -> tuple[dict[str, int], dict[str, int]]:
    parser = Parser(prog="p")
    add_sizes(parser)
    parsed = parser.parse_args(argv)
    return parsed.mesh, parsed.dim


def test_sizes() -> None:
    assert sizes() == ({}, {})
    assert sizes("--mesh", "x=2,y=4") == ({"x": 2, "y": 4}, {})
    assert sizes("--mesh", "data=2 model=8") == ({"data": 2, "model": 8}, {})
    assert sizes("--dim", "E=16,F1=8", "--dim", "embed=4") == ({}, {"E": 16, "F1": 8, "embed": 4})
    assert sizes() == ({}, {})  # the default was not filled by the calls before


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--mesh", "x"], "argument --mesh: 'x' is not x=2,y=2"),
        (["--mesh", ""], "argument --mesh: '' is not x=2,y=2"),
        (["--mesh", "x=2,"], "argument --mesh: '' is not x=2,y=2"),
        (["--mesh", "X=2"], "argument --mesh: 'X' is not a name here; an axis is lower-case, as in x=2,y=2"),
        (["--mesh", "x=0"], "argument --mesh: x: '0' is not a whole number from 1 up"),
        (["--mesh", "x=-2"], "argument --mesh: x: '-2' is not a whole number from 1 up"),
        (["--mesh", "x=2.5"], "argument --mesh: x: '2.5' is not a whole number from 1 up"),
        (["--mesh", "x=²"], "argument --mesh: x: '²' is not a whole number from 1 up"),
        (["--mesh", "x=2,x=2"], "argument --mesh: x is given twice"),
        (["--dim", "E=4", "--dim", "E=8"], "argument --dim: E is given twice"),
        (
            ["--dim", "EF=4"],
            "argument --dim: 'EF' is not a name here; a dimension is a capital letter with or without a number, "
            "or a word, as in E=16,F1=8,embed=4",
        ),
    ],
)
def test_wrong_sizes(capsys: pytest.CaptureFixture[str], argv: list[str], why: str) -> None:
    with pytest.raises(SystemExit) as leaving:
        sizes(*argv)
    assert leaving.value.code == 2
    assert capsys.readouterr().err == f"p: error: {why}\n"


def test_output_suffix() -> None:
    parser = Parser(prog="p")
    add_output(parser, "OUT", required=True, kind=one_of("picture", "svg", "png"))
    assert parser.parse_args(["-o", "a.b.svg"]).output == "a.b.svg"


# ---------------------------------------------------------------- what a command raises, as an exit status


Execute = Callable[[argparse.Namespace], int]


class Stub(Protocol):
    """A command line whose command is a function of the test's own."""

    def __call__(self, execute: Execute, *argv: str) -> Any: ...


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, shardwright: Callable[..., Any]) -> Stub:
    """Runs `shardwright check a.shard ...` with the given function in place of the command's own."""

    def run(execute: Execute, *argv: str) -> Any:
        from shardwright.cli import check

        module = SimpleNamespace(add_parser=check.add_parser, execute=execute)

        def found(name: str) -> SimpleNamespace:
            return module

        monkeypatch.setattr(front, "import_module", found)
        return shardwright("check", "a.shard", *argv)

    return run


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def execute(args: argparse.Namespace) -> int:
        raise error

    return execute


def test_status_of_a_command(stub: Stub) -> None:
    assert stub(lambda args: 0).status == 0
    assert stub(lambda args: 1).status == 1


def test_diagnostics(stub: Stub) -> None:
    error = fault("unknown-axis", "no axis z in the mesh", Span(1, 4, 1, 5), "the mesh has x and y")
    error.source = Source("a.shard", "BE_z")
    got = stub(raising(error))
    assert (got.status, got.out) == (1, "")
    assert got.err == (
        "a.shard:1:4: error: no axis z in the mesh [unknown-axis]\n  BE_z\n     ^\nnote: the mesh has x and y\n"
    )


def test_diagnostics_as_json(stub: Stub) -> None:
    got = stub(raising(fault("unknown-axis", "no axis z in the mesh", Span(1, 4, 1, 5), "the mesh has x")), "--json")
    assert got.status == 1
    assert got.err.startswith("<program>: error: no axis z in the mesh [unknown-axis]\n")
    assert json.loads(got.out) == {
        "ok": False,
        "diagnostics": [
            {
                "severity": "error",
                "code": "unknown-axis",
                "message": "no axis z in the mesh",
                "line": 1,
                "column": 4,
                "notes": ["the mesh has x"],
            }
        ],
    }


@pytest.mark.parametrize(
    ("library", "extra"),
    [("jax", "jax"), ("jaxlib.xla", "jax"), ("pygraphviz", "draw"), ("transformers", "hf"), ("ortools", "search")],
)
def test_a_missing_library_names_its_extra(stub: Stub, library: str, extra: str) -> None:
    got = stub(raising(ModuleNotFoundError(f"No module named {library!r}", name=library)))
    root = library.partition(".")[0]
    assert got.status == 1
    assert got.err == f"shardwright: error: check needs {root}: pip install 'shardwright[{extra}]' [missing-library]\n"


def test_every_extra_exists() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(front.EXTRAS.values()) <= set(extras)
    apart = {"all", "dev", "docs", *(platform.extra for platform in PLATFORMS.values() if platform.name != "cpu")}
    assert set(front.EXTRAS.values()) == set(extras) - apart
    assert f"shardwright[{','.join(name for name in extras if name not in apart)}]" in extras["all"]


def test_a_missing_module_of_our_own_is_a_fault_of_ours(stub: Stub) -> None:
    with pytest.raises(ModuleNotFoundError):
        stub(raising(ModuleNotFoundError("No module named 'shardwright.gone'", name="shardwright.gone")))


def test_files_that_cannot_be_used(stub: Stub, tmp_path: Path) -> None:
    gone = tmp_path / "gone.shard"
    assert stub(lambda args: len(gone.read_text())).err == f"{gone}: error: no such file or directory [file]\n"
    assert stub(lambda args: len(tmp_path.read_text())).err == f"{tmp_path}: error: is a directory [file]\n"


def test_interrupt(stub: Stub) -> None:
    got = stub(raising(KeyboardInterrupt()))
    assert (got.status, got.out, got.err) == (130, "", "")


def test_the_reader_of_a_pipe_leaves() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", "--help"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize(
    ("arguments", "full"),
    [
        ([], "standard output or temporary files"),
        (["-o", "/dev/full"], "/dev/full"),
    ],
)
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_full_disk(arguments: list[str], full: str, buffered: str, tmp_path: Path) -> None:
    path = tmp_path / "g.shard"
    path.write_text("dim A=8\nfunc g(a: A) -> A {\n  return a + a\n}\n")
    command = [sys.executable, "-m", "shardwright", "opt", str(path), "--passes", "cleanup", *arguments]
    with Path("/dev/full").open("wb") as stream:
        environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
        done = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    where = f"{full}: error: no space left on device [file]\nnote: make room there, or write to another disk\n"
    assert (done.returncode, done.stderr) == (1, where)


# ---------------------------------------------------------------- writing


def test_output_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.py"
    target.write_text("before")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left on device") as raised:
            write_output(str(target), "after")
    assert raised.value.filename == str(target)
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.py"]


def test_output_keeps_permissions_and_follows_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_text("before")
    real.chmod(0o640)
    link.symlink_to(real)
    write_output(str(link), "after")
    assert (real.read_text(), link.is_symlink()) == ("after", True)
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_output_of_a_folder_and_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_output(str(tmp_path), "text")
    with pytest.raises(FileNotFoundError) as raised:
        write_output(str(tmp_path / "gone" / "a.py"), "text")
    assert raised.value.filename == str(tmp_path / "gone" / "a.py")


@pytest.mark.parametrize("path", [None, "-"])
def test_standard_output(capsys: pytest.CaptureFixture[str], path: str | None) -> None:
    write_output(path, "text\n")
    assert capsys.readouterr().out == "text\n"


# ---------------------------------------------------------------- fmt


@pytest.fixture
def ugly(tmp_path: Path) -> Path:
    path = tmp_path / "ugly.shard"
    path.write_text(UGLY)
    return path


def test_fmt_rewrites_once(shardwright: Callable[..., Any], ugly: Path) -> None:
    got = shardwright("fmt", ugly)
    assert (got.status, got.out, got.err) == (0, "", f"reformatted {ugly}\n")
    pretty = ugly.read_text()
    assert pretty != UGLY
    assert "# width" in pretty
    again = shardwright("fmt", ugly)
    assert (again.status, again.out, again.err) == (0, "", "")
    assert ugly.read_text() == pretty
    assert shardwright("fmt", "--check", ugly).status == 0


def test_fmt_check_shows_and_does_not_write(shardwright: Callable[..., Any], ugly: Path) -> None:
    got = shardwright("fmt", "--check", ugly)
    assert (got.status, got.err) == (1, f"would reformat {ugly}\n")
    assert got.out.startswith(f"--- {ugly}\n+++ {ugly} (formatted)\n@@ ")
    assert "\n-mesh   x=2\n" in got.out
    assert "\n+mesh x=2\n" in got.out
    assert ugly.read_text() == UGLY


def test_fmt_json(shardwright: Callable[..., Any], ugly: Path) -> None:
    got = shardwright("fmt", "--check", "--json", ugly)
    assert (got.status, json.loads(got.out)) == (1, {"ok": False, "changed": [str(ugly)], "diagnostics": []})
    got = shardwright("fmt", "--json", ugly)
    assert (got.status, json.loads(got.out)) == (0, {"ok": True, "changed": [str(ugly)], "diagnostics": []})


def test_fmt_leaves_what_does_not_parse_and_goes_on(
    shardwright: Callable[..., Any], ugly: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.shard"
    broken.write_text("mesh x=\n")
    got = shardwright("fmt", "--json", broken, ugly)
    assert got.status == 1
    assert got.err.startswith(f"{broken}:1:")
    assert got.err.endswith(f"reformatted {ugly}\n")
    printed = json.loads(got.out)
    assert (printed["ok"], printed["changed"], len(printed["diagnostics"])) == (False, [str(ugly)], 1)
    assert broken.read_text() == "mesh x=\n"


def test_fmt_of_a_file_that_is_not_there(shardwright: Callable[..., Any], ugly: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone.shard"
    got = shardwright("fmt", gone, ugly)
    assert got.status == 1
    assert got.err.startswith(f"{gone}: error: ")
    assert got.err.endswith(f"reformatted {ugly}\n")


def test_fmt_of_standard_input(ugly: Path, shardwright: Callable[..., Any]) -> None:
    command = [sys.executable, "-m", "shardwright", "fmt", "-"]
    done = subprocess.run(command, input=UGLY.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    shardwright("fmt", ugly)
    assert done.stdout == ugly.read_bytes()
    done = subprocess.run(command, input=b"\xff\xfe", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        "<stdin>:1:1: error: the byte 0xff is not UTF-8 text [not-utf8]\n"
        "  \ufffd\ufffd\n  ^\n"
        "note: a program is a text file, saved as UTF-8\n"
    )


# ---------------------------------------------------------------- `compile`


STRIDED = "mesh x=2 y=2\ndim B=4\ndim E=64 order x y\nweights { w: E_y }\nfunc f(a: BE_y) -> BE_y { return a * w }\n"


def test_strided_edges(shardwright: Callable[..., Any], tmp_path: Path) -> None:
    """Permutes make blocks of them, or they are handed out in their digits; `check` marks all of them."""
    file = tmp_path / "a.shard"
    file.write_text(STRIDED, encoding="utf-8")
    assert shardwright("check", str(file)).out.splitlines()[:-1] == [
        "func f",
        "  w        :  bf16 E_y   weight  strided: its array has a dimension for each digit",
        "  a        :  bf16 BE_y  parameter  strided: chips may have to exchange blocks at the edge (see edge-blocks)",
        "  result_0 :~ bf16 BE_y  *  strided: chips may have to exchange blocks at the edge (see edge-blocks)",
    ]
    blocks = shardwright("compile", str(file)).out
    assert "    'f': (P(None, 'y'),),  # a\n" in blocks
    assert blocks.count("= permuted(") == 2
    digits = shardwright("compile", str(file), "--edges", "digits").out
    assert "    'f': (P(None, None, 'y'),),  # a\n" in digits
    assert "permuted" not in digits
    assert "    f: takes a: bf16 BE_y as (4, 2, 2, 16)\n" in digits


def test_what_cannot_be_validated_is_said(shardwright: Callable[..., Any], tmp_path: Path) -> None:
    """A norm over two dimensions divides by their number of elements, which is too many to run."""
    file, module = tmp_path / "p.shard", tmp_path / "p.py"
    file.write_text("dim B=4 E=200000000\nfunc f(x: f32 BE) -> f32 BE { return rmsnorm[BE](x) }\n")
    got = shardwright("compile", str(file), "-o", str(module), "--json")
    assert got.status == 0
    first, second = got.err.splitlines()
    reason = "even at reduced sizes its values have 3.2e+09 elements on all chips, more than 5e+08"
    assert first == f"{file}: warning: not validated: {reason} [not-validated]"
    assert second == "note: with smaller sizes it can be: --dim"
    said = json.loads(got.out)
    assert said["validated"] is False
    assert said["largest_relative_difference"] is None
    assert f"not validated: {reason}" in module.read_text()


def test_what_is_validated_says_by_how_much(shardwright: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "p.shard").write_text(f"dim B=2\n{UGLY}")
    got = shardwright("compile", str(tmp_path / "p.shard"), "-o", str(tmp_path / "p.py"), "--json")
    assert (got.status, got.err) == (0, "")
    said = json.loads(got.out)
    assert said["validated"] is True
    assert said["largest_relative_difference"] == 0.0
