"""Devices have the names of the targets that they are, as libtpu describes them: what runs on them is written so."""

from __future__ import annotations

import json
import os
import subprocess
import sys

NAMED = """
import json, sys
from shardwright.backends.targets.compilers import _request
from shardwright.backends.targets.names import parse_target, target_of
from shardwright.backends.targets.worker import _devices
for name, mesh in json.loads(sys.argv[1]).items():
    print(target_of(_devices(_request(parse_target(name), mesh))).name)
"""
MESHES = {"tpu-v4:2x2x1": {"x": 4}, "tpu-v5e:4x2": {"x": 2, "y": 4}, "tpu-v5p:2x2x2": {"x": 8}, "tpu-v6e:2x2": {"x": 4}}
QUIET = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


def test_devices_have_the_names_of_their_targets() -> None:
    words = [sys.executable, "-c", NAMED, json.dumps(MESHES)]
    done = subprocess.run(words, env={**os.environ, **QUIET}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(MESHES)
