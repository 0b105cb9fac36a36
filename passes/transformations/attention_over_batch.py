"""`attention-over-batch`: attention and its KV cache split over the batch, over heads, or over some of both."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from shardwright.ir.ops import Alias
from shardwright.ir.program import Func, Let, Marking, Program, Statement, Value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import Axes, State, TensorType, ValueType, is_split
from shardwright.ir.walk import map_bodies, with_values
from shardwright.passes.base import Pass
from shardwright.passes.transformations.projections import (
    AttentionStatement,
    Dataflow,
    axes_named,
    is_demanded_alias,
    require_divisible,
    require_surface,
    with_room,
)


@dataclass(frozen=True)
class AttentionOverBatch(Pass):
    """Attention takes its query, keys, values and KV cache split over the batch (Pope et al., 3.3, figure 5b).

        state { k: BTD v: BTD }
          q: BLH_xyzD = x @[E] wq
          set k = update[T](k, x @[E] wk, pos)
          o: BLH_xyzD = attend[T, D](q, k, v)
          y: BLE_xyz = o @[HD] wo

    becomes, with `axes=xyz`,

        state { k: B_xyzTD v: B_xyzTD }
          q: BLH_xyzD = x @[E] wq
          set k = update[T](k, x @[E] wk, pos)
          q_batch: B_xyzLHD = q
          o_batch: B_xyzLHD = attend[T, D](q_batch, k, v)
          o: BLH_xyzD = o_batch
          y: BLE_xyz = o @[HD] wo

    where placement puts an all-to-all for each of the two changes of layout. Axes that are not named stay with the
    heads that the query's projection splits over them: with several heads of keys and values, `axes=yz` leaves x
    to those, `q_batch: B_yzLK_xGD` beside `k: B_yzTK_xD`. Keys and values lie on an axis that splits the heads of
    queries alone whole. With `axes=none` attention is over heads again; where there are more chips than heads, over
    the axes that divide these, and the rest hold copies: "the attention heads are partially replicated". All
    functions are rewritten, since they share the cache.
    """

    name: ClassVar[str] = "attention-over-batch"
    axes: str = "all"

    def run(self, program: Program) -> Program:
        axes = axes_named("attention-over-batch: axes", self.axes, program.mesh)
        states: dict[str, ValueType] = {}
        funcs: list[Func] = []
        for func in program.funcs:
            flow = Dataflow(program, func)
            if flow.attentions:
                require_surface("attention-over-batch", func)
                rewriter = _Rewriter(flow, axes)
                for attention in flow.attentions:
                    rewriter.attend(attention, states)
                func = rewriter.rewritten()  # noqa: PLW2901
            funcs.append(func)
        state = tuple(replace(value, type=states.get(value.name, value.type)) for value in program.state)
        return with_room(replace(program, state=state, funcs=tuple(funcs)))


@dataclass
class _Rewriter:
    """Rewrites one function; `attend` decides on the layouts around one attention.

    Statements that are equal, in two loops, are rewritten alike.
    """

    flow: Dataflow
    axes: Axes
    types: dict[str, ValueType] = field(default_factory=dict[str, ValueType])
    queries: dict[Let, tuple[str, TensorType | None]] = field(default_factory=dict[Let, tuple[str, TensorType | None]])
    """For an attention, its query by name, and the type that this takes there."""
    outputs: dict[Let, TensorType] = field(default_factory=dict[Let, TensorType])
    """For an attention whose result's demanded type stays: the type in which it leaves the result."""
    renamed: dict[Let, Value] = field(default_factory=dict[Let, Value])
    """For an attention, the value that a demand after it, now met, made of its result."""
    dropped: set[Let] = field(default_factory=set[Let])
    """Statements that demand what is so anyway."""

    def attend(self, attention: AttentionStatement, states: dict[str, ValueType]) -> None:
        flow = self.flow
        assert flow.batch is not None
        homes = _Homes(flow, attention, self.axes).found
        query, *entering = attention.operands
        own = {name for value in attention.operands for name in flow.values[value].type.names}

        def target(kind: ValueType) -> TensorType:
            """The layout over batch and heads. Axes on a dimension that attention does not know stay, as on layers."""
            placed: dict[str, State] = {axis: home if home in kind.names else None for axis, home in homes.items()}
            for dim, axes in zip(kind.dims, kind.splits, strict=True):
                if dim.name not in own:
                    placed.update(dict.fromkeys(axes or (), dim.name))
            return TensorType.of_states(kind.shape, placed)

        on_batch = tuple(axis for axis in flow.program.mesh if homes[axis] == flow.batch)
        require_divisible("attention-over-batch", flow.program, flow.func, flow.batch, on_batch)
        for name in attention.cached:
            kind = flow.values[name].type
            if name in flow.program.state_names:
                states.setdefault(name, target(kind))
            elif flow.batch in kind.names and (isinstance(kind, TensorType) or name in entering):
                self.types[name] = target(kind)
        for value in attention.let.results[1:]:  # the logarithms of sums
            if isinstance(value.type, TensorType):
                self.types[value.name] = target(value.type)
        self.enter(attention.let, query, target(flow.values[query].type))
        self.leave(attention.let, query, target(attention.let.result.type))

    def enter(self, attention: Let, name: str, wanted: TensorType) -> None:
        """The query takes its layout: in the statement that demands one of it already, or in a new one."""
        flow = self.flow
        own = flow.lets.get(name, ())
        if len(own) == 1 and is_demanded_alias(own[0]) and len(flow.users[name]) == 1:
            source = str(own[0].operands[0])
            if flow.values[source].type == wanted:
                self.dropped.add(own[0])
                self.queries[attention] = source, None
            else:
                self.types[name] = wanted
        elif flow.values[name].type != wanted:
            self.queries[attention] = name, wanted

    def leave(self, attention: Let, query: str, wanted: TensorType) -> None:
        """The output keeps the type that is demanded of it, in a statement of its own where attention has another."""
        flow, out = self.flow, attention.result
        users = flow.users.get(out.name, [])
        after = users[0] if len(users) == 1 and isinstance(users[0], Let) else None
        if after is not None and is_demanded_alias(after):
            if after.result.type == wanted:
                self.dropped.add(after)
                self.renamed[attention] = after.result
            else:
                self.types[out.name] = wanted
        elif isinstance(out.type, TensorType) and out.type != wanted and not flow.is_demanded(query):
            self.outputs[attention] = wanted
        else:
            self.types[out.name] = wanted

    def value(self, value: Value) -> Value:
        kind = self.types.get(value.name)
        if kind is None:
            return value
        marking = value.marking if isinstance(value.type, TensorType) else Marking.DEMANDED
        return replace(value, type=kind, marking=marking)

    def rewritten(self) -> Func:
        func = self.flow.func
        self.writer = Rewriter.of(self.flow.program, func)
        results = tuple(self.types.get(n, kind) for n, kind in zip(func.returns, func.results, strict=True))
        made = replace(func, params=tuple(map(self.value, func.params)), results=results)
        return map_bodies(made, self.block)

    def block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        for statement in body:
            if isinstance(statement, Let):
                self.let(statement)
            else:
                self.writer.put(with_values(statement, self.value))
        return self.writer.written()

    def let(self, statement: Let) -> None:
        if statement in self.dropped:
            return
        writer = self.writer
        writer.at(statement)
        operands = list(statement.operands)
        if statement in self.queries:
            name, wanted = self.queries[statement]
            demanded = Marking.DEMANDED
            operands[0] = name if wanted is None else writer.let(Alias(), (name,), f"{name}_batch", wanted, demanded)
        result, *more = map(self.value, statement.results)
        result = self.renamed.get(statement, result)
        if statement in self.outputs:
            raw = writer.like(result, f"{result.name}_batch", self.outputs[statement], Marking.DEMANDED)
            writer.put(replace(statement, results=(raw, *more), operands=tuple(operands)))
            writer.define(result, Alias(), (raw.name,))
        else:
            writer.put(replace(statement, results=(result, *more), operands=tuple(operands)))


