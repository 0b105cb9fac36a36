"""Targets by name, `CHIP:SHAPE` or `cpu`: which compiler makes code for them, and what has to be installed for it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from shardwright.backends.jax.source_text import Forms
from shardwright.backends.targets.estimates import CompilerRates
from shardwright.backends.targets.gpus import gpu_names
from shardwright.cost.hardware.chips import Chip, load_chip
from shardwright.cost.hardware.networks import Switched, Torus
from shardwright.cost.hardware.topology import SwitchedTopology, TorusTopology, topology_of
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Note, Source, fault, nearest

_SHAPE = re.compile(r"[1-9][0-9]{0,4}(?:x[1-9][0-9]{0,4}){0,3}")

TPUS = {"tpu-v4": "v4", "tpu-v5e": "v5e", "tpu-v5p": "v5p", "tpu-v6e": "v6e"}
"""Chips whose compiler is libtpu's, and its names for them."""

_DEVICES = {"TPU v4": "tpu-v4", "TPU v5 lite": "tpu-v5e", "TPU v5": "tpu-v5p", "TPU v6 lite": "tpu-v6e"}
"""The same chips as JAX names its devices."""

_ALIASES = {"a100": "a100-80g"}
_SHAPES = {"tpu-v4": "4x4x4", "tpu-v5e": "4x4", "tpu-v5p": "4x4x4", "tpu-v6e": "2x4"}


@dataclass(frozen=True)
class Platform:
    """A compiler: JAX's name for its platform, the compiler's, the modules that bring it, and their extra; whether it
    copies loops' slices of weights and caches before they are read."""

    name: str
    compiler: str
    modules: tuple[str, ...]
    extra: str
    copies_slices: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules that are not installed here."""
        return tuple(module for module in self.modules if find_spec(module) is None)

    @property
    def command(self) -> str:
        """Installs the compiler."""
        return f"pip install 'shardwright[{self.extra}]'"


PLATFORMS = {
    "tpu": Platform("tpu", "libtpu", ("jax", "libtpu"), "tpu"),
    "cuda": Platform("cuda", "XLA for GPUs", ("jax", "jax_cuda12_plugin"), "cuda", copies_slices=True),
    "cpu": Platform("cpu", "XLA for CPUs", ("jax",), "jax"),
}


@dataclass(frozen=True)
class Target:
    """A machine to compile for: a chip, and the shape of the slice or the nodes; the host's processor has neither."""

    name: str
    platform: Platform
    chip: Chip | None = None
    shape: tuple[int, ...] = ()

    @property
    def chip_name(self) -> str:
        """The name without the shape."""
        return self.name.partition(":")[0]

    @property
    def gpu(self) -> str:
        """The name of the chip itself without that of its nodes, of which the target's may be a shorter form."""
        assert self.chip is not None
        return self.chip.name.partition(":")[0]

    @property
    def rates(self) -> CompilerRates | None:
        """The rates that its compiler assumes where it estimates kernels; None where it estimates none."""
        rates = _tpus()["rates"].get(self.chip_name)
        return CompilerRates(**rates) if rates else None

    @property
    def forms(self) -> Forms:
        """The forms that its compiler keeps."""
        forms: dict[str, Any] = _tpus()["forms"].get(self.chip_name, {})
        tile: list[int] | None = forms.get("tile")
        return Forms(forms.get("finished_products", False), (tile[0], tile[1]) if tile else None)

    @property
    def passes(self) -> str:
        """The passes that write a program as its compiler keeps it, as `parse_pipeline` reads them; perhaps none."""
        chip, slice_shape = self.chip_name, "x".join(map(str, sorted(self.shape)))
        rows: dict[str, str] = _tpus()["passes"]
        return rows.get(f"{chip}:{slice_shape}") or rows.get(chip, "")

    def order(self, mesh: Mapping[str, int]) -> tuple[tuple[int, ...], ...] | None:
        """Where each chip of the mesh lies, row by row over the mesh, as the cost model lays it: coordinates in a slice
        of a torus. None where chips are numbered as the mesh numbers them. Raises `mesh-fit`."""
        if self.chip is None:
            return None
        n_chips = prod(mesh.values())
        if n_chips != prod(self.shape):
            axes = " ".join(f"{axis}={size}" for axis, size in mesh.items()) or "of no axis"
            raise _refused(
                "mesh-fit",
                f"the mesh {axes} has {n_chips} chip{'s' if n_chips != 1 else ''}, {self.name} has {prod(self.shape)}",
                "give the target another shape, or the program another mesh: --mesh",
            )
        try:
            match topology_of(self.chip, mesh, self.shape if isinstance(self.chip.interconnect, Torus) else None):
                case TorusTopology() as torus:
                    return _coordinates(torus)
                case SwitchedTopology() as switched:
                    self._check_nodes(switched)
                    return None
        except DiagnosticError as error:
            error.source = Source("--target", "")
            raise

    def _check_nodes(self, laid: SwitchedTopology) -> None:
        """The mesh fills nodes as the shape has them."""
        per_node = laid.used[1] if len(laid.used) > 1 else prod(size for _, size in laid.mesh)
        if per_node != self.shape[-1]:
            nodes = prod(self.shape) // per_node
            there = f"{nodes}x{per_node}" if nodes > 1 else str(per_node)
            chip = self.chip_name
            raise _refused(
                "mesh-fit",
                f"the mesh takes {per_node} chips of each node, and {self.name} has {self.shape[-1]}",
                f"compile it for {chip}:{there}",
            )


