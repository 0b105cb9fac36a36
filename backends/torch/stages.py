"""A function of a program as stages: what comes before its loop over layers, each trip of it, and what comes after.

In a layer's body the attention over a KV cache is found by its pattern and becomes one statement, `Attend`, because the
runtime keeps the cache in pieces that no statement sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.ir import ops
from shardwright.ir.diagnostics import fault
from shardwright.ir.operation import Number
from shardwright.ir.program import Func, Let, Loop, Program, SetState, Statement, Value
from shardwright.ir.types import DType, Shape
from shardwright.ir.walk import names_used


@dataclass(frozen=True)
class Attend:
    """`result = attention of q over the cache (keys, values) and over k_new, v_new`, which come after it.

    `result` has the dimensions of `q`: `batch`, `length`, `heads` of keys and values, groups of queries, and `size`.
    `position` is the state that says how many positions of a row are cached.
    """

    result: Value
    q: str
    k_new: str
    v_new: str
    position: str
    keys: str
    values: str
    scale: float
    window: int
    batch: str
    length: str
    heads: tuple[str, ...]
    size: str


@dataclass(frozen=True)
class Stage:
    """Statements that need their weights at the same time.

    `layer` is the trip of the loop, None outside it. `takes` are the values that come from the stages before, `gives`
    those that later ones need; `weights` are read here.
    """

    index: int
    layer: int | None
    body: tuple[Statement | Attend, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    weights: tuple[str, ...]

    @property
    def own(self) -> frozenset[str]:
        """The names of what is computed here."""
        lets = [s for s in self.body if isinstance(s, Let)]
        return frozenset(value.name for statement in lets for value in statement.results)

    @property
    def attends(self) -> bool:
        return any(isinstance(statement, Attend) for statement in self.body)

    @property
    def name(self) -> str:
        return (
            f"layer {self.layer}" if self.layer is not None else "tables before" if self.index == 0 else "tables after"
        )


@dataclass(frozen=True)
class Staged:
    """A function in stages: all of them, or those of one process of a pipeline (`pipeline.part_of`), which has the
    `first` or the `last` or neither."""

    program: Program
    func: Func
    loop: Loop
    stages: tuple[Stage, ...]
    first: bool = True
    last: bool = True

    @property
    def attention(self) -> Attend | None:
        return next((s for s in self.stages[1].body if isinstance(s, Attend)), None)

    def outputs(self, stage: Stage) -> tuple[str, ...]:
        """What a stage's statements leave: values for later stages and the loop's first ones; the next ones; the
        results of the function."""
        if stage.layer is not None:
            return self.loop.following
        if stage is not self.stages[0]:
            return self.func.returns if self.last else ()
        return (*stage.gives, *(carry.initial for carry in self.loop.carries if self.first))

    def taken(self, stage: Stage) -> list[Value]:
        """The values that a stage takes from those before."""
        lets = [s for s in self.func.body if isinstance(s, Let)]
        values = [*self.func.params, *(value for let in lets for value in let.results)]
        return [value for value in values if value.name in stage.takes]

    def shapes(self, stage: Stage) -> dict[str, Shape]:
        """Of what may be there before the statements of a stage, those of a layer without the loop's dimension."""
        before = [v for s in self.func.body if isinstance(s, Let) for v in s.results]
        values = [*self.program.weights, *self.program.state, *self.func.params, *before, *self.loop.results]
        if stage.layer is not None:
            values += [carry.value for carry in self.loop.carries]
        made = {value.name: value.shape for value in values}
        if stage.layer is not None:
            made = {name: without(shape, self.loop.dim) for name, shape in made.items()}
            if self.loop.index is not None:
                made[self.loop.index] = Shape(DType.INT32, ())
        return {name: made[name] for name in made if name not in stage.own}


def staged(program: Program, func: Func) -> Staged:
    """The stages of a function. Raises where it has not exactly one loop over layers at its top."""
    loops = [(at, s) for at, s in enumerate(func.body) if isinstance(s, Loop)]
    if len(loops) != 1:
        raise fault(
            "no-layers",
            f"{func.name} has {len(loops)} loops, and offloading goes by the trips of one loop over layers",
            func.span,
        )
    at, loop = loops[0]
    before, after = func.body[:at], func.body[at + 1 :]
    body = fused_attention(loop.body, program)
    read = {*names_used(loop.body), *loop.following}
    later = {*names_used(after), *func.returns}
    made = {v.name for s in before for v in s.results} | {p.name for p in func.params}
    gives = tuple(sorted(made & (read | later)))
    weights = [v.name for v in program.weights]
    stages = [Stage(0, None, before, (), gives, _weights(weights, before))]
    n = program.sizes(func)[loop.dim]
    inner = _weights(weights, loop.body)
    stages.extend(Stage(layer + 1, layer, body, gives, (), inner) for layer in range(n))
    stages.append(Stage(n + 1, None, after, gives, func.returns, _weights(weights, after)))
    return Staged(program, func, loop, tuple(stages))


