"""The fonts that the renderer sees: DejaVu from matplotlib's data first, so that no system font is needed.

The renderer in pygraphviz's wheel asks fontconfig for fonts and draws empty boxes where a machine has none.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

_SYSTEM_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "/Library/Fonts", "/System/Library/Fonts")


def font_folder() -> Path | None:
    """The folder with the DejaVu fonts that matplotlib carries (which is not imported), None without matplotlib."""
    found = find_spec("matplotlib")
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0], "mpl-data", "fonts", "ttf")
    return folder if folder.is_dir() else None


def font_configuration(folder: Path, cache: Path) -> str:
    """A fontconfig file that has this folder's fonts before the system's."""
    folders = "\n".join(f"  <dir>{escape(str(path))}</dir>" for path in (folder, *_SYSTEM_FOLDERS))
    return (
        f'<?xml version="1.0"?>\n<fontconfig>\n{folders}\n  <cachedir>{escape(str(cache))}</cachedir>\n</fontconfig>\n'
    )


@contextmanager
def fonts() -> Generator[None]:
    """Makes these fonts known to the renderer, which reads the configuration when it draws its first text.

    A FONTCONFIG_FILE of the user's own is left as it is.
    """
    folder = font_folder()
    if folder is None or "FONTCONFIG_FILE" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="shardwright-fonts-", ignore_cleanup_errors=True) as scratch:
        file = Path(scratch, "fonts.conf")
        file.write_text(font_configuration(folder, Path(scratch, "cache")), encoding="utf-8")
        os.environ["FONTCONFIG_FILE"] = str(file)
        try:
            yield
        finally:
            del os.environ["FONTCONFIG_FILE"]
