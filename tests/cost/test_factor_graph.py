"""The exact minimiser against enumeration, on random graphs of tables and trees."""

from itertools import combinations, product

import numpy as np
import pytest

from shardwright.cost.choosing.factor_graph import FactorGraph, GraphSolution, improved
from shardwright.cost.choosing.factors import FORBIDDEN, TableFactor, TreeFactor, arborescence, subtrees


def random_moves(rng: np.random.Generator, n: int) -> np.ndarray:
    """Costs of moving: no way round is cheaper than the direct one, as with planned movements."""
    moves = rng.integers(0, 20, (n, n)).astype(float)
    np.fill_diagonal(moves, 0.0)
    for k in range(n):
        moves = np.minimum(moves, moves[:, k, None] + moves[None, k, :])
    return moves


def cheapest_tree(moves: np.ndarray, home: int, targets: list[int]) -> float:
    """All ways to give each layout but home a parent, over all subsets of layouts on the way."""
    n = len(moves)
    needed = {t for t in targets if t != home}
    best = float("inf")
    for extra in product((False, True), repeat=n):
        nodes = sorted(needed | {i for i in range(n) if extra[i] and i != home})
        for parents in product([home, *nodes], repeat=len(nodes)):
            parent = dict(zip(nodes, parents, strict=True))
            if all(_reaches(parent, node, home) for node in nodes):
                best = min(best, sum(moves[parent[node], node] for node in nodes))
    return best


def _reaches(parent: dict[int, int], node: int, home: int) -> bool:
    seen = set()
    while node != home:
        if node in seen:
            return False
        seen.add(node)
        node = parent[node]
    return True


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(30))
def test_arborescence_is_the_cheapest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    moves = random_moves(rng, 4)
    targets = [int(t) for t in rng.integers(0, 4, 3)]
    cost, edges = arborescence(moves, 0, targets)
    assert cost == cheapest_tree(moves, 0, targets)
    reached = {0, *(b for _, b in edges)}
    assert set(targets) <= reached
    assert sum(moves[a, b] for a, b in edges) == cost


def test_a_layout_that_two_uses_take_is_paid_once() -> None:
    moves = np.array([[0.0, 5.0], [5.0, 0.0]])
    assert arborescence(moves, 0, [1, 1]) == (5.0, [(0, 1)])


def test_a_gather_goes_on_from_a_smaller_one() -> None:
    """From 0 to 1 costs 3, to 2 costs 7; but from 1 to 2 only 4."""
    moves = np.array([[0.0, 3.0, 7.5], [9.0, 0.0, 4.0], [9.0, 9.0, 0.0]])
    assert arborescence(moves, 0, [1, 2]) == (7.0, [(0, 1), (1, 2)])


def test_subtrees_without_leaves_cost_nothing() -> None:
    served, reached = subtrees(np.zeros((2, 2)), [])
    assert len(served) == len(reached) == 1


def random_graph(seed: int, barred: float = 0.0) -> FactorGraph:
    """A graph of a few variables with up to four choices each. Into so many layouts nothing leads; where that is any,
    costs differ by multiples of 2**-20, as ties do."""
    rng = np.random.default_rng(seed)
    graph = FactorGraph()
    n = int(rng.integers(3, 6))
    layouts = int(rng.integers(2, 5))
    sizes = [int(rng.integers(1, layouts + 1)) for _ in range(n)]
    variables = [graph.variable(size) for size in sizes]
    tie = 2.0**-20 if barred else 1.0
    for _ in range(int(rng.integers(2, 5))):
        chosen = tuple(int(v) for v in rng.choice(variables, size=int(rng.integers(2, min(4, n) + 1)), replace=False))
        if rng.random() < 0.5:
            places = tuple(np.sort(rng.choice(layouts, size=sizes[v], replace=False)) for v in chosen)
            rigid = tuple(bool(rng.random() < 0.2) for _ in chosen[1:])
            moves = random_moves(rng, layouts) * (1.0 + tie if barred else 1.0)
            impossible = np.broadcast_to(rng.random(layouts) < barred, moves.shape) & ~np.eye(layouts, dtype=bool)
            graph.factors.append(TreeFactor(chosen, np.where(impossible, FORBIDDEN, moves), places, rigid))
        else:
            rows = np.array(list(product(*(range(sizes[v]) for v in chosen))))
            rows = rows[rng.random(len(rows)) < 0.7]
            if len(rows):
                graph.factors.append(TableFactor(chosen, rows, tie * rng.integers(0, 30, len(rows)).astype(float)))
    return graph


