"""Options that commands share, and the parser that reads them."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, get_args

if TYPE_CHECKING:
    from shardwright.cost.hardware.chips import Chip
    from shardwright.cost.hardware.constants import Constants
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.program import Program
    from shardwright.passes.base import Proof
    from shardwright.passes.compiling.place import Place

_AXIS = re.compile(r"[a-z][a-z0-9_]*")
_DIM = re.compile(r"[A-Z][0-9]*|[a-z][a-z0-9_]*")
_SIZE = re.compile(r"[1-9][0-9]{0,17}")

Rule = Callable[[argparse.Namespace], str | None]


class Parser(argparse.ArgumentParser):
    """argparse with help of at most a screen, options written out in full, and the nearest option where one is
    unknown."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)
        self._rules: list[Rule] = []
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="everything about each option")

    def format_help(self) -> str:
        """At most a screen (`shardwright.cli.help`)."""
        from shardwright.cli.help import help_text

        return help_text(self)

    def format_all(self) -> str:
        """The text that argparse says: every option with all there is to say about it."""
        return super().format_help()

    def check(self, rule: Rule) -> None:
        """Add a rule between options: it gives what is wrong with the parsed arguments, or None."""
        self._rules.append(rule)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Like argparse's; ends the process with status 2 where the usage is wrong."""
        parsed, left = self.parse_known_args(args, namespace)
        options = [word for word in left if word.startswith("-") and word != "-"]
        if options:
            self._refuse_option(options[0].partition("=")[0])
        if left:
            self.error(f"unexpected argument {left[0]}")
        for problem in filter(None, (rule(parsed) for rule in self._rules)):
            self.error(problem)
        return parsed

    def _refuse_option(self, word: str) -> NoReturn:
        from shardwright.ir.diagnostics import did_you_mean

        known = [option for action in self._actions for option in action.option_strings]
        near = did_you_mean(word, known)
        self.error(f"unknown option {word}" + (f"; did you mean {near}?" if near else ""))

    def error(self, message: str) -> NoReturn:
        """Say what is wrong; exit status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class _HelpAll(argparse.Action):
    """Prints all of the help, and ends the process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.format_all(), end="")
        parser.exit()


class Subparsers(Protocol):
    """The part of argparse's subparsers that a command uses."""

    @property
    def choices(self) -> Mapping[str, Parser]:
        """The parsers that were added, by name."""
        ...

    def add_parser(self, name: str, *, description: str = ...) -> Parser:
        """Add the parser of the command `name`."""
        ...


class _Numbers(argparse.Action):
    """Collects `x=2,y=2` into a dict from name to number, as `read` reads it; may be given more than once."""

    def __init__(self, *, names: re.Pattern[str], rule: str, read: Callable[[str], float], **kwargs: Any) -> None:
        super().__init__(default={}, **kwargs)
        self.names, self.rule, self.read = names, rule, read

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        numbers: dict[str, float] = dict(getattr(namespace, self.dest))
        for part in re.split(r"[,\s]+", str(values).strip()):
            name, equals, text = part.partition("=")
            if not equals:
                raise argparse.ArgumentError(self, f"{part!r} is not {self.metavar}")
            if not self.names.fullmatch(name):
                raise argparse.ArgumentError(self, f"{name!r} is not a name here; {self.rule}")
            if name in numbers:
                raise argparse.ArgumentError(self, f"{name} is given twice")
            try:
                numbers[name] = self.read(text)
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentError(self, f"{name}: {error}") from None
        setattr(namespace, self.dest, numbers)


def _size(text: str) -> int:
    if not _SIZE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1 up."""
    if not text.isascii() or not text.isdigit() or not text.lstrip("0"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    if len(text.lstrip("0")) > 12:
        raise argparse.ArgumentTypeError(f"{text!r} has more than 12 digits")
    return int(text)


def natural(text: str) -> int:
    """A whole number from 0 up."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    if len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} has more than 18 digits")
    return int(text)


def name_of_chip(text: str) -> str:
    """A chip's name, or a path; nothing is neither, as of a variable of the shell that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} names no chip")
    return text


def number(least: float, most: float | None = None) -> Callable[[str], float]:
    """A reader of finite numbers from `least` up, or above it and up to `most`."""
    wanted = f"a number from {least:g} up" if most is None else f"a number above {least:g} and up to {most:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least <= value < math.inf if most is None else least < value <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return read


def time_window(text: str) -> tuple[float, float]:
    """BEGIN:END in seconds, as in 0.5:2."""
    begin, _, end = text.partition(":")
    try:
        window = float(begin), float(end)
    except ValueError:
        window = (0.0, 0.0)
    if not 0 <= window[0] < window[1] < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not BEGIN:END in seconds, as in 0.5:2")
    return window


def size_in_bytes(text: str) -> int:
    """Bytes, as in 16GB (10^9) or 16GiB (2^30)."""
    from shardwright.cost.hardware.toml_files import parse_size

    size = parse_size(text)
    if not size:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in bytes, as in 16GB or 512MiB")
    return int(size)


def add_file(parser: Parser) -> None:
    """FILE, a `.shard` program."""
    parser.add_argument("file", metavar="FILE", help="a .shard program; - reads standard input")


def add_mesh(add: Callable[..., object], what: str = "sizes of the mesh's axes") -> None:
    """--mesh, by a parser's `add_argument`: a dict from axis to size, empty where not given."""
    add(
        "--mesh",
        action=_Numbers,
        metavar="x=2,y=2",
        names=_AXIS,
        rule="an axis is lower-case, as in x=2,y=2",
        read=_size,
        help=what,
    )


