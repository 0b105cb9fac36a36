"""`recognize`: what is written out, element by element, becomes the operation that it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir import ops
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.operation import Context, Number, Operand, Operation
from shardwright.ir.program import Func, Let, Marking, Program, Statement, Value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import AnyPartial, OpenType
from shardwright.ir.walk import Site, lets, map_sites, operand_names, states_set, use_counts
from shardwright.passes.base import Pass
from shardwright.passes.compiling.cleanup import without_dead_code
from shardwright.passes.compiling.recognized import attention, functions, rotary
from shardwright.passes.compiling.recognized.reader import Reader, RecognizedOperation

Rule = Callable[[Reader, Let], RecognizedOperation | None]


@dataclass(frozen=True)
class Recognize(Pass):
    """Softmax, norms, activations and attention, where they are written out, become one operation each.

        top = max[T](s)
        weights = exp(s - top)
        p = weights / sum[T](weights)

    becomes

        p = softmax[T](s)

    So do SwiGLU's `g * sigmoid(g)`, GELU, `rmsnorm` and `layernorm` with their gains and offsets, rotary embeddings of
    two halves or of pairs, and attention with no mask, a causal one, a window, or a number of valid positions. Keys and
    values that are repeated for the queries of a group are read as they are. What 16-bit numbers go through in f32 is
    recognized too; what was rounded between may keep its digits. Only where nothing else reads what lies between, and
    no layout of it is demanded.
    """

    name: ClassVar[str] = "recognize"

    def run(self, program: Program) -> Program:
        for rules in (_RULES, (*_RULES, *attention.WITHOUT_ATTEND)):
            while True:
                before = program
                program = replace(program, funcs=tuple(_rewritten(program, func, rules) for func in program.funcs))
                if program == before:
                    break
                program = replace(program, funcs=tuple(map(swept, program.funcs)))
        return program


def swept(func: Func) -> Func:
    """The function without what lay between, of which nobody reads the last any more."""
    while (cleaned := without_dead_code(func)) != func:
        func = cleaned
    return func


def _rewritten(program: Program, func: Func, rules: Sequence[Rule]) -> Func:
    made = {value.name: let for let, _ in lets(program, func) for value in let.results}
    rewriter = Rewriter.of(program, func)
    uses = use_counts(func)
    gone: set[str] = set()
    changing = set(states_set(func.body))  # what is read of them later may be another version

    def rewrite(site: Site) -> Sequence[Statement]:
        statement = site.statement
        if not isinstance(statement, Let) or len(statement.results) > 1 or statement.result.name in gone:
            return (statement,)
        reader = Reader(made, site.scope, program.sizes(func), changing)
        for rule in rules:
            found = rule(reader, statement)
            if found is None or not (gone | changing).isdisjoint({*found.between, *operand_names(found.operands)}):
                continue
            if _stays_inside(found, statement, made, uses) and (lines := _put(found, statement, reader, rewriter)):
                gone.update(found.between)
                return lines
        return (statement,)

    return map_sites(program, func, rewrite)


def _stays_inside(found: RecognizedOperation, root: Let, made: Mapping[str, Let], uses: Mapping[str, int]) -> bool:
    """Tells whether nothing else reads what lies between, and nothing is demanded of it."""
    within = [root, *(made[name] for name in dict.fromkeys(found.between))]
    read = Counter(name for statement in within for name in operand_names(statement.operands))
    return all(
        uses[value.name] == read[value.name] and asks_nothing(value)
        for statement in within[1:]
        for value in statement.results
    )


def asks_nothing(value: Value) -> bool:
    kind = value.type
    if value.marking is Marking.UNWRITTEN:
        return True
    free = isinstance(kind, OpenType) and kind.open and not any(split is not None for split in kind.splits)
    return free and (kind.partial is None or isinstance(kind.partial, AnyPartial))


def _put(found: RecognizedOperation, statement: Let, reader: Reader, rewriter: Rewriter) -> Sequence[Statement]:
    """The statements in the place of one; none where the operation does not take these operands."""
    rewriter.at(statement)
    rewriter.out.clear()
    for wish, operation, operands in found.first:
        (shape,) = operation.infer([reader.arg(each) for each in operands], Context(reader.sizes))
        name = rewriter.let(operation, operands, wish, shape)
        reader.scope.define(Value(name, OpenType.anything(shape), Marking.UNWRITTEN))
        found = replace(found, operands=tuple(name if each == wish else each for each in found.operands))
    *before, last = [found.operation, *found.after, *([ops.Rename(found.renamed)] if found.renamed else [])]
    operands: tuple[Operand, ...] = found.operands
    stem = statement.result.name
    try:
        for operation in before:
            (shape,) = operation.infer([reader.arg(each) for each in operands], Context(reader.sizes))
            name = rewriter.let(operation, operands, f"{stem}_{_word(operation)}", shape)
            reader.scope.define(Value(name, OpenType.anything(shape), Marking.UNWRITTEN))
            operands = (name,)
        (shape,) = last.infer([reader.arg(each) for each in operands], Context(reader.sizes))
    except DiagnosticError:
        return ()
    result = statement.result.type.shape
    if shape == result:
        return (*rewriter.written(), replace(statement, operation=last, operands=operands))
    if shape.dtype is not result.dtype or set(shape.dims) != set(result.dims):
        return ()
    # The order of dimensions is another: the result has the one that was written.
    name = rewriter.let(last, operands, f"{stem}_{_word(last)}", shape)
    return (*rewriter.written(), replace(statement, operation=ops.Add(), operands=(name, Number("0"))))


def _word(operation: Operation) -> str:
    return operation.keyword if operation.keyword.isidentifier() else "product"


_RULES: tuple[Rule, ...] = (*functions.RULES, *rotary.RULES, *attention.RULES)
