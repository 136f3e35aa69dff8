"""The launch form over REST: its contents, findings on a draft, suggested layouts, and submission.

The responses come from lab/form/answers.py, which a kernel uses too. Run YAMLs outside the workspace are read
only for a kernel.
"""

from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.lab.server.requests import NbtrainHandler, named_run
from nbtrain.lab.server.views import changed

# {key of a request: its type}; the form itself checks values of type `object`.
KEYS: dict[str, type] = {
    "yaml": str,
    "overrides": object,
    "typed": dict,
    "name": str,
    "mode": str,
    "clone": str,
    "gpus": int,
    "gpu_type": str,
    "try_code": bool,
}


class AboutFormHandler(NbtrainHandler):
    """Shared base of the routes of the form."""

    async def answer_form(self, path: str, request: dict[str, Any], status: int = 200) -> None:
        from nbtrain.lab.form.answers import answer

        value, notes = await self.library(answer, path, request)
        self.answer({**value, "notes": notes} if path == "submit" else value, status)


class FormHandler(AboutFormHandler):
    """GET form?yaml=&overrides=, or POST form with the same as JSON: everything that the form shows."""

    async def get(self) -> None:
        given = {key: self.get_argument(key, "") for key in ("yaml", "overrides", "name", "mode")}
        await self.answer_form("form", {key: text for key, text in given.items() if text})

    async def post(self) -> None:
        await self.answer_form("form", self.body(**KEYS))


class FormPartHandler(AboutFormHandler):
    """POST form/assess: findings on a draft. POST form/layouts: the layout search's suggestions."""

    async def post(self, path: str) -> None:
        await self.answer_form(path, self.body(**KEYS))


class FormTextHandler(NbtrainHandler):
    """POST form/text {"paths": [...]}: the form's start values for files and folders of the file browser."""

    async def post(self) -> None:
        from nbtrain.lab.form.text import form_of_text

        paths = self.body(paths=list).get("paths") or []
        value, notes = await self.library(form_of_text, [self.file_of(path) for path in paths])
        self.answer({**value, "notes": [*value["notes"], *notes]})

    def file_of(self, path: Any) -> Path:
        """Return the file with this path in the file browser. Raises ConfigError for paths outside it."""
        root = Path(self.contents_manager.root_dir).resolve()
        found = (root / str(path).strip("/")).resolve()
        if not found.is_relative_to(root):
            raise ConfigError(f"{path} is outside the folder that this server shows.")
        return found


class SubmitHandler(AboutFormHandler):
    """POST submit: submit the form's run; returns {"name", "job_id", "notes"}. With `try_code` false, the
    run's own Python file (`code`) is not tried first.
    """

    async def post(self) -> None:
        await self.answer_form("submit", named_run(self.body(**KEYS)), 201)
        changed()
