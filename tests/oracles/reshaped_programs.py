"""Random programs that split, merge and rename the dimensions of a few values again and again, so that digits conflict.

Three dimensions have one size, which is the product of two pairs of others; layouts are demanded here and there.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

RESHAPES = (
    ("split", "A", "HD"), ("split", "A", "RS"), ("split", "F", "HD"),
    ("merge", "HD", "A"), ("merge", "HD", "F"), ("merge", "RS", "A"),
    ("rename", "A", "F"), ("rename", "A", "G"), ("rename", "F", "A"), ("rename", "G", "A"),
)  # fmt: skip


@dataclass
class Reshaping:
    """A program as it grows: the dimensions of its values by their names."""

    random: random.Random
    mesh: Mapping[str, int] = field(init=False)
    sizes: dict[str, int] = field(init=False)
    values: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        choose = self.random.choice
        axes = choose(("xy", "xy", "xyz"))
        self.mesh = {axis: choose((2, 2, 3)) if len(axes) == 2 else 2 for axis in axes}
        heads, width, rows = choose((4, 6, 8, 12)), choose((2, 4, 6)), choose((4, 6, 12))
        whole = heads * width
        part = choose([size for size in range(2, whole) if whole % size == 0])
        self.sizes = {"H": heads, "D": width, "R": part, "S": whole // part, "B": rows}
        self.sizes.update(dict.fromkeys("AFG", whole))

    def layout(self, dims: str) -> str:
        """The dimensions, each axis of the mesh on one of them or on none."""
        axes: dict[str, str] = dict.fromkeys(dims, "")
        for axis in self.mesh:
            dim = self.random.choice(dims)
            together = prod(self.mesh[other] for other in axes[dim] + axis)
            if self.random.random() < 0.5 and self.sizes[dim] % together == 0:
                axes[dim] += axis
        return "".join(f"{dim}_{split}" if split else dim for dim, split in axes.items())

    def edge(self, dims: str) -> str:
        return f"f32 {self.layout(dims)}" if self.random.random() < 0.55 else f"f32 {dims}?"

    def ways(self, name: str) -> list[tuple[str, str]]:
        """The expressions that take a value, each with the dimensions of its result."""
        dims = self.values[name]
        made = [(f"tanh({name})", dims)]
        made += [(f"{name} + {other}", dims) for other, same in self.values.items() if same == dims and other != name]
        for word, before, after in RESHAPES:
            if before in dims and not set(after) & set(dims.replace(before, "")):
                made.append((f"{word}[{before} -> {after}]({name})", dims.replace(before, after)))
        return made

    def text(self) -> str:
        choose = self.random.choice
        params = {f"p{i}": choose(("BA", "A", "BHD", "BF", "RS", "BRS")) for i in range(self.random.randint(1, 3))}
        self.values.update(params)
        body: list[str] = []
        for number in range(self.random.randint(4, 9)):
            expression, dims = choose(self.ways(choose(list(self.values)[-4:])))
            kind = f": f32 {self.layout(dims)}" if self.random.random() < 0.55 else ""
            body.append(f"  v{number}{kind} = {expression}")
            self.values[f"v{number}"] = dims
        results = list(self.values)[-2:]
        kinds = [self.edge(self.values[name]) for name in results]
        lines = [
            f"mesh {' '.join(f'{axis}={size}' for axis, size in self.mesh.items())}",
            f"dim {' '.join(f'{dim}={size}' for dim, size in self.sizes.items())}",
            f"func f({', '.join(f'{p}: {self.edge(dims)}' for p, dims in params.items())}) -> ({', '.join(kinds)}) {{",
            *body,
            f"  return {', '.join(results)}",
            "}",
        ]
        return "\n".join(lines) + "\n"


def reshaped_program(seed: int) -> str:
    """The program of a seed."""
    return Reshaping(random.Random(seed)).text()
