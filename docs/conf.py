"""The site: `make docs` builds it. Pages are Markdown; what they print is held by `tests/test_readme.py`."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import Any

project = "Shardwright"
version = release = version_of("shardwright")
author = "The Shardwright authors"
copyright = author  # noqa: A001 -- Sphinx's name for it

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["_build", "reference/programs"]

myst_heading_anchors = 4
# `shardwright` and `shard` are coloured by the package's own lexer; tables and transcripts are plain text.
suppress_warnings = ["misc.highlighting_failure"]

default_role = "literal"  # docstrings write code between single backquotes
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = "Shardwright"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

_FENCES = {"options": "text", "strategies": "text", "elementwise": "text", "lock": "text", "shardwright": "shard"}


def _plain_fences(app: Any, document: str, text: list[str]) -> None:
    """Fences whose contents tests write have names of their own, and are text; files have their names above them."""
    del app, document

    def fence(match: re.Match[str]) -> str:
        kind = _FENCES.get(match[1], match[1])
        named = match[2] and match[1] != "options"
        return f"```{{code-block}} {kind}\n:caption: {match[2]}\n" if named else f"```{kind}"

    text[0] = re.sub(r"^```(\w+)(?: (\S+))?$", fence, text[0], flags=re.MULTILINE)


def setup(app: Any) -> None:
    """What Sphinx calls first."""
    app.connect("source-read", _plain_fences)