def with_a_way(seed: int, n: int = 24, layouts: int = 4) -> FactorGraph:
    """A graph in which much cannot be, and one choice can."""
    rng = np.random.default_rng(seed)
    graph = FactorGraph()
    variables = [graph.variable(layouts) for _ in range(n)]
    way = rng.integers(0, layouts, n)
    for _ in range(2 * n):
        chosen = tuple(int(v) for v in rng.choice(variables, size=3, replace=False))
        if rng.random() < 0.5:
            impossible = np.tile(rng.random(layouts) < 0.7, (layouts, 1)) & ~np.eye(layouts, dtype=bool)
            impossible[way[chosen[0]], way[list(chosen)]] = False
            moves = np.where(impossible, FORBIDDEN, random_moves(rng, layouts))
            graph.factors.append(TreeFactor(chosen, moves, (np.arange(layouts),) * 3, (False, False)))
        else:
            rows = np.array(list(product(range(layouts), repeat=3)))
            rows = rows[(rng.random(len(rows)) < 0.5) | (rows == way[list(chosen)]).all(1)]
            graph.factors.append(TableFactor(chosen, rows, rng.integers(0, 30, len(rows)).astype(float)))
    return graph


def test_a_first_choice_is_found_where_little_goes_together() -> None:
    """Before anything is branched on: in 5 of 60 such graphs where what trees bar was not ruled out on the way, in 47
    where a decision could not be taken back."""
    found = [seed for seed in range(24) if with_a_way(seed).minimize(0.25, 1).cost < FORBIDDEN / 2]
    assert len(found) > 20


def test_a_needed_choice_ends_the_search_once_time_is_over() -> None:
    """Where time is over from the start: without it there is none, and with it the first that messages decode to."""
    for seed in range(8):
        graph = with_a_way(seed)
        least = graph.minimize(0.25)
        assert graph.minimize(0.25, 30, lambda: True).nodes <= 1
        found = graph.minimize(0.25, 30, lambda: True, needed=True)
        assert found.nodes <= least.nodes
        assert found.bound <= least.cost <= found.cost
        assert found.cost < FORBIDDEN / 2 or least.cost >= FORBIDDEN / 2


@pytest.mark.parametrize("seed", range(150))
def test_what_cannot_be_takes_nothing_from_the_bound(seed: int) -> None:
    """Costs that differ by a millionth of a byte are told apart beside moves that are forbidden."""
    graph = random_graph(seed, barred=0.4)
    best = min(
        sum(factor.evaluate([choice[v] for v in factor.variables]) for factor in graph.factors)
        for choice in product(*(range(size) for size in graph.sizes))
    )
    solution = graph.minimize(2.0**-22)
    assert solution.cost == best or min(solution.cost, best) >= FORBIDDEN / 2
    assert solution.bound <= solution.cost
    assert solution.bound >= min(best, FORBIDDEN / 2) - 2.0**-22


@pytest.mark.parametrize("seed", range(150))
def test_minimum_equals_enumeration(seed: int) -> None:
    graph = random_graph(seed)
    best = min(
        sum(factor.evaluate([choice[v] for v in factor.variables]) for factor in graph.factors)
        for choice in product(*(range(size) for size in graph.sizes))
    )
    solution = graph.minimize(1e-6)
    if best >= FORBIDDEN / 2:
        assert solution.cost >= FORBIDDEN / 2
    else:
        assert solution.cost == pytest.approx(best, abs=1e-6)
        assert solution.bound == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("seed", range(40))
def test_a_cutoff_ends_what_cannot_matter(seed: int) -> None:
    """Below it the minimum is found as without one; else a choice with a bound that tells so."""
    graph = random_graph(seed)
    least = graph.minimize(0.25)
    if least.cost >= FORBIDDEN / 2:
        return
    for cutoff in (0.5 * least.cost, least.cost, least.cost + 1):
        found = graph.minimize(0.25, cutoff=cutoff)
        assert found.bound <= least.cost <= found.cost < FORBIDDEN / 2
        assert found.bound >= min(cutoff, least.bound) - 1e-9
        assert found.nodes <= least.nodes
        if cutoff > least.cost:
            assert found.cost == least.cost


