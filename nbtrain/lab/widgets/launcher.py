"""The launch form as an anywidget, whose script (lab/ui/form/form_widget.js) queries the Jupyter server.

    live front end        form + rescue    everything by REST: works while a cell runs or without this kernel
    no server extension   form             requests as messages, to which the kernel responds between cells
    papermill, HTML       static picture   static_html()

The page sends a message for each change of a value, so that the next cell has the form's values:
`form.config`, `form.mode`. A reloaded page restores the values from the trait `held`.
The rescue is a second, invisible output, as in panel.py: after a reload without the kernel it shows the form,
which then reports that its kernel has ended.
"""

import html
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import anywidget
import traitlets

from nbtrain.base.errors import ConfigError, NbtrainError
from nbtrain.base.printing.notebook import is_watched
from nbtrain.base.printing.report import Table
from nbtrain.base.text.nearest import nearest
from nbtrain.config.load import Overrides
from nbtrain.config.schema import RunConfig
from nbtrain.lab.form.answers import MODES, answer, place, yaml_for_others
from nbtrain.lab.form.draft import Assessment, Draft
from nbtrain.lab.form.fields import every_field
from nbtrain.lab.ui.script import script
from nbtrain.lab.widgets.mime import bundle

RESCUE = """<div class="nbtrain-rescue" data-form="{form}" style="display:none">\
</div><script>
(() => {{
  const place = document.currentScript.previousElementSibling;
  const node = document.getElementById("jupyter-config-data");
  const base = node && JSON.parse(node.textContent).baseUrl;
  if (base) import(base + "nbtrain/static/form.js").then((form) => form.rescueForm(place), () => {{}});
}})();
</script>"""


def form_script() -> str:
    """Return the form's module, which exports rescue and anywidget's default."""
    return script("form/form_widget")


class LaunchForm(anywidget.AnyWidget):
    """The launch form of one run.

    `draft` has the form's values, and `config` is the checked configuration. `mode` is full (train the run)
    or twin (try its layout at small scale).
    """

    _esm = form_script()
    form_id = traitlets.Unicode().tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)
    """Id of the widget model, with which the script checks whether the kernel is running."""
    start = traitlets.Dict().tag(sync=True)
    """Start values of the form: yaml, overrides, mode, place."""
    held = traitlets.Dict().tag(sync=True)
    """Current values: yaml, given (whether the start's overrides apply), typed, mode, and seq, a number that
    increases with each change on either side."""

    def __init__(self, run: str = "gpt-tiny", overrides: Overrides = None, mode: str = "full"):
        if mode not in MODES:
            raise ConfigError(f'mode = {mode!r} must be "full" or "twin".')
        draft = Draft(run, overrides)
        yaml, given = yaml_for_others(run), draft.overrides
        start = {"yaml": yaml, "overrides": dict(given), "mode": mode, "place": place()}
        held = {"yaml": yaml, "given": True, "typed": {}, "mode": mode, "seq": 0}
        super().__init__(form_id=uuid.uuid4().hex, start=start, held=held)
        self._draft = self.held, draft
        self.key = self.comm.comm_id if self.comm is not None else ""
        self.on_msg(self._on_message)

    def open(self) -> None:
        """Open the form if there is a live front end. In an exported notebook the widget would be loaded from
        a CDN.
        """
        if is_watched():
            super().open()

    @property
    def draft(self) -> Draft:
        """Values of the form as a draft. Raises ConfigError if its YAML can no longer be read."""
        held = self.held
        if self._draft[0] is not held:
            draft = Draft(held["yaml"], self.start["overrides"] if held["given"] else None)
            draft.type(held["typed"])
            self._draft = held, draft
        return self._draft[1]

    @property
    def mode(self) -> str:
        """Mode of the run for nb.launch: full or twin."""
        return self.held["mode"]

    @property
    def config(self) -> RunConfig:
        """Configuration in the form. Raises ConfigError with every problem, also for invalid text."""
        return self.draft.config

    @property
    def line(self) -> str:
        """Python call that does the same as the form's button."""
        return self.draft.line

    def set(self, key: str, value: Any) -> None:
        """Change a field by its dotted key, as an override would. The page shows the new value too."""
        within = {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, Mapping) else {}
        known = every_field()
        # {"rank": 8} for lora: each key is a separate field.
        values = {key: value, **within} if key in known and known[key].kind == "section" else {key: value}
        for unknown in [one for one in values if one not in known]:
            raise ConfigError(f"the form has no field {unknown!r}.{nearest(unknown, known)}")
        typed = {**self.held["typed"], **{one: known[one].text(to) for one, to in values.items()}}
        self.held = {**self.held, "typed": typed, "seq": self.held["seq"] + 1}

    def _on_message(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        if content.get("kind") == "hold":
            # Send no reply. ipykernel handles a widget's messages on the channel of its last reply to the
            # widget, and it replies to JupyterLab from a subshell. In a subshell, a change could be handled
            # after the next cell has started, and would then mark the kernel as idle: a server that culls
            # idle kernels would end the running cell.
            with self._lock_property(held=content["held"]):
                self.held = content["held"]
        if content.get("kind") != "ask":
            return
        reply = {"kind": "answer", "id": content.get("id")}
        try:
            self.send({**reply, "value": answer(content["path"], content["request"], anywhere=True)})
        except NbtrainError as error:
            self.send({**reply, "error": str(error)})

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(self, self.static_html(), self.line), {}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self._repr_mimebundle_()[0], raw=True)
        if is_watched():
            form = json.dumps({"id": self.form_id, "start": self.start})
            display({"text/html": RESCUE.format(form=html.escape(form)), "text/plain": ""}, raw=True)

    def static_html(self) -> str:
        """Return the form as a static picture: YAML, checks, difference, plan and the call."""
        return (
            f"<p><strong>Launch {html.escape(self.draft.run)}</strong></p>"
            f"{assessment_html(self.draft, self.draft.assess())}"
            f"<p><code>{html.escape(self.line)}</code></p>"
        )


def assessment_html(draft: Draft, assessment: Assessment) -> str:
    """Return problems, shortages of this machine, changes and plan as HTML."""
    parts = []
    if assessment.problems:
        parts += _messages(map(str, assessment.problems))
    elif assessment.shortages:
        parts.append("<p><strong>This machine cannot start the run yet</strong></p>")
        parts += _messages(str(shortage) for shortage in assessment.shortages)
    else:
        parts.append("<p><strong>Ready to submit</strong></p>")
    if draft.changes:
        known = every_field()
        shown = [
            (key, known[key].value_text(draft.base_value(key)), known[key].value_text(value))
            for key, value in draft.changes.items()
        ]
        parts.append(Table(("setting", "YAML", "now"), shown, "Changes from the YAML").html())
    if assessment.plan is not None:
        parts.append(assessment.plan._repr_html_())
    return "".join(parts)


def _messages(texts: Iterable[str]) -> list[str]:
    return [f'<p style="white-space:pre-wrap;margin:2px 0">{html.escape(text)}</p>' for text in texts]
