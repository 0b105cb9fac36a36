"""Shrinks a program while something stays true of it: smaller trees, fewer demands, fewer chips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from oracles.random_programs.tree import (
    Assign,
    Decl,
    Expr,
    Func,
    Layout,
    Loop,
    Program,
    SetState,
    Shaped,
    Stmt,
    Target,
    ref,
)


def shrink(program: Program, holds: Callable[[Program], bool], steps: int = 400) -> Program:
    """The program after as many reductions as leave `holds` true; at most `steps` trials."""
    tried = 0
    changed = True
    while changed and tried < steps:
        changed = False
        for smaller in _smaller(program):
            tried += 1
            if tried > steps:
                break
            if smaller != program and holds(smaller):
                program, changed = _tidied(smaller), True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    if len(program.funcs) > 1:
        for func in program.funcs:
            yield replace(program, funcs=(func,))
    for at, func in enumerate(program.funcs):

        def put(changed: Func, at: int = at) -> Program:
            return replace(program, funcs=(*program.funcs[:at], changed, *program.funcs[at + 1 :]))

        if len(func.returns) > 1:
            for kept in func.returns:
                yield put(replace(func, returns=(kept,)))
        for n in range(len(func.body)):
            yield put(replace(func, body=(*func.body[:n], *func.body[n + 1 :])))
        for n in reversed(range(len(func.body))):
            yield from (put(cut) for cut in _cut(func, n))
        for n, stmt in enumerate(func.body):
            if isinstance(stmt, Loop) and not stmt.carries:
                yield put(replace(func, body=(*func.body[:n], *stmt.body, *func.body[n + 1 :])))
            for other in _simpler(stmt):
                yield put(replace(func, body=(*func.body[:n], other, *func.body[n + 1 :])))
        yield from (put(hoisted) for hoisted in _hoisted(func))
        for n, decl in enumerate(func.params):
            for layout in _weaker(decl.shape, decl.layout):
                params = (*func.params[:n], replace(decl, layout=layout), *func.params[n + 1 :])
                yield put(replace(func, params=params))
        for n, (expr, written) in enumerate(func.returns):
            for layout in _weaker(expr.shape, written):
                yield put(replace(func, returns=(*func.returns[:n], (expr, layout), *func.returns[n + 1 :])))
        if func.sizes:
            yield put(replace(func, sizes=()))
    for what in ("weights", "state"):
        decls: tuple[Decl, ...] = getattr(program, what)
        for n, decl in enumerate(decls):
            for layout in _weaker(decl.shape, decl.layout):
                yield replace(program, **{what: (*decls[:n], replace(decl, layout=layout), *decls[n + 1 :])})
    for axis, _ in program.mesh:
        yield _without_axis(program, axis)
    for n, dim in enumerate(program.dims):
        if dim.order:
            yield replace(program, dims=(*program.dims[:n], replace(dim, order=()), *program.dims[n + 1 :]))


def _weaker(shape: Shaped, layout: Layout) -> Iterator[Layout]:
    whole = Layout(tuple(() for _ in shape.dims))
    if layout != whole:
        yield whole
    for n, axes in enumerate(layout.splits):
        if axes != ():
            yield replace(layout, splits=(*layout.splits[:n], (), *layout.splits[n + 1 :]))
    if layout.placement:
        yield replace(layout, placement="")
    if layout.partial:
        yield replace(layout, partial="")


def _cut(func: Func, n: int) -> Iterator[Func]:
    """Without a statement, its values parameters."""
    stmt = func.body[n]
    if not isinstance(stmt, Assign | Loop) or not stmt.targets:
        return
    made = tuple(Decl(t.name, t.shape, Layout(tuple(() for _ in t.shape.dims))) for t in stmt.targets)
    yield replace(func, params=(*func.params, *made), body=(*func.body[:n], *func.body[n + 1 :]))


def _simpler(stmt: Stmt) -> Iterator[Stmt]:
    match stmt:
        case Assign(targets, value):
            for n, target in enumerate(targets):
                if target.layout is not None:
                    without = (*targets[:n], replace(target, layout=None), *targets[n + 1 :])
                    yield Assign(without, value)
                    for layout in _weaker(target.shape, target.layout):
                        yield Assign((*targets[:n], replace(target, layout=layout), *targets[n + 1 :]), value)
        case Loop():
            for n in range(len(stmt.body)):
                yield replace(stmt, body=(*stmt.body[:n], *stmt.body[n + 1 :]))
                for other in _simpler(stmt.body[n]):
                    yield replace(stmt, body=(*stmt.body[:n], other, *stmt.body[n + 1 :]))
            for n in range(len(stmt.carries)):
                yield replace(
                    stmt,
                    targets=(*stmt.targets[:n], *stmt.targets[n + 1 :]),
                    carries=(*stmt.carries[:n], *stmt.carries[n + 1 :]),
                    following=(*stmt.following[:n], *stmt.following[n + 1 :]),
                )
                target, start = stmt.carries[n]
                if target.layout is not None:
                    carries = (*stmt.carries[:n], (replace(target, layout=None), start), *stmt.carries[n + 1 :])
                    yield replace(stmt, carries=carries)
            for n, target in enumerate(stmt.targets):
                if target.layout is not None:
                    yield replace(
                        stmt, targets=(*stmt.targets[:n], replace(target, layout=None), *stmt.targets[n + 1 :])
                    )
        case _:
            pass


def _hoisted(func: Func) -> Iterator[Func]:
    """With one inner expression a parameter, or put in the place of what it is an operand of."""
    for n, stmt in enumerate(func.body):
        if not isinstance(stmt, Assign | SetState):
            continue
        for value, param in _replaced(stmt.value, f"cut{len(func.params)}"):
            params = func.params if param is None else (*func.params, param)
            yield replace(func, params=params, body=(*func.body[:n], replace(stmt, value=value), *func.body[n + 1 :]))
    for n, (expr, layout) in enumerate(func.returns):
        for value, param in _replaced(expr, f"cut{len(func.params)}"):
            params = func.params if param is None else (*func.params, param)
            yield replace(func, params=params, returns=(*func.returns[:n], (value, layout), *func.returns[n + 1 :]))


def _replaced(expr: Expr, name: str) -> Iterator[tuple[Expr, Decl | None]]:
    for n, arg in enumerate(expr.args):
        if arg.op not in {"ref", "number"}:
            decl = Decl(name, arg.shape, Layout(tuple(() for _ in arg.shape.dims)))
            yield replace(expr, args=(*expr.args[:n], ref(name, arg.shape), *expr.args[n + 1 :])), decl
            for inner, inner_decl in _replaced(arg, name):
                yield replace(expr, args=(*expr.args[:n], inner, *expr.args[n + 1 :])), inner_decl
        if arg.shape == expr.shape and not expr.more:
            yield arg, None


def _without_axis(program: Program, axis: str) -> Program:
    def of_target(target: Target) -> Target:
        return target if target.layout is None else replace(target, layout=target.layout.without_axis(axis))

    def of_decl(decl: Decl) -> Decl:
        return replace(decl, layout=decl.layout.without_axis(axis))

    def of_stmt(stmt: Stmt) -> Stmt:
        match stmt:
            case Assign():
                return replace(stmt, targets=tuple(map(of_target, stmt.targets)))
            case Loop():
                return replace(
                    stmt,
                    targets=tuple(map(of_target, stmt.targets)),
                    carries=tuple((of_target(target), expr) for target, expr in stmt.carries),
                    body=tuple(map(of_stmt, stmt.body)),
                )
            case _:
                return stmt

    def of_func(func: Func) -> Func:
        return replace(
            func,
            params=tuple(map(of_decl, func.params)),
            body=tuple(map(of_stmt, func.body)),
            returns=tuple((expr, layout.without_axis(axis)) for expr, layout in func.returns),
        )

    return replace(
        program,
        mesh=tuple(entry for entry in program.mesh if entry[0] != axis),
        dims=tuple(replace(dim, order=tuple(a for a in dim.order if a != axis)) for dim in program.dims),
        weights=tuple(map(of_decl, program.weights)),
        state=tuple(map(of_decl, program.state)),
        funcs=tuple(map(of_func, program.funcs)),
    )


def _tidied(program: Program) -> Program:
    """Without parameters, weights, state and dimensions that nobody names."""
    used = {word for func in program.funcs for word in _names(func)}
    funcs = tuple(replace(f, params=tuple(p for p in f.params if p.name in used)) for f in program.funcs)
    program = replace(
        program,
        funcs=funcs,
        weights=tuple(decl for decl in program.weights if decl.name in used),
        state=tuple(decl for decl in program.state if decl.name in used),
    )
    lines = [line for line in program.text().splitlines() if not line.startswith(("mesh ", "dim "))]
    text = "\n".join(lines) + " ".join(dim.text for dim in program.dims)
    return replace(program, dims=tuple(dim for dim in program.dims if dim.name in text))


def _names(func: Func) -> Iterator[str]:
    for expr, _ in func.returns:
        yield from (node.info for node in expr.walk() if node.op == "ref")
    stack: list[Stmt] = list(func.body)
    while stack:
        stmt = stack.pop()
        match stmt:
            case Assign(_, value):
                yield from (node.info for node in value.walk() if node.op == "ref")
            case SetState(state, value):
                yield state
                yield from (node.info for node in value.walk() if node.op == "ref")
            case Loop():
                stack.extend(stmt.body)
                for expr in (*(start for _, start in stmt.carries), *stmt.following):
                    yield from (node.info for node in expr.walk() if node.op == "ref")
            case _:
                pass