def add_sizes(parser: Parser) -> None:
    """--mesh and --dim, which override the file's own; dicts from name to size, empty where not given."""
    add_mesh(parser.add_argument)
    parser.add_argument(
        "--dim",
        action=_Numbers,
        metavar="E=16,F=8",
        names=_DIM,
        rule="a dimension is a capital letter with or without a number, or a word, as in E=16,F1=8,embed=4",
        read=_size,
        help="sizes of dimensions",
    )


def add_micro_batches(parser: Parser) -> None:
    """--micro-batches, of pipeline stages."""
    parser.add_argument(
        "--micro-batches", metavar="M", type=positive, default=1, help="of a program with pipeline stages (default: 1)"
    )


def add_json(parser: Parser) -> None:
    """--json: one JSON object on standard output."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")


ATTENTION = ("head", "batch", "positions")
"""What attention may be split over (`models.layouts`)."""


def add_attention(add: Callable[..., object], default: str | None, otherwise: str) -> None:
    """`--attention head|batch|positions`, by a parser's `add_argument`; `otherwise` says what holds where it is not
    given."""
    add(
        "--attention",
        choices=ATTENTION,
        default=default,
        help=f"what attention and the cache are split over; positions: what heads of keys leave (default: {otherwise})",
    )


def add_weights(add: Callable[..., object]) -> None:
    """`--weights FORMAT`: how the weights of a model are stored."""
    add(
        "--weights",
        choices=("bf16", "int8", "f8e4m3"),
        default="bf16",
        help="the format of stored weights (default: bf16)",
    )


def add_formats(add: Callable[..., object]) -> None:
    """`--weights FORMAT` and `--cache-format FORMAT`: what a run keeps in few bits."""
    from shardwright.ir.types import StoredFormat

    add("--weights", choices=get_args(StoredFormat), help="quantize the weights while they are loaded")
    add("--cache-format", choices=get_args(StoredFormat), help="quantize the cache")


def add_experts(parser: Parser, default: str, add: Callable[..., object] | None = None) -> None:
    """`--experts replicated|routed|all-to-all` and `--expert-capacity F`, which bounds the slots of the last."""
    add = add or parser.add_argument
    add(
        "--experts",
        choices=("replicated", "routed", "all-to-all"),
        default=default,
        help="every expert computes every token; or those that the router chooses do, where they are (routed) or where "
        f"tokens are sent to (default: {default})",
    )
    add(
        "--expert-capacity",
        type=number(0.0, 1000.0),
        metavar="F",
        help="with --experts all-to-all, an expert takes F times its even share of the tokens, and drops those beyond "
        "(default: it takes all)",
    )
    parser.check(_capacity_needs_sending)


def add_pages(parser: Parser) -> None:
    """`--page-size S` and `--pages P`, of a cache whose rows have pages of a pool."""
    add = parser.add_argument_group(
        "pages", "keep keys and values in pages, which a table has of each row"
    ).add_argument
    add("--page-size", type=positive, metavar="S", help="positions of a page")
    add("--pages", type=positive, metavar="P", help="pages for all rows (default: enough)")


def _capacity_needs_sending(args: argparse.Namespace) -> str | None:
    given = args.expert_capacity is not None and args.experts != "all-to-all"
    return "--expert-capacity needs --experts all-to-all" if given else None


def add_chip(parser: Parser, *, required: bool = False, datasheet: bool = False) -> None:
    """--chip NAME, and --datasheet."""
    parser.add_argument(
        "--chip",
        type=name_of_chip,
        metavar="NAME",
        required=required,
        help="a chip by name, or the path of a chip file"
        + ("" if required else " (default: a program's own, else a reference chip)"),
    )
    if datasheet:
        parser.add_argument(
            "--datasheet", action="store_true", help="the chip's rates as given, without what measurements say of them"
        )


def chip_of(args: argparse.Namespace) -> Chip:
    """The chip that `--chip` names. Raises where there is none."""
    from shardwright.cost.hardware.chips import load_chip
    from shardwright.ir.diagnostics import Source, located

    with located(Source("--chip", "")):
        return load_chip(args.chip)


def chip_and_constants(args: argparse.Namespace, program: Program | None = None) -> tuple[Chip, Constants]:
    """The chip and the constants that `--chip` and `--datasheet` say; without `--chip` the program's chip, else the
    reference chip. Raises where there is no such chip."""
    from shardwright.cost.choosing.objective import chip_for
    from shardwright.cost.hardware.constants import DATASHEET

    chip = chip_of(args) if program is None or args.chip else chip_for(program)
    return chip, DATASHEET if args.datasheet else chip.constants


def add_target(parser: Parser, why: str) -> None:
    """--target CHIP:SHAPE and --time-limit SECONDS."""
    parser.add_argument("--target", metavar="CHIP:SHAPE", help=f"{why}; `shardwright targets` lists them")
    parser.add_argument(
        "--time-limit",
        type=number(0.0, 1e6),
        metavar="SECONDS",
        help="end the compiler after so long (default: 900)",
    )


def add_dtype(parser: Parser) -> None:
    """--dtype f32|bf16|f16, of a checkpoint's weights and of activations."""
    parser.add_argument(
        "--dtype", choices=("f32", "bf16", "f16"), help="of weights and activations (default: the checkpoint's)"
    )


