"""Mutated programs: bytes and tokens dropped, doubled, swapped and spliced, layouts changed, nesting, huge numbers.

Mutant number s is the same everywhere. It is made from one of the examples, at sizes at which everything is quick, or
from a random program, and `check` of it ends with status 0 or 1, in time and within memory, with no traceback, and each
of its diagnostics says where.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from oracles.random_programs.draw import Wishes, draw_program

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.shard"))
SMALL = {"B": 8, "L": 4, "T": 16, "E": 16, "F": 32, "H": 8, "D": 8, "V": 32, "N": 2, "x": 2, "y": 2, "z": 2}

TOKEN = re.compile(r"[a-z][a-z0-9_]*|[A-Z][0-9]*|\d+(?:\.\d+)?|->|:~|\s+|.", re.DOTALL)
WORDS = re.findall(
    r"\S+",
    """
    ? (partialsum-?) (partialmax-x) on host disk device % along order inf _? size int4 int8 uint32 bool f32 0 1 -1 1e400
    99999999999999999999 4294967296 1e-5 0.5 _ x y z [ ] { } ( ) E L B take concat by split merge rename as_partial
    all_to_all all_gather reduce_scatter slice roll fetch store prefetch start wait free argmax topk full where iota
    rotary lookup update uniform window causal mesh dim weights state func loop as set next return -> :~ @ = , : bitcast
    convert cumsum layernorm softmax in flight ahead wrap true seq style neox None def lambda f8e4m3 f8e5m2
    """,
)
CHARACTERS = "abxyzABELNH012_{}[]():~@?,.-+*/=%#\n\t \r\x0b\x00\u00e9\u2028\u00b2\u0660\uff10\U0001f600\\\"'"
PLACED = re.compile(r"^[^\n]*:\d+:\d+: (error|warning): .* \[[a-z0-9-]+\]$")
ERROR = re.compile(r": error: ")
WHOLE_FILE = re.compile(r"\[(binary|empty|no-file|not-a-file|unreadable)\]$")
"""Faults of a file that is no program, which have no place in it."""


def small(text: str) -> str:
    """The program with sizes at which everything is quick."""
    return re.sub(r"\b([A-Zxyz])=\d+", lambda found: f"{found[1]}={SMALL.get(found[1], 4)}", text)


@cache
def examples() -> tuple[str, ...]:
    return tuple(small(path.read_text(encoding="utf-8")) for path in EXAMPLES)


def changed(choose: random.Random, text: str) -> str:
    """The text with one token, character or line put in, taken out, exchanged or replaced."""
    kind = choose.random()
    if kind < 0.2:
        at = choose.randrange(len(text) + 1)
        return text[:at] + choose.choice(CHARACTERS) + text[at + choose.randrange(3) :]
    pieces = text.splitlines(keepends=True) if kind < 0.35 else TOKEN.findall(text)
    places = [i for i, piece in enumerate(pieces) if piece.strip()] or [0]
    if not pieces:
        return choose.choice(WORDS)
    here, there = choose.choice(places), choose.choice(places)
    match choose.randrange(4):
        case 0:
            del pieces[here]
        case 1:
            pieces.insert(here, pieces[there])
        case 2:
            pieces[here], pieces[there] = pieces[there], pieces[here]
        case _:
            pieces[here] = choose.choice(WORDS)
    return "".join(pieces)


def relaid(choose: random.Random, text: str) -> str:
    """The text with axes added to a dimension of a layout, taken from one, or left to the compiler."""
    if choose.random() < 0.2:
        return re.sub(
            r"\b([A-Zxyz])=\d+",
            lambda m: f"{m[1]}={choose.choice([1, 2, 3, 4, 6, 8])}" if choose.random() < 0.3 else m[0],
            text,
        )
    places = list(re.finditer(r"[A-Z](?:_[xyz]+)?(?=[A-Z_ ,)\n]*[ ,)\n{])", text))
    if not places:
        return text
    here = choose.choice(places)
    axes = "".join(axis for axis in "xyz" if choose.random() < 0.4)
    written = here[0][0] + choose.choice(["", "_?", f"_{axes}" if axes else ""])
    return text[: here.start()] + written + text[here.end() :]


def spliced(choose: random.Random, text: str) -> str:
    """Some lines or tokens of another program in the place of some of this one's."""
    other = _program(choose)
    split: Callable[[str], list[str]] = (
        (lambda t: t.splitlines(keepends=True)) if choose.random() < 0.6 else TOKEN.findall
    )
    here, there = split(text), split(other)
    at, to = sorted(choose.randrange(len(here) + 1) for _ in range(2))
    begin = choose.randrange(len(there) + 1)
    return "".join([*here[:at], *there[begin : begin + choose.randint(1, 6)], *here[to if to < at + 6 else at :]])


def nested(choose: random.Random, text: str) -> str:
    """Brackets, functions, loops or signs around each other, some tens or thousands of times."""
    depth = choose.choice((3, 30, 90, 300, 3000))
    opening, inner, closing = choose.choice(
        (("(", "x", ")"), ("gelu(", "x", ")"), ("-", "x", ""), ("x + ", "x", ""), ("(x @ ", "x", ")"),
         ("loop[N] {\n", "", "}\n"), ("take[", "E", "]"), ("{", "", "}"), ("[", "", "]"), ("F+", "F", ""),
         ("2*", "E", ""))
    )  # fmt: skip
    made = opening * depth + inner + closing * depth
    equals = [m.end() for m in re.finditer(" = |=", text)] or [0]
    at = choose.choice(equals)
    end = text.find("\n", at)
    return text[:at] + made + (text[end:] if end > 0 and choose.random() < 0.7 else text[at:])


