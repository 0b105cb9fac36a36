"""Names of dimensions by how values meet: axes that are tied form a class, and a class has one name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import count, pairwise

from shardwright.tracing.graph import Variable

Slot = Hashable
"""An axis of a variable, or a dimension that a translation needs between two statements."""

_LETTERS = "ACDFGHIJKMPQRSTUWXYZBELNOV"


class Dimensions:
    """A union-find over slots. Two axes of one variable never come into one class, nor the dimension of a loop and an
    axis of what is inside the loop: there the tie is left out, and the translation writes a `rename`."""

    def __init__(self) -> None:
        self.parent: dict[Slot, Slot] = {}
        self.size: dict[Slot, int] = {}
        self.owners: dict[Slot, set[Hashable]] = {}
        self.loops: dict[Slot, set[Hashable]] = {}
        self.inside: dict[Slot, set[Hashable]] = {}
        self.hints: list[tuple[int, Slot, str]] = []
        self.names: dict[Slot, str] = {}
        self.orders: dict[str, dict[tuple[str, ...], None]] = {}
        """The axes that types split each class over, by its name, most significant first."""
        self.pieces: list[tuple[Slot, tuple[Slot, ...]]] = []
        self.frozen = False

    def slot(self, key: Slot, size: int, *, owner: Hashable = None, loop: Hashable = None,
             inside: frozenset[Hashable] = frozenset()) -> Slot:  # fmt: skip
        if key not in self.parent:
            self.parent[key] = key
            self.size[key] = size
            self.owners[key] = set() if owner is None else {owner}
            self.loops[key] = set() if loop is None else {loop}
            self.inside[key] = set(inside)
        return key

    def axes(self, variable: Variable, inside: frozenset[Hashable]) -> tuple[Slot | None, ...]:
        """The slots of a variable's axes; an axis of size 1 has none."""
        return tuple(
            None if size == 1 else self.slot((variable.number, axis), size, owner=variable.number, inside=inside)
            for axis, size in enumerate(variable.shape)
        )

    def find(self, slot: Slot) -> Slot:
        root = slot
        while self.parent[root] != root:
            root = self.parent[root]
        while self.parent[slot] != root:
            self.parent[slot], slot = root, self.parent[slot]
        return root

    def tie(self, a: Slot | None, b: Slot | None) -> None:
        """Brings two axes into one class, where no type would have it twice then."""
        if self.frozen or a is None or b is None:
            return
        a, b = self.find(a), self.find(b)
        if a == b or self.size[a] != self.size[b] or not self.owners[a].isdisjoint(self.owners[b]):
            return
        if self.loops[a] & self.inside[b] or self.loops[b] & self.inside[a]:
            return
        if len(self.owners[a]) < len(self.owners[b]):
            a, b = b, a
        self.parent[b] = a
        for sets in (self.owners, self.loops, self.inside):
            sets[a] |= sets.pop(b)

    def cut(self, whole: Slot, parts: Sequence[Slot]) -> None:
        """Notes that a dimension is cut into parts, or put together of them."""
        if not self.frozen:
            self.pieces.append((whole, tuple(parts)))

    def tie_all(self, first: Sequence[Slot | None], second: Sequence[Slot | None]) -> None:
        """Ties the axes of two values, pair by pair."""
        for a, b in zip(first, second, strict=True):
            self.tie(a, b)

    def tie_pieces(self) -> None:
        """Gives what is cut alike the same parts, and makes one of what has the same parts: heads of the queries and
        of the result, of one layer and of the next."""
        before = -1
        while before != (before := sum(slot == root for slot, root in self.parent.items())):
            wholes: dict[Slot, Slot] = {}
            cuts: dict[tuple[Slot, tuple[int, ...]], tuple[Slot, ...]] = {}
            for whole, parts in self.pieces:
                sizes = tuple(self.size[self.find(part)] for part in parts)
                first = cuts.setdefault((self.find(whole), sizes), parts)
                self.tie_all(first, parts)
                self.tie(wholes.setdefault(tuple(map(self.find, parts)), whole), whole)

    def is_of_loop(self, slot: Slot) -> bool:
        """Tells whether a loop goes along the class of the slot."""
        return bool(self.loops[self.find(slot)])

    def hint(self, slot: Slot | None, letter: str, rank: int) -> None:
        """A letter for the class of the slot, where no hint of a lesser rank gives it another."""
        if slot is not None and not self.frozen:
            self.hints.append((rank, slot, letter))

    def hinted(self) -> dict[Slot, str]:
        """The letters of classes by the hints so far."""
        return {self.find(slot): letter for _, slot, letter in sorted(self.hints, key=lambda hint: -hint[0])}

    def freeze(self) -> None:
        """Ends the ties and gives the classes that have hints their names."""
        self.frozen = True
        for _, slot, letter in sorted(self.hints, key=lambda hint: hint[0]):
            root = self.find(slot)
            if root not in self.names:
                self.names[root] = self._free(letter)

    def firm(self) -> set[str]:
        """Names that are known by what indexes them, not by where they stand."""
        return {name for rank, slot, name in self.hints if rank <= 5 and self.names.get(self.find(slot)) == name}

    def call(self, letters: Mapping[str, str]) -> None:
        """Gives classes that have names other letters. Those that are to have one letter become one class, where no
        type would have it twice and they are of one size; a class that has such a letter already gets one that is
        free."""
        roots = {name: root for root, name in self.names.items()}
        moving: dict[str, Slot] = {}
        self.frozen = False
        for name, letter in letters.items():
            first = moving.setdefault(letter, roots[name])
            self.tie(first, roots[name])
        self.tie_pieces()
        self.frozen = True
        named = {self.find(root): letter for letter, root in reversed(moving.items())}
        taken = set(named.values())
        unnamed: list[Slot] = []
        for root, name in self.names.items():
            if self.find(root) not in named and name in taken:
                unnamed.append(root)
            else:
                named.setdefault(self.find(root), name)
        self.names = named
        for root in unnamed:
            self.name(root)

    def name(self, slot: Slot) -> str:
        root = self.find(slot)
        if self.frozen and root not in self.names:
            used = set(self.names.values())
            letter = next((letter for letter in _LETTERS[:-6] if letter not in used), None)
            self.names[root] = letter or self._free(_LETTERS[len(self.names) % 20])
        return self.names.get(root, "A")

    def _free(self, letter: str) -> str:
        used = set(self.names.values())
        return next(name for n in count(1) if (name := letter if n == 1 else f"{letter}{n}") not in used)

    def order(self, slot: Slot, axes: Sequence[str]) -> bool:
        """Declares the axes that split the class of a slot, most significant first; False where they do not go with
        those declared before."""
        lists = self.orders.setdefault(self.name(slot), {})
        lists[tuple(axes)] = None
        return joint_order(lists) is not None

    def declared(self) -> str:
        sizes: dict[str, int] = defaultdict(int)
        for root, name in self.names.items():
            sizes[name] = self.size[root]
        orders = {
            name: f" order {' '.join(joint_order(lists) or ())}"
            for name, lists in self.orders.items()
            if any(len(axes) > 1 for axes in lists)
        }
        return " ".join(f"{name}={size}{orders.get(name, '')}" for name, size in sorted(sizes.items()))


def joint_order(lists: Iterable[Sequence[str]]) -> tuple[str, ...] | None:
    """The axes of all lists, in an order that has those of each in its own; None where there is none."""
    follows = TopologicalSorter[str]()
    for axes in lists:
        for axis in axes:
            follows.add(axis)
        for before, after in pairwise(axes):
            follows.add(after, before)
    try:
        return tuple(follows.static_order())
    except CycleError:
        return None
