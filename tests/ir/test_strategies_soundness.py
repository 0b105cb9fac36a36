"""Every row of every operation's table: run chip by chip, it gives what the operation means unsharded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
from every_strategy import Strategy, strategies
from oracles.extremes import whole_range

from shardwright.backends.number_formats import Formats
from shardwright.backends.simulation.collectives import move, permute, roll
from shardwright.backends.simulation.kernels import KERNELS, compute
from shardwright.backends.simulation.local_values import Argument, KernelSetting, Local
from shardwright.backends.simulation.reference import rolled
from shardwright.backends.simulation.sharding import shard, unshard
from shardwright.ir import ops
from shardwright.ir.digits import Order, order_size
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, Context, Number, Operation
from shardwright.ir.ops import Movement
from shardwright.ir.ops.elementwise_table import ENTRIES, Entry
from shardwright.ir.strategies import digits_fit
from shardwright.ir.types import Dim, DType, Reduction, Shape, TensorType

Array = np.ndarray[Any, Any]
EXACT = Formats("exact")

MESHES = (Mesh.of(x=2), Mesh.of(x=3), Mesh.of(x=2, y=2), Mesh.of(x=2, y=3), Mesh.of(x=2, y=1, z=2))

FEW = (Mesh.of(x=2, y=2),)
"""Where the same table has been tried on the others in another format."""

SIZES = {"A": 12, "B": 24, "C": 24, "D": 4, "G": 2, "K": 12, "R": 24, "T": 12, "L": 12, "V": 12, "I": 2}


SMALL = (("B", 6), ("T", 12), ("L", 6), ("K", 6))


@dataclass(frozen=True)
class Case:
    """An operation with operands: each a row of dimensions and a format, or a number."""

    operation: Operation
    operands: tuple[tuple[str, DType] | Number, ...] = ()
    bounds: tuple[int, int] = (-4, 5)
    """The range of the random whole numbers that floats are."""
    int_bounds: tuple[int, int] | None = None
    """That of the int32 operands where they are indices or positions; other integers have the whole range."""
    sizes: tuple[tuple[str, int], ...] = ()
    meshes: tuple[Mesh, ...] = MESHES

    def __str__(self) -> str:
        listed = ",".join(str(o) if isinstance(o, Number) else f"{o[0]}:{o[1]}" for o in self.operands)
        keyword = self.operation.keyword or "alias"
        statics = "".join(f"-{word}" for word in vars(self.operation).values())
        return f"{keyword}{statics}({listed})"


F, I, N = DType.F32, DType.INT32, DType.BOOL  # noqa: E741


def _f(*rows: str) -> tuple[tuple[str, DType], ...]:
    return tuple((row, F) for row in rows)


def _tabled(entry: Entry) -> Operation:
    signs = {"+": ops.Add, "-": ops.Sub, "*": ops.Mul, "/": ops.Div, "neg": ops.Neg}
    return signs[entry.keyword]() if entry.keyword in signs else ops.Function(entry.keyword, entry.form)


def _elementwise() -> Iterator[Case]:
    """Cases of every operation in the table: in each format that it takes, and beside numbers."""
    for entry in ENTRIES:
        operation = _tabled(entry)
        for dtype in (F, I, DType.INT8, DType.INT4, DType.UINT32, N) if "value" in entry.takes else (F,):
            formats = [N if takes == "bool" else dtype for takes in entry.takes]
            bounds = (1, 3) if entry.domain[0] > -math.inf else (-4, 5)
            n = len(formats)
            shapes = (("AB",) * n, ("B", "AB", "A")[3 - n :], ("AB", "B", "B")[:n])
            meshes = MESHES if dtype in (F, I) else FEW
            for rows in dict.fromkeys(shapes if dtype in (F, I) else shapes[:1]):
                yield Case(operation, tuple(zip(rows, formats, strict=True)), bounds, meshes=meshes)
            values = [i for i, takes in enumerate(entry.takes) if takes == "value"]
            for i, text in product(values if len(values) > 1 else (), ("0", "2", "-2", "inf")):
                if dtype is F or (text != "inf" and dtype is not N):
                    operands = [(("AB", f) if j != i else Number(text)) for j, f in enumerate(formats)]
                    yield Case(operation, tuple(operands), bounds, meshes=FEW)


CASES = (
    *_elementwise(),
    *(Case(ops.Convert(target), (("AB", source),), meshes=FEW) for source in DType for target in DType),
    Case(ops.Bitcast(DType.UINT32), _f("AB")),
    Case(ops.Bitcast(DType.F32), (("AB", I),)),
    Case(ops.Contract(("B",)), _f("AB", "BD")),
    Case(ops.Contract(("B", "D")), _f("ABD", "DBA")),
    Case(ops.Contract(()), _f("A", "D")),
    *(Case(ops.Contract(("B",)), (("AB", d), ("BD", d))) for d in (DType.INT8, DType.INT4, I, DType.UINT32, N)),
    *(Case(op(("A",)), _f("ABD")) for op in (ops.Sum, ops.Max)),
    *(Case(op(("B", "A")), (("ABD", d),)) for op in (ops.Sum, ops.Max) for d in (I, DType.INT8, DType.UINT32)),
    Case(ops.Cumsum("A"), _f("AB")),
    *(Case(ops.Cumsum("B"), (("AB", dtype),)) for dtype in (I, DType.INT8)),
    Case(ops.Argmax("A"), _f("AB")),
    Case(ops.Foreign("stand_in", ("A", "B"), F, ("A",)), _f("BA", "A")),
    Case(ops.Foreign("stand_in", ("B",), I, ("B",)), (("AB", I), ("A", I))),
    Case(ops.Topk("A", "C", 5), _f("BAD"), sizes=(("C", 5),)),
    Case(ops.Topk("B", "B", 12, ("x",)), _f("BA")),
    Case(ops.Topk("B", "C", 6, ("x",)), (("AB", I),)),
    Case(ops.Layernorm(("A",)), _f("AB", "A", "A")),
    Case(ops.Layernorm(("A", "D")), _f("ABD")),
    Case(ops.Rmsnorm(("D",)), _f("ABD", "BD")),
    Case(ops.Softmax(("A",)), _f("AB")),
    Case(ops.Softmax(("T",), "L"), _f("BLT")),
    Case(ops.Softmax(("T",), "L"), (("BLT", F), ("B", I)), int_bounds=(0, 4)),
    Case(ops.Attend("T", "D"), _f("BLKGD", "BTKD", "BTKD"), sizes=SMALL),
    Case(ops.Attend("T", "D", scale=0.5, softcap=3.0), _f("LBD", "TD", "TBV"), sizes=SMALL),
    Case(
        ops.Attend("T", "D", "L", 3, 0.5, given=("length", "pos")),
        (*_f("BLKD", "BTD", "BTKD"), ("B", I), ("", I)),
        int_bounds=(-2, 9),
        sizes=SMALL,
    ),
    Case(ops.Attend("T", "D", "L", lse=True, given=("pos",)), (*_f("BLD", "BTD", "TD"), ("B", I)), int_bounds=(0, 9)),
    Case(
        ops.Attend("T", "D", "L", 3, given=("pos", "pages"), page="V"),
        (*_f("BLKD", "VTD", "VTKD"), ("B", I), ("BA", I)),
        int_bounds=(-1, 14),
        sizes=SMALL,
    ),
    Case(
        ops.Attend("T", "D", given=("pages",), page="V", lse=True),
        (*_f("GBD", "VGTD", "GTVD"), ("AGB", I)),
        int_bounds=(-1, 14),
        sizes=SMALL,
    ),
    Case(ops.JoinAttention(), _f("ABD", "AB", "ABD", "AB")),
    Case(ops.Lookup("V"), (("VD", F), ("AB", I)), int_bounds=(-1, 14)),
    Case(ops.Lookup("V"), (("VAD", F), ("AB", I)), int_bounds=(0, 12)),
    Case(ops.Lookup("V"), (("VA", I), ("B", I)), int_bounds=(0, 12)),
    Case(ops.Lookup("V", wrap=True), (("VAD", F), ("AB", I)), int_bounds=(-15, 40)),
    Case(ops.Lookup("V"), (("VA", N), ("B", I)), int_bounds=(0, 12)),
    Case(ops.Grouped("V", ("B",)), (*_f("AB", "VBD"), ("A", I)), int_bounds=(-1, 14), sizes=SMALL),
    Case(ops.Grouped("V", ("B",)), (*_f("ABT", "VBD"), ("AG", I)), int_bounds=(0, 12), sizes=SMALL),
    Case(ops.Grouped("V", ("A", "B")), (*_f("BA", "AVB"), ("", I)), int_bounds=(0, 12), sizes=SMALL),
    Case(ops.Alias(), (("AB", N),)),
    Case(ops.Iota("T")),
    Case(ops.Uniform(("V",)), (("A", I), ("BA", DType.UINT32))),
    Case(ops.Uniform(("V", "B")), (("A", I), Number("3"))),
    Case(ops.Full(("A", "B"), F), (Number("0"),)),
    Case(ops.Full(("A", "B"), F), (Number("2"),)),
    Case(ops.Rotary("D"), (("BLD", F), ("", I)), int_bounds=(0, 9)),
    Case(ops.Rotary("D", style="gptj"), (("ALD", F), ("AL", I)), int_bounds=(0, 9)),
    Case(ops.Rotary("D", rotated=2, seq="A"), (("ABD", F), Number("3"))),
    Case(ops.Rotary("D"), (("ABD", F), ("A", I), ("I", F)), int_bounds=(0, 9)),
    Case(ops.Rotary("D"), (("ABD", F), ("A", I), ("IB", F)), int_bounds=(0, 9)),
    Case(ops.Update("T"), (("BTD", F), ("BD", F), ("", I)), int_bounds=(0, 12)),
    Case(ops.Update("T"), (("BTD", F), ("BDG", F), ("B", I)), int_bounds=(-1, 12)),
    Case(ops.Update("T"), (("BTD", F), ("BTD", F), ("", I)), int_bounds=(0, 3)),
    Case(ops.Update("T", wrap=True), (("BTD", F), ("BDG", F), ("B", I)), int_bounds=(-15, 40)),
    Case(ops.Update("T", ("B",)), (("BTD", F), ("DG", F), ("D", I), ("", I)), int_bounds=(-1, 12)),
    Case(
        ops.Update("T", page="V"),
        (*_f("VTKD", "BLKD"), ("B", I), ("BA", I)),
        int_bounds=(-1, 14),
        sizes=SMALL,
    ),
    Case(
        ops.Update("T", ("K",), page="V"),
        (*_f("KTVGD", "DBG"), ("", I), ("", I), ("GBA", I)),
        int_bounds=(-1, 14),
        sizes=SMALL,
    ),
    Case(ops.Take("B", 3, 9), _f("AB")),
    Case(ops.Take("B", 5), _f("AB")),
    Case(ops.Take("B", 12, 24, ("x",)), _f("AB")),
    Case(ops.Concat("B"), _f("AB", "AB")),
    Case(ops.Concat("B", ("x",)), _f("AB", "AB", "AB")),
    Case(ops.Rename((("B", "C"),)), _f("AB")),
    Case(ops.Rename((("B", "C"), ("A", "B"))), _f("AB"), sizes=(("B", 12), ("C", 12))),
    Case(ops.Split("B", ("K", "G")), _f("AB")),
    Case(ops.Split("B", ("G", "K")), _f("AB")),
    Case(ops.Merge(("K", "G"), "B"), _f("KAG")),
    Case(ops.Merge(("G", "K"), "B"), _f("KAG")),
    Case(ops.Alias(), _f("AB")),
    Case(ops.Fetch(), _f("AB")),
    Case(ops.Store(), _f("AB")),
    Case(ops.Start(ops.AllGather(("x",))), _f("AB")),
    Case(ops.Wait(), _f("AB")),
    Case(ops.AllGather(("x",)), _f("AB")),
    Case(ops.AllReduce(("x",)), _f("AB")),
    Case(ops.ReduceScatter(((("x",), "A"),)), _f("AB")),
    Case(ops.AllToAll(((("x",), "A", "B"),)), _f("AB")),
    Case(ops.Slice(((("x",), "B"),)), _f("AB")),
    Case(ops.AsPartial(("x",)), _f("AB")),
    Case(ops.Permute((("A", ("x",), ()), ("B", (), ("x",)))), _f("AB")),
    Case(ops.Permute((("A", (), ("x",)),)), _f("AB")),
    Case(ops.Permute((("A", ("x",), ()),)), _f("AB")),
    Case(ops.Roll(("x",), "A"), _f("AB")),
    Case(ops.Roll(("x",), "B", -2), (("AB", I),)),
)

APPROXIMATE = ops.Layernorm | ops.Rmsnorm | ops.Softmax | ops.Rotary | ops.Attend | ops.JoinAttention
EXACT_FUNCTIONS = ("relu", "softsign", "sqrt", "rsqrt", "abs", "round")


def _tolerance(operation: Operation) -> float:
    """Sums and transcendental functions may differ in the last bit with the arrays' strides; all others are equal."""
    if isinstance(operation, ops.Function):
        return 1e-12 if operation.entry.takes == ("float",) and operation.name not in EXACT_FUNCTIONS else 0
    return 1e-12 if isinstance(operation, APPROXIMATE) else 0


