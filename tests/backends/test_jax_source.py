"""Emitted modules as text: they stand alone, read well, and let no name of a program do harm."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from oracles.jax_agreement import check, explicit

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.source_text import WIDTH, Forms
from shardwright.compiling.compile_program import explicit as surface_explicit
from shardwright.compiling.compile_program import load
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Number
from shardwright.ir.program import Let
from shardwright.ir.text.parser import parse

FEEDFORWARD = """
mesh x=2 y=2 z=2
dim B=8 L=16 E=64
dim E=64 order x y z
dim F=256 order y z x
func ffn(x: bf16 BLE_xyz, w_in: bf16 E_xF_yz, w_out: bf16 F_yzE_x) -> bf16 BLE_xyz {
  x_gathered = all_gather[yz](x)
  h_partial: bf16 BLF_yz(partialsum-x) = x_gathered @[E] w_in
  h = reduce_scatter[x -> F](h_partial)
  h_active = gelu(h)
  h_gathered = all_gather[x](h_active)
  y_partial: bf16 BLE_x(partialsum-yz) = h_gathered @[F] w_out
  y = reduce_scatter[yz -> E](y_partial)
  return y
}
""".replace("dim B=8 L=16 E=64\n", "dim B=8 L=16\n")

DECODER = """
mesh x=2 y=2
dim N=4 B=4 T=32 H=4 D=8 E=32 V=64
dim F=64
weights { table: bf16 V_xyE
          w_q: bf16 NEH_xyD
          w_k: bf16 NED
          w_v: bf16 NED
          w_o: bf16 NH_xyDE
          scale: f32 NE }
state { k: bf16 NB_xyTD
        v: bf16 NB_xyTD
        pos: int32 }
func decode(ids: int32 B) -> int32 B {
  e_partial = lookup[V](table, ids)
  e = all_reduce[xy](e_partial)
  last: bf16 BE = loop[N as layer](hidden: bf16 BE = e) {
    n32 = convert[f32](hidden)
    normed32 = rmsnorm[E](n32, scale)
    normed = convert[bf16](normed32)
    q_heads = normed @[E] w_q
    q = all_to_all[xy: H -> B](q_heads)
    k_whole = normed @[E] w_k
    k_mine = slice[xy -> B](k_whole)
    v_whole = normed @[E] w_v
    v_mine = slice[xy -> B](v_whole)
    k_new = update[T](k, k_mine, pos)
    set k = k_new
    v_new = update[T](v, v_mine, pos)
    set v = v_new
    scores: f32 B_xyHT = q @[D] k
    there: int32 T = iota[T]()
    seen = less_equal(there, pos)
    masked = where(seen, scores, -inf)
    weights32 = softmax[T](masked)
    p = convert[bf16](weights32)
    o = p @[T] v
    o_heads = all_to_all[xy: B -> H](o)
    out_partial: bf16 BE(partialsum-xy) = o_heads @[HD] w_o
    out = all_reduce[xy](out_partial)
    next hidden + out
  }
  logits: f32 BV_xy = last @[E] table
  whole = all_gather[xy](logits)
  token = argmax[V](whole)
  later = pos + 1
  set pos = later
  return token
}
"""


def test_feedforward(golden: Callable[[str, str], None]) -> None:
    golden("jax/feedforward_2d.py.txt", emit(explicit(FEEDFORWARD), ["Feedforward layer, 2D weight-stationary."]))
    check(FEEDFORWARD, "ffn")


def test_decoder(golden: Callable[[str, str], None]) -> None:
    golden("jax/decoder.py.txt", emit(explicit(DECODER), ["A small decoder, attention sharded over the batch."]))
    check(DECODER, "decode", pos=5)


@pytest.mark.parametrize("text", [FEEDFORWARD, DECODER])
def test_imports_jax_and_numpy_only(text: str) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(emit(explicit(text)))):
        if isinstance(node, ast.Import):
            imported.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= {"jax", "numpy"}


MANY = ", ".join(f"argument_{i}: f32 A_x" for i in range(9))
MANY = f"mesh x=2\ndim A=4\nfunc f({MANY}) -> (f32 A_x, f32 A_x) {{\n  return argument_0, argument_8\n}}\n"


@pytest.mark.parametrize("text", [FEEDFORWARD, DECODER, MANY])
def test_lines_are_not_long_and_nothing_is_unused(text: str, tmp_path: Path) -> None:
    source = emit(explicit(text))
    assert max(map(len, source.splitlines())) <= WIDTH
    path = tmp_path / "compiled.py"
    path.write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_a_module_runs_without_shardwright(tmp_path: Path) -> None:
    path = tmp_path / "compiled.py"
    path.write_text(emit(explicit(FEEDFORWARD)), encoding="utf-8")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import compiled, jax, jax.numpy as jnp\n"
        "f = compiled.build_ffn(compiled.make_mesh())\n"
        "y = f(jnp.ones((8, 16, 64), 'bfloat16'), jnp.ones((64, 256), 'bfloat16'), jnp.ones((256, 64), 'bfloat16'))\n"
        "assert y.shape == (8, 16, 64) and y.dtype == jnp.bfloat16, y\n"
        "assert not [m for m in sys.modules if m.startswith('shardwright')]\n"
        "print(float(y[0, 0, 0]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) == 256 * 64


def test_names_of_the_module_are_left_to_it() -> None:
    text = """mesh x=2
