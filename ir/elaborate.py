"""From syntax to programs: names are resolved, expressions flattened, shapes inferred, declarations checked."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from shardwright.ir import ops, syntax
from shardwright.ir.builders import build_operation
from shardwright.ir.declarations import Declarations, product_text, resolve_declarations
from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Note, Span, did_you_mean, fault
from shardwright.ir.operation import Arg, Context, Number, Operand, Operation
from shardwright.ir.ops.contraction import summed_dims
from shardwright.ir.program import (
    Carry,
    Func,
    Let,
    Loop,
    Marking,
    Namer,
    Program,
    Scope,
    SetState,
    Statement,
    Value,
)
from shardwright.ir.types import DEFAULT_DTYPE, DType, OpenType, Shape, TensorType, ValueType, row_text


def elaborate(
    module: syntax.Module,
    mesh: Mapping[str, int] | None = None,
    dims: Mapping[str, int] | None = None,
) -> Program:
    """The program that a module means, with `mesh` and `dims` in place of the file's own sizes.

    Raises a `DiagnosticError` with every fault found; a statement at fault does not hide those of others.
    """
    declarations = resolve_declarations(module, mesh or {}, dims or {})
    diagnostics: list[Diagnostic] = list(declarations.faults)
    funcs: list[Func] = []
    items = [item for item in module.items if isinstance(item, syntax.FuncItem)]
    seen: dict[str, Span] = {}
    owners = {name: item.name for item in reversed(items) for name in _written_names(item)}
    for item in items:
        head = _head(item)
        if item.name in seen:
            diagnostics.extend(redefinition("function", item.name, head, seen[item.name]).diagnostics)
        seen.setdefault(item.name, head)
        builder = _FuncBuilder(declarations, item, owners)
        func = builder.build()
        diagnostics.extend(builder.diagnostics)
        if func is not None:
            funcs.append(func)
    if not items and not diagnostics:
        raise fault(
            "no-function",
            "the file declares no function",
            Span(1, 1, 1, 2),
            "a program is at least: func f(x: BE) -> BE { return x }",
        )
    if diagnostics:
        raise DiagnosticError(diagnostics)
    program = declarations.program(tuple(funcs))
    from shardwright.ir.verifier import check_divisibility

    check_divisibility(program)
    return program


def _head(node: syntax.FuncItem | syntax.LoopStmt) -> Span:
    """From the start of a function or a loop to the brace that opens its body."""
    return node.span.to(node.brace) if node.brace.line else node.span


def count(n: int, what: str) -> str:
    """`1 result`, `2 results`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def redefinition(what: str, name: str, span: Span, before: Span) -> DiagnosticError:
    """The fault of giving one name twice."""
    return fault("redefinition", f"{what} {name} is defined twice", span, Note("the first definition is here", before))


@contextmanager
def placed(span: Span) -> Generator[None]:
    """Gives a place to the diagnostics raised inside that have none."""
    try:
        yield
    except DiagnosticError as error:
        error.diagnostics = tuple(d if d.span.line else replace(d, span=span) for d in error.diagnostics)
        raise


class _PoisonedError(Exception):
    """A name whose definition was at fault: nothing more is said about what uses it."""


_WORDS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "@": "dot"}
_BINARY: dict[str, Operation] = {"+": ops.Add(), "-": ops.Sub(), "*": ops.Mul(), "/": ops.Div()}