def test_every_operation_has_a_case() -> None:
    classes = {getattr(ops, name) for name in ops.__all__} - {
        ops.Ahead,
        ops.Elementwise,
        ops.TableOperation,
        ops.Movement,
    }
    assert {type(case.operation) for case in CASES} == classes
    assert set(KERNELS) == {cls for cls in classes if not issubclass(cls, Movement)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_sound(case: Case) -> None:
    rng = np.random.default_rng(0)
    tried = 0
    for mesh in case.meshes:
        args, results = _shapes(case)
        if "x" in case.operation.named_axes and "x" not in mesh:
            continue
        kinds = list(strategies(case.operation, args, results, mesh))
        assert kinds
        tame, wild = (_Numbers([_random(case, arg, rng, finite) for arg in args]) for finite in (True, False))
        chosen: list[Strategy] = kinds if len(kinds) <= 40 else [kinds[i] for i in rng.permutation(len(kinds))[:40]]
        reshapes = isinstance(case.operation, ops.Rename | ops.Split | ops.Merge)
        for strategy in chosen * (5 if reshapes else 1):  # many draws of digits do not fit these
            sums = any(kind and kind.partial and kind.partial.kind is Reduction.SUM for kind in chain(*strategy))
            for numbers in (tame,) if sums else (tame, wild):  # sums are linear where all is finite
                tried += _check(case, strategy, numbers, mesh, rng)
    assert tried


def _shapes(case: Case) -> tuple[list[Arg], list[Shape]]:
    sizes = {**SIZES, **dict(case.sizes)}
    args = [
        Arg(str(o), None, o) if isinstance(o, Number) else Arg("v", Shape(o[1], tuple(Dim(n, sizes[n]) for n in o[0])))
        for o in case.operands
    ]
    return args, list(case.operation.infer(args, Context(sizes)))


def _random(case: Case, arg: Arg, rng: np.random.Generator, finite: bool) -> Array | Number:
    """Integers over their whole range, extremes first; floats small whole numbers, with infinities and NaN if asked."""
    if arg.number is not None:
        return arg.number
    shape, dtype = tuple(dim.size for dim in arg.tensor.dims), arg.tensor.dtype
    if dtype is DType.INT32 and case.int_bounds:
        return rng.integers(*case.int_bounds, shape)
    if not dtype.is_float:
        return whole_range(dtype, shape, rng).astype(EXACT.storage(dtype))
    numbers = rng.integers(*case.bounds, shape).astype(np.float64)
    chosen = rng.choice([np.nan, np.inf, -np.inf], shape)
    return numbers if finite else np.where(rng.integers(0, 3, shape) == 0, chosen, numbers)


@dataclass
class _Numbers:
    """Operands, and what the operation means of them unsharded: the same for every strategy."""

    whole: list[Array | Number]
    meant: Sequence[Array] = ()

    def meaning(self, case: Case, strategy: Strategy, mesh: Mesh) -> Sequence[Array]:
        """The unsharded results."""
        if not self.meant:
            unsharded = KernelSetting(Mesh(()), {}, EXACT, mesh)
            args: list[Argument] = [
                array if isinstance(array, Number) else Local(array, TensorType.whole(kind.shape))
                for array, kind in zip(self.whole, strategy[0], strict=True)
                if isinstance(array, Number) or kind is not None
            ]
            if isinstance(case.operation, ops.Roll):
                (source,) = args
                assert isinstance(source, Local)
                self.meant = [rolled(case.operation, source, unsharded)]
            elif case.operation.is_movement:
                self.meant = [array for array in self.whole[:1] if not isinstance(array, Number)]
            else:
                results = [TensorType.whole(kind.shape) for kind in strategy[1]]
                self.meant = compute(case.operation, args, results, unsharded)
        return self.meant


def _check(case: Case, strategy: Strategy, numbers: _Numbers, mesh: Mesh, rng: np.random.Generator) -> bool:
    """Whether the digits allowed the strategy; fails where it gives anything but the unsharded result."""
    operands, results = strategy
    orders = _orders(strategy, case.operation, mesh, rng)
    if operands and operands[0] is not None and not digits_fit(case.operation, operands[0], results[0], orders, mesh):
        return False
    on_chips = KernelSetting(mesh, orders, EXACT, mesh)
    local_args: list[Argument] = []
    for array, kind in zip(numbers.whole, operands, strict=True):
        if isinstance(array, Number):
            local_args.append(array)
        else:
            assert kind is not None
            local_args.append(Local(shard(array, kind, orders, mesh, rng), kind))
    if case.operation.is_movement:
        value = local_args[0]
        assert isinstance(value, Local)
        made = (move(value, results[0], on_chips),)
        if isinstance(case.operation, ops.Permute):
            made = (permute(case.operation, value, results[0], on_chips)[0],)
        if isinstance(case.operation, ops.Roll):
            made = (roll(case.operation, value, on_chips),)
    else:
        made = compute(case.operation, local_args, results, on_chips)
    for result, array, expected in zip(results, made, numbers.meaning(case, strategy, mesh), strict=True):
        assert array.shape == (*on_chips.mesh_shape, *result.local_shape(mesh))
        found = unshard(array, result, orders, mesh)
        if found.shape == expected.shape and np.array_equal(found, expected, equal_nan=result.dtype.is_float):
            continue
        what = f"{[str(kind) for kind in operands]} -> {result} on {mesh} with digits {orders}"
        tolerance = 1e-12 if any(kind and kind.is_pair for kind in chain(*strategy)) else _tolerance(case.operation)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=what)
    return True


