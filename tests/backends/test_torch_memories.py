"""Programs whose values live in several memories, as the PyTorch executor runs them statement by statement."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.torch.buffers import Buffers
from shardwright.backends.torch.homes import Home, value_homes
from shardwright.backends.torch.running import RunningFunction
from shardwright.backends.torch.shards import sharded
from shardwright.backends.torch.tiers import open_tiers
from shardwright.cost.programs.unrolling import events_of
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify

HEAD = """
dim N=3 M=2 B=4 T=4 E=4
weights { w: f32 NE on disk }
state {
  s: f32 BE on host
  d: f32 BE on disk
  k: f32 NTE on host
  here: f32 BE
  one: f32 E on host
  one_away: f32 E on disk
}
func f(x: f32 BE, at: int32) -> """

OLD = {
    "what was fetched": """f32 BE {
  before = fetch(s)
  set s = store[host](before + before)
  return before
}""",
    "a part of what was fetched": """f32 E {
  before = fetch(s)
  row = take[B, 1](before)
  set s = store[host](before + before)
  return row
}""",
    "a name of a part": """f32 E {
  row = take[B, 1](s)
  set s = store[host](x)
  return fetch(row)
}""",
    "a name of a part on disk": """f32 E on disk {
  row = take[B, 1](d)
  set d = store[disk](x)
  return row
}""",
    "a name of new rows": """f32 BE {
  new = store[host](take[B, 2](x))
  with_it = update[B](s, new, at)
  set s = store[host](x)
  return fetch(with_it)
}""",
    "what new rows are written to": """f32 BE {
  before = fetch(s)
  set s = store[host](x)
  after = update[B](before, take[B, 3](x), at)
  set s = store[host](after)
  return fetch(s)
}""",
    "what a loop carries": """f32 BE on host {
  last = loop[M](c: f32 BE on host = s) {
    set s = store[host](fetch(s) * 0.5)
    next c
  }
  return last
}""",
    "what a loop hands on from before": """f32 BE {
  last = loop[M](c: f32 BE = x) {
    y = c + here
    row = here
    set here = y
    next y
  }
  return last + here
}""",
    "what a loop hands on of state": """f32 BE {
  last = loop[M](c: f32 BE = x) {
    next here
  }
  set here = x
  return last
}""",
    "what a loop hands on of state that it sets": """f32 BE {
  last = loop[M](c: f32 BE = x) {
    set here = c * 0.5 + here
    y = c - here
    set here = y
    next here
  }
  set here = last + last
  return last
}""",
    "what is fetched while new rows are written": """f32 TE {
  y = loop[N](c: f32 TE = update[T](take[N, 0](fetch(k)), take[B, 0](x), 1)) {
    k_here = fetch(k)
    row = take[B, 3](x)
    k_next = update[T](k_here, row, at)
    again = fetch(k)
    set k = store[host](k_next)
    next c + again * k_next
  }
  return y
}""",
}
"""Programs that use what was read of state after it has been set."""

ROWS = {
    "fetched": """f32 BE {
  new = store[host](take[B, 2](x))
  with_it: f32 BE on host = update[B](s, new, at)
  return fetch(with_it)
}""",
    "returned": """f32 BE on host {
  new = store[host](take[B, 2](x))
  with_it = update[B](s, new, at)
  return with_it
}""",
    "on disk, in what has no other name": """f32 BE on disk {
  there = store[disk](x)
  new = store[disk](take[B, 2](x))
  return update[B](there, new, at)
}""",
    "of state that is set then": """f32 NTE on host {
  row = take[B, 2](s)
  with_it = update[T](k, take[T, 0](k), 1)
  set k = with_it
  return k
}""",
    "at positions by a dimension that is not the first": """f32 NTE {
  at_each = iota[N]()
  return update[T](fetch(k), fetch(w), at_each)
}""",
    "that are state which is being set": """f32 BE {
  set one = store[host](take[B, 2](x))
  with_it = update[B](s, one, 1)
  set one = store[host](take[B, 3](x))
  set s = with_it
  return x
}""",
    "that are state which is being set, fetched": """f32 BE {
  set one = store[host](take[B, 2](x))
  return fetch(update[B](s, one, 1))
}""",
    "that are state on disk which is being set": """f32 BE {
  set one_away = store[disk](take[B, 2](x))
  with_it = update[B](d, one_away, 1)
  set d = with_it
  return x
}""",
    "in what has other names then": """(f32 BE, f32 BE) {
  with_it = update[B](s, take[B 1:2](s), 2)
  turned = rename[B -> E, E -> B](with_it)
  again = rename[B -> E, E -> B](turned)
  set s = again
  return rename[B -> E, E -> B](fetch(turned)), fetch(again)
}""",
    "that are a part of state which is being set": """f32 BE {
  set s = store[host](x)
  row = take[B, 1](s)
  with_it = update[B](s, row, 2)
  return fetch(with_it)
}""",
    "that are a part of what a loop sets": """f32 NTE {
  loop[N] {
    set k = store[host](take[B, 1](x) + fetch(k))
    row = take[T, 1](k)
    with_it = update[T](k, row, 2)
    set k = with_it
  }
  return fetch(k)
}""",
    "that are on their way to disk": """f32 BE {
  new = store[disk](take[B, 2](x))
  with_it = update[B](d, new, 1)
  set d = with_it
  return x
}""",
    "in what is on its way to the host": """f32 BE on host {
  going = start(store[host](x))
  after = update[B](x, take[B, 3](x), at)
  there = wait(going)
  set here = after
  return there
}""",
    "in what a loop hands on": """f32 BE {
  y = loop[M](c: f32 BE = here) {
    next x
  }
  set here = update[B](x, take[B, 3](x), at)
  return y
}""",
}
"""Programs of new rows, where they are written and where not."""

CARRIED = {
    "a parameter": """f32 BE {
  y = loop[M](c: f32 BE = x) {
    going = start(store[host](c))
    free going
    next x
  }
  return y
}""",
    "what was made before": """f32 BE {
  z = x * 0.5
  y = loop[M](c: f32 BE = x) {
    going = start(store[host](z))
    free going
    next z
  }
  return y
}""",
    "what is under way": """f32 BE {
  there = store[host](x)
  going = prefetch(there)
  last = loop[M](c: f32 BE in flight = going) {
    next c
  }
  return wait(last)
}""",
}
"""Programs whose loops hand on what stands around them."""

KEPT = {
    "and state set to it": """f32 BE {
  y = loop[M](c: f32 BE = x) {
    there = store[disk](c * 0.5)
    set d = there
    next fetch(there)
  }
  return y
}""",
    "of state that is set then": """f32 BE on disk {
  going = start(store[disk](here))
  set here = x
  there = wait(going)
  return there
}""",
    "and no more used": """f32 BE {
  going = start(store[disk](x))
  free going
  return x
}""",
    "and no more used, where another takes its place": """f32 BE {
  loop[N] {
    going = start(store[host](x))
    free going
  }
  return fetch(d)
}""",
    "and state of another memory set from there": """f32 BE {
  set d = store[disk](x)
  y = fetch(d)
  set here = y
  set d = store[disk](y * 0.5)
  return fetch(d)
}""",
}
"""Programs of values on disk, which a thread of its own writes."""

RANGES = {
    "of the host and of the disk": """(f32 E, f32 B) {
  rows = take[B 1:3](s)
  columns = take[E 2:4](d)
  return sum[B](fetch(rows)), sum[E](fetch(columns))
}""",
    "of what was stored": """f32 E {
  there = store[host](x)
  rows = take[B 1:3](there)
  return sum[B](fetch(rows))
}""",
    "and an index of these": """f32 TE {
  some = take[N 1:3](k)
  last = take[N, 1](some)
  return fetch(last) + sum[N](fetch(some))
}""",
    "of slices that a loop goes over": """f32 E {
  some = take[T 1:3](k)
  y = loop[N](c: f32 E = take[B, 0](x)) {
    next c + sum[T](fetch(some))
  }
  return y
}""",
    "as new rows, and with new rows": """f32 E {
  rows = take[B 1:3](s)
  with_it = update[B](rows, take[B 3:4](s), 1)
  set s = update[B](s, rows, 2)
  return sum[B](fetch(with_it))
}""",
}
"""Programs of ranges of what lies away from the device."""

GROUPS = {**OLD, **ROWS, **CARRIED, **KEPT, **RANGES}


def run(text: str, *, in_place: bool, head: str = HEAD) -> dict[str, int]:
    """Holds a run against the meaning; the bytes that were moved."""
    of = complete(program(head + text))
    verify(of, Level.EXPLICIT)
    given = random_inputs(of, "f", 0)
    args = {**given.args, "at": np.int32(2)}
    arrays: dict[str, Any] = {**args, **given.weights, **given.state}
    wanted, state = evaluate(of, "f", args, given.weights, given.state)
    with open_tiers("cpu", {}, "that of the types", in_place=in_place) as tiers, torch.inference_mode():
        homes = value_homes(of, (*of.weights, *of.state), tiers)
        for name, home in homes.items():
            home.allocate()
            home.write((slice(None),) * len(home.names), torch.tensor(arrays[name]))
        buffers = Buffers(tiers)
        running = RunningFunction(of, of.func("f"), tiers, homes, buffers)
        found = running.call({name: torch.tensor(array) for name, array in args.items()})
        kept = {name: running.stored(name).numpy() for name in state}
        buffers.release()
    for want, made in zip(wanted, found, strict=True):
        np.testing.assert_allclose(made.numpy(), want, rtol=1e-6)
    for name, want in state.items():
        np.testing.assert_allclose(kept[name], want, rtol=1e-6, err_msg=name)
    return running.moved


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("text", GROUPS.values(), ids=GROUPS)
def test_values_are_what_they_were(text: str, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a thread writes late."""
    write = Home.write

    def late(self: Home, part: Any, tensor: torch.Tensor) -> int:
        time.sleep(0.002)
        return write(self, part, tensor)

    monkeypatch.setattr(Home, "write", late)
    run(text, in_place=in_place)


