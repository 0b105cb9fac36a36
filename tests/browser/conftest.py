"""These tests drive the explorer in Chromium; `make test-browser` runs them, which says what to install."""

import os

collect_ignore_glob = [] if os.environ.get("SHARDWRIGHT_BROWSER_TESTS") else ["test_*.py"]
