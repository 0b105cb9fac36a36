"""The beginning of an emitted module: its docstring, imports, mesh, and how arrays lie on it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from shardwright.backends.jax.edges import ProgramEdges
from shardwright.backends.jax.source_text import JAX_DTYPES, broken, commented, docstring_lines, tuple_text
from shardwright.ir.program import Func, Program


def has_globals(program: Program) -> bool:
    """Tells whether functions take and return weights and state."""
    return bool(program.weights or program.state)


def docstring(program: Program, header: Sequence[str], edges: ProgramEdges) -> list[str]:
    """The module's docstring: the header, every function with its types, and what its arrays are."""
    lines = [line for text in header for line in docstring_lines(text)] or ["A sharded program for JAX."]
    if lines[-1]:
        lines.append("")
    lines.extend(["build_NAME(mesh) makes a jitted function of global arrays:", ""])
    for func in program.funcs:
        lines.extend(f"    {line}" for line in signature(program, func))
    lines.append("")
    lines.append("A single result comes bare, several come as a tuple.")
    if has_globals(program):
        lines.append(
            "weights and state are dicts of what WEIGHTS and STATE list; the state is donated and comes back new."
        )
    reshaped = [
        f"    {func.name}: {way} {name}: {edge.kind} as {tuple_text([str(n) for n in edge.shape])}"
        for func in program.funcs
        for way, row in (("takes", edges.params(func)), ("returns", edges.results(func)))
        for name, edge in row
        if edge.is_reshaped
    ]
    if reshaped:
        lines.append(
            "Where chips hold other than blocks, an array has a dimension for each digit of the index; addends (or"
        )
        lines.append(
            "maximands) have a leading dimension for each axis of the mesh along which they are to be added up:"
        )
        lines.extend(["", *(line for text in reshaped for line in docstring_lines(text))])
    return ['"""' + lines[0], *(line.rstrip() for line in lines[1:]), '"""', ""]


def signature(program: Program, func: Func) -> list[str]:
    """A function with its types: `f(x: f32 BE_x) -> f32 B`, on several lines if it is long."""
    params = [f"{value.name}: {value.type}" for value in func.params]
    results = [str(kind) for kind in func.results]
    made = results[0] if len(results) == 1 else f"({', '.join(results)})"
    if has_globals(program):
        params, made = ["weights", "state", *params], f"({made}, state)"
    margin = " " * 11  # indentation and the quotes of a docstring
    lines = broken(f"{func.name}({', '.join(params)}) -> {made}", margin)
    return [line.removeprefix(margin) for line in lines]


_MODULES = ("functools", "itertools", "json", "math", "pathlib", "re")


def import_lines(body: Iterable[str]) -> list[str]:
    """The imports that the rest of the module uses."""
    text = "\n".join(body)
    used = [f"import {name}" for name in _MODULES if re.search(rf"\b{name}\.[a-zA-Z]", text)]
    lines = [*used, ""] if used else []
    lines.append("import jax")
    if "jnp." in text:
        lines.append("import jax.numpy as jnp")
    if "np." in text.replace("jnp.", ""):
        lines.append("import numpy as np")
    if "lax." in text:
        lines.append("from jax import lax")
    if "pl.pallas_call(" in text:
        lines.append("from jax.experimental import pallas as pl")
    laying = [name for name in ("Format", "Layout", "with_layout_constraint") if re.search(rf"\b{name}\(", text)]
    if laying:
        lines.append(f"from jax.experimental.layout import {', '.join(laying)}")
    if "pltpu." in text:
        lines.append("from jax.experimental.pallas import tpu as pltpu")
    sharding = "NamedSharding, " if "NamedSharding(" in text else ""
    lines.append(f"from jax.sharding import AxisType, {sharding}PartitionSpec as P")
    return [*lines, ""]


def mesh_lines(program: Program) -> list[str]:
    """MESH_SHAPE and make_mesh."""
    shape = ", ".join(f"{name!r}: {size}" for name, size in program.mesh.sizes)
    n = program.mesh.n_chips
    devices = f"{n} devices" if n > 1 else "one device"
    make = "jax.make_mesh(tuple(MESH_SHAPE.values()), tuple(MESH_SHAPE), axis_types=axis_types"
    return [
        f"MESH_SHAPE = {{{shape}}}",
        "",
        "",
        "def make_mesh(devices=None):",
        f'    """The mesh of {devices}, the first of jax.devices() if none are given."""',
        "    devices = list(jax.devices() if devices is None else devices)",
        f"    if len(devices) < {n}:",
        f"        raise ValueError(f'the mesh {{MESH_SHAPE}} needs {devices}, and there are {{len(devices)}}')",
        "    axis_types = (AxisType.Auto,) * len(MESH_SHAPE)",
        f"    return {make}, devices=devices[:{n}])",
    ]


def spec_lines(program: Program, edges: ProgramEdges) -> list[str]:
    """IN_SPECS, OUT_SPECS and IN_SHAPES."""
    lines = [
        "",
        "",
        "# function: (the layout of each array that it takes, or returns; see WEIGHTS and STATE for theirs)",
    ]
    if not has_globals(program):
        lines[-1] = "# function: (the layout of each array that it takes, or returns)"
    for title, of in (("IN_SPECS", edges.params), ("OUT_SPECS", edges.results)):
        lines.append(f"{title} = {{")
        for func in program.funcs:
            row = of(func)
            specs = tuple_text([edge.spec for _, edge in row]) if row else "()"
            entry = f"{func.name!r}: {specs},"
            lines.extend(commented(entry, ", ".join(name for name, _ in row), "    ") if row else [f"    {entry}"])
        lines.append("}")
    lines.extend(["# function: (the shape and number format of each array that it takes)", "IN_SHAPES = {"])
    for func in program.funcs:
        shapes = [
            f"({tuple_text([str(n) for n in edge.shape]) if edge.shape else '()'}, {JAX_DTYPES[edge.kind.dtype]})"
            for _, edge in edges.params(func)
        ]
        lines.extend(broken(f"{func.name!r}: {tuple_text(shapes) if shapes else '()'},", "    "))
    return [*lines, "}"]