class _FuncBuilder:
    """Builds one function; diagnostics gather in `diagnostics`."""

    def __init__(self, declarations: Declarations, item: syntax.FuncItem, owners: Mapping[str, str]) -> None:
        self.declarations = declarations
        self.item = item
        self.owners = owners
        self.diagnostics: list[Diagnostic] = []
        self.defined: dict[str, Span] = {v.name: v.span for v in (*declarations.weights, *declarations.state)}
        self.inner: dict[str, Span] = {}
        self.poisoned: set[str] = set(declarations.faulty)
        self.written = _written_names(item)
        self.aliases: dict[str, tuple[str, int]] = {}
        self.versions: dict[str, int] = {}
        self.set_at: dict[str, Span] = {}
        self.namer = Namer(set(self.defined) | set(self.written))
        self.sizes: dict[str, int] = {}

    # ------------------------------------------------------------ the function as a whole

    def build(self) -> Func | None:
        item, declarations = self.item, self.declarations
        with self.recording():
            self.sizes = declarations.sizes_in(item)
            params = tuple(value for value in map(self.parameter, item.params) if value is not None)
            results = [self.result(written) for written in item.results]
            visible = {v.name: (v.type, 0) for v in (*declarations.weights, *declarations.state, *params)}
            scope = Scope(visible)
            statements: list[Statement] = []
            ending = self.block(item.body, scope, statements, syntax.ReturnStmt, item.name, _head(item))
            if ending is None:
                return None
            returns = self.returned(ending, results, scope, statements)
            if self.diagnostics:
                return None
            overrides = tuple((name, self.sizes[name]) for name in declarations.overridden(item, self.sizes))
            kinds = tuple(kind for kind in results if kind is not None)
            return Func(item.name, overrides, params, tuple(statements), returns, kinds, _head(item))
        return None

    @contextmanager
    def recording(self) -> Generator[None]:
        """Keeps the faults raised inside and goes on after them."""
        try:
            yield
        except DiagnosticError as error:
            self.diagnostics.extend(error.diagnostics)
        except _PoisonedError:
            pass

    def parameter(self, decl: syntax.Decl) -> Value | None:
        with self.recording():
            self.define_name(decl.name, decl.span)
            return Value(decl.name, self.declarations.type(decl.type, self.sizes), Marking.DEMANDED, decl.span)
        self.poisoned.add(decl.name)
        return None

    def result(self, written: syntax.TypeExpr) -> ValueType | None:
        with self.recording():
            return self.declarations.type(written, self.sizes)
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
            with self.recording():
                shape = kind.shape if kind else None
                wish = f"result_{i}"
                name = self.value_name(self.expression(expr, shape, wish, scope, out), shape, expr, wish, scope, out)
                if kind is not None:
                    self.fits(scope.type_of(name).shape, kind, f"{self.item.name} returns", expr.span)
                    self.same_extents(scope.type_of(name).shape, kind, f"{self.item.name} returns", expr.span)
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
                    self.diagnostics.extend(fault("misplaced", message, statement.span, way_out).diagnostics)
                    return None
                if i + 1 < len(body):
                    self.diagnostics.extend(
                        fault("unreachable", f"nothing can follow {word}", body[i + 1].span).diagnostics
                    )
                    return None
                return statement
            with self.recording():
                self.statement(statement, scope, out)
                continue
            self.poison(statement)
        if end is not None:
            last = body[-1].span if body else span
            raise fault("missing-end", f"{owner} does not end with {word}", last, f"its last statement is: {word} ...")
        return None

    def poison(self, statement: syntax.Stmt) -> None:
        match statement:
            case syntax.LetStmt() | syntax.LoopStmt():
                self.poisoned.update(target.name for target in statement.targets)
                for target in statement.targets:
                    self.defined.setdefault(target.name, target.span)
            case _:
                pass

    # ------------------------------------------------------------ statements

    def statement(self, statement: syntax.Stmt, scope: Scope, out: list[Statement]) -> None:
        match statement:
            case syntax.LetStmt():
                self.let(statement, scope, out)
            case syntax.SetStmt():
                self.set(statement, scope, out)
            case syntax.LoopStmt():
                self.loop(statement, scope, out)
            case _:
                raise AssertionError(statement)

    def define_name(self, name: str, span: Span) -> None:
        if name in self.defined:
            raise redefinition("value", name, span, self.defined[name])
        self.defined[name] = span
        self.inner.pop(name, None)

    def let(self, statement: syntax.LetStmt, scope: Scope, out: list[Statement]) -> None:
        if len(statement.targets) != 1:
            raise fault(
                "wrong-results",
                f"{len(statement.targets)} names are on the left, and the right side gives one value",
                statement.targets[0].span.to(statement.targets[-1].span),
            )
        target = statement.targets[0]
        self.define_name(target.name, target.span)
        declared = self.declarations.type(target.type, self.sizes) if target.type else None
        if isinstance(statement.value, syntax.NameExpr):
            self.alias_of_state(target.name, statement.value.name)
        operation, operands, result = self.outermost(statement.value, declared, target.name, scope, out)
        value = self.target_value(target, declared, result, statement.value.span)
        out.append(Let((value,), operation, operands, statement.value.span))
        scope.define(value)

    def alias_of_state(self, name: str, source: str) -> None:
        if source in {v.name for v in self.declarations.state}:
            self.aliases[name] = (source, self.versions.get(source, 0))
        elif source in self.aliases:
            self.aliases[name] = self.aliases[source]

    def target_value(self, target: syntax.Target, declared: ValueType | None, found: Shape, span: Span) -> Value:
        if declared is None:
            return Value(target.name, OpenType.anything(found), Marking.UNWRITTEN, target.span)
        at = target.type.span if target.type else span
        self.fits(found, declared, f"{target.name} is", at)
        kind = replace(declared, dims=found.dims)
        self.divides(kind, target.name, at)
        return Value(target.name, kind, Marking.FOUND if target.found else Marking.DEMANDED, target.span)

    def divides(self, kind: ValueType, name: str, span: Span) -> None:
        """Raises where the chips do not divide the extent that an operation gave, which may be a part of the size."""
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            chips = self.declarations.mesh.product(axes or ())
            if dim.size % chips:
                raise fault(
                    "not-divisible",
                    f"{name} has {dim.size} of {dim.name}={self.sizes.get(dim.name, dim.size)}, which are not divisible"
                    f" by {product_text(axes or (), self.declarations.mesh)}",
                    span,
                    f"split {dim.name} over fewer axes",
                )

    def fits(self, found: Shape, declared: ValueType, what: str, span: Span, where: str = "") -> None:
        """Raises where a shape is not the declared one (extents aside, which the operation determines)."""
        wanted = declared.shape
        message = f"{what} {found}, {where or f'where {wanted} is declared'}"
        if found.names != wanted.names:
            notes: list[str] = []
            if sorted(found.names) == sorted(wanted.names):
                notes.append(
                    f"write the dimensions in the order of the value: {row_text(found.names, [()] * len(found.dims))}"
                )
            raise fault("wrong-dimensions", message, span, *notes)
        if found.dtype != wanted.dtype:
            default = "; no number format means bf16" if wanted.dtype is DEFAULT_DTYPE else ""
            raise fault(
                "dtype-mismatch",
                message,
                span,
                f"convert it, convert[{wanted.dtype}](...), or declare {found.dtype}{default}",
            )

    def same_extents(self, found: Shape, declared: ValueType, what: str, span: Span) -> None:
        """Raises where a value that leaves the function, or comes round again, has another extent than declared."""
        for have, want in zip(found.dims, declared.dims, strict=True):
            if have.size != want.size:
                name = have.name
                raise fault(
                    "size-mismatch",
                    f"{what} {have.size} of {name}, where {name}={want.size} is declared",
                    span,
                    f"give the part a dimension of its own: dim {name}2={have.size} and rename[{name} -> {name}2](...)",
                )

    def set(self, statement: syntax.SetStmt, scope: Scope, out: list[Statement]) -> None:
        state = {v.name for v in self.declarations.state}
        if statement.name not in state:
            known = f"the state is {', '.join(sorted(state))}" if state else "declare it: state { ... }"
            raise fault(
                "not-state", f"{statement.name} is not a state value, and only state can be set", statement.span, known
            )
        kind = self.view(statement.name, scope, statement.span)
        wish = f"{statement.name}_new"
        operand = self.expression(statement.value, kind.shape, wish, scope, out, kind)
        name = self.value_name(operand, kind.shape, statement.value, wish, scope, out)
        self.fits(scope.type_of(name).shape, kind, f"{statement.name} is set to", statement.value.span)
        self.same_extents(scope.type_of(name).shape, kind, f"{statement.name} is set to", statement.value.span)
        out.append(SetState(statement.name, name, statement.span))
        self.versions[statement.name] = self.versions.get(statement.name, 0) + 1
        self.set_at[statement.name] = statement.span

    def loop(self, statement: syntax.LoopStmt, scope: Scope, out: list[Statement]) -> None:
        dim = statement.dim
        if dim not in self.sizes:
            near = did_you_mean(dim, list(self.sizes))
            raise fault(
                "unknown-dimension",
                f"dimension {dim} is not declared",
                _head(statement),
                f"did you mean {near}?" if near else f"give its size: dim {dim}=...",
            )
        if any(loop.dim == dim for loop in scope.loops):
            raise fault("nested-loop", f"a loop over {dim} stands inside another loop over {dim}", _head(statement))
        if statement.targets and len(statement.targets) != len(statement.carries):
            raise fault(
                "wrong-results",
                f"the loop carries {count(len(statement.carries), 'value')},"
                f" and {count(len(statement.targets), 'name')} stand on its left",
                statement.targets[0].span.to(statement.targets[-1].span),
            )
        for target in statement.targets:
            self.define_name(target.name, target.span)
        carries: list[Carry] = []
        outer_defined = set(self.defined)
        wanted: list[ValueType | None] = []
        for i, carry in enumerate(statement.carries):
            result = statement.targets[i] if statement.targets else None
            own = self.declarations.type(carry.target.type, self.sizes) if carry.target.type else None
            other = self.declarations.type(result.type, self.sizes) if result and result.type else None
            wanted.append(other)
            declared = own or other
            wish, known = f"{carry.target.name}_0", declared.shape if declared else None
            operand = self.expression(carry.value, known, wish, scope, out)
            initial = self.value_name(operand, known, carry.value, wish, scope, out)
            shape = scope.type_of(initial).shape
            marked = carry.target if own else (result or carry.target)
            self.define_name(carry.target.name, carry.target.span)
            value = replace(
                self.target_value(marked, declared, shape, carry.value.span),
                name=carry.target.name,
                span=carry.target.span,
            )
            carries.append(Carry(value, initial))
        if statement.index is not None:
            self.define_name(statement.index, _head(statement))
        head = Loop((), dim, statement.index, tuple(carries), (), (), _head(statement))
        inside = scope.inside(head)
        body: list[Statement] = []
        end = syntax.NextStmt if carries else None
        errors_before = len(self.diagnostics)
        ending = self.block(statement.body, inside, body, end, "the loop", _head(statement))
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
                with self.recording():
                    wish = f"{carry.value.name}_next"
                    operand = self.expression(expr, shape, wish, inside, body)
                    name = self.value_name(operand, shape, expr, wish, inside, body)
                    entry = f"and {carry.value.name} is {shape} on entry"
                    given = inside.type_of(name).shape
                    self.fits(given, carry.value.type, "next gives", expr.span, entry)
                    self.same_extents(given, carry.value.type, "next gives", expr.span)
                    names.append(name)
            following = tuple(names)
        for name in set(self.defined) - outer_defined:
            self.inner[name] = self.defined.pop(name)
        if len(self.diagnostics) > errors_before:
            raise _PoisonedError
        results, conversions = self.loop_results(statement, carries, wanted)
        out.append(replace(head, results=results, body=tuple(body), following=following))
        for value in results:
            scope.define(value)
        for conversion in conversions:
            out.append(conversion)
            scope.define(conversion.result)

    def loop_results(
        self, statement: syntax.LoopStmt, carries: list[Carry], wanted: list[ValueType | None]
    ) -> tuple[tuple[Value, ...], list[Let]]:
        """What the loop leaves: its carried values; where the left side demands another type, converted from them."""
        results: list[Value] = []
        conversions: list[Let] = []
        for i, carry in enumerate(carries):
            kind = carry.value.type
            # The result prints without a type: that of the carried value says it, found or not.
            marking = Marking.FOUND if carry.value.marking is Marking.FOUND else Marking.UNWRITTEN
            if not statement.targets:
                results.append(Value(self.namer.fresh(f"{carry.value.name}_last"), kind, marking))
                continue
            target, want = statement.targets[i], wanted[i]
            if want is None or str(want) == str(kind):
                results.append(Value(target.name, kind, marking, target.span))
                continue
            value = self.target_value(target, want, kind.shape, target.span)
            raw = Value(self.namer.fresh(f"{target.name}_raw"), kind, marking, target.span)
            results.append(raw)
            conversions.append(Let((value,), ops.Alias(), (raw.name,), target.span))
        return tuple(results), conversions

    # ------------------------------------------------------------ expressions

    def outermost(
        self, expr: syntax.Expr, declared: ValueType | None, name: str, scope: Scope, out: list[Statement]
    ) -> tuple[Operation, tuple[Operand, ...], Shape]:
        """The operation of an expression, its operands (flattened into statements before it) and its shape."""
        shape = declared.shape if declared else None
        match expr:
            case syntax.NameExpr():
                kind = self.view(expr.name, scope, expr.span)
                return ops.Alias(), (expr.name,), kind.shape
            case syntax.NumberExpr() | syntax.NegExpr(operand=syntax.NumberExpr()):
                return self.number_value(expr, shape)
            case syntax.NegExpr():
                operation, parts = ops.Neg(), (expr.operand,)
            case syntax.BinaryExpr():
                operation, parts = _BINARY[expr.operator], (expr.left, expr.right)
            case syntax.ContractExpr():
                return self.contraction(expr, shape, name, scope, out)
            case syntax.CallExpr(name="size"):
                return self.number_value(expr, shape)
            case syntax.CallExpr():
                operation, parts = build_operation(expr, self.declarations.mesh), expr.args or ()
            case _:
                raise AssertionError(expr)
        operands = tuple(self.expression(part, None, f"{name}_{_word(part)}", scope, out) for part in parts)
        if operands and all(isinstance(o, Number) for o in operands) and not isinstance(operation, ops.Full):
            raise fault("literal-operand", "an operation on numbers alone", expr.span, "write its result as a number")
        return operation, operands, self.infer(operation, operands, shape, scope, expr)

    def number_value(self, expr: syntax.Expr, declared: Shape | None) -> tuple[Operation, tuple[Operand, ...], Shape]:
        if declared is None:
            raise fault(
                "literal-operand",
                "the type of a number that stands alone must be written",
                expr.span,
                "as in: a: f32 = 0.5",
            )
        number = self.number(expr)
        assert number is not None
        self.representable(number, declared.dtype, expr.span)
        return ops.Full(declared.names, declared.dtype), (number,), declared

    def representable(self, number: Number, dtype: DType, span: Span) -> None:
        """Raises where a literal meets a number format that cannot hold it."""
        if dtype.is_integer and not isinstance(number.value, int):
            raise fault(
                "dtype-mismatch", f"{number} is no whole number, and the values are {dtype}", span, "convert them first"
            )

    def number(self, expr: syntax.Expr) -> Number | None:
        """The literal that an expression is, folding arithmetic on literals; None if it holds a value."""
        match expr:
            case syntax.NumberExpr():
                return Number(expr.text)
            case syntax.NegExpr():
                inner = self.number(expr.operand)
                return None if inner is None else Number(_number_text(-inner.value))
            case syntax.CallExpr(name="size"):
                return self.size_of(expr)
            case syntax.BinaryExpr():
                left, right = self.number(expr.left), self.number(expr.right)
                if left is None or right is None:
                    return None
                return Number(_number_text(_folded(expr, left.value, right.value)))
            case _:
                return None

    def size_of(self, expr: syntax.CallExpr) -> Number:
        static = expr.statics[0] if len(expr.statics) == 1 else None
        name = ""
        if isinstance(static, syntax.DimsStatic) and len(static.dims) == 1:
            name = static.dims[0].name
        elif isinstance(static, syntax.WordStatic):
            name = static.words[0]
        if expr.args or not name:
            raise fault("bad-static", "size names one dimension, as in size[D]", expr.span)
        with placed(expr.span):
            return Number(str(Context(self.sizes).dim(name).size), name)

    def contraction(
        self, expr: syntax.ContractExpr, shape: Shape | None, name: str, scope: Scope, out: list[Statement]
    ) -> tuple[Operation, tuple[Operand, ...], Shape]:
        operands = tuple(
            self.expression(part, None, f"{name}_{_word(part)}", scope, out) for part in (expr.left, expr.right)
        )
        left, right = (self.arg(operand, scope) for operand in operands)
        with placed(expr.span):
            if expr.dims is not None:
                dims = tuple(dim.name for dim in expr.dims)
                if len(set(dims)) != len(dims):
                    raise fault("contraction-dimension", f"@[{''.join(dims)}] names a dimension twice", expr.span)
            else:
                dims = summed_dims(left.tensor, right.tensor, shape)
        operation = ops.Contract(dims)
        return operation, operands, self.infer(operation, operands, shape, scope, expr)

    def infer(
        self,
        operation: Operation,
        operands: tuple[Operand, ...],
        declared: Shape | None,
        scope: Scope,
        expr: syntax.Expr,
    ) -> Shape:
        with placed(expr.span):
            shapes = operation.infer([self.arg(o, scope) for o in operands], Context(self.sizes, declared))
            if isinstance(operation, ops.Movement):
                check_movement(operation, operands, scope)
        if isinstance(operation, ops.Elementwise):
            dtype = next(scope.type_of(o).dtype for o in reversed(operands) if isinstance(o, str))
            for number in (o for o in operands if isinstance(o, Number)):
                self.representable(number, dtype, expr.span)
        return shapes[0]

    def arg(self, operand: Operand, scope: Scope) -> Arg:
        if isinstance(operand, Number):
            return Arg(str(operand), None, operand)
        return Arg(operand, scope.type_of(operand).shape)

    def expression(
        self,
        expr: syntax.Expr,
        shape: Shape | None,
        name: str,
        scope: Scope,
        out: list[Statement],
        demanded: ValueType | None = None,
    ) -> Operand:
        """The operand that an expression is; what it computes is appended as a statement under a fresh name."""
        if isinstance(expr, syntax.NameExpr):
            self.view(expr.name, scope, expr.span)
            return expr.name
        literal = self.number(expr)
        if literal is not None:
            return literal
        declared = demanded or (OpenType.anything(shape) if shape else None)
        fresh = self.namer.fresh(name)
        operation, operands, found = self.outermost(expr, declared, fresh, scope, out)
        kind: ValueType = OpenType.anything(found)
        if demanded is not None:
            self.fits(found, demanded, f"{fresh} is", expr.span)
            kind = replace(demanded, dims=found.dims)
        marking = Marking.FOUND if isinstance(kind, TensorType) else Marking.UNWRITTEN
        value = Value(fresh, kind, marking, expr.span)
        out.append(Let((value,), operation, operands, expr.span))
        scope.define(value)
        return fresh

    def value_name(
        self, operand: Operand, shape: Shape | None, expr: syntax.Expr, wish: str, scope: Scope, out: list[Statement]
    ) -> str:
        """The operand as a name; a bare number becomes a value of the wanted shape."""
        if isinstance(operand, str):
            return operand
        operation, operands, found = self.number_value(expr, shape)
        value = Value(self.namer.fresh(wish), OpenType.anything(found), Marking.UNWRITTEN, expr.span)
        out.append(Let((value,), operation, operands, expr.span))
        scope.define(value)
        return value.name

    def view(self, name: str, scope: Scope, span: Span) -> ValueType:
        """The type of a name as seen here; raises where it is not defined, or is an old version of a state."""
        if name in self.poisoned:
            raise _PoisonedError
        if name not in scope.values:
            if name in self.inner:
                raise fault(
                    "undeclared",
                    f"{name} is defined inside a loop and not seen outside it",
                    span,
                    Note("it is defined here", self.inner[name]),
                    "carry it out with next",
                )
            if name in self.written:
                raise fault(
                    "undeclared",
                    f"{name} is used before it is defined",
                    span,
                    Note("it is defined here", self.written[name]),
                )
            if name in self.declarations.mesh:
                raise fault("undeclared", f"{name} is a mesh axis, not a value", span)
            if name in self.owners:
                raise fault(
                    "undeclared",
                    f"{name} is not defined here, but in {self.owners[name]}",
                    span,
                    "functions share weights and state; hand it over as a parameter, or declare it as state",
                )
            near = did_you_mean(name, [n for n in scope.values if n not in self.poisoned])
            raise fault("undeclared", f"{name} is not defined", span, *([f"did you mean {near}?"] if near else []))
        if name in self.aliases:
            state, version = self.aliases[name]
            if self.versions.get(state, 0) != version:
                raise fault(
                    "old-version",
                    f"{name} is an old version of the state {state}, which has been set since",
                    span,
                    Note(f"{state} is set here", self.set_at[state]),
                    f"use {name} before the set, or {state} itself after it",
                )
        kind, outside = scope.values[name]
        for loop in scope.loops[outside:]:
            if loop.dim in kind.names and _is_split(kind, loop.dim):
                raise fault(
                    "split-loop",
                    f"the loop over {loop.dim} takes slices of {name}: {kind}, and {loop.dim} is split over chips",
                    span,
                    f"pipeline stages can be priced but not run; leave {loop.dim} whole",
                )
        return scope.type_of(name)


