"""The explorer as its user sees it, in Chromium."""

from __future__ import annotations

import http.client
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from shardwright.compiling.compile_program import load, print_program
from shardwright.ir.diagnostics import Source

LAYER = """\
chip tpu-v4
mesh x=4 y=4
dim B=64 E=4096 F=16384

weights {
  w_in: bf16 EF?
  w_out: bf16 FE?
}

func layer(a: bf16 BE_x) -> BE_x {
  h = a @ w_in
  b = gelu(h)
  y: BE_x = b @ w_out
  return y
}
"""

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an explorer that was started as a user starts it."""
    file = tmp_path_factory.mktemp("explore") / "layer.shard"
    file.write_text(LAYER)
    command = [sys.executable, "-m", "shardwright", "explore", str(file), "--no-browser"]
    # NiceGUI would take itself to be under test.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as server:
        assert server.stdout is not None
        first = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", first), first
        yield first
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=30)
        assert "Traceback" not in errors


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=QUIET)
        yield browser
        browser.close()


class Watched:
    """A page, and what went wrong in it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.hosts: set[str] = set()
        self.errors: list[str] = []
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(address)
        self.settled()

    def settled(self) -> None:
        """Wait until nothing is being done."""
        expect(self.page.get_by_test_id("busy")).to_be_hidden(timeout=60_000)

    def panel(self, name: str) -> Any:
        self.page.get_by_role("tab", name=name).click()
        return self.page.get_by_test_id(name.lower())

    def program(self) -> str:
        return self.panel("Program").inner_text()

    def line(self, words: str) -> Any:
        return self.page.locator(".cm-line", has_text=words)

    def typed(self, text: str) -> None:
        """Put another text in place of all there is, key by key for short ones."""
        self.page.locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Watched]:
    context = chromium.new_context(viewport={"width": 1400, "height": 850}, accept_downloads=True)
    watched = Watched(context.new_page(), address)
    yield watched
    assert watched.errors == []
    assert watched.hosts == {address.split("/")[2]}
    context.close()


def test_types_are_found_in_place_and_the_program_is_shown(page: Watched) -> None:
    expect(page.line("gelu(h)")).to_contain_text("b :~ bf16 BF_xy = gelu(h)")
    expect(page.line("w_in: bf16")).to_contain_text("EF? = bf16 EF_xy")
    assert "y_scattered :~ bf16 B_yE_x = reduce_scatter[x -> E, y -> B](y_partial)" in page.program()
    expect(page.page.get_by_test_id("summary")).to_have_text(re.compile(r"layer \d+(\.\d+)? µs"))


def test_every_panel_has_something_to_say(page: Watched) -> None:
    rows = page.panel("Collectives").locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("reduce_scatter")
    assert "weights" in page.panel("Memory").inner_text()
    assert "next best" in page.panel("Reasons").inner_text()
    expect(page.panel("Timeline").locator("svg")).to_have_count(1)
    picture = page.panel("Picture").locator("iframe").content_frame
    expect(picture.locator("svg g.node").first).to_be_visible()
    page.panel("Collectives").locator("tbody tr", has_text="a_gathered").click()
    expect(page.page.locator(".cm-shown-line")).to_contain_text("a @ w_in")


def test_what_is_typed_stays_and_faults_are_said_at_once(page: Watched) -> None:
    page.line("gelu(h)").click()
    page.page.keyboard.press("End")
    added = "c = gellu(b * 2)"
    page.page.keyboard.type(f"\n{added}", delay=25)
    faults = page.page.get_by_test_id("faults")
    expect(faults).to_contain_text("there is no operation gellu")
    expect(faults).to_contain_text("did you mean gelu?")
    expect(page.page.locator(".cm-fault")).to_have_text("gellu")
    expect(page.line(added)).to_have_count(1)
    for _ in range(len("lu(b * 2)")):
        page.page.keyboard.press("Backspace")
    page.page.keyboard.type("u(b)", delay=5)
    expect(faults).to_have_text("")
    page.settled()
    page.line("b @ w_out").click()
    expect(page.line("c")).not_to_have_count(0)
    page.typed(LAYER.replace("b @ w_out", "c @ w_out").replace("b = gelu(h)", "b = gelu(h)\n  c = b * 2"))
    expect(page.line("c :~ bf16 BF_xy = b * 2")).to_have_count(1)


def test_warnings_do_not_stop_it(page: Watched) -> None:
    page.typed(LAYER.replace("h = a @ w_in", "h: BF(partialsum-x) = a @ w_in"))
    expect(page.page.get_by_test_id("faults")).to_contain_text("warning: gelu needs h whole")
    assert "partialsum" in page.program()


def test_the_mesh_and_the_chip_can_be_changed(page: Watched) -> None:
    before = page.page.get_by_test_id("summary").inner_text()
    page.page.get_by_test_id("mesh").fill("x=2,y=2")
    expect(page.page.get_by_test_id("summary")).not_to_have_text(before)
    page.settled()
    assert "mesh x=2 y=2" in page.program()
    page.page.get_by_test_id("mesh").fill("x=2 y")
    expect(page.page.get_by_test_id("faults")).to_contain_text("y is not a size")
    page.page.get_by_test_id("mesh").fill("x=3,y=2")
    expect(page.page.get_by_test_id("faults")).to_contain_text("E=4096 is not divisible by x=3")


