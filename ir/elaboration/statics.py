"""The items between the square brackets of a call, `[T, causal=L]`, read item by item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from shardwright.ir.diagnostics import Note, Span, fault, meant, nearest
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import syntax
from shardwright.ir.types import Axes, DType, Tier, axis_set, is_short_axis

_S = TypeVar("_S", bound=syntax.Static)


class Statics:
    """The statics of one call, taken one by one; whatever is left over in the end is a fault."""

    def __init__(self, call: syntax.CallExpr, mesh: Mesh) -> None:
        self.call = call
        self.keyword = call.name
        self.span = call.span
        self.mesh = mesh
        self.left = list(call.statics)
        self.named: Sequence[str] = ()
        """The optional operands of the operation."""
        self.options: list[str] = []
        """The options that the operation asked for."""
        self.at = call.span
        """The place of the dimensions last read."""

    def wrong(self, message: str, span: Span | None = None, *notes: str | Note) -> Exception:
        return fault("bad-static", f"{self.keyword}: {message}", span or self.span, *notes)

    def _option(self, name: str) -> syntax.OptionStatic | None:
        self.options.append(name)
        for static in self.left:
            if isinstance(static, syntax.OptionStatic) and static.name == name:
                self.left.remove(static)
                return static
        return None

    def number(self, name: str, default: float) -> float:
        """`eps=1e-5`."""
        option = self._option(name)
        if option is None:
            return default
        value = option.value
        sign = 1.0
        if isinstance(value, syntax.NegExpr) and isinstance(value.operand, syntax.NumberExpr):
            sign, value = -1.0, value.operand
        if not isinstance(value, syntax.NumberExpr):
            raise self.wrong(f"{name} is a number", option.span, f"as in {name}={default:g}")
        return sign * float(value.value)

    def whole_number(self, name: str, default: int, least: int = 0, way_out: str | None = None) -> int:
        written = next((s for s in self.left if isinstance(s, syntax.OptionStatic) and s.name == name), None)
        value = self.number(name, default)
        if not least <= value < 10**15 or value != int(value):
            kind = f"a whole number from {least} on" if least else "a whole number"
            at, notes = written.span if written else None, () if way_out is None else (way_out,)
            raise self.wrong(f"{name} is {kind}, not {value:g}", at, *notes)
        return int(value)

    def word(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """`style=neox`."""
        option = self._option(name)
        if option is None:
            return default
        word = option.value.words[0] if isinstance(option.value, syntax.WordStatic) else ""
        if word not in allowed:
            given = f", not {word}" if word else ""
            raise self.wrong(f"{name} is {' or '.join(allowed)}{given}", option.span)
        return word

    def name(self) -> str:
        """The word that stands first, `cumprod`."""
        first = self.left[0] if self.left else None
        if not isinstance(first, syntax.WordStatic) or first.braces or _is_dtype(first):
            raise self.wrong("its first word is a function's name", None, f"as in {self.keyword}[cumprod, BT, f32](x)")
        del self.left[0]
        return first.words[0]

    def text(self, name: str) -> str:
        """`params='...'`, empty where it is not given."""
        option = self._option(name)
        if option is None:
            return ""
        if not isinstance(option.value, syntax.TextStatic):
            raise self.wrong(f"{name} is text between quotes", option.span, f"""as in {name}='{{"axis": 1}}'""")
        return option.value.text

    def flag(self, name: str) -> bool:
        """`lse`, a word that is there or not."""
        word = next((s for s in self.left if isinstance(s, syntax.WordStatic) and s.words == (name,)), None)
        self.options.append(name)
        if word is not None:
            self.left.remove(word)
        return word is not None

    def operands(self, names: Sequence[str]) -> tuple[str, ...]:
        """The optional operands that the call is given, in the order written."""
        self.named = names
        written = [arg.name for arg in self.call.args or () if isinstance(arg, syntax.KeywordExpr)]
        if len(set(written)) != len(written):
            raise fault("wrong-operands", f"{self.keyword} is given an operand twice", self.span, "name each once")
        return tuple(name for name in written if name in names)

    def dim_option(self, name: str) -> str | None:
        """`causal=L`."""
        option = self._option(name)
        if option is None:
            return None
        if isinstance(option.value, syntax.DimsStatic) and len(option.value.dims) == 1:
            return option.value.dims[0].name
        if isinstance(option.value, syntax.WordStatic) and len(option.value.words) == 1:
            return option.value.words[0]
        raise self.wrong(f"{name} is a dimension", option.span)

    def dims_option(self, name: str) -> tuple[str, ...]:
        """`ahead=NM`; empty where it is not given."""
        option = self._option(name)
        if option is None:
            return ()
        value = option.value
        found = _dim_names(value) if isinstance(value, syntax.DimsStatic | syntax.WordStatic) else None
        if not found:
            raise self.wrong(f"{name} names dimensions", option.span)
        if len(set(found)) != len(found):
            raise self.wrong(f"a dimension stands twice in {''.join(found)}", option.span)
        return found

    def blocks(self) -> tuple[str, ...]:
        """The digits of the option `by`, block by block of which something is done; () where it is not given."""
        option = self._option("by")
        if option is None:
            return ()
        if not isinstance(option.value, syntax.WordStatic):
            raise self.wrong("by names mesh axes", option.span)
        return self._axes(option.value)

    def _axes(self, static: syntax.WordStatic) -> tuple[str, ...]:
        """Mesh axes in the order written."""
        words = list(static.words)
        if not static.braces and words[0] not in self.mesh:
            words = _letters(words[0])
        for word in words:
            if word not in self.mesh:
                there = f"the mesh is {self.mesh}" if len(self.mesh) else "add a mesh line"
                way_out = nearest(word, self.mesh.axes) or there
                raise fault("unknown-axis", f"{self.keyword}: the mesh has no axis {word}", static.span, way_out)
        self._check_once(words, static.span)
        return tuple(words)

    def _check_once(self, axes: Sequence[str], span: Span) -> None:
        for axis in axes:
            if axes.count(axis) > 1:
                raise fault("axis-twice", f"{self.keyword} names {axis} twice", span, f"name {axis} once")

    def _every(self, kind: type[_S]) -> list[_S]:
        """All statics of a kind, none of which is left then."""
        taken = [static for static in self.left if isinstance(static, kind)]
        self.left = [static for static in self.left if not isinstance(static, kind)]
        return taken

    def axes(self) -> Axes:
        """`[yz]`."""
        for static in self.left:
            if isinstance(static, syntax.WordStatic):
                self.left.remove(static)
                return axis_set(self._axes(static))
        raise self.wrong("name the mesh axes", None, f"as in {self.keyword}[{''.join(self.mesh.axes[:1]) or 'x'}](...)")

    def arrows_from_axes(self) -> tuple[tuple[Axes, str], ...]:
        """`[x -> F, y -> B]`."""
        made: list[tuple[Axes, str]] = []
        for static in self._every(syntax.ArrowStatic):
            if not isinstance(static.left, syntax.WordStatic):
                raise self.wrong("mesh axes stand before the arrow, a dimension after it", static.span)
            made.append((axis_set(self._axes(static.left)), self._one_dim(static.right)))
        if not made:
            raise self.wrong("say which axes come to split which dimension", None, f"as in {self.keyword}[x -> E](...)")
        self._check_once([axis for axes, _ in made for axis in axes], self.span)
        return tuple(made)

    def transfers(self) -> tuple[tuple[Axes, str, str], ...]:
        """`[x: H -> B, y: B -> H]`."""
        made: list[tuple[Axes, str, str]] = []
        for static in self._every(syntax.MoveStatic):
            source, target = self._one_dim(static.source), self._one_dim(static.target)
            made.append((axis_set(self._axes(static.axes)), source, target))
        if not made:
            raise self.wrong("say which axes move from where to where", None, "as in all_to_all[x: H -> B](...)")
        self._check_once([axis for axes, _, _ in made for axis in axes], self.span)
        return tuple(made)

    def relayouts(self) -> tuple[tuple[str, Axes, Axes], ...]:
        """`[E: y -> x, F: x -> {}]`."""
        made: list[tuple[str, Axes, Axes]] = []
        for static in self._every(syntax.RelayoutStatic):
            sides = [axis_set(self._axes(side)) if side.words else () for side in (static.before, static.after)]
            made.append((self._one_dim(static.dim), sides[0], sides[1]))
        if not made:
            raise self.wrong(
                "say which axes split a dimension before and which after", None, "as in permute[E: y -> x](...)",
                "values match by the names of dimensions, so that no operation reorders these",
            )  # fmt: skip
        for side in (1, 2):
            self._check_once([axis for change in made for axis in change[side]], self.span)
        for dim, before, after in made:
            if set(before) & set(after):
                axis = min(set(before) & set(after))
                raise self.wrong(f"{axis} splits {dim} before and after", None, "leave out the axes that stay")
        names = [dim for dim, _, _ in made]
        if len(set(names)) != len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise self.wrong(f"{name} stands twice", None, f"name {name} once, with all its axes")
        return tuple(made)

    def arrows(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """`[H -> KG]` between dimensions."""
        made: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        for static in self._every(syntax.ArrowStatic):
            left = _dim_names(static.left)
            if left is None:
                raise self.wrong("dimensions stand on both sides of the arrow", static.span)
            made.append((left, tuple(dim.name for dim in static.right.dims)))
        if not made:
            raise self.wrong("say which dimension becomes which", None, f"as in {self.keyword}[L -> T](...)")
        return tuple(made)

    def _one_dim(self, static: syntax.DimsStatic) -> str:
        if len(static.dims) != 1:
            names = "".join(dim.name for dim in static.dims)
            raise self.wrong(f"one dimension stands here, not the {len(static.dims)} of {names}", static.span)
        return static.dims[0].name

    def dims(self, *, least: int = 1) -> tuple[str, ...]:
        """`[T]` or `[BL]`; a lower-case word is a dimension too."""
        for static in self.left:
            names = _dim_names(static)
            if names is not None and not (least == 0 and _is_dtype(static)):
                self.left.remove(static)
                self.at = static.span
                if len(set(names)) != len(names):
                    raise self.wrong(f"a dimension stands twice in {''.join(names)}", static.span)
                return names
        if least:
            raise self.wrong("say over which dimension", None, f"as in {self.keyword}[E](...)")
        return ()

    def dim(self) -> str:
        names = self.dims()
        if len(names) != 1:
            raise self.wrong(f"one dimension stands here, not the {len(names)} of {''.join(names)}", self.at)
        return names[0]

    def dtype(self) -> DType:
        for static in self.left:
            if isinstance(static, syntax.WordStatic) and _is_dtype(static):
                self.left.remove(static)
                return DType(static.words[0])
        raise self.wrong("name a number format", None, f"as in {self.keyword}[bf16](...); one of {', '.join(DType)}")

    def tier(self) -> Tier:
        for static in self.left:
            if isinstance(static, syntax.WordStatic) and static.words[0] in set(Tier):
                self.left.remove(static)
                return Tier(static.words[0])
        at = self.left[0].span if self.left else None
        raise self.wrong(f"name a memory: {', '.join(Tier)}", at, f"as in {self.keyword}[host](...)")

    def finish(self) -> None:
        """Raises where something was written that the operation does not know."""
        if self.left:
            static = self.left[0]
            span = static.span if static.span.line else None
            if isinstance(static, syntax.OptionStatic):
                alike = [name for name in self.options if name[:3] == static.name[:3]]
                near = nearest(static.name, self.options) or (meant(static.name, alike[0]) if alike else None)
                listed = f"its options are {', '.join(self.options)}" if self.options else "it has none"
                raise self.wrong(f"there is no option {static.name}", span, near or listed)
            names = _dim_names(static)
            what = f"`{''.join(names)}`" if names else "this"
            raise self.wrong(f"{what} does not belong between its brackets", span)


def _letters(word: str) -> list[str]:
    """`yz` as `y`, `z`, and `x0y` as `x0`, `y`; the word itself where it is not made so."""
    parts: list[str] = []
    for character in word:
        if character.isdigit() and parts:
            parts[-1] += character
        else:
            parts.append(character)
    return parts if all(is_short_axis(part) for part in parts) else [word]


def _is_dtype(static: syntax.Static) -> bool:
    return isinstance(static, syntax.WordStatic) and static.words[0] in set(DType)


def _dim_names(static: syntax.Static) -> tuple[str, ...] | None:
    if isinstance(static, syntax.DimsStatic):
        return tuple(dim.name for dim in static.dims)
    if isinstance(static, syntax.WordStatic) and not static.braces:
        return static.words
    return None