@pytest.mark.parametrize("seed", range(20))
def test_what_choices_cost_beside_fixed_ones_equals_enumeration(seed: int) -> None:
    graph = random_graph(seed)
    best = graph.minimize(1e-6)
    joined = {v for factor in graph.factors for v in factor.variables}
    variable = max(joined, key=lambda v: graph.sizes[v])
    free = graph.near(variable, 1)
    assert free == {v for f in graph.factors if variable in f.variables for v in f.variables}
    fixed = {v: chosen for v, chosen in enumerate(best.choice) if v not in free}
    costs = graph.fixed(fixed).min_marginals(1 << 20)
    if costs is None:
        assert best.cost >= FORBIDDEN / 2
        return
    assert (variable in costs) is (graph.sizes[variable] > 1)
    for at in range(graph.sizes[variable]) if variable in costs else ():
        domains = ([fixed[v]] if v in fixed else [at] if v == variable else range(n) for v, n in enumerate(graph.sizes))
        least = min(sum(f.evaluate([c[v] for v in f.variables]) for f in graph.factors) for c in product(*domains))
        assert min(costs[variable][at], FORBIDDEN / 2) == pytest.approx(min(least, FORBIDDEN / 2))


def test_what_has_no_choice_is_one_part_of_what_is_left() -> None:
    """Each part has room for all variables, so that many parts would take the square of that."""
    graph = FactorGraph()
    for number in range(20):
        size = 2 if number == 0 else 1
        rows = np.arange(size)[:, None]
        graph.factors.append(TableFactor((graph.variable(size),), rows, np.full(size, 3.0) + rows[:, 0]))
    keep = [np.ones(size, np.bool_) for size in graph.sizes]
    left = graph.remainders(60.5, keep)
    assert left is not None
    assert [part.bound() for part in left] == [57.0, 3.0]


def test_the_same_graph_gives_the_same_choice() -> None:
    assert random_graph(7).minimize(1e-6).choice == random_graph(7).minimize(1e-6).choice


# ---------------------------------------------------------------- last moves of their own, and parting


def parted_tree(seed: int) -> TreeFactor:
    """A home and one to three uses, some of which are reached from some layouts for nothing."""
    rng = np.random.default_rng(seed)
    n, uses = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    moves = random_moves(rng, n)
    sliced = np.where(rng.random((n, n)) < 0.3, 0.0, moves)
    last = tuple(sliced if rng.random() < 0.6 else moves for _ in range(uses))
    sizes = [int(rng.integers(1, n + 1)) for _ in range(uses + 1)]
    places = tuple(np.sort(rng.choice(n, size=size, replace=False)) for size in sizes)
    rigid = tuple(bool(rng.random() < 0.15) for _ in range(uses))
    parting = rng.integers(1, 20, n).astype(float) if rng.random() < 0.7 else None
    return TreeFactor.of(tuple(range(uses + 1)), moves, places, rigid, last, parting)


def by_hand(tree: TreeFactor, choice: tuple[int, ...]) -> float:
    """Copies are made for layouts on the way of two uses or more, and each use takes one of them, or the value at home,
    by its last move; without parting where all take it at home for nothing."""
    home, *at = (int(place[c]) for place, c in zip(tree.places, choice, strict=True))
    if any(stays and target != home for target, stays in zip(at, tree.rigid, strict=True)):
        return FORBIDDEN
    moving = [(tree.into(slot), at[slot - 1]) for slot, stays in enumerate(tree.rigid, 1) if not stays]
    best = np.inf
    for chosen in product((False, True), repeat=len(tree.moves)):
        copies = [i for i, there in enumerate(chosen) if there and i != home]
        for parents in product([home, *copies], repeat=len(copies)):
            parent = dict(zip(copies, parents, strict=True))
            if not all(_reaches(parent, node, home) for node in copies):
                continue
            made = sum(tree.moves[parent[node], node] for node in copies)
            for taken in product([home, *copies], repeat=len(moving)):
                if all(sum(_above(parent, node, use) for use in taken) > 1 for node in copies):
                    last = sum(into[use, t] for use, (into, t) in zip(taken, moving, strict=True))
                    best = min(best, made + last)
    if tree.parting is None:
        return float(best)
    stays_home = all(into[home, t] == 0.0 for into, t in moving)
    return 0.0 if stays_home else float(best + tree.parting[home])


