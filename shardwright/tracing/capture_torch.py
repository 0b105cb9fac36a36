"""Modules of PyTorch as functions of JAX: what `torch.export` makes of them, with a function for each operation.

The graph is run on JAX's arrays while JAX traces, so that both frameworks share everything that comes after. Nothing
here says whether that is right: `trace` compares the program with the module itself.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportMissingParameterType=false
from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.backends.foreign import kernel_at
from shardwright.backends.torch_operations import FORMATS
from shardwright.tracing.by_indices import by_indices
from shardwright.tracing.places import is_users, of_function, place_of, untraceable

if TYPE_CHECKING:
    import numpy.typing as npt


_CHANGES = ("BUFFER_MUTATION", "PARAMETER_MUTATION")
"""The names of `torch.export` for results that become a module's own tensors."""


@dataclass(frozen=True)
class ExportedModule:
    """A module as a function of JAX of its weights by path, and of its arguments; the weights, and the arguments."""

    module: Any
    function: Callable[..., Any]
    weights: Mapping[str, npt.NDArray[Any]]
    arguments: Any
    """Example arguments as arrays of numpy."""
    examples: Any
    """The same as tensors."""
    lifted: frozenset[str] = frozenset()
    """The paths of tensors that the module makes itself, and that are none of its parameters or buffers."""
    changed: tuple[str, ...] = ()
    """The paths of buffers that a call changes: the function returns their new values after its results."""
    notes: tuple[str, ...] = ()
    """Remarks on what a call changes and the program does not."""

    def random_weights(self, seed: int) -> dict[str, npt.NDArray[Any]]:
        """The weights with noise on its parameters, so that none of them is all zeros or ones; buffers as they are."""
        random = np.random.default_rng(seed)
        parameters = {path for path, _ in self.module.named_parameters(remove_duplicate=False)}.difference(self.changed)
        return {
            path: (array + 0.1 * random.normal(size=array.shape)).astype(array.dtype) if path in parameters else array
            for path, array in self.weights.items()
        }

    def called(
        self, weights: Mapping[str, Any], leaves: Sequence[npt.NDArray[Any]]
    ) -> tuple[list[npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
        """The results of the module itself, with these weights in place of its own, and the buffers that it changes: by
        path, before they are again as they were."""
        import torch
        from torch.utils import _pytree as pytree

        own = _tensors_of(self.module, remove_duplicate=False)
        kept = {path: own[path].clone() for path in self.changed}
        arrays = {_memory(own[path]): array for path, array in weights.items() if path in own and path not in kept}
        # By one path of each module: `functional_call` leaves one that has several with what it was given.
        once = [path for name, each in self.module.named_modules() for path in _tensors_of(each, name, recurse=False)]
        state = {path: _tensor(arrays[_memory(own[path])], own[path]) for path in once if _memory(own[path]) in arrays}
        examples, tree = pytree.tree_flatten(self.examples)
        rest = iter(leaves)
        given = [example if example is None else _tensor(next(rest), example) for example in examples]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                results = torch.func.functional_call(
                    self.module, state, pytree.tree_unflatten(given, tree), tie_weights=False
                )
                found = [as_numpy(leaf.clone()) for leaf in pytree.tree_leaves(results) if torch.is_tensor(leaf)]
                return found, {path: as_numpy(own[path].clone()) for path in kept}
            except (IndexError, RuntimeError) as error:  # an index that is too large, say, which an export does not see
                said = f"{type(self.module).__name__} fails at these arguments: {type(error).__name__}: {error}"
                raise untraceable(said.partition("\n")[0], place_of(error)) from error
            finally:
                for path, before in kept.items():
                    own[path].copy_(before)


def is_module(value: Any) -> bool:
    """Tells whether a value is a module of PyTorch, without importing PyTorch."""
    return is_module_class(type(value))


def is_module_class(kind: type) -> bool:
    """Tells whether a class is one of modules of PyTorch, without importing PyTorch."""
    return any(base.__module__.partition(".")[0] == "torch" and base.__name__ == "Module" for base in kind.__mro__)


def require_no_tensors(args: Any, name: str, place: str) -> None:
    """Raises where example arguments of a function that is no module are tensors of PyTorch, without importing it."""
    import jax

    if any(type(leaf).__module__.partition(".")[0] == "torch" for leaf in jax.tree_util.tree_leaves(args)):
        reason = f"{name} is no torch.nn.Module, and its example arguments are tensors of PyTorch"
        way_out = "or a callable without arguments that returns one, whose forward gives what goes by keyword"
        raise of_function("untraceable", reason, place, name, f"trace a module, {way_out}")


def exported(module: Any, args: Sequence[Any]) -> ExportedModule:
    """The module at these example arguments, in evaluation mode, as `torch.export` takes it.

    A weight that several paths share goes by the first. Raises a `DiagnosticError` where the export fails.
    """
    import torch
    from torch.utils import _pytree as pytree

    # Each a tensor of its own: where two arguments are one, `torch.export` takes one argument for both.
    tensors = pytree.tree_map(lambda each: each if each is None else torch.as_tensor(each).clone(), tuple(args))
    module = module.eval()
    try:
        program = _exported(module, tensors)
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        cached = hasattr(getattr(module, "config", None), "use_cache") and "Cache" in str(error)
        way_out = ["it returns a cache, which is no array: set model.config.use_cache = False"] if cached else []
        if "DataDependent" in said:
            way_out = [
                "where values decide what runs, or how large results are, torch.where chooses among what is there"
            ]
        reason = f"torch.export cannot trace {type(module).__name__}: {said}"
        raise untraceable(reason, place_of(error), *way_out) from error
    values: dict[str, Any] = {**program.state_dict, **program.constants}
    stored = [str(spec.target) for spec in program.graph_signature.input_specs if spec.kind.name != "USER_INPUT"]
    first: dict[Any, str] = {}
    paths = {path: first.setdefault(_memory(values[path]), path) for path in stored}
    # The language has no complex weights, and none without elements.
    fixed = {path: values[path] for path in stored if values[path].is_complex() or not values[path].numel()}
    weights = {path: as_numpy(values[path]) for path in first.values() if path not in fixed}
    arguments = pytree.tree_map(lambda each: each if each is None else as_numpy(each), tensors)
    lifted = frozenset(program.constants).difference(_tensors_of(module, remove_duplicate=False))
    written = program.graph_signature.output_specs
    buffers = [str(spec.target) for spec in written if spec.kind.name in _CHANGES]
    changed = tuple(dict.fromkeys(paths[path] for path in buffers if path not in fixed))
    given = [str(spec.target) for spec in written if spec.kind.name == "USER_INPUT_MUTATION"]
    lost = [f"the buffer {path}" for path in buffers if path in fixed] + [f"its argument {name}" for name in given]
    notes = tuple(f"{type(module).__name__} changes {what} in place, and the program does not" for what in lost)
    function = _function(program, paths, fixed, changed)
    return ExportedModule(module, function, weights, arguments, tensors, lifted, changed, notes)


def _exported(module: Any, tensors: tuple[Any, ...]) -> Any:
    """The program of `torch.export`; by reading its bytecode where running it does not do, as for buffers that it also
    holds elsewhere. Raises what it raises when it is run."""
    import torch

    with _quietly(), torch.no_grad():
        try:
            return torch.export.export(module, tensors, strict=False).run_decompositions(_by_rank())
        except Exception:  # of any class: it is raised by what traces, interprets or decomposes
            with contextlib.suppress(Exception):
                return torch.export.export(module, tensors, strict=True).run_decompositions(_by_rank())
            raise


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """Drops what PyTorch warns about its own use of itself, and the graph that it prints where it gives up."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _by_rank() -> dict[Any, Callable[..., Any]]:
    """Operations that PyTorch calls by one name for any number of dimensions, by those for each."""
    import torch

    aten = torch.ops.aten
    sampled = {4: aten.grid_sampler_2d.default, 5: aten.grid_sampler_3d.default}
    return {aten.grid_sampler.default: lambda a, *others: sampled[a.ndim](a, *others)}


def as_numpy(tensor: Any) -> npt.NDArray[Any]:
    """A tensor as an array; numbers of 64 bits have 32 in the program."""
    import torch

    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.detach().float().numpy().astype(ml_dtypes.bfloat16)
    array = tensor.detach().cpu().numpy()
    narrower = {np.dtype("int64"): np.int32, np.dtype("float64"): np.float32, np.dtype("complex128"): np.complex64}.get(
        array.dtype
    )
    return array if narrower is None else array.astype(narrower)


def _tensors_of(module: Any, prefix: str = "", **options: bool) -> dict[str, Any]:
    """The parameters and buffers of a module by their paths."""
    return {**dict(module.named_parameters(prefix, **options)), **dict(module.named_buffers(prefix, **options))}


def _tensor(array: npt.NDArray[Any], like: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(array, np.float32 if like.is_floating_point() else None)).to(like.dtype)


def _memory(tensor: Any) -> tuple[object, ...]:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else (id(tensor),)


def _function(
    program: Any, paths: Mapping[str, str], fixed: Mapping[str, Any], changed: Sequence[str]
) -> Callable[..., Any]:
    """The exported graph as a function of weights by path and of the module's arguments, returning a flat list of
    results and of new values of what is `changed`."""
    graph = program.graph
    specs = program.graph_signature.input_specs
    results = [spec.kind.name == "USER_OUTPUT" for spec in program.graph_signature.output_specs]

    def run(weights: Mapping[str, Any], *args: Any) -> list[Any]:
        import jax

        leaves = iter(jax.tree_util.tree_leaves(args))
        known: dict[Any, Any] = {}
        inputs = iter(specs)
        for node in graph.nodes:
            if node.op == "placeholder":
                spec = next(inputs)
                if spec.kind.name == "USER_INPUT":
                    is_none = getattr(spec.arg, "value", "") is None  # a constant of `torch.export`
                    known[node] = None if is_none else next(leaves)
                else:
                    known[node] = fixed[spec.target] if spec.target in fixed else weights[paths[spec.target]]
            elif node.op == "call_function":
                known[node] = _apply(node, known)
            elif node.op == "output":
                kept = [each for each, is_result in zip(node.args[0], results, strict=True) if is_result]
                lacking = next((each for each in kept if each in known and known[each] is None), None)
                if lacking is not None and lacking.meta.get("val") is not None:
                    raise _refused(lacking, "this result of the operation has no counterpart in the language")
                new = {
                    paths[spec.target]: known[each]
                    for each, spec in zip(node.args[0], program.graph_signature.output_specs, strict=True)
                    if spec.kind.name in _CHANGES
                }
                return [*(known[each] for each in kept if each in known), *(new[path] for path in changed)]
            else:
                called = next(iter(node.users), node)
                raise _refused(called, f"{called.target} calls a graph, which has no counterpart in the language")
        raise AssertionError("a graph ends with what it returns")

    return run


def _apply(node: Any, known: Mapping[Any, Any]) -> Any:
    """The result of an operation: by PyTorch itself where nothing of it comes from weights or arguments."""
    import torch
    from torch.fx import node as fx_node
    from torch.utils import _pytree as pytree

    from shardwright.tracing.aten import operations

    def value(each: Any) -> Any:
        return known[each] if isinstance(each, torch.fx.Node) else each

    args, kwargs = (fx_node.map_aggregate(each, value) for each in (node.args, node.kwargs))
    name = str(node.target) if hasattr(node.target, "overloadpacket") else getattr(node.target, "__name__", "")
    operation = operations().get(name.split(".")[1] if "." in name else name)
    if operation is None and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise _refused(node, f"{name} draws random numbers", "give the module what it draws as an argument")
    if all(known[each] is None or _is_fixed(known[each]) for each in node.all_input_nodes):
        return node.target(*args, **kwargs)
    if kernel := kernel_at(name):
        operation = functools.partial(_kept, node, kernel)
    elif operation is None:
        raise _refused(node, f"{name} has no counterpart in the language", _WAYS_OUT.get(name, "") or _declared(name))
    args, kwargs = pytree.tree_map(
        lambda leaf: by_indices(as_numpy(leaf)) if torch.is_tensor(leaf) else leaf, (args, kwargs)
    )
    try:
        return operation(*args, **kwargs)
    except (TypeError, ValueError, NotImplementedError, IndexError) as error:
        said = str(error).partition(chr(10))[0]
        raise _refused(node, f"{name} with these arguments has no counterpart: {said}") from error


def _is_fixed(value: Any) -> bool:
    import torch

    return all(torch.is_tensor(leaf) for leaf in (value if isinstance(value, list | tuple) else [value]))


@functools.cache
def _primitive() -> Any:
    """A call of an operation of PyTorch by name, of which JAX knows the shapes and formats of the results."""
    from jax.core import ShapedArray
    from jax.extend.core import Primitive

    made = Primitive("kernel")
    made.multiple_results = True
    made.def_abstract_eval(lambda *_, results, **__: [ShapedArray(*each) for each in results])
    return made


def _kept(node: Any, kernel: str, *args: Any, **kwargs: Any) -> Any:
    """The results of an operation that is called by name. Arguments that are no tensors are its parameters, unless
    those of the schema's defaults; and so is an operand's format that the language lacks."""
    import jax.numpy as jnp
    import torch
    from torch.utils import _pytree as pytree

    from shardwright.tracing.aten.table import dtype_of

    schema = node.target._schema
    given = dict(zip((each.name for each in schema.arguments), node.args, strict=False)) | node.kwargs
    values = dict(zip((each.name for each in schema.arguments), args, strict=False)) | kwargs
    arrays: list[Any] = []
    params: dict[str, Any] = {}
    lacking: list[str] = []
    formats: dict[str, str] = {}
    for each in schema.arguments:
        value = values.get(each.name, each.default_value)
        if "Tensor" in str(each.type) and value is not None:
            if "List" in str(each.type):
                raise NotImplementedError(f"{each.name} is a list of tensors")
            arrays.append(jnp.asarray(value))
            params |= dict.fromkeys(lacking)  # operands fill the schema in its order
            lacking.clear()
            own = str(given[each.name].meta["val"].dtype).removeprefix("torch.")
            formats |= {each.name: own} if own in FORMATS else {}
        elif "Tensor" in str(each.type):
            lacking.append(each.name)
        elif value != each.default_value or not each.has_default_value():
            params[each.name] = value
    made = node.meta["val"]
    results = [made] if torch.is_tensor(made) else list(made)
    if not all(torch.is_tensor(each) and not each.is_complex() for each in results):
        raise NotImplementedError("it returns what is no tensor, or a complex one")
    text = json.dumps(params | ({"formats": formats} if formats else {}))
    shapes = tuple((tuple(each.shape), dtype_of(each.dtype)) for each in results)
    found = _primitive().bind(*arrays, kernel=kernel, params=text, results=shapes)
    return found[0] if torch.is_tensor(made) else pytree.tree_unflatten(found, pytree.tree_structure(made))


def _declared(name: str) -> str:
    """How a user has an operation called as it is."""
    own = name.removesuffix(".default")
    called = f'shardwright.kernel("a b, b c -> a c")(torch.ops.{own}), with its own axes'
    return f"write this line with other operations, or declare this one: {called}" if name.count(".") > 1 else ""


_WAYS_OUT: Mapping[str, str] = dict.fromkeys(
    ("aten.sort.default", "aten.histc.default", "aten.nonzero.default"),
    'where it sorts tokens by expert, model.set_experts_implementation("batched_mm") computes the same without',
) | {"aten.item.default": "leave it a tensor of no dimension to compute with; a size is a number of the module's own"}


def _refused(node: Any, reason: str, way_out: str = "") -> Exception:
    trace = node.meta.get("stack_trace") or ""
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace)
    files = [frame for frame in frames if Path(frame[0]).is_file()]
    own = [frame for frame in files if is_users(Path(frame[0]))] or files
    place = ":".join(own[-1]) if own else ""
    return untraceable(
        reason, place, way_out or "write this line with other operations, or trace the parts before and after it"
    )
