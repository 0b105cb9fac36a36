"""Several processes, on one host or many, that run one program together: meeting, and noticing who is lost.

Frameworks have services for this, which end the process without a word to its caller where another does not come or
dies, or wait for it. So the processes first meet over a connection of their own: process 0 listens, and the others tell
it who they are. The connections stay open, and end when a process does.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from shardwright.backends.processes.connection import Connection
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault

COORDINATOR = "127.0.0.1:7621"
"""Where process 0 listens unless told otherwise: on this machine alone."""

TIMEOUT = 60
"""Seconds to wait for all processes."""

SILENCE = 60
"""Seconds without a sign of life after which a process counts as lost."""

_SIGNS = 6
"""Signs of life in that time, so that one that is late is not missed."""

_SELDOM = 1
"""Seconds between two of them, at most."""


@dataclass(frozen=True)
class Processes:
    """This process, number `index` of `count`. Number 0 listens on `host`, at `port`, and on no other address.

    `timeout` is how many seconds they wait for each other to come; `silence` after how many without a sign of life one
    of them counts as lost, never where it is 0. Number 0's holds for all.
    """

    host: str
    port: int
    count: int
    index: int
    timeout: float = TIMEOUT
    silence: float = SILENCE

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


def processes_of(
    coordinator: str | None = None,
    count: int | None = None,
    index: int | None = None,
    timeout: float = TIMEOUT,
    environ: Mapping[str, str] = os.environ,
    silence: float = SILENCE,
) -> Processes | None:
    """The processes that arguments name, or else SHARDWRIGHT_COORDINATOR (HOST:PORT), SHARDWRIGHT_PROCESSES and
    SHARDWRIGHT_PROCESS_ID; None where there is one alone.

    Raises a `DiagnosticError` where a number is missing or none, or the coordinator is no address.
    """
    count = _number(environ, "SHARDWRIGHT_PROCESSES") if count is None else count
    index = _number(environ, "SHARDWRIGHT_PROCESS_ID") if index is None else index
    named = coordinator or environ.get("SHARDWRIGHT_COORDINATOR")
    if count is None and index is None and named is None:
        return None
    if count is None or count < 1:
        raise _wrong(
            "the number of processes is not given" if count is None else f"there cannot be {count} processes",
            "give each process --processes N and its own --process-id, from 0 to N - 1",
        )
    if index is None or not 0 <= index < count:
        raise _wrong(
            f"of {count} processes this one has no number"
            if index is None
            else f"there is no process {index} of {count}",
            f"give each process its own --process-id, from 0 to {count - 1}",
        )
    host, colon, port = (named or COORDINATOR).rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:18]) < 65536:
        raise _wrong(f"the coordinator {named!r} is not an address", f"write HOST:PORT, as in {COORDINATOR}")
    host = host.removeprefix("[").removesuffix("]")
    return Processes(host, int(port), count, index, timeout, silence) if count > 1 else None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise _wrong(f"{name} is {text!r} in the environment, not a whole number")
    return int(text)


def _wrong(message: str, *notes: str) -> DiagnosticError:
    return fault("bad-processes", message, NOWHERE, *notes)


# ---------------------------------------------------------------- connections


Lost = Callable[[DiagnosticError], None]
"""Told, on a thread of its own, that another process is lost, and why."""


def say_and_leave(error: DiagnosticError) -> None:
    """Ends this process at once, whatever its other threads do: what waits for a lost process may be past help."""
    print(error.render(), file=sys.stderr)  # noqa: T201 - the process ends here
    leave()


def leave(status: int = 1) -> None:
    """Ends this process with this status, without waiting for any thread."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Peers(ABC):
    """The connections of this process to others, by their number."""

    def __init__(self, processes: Processes, lost: Lost = say_and_leave) -> None:
        self.processes = processes
        self.others: dict[int, Connection] = {}
        self.failure: DiagnosticError | None = None
        """That another process is lost, once it is known."""
        self.lost = lost
        self.doing = "starting"
        """What this process is at, for the others to say should it fall silent."""
        self._silence = processes.silence
        self._finished: set[int] = set()
        self._changed = threading.Condition()
        self._closing = False

    @abstractmethod
    def meet(self) -> str:
        """Connects to the others. Gives an address that is free on process 0's host, the same to all.

        Raises a `DiagnosticError` where not all of them come.
        """

    def watch(self) -> None:
        for index, connection in self.others.items():
            threading.Thread(target=self._watch, args=(index, connection), daemon=True).start()
        if self._silence:
            threading.Thread(target=self._live, daemon=True).start()

    @property
    def _period(self) -> float:
        """Seconds between two signs of life."""
        return min(self._silence / _SIGNS, _SELDOM)

    def _live(self) -> None:
        """Says that this process is alive: whatever it computes, as long as its threads run."""
        while not self._closing:
            self.tell(alive=self.doing)
            time.sleep(self._period)

    def _watch(self, index: int, connection: Connection) -> None:
        # Periods are counted, not seconds: if this process has been stopped too, they have not passed for it.
        periods, silent, doing = math.ceil(self._silence / self._period) if self._silence else 0, 0, ""
        while True:
            message = connection.receive(self._period if self._silence else None)
            silent = 0 if message is not None else silent + 1
            if message is None and (silent < periods or index in self._finished):
                continue
            if message is None:
                who = f"process {index} of {self.processes.count}"
                last = f", and was last at: {doing}" if doing else ""
                self.lose(
                    f"{who} has given no sign of life for {self._silence:g} s{last}",
                    "it is stopped, cut off, or its host is too busy; --silence-timeout SECONDS waits longer",
                )
                return
            if "alive" in message:
                doing = str(message["alive"])
            elif "finished" in message:
                with self._changed:
                    self._finished.add(index)
                    self._changed.notify_all()
            elif self._closing or (not message and index in self._finished):
                return
            else:
                self.lose(str(message.get("failed") or f"process {index} of {self.processes.count} has ended"))
                return

    def lose(self, what: str, *notes: str) -> None:
        """Another process is lost: the others are told, and whoever waits here."""
        self.tell(failed=what)
        error = fault("lost-process", f"{what}, and this is process {self.processes.index}", NOWHERE, *notes)
        error.source = Source(self.processes.name, "")
        with self._changed:
            first = self.failure is None
            self.failure = self.failure or error
            self._changed.notify_all()
        if first:
            self.lost(error)

    def tell(self, **message: object) -> None:
        for connection in self.others.values():
            connection.send(**message)

    def fail(self, error: BaseException) -> None:
        """Tells the others that this process leaves by an exception."""
        said = error.diagnostics[0].says() if isinstance(error, DiagnosticError) else str(error)
        first = (said or type(error).__name__).splitlines()[0]
        how = "was interrupted" if isinstance(error, KeyboardInterrupt) else f"has failed: {first}"
        self._closing = True  # what the others answer is not news
        self.tell(failed=f"process {self.processes.index} of {self.processes.count} {how}")
        self.close()

    def heard(self, seconds: float) -> DiagnosticError | None:
        """The error that another process is lost, if that becomes known within so many seconds: why a collective has
        failed."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None, seconds)
            return self.failure

    @abstractmethod
    def finish(self) -> None:
        """Waits for the others. Raises a `DiagnosticError` where one is lost instead."""

    def wait_for(self, indices: set[int]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: indices <= self._finished or self.failure is not None)
            if self.failure is not None:
                raise self.failure

    def close(self) -> None:
        self._closing = True
        for connection in self.others.values():
            connection.close()


class Listener(Peers):
    """Process 0. Where its port is 0 it takes a free one, and tells `listens` where it is before it waits."""

    def __init__(
        self, processes: Processes, lost: Lost = say_and_leave, listens: Callable[[int], None] = lambda _: None
    ) -> None:
        super().__init__(processes, lost)
        self._listens = listens

    def meet(self) -> str:
        processes = self.processes
        try:
            family = socket.AF_INET6 if ":" in processes.host else socket.AF_INET
            listening = socket.create_server((processes.host, processes.port), family=family)
        except OSError as error:
            raise fault(
                "no-coordinator",
                f"process 0 cannot listen there: {_reason(error)}",
                NOWHERE,
                "give every process --coordinator HOST:PORT with an address of process 0's host and a free port",
            ) from None
        deadline = time.monotonic() + processes.timeout
        with listening:
            self._listens(listening.getsockname()[1])
            while len(self.others) < processes.count - 1:
                listening.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    connected, _ = listening.accept()
                except TimeoutError:
                    raise self._absent() from None
                self._greet(connected, deadline)
        with socket.create_server((processes.host, 0), family=family) as free:
            port = free.getsockname()[1]
        host = f"[{processes.host}]" if family is socket.AF_INET6 else processes.host
        self.tell(service=f"{host}:{port}", silence=self._silence)
        self.watch()
        return f"{host}:{port}"

    def _greet(self, connected: socket.socket, deadline: float) -> None:
        connected.settimeout(max(0.01, deadline - time.monotonic()))
        connection = Connection(connected)
        message = connection.receive() or {}
        index, count = message.get("process"), message.get("of")
        if not isinstance(index, int) or not isinstance(count, int) or not 0 <= index < count:
            connection.close()
            return
        refused = ""
        if count != self.processes.count:
            refused = f"process {index} was told of {count} processes, and process 0 of {self.processes.count}"
        elif index == 0 or index in self.others:
            refused = f"there are two processes {index} of {count}"
        if refused:
            connection.send(refused=refused)
            connection.close()
            self.tell(refused=refused)
            raise _wrong(refused, "give each process the same --processes and its own --process-id")
        connected.settimeout(None)
        self.others[index] = connection

    def _absent(self) -> DiagnosticError:
        processes = self.processes
        absent = [str(i) for i in range(1, processes.count) if i not in self.others]
        what = f"process{'es' if len(absent) > 1 else ''} {', '.join(absent)} of {processes.count}"
        message = f"{what} did not come within {processes.timeout:g} s"
        self.tell(refused=message)
        return fault(
            "absent-process", message, NOWHERE, f"start each with --coordinator {processes.name} and its --process-id"
        )

    def finish(self) -> None:
        self.wait_for(set(self.others))
        self.tell(finished=True)


class Caller(Peers):
    """A process other than 0."""

    def meet(self) -> str:
        processes = self.processes
        deadline = time.monotonic() + processes.timeout
        while True:
            try:
                connected = socket.create_connection((processes.host, processes.port), timeout=1)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise fault(
                        "no-coordinator",
                        f"process 0 was not to be reached within {processes.timeout:g} s: {_reason(error)}",
                        NOWHERE,
                        f"start it with --coordinator {processes.name}, and see that its port can be reached from here",
                    ) from None
                time.sleep(0.05)
        connected.settimeout(processes.timeout + 5)  # process 0 says first what is wrong
        self.others[0] = Connection(connected)
        self.others[0].send(process=processes.index, of=processes.count)
        message = self.others[0].receive() or {}
        if not isinstance(message.get("service"), str):
            raise fault("absent-process", str(message.get("refused") or "process 0 has ended"), NOWHERE)
        connected.settimeout(None)
        silence = message.get("silence")
        self._silence = float(silence) if isinstance(silence, int | float) else 0
        self.watch()
        return str(message["service"])

    def finish(self) -> None:
        self.tell(finished=True)
        self.wait_for({0})


def _reason(error: OSError) -> str:
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


@contextlib.contextmanager
def own_stdout() -> Generator[None]:
    """Sends what libraries beneath Python write to stdout, as gloo greets its peers, to stderr."""
    before = sys.stdout
    try:
        own = before.fileno() == 1
    except (OSError, ValueError):  # captured, or closed
        own = False
    if not own:
        yield
        return
    before.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w", encoding=before.encoding, errors=before.errors, closefd=False) as stdout:
        sys.stdout = stdout
        try:
            yield
        finally:
            sys.stdout = before
            stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)
