"""The notation of collectives: what is printed reads again in any order; what is none is told with its place."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.backends.hlo.mesh_axes import IRREGULAR
from shardwright.backends.hlo.notation import CollectiveEntry, entries_text, parse_entries
from shardwright.ir.diagnostics import DiagnosticError, Source, located

MESH = {"x": 4, "y0": 2, "data": 2, "model": 8}
AXES = [
    ("x",), ("x", "y0"), ("data",), ("x", "model"), ("x", "y0", "data", "model"), ("model:(2)2",), ("x", "model:(1)4"),
    ("model:(1)2", "model:(4)2"), IRREGULAR,
]  # fmt: skip
entries = st.builds(
    CollectiveEntry,
    st.sampled_from(["all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute"]),
    st.sampled_from(AXES),
    st.integers(1, 2**50),
    st.one_of(st.integers(1, 200), st.none()),
)


@given(st.lists(entries), st.randoms(use_true_random=False), st.sampled_from(["\n", ";", " ; ", "\n\n  "]))
def test_what_is_printed_reads_again(listed: list[CollectiveEntry], random: st.DrawFn, between: str) -> None:
    counted = Counter(listed)
    lines = entries_text(counted)
    assert lines == entries_text(Counter(reversed(listed)))
    random.shuffle(lines)  # type: ignore[attr-defined]
    assert parse_entries(Source("text", between.join(lines)), MESH) == counted


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ["none"]),
        ("none", ["none"]),
        ("all_gather[y0x] 1024", ["all_gather[xy0] 1024"]),
        ("all_gather[model,data] 1024; all_gather[ data , model ] 1024", ["2x all_gather[data,model] 1024"]),
        ("all_reduce[x] 8*3 ;\n 2x  all_reduce [x]  8 * 3", ["3x all_reduce[x] 8 * 3"]),
        ("permute[irregular] 8 * ?", ["permute[irregular] 8 * ?"]),
        ("all_to_all[x,model:(2)2] 8", ["all_to_all[x,model:(2)2] 8"]),
    ],
)
def test_readings(text: str, printed: list[str]) -> None:
    assert entries_text(parse_entries(Source("text", text), MESH)) == printed


EXAMPLE = "note: as in `all_gather[x] 1024`, or `2x all_gather[x] 1024 * 12`: two, each in a loop of 12 trips"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "all_gather[x] 12; all_gather[x] 12kB",
            "text:1:33: error: expected the bytes that a chip receives, found `12kB` [bad-collectives]\n"
            "  all_gather[x] 12; all_gather[x] 12kB\n"
            f"                                  ^^^^\n{EXAMPLE}",
        ),
        (
            "all_gather[x] 12;\n  all_gather[x]",
            "text:2:16: error: expected the bytes that a chip receives, found nothing behind `all_gather[x]`"
            " [bad-collectives]\n"
            "    all_gather[x]\n"
            f"                 ^\n{EXAMPLE}",
        ),
        (
            "all_gather x 12",
            "text:1:12: error: expected the mesh axes in brackets, found `x 12` [bad-collectives]\n"
            "  all_gather x 12\n"
            f"             ^^^^\n{EXAMPLE}",
        ),
        (
            "2 all_gather[x] 12",
            "text:1:1: error: expected a collective, found `2 all_gather[x] 12` [bad-collectives]\n"
            "  2 all_gather[x] 12\n"
            f"  ^^^^^^^^^^^^^^^^^^\n{EXAMPLE}",
        ),
        (
            "all_gather[x] 12 x 3",
            "text:1:18: error: expected how often it runs, found `x 3` [bad-collectives]\n"
            "  all_gather[x] 12 x 3\n"
            f"                   ^^^\n{EXAMPLE}",
        ),
        (
            "all_gather[x] 12, all_gather[x] 3",
            "text:1:17: error: expected how often it runs, found `, all_gather[x] 3` [bad-collectives]\n"
            "  all_gather[x] 12, all_gather[x] 3\n"
            f"                  {'^' * 17}\n"
            "note: between collectives there is `;`",
        ),
        (
            "all_gather[x] 12; none",
            "text:1:19: error: `none` stands for no collective, and here are others [bad-collectives]\n"
            "  all_gather[x] 12; none\n"
            "                    ^^^^\n"
            "note: leave it out",
        ),
        (
            "all-gather[x] 12",
            "text:1:1: error: there is no collective all-gather [unknown-collective]\n"
            "  all-gather[x] 12\n"
            "  ^^^^^^^^^^\n"
            "note: did you mean all_gather?",
        ),
        (
            "psum[x] 12",
            "text:1:1: error: there is no collective psum [unknown-collective]\n"
            "  psum[x] 12\n"
            "  ^^^^\n"
            "note: there are all_gather, all_reduce, reduce_scatter, all_to_all, permute",
        ),
        (
            "all_gather[modle] 12",
            "text:1:12: error: the mesh has no axis modle [unknown-axis]\n"
            "  all_gather[modle] 12\n"
            "             ^^^^^\n"
            "note: did you mean model?",
        ),
        (
            "all_gather[xz] 12",
            "text:1:12: error: the mesh has no axis z [unknown-axis]\n"
            "  all_gather[xz] 12\n"
            "             ^^\n"
            "note: the mesh is x=4 y0=2 data=2 model=8",
        ),
        (
            "all_gather[] 12",
            "text:1:12: error: an axis is missing [unknown-axis]\n"
            "  all_gather[] 12\n"
            "             ^\n"
            "note: the mesh is x=4 y0=2 data=2 model=8",
        ),
        (
            "all_gather[x,x] 12",
            "text:1:12: error: x is named twice [axis-twice]\n"
            "  all_gather[x,x] 12\n"
            "             ^^^\n"
            "note: name it once",
        ),
        (
            "all_gather[model:(2)8] 12",
            "text:1:12: error: the 8 chips of model have no part (2)8 [bad-collectives]\n"
            "  all_gather[model:(2)8] 12\n"
            "             ^^^^^^^^^^\n"
            "note: `model:(2)4` is four chips in each of two parts of model",
        ),
        (
            "all_gather[x:(2)4] 12",
            "text:1:12: error: the 4 chips of x have no part (2)4 [bad-collectives]\n"
            "  all_gather[x:(2)4] 12\n"
            "             ^^^^^^\n"
            "note: `x:(2)2` is two chips in each of two parts of x",
        ),
        (
            "all_gather[data:(2)2] 12",
            "text:1:12: error: the 2 chips of data have no part (2)2 [bad-collectives]\n"
            "  all_gather[data:(2)2] 12\n"
            "             ^^^^^^^^^\n"
            "note: data has no parts: name it whole",
        ),
    ],
)
def test_what_is_no_notation(text: str, said: str) -> None:
    source = Source("text", text)
    with pytest.raises(DiagnosticError) as caught, located(source):
        parse_entries(source, MESH)
    assert caught.value.render() == said
