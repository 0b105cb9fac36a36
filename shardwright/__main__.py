"""`python -m shardwright`, the same as the `shardwright` command."""

import sys

from shardwright.cli.front import main

if __name__ == "__main__":
    sys.exit(main())