def test_versions_are_compared(page: Watched) -> None:
    page.page.get_by_role("button", name="Keep").click()
    page.typed(LAYER.replace("F=16384", "F=32768"))
    panel = page.panel("Compare")
    expect(panel).to_contain_text("+dim B=64 E=4096 F=32768")
    rows = panel.locator("tr").all_inner_texts()
    memory = next(row for row in rows if row.startswith("layer, memory"))
    assert re.search(r"\+9\d\.\d %", memory)


def test_a_link_holds_the_program(page: Watched, chromium: Browser) -> None:
    page.typed(LAYER.replace("gelu", "silu"))
    page.page.get_by_test_id("mesh").fill("x=2,y=4")
    page.settled()
    page.page.get_by_role("button", name="Link").click()
    page.page.wait_for_url(re.compile(r"\?p="))
    other = Watched(chromium.new_page(), page.page.url)
    assert "silu(h)" in other.program()
    assert "mesh x=2 y=4" in other.program()
    other.page.close()
    damaged = Watched(chromium.new_page(), f"{page.address}?p=nonsense")
    expect(damaged.page.get_by_text("the link does not hold a program")).to_be_visible()
    damaged.page.close()


def test_examples_and_models_to_begin_from(page: Watched) -> None:
    page.page.get_by_text("begin from...").click()
    page.page.get_by_role("option", name="13 palm model").click()
    expect(page.page.get_by_test_id("summary")).to_contain_text("decode", timeout=30_000)
    page.settled()
    page.page.get_by_role("button", name="Model...").click()
    page.page.get_by_role("button", name="Begin").click()
    expect(page.line("mesh x=4 y=2")).to_have_count(1)
    expect(page.page.get_by_test_id("summary")).to_contain_text("prefill", timeout=30_000)


def test_downloads(page: Watched, tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    page.settled()
    for name in ("program", "explicit program", "module of JAX", "picture", "for jax", "for shardy", "for dtensor"):
        page.page.locator(".q-btn-dropdown__arrow-container").last.click()
        with page.page.expect_download() as expected:
            page.page.get_by_role("listitem").get_by_text(name, exact=True).click()
        expected.value.save_as(tmp_path / "file")
        texts[name] = (tmp_path / "file").read_text()
    assert texts["program"] == LAYER
    assert print_program(load(Source("explicit", texts["explicit program"]))) == texts["explicit program"]
    compile(texts["module of JAX"], "module.py", "exec")
    assert texts["picture"].lstrip().startswith("<svg")
    compile(texts["for jax"], "specs.py", "exec")
    assert "sdy.mesh" in texts["for shardy"]


def test_nothing_typed_hurts_it(page: Watched) -> None:
    """200 random edits, faster than anything can be computed, then a good text."""
    generator = random.Random(3)
    pieces = [
        "?",
        "_x",
        "[",
        "}",
        "é",
        "𝄞",
        "\n",
        "all_gather[x](",
        "E",
        " @ ",
        "chip own.toml\n",
        "loop[B](",
        "9" * 30,
    ]
    editor = page.page.locator(".cm-content")
    editor.click()
    for number in range(200):
        page.page.keyboard.press(generator.choice(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"]))
        if generator.random() < 0.3:
            page.page.keyboard.press(generator.choice(["Backspace", "Delete", "Control+z"]))
        else:
            page.page.keyboard.insert_text(generator.choice(pieces))
        if number % 40 == 39:
            page.typed(LAYER.replace("F=16384", f"F={16384 * generator.randint(1, 3)}"))
    page.typed(LAYER)
    expect(page.line("gelu(h)")).to_contain_text("b :~ bf16 BF_xy", timeout=30_000)
    page.settled()
    expect(page.page.get_by_test_id("faults")).to_have_text("")
    assert "reduce_scatter" in page.program()


def test_what_is_too_much_is_refused_with_a_reason(page: Watched) -> None:
    page.typed(LAYER + "# " + "x" * 100_000)
    expect(page.page.get_by_test_id("faults")).to_contain_text("the text has more than 100000 characters")
    page.typed(LAYER.replace("chip tpu-v4", "chip own.toml"))
    expect(page.page.get_by_test_id("faults")).to_contain_text("there is no chip own.toml here")


def test_markup_in_a_program_is_text(page: Watched) -> None:
    page.typed("# <img src=x onerror=document.title='hurt'>\n" + LAYER.replace("gelu(h)", "<b>(h)"))
    expect(page.page.get_by_test_id("faults")).to_contain_text("<b>(h)")
    assert page.page.title() == "Shardwright"


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_others_are_refused(address: str, headers: dict[str, str]) -> None:
    host = address.split("/")[2]
    for path in ("/", "/_nicegui_ws/socket.io/?EIO=4&transport=polling"):
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 403
        connection.close()


def test_it_listens_on_the_loopback_alone(address: str) -> None:
    port = int(address.split(":")[2].strip("/"))
    wanted = f":{port:04X}"
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = [line[1] for line in lines if line[3] == "0A" and line[1].endswith(wanted)]
    assert listening == [f"0100007F{wanted}"]
