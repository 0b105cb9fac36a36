"""Text to syntax tree: what each form of the language becomes, and where it stands."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

from shardwright.ir.diagnostics import DiagnosticError, Source, Span
from shardwright.ir.names import check_name, is_valid_name
from shardwright.ir.text import syntax as ast
from shardwright.ir.text.parser import comments, parse, parse_type, read_source
from shardwright.ir.text.syntax import RowDim


def _module(text: str) -> ast.Module:
    return parse(Source("p.shard", text))


def _statement(text: str) -> ast.Stmt:
    func = _module(f"func f(x: B) -> B {{\n{text}\n}}\n").items[0]
    assert isinstance(func, ast.FuncItem)
    (stmt,) = func.body
    return stmt


def _value(text: str) -> ast.Expr:
    stmt = _statement(f"y = {text}")
    assert isinstance(stmt, ast.LetStmt)
    return stmt.value


def _static(text: str) -> ast.Static:
    call = _value(f"op[{text}](x)")
    assert isinstance(call, ast.CallExpr)
    (static,) = call.statics
    return static


def _type(text: str) -> ast.TypeExpr:
    return parse_type(Source("type", text))


def _dims(*names: str) -> tuple[RowDim, ...]:
    return tuple(RowDim(name) for name in names)


def _name(name: str) -> ast.NameExpr:
    return ast.NameExpr(name)


# ---------------------------------------------------------------- sizes


def test_mesh_and_dim() -> None:
    module = _module("mesh data=4 m2=2\ndim E=64 order x y 2 z len=8 order F=4*E + 2*H2+len\n")
    assert module.items == (
        ast.MeshItem((ast.MeshAxis("data", 4), ast.MeshAxis("m2", 2))),
        ast.DimItem(
            (
                ast.DimDecl("E", ast.SizeExpr(((64,),)), ("x", "y", 2, "z")),
                ast.DimDecl("len", ast.SizeExpr(((8,),)), ()),
                ast.DimDecl("F", ast.SizeExpr(((4, "E"), (2, "H2"), ("len",)))),
            )
        ),
    )


# ---------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("text", "dims", "is_open"),
    [
        ("BLE", _dims("B", "L", "E"), False),
        ("BLE_zxy", (*_dims("B", "L"), RowDim("E", ("x", "y", "z"))), False),
        ("F_yzE_x", (RowDim("F", ("y", "z")), RowDim("E", ("x",))), False),
        ("E2_x1y10F", (RowDim("E2", ("x1", "y10")), RowDim("F")), False),
        ("B_{xy}E_{data,model}", (RowDim("B", ("x", "y")), RowDim("E", ("data", "model"))), False),
        ("BLF?", _dims("B", "L", "F"), True),
        ("BE_?", (RowDim("B"), RowDim("E", None)), False),
        ("B_?E_??", (RowDim("B", None), RowDim("E", None)), True),
        ("B_?E", (RowDim("B", None), RowDim("E")), False),
        ("[batch embed_{model,data}]", (RowDim("batch"), RowDim("embed", ("data", "model"))), False),
        ("[kv_heads_? len]?", (RowDim("kv_heads", None), RowDim("len")), True),
        ("[B E_xy F_{data}]", (RowDim("B"), RowDim("E", ("x", "y")), RowDim("F", ("data",))), False),
        ("[]", (), False),
    ],
)
def test_layout(text: str, dims: tuple[RowDim, ...], is_open: bool) -> None:
    assert _type(text) == ast.TypeExpr(None, ast.LayoutRow(dims, is_open))


def test_dtype() -> None:
    assert _type("f32") == ast.TypeExpr("f32", None)
    assert _type("f32 []") == ast.TypeExpr("f32", None)
    assert _type("int4 E") == ast.TypeExpr("int4", ast.LayoutRow(_dims("E")))


@pytest.mark.parametrize(
    ("text", "kind", "axes"),
    [
        ("(partialsum-x)", "sum", ("x",)),
        (" ( partialmax - zy )", "max", ("y", "z")),
        ("(partialsum-?)", "sum", None),
        ("(partialsum-data,model)", "sum", ("data", "model")),
        ("(partialsum-{model})", "sum", ("model",)),
    ],
)
def test_partial(text: str, kind: str, axes: tuple[str, ...] | None) -> None:
    assert _type(f"B{text}").partial == ast.PartialExpr(kind, axes)
    assert _type(f"BLF?{text}").row == ast.LayoutRow(_dims("B", "L", "F"), True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", ast.PlacementExpr((("host", 100.0),))),
        ("?", ast.PlacementExpr(None)),
        ("device 20% host 80% along F", ast.PlacementExpr((("device", 20.0), ("host", 80.0)), "F")),
        ("device 12.5% disk 87.5% along len", ast.PlacementExpr((("device", 12.5), ("disk", 87.5)), "len")),
    ],
)
def test_placement(text: str, expected: ast.PlacementExpr) -> None:
    assert _type(f"f16 EF on {text}").placement == expected


# ---------------------------------------------------------------- expressions


def test_precedence() -> None:
    a, b, c, d = map(_name, "abcd")
    assert _value("a + b * c @ d") == ast.BinaryExpr("+", a, ast.BinaryExpr("*", b, ast.ContractExpr(c, d)))
    assert _value("a - b - c") == ast.BinaryExpr("-", ast.BinaryExpr("-", a, b), c)
    assert _value("a / (b / c)") == ast.BinaryExpr("/", a, ast.BinaryExpr("/", b, c))
    assert _value("-a @ -b") == ast.ContractExpr(ast.NegExpr(a), ast.NegExpr(b))
    assert _value("-(a + b)") == ast.NegExpr(ast.BinaryExpr("+", a, b))
    assert _value("(a @ b) @[E] c") == ast.ContractExpr(ast.ContractExpr(a, b), c, _dims("E"))
    assert _value("a @[len EF] b") == ast.ContractExpr(a, b, _dims("len", "E", "F"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("0.25", 0.25), ("1.", 1.0), ("1e-5", 1e-5), ("2.5e+3", 2500.0), ("inf", float("inf"))],
)
def test_number(text: str, value: float) -> None:
    number = _value(text)
    assert number == ast.NumberExpr(text)
    assert isinstance(number, ast.NumberExpr)
    assert number.value == value


def test_call() -> None:
    assert _value("iota[T]()") == ast.CallExpr("iota", (ast.DimsStatic(_dims("T")),), ())
    assert _value("gelu(x)") == ast.CallExpr("gelu", (), (_name("x"),))
    assert _value("f(x, y,)") == ast.CallExpr("f", (), (_name("x"), _name("y")))
    assert _value("size[D] * 2") == ast.BinaryExpr(
        "*", ast.CallExpr("size", (ast.DimsStatic(_dims("D")),), None), ast.NumberExpr("2")
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yz", ast.WordStatic(("yz",))),
        ("{data,model}", ast.WordStatic(("data", "model"), braces=True)),
        ("bf16", ast.WordStatic(("bf16",))),
        ("host", ast.WordStatic(("host",))),
        ("BL", ast.DimsStatic(_dims("B", "L"))),
        ("[batch len]", ast.DimsStatic(_dims("batch", "len"))),
        ("15", ast.IntStatic(15)),
        ("-1", ast.IntStatic(-1)),
        ("E 0:32", ast.RangeStatic("E", 0, 32)),
        ("len 4:8", ast.RangeStatic("len", 4, 8)),
        ("H -> KG", ast.ArrowStatic(ast.DimsStatic(_dims("H")), ast.DimsStatic(_dims("K", "G")))),
        ("x -> F", ast.ArrowStatic(ast.WordStatic(("x",)), ast.DimsStatic(_dims("F")))),
        ("batch -> b2", ast.ArrowStatic(ast.WordStatic(("batch",)), ast.DimsStatic(_dims("b2")))),
        ("[len] -> [a b]", ast.ArrowStatic(ast.DimsStatic(_dims("len")), ast.DimsStatic(_dims("a", "b")))),
        (
            "{data,model} -> F",
            ast.ArrowStatic(ast.WordStatic(("data", "model"), braces=True), ast.DimsStatic(_dims("F"))),
        ),
        (
            "x: H -> batch",
            ast.MoveStatic(ast.WordStatic(("x",)), ast.DimsStatic(_dims("H")), ast.DimsStatic(_dims("batch"))),
        ),
        ("eps=1e-5", ast.OptionStatic("eps", ast.NumberExpr("1e-5"))),
        ("fill=-inf", ast.OptionStatic("fill", ast.NegExpr(ast.NumberExpr("inf")))),
        ("style=neox", ast.OptionStatic("style", ast.WordStatic(("neox",)))),
        ("causal=L", ast.OptionStatic("causal", ast.DimsStatic(_dims("L")))),
        ("by={data,model}", ast.OptionStatic("by", ast.WordStatic(("data", "model"), braces=True))),
        ("to=bf16", ast.OptionStatic("to", ast.WordStatic(("bf16",)))),
    ],
)
def test_static(text: str, expected: ast.Static) -> None:
    assert _static(text) == expected


# ---------------------------------------------------------------- statements


def test_statements() -> None:
    x = _name("x")
    assert _statement("a, b: f32 B = x") == ast.LetStmt(
        (ast.AssignedName("a"), ast.AssignedName("b", ast.TypeExpr("f32", ast.LayoutRow(_dims("B"))))), x
    )
    assert _statement("h :~ B = x") == ast.LetStmt(
        (ast.AssignedName("h", ast.TypeExpr(None, ast.LayoutRow(_dims("B"))), found=True),), x
    )
    assert _statement("set k = x") == ast.SetStmt("k", x)
    assert _statement("next x, x") == ast.NextStmt((x, x))
    assert _statement("return") == ast.ReturnStmt(())
    assert _statement("return x") == ast.ReturnStmt((x,))


def test_loop() -> None:
    x = _name("x")
    carries = (
        ast.CarrySyntax(ast.AssignedName("h"), x),
        ast.CarrySyntax(ast.AssignedName("g", ast.TypeExpr(None, ast.LayoutRow(_dims("B")))), x),
    )
    body = (ast.NextStmt((_name("h"), _name("g"))),)
    assert _statement("p, q = loop[N as i](h = x, g: B = x) { next h, g }") == ast.LoopStmt(
        (ast.AssignedName("p"), ast.AssignedName("q")), "N", "i", carries, body
    )
    assert _statement("loop[N] {\n}") == ast.LoopStmt((), "N", None, (), ())


def test_one_line_and_many_lines_are_the_same() -> None:
    one = "weights { w: B\n v: f32 }\nstate { k: B }\nfunc f[L=1 K=2*G](x: B) -> (B, f32) { return x, x }"
    many = """
        weights {
          w: B
          v: f32
        }

        state {
          k: B
        }
        func f[L=1, K=2*G](
            x: B,
          )
          -> (
            B,
            f32
          ) {

          return x, (
            x
          )
        }
    """.replace(")\n          ->", ") ->")
    assert _module(one) == _module(many)
    assert _module(one.replace("\n", "\r\n")) == _module(one)


def test_a_func_without_results() -> None:
    func = _module("func f() -> () {}\n").items[0]
    assert func == ast.FuncItem("f", (), (), (), ())


# ---------------------------------------------------------------- places

PROGRAM = """\
mesh x=2  # a mesh
# sizes
dim E=64 order x F=2*E

