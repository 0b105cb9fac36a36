"""`loop-collectives`: the same results and the same bytes, in rolls; every form, one way round and two."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain, combinations
from typing import TypeGuard

import numpy as np
import pytest
from models.checkpoints import config_of
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.jax.session import run_program
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.backends.validation.validate import validate
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.movements.traffic import bytes_received
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, ReduceScatter, Roll
from shardwright.ir.program import Let, Program
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify
from shardwright.ir.weight_source import ArraySource, read_whole
from shardwright.models.importing import import_model
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes
from shardwright.passes.rings.loop_collectives import LoopCollectives, shuffling
from shardwright.passes.rings.shuffling import shuffle

FORMS = {
    "activations gathered": """
func f(x: BLE_{A}, w: EF_{A}) -> BLF_{A} {
  g = all_gather[{A}](x)
  h = g @[E] w
  return h
}""",
    "scattered": """
func f(h: BLF_{A}, w: F_{A}E) -> BLE_{A} {
  p = h @[F] w
  y = reduce_scatter[{A} -> E](p)
  return y
}""",
    "scattered over the sequence": """
func f(h: BLF_{A}, w: F_{A}E) -> BL_{A}E {
  p = h @[F] w
  y = reduce_scatter[{A} -> L](p)
  return y
}""",
    "sequence gathered": """
func f(x: BL_{A}E, w: EF_{A}) -> BLF_{A} {
  g = all_gather[{A}](x)
  h = g @[E] w
  return h
}""",
    "weights gathered along what is summed": """
func f(x: B_{A}LE, w: E_{A}F) -> B_{A}LF {
  g = all_gather[{A}](w)
  h = x @[E] g
  return h
}""",
    "weights gathered along what stays": """
func f(x: B_{A}LE, w: EF_{A}) -> B_{A}LF {
  g = all_gather[{A}](w)
  h = x @[E] g
  return h
}""",
    "int8 weights": """
func f(x: B_{A}LE, w: int8 E_{A}F, s: f32 F) -> f32 B_{A}LF {
  g = all_gather[{A}](w)
  c = convert[bf16](g)
  h = x @[E] c
  d = convert[f32](h)
  y = d * s
  return y
}""",
    "three products of one gather": """
func f(x: BLE_{A}, q: EH_{A}D, k: EK_{A}, w: EF_{A}) -> (BLH_{A}D, BLK_{A}, BLF_{A}) {
  g = all_gather[{A}](x)
  a = g @[E] q
  b = g @[E] k
  c = g @[E] w
  return a, b, c
}""",
    "two addends scattered": """
func f(h: BLF_{A}, w: F_{A}E, o: BLH_{A}D, v: H_{A}DE) -> BLE_{A} {
  p = h @[F] w
  q = o @[HD] v
  r = p + q
  y = reduce_scatter[{A} -> E](r)
  return y
}""",
    "in a loop over layers": """
weights { w: NEF_{A}
          v: NF_{A}E }
func f(x: BLE_{A}) -> BLE_{A} {
  y = loop[N](h = x) {
    g = all_gather[{A}](h)
    a = g @[E] w
    b = relu(a)
    p = b @[F] v
    s = reduce_scatter[{A} -> E](p)
    next s
  }
  return y
}""",
}
MESHES = {"x=2": "x", "x=3": "x", "x=4": "x", "x=8": "x", "x=2 y=2": "xy", "x=2 y=3": "xy"}
SIZES = "dim N=2 B=24 L=24 E=48 F=48 H=24 D=3 K=24"

MIXED = {
    "both dimensions of a weight": """
func f(x: B_xyLE, w: E_xF_y) -> B_xyLF {
  g = all_gather[xy](w)
  h = x @[E] g
  return h
}""",
    "one axis of a split dimension": """
func f(x: BLE_xy, w: E_xF_y) -> BLF_y(partialsum-x) {
  g = all_gather[y](x)
  h = g @[E] w
  return h
}""",
    "digits that do not follow each other": """
