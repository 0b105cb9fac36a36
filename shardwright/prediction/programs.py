"""Explicit programs of models under a layout, made once and kept.

What a deployment's name leaves open is chosen once for all meshes, batches and lengths at which the same axes split the
same dimensions: on a standard mesh, for the least such batch and a short prompt. The program is then priced at the
sizes that are asked for, so that nothing jumps where no chip would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, Literal
from zipfile import ZipFile

from shardwright.cost.programs.resizing import on_mesh
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.text.format import format_module
from shardwright.ir.text.parser import parse
from shardwright.ir.text.unparse import unparse
from shardwright.ir.types import DType, StoredFormat
from shardwright.ir.whole_files import cache_folder, code_digest, whole_file
from shardwright.models.description import Model
from shardwright.models.forward import ProgramRequest, model_program
from shardwright.models.layouts import AttentionOver, PresetLayout, fit_layouts
from shardwright.models.token_groups import ExpertsForm, TokenGroups, groups_of
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit_passes, parse_pipeline, run_passes
from shardwright.passes.rings.loop_collectives import LoopCollectives
from shardwright.passes.transformations.gather_ahead import GatherAhead
from shardwright.passes.transformations.quantize_weights import FORMATS

Phase = Literal["prefill", "decode"]
Weights = Literal["bf16", "int8", "f8e4m3"]

CONTEXT: Final = 2048
"""Positions of the cache that layouts are chosen for."""

_PROMPT: Final = 23
"""Tokens of each sequence that layouts of prefill are chosen for: few, so that weights are not moved where the layout
says that they stay, and prime, so that sequences are not cut: Pope et al. (2022, section 3.5) scatter into E and F
rather than into B and L."""

_LONG_PROMPT: Final = 2003
"""The same where all weights are gathered for more tokens than there are words: an embedding then is moved, not a sum
of what each chip finds in its part, which takes a row of every token on every chip."""

_STANDARD: Mapping[int, Sequence[Sequence[int]]] = {1: [(8,)], 2: [(4, 4)], 3: [(4, 4, 4), (8, 4, 4), (2, 2, 2)]}
"""Sizes of the axes that layouts are chosen for, by how many axes there are: the first that a layout fits alike."""

UNCHANGED: Final = "cleanup"
"""The passes of a program that is compiled as it is written."""

SHIPPED: Final = Path(__file__).parent / "compiled.zip"
"""Explicit programs of published rows and figures; `bench/compile_published.py` writes them."""


@dataclass(frozen=True)
class Deployment:
    """A model on a mesh: its layout, over what attention is split, and the number formats of its weights and, where it
    is quantized, of its cache, and how tokens meet `experts` if it has any, which `expert_capacity` may bound where
    tokens are sent to them. Older systems computed attention `decomposed` into products and a softmax, with the scores
    in memory."""

    model: Model
    mesh: Mesh
    layout: str
    attention: AttentionOver
    weights: Weights = "bf16"
    decomposed: bool = False
    cache_format: StoredFormat | None = None
    experts: ExpertsForm = "routed"
    expert_capacity: float | None = None

    def token_groups(self, batch: int, length: int) -> TokenGroups | None:
        """The groups of so many tokens where they are sent to experts. Raises as `groups_of` does."""
        return groups_of(self.model, self.experts, self.expert_capacity, batch, length)


@dataclass(frozen=True)
class WantedProgram:
    """A program before layouts are chosen, the passes that are run on it first, and its name in the package."""

    text: str
    passes: str
    name: str


def phase_program(
    deployment: Deployment, phase: Phase, batch: int, length: int, context: int, *, looped: bool = False
) -> Program:
    """The explicit program of one phase: `length` tokens of each of `batch` sequences (1 in decode), a cache of
    `context` positions. Its collectives are loops if `looped`; else a weight-gathered layout has each layer's weights
    on their way while the one before computes (Wang et al. 2023)."""
    sizes = {"B": batch, "T": positions(deployment, batch, context)} | ({"L": length} if phase == "prefill" else {})
    trouble: DiagnosticError | None = None
    for wanted in candidates(deployment, phase, batch, length):
        try:
            program = on_mesh(compiled(wanted.text, wanted.passes), deployment.mesh, sizes)
            if looped:
                return LoopCollectives().run(program)
            return GatherAhead().run(program) if deployment.layout.startswith("wg") else program
        except DiagnosticError as error:  # layouts that were chosen for other sizes do not divide these
            trouble = trouble or error
    assert trouble is not None
    raise trouble


def positions(deployment: Deployment, batch: int, context: int) -> int:
    """The positions of a cache that holds `context`, made divisible by the chips that split it along them."""
    over = deployment.mesh.product((fitted_layout(deployment, batch, 1).attention or {}).get("T", ()))
    return -(-context // over) * over


def wanted_program(deployment: Deployment, phase: Phase, batch: int, length: int) -> WantedProgram:
    """The program that `phase_program` has to compile first."""
    return next(candidates(deployment, phase, batch, length))


def batch_axes(mesh: Mesh, batch: int) -> tuple[str, ...]:
    """The axes that divide a batch together, the outer ones first."""
    taken: list[str] = []
    for axis in mesh.axes:
        if batch % mesh.product([*taken, axis]) == 0:
            taken.append(axis)
    return tuple(taken)


def candidates(deployment: Deployment, phase: Phase, batch: int, length: int) -> Iterator[WantedProgram]:
    """The programs that `phase_program` tries one after the other: on standard meshes if the layout is the same there,
    on the deployment's own, of its own batch, and with projections that are not packed, whose parts divide over fewer
    axes.

    Projections are packed first, save where weights are gathered over axes that the batch does not fill: the digits of
    packed parts then conflict in so many ways that the choice of layouts takes minutes. Where tokens are sent to
    experts the batch and its length make the groups, and no other program will do.
    """
    mesh = deployment.mesh
    axes = batch_axes(mesh, batch)
    packed = len(axes) == len(mesh) or not deployment.layout.startswith("wg")
    sent = deployment.experts == "all-to-all"
    tokens = batch * length
    length = 1 if phase == "decode" else length if sent else _PROMPT
    asked = fitted_layout(deployment, batch, length)
    words = deployment.model.vocab
    many = phase == "prefill" and not sent and asked.batch == mesh.axes and tokens >= words
    length = _LONG_PROMPT if many else length
    standard = [Mesh(tuple(zip(mesh.axes, sizes, strict=True))) for sizes in _STANDARD.get(len(mesh), ())]
    for own in () if sent else dict.fromkeys((*standard, mesh)):
        sample, least = replace(deployment, mesh=own), own.product(axes)
        least *= -(-words // (least * length)) if many else 1
        if _alike(fitted_layout(sample, least, length), asked):
            yield _wanted(sample, phase, least, length, packed=packed)
    yield _wanted(deployment, phase, batch, length, packed=packed)
    if packed:
        yield _wanted(deployment, phase, batch if sent else mesh.product(axes), length, packed=False)


@lru_cache(maxsize=4096)
def fitted_layout(deployment: Deployment, batch: int, length: int) -> PresetLayout:
    """The layout as far as the model's sizes and the batch divide over the mesh, and the groups of its tokens."""
    model, groups = deployment.model, deployment.token_groups(batch, length)
    sizes = {name: size for name, size in model.sizes(batch, _PROMPT, {"T": CONTEXT}).items() if isinstance(size, int)}
    attention = deployment.attention
    sent = [] if groups is None else [groups]
    return fit_layouts(
        [deployment.layout], deployment.mesh, sizes, model.attention, attention, cached=True, groups=sent
    )[0]


