"""The movement planner: what it plans, that nothing cheaper exists, and that its plans do what they say."""

from __future__ import annotations

import random
from importlib.resources import files
from itertools import pairwise, product
from pathlib import Path

import pytest
from oracles.cramped_search import Search, cheapest_of_all_orders
from oracles.layout_execution import execute
from oracles.layout_pairs import all_meshes, cramped, mesh_of, roomy, type_of
from oracles.layout_search import MAX, SUM, Layout, cheapest, layouts

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.hardware.topology import Topology, topology_of
from shardwright.cost.movements.movement import collective_of
from shardwright.cost.resharding.planner import (
    BYTES,
    TIME,
    ReshardingPlan,
    lower_bound_bytes,
    plan,
    plan_in_any_order,
    received_bytes,
)
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.digits import Order
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    AsPartial,
    Fetch,
    Movement,
    Permute,
    ReduceScatter,
    Slice,
    Store,
)
from shardwright.ir.types import Dim, DType, Partial, Placement, Reduction, Shape, TensorType, Tier


def text(operation: Movement) -> str:
    """`all_to_all[x: A -> B]`, shorter than the language's own printing needs."""
    match operation:
        case ReduceScatter() | Slice():
            inside = ", ".join(f"{''.join(axes)} -> {dim}" for axes, dim in operation.targets)
        case AllToAll():
            inside = ", ".join(f"{''.join(axes)}: {a} -> {b}" for axes, a, b in operation.transfers)
        case Store():
            inside = str(operation.tier)
        case _:
            inside = "".join(operation.named_axes)
    return f"{operation.keyword}[{inside}]"


def texts(made: ReshardingPlan) -> list[str]:
    return [text(step.operation) for step in made.steps]


def between(mesh: Mesh, extents: tuple[int, ...], source: Layout, target: Layout) -> ReshardingPlan:
    return plan(type_of(source, extents), type_of(target, extents), mesh)


A, B, C = range(3)


# ---------------------------------------------------------------- what it plans

XYZ = mesh_of((4, 2, 2))
ROOMY = (64, 64, 64)