def _is_split(kind: ValueType, dim: str) -> bool:
    return any(d.name == dim and axes for d, axes in zip(kind.dims, kind.splits, strict=True))


def check_movement(operation: ops.Movement, operands: tuple[Operand, ...], scope: Scope) -> None:
    """Raises where a movement written by hand does not apply to an operand whose type is known."""
    from shardwright.ir.strategies import explain_movement

    name = operands[0]
    if isinstance(name, str):
        kind = scope.type_of(name)
        if isinstance(kind, TensorType):
            explain_movement(operation, name, kind)


def _word(expr: syntax.Expr) -> str:
    """What a temporary is called after."""
    match expr:
        case syntax.CallExpr():
            return expr.name
        case syntax.BinaryExpr():
            return _WORDS[expr.operator]
        case syntax.ContractExpr():
            return "dot"
        case _:
            return "neg"


def _number_text(value: int | float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.1f}" if value.is_integer() and abs(value) < 1e15 else repr(value)


def _folded(expr: syntax.BinaryExpr, left: int | float, right: int | float) -> int | float:
    match expr.operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            if right == 0:
                raise fault("literal-operand", "division by zero", expr.span)
            return left / right


def _written_names(item: syntax.FuncItem) -> dict[str, Span]:
    """Every name that the author gives in the function with its place, so that temporaries avoid them."""
    names: dict[str, Span] = {}

    def visit(body: Sequence[syntax.Stmt]) -> None:
        for statement in body:
            match statement:
                case syntax.LetStmt():
                    names.update((target.name, target.span) for target in statement.targets)
                case syntax.LoopStmt():
                    names.update((target.name, target.span) for target in statement.targets)
                    names.update((carry.target.name, carry.target.span) for carry in statement.carries)
                    if statement.index:
                        names[statement.index] = _head(statement)
                    visit(statement.body)
                case _:
                    pass

    names.update((decl.name, decl.span) for decl in item.params)
    visit(item.body)
    return names
