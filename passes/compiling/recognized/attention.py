"""Attention that is written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardwright.ir import ops
from shardwright.ir.operation import Number, Operand, Operation
from shardwright.ir.program import Let
from shardwright.passes.compiling.recognized.reader import Reader, RecognizedOperation, pairs

_NO_SCORE = -1e9
"""The scores of positions that a query does not see are at most this."""


def _attend(reader: Reader, root: Let) -> RecognizedOperation | None:
    if not isinstance(root.operation, ops.Contract) or len(root.operation.dims) != 1:
        return None
    along = root.operation.dims[0]
    for weights, v in (root.operands, root.operands[::-1]):
        softmax = reader.of(weights, ops.Softmax)
        if softmax is None or not isinstance(v, str):
            continue
        assert isinstance(softmax.operation, ops.Softmax)
        if softmax.operation.dims != (along,) or softmax.operation.causal is not None:
            continue
        mask = _masked(reader, str(softmax.operands[0]), along)
        if mask is None:
            continue
        scores, between = mask.scores, mask.between
        scale = 1.0
        scaled = reader.of(scores, ops.Mul) or reader.of(scores, ops.Div)
        for inner, number in pairs(scaled) if scaled else ():
            if isinstance(number, Number) and reader.of(inner, ops.Contract):
                scale = float(number.value) if reader.of(scores, ops.Mul) else 1 / float(number.value)
                between.append(scores)
                scores = str(inner)
                break
        product = reader.of(scores, ops.Contract)
        if product is None or not math.isfinite(scale):
            continue
        assert isinstance(product.operation, ops.Contract)
        if len(product.operation.dims) != 1:
            continue
        between.extend([scores, softmax.result.name])
        sides = [str(each) for each in product.operands]
        for q, k in (sides, sides[::-1]):
            if along in reader.shape(q) or along not in reader.shape(k):
                continue
            attend = ops.Attend(
                along, product.operation.dims[0], mask.causal, mask.window, scale=scale, given=tuple(mask.given)
            )
            return RecognizedOperation(attend, (q, k, v, *mask.given.values()), between, first=tuple(mask.first))
    return None


def _grouped(reader: Reader, root: Let) -> RecognizedOperation | None:
    """Attention over keys and values that are repeated for every query of a group: over those that there are."""
    if not isinstance(root.operation, ops.Attend) or root.operation.lse:
        return None
    q, *repeated = (str(each) for each in root.operands[:3])
    found = [_repeated(reader, each) for each in repeated]
    if found[0] is None or found[1] is None or found[0].merge != found[1].merge:
        return None
    merge = found[0].merge
    if merge.target not in reader.shape(q):
        return None
    first: list[tuple[str, Operation, tuple[Operand, ...]]] = [
        ("grouped", ops.Split(merge.target, merge.parts), (q,)),
    ]
    operands: list[Operand] = ["grouped"]
    for name, each in zip(("keys", "values"), found, strict=True):
        assert each is not None
        operands.append(name if each.renames else each.source)
        if each.renames:
            first.append((name, ops.Rename(each.renames), (each.source,)))
    between = [name for each in found if each is not None for name in each.between]
    return RecognizedOperation(
        root.operation, (*operands, *root.operands[3:]), between, first=tuple(first), after=(merge,)
    )


def _grouped_product(reader: Reader, root: Let) -> RecognizedOperation | None:
    """A product, head by head, with what is repeated for every query of a group: with what there is."""
    if not isinstance(root.operation, ops.Contract):
        return None
    for at, (own, name) in enumerate((root.operands, root.operands[::-1])):
        found = _repeated(reader, str(name)) if isinstance(own, str) else None
        if found is None or found.merge.target in root.operation.dims:
            continue
        if found.merge.target not in reader.shape(str(own)):
            continue
        first: list[tuple[str, Operation, tuple[Operand, ...]]] = [
            ("grouped", ops.Split(found.merge.target, found.merge.parts), (own,))
        ]
        source = found.source
        if found.renames:
            first.append(("kept", ops.Rename(found.renames), (source,)))
            source = "kept"
        operands = ("grouped", source) if at == 0 else (source, "grouped")
        return RecognizedOperation(root.operation, operands, found.between, first=tuple(first), after=(found.merge,))
    return None


@dataclass
class _Repeat:
    """A value every slice of which stands several times beside itself along one dimension."""

    source: str
    merge: ops.Merge
    renames: tuple[tuple[str, str], ...]
    between: list[str]


def _repeated(reader: Reader, name: str) -> _Repeat | None:
    between: list[str] = []
    name, renames = _without_names(reader, name, between)
    merge = reader.of(name, ops.Merge)
    if merge is None or not isinstance(merge.operation, ops.Merge) or len(merge.operation.parts) != 2:
        return None
    between.append(name)
    copies = str(merge.operands[0])
    spread = reader.of(copies, ops.Add)
    zeros = reader.of(spread.operands[1], ops.Full) if spread else None
    if spread is None or zeros is None or not isinstance(spread.operands[0], str):
        return None
    assert isinstance(zeros.operation, ops.Full)
    nought = zeros.operands[0]
    if not isinstance(nought, Number) or nought.value != 0 or zeros.operation.dims != merge.operation.parts[1:]:
        return None
    between.extend((copies, zeros.result.name))
    if set(renames) & {merge.operation.target}:
        return None
    return _Repeat(spread.operands[0], merge.operation, tuple(renames.items()), between)


def _without_names(reader: Reader, name: str, between: list[str]) -> tuple[str, dict[str, str]]:
    renamed = reader.of(name, ops.Rename)
    if renamed is None or not isinstance(renamed.operation, ops.Rename):
        return name, {}
    between.append(name)
    return str(renamed.operands[0]), dict(renamed.operation.pairs)


@dataclass
class _Mask:
    """The scores beneath a mask, and the mask as `attend` says it."""

    scores: str
    causal: str | None = None
    window: int | None = None
    of_window: str | None = None
    """The dimension of queries whose window it is."""
    given: dict[str, str] = field(default_factory=dict[str, str])
    between: list[str] = field(default_factory=list[str])
    first: list[tuple[str, Operation, tuple[Operand, ...]]] = field(
        default_factory=list[tuple[str, Operation, tuple[Operand, ...]]]
    )

    def add(self, reader: Reader, comparison: Let, along: str) -> bool:
        """Takes in one comparison of key t and query l, t <= l, l - t < w or <= w - 1, t < n, or t <= n for one query;
        False where it is none of these."""
        left, right = comparison.operands
        strict = comparison.operation.keyword == "less"
        gap = reader.of(right, ops.Sub)
        if not strict and gap is not None and isinstance(left, Number) and left.value == 0 and self.causal is None:
            query, key = (_positions(reader, each) for each in gap.operands)  # 0 <= l - t
            self.causal = query
            return key == along and query not in (None, along)
        gap = reader.of(left, ops.Sub)
        if gap is not None and self.window is None:
            query, key = (_positions(reader, each) for each in gap.operands)
            self.of_window = query
            self.window = int(right.value) + (not strict) if isinstance(right, Number) else 0
            return 0 < self.window < 2**31 and key == along and query not in (None, along)
        if _positions(reader, left) != along or not isinstance(right, str):
            return False
        query = _positions(reader, right)
        if query is not None:
            self.causal, before = query, self.causal
            return not strict and before is None and query != along
        if along in reader.shape(right) or "length" in self.given:
            return False
        self.given["length"] = right if strict else "length"
        if not strict:
            self.first.append(("length", ops.Add(), (right, Number("1"))))
        return True


def _masked(reader: Reader, name: str, along: str) -> _Mask | None:
    """The scores under a mask, chosen by it or with its numbers added; None where the mask is none that `attend` has a
    word for."""
    chosen, added, between = reader.of(name, "where"), reader.of(name, ops.Add), [name]
    scores: Operand | None = chosen.operands[1] if chosen else None
    for beneath, numbers in pairs(added) if added else ():
        inner = reader.of(numbers, "where")
        nought = reader.of(inner.operands[1], ops.Full) if inner else None
        if inner is not None and nought is not None and nought.operands == (Number("0.0"),):
            chosen, scores = inner, beneath
            between.append(inner.result.name)
    if chosen is None:
        return _Mask(name)
    mask, _, rest = chosen.operands
    if not isinstance(rest, Number) or float(rest.value) > _NO_SCORE or not isinstance(scores, str):
        return None
    made = _Mask(scores, between=between)
    for part in _conjuncts(reader, str(mask)):
        comparison = reader.of(part, "less_equal") or reader.of(part, "less")
        if comparison is None or not made.add(reader, comparison, along):
            return None
    if added is not None and made.given:  # a row that sees nothing has other weights then
        return None
    return None if made.window is not None and made.causal != made.of_window else made


def _conjuncts(reader: Reader, mask: str) -> Iterator[str]:
    both = reader.of(mask, "logical_and")
    if both is None:
        yield mask
        return
    for each in both.operands:
        yield from _conjuncts(reader, str(each))


def _positions(reader: Reader, name: Operand) -> str | None:
    """The dimension whose indices a value has."""
    renamed = reader.of(name, ops.Rename)
    iota = reader.of(renamed.operands[0] if renamed else name, ops.Iota)
    if iota is None:
        return None
    assert isinstance(iota.operation, ops.Iota)
    if iota.operation.extent is not None:
        return None
    names = dict(renamed.operation.pairs) if renamed and isinstance(renamed.operation, ops.Rename) else {}
    return names.get(iota.operation.dim, iota.operation.dim)


RULES: tuple[Callable[[Reader, Let], RecognizedOperation | None], ...] = (_attend, _grouped)

WITHOUT_ATTEND: tuple[Callable[[Reader, Let], RecognizedOperation | None], ...] = (_grouped_product,)
"""For attention under masks that `attend` has no word for, once what has one is recognized."""
