"""A tensor-parallel plan of `transformers` as a layout: modules by name, `*` for the number of a layer, and the style
in which each is split over all chips.

`ModelConfig.base_model_tp_plan` is one; the residual stream is whole on every chip. The output's table, which plans of
base models do not name, is split by `transformers` itself where it is not the input's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, Source, fault, located, nearest
from shardwright.ir.json_texts import json_of
from shardwright.models.description import Model
from shardwright.models.layouts import Axes, Preset, Role
from shardwright.models.weight_map import NUMBERED
from shardwright.models.weights import Weight, dims_of, model_weights

_ROWS = ("colwise", "colwise_gather_output", "colwise_rep", "packed_colwise", "embedding_rowwise")
_COLUMNS = ("rowwise", "rowwise_split_input")
_WHOLE = ("replicate", "replicated_with_grad_allreduce", "moe_tp_experts", "mla_kv_a_proj")
"""Styles by the dimension of the stored weight that they split: the first, the second, none."""

_EXPERTS = {"w_gate": "gate_up_proj", "w_up": "gate_up_proj", "w_down": "down_proj"}
"""The names of the experts' weights in `transformers`, which stacks them."""

_EXAMPLE = 'a tensor-parallel plan is as {"layers.*.mlp.up_proj": "colwise"}'

_SPLIT = (Role.HEADS, Role.FEEDFORWARD, Role.VOCAB, Role.TABLE)


def read_plan(path: str, model: Model) -> Preset:
    """The preset that lays weights out as the plan in a JSON file says.

    Raises a `DiagnosticError` where the file is no plan, names a module that the model lacks or a style that is no
    split of it, or splits the heads, the feedforward layers or a table in some of their weights and not in others.
    """
    with located(Source(path, "")):
        plan = _read(path)
        chosen: dict[Role, tuple[bool, str]] = {}
        used: set[str] = set()
        for weight in model_weights(model):
            key = _key(weight, plan)
            used.update({key} if key else ())
            style = plan.get(key, "replicate")
            if key not in plan and weight.name == "unembed":
                style = "colwise"
            for role, is_split in _splits(weight, style, key):
                other = chosen.setdefault(role, (is_split, key or _base_name(weight)))
                if other[0] != is_split:
                    raise fault(
                        "mixed-plan",
                        f"the plan splits {'' if other[0] else 'not '}{other[1]}, and"
                        f" {'' if is_split else 'not '}{key or _base_name(weight)}: {role.value} would lie in two ways",
                        NOWHERE,
                        "give both modules, or neither",
                    )
        others = [NUMBERED.sub("*", module) for module in model.modules.values()]  # of its variants too
        for key in plan:
            known = key in used or any(module == key or module.endswith(f".{key}") for module in others)
            if not known and not any(module.startswith(f"{key}.") for module in used):
                near = nearest(key, [_base_name(weight) for weight in model_weights(model)])
                raise fault("unknown-module", f"{model.architecture} has no module {key}", NOWHERE, near)
    axes = {role: Axes.ALL if chosen.get(role, (False, ""))[0] else Axes.NONE for role in _SPLIT}
    return Preset({Role.NORM: Axes.NONE, Role.EMBED: Axes.NONE, **axes}, residual=Axes.NONE, name=Path(path).name)


def _read(path: str) -> Mapping[str, str]:
    value = json_of(path, Path(path).read_bytes(), "no-plan", _EXAMPLE)
    if not isinstance(value, dict) or not value:
        why = "it is no object of modules and their styles"
        raise fault("no-plan", f"this is no tensor-parallel plan: {why}", NOWHERE, _EXAMPLE)
    styles = cast("dict[str, Any]", value)
    for module, style in styles.items():
        if style not in (*_ROWS, *_COLUMNS, *_WHOLE):
            raise fault(
                "unknown-style",
                f"{module}: {style!r} is no style that a program has; there are {', '.join((*_ROWS, *_COLUMNS))} and"
                f" {', '.join(_WHOLE)}",
                NOWHERE,
                *(
                    ["experts on chips of their own are a layout with --experts all-to-all"]
                    if style in ("grouped_gemm", "ep_dispatch_experts")
                    else []
                ),
            )
    return styles


def _module(weight: Weight) -> str:
    """The module of a weight as plans name it."""
    if "{expert}" in weight.tensor:
        return f"{NUMBERED.split(weight.tensor)[0]}*.mlp.experts.{_EXPERTS[weight.name]}"
    return NUMBERED.sub("*", weight.tensor.rpartition(".")[0])


def _base_name(weight: Weight) -> str:
    """The name of a module within the base model, as plans have it."""
    module = _module(weight)
    return module.partition(".")[2] or module


def _key(weight: Weight, plan: Mapping[str, str]) -> str:
    """The entry for a weight, whose module may stand under the base model; "" where there is none."""
    module = _module(weight)
    return next((key for key in plan if module == key or module.endswith(f".{key}")), "")


def _splits(weight: Weight, style: str, key: str) -> Iterator[tuple[Role, bool]]:
    """The roles of a weight's dimensions that a plan may split, and whether it does. Raises where the style splits
    another."""
    at = 0 if style in _ROWS else 1 if style in _COLUMNS else None
    if len(weight.stored) == 1 and at == 1:
        at = None  # the bias of a sum is added once
    roles = dict(zip(weight.dims, weight.roles, strict=True))
    for i, group in enumerate(weight.stored):
        names = [name for item in group for name in dims_of(item)]
        own = {role for name in names if (role := roles.get(name)) in _SPLIT}
        if i == at and not own and "E" in names:
            side = "in" if at else "out"
            raise fault(
                "no-such-split",
                f"{key}: {style} would split the width of the model, which goes {side}; the residual stream is whole",
                NOWHERE,
                f"take {'colwise' if at else 'rowwise'}",
            )
        yield from ((role, i == at) for role in sorted(own, key=lambda role: role.name))
