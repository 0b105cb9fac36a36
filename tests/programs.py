"""Random well-typed programs of the surface language, for properties and for differential tests.

Each draws a mesh of at most eight chips, sizes that every set of its axes divides, weights, state, and one or two
functions of random statements over all operations, some of whose values have a random type demanded of them.
Numbers stay small: an estimate of the magnitude goes along with every value, and what grows large is squashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd, inf, prod
from random import Random

import hypothesis.strategies as st

from shardwright.ir.ops.elementwise_table import ENTRIES, FORMS

MESHES: tuple[tuple[int, ...], ...] = (
    (1,), (2,), (3,), (4,), (1, 2), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (4, 1), (1, 3),
    (2, 2, 2), (2, 1, 2), (1, 2, 4), (3, 1, 2), (1, 1, 1), (2, 2, 1),
)  # fmt: skip

FUNCTIONS = tuple(
    entry.keyword if entry.form in ("", FORMS[entry.keyword][0]) else f"{entry.keyword}[form={entry.form}]"
    for entry in ENTRIES
    if entry.takes == ("float",) and entry.domain == (-inf, inf) and entry.keyword != "exp"
)
"""Those of the table that take every number, and give none much larger."""


@dataclass(frozen=True)
class Tensor:
    """A value: its name, its dimensions with their extents, its number format and about how large its numbers are."""

    name: str
    dims: tuple[tuple[str, int], ...]
    dtype: str = "f32"
    size: float = 2.0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.dims)

    def extent(self, name: str) -> int:
        return dict(self.dims)[name]

    def without(self, *names: str) -> tuple[tuple[str, int], ...]:
        return tuple(dim for dim in self.dims if dim[0] not in names)


def random_program(seed: int, *, cramped: bool = False) -> str:
    """The text of the program with this number; where it is cramped, dimensions have room for some axes only."""
    return _Writer(Random(seed), cramped).program()


def programs() -> st.SearchStrategy[str]:
    """Random programs as hypothesis draws and shrinks them."""
    return st.randoms(use_true_random=False).map(lambda random: _Writer(random).program())


@dataclass
class _Writer:
    random: Random
    cramped: bool = False
    mesh: dict[str, int] = field(default_factory=dict[str, int])
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    lines: list[str] = field(default_factory=list[str])
    values: list[Tensor] = field(default_factory=list[Tensor])
    state: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    count: int = 0
    depth: int = 1
    loops: int = 0

    # ------------------------------------------------------------ the program

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def program(self) -> str:
        """A whole file."""
        random = self.random
        shape = random.choice(MESHES)
        self.mesh = dict(zip("xyz", shape, strict=False))
        n = prod(shape)
        base = n if n > 1 else random.choice((1, 2, 3))

        def room() -> int:
            return prod(size for size in shape if self.chance(0.5)) if self.cramped else base

        length = room()
        declared = {
            "B": room() * random.choice((1, 2)),
            "L": length,
            "E": 2 * room(),
            "F": room() * random.choice((1, 2)),
            "K": room(),
            "G": 2,
            "D": random.choice((2, 4)),
            "T": 2 * length * (room() if self.cramped else 1),
            "V": room() * random.choice((1, 2)),
            "N": random.choice((1, 2, 3)),
            "C": 2,
        }
        self.sizes = {**declared, "H": declared["K"] * 2, "M": declared["L"]}
        dims = " ".join(f"{name}={size}" for name, size in declared.items())
        text = [f"mesh {' '.join(f'{axis}={size}' for axis, size in self.mesh.items())}", f"dim {dims} H=K*G M=L", ""]
        weights = [
            Tensor(name, self.dims(row), dtype, 1.5)
            for name, row, dtype in (
                ("w_in", "EF", "f32"), ("w_out", "FE", "f32"), ("w_q", "EHD", "f32"), ("w_k", "ED", "f32"),
                ("w_o", "HDE", "f32"), ("scale", "E", "f32"), ("table", "VE", "f32"), ("layers_in", "NEF", "f32"),
                ("layers_out", "NFE", "f32"), ("narrow", "EF", "bf16"),
            )
        ]  # fmt: skip
        state = [Tensor("cache", self.dims("BTD")), Tensor("caches", self.dims("NBTD"))]
        functions = ["first", "second"] if self.chance(0.3) else ["first"]
        bodies = [self.func(name, weights, state, short=i > 0 and self.chance(0.7)) for i, name in enumerate(functions)]
        used = "\n".join(bodies)
        for keyword, group in (("weights", weights), ("state", state)):
            kept = [value for value in group if value.name in used]
            if kept:
                text.append(f"{keyword} {{")
                text += [f"  {value.name}: {self.type_of(value, whole='N')}" for value in kept]
                text.append("}\n")
        return "\n".join([*text, used])

    def dims(self, row: Sequence[str]) -> tuple[tuple[str, int], ...]:
        return tuple((name, self.sizes[name]) for name in row)

    def func(self, name: str, weights: list[Tensor], state: list[Tensor], *, short: bool) -> str:
        """One function. A short one has a single token: `func second[L=1]`."""
        before = self.sizes
        self.sizes = {**before, "L": 1, "M": 1} if short else before
        x, ids = Tensor("tokens_in", self.dims("BLE")), Tensor("ids", self.dims("BL"), "int32")
        params = [
            x,
            ids,
            Tensor("pos", (), "int32"),
            *([Tensor("extra", self.dims("BLF"))] if self.chance(0.5) else []),
            *([Tensor("counts", self.dims("B"), "int32")] if self.chance(0.3) else []),
        ]
        self.count, self.loops, self.depth, self.lines = 0, 0, 1, []
        self.values = [
            *(w for w in weights if "N" not in w.names),
            *(v for v in params if v.name not in ("pos", "ids")),
        ]
        self.state = {value.name: value for value in state}
        made_before = len(self.values)
        for _ in range(self.random.randint(2, 9)):
            self.step()
        made = [v for v in self.values[made_before:] if all(size == self.sizes[d] for d, size in v.dims)]
        results = self.random.sample(made, min(len(made), self.random.choice((1, 1, 2)))) or [x]
        heads = ", ".join(f"{v.name}: {self.type_of(v)}" for v in params)
        types = [self.type_of(v) for v in results]
        shown = types[0] if len(types) == 1 else f"({', '.join(types)})"
        self.line(f"return {', '.join(v.name for v in results)}")
        self.sizes = before
        return "\n".join([f"func {name}{'[L=1]' if short else ''}({heads}) -> {shown} {{", *self.lines, "}", ""])

    # ------------------------------------------------------------ types

    def type_of(self, value: Tensor, whole: str = "") -> str:
        """A type for the value with random splits that its extents allow; dimensions in `whole` stay whole."""
        return f"{value.dtype} {self.layout(value, whole)[0]}".rstrip()

    def layout(self, value: Tensor, whole: str = "") -> tuple[str, list[str]]:
        """A row with random splits, and the axes that it leaves free."""
        free = self.random.sample(list(self.mesh), len(self.mesh))
        split: dict[str, str] = {}
        for axis in list(free):
            room = [
                name
                for name, size in value.dims
                if name not in whole
                and self.fits(name, split.get(name, "") + axis, gcd(2, size) if name == "C" else size)
                and (name not in "GDC" or axis == next(iter(self.mesh)))
            ]
            if room and self.chance(0.6):
                name = self.random.choice(room)
                split[name] = split.get(name, "") + axis
                free.remove(axis)
        return "".join(f"{n}_{split[n]}" if n in split else n for n in value.names), free

    def fits(self, name: str, axes: str, extent: int) -> bool:
        """Whether the axes divide the extent, as all axes do those of most dimensions, and one those of G and D."""
        chips = 1
        for axis in axes:
            chips *= self.mesh[axis]
        return extent % chips == 0

    def demand(self, value: Tensor) -> str:
        """What stands between a name and `=`: mostly nothing, else a type, perhaps with holes or a partial sum."""
        if not self.chance(0.35):
            return ""
        if value.dims and self.chance(0.2):
            return f": {value.dtype} {''.join(value.names)}?"
        row, free = self.layout(value)
        if value.dims and self.chance(0.15) and "_" not in row:
            row += "_?"
        elif value.dtype in ("f32", "bf16", "f16") and free and self.chance(0.2):
            row += f"{'' if row else ' '}(partialsum-{self.random.choice(free)})"
        return f": {value.dtype} {row}".rstrip()

    # ------------------------------------------------------------ statements

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def let(self, expression: str, made: Tensor, *, demand: bool = True) -> Tensor:
        """Writes a statement and keeps its value; `made` without a name. Large numbers are squashed."""
        self.count += 1
        name = f"v{self.count}"
        if made.size > 50 and made.dtype == "f32":
            expression, made = f"tanh(({expression}) * {0.02})", replace(made, size=1.0)
        value = replace(made, name=name)
        self.line(f"{name}{self.demand(value) if demand else ''} = {expression}")
        self.values.append(value)
        return value

    def pick(self, dtype: str = "f32", having: Sequence[str] = ()) -> Tensor | None:
        """A value of this format with these dimensions, later ones more often."""
        found = [v for v in self.values if v.dtype == dtype and all(name in v.names for name in having)]
        if not found:
            return None
        return found[-1] if self.chance(0.4) else self.random.choice(found)

    def step(self) -> None:
        """One random statement, or a few that belong together; none where the values at hand do not allow it."""
        choices = [
            self.contract, self.contract, self.contract, self.arithmetic, self.arithmetic, self.function, self.scaled,
            self.guarded, self.reduce, self.norm, self.softmax, self.choose, self.feedforward, self.attention,
            self.cached_attention, self.embed, self.reshape, self.renamed, self.halves, self.single, self.positions,
            self.converted, self.extremes, self.alias, self.arg_extreme, self.greatest, self.drawn,
            self.logic, self.concatenated,
        ]  # fmt: skip
        if self.loops == 0:
            choices += [self.loop, self.loop]
        self.random.choice(choices)()

    def contract(self) -> None:
        a = self.pick()
        if a is None or not a.dims:
            return
        partners = [
            b for b in self.values
            if b.dtype == a.dtype and set(b.names) & set(a.names) and len(set(a.names) | set(b.names)) <= 5
            and all(b.extent(n) == a.extent(n) for n in b.names if n in a.names)
        ]  # fmt: skip
        if not partners:
            return
        b = self.random.choice(partners)
        shared = [name for name in a.names if name in b.names]
        summed = self.random.sample(shared, self.random.randint(1, len(shared)))
        kept = (*a.without(*summed), *(d for d in b.without(*summed) if d[0] not in a.names))
        if len(kept) > 4:
            return
        n = 1.0
        for name in summed:
            n *= a.extent(name)
        self.let(f"{a.name} @[{''.join(summed)}] {b.name}", Tensor("", kept, a.dtype, a.size * b.size * n**0.5))

    def pair(self) -> tuple[Tensor, Tensor] | None:
        """Two values that broadcast, the second with no dimension that the first lacks."""
        a = self.pick()
        if a is None:
            return None
        b = self.random.choice([v for v in self.values if v.dtype == a.dtype and set(v.dims) <= set(a.dims)])
        return a, b

    def arithmetic(self) -> None:
        if (pair := self.pair()) is None:
            return
        a, b = pair
        operator = self.random.choice("+-*+")
        size = a.size * b.size if operator == "*" else a.size + b.size
        self.let(f"{a.name} {operator} {b.name}", replace(a, size=size))

    def function(self) -> None:
        if (a := self.pick()) is not None:
            self.let(f"{self.random.choice(FUNCTIONS)}({a.name})", a)

    def scaled(self) -> None:
        if (a := self.pick()) is None:
            return
        dim = self.random.choice(a.names) if a.dims else "E"
        expression, size = self.random.choice(
            ((f"{a.name} * 0.5", a.size), (f"-{a.name}", a.size), (f"{a.name} / size[{dim}]", a.size),
             (f"1 - {a.name}", a.size + 1), (f"{a.name} + 0", a.size), (f"2 * {a.name} - 0.25", 2 * a.size + 1))
        )  # fmt: skip
        self.let(expression, replace(a, size=size))

    def guarded(self) -> None:
        """Functions that are not defined everywhere, of operands where they are."""
        if (pair := self.pair()) is None:
            return
        a, b = pair
        self.let(
            self.random.choice(
                (f"exp(tanh({a.name}))", f"log(abs({a.name}) + 1)", f"sqrt(abs({a.name}) + 1)",
                 f"rsqrt({a.name} * {a.name} + 1)", f"{a.name} / (abs({b.name}) + 1)")
            ),
            replace(a, size=max(a.size, 3.0)),
        )  # fmt: skip

    def reduce(self) -> None:
        a = self.pick()
        if a is None or not a.dims:
            return
        over = self.random.sample(a.names, self.random.randint(1, min(2, len(a.dims))))
        n = 1.0
        for name in over:
            n *= a.extent(name)
        keyword = self.random.choice(("sum", "max"))
        size = a.size * n**0.5 if keyword == "sum" else 2 * a.size
        self.let(f"{keyword}[{''.join(over)}]({a.name})", Tensor("", a.without(*over), a.dtype, size))

    def norm(self) -> None:
        a = self.pick()
        if a is None or not a.dims:
            return
        dim = self.random.choice(a.names)
        scales = [v for v in self.values if v.dtype == a.dtype and v.dims and set(v.dims) <= set(a.dims)]
        keyword = self.random.choice(("layernorm", "rmsnorm"))
        scale = f", {self.random.choice(scales).name}" if self.chance(0.5) else ""
        self.let(f"{keyword}[{dim}]({a.name}{scale})", replace(a, size=5.0))

    def softmax(self) -> None:
        if (a := self.pick()) is not None and a.dims:
            dims = self.random.sample(a.names, 1 if self.chance(0.8) else min(2, len(a.dims)))
            self.let(f"softmax[{''.join(dims)}]({a.name})", replace(a, size=1.0))

    def choose(self) -> None:
        if (pair := self.pair()) is None:
            return
        a, b = pair
        comparison = self.random.choice(("less", "less_equal", "equal"))
        mask = self.let(f"{comparison}({b.name}, 0.5)", replace(b, dtype="bool"))
        dims = b.dims if len(b.dims) == len(a.dims) else a.dims  # the order of the first that has them all
        other = self.random.choice((b.name, "0", f"-{a.name}", "1.5"))
        self.let(f"where({mask.name}, {a.name}, {other})", replace(a, dims=dims, size=max(a.size, b.size)))

    def logic(self) -> None:
        if (a := self.pick("bool")) is None:
            return
        b = self.random.choice([v for v in self.values if v.dtype == "bool" and set(v.dims) <= set(a.dims)])
        keyword = self.random.choice(("logical_and", "logical_or"))
        m = self.let(f"{keyword}(logical_not({a.name}), {b.name})", a)
        self.let(f"convert[f32]({m.name})", replace(a, dtype="f32", size=1.0))

    def extremes(self) -> None:
        if (pair := self.pair()) is not None:
            a, b = pair
            keyword = self.random.choice(("maximum", "minimum"))
            other = b.name if self.chance(0.7) else "0.5"
            self.let(f"{keyword}({a.name}, {other})", replace(a, size=max(a.size, b.size)))

    def arg_extreme(self) -> None:
        a = self.pick()
        if a is None or not a.dims:
            return
        dim = self.random.choice(a.names)
        self.let(f"argmax[{dim}]({a.name})", Tensor("", a.without(dim), "int32"))
        if self.chance(0.3):
            self.let(f"cumsum[{dim}]({a.name})", replace(a, size=a.size * 8))

    def greatest(self) -> None:
        """The greatest elements, and numbers made of their indices."""
        a = self.pick()
        if a is None or not a.dims or "C" in a.names:
            return
        dim = self.random.choice(a.names)
        k = self.random.randint(1, min(3, a.extent(dim)))
        dims = tuple(("C", k) if d[0] == dim else d for d in a.dims)
        self.count += 2
        values = replace(a, name=f"v{self.count - 1}", dims=dims)
        ids = Tensor(f"v{self.count}", dims, "int32")
        names = f"{values.name}{self.demand(values)}, {ids.name}{self.demand(ids)}"
        self.line(f"{names} = topk[{dim} -> C, k={k}]({a.name})")
        self.values.append(values)
        self.let(f"convert[f32]({ids.name}) * 0.125", Tensor("", dims, "f32", 4.0))

    def drawn(self) -> None:
        """Random numbers of integers at hand, their logarithms, and floats that went through their bits."""
        dim = self.random.choice("BLEV")
        counts = [v for v in self.values if v.dtype == "int32" and dim not in v.names and len(v.dims) < 3]
        if not counts:
            return
        key = self.random.choice(counts)
        made = (*key.dims, *self.dims(dim))
        u = self.let(f"uniform[{dim}]({key.name}, {self.random.choice((key.name, 7))})", Tensor("", made, "f32", 1.0))
        log = self.let(f"log1p({u.name})", u)
        bits = self.let(f"bitcast[uint32]({log.name})", replace(log, dtype="uint32"))
        self.let(f"bitcast[f32]({bits.name})", log)

    def alias(self) -> None:
        if (a := self.pick()) is not None:
            self.let(a.name, a)

    def converted(self) -> None:
        """To a narrower format and back, or an integer to a float."""
        if self.chance(0.3) and (counts := self.pick("int32")) is not None:
            self.let(f"convert[f32]({counts.name}) * 0.125", replace(counts, dtype="f32", size=4.0))
        elif (a := self.pick()) is not None:
            narrow = self.let(f"convert[bf16]({a.name})", replace(a, dtype="bf16"))
            self.let(f"convert[f32]({narrow.name})", replace(narrow, dtype="f32"))

    def feedforward(self) -> None:
        if (x := self.pick(having="E")) is None or x.extent("E") != self.sizes["E"] or "F" in x.names:
            return
        kept = x.without("E")
        h = self.let(f"{x.name} @[E] w_in", Tensor("", (*kept, ("F", self.sizes["F"])), "f32", 3 * x.size))
        wide = "convert[bf16](" if self.chance(0.1) else ""
        if wide:
            low = self.let(f"convert[bf16]({x.name}) @[E] narrow", replace(h, dtype="bf16"))
            h = self.let(f"convert[f32]({low.name}) + {h.name}", replace(h, size=2 * h.size))
        g = self.let(f"gelu({h.name})", h)
        self.let(f"{g.name} @[F] w_out", Tensor("", (*kept, ("E", self.sizes["E"])), "f32", 6 * x.size))

    def queries(self) -> tuple[Tensor, Tensor] | None:
        """Queries BL[H]D and the tokens that they are made from."""
        found = [v for v in self.values if v.dtype == "f32" and set(v.dims) == set(self.dims("BLE"))]
        if not found:
            return None
        x = self.random.choice(found)
        made = Tensor("", (*x.without("E"), *self.dims("HD")), "f32", 4.0)
        q = self.let(f"tanh({x.name} @[E] w_q)", made)
        if self.chance(0.5):
            style = self.random.choice(("neox", "gptj"))
            q = self.let(f"rotary[D, base=100, style={style}]({q.name}, pos)", q)
        return x, q

    def attention(self) -> None:
        """Over the tokens of the call itself, one head of keys for all queries; heads perhaps split in two."""
        if (pair := self.queries()) is None:
            return
        x, q = pair
        if self.chance(0.3):
            q = self.let(f"split[H -> KG]({q.name})", replace(q, dims=(*q.without("H", "D"), *self.dims("KGD"))))
        keys = self.let(f"rename[L -> M]({x.name} @[E] w_k)", Tensor("", (*self.tokens(x), *self.dims("D")), "f32", 5))
        others = tuple(d for d in q.without("D"))
        s = self.let(f"{q.name} @[D] {keys.name}", Tensor("", (*others, *self.dims("M")), "f32", 9))
        causal = self.random.choice(("", ", causal=L"))
        p = self.let(f"softmax[M{causal}]({s.name})", replace(s, size=1.0))
        o = self.let(f"{p.name} @[M] {keys.name}", Tensor("", (*others, *self.dims("D")), "f32", 5))
        self.output(o)

    def tokens(self, x: Tensor) -> tuple[tuple[str, int], ...]:
        return tuple(("M", size) if name == "L" else (name, size) for name, size in x.without("E"))

    def output(self, o: Tensor) -> None:
        """Back from heads to embeddings."""
        if "K" in o.names:
            dims = tuple(("H", self.sizes["H"]) if d[0] == "K" else d for d in o.dims if d[0] != "G")
            o = self.let(f"merge[KG -> H]({o.name})", replace(o, dims=dims))
        y = Tensor("", (*o.without("H", "D"), *self.dims("E")), "f32", 9)
        self.let(f"{o.name} @[HD] w_o", y)

    def cached_attention(self) -> None:
        """New keys are written into the cache, and the queries see all of it that is not later than they are."""
        if (pair := self.queries()) is None:
            return
        x, q = pair
        new = self.let(f"{x.name} @[E] w_k", Tensor("", (*x.without("E"), *self.dims("D")), "f32", 5))
        self.line(f"set cache = update[T](cache, {new.name}, pos)")
        others = q.without("D")
        s = self.let(f"{q.name} @[D] cache", Tensor("", (*others, *self.dims("T")), "f32", 9))
        p = self.let(f"softmax[T, causal=L]({s.name}, pos)", replace(s, size=1.0))
        o = self.let(f"{p.name} @[T] cache", Tensor("", (*others, *self.dims("D")), "f32", 5))
        self.output(o)

    def embed(self) -> None:
        self.let("lookup[V](table, ids)", Tensor("", self.dims("BLE"), "f32", 2))

    def reshape(self) -> None:
        """Heads split in groups and merged again, something done in between."""
        found = [v for v in self.values if v.dtype == "f32" and "H" in v.names and not set("KG") & set(v.names)]
        if not found:
            return
        a = self.random.choice(found)
        at = a.names.index("H")
        dims = (*a.dims[:at], *self.dims("KG"), *a.dims[at + 1 :])
        b = self.let(f"split[H -> KG]({a.name})", replace(a, dims=dims))
        if self.chance(0.6):
            b = self.let(f"{self.random.choice(FUNCTIONS)}({b.name})", b)
        self.let(f"merge[KG -> H]({b.name})", replace(b, dims=a.dims))

    def renamed(self) -> None:
        if (a := self.pick(having="L")) is not None and "M" not in a.names:
            dims = tuple(("M", size) if name == "L" else (name, size) for name, size in a.dims)
            self.let(f"rename[L -> M]({a.name})", replace(a, dims=dims))

    def halves(self) -> None:
        """Two halves of E, something done to one, and one after the other again."""
        a = self.pick(having="E")
        if a is None or a.extent("E") % 2:
            return
        half, whole = a.extent("E") // 2, a.extent("E")
        dims = tuple((n, half) if n == "E" else (n, size) for n, size in a.dims)
        left = self.let(f"take[E 0:{half}]({a.name})", replace(a, dims=dims))
        right = self.let(f"take[E {half}:{whole}]({a.name})", replace(a, dims=dims))
        if self.chance(0.7):
            right = self.let(f"silu({left.name}) * {right.name}", replace(right, size=a.size**2))
        self.let(f"concat[E]({right.name}, {left.name})", replace(a, size=max(left.size, right.size)))

    def concatenated(self) -> None:
        """Of three pieces, blocks of equal digits or not."""
        a = self.pick(having="F")
        if a is None:
            return
        dims = tuple((n, 3 * size) if n == "F" else (n, size) for n, size in a.dims)
        joined = self.let(f"concat[F]({a.name}, {a.name}, {a.name})", replace(a, dims=dims))
        size = a.extent("F")
        self.let(f"take[F {size}:{2 * size}]({joined.name})", a)

    def single(self) -> None:
        if (a := self.pick()) is not None and a.dims:
            dim = self.random.choice(a.names)
            self.let(f"take[{dim}, {self.random.randrange(a.extent(dim))}]({a.name})", replace(a, dims=a.without(dim)))

    def positions(self) -> None:
        """Global indices, and constants."""
        dim = self.random.choice("BLEFT")
        made = self.let(f"iota[{dim}]()", Tensor("", self.dims(dim), "int32"))
        self.let(f"convert[f32]({made.name}) * 0.125", replace(made, dtype="f32", size=4.0))
        self.count += 1
        constant = Tensor(f"v{self.count}", self.dims("BE"))
        self.line(f"{constant.name}: {self.type_of(constant)} = 0.5")
        self.values.append(constant)

    def loop(self) -> None:
        """Layers: a feedforward block with a residual, perhaps an attention over each layer's own cache."""
        found = [v for v in self.values if v.dtype == "f32" and set(v.dims) == set(self.dims("BLE")) and v.size < 20]
        if not found:
            return
        x = self.random.choice(found)
        self.count += 1
        self.loops += 1
        name = f"v{self.count}"
        result, h = replace(x, name=name, size=8.0), replace(x, name=f"h{self.count}", size=8.0)
        index = f"i{self.count}"
        line = f"{name}{self.demand(result)} = loop[N as {index}]({h.name}{self.demand(h)} = {x.name}) {{"
        if "?" in line or "partial" in line:
            line = f"{name} = loop[N as {index}]({h.name} = {x.name}) {{"
        self.line(line)
        outside = list(self.values)
        self.depth += 1
        self.values = [h, *(v for v in outside if self.chance(0.5) and v.size < 20)]
        a = self.let(f"{self.random.choice(('rmsnorm', 'layernorm'))}[E]({h.name})", replace(h, size=4.0))
        made = (*a.without("E"), *self.dims("F"))
        g = self.let(f"gelu({a.name} @[E] layers_in)", Tensor("", made, "f32", 8.0))
        o = self.let(f"{g.name} @[F] layers_out", Tensor("", (*a.without("E"), *self.dims("E")), "f32", 16.0))
        if self.chance(0.4):
            q = self.let(f"{a.name} @[E] w_k", Tensor("", (*a.without("E"), *self.dims("D")), "f32", 8.0))
            self.line(f"set caches = update[T](caches, {q.name}, pos)")
            s = self.let(f"{q.name} @[D] caches", Tensor("", (*a.without("E"), *self.dims("T")), "f32", 9.0))
            p = self.let(f"softmax[T, causal=L]({s.name}, pos)", replace(s, size=1.0))
            c = self.let(f"sum[D]({p.name} @[T] caches)", Tensor("", a.without("E"), "f32", 9.0))
            o = self.let(f"{o.name} * tanh({c.name})", o)
        if self.chance(0.4):
            o = self.let(f"{o.name} + convert[f32]({index}) * 0.25", replace(o, size=o.size + 1))
        for _ in range(self.random.randint(0, 2)):
            self.step()
        self.line(f"next {h.name} + tanh({o.name})")
        self.depth -= 1
        self.line("}")
        self.values = [*outside, result]
