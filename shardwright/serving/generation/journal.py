"""The output file as the journal of a run: which texts are answered, under which settings, and lines written whole."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, Span, fault
from shardwright.ir.whole_files import whole_file
from shardwright.serving.generation.outputs import json_line, texts_of
from shardwright.serving.generation.prompts import WRITTEN, Prompt
from shardwright.serving.generation.run_settings import (
    RunSettings,
    kept_settings,
    read_settings,
    settings_path,
)

Text = tuple[int, int]
"""The index of a prompt and the number of a sample."""

_COPIED = 1 << 20
"""Bytes that are copied at a time."""


class Journal:
    """Appends lines to a file, after those of texts that an earlier run has answered: `answered`.

    Beside the file another keeps the settings that its answers depend on (`run_settings`). A last line without its end,
    which a run that was killed may leave, is cut off. The file is locked while it is open, for two runs into one would
    answer texts twice; the lock goes with the process that has it, however that ends. What is no regular file, such as
    a pipe, is written to and never read. Raises a `DiagnosticError` where another process has it open, or it has
    answers to other prompts or under other settings, OSError with the file's name where it cannot be written.
    """

    def __init__(
        self,
        path: str,
        prompts: Sequence[Prompt],
        settings: Callable[[], RunSettings],
        samples: int = 1,
        refused: Collection[int] = (),
    ):
        """Lines are of so many samples of each prompt, or one with its error where it is `refused`. `settings` is
        called for a regular file alone."""
        self._path = path
        self._new = not Path(path).exists()
        self._samples, self._too_long = samples, refused
        self._prompts = prompts
        self._places: dict[Text, tuple[int, int]] = {}
        """Of each answered text where its line begins and ends."""
        self._lines = 0
        self._end = 0
        self._file = self._opened()
        self._kept = stat.S_ISREG(os.fstat(self._file).st_mode)
        try:
            if self._kept:
                self._go_on(settings())
        except BaseException:
            self._close()
            raise

    @property
    def answered(self) -> frozenset[Text]:
        return frozenset(self._places)

    @property
    def texts(self) -> list[Text]:
        """All that are to be answered, in their order, and what an earlier run has answered of refused prompts."""
        wanted = texts_of(self._prompts, self._samples, self._too_long)
        return sorted({*wanted, *self._places})

    def _opened(self) -> int:
        """The file, locked: the one that has its name, though another run may just have put a new one there."""
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return file
            try:
                self._lock(file)
                if Path(self._path).exists() and os.path.samestat(os.fstat(file), Path(self._path).stat()):
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def _lock(self, file: int) -> None:
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            way_out = "wait until it has ended, or give another file with -o"
            raise self._fault("in-use", "another run is writing to this file", NOWHERE, "", way_out) from None
        except OSError:
            pass  # a file system without locks

    def _fault(self, code: str, message: str, span: Span, text: str, *notes: str) -> DiagnosticError:
        failed = fault(code, message, span, *notes)
        failed.source = Source(self._path, text)
        return failed

    # ------------------------------------------------------------ going on

    def _go_on(self, settings: RunSettings) -> None:
        """From what the file has, where that was made under the same settings."""
        beside = settings_path(self._path)
        before = read_settings(beside)
        begun = any(line.endswith(b"\n") for _, line in self._read())
        now = kept_settings(settings, before)
        if begun and before is not None:
            differences = before.differences(now)
            if differences:
                message = f"the answers in this file were made with other settings: {differences[0]}"
                raise self._fault("other-settings", message, NOWHERE, "", *differences[1:], self._way_out)
        self._take_over()
        if begun and before is None:
            message = f"it is not known with which settings these answers were made: {beside} is not there"
            raise self._fault("not-resumable", message, NOWHERE, "", self._way_out)
        if before is None or before != now:
            now.write(beside)
        size = os.fstat(self._file).st_size
        if self._end < size:
            os.ftruncate(self._file, self._end)

    @property
    def _way_out(self) -> str:
        beside = settings_path(self._path)
        anew = f"remove {self._path} and {beside} to begin anew"
        return f"go on with what it was begun with, give another file with -o, or {anew}"

    def _read(self) -> Iterator[tuple[int, bytes]]:
        """The lines of the file, each with where it begins."""
        at = 0
        with Path(self._path).open("rb") as file:
            for line in file:
                yield at, line
                at += len(line)

    def _take_over(self) -> None:
        """The texts that the file's lines answer. Raises where a line is none of these texts' answers."""
        by_index = {prompt.index: prompt for prompt in self._prompts}
        for number, (at, line) in enumerate(self._read(), 1):
            if not line.endswith(b"\n"):
                break
            text = self._text_of(line, by_index)
            if text is None:
                message = "this line is not the answer to one of these prompts"
                way_out = "give the prompts it began with, or another file with -o"
                raise self._refused(number, line, message, f"a run goes on where the output ends; {way_out}")
            if text in self._places:
                raise self._refused(number, line, f"prompt {text[0]} is answered twice")
            if text[0] not in self._too_long and "error" in (_answer(line) or {}):
                message = "this prompt was too long, and there is room for it now"
                raise self._refused(number, line, message, self._way_out)
            self._places[text] = at, at + len(line)
            self._end = at + len(line)

    def _text_of(self, line: bytes, by_index: Mapping[int, Prompt]) -> Text | None:
        """The text that a line answers; None where it is none of those that are asked for."""
        found = _answer(line)
        if found is None:
            return None
        index, sample = found.get("index"), found.get("sample", 0)
        prompt = by_index.get(index) if isinstance(index, int) else None
        if prompt is None or not isinstance(sample, int) or sample not in range(self._samples):
            return None
        given = {key: value for key, value in found.items() if key not in WRITTEN}
        return (prompt.index, sample) if given == prompt.keys else None

    def _refused(self, number: int, line: bytes, message: str, *notes: str) -> DiagnosticError:
        shown = "\n" * (number - 1) + line.decode("utf-8", "replace").rstrip("\n")
        return self._fault("not-resumable", message, Span(number, 1, number, 2), shown, *notes)

    # ------------------------------------------------------------ writing

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if error is None and self._kept and len(self._places) == len(self.texts):
                self._put_in_order()
        finally:
            self._close()

    def _close(self) -> None:
        if self._new and not self._lines and self._kept_is_empty():
            Path(self._path).unlink(missing_ok=True)
            settings_path(self._path).unlink(missing_ok=True)
        os.close(self._file)

    def _kept_is_empty(self) -> bool:
        status = os.fstat(self._file)
        return stat.S_ISREG(status.st_mode) and not status.st_size

    def write(self, keys: dict[str, Any]) -> None:
        """One line more; where that fails, what was written of it is taken away."""
        self._check_whole()
        data = json_line(keys).encode()
        at = self._end
        try:
            while data:
                n = os.pwrite(self._file, data, at) if self._kept else os.write(self._file, data)
                data, at = data[n:], at + n
        except OSError as error:
            if self._kept:
                os.ftruncate(self._file, self._end)
            error.filename = self._path
            raise
        self._places[keys["index"], keys.get("sample", 0)] = self._end, at
        self._end = at
        self._lines += 1

    def _check_whole(self) -> None:
        """Raises where somebody has cut off what was written: lines behind it would come after a hole."""
        if self._kept and os.fstat(self._file).st_size < self._end:
            message = f"answers are gone: the file was cut off while the run wrote; it had {self._end} bytes"
            raise self._fault("cut-off", message, NOWHERE, "", "the same command answers anew what is not there")

    def _put_in_order(self) -> None:
        """All texts are answered: their lines come into the order of the prompts, in a file that takes this one's place
        when it is complete. So they do where this one is no more at its place, or has lines of others."""
        self._check_whole()
        places = [self._places[text] for text in self.texts]
        if places == sorted(places) and self._lies_there():
            return
        with whole_file(self._path) as file:
            for begin, end in places:
                for at in range(begin, end, _COPIED):
                    file.write(os.pread(self._file, min(_COPIED, end - at), at))

    def _lies_there(self) -> bool:
        """True if the path is that of this file, with all that was written and nothing else."""
        path, here = Path(self._path), os.fstat(self._file)
        return path.exists() and os.path.samestat(path.stat(), here) and here.st_size == self._end


def _answer(line: bytes) -> dict[str, Any] | None:
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = cast("dict[str, Any]", value) if isinstance(value, dict) else None
    answers = found is not None and (isinstance(found.get("new_tokens"), list) or isinstance(found.get("error"), str))
    return found if answers else None
