"""The language server as an editor's client sees it, over its real protocol."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio
import pytest_lsp
from lsprotocol import types as lsp
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities

Asked = TypeVar("Asked")

URI = "file:///tmp/layer.shard"
SERVER = ClientServerConfig(server_command=[sys.executable, "-m", "shardwright", "lsp"])
EXAMPLES = Path(__file__).parents[2] / "examples"

LAYER = """\
chip tpu-v4
mesh x=2 y=2
dim B=8 E=16 F=64

weights {
  w_in: bf16 E_xF_y
  w_out: bf16 F_yE_x
}

func layer(a: bf16 BE_x) -> BE_x {
  h: BF? = a @ w_in
  b = gelu(h)
  y: BE_x = b @ w_out
  return y
}
"""


async def begun(client: LanguageClient, options: dict[str, str]) -> AsyncIterator[None]:
    capabilities = client_capabilities("visual_studio_code")
    await client.initialize_session(lsp.InitializeParams(capabilities, initialization_options=options))
    yield
    await client.shutdown_session()


@pytest_lsp.fixture(config=SERVER, scope="module")
async def server(lsp_client: LanguageClient) -> AsyncIterator[None]:
    async for _ in begun(lsp_client, {}):
        yield


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: LanguageClient) -> AsyncIterator[LanguageClient]:
    """A client with no text open, of one server for all tests: a process of its own for each took most of their
    time."""
    server.diagnostics.clear()
    server.messages.clear()
    yield server
    server.text_document_did_close(lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(URI)))
    await seen(server)


@pytest_lsp.fixture(config=SERVER, scope="module")
async def strict(lsp_client: LanguageClient) -> AsyncIterator[None]:
    """A client that asks for explicit programs."""
    async for _ in begun(lsp_client, {"level": "explicit"}):
        yield


async def seen(client: LanguageClient) -> list[lsp.Diagnostic]:
    """What is said of the text at once: an answer comes after all that was said before it."""
    await client.text_document_document_symbol_async(lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(URI)))
    return list(client.diagnostics.get(URI, ()))


async def opened(client: LanguageClient, text: str) -> list[lsp.Diagnostic]:
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(URI, "shard", 1, text)))
    return await seen(client)


async def eventually(ask: Callable[[], Awaitable[Asked]]) -> Asked:
    """The first answer that says something, of a question that is asked until layouts are chosen."""
    for _ in range(1200):
        answer = await ask()
        if answer:
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError("nothing was answered for a minute")


async def laid_out(client: LanguageClient, text: str) -> list[lsp.Diagnostic]:
    """Open a text, and wait until its layouts are chosen: the function at the end has a cost by then."""
    await opened(client, text)
    place = at(text, "func ", 5)

    async def priced() -> bool:
        return " received and " in await hover(client, place)

    await eventually(priced)
    return list(client.diagnostics[URI])


def change(client: LanguageClient, text: str, version: int) -> None:
    client.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            lsp.VersionedTextDocumentIdentifier(version, URI), [lsp.TextDocumentContentChangeWholeDocument(text)]
        )
    )


def at(text: str, words: str, within: int = 0) -> lsp.Position:
    """The place of some words, `within` characters on."""
    before = text[: text.index(words) + within]
    return lsp.Position(before.count("\n"), len(before) - before.rfind("\n") - 1)


def applied(text: str, edits: list[lsp.TextEdit]) -> str:
    lines = text.splitlines(keepends=True) or [""]
    for edit in sorted(edits, key=lambda edit: (-edit.range.start.line, -edit.range.start.character)):
        start, end = edit.range.start, edit.range.end
        if end.line >= len(lines):
            end = lsp.Position(len(lines) - 1, len(lines[-1]))
        first, last = lines[start.line][: start.character], lines[end.line][end.character :]
        lines[start.line : end.line + 1] = [first + edit.new_text + last]
    return "".join(lines)


async def fixes(client: LanguageClient, text: str, diagnostics: list[lsp.Diagnostic]) -> dict[str, str]:
    """By title, the text after each of the quick fixes at the first diagnostic."""
    asked = lsp.CodeActionParams(
        lsp.TextDocumentIdentifier(URI), diagnostics[0].range, lsp.CodeActionContext(diagnostics)
    )
    found = await client.text_document_code_action_async(asked)
    made: dict[str, str] = {}
    for action in found or ():
        assert isinstance(action, lsp.CodeAction)
        assert action.edit is not None
        assert action.edit.changes is not None
        made[action.title] = applied(text, list(action.edit.changes[URI]))
    return made


async def hover(client: LanguageClient, position: lsp.Position) -> str:
    found = await client.text_document_hover_async(lsp.HoverParams(lsp.TextDocumentIdentifier(URI), position))
    if found is None:
        return ""
    assert isinstance(found.contents, lsp.MarkupContent)
    return found.contents.value


async def hints(client: LanguageClient) -> list[lsp.InlayHint]:
    everywhere = lsp.Range(lsp.Position(0, 0), lsp.Position(200, 0))
    asked = lsp.InlayHintParams(lsp.TextDocumentIdentifier(URI), everywhere)
    return list(await client.text_document_inlay_hint_async(asked) or ())


async def completions(client: LanguageClient, text: str) -> list[str]:
    """What is proposed where `|` stands in a text, which may be at fault."""
    return list(await completed(client, text))


async def completed(client: LanguageClient, text: str) -> dict[str, str]:
    """By label, the text after each of the proposals where `|` stands."""
    position, text = at(text, "|"), text.replace("|", "")
    await opened(client, text)
    asked = lsp.CompletionParams(lsp.TextDocumentIdentifier(URI), position)
    found = await client.text_document_completion_async(asked)
    assert isinstance(found, lsp.CompletionList)
    assert [item.sort_text for item in found.items] == sorted(item.sort_text or "" for item in found.items)
    made: dict[str, str] = {}
    for item in found.items:
        assert isinstance(item.text_edit, lsp.TextEdit)
        made[item.label] = applied(text, [item.text_edit])
    return made


@pytest.mark.asyncio(loop_scope="module")
async def test_a_fault_has_its_place_and_its_mend(client: LanguageClient) -> None:
    text = LAYER.replace("gelu(h)", "geluu(h)")
    (fault,) = await opened(client, text)
    assert fault.message == "there is no operation geluu\ndid you mean gelu?"
    assert (fault.code, fault.source) == ("unknown-operation", "shardwright")
    assert (fault.range.start, fault.range.end) == (at(text, "geluu"), at(text, "geluu", 5))
    assert await fixes(client, text, [fault]) == {"Write gelu": LAYER}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("right", "wrong", "title"),
    [
        ("chip tpu-v4", "chip tpu-v44", "Write tpu-v4"),
        ("a @ w_in", "a @ w_inn", "Write w_in"),
        ("h: BF?", "h: bf61 BF?", "Write bf16"),
        ("func layer(a: bf16 BE_x)", "func layer(a: bf16 BE_x on hostt)", "Write host"),
    ],
)
async def test_words_nearly_right_are_mended(client: LanguageClient, right: str, wrong: str, title: str) -> None:
    text = LAYER.replace(right, wrong)
    faults = await opened(client, text)
    mended = (await fixes(client, text, faults))[title]
    assert mended == text.replace(
        wrong, wrong.replace("v44", "v4").replace("w_inn", "w_in").replace("bf61", "bf16").replace("hostt", "host")
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_a_place_noted_elsewhere_is_a_link(client: LanguageClient) -> None:
    text = LAYER.replace("b = gelu(h)", "h = gelu(h)")
    fault, *_ = await opened(client, text)
    assert fault.message == "value h is defined twice"
    assert fault.related_information is not None
    (first,) = fault.related_information
    assert first.message == "the first definition is here"
    assert first.location.range.start == at(text, "h: BF?")


@pytest.mark.asyncio(loop_scope="module")
async def test_missing_movements_are_inserted(strict: LanguageClient) -> None:
    text = LAYER.replace("h: BF? = a", "h: bf16 BF_y = a").replace("b =", "b: bf16 BF_y =")

    async def said() -> list[lsp.Diagnostic]:
        return await seen(strict)

    await opened(strict, text)
    first, *others = await eventually(said)
    assert first.code == "no-strategy"
    mended = await fixes(strict, text, [first])
    assert list(mended) == ["Write all_reduce[x](a @ w_in)"]
    after = mended["Write all_reduce[x](a @ w_in)"]
    assert "h: bf16 BF_y = all_reduce[x](a @ w_in)" in after
    change(strict, after, 2)
    assert await said() == []
    left = await eventually(said)
    assert [fault.message for fault in left] == [fault.message for fault in others]
    assert list(await fixes(strict, after, left)) == ["Write all_reduce[y](b @ w_out)"]


@pytest.mark.asyncio(loop_scope="module")
async def test_types_found_are_hints_that_can_be_written(client: LanguageClient) -> None:
    assert await laid_out(client, LAYER) == []
    found = await hints(client)
    assert [hint.label for hint in found] == [" = bf16 BF_y", " :~ bf16 BF_y"]
    assert found[0].position == at(LAYER, "h: BF?", len("h: BF?"))
    assert found[1].position == at(LAYER, "b = gelu", 1)
    edits = [edit for hint in found for edit in hint.text_edits or ()]
    text = applied(LAYER, edits)
    assert "  h: bf16 BF_y = a @ w_in\n  b: bf16 BF_y = gelu(h)\n" in text
    change(client, text, 2)
    assert await seen(client) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_warnings_are_published(client: LanguageClient) -> None:
    found = await laid_out(client, LAYER.replace("h: BF?", "h: BF(partialsum-x)"))
    assert [(each.code, each.severity) for each in found] == [("reduced-at-once", lsp.DiagnosticSeverity.Warning)]


@pytest.mark.asyncio(loop_scope="module")
async def test_holes_are_filled_by_a_quick_fix(client: LanguageClient) -> None:
    await laid_out(client, LAYER)
    place = at(LAYER, "BF? =", 1)
    asked = lsp.CodeActionParams(lsp.TextDocumentIdentifier(URI), lsp.Range(place, place), lsp.CodeActionContext([]))
    (action,) = await client.text_document_code_action_async(asked) or ()
    assert isinstance(action, lsp.CodeAction)
    assert action.title == "Fill this hole: bf16 BF_y"


@pytest.mark.asyncio(loop_scope="module")
async def test_hover_says_what_a_chip_holds_and_what_a_line_takes(client: LanguageClient) -> None:
    await laid_out(client, LAYER)
    text = await hover(client, at(LAYER, "b @ w_out"))
    assert text.startswith("```shard\nb :~ bf16 BF_y\n```\n\non each chip: 8 × 32, 512 B; found by the compiler\n\n")
    assert "% of layer, bound by" in text
    assert text.endswith("on tpu-v4")
    weight = await hover(client, at(LAYER, "w_in: bf16"))
    assert weight == "```shard\nw_in: bf16 E_xF_y\n```\n\non each chip: 8 × 32, 512 B; as demanded"
    assert (await hover(client, at(LAYER, "gelu"))).startswith("`gelu(x)`: x Phi(x)")
    assert await hover(client, at(LAYER, "E_xF_y", 2)) == "mesh axis `x`: 2 chips along it"
    assert await hover(client, at(LAYER, "E_xF_y")) == "dimension `E` of size 16"
    assert (await hover(client, at(LAYER, "tpu-v4"))).startswith("chip `tpu-v4`: 32 GiB")
    assert (await hover(client, at(LAYER, "layer("))).startswith("function `layer`\n\n")
    assert await hover(client, at(LAYER, "return")) == ""


@pytest.mark.asyncio(loop_scope="module")
async def test_definitions_are_found_through_scopes(client: LanguageClient) -> None:
    text = (EXAMPLES / "13_palm_model.shard").read_text()
    await opened(client, text)
    for use, within, there in (
        ("gate)", 0, "gate = a"),
        ("V_xyzE", 2, "x=4"),
        ("NE_xF_yz", 0, "N=118"),
        ("@[E] w_in", 6, "w_in:"),
    ):
        asked = lsp.DefinitionParams(lsp.TextDocumentIdentifier(URI), at(text, use, within))
        found = await client.text_document_definition_async(asked)
        assert isinstance(found, lsp.Location)
        assert found.range.start == at(text, there)


@pytest.mark.asyncio(loop_scope="module")
async def test_two_loops_may_use_one_name(client: LanguageClient) -> None:
    text = """\
