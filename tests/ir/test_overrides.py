"""Sizes from outside: what the file knows takes them, a name that it does not know is a fault."""

from __future__ import annotations

import pytest

from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse

TEXT = "mesh data=2 model=2\ndim B=8 E=4*D D=4\nfunc f(a: [B E_{model}]) -> [B E_{model}] {\n  return a\n}\n"
BARE = "dim B=8\nfunc f(a: B?) -> B? {\n  return a\n}\n"


def made(text: str, mesh: dict[str, int] | None = None, dims: dict[str, int] | None = None) -> Program:
    return elaborate(parse(Source("f.shard", text)), mesh, dims)


def test_what_the_file_declares_takes_another_size() -> None:
    found = made(TEXT, {"model": 4}, {"D": 8})
    assert dict(found.mesh.sizes) == {"data": 2, "model": 4}
    assert found.sizes() == {"B": 8, "E": 32, "D": 8}


def test_a_file_without_a_mesh_takes_any_axes() -> None:
    assert dict(made(BARE, {"x": 2, "w": 4}).mesh.sizes) == {"x": 2, "w": 4}


def test_what_only_a_type_names_may_be_given() -> None:
    """An axis that the mesh lacks, a dimension without a size: the command line completes the file."""
    found = made("mesh x=2\nfunc f(a: BE_y) -> BE_y {\n  return a\n}\n", {"y": 2}, {"B": 2, "E": 4})
    assert dict(found.mesh.sizes) == {"x": 2, "y": 2}
    assert found.sizes() == {"B": 2, "E": 4}


@pytest.mark.parametrize(
    ("mesh", "dims", "message", "note"),
    [
        ({"modle": 2}, {}, "the file has no axis modle, for which modle=2 is given", "did you mean model?"),
        (
            {"x": 4},
            {},
            "the file has no axis x, for which x=4 is given",
            "its axes are data, model; add it to the file's mesh",
        ),
        (
            {},
            {"F": 16},
            "the file has no dimension F, for which F=16 is given",
            "its dimensions are B, E, D; leave it out",
        ),
    ],
)
def test_an_unknown_name_is_a_fault(mesh: dict[str, int], dims: dict[str, int], message: str, note: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        made(TEXT, mesh, dims)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == message
    assert [made.message for made in diagnostic.notes] == [note]