def choice_of(args: argparse.Namespace) -> dict[str, Any]:
    """How layouts are chosen, as Python's functions take it."""
    if args.chip:
        chip_of(args)  # where there is none, it is this option's fault
    return {"objective": args.objective, "chip": args.chip or "", "calls": args.calls, "solver": args.solver}


def add_choice(parser: Parser, *, chip: bool = True) -> None:
    """How layouts are chosen: --chip NAME (unless the command has it already), --objective, --calls and --solver."""
    if chip:
        said = "the chip that layouts are chosen for, under its memory, by name or by the path of a chip file"
        said += " (default: the program's own, else a reference chip)"
        parser.add_argument("--chip", type=name_of_chip, metavar="NAME", help=said)
    parser.add_argument(
        "--objective",
        choices=("time", "bytes"),
        default="time",
        help="time: the least predicted time; bytes: the fewest bytes received per chip (default: time)",
    )
    parser.add_argument(
        "--calls",
        action=_Numbers,
        metavar="prefill=1,decode=256",
        names=_AXIS,
        rule="a function is lower-case, as in prefill=1,decode=256",
        read=number(0.0, 1e12),
        help="how often functions are called, once where they are not named; layouts of weights count for all",
    )
    parser.add_argument(
        "--solver",
        choices=("auto", "ortools"),
        default="auto",
        help="ortools: the whole problem goes to HiGHS through OR-tools, without elimination, bounds and descent "
        "before it (default: auto)",
    )


def place_of(args: argparse.Namespace) -> Place:
    """The pass that chooses layouts so."""
    from shardwright.passes.compiling.place import Place

    return Place.of(**choice_of(args))


def warn(proof: Proof | None) -> None:
    """Says on standard error what is to be said of chosen layouts."""
    import sys

    for warning in proof.warnings if proof is not None else ():
        print(f"warning: {warning}", file=sys.stderr)


def add_shardings(parser: Parser) -> None:
    """--shardings FILE.mlir: a module in MLIR with Shardy's attributes."""
    parser.add_argument(
        "--shardings",
        metavar="FILE.mlir",
        help="take the types of arguments and results from a module in MLIR, as Shardy has them: "
        "jit(f).lower(...).as_text() of JAX, or what `export --as shardy` writes; - reads standard input",
    )


def stated_shardings(args: argparse.Namespace) -> Source | None:
    """The text of `--shardings`."""
    from shardwright.cli.output import read_program

    return read_program(args.shardings) if args.shardings else None


def print_notes(name: str, notes: Sequence[str]) -> None:
    """Says on standard error what a program has no words for in the file of this name."""
    import sys

    print("".join(f"{name}: note: {note}\n" for note in notes), end="", file=sys.stderr)


def add_output(
    parser: Parser,
    metavar: str,
    *,
    required: bool = False,
    kind: Callable[[str], str] = str,
    otherwise: str = "standard output otherwise",
) -> None:
    """-o OUT, a path as text, read by `kind`; None where not given, which means what `otherwise` says."""
    where = "" if required else f"; {otherwise}"
    parser.add_argument("-o", "--output", metavar=metavar, required=required, type=kind, help=f"write here{where}")


def json_needs_output(args: argparse.Namespace) -> str | None:
    """The rule of commands whose result and whose JSON would both go to standard output."""
    both = args.json and args.output in {None, "-"}
    return "--json needs -o: both would use standard output" if both else None


def json_apart(output: str = "output") -> Callable[[argparse.Namespace], str | None]:
    """The rule of commands that write their result where `output` says, beside what they print."""

    def problem(args: argparse.Namespace) -> str | None:
        both = args.json and getattr(args, output) == "-"
        return "--json needs -o, or no -o at all" if both else None

    return problem


def one_of(kind: str, *suffixes: str) -> Callable[[str], str]:
    """A reader of file names that end in one of `suffixes`, which choose the format."""

    def read(text: str) -> str:
        if not text.endswith(tuple(f".{suffix}" for suffix in suffixes)):
            raise argparse.ArgumentTypeError(f"{text!r} does not say which {kind}; end it in .{', .'.join(suffixes)}")
        return text

    return read