func f[L=1](x: bf16 B_xE on host,  # first
            w: [batch e_{x}](partialsum-y)) -> (BF, f32) {
  h: BF? = gelu[form=tanh](x @[E] w) * -2.5
  a, b = loop[N as i](c = h, d: B = take[E 0:3](x)) {
    set k = all_to_all[x: A -> B, {a,b}: B -> A](c)
    next c, size[E]
  }
  return a, rename[L -> T](b)
}
"""


def _nodes(node: ast.Node) -> Iterator[ast.Node]:
    yield node
    for entry in fields(node):
        found: Any = getattr(node, entry.name)
        pieces = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else (found,)
        for piece in pieces:
            if isinstance(piece, ast.Node):
                yield from _nodes(piece)


def _cut(text: str, span: Span) -> str:
    lines = text.split("\n")[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return "\n".join(lines)


def test_every_node_has_its_place() -> None:
    written = [(type(node).__name__, _cut(PROGRAM, node.span)) for node in _nodes(_module(PROGRAM))]
    assert all(text.strip() == text and text for _, text in written)
    for expected in [
        ("MeshAxis", "x=2"),
        ("DimDecl", "E=64 order x"),
        ("SizeExpr", "2*E"),
        ("Decl", "x: bf16 B_xE on host"),
        ("RowDim", "B_x"),
        ("RowDim", "e_{x}"),
        ("PartialExpr", "(partialsum-y)"),
        ("PlacementExpr", "on host"),
        ("TypeExpr", "[batch e_{x}](partialsum-y)"),
        ("AssignedName", "h: BF?"),
        ("BinaryExpr", "gelu[form=tanh](x @[E] w) * -2.5"),
        ("ContractExpr", "x @[E] w"),
        ("OptionStatic", "form=tanh"),
        ("NegExpr", "-2.5"),
        ("CarrySyntax", "d: B = take[E 0:3](x)"),
        ("RangeStatic", "E 0:3"),
        ("MoveStatic", "{a,b}: B -> A"),
        ("ArrowStatic", "L -> T"),
        ("CallExpr", "size[E]"),
        ("ReturnStmt", "return a, rename[L -> T](b)"),
        ("Comment", "# first"),
    ]:
        assert expected in written
    func = _module(PROGRAM).items[2]
    assert isinstance(func, ast.FuncItem)
    assert func.brace == Span(6, 58, 6, 59)
    assert func.span == Span(5, 1, 13, 2)


def test_comments() -> None:
    found = comments(Source("p.shard", PROGRAM))
    assert [(c.text, c.own_line, c.span.line, c.span.column) for c in found] == [
        ("# a mesh", False, 1, 11),
        ("# sizes", True, 2, 1),
        ("# first", False, 5, 36),
    ]


# ---------------------------------------------------------------- files and names


def test_read_source(tmp_path: Path) -> None:
    path = tmp_path / "p.shard"
    path.write_bytes(b"\xef\xbb\xbfmesh x=2\r\n")
    assert read_source(path) == Source(str(path), "mesh x=2\r\n")


@pytest.mark.parametrize(
    ("data", "report"),
    [
        (b"mesh x=2\n\0", ": error: this is a binary file, not a program [binary]"),
        (b"mesh x=2\n# caf\xe9", ":2:6: error: the byte 0xe9 is not UTF-8 text [not-utf8]"),
        (None, ": error: there is no such file [no-file]"),
    ],
)
def test_unreadable_files(tmp_path: Path, data: bytes | None, report: str) -> None:
    path = tmp_path / "p.shard"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DiagnosticError) as caught:
        read_source(path)
    assert caught.value.render().splitlines()[0] == f"{path}{report}"


@pytest.mark.parametrize("lines", [1, 100])
def test_the_text_of_a_program_is_no_path(lines: int) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read_source("mesh x=2\n" + "dim B=4\n" * lines)
    assert caught.value.render().splitlines() == [
        "<text>: error: the text of a program stands where the path of a file is wanted [no-file]",
        'note: name a file, or give the text as one: Source("program", text)',
    ]


def test_a_folder_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        read_source(tmp_path)
    assert caught.value.render().splitlines() == [
        f"{tmp_path}: error: this is a folder, not a file [not-a-file]",
        "note: name one of the `.shard` files in it",
    ]


@pytest.mark.parametrize("name", ["x", "w_in", "k2", "ids_", "a__b"])
def test_valid_names(name: str) -> None:
    assert is_valid_name(name)
    assert _value(name) == _name(name)


@pytest.mark.parametrize("name", ["X", "", "_x", "2x", "naïve", "f32", "next", "lambda", "None", "len", "match"])
def test_invalid_names(name: str) -> None:
    assert not is_valid_name(name)
    with pytest.raises(DiagnosticError):
        check_name(name, Span(1, 1, 1, 2))


def test_the_grammar_has_no_conflicts(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lark resolves shift/reduce conflicts silently unless asked."""
    from lark import Lark, logger

    monkeypatch.setattr(logger, "level", logging.DEBUG)
    monkeypatch.setattr(logger, "propagate", True)
    grammar = (Path(__file__).parents[2] / "ir" / "text" / "grammar.lark").read_text(encoding="utf-8")
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        Lark(grammar, parser="lalr", lexer="basic", start=["module", "lone_type"], debug=True)
    assert [record.message for record in caplog.records if "onflict" in record.message] == []
