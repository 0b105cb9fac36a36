"""Values that are shared among memories along a dimension that an operation takes away, cuts up or renames."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.verification.verifier import Level, verify
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import explicit, run_passes

SHARES = "device 25% host 75%"

READ = """
mesh x=2
dim N=4 C=4 E=8 F=8 K=4 G=2 S=16
weights {{ w: f32 CE_xF on {shares} along {along} }}
func f(h: f32 F) -> {result}? {{
  return {operation}
}}
"""

OPERATIONS = {
    "take[C, 0](w)": "EF", "take[C, 3](w)": "EF", "take[E, 1](w)": "CF", "sum[C](w)": "EF", "sum[EF](w)": "C",
    "h @[F] w": "CE", "rename[C -> N](w)": "NEF", "split[E -> KG](w)": "CKGF", "tanh(w)": "CEF",
    "merge[KG -> E](split[E -> KG](w))": "CEF", "all_gather[x](w)": "CEF", "take[C, 1](all_gather[x](w))": "EF",
    "concat[N](rename[C -> N](take[C 0:2](w)), rename[C -> N](take[C 2:4](w)))": "NEF",
    "argmax[F](w) * 0 + argmax[F](w)": "CE",
}  # fmt: skip

LOOPS = {
    "all_gather[x](w)": "c + take[E, 1](v)",
    "take[F, 1](w)": "c + rename[E -> F](v)",
    "take[E, 1](w)": "c + v",
    "w": "c + sum[E](v)",
    "split[E -> KG](w)": "c + sum[KG](v)",
}

LOOP = """
mesh x=2
dim N=4 E=8 F=8 K=4 G=2
weights {{ w: f32 NE_xF on {shares} along {along} }}
func f(h: f32 F) -> f32 F {{
  y = loop[N](c: f32 F = h) {{
    v = {operation}
    next {following}
  }}
  return y
}}
"""


def agrees(text: str) -> None:
    """Offloaded, and compiled: each prints as it reads, and means what the program means."""
    plain = program(text)
    program(printed(run_passes(plain, [Offload()])))
    made = program(printed(explicit(plain)))
    given = random_inputs(plain, "f", 0)
    (wanted,), _ = evaluate(plain, "f", given.args, given.weights, given.state)
    (found,) = simulate(made, "f", given.args, given.weights, given.state).results
    assert np.abs(np.asarray(wanted, float) - np.asarray(found, float)).max() < 1e-11


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("along", "CEF")
def test_what_is_read_of_shares(operation: str, along: str) -> None:
    result = ("int32 " if "argmax" in operation else "f32 ") + OPERATIONS[operation]
    agrees(READ.format(shares=SHARES, along=along, operation=operation, result=result))


@pytest.mark.parametrize("operation", LOOPS)
@pytest.mark.parametrize("along", "NEF")
def test_a_loop_over_what_is_shared(operation: str, along: str) -> None:
    agrees(LOOP.format(shares=SHARES, along=along, operation=operation, following=LOOPS[operation]))


EXPLICIT = """
dim C=8 D=8 E=2 K=4 G=2
weights {{ w: f32 {dims} on {shares} along {along} }}
func f() -> f32 {dims} {{
  v: f32 {kind} = {operation}
  here: f32 {dims} = fetch(w)
  return here
}}
"""


@pytest.mark.parametrize(
    ("along", "operation", "kind"),
    [
        ("C", "take[C, 0](w)", "E"),
        ("C", "take[C, 1](w)", "E"),
        ("C", "take[C, 2](w)", "E on host"),
        ("C", "take[C 0:2](w)", "CE"),
        ("C", "take[C 5:8](w)", "CE on host"),
        ("E", "take[C, 2](w)", "E on device 25% host 75% along E"),
        ("C", "rename[C -> D](w)", "DE on device 25% host 75% along D"),
        ("C", "split[C -> KG](w)", "KGE on device 25% host 75% along K"),
        ("E", "split[C -> KG](w)", "KGE on device 25% host 75% along E"),
        ("K", "merge[KG -> C](w)", "C on device 25% host 75% along C"),
        ("C", "w", "CE on device 25% host 75% along C"),
    ],
)
def test_what_computes_nothing_leaves_rows_where_they_are(along: str, operation: str, kind: str) -> None:
    dims = "KG" if along == "K" else "CE"
    text = EXPLICIT.format(dims=dims, shares=SHARES, along=along, operation=operation, kind=kind)
    verify(program(text), Level.EXPLICIT)
    for other in ("device", "host"):
        bare = kind.split(" on ", maxsplit=1)[0]
        wrong = f"v: f32 {bare} on {other}"
        if f"v: f32 {kind}" not in (wrong, wrong.removesuffix(" on device")):
            with pytest.raises(DiagnosticError, match="leaves its result"):
                verify(program(text.replace(f"v: f32 {kind}", wrong)), Level.EXPLICIT)


@pytest.mark.parametrize(
    ("along", "operation", "kind"),
    [
        ("C", "take[C 1:3](w)", "CE"),
        ("G", "merge[KG -> C](w)", "C"),
        ("C", "split[C -> GK](w)", "GKE"),
    ],
)
def test_what_no_type_says_is_fetched_first(along: str, operation: str, kind: str) -> None:
    dims = "KG" if along == "G" else "CE"
    text = EXPLICIT.format(dims=dims, shares=SHARES, along=along, operation=operation, kind=kind)
    with pytest.raises(DiagnosticError) as caught:
        verify(program(text), Level.EXPLICIT)
    (only,) = caught.value.diagnostics
    name = operation.split("[", maxsplit=1)[0]
    assert only.message == (f"{name} takes w on the device, and it is f32 {dims} on device 25% host 75% along {along}")
    assert [note.message for note in only.notes] == ["fetch it first: fetch(w)"]
