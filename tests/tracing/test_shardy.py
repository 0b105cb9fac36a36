"""Shardings that a module in MLIR states become types, and what types do not say is told at its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome

from shardwright import DiagnosticError, Source, explicit, load, opt, print_program, trace
from shardwright.backends.jax.module_files import import_file
from shardwright.exporting.shardy import shardy_text
from shardwright.ir.program import Program, Value
from shardwright.ir.types import OpenType

Run = Callable[..., Outcome]
EXAMPLES = sorted(path.name for path in Path("examples").glob("*.shard"))

ADDENDS = """mesh x=2 y=4
dim B=16 E=32 F=64
weights {
  w_in: EF_y
  w_unread: EF_y
  w_out: F_yE
}
state {
  k: B_xE
  j: BE_x on host
}
func f(a: B_xE(partialsum-y), unread: BE_xy) -> BE_x(partialsum-y) {
  h = relu(a @ w_in)
  o = h @ w_out
  set k = a
  return o
}
func g(a: B_xE(partialmax-y)) -> (BE_y, B_xE(partialmax-y)) {
  b = relu(a)
  return b, b
}
"""
"""Partial values at edges, memories, and what functions do not read."""


def without_layouts(program: Program) -> Program:
    """The program with nothing said of its edges but how partial values are combined."""

    def opened(value: Value) -> Value:
        kind = value.type
        return replace(value, type=replace(OpenType.any_split(value.shape), partial=kind.partial))

    def func_opened(func: Any) -> Any:
        results = tuple(replace(OpenType.any_split(kind.shape), partial=kind.partial) for kind in func.results)
        return replace(func, params=tuple(map(opened, func.params)), results=results)

    return replace(
        program,
        weights=tuple(map(opened, program.weights)),
        state=tuple(map(opened, program.state)),
        funcs=tuple(map(func_opened, program.funcs)),
    )


def edges(program: Program) -> list[object]:
    stored = [(value.name, str(value.type)) for value in (*program.weights, *program.state)]
    return [*stored, *(([str(v.type) for v in f.params], list(map(str, f.results))) for f in program.funcs)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [*EXAMPLES, "addends"])
def test_what_is_exported_reads_back_to_the_same_types(name: str) -> None:
    text = ADDENDS if name == "addends" else Path("examples", name).read_text()
    written = explicit(load(Source(name, text)))
    read = opt(without_layouts(written), shardings=shardy_text(written))
    assert edges(read) == edges(written)
    assert print_program(load(Source("read", print_program(read)))) == print_program(read)


MODEL = """import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))


def forward(params, x, unread):
    h = jax.nn.relu(x @ params["up"])
    return {"out": h @ params["down"], "sum": h.sum()}


def array(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)) if spec else None)


def arguments(*specs):
    params = {"down": array((128, 64), *specs[0]), "up": array((64, 128), *specs[1])}
    return params, array((32, 64), *specs[2]), array((3,))


def example_args():
    return arguments((), (), ())


def lowered():
    results = {"out": NamedSharding(mesh, P("data")), "sum": None}
    given = arguments(("model",), (None, ("model", "data")), ("data", P.UNCONSTRAINED))
    return jax.jit(forward, out_shardings=results).trace(*given).lower(lowering_platforms=("cpu",)).as_text()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A function in a file, and beside it how JAX lowers it with shardings that the file does not have."""
    path = tmp_path / "sharded_model.py"
    path.with_suffix(".mlir").write_text(import_file(path, MODEL).lowered())
    return path


def test_shardings_of_a_lowered_function_are_demands_on_its_program(shardwright: Run, model: Path) -> None:
    out = model.with_suffix(".shard")
    done = shardwright("trace", f"{model}:forward", "--shardings", model.with_suffix(".mlir"), "-o", out)
    assert done.status == 0, done.err
    head = out.read_text().partition("{\n")[0]
    assert head == (
        "mesh data=2 model=4\n"
        "dim A=64 B=3 C=32 E=64 F=128 order model data\n\n"
        "func forward(\n"
        "  down: f32 [F_{model} A],\n"
        "  up: f32 [E F_{data,model}],\n"
        "  x: f32 [C_{data} E_?],\n"
        "  unread: f32 B?\n"
        ") -> (f32 [C_{data} A], f32) "
    )
    plain = model.with_name("plain.shard")
    assert shardwright("trace", f"{model}:forward", "-o", plain).status == 0
    done = shardwright("opt", plain, "--shardings", model.with_suffix(".mlir"))
    assert done.out == out.read_text()


def module(arguments: str, results: str = "(tensor<8x4xf32>)", mesh: str = '["x"=2, "y"=2]') -> str:
    return f"""module @jit_f {{
  sdy.mesh @mesh = <{mesh}>
  func.func public @main({arguments}) -> {results} {{
    return %a : tensor<8x4xf32>
  }}
}}
"""


def sharded(sharding: str) -> str:
    return module(f"%a: tensor<8x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}")


PLAIN = "dim A=8 B=4\nfunc f(a: f32 AB?) -> f32 AB? {\n  return a\n}\n"


def same(a: Any) -> Any:
    return a


def demanded(text: str, program: str = PLAIN) -> str:
    """The type of the parameter of a program that returns it, under a module's shardings."""
    return str(opt(load(Source("p.shard", program)), shardings=Source("f.mlir", text)).funcs[0].params[0].type)