mesh x=2
dim N=2 B=4

func twice(w: f32 NB, a: f32 B) -> f32 B {
  b = loop[N](h = a) {
    c = h + w
    next c
  }
  d = loop[N](h = b) {
    c = h * w
    next c
  }
  return d
}
"""
    await opened(client, text)
    second = text.rindex("next c")
    place = lsp.Position(text[:second].count("\n"), 9)
    found = await client.text_document_definition_async(lsp.DefinitionParams(lsp.TextDocumentIdentifier(URI), place))
    assert isinstance(found, lsp.Location)
    assert found.range.start == at(text, "c = h * w")


@pytest.mark.asyncio(loop_scope="module")
async def test_what_could_be_written(client: LanguageClient) -> None:
    head = LAYER[: LAYER.index("  b = gelu")]
    words = await completions(client, f"{head}  b = |")
    assert words[:4] == ["h", "a", "w_out", "w_in"]
    assert {"gelu", "all_gather", "softmax", "loop"} <= set(words)
    assert "B" not in words
    assert await completions(client, f"{head}  b: bf16 BF_|") == ["x", "y"]
    assert await completions(client, f"{head}  b: bf16 B(partialsum-|") == ["x", "y"]
    reduced = await completions(client, f"{head}  b = all_reduce[|")
    assert {"x", "y", "E", "F"} <= set(reduced)
    assert "gelu" not in reduced
    types = await completions(client, f"{head}  b: |")
    assert {"bf16", "B", "F"} <= set(types)
    assert {"h100", "tpu-v4"} <= set(await completions(client, "chip |"))
    assert set(await completions(client, "|")) >= {"mesh", "dim", "weights", "state", "func"}
    assert await completions(client, f"{head}  b: bf16 BF on |") == ["device", "host", "disk"]
    assert await completions(client, f"{head}  # |") == []
    assert {"return", "set", "free"} <= set(await completions(client, f"{head}  |"))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("line", "label", "whole"),
    [
        ("b: bf16 BF_|", "y", "b: bf16 BF_y"),
        ("b: bf16 B_xF_y|", "y", "b: bf16 B_xF_y"),
        ("b: bf16 BF(|)", "partialsum-", "b: bf16 BF(partialsum-)"),
        ("b: bf16 BF(par|)", "partialsum-", "b: bf16 BF(partialsum-)"),
        ("b: bf16 BF(partialsum-|)", "x", "b: bf16 BF(partialsum-x)"),
        ("b = gelu(w_|)", "w_in", "b = gelu(w_in)"),
        ("b = all_|(h)", "all_gather", "b = all_gather(h)"),
    ],
)
async def test_a_proposal_replaces_what_is_written_of_it(
    client: LanguageClient, line: str, label: str, whole: str
) -> None:
    head = LAYER[: LAYER.index("  b = gelu")]
    assert (await completed(client, f"{head}  {line}"))[label] == f"{head}  {whole}"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_chip_is_one_word(client: LanguageClient) -> None:
    found = await completed(client, "chip tpu-|\n")
    assert found["tpu-v4"] == "chip tpu-v4\n"
    assert all(name.startswith("tpu-") for name in found)


@pytest.mark.asyncio(loop_scope="module")
async def test_what_has_the_letters_is_proposed_and_what_begins_with_them_first(client: LanguageClient) -> None:
    head = LAYER[: LAYER.index("  b = gelu")]
    words = await completions(client, f"{head}  b = ge|")
    assert words[0] == "gelu"
    assert "all_gather" in words
    assert "softmax" not in words


@pytest.mark.asyncio(loop_scope="module")
async def test_formatting_is_that_of_fmt(client: LanguageClient) -> None:
    loose = LAYER.replace("a @ w_in", "a@w_in").replace("  w_in: ", " w_in :  ")
    await opened(client, loose)
    asked = lsp.DocumentFormattingParams(lsp.TextDocumentIdentifier(URI), lsp.FormattingOptions(2, insert_spaces=True))
    edits = await client.text_document_formatting_async(asked)
    assert applied(loose, list(edits or ())) == LAYER
    await opened(client, LAYER.replace("func", "funk"))
    assert await client.text_document_formatting_async(asked) is None


@pytest.mark.asyncio(loop_scope="module")
async def test_the_outline(client: LanguageClient) -> None:
    await opened(client, LAYER)
    asked = lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(URI))
    found = await client.text_document_document_symbol_async(asked) or ()
    assert [symbol.name for symbol in found] == ["weights", "layer"]


@pytest.mark.asyncio(loop_scope="module")
async def test_only_the_last_version_is_answered(client: LanguageClient) -> None:
    """Typing faster than layouts are chosen: what comes in the end is of the last text."""
    await opened(client, (EXAMPLES / "13_palm_model.shard").read_text())
    for version in range(2, 12):
        change(client, LAYER.replace("F=64", f"F={64 * version}"), version)

    async def held() -> str:
        said = await hover(client, at(LAYER, "b @ w_out"))
        return said if "on each chip" in said else ""

    assert (await eventually(held)).startswith("```shard\nb :~ bf16 BF_y\n```\n\non each chip: 8 × 352")


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_typed_ends_the_server(client: LanguageClient) -> None:
    generator = random.Random(5)
    await opened(client, LAYER)
    for version in range(2, 152):
        text = LAYER
        for _ in range(generator.randint(1, 3)):
            cut = generator.randrange(len(text))
            text = text[:cut] + generator.choice(["", "?", "[", "é", "𝄞", "\t", "loop", "x_"]) + text[cut + 2 :]
        change(client, text, version)
        position = lsp.Position(generator.randrange(17), generator.randrange(30))
        await hover(client, position)
        asked = lsp.CompletionParams(lsp.TextDocumentIdentifier(URI), position)
        await client.text_document_completion_async(asked)
        await hints(client)
    change(client, LAYER, 200)
    assert await seen(client) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_a_change_of_a_closed_text_is_no_fault_of_the_server(client: LanguageClient) -> None:
    await opened(client, LAYER)
    client.text_document_did_close(lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(URI)))
    change(client, LAYER, 2)
    assert await seen(client) == []
    assert client.messages == []


def talk(*messages: dict[str, object]) -> tuple[int, list[dict[str, Any]]]:
    """The status that the server ends with after these messages, and what it answers."""
    bodies = [json.dumps({"jsonrpc": "2.0", **message}) for message in messages]
    framed = "".join(f"Content-Length: {len(body)}\r\n\r\n{body}" for body in bodies)
    done = subprocess.run(SERVER.server_command, input=framed.encode(), capture_output=True, check=False, timeout=60)
    parts = re.split(rb"Content-Length: .*\r\n(?:.+\r\n)*\r\n", done.stdout)[1:]
    return done.returncode, [json.loads(part) for part in parts]


BEGIN: dict[str, object] = {"id": 1, "method": "initialize", "params": {"capabilities": {}}}


@pytest.mark.parametrize(("before", "status"), [([{"id": 2, "method": "shutdown"}], 0), ([], 1)])
def test_exit_without_shutdown_ends_with_status_1(before: list[dict[str, object]], status: int) -> None:
    assert talk(BEGIN, *before, {"method": "exit"})[0] == status


def test_a_request_with_wrong_parameters_is_answered() -> None:
    wrong: dict[str, object] = {"id": 2, "method": "textDocument/hover", "params": {"position": 3}}
    _, answers = talk(BEGIN, wrong)
    assert [answer["error"]["code"] for answer in answers if answer.get("id") == 2] == [-32602]
