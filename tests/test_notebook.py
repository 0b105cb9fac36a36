"""The notebook runs from its first cell to its last, and prints what stands in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebook.ipynb"


def test_the_notebook_prints_what_stands_in_it(request: pytest.FixtureRequest) -> None:
    kept: Any = nbformat.read(NOTEBOOK, 4)
    made: Any = nbformat.read(NOTEBOOK, 4)
    NotebookClient(made, timeout=300, resources={"metadata": {"path": NOTEBOOK.parent}}).execute()
    pictures = [output.data["text/html"] for output in outputs(made) if "text/html" in output.get("data", {})]
    assert len(pictures) == 3
    assert all("<svg" in picture for picture in pictures)
    if request.config.getoption("--update-goldens"):
        for cell in made.cells:
            cell.metadata = {}
            for output in cell.get("outputs", ()):
                output.get("data", {}).pop("text/html", None)  # which pages that show notebooks leave out
        nbformat.write(made, NOTEBOOK)
        kept = made
    assert said(made) == said(kept)


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def said(notebook: Any) -> list[str]:
    """The text that each cell prints, which may come in pieces, without the seconds that a search took."""
    made: list[str] = []
    for cell in notebook.cells:
        pieces: list[str] = []
        for output in cell.get("outputs", ()):
            assert output.output_type in ("stream", "execute_result")
            pieces.append(output.text if output.output_type == "stream" else output.data["text/plain"])
        made.append(re.sub(r", [0-9.]+ s$", "", "".join(pieces), flags=re.MULTILINE))
    return made