def _orders(strategy: Strategy, operation: Operation, mesh: Mesh, rng: np.random.Generator) -> dict[str, Order]:
    """Random orders of digits: the axes that split a dimension, perhaps others, perhaps a digit that none splits."""
    extents: dict[str, set[int]] = {}
    needed: dict[str, set[str]] = {}
    for kind in chain(*strategy):
        for dim, axes in zip(kind.dims, kind.splits, strict=True) if kind is not None else ():
            extents.setdefault(dim.name, set()).add(dim.size)
            needed.setdefault(dim.name, set()).update(axes)
    by = operation.axes if isinstance(operation, ops.Roll) else getattr(operation, "by", ())
    orders: dict[str, Order] = {}
    for name, sizes in extents.items():
        digits: list[str | int] = sorted(needed[name])
        most = math.gcd(*sizes)
        for extra in [*(axis for axis in mesh if axis not in needed[name]), 2]:
            fits = most % order_size((*digits, extra), mesh) == 0
            if rng.integers(0, 2) and fits:
                digits.append(extra)
        rng.shuffle(digits)
        if name in (getattr(operation, "dim", None), getattr(operation, "target", None)):
            digits = [*by, *(digit for digit in digits if digit not in by)]
        orders[name] = tuple(digits)
    if isinstance(operation, ops.Rename) and rng.integers(0, 4):
        named = [dim for pair in operation.pairs for dim in pair]
        orders.update(dict.fromkeys(named, tuple(dict.fromkeys(digit for dim in named for digit in orders[dim]))))
    return orders


