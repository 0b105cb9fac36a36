"""A page of the explorer: a program at the left, and live beside it what becomes of it.

Each page has processes of its own for what is typed: one for faults, one for layouts and pictures, one for what comes
last. A change of the text stops what was being done for the text before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from shardwright.cost.hardware.chips import chip_names
from shardwright.cost.movements.movement import duration_text
from shardwright.exporting.export import FORMATS
from shardwright.ir.diagnostics import NOWHERE, Diagnostic, DiagnosticError, Severity, Source, fault
from shardwright.models.built_in import built_in_names
from shardwright.models.layouts import PRESETS
from shardwright.workbench import jobs, panels
from shardwright.workbench.examine import Examination, ExamineSettings
from shardwright.workbench.links import MOST_CHARACTERS, to_link
from shardwright.workbench.texts import cost_text
from shardwright.workbench.worker import SupersededError, Worker

PAUSE = 0.15
"""Seconds without a change before layouts are chosen."""

_FILES = {
    "jax": "specs.py", "dtensor": "placements.py", "hf-tp-plan": "tp_plan.json", "vllm": "vllm.txt",
    "shardy": "program.mlir", "model-explorer": "graph.json",
}  # fmt: skip
"""What a download of each export is called."""

_SORTED = {"sortBy": "bytes", "descending": True, "rowsPerPage": 0}


@dataclass
class Explorer:
    """One page: its text, its controls, and what is shown of it."""

    name: str
    text: str
    controls: dict[str, str] = field(default_factory=dict[str, str])
    quick: Worker = field(default_factory=lambda: Worker(seconds=10))
    deep: Worker = field(default_factory=lambda: Worker(seconds=60))
    behind: Worker = field(default_factory=lambda: Worker(seconds=60))
    found: Examination | None = None
    found_of: str = ""
    """The text that `found` is of."""
    kept: tuple[str, Examination] | None = None
    """A version to compare with: its text, and what was found of it."""
    reasons: list[str] = field(default_factory=list[str])
    task: asyncio.Task[None] | None = None

    @property
    def source(self) -> Source:
        return Source(self.name, self.text)

    @property
    def settings(self) -> ExamineSettings:
        """The settings that the controls say. Raises a `DiagnosticError` where one is at fault."""
        said = self.controls.get
        return ExamineSettings(
            mesh=jobs.parse_sizes(said("mesh", "")),
            dims=jobs.parse_sizes(said("sizes", "")),
            chip=said("chip", "") if said("chip", "") in chip_names() else "",
            objective="bytes" if said("objective") == "bytes" else "time",
            own_chips=False,
        )

    def close(self) -> None:
        """End what is being done, and the processes."""
        if self.task is not None:
            self.task.cancel()
        for worker in (self.quick, self.deep, self.behind):
            worker.close()


class Page:
    """The elements of one page, and how they follow its text."""

    def __init__(self, ui: Any, explorer: Explorer) -> None:
        self.ui = ui
        self.explorer = explorer
        self.client: Any = ui.context.client
        self.line = 0
        self.build()

    # ------------------------------------------------------------ what there is

    def build(self) -> None:
        """Lay out the page."""
        ui = self.ui
        ui.add_css(panels.STYLE)
        ui.dark_mode(None)
        self.header()
        with ui.splitter(value=46).classes("w-full grow").style("min-height:0") as splitter:
            with splitter.before, ui.column().classes("w-full h-full no-wrap gap-0"):
                self.editor = ui.codemirror(self.explorer.text, on_change=self.typed).classes("w-full grow")
                self.editor.style("min-height:0;height:auto")
                self.faults = ui.html("", sanitize=False).classes("w-full").style("max-height:30%;overflow:auto")
                self.faults.props("data-testid=faults")
            with splitter.after, ui.column().classes("w-full h-full no-wrap gap-0"):
                self.tabs()

    def header(self) -> None:
        """The controls."""
        ui, said = self.ui, self.explorer.controls
        with ui.row().classes("w-full items-center gap-2 px-3 py-1").style("border-bottom:1px solid #8884"):
            ui.label("Shardwright").classes("text-subtitle1 text-weight-medium")
            names = {"": "begin from...", **{name: name.replace("_", " ") for name in jobs.example_names()}}
            self.begin = ui.select(names, value="", on_change=self.begin_from).props("dense options-dense borderless")
            ui.button("Model...", on_click=self.ask_for_model).props("flat dense no-caps")
            self.mesh = self.control("mesh", "x=4 y=4", 120)
            self.sizes = self.control("sizes", "B=8 L=128", 130)
            chips = {"": "its own chip", **{name: name for name in chip_names()}}
            self.chip = ui.select(chips, value=said.get("chip", ""), on_change=self.turned("chip")).props("dense")
            self.chip.props("data-testid=chip")
            objectives = {"time": "least time", "bytes": "fewest bytes"}
            self.objective = ui.select(
                objectives, value=said.get("objective", "time"), on_change=self.turned("objective")
            ).props("dense")
            ui.space()
            self.busy = ui.spinner(size="20px").props("data-testid=busy")
            self.summary = ui.label("").classes("text-caption").props("data-testid=summary")
            ui.button("Keep", on_click=self.keep).props("flat dense no-caps").tooltip("keep this version to compare")
            ui.button("Link", on_click=self.link).props("flat dense no-caps").tooltip("an address that holds all this")
            with ui.dropdown_button("Download", auto_close=True).props("flat dense no-caps"):
                ui.item("program", on_click=lambda: self.download("program.shard", lambda: self.explorer.text))
                ui.item("explicit program", on_click=lambda: self.download("explicit.shard", self.explicit_text))
                ui.item("module of JAX", on_click=lambda: self.make("module.py", jobs.module))
                ui.item("picture", on_click=self.make_picture)
                for form in FORMATS:
                    ui.item(f"for {form}", on_click=lambda form=form: self.make(_FILES[form], jobs.exported, form))

    def control(self, name: str, placeholder: str, width: int) -> Any:
        """A field for sizes that override the text's own."""
        made = self.ui.input(name, placeholder=placeholder, value=self.explorer.controls.get(name, ""))
        made.props(f"dense debounce=300 data-testid={name}").style(f"width:{width}px")
        made.on_value_change(self.turned(name))
        return made

    def tabs(self) -> None:
        """The tabs that show the program."""
        ui = self.ui
        names = ("Program", "Picture", "Collectives", "Memory", "Timeline", "Reasons", "Compare")
        with ui.tabs().props("dense align=left").classes("w-full") as tabs:
            for name in names:
                ui.tab(name)
        self.panels: dict[str, Any] = {}
        with ui.tab_panels(tabs, value="Program", animated=False).classes("w-full grow").style("min-height:0"):
            for name in names:
                with ui.tab_panel(name).classes("p-2").style("height:100%"):
                    if name == "Collectives":
                        self.collectives = self.table_of_collectives()
                    else:
                        shown = ui.html("", sanitize=False).classes("shown w-full")
                        self.panels[name] = shown.props(f"data-testid={name.lower()}")
        self.panels["Compare"].content = panels.said(
            "Keep a version, then change the text: both stand here side by side."
        )

    def table_of_collectives(self) -> Any:
        columns: list[dict[str, Any]] = [
            {"name": name, "label": label, "field": name, "sortable": True, "align": align}
            for name, label, align in (
                ("func", "function", "left"), ("value", "value", "left"), ("operation", "collective", "left"),
                ("axes", "axes", "left"), ("line", "line", "right"), ("trips", "times", "right"),
                ("bytes", "bytes received", "right"), ("time", "microseconds", "right"),
            )
        ]  # fmt: skip
        columns[-2][":format"] = "v => v.toLocaleString('en')"
        made = self.ui.table(columns=columns, rows=[], row_key="id", pagination=_SORTED)
        made.props("dense flat data-testid=collectives").classes("w-full")
        made.on("rowClick", self.chosen)
        return made

    # ------------------------------------------------------------ what happens

    def chosen(self, event: Any) -> None:
        """A collective of the table was clicked."""
        self.show_line(event.args[1]["line"])

    def typed(self, event: Any) -> None:
        """The text was changed."""
        self.explorer.text = event.value
        self.line = 0
        self.start()

    def turned(self, name: str) -> Callable[[Any], None]:
        def change(event: Any) -> None:
            self.explorer.controls[name] = str(event.value or "")
            self.start()

        return change

    def begin_from(self, event: Any) -> None:
        if event.value:
            self.explorer.name = f"{event.value}.shard"
            self.replace(jobs.example(event.value))
            self.begin.set_value("")

    def replace(self, text: str) -> None:
        """Another text in place of this one."""
        for control in (self.mesh, self.sizes):
            control.set_value("")
        self.editor.set_value(text)

    def show_line(self, line: int) -> None:
        """Scroll to a line and mark it."""
        if line:
            self.line = line
            self.editor.reveal_line(line)
            self.decorate()

    def start(self) -> None:
        """Look at the text as it is now, in place of what was being looked at."""
        if self.explorer.task is not None:
            self.explorer.task.cancel()
        self.explorer.task = asyncio.get_running_loop().create_task(self.look())

    async def connected(self) -> None:
        """The page is in the browser: dark where the browser is, and looked at."""
        with self.client:
            if await self.ui.run_javascript("matchMedia('(prefers-color-scheme: dark)').matches"):
                self.editor.run_method("setTheme", "basicDark")
        self.start()

    async def look(self) -> None:
        """First what is wrong, then the layouts, then pictures, then what takes longest."""
        explorer = self.explorer
        with self.client:
            self.busy.set_visibility(True)
            try:
                await self.look_step_by_step(explorer)
            except SupersededError:
                return
            except DiagnosticError as error:
                self.show_faults(error.diagnostics)
            self.busy.set_visibility(False)

    async def look_step_by_step(self, explorer: Explorer) -> None:
        if len(explorer.text) > MOST_CHARACTERS:
            raise fault("too-long", f"the text has more than {MOST_CHARACTERS} characters", NOWHERE, "use `check`")
        source, settings = explorer.source, explorer.settings
        found_wrong = await explorer.quick.ask(jobs.faults, source, settings)
        self.show_faults(found_wrong)
        if found_wrong:
            return
        await asyncio.sleep(PAUSE)
        from shardwright.workbench.examine import examine

        found = await explorer.deep.ask(examine, source, replace(settings, proof=False))
        if found.explicit is None:
            self.show_faults(found.diagnostics)
            return
        await self.show_all(found, source)
        proved = await explorer.deep.ask(examine, source, settings)
        if proved.text != found.text:
            await self.show_all(proved, source)
        self.panels["Reasons"].content = panels.said("looking for the next best...")
        explorer.reasons = await explorer.behind.ask(jobs.reasons, source, settings)
        self.panels["Reasons"].content = panels.listed(explorer.reasons)

    async def show_all(self, found: Examination, source: Source) -> None:
        """Shows layouts, then their picture, then the timelines."""
        explorer = self.explorer
        explorer.found, explorer.found_of, explorer.reasons = found, source.text, []
        self.show_faults(found.warnings)
        self.show(found)
        self.panels["Picture"].content = panels.framed(
            await explorer.deep.ask(jobs.picture, found, source.name, source.text)
        )
        parts = [await explorer.deep.ask(jobs.timeline, found, cost.func) for cost in found.costs]
        self.panels["Timeline"].content = "<br>".join(parts)

    # ------------------------------------------------------------ what is shown

    def show_faults(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        source = self.explorer.source
        self.faults.content = "".join(f"<pre class=p-2>{escape(d.render(source))}</pre>" for d in diagnostics)
        self.wrong = tuple(d for d in diagnostics if d.severity is Severity.ERROR)
        stale = "add" if self.wrong else "remove"
        for panel in (*self.panels.values(), self.collectives):
            panel.classes(**{stale: "stale"})
        self.decorate()

    def decorate(self) -> None:
        """Types found in place, faults underlined, the chosen line marked."""
        text = self.explorer.text
        starts = [0]
        for line in text.split("\n"):
            starts.append(starts[-1] + len(line) + 1)
        made = _colours(text)
        for diagnostic in self.wrong:
            span = diagnostic.span
            if 0 < span.line < len(starts):
                start = starts[span.line - 1] + span.column - 1
                end = starts[min(span.end_line, len(starts) - 1) - 1] + span.end_column - 1
                made.append({"kind": "line", "line": span.line, "class": "cm-fault-line"})
                if start < min(end, len(text)):
                    made.append({"kind": "mark", "from": start, "to": min(end, len(text)), "class": "cm-fault"})
        found, places = self.explorer.found, same_lines(self.explorer.found_of, text)
        for hint in found.hints if found else ():
            line = places(hint.place.end_line)
            if line:
                position = starts[line - 1] + hint.place.end_column - 1
                made.append({"kind": "widget", "position": position, "text": hint.label, "class": "cm-found"})
        if 0 < self.line < len(starts):
            made.append({"kind": "line", "line": self.line, "class": "cm-shown-line"})
        lines = {places(cost.line): cost_text(cost) for cost in found.lines if places(cost.line)} if found else {}
        lines |= {d.span.line: d.message for d in self.wrong if d.span.line}
        # By the component's own methods: its properties go together with the text as the server has it, and what was
        # typed since would be lost.
        self.editor.run_method("setDecorations", made)
        self.editor.run_method("setLineTooltips", lines)

    def show(self, found: Examination) -> None:
        """Shows what is known as soon as layouts are chosen."""
        self.panels["Program"].content = f"<pre>{panels.coloured(found.text)}</pre>"
        self.panels["Memory"].content = "".join(panels.memory_of(cost) for cost in found.costs)
        self.collectives.rows = panels.collectives_of(found)
        expected = dict.fromkeys(filter(None, (cost.error_in_brief() for cost in found.costs)))
        times = [f"{cost.func} {duration_text(cost.time_s)}" for cost in found.costs]
        self.summary.text = "; ".join([*times, *expected])
        self.compare()

    # ------------------------------------------------------------ versions, links, files

    def keep(self) -> None:
        """Keep this version to compare what follows with it."""
        if self.explorer.found is not None and not self.wrong:
            self.explorer.kept = self.explorer.text, self.explorer.found
            self.compare()
            self.ui.notify("kept; the tab Compare shows the difference")

    def compare(self) -> None:
        kept, found = self.explorer.kept, self.explorer.found
        if kept is not None and found is not None:
            self.panels["Compare"].content = panels.compared(kept, (self.explorer.text, found))

    async def link(self) -> None:
        """Put the program into the page's address."""
        address = f"/?p={to_link(self.explorer.text, self.explorer.controls)}"
        if len(address) > 60_000:
            self.ui.notify("this program is too long for an address; download it")
            return
        await self.ui.run_javascript(
            f"history.replaceState(null, '', '{address}');"
            "if (navigator.clipboard) navigator.clipboard.writeText(location.href).catch(() => {});"
        )
        self.ui.notify("the address of this page now holds the program")

    def explicit_text(self) -> str:
        return self.explorer.found.text if self.explorer.found is not None else ""

    def download(self, name: str, text: Callable[[], str]) -> None:
        self.ui.download.content(text(), name)

    async def make(self, name: str, job: Callable[..., str], *args: str) -> None:
        """Download what a process makes of the program."""
        if self.explorer.found is None or self.wrong:
            self.ui.notify("mend the program first")
            return
        await self.guarded(self.made(name, job, *args))

    async def make_picture(self) -> None:
        await self.make("picture.svg", jobs.picture, self.explorer.name, self.explorer.found_of)

    async def made(self, name: str, job: Callable[..., str], *args: str) -> None:
        self.ui.download.content(await self.explorer.behind.ask(job, self.explorer.found, *args), name)

    async def guarded(self, doing: Coroutine[Any, Any, None]) -> None:
        """Say what goes wrong where the user can see it."""
        try:
            await doing
        except SupersededError:
            return
        except DiagnosticError as error:
            said = "; ".join([error.diagnostics[0].message, *(n.message for n in error.diagnostics[0].notes)])
            self.ui.notify(said, type="negative", multi_line=True, timeout=10_000)

    def ask_for_model(self) -> None:
        """A dialog for the model to begin from."""
        ui = self.ui
        with ui.dialog() as dialog, ui.card():
            model = ui.select(list(built_in_names()), value="llama-3-8b", label="model", with_input=True)
            model.classes("w-64").props("data-testid=model")
            layout = ui.select([*PRESETS, "open"], value="megatron", label="layout").classes("w-64")
            mesh = ui.input("mesh", value="x=4 y=2").classes("w-64")
            batch = ui.number("sequences", value=8, min=1, precision=0).classes("w-64")
            length = ui.number("tokens of a prompt", value=128, min=1, precision=0).classes("w-64")
            cache = ui.number("positions of the cache", value=2048, min=1, precision=0).classes("w-64")

            async def begin() -> None:
                wanted = jobs.StartingModel(
                    model.value, layout.value, mesh.value, *(int(n.value or 1) for n in (batch, length, cache))
                )
                text = await self.explorer.quick.ask(jobs.begun, wanted)
                self.explorer.name = f"{wanted.model}.shard"
                dialog.close()
                self.replace(text)

            ui.button("Begin", on_click=lambda: self.guarded(begin())).props("no-caps")
        dialog.open()


def same_lines(old: str, new: str) -> Callable[[int], int]:
    """From a line of the old text to the same line of the new one, 0 where it is among those that were changed."""
    before, after = old.split("\n"), new.split("\n")
    shortest = min(len(before), len(after))
    head = next((i for i in range(shortest) if before[i] != after[i]), shortest)
    tail = next((i for i in range(shortest - head) if before[-1 - i] != after[-1 - i]), shortest - head)

    def place(line: int) -> int:
        if line <= head:
            return line
        return line + len(after) - len(before) if line > len(before) - tail else 0

    return place


_MOST_COLOURED = 20_000
"""Characters of a text whose words have colours."""


def _colours(text: str) -> list[dict[str, Any]]:
    """The words of a text told apart."""
    if len(text) > _MOST_COLOURED:
        return []
    return [
        {"kind": "mark", "from": start, "to": start + len(word), "class": kind}
        for start, word, kind in panels.words_of(text)
        if kind
    ]