func f(x: BLE_xyz, w: E_yF_xz) -> BLF_xz(partialsum-y) {
  g = all_gather[xz](x)
  h = g @[E] w
  return h
}""",
    "an axis that the other operand lacks": """
func f(x: BLE_xy, w: EF_y) -> BLF_y {
  g = all_gather[xy](x)
  h = g @[E] w
  return h
}""",
    "scattered into two dimensions": """
func f(h: BLF_xy, w: F_xyE) -> BL_xE_y {
  p = h @[F] w
  y = reduce_scatter[x -> L, y -> E](p)
  return y
}""",
    "some of the axes scattered": """
func f(h: BLF_x(partialsum-y), w: F_xE) -> BL_yE_x {
  p = h @[F] w
  y = reduce_scatter[x -> E, y -> L](p)
  return y
}""",
    "partial over more than is scattered": """
func f(h: BLF_xz, w: F_xzE) -> BLE_x(partialsum-z) {
  p = h @[F] w
  y = reduce_scatter[x -> E](p)
  return y
}""",
}


def written(text: str, mesh: str = "x=2 y=2 z=2", axes: str = "", order: str = "") -> Program:
    f32 = text.replace("{A}", axes)
    made = program(f"mesh {mesh}\n{SIZES}\n{order}\n{f32}")
    return run_passes(complete(made), parse_pipeline("choose-digit-order"))


def looped(before: Program, options: str = "") -> Program:
    return run_passes(complete(before), parse_pipeline(f"loop-collectives{{{options}}}"))


def operations(of: Program, *kinds: type) -> list[object]:
    return [s.operation for f in of.funcs for s, _ in f.walk() if isinstance(s, Let) and isinstance(s.operation, kinds)]


def assert_same(before: Program, after: Program, seed: int = 0) -> None:
    """Unsharded and on simulated chips the same results and state; and what a chip receives, byte for byte."""
    for func in before.funcs:
        given = random_inputs(before, func, seed)
        wanted, kept = evaluate(before, func.name, given.args, given.weights, given.state)
        unsharded, state = evaluate(after, func.name, given.args, given.weights, given.state)
        on_chips = simulate(after, func.name, given.args, given.weights, given.state)
        triples = [*zip(wanted, unsharded, on_chips.results, strict=True)]
        triples += [(kept[name], state[name], on_chips.state[name]) for name in kept]
        for a, b, c in triples:
            scale = float(np.abs(a).max())
            assert float(np.abs(a - b).max()) <= 1e-12 * scale
            assert float(np.abs(b - c).max()) <= 1e-12 * scale
        assert on_chips.total == simulate(before, func.name, given.args, given.weights, given.state).total
        received = bytes_received(after, after.func(func.name)).bytes
        assert received == bytes_received(before, func).bytes == on_chips.total


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, mesh: str, ways: int) -> None:
    before = written(FORMS[form], mesh, MESHES[mesh])
    after = looped(before, f"ways={ways}")
    assert not operations(after, AllGather, ReduceScatter) or form == "in a loop over layers"
    assert {getattr(roll, "shift", 0) for roll in operations(after, Roll)} == ({1} if ways == 1 else {1, -1})
    assert_same(before, after)


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("form", MIXED)
def test_several_axes(form: str, ways: int) -> None:
    before = written(MIXED[form])
    after = looped(before, f"ways={ways}")
    assert operations(after, Roll)
    assert_same(before, after)


def operands_of(after: Program, kind: type) -> list[tuple[str, set[str]]]:
    """For each operation of this kind inside a loop: its operand, and what the loop carries."""
    return [
        (str(s.operands[0]), {carry.value.name for carry in loops[-1].carries})
        for func in after.funcs
        for s, loops in func.walk()
        if isinstance(s, Let) and isinstance(s.operation, kind) and loops
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_roll_waits_for_no_contraction_of_its_trip(form: str) -> None:
    """What is sent is what the loop carries, so that a runtime can send it while it multiplies."""
    after = looped(written(FORMS[form], "x=4", "x"), "ways=2")
    rolls = operands_of(after, Roll)
    assert rolls
    assert all(operand in carried for operand, carried in rolls)


@pytest.mark.parametrize(
    ("form", "options"), [("sequence gathered", ""), ("scattered", "ways=2"), ("int8 weights", "")]
)
def test_before_and_after(form: str, options: str, golden: Callable[[str, str], None]) -> None:
    name = form.replace(" ", "_")
    before = written(FORMS[form], "x=4", "x")
    golden(f"passes/loop_collectives_{name}.shard", printed(before) + "\n" + printed(looped(before, options)))


def test_integers_go_round() -> None:
    after = looped(written(FORMS["int8 weights"], "x=4", "x"))
    rolled = [s.result.concrete.dtype for f in after.funcs for s, _ in f.walk() if is_roll(s)]
    assert set(rolled) == {DType.INT8}


def is_roll(statement: object) -> TypeGuard[Let]:
    return isinstance(statement, Let) and isinstance(statement.operation, Roll)


@pytest.mark.parametrize("mesh", ["x=2 y=2", "x=4"])
@pytest.mark.parametrize("form", FORMS)
def test_under_jax(form: str, mesh: str) -> None:
    """In f32, up to the order of summation."""
    text = re.sub(r"(: |-> \(?|, )([A-Z][A-Za-z_{}]*)(?![]\w])", r"\1f32 \2", FORMS[form])
    before = written(text.replace("[bf16]", "[f32]"), mesh, MESHES[mesh])
    after = looped(before, "ways=2" if mesh == "x=4" else "")
    given = random_inputs(before, before.funcs[0], 3)
    wanted = simulate(before, "f", given.args, given.weights, given.state, precision="declared")
    found, _ = run_program(after, "f", given.args, given.weights, given.state)
    for a, b in zip(wanted.results, found, strict=True):
        expected = np.asarray(a, np.float64)
        assert float(np.abs(expected - np.asarray(b, np.float64)).max()) <= 1e-5 * float(np.abs(expected).max())


SHUFFLED = """
mesh x=2 y=2
dim N=2 B=4 L=2 E=48 F=48
weights { w: f32 NEF_xy
          v: f32 NF_xyE
          u: f32 EF_xy }
