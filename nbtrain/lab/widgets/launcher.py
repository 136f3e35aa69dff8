"""The launch form: pick a YAML, edit its fields in groups, see checks, plan and changes at once, submit.

    +-- run YAML, name ------------------------------------------------------+
    | Distributed  Model  Training  ...    |  messages, what this machine     |
    |   field   [value]                    |  lacks, difference, plan         |
    +-- nb.submit("gpt-tiny", {...}) ---------------------- [Reset] [Submit] -+
    | the panel of the submitted run                                         |

Its button does exactly what the shown line does. The form's events arrive while the kernel is idle.
"""

import html
from collections.abc import Iterable
from typing import Any

import ipywidgets as widgets

from nbtrain.base.errors import NbtrainError
from nbtrain.config.load import Overrides
from nbtrain.config.yaml_source import show
from nbtrain.lab.form.draft import Assessment, Draft
from nbtrain.lab.form.fields import GROUPS, Field, fields_of, run_yamls
from nbtrain.lab.widgets.mime import bundle
from nbtrain.lab.widgets.panel import RunPanel
from nbtrain.monitor.run_view import RunView

STYLE = """<style>
.nbtrain-form{border:1px solid var(--jp-border-color2,#d8dce1);border-radius:8px;padding:10px 14px 12px;
 max-width:1120px}
.nbtrain-form .nbf-title{font-weight:600;font-size:15px}
.nbtrain-form .nbf-section{font-weight:600;margin:6px 0 0;color:var(--jp-ui-font-color1,#1f2328)}
.nbtrain-form .nbf-changed input,.nbtrain-form .nbf-changed select{
 border-color:var(--jp-brand-color1,#1976d2)!important;
 box-shadow:inset 3px 0 0 var(--jp-brand-color1,#1976d2)}
.nbtrain-form .nbf-changed .widget-label{color:var(--jp-brand-color1,#1976d2)}
.nbtrain-form .lm-TabBar-tab,.nbtrain-form .p-TabBar-tab{flex:0 0 auto!important;min-width:0!important;
 padding:0 9px!important}
.nbtrain-form .nbf-side{padding-left:14px;font-variant-numeric:tabular-nums}
.nbtrain-form .nbf-side .widget-html-content{font-size:12.5px;line-height:1.45}
.nbtrain-form .nbf-side p{margin:8px 0 2px}
.nbtrain-form .nbf-side table{border-collapse:collapse;margin:2px 0 8px;font-size:12px}
.nbtrain-form .nbf-side td,.nbtrain-form .nbf-side th{text-align:left;padding:1px 14px 1px 0;
 vertical-align:top;
 background:transparent;border:0}
.nbtrain-form .nbf-head{color:var(--jp-ui-font-color2,#6b7280);font-size:11px;margin-top:8px}
.nbtrain-form .nbf-good{color:var(--jp-success-color1,#2e9e4f);font-weight:600}
.nbtrain-form .nbf-bad{color:var(--jp-error-color1,#d32f2f)}
.nbtrain-form .nbf-short{color:var(--jp-warn-color1,#e8710a)}
.nbtrain-form .nbf-message{white-space:pre-wrap;margin:3px 0;overflow-wrap:anywhere}
.nbtrain-form code.nbf-line{display:block;padding:5px 9px;border-radius:5px;overflow-wrap:anywhere;
 background:var(--jp-layout-color2,#f3f4f6);font-family:var(--jp-code-font-family,monospace);font-size:12px}
</style>"""


