"""Operations of PyTorch that the language has no words for: some become words that it has, others go by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Outcome
from torch import Tensor, nn
from torch.nn import functional

import shardwright
from shardwright import DiagnosticError, bytes_received, compile_program, evaluate, explicit, load, trace
from shardwright.backends import foreign
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.torch.session import run_program
from shardwright.backends.torch.world import alone
from shardwright.backends.validation.validate import validate
from shardwright.ir.diagnostics import Source


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


class Layer(nn.Module):
    """A recurrent layer, whose results are a tensor and a state of one or two."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, state = self.layer(x)
        return (y, *state) if isinstance(state, tuple) else (y, state)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


AT = torch.tensor([[0, 1, 0], [2, 2, 1]])
POOLED = "aten_max_pool2d_with_indices"
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], set[str]]] = {
    "upsampling by a product": (lambda: nn.ConvTranspose2d(4, 6, (2, 3), (2, 3)), (normal(2, 4, 5, 3),), set()),
    "windows that meet": (
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), 1, (1, 2), 2, dilation=(2, 1)), (normal(2, 4, 5, 6),),
        {"conv_general_dilated"},
    ),
    "one axis": (lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), (normal(4, 5),), {"conv_general_dilated"}),
    "lstm": (lambda: Layer(nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)), (normal(2, 5, 8),), set()),
    "projected lstm": (lambda: Layer(nn.LSTM(8, 6, proj_size=3, bias=False)), (normal(5, 2, 8),), set()),
    "gru": (lambda: Layer(nn.GRU(8, 6)), (normal(5, 8),), set()),
    "rnn": (lambda: Layer(nn.RNN(8, 6, nonlinearity="relu", batch_first=True)), (normal(2, 5, 8),), set()),
    "lstm cell": (lambda: nn.LSTMCell(8, 6), (normal(2, 8),), set()),
    "gru cell": (lambda: nn.GRUCell(8, 6, bias=False), (normal(2, 8), normal(2, 6)), set()),
    "greatest of rows": (lambda: Of(lambda a, b: a.scatter_reduce(1, AT, b, "amax")), (normal(2, 4), normal(2, 3)),
                         set()),
    "least, alone": (
        lambda: Of(lambda a, b: a.scatter_reduce(1, AT, b, "amin", include_self=False)), (normal(3, 4), normal(2, 3)),
        set(),
    ),
    "products": (lambda: Of(lambda a, b: a.scatter(1, AT, b, reduce="multiply")), (normal(2, 4), normal(2, 3)),
                 {"reduce_prod"}),
    "means": (lambda: Of(lambda a, b: a.scatter_reduce(1, AT, b, "mean")), (normal(2, 4), normal(2, 3)), set()),
    "integers": (
        lambda: Of(lambda a, b: (a.scatter_reduce(1, AT, b, "amin"), a.index_reduce(0, AT[1], b, "amax"))),
        (torch.arange(-5, 4).reshape(3, 3), torch.arange(9).reshape(3, 3)), set(),
    ),
    "running extremes": (lambda: Of(lambda a: (*a.cummax(1), *a.cummin(0))), (normal(4, 6).round(),),
                         {"cummax", "cummin"}),
    "order": (
        lambda: Of(lambda a: (*a.kthvalue(2), a.median(), *a.median(0), a.msort(), a.quantile(0.3, 1))),
        (normal(4, 6),), set(),
    ),
    "other sizes": (
        lambda: Of(lambda a: [
            functional.interpolate(a, scale_factor=2), functional.interpolate(a, size=(3, 11)),
            functional.interpolate(a, scale_factor=1.7, mode="bilinear"),
            functional.interpolate(a, size=(7, 3), mode="bicubic", antialias=True),
            functional.interpolate(a, size=(9, 9), mode="bilinear", align_corners=True),
        ]), (normal(2, 3, 5, 6),), set(),
    ),
    "windows apart": (lambda: nn.Sequential(nn.Unfold(3, padding=1), nn.Fold((5, 6), 3, padding=1)),
                      (normal(2, 3, 5, 6),), set()),
    "pools": (
        lambda: nn.Sequential(nn.MaxPool2d(3, 2, 1, dilation=2), nn.AvgPool2d(2, 2, 1, ceil_mode=True),
                              nn.AdaptiveAvgPool2d((3, 2))),
        (normal(2, 3, 17, 18),), {"reduce_window_max", "reduce_window_sum"},
    ),
    "norms and shuffles": (
        lambda: nn.Sequential(nn.InstanceNorm2d(3, affine=True), nn.PixelUnshuffle(2)), (normal(2, 3, 4, 6),), set(),
    ),
    "places": (lambda: Of(lambda a: functional.affine_grid(a, [2, 3, 4, 5], align_corners=False)), (normal(2, 2, 3),),
               set()),
    "distances": (lambda: Of(torch.cdist), (normal(4, 8), normal(5, 8)), set()),
    "bags": (lambda: nn.EmbeddingBag(10, 4, mode="max"), (torch.arange(15).reshape(3, 5) % 10,), set()),
    "merged images": (lambda: Of(lambda a, b: a.masked_scatter(a > 0, b)), (normal(2, 4), normal(2, 4)), set()),
    "sampled images": (
        lambda: Of(lambda a, g: functional.grid_sample(a, g.tanh(), padding_mode="border", align_corners=True)),
        (normal(4, 3, 5, 6), normal(4, 4, 3, 2)), {"aten_grid_sampler_2d"},
    ),
    "sampled volumes": (
        lambda: Of(lambda a, g: functional.grid_sample(a, g, align_corners=False)),
        (normal(1, 3, 5, 6, 4), normal(1, 4, 3, 2, 3)), {"aten_grid_sampler_3d"},
    ),
    "a pool undone": (
        lambda: Of(lambda a: functional.max_unpool2d(*functional.max_pool2d(a, 2, return_indices=True), 2)),
        (normal(2, 3, 4, 6),), {POOLED, "aten_max_unpool2d"},
    ),
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, of its own operations
@pytest.mark.parametrize("name", MODULES)
def test_means_what_the_module_computes(name: str) -> None:
    build, args, opaque = MODULES[name]
    torch.manual_seed(0)
    module = build().eval()
    traced = trace(module, args)
    assert traced.largest_relative_difference < 1e-5
    assert set(traced.opaque) == opaque
    (func,) = traced.program.funcs
    given = {value.name: arg.numpy().astype(np.float32 if arg.is_floating_point() else np.int32)
             for value, arg in zip(func.params, args, strict=True)}  # fmt: skip
    found, _ = evaluate(traced.program, func.name, given, traced.weights)
    with torch.no_grad():
        expected = [leaf for leaf in torch.utils._pytree.tree_leaves(module(*args)) if leaf is not None]
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one.numpy(), rtol=1e-4, atol=1e-5)