@dataclass
class _Homes:
    """For each mesh axis the dimension that it splits inside attention, None where it splits none."""

    flow: Dataflow
    attention: AttentionStatement
    axes: Axes
    found: dict[str, str | None] = field(init=False)

    def __post_init__(self) -> None:
        batch = self.flow.batch
        around = self.demanded_of_query()
        if around is None:
            states = self.by_the_weight()
        else:
            states = {axis: _split(around.state(axis)) for axis in self.flow.program.mesh}
        self.found = {axis: batch if axis in self.axes else home for axis, home in states.items()}

    def query_path(self) -> list[str]:
        """The query back to its projection, its own demands for attention left out."""
        flow, path, name = self.flow, list[str](), self.attention.operands[0]
        while True:
            lets = flow.lets.get(name, ())
            if not flow.is_demanded(name) or path:
                path.append(name)
            before = [s for s in flow.sources.get(name, ()) if flow.is_activation(s) and len(lets) == 1]
            projected = any(p.let.result.name == name for p in flow.projections)
            kinds = flow.values[name].type.names
            before = [s for s in before if set(kinds) == set(flow.values[s].type.names)]
            if projected or len(before) != 1 or before[0] in path:
                return path
            name = before[0]

    def demanded_of_query(self) -> TensorType | None:
        for name in self.query_path():
            kind = self.flow.values[name].type
            if isinstance(kind, TensorType):
                return kind
        return None

    def by_the_weight(self) -> dict[str, str | None]:
        """As the query's weight splits the heads; axes on none of them go to the first head dimension they divide.

        Axes over which the weight is gathered split the batch.
        """
        flow, mesh = self.flow, self.flow.program.mesh
        sizes = {dim.name: dim.size for dim in flow.values[self.attention.operands[0]].type.dims}
        homes: dict[str, str | None] = dict.fromkeys(mesh, None)
        path = self.query_path()
        for projection in flow.projections:
            if path and projection.let.result.name == path[-1]:
                used = flow.values[projection.weight_name].type
                for value in flow.stored(projection.weight_name):
                    for dim, axes in zip(value.type.dims, value.type.splits, strict=True):
                        for axis in axes or ():
                            gathered = isinstance(used, TensorType) and used.state(axis) is None
                            if gathered:
                                homes[axis] = flow.batch
                            elif dim.name in self.attention.heads:
                                homes[axis] = dim.name
        stored: dict[str, set[str]] = {}  # digits of a dimension's index, with which all others must fit
        for value in flow.weights.values():
            for dim, axes in zip(value.type.dims, value.type.splits, strict=True):
                stored.setdefault(dim.name, set()).update(axes or ())
        rest = [axis for axis in mesh if homes[axis] is None and axis not in self.axes]
        for axis in rest:
            for dim in self.attention.heads:
                digits = {a for a in mesh if homes[a] == dim} | stored.get(dim, set())
                if sizes[dim] % mesh.product(digits | {axis}) == 0:
                    homes[axis] = dim
                    break
        return homes


def _split(state: State) -> str | None:
    return state if isinstance(state, str) and is_split(state) else None
