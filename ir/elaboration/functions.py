"""The statements of a function: definitions, settings of state, loops, and what they hand back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.ir import ops
from shardwright.ir.diagnostics import Diagnostic, Span, fault
from shardwright.ir.elaboration.declarations import Declarations, unknown_dimension
from shardwright.ir.elaboration.expressions import Expressions, unwritten
from shardwright.ir.elaboration.names import Names, PoisonedError, head_span
from shardwright.ir.program import Carry, Free, Func, Let, Loop, Marking, Scope, SetState, Statement, Value
from shardwright.ir.text import syntax
from shardwright.ir.types import OpenType, ValueType
from shardwright.ir.verification.demands import check_divides, check_fits, count
from shardwright.ir.verification.extents import require_extents


def build_function(
    declarations: Declarations, item: syntax.FuncItem, owners: Mapping[str, str]
) -> tuple[Func | None, Sequence[Diagnostic]]:
    """The function, or None where it is at fault, with the faults found in it.

    `owners` gives for every name in the file a function that defines it.
    """
    names = Names(declarations, item, owners)
    func: Func | None = None
    with names.recording():
        func = _FuncBuilder(declarations, item, names).build()
    return func, names.diagnostics


class _FuncBuilder:
    """Builds one function; faults gather in `names`."""

    def __init__(self, declarations: Declarations, item: syntax.FuncItem, names: Names) -> None:
        self.declarations = declarations
        self.item = item
        self.names = names
        self.sizes = declarations.sizes_in(item)
        self.expressions = Expressions(declarations.mesh, self.sizes, names)

    # ------------------------------------------------------------ the function as a whole

    def build(self) -> Func | None:
        """The function; None where faults were found in it."""
        item, declarations = self.item, self.declarations
        params = tuple(value for value in map(self.parameter, item.params) if value is not None)
        results = [self.result(written) for written in item.results]
        visible = {v.name: (v.type, 0) for v in (*declarations.weights, *declarations.state, *params)}
        scope = Scope(visible)
        statements: list[Statement] = []
        ending = self.block(item.body, scope, statements, syntax.ReturnStmt, item.name, head_span(item))
        if ending is None:
            return None
        returns = self.returned(ending, results, scope, statements)
        if self.names.diagnostics:
            return None
        overrides = tuple((name, self.sizes[name]) for name in declarations.overridden(item, self.sizes))
        kinds = tuple(kind for kind in results if kind is not None)
        return Func(item.name, overrides, params, tuple(statements), returns, kinds, head_span(item))

    def parameter(self, decl: syntax.Decl) -> Value | None:
        with self.names.recording():
            self.names.define(decl.name, decl.span)
            return Value(decl.name, self.declarations.edge_type(decl.type, self.sizes), Marking.DEMANDED, decl.span)
        self.names.poisoned.add(decl.name)
        return None

    def result(self, written: syntax.TypeExpr) -> ValueType | None:
        with self.names.recording():
            return self.declarations.edge_type(written, self.sizes)
        return None

    def returned(
        self,
        ending: syntax.ReturnStmt | syntax.NextStmt,
        results: Sequence[ValueType | None],
        scope: Scope,
        out: list[Statement],
    ) -> tuple[str, ...]:
        if len(ending.values) != len(results):
            raise fault(
                "wrong-results",
                f"{self.item.name} declares {count(len(results), 'result')} and returns {len(ending.values)}",
                ending.span,
            )
        names: list[str] = []
        for i, (expr, kind) in enumerate(zip(ending.values, results, strict=True)):
            with self.names.recording():
                shape = kind.shape if kind else None
                wish = f"result_{i}"
                name = self.expressions.value_name(
                    self.expressions.expression(expr, shape, wish, scope, out), shape, expr, wish, scope, out
                )
                if kind is not None:
                    check_fits(scope.type_of(name).shape, kind, f"{self.item.name} returns", expr.span)
                    require_extents(scope.type_of(name).shape, kind, f"{self.item.name} returns", expr.span)
                names.append(name)
        return tuple(names)

    def block(
        self,
        body: Sequence[syntax.Stmt],
        scope: Scope,
        out: list[Statement],
        end: type[syntax.ReturnStmt] | type[syntax.NextStmt] | None,
        owner: str,
        span: Span,
    ) -> syntax.ReturnStmt | syntax.NextStmt | None:
        """Elaborates statements up to the `return` or `next` that ends the block, which is handed back.

        `owner` is what messages call the block.
        """
        word = "return" if end is syntax.ReturnStmt else "next"
        for i, statement in enumerate(body):
            if isinstance(statement, syntax.ReturnStmt | syntax.NextStmt):
                if end is None or not isinstance(statement, end):
                    if isinstance(statement, syntax.ReturnStmt):
                        message = "return belongs at the end of a function, and this is a loop"
                        way_out = "a loop hands its carried values on with next" if end else "leave it out"
                    elif end is None:
                        message, way_out = "the loop carries no value that next could give", "leave it out"
                    else:
                        message = "next belongs at the end of a loop, and this is a function"
                        way_out = "a function ends with return"
                    self.names.diagnostics.extend(fault("misplaced", message, statement.span, way_out).diagnostics)
                    return None
                if i + 1 < len(body):
                    self.names.diagnostics.extend(
                        fault("unreachable", f"nothing can follow {word}", body[i + 1].span).diagnostics
                    )
                    return None
                return statement
            with self.names.recording():
                self.statement(statement, scope, out)
                continue
            self.names.poison(statement)
        if end is not None:
            last = body[-1].span if body else span
            raise fault("missing-end", f"{owner} does not end with {word}", last, f"its last statement is: {word} ...")
        return None

    # ------------------------------------------------------------ statements

    def statement(self, statement: syntax.Stmt, scope: Scope, out: list[Statement]) -> None:
        match statement:
            case syntax.LetStmt():
                self.let(statement, scope, out)
            case syntax.SetStmt():
                self.set(statement, scope, out)
            case syntax.FreeStmt():
                for name in statement.names:
                    self.names.view(name.name, scope, name.span)
                out.append(Free(tuple(name.name for name in statement.names), statement.span))
            case syntax.LoopStmt():
                self.loop(statement, scope, out)
            case _:
                raise AssertionError(statement)

    def let(self, statement: syntax.LetStmt, scope: Scope, out: list[Statement]) -> None:
        targets = statement.targets
        for target in targets:
            self.names.define(target.name, target.span)
        declared = [self.declarations.type(t.type, self.sizes) if t.type else None for t in targets]
        if isinstance(statement.value, syntax.NameExpr):
            self.names.alias_of_state(targets[0].name, statement.value.name)
        only = declared[0] if len(targets) == 1 else None
        operation, operands, shapes = self.expressions.outermost(statement.value, only, targets[0].name, scope, out)
        if len(targets) != len(shapes):
            given = "one value" if len(shapes) == 1 else f"{len(shapes)} values"
            raise fault(
                "wrong-results",
                f"{count(len(targets), 'name')} {'is' if len(targets) == 1 else 'are'} on the left,"
                f" and the right side gives {given}",
                targets[0].span.to(targets[-1].span),
            )
        values = tuple(
            self.target_value(target, kind, unwritten(operation, operands, shape, scope), statement.value.span)
            for target, kind, shape in zip(targets, declared, shapes, strict=True)
        )
        out.append(Let(values, operation, operands, statement.value.span))
        scope.define(*values)

    def target_value(
        self, target: syntax.AssignedName, declared: ValueType | None, given: OpenType, span: Span
    ) -> Value:
        """The value that a target names: of the declared type, or of the `given` one where none is written."""
        if declared is None:
            return Value(target.name, given, Marking.UNWRITTEN, target.span)
        found = given.shape
        at = target.type.span if target.type else span
        check_fits(found, declared, f"{target.name} is", at)
        kind = replace(declared, dims=found.dims)
        check_divides(kind, target.name, self.declarations.mesh, self.sizes, at)
        return Value(target.name, kind, Marking.FOUND if target.found else Marking.DEMANDED, target.span)

    def set(self, statement: syntax.SetStmt, scope: Scope, out: list[Statement]) -> None:
        state = self.names.state
        if statement.name not in state:
            if statement.name in self.declarations.faulty:
                raise PoisonedError
            known = f"the state is {', '.join(sorted(state))}" if state else "declare it: state { ... }"
            raise fault(
                "not-state", f"{statement.name} is not a state value, and only state can be set", statement.span, known
            )
        kind = self.names.view(statement.name, scope, statement.span)
        wish = f"{statement.name}_new"
        operand = self.expressions.expression(statement.value, kind.shape, wish, scope, out, kind)
        name = self.expressions.value_name(operand, kind.shape, statement.value, wish, scope, out)
        check_fits(scope.type_of(name).shape, kind, f"{statement.name} is set to", statement.value.span)
        require_extents(scope.type_of(name).shape, kind, f"{statement.name} is set to", statement.value.span)
        out.append(SetState(statement.name, name, statement.span))
        self.names.set_state(statement.name, statement.span)

    def loop(self, statement: syntax.LoopStmt, scope: Scope, out: list[Statement]) -> None:
        dim = statement.dim
        if dim not in self.sizes:
            raise unknown_dimension(dim, list(self.sizes), head_span(statement))
        if any(loop.dim == dim for loop in scope.loops):
            raise fault("nested-loop", f"a loop over {dim} stands inside another loop over {dim}", head_span(statement))
        if statement.targets and len(statement.targets) != len(statement.carries):
            raise fault(
                "wrong-results",
                f"the loop carries {count(len(statement.carries), 'value')},"
                f" and on its left {'stands' if len(statement.targets) == 1 else 'stand'}"
                f" {count(len(statement.targets), 'name')}",
                statement.targets[0].span.to(statement.targets[-1].span),
            )
        for target in statement.targets:
            self.names.define(target.name, target.span)
        carries: list[Carry] = []
        outer_defined = set(self.names.defined)
        wanted: list[ValueType | None] = []
        for i, carry in enumerate(statement.carries):
            result = statement.targets[i] if statement.targets else None
            own = self.declarations.type(carry.target.type, self.sizes) if carry.target.type else None
            other = self.declarations.type(result.type, self.sizes) if result and result.type else None
            wanted.append(other)
            declared = own or other
            wish, known = f"{carry.target.name}_0", declared.shape if declared else None
            operand = self.expressions.expression(carry.value, known, wish, scope, out)
            initial = self.expressions.value_name(operand, known, carry.value, wish, scope, out)
            begins = scope.type_of(initial)
            given = OpenType.anything(begins.shape)
            if begins.in_flight:
                given = replace(given, placement=begins.placement, in_flight=True)
            marked = carry.target if own else (result or carry.target)
            self.names.define(carry.target.name, carry.target.span)
            value = replace(
                self.target_value(marked, declared, given, carry.value.span),
                name=carry.target.name,
                span=carry.target.span,
            )
            carries.append(Carry(value, initial))
        if statement.index is not None:
            self.names.define(statement.index, head_span(statement))
        head = Loop((), dim, statement.index, tuple(carries), (), (), head_span(statement))
        inside = scope.inside(head)
        body: list[Statement] = []
        end = syntax.NextStmt if carries else None
        errors_before = len(self.names.diagnostics)
        ending = self.block(statement.body, inside, body, end, "the loop", head_span(statement))
        following: tuple[str, ...] = ()
        if ending is not None:
            if len(ending.values) != len(carries):
                raise fault(
                    "wrong-results",
                    f"the loop carries {count(len(carries), 'value')}, and next gives {len(ending.values)}",
                    ending.span,
                )
            names: list[str] = []
            for carry, expr in zip(carries, ending.values, strict=True):
                shape = carry.value.shape
                with self.names.recording():
                    wish = f"{carry.value.name}_next"
                    operand = self.expressions.expression(expr, shape, wish, inside, body)
                    name = self.expressions.value_name(operand, shape, expr, wish, inside, body)
                    entry = f"and {carry.value.name} is {shape} on entry"
                    given = inside.type_of(name).shape
                    check_fits(given, carry.value.type, "next gives", expr.span, entry)
                    require_extents(given, carry.value.type, "next gives", expr.span)
                    names.append(name)
            following = tuple(names)
        self.names.leave_loop(outer_defined)
        if len(self.names.diagnostics) > errors_before:
            raise PoisonedError
        results, conversions = self.loop_results(statement, carries, wanted)
        out.append(replace(head, results=results, body=tuple(body), following=following))
        scope.define(*results)
        for conversion in conversions:
            out.append(conversion)
            scope.define(conversion.result)

    def loop_results(
        self, statement: syntax.LoopStmt, carries: list[Carry], wanted: list[ValueType | None]
    ) -> tuple[tuple[Value, ...], list[Let]]:
        """The results of the loop: its carried values; where the left side demands another type, converted from
        them."""
        results: list[Value] = []
        conversions: list[Let] = []
        for i, carry in enumerate(carries):
            kind = carry.value.type
            # The result prints without a type: that of the carried value says it, found or not.
            marking = Marking.FOUND if carry.value.marking is Marking.FOUND else Marking.UNWRITTEN
            if not statement.targets:
                results.append(Value(self.names.namer.fresh(f"{carry.value.name}_last"), kind, marking))
                continue
            target, want = statement.targets[i], wanted[i]
            if want is None or str(want) == str(kind):
                results.append(Value(target.name, kind, marking, target.span))
                continue
            value = self.target_value(target, want, OpenType.anything(kind.shape), target.span)
            raw = Value(self.names.namer.fresh(f"{target.name}_raw"), kind, marking, target.span)
            results.append(raw)
            conversions.append(Let((value,), ops.Alias(), (raw.name,), target.span))
        return tuple(results), conversions
