"""Documents that contain their own expected output: programs, commands, and the strategies of operations.

In a fenced block,

- `shard` is a program, which must be well typed; `shard NAME.shard` is also a file for the commands after it;
- `console` holds commands after `$ `, of `shardwright`, `pytest` or `python`, and what they print on standard output
  and standard error, exactly, save that a line `...` stands for any lines;
- `elementwise` is the table of elementwise operations;
- `house` is the tree of folders with the sentence of each;
- `options NAME` lists the options of a command, as `--help-all` has them;
- `strategies` holds an operation, with the types of its operands after `#`, and its rows for one mesh axis;
- `lock` is the folder's lock file of collectives;
- `python` is a doctest; `python NAME.py` and `json NAME.json` are files for the commands after them.

What stands between the comments `generated: passes` and `end` is made of the passes' docstrings, and of the programs in
`docs/reference/programs`, each with the pipelines that its first lines name.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import inspect
import io
import math
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from shardwright.__main__ import main
from shardwright.asserting.lock import FILE
from shardwright.cli.front import COMMANDS
from shardwright.cli.options import Parser
from shardwright.ir import ops
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.builders import build_operation, operands_of
from shardwright.ir.elaboration.declarations import Declarations
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, Context, Number, Operation
from shardwright.ir.ops.elementwise_table import ENTRIES, FORMS, Entry
from shardwright.ir.program import DimInfo
from shardwright.ir.strategies import axis_table
from shardwright.ir.text import syntax
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType, Reduction, State
from shardwright.passes.every_pass import PASSES

_ROOT = Path(__file__).parents[2]
PROGRAMS = _ROOT / "docs" / "reference" / "programs"
_GENERATED = re.compile(r"(^<!-- generated: passes -->\n).*(^<!-- end -->$)", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BINARY: dict[str, Operation] = {"+": ops.Add(), "-": ops.Sub(), "*": ops.Mul(), "/": ops.Div()}


@dataclass(frozen=True)
class Block:
    """A fenced block: what it is, its name, its text, and where in the document the text stands."""

    kind: str
    name: str
    text: str
    start: int
    end: int


def blocks(document: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    return [Block(m[1], m[2] or "", m[3], m.start(3), m.end(3)) for m in _FENCE.finditer(document)]


def rewritten(document: str, folder: Path) -> str:
    """The document as it should be; `folder`, the working directory, gets its programs."""
    document = _GENERATED.sub(lambda match: f"{match[1]}{_passes()}{match[2]}", document)
    pieces: list[str] = []
    at = 0
    for block in blocks(document):
        text = block.text
        if block.kind in {"shard", "python", "json"} and block.name:
            (folder / block.name).write_text(text, encoding="utf-8")
        elif block.kind == "console":
            text = _session(text)
        elif block.kind == "strategies":
            text = _strategies(text)
        elif block.kind == "elementwise":
            text = _elementwise()
        elif block.kind == "house":
            text = _house()
        elif block.kind == "options":
            text = _options(block.name)
        elif block.kind == "lock":
            text = (folder / FILE).read_text(encoding="utf-8")
        pieces += [document[at : block.start], text]
        at = block.end
    return "".join([*pieces, document[at:]])


def hand_written_lines(document: str) -> int:
    """The lines of a document but for what `rewritten` writes, with its fences."""
    document = _GENERATED.sub("", document)
    written = 0
    for block in blocks(document):
        if block.kind in {"strategies", "elementwise", "house", "options", "lock"}:
            written += block.text.count("\n") + 2
        elif block.kind == "console":
            written += sum(not line.startswith("$ ") for line in block.text.splitlines()) + 2
    return document.count("\n") - written


def _session(text: str) -> str:
    made: list[str] = []
    for piece in re.split(r"^(?=\$ )", text, flags=re.MULTILINE):
        if not piece:
            continue
        command, _, expected = piece.partition("\n")
        words = shlex.split(command.removeprefix("$ "))
        found = {"shardwright": _command, "pytest": _pytest, "python": _python}[words[0]](words[1:])
        shown = expected if _matches(expected.rstrip("\n"), found.rstrip("\n")) else found
        made.append(f"{command}\n{shown}")
    return "".join(made)


def _house() -> str:
    """The folders of the code, one below the other, each with the first sentence of its package."""
    rows: list[tuple[str, str]] = []
    for root in ("ir", "cost", "passes", "backends", "shardwright"):
        for package in sorted((_ROOT / root).rglob("__init__.py")):
            folder = package.parent.relative_to(_ROOT)
            said = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
            sentence = " ".join(said.split("\n\n")[0].split())
            rows.append((f"{'  ' * (len(folder.parts) - 1)}{folder.name}/", sentence))
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:{width}}  {sentence}\n" for name, sentence in rows)


def _command(words: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        main(words)
    return printed.getvalue()


def _python(words: list[str]) -> str:
    return subprocess.run(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    ).stdout


def _pytest(words: list[str]) -> str:
    plugin = ["-p", "shardwright.asserting.pytest_plugin"]  # as where the package is installed
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "--color=no", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False,
    ).stdout  # fmt: skip


def _matches(expected: str, found: str) -> bool:
    if "..." not in expected.splitlines():
        return expected == found
    parts = [re.escape(part) for part in re.split(r"^\.\.\.$", expected, flags=re.MULTILINE)]
    return re.fullmatch(".*".join(parts), found, re.DOTALL) is not None


# ---------------------------------------------------------------- commands and passes


def _options(command: str) -> str:
    subparsers = Parser(prog="shardwright").add_subparsers()
    import_module(f"shardwright.cli.{COMMANDS[command].module}").add_parser(subparsers)
    actions = [a for a in subparsers.choices[command]._actions if a.dest not in ("help", "help_all")]
    formatter = argparse.HelpFormatter("", max_help_position=32, width=110)
    formatter.add_arguments(actions)
    return textwrap.dedent(formatter.format_help()).strip("\n") + "\n"


def _passes() -> str:
    """A section for each pass: its docstring, its options, and what it makes of its programs."""
    return "".join(f"\n## `{name}`\n\n{_section(name)}" for name in PASSES)


def _section(name: str) -> str:
    text = _prose(inspect.getdoc(PASSES[name]) or "")
    fields = dataclasses.fields(PASSES[name])
    options = ", ".join(f"`{field.name.replace('_', '-')}={_default(field)}`" for field in fields)
    text += f"\nOptions: {options}.\n" if options else ""
    for path in sorted(PROGRAMS.glob(f"{name}.*shard")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        pipelines = [line.removeprefix("# --passes ").strip() for line in lines if line.startswith("# --passes ")]
        text += f"\n```shard {path.name}\n{''.join(lines[len(pipelines) :])}```\n"
        text += "".join(f"\n```console\n$ shardwright opt {path.name} --passes {p}\n```\n" for p in pipelines)
    return text


def _default(field: dataclasses.Field[object]) -> str:
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def _prose(docstring: str) -> str:
    """Markdown, with what is indented in fences."""
    parts = re.split(r"((?:^(?:    .*)?\n)+)", docstring + "\n", flags=re.MULTILINE)
    return "".join(
        f"\n```shardwright\n{textwrap.dedent(part).strip()}\n```\n\n" if part.lstrip("\n")[:1] == " " else part
        for part in parts
    )


# ---------------------------------------------------------------- strategies

_SIZES = dict.fromkeys("BLETFHKGDVNCXAPSM", 8) | {"H": 64, "J": 4}


def _strategies(text: str) -> str:
    """The first line as it stands, and the rows of the operation that it shows, one line each."""
    head = text.partition("\n")[0]
    operation, args = operation_of(head)
    results = operation.infer(args, Context(_SIZES))
    values = [(i, arg) for i, arg in enumerate(args) if arg.shape is not None]
    table = axis_table(operation, args, results, "x")
    names = operation.result_words if len(results) > 1 else ["result"]
    rows = [[*(arg.text for _, arg in values), *names]]
    rows += [[*(_state(row.operands[i]) for i, _ in values), *map(_state, row.results)] for row in table]
    return "\n".join([head, *_lined_up(rows)]) + "\n"


def _lined_up(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["    " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


# ---------------------------------------------------------------- elementwise operations

_OPERANDS = {1: ("x",), 2: ("a", "b"), 3: ("m", "a", "b")}
_BESIDE = {None: "", (-math.inf, math.inf): " beside a number", (0.0, math.inf): " beside a positive number"}


def _elementwise() -> str:
    """The table of elementwise operations: what each takes and computes, and which partial values pass."""
    rows = [["operation", "takes", "computes", "partial sums", "partial maxima"]]
    for entry in ENTRIES:
        names = _OPERANDS[len(entry.takes)]
        form = "" if entry.form in ("", FORMS[entry.keyword][0]) else f"[form={entry.form}]"
        call = f"{entry.keyword}{form}({', '.join(names)})"
        signs = {"+": "a + b", "-": "a - b", "*": "a * b", "/": "a / b", "neg": "-x"}
        formats = {"float": "floats", "bool": "bools", "value": "any"}
        takes = " and ".join(dict.fromkeys(formats[takes] for takes in entry.takes))
        sums, maxima = (_passing(entry, names, kind) for kind in (Reduction.SUM, Reduction.MAX))
        rows.append([signs.get(entry.keyword, call), takes, entry.meaning, sums, maxima])
    return "\n".join(_lined_up(rows)) + "\n"


def _passing(entry: Entry, names: Sequence[str], kind: Reduction) -> str:
    """Which operands may be partial, and of what."""
    floats, integers = (
        entry.sums_of(dtype) if kind is Reduction.SUM else entry.maxima_of(dtype) for dtype in (DType.F32, DType.INT32)
    )
    listed = ", ".join(" and ".join(names[i] for i in together) for together in floats)
    if not listed:
        return "-"
    beside = _BESIDE[entry.beside] if kind is Reduction.MAX else ""
    return f"{listed}{beside}{'' if floats == integers else '; not of integers'}"


def _state(state: State) -> str:
    if isinstance(state, Reduction):
        return f"partial {state}"
    return "whole" if state is None else state


def operation_of(line: str) -> tuple[Operation, list[Arg]]:
    """The operation and operands of `softmax[T](s)  # s: f32 BHT`."""
    expression, _, declared = line.partition("  # ")
    source = Source("strategies", f"mesh x=2\nfunc f({declared}) -> f32 B {{\n  r = {expression}\n  return r\n}}\n")
    func = next(item for item in parse(source).items if isinstance(item, syntax.FuncItem))
    mesh = Mesh.of(x=2)
    declarations = Declarations(mesh, tuple(DimInfo(name, size) for name, size in _SIZES.items()), (), ())
    kinds = {decl.name: declarations.type(decl.type, _SIZES) for decl in func.params}
    statement = func.body[0]
    assert isinstance(statement, syntax.LetStmt)
    match statement.value:
        case syntax.BinaryExpr(operator=operator, left=left, right=right):
            operation, parts = _BINARY[operator], (left, right)
        case syntax.NegExpr(operand=operand):
            operation, parts = ops.Neg(), (operand,)
        case syntax.ContractExpr(left=left, right=right, dims=dims):
            operation, parts = ops.Contract(tuple(dim.name for dim in dims or ())), (left, right)
        case syntax.NameExpr():
            operation, parts = ops.Alias(), (statement.value,)
        case syntax.CallExpr() as call:
            operation, parts = build_operation(call, mesh), operands_of(call)
        case _:
            raise AssertionError(line)
    args: list[Arg] = []
    for part in parts:
        if isinstance(part, syntax.NumberExpr):
            args.append(Arg(part.text, None, Number(part.text)))
        else:
            assert isinstance(part, syntax.NameExpr)
            args.append(Arg(part.name, kinds[part.name].shape))
    return operation, args