def _coordinates(torus: TorusTopology) -> tuple[tuple[int, ...], ...]:
    """The coordinates of each chip of the mesh in the slice, row by row over the mesh."""
    placed = [[0] * len(torus.shape)]
    for (_, size), digits in zip(torus.mesh, torus.digits, strict=True):
        steps: list[list[int]] = []
        for index in range(size):
            at, left = [0] * len(torus.shape), size
            for digit in digits:
                left //= digit.size
                at[digit.physical] += index // left % digit.size * digit.stride
            steps.append(at)
        placed = [[a + b for a, b in zip(before, step, strict=True)] for before in placed for step in steps]
    return tuple(map(tuple, placed))


@cache
def _tpus() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "tpus.toml").read_text(encoding="utf-8"))


def chip_names() -> tuple[str, ...]:
    """The chips that can be compiled for."""
    return (*TPUS, *gpu_names())


@dataclass(frozen=True)
class TargetRow:
    """A chip that can be compiled for, a target of it as an example, its compiler, and the command that installs that,
    None where it is here."""

    chip: str
    example: str
    compiler: str
    installed: bool
    install: str | None


def targets() -> tuple[TargetRow, ...]:
    """The chips that can be compiled for, here or after an installation."""
    examples = {"cpu": "cpu"} | {chip: example_name(chip) for chip in chip_names()}
    rows: list[TargetRow] = []
    for chip, example in examples.items():
        platform = parse_target(example).platform
        missing = bool(platform.missing)
        rows.append(TargetRow(chip, example, platform.compiler, not missing, platform.command if missing else None))
    return tuple(rows)


def example_name(chip: str) -> str:
    """A target of this chip, as an example."""
    return f"{chip}:{_SHAPES.get(chip, '8')}"


def parse_target(name: str) -> Target:
    """The target of this name. Raises a `DiagnosticError` for an unknown chip or a shape that it does not have."""
    if name == "cpu":
        return Target("cpu", PLATFORMS["cpu"])
    chip, colon, shape = name.partition(":")
    known = (*chip_names(), *_ALIASES)
    if chip not in known:
        listed = f"targets are CHIP:SHAPE or cpu, with the chips {', '.join(chip_names())}"
        raise _refused("unknown-target", f"there is no target {name!r}", nearest(chip, (*known, "cpu")), listed)
    if not colon or not _SHAPE.fullmatch(shape):
        what = f"{shape!r} is not a shape" if colon else f"{name} says no shape"
        raise _refused("unknown-target", what, f"a target is CHIP:SHAPE, as in {example_name(chip)}")
    described = load_chip(_ALIASES.get(chip, chip))
    sizes = tuple(map(int, shape.split("x")))
    match described.interconnect:
        case Torus() as torus:
            _check_slice(name, sizes, torus)
            return Target(name, PLATFORMS["tpu"], described, sizes)
        case Switched() as switched:
            _check_node_shape(name, sizes, switched)
            in_nodes = f"{described.name}:{shape}" if len(sizes) > 1 else described.name
            return Target(name, PLATFORMS["cuda"], load_chip(in_nodes), sizes)


def target_of(devices: Sequence[Any]) -> Target | None:
    """The target that devices of JAX are, by their kind and their places in the slice: TPUs. Of others None: for their
    compilers programs are written as for any."""
    chip = _DEVICES.get(devices[0].device_kind) if devices else None
    if chip is None:
        return None
    described = load_chip(chip)
    assert isinstance(described.interconnect, Torus)
    sizes = tuple(max(at) - min(at) + 1 for at in zip(*(device.coords for device in devices), strict=True))
    shape = sizes[: len(described.interconnect.pod)]
    if prod(shape) != len(devices):  # some of a slice, which are no slice themselves
        shape = (len(devices),)
    return Target(f"{chip}:{'x'.join(map(str, shape))}", PLATFORMS["tpu"], described, shape)


def implied_chip(name: str) -> Chip:
    """The chip of the target of this name. Raises a `DiagnosticError` where it has none whose rates are known."""
    chip = parse_target(name).chip
    if chip is None:
        raise _refused("no-chip", f"{name} is no chip whose rates are known", "name one: --chip NAME")
    return chip


def _check_slice(name: str, sizes: tuple[int, ...], torus: Torus) -> None:
    slices = torus.slices_of(prod(sizes))
    if tuple(sorted(sizes)) in slices:
        return
    there = ", ".join("x".join(map(str, shape)) for shape in slices)
    axes = f"{len(torus.pod)} sizes, as in {'x'.join(['2'] * len(torus.pod))}"
    hint = f"slices of {prod(sizes)} chips: {there}" if slices else f"a slice has {axes}"
    raise _refused("mesh-fit", f"{name}: there is no slice of this shape", hint)


def _check_node_shape(name: str, sizes: tuple[int, ...], switched: Switched) -> None:
    most = switched.levels[0].units
    if len(sizes) > 2:
        raise _refused("mesh-fit", f"{name}: a shape of GPUs is N, or NODESxN", "as in h100:8 and h100:2x8")
    if most is not None and sizes[-1:] > (most,):
        nodes = -(-prod(sizes) // most)
        raise _refused(
            "mesh-fit", f"{name}: a node has {most} GPUs at most", f"as in {name.partition(':')[0]}:{nodes}x{most}"
        )


def _refused(code: str, message: str, *notes: str | Note | None) -> DiagnosticError:
    refused = fault(code, message, NOWHERE, *notes)
    refused.source = Source("--target", "")
    return refused
