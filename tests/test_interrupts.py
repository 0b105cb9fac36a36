"""Interrupts of the command line, as from a terminal: status 130 and not a word, whatever they come into."""

from __future__ import annotations

import subprocess
import sys

import pytest
from interrupting import HEEDED


def run_of(script: str) -> tuple[int, bytes, bytes]:
    """Status, output and errors of a command that does as `execute` of the script says."""
    made = HEEDED + (
        "import os, signal, sys, time\n"
        "from shardwright.__main__ import main\n"
        "from shardwright.cli import check\n"
        f"{script}"
        "check.execute = execute\n"
        "sys.exit(main(['check', 'a.shard']))"
    )
    done = subprocess.run([sys.executable, "-c", made], capture_output=True, check=False, timeout=50)
    return done.returncode, done.stdout, done.stderr


def test_interrupt_of_a_process() -> None:
    script = "execute = lambda args: (os.kill(os.getpid(), signal.SIGINT), time.sleep(60))\n"
    assert run_of(script) == (130, b"", b"")


def test_interrupt_that_comes_out_as_another_error() -> None:
    """A library in C that is being imported says that it failed to be imported."""
    script = (
        "def execute(args):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        raise ImportError('numpy._core.umath failed to import') from None\n"
    )
    assert run_of(script) == (130, b"", b"")


@pytest.mark.parametrize("once", [False, True])
def test_interrupt_that_python_ignores(once: bool) -> None:
    """It comes while an object goes, as one of the threads that Python keeps in a set does."""
    script = (
        "import weakref\n"
        "from contextlib import nullcontext\n"
        "from shardwright.cli.interrupts import one_interrupt\n"
        "def interrupted(reference):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(1)\n"
        "def execute(args):\n"
        f"    with one_interrupt() if {once} else nullcontext():\n"
        "        thing = weakref.WeakSet()\n"
        "        kept = weakref.ref(thing, interrupted)\n"
        "        del thing\n"
        "        time.sleep(60)\n"
    )
    assert run_of(script) == (130, b"", b"")


def test_interrupt_on_the_way_out() -> None:
    """It comes when the command is done, while a library lets go of what it has."""
    script = HEEDED + (
        "import atexit, os, runpy, signal, sys, time\n"
        "atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.1)))\n"
        "sys.argv = ['shardwright', '--version']\n"
        "runpy.run_module('shardwright', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("shardwright ")