@pytest.mark.parametrize(
    ("sharding", "kind"),
    [
        ('[{"x", "y"}, {}]', "f32 A_xyB"),
        ('[{"x"}, {?}]', "f32 A_xB_?"),
        ("[{?}, {?}]", "f32 AB?"),
        ('[{?}, {"x"}], replicated={"y"}', "f32 AB_x"),
        ('[{"x"}, {}], replicated={"y"}', "f32 A_xB"),
        ('[{"x"}p1, {?}p0]', "f32 A_xB_?"),
        ('[{}, {"y"}], unreduced={"x"}', "f32 AB_y(partialsum-x)"),
        ('[{?}, {?}], unreduced={"x"}', "f32 AB?(partialsum-x)"),
    ],
)
def test_shardings_as_types(sharding: str, kind: str) -> None:
    assert demanded(sharded(sharding)) == kind


def test_what_types_do_not_say_is_noted(shardwright: Run, tmp_path: Path) -> None:
    path, text = tmp_path / "p.shard", tmp_path / "f.mlir"
    path.write_text(PLAIN)
    text.write_text(sharded('[{"x", ?}p1, {?}]'))
    done = shardwright("opt", path, "--shardings", text)
    assert done.out == "mesh x=2 y=2\ndim A=8 B=4\n\nfunc f(a: f32 A_xB_?) -> f32 AB? {\n  return a\n}\n"
    assert done.err == (
        f"{text}: note: argument 1: priorities are left out: they say in which order Shardy propagates\n"
        f"{text}: note: argument 1: {{x, ?}} is taken as split over x alone\n"
    )


def test_a_traced_function_takes_addends() -> None:
    import jax

    text = sharded('[{}, {"y"}], unreduced={"x"}')
    made = trace(same, [jax.ShapeDtypeStruct((8, 4), "float32")], name="f", shardings=text)
    assert "f32 CB_y(partialsum-x)" in made.text or "_y(partialsum-x)" in made.text


SPLIT = '[{"x"}, {}]'
TWO = PLAIN + PLAIN[PLAIN.index("func") :].replace("func f", "func g")
AS_TEXT = "jax.jit(f).lower(...).as_text() is such a text, and what `export --as shardy` writes"
SAME = "the module has to be of the same function at the same sizes"

