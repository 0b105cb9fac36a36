"""Importing the package loads no framework, and importing the language not even numpy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "graphviz", "jax", "jaxlib", "matplotlib", "ortools", "pygraphviz", "rich", "safetensors", "torch", "transformers",
}  # fmt: skip

ON_USE = (
    "shardwright.backends.torch.executor",  # whose text, and that of the next, emitted modules have
    "shardwright.backends.torch.functions",
    "shardwright.workbench.highlighting",  # which Pygments imports
    "shardwright.workbench.preloaded",  # which, like the next, is there to load what workers need
    "shardwright.workbench.preloaded_to_draw",
    "shardwright.workbench.language_server",  # which `lsp` imports
    "shardwright.tracing.aten.arrays",  # which, like the next six, `trace` imports for a module of PyTorch
    "shardwright.tracing.aten.convolutions",
    "shardwright.tracing.aten.decompositions",
    "shardwright.tracing.aten.numbers",
    "shardwright.tracing.aten.recurrent",
    "shardwright.tracing.aten.reductions",
    "shardwright.tracing.aten.table",
)

IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if module.name not in sys.argv[2:]:
        importlib.import_module(module.name)
print(json.dumps(sorted(sys.modules)))
"""


def loaded(script: str, *argv: str) -> set[str]:
    """The modules that a fresh interpreter has after running `script`, which prints them last."""
    done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_no_module_loads_a_framework() -> None:
    modules = loaded(IMPORT_ALL, "shardwright", *ON_USE)
    assert {"shardwright.cli.front", "shardwright.ir.diagnostics", "shardwright.backends.torch.kernels.call"} <= modules
    assert modules & HEAVY == set()


def test_the_language_does_not_load_numpy() -> None:
    modules = loaded(IMPORT_ALL, "shardwright.ir")
    assert "shardwright.ir.diagnostics" in modules
    assert modules & {*HEAVY, "numpy", "ml_dtypes"} == set()


def test_the_package_alone_loads_nothing_of_itself() -> None:
    modules = loaded("import json, sys, shardwright; print(json.dumps(sorted(sys.modules)))")
    assert {name for name in modules if name.startswith("shardwright.")} == set()


@pytest.mark.parametrize("command", ["check", "fmt", "reshard"])
def test_a_command_loads_no_other(command: str) -> None:
    script = (
        "import json, sys; from shardwright.__main__ import main; main([sys.argv[1], '--help']); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    modules = loaded(script, command)
    others = {"check", "fmt", "opt", "reshard", "compile", "run", "draw", "import_"} - {command}
    assert f"shardwright.cli.{command}" in modules
    assert modules & {f"shardwright.cli.{other}" for other in others} == set()
    assert modules & {*HEAVY, "numpy", "lark"} == set()


def test_public_names() -> None:
    import shardwright
    from shardwright.ir.diagnostics import DiagnosticError

    assert shardwright.DiagnosticError is DiagnosticError
    assert {"DiagnosticError", "__version__"} <= set(dir(shardwright))
    for name in shardwright.__all__:
        assert getattr(shardwright, name) is not None
    with pytest.raises(AttributeError, match=r"^module 'shardwright' has no attribute 'nothing'$"):
        _ = shardwright.nothing