def _above(parent: dict[int, int], node: int, below: int) -> bool:
    """Whether a copy is that one, or on the way to it."""
    while below != node and below in parent:
        below = parent[below]
    return below == node


@pytest.mark.parametrize("seed", range(120))
def test_last_moves_and_parting_by_hand(seed: int) -> None:
    """Each choice, the least of all, and for each choice of a variable the least with it."""
    tree, rng = parted_tree(seed), np.random.default_rng(seed)
    sizes = [len(place) for place in tree.places]
    theta = [rng.integers(0, 15, size).astype(float) for size in sizes]
    costs = {choice: by_hand(tree, choice) for choice in product(*map(range, sizes))}
    for choice, cost in costs.items():
        assert tree.evaluate(choice) == pytest.approx(cost)
    dense = tree.dense(sizes)
    totals = {c: cost + sum(t[i] for t, i in zip(theta, c, strict=True)) for c, cost in costs.items()}
    least = min(totals.values())
    possible = [c for c, cost in costs.items() if cost < FORBIDDEN / 2]
    assert all(dense[c] == pytest.approx(costs[c]) for c in possible)
    if not possible:
        return
    assert tree.least(theta) == pytest.approx(least)
    assert totals[tuple(tree.best(theta))] == pytest.approx(least)
    for slot, marginal in enumerate(tree.min_marginals(theta)):
        for value in range(sizes[slot]):
            wanted = min((totals[c] for c in possible if c[slot] == value), default=FORBIDDEN)
            assert marginal[value] == pytest.approx(wanted) or min(marginal[value], wanted) >= FORBIDDEN / 2


@pytest.mark.parametrize("seed", range(60))
def test_graphs_with_last_moves_and_parting_equal_enumeration(seed: int) -> None:
    graph, rng = FactorGraph(), np.random.default_rng(1000 + seed)
    trees = [parted_tree(seed), parted_tree(seed + 500)]
    variables: list[list[int]] = []
    for tree in trees:
        variables.append([graph.variable(len(place)) for place in tree.places])
        graph.factors.append(tree.over(variables[-1]))
    ends = (variables[0][-1], variables[1][0])
    rows = np.array(list(product(*(range(graph.sizes[v]) for v in ends))))
    graph.factors.append(TableFactor(ends, rows, rng.integers(0, 30, len(rows)).astype(float)))
    best = min(
        sum(factor.evaluate([choice[v] for v in factor.variables]) for factor in graph.factors)
        for choice in product(*map(range, graph.sizes))
    )
    found = graph.minimize(1e-6)
    assert found.cost == pytest.approx(best) or min(found.cost, best) >= FORBIDDEN / 2
    assert found.bound <= found.cost


def test_blocks_of_variables_take_what_is_best_beside_the_others() -> None:
    """A tolerance leaves the first two variables at what costs a little more; both have to change together."""
    graph = FactorGraph()
    a, b, c = (graph.variable(2) for _ in range(3))
    same = np.array([[0, 0], [1, 1]])
    graph.factors += [
        TableFactor((a, b), same, np.array([1.0, 0.5])),
        TableFactor((c,), np.array([[0], [1]]), np.array([3.0, 9.0])),
    ]
    before = GraphSolution((0, 0, 0), 4.0, 3.0, 0)
    assert improved(graph, before, [([a, b], [[0, 0], [1, 1]])]) == GraphSolution((1, 1, 0), 3.5, 3.0, 0)
    assert improved(graph, before, [([a], [[0], [1]])]) == before


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("count", "colours"), [(4, 4), (5, 5), (6, 4)])
def test_a_choice_is_found_where_messages_decode_to_none(count: int, colours: int, seed: int) -> None:
    """Neighbours of different colours, as many as there must be: without branches one is found after the other."""
    rng = np.random.default_rng(seed)
    graph = FactorGraph()
    places = [graph.variable(colours) for _ in range(count)]
    pairs = [(a, b) for a, b in combinations(places, 2) if count < 6 or b - a != 3]
    rows = np.array([pair for pair in product(range(colours), repeat=2) if pair[0] != pair[1]])
    for ends in pairs:
        graph.factors.append(TableFactor(ends, rows, rng.integers(1, 9, len(rows)).astype(float)))
    found = graph.minimize(0.0, max_nodes=1)
    assert all(found.choice[a] != found.choice[b] for a, b in pairs)
    assert found.bound <= found.cost < FORBIDDEN / 2