func f(x: f32 BLE_xy) -> f32 BLE_xy {
  y = loop[N](h = x) {
    g = all_gather[xy](h)
    a = g @[E] w
    b = relu(a)
    p = b @[F] v
    s = reduce_scatter[xy -> E](p)
    next s
  }
  return y
}
func g(x: f32 BLE_xy) -> (f32 BLF_xy, f32 EF_xy) {
  k = all_gather[xy](x)
  y = k @[E] u
  z = u + u
  return y, z
}
"""


@pytest.mark.parametrize("ways", [1, 2])
def test_shuffled_weights(ways: int, golden: Callable[[str, str], None]) -> None:
    """Trip by trip in the order in which a chip reads them; `u`, which something else reads too, stays."""
    before = run_passes(complete(program(SHUFFLED)), parse_pipeline("choose-digit-order"))
    options = LoopCollectives(shuffle=True, ways=ways)
    after = run_passes(before, [options])
    golden(f"passes/loop_collectives_shuffled_{ways}.shard", printed(after))
    recipe = shuffling(before, options)
    assert [entry.weight for entry in recipe] == ["w", "v"]
    for func in before.funcs:
        given = random_inputs(before, func, 0)
        weights = shuffle(recipe, given.weights)
        wanted, _ = evaluate(before, func.name, given.args, given.weights)
        on_chips = simulate(after, func.name, given.args, weights)
        found, _ = run_program(after, func.name, given.args, weights)
        for a, b, c in zip(wanted, on_chips.results, found, strict=True):
            scale = float(np.abs(a).max())
            assert float(np.abs(a - b).max()) <= 1e-12 * scale
            assert float(np.abs(a - np.asarray(c, np.float64)).max()) <= 1e-5 * scale
        assert on_chips.total == simulate(before, func.name, given.args, given.weights).total
    assert {str(value.type) for value in after.weights} >= {"f32 EF_xy"}


def test_every_element_is_stored_once() -> None:
    before = run_passes(complete(program(SHUFFLED)), parse_pipeline("choose-digit-order"))
    recipe = shuffling(before, LoopCollectives(shuffle=True, ways=2))
    arrays = {name: np.arange(2 * 48 * 48).reshape(2, 48, 48) for name in ("w", "v")} | {"u": np.zeros((48, 48))}
    stored = shuffle(recipe, arrays)
    source = LoopCollectives(shuffle=True, ways=2).weights(before, ArraySource(arrays))
    for name in source.names:
        np.testing.assert_array_equal(read_whole(source, name), stored[name])
        box = tuple(slice(n // 3, n // 3 + max(1, n // 2)) for n in source.shape(name))
        np.testing.assert_array_equal(source.read(name, box), stored[name][box])
    assert (
        sorted(stored["w"].reshape(-1).tolist()) == sorted(stored["v"].reshape(-1).tolist()) == list(range(2 * 48 * 48))
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", ["ws1d", "ws2d", "wg-xy"])
def test_whole_models(layout: str) -> None:
    """Imported models, one with prefill and decode: the same results, state and bytes, also as text."""
    mesh = Mesh.of(x=2, y=2, z=2)
    made = import_model(config_of("cohere-multiquery"), layout, mesh, 8, 8, cache=16 if layout == "wg-xy" else None)
    before = explicit(program(made.unformatted))
    after = looped(before)
    assert operations(after, Roll)
    assert program(printed(after)) == after
    assert_same(before, after)


def test_a_whole_model_under_jax() -> None:
    """And through the pipeline again, as `compile` takes it."""
    made = import_model(config_of("cohere-multiquery"), "wg-xy", Mesh.of(x=2, y=2, z=2), 8, 8)
    before = explicit(program(made.unformatted))
    after = explicit(looped(before, "ways=2"))
    assert operations(after, Roll)
    given = random_inputs(before, before.funcs[0], 0)
    (wanted,), _ = evaluate(before, "forward", given.args, given.weights)
    (found,), _ = run_program(after, "forward", given.args, given.weights)
    assert float(np.abs(wanted - np.asarray(found, np.float64)).max()) <= 1e-5 * float(np.abs(wanted).max())


@pytest.mark.parametrize("ways", [1, 2])
def test_large_programs_are_validated_at_small_sizes(ways: int) -> None:
    sizes = "mesh x=4 y=2\ndim B=512 L=2048 E=18432 F=73728\n"
    body = "h: BLF_xy = x @[E] w\n  y: BLE_xy = relu(h) @[F] v\n  return y"
    text = f"{sizes}func f(x: BLE_xy, w: E_xF_y, v: F_yE_x) -> BLE_xy {{\n  {body}\n}}"
    after = looped(explicit(program(text)), f"ways={ways}")
    assert operations(after, Roll)
    found = validate(after, after)
    assert not found.skipped
    assert max(found.sizes.values()) <= 64


PARALLEL = """
mesh x=2 y=2
dim B=8 L=4 E=16 H=4 D=4 F=32
weights { ln: f32 E_xy
          wq: E_xH_yD
          w_in: E_xF_y
          wo: H_yDE_x
          w_out: F_yE_x }
