"""Texts that are not programs, each with the exact report: place, reason, code and way out."""

from __future__ import annotations

import time

import pytest

from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.text.parser import parse

FAILURES: dict[str, tuple[str, list[str]]] = {
    "missing-equals": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y gelu(x)\n  return y\n}\n",
        [
            "p.shard:4:5: error: found `gelu`, expected `=` [syntax]",
            "    y gelu(x)",
            "      ^^^^",
            "note: a statement is `name = expression` or `name: TYPE = expression`",
        ],
    ),
    "missing-equals-after-type": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BF gelu(x)\n  return y\n}\n",
        [
            "p.shard:4:9: error: found `gelu`, expected `=` [syntax]",
            "    y: BF gelu(x)",
            "          ^^^^",
            "note: a statement is `name = expression` or `name: TYPE = expression`",
        ],
    ),
    "double-equals": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y == gelu(x)\n  return y\n}\n",
        [
            "p.shard:4:5: error: found `==`, expected `=` [syntax]",
            "    y == gelu(x)",
            "      ^^",
        ],
    ),
    "missing-arrow": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE) BE {\n  return x\n}",
        [
            "p.shard:3:15: error: found `BE`, expected `->` and the type of the result [syntax]",
            "  func f(x: BE) BE {",
            "                ^^",
            "note: write `-> TYPE {` after the parameters, or `-> () {` where nothing is returned",
        ],
    ),
    "missing-result-type": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE) {\n  return x\n}",
        [
            "p.shard:3:15: error: found `{`, expected `->` and the type of the result [syntax]",
            "  func f(x: BE) {",
            "                ^",
            "note: write `-> TYPE {` after the parameters, or `-> () {` where nothing is returned",
        ],
    ),
    "missing-brace": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE) -> BE\n  return x\n",
        [
            "p.shard:3:20: error: found the end of the line, expected `{` [syntax]",
            "  func f(x: BE) -> BE",
            "                     ^",
            "note: what a func, a loop, `weights` or `state` holds stands in braces, opened on the same line",
        ],
    ),
    "brace-on-next-line": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE) -> BE\n{\n  return x\n}",
        [
            "p.shard:3:20: error: found the end of the line, expected `{` [syntax]",
            "  func f(x: BE) -> BE",
            "                     ^",
            "note: what a func, a loop, `weights` or `state` holds stands in braces, opened on the same line",
        ],
    ),
    "capitalised-name": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  Hidden = gelu(x)\n  return y\n}\n",
        [
            "p.shard:4:3: error: `Hidden` is neither a name nor a layout [bad-name]",
            "    Hidden = gelu(x)",
            "    ^^^^^^",
            "note: names are lower case: `hidden`",
            "note: a layout is capital letters, each with `_` and its mesh axes: `BLE_xyz`",
        ],
    ),
    "capital-name": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  H = gelu(x)\n  return y\n}\n",
        [
            "p.shard:4:3: error: `H` cannot be a name: capital letters are dimensions [bad-name]",
            "    H = gelu(x)",
            "    ^",
            "note: names are lower case: `h`",
        ],
    ),
    "dimension-as-value": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = X @ w\n  return y\n}\n",
        [
            "p.shard:4:7: error: `X` is a dimension, not a value [bad-name]",
            "    y = X @ w",
            "        ^",
            "note: its size is `size[X]`",
        ],
    ),
    "keyword-assigned": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  next = x\n  return y\n}\n",
        [
            "p.shard:4:3: error: `next` cannot be a name: it is a word of the layout language [bad-name]",
            "    next = x",
            "    ^^^^",
            "note: rename it, say to `next_`",
        ],
    ),
    "keyword-as-name": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  state = gelu(x)\n  return y\n}\n",
        [
            "p.shard:4:3: error: `state` cannot be a name: it is a word of the layout language [bad-name]",
            "    state = gelu(x)",
            "    ^^^^^",
            "note: rename it, say to `state_`",
        ],
    ),
    "keyword-as-value": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = gelu(state)\n  return y\n}\n",
        [
            "p.shard:4:12: error: `state` is a word of the language, not a value [bad-name]",
            "    y = gelu(state)",
            "             ^^^^^",
        ],
    ),
    "python-keyword": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  lambda = gelu(x)\n  return y\n}\n",
        [
            "p.shard:4:3: error: `lambda` cannot be a name: it is a word of Python [bad-name]",
            "    lambda = gelu(x)",
            "    ^^^^^^",
            "note: rename it, say to `lambda_`",
        ],
    ),
    "python-builtin": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  len = gelu(x)\n  return y\n}\n",
        [
            "p.shard:4:3: error: `len` cannot be a name: it is a word of Python [bad-name]",
            "    len = gelu(x)",
            "    ^^^",
            "note: rename it, say to `len_`",
        ],
    ),
    "dtype-of-another-language": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: float32 BF = x @ w\n  return y\n}\n",
        [
            "p.shard:4:6: error: `float32` is not a number format [bad-type]",
            "    y: float32 BF = x @ w",
            "       ^^^^^^^",
            "note: did you mean f32?",
            "note: number formats are f32, bf16, f16, f8e4m3, f8e5m2, int8, int4, int32, uint32, bool",
        ],
    ),
    "word-as-type": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: embed = x\n  return y\n}\n",
        [
            "p.shard:4:6: error: `embed` is not a type [bad-type]",
            "    y: embed = x",
            "       ^^^^^",
            "note: a layout is written in capital letters, `BLE_xyz`, or in square brackets, `[embed]`",
        ],
    ),
    "partialsum-without-brackets": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BF partialsum-x = x @ w\n  return y\n}\n",
        [
            "p.shard:4:9: error: `partialsum` stands in round brackets [bad-type]",
            "    y: BF partialsum-x = x @ w",
            "          ^^^^^^^^^^",
            "note: write `(partialsum-x)`",
        ],
    ),
    "partialsum-without-hyphen": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BF(partialsum x) = x @ w\n  return y\n}\n",
        [
            "p.shard:4:8: error: this is not the form of a partial sum [bad-type]",
            "    y: BF(partialsum x) = x @ w",
            "         ^",
            "note: write `(partialsum-x)`, `(partialmax-x)` or `(partialsoftmax-x)`: a hyphen, then mesh axes",
        ],
    ),
    "comma-for-newline": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  a = x, b = w\n  return y\n}\n",
        [
            "p.shard:4:8: error: found `,`, expected the end of the line [syntax]",
            "    a = x, b = w",
            "         ^",
            "note: each stands on a line of its own, without a comma",
        ],
    ),
    "comma-in-mesh": (
        "mesh x=2, y=2\n",
        [
            "p.shard:1:9: error: found `,`, expected a space [syntax]",
            "  mesh x=2, y=2",
            "          ^",
            "note: sizes are separated by spaces",
        ],
    ),
    "comma-in-dim": (
        "dim B=2, E=2\n",
        [
            "p.shard:1:8: error: found `,`, expected a space [syntax]",
            "  dim B=2, E=2",
            "         ^",
            "note: sizes are separated by spaces",
        ],
    ),
    "number-with-unit": (
        "dim B=20GB\n",
        [
            "p.shard:1:7: error: `20GB` is not a number [bad-number]",
            "  dim B=20GB",
            "        ^^^^",
            "note: numbers have no unit: write `20`, or multiply it out",
        ],
    ),
    "underscore-in-number": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = x * 1_000\n  return y\n}\n",
        [
            "p.shard:4:11: error: `1_000` is not a number [bad-number]",
            "    y = x * 1_000",
            "            ^^^^^",
            "note: write it without `_`: `1000`",
        ],
    ),
    "contraction-chain": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = x @ w @ w\n  return y\n}\n",
        [
            "p.shard:4:13: error: a contraction of a contraction needs brackets [syntax]",
            "    y = x @ w @ w",
            "              ^",
            "note: write `(a @ b) @ c` or `a @ (b @ c)`",
        ],
    ),
    "subscript": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = x[0]\n  return y\n}\n",
        [
            "p.shard:4:10: error: the operands of `x` are missing [no-operands]",
            "    y = x[0]",
            "           ^",
            "note: write `x[...](x)`; only `size[D]` goes without round brackets",
        ],
    ),
    "two-statements-on-a-line": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = x z = w\n  return y\n}\n",
        [
            "p.shard:4:9: error: found `z`, expected an operator or the end of the line [syntax]",
            "    y = x z = w",
            "          ^",
            "note: a statement ends with the line; between two values there is an operator",
        ],
    ),
    "statement-at-top": (
        "mesh x=2\ndim B=8 E=64 F=64\ny = x\n",
        [
            "p.shard:3:1: error: a statement stands outside any func [syntax]",
            "  y = x",
            "  ^",
            "note: write it between the braces of `func name(...) -> TYPE { ... }`",
        ],
    ),
    "def-for-func": (
        "def f(x: BE) -> BE {\n}\n",
        [
            "p.shard:1:1: error: found `def`, expected `func` [syntax]",
            "  def f(x: BE) -> BE {",
            "  ^^^",
        ],
    ),
    "parameter-without-type": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x) -> BE {\n}",
        [
            "p.shard:3:8: error: `x` has no type [syntax]",
            "  func f(x) -> BE {",
            "         ^",
            "note: write `x: TYPE`, for example `x: bf16 BLE_x`",
        ],
    ),
    "missing-expression": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y =\n  return y\n}\n",
        [
            "p.shard:4:6: error: found the end of the line, expected an expression after `=` [syntax]",
            "    y =",
            "       ^",
        ],
    ),
    "missing-right-operand": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = x +\n  return y\n}\n",
        [
            "p.shard:4:10: error: found the end of the line, expected an expression after `+` [syntax]",
            "    y = x +",
            "           ^",
        ],
    ),
    "missing-argument": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = f(, x)\n  return y\n}\n",
        [
            "p.shard:4:9: error: found `,`, expected an expression after `(` [syntax]",
            "    y = f(, x)",
            "          ^",
        ],
    ),
    "missing-type": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: = x\n  return y\n}\n",
        [
            "p.shard:4:6: error: found `=`, expected a type after `:` [syntax]",
            "    y: = x",
            "       ^",
            "note: for example `bf16 BLE_xyz`; leave out the `:` to have the type chosen",
        ],
    ),
    "dtype-after-layout": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BF f32 = x\n  return y\n}\n",
        [
            "p.shard:4:9: error: the number format comes before the layout: `f32 BF` [bad-type]",
            "    y: BF f32 = x",
            "          ^^^",
        ],
    ),
    "space-in-layout": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: B F = x\n  return y\n}\n",
        [
            "p.shard:4:8: error: the dimensions of a layout are written without spaces [bad-type]",
            "    y: B F = x",
            "         ^",
            "note: write `BF`, or `[B F]` in the long form",
        ],
    ),
    "missing-on": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BF host = x\n  return y\n}\n",
        [
            "p.shard:4:9: error: `on` is missing before `host` [bad-type]",
            "    y: BF host = x",
            "          ^^^^",
            "note: write `on host`",
        ],
    ),
    "unknown-memory": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BF on hots = x\n  return y\n}\n",
        [
            "p.shard:4:12: error: `hots` is not a memory [bad-placement]",
            "    y: BF on hots = x",
            "             ^^^^",
            "note: did you mean host?",
            "note: memories are `device`, `host` and `disk`",
        ],
    ),
    "semicolon": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = x;\n  return y\n}\n",
        [
            "p.shard:4:8: error: `;` means nothing here [bad-character]",
            "    y = x;",
            "         ^",
            "note: a statement ends with the line",
        ],
    ),
    "string": (
        'mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = "x"\n  return y\n}\n',
        [
            'p.shard:4:7: error: `"` means nothing here [bad-character]',
            '    y = "x"',
            "        ^",
            "note: there are no strings in the language",
        ],
    ),
    "typographic-arrow": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE) → BE {\n}",
        [
            "p.shard:3:15: error: `→` means nothing here [bad-character]",
            "  func f(x: BE) → BE {",
            "                ^",
            "note: write `->`",
        ],
    ),
    "empty": (
        "",
        [
            "p.shard:1:1: error: there is no program in this text [empty]",
            "  ",
            "  ^",
            "note: a program has a `mesh`, a `dim` line and at least one `func`",
        ],
    ),
    "only-comments": (
        "# only\n\n",
        [
            "p.shard:1:1: error: there is no program in this text [empty]",
            "  # only",
            "  ^",
            "note: a program has a `mesh`, a `dim` line and at least one `func`",
        ],
    ),
    "tab": (
        "mesh x=2\ndim B=8 E=64 F=64\n\tfunc",
        [
            "p.shard:3:1: error: a tab character [tab]",
            "  \tfunc",
            "  ^",
            "note: indent with spaces; `fmt` uses two per level",
        ],
    ),
    "unclosed-parenthesis": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE -> BE {\n  return x\n}",
        [
            "p.shard:3:7: error: `(` is never closed [unclosed]",
            "  func f(x: BE -> BE {",
            "        ^",
            "p.shard:5:2: note: the text ends here",
            "  }",
            "   ^",
            "note: add the missing `)`",
        ],
    ),
    "unclosed-brace": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE) -> BE {\n  return x\n\nfunc g(x: BE) -> BE {\n  return x\n}",
        [
            "p.shard:3:21: error: `{` is never closed [unclosed]",
            "  func f(x: BE) -> BE {",
            "                      ^",
            "p.shard:6:1: note: `func` begins a new part of the program here",
            "  func g(x: BE) -> BE {",
            "  ^",
            "note: add the missing `}`",
        ],
    ),
    "stray-bracket": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = gelu(x))\n  return y\n}\n",
        [
            "p.shard:4:14: error: `)` closes a bracket that was never opened [stray-bracket]",
            "    y = gelu(x))",
            "               ^",
            "note: remove it",
        ],
    ),
    "huge-integer": (
        "dim B=12345678901234567890\n",
        [
            "p.shard:1:7: error: an integer of 20 digits is too large [too-large]",
            "  dim B=12345678901234567890",
            "        ^^^^^^^^^^^^^^^^^^^^",
            "note: integers have at most 15 digits",
        ],
    ),
    "huge-float": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = x * 1e999\n  return y\n}\n",
        [
            "p.shard:4:11: error: this number is too large [too-large]",
            "    y = x * 1e999",
            "            ^^^^^",
            "note: write `inf` for infinity",
        ],
    ),
    "missing-operands": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = softmax[E]\n  return y\n}\n",
        [
            "p.shard:4:16: error: the operands of `softmax` are missing [no-operands]",
            "    y = softmax[E]",
            "                 ^",
            "note: write `softmax[...](x)`; only `size[D]` goes without round brackets",
        ],
    ),
    "func-in-func": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  func g() -> B {}\n  return y\n}\n",
        [
            "p.shard:4:3: error: a func cannot stand inside another [syntax]",
            "    func g() -> B {}",
            "    ^^^^",
            "note: is the `}` of the func before it missing?",
        ],
    ),
    "loop-in-expression": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = 1 + loop[N] {}\n  return y\n}\n",
        [
            "p.shard:4:11: error: a loop cannot stand inside an expression [syntax]",
            "    y = 1 + loop[N] {}",
            "            ^^^^",
            "note: give its results names first: `y = loop[N](...) { ... }`",
        ],
    ),
    "malformed-layout": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BE_xY_ = x\n  return y\n}\n",
        [
            "p.shard:4:6: error: `BE_xY_` is not a layout [bad-layout]",
            "    y: BE_xY_ = x",
            "       ^^^^^^",
            "note: a layout is capital letters, each with `_` and its mesh axes: `BLE_xyz`",
        ],
    ),
    "empty-axes": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BE_{} = x\n  return y\n}\n",
        [
            "p.shard:4:7: error: a mesh axis is missing between the braces [bad-axes]",
            "    y: BE_{} = x",
            "        ^^^^",
            "note: write axes as in `E_xyz`, or as in `[embed_{data,model}]`",
        ],
    ),
    "axis-word-in-compact-layout": (
        "mesh data=2\nfunc f(x: BE_{data}) -> BE {}\n",
        [
            "p.shard:2:15: error: `data` reads as 4 axes of one letter here [bad-axes]",
            "  func f(x: BE_{data}) -> BE {}",
            "                ^^^^",
            "note: an axis with a name of several letters is written as in `[E_{data}]`",
        ],
    ),
    "axis-word-in-partial-sum": (
        "mesh data=2\nfunc f(x: BE(partialsum-data)) -> BE {}\n",
        [
            "p.shard:2:25: error: `data` reads as 4 axes of one letter here [bad-axes]",
            "  func f(x: BE(partialsum-data)) -> BE {}",
            "                          ^^^^",
            "note: an axis with a name of several letters is written as in `(partialsum-{data})`",
        ],
    ),
    "camel-case": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  hiddenSize = x\n  return y\n}\n",
        [
            "p.shard:4:3: error: `hiddenSize` is neither a name nor a layout [bad-name]",
            "    hiddenSize = x",
            "    ^^^^^^^^^^",
            "note: names are lower case: `hidden_size`",
            "note: a layout is capital letters, each with `_` and its mesh axes: `BLE_xyz`",
        ],
    ),
    "leading-underscore": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  _y = x\n  return y\n}\n",
        [
            "p.shard:4:3: error: `_y` is not a name [bad-name]",
            "    _y = x",
            "    ^^",
            "note: names begin with a lower-case letter",
        ],
    ),
    "power": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = x ^ 2\n  return y\n}\n",
        [
            "p.shard:4:9: error: `^` means nothing here [bad-character]",
            "    y = x ^ 2",
            "          ^",
            "note: there is no power operator",
        ],
    ),
    "axis-without-size": (
        "mesh x\n",
        [
            "p.shard:1:7: error: found the end of the line, expected `=` [syntax]",
            "  mesh x",
            "        ^",
        ],
    ),
    "negative-size": (
        "dim E=-3\n",
        [
            "p.shard:1:7: error: found `-`, expected a dimension or an integer [syntax]",
            "  dim E=-3",
            "        ^",
        ],
    ),
    "size-of-two-dimensions": (
        "dim EF=3\n",
        [
            "p.shard:1:5: error: `EF` is not one dimension [one-dimension]",
            "  dim EF=3",
            "      ^^",
            "note: name a single dimension here, without axes: a capital letter and digits, or a lower-case word",
        ],
    ),
    "text-after-brace": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE) -> BE { return x } y",
        [
            "p.shard:3:34: error: found `y` after `}` [syntax]",
            "  func f(x: BE) -> BE { return x } y",
            "                                   ^",
            "note: begin a new line",
        ],
    ),
    "missing-result": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE) -> {\n}\n",
        [
            "p.shard:3:18: error: found `{`, expected a type after `->` [syntax]",
            "  func f(x: BE) -> {",
            "                   ^",
            "note: for example `bf16 BLE_xyz`",
        ],
    ),
    "loop-without-dimension": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = loop(h = x) { next h }\n  return y\n}\n",
        [
            "p.shard:4:11: error: found `(`, expected `[` [syntax]",
            "    y = loop(h = x) { next h }",
            "            ^",
        ],
    ),
    "weight-without-type": (
        "weights {\n  w\n}\n",
        [
            "p.shard:2:3: error: `w` has no type [syntax]",
            "    w",
            "    ^",
            "note: write `w: TYPE`, for example `w: bf16 BLE_x`",
        ],
    ),
    "comma-between-weights": (
        "weights {\n  w: BE, v: BE\n}\n",
        [
            "p.shard:2:8: error: found `,`, expected the end of the line [syntax]",
            "    w: BE, v: BE",
            "         ^",
            "note: each stands on a line of its own, without a comma",
        ],
    ),
    "set-without-equals": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  set k gelu(x)\n  return y\n}\n",
        [
            "p.shard:4:9: error: found `gelu`, expected `=` [syntax]",
            "    set k gelu(x)",
            "          ^^^^",
        ],
    ),
    "half-open-range": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = take[E 0:](x)\n  return y\n}\n",
        [
            "p.shard:4:16: error: found `]`, expected an integer [syntax]",
            "    y = take[E 0:](x)",
            "                 ^",
        ],
    ),
    "lone-carriage-return": (
        "mesh x=2\rdim B=3\n",
        [
            "p.shard:1:9: error: U+000D means nothing here [bad-character]",
            "  mesh x=2�dim B=3",
            "          ^",
            "note: end lines with a line feed, or a carriage return and a line feed",
        ],
    ),
    "control-character": (
        "mesh \x01x=2\n",
        [
            "p.shard:1:6: error: U+0001 means nothing here [bad-character]",
            "  mesh �x=2",
            "       ^",
        ],
    ),
    "dangling-comma": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  return y,\n  return y\n}\n",
        [
            "p.shard:4:12: error: found the end of the line, expected an expression after `,` [syntax]",
            "    return y,",
            "             ^",
        ],
    ),
    "share-without-percent": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BF on device 20 host 80 = x\n  return y\n}\n",
        [
            "p.shard:4:19: error: found `20`, expected `=`, `,` or a percentage [syntax]",
            "    y: BF on device 20 host 80 = x",
            "                    ^^",
        ],
    ),
    "option-among-operands": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = softmax(x, causal=E)\n  return y\n}\n",
        [
            "p.shard:4:25: error: `E` is a dimension, not a value [bad-name]",
            "    y = softmax(x, causal=E)",
            "                          ^",
            "note: options stand in square brackets before the operands: `gelu[form=tanh](x)`",
        ],
    ),
    "let": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  let y = x\n  return y\n}\n",
        [
            "p.shard:4:3: error: there is no `let` [syntax]",
            "    let y = x",
            "    ^^^",
            "note: a statement begins with the name that it defines",
        ],
    ),
    "if": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  if x\n  return y\n}\n",
        [
            "p.shard:4:3: error: there is no `if` [syntax]",
            "    if x",
            "    ^^",
            "note: a choice between values is `where(condition, a, b)`",
        ],
    ),
    "empty-statics": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = softmax[](x)\n  return y\n}\n",
        [
            "p.shard:4:14: error: these square brackets are empty [syntax]",
            "    y = softmax[](x)",
            "               ^^",
            "note: leave them out where there is nothing to say",
        ],
    ),
    "capital-in-partial-sum": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y: BF(partialsum-X) = x\n  return y\n}\n",
        [
            "p.shard:4:8: error: this is not the form of a partial sum [bad-type]",
            "    y: BF(partialsum-X) = x",
            "         ^",
            "note: write `(partialsum-x)`, `(partialmax-x)` or `(partialsoftmax-x)`: a hyphen, then mesh axes",
        ],
    ),
    "method-call": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  y = x.sum()\n  return y\n}\n",
        [
            "p.shard:4:8: error: `.` means nothing here [bad-character]",
            "    y = x.sum()",
            "         ^",
            "note: there is nothing to the right of a dot: operations are written `name(x)`",
        ],
    ),
    "mesh-without-axes": (
        "mesh\n",
        [
            "p.shard:1:5: error: found the end of the line, expected a name [syntax]",
            "  mesh",
            "      ^",
        ],
    ),
    "lone-name": (
        "mesh x=2\ndim B=8 E=64 F=64\nfunc f(x: BE, w: EF) -> BF {\n  x\n  return y\n}\n",
        [
            "p.shard:4:4: error: found the end of the line, expected `=` [syntax]",
            "    x",
            "     ^",
            "note: a statement is `name = expression` or `name: TYPE = expression`",
        ],
    ),
    "prose": (
        "hello world\n",
        [
            "p.shard:1:1: error: a statement stands outside any func [syntax]",
            "  hello world",
            "  ^^^^^",
            "note: write it between the braces of `func name(...) -> TYPE { ... }`",
        ],
    ),
}


