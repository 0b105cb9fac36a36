"""Orders of digits: contiguous edges, digits that agree across renames, splits and merges, and pinned orders."""

from __future__ import annotations

import pytest
from program_text import by_bytes, program

from shardwright.backends.validation.validate import validate
from shardwright.compiling.compile_program import print_program
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.digits import Order
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder, DigitConflictError
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes


def orders(text: str, *, tied: bool = False) -> dict[str, Order | None]:
    """The orders that the pass chooses."""
    return {dim.name: dim.order for dim in ChooseDigitOrder(tied=tied).run(program(text)).dims}


def test_as_many_edges_as_possible_are_contiguous() -> None:
    found = orders("""
        mesh x=2 y=2
        dim E=8 F=8
        func f(a: f32 E_y, b: f32 E_xy, c: f32 F_x) -> f32 E_y {
          return a
        }""")
    assert found == {"E": ("y", "x"), "F": ("x",)}


def test_results_come_before_any_number_of_weights() -> None:
    """A weight is laid out once, a result that is strided is gathered at every call."""
    found = orders("""
        mesh x=2 y=2
        dim E=8 F=8
        weights {
          a: f32 E_xF
          b: f32 E_xF
          c: f32 E_xF
        }
        func f(h: f32 E) -> f32 E_y {
          r: f32 E_y = h
          return r
        }""")
    assert found["E"] == ("y", "x")


def test_of_equally_good_orders_the_mesh_decides() -> None:
    assert orders("mesh x=2 y=2\ndim E=8\nfunc f(a: f32 E_xy) -> f32 E_xy {\n return a\n}") == {"E": ("x", "y")}


def test_a_pinned_order_stays() -> None:
    text = "mesh x=2 y=2\ndim E=8 order x y\nfunc f(a: f32 E_y, b: f32 E_xy) -> f32 E_y {\n return a\n}"
    assert orders(text) == {"E": ("x", "y")}


def test_a_rename_makes_orders_equal() -> None:
    found = orders("""
        mesh x=2 y=2
        dim L=8 T=8
        func f(a: f32 L_xy, b: f32 T_y) -> f32 T_xy {
          r: f32 T_xy = rename[L -> T](a)
          return r
        }""")
    assert found == {"L": ("y", "x"), "T": ("y", "x")}


def test_a_rename_ties_each_of_its_pairs() -> None:
    """B, whose last digit the mesh would make y, has y first, as C has it alone."""
    text = """
        mesh x=2 y=2
        dim A=8 B=8 F=8 C=8
        func f(a: f32 A_xB_y, b: f32 B_xy) -> (f32 F_xC_y, f32 B_xy) {
          r = rename[A -> F, B -> C](a)
          return r, tanh(b)
        }"""
    made = by_bytes(program(text))
    assert made.dim("B").order == ("y", "x")
    assert bytes_received(made, made.funcs[0]).bytes == 0


def test_a_merged_dimension_has_the_digits_of_its_parts_with_what_is_left_between_them() -> None:
    """K=4 over x leaves 2 in K, which stands between the digits of x and y in the index of H."""
    found = orders("""
        mesh x=2 y=2
        dim K=4 G=2 H=K*G
        func f(a: f32 K_xG_y) -> f32 H_xy {
          m: f32 H_xy = merge[KG -> H](a)
          return m
        }""")
    assert found == {"K": ("x",), "G": ("y",), "H": ("x", 2, "y")}


def test_an_axis_is_never_two_digits_of_one_dimension() -> None:
    """x splits K in one value and G in another; of H it is the digit of one of them."""
    compiled = explicit(
        program("""
        mesh x=2 y=2
        dim K=4 G=4 H=K*G
        func f(h: f32 H_xy, g: f32 G_x, a: f32 K_xG_y) -> (f32 H_xy, f32 K_xG_y, f32 G_x) {
          s: f32 K_xG_y = split[H -> KG](h)
          m: f32 H_xy = merge[KG -> H](a)
          return m, s, g
        }""")
    )
    order = compiled.dim("H").order
    assert order is not None
    assert len([digit for digit in order if digit == "x"]) == 1


def test_tied_dimensions_alone() -> None:
    text = """
        mesh x=2
        dim L=8 T=8 E=8
        func f(a: f32 L_xE) -> f32 T_xE {
          r: f32 T_xE = rename[L -> T](a)
          return r
        }"""
    assert orders(text, tied=True) == {"L": ("x",), "T": ("x",), "E": None}


def test_digits_that_cannot_agree_are_a_fault() -> None:
    with pytest.raises(DiagnosticError) as raised:
        orders("""
            mesh x=2 y=2
            dim L=8 order x y
            dim T=8 order y x
            func f(a: f32 L_y) -> f32 T_y {
              r: f32 T_y = rename[L -> T](a)
              return r
            }""")
    (told,) = raised.value.diagnostics
    assert told.code == "digits"
    assert told.message == "no order of digits lets rename keep every index on its chip: f32 L_y and f32 T_y"


def test_a_conflict_is_of_those_statements_alone_that_cannot_agree() -> None:
    """The two renames tie A, F and G together, and keep every index on its chip in any order of digits."""
    text = """
        mesh x=2 y=2
        dim A=16 order x y H=4 D=4 F=16 G=16
        func f(a: f32 A_xy) -> (f32 F_xy, f32 G_xy, f32 H_yD_x) {
          b: f32 F_xy = rename[A -> F](a)
          c: f32 G_xy = rename[A -> G](a)
          d: f32 H_yD_x = split[A -> HD](a)
          return b, c, d
        }"""
    with pytest.raises(DigitConflictError, match="no order of digits lets split keep every index on its chip") as found:
        ChooseDigitOrder(tied=True).run(program(text))
    assert found.value.statements == (("f", "d", (("A", ("x", "y")), ("H", ("y",)), ("D", ("x",)))),)


