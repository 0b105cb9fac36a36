"""The bytes and FLOPs that a program of a model asks of memory, links and arithmetic, read from the types of its
values.

Offloading moves a model's layer in two parts, attention and feedforward, and the tables before and after the layers as
parts of their own. A weight with a dimension of the heads (one that the cache has too) belongs to attention, as does
what is read together with it; a norm belongs to the part that follows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.cost.kernels.work import Matmul, Work, work_of
from shardwright.cost.programs.memory import memory_of
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Alias, Attend, Contract, Merge, Movement, Rename, Split, Take, Update
from shardwright.ir.program import Func, Let, Loop, Program, Value
from shardwright.ir.types import DType, TensorType

_FEW = 8
"""Bits of numbers that are multiplied with as wider ones."""

_MOVES = (Alias, Merge, Movement, Rename, Split, Take)


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """A weight, of one layer where every layer has one: its `bytes` as it is computed with, and those as it is `stored`
    in few bits, scales included; None as it is."""

    name: str
    elements: int
    bytes: int
    matrix: bool
    stored: float | None = None

    @property
    def stored_bytes(self) -> float:
        return float(self.bytes) if self.stored is None else self.stored


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Weights that are moved together, and the FLOPs of the products with them for one token of one sequence."""

    name: str
    tensors: tuple[WeightTensor, ...]
    flops: float

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def made(self) -> WeightGroup:
        """The weights that are stored in few bits, and their scales, alone."""
        return replace(self, tensors=tuple(tensor for tensor in self.tensors if tensor.stored is not None))

    @property
    def matrix_elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors if tensor.matrix)

    @property
    def widened_elements(self) -> int:
        """The elements that are brought from few bits to more."""
        return sum(t.elements for t in self.tensors if t.stored is not None and t.stored < t.bytes)


@dataclass(frozen=True)
class Sizes:
    """A model at one length of prompt and of generation; everything for one sequence unless it says otherwise.

    `cache_elements` of one token in one layer, `cache_element_bytes` each, or as it is stored `cache_stored_bytes`
    where that is not None, scales included; `hidden_bytes` the residual stream at one token; `attention_flops` and
    `scores` for one query position and one cached position in one layer. `working` are the bytes of values that live at
    once on the device while a layer runs, in prefill and in decode;
    `elementwise_bytes` what the operations of a layer that are no products read and write of one token, `logit_bytes`
    the logits of one.
    """

    layers: int
    attention: WeightGroup
    feedforward: WeightGroup
    embedding: WeightGroup
    unembedding: WeightGroup
    cache_elements: int
    cache_element_bytes: float
    hidden_bytes: int
    attention_flops: float
    scores: float
    prefill_working: int
    decode_working: int
    prompt: int
    generated: int
    elementwise_bytes: float = 0.0
    logit_bytes: float = 0.0
    cache_stored_bytes: float | None = None

    @property
    def cached_bytes(self) -> float:
        """Bytes of an element of the cache as it is stored."""
        return self.cache_element_bytes if self.cache_stored_bytes is None else self.cache_stored_bytes

    @property
    def context(self) -> int:
        """Positions of the cache at the end."""
        return self.prompt + self.generated

    @property
    def layer_bytes(self) -> int:
        return self.attention.bytes + self.feedforward.bytes

    def parts(self, *, tied: bool = False) -> tuple[tuple[WeightGroup, int], ...]:
        """Each part with how often the model has it; with `tied` what several have is the first one's alone."""
        layers, after = self.layers, self.unembedding
        if tied:
            tensors = tuple(tensor for tensor in after.tensors if tensor not in self.embedding.tensors)
            after = replace(after, tensors=tensors)
        return ((self.embedding, 1), (self.attention, layers), (self.feedforward, layers), (after, 1))