class LaunchForm(widgets.VBox):
    """The form of one run. `draft` holds what is typed; `view` the run, once it is submitted."""

    def __init__(self, run: str = "gpt-tiny", overrides: Overrides = None):
        self.draft = Draft(run, overrides)
        self.view: RunView | None = None
        self.assessment: Assessment = self.draft.assess()
        self.controls: dict[str, tuple[Field, Any]] = {}
        self._filling = False
        self._unreadable: set[str] = set()

        names = tuple(run_yamls())
        names = names if run in names else (run, *names)
        small, medium, wide, widest = ({"width": f"{pixels}px"} for pixels in (90, 110, 260, 320))
        self.choice = widgets.Dropdown(value=run, options=names, description="run YAML", layout=widest)
        text = "A file of your own; relative paths are relative to the workspace."
        self.path = widgets.Text(placeholder="or the path of a run YAML", tooltip=text, layout=wide)
        text, name = "The run's folder under the output root.", self.draft.value("name")
        self.name = widgets.Text(value=name, description="name", tooltip=text, layout=widest)
        self.path.continuous_update = self.name.continuous_update = False
        self.pages = widgets.Tab(layout={"flex": "1 1 460px", "min_width": "400px"})
        self.side = widgets.HTML(layout={"flex": "1 1 380px", "min_width": "320px", "max_height": "430px"})
        self.side.add_class("nbf-side")
        self.line = widgets.HTML(layout={"flex": "1 1 auto", "min_width": "200px"})
        text = "Take every change back."
        self.reset_button = widgets.Button(description="Reset", tooltip=text, layout=small)
        self.submit_button = widgets.Button(description="Submit", button_style="primary", layout=medium)
        self.answer = widgets.HTML()
        self.answer.add_class("nbf-side")
        self.result = widgets.VBox()
        self._fill_pages()

        flow = {"display": "flex", "flex_flow": "row wrap"}
        top, middle = flow | {"margin": "0 0 8px"}, flow | {"align_items": "flex-start"}
        foot = flow | {"align_items": "center", "margin": "8px 0 0"}
        super().__init__(
            [
                widgets.HTML(STYLE + '<span class="nbf-title">Launch a run</span>'),
                widgets.Box([self.choice, self.path, self.name], layout=top),
                widgets.Box([self.pages, self.side], layout=middle),
                widgets.Box([self.line, self.reset_button, self.submit_button], layout=foot),
                self.answer,
                self.result,
            ]
        )
        self.add_class("nbtrain-form")
        self.choice.observe(self._on_choice, names="value")
        self.path.observe(self._on_path, names="value")
        self.name.observe(lambda change: self.set("name", change["new"]), names="value")
        self.reset_button.on_click(lambda _: self._open(self.draft.run))
        self.submit_button.on_click(lambda _: self.submit())
        self.refresh()

    def set(self, key: str, value: Any) -> None:
        """Change a field by its dotted key, as an override does."""
        if not self._filling:
            self.draft.set(key, value)
            self.refresh()

    def submit(self) -> RunView | None:
        """Submit the draft, as its line does, and show the run's panel. A refusal is shown, not raised."""
        from nbtrain.jobs.submit import submit

        self.submit_button.disabled = True
        try:
            # Loaded anew: the file may have changed since it was typed.
            self.assessment = self.draft.assess()
            if self.assessment.config is None:
                self._say(self.assessment.problems)
                return None
            job = submit(self.assessment.config)
        except NbtrainError as error:
            self._say([str(error)])
            return None
        finally:
            self.submit_button.disabled = not self._may_submit()
        self.view = RunView(job.run)
        words = f"Job {html.escape(job.job_id)}: nb.open_run({job.run.name!r})"
        self.answer.value = f'<div class="nbf-good">{words}</div>'
        for panel in self.result.children:
            panel.close()
        self.result.children = (RunPanel(self.view),)
        return self.view

    def refresh(self) -> None:
        """Check and plan the draft and show what comes of it."""
        self.assessment = self.draft.assess()
        for key, (_, control) in self.controls.items():
            changed = key in self.draft.overrides
            (control.add_class if changed else control.remove_class)("nbf-changed")
        self.side.value = assessment_html(self.draft, self.assessment)
        self.line.value = f'<code class="nbf-line">{html.escape(self.draft.line)}</code>'
        self.submit_button.disabled = not self._may_submit()

    def close(self) -> None:
        """Take the form and its panel away."""
        # ipywidgets closes what is collected, also a form whose run could not be read.
        for panel in self.result.children if hasattr(self, "result") else ():
            panel.close()
        super().close()

    def _may_submit(self) -> bool:
        # What the machine lacks is no reason to lock the button: the submission says it in full.
        return self.assessment.config is not None and not self.assessment.problems and not self._unreadable

    def _say(self, messages: Iterable[str]) -> None:
        self.answer.value = "".join(_message(text, "nbf-bad") for text in messages)

    def _on_choice(self, change: dict[str, Any]) -> None:
        if not self._filling:
            self._open(change["new"])

    def _on_path(self, change: dict[str, Any]) -> None:
        if path := change["new"].strip():
            self._open(path)

    def _open(self, run: str) -> None:
        """Start over from a YAML; one that cannot be read leaves the form as it is."""
        self.answer.value = ""
        try:
            self.draft = Draft(run)
        except NbtrainError as error:
            self._say([str(error)])
            return
        self._unreadable.clear()
        self._filling = True
        try:
            self.name.value = self.draft.base.name
            for one, control in self.controls.values():
                whole = one.kind in ("switch", "choice")
                control.value = self.draft.value(one.key) if whole else self.draft.text(one)
        finally:
            self._filling = False
        self.refresh()

    def _fill_pages(self) -> None:
        layout, style = widgets.Layout(width="98%"), {"description_width": "210px"}
        page = {"height": "380px", "overflow": "hidden auto", "display": "block"}
        pages = []
        for sections in GROUPS.values():
            rows: list[Any] = []
            for section in sections:
                rows.append(widgets.HTML(f'<div class="nbf-section">{section}</div>'))
                rows += [self._control(one, layout, style) for one in fields_of(section)]
            pages.append(widgets.VBox(rows, layout=page))
        self.pages.children = tuple(pages)
        self.pages.titles = tuple(GROUPS)

    def _control(self, one: Field, layout: widgets.Layout, style: dict[str, str]) -> Any:
        common = {"description": one.label, "tooltip": one.description, "layout": layout, "style": style}
        control: Any
        if one.kind == "switch":
            control = widgets.Checkbox(value=self.draft.value(one.key), **common)
            control.observe(lambda change: self.set(one.key, change["new"]), names="value")
        elif one.kind == "choice":
            control = widgets.Dropdown(options=one.choices, value=self.draft.value(one.key), **common)
            control.observe(lambda change: self.set(one.key, change["new"]), names="value")
        else:
            control = widgets.Text(value=self.draft.text(one), continuous_update=False, **common)
            control.observe(lambda change: self._typed(one, change["new"]), names="value")
        self.controls[one.key] = (one, control)
        return control

    def _typed(self, one: Field, text: str) -> None:
        if self._filling:
            return
        try:
            self.draft.set_text(one, text)
        except NbtrainError as error:
            self._unreadable.add(one.key)
            self._say([str(error)])
            self.submit_button.disabled = True
            return
        self._unreadable.discard(one.key)
        self.answer.value = ""
        self.refresh()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return bundle(self, self.static_html(), self.draft.line)

    def static_html(self) -> str:
        """The form as a picture: YAML, checks, difference, plan and the line."""
        return (
            f"<p><strong>Launch {html.escape(self.draft.run)}</strong></p>"
            f"{assessment_html(self.draft, self.assessment)}"
            f"<p><code>{html.escape(self.draft.line)}</code></p>"
        )


def assessment_html(draft: Draft, assessment: Assessment) -> str:
    """Messages, what this machine lacks, difference and plan."""
    parts = []
    if assessment.problems:
        parts += [_message(problem, "nbf-bad") for problem in assessment.problems]
    elif assessment.shortages:
        parts.append('<div class="nbf-head">This machine cannot start it yet</div>')
        parts += [_message(str(shortage), "nbf-short") for shortage in assessment.shortages]
    else:
        parts.append('<div class="nbf-good">Ready to submit</div>')
    if draft.overrides:
        parts.append(f'<div class="nbf-head">Changed against the YAML</div>{_changes(draft)}')
    if assessment.plan is not None:
        parts.append(assessment.plan._repr_html_())
    return "".join(parts)


def _message(text: str, kind: str) -> str:
    return f'<div class="nbf-message {kind}">{html.escape(text)}</div>'


def _changes(draft: Draft) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(key)}</td><td><s>{html.escape(show(draft.base_value(key)))}</s></td>"
        f"<td><strong>{html.escape(show(value))}</strong></td></tr>"
        for key, value in draft.overrides.items()
    )
    return f"<table>{rows}</table>"
