"""The canonical text: what it looks like, that it means the same, and that nothing written is lost."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.ir.diagnostics import Source
from shardwright.ir.names import DTYPES, is_valid_name
from shardwright.ir.text import syntax as ast
from shardwright.ir.text.format import WIDTH, format_expr, format_module, format_type
from shardwright.ir.text.parser import parse, parse_type

SAMPLES = {
    "ffn": """\
# Feedforward split over both dimensions of each weight
mesh x=2 y=2 z=2
dim B=8 E=64 order x y z F=256

func ffn(x: bf16 BE_xyz, w_in: bf16 E_xF_yz, w_out: bf16 F_yzE_x) -> bf16 BE_xyz {
  h: BF? = x @ w_in  # partial over x
  return gelu(h) @ w_out
}
""",
    "stack": """\
mesh x=2 y=2
dim N=4 B=8 L=16 T=64 E=64 V=512 D=16

weights {
  table: V_xyE
  scale: f32 NE  # one for each layer

  # the last one
  w: int8 NE_xD
}
state {
  k: NB_xyTD
  pos: int32
}

func decode[L=1](ids: int32 BL) -> f32 BV_xy {
  x: BLE_xy = lookup[V](table, ids)

  y: BLE_xy = loop[N as i](h: BLE_xy = x) {
    a = layernorm[E, eps=1e-5](h, scale)
    k1 = rename[L -> T](rotary[D, base=10000, style=neox](a @[E] (convert[bf16](w) * 0.5), pos))
    set k = update[T](k, k1, pos)
    next h + a  # carried on
  }
  set pos = pos + 1
  return take[L, -1](y) @[E] table
  # nothing follows
}
""",
    "explicit": """\
mesh data=2 model=4
dim batch=8 embed=64 order data 2 model heads=16

func f(x: f32 [batch_{data} embed_?], y: bf16 [batch embed]?) -> ([batch], f32, int32) {
  s: [batch_{data}](partialsum-{model}) = sum[embed](x)
  t :~ [batch] = all_gather[{data,model}](all_reduce[model](s))
  u = all_to_all[data: batch -> embed, model: embed -> batch](y)
  v = reduce_scatter[{data,model} -> embed](rename[batch -> b2](u))
  return t, size[embed] * -inf, convert[int32](v)
}
""",
    "offload": """\
dim B=8 E=64 F=256 M=2 T=4 N=3

func f(x: BE, w: f16 EF on device 20% host 80% along F, u: f16 EF on ?) -> int32 BT {
  loop[T] {
    loop[N as n] {
      v: EF on device = fetch(w)
      loop[M] {
        set hid = store[host](gelu[form=tanh](x @[E] v))
      }
    }
  }
  m: f32 B(partialmax-x) = where(iota[T]() - iota[B](), x, -inf)
  return take[T 0:2](m) / concat[B, by=yz](m, m)
}

