"""The HTML page of a picture, in Chromium: collectives in a list, search, functions, keyboard, light and dark."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from shardwright.__main__ import main

SHOWN = ".shardwright svg"
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found is not None, "the tests of the picture's page need Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    path = tmp_path / "palm.html"
    assert main(["draw", str(EXAMPLES / "13_palm_model.shard"), "-o", str(path), "--cost", "--chip", "tpu-v4"]) == 0
    page = browser.new_page(viewport={"width": 1300, "height": 850})
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: faults.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(path.as_uri())
    yield page
    page.close()
    assert faults == []


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_collectives_are_sorted_and_found_in_the_picture(opened: Page) -> None:
    rows = opened.locator("#list tbody tr")
    assert rows.count() > 30
    assert "GB" in (rows.first.text_content() or "")
    opened.locator("#list th", has_text="time").click()
    times = [seconds(text) for text in opened.locator("#list tbody td:nth-child(2)").all_text_contents()]
    assert times == sorted(times, reverse=True)
    opened.locator("#list th", has_text="time").click()
    times = [seconds(text) for text in opened.locator("#list tbody td:nth-child(2)").all_text_contents()]
    assert times == sorted(times)
    rows.last.click()
    expect(opened.locator(SHOWN)).to_have_class(re.compile("chosen"))
    expect(opened.locator("#told")).to_contain_text("bytes per chip")
    box = opened.locator(".shardwright").bounding_box()
    value = rows.last.locator("td").last.text_content() or ""
    node = opened.locator("g.node.on", has=opened.locator("title", has_text=re.compile(f"^{value}[ :]"))).first
    place = node.bounding_box()
    assert box is not None
    assert place is not None
    assert box["x"] <= place["x"] <= box["x"] + box["width"]
    assert box["y"] <= place["y"] <= box["y"] + box["height"]


def test_search_functions_and_keys(opened: Page) -> None:
    svg = opened.locator(SHOWN)
    before = svg.get_attribute("viewBox")
    opened.locator("#functions button", has_text="decode").click()
    assert svg.get_attribute("viewBox") != before
    opened.keyboard.press("/")
    opened.keyboard.type("rotary")
    assert opened.locator("g.node.found").count() > 1
    opened.keyboard.press("Enter")
    expect(opened.locator("#told")).to_contain_text("rotary")
    opened.keyboard.press("Escape")
    assert opened.locator("g.node.found").count() == 0
    opened.keyboard.press("ArrowDown")
    expect(opened.locator("#told")).to_contain_text("receives")
    opened.keyboard.press("f")
    assert svg.get_attribute("viewBox") is not None
    opened.keyboard.press("p")
    expect(opened.locator("#side")).to_be_hidden()


OVERLAPS = """() => {
  const things = document.querySelectorAll('svg > g.graph > g.node, g.unfolded > rect');
  const areas = [...things].map(thing => thing.getBoundingClientRect()).filter(area => area.width);
  return areas.flatMap((a, n) => areas.slice(0, n).filter(b =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)).length;
}"""
"""How many pairs of nodes and open folds cover each other."""

LOOSE = """() => {
  const area = name => (document.querySelector(`.unfolded[data-node=${name}] > rect`) || document.getElementById(name))
    .getBoundingClientRect();
  const off = ({x, y}, name) => { const a = area(name);
    return Math.max(a.left - x, x - a.right, a.top - y, y - a.bottom); };
  const edges = [...document.querySelectorAll('svg > g.graph > g.edge')];
  return Math.max(...edges.filter(edge => !edge.textContent.includes('to the next trip')).map(edge => {
    const path = edge.querySelector('path'), matrix = path.getScreenCTM();
    const [from, to] = [0, path.getTotalLength()].map(at => path.getPointAtLength(at).matrixTransform(matrix));
    return Math.max(off(from, edge.dataset.from), off(to, edge.dataset.to));
  })) / document.querySelector('g.graph').getScreenCTM().a;
}"""
"""How far, in points, the end of an edge is from the node that it belongs to; what returns to the next trip of a loop
begins and ends at the loop's side."""


def test_folds_open_and_close(opened: Page) -> None:
    """One where it stands by a double click or a key, or all of them at once; nothing comes to lie on another thing,
    and edges stay at their nodes."""
    svg = opened.locator(SHOWN)
    button, unfolded = opened.locator("#folds button"), svg.locator("g.unfolded")
    rows, nodes, apart = opened.locator("#list tbody tr").count(), svg.locator("g.node").count(), opened.evaluate(LOOSE)
    assert opened.evaluate(OVERLAPS) == 0
    fold = svg.locator("g.node", has_text="layernorm[E, eps=1e-5]").first
    fold.scroll_into_view_if_needed()
    statements = [line for line in (fold.locator("title").text_content() or "").splitlines() if " = " in line]
    before = fold.bounding_box()
    fold.dispatch_event("dblclick")
    expect(button).to_have_text("close what is open")
    expect(fold).to_be_hidden()
    assert unfolded.count() == 1
    titles = "\n".join(unfolded.locator("g.node title").all_text_contents()).splitlines()
    assert len(statements) > 5
    assert set(statements) <= set(titles)
    expect(opened.locator("#told")).to_contain_text(statements[-1])
    shown = unfolded.locator("> rect").bounding_box()
    assert before is not None
    assert shown is not None
    assert abs(before["x"] + before["width"] / 2 - shown["x"] - shown["width"] / 2) < 2
    assert opened.evaluate(OVERLAPS) == 0
    assert opened.evaluate(LOOSE) <= apart + 1
    if folder := os.environ.get("SHARDWRIGHT_SCREENSHOTS"):
        opened.screenshot(path=f"{folder}/picture_opened.png")
    opened.keyboard.press("d")
    expect(fold).to_be_visible()
    opened.keyboard.press("o")
    assert unfolded.count() > 10
    assert svg.locator("g.node").count() > nodes + 10
    assert opened.locator("#list tbody tr").count() == rows
    assert opened.evaluate(OVERLAPS) == 0
    assert opened.evaluate(LOOSE) <= apart + 1
    opened.keyboard.press("o")
    expect(button).to_have_text("open every norm and the like")
    assert unfolded.count() == 0
    opened.keyboard.press("f")
    assert opened.evaluate(OVERLAPS) == 0
    assert abs(opened.evaluate(LOOSE) - apart) < 0.1


def test_text_is_large_enough_to_read_and_dark_is_dark(opened: Page) -> None:
    sizes = opened.eval_on_selector_all(
        f"{SHOWN} g.node text",
        "texts => texts.map(text => text.getBoundingClientRect().height).filter(height => height > 0)",
    )
    assert max(sizes) >= 8
    if folder := os.environ.get("SHARDWRIGHT_SCREENSHOTS"):
        opened.screenshot(path=f"{folder}/picture_light.png")
    opened.emulate_media(color_scheme="dark")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    if folder := os.environ.get("SHARDWRIGHT_SCREENSHOTS"):
        opened.screenshot(path=f"{folder}/picture_dark.png")