def sizes_of(program: Program, prompt: int, generated: int) -> Sizes:
    """The sizes of an explicit program whose functions are `prefill`, of `prompt` tokens, and `decode`, both for one
    sequence, over a cache of `prompt + generated` positions: of one chip where it has a mesh.

    Raises where a function is missing, or decode has no loop over layers in which a cache grows.
    """
    prefill, decode = phases(program)
    loop, update = growing_loop(decode)
    caches = [value for value in program.state if {loop.dim, update.dim} <= set(value.concrete.names)]
    layers, positions = program.sizes(decode)[loop.dim], program.sizes(decode)[update.dim]
    batch = next(name for name in caches[0].concrete.names if name != loop.dim)
    heads = {name for value in caches for name in value.concrete.names} - {loop.dim, update.dim, batch}
    weights = {value.name: value for value in program.weights}
    works = work_of(program, decode)
    inside = [work for work in works if work.loops]
    mesh = program.mesh
    attention, feedforward = _layer_parts(inside, weights, loop.dim, heads, mesh)
    embedding, unembedding = _end_parts([work for work in works if not work.loops], weights, mesh)
    wide = loop.carries[0].value.concrete.dtype
    attention, feedforward, embedding, unembedding = (
        _stored(part, program.weights, wide) for part in (attention, feedforward, embedding, unembedding)
    )
    rank = max(len(value.concrete.dims) for value in caches)  # scales have one dimension less
    keys = [value.concrete for value in caches if len(value.concrete.dims) == rank]
    elements = sum(math.prod(kind.local_shape(mesh)) for kind in keys)
    stored = sum(value.concrete.local_bytes(mesh) for value in caches) / elements
    packed = all(kind.dtype.bits <= _FEW for kind in keys)
    cached = {value.name for value in caches}
    products = [p for work in inside if cached & {name for name, _ in work.reads} for p in work.products]
    return Sizes(
        layers,
        attention,
        feedforward,
        embedding,
        unembedding,
        elements // (layers * positions),
        (wide if packed else keys[0].dtype).bits / 8,
        loop.carries[0].value.concrete.local_bytes(mesh),
        sum(product.flops for product in products) / positions,
        max((product.count * product.m for product in products), default=0),
        memory_of(program, prefill).activations,
        memory_of(program, decode).activations,
        prompt,
        generated,
        _elementwise_bytes(program, decode, batch, update.dim),
        _logit_bytes(decode, mesh),
        stored if packed else None,
    )


def _stored(part: WeightGroup, weights: Sequence[Value], wide: DType) -> WeightGroup:
    """The part with what is in few bits, and the scales that are declared behind it, as they are stored; what it is
    multiplied with is in the format `wide`."""
    narrow = [value.concrete.dtype.bits <= _FEW for value in weights]
    made = {value.name for value, own, before in zip(weights, narrow, [False, *narrow], strict=False) if own or before}
    few = {value.name for value, own in zip(weights, narrow, strict=True) if own}
    return replace(
        part,
        tensors=tuple(
            replace(
                each,
                bytes=each.elements * wide.bits // 8 if each.name in few else each.bytes,
                stored=float(each.bytes) if each.name in made else None,
            )
            for each in part.tensors
        ),
    )


def _elementwise_bytes(program: Program, decode: Func, batch: str, positions: str) -> float:
    """The bytes that norms, functions, sums and the like in a layer read and write of one token, each operation by
    itself, of which a norm has several; what goes over the cache is counted apart, and what only moves or names a value
    anew is not."""
    lets = [s for s, _ in decode.walk() if isinstance(s, Let)]
    values = {value.name: value for s in lets for value in s.results}
    values |= {carry.value.name: carry.value for s, _ in decode.walk() if isinstance(s, Loop) for carry in s.carries}
    total = 0
    for statement, loops in decode.walk():
        if not loops or not isinstance(statement, Let) or isinstance(statement.operation, _MOVES):
            continue
        operands = [values[o] for o in statement.operands if isinstance(o, str) and o in values]
        if isinstance(statement.operation, Contract | Attend):
            continue
        kinds = [value.concrete for value in (*operands, *statement.results)]
        if any(positions in kind.names for kind in kinds):
            continue
        total += sum(kind.local_bytes(program.mesh) for kind in kinds if batch in kind.names and len(kind.names) > 1)
    return float(total)