func block(x: BLE_xy) -> BLE_xy {
  a = rmsnorm[E, eps=1e-6](x, ln)
  q: BLH_yD = a @[E] wq
  h: BLF_xy = a @[E] w_in
  y: BLE_xy = x + q @[HD] wo + relu(h) @[F] w_out
  return y
}
"""


@pytest.mark.parametrize(
    "passes", ["fuse-parallel-block", "quantize-weights", "reduce-into{dim=sequence}", "weight-gather{axes=x}"]
)
def test_after_other_passes(passes: str) -> None:
    before = explicit(run_passes(program(PARALLEL), parse_pipeline(passes)))
    for ways in (1, 2):
        after = looped(before, f"ways={ways}")
        assert operations(after, Roll)
        assert_same(before, after)


def test_what_is_looped_is_chosen() -> None:
    before = written(FORMS["in a loop over layers"], "x=4", "x")

    def left(options: str) -> set[str]:
        return {
            str(getattr(operation, "keyword", ""))
            for operation in operations(looped(before, options), AllGather, ReduceScatter)
        }

    assert left("") == set()
    assert left("sites=gathers") == left("values=g") == {"reduce_scatter"}
    assert left("sites=scatters") == left("values=s") == {"all_gather"}
    assert left("values=g+s") == set()
    assert left("axes=none") == {"all_gather", "reduce_scatter"}


def test_a_gather_that_something_else_reads_stays() -> None:
    text = "func f(x: BLE_x, w: EF_x) -> (BLF_x, BLE) {\n  g = all_gather[x](x)\n  h = g @[E] w\n  return h, g\n}"
    before = written(text, "x=2")
    assert looped(before) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ways=3", "loop-collectives: ways is 1 or 2, not 3"),
        ("sites=none", "loop-collectives: sites is all, gathers or scatters, not none"),
        ("shuffle=yes", "loop-collectives: shuffle is true or false, not yes"),
        ("values=gg", "loop-collectives: gg is no result of an all_gather or a reduce_scatter"),
        ("axes=w", "loop-collectives: axes: the mesh x=2 has no axis w"),
        ("func=h", "loop-collectives: func: the program has no function h"),
    ],
)
def test_options(options: str, message: str) -> None:
    with pytest.raises(DiagnosticError) as raised:
        looped(written(FORMS["activations gathered"], "x=2", "x"), options)
    assert raised.value.diagnostics[0].message == message


@pytest.mark.parametrize(
    ("order", "statement", "code", "message"),
    [
        ("R=8 order y x", "roll[x, over=R]", "digits", "roll over x: these are not the outermost digits of R"),
        ("R=8 order x y", "roll[y, over=R]", "digits", "roll over y: these are not the outermost digits of R"),
        (
            "R=8",
            "roll[x, over=E]",
            "misapplied-movement",
            "roll[x] sends blocks of a split dimension round, and a: bf16 R_xyE is split on R over x",
        ),
        ("R=8", "roll[x]", "bad-static", "roll: say along which dimension"),
        ("R=8", "roll[x, over=F]", "wrong-dimensions", "roll[F]: a: bf16 RE has no F"),
    ],
)
def test_rolls_that_mean_nothing(order: str, statement: str, code: str, message: str) -> None:
    text = (
        f"mesh x=2 y=2\ndim {order} E=4 F=4\nfunc f(a: R_xyE) -> R_xyE {{\n  b: R_xyE = {statement}(a)\n  return b\n}}"
    )
    with pytest.raises(DiagnosticError) as raised:
        verify(program(text), Level.EXPLICIT)
    first = raised.value.diagnostics[0]
    assert (first.code, first.message) == (code, message)


PRICED = """
mesh x=4 y=4 z=4
dim B=512 L=1 E=18432 F=73728

func ffn(x: BLE_xyz, w_in: E_xF_yz, w_out: F_yzE_x) -> BLE_xyz {
  h: BLF? = x @ w_in
  y: BLE_xyz = gelu(h) @ w_out
  return y
}
"""


@pytest.mark.parametrize("tokens", [1, 64])
def test_sites_that_pay_on_a_chip(tokens: int) -> None:
    """No set of sites is faster by the model than the one that the pass chooses by price."""
    source = elaborate(parse(Source("<test>", PRICED)), dims={"L": tokens})
    plain = explicit(source)
    chip = load_chip("tpu-v4")

    def seconds(program: Program) -> float:
        return cost_of(program, program.func("ffn"), chip).time_s

    names = [
        s.result.name
        for s, _ in plain.func("ffn").walk()
        if isinstance(s, Let) and isinstance(s.operation, AllGather | ReduceScatter)
    ]
    sets = chain.from_iterable(combinations(names, n) for n in range(1, len(names) + 1))
    times = [seconds(LoopCollectives(values="+".join(each)).run(plain)) for each in sets]
    found = seconds(LoopCollectives(chip="tpu-v4").run(plain))
    assert found == pytest.approx(min(seconds(plain), *times))