def _alike(one: PresetLayout, other: PresetLayout) -> bool:
    return replace(one, dropped=()) == replace(other, dropped=())


@lru_cache(maxsize=1024)
def _wanted(deployment: Deployment, phase: Phase, batch: int, length: int, *, packed: bool) -> WantedProgram:
    model, mesh = deployment.model, deployment.mesh
    request = ProgramRequest(
        deployment.layout, mesh, batch, length, DType.BF16, deployment.attention, CONTEXT, None, (phase,),
        decomposed=deployment.decomposed, cache_format=deployment.cache_format, experts=deployment.experts,
        expert_capacity=deployment.expert_capacity,
    )  # fmt: skip
    passes = ",".join(filter(None, ("fuse-parallel-block" if packed else "", FORMATS[deployment.weights]))) or UNCHANGED
    shape = "x".join(str(size) for size in mesh.values())
    named = [model.architecture, phase, deployment.layout, deployment.attention, deployment.weights, shape, f"b{batch}"]
    if deployment.cache_format is not None:
        named.append(f"cache-{deployment.cache_format}")
    if model.feedforward.experts is not None:
        named.append(deployment.experts)
    if length == _LONG_PROMPT:
        named.append("long")
    if not packed:
        named.append("apart")
    return WantedProgram(model_program(model, request)[0], passes, "-".join(named))


# ---------------------------------------------------------------- compiled programs


def compile_text(text: str, passes: str) -> str:
    """The explicit program that the compiler makes of a program's text, after these passes. What a preset leaves open
    takes the fewest bytes, on which chip is no matter: that is how presets are described."""
    explicit = explicit_passes(Place(objective="bytes"))
    return format_module(unparse(run_passes(loaded(text), (*parse_pipeline(passes), *explicit))))


def digest(text: str, passes: str) -> str:
    """The digest of what a compiled program was made of."""
    return hashlib.sha256(f"{passes}\n{text}".encode()).hexdigest()[:16]


def read_shipped() -> dict[str, str]:
    """The programs that come with the package, by their names; none where there is no file of them."""
    if not SHIPPED.exists():
        return {}
    with ZipFile(SHIPPED) as archive:
        return {name: archive.read(name).decode("utf-8") for name in archive.namelist()}


@cache
def shipped() -> Mapping[str, str]:
    """The programs that come with the package, by the digest in their first line."""
    return {text.removeprefix("# source ").partition(",")[0]: text for text in read_shipped().values()}


def is_compiled(wanted: WantedProgram) -> bool:
    """Tells whether the program is at hand."""
    made = digest(wanted.text, wanted.passes)
    return made in shipped() or (own_folder() / f"{made}.shard").exists()


@lru_cache(maxsize=512)
def compiled(text: str, passes: str) -> Program:
    """The explicit program of a text after these passes: one that comes with the package, one that was made before, or
    one that is made now."""
    return loaded(compiled_text(text, passes))


def compiled_text(text: str, passes: str) -> str:
    """`compiled` as a text."""
    made_of = digest(text, passes)
    own = own_folder() / f"{made_of}.shard"
    if made_of in shipped():
        return shipped()[made_of]
    with suppress(OSError):
        return own.read_text(encoding="utf-8")
    made = compile_text(text, passes)
    with suppress(OSError):  # a cache that cannot be written is no loss but time
        own.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(own) as file:
            file.write(made.encode())
    return made


def loaded(text: str) -> Program:
    return elaborate(parse(Source("<model>", text)))


def own_folder() -> Path:
    """Under the user's cache folder, apart for each state of the compiler."""
    return cache_folder("programs", code_digest("ir", "cost", "passes")[:12])