def sum_of_range(layout: str, chip: int, held: torch.Tensor) -> torch.Tensor:
    """One chip of two sums `take[E 2:6, by=x]` over its part of a weight."""
    text = "mesh x=2\ndim B=2 E=8 order x\nweights { w: f32 LAYOUT on host }\n".replace("LAYOUT", layout)
    text += "func f(x: f32 B) -> f32 B(partialsum-x) {\n  some = take[E 2:6, by=x](w)\n  y = sum[E](fetch(some))\n"
    of = sharded(complete(program(text + "  return y\n}")), chip)
    with open_tiers("cpu", {}, "that of the types", in_place=False) as tiers, torch.inference_mode():
        homes = value_homes(of, of.weights, tiers)
        homes["w"].allocate()
        homes["w"].write((slice(None),) * 2, held)
        (found,) = RunningFunction(of, of.func("f"), tiers, homes, Buffers(tiers)).call({"x": torch.zeros(2)})
    return found


def test_a_chip_takes_the_range_of_its_own_block() -> None:
    """A range of each of several blocks on one chip is no range of what the chip holds."""
    held = torch.arange(8.0).reshape(2, 4)
    torch.testing.assert_close(sum_of_range("BE_x", 1, held), held[:, 1:3].sum(1))
    with pytest.raises(DiagnosticError) as caught:
        sum_of_range("BE", 1, torch.arange(16.0).reshape(2, 8))
    (said,) = caught.value.diagnostics
    assert said.message == "PyTorch programs take no range of each of 2 blocks of w, which lies away from the device"
    assert (said.span.line, said.notes[0].message) == (5, "fetch it before: fetch(w)")


