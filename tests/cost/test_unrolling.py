"""Events of programs by hand: what each statement becomes, and what it waits for."""

from __future__ import annotations

import pytest
from program_text import program

from shardwright.cost.offloading.simulation import simulate
from shardwright.cost.programs.unrolling import ListedEvents, events_of
from shardwright.ir.types import Tier

PREFETCHED = """
dim N=3 E=4
weights { w: f32 NE on disk }
state { s: f32 NE on host }
func f(x: f32 E) -> f32 E {
  w_0 = take[N, 0](w)
  w_first: f32 E in flight = prefetch(w_0)
  w_rest, y = loop[N](w_now: f32 E in flight = w_first, h: f32 E = x) {
    w_next: f32 E in flight = prefetch[ahead=N](w)
    w_here = wait(w_now)
    g = h * w_here
    free w_here
    going: f32 E on host in flight = start(store[host](g))
    stored = wait(going)
    set s = stored
    next w_next, g
  }
  free w_rest
  return y
}
"""


def test_each_statement_is_an_event_that_waits_for_what_it_needs() -> None:
    text = program(PREFETCHED)
    assert [str(event).split(maxsplit=1)[1] for event in events_of(text, text.func("f"))][:12] == [
        "disk read    read     w_first 16 B",
        "to device    copy     w_first 16 B after 0",
        "disk read    read     w_next N=0 16 B",
        "to device    copy     w_next N=0 16 B after 2",
        "device       wait     w_here N=0 after 1",
        "device       compute  g N=0",
        "device       free     w_here N=0",
        "from device  store    going N=0 16 B after 6",
        "from device  write    s N=0 after 6 7",
        "disk read    read     w_next N=1 16 B after 6",
        "to device    copy     w_next N=1 16 B after 6 9",
        "device       wait     w_here N=1 after 3",
    ]


def test_what_is_at_hand_is_not_copied_and_after_the_last_trip_nothing_moves() -> None:
    text = program(PREFETCHED)
    both = frozenset((Tier.DEVICE, Tier.HOST))
    events = events_of(text, text.func("f"), both)
    assert {str(event.resource) for event in events} == {"disk read", "device"}
    assert sum(event.nbytes for event in events) == 3 * 16
    assert [event.name for event in events][-1] == "w_rest"


def test_a_slice_of_state_is_read_after_it_is_written_and_written_after_it_is_read() -> None:
    text = program("""
dim N=2 E=4
state { s: f32 NE on host }
func f(x: f32 E) -> f32 E {
  y = loop[N](h: f32 E = x) {
    there: f32 E in flight = prefetch(s)
    stored: f32 E on host = store[host](h)
    set s = stored
    before = wait(there)
    after = fetch(s)
    next before + after
  }
  return y
}
""")
    events = {
        f"{event.action} {event.name} {dict(event.trips)['N']}": event for event in events_of(text, text.func("f"))
    }
    write = events["write s 0"]
    assert events["copy there 0"].number in write.after
    assert write.number in events["copy after 0"].after
    assert write.number not in events["copy there 1"].after


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_prefetch_hides_behind_what_is_computed(seconds: float) -> None:
    text = program(PREFETCHED)

    def cost(of: str) -> float:
        made = program(of)
        spans = simulate(
            events_of(made, made.func("f")),
            lambda e: seconds if e.action == "compute" else float(e.action in ("read", "copy")),
        )
        return max(span.end for span in spans)

    late = PREFETCHED.replace("    w_next: f32 E in flight = prefetch[ahead=N](w)\n", "").replace(
        "    set s = stored\n", "    set s = stored\n    w_next: f32 E in flight = prefetch[ahead=N](w)\n"
    )
    assert text != program(late)
    # The first is waited for; where computing takes half a second, the third sets out when the first is used up.
    assert cost(PREFETCHED) == {0.5: 5.0, 2.0: 2 + 3 * 2.0}[seconds]
    assert cost(late) == 2 + 3 * seconds + 2 * 2


def test_a_value_that_is_no_state_is_written_where_it_lies_and_read_after() -> None:
    text = program("""
dim N=2 T=5 E=4
state {
  s: f32 NE on disk
  k: f32 NTE on disk
}
func f(x: f32 E on host, pos: int32) -> f32 E {
  first = fetch(x)
  away: f32 E on disk = store[disk](first)
  y = loop[N](h: f32 E on disk = away) {
    here = fetch(h)
    new = here + here
    kept: f32 E on disk = store[disk](new)
    set s = kept
    row: f32 E on disk = store[disk](new)
    longer = update[T](k, row, pos)
    set k = longer
    left: f32 E on disk = store[disk](new)
    next left
  }
  last = fetch(y)
  return last
}
""")
    events = {
        (event.name, *dict(event.trips).values(), str(event.action)): event for event in events_of(text, text.func("f"))
    }
    assert str(events["away", "write"].resource) == "disk write"
    assert events["away", "write"].number in events["here", 0, "read"].after
    assert events["left", 0, "write"].number in events["here", 1, "read"].after
    assert events["left", 1, "write"].number in events["last", "read"].after
    # A new value of state, or new rows of one, are copied, and written where the state is set.
    assert events["row", 0, "store"].number in events["k", 0, "write"].after
    assert str(events["kept", 0, "store"].resource) == "from device"
    assert events["kept", 0, "store"].number in events["s", 0, "write"].after


WRITTEN = """
dim N=2 T=8 L=2 E=4
state {
  a: f32 NTE on disk
  b: f32 NTE on device 25% host 50% disk 25% along T
  s: f32 NE on disk
}
func f(x: f32 LE, pos: int32) -> f32 E {
  y = loop[N](h: f32 LE = x) {
    row: f32 LE on disk = store[disk](h)
    longer = update[T](a, row, pos)
    set a = longer
    here = fetch(b)
    with_rows = update[T](here, h, pos)
    b_next: f32 TE on device 25% host 50% disk 25% along T = with_rows
    set b = b_next
    first = take[L, 0](h)
    kept: f32 E on disk = store[disk](first)
    set s = kept
    away: f32 LE on disk = store[disk](h)
    again = fetch(away)
    next again
  }
  last = take[L, 0](y)
  return last
}
"""


def test_writes_are_of_the_rows_that_are_new() -> None:
    """A write's rows come to the host; those that lie on disk go on."""
    text = program(WRITTEN)
    row = 4 * 4
    events = {(e.name, str(e.resource)): e.nbytes for e in events_of(text, text.func("f")) if e.action != "compute"}
    assert {key: events[key, "disk write"] for key in ("a", "b", "s", "away")} == {
        "a": 2 * row,
        "b": 2 * row / 4,
        "s": row,
        "away": 2 * row,
    }
    assert [events[key, "from device"] for key in ("row", "b_next", "kept")] == [2 * row, 2 * row, row]
    # In 5 bits an element, of all that is read and written of it.
    packed = ListedEvents(text, text.func("f"), kept={"b": 5 / 8})
    packed.walk()
    now = {(e.name, str(e.resource)): e.nbytes for e in packed.events if e.action != "compute"}
    assert {key: (events[key], now[key]) for key in events if events[key] != now[key]} == {
        ("here", "disk read"): (2 * row, 10 * row // 32),
        ("here", "to device"): (6 * row, 30 * row // 32),
        ("b", "disk write"): (row // 2, 1),
    }
