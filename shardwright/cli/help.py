"""The help of a command: what it does, a line for each option, what NAME may be, two examples; `--help-all` has all."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parents[1]

_PALM = "examples/13_palm_model.shard"
_BLOCK = "examples/10_palm_parallel_block.shard"
_LAYER = "examples/02_feedforward_2d_weight_stationary.shard"
_EXPLICIT = "examples/11_explicit_feedforward.shard"
_SMALL = "--mesh x=2,y=2,z=2 --dim B=8,E=64,F=256"

EXAMPLES: dict[str, tuple[str, str]] = {
    "check": (_BLOCK, f"{_PALM} --chip tpu-v4 --json"),
    "fmt": (_LAYER, f"--check {_LAYER} {_BLOCK}"),
    "opt": (f"{_LAYER} --passes decompose,place,insert-moves", f"{_LAYER} --passes place --explain"),
    "reshard": ("BLE_xyz BLE_x --mesh x=4,y=4,z=4 --dim B=64,L=8,E=4096", "BE_x B_xE --mesh x=8 --dim B=64,E=4096"),
    "compile": (f"{_LAYER} --to jax -o layer.py {_SMALL}", f"{_LAYER} --chip h100 --no-validate -o layer.py {_SMALL}"),
    "run": (f"{_LAYER} {_SMALL}", f"{_EXPLICIT} {_SMALL} --seed 1"),
    "draw": (f"{_BLOCK} -o block.svg", f"{_BLOCK} --timeline --chip tpu-v4 -o block.png"),
    "targets": ("", "--json"),
    "explain": (f"{_LAYER} --target tpu-v4:2x2x2 {_SMALL}", f"{_LAYER} --target h100:8 --json {_SMALL}"),
    "trace": ("model.py:forward -o forward.shard", "model.py:step --mesh x=8 -o step.shard"),
    "export": (f"{_LAYER} --as jax", f"{_LAYER} --as shardy -o layer.mlir"),
    "cost": (f"{_BLOCK} --chip tpu-v4", "llama-3-70b --chip h100 --chips 8 --batch 32"),
    "search": (f"{_BLOCK} --chip tpu-v4", f"{_LAYER} --chip h100 --mesh x=2,y=2,z=2 -o found.shard"),
    "plan": ("llama-3-8b --chip h100 --chips 4 --prompt 512 --output 128",
             "llama-3-70b --chip tpu-v5e --chips 16 --prompt 1024 --output 256 -o serve.shard"),
    "fit": ("llama-3-70b --chip h100", "palm-540b --chip tpu-v4 --json"),
    "pareto": ("palm-62b --chip tpu-v4 --phase decode -o points.csv", "llama-3-8b --chip h100 --json"),
    "calibrate": ("--from d2 --chip tpu-v4", "--offloading -o mine.toml"),
    "reproduce": ("2", "flexgen-2 --json"),
    "import": ("checkpoint --mesh x=8 --layout megatron -o model.shard",
               "checkpoint --mesh x=4,y=2 --layout ws2d --cache 2048 -o model.shard"),
    "generate": ("checkpoint --prompt 'The layout of' --max-new-tokens 32",
                 "checkpoint --prompts in.jsonl -o out.jsonl"),
    "offload": ("opt-30b --machine t4 --prompt-len 512 --gen-len 32 --plan-only",
                "checkpoint --prompts in.jsonl -o out.jsonl"),
    "explore": ("", f"{_BLOCK} --port 8600"),
    "lsp": ("", "--help"),
}  # fmt: skip
"""Two command lines of each, without its name. Files are those of the project, or `checkpoint` and `model.py`."""


def help_text(parser: argparse.ArgumentParser) -> str:
    """At most a screen: options of groups by their names, of the others the first clause of what there is to say."""
    width = min(100, shutil.get_terminal_size().columns)
    command = (parser.prog or "").rpartition(" ")[2]
    actions = [action for action in parser._actions if action.dest != "help"]
    positionals = [action for action in actions if not action.option_strings]
    grouped = {id(action) for group in _own_groups(parser) for action in group._group_actions}
    options = [action for action in actions if action.option_strings and id(action) not in grouped]
    words = " ".join([parser.prog, *(_shown(action) for action in positionals), "[OPTIONS]"])
    lines = [f"usage: {words}", "", *textwrap.wrap(parser.description or "", width), ""]
    rows = [(_shown(action), _first_clause(action)) for action in (*positionals, *options)]
    left = min(34, max((len(name) for name, _ in rows), default=0))
    for name, said in rows:
        room = width - left - 4
        lines.append(f"  {name:<{left}}  {textwrap.shorten(said, max(20, room), placeholder='...')}".rstrip())
    for group in _own_groups(parser):
        names = ", ".join(max(action.option_strings, key=len) for action in group._group_actions)
        indents: Any = {"initial_indent": "  ", "subsequent_indent": "    "}
        lines += textwrap.wrap(f"{group.title}: {names}", width, break_on_hyphens=False, **indents)
    for what, known in _names(actions):
        lines += ["", *textwrap.wrap(f"{what}: {', '.join(known)}", width, subsequent_indent="  ")]
    if command in EXAMPLES:
        lines += ["", "examples:", *(f"  {parser.prog} {words}".rstrip() for words in EXAMPLES[command])]
    return "\n".join(lines) + "\n"


def _own_groups(parser: argparse.ArgumentParser) -> Sequence[Any]:
    """The groups that the command made, beside argparse's two."""
    return [group for group in parser._action_groups[2:] if group._group_actions]


def _shown(action: argparse.Action) -> str:
    """An option with what it takes, a positional argument as usage has it."""
    takes = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None and not takes:
        takes = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return f"[{takes}]" if action.nargs in ("?", "*") else takes or action.dest
    name = ", ".join(action.option_strings)
    return name if action.nargs == 0 else f"{name} {takes or action.dest.upper()}"


def _first_clause(action: argparse.Action) -> str:
    text = " ".join((action.help or "").split()).replace("%(prog)s", "")
    return re.split(r"; |\. ", text, maxsplit=1)[0]


def _names(actions: Sequence[argparse.Action]) -> Iterator[tuple[str, Sequence[str]]]:
    """The names that the NAMEs of the options, and a MODEL, may be."""
    dests = {action.dest for action in actions}
    positional = " ".join(str(action.metavar) for action in actions if not action.option_strings)
    if "MODEL" in positional:
        yield "models", _models()
    if "chip" in dests:
        yield "chips", _shipped("cost", "hardware", "chips")
    if "machine" in dests:
        yield "machines", _shipped("cost", "hardware", "machines")
    if "layout" in dests:
        from shardwright.models.layouts import PRESETS

        yield "layouts", tuple(PRESETS)


def _shipped(*folder: str) -> list[str]:
    return sorted(path.stem for path in _HERE.joinpath(*folder).glob("*.toml"))


def _models() -> list[str]:
    import tomllib

    found: set[str] = set()
    for file in (_HERE / "models" / "builtin").glob("*.toml"):
        found |= set(tomllib.loads(file.read_text(encoding="utf-8")))
    return sorted(found)