dim A=4 B=8
weights { jax: f32 A
          lax_: f32 A
          put: f32 A }
state { np: f32 A_x }
func lax(jnp: f32 A, carry: f32 A, lax: f32 A) -> f32 A {
  mesh_ = jnp + carry
  shape = mesh_ + lax
  xs = shape + jax
  name = xs * put
  rotary = name * lax_
  sl = slice[x -> A](rotary)
  set np = sl
  return rotary
}
"""
    program = check(text, "lax")
    source = emit(program)
    assert "def build_lax(mesh):" in source
    assert "def lax__(weights, state, jnp_, carry_, lax__):" in source
    assert "xs_ = shape_ + jax_  # f32 A" in source


def fails(program: object, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        emit(program)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message), str(caught.value)


def test_names_that_python_does_not_take() -> None:
    program = explicit("mesh x=2\ndim A=4\nfunc f(a: f32 A) -> f32 A {\n  b = a\n  return b\n}\n")
    func = program.func("f")
    for name in ("import", "a.b", "A", "x\ny", "__import__", ""):
        fails(replace(program, funcs=(replace(func, name=name),)), f"{name!r} cannot be a name in Python source")
        body = func.body[0]
        assert isinstance(body, Let)
        renamed = replace(body, results=(replace(body.result, name=name),))
        fails(
            replace(program, funcs=(replace(func, body=(renamed,), returns=("a",)),)),
            f"{name!r} cannot be a name in Python source",
        )
    fails(replace(program, mesh=Mesh((("x'", 2),))), '"x\'" cannot be a name in Python source')
    dim = replace(program.dims[0], name="A\nimport os")
    fails(replace(program, dims=(dim,)), "'A\\nimport os' cannot be a dimension in Python source")


def test_numbers_are_written_anew() -> None:
    """A literal's text never reaches the source, only its value."""
    program = explicit("dim A=4\nfunc f(a: f32 A) -> f32 A {\n  b = a + 1.50\n  return b\n}\n")
    func = program.func("f")
    (statement,) = func.body
    assert isinstance(statement, Let)
    assert "b = a + 1.5  # f32 A" in emit(program)
    changed = replace(statement, operands=("a", Number("1_0.0")))
    assert "b = a + 10.0  # f32 A" in emit(replace(program, funcs=(replace(func, body=(changed,)),)))


def test_a_header_stays_in_the_docstring() -> None:
    program = explicit("dim A=4\nfunc f(a: f32 A) -> f32 A {\n  b = a\n  return b\n}\n")
    source = emit(program, ['checked """ + evil() + """', "C:\\new\\u12", "two\nlines"])
    tree = ast.parse(source)
    assert (ast.get_docstring(tree) or "").splitlines()[:4] == [
        "checked ''' + evil() + '''",
        "C:\\new\\u12",
        "two",
        "lines",
    ]
    assert "evil" not in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_what_jax_cannot_hold() -> None:
    text = "dim A=4\nfunc f(a: f32 A on disk) -> f32 A {\n  b = fetch(a)\n  return b\n}\n"
    fails(explicit(text), "a: f32 A on disk cannot be held by JAX, which has device and host memory")
    body = "b = store[disk](a)\n  c = rename[A -> B](b)\n  return fetch(c)"
    text = f"dim A=4 B=4\nfunc f(a: f32 A) -> f32 B {{\n  {body}\n}}\n"
    fails(explicit(text), "a value on disk cannot be held by JAX, which has device and host memory")


def test_holes() -> None:
    program = elaborate(
        parse(Source("t", "mesh x=2\ndim A=4\nfunc f(a: f32 A) -> f32 A {\n  b: f32 A_? = -a\n  return b\n}\n"))
    )
    fails(program, "b: f32 A_? has holes, and JAX source is made of explicit programs")


def test_host_memory() -> None:
    program = check("""mesh x=2
dim A=4 N=3
weights { w: f32 NA_x on host }
state { h: f32 A_x on host }
func f(a: f32 A_x) -> f32 A_x {
  y = loop[N](c: f32 A_x = a) {
    here = fetch(w)
    next c * here
  }
  old = fetch(h)
  z = y + old
  there: f32 A_x on host = store[host](z)
  set h = there
  return z
}
""")
    source = emit(program)
    assert "here = jax.device_put(w, jax.memory.Space.Device)  # f32 A_x" in source
    assert "there = jax.device_put(z, jax.memory.Space.Host)  # f32 A_x on host" in source
    assert "ON_HOST = {'w', 'h'}" in source


TWO_PRODUCTS = """
mesh x=2
dim N=2 B=8 E=16 F=32
weights { w_in: NEF_x
          w_out: NF_xE }
func ffn(x: BE) -> BE {
  y = loop[N](h: BE = x) {
    g = silu(h @[E] w_in)
    next h + tanh(g @[F] w_out)
  }
  return y
}
"""


def test_products_are_finished_before_others_read_them() -> None:
    """The last tanh is read by no product of the same trip, and `g` by one."""
    program = surface_explicit(load(Source("a.shard", TWO_PRODUCTS)))
    plain, finished = emit(program), emit(program, forms=Forms(finished_products=True))
    assert "optimization_barrier" not in plain
    (line,) = (line for line in finished.splitlines() if "optimization_barrier" in line)
    assert line.strip().startswith("g = lax.optimization_barrier(jax.nn.silu(")
    changed = [line for line in finished.splitlines() if line not in plain.splitlines()]
    assert changed == [line]