func g() -> () {}
""",
}


def _parse(text: str) -> ast.Module:
    return parse(Source("p.shard", text))


def _formatted(text: str) -> str:
    """The canonical text, after the checks that hold for every text."""
    module = _parse(text)
    once = format_module(module)
    again = _parse(once)
    assert again == module
    assert format_module(again) == once
    assert sorted(c.text for c in again.comments) == sorted(c.text for c in module.comments)
    assert not any(line != line.rstrip() for line in once.split("\n"))
    return once


@pytest.mark.parametrize("name", SAMPLES)
def test_canonical_text_is_left_alone(name: str) -> None:
    assert _formatted(SAMPLES[name]) == SAMPLES[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_spaces_do_not_matter(name: str) -> None:
    text = SAMPLES[name]
    spread = text.replace(" = ", "   =  ").replace(", ", " ,").replace("  ", "     ").replace("\n", "\r\n")
    assert _formatted(spread) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("B_zyE_{ x }".replace(" ", ""), "B_yzE_x"),
        ("f32   [B_{y,x} E]", "f32 B_xyE"),
        ("[B E_{data,axis}]?", "[B E_{axis,data}]?"),
        ("B_xE_{data,model}", "[B_{x} E_{data,model}]"),
        ("f32 []", "f32"),
        ("[]", "[]"),
        ("B (partialsum-zx)", "B(partialsum-xz)"),
        ("f32 (partialsum-x)", "f32 (partialsum-x)"),
        ("[b](partialmax-{x,y})", "[b](partialmax-xy)"),
        ("BE(partialsum-?) on ?", "BE(partialsum-?) on ?"),
        ("BE on host 100%", "BE on host"),
        ("BE on device 33.250% disk 66.75% along E", "BE on device 33.25% disk 66.75% along E"),
    ],
)
def test_type(text: str, expected: str) -> None:
    written = parse_type(Source("type", text))
    assert format_type(written) == expected
    assert parse_type(Source("type", expected)) == written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("((a))", "a"),
        ("(a * b) + (c)", "a * b + c"),
        ("a * (b + c)", "a * (b + c)"),
        ("a - (b - c)", "a - (b - c)"),
        ("(a - b) - c", "a - b - c"),
        ("a * (b @ c)", "a * b @ c"),
        ("(a * b) @ c", "(a * b) @ c"),
        ("(a @[E] b) @ c", "(a @[E] b) @ c"),
        ("a @ (-b)", "a @ -b"),
        ("-(a @ b)", "-(a @ b)"),
        ("(-a) * b", "-a * b"),
        ("-(-a)", "--a"),
        ("f((a + b), (c))", "f(a + b, c)"),
        ("f[ E,eps = 1e-5 ](a)", "f[E, eps=1e-5](a)"),
        ("(size[E])", "size[E]"),
    ],
)
def test_fewest_brackets(text: str, expected: str) -> None:
    module = _parse(f"func f(x: B) -> B {{ y = {text} }}")
    assert format_module(module) == f"func f(x: B) -> B {{\n  y = {expected}\n}}\n"


def test_blank_lines() -> None:
    text = (
        "\n\n\nmesh x=2\n\n\n\ndim B=2\nfunc f(x: B) -> B {\n\n\n  y = x\n\n\n  # c\n\n  return y\n\n}\n\n\n# end\n\n"
    )
    assert _formatted(text) == (
        "mesh x=2\n\ndim B=2\nfunc f(x: B) -> B {\n  y = x\n\n  # c\n\n  return y\n}\n\n# end\n"
    )


def test_comments_stay_where_they_are() -> None:
    text = """\
# first
mesh x=2  # mesh
func f(
  # before a
  a: B,  # behind a
  b: B  # behind b
  # after b
) -> B {  # body
  # inside
  y = f(
    # before the first
    a,  # the first
    g(
      b  # the second
    ),
    b  # the third
    # the last
  ) + 1  # whole
  loop[N as i](
    h = a,  # carried
    g = b
  ) {  # loop
    # empty
  }  # closed
}  # f