WRAPPING = {
    "a shifted maximum of integers": (ops.Add(), DType.INT8, DType.INT8, Reduction.MAX),
    "a shifted maximum of floats": (ops.Add(), F, F, Reduction.MAX),
    "a maximum less a value": (ops.Sub(), DType.UINT32, DType.UINT32, Reduction.MAX),
    "narrow addends in a wide product": (ops.Contract(("B",)), DType.INT8, I, Reduction.SUM),
    "narrow addends made wide": (ops.Convert(I), DType.INT8, I, Reduction.SUM),
    "unsigned maxima made signed": (ops.Convert(I), DType.UINT32, I, Reduction.MAX),
    "maxima of which NaN is none": (ops.Convert(I), F, I, Reduction.MAX),
}


@pytest.mark.parametrize("name", WRAPPING)
def test_rows_that_were_wrong_are_gone_and_would_be_noticed(name: str) -> None:
    """What this file draws shows that they are wrong: extremes of integers, infinities and NaN."""
    operation, dtype, made, state = WRAPPING[name]
    case = Case(operation, (("AB", dtype), ("BA", dtype))[: operation.arity[1]])
    mesh, rng = Mesh.of(x=2), np.random.default_rng(0)
    args, results = _shapes(case)
    assert results[0].dtype is made
    first, *others = (TensorType.whole(arg.tensor) for arg in args)
    strategy: Strategy = (
        (TensorType.of_states(first.shape, {"x": state}), *others),
        (TensorType.of_states(results[0], {"x": state}),),
    )
    assert strategy not in list(strategies(operation, args, results, mesh))
    with pytest.raises(AssertionError, match=r"Mismatched|location mismatch"):
        _check(case, strategy, _Numbers([_random(case, arg, rng, finite=False) for arg in args]), mesh, rng)


def test_a_missing_movement_is_noticed() -> None:
    """The check itself has teeth: addends into a function that is not linear give something else."""
    mesh = Mesh.of(x=2)
    shape = Shape(F, (Dim("A", 4),))
    partial = TensorType.of_states(shape, {"x": Reduction.SUM})
    value = np.arange(4.0)
    setting = KernelSetting(mesh, {}, EXACT, mesh)
    parts = Local(shard(value, partial, {}, mesh, np.random.default_rng(1)), partial)
    (squares,) = compute(ops.Mul(), [parts, parts], [partial], setting)
    assert not np.array_equal(unshard(squares, partial, {}, mesh), value * value)
