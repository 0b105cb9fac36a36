"""The processes of one run under `torch.distributed`: joining them, their groups, and noticing who is lost.

They are those of `torchrun`, or of anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. A collective
that waits for a process that is gone may wait for ever, so the loss is noticed apart from it
(`backends.processes.peers`).
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shardwright.backends.processes.peers import SILENCE, Caller, Listener, Peers, Processes, leave, own_stdout
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault

if TYPE_CHECKING:
    import torch

TIMEOUT = 60
"""Seconds to wait for all processes."""

GRACE = 10
"""Seconds that a process has to end by itself when another is lost."""

_AT_ONCE = 2
"""Seconds that it has if it cannot be told to end, since it may wait for a message that never comes."""

_FOR_EVER = 1e8
"""Seconds that a message may take: as long as the other computes. Who is lost is noticed otherwise."""

_PARENT = "SHARDWRIGHT_PARENT_PIPE"
"""In the environment of processes whose standard input ends when the process that started them does."""


@dataclass
class World:
    """This process, number `index` of `count`, of which `local` is its number on this host."""

    index: int
    count: int
    local: int
    peers: Peers
    store: Any
    on_loss: list[Callable[[BaseException], None]] = field(default_factory=list[Callable[[BaseException], None]])
    _groups: dict[tuple[tuple[int, ...], str | None], Any] = field(
        default_factory=dict[tuple[tuple[int, ...], "str | None"], Any]
    )

    @property
    def writes(self) -> bool:
        """True if this process is the one that writes results."""
        return self.index == 0

    def device(self, named: str | None) -> str:
        """The device of this process: with CUDA one of its own, where the host has as many."""
        import torch

        if named is not None and named != "cuda":
            return named
        if named is None and not torch.cuda.is_available():
            return "cpu"
        return f"cuda:{self.local % max(1, torch.cuda.device_count())}"

    def backend(self, device: torch.device) -> str:
        """How tensors on this device are sent: NCCL where every process has a GPU of its own, else gloo."""
        import torch

        own = device.type == "cuda" and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
        return "nccl" if own else "gloo"

    def group(self, ranks: tuple[int, ...], backend: str | None = None) -> Any:
        """The group of these processes. All processes make the same groups in the same order."""
        import datetime as dt

        key = ranks, backend
        if key not in self._groups:
            self.meet(f"group {len(self._groups)}")
            self._groups[key] = torch_distributed().new_group(
                list(ranks), timeout=dt.timedelta(seconds=_FOR_EVER), backend=backend
            )
        return self._groups[key]

    def at(self, what: str) -> None:
        """Says what this process is at from here on, for the others to say should it fall silent."""
        self.peers.doing = what

    # ------------------------------------------------------------ what all know

    def share(self, name: str, value: object) -> None:
        """Tells the others, under a name that is used once."""
        self.store.set(f"{name} of {self.index}", json.dumps(value))

    def shared(self, name: str, index: int) -> Any:
        """The value that process `index` has told or will tell; waits for it. Raises where a process is lost."""
        key = f"{name} of {index}"
        try:
            while not self.store.check([key]):
                self._raise_lost(0.02)
            return json.loads(self.store.get(key))
        except RuntimeError:  # the process that has the store is gone
            self._raise_lost(2)
            raise

    def meet(self, name: str) -> None:
        """Waits until all have come here, under a name that is used once. Raises where a process is lost."""
        self.share(name, True)
        for index in range(self.count):
            self.shared(name, index)

    def agree(self, facts: Mapping[str, str]) -> None:
        """Raises where another process says otherwise than process 0."""
        self.share("facts", dict(facts))
        first = self.shared("facts", 0)
        for name, value in facts.items():
            if first.get(name) != value:
                raise fault(
                    "bad-processes",
                    f"process {self.index} has other {name} than process 0",
                    NOWHERE,
                    "start all processes with the same command, and the same files on every host",
                )

    # ------------------------------------------------------------ who is lost

    def check(self) -> None:
        """Raises a `DiagnosticError` where another process is lost."""
        if self.peers.failure is not None:
            raise self.peers.failure

    def _raise_lost(self, seconds: float) -> None:
        failure = self.peers.heard(seconds)
        if failure is not None:
            raise failure

    @contextlib.contextmanager
    def watching(self, fail: Callable[[BaseException], None]) -> Generator[None]:
        """In the block, `fail` is told when a process is lost, on another thread."""
        self.on_loss.append(fail)
        try:
            self.check()
            yield
        finally:
            self.on_loss.remove(fail)


def torch_distributed() -> Any:
    """The library, most of which has no types."""
    return importlib.import_module("torch.distributed")


def alone() -> World:
    """One process, which needs no others."""
    return World(0, 1, 0, Listener(Processes("127.0.0.1", 0, 1, 0)), None)


def in_world(environ: Mapping[str, str] = os.environ) -> bool:
    """True if this process is one of several."""
    return environ.get("WORLD_SIZE", "1") not in ("", "1") and "RANK" in environ


@contextlib.contextmanager
def joined(timeout: float = TIMEOUT, silence: float = SILENCE) -> Generator[World]:
    """Makes this process one of those that the environment names, as long as the block runs; all leave it together.

    Raises a `DiagnosticError` where they do not all come within `timeout` seconds, and, in the block, where one is lost
    or fails: within seconds, if need be by ending this process. One that gives no sign of life for `silence` seconds is
    lost; 0 waits for ever.
    """
    import datetime as dt

    # Read when torch is first imported: a process that is lost is told of in our words, not with a C++ backtrace.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    dist = torch_distributed()
    index, count = _number("RANK"), _number("WORLD_SIZE")
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    seconds = dt.timedelta(seconds=timeout)
    with own_stdout():
        try:
            store, _, _ = next(dist.rendezvous("env://", timeout=seconds))
        except (RuntimeError, ValueError) as error:
            raise _absent(address, str(error).splitlines()[0]) from None
        peers = _met(Processes(os.environ["MASTER_ADDR"], 0, count, index, timeout, silence), store)
        world = World(index, count, _number("LOCAL_RANK", index), peers, dist.PrefixStore("shardwright", store))
        peers.lost = _Loss(world)
        if os.environ.get(_PARENT):
            threading.Thread(target=_watch_parent, args=(peers,), daemon=True).start()
        try:
            own = dist.PrefixStore("torch", store)
            dist.init_process_group("cpu:gloo,cuda:nccl" if _cuda() else "gloo", store=own, rank=index,
                                    world_size=count, timeout=seconds)  # fmt: skip
            yield world
            peers.finish()
        except BaseException as error:
            # What a lost process does to the others comes sooner than the news.
            failure = None if isinstance(error, DiagnosticError | KeyboardInterrupt) else peers.heard(2)
            peers.fail(failure or error)
            # Threads may wait for messages that never come, and would be waited for.
            atexit.register(leave)
            if failure is not None:
                raise failure from None
            raise
        dist.destroy_process_group()
        peers.close()


def _met(processes: Processes, store: Any) -> Peers:
    """The connections to all others: process 0 says in the store where it listens."""
    if processes.index == 0:
        peers: Peers = Listener(processes, listens=lambda port: store.set("shardwright listens", str(port)))
    else:
        peers = Caller(replace(processes, port=int(store.get("shardwright listens"))))
    try:
        peers.meet()
    except DiagnosticError as error:
        peers.close()
        error.source = Source("torch.distributed", "")
        raise
    return peers


@dataclass
class _Loss:
    """The response to the loss of another process: whoever waits is told, and after a time this process ends."""

    world: World

    def __call__(self, error: DiagnosticError) -> None:
        error.source = Source("torch.distributed", "")
        last = threading.Timer(GRACE if self.world.on_loss else _AT_ONCE, self.leave, [error])
        last.daemon = True
        last.start()
        for fail in list(self.world.on_loss):
            fail(error)

    def leave(self, error: DiagnosticError) -> None:
        sys.stderr.write(f"{error.render()}\n")  # in one piece: the others write there too
        leave()


def _watch_parent(peers: Peers) -> None:
    while os.read(0, 1024):
        pass
    peers.lose("the process that started this one has ended")


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available() and bool(torch_distributed().is_nccl_available())


def _number(name: str, otherwise: int | None = None) -> int:
    text = os.environ.get(name, "" if otherwise is None else str(otherwise))
    if not text.isascii() or not text.isdigit():
        raise fault("bad-processes", f"{name} is {text!r} in the environment, not a whole number", NOWHERE)
    return int(text)


def _absent(address: str, reason: str) -> DiagnosticError:
    failed = fault("absent-process", f"the processes do not meet at {address}: {reason}", NOWHERE)
    failed.source = Source("torch.distributed", "")
    return failed