def without(shape: Shape, dim: str) -> Shape:
    """What one trip of a loop over `dim` sees of a value of this shape."""
    return Shape(shape.dtype, tuple(each for each in shape.dims if each.name != dim))


def _weights(names: Sequence[str], body: Sequence[Statement]) -> tuple[str, ...]:
    read = names_used(body)
    return tuple(name for name in names if name in read)


def fused_attention(body: Sequence[Statement], program: Program) -> tuple[Statement | Attend, ...]:
    """The body with the attention over cached state as one statement. Raises where state is used in another way."""
    lets = {v.name: s for s in body if isinstance(s, Let) for v in s.results}
    sets = {s.state: s for s in body if isinstance(s, SetState)}
    states = program.state_names

    def root(name: str) -> str:
        """The value behind fetches, stores and other names for it."""
        while name in lets and isinstance(lets[name].operation, ops.Fetch | ops.Store | ops.Alias):
            name = str(lets[name].operands[0])
        return name

    attend: Attend | None = None
    last: Statement | None = None
    replaced: set[Statement] = set()
    for out in body:
        found = _matched(out, lets, sets, program, root) if isinstance(out, Let) else None
        if found is not None:
            attend, gone = found
            replaced = set(gone)
            last = out
    if attend is None:
        if states & names_used(body) - {n for n in states if not _layered(program, n)}:
            raise _unmatched()
        return tuple(body)
    hidden = {v.name for s in body if s in replaced and isinstance(s, Let) for v in s.results} - {attend.result.name}
    gone = hidden | {attend.keys, attend.values}
    made: list[Statement | Attend] = []
    for statement in body:
        if statement is last:
            made.append(attend)
        elif statement not in replaced and not _moves(statement, gone, root):
            made.append(statement)
    if names_used(s for s in made if not isinstance(s, Attend)) & gone:
        raise _unmatched()
    return tuple(made)


def _moves(statement: Statement, names: set[str], root: Callable[[str], str]) -> bool:
    """Whether it only moves, or names anew, one of these."""
    if not isinstance(statement, Let) or not isinstance(statement.operation, ops.Fetch | ops.Store | ops.Alias):
        return False
    return root(str(statement.operands[0])) in names


def _layered(program: Program, name: str) -> bool:
    return len(program.globals[name].shape.dims) > 1


def _unmatched() -> Exception:
    return fault(
        "unknown-attention",
        "a layer uses its cache in a way that is not the known one: keys and values updated at the position, scores,"
        " a causal softmax, and the product with the values",
    )


def _matched(
    out: Let,
    lets: Mapping[str, Let],
    sets: Mapping[str, SetState],
    program: Program,
    root: Callable[[str], str],
) -> tuple[Attend, list[Statement]] | None:
    """Attention that ends in this statement, with the statements that it takes the place of."""
    states = program.state_names
    if not isinstance(out.operation, ops.Contract) or len(out.operands) != 2:
        return None
    p_name, values = (root(str(o)) for o in out.operands)
    if values not in states:
        p_name, values = values, p_name
    if values not in states or p_name not in lets or values not in sets:
        return None
    gone: list[Statement] = [out]
    p = lets[p_name]
    if isinstance(p.operation, ops.Convert):
        gone.append(p)
        p = lets[root(str(p.operands[0]))]
    if not isinstance(p.operation, ops.Softmax) or p.operation.causal is None or len(p.operands) < 2:
        return None
    gone.append(p)
    position = str(p.operands[1])
    scores = lets[root(str(p.operands[0]))]
    scale = 1.0
    if isinstance(scores.operation, ops.Mul) and any(isinstance(o, Number) for o in scores.operands):
        gone.append(scores)
        number = next(o for o in scores.operands if isinstance(o, Number))
        scale = float(number.value)
        scores = lets[root(str(next(o for o in scores.operands if not isinstance(o, Number))))]
    if not isinstance(scores.operation, ops.Contract):
        return None
    gone.append(scores)
    q, keys = (str(o) for o in scores.operands)
    if root(keys) not in states:
        q, keys = keys, q
    keys = root(keys)
    if keys not in states or keys not in sets or position not in states:
        return None
    new: list[str] = []
    for state in (keys, values):
        update = lets.get(root(sets[state].operand))
        if update is None or not isinstance(update.operation, ops.Update) or root(str(update.operands[0])) != state:
            return None
        if str(update.operands[2]) != position or update.operation.wrap:
            return None
        gone += [sets[state], update]
        new.append(str(update.operands[1]))
    window = int(p.operation.window or 0)
    (batch,) = program.globals[position].shape.names
    (size,) = scores.operation.dims
    layout = program.globals[keys].shape.names
    heads = tuple(name for name in layout[1:] if name not in (batch, p.operation.dims[0], size))
    return Attend(
        out.result, q, new[0], new[1], position, keys, values, scale, window, batch, p.operation.causal, heads, size
    ), gone