weights {  # w
  # none
}
# end
"""
    assert _formatted(text) == text


def test_comments_without_a_place_stand_above() -> None:
    text = "func f(x: B) -> B {\n  y = (x  # left\n    + # right\n x)  # whole\n  return y, ( # one\n y)\n}\n"
    assert _formatted(text) == (
        "func f(x: B) -> B {\n  # left\n  # right\n  y = x + x  # whole\n  # one\n  return y, y\n}\n"
    )


def test_a_comment_in_an_operand_stands_above_the_operand() -> None:
    text = "func f(x: B) -> B {\n  y = g(x, x  # left\n    + x)\n}\n"
    assert _formatted(text) == ("func f(x: B) -> B {\n  y = g(\n    x,\n    # left\n    x + x\n  )\n}\n")


def test_long_lines_are_broken() -> None:
    name = "activation_of_the_previous_layer"
    text = (
        f"func f({name}: bf16 BLE_xyz, second_{name}: bf16 BLE_xyz, w: bf16 E_xF_yz) -> bf16 BLE_xyz {{\n"
        f"  y = {name} @[E] rename[L -> T](rotary[D, base=10000, style=neox]({name} @[E] w, second_{name}))\n"
        f"  loop[N](h = {name}, g = rename[L -> T](second_{name}), k = rename[L -> T](second_{name})) {{ next h }}\n"
        "}\n"
    )
    formatted = _formatted(text)
    assert formatted == (
        "func f(\n"
        f"  {name}: bf16 BLE_xyz,\n"
        f"  second_{name}: bf16 BLE_xyz,\n"
        "  w: bf16 E_xF_yz\n"
        ") -> bf16 BLE_xyz {\n"
        f"  y = {name} @[E] rename[L -> T](\n"
        "    rotary[D, base=10000, style=neox](\n"
        f"      {name} @[E] w,\n"
        f"      second_{name}\n"
        "    )\n"
        "  )\n"
        "  loop[N](\n"
        f"    h = {name},\n"
        f"    g = rename[L -> T](second_{name}),\n"
        f"    k = rename[L -> T](second_{name})\n"
        "  ) {\n"
        "    next h\n"
        "  }\n"
        "}\n"
    )
    assert max(map(len, formatted.split("\n"))) <= WIDTH


def test_a_program_that_nobody_wrote() -> None:
    """Nodes without places: blank lines between the parts, none within them."""
    spoken = _parse(SAMPLES["stack"])
    made = ast.Module(tuple(_placeless(item) for item in spoken.items))
    text = format_module(made)
    assert _parse(text) == spoken
    assert text.startswith("mesh x=2 y=2\ndim N=4 B=8 L=16 T=64 E=64 V=512 D=16\n\nweights {\n  table: V_xyE\n")
    assert "\n}\n\nstate {\n" in text
    assert "\n}\n\nfunc decode[L=1](ids: int32 BL) -> f32 BV_xy {\n  x: BLE_xy = lookup[V](table, ids)\n  y:" in text


def _placeless(node: Any) -> Any:
    """A copy of a node in which nothing has a place."""
    if isinstance(node, tuple):
        return tuple(map(_placeless, cast("tuple[Any, ...]", node)))
    if not isinstance(node, ast.Node):
        return node
    kept = {k: _placeless(v) for k, v in vars(node).items() if k not in ("span", "brace")}
    return type(node)(**kept)


# ---------------------------------------------------------------- generated programs

WORDS = st.sampled_from(["x", "h1", "w_in", "q_", "embed", "a__b", "kv_heads", "y2z"])
NAMES = WORDS.filter(is_valid_name)
CAPITALS = st.sampled_from(["B", "E", "F2", "H", "KV"]).map(lambda name: name[0] + name[1:].replace("V", "7"))
AXES = st.lists(st.sampled_from(["x", "y", "z2"]), unique=True).map(lambda axes: tuple(sorted(axes)))
LONG_AXES = st.lists(st.sampled_from(["x", "data", "model"]), unique=True).map(lambda axes: tuple(sorted(axes)))
INTEGERS = st.integers(0, 10**15 - 1)


@st.composite
def _rows(draw: st.DrawFn) -> ast.LayoutRow:
    compact = draw(st.booleans())
    name, axes = (CAPITALS, AXES) if compact else (st.one_of(CAPITALS, WORDS), LONG_AXES)
    dims = draw(st.lists(st.builds(ast.RowDim, name, st.none() | axes), min_size=int(compact), max_size=4))
    return ast.LayoutRow(tuple(dims), draw(st.booleans()))


PARTIALS = st.builds(ast.PartialExpr, st.sampled_from(["sum", "max"]), st.none() | LONG_AXES.filter(bool))
PERCENTS = st.integers(1, 999).map(lambda tenths: tenths / 10)
PLACEMENTS = st.one_of(
    st.just(ast.PlacementExpr(None)),
    st.sampled_from(["device", "host", "disk"]).map(lambda tier: ast.PlacementExpr(((tier, 100.0),))),
    st.builds(
        ast.PlacementExpr,
        st.tuples(st.tuples(st.just("device"), PERCENTS), st.tuples(st.just("disk"), PERCENTS)),
        st.none() | CAPITALS | WORDS,
    ),
)
TYPES = st.builds(
    ast.TypeExpr, st.none() | st.sampled_from(DTYPES), st.none() | _rows(), st.none() | PARTIALS, st.none() | PLACEMENTS
).filter(lambda t: (t.dtype is not None or t.row is not None) and not (t.dtype and t.row and not t.row.dims))

COMPACT_DIMS = st.lists(st.builds(ast.RowDim, CAPITALS), min_size=1, max_size=3).map(tuple)
LONG_DIMS = st.lists(st.builds(ast.RowDim, st.one_of(CAPITALS, WORDS), LONG_AXES), max_size=3).map(tuple)
DIMS = st.builds(ast.DimsStatic, st.one_of(COMPACT_DIMS, LONG_DIMS))
WORD = st.one_of(
    st.one_of(WORDS, st.sampled_from(["host", "bf16"])).map(lambda word: ast.WordStatic((word,))),
    st.lists(WORDS, min_size=1, max_size=3).map(lambda words: ast.WordStatic(tuple(words), braces=True)),
)
LEFT_WORD = WORD.filter(lambda word: word.words != ("bf16",))
NUMBERS = st.one_of(
    INTEGERS.map(str),
    st.sampled_from(["inf", "0.5", "1e-5", "3.", "2.5e+10"]),
    st.floats(0, 1e6).map(lambda f: f"{f:.6f}"),
).map(ast.NumberExpr)
SIGNED = NUMBERS | st.builds(ast.NegExpr, NUMBERS)
STATICS = st.one_of(
    DIMS,
    WORD,
    st.builds(ast.IntStatic, st.integers(-(10**14), 10**14)),
    st.builds(ast.ArrowStatic, st.one_of(DIMS, LEFT_WORD), DIMS),
    st.builds(ast.MoveStatic, LEFT_WORD, DIMS, DIMS),
    st.builds(ast.RangeStatic, st.one_of(CAPITALS, WORDS), INTEGERS, INTEGERS),
    st.builds(ast.OptionStatic, WORDS, st.one_of(SIGNED, WORD, DIMS)),
)


def _larger(inner: st.SearchStrategy[ast.Expr]) -> st.SearchStrategy[ast.Expr]:
    statics = st.lists(STATICS, max_size=3).map(tuple)
    contracted = st.none() | st.lists(st.builds(ast.RowDim, st.one_of(CAPITALS, WORDS)), min_size=1, max_size=2).map(
        tuple
    )
    return st.one_of(
        st.builds(ast.NegExpr, inner),
        st.builds(ast.BinaryExpr, st.sampled_from("+-*/"), inner, inner),
        st.builds(ast.ContractExpr, inner, inner, contracted),
        st.builds(ast.CallExpr, NAMES, statics, st.lists(inner, max_size=4).map(tuple)),
    )


EXPRESSIONS = st.recursive(
    st.one_of(
        st.builds(ast.NameExpr, NAMES),
        NUMBERS,
        CAPITALS.map(lambda dim: ast.CallExpr("size", (ast.DimsStatic((ast.RowDim(dim),)),), None)),
    ),
    _larger,
    max_leaves=12,
)
TARGETS = st.one_of(st.builds(ast.AssignedName, NAMES), st.builds(ast.AssignedName, NAMES, TYPES, st.booleans()))
LINES = st.one_of(
    st.builds(ast.LetStmt, st.lists(TARGETS, min_size=1, max_size=2).map(tuple), EXPRESSIONS),
    st.builds(ast.SetStmt, NAMES, EXPRESSIONS),
    st.builds(ast.NextStmt, st.lists(EXPRESSIONS, min_size=1, max_size=3).map(tuple)),
    st.builds(ast.ReturnStmt, st.lists(EXPRESSIONS, max_size=3).map(tuple)),
)
STATEMENTS = st.recursive(
    LINES,
    lambda inner: st.builds(
        ast.LoopStmt,
        st.lists(TARGETS, max_size=2).map(tuple),
        st.one_of(CAPITALS, WORDS),
        st.none() | NAMES,
        st.lists(st.builds(ast.CarrySyntax, TARGETS, EXPRESSIONS), max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=4,
)
FACTORS = st.lists(st.one_of(INTEGERS, CAPITALS, WORDS), min_size=1, max_size=3).map(tuple)
SIZES = st.builds(ast.SizeExpr, st.lists(FACTORS, min_size=1, max_size=3).map(tuple))
ORDERS = st.none() | st.lists(st.one_of(WORDS, INTEGERS), max_size=3).map(tuple)
DECLS = st.lists(st.builds(ast.Decl, NAMES, TYPES), max_size=4).map(tuple)
ITEMS = st.one_of(
    st.builds(ast.MeshItem, st.lists(st.builds(ast.MeshAxis, WORDS, INTEGERS), min_size=1, max_size=3).map(tuple)),
    st.builds(
        ast.DimItem,
        st.lists(st.builds(ast.DimDecl, st.one_of(CAPITALS, WORDS), SIZES, ORDERS), min_size=1, max_size=3).map(tuple),
    ),
    st.builds(ast.WeightsItem, DECLS),
    st.builds(ast.StateItem, DECLS),
    st.builds(
        ast.FuncItem,
        NAMES,
        st.lists(st.builds(ast.DimDecl, st.one_of(CAPITALS, WORDS), SIZES), max_size=2).map(tuple),
        DECLS,
        st.lists(TYPES, max_size=3).map(tuple),
        st.lists(STATEMENTS, max_size=4).map(tuple),
    ),
)
MODULES = st.builds(ast.Module, st.lists(ITEMS, min_size=1, max_size=4).map(tuple))


@settings(max_examples=300, deadline=None)
@given(MODULES)
def test_generated_programs_round_trip(module: ast.Module) -> None:
    text = format_module(module)
    read = _parse(text)
    assert read == module
    assert format_module(read) == text


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS)
def test_generated_expressions_round_trip(expr: ast.Expr) -> None:
    text = format_expr(expr)
    (func,) = _parse(f"func f(x: B) -> B {{ return {text} }}").items
    assert isinstance(func, ast.FuncItem)
    assert func.body == (ast.ReturnStmt((expr,)),)


@settings(max_examples=200, deadline=None)
@given(TYPES)
def test_generated_types_round_trip(written: ast.TypeExpr) -> None:
    assert parse_type(Source("type", format_type(written))) == written


@settings(max_examples=200, deadline=None)
@given(MODULES, st.data())
def test_comments_and_line_breaks_anywhere(module: ast.Module, data: st.DataObject) -> None:
    """A comment may be put wherever a line may end; formatting keeps every one and settles at once."""
    lines = format_module(module).split("\n")[:-1]
    for number in range(len(lines)):
        if data.draw(st.booleans()):
            lines[number] += f"  # c{number}"
        if data.draw(st.integers(0, 3)) == 0:
            lines[number] += f"\n\n   # own {number}"
        if lines[number].count("(") and data.draw(st.booleans()) and "partial" not in lines[number]:
            lines[number] = (
                lines[number].replace("(", f"( # in {number}\n", 1) if "#" not in lines[number] else lines[number]
            )
    _formatted("\n".join(lines))