def enlarged(choose: random.Random, text: str) -> str:
    """A number made huge, negative, fractional or long."""
    numbers = list(re.finditer(r"\d+(?:\.\d+)?(?:e-?\d+)?", text))
    if not numbers:
        return text
    here = choose.choice(numbers)
    size = choose.choice((9, 18, 19, 20, 40, 400, 5000))
    made = choose.choice(
        ("9" * size, "1" + "0" * size, "-1", "0", "0.5", f"1e{size}", f"1e-{size}", "2**63", "1_000", "0x10")
    )
    return text[: here.start()] + made + text[here.end() :]


def rebyted(choose: random.Random, data: bytes) -> bytes:
    """One to four bytes dropped, doubled, swapped or replaced by any others; the text may be no UTF-8 any more."""
    made = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        if not made:
            break
        at, to = choose.randrange(len(made)), choose.randrange(len(made))
        match choose.randrange(5):
            case 0:
                del made[at : at + choose.randint(1, 8)]
            case 1:
                made[at:at] = made[at : at + choose.randint(1, 8)]
            case 2:
                made[at], made[to] = made[to], made[at]
            case 3:
                made[at] = choose.randrange(256)
            case _:
                made[at:at] = choose.choice(("\ufeff", "\u200b", "\u0301", "\U0001d5ab", "\u202e")).encode()
    return bytes(made)


def _program(choose: random.Random) -> str:
    if choose.random() < 0.5:
        return choose.choice(examples())
    return draw_program(random.Random(choose.randrange(10**6)), Wishes(most_chips=4, statements=(1, 4))).text()


def mutant(seed: int) -> bytes:
    """The mutated program with this number."""
    choose = random.Random(f"mutant {seed}")
    text = _program(choose)
    for _ in range(choose.choice((1, 1, 2, 3))):
        change = choose.choices((changed, relaid, spliced, nested, enlarged), (10, 2, 5, 1, 2))[0]
        text = change(choose, text)
    data = text.encode("utf-8", "surrogatepass")
    return rebyted(choose, data) if choose.random() < 0.25 else data


def examiner() -> Callable[[int], dict[str, Any]]:
    """The function of a seed: what `check` says of the mutant, and the finding if that is not as promised."""
    memory = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(prefix="mutants-", dir=memory if memory.is_dir() else None)
    path = Path(folder.name) / "mutant.shard"

    def examined(seed: int) -> dict[str, Any]:
        assert folder  # it goes when the function goes
        return judged(mutant(seed), path)

    return examined


def judged(data: bytes, path: Path) -> dict[str, Any]:
    """The exit status of `check`, the code of its first diagnostic, and what is wrong with the answer, if anything."""
    from shardwright.__main__ import main

    path.write_bytes(data)
    out, err = io.StringIO(), io.StringIO()
    finding = ""
    status: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(["check", str(path)])
    except SystemExit as ending:
        status = ending.code
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        finding = f"{type(error).__name__} in {Path(last.filename).name}:{last.name}: {str(error)[:200]}"
    said = err.getvalue()
    errors = [line for line in said.splitlines() if line.startswith(str(path)) and ERROR.search(line)]
    code = re.search(r"\[([a-z0-9-]+)\]$", errors[0]) if errors else None
    if not finding:
        unplaced = [line for line in errors if not PLACED.match(line) and not WHOLE_FILE.search(line)]
        if status not in {0, 1}:
            finding = f"exit status {status}: {said[:200]}"
        elif "Traceback" in said:
            finding = f"traceback: {said[-200:]}"
        elif status == 1 and not errors:
            finding = f"status 1 without a diagnostic: {said[:200]}"
        elif unplaced:
            finding = f"no place: {unplaced[0].replace(str(path), 'FILE')[:200]}"
        elif status == 0 and not out.getvalue():
            finding = "status 0 and nothing said"
    return {"status": status if isinstance(status, int) else -1, "code": code[1] if code else "", "finding": finding}


def judged_in_process(data: bytes, *, full: bool) -> str:
    """What is wrong with the answer to a mutant, read as by the command line; nothing is placed unless it is `full`.

    Without the search for layouts a mutant costs milliseconds. What is well-typed also prints as it reads.
    """
    from shardwright.compiling.compile_program import load, print_program
    from shardwright.ir.diagnostics import DiagnosticError, Source
    from shardwright.ir.verification.verifier import Level, verify

    if full:
        with tempfile.TemporaryDirectory() as folder:
            return judged(data, Path(folder) / "mutant.shard")["finding"]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ""  # read from a file only
    try:
        program = load(Source("mutant.shard", text))
        verify(program, Level.SURFACE)
        printed = print_program(program)
        if print_program(load(Source("again.shard", printed))) != printed:
            return f"prints otherwise the second time:\n{printed}"
    except DiagnosticError as error:
        rendered = error.render()
        for diagnostic in error.diagnostics:
            if f"{diagnostic.message} [{diagnostic.code}]" not in rendered or not diagnostic.as_json()["code"]:
                return f"a diagnostic is not shown: {diagnostic.message}"
            if diagnostic.span.line < 1:
                return f"no place: {diagnostic.message}"
    return ""
