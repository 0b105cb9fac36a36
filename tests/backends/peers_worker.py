"""One of several processes that meet, do something, and leave together."""

from __future__ import annotations

import sys
import time

from shardwright.backends.processes.peers import Caller, Listener, Processes


def compute(seconds: float) -> None:
    """Python's own computing, which gives way to other threads only when it is made to."""
    end, total = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        total += sum(range(1000))


def main(port: str, count: str, index: str, silence: str, doing: str, seconds: str) -> None:
    processes = Processes("127.0.0.1", int(port), int(count), int(index), 30, float(silence))
    peers = Listener(processes) if processes.index == 0 else Caller(processes)
    peers.meet()
    peers.doing = doing
    print("met", flush=True)
    if processes.index == 1:
        compute(float(seconds) / 2)
        time.sleep(float(seconds) / 2)
    peers.finish()
    peers.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