@pytest.mark.parametrize(
    ("source", "target", "steps", "received"),
    [
        ((None, None, None), (A, B, A), ["slice[xz -> A, y -> B]"], 0),
        ((A, A, A), (None, A, None), ["all_gather[xz]"], 64**3 // 16 * 7),
        ((A, B, None), (B, A, None), ["all_to_all[x: A -> B, y: B -> A]"], 64**3 // 8 * 7 // 8),
        # Slices first, the gather last: the other orders receive more.
        ((A, B, None), (B, None, C), ["slice[z -> C]", "all_to_all[x: A -> B]", "all_gather[y]"], 64**3 // 16 * 7 // 4),
        # A partial sum that is wanted split is one reduce-scatter, over all axes and onto all dimensions.
        ((SUM, SUM, SUM), (A, B, A), ["reduce_scatter[xz -> A, y -> B]"], 64**3 * 15 // 16),
        ((SUM, A, B), (A, A, B), ["reduce_scatter[x -> A]"], 64**3 // 4 * 3 // 4),
        ((SUM, SUM, SUM), (None, None, None), ["all_reduce[xyz]"], 64**3 * 2 * 15 // 16),
        ((SUM, A, B), (None, A, B), ["all_reduce[x]"], 64**3 // 4 * 2 * 3 // 4),
        # With a gather to come, a full reduction is scattered and gathered with the rest.
        ((SUM, A, B), (None, None, B), ["reduce_scatter[x -> A]", "all_gather[xy]"], 163840),
        ((SUM, A, B), (None, B, B), ["reduce_scatter[x -> A]", "all_to_all[y: A -> B]", "all_gather[x]"], 106496),
        # Replicas share the work of a reduction over more than two chips.
        ((SUM, None, A), (A, None, A), ["slice[y -> A]", "reduce_scatter[x -> A]", "all_gather[y]"], 65536),
        # For two chips that gains nothing, so there is one step.
        ((A, SUM, None), (A, B, None), ["reduce_scatter[y -> B]"], 64**3 // 4 // 2),
        # Zeros make addends of a value, at no cost.
        ((A, None, B), (SUM, SUM, B), ["as_partial[xy]"], 0),
        ((A, B, None), (A, SUM, B), ["slice[z -> B]", "as_partial[y]"], 0),
        # One replica's part is enough where the others are to add zeros.
        ((None, B, None), (SUM, None, None), ["slice[x -> A]", "all_gather[y]", "as_partial[x]"], 64**3 // 8),
        # Partial sums that stay so are moved as they are, or reduced where that shortens a gather.
        ((SUM, A, None), (SUM, B, None), ["all_to_all[y: A -> B]"], 64**3 // 4),
        ((A, SUM, None), (None, SUM, None), ["reduce_scatter[y -> A]", "all_gather[x]", "as_partial[y]"], 131072),
        # A partial maximum is reduced like a sum.
        ((MAX, A, B), (B, A, B), ["reduce_scatter[x -> B]"], 64**3 // 4 * 3 // 4),
        ((MAX, A, B), (None, A, B), ["all_reduce[x]"], 64**3 // 4 * 2 * 3 // 4),
        ((MAX, A, B), (SUM, A, B), ["reduce_scatter[x -> A]", "as_partial[x]"], 64**3 // 4 * 3 // 4),
        ((MAX, A, B), (MAX, B, B), ["all_to_all[y: A -> B]"], 64**3 // 4 // 2),
    ],
)  # fmt: skip
def test_plans(source: Layout, target: Layout, steps: list[str], received: int) -> None:
    made = between(XYZ, ROOMY, source, target)
    assert texts(made) == steps
    assert made.bytes_received == received
    assert execute(made, XYZ) == []


@pytest.mark.parametrize(
    ("split", "extents", "steps", "received"),
    [
        (None, (24, 24), ["reduce_scatter[x -> A]", "all_to_all[x: A -> B]"], 1152),
        ("y", (24, 24), ["reduce_scatter[x -> A]", "all_to_all[x: A -> B]"], 576),
        (None, (5, 24), ["all_reduce[x]", "slice[x -> B]"], 390),  # A has no room
    ],
)  # fmt: skip
def test_a_partial_softmax_is_finished_onto_rows_before_its_width_is_split(
    split: str | None, extents: tuple[int, int], steps: list[str], received: int
) -> None:
    """The pairs are of 2 bytes for each element and 4 for each row; only the last movement has elements alone."""
    dims = (Dim("A", extents[0]), Dim("B", extents[1]))
    axes = (split,) if split else ()
    source = TensorType(DType.BF16, dims, (axes, ()), Partial(Reduction.SOFTMAX, ("x",)))
    made = plan(source, TensorType(DType.BF16, dims, (axes, ("x",))), Mesh.of(x=4, y=2))
    assert [text(step.operation) for step in made.steps] == steps
    assert made.bytes_received == received


def test_no_steps_between_equal_types() -> None:
    made = between(XYZ, ROOMY, (A, SUM, None), (A, SUM, None))
    assert (made.steps, made.bytes_received, made.lower_bound_bytes, made.optimal) == ((), 0, 0, True)


def test_the_types_of_the_steps() -> None:
    made = between(XYZ, ROOMY, (A, B, None), (B, None, C))
    assert [step.type.layout_text for step in made.steps] == ["A_xB_yC_z", "AB_xyC_z", "AB_xC_z"]
    assert sum(step.bytes_received for step in made.steps) == made.bytes_received


def test_axes_of_one_chip_ride_along() -> None:
    mesh = mesh_of((4, 1, 2))
    made = between(mesh, ROOMY, (SUM, SUM, A), (None, None, None))
    assert texts(made) == ["reduce_scatter[xy -> A]", "all_gather[xyz]"]
    made = between(mesh_of((1, 1, 1)), ROOMY, (SUM, A, B), (None, None, A))
    assert (texts(made), made.bytes_received, made.communicating_steps) == (
        ["all_reduce[x]", "all_to_all[z: B -> A]", "all_gather[y]"], 0, 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "source", "target", "received"),
    [
        ((4, 8, 1), (A, None, SUM), (None, A, None), 1),
        ((4, 8, 1), (A, None, None), (None, A, SUM), 1),
        ((4, 8, 1), (A, None, A), (None, A, None), 1),
        ((4, 8, 1), (A, None, MAX), (None, SUM, SUM), 1),
        ((4, 8, 1), (MAX, None, MAX), (SUM, A, SUM), 2),
    ],
)
def test_axes_of_one_chip_without_room(sizes: tuple[int, ...], source: Layout, target: Layout, received: int) -> None:
    mesh = mesh_of(sizes)
    made = plan(type_of(source, (8,)), type_of(target, (8,)), mesh)
    assert made.steps[-1].type == made.target
    assert made.bytes_received == received


def test_four_bits_are_half_a_byte() -> None:
    kind = type_of((A, None, None), (4, 3, 1), DType.INT4)
    mesh = mesh_of((4, 2, 2))
    assert received_bytes(AllGather(("x",)), kind, mesh) == 5  # 9 elements
    assert plan(kind, type_of((None,) * 3, (4, 3, 1), DType.INT4), mesh).bytes_received == 5


@pytest.mark.parametrize(
    ("operation", "layout", "received"),
    [
        (AllGather(("x",)), (A, None, None), 1536),
        (AllReduce(("x",)), (SUM, None, None), 768),
        (AllReduce(("x", "y")), (SUM, SUM, None), 896),
        (ReduceScatter(((("x",), "A"),)), (SUM, None, None), 384),
        (AllToAll(((("x",), "A", "B"),)), (A, None, None), 96),
        (Slice(((("x",), "A"),)), (None, None, None), 0),
        (AsPartial(("x",)), (None, None, None), 0),
        (Fetch(), (None, None, None), 0),
        (Store(Tier.HOST), (None, None, None), 0),
    ],
)
def test_received_bytes(operation: Movement, layout: Layout, received: int) -> None:
    extents = (64, 32) if isinstance(operation, AllGather) else (16, 32)
    assert received_bytes(operation, type_of(layout, extents), XYZ) == received


def test_a_full_reduction_receives_whole_elements() -> None:
    assert received_bytes(AllReduce(("x",)), type_of((SUM,), (5,)), mesh_of((4,))) == 8  # 7.5 rounded up


# ---------------------------------------------------------------- room for digits


def test_a_temporary_split_needs_room() -> None:
    """A reduction is scattered only onto a dimension whose size has room for one more digit."""
    assert texts(between(XYZ, (64, 2), (SUM, B, None), (None, None, A))) == [
        "slice[z -> A]", "reduce_scatter[x -> A]", "all_gather[xy]",
    ]  # fmt: skip
    assert texts(between(XYZ, (2, 2), (SUM, B, None), (None, None, A))) == [
        "slice[z -> A]",
        "all_reduce[x]",
        "all_gather[y]",
    ]
    assert texts(between(XYZ, (1, 2), (SUM, B, None), (None, None, None))) == ["all_reduce[x]", "all_gather[y]"]


def test_room_counts_the_digits_that_the_program_needs_elsewhere() -> None:
    source, target = type_of((SUM, A, A), (16,)), type_of((None, None, A), (16,))
    scattered = ["reduce_scatter[x -> A]", "all_gather[xy]"]
    whole = ["all_reduce[x]", "all_gather[y]"]
    mesh = XYZ
    orders: dict[str, Order] = {"A": ("y", "z")}
    assert texts(plan(source, target, mesh, orders)) == scattered
    assert texts(plan(source, target, mesh, orders, pinned=["A"])) == whole
    assert texts(plan(source, target, mesh, {"A": ("z", "y", 2)})) == whole
    assert texts(plan(source, target, mesh, {"A": ("x", "y", "z")}, pinned=["A"])) == scattered
    assert texts(plan(source, target, mesh, {"A": ("y", "z", 8)})) == whole  # no room for what is there already


@pytest.mark.parametrize(
    ("source", "target", "message", "note"),
    [
        (
            type_of((A, None), (6, 4)),
            type_of((None, A), (6, 4)),
            "A_xB: A=6 is not divisible by x=4 [not-divisible]",
            "split A over fewer axes",
        ),
        (
            type_of((A, None), (8, 4)),
            type_of((MAX, None), (8, 4)),
            "no movement makes A_xB a partial maximum over x, as AB(partialmax-x) is [no-movement]",
            "a partial maximum is what `max` over a split dimension leaves; move the value whole or split",
        ),
        (
            type_of((A, None), (8, 4)),
            type_of((A, None), (8,)),
            "int8 AB cannot become int8 A by moving data [different-shape]",
            None,
        ),
    ],
)
def test_what_cannot_be_planned(source: TensorType, target: TensorType, message: str, note: str | None) -> None:
    with pytest.raises(DiagnosticError) as caught:
        plan(source, target, mesh_of((4, 2)))
    assert caught.value.diagnostics[0].says() == message
    assert [n.message for n in caught.value.diagnostics[0].notes] == ([note] if note else [])


# ---------------------------------------------------------------- memories


def placed(layout: Layout, tier: Tier) -> TensorType:
    kind = type_of(layout, (16, 16))
    return TensorType(kind.dtype, kind.dims, kind.splits, kind.partial, Placement(((tier, 100.0),)))


def test_a_value_elsewhere_is_fetched_first_and_stored_last() -> None:
    mesh = mesh_of((2, 2))
    home, use = placed((A, B), Tier.HOST), placed((A, None), Tier.DEVICE)
    assert texts(plan(home, use, mesh)) == ["fetch[]", "all_gather[y]"]
    assert texts(plan(use, home, mesh)) == ["slice[y -> B]", "store[host]"]
    assert texts(plan(home, placed((B, A), Tier.HOST), mesh)) == [
        "fetch[]",
        "all_to_all[x: A -> B, y: B -> A]",
        "store[host]",
    ]
    assert texts(plan(home, placed((A, B), Tier.DISK), mesh)) == ["fetch[]", "store[disk]"]
    assert plan(home, home, mesh).steps == ()


# ---------------------------------------------------------------- nothing cheaper exists

SEARCHED = [
    ((4,), (16,)), ((2, 3), (6, 6)), ((2, 2), (4, 2)), ((4, 2), (8, 8, 8)), ((4, 2), (4, 1)), ((3, 2), (6, 3, 2)),
    ((2, 3, 2), (12, 12)), ((4, 2, 2), (16, 2, 1)), ((2, 2, 2), (4, 2, 2)), ((4, 4, 4), (16, 4)),
    ((2, 1, 3), (6,)), ((3, 2, 2), (1, 3, 4)), ((4, 3, 2), (24, 1)),
]  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("sizes", "extents"), SEARCHED)
def test_no_sequence_of_movements_beats_the_plan(sizes: tuple[int, ...], extents: tuple[int, ...]) -> None:
    """All pairs of layouts, in bytes and then in communicating steps, and the bound holds for all sequences."""
    nodes, best = cheapest(extents, sizes)
    mesh = mesh_of(sizes)
    kinds = [type_of(node, extents) for node in nodes]
    for (i, j), least in best.items():
        made = plan(kinds[i], kinds[j], mesh)
        found = made.bytes_received, made.communicating_steps
        # Without room, what is in blocks may serve where digits do not fit: the search below knows that, too.
        assert found == least or (extents != roomy(sizes, len(extents)) and found < least), f"{kinds[i]} -> {kinds[j]}"
        assert made.lower_bound_bytes <= least[0], f"{kinds[i]} -> {kinds[j]}"


CRAMPED_AND_SEARCHED = [
    ((2, 4), (4,)), ((4, 8), (8,)), ((4, 8), (16,)), ((2, 4), (4, 4)), ((3, 2), (6, 4)), ((6, 4), (12, 4)),
    ((4, 8), (8, 12)), ((2, 2, 2), (4,)), ((2, 4, 2), (8,)), ((2, 4, 8), (8,)), ((3, 3), (3, 6)),
]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("sizes", "extents"), CRAMPED_AND_SEARCHED)
def test_no_sequence_in_one_order_of_digits_beats_the_plan(sizes: tuple[int, ...], extents: tuple[int, ...]) -> None:
    """All pairs of types, partial sums included, where digits do not fit; permutes taken for what a chip lacks."""
    mesh, named = mesh_of(sizes), dict.fromkeys("AB", mesh_of(sizes).axes)
    search = Search(extents, sizes, [range(len(sizes))] * len(extents))
    pairs = list(product(search.nodes, repeat=2))
    for before, after in random.Random(str(sizes)).sample(pairs, min(len(pairs), 200)):
        made = plan(type_of(before, extents), type_of(after, extents), mesh, named)
        assert made.bytes_received == search.least(before, after)[0], f"{made.source} -> {made.target}"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("sizes", "extents"), [((2, 4), (4,)), ((2, 4, 2), (8,)), ((4, 8), (8, 8)), ((4, 6), (12,))])
def test_no_sequence_in_any_order_of_digits_beats_the_plan(sizes: tuple[int, ...], extents: tuple[int, ...]) -> None:
    best = cheapest_of_all_orders(extents, sizes)
    for before, after in random.Random(str(sizes)).sample(list(best), min(len(best), 120)):
        made = plan_in_any_order(type_of(before, extents), type_of(after, extents), mesh_of(sizes))
        assert made.bytes_received == best[before, after][0], f"{made.source} -> {made.target}"


def test_no_sequence_beats_the_plan_with_partial_maxima() -> None:
    sizes, extents = (4, 2), (8, 2)
    nodes, best = cheapest(extents, sizes, (SUM, MAX))
    kinds = [type_of(node, extents) for node in nodes]
    assert any(MAX in nodes[i] and SUM in nodes[j] for i, j in best)
    for (i, j), least in best.items():
        made = plan(kinds[i], kinds[j], mesh_of(sizes))
        assert (made.bytes_received, made.communicating_steps) == least, f"{kinds[i]} -> {kinds[j]}"


def test_the_bound_is_met_wherever_no_partial_sum_is_involved() -> None:
    """The theorem of docs/concepts/resharding.md, on a shape without any room to spare."""
    sizes, extents = (2, 3, 2), (12, 12)
    kinds = [type_of(row, extents) for row in layouts(3, 2, ())]
    for source in kinds:
        for target in kinds:
            made = plan(source, target, mesh_of(sizes))
            assert made.optimal
            assert [type(step.operation) for step in made.steps] == [
                kind for kind in (Slice, AllToAll, AllGather) if kind in {type(step.operation) for step in made.steps}
            ]


def missing_bytes(source: TensorType, target: TensorType, mesh: Mesh) -> int:
    """Elements of a chip's target shard that it does not hold, counted over global indices, the most of any chip."""
    most = 0
    order = mesh.axes
    for chip in mesh.chips():
        wanted = held = 1
        for dim, before, after in zip(source.dims, source.splits, target.splits, strict=True):
            digits = [
                tuple((i // mesh.product(order[k + 1 :])) % mesh[axis] for k, axis in enumerate(order))
                for i in range(dim.size)
            ]
            has = [all(d[order.index(a)] == chip[a] for a in before) for d in digits]
            wants = [all(d[order.index(a)] == chip[a] for a in after) for d in digits]
            wanted *= sum(wants)
            held *= sum(h and w for h, w in zip(has, wants, strict=True))
        most = max(most, wanted - held)
    return most


def test_the_bound_is_the_missing_bytes_of_whole_values() -> None:
    mesh = mesh_of((2, 3, 2))
    kinds = [type_of(row, (12, 12)) for row in layouts(3, 2, ())]
    for source in kinds:
        for target in random.Random(str(source)).sample(kinds, 9):
            assert lower_bound_bytes(source, target, mesh) == missing_bytes(source, target, mesh)


# ---------------------------------------------------------------- plans do what they say


def sampled_pairs(count: int) -> list[tuple[tuple[int, ...], tuple[int, ...], Layout, Layout]]:
    """The same few thousand of all the pairs that bench/resharding_pairs.py goes through."""
    pick = random.Random(2022)
    cases = [
        (sizes, extents)
        for sizes in all_meshes()
        for n_dims in (1, 2, 3)
        for extents in (roomy(sizes, n_dims), *cramped(sizes, n_dims))
    ]
    made: list[tuple[tuple[int, ...], tuple[int, ...], Layout, Layout]] = []
    for _ in range(count):
        sizes, extents = pick.choice(cases)
        rows = layouts(len(sizes), len(extents), (SUM, MAX))
        made.append((sizes, extents, pick.choice(rows), pick.choice(rows)))
    return made


def test_plans_move_the_contents_and_receive_the_bytes_that_they_say() -> None:
    executed = 0
    refused: list[str] = []
    for sizes, extents, before, after in sampled_pairs(6000):
        mesh = mesh_of(sizes)
        source, target = type_of(before, extents), type_of(after, extents)
        try:
            made = plan(source, target, mesh)
        except DiagnosticError as error:
            refused.append(error.diagnostics[0].code)
            continue
        splits = zip(*(kind.splits for kind in (source, *(step.type for step in made.steps))), strict=True)
        together = [mesh.product({axis for axes in each for axis in axes}) for each in splits]
        fits = all(dim.size % chips == 0 for dim, chips in zip(source.dims, together, strict=True))
        if fits and not any(isinstance(step.operation, Permute) for step in made.steps):
            # (Others are executed in the simulator: tests/backends/test_resharding_plans.py.)
            assert execute(made, mesh) == [], f"{source} -> {target} on {mesh}"
        assert made.bytes_received >= made.lower_bound_bytes
        for one, other in pairwise([source, *(step.type for step in made.steps)]):
            assert one != other
        executed += 1
    assert executed > 3000
    assert set(refused) == {"not-divisible", "no-movement"}


# ---------------------------------------------------------------- time


def joint_gather_s(source: TensorType, topology: Topology) -> float:
    """Seconds of one all-gather over x and y together."""
    gather = collective_of(AllGather(("x", "y")), source, Mesh(topology.mesh), {})
    assert gather is not None
    return gather.time_s(topology)


def test_on_a_torus_joint_collectives_are_as_fast_as_they_can_be() -> None:
    topology = topology_of(load_chip("tpu-v4"), XYZ_64 := Mesh.of(x=4, y=4, z=4))
    source, target = type_of((A, A, B), (4096, 4096)), type_of((None, None, B), (4096, 4096))
    made = plan(source, target, XYZ_64, objective=TIME, topology=topology)
    assert texts(made) == ["all_gather[xy]"]
    assert made.remark is None
    assert made.time_s(topology) == joint_gather_s(source, topology)


@pytest.mark.parametrize("chip", ["h100", "a100-80g", "tpu-v4", "tpu-v5e"])
def test_the_fastest_plan_is_no_slower_than_the_one_with_the_fewest_bytes(chip: str) -> None:
    mesh = Mesh.of(x=4, y=4, z=2) if chip != "tpu-v4" else Mesh.of(x=4, y=4, z=4)
    topology = topology_of(load_chip(chip), mesh)
    rows = layouts(3, 2)
    pick = random.Random(3)
    for _ in range(200):
        source, target = (type_of(pick.choice(rows), (512, 256)) for _ in range(2))
        fast = plan(source, target, mesh, objective=TIME, topology=topology)
        lean = plan(source, target, mesh, objective=BYTES)
        assert fast.time_s(topology) <= lean.time_s(topology) * (1 + 1e-9)
        assert fast.bytes_received >= lean.bytes_received
        assert execute(fast, mesh) == []


def test_where_separate_steps_are_faster_the_plan_has_them_and_says_so(tmp_path: Path) -> None:
    """Messages that go round a ring one after the other: 7 of them for a joint step over 8 chips, 1 and 3 apart."""
    h100 = Path(str(files("shardwright.cost") / "hardware" / "chips" / "h100.toml")).read_text(encoding="utf-8")
    ring = tmp_path / "ring.toml"
    ring.write_text(h100.replace('messages = "direct"', 'messages = "ring"'), encoding="utf-8")
    mesh = mesh_of((2, 4))
    topology = topology_of(load_chip(str(ring)), mesh)

    small = type_of((A, A), (64, 64)), type_of((None, None), (64, 64))
    made = plan(*small, mesh, objective=TIME, topology=topology)
    assert [text(step.operation).partition("[")[0] for step in made.steps] == ["all_gather", "all_gather"]
    assert made.bytes_received == plan(*small, mesh).bytes_received
    assert made.time_s(topology) < joint_gather_s(small[0], topology)
    assert made.remark == "an all_gather over x then y takes 32 µs on h100, a joint one 56 µs"
    assert execute(made, mesh) == []

    exchanged = type_of((A, A), (64, 64)), type_of((B, B), (64, 64))
    made = plan(*exchanged, mesh, objective=TIME, topology=topology)
    assert texts(made) == ["all_to_all[x: A -> B]", "all_to_all[y: A -> B]"]
    assert made.bytes_received > plan(*exchanged, mesh).bytes_received
    assert not made.optimal
    assert execute(made, mesh) == []

    large = type_of((A, A), (1 << 16, 1 << 14)), type_of((B, B), (1 << 16, 1 << 14))
    made = plan(*large, mesh, objective=TIME, topology=topology)
    assert texts(made) == ["all_to_all[xy: A -> B]"]
    assert made.remark is None


def test_the_fastest_plan_needs_a_topology() -> None:
    kind = TensorType.whole(Shape(DType.BF16, (Dim("A", 4),)))
    with pytest.raises(ValueError, match="topology"):
        plan(kind, kind, XYZ, objective=TIME)
