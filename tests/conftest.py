"""What every test shares: settings of hypothesis and JAX, golden files, and a way to run the command line."""

from __future__ import annotations

import difflib
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import nursery
import pytest

# Read when jax is first imported: eight devices on any machine, and programs that run once or twice compiled in a third
# of the time, each in one piece, since pieces pay only for the processors that compile them side by side. What a module
# moves is decided before the code of its instructions is made.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)
# Read when torch is first imported: models this small are several times as fast on one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Programs, types and traces are many small objects that no cycle keeps: looking for cycles after every seven hundred of
# them takes some percent of the time. What has memory to give back collects by itself.
gc.set_threshold(50_000, 20, 50)

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=False)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

GOLDENS = Path(__file__).parent / "goldens"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden files instead of comparing")
    parser.addoption("--processor-time", action="store_true", help="say where processor time went, children's included")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--processor-time"):
        config.pluginmanager.register(ProcessorTime())


def processor_seconds() -> float:
    """The time of this process and of those that it or its nurseries waited for."""
    return sum(os.times()[:4]) + nursery.spent[0]


class ProcessorTime:
    """Sums the processor time of tests, user and system, with that of the processes that they waited for. Imports count
    for the test that comes first; with pytest-xdist each worker sends its times with its reports."""

    def __init__(self) -> None:
        self.last = processor_seconds()
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = processor_seconds()
        report.user_properties.append(("processor seconds", now - self.last))
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, test = report.nodeid.partition("::")
        names = [*map(str, Path(file).parents[:-1]), file, f"{file}::{test.partition('[')[0]}"]
        for name in names:  # a test whose process ended has no time
            self.seconds[name] += float(str(dict(report.user_properties).get("processor seconds", 0)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds of processor time")
        for name, seconds in self.seconds.most_common(150):
            terminalreporter.write_line(f"{seconds:7.1f}  {name}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow the cases of a test marked `one_in(n)` but one in n. Those stay whose number has digits, in base n,
    whose sum n divides: of products of parameters no value is left out because it always comes at the same place."""
    numbers: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is None or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.partition("[")[0]
        number, base, total = numbers[test], int(mark.args[0]), 0
        numbers[test] += 1
        while number:
            number, digit = divmod(number, base)
            total += digit
        if total % base:
            item.add_marker("slow")


_LOADED = 100
"""Modules that are loaded before the collector is told again to leave alone what is there."""


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Lets the garbage collector pass over the libraries that a test loaded, and at the end of each file over what its
    tests leave behind in caches: jax, torch and transformers are half a million objects and keep as many again, and
    searching these took half of the time of runs that collect garbage before they begin."""
    before = len(sys.modules)
    done = yield
    if len(sys.modules) - before > _LOADED or nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("folder/name.shard", text)` compares `text` with that file under tests/goldens."""
    update = bool(request.config.getoption("--update-goldens"))

    def compare(name: str, text: str) -> None:
        path = GOLDENS / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(name), "now", lineterm="")
            pytest.fail("\n".join([*lines, "", "if this is meant: pytest --update-goldens"]), pytrace=False)

    return compare


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint("llama-grouped", dtype="bfloat16")`: the folder of a checkpoint, the same for every call and for all
    workers of pytest-xdist: whoever needs it first makes it.

    Tests that change it copy it first.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "checkpoints"
    shared.mkdir(exist_ok=True)

    def make(name: str, dtype: str = "float32", shard: str = "1GB") -> Path:
        from models.checkpoints import make_checkpoint

        folder = shared / f"{name}-{dtype}-{shard}"
        if not folder.exists():
            made = make_checkpoint(name, tmp_path_factory.mktemp(name), dtype, shard)
            with suppress(OSError):  # another worker was as quick
                made.rename(folder)
        return folder

    return make


@pytest.fixture
def quick_measuring(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this machine would be measured, a T4 is found at once, and kept in a folder of the test's own."""
    from offloading.quick_measuring import quick_command

    from shardwright.serving.offloading import this_machine

    folder = tmp_path_factory.mktemp("measuring")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(this_machine, "COMMAND", quick_command(folder))


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit status and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture
def shardwright(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`shardwright("check", "a.shard")` runs the command line in this process."""
    from shardwright.__main__ import main

    def run(*argv: str | Path | Sequence[str]) -> Outcome:
        capsys.readouterr()
        status = main([str(word) for word in argv])
        printed = capsys.readouterr()
        return Outcome(status, printed.out, printed.err)

    return run