def _report(text: str) -> str:
    with pytest.raises(DiagnosticError) as caught:
        parse(Source("p.shard", text))
    return caught.value.render()


@pytest.mark.parametrize("name", FAILURES)
def test_report(name: str) -> None:
    text, expected = FAILURES[name]
    assert _report(text) == "\n".join(expected)


@pytest.mark.parametrize("bracket", ["(", "[", "{", "({["])
def test_ten_megabytes_of_open_brackets(bracket: str) -> None:
    started = time.process_time()
    report = _report(bracket * (10_000_000 // len(bracket)))
    assert time.process_time() - started < 2
    assert report.splitlines()[0] == "p.shard:1:101: error: brackets are nested more than 100 deep [too-deep]"
    assert len(report) < 1000


def _body(expression: str) -> str:
    return f"func f(x: B) -> B {{\n  y = {expression}\n  return y\n}}\n"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(" * 5000 + "x" + ")" * 5000, "brackets are nested more than 100 deep"),
        ("gelu(" * 5000 + "x" + ")" * 5000, "brackets are nested more than 100 deep"),
        ("x" + " + x" * 5000, "more than 100 operators in one expression"),
        ("-" * 5000 + "x", "more than 100 operators in one expression"),
        ("-" * 90 + "(" + "-" * 90 + "x)", "more than 100 operators in one expression"),
        ("(x" + " + x" * 60 + ")" + " * x" * 60, "more than 100 operators in one expression"),
    ],
)
def test_too_deep(expression: str, message: str) -> None:
    assert message in _report(_body(expression))
    assert "[too-deep]" in _report(_body(expression))


def test_wide_programs_are_not_deep() -> None:
    """Arguments and statements beside one another do not add up."""
    arguments = ", ".join(["-x + x * x"] * 200)
    parse(Source("p.shard", _body(f"f({arguments})")))
    parse(Source("p.shard", "func f(x: B) -> B {\n" + "  y = x + x\n" * 500 + "  return y\n}\n"))


def test_a_long_word_is_clipped() -> None:
    report = _report("mesh x=2\n" + "E" * 100_000)
    assert len(report) < 1000
    assert "`EEEE" in report