def test_steps_of_a_layer_are_a_loop() -> None:
    traced = trace(Layer(nn.LSTM(8, 6)), (normal(5, 2, 8),), mesh={"x": 2})
    assert traced.text.count("loop[") == 1
    assert validate(traced.program, explicit(traced.program)).largest_difference < 1e-12


# ---------------------------------------------------------------- operations of one's own


@pytest.fixture
def swizzle() -> Iterator[Any]:
    with torch.library._scoped_library("mine", "DEF"):

        @torch.library.custom_op("mine::swizzle", mutates_args=())
        def swizzle(x: Tensor, k: int, rows: Tensor | None = None) -> Tensor:
            return torch.roll(x, k, -1) * 2 + (0 if rows is None else rows.to(x.dtype))

        @swizzle.register_fake
        def _(x: Tensor, k: int, rows: Tensor | None = None) -> Tensor:
            assert rows is None or rows.dtype == torch.int32
            return torch.empty_like(x)

        yield swizzle
    foreign.KERNELS.pop("swizzle", None)


class Mixed(nn.Module):
    def __init__(self, swizzle: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.swizzle = nn.Linear(6, 8), swizzle

    def forward(self, x: Tensor) -> Tensor:
        return self.swizzle(self.first(x), 3).relu()


ARGS = (normal(4, 6),)


def test_an_operation_that_nobody_declares_is_refused_and_how_to_is_said(swizzle: Any) -> None:
    with pytest.raises(DiagnosticError) as caught:
        trace(Mixed(swizzle), ARGS)
    place, *_, note = caught.value.render().splitlines()
    assert re.match(r".*test_torch_opaque.py:\d+:\d+: error: mine.swizzle.default has no counterpart", place)
    assert note == (
        'note: write this line with other operations, or declare this one: shardwright.kernel("a b, b c -> a c")'
        "(torch.ops.mine.swizzle), with its own axes"
    )


def test_every_backend_calls_it(swizzle: Any) -> None:
    assert shardwright.kernel("b t -> b t", splits="b")(swizzle) is swizzle
    module = Mixed(swizzle)
    traced = trace(module, ARGS, mesh={"x": 2})
    assert traced.largest_relative_difference < 1e-6
    assert traced.opaque == ("swizzle",)
    assert """foreign[swizzle, BF, f32, splits=B, params='{"k": 3}'](""" in traced.text
    with torch.no_grad():
        expected = module(*ARGS).numpy()
    compiled = compile_program(traced.program, objective="bytes")
    assert bytes_received(compiled.program, compiled.program.funcs[0]).bytes == 0
    assert validate(traced.program, explicit(traced.program)).largest_difference < 1e-12
    found, _ = shardwright.run(traced.program, "mixed", [ARGS[0].numpy()], traced.weights)
    np.testing.assert_allclose(np.asarray(found[0]), expected, atol=1e-5)
    one = explicit(trace(module, ARGS).program)
    given = {one.funcs[0].params[0].name: ARGS[0].numpy()}
    made, _ = run_program(one, "mixed", given, traced.weights, world=alone())
    np.testing.assert_allclose(made[0], expected, atol=1e-5)
    text = compile_program(one, to="torch").text
    assert "torch.ops.mine.swizzle.default(add, 3, None)" in text
    assert "torch_operation('mine.swizzle.default', " in compile_program(one).text


def test_what_is_declared_elsewhere_is_put_into_a_module(swizzle: Any) -> None:
    shardwright.kernel("b t -> b t", splits="b")(swizzle)
    program = explicit(trace(Mixed(swizzle), ARGS).program)
    weights = trace(Mixed(swizzle), ARGS).weights
    declared = foreign.KERNELS.pop("swizzle")
    with pytest.raises(DiagnosticError, match="the program calls swizzle, which is no function of"):
        evaluate(program, "mixed", {program.funcs[0].params[0].name: ARGS[0].numpy()}, weights)
    text = compile_program(program).text
    assert "KERNELS['swizzle'](add, k=3)" in text
    foreign.KERNELS["swizzle"] = declared
    module = load_module(text)
    found, _ = module.build_mixed(module.make_mesh())(weights, {}, ARGS[0].numpy())
    with torch.no_grad():
        np.testing.assert_allclose(found, Mixed(swizzle)(*ARGS).numpy(), atol=1e-5)


def test_formats_that_programs_lack(swizzle: Any) -> None:
    shardwright.kernel("b t, t -> b t", splits="b")(swizzle)
    rows = torch.arange(6, dtype=torch.int32)
    traced = trace(Of(lambda x, rows: swizzle(x, 0, rows)), (*ARGS, rows), name="f")
    assert """params='{"k": 0, "formats": {"rows": "int32"}}'""" in traced.text
    assert traced.largest_relative_difference < 1e-6
    other = load(Source("<f>", traced.text.replace('"int32"', '"Tensor"')))
    given = zip((value.name for value in other.funcs[0].params), (ARGS[0].numpy(), rows.numpy()), strict=True)
    with pytest.raises(DiagnosticError, match="foreign: formats are those of integers: uint8, int16, int32"):
        evaluate(other, "f", dict(given))


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ("b -> b", r"kernel is swizzle, declared with b for an operand of shape \(4, 6\)"),
        ("b b2 -> b2 b", "kernel is swizzle, whose axis b2 has 6 and 4"),
    ],
)
def test_declarations_that_do_not_fit(swizzle: Any, axes: str, said: str) -> None:
    shardwright.kernel(axes)(swizzle)
    with pytest.raises(DiagnosticError, match=said):
        trace(Of(lambda x: swizzle(x, 1)), ARGS)