def _logit_bytes(decode: Func, mesh: Mesh) -> float:
    """The bytes of the first result of decode; 0 where it has none."""
    kind = next(iter(decode.results), None)
    return float(kind.local_bytes(mesh)) if isinstance(kind, TensorType) else 0.0


def phases(program: Program) -> tuple[Func, Func]:
    """The functions of first tokens and of further ones: prefill, or in the diagonal order that of a batch which is
    prefilled while others decode, and decode. Raises where one is missing."""
    funcs = {func.name: func for func in program.funcs}
    first = funcs.get("prefill", funcs.get("prefill_and_decode"))
    if first is None or "decode" not in funcs:
        raise fault("no-phases", "offloading needs functions prefill and decode", NOWHERE,
                    "shardwright import CHECKPOINT --cache T -o FILE writes such a program")  # fmt: skip
    return first, funcs["decode"]


def growing_loop(func: Func) -> tuple[Loop, Update]:
    """The loop over layers, and the update by which a cache grows in it. Raises where there is none."""
    for statement, loops in func.walk():
        if isinstance(statement, Let) and isinstance(statement.operation, Update) and loops:
            return loops[0], statement.operation
    raise fault("no-phases", f"{func.name} has no loop over layers in which a cache grows", func.span)


def _layer_parts(
    works: Sequence[Work], weights: Mapping[str, Value], layer_dim: str, heads: set[str], mesh: Mesh
) -> tuple[WeightGroup, WeightGroup]:
    """Attention and feedforward. What is read without a product goes with the next product that reads a matrix."""
    tensors: dict[str, dict[str, WeightTensor]] = {"attention": {}, "feedforward": {}}
    flops = dict.fromkeys(tensors, 0.0)
    waiting: dict[str, WeightTensor] = {}
    for work in works:
        read = {name: _tensor(weights[name], layer_dim, work.matmul, mesh) for name, _ in work.reads if name in weights}
        waiting |= read
        matrices = [name for name, tensor in read.items() if tensor.matrix]
        if work.matmul is None or not matrices:
            continue
        of_heads = any(heads & set(weights[name].concrete.names) for name in matrices)
        part = "attention" if of_heads else "feedforward"
        tensors[part] |= waiting
        flops[part] += work.matmul.flops
        waiting = {}
    tensors["feedforward"] |= waiting
    attention, feedforward = (WeightGroup(name, tuple(tensors[name].values()), flops[name]) for name in tensors)
    return attention, feedforward


def _end_parts(works: Sequence[Work], weights: Mapping[str, Value], mesh: Mesh) -> tuple[WeightGroup, WeightGroup]:
    """The parts looked up before the layers, and everything else outside them, the unembedding above all."""
    before: dict[str, WeightTensor] = {}
    after: dict[str, WeightTensor] = {}
    flops = 0.0
    for work in works:
        read = {name: _table(weights[name], mesh) for name, _ in work.reads if name in weights}
        if work.operation == "lookup":
            before |= read
        else:
            after |= read
            flops += work.flops
    return WeightGroup("embedding", tuple(before.values()), 0.0), WeightGroup(
        "unembedding", tuple(after.values()), flops
    )


def _tensor(value: Value, layer_dim: str | None, product: Matmul | None, mesh: Mesh) -> WeightTensor:
    """A weight; it is a matrix where the product sums over it, which its bias, of two dimensions maybe, is not."""
    kind = value.concrete
    extents = zip(kind.names, kind.local_shape(mesh), strict=True)
    elements = math.prod(extent for name, extent in extents if name != layer_dim)
    matrix = product is not None and elements == product.count * product.k * max(product.m, product.n)
    return WeightTensor(value.name, elements, -(-elements * kind.dtype.bits // 8), matrix)


def _table(value: Value, mesh: Mesh) -> WeightTensor:
    """A weight outside the layers; tables are matrices, looked up or multiplied with."""
    own = _tensor(value, None, None, mesh)
    return replace(own, matrix=len(value.concrete.dims) > 1)