def test_placement_gathers_where_digits_cannot_agree() -> None:
    """The same, with the layouts in between left open: the value goes whole through the rename."""
    compiled = explicit(
        program("""
        mesh x=2 y=2
        dim L=8 order x y
        dim T=8 order y x
        func f(a: f32 L_y) -> f32 T_y {
          r = rename[L -> T](a)
          return r
        }""")
    )
    keywords = [statement.operation.keyword for statement in compiled.funcs[0].body]
    assert keywords == ["all_gather", "rename", "slice"]


def test_of_several_gathers_the_cheapest() -> None:
    """Each of the renames may be the one that leaves its dimensions whole; the second gathers a quarter as much."""
    source = program("""
    mesh x=2 y=2
    dim L=8 order x y
    dim T=8
    dim U=8 order y x
    dim E=4
    func f(a: f32 L_yE) -> f32 U_y {
      r = rename[L -> T](a)
      return rename[T -> U](sum[E](r))
    }""")
    made = explicit(source, edges="digits", place=Place(objective="bytes"))
    assert bytes_received(made, made.funcs[0]).bytes == 16


def test_before_placement_the_order_leaves_room_for_layouts_yet_to_be_chosen() -> None:
    text = """
        mesh x=4 y=4 z=4
        dim B=512 L=1 E=18432 F=73728
        func ffn(x: BLE_xyz, w_in: E_xF_yz, w_out: F_yzE_x) -> BLE_xyz {
          h = x @[E] w_in
          return gelu(h) @[F] w_out
        }"""
    early = run_passes(program(text), parse_pipeline("decompose,choose-digit-order,place,insert-moves,cleanup"))
    assert early.dim("F").order == ("y", "z", "x")
    assert early.funcs == explicit(program(text)).funcs


OVERRIDDEN = """
    mesh x=2 y=2 z=2
    dim B=8 L=4 E=16
    func prefill(a: BL_xE) -> BLE {
      return gelu(a)
    }
    func decode[L=8](a: BL_yzE, b: BL_xyzE) -> BL_yE {
      return gelu(a) + b
    }"""


def test_a_function_that_overrides_a_size_has_digits_of_its_own() -> None:
    """L=4 has no room for three digits, and decode's L=8 has; y comes first for decode's result."""
    made = explicit(program(OVERRIDDEN))
    assert made.dim("L").order == ("y", "x")
    assert orders_in(made, made.func("prefill"))["L"] == ("y", "x")
    assert orders_in(made, made.func("decode"))["L"] == ("y", "x", "z")
    assert print_program(program(print_program(made))) == print_program(made)
    assert validate(program(OVERRIDDEN), made).largest_difference < 1e-12


def test_a_whole_of_another_extent_than_declared_has_no_order_of_its_parts() -> None:
    """B=2 has no room for the digit of C, so what is merged into it is whole, and the program reads as it prints."""
    made = explicit(
        program("""
            mesh x=2
            dim C=4 G=2 B=2
            func f(k: f32 CG_x) -> f32 {
              b = merge[CG -> B](k)
              return sum[B](b)
            }""")
    )
    assert made.dim("B").order is None
    assert print_program(program(print_program(made))) == print_program(made)


@pytest.mark.parametrize("split", ["?", "_x", "_y"])
@pytest.mark.parametrize("copies", [3, 6])
def test_an_order_without_room_for_all_digits_is_kept_for_other_extents(split: str, copies: int) -> None:
    """L=3 has room for one digit of x and y; a value of three times that size, which is renamed, has room for both."""
    source = program(f"""
        mesh x=3 y=3
        dim B=6 E=5 L=3 F={3 * copies}
        weights {{ w: f32 BEL_y }}
        func f(c: f32 LE) -> f32 L_xE {{
          return c
        }}
        func g() -> f32 BF_y {{
          joined: f32 BEL{split} = concat[L]({", ".join(["w"] * copies)})
          renamed = rename[L -> F](joined)
          return sum[E](renamed)
        }}""")
    made = explicit(source)
    assert made.dim("L").order in (("x", "y"), ("y", "x"))
    assert print_program(program(print_program(made))) == print_program(made)
    assert validate(source, made).largest_difference < 1e-12


def test_a_result_that_is_open_ties_no_digits_yet() -> None:
    """Before `place` nobody knows how a merge leaves what it makes."""
    text = """
        mesh x=2
        dim E=8 F=2 A=16
        func f(p: f32 E_xF) -> f32 A_x {
          return merge[EF -> A](p)
        }"""
    assert orders(text) == {"E": ("x",), "F": None, "A": ("x",)}


@pytest.mark.parametrize(
    "text",
    [
        """
        mesh x=2
        dim L=12 E=9 N=3
        func f(t: f32 LE) -> f32 {
          a: f32 L_xN, a1 = topk[E -> N, k=8](t)
          return sum[N](max[L](a))
        }""",
        """
        mesh x=1 y=2
        dim F=4 B=6 T=1
        state { k: int8 BT_x }
        func f[F=6]() -> int8 F {
          c: int8 F_yx? = merge[BT -> F](k)
          return c
        }""",
    ],
    ids=["a plan splits it", "a function overrides it"],
)
def test_digits_fit_into_the_declared_size_whatever_the_extent(text: str) -> None:
    made = explicit(program(text))
    assert print_program(program(print_program(made))) == print_program(made)
