"""`python -m shardwright`, the same as the `shardwright` command."""

import gc
import signal
import sys

from shardwright.cli.front import main


def command() -> int:
    """The command line as a process of its own. Libraries and programs are many small objects that stay: to look for
    cycles among them after every seven hundred takes some percent of loading PyTorch. An interrupt on the way out, when
    everything is done and said, would end in a traceback of what a library does there."""
    gc.set_threshold(50_000, 20, 50)
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


if __name__ == "__main__":
    sys.exit(command())
