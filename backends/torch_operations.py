"""Operations of PyTorch that programs call by name: listed ones of its own, and those that users declare.

A name leads to a path below `torch.ops` here, or in a declaration, and nowhere else. What stands in a program beside it
are arguments of the operation's schema.
"""

# PyTorch and JAX are imported where they are needed alone, so nothing here has their types.
# pyright: basic
from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

ATEN: Mapping[str, tuple[str, str]] = {
    "aten_grid_sampler_2d": ("n c y x, n i j p -> n c i j", "n c"),
    "aten_grid_sampler_3d": ("n c z y x, n h i j p -> n c h i j", "n c"),
    "aten_max_pool2d_with_indices": ("n c y x -> n c i j, n c i j", "n c"),
    "aten_max_pool3d_with_indices": ("n c z y x -> n c h i j, n c h i j", "n c"),
    "aten_max_unpool2d": ("n c y x, n c y x -> n c i j", "n c"),
    "aten_max_unpool3d": ("n c z y x, n c z y x -> n c h i j", "n c"),
}
"""The axes of operands and results, and those that chips may divide between them."""

FORMATS = ("uint8", "int16", "int32")
"""Formats that an operation may want integers in; others are given in 64 bits."""


def listed_path(name: str) -> str:
    """The place below `torch.ops` of an operation of the list, "" of others."""
    return f"{name.replace('_', '.', 1)}.default" if name in ATEN else ""


def path_of(function: Any) -> str:
    """The place below `torch.ops` of an operation, "" of what is none. Of a packet of overloads it is that of the one
    called `default`."""
    overload = getattr(function, "_opoverload", function)  # so `torch.library.custom_op` has it
    if type(overload).__module__ != "torch._ops":
        return ""
    return str(overload) if hasattr(overload, "overloadpacket") else f"{overload}.default"


# Emitted modules have the source of these two, where nothing has a type and each imports what it needs.


def schema_arguments(operation, tensors, params, torch):
    # type: (Any, Sequence[Any], Mapping[str, Any], Any) -> tuple[list[Any], dict[str, Any]]
    """Positional arguments, and those by keyword, of an operation: the tensors fill those of the schema in their order,
    but for what `params` have."""
    schema = operation._schema.arguments
    formats = params.get("formats", {})
    names = [each.name for each in schema if "Tensor" in str(each.type) and each.name not in params]
    known = {**params, **dict(zip(names, tensors, strict=False))}
    for name in names:
        if name in formats:
            known[name] = known[name].to(getattr(torch, formats[name]))
    if strange := set(known).difference((each.name for each in schema), ["formats"]):
        raise TypeError(f"{operation} has no argument {min(strange)}")
    values = [(each, known.get(each.name, each.default_value)) for each in schema]
    return [value for each, value in values if not each.kwarg_only], {
        each.name: value for each, value in values if each.kwarg_only
    }


def torch_operation(path, *arrays, **params):
    # type: (str, *Any, **Any) -> Any
    """An operation of PyTorch for arrays of JAX, computed on the host, with PyTorch's derivative."""
    import operator

    import jax
    import numpy as np
    import torch

    operation = operator.attrgetter(path)(torch.ops)
    floats = [i for i, array in enumerate(arrays) if jax.numpy.issubdtype(array.dtype, np.floating)]

    def tensor(array, device):
        kind = np.dtype(array.dtype)
        dtype = getattr(torch, "int64" if kind.kind in "iu" and kind.itemsize > 1 else kind.name)
        if device == "meta":
            return torch.empty(array.shape, dtype=dtype, device=device)
        return torch.from_numpy(np.array(array, None if kind.isbuiltin else "float32")).to(dtype)

    def format_of(tensor):
        name = str(tensor.dtype).partition(".")[2]
        return jax.numpy.dtype({"int64": "int32", "float64": "float32"}.get(name, name))

    def as_array(tensor):
        tensor = tensor.detach()
        return np.asarray(tensor.float() if tensor.is_floating_point() else tensor).astype(format_of(tensor))

    def shapes(tensors):
        return [jax.ShapeDtypeStruct(tuple(each.shape), format_of(each)) for each in tensors]

    def called(arrays, device="cpu", given=None):
        """The results, or, with what is given for each result, what comes back to each operand of floats."""
        operands = [tensor(array, device) for array in arrays]
        with torch.set_grad_enabled(given is not None):
            leaves = [operands[i].requires_grad_(given is not None) for i in floats]
            args, words = schema_arguments(operation, operands, params, torch)
            made = operation(*args, **words)
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        if given is None:
            return made
        given = [
            tensor(each, device) if device == "cpu" else torch.empty_like(one)
            for each, one in zip(given, made, strict=True)
        ]
        kept = [i for i, each in enumerate(made) if each.requires_grad]
        if not kept:
            raise NotImplementedError(f"{path} has no derivative in PyTorch")
        return torch.autograd.grad(
            [made[i] for i in kept], leaves, [given[i] for i in kept], allow_unused=True, materialize_grads=True
        )  # fmt: skip

    results = shapes(called(arrays, "meta"))

    @jax.custom_vjp
    def run(*arrays):
        return jax.pure_callback(lambda *own: list(map(as_array, called(own))), results, *arrays)

    def forward(*arrays):
        called(arrays, "meta", results)  # which fails where there is no derivative
        return run(*arrays), arrays

    def backward(arrays, given):
        n = len(arrays)
        given = [jax.numpy.zeros(each.shape, each.dtype) if one.dtype == jax.dtypes.float0 else one
                 for one, each in zip(given, results, strict=True)]  # fmt: skip
        back = iter(
            jax.pure_callback(
                lambda *own: list(map(as_array, called(own[:n], "cpu", own[n:]))),
                [jax.ShapeDtypeStruct(arrays[i].shape, arrays[i].dtype) for i in floats],
                *arrays,
                *given,
            )
        )
        return tuple(next(back) if i in floats else np.zeros(array.shape, jax.dtypes.float0)
                     for i, array in enumerate(arrays))  # fmt: skip

    run.defvjp(forward, backward)
    made = run(*arrays)
    return made if len(made) > 1 else made[0]


def torch_flops(path: str, operands: Sequence[tuple[Sequence[int], str]], params: Mapping[str, Any]) -> float:
    """The flops that PyTorch counts for an operation at operands of these shapes and formats; 0 where it has no formula
    (`torch.utils.flop_counter.register_flop_formula`)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    operation: Any = operator.attrgetter(path)(torch.ops)
    with FlopCounterMode(display=False) as counter:
        if operation.overloadpacket not in counter.flop_registry:
            return 0
        tensors = [torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for shape, dtype in operands]
        args, words = schema_arguments(operation, tensors, params, torch)
        operation(*args, **words)
    return float(counter.get_total_flops())
