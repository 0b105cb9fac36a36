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

SHOWN = ".shardwright:not([hidden]) svg"
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
    box = opened.locator(".shardwright:not([hidden])").bounding_box()
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


def test_folds_open_and_close(opened: Page) -> None:
    """All at once by a button or a key, or one by a double click: then what it shows is marked and in sight."""
    svg = opened.locator(SHOWN)
    rows, nodes = opened.locator("#list tbody tr").count(), svg.locator("g.node").count()
    opened.locator("#folds button").click()
    expect(opened.locator("#folds button")).to_have_text("close them")
    assert svg.locator("g.node").count() > nodes + 10
    assert opened.locator("#list tbody tr").count() == rows
    opened.keyboard.press("o")
    expect(opened.locator("#folds button")).to_have_text("open every norm and the like")
    assert svg.locator("g.node").count() == nodes
    fold = svg.locator("g.node", has_text="layernorm[E, eps=1e-5]").first
    fold.scroll_into_view_if_needed()
    statements = (fold.locator("title").text_content() or "").splitlines()
    fold.dispatch_event("dblclick")
    expect(opened.locator("#folds button")).to_have_text("close them")
    marked = svg.locator("g.node.found")
    assert 1 < marked.count() <= len(statements)
    box, place = opened.locator(".shardwright:not([hidden])").bounding_box(), marked.first.bounding_box()
    assert box is not None
    assert place is not None
    assert box["x"] <= place["x"] <= box["x"] + box["width"]
    assert box["y"] <= place["y"] <= box["y"] + box["height"]
    if folder := os.environ.get("SHARDWRIGHT_SCREENSHOTS"):
        opened.screenshot(path=f"{folder}/picture_opened.png")
    marked.first.dispatch_event("dblclick")
    expect(opened.locator("#told")).to_contain_text(statements[0])


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