_ON_MESH = """

def on_mesh(name, function, mesh):
    '''A function of one chip's arrays as one of arrays that lie on the mesh as IN_SPECS and OUT_SPECS say.'''
    sizes = {axis: size for axis, size in mesh.shape.items() if size > 1 or axis in MESH_SHAPE}
    if sizes != MESH_SHAPE:
        raise ValueError(
            f'build_{name} is compiled for the mesh {MESH_SHAPE}, and this one is {dict(mesh.shape)}:'
            ' take one of these sizes, as make_mesh() makes it, or compile the program for this one (--mesh)'
        )
    in_specs, out_specs = IN_SPECS[name], OUT_SPECS[name]
    out_specs = out_specs[0] if len(out_specs) == 1 else out_specs
    STORED
    mapped = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True)
    if AxisType.Auto in mesh.axis_types:
        return mapped

    def placed(*args):  # along explicit axes JAX lays nothing as the specs say without being told to
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), in_specs)
        return mapped(*jax.sharding.reshard(args, shardings))

    placed.__name__ = name
    return placed"""

_STORED = [
    "    stored = [{key: spec for key, (_, _, spec) in table.items()} for table in (WEIGHTS, STATE)]",
    "    in_specs, out_specs = (*stored, *in_specs), (out_specs, stored[1])",
]


def on_mesh_lines(program: Program) -> list[str]:
    """The function that lays those of the program over a mesh, once for all builders."""
    lines: list[str] = []
    for line in _ON_MESH.replace("'''", '"""').splitlines():
        if line.strip() == "STORED":
            lines.extend(_STORED if has_globals(program) else [])
        else:
            lines.append(line)
    return lines


Orders = Mapping[str, tuple[int, ...]]
"""The dimensions of weights from major to minor, where they do not lie in their own order (`weight_orders`)."""


def placement(program: Program, edges: ProgramEdges, orders: Orders) -> tuple[str, list[str]]:
    """How the functions of a module that place arrays lay the array `name` over `mesh`, and the lines that say so for
    those that lie on the host or in another order: ON_HOST, ORDERS, and a function of theirs."""
    hosted = [value.name for value in (*program.weights, *program.state) if edges.stored(value).on_host]
    if not hosted and not orders:
        return "NamedSharding(mesh, spec)", []
    lines = [f"ON_HOST = {{{', '.join(map(repr, hosted))}}}"] if hosted else []
    if orders:
        lines.append("# name: its dimensions from major to minor in the memory of TPUs, where products read it so")
        lines.extend(broken(f"ORDERS = {{{', '.join(f'{name!r}: {order}' for name, order in orders.items())}}}", ""))
    memory = ", memory_kind='pinned_host' if name in ON_HOST else None" if hosted else ""
    lines.extend(
        [
            "",
            "",
            "def laid(name, spec, mesh):",
            '    """How an array lies: over the devices of the mesh, and in their memory."""',
            f"    sharding = NamedSharding(mesh, spec{memory})",
        ]
    )
    if orders:
        lines.append("    if name in ORDERS and mesh.devices.flat[0].platform == 'tpu':")
        lines.append("        return Format(Layout(ORDERS[name]), sharding)")
    return "laid(name, spec, mesh)", [*lines, "    return sharding"]


def table_lines(program: Program, edges: ProgramEdges, place: str, laying: Sequence[str]) -> list[str]:
    """WEIGHTS and STATE, and the functions that place arrays as these and `placement` say."""
    stored = {value.name: edges.stored(value) for value in (*program.weights, *program.state)}
    lines = ["", "", "# name: (shape, number format, layout)"]
    if any(edge.is_strided for edge in stored.values()):
        lines.append("# Where chips hold other than blocks, the shape has one dimension for each digit of an index.")
    if any(edge.addends for edge in stored.values()):
        lines.append("# Partial values have leading dimensions for their addends.")
    for title, values in (("WEIGHTS", program.weights), ("STATE", program.state)):
        lines.append(f"{title} = {{")
        for value in values:
            edge = stored[value.name]
            shape = tuple_text([str(n) for n in edge.shape]) if edge.shape else "()"
            entry = f"{value.name!r}: ({shape}, {JAX_DTYPES[edge.kind.dtype]}, {edge.spec}),"
            lines.extend(commented(entry, str(edge.kind), "    "))
        lines.append("}")
    lines.extend(laying)
    lines.extend(
        [
            "",
            "",
            "def put(arrays, table, mesh):",
            '    """Puts arrays by name on the mesh, as `table`, WEIGHTS or STATE, says."""',
            "    placed = {}",
            "    for name, (shape, dtype, spec) in table.items():",
            f"        sharding = {place}",
            "        placed[name] = jax.device_put(np.asarray(arrays[name], dtype).reshape(shape), sharding)",
            "    return placed",
        ]
    )
    if program.state:
        lines.extend(
            [
                "",
                "",
                "def zero_state(mesh):",
                '    """State of zeros, made on the mesh."""',
                f"    shardings = {{name: {place} for name, (_, _, spec) in STATE.items()}}",
                "    zeros = jax.jit(",
                "        lambda: {name: jnp.zeros(shape, dtype) for name, (shape, dtype, _) in STATE.items()},",
                "        out_shardings=shardings,",
                "    )",
                "    return zeros()",
            ]
        )
    return lines