def test_gradients_are_those_of_pytorch(swizzle: Any) -> None:
    import jax

    library: Any = jax

    def built(module: nn.Module, args: tuple[Tensor, ...]) -> Any:
        traced = trace(module, args, name="f")
        emitted = load_module(compile_program(traced.program).text)
        f = emitted.build_f(emitted.make_mesh())
        return f if not traced.weights else lambda *given: f(traced.weights, {}, *given)[0]

    def loss(f: Any) -> Any:
        return lambda *given: (f(*given) ** 2).sum()

    args = (normal(4, 3, 5, 6), normal(4, 4, 3, 2))
    sampled = Of(lambda a, g: functional.grid_sample(a, g, align_corners=False))
    own = library.jit(library.grad(loss(built(sampled, args)), (0, 1)))(*(arg.numpy() for arg in args))
    for arg in args:
        arg.requires_grad_()
    (sampled(*args) ** 2).sum().backward()
    for one, arg in zip(own, args, strict=True):
        np.testing.assert_allclose(one, arg.grad, rtol=1e-4, atol=1e-5)
    shardwright.kernel("b t -> b t")(swizzle)
    f = built(Of(lambda x: swizzle(x, 1)), ARGS)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        library.grad(loss(f))(ARGS[0].numpy())


def test_flops_are_those_that_pytorch_has_a_formula_for() -> None:
    from shardwright.backends.torch_operations import torch_flops

    assert torch_flops("aten.mm.default", [((4, 6), "float32"), ((6, 8), "float32")], {}) == 2 * 4 * 6 * 8
    assert torch_flops("aten.grid_sampler_2d.default", [], {}) == 0


