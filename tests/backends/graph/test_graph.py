"""Pictures of programs: the structure of the DOT, and what each format holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from shardwright.backends.graph import FORMATS, Annotation, Drawing, draw, render
from shardwright.backends.graph.fonts import font_folder
from shardwright.backends.graph.labels import bytes_text, escaped
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify

FFN = Source(
    "examples/ffn.shard",
    """mesh x=4 y=4 z=4
dim B=512 L=1 E=18432 F=73728

func ffn(x: bf16 BLE_xyz, w_in: bf16 E_xF_yz) -> bf16 BLF_xyz {
  g :~ bf16 BLE_x = all_gather[yz](x)
  h: bf16 BLF_yz(partialsum-x) = g @[E] w_in
  r :~ bf16 BLF_xyz = reduce_scatter[x -> F](h)
  y: bf16 BLF_xyz = gelu(r)   # <last> & "least"
  return y
}
""",
)

LOOP = Source(
    "loop.shard",
    """mesh x=2
dim N=118 B=4 E=8 T=16

weights { w: NE_xE2 }
state { k: NB_xT
  pos: int32 }
dim E2=8

func f(x: BE_x, unused: BE) -> BE_x {
  y = loop[N as i](h: BE_x = x) {
    p :~ BE2(partialsum-x) = h @[E] w
    q :~ BE2_x = reduce_scatter[x -> E2](p)
    o :~ BE_x = rename[E2 -> E](q)
    one :~ B_xT = k * 1
    set k = one
    s :~ BE_x = o + h
    next s
  }
  lost = pos + 1
  return y
}
""",
)


def explicit(source: Source) -> Program:
    program = complete(elaborate(parse(source)))
    verify(program, Level.EXPLICIT)
    return program


def test_dot_of_a_small_program(golden: Callable[[str, str], None]) -> None:
    golden("graph/ffn.dot", draw(explicit(FFN), source=FFN).dot)


def test_dot_of_a_loop_with_weights_and_state(golden: Callable[[str, str], None]) -> None:
    golden("graph/loop.dot", draw(explicit(LOOP), source=LOOP).dot)


def test_types_have_subscripts_and_partial_values_a_mark() -> None:
    dot = draw(explicit(FFN)).dot
    assert "BLF<SUB>yz</SUB>" in dot
    assert "<B>partialsum</B><SUB>x</SUB>" in dot
    assert "<I>g&nbsp;" in dot  # found
    assert "<B>h</B>&nbsp;" in dot  # demanded


def test_collectives_say_what_a_chip_receives() -> None:
    dot = draw(explicit(FFN)).dot
    assert '<B>all_gather</B> yz<BR/><FONT POINT-SIZE="9">receives 4.22 MiB</FONT>' in dot
    assert "receives 4,423,680 bytes per chip" in dot  # 512 * 18432 / 64 elements of 2 bytes, from 15 others


def test_the_legend_has_what_occurs() -> None:
    small = draw(explicit(FFN)).dot
    for entry in ("input", "result", "all-gather, 4.22 MiB per chip", "type demanded", "type found"):
        assert f">{entry}<" in small
    for entry in ("weight", "state", "carried by a loop", "slice", "share"):
        assert f">{entry}<" not in small
    large = draw(explicit(LOOP)).dot
    for entry in ("weight", "state", "carried by a loop", "reduce-scatter, 3.69 KiB per chip"):  # 118 times 32 bytes
        assert f">{entry}<" in large


def test_loops_are_clusters_with_their_trips() -> None:
    assert "<B>loop[N as i] × 118</B>" in draw(explicit(LOOP)).dot


def test_layouts_left_open_are_drawn() -> None:
    text = "mesh x=2\ndim B=4 E=8\nfunc f(x: B_xE) -> BE? {\n  y: BE? = gelu(x)\n  return y\n}\n"
    dot = draw(elaborate(parse(Source("open.shard", text)))).dot
    assert "BE?" in dot
    assert "layout left to the compiler" in dot


def test_one_function() -> None:
    program = explicit(FFN)
    assert draw(program, func="ffn").dot == draw(program).dot
    with pytest.raises(DiagnosticError) as caught:
        draw(program, func="fnn")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == "there is no function fnn; there are ffn"
    assert [note.message for note in diagnostic.notes] == ["did you mean ffn?"]


def test_annotations_colour_operations() -> None:
    dot = draw(explicit(FFN), annotations={"ffn.y": Annotation("12% of the time", 1.0), "g": Annotation("", 0.0)}).dot
    assert "12% of the time" in dot
    assert "#e34a33" in dot
    assert ">share<" in dot
    with pytest.raises(ValueError, match=r"^the weight of an annotation is 2; it is between 0 and 1$"):
        Annotation("", 2.0)


MAGIC = {"svg": b"<svg", "png": b"\x89PNG\r\n", "pdf": b"%PDF-", "dot": b"digraph", "html": b"<!DOCTYPE html>"}


@pytest.mark.parametrize("fmt", FORMATS)
def test_formats(fmt: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"picture.{fmt}"
    draw(explicit(FFN), path, source=FFN)
    assert path.read_bytes().startswith(MAGIC[fmt])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert capfd.readouterr() == ("", "")


def test_unknown_formats(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        draw(explicit(FFN), "picture.gif")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == "'picture.gif' does not say which picture it is to be"
    assert [note.message for note in diagnostic.notes] == ["end it in .svg, .png, .pdf, .dot, .html"]
    with pytest.raises(DiagnosticError) as caught:
        render("digraph {}", "gif")
    assert caught.value.diagnostics[0].message == "there is no picture format 'gif'"


def test_tooltips() -> None:
    root = ET.fromstring(render(draw(explicit(FFN), source=FFN).dot, "svg"))
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    of_gelu = next(title for title in titles if title.startswith("y: bf16 BLF_xyz = gelu(r)"))
    assert of_gelu.splitlines() == [
        "y: bf16 BLF_xyz = gelu(r)",
        'line 8: y: bf16 BLF_xyz = gelu(r) # <last> & "least"',
        "per chip: 512 × 1 × 1152, 1.12 MiB",
    ]
    edges = [g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("class") == "edge"]
    assert edges
    assert all(edge.get("data-from") and edge.get("data-to") for edge in edges)


def test_html_stands_alone() -> None:
    page = render(draw(explicit(FFN), source=FFN).dot, "html").decode()
    assert not re.search(r"(?:src|href)\s*=|@import|url\(", page)
    assert set(re.findall(r"https?://[^\s\"'<>]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_notebooks_show_the_picture() -> None:
    drawing = draw(explicit(FFN))
    assert isinstance(drawing, Drawing)
    assert drawing._repr_svg_().startswith("<svg")
    assert drawing._repr_html_().startswith('<div class="shardwright"')


def test_text_is_escaped() -> None:
    assert escaped('<B> & "x"\n\x00') == "&lt;B&gt; &amp; &quot;x&quot;\ufffd\ufffd"
    nasty = '</TABLE> & "]\\N <I>'
    svg = render(draw(explicit(FFN), title=nasty, annotations={"y": Annotation(nasty)}).dot, "svg").decode()
    text = "".join(ET.fromstring(svg).itertext())
    assert text.count(nasty.replace("\\", "\N{SET MINUS}")) == 3  # the title, the node and its tooltip


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (4423680, "4.22 MiB"), (3 * 2**40, "3 TiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_fonts_come_with_a_package() -> None:
    folder = font_folder()
    assert folder is not None
    assert (folder / "DejaVuSans.ttf").is_file()


def test_a_long_program_is_drawn_in_seconds() -> None:
    lines, last = [], "x"
    for i in range(60):
        lines += [
            f"  a{i} :~ BE = all_gather[x]({last})",
            f"  b{i} :~ BE_x = slice[x -> E](a{i})",
            f"  r{i} :~ BE_x = b{i} + {last}",
        ]
        last = f"r{i}"
    text = "mesh x=2\ndim B=4 E=8\nfunc f(x: BE_x) -> BE_x {\n" + "\n".join(lines) + f"\n  return {last}\n}}\n"
    program = explicit(Source("long.shard", text))
    began = sum(os.times()[:4])  # Graphviz is a process of its own
    svg = render(draw(program).dot, "svg").decode()
    assert sum(os.times()[:4]) - began < 30
    assert svg.count('class="node"') >= 180


def test_an_input_that_is_used_late_stands_there_alone() -> None:
    steps = "\n".join(f"  a{i + 1} :~ BE = gelu(a{i})" for i in range(24))
    text = (
        f"mesh x=2\ndim B=4 E=8\nfunc f(a0: BE, late: BE) -> BE {{\n{steps}\n  y :~ BE = a24 + late\n  return y\n}}\n"
    )
    dot = draw(explicit(Source("late.shard", text))).dot
    nodes = re.findall(r"^\s*(n\d+) \[label=<<B>(\w+)</B>", dot, re.MULTILINE)
    assert sorted(name for _, name in nodes) == ["a0", "late"]
    assert all(re.search(rf"^\s*{node} -> ", dot, re.MULTILINE) for node, _ in nodes)


def test_python_draws_what_the_command_draws(tmp_path: Path) -> None:
    program = explicit(FFN)
    over_time = draw(program, tmp_path / "time.svg", chip="tpu-v4", timeline=True)
    assert (tmp_path / "time.svg").read_text() == over_time.svg
    assert "links" in over_time.svg
    blocks = draw(program, value="y")
    assert blocks.dot == ""
    assert blocks.svg.count("<text") > 8
    assert "µs" in draw(program, chip="tpu-v4").dot
    with pytest.raises(DiagnosticError) as caught:
        blocks.save(tmp_path / "blocks.html")
    assert [note.message for note in caught.value.diagnostics[0].notes] == ["end it in .svg, .png, .pdf"]
    with pytest.raises(DiagnosticError, match="nothing"):
        draw(program, value="nothing")