REFUSED: dict[str, tuple[str, str, str, str, str]] = {
    "no MLIR": (
        "HloModule jit_f\n",
        PLAIN,
        "1:1",
        "this cannot be read as MLIR: custom op 'HloModule' is unknown (tried 'builtin.HloModule' as well)",
        AS_TEXT,
    ),
    "an axis that the mesh lacks": (
        sharded('[{"z"}, {}]'),
        PLAIN,
        "3:3",
        "this cannot be read as MLIR: 'func.func' op arg 0 - unknown axis name: \"z\"",
        AS_TEXT,
    ),
    "a part of an axis": (
        sharded('[{"x":(1)2}, {}]').replace('"x"=2', '"x"=4'),
        PLAIN,
        "3:26",
        'argument 1 is split over a part of the axis x, "x":(1)2',
        "types name whole axes: give the mesh an axis for each part of x",
    ),
    "a hole without an axis": (
        sharded('[{?}, {?}], replicated={"y"}'),
        PLAIN,
        "3:26",
        "argument 1 is whole along y and open along others, and a hole may take any axis",
        'close its dimensions, {} for {?}, or leave "replicated" out',
    ),
    "no sharding": (module("%a: tensor<8x4xf32>"), PLAIN, "", "no argument and no result has a sharding", AS_TEXT),
    "GSPMD's": (
        module('%a: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}'),
        PLAIN,
        "3:26",
        "the sharding of argument 1 is GSPMD's, \"{devices=[2,1]<=[2]}\", and not Shardy's",
        "jax.config.update('jax_use_shardy_partitioner', True) before lowering, which is JAX's default",
    ),
    "another mesh": (
        sharded(SPLIT),
        "mesh x=2 z=2\n" + PLAIN,
        "3:3",
        "the module is for the mesh x=2 y=2, and the program has x=2 z=2",
        "--mesh x=2,y=2",
    ),
    "other sizes": (sharded(SPLIT), PLAIN.replace("A=8", "A=16"), "3:26", "argument 1 is 8x4, and a 16x4", SAME),
    "other arguments": (
        sharded(SPLIT),
        PLAIN.replace("a: f32 AB?", "a: f32 AB?, b: f32 AB?").replace("return a", "return a + b"),
        "3:3",
        "the number of the module's arguments is 1, and the function f has 2, of which it reads 2",
        "jit leaves out what the function does not read: lower jax.jit(f, keep_unused=True)",
    ),
    "other results": (
        sharded(SPLIT),
        PLAIN.replace("-> f32 AB?", "-> (f32 AB?, f32 AB?)").replace("return a", "return a, a"),
        "3:3",
        "the number of the module's results is 1, and of the function f 2",
        SAME,
    ),
    "no function's": (
        sharded(SPLIT).replace("jit_f", "jit_h"),
        TWO,
        "3:3",
        "the module jit_h is of no function of the program, which has f, g",
        "a module is of the function of its name, jit_NAME",
    ),
    "one function's twice": (
        sharded(SPLIT) + "// -----\n" + sharded(SPLIT),
        PLAIN,
        "3:3",
        "two modules are of the function f",
        "leave one of them",
    ),
    "an axis of no name": (
        sharded(SPLIT).replace('"x"', '"Data"'),
        PLAIN,
        "3:26",
        "the mesh of argument 1 has the axis 'Data', and no axis of a program can be called that",
        "axes are lower-case words, as x or data, and none of the language's or of Python's",
    ),
    "devices in another order": (
        sharded(SPLIT).replace('"y"=2]', '"y"=2], device_ids=[0, 2, 1, 3]'),
        PLAIN,
        "3:26",
        "the mesh of argument 1 numbers its devices in an order of its own, "
        '#sdy.mesh<["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>',
        "devices are numbered row by row over a mesh: order its axes so",
    ),
    "another order of axes": (
        sharded('[{"y", "x"}, {}]'),
        "mesh x=2 y=2\n" + PLAIN.replace("A=8", "A=8 order x y"),
        "3:26",
        "argument 1 splits A over y x in this order, and the program over x y",
        "the axes of A have one order in the whole program",
    ),
    "no size": (
        module("%a: tensor<8x?xf32>", "(tensor<8x?xf32>)").replace("%a : tensor<8x4", "%a : tensor<8x?"),
        PLAIN,
        "3:26",
        "argument 1 is tensor<8x?xf32>, of no known size",
        "lower the function at the sizes of the program",
    ),
    "no function": (
        sharded(SPLIT).replace("public", "private"),
        PLAIN,
        "",
        "a module has one public function, or one called main, and this one has none",
        AS_TEXT,
    ),
}
"""By what is wrong: the module, the program, the place, what is said, and the way out."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_become_types_is_told_at_its_place(what: str) -> None:
    text, program, place, said, way_out = REFUSED[what]
    with pytest.raises(DiagnosticError) as caught:
        demanded(text, program)
    head, *excerpt, note = str(caught.value).split("\n")
    assert head == f"f.mlir{place and ':' + place}: error: {said} [shardings]"
    assert note == f"note: {way_out}"
    if place:
        line = int(place.partition(":")[0])
        assert excerpt[0][2:] == text.split("\n")[line - 1][:160]


def test_trace_refuses_the_module_of_another_function() -> None:
    import jax

    args = [jax.ShapeDtypeStruct((16, 4), "float32")]
    with pytest.raises(DiagnosticError, match=r"argument 1 is 8x4, and 0 16x4 \[shardings\]\n"):
        trace(same, args, name="f", shardings=sharded(SPLIT))
    with pytest.raises(DiagnosticError, match=r"<shardings>:10:3: error: the file has a second module \[shardings\]"):
        trace(same, args, name="f", shardings=f"{sharded(SPLIT)}// -----\n{sharded(SPLIT)}")


def test_opt_asks_for_something_to_do(shardwright: Run) -> None:
    done = shardwright("opt", "examples/01_feedforward_1d_weight_stationary.shard")
    assert done.status == 2
    assert "one of the arguments --passes --list-passes --shardings is required" in done.err


def test_names_that_jax_has_for_arguments_are_said() -> None:
    part = sharded('[{"x":(1)2}, {}]').replace('"x"=2', '"x"=4')
    text = part.replace("]>}", "]>} loc(\"p['w']\")")
    with pytest.raises(DiagnosticError, match=r"^f.mlir: error: argument 1 \(p\['w'\]\) is split over a part"):
        demanded(text)


def test_orders_of_axes_that_go_together_are_one() -> None:
    """Two axes here, a third beside them there, and one alone: the dimension has an order in which all are."""
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.sharding.AbstractMesh((2, 2, 2), ("x", "y", "z"))

    def array(*spec: Any) -> Any:
        return jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(mesh, P(*spec)))

    def total(a: Any, b: Any, c: Any) -> Any:
        return a + b + c

    made = trace(total, [array(("y", "x")), array(("z", "y")), array("x")])
    assert "=8 order z y x" in made.text
    with pytest.raises(DiagnosticError, match="shardings split one dimension over x z in two orders"):
        trace(total, [array(("y", "x")), array(("z", "y")), array(("x", "z"))])


def test_weights_and_state_lie_alike_in_all_modules() -> None:
    text = """mesh x=2 y=4