def definite(a: Tensor) -> Tensor:
    return a @ a.mT + 3 * torch.eye(a.shape[-2])


DECOMPOSITIONS: dict[str, Callable[[Tensor], Any]] = {
    "rfft": lambda a: torch.fft.irfft(torch.fft.rfft(a) * torch.complex(a[..., :3], -a[..., 2:5]), n=a.shape[-1]),
    "fft2": lambda a: torch.fft.fftshift(torch.fft.ifft2(torch.fft.fft2(a, norm="ortho")).abs()),
    "view": lambda a: torch.view_as_real(torch.fft.ifft(torch.view_as_complex(torch.stack([a, a * 2], -1)), dim=1)),
    "svd": lambda a: torch.linalg.svd(a, full_matrices=False),
    "qr": torch.linalg.qr,
    "eigh": lambda a: (*torch.linalg.eigh(definite(a)), torch.linalg.eigvalsh(definite(a))),
    "lu": lambda a: (*torch.linalg.lu(a), torch.linalg.lu_factor(a)[1]),
    "solve": lambda a: (torch.linalg.solve(definite(a), a), torch.linalg.solve(definite(a), a.mT, left=False)),
    "inverses": lambda a: (torch.linalg.inv(definite(a)), torch.linalg.pinv(a), torch.linalg.matrix_power(a @ a.mT, 3)),
    "triangles": lambda a: (
        torch.cholesky_solve(a, torch.linalg.cholesky(definite(a))),
        torch.linalg.solve_triangular(definite(a).tril(), a, upper=False, unitriangular=True),
    ),
    "numbers": lambda a: (
        torch.linalg.det(definite(a)), torch.logdet(definite(a)), *torch.linalg.slogdet(definite(a)),
        torch.linalg.matrix_norm(a, 2), torch.linalg.cond(definite(a)),
    ),
    "exponential": lambda a: torch.matrix_exp(a[:, :, :4] * 0.1),
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decompositions_and_transforms(name: str) -> None:
    assert trace(Of(DECOMPOSITIONS[name]), (normal(2, 4, 5),)).largest_relative_difference < 1e-5


def test_random_numbers_are_refused() -> None:
    for function in (lambda a: a + torch.randn(4), lambda a: torch.multinomial(a.exp(), 2)):
        with pytest.raises(DiagnosticError, match=r"aten\.(randn|multinomial)\.default draws random numbers"):
            trace(Of(function), (normal(2, 4),))


def test_results_that_have_no_counterpart_are_refused() -> None:
    with pytest.raises(DiagnosticError, match="this result of the operation has no counterpart"):
        trace(Of(lambda a: torch.native_layer_norm(a, [4], None, None, 1e-5)), (normal(2, 4),))


@pytest.mark.parametrize("name", ["aten_from_file", "aten_save", "torch_ops", "aten"])
def test_programs_call_what_is_listed_alone(name: str) -> None:
    text = f"""dim B=4 T=6\nfunc f(a: f32 BT) -> f32 BT {{ return foreign[{name}, BT, f32](a) }}\n"""
    with pytest.raises(DiagnosticError, match=f"the program calls {name}, which is no function"):
        evaluate(load(Source("<f>", text)), "f", {"a": ARGS[0].numpy()})


def test_the_command(shardwright: Callable[..., Outcome], tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\nimport shardwright\n\n\n"
        '@shardwright.kernel("b t -> b t", splits="b")\n'
        '@torch.library.custom_op("own_file::doubled", mutates_args=())\n'
        "def doubled(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n\n\n"
        "doubled.register_fake(torch.empty_like)\n\n\n"
        "class Model(torch.nn.Module):\n    def forward(self, x):\n        return doubled(x) + x\n\n\n"
        "def model():\n    return Model()\n\n\ndef example_args():\n    return (torch.randn(4, 16),)\n"
    )
    out = tmp_path / "own.shard"
    done = shardwright("trace", f"{file}:model", "--mesh", "x=2", "-o", out, "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["opaque"] == ["doubled"]
    done = shardwright("run", out, "--kernels", file, "--to", "torch", "--mesh", "x=1")
    assert "agrees within" in done.out, done.err
    foreign.KERNELS.pop("doubled")