def test_new_rows_in_what_was_stored_are_refused() -> None:
    text = """f32 BE {
  there = store[host](x)
  new = store[host](take[B, 2](x))
  with_it = update[B](there, new, at)
  return fetch(with_it)
}"""
    with pytest.raises(DiagnosticError) as caught:
        run(text, in_place=False)
    (said,) = caught.value.diagnostics
    assert (said.code, said.span.line) == ("unsupported", HEAD.count("\n") + 4)
    assert said.message.endswith("and there has been stored or has new rows already")
    assert said.notes[0].message == "fetch it before: fetch(there)"


@pytest.mark.parametrize(
    "text",
    [
        """f32 B {
  new = store[host](take[B, 2](x))
  with_it = update[B](s, new, 1)
  return fetch(take[E, 2](with_it))
}""",
        """f32 BE {
  row = take[N, 1](k)
  with_it = update[N](k, row, 2)
  loop[N] {
    set k = with_it
  }
  return x
}""",
    ],
)
@pytest.mark.parametrize("in_place", [True, False])
def test_parts_of_what_has_new_rows_are_refused(text: str, in_place: bool) -> None:
    """The rows may be on their way."""
    with pytest.raises(DiagnosticError) as caught:
        run(text, in_place=in_place)
    (said,) = caught.value.diagnostics
    assert said.code == "unsupported"
    assert said.message.startswith("PyTorch programs take no part of with_it, which lies away from the device")
    assert said.notes[0].message == "fetch it before: fetch(with_it)"