dim B=16 E=32
weights { w: BE? }
func f(a: BE?) -> BE? {
  b = a + w
  return b
}
func g(a: BE?) -> BE? {
  b = a * w
  return b
}
"""
    program = load(Source("p.shard", text))
    written = shardy_text(
        explicit(load(Source("p.shard", text.replace("w: BE?", "w: B_xE").replace("a: BE?", "a: BE_x"))))
    )
    first, second = written.split("// -----\n")
    assert edges(opt(program, shardings=f"{first}// -----\n{second}"))[0] == ("w", "bf16 B_xE")
    other = second.replace('[{"x"}, {}]', '[{}, {"x"}]', 1)
    with pytest.raises(DiagnosticError, match="argument 1 has w as bf16 BE_x, and before it argument 1 as bf16 B_xE"):
        opt(program, shardings=f"{first}// -----\n{other}")


def test_constraints_within_are_left_out_and_said_to_be() -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    from shardwright.tracing.read_shardy import read_shardy

    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))

    def function(a: Any) -> Any:
        for _ in range(2):
            a = jax.lax.with_sharding_constraint(jnp.sin(a), NamedSharding(mesh, P(None, "x")))
        return a

    argument = jax.ShapeDtypeStruct((4, 6), jnp.float32, sharding=NamedSharding(mesh, P("x")))
    lowered: Any = jax.jit(function).trace(argument).lower(lowering_platforms=("cpu",))
    text = lowered.as_text()
    first = next(i for i, line in enumerate(text.splitlines(), 1) if "sdy.sharding_constraint" in line)
    (module,) = read_shardy(Source("f.mlir", text))
    said = "left out; those that a traced function has itself are demanded"
    assert module.notes == (f"2 constraints within, the first in line {first}: {said}",)
