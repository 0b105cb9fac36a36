"""Several processes whose devices are together those of JAX."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import time
from collections.abc import Generator
from typing import Any, cast

from shardwright.backends.processes.peers import Caller, Listener, Processes, leave, own_stdout, processes_of
from shardwright.ir.diagnostics import DiagnosticError, Source

__all__ = ["Processes", "joined", "processes_of"]

INTERRUPTED = 130
"""The status with which a shell says that SIGINT ended a process."""


@contextlib.contextmanager
def joined(processes: Processes | None) -> Generator[None]:
    """Makes this process one of several, whose devices are together those of JAX, as long as the block runs.

    To be entered before JAX is used for the first time, by every process. All of them leave it together. Raises a
    `DiagnosticError` where the processes do not all come. When one is lost, or leaves by an exception, the others
    say so on stderr and exit with status 1 at once, because a collective that waits for it cannot be interrupted.
    None, one process alone, does nothing.
    """
    if processes is None:
        yield
        return
    peers = Listener(processes) if processes.index == 0 else Caller(processes)
    try:
        address = peers.meet()
    except DiagnosticError as error:
        peers.close()
        error.source = Source(processes.name, "")
        raise
    jax = cast(Any, importlib.import_module("jax"))
    with contextlib.suppress(AttributeError):  # a build without CPU collectives of other kinds
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with contextlib.suppress(AttributeError):  # it would keep SIGTERM from ending the process
        jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        address,
        processes.count,
        processes.index,
        initialization_timeout=max(1, int(processes.timeout)),
        coordinator_bind_address=address,
        cluster_detection_method="deactivate",
    )
    try:
        with own_stdout():
            yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if not isinstance(error, DiagnosticError) and not interrupted:
            time.sleep(1)  # if another process was lost, that is why, and this one is about to say so
        peers.fail(error)
        # JAX's own handler, which runs after this one, would wait for processes that are gone, and then abort.
        atexit.register(leave, INTERRUPTED if interrupted else 1)
        raise
    peers.finish()
    jax.distributed.shutdown()
    peers.close()
