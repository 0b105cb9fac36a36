"""These tests need the compilers of TPUs and GPUs, which `make test-targets` installs in an environment of its own."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("libtpu") and find_spec("jax_cuda12_plugin") else ["test_*.py"]