def test_what_is_moved_is_what_the_text_says() -> None:
    """State is set to what has been stored: nothing leaves the device then. Of a value on disk a loop reads a slice."""
    text = """f32 BE {
  set s = store[host](x)
  there = store[disk](fetch(w))
  y = loop[N](c: f32 BE = x) {
    next c + fetch(there)
  }
  return y
}"""
    of = complete(program(HEAD + text))
    said: dict[str, int] = {}
    for event in events_of(of, of.func("f")):
        said[event.resource] = said.get(event.resource, 0) + event.nbytes
    assert said["from device"] == 4 * 16
    assert said["disk read"] == said["to device"] == 2 * 4 * 12
    assert said["disk write"] == 4 * 12
    moved = run(text, in_place=False)
    assert moved == {name: nbytes for name, nbytes in said.items() if nbytes}


PARTS = """
dim N=3 B=8 E=4
weights { w: f32 NBE on disk }
state {
  d: f32 BE on disk
  m: f32 NBE on device 25% host 50% disk 25% along B
}
func f(x: f32 E, at: int32) -> """


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("f32 E { return x + fetch(take[B, 3](d)) }", {"disk read": 1, "to device": 1}),
        ("f32 E { return x + sum[B](fetch(take[B 2:5](d))) }", {"disk read": 3, "to device": 3}),
        ("f32 BE { return fetch(take[N, 1](w)) }", {"disk read": 8, "to device": 8}),
        ("f32 NE { return fetch(take[B, 4](m)) }", {"to device": 3}),
        ("f32 NE { return sum[B](fetch(take[B 6:8](m))) }", {"disk read": 6, "to device": 6}),
        (
            """f32 E {
  some = take[B 1:7](w)
  y = loop[N](c: f32 E = x) {
    next c + sum[B](fetch(some))
  }
  return y
}""",
            {"disk read": 18, "to device": 18},
        ),
    ],
)
def test_parts_move_no_more_than_they_are(text: str, rows: dict[str, int]) -> None:
    """An index or a range of what is shared out over memories, or read row by row."""
    of = complete(program(PARTS + text))
    said: dict[str, int] = {}
    for event in events_of(of, of.func("f")):
        if event.nbytes:
            said[event.resource] = said.get(event.resource, 0) + event.nbytes
    assert run(text, in_place=False, head=PARTS) == said == {name: 16 * count for name, count in rows.items()}
    assert run(text, in_place=True, head=PARTS).get("disk read", 0) == said.get("disk read", 0)
