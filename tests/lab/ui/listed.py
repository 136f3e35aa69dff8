"""Rows of a list of runs in the format of the server's responses, without real runs."""

import time
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.records import TrainingProgress
from nbtrain.monitor.runs.watched_runs import row_of
from nbtrain.monitor.status.run_status import RunStatus
from tests.lab.ui.pages import Answer

CAUSES = {
    "FAILED": "rank 1 failed at step 120: CUDA out of memory. Tried to allocate 2.00 GiB",
    "CANCELLED": "stopped on request at step 220; saved",
    "LOST": "the supervisor has gone without a word",
}


def summaries(count: int) -> list[RunStatus]:
    """Return runs in many states, newest first; the first one is active."""
    states = ("RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "LOST", "SUCCEEDED", "SUCCEEDED")
    now = time.time()
    return [
        RunStatus(
            name=f"gpt-{number:04d}",
            state=state,
            cause=CAUSES.get(state),
            num_jobs=1,
            created_at=now - 600 - 7200 * number,
            ended_at=None if state == "RUNNING" else now - 300 - 7200 * number,
            backend="slurm",
            nodes=2,
            world_size=16,
            step=120 + number,
            progress=TrainingProgress(
                total_steps=600,
                train_tokens=600,
                loss=None if number % 7 == 4 else 3.5 - number / 1000,
                validation_loss=None if number % 2 else 3.6 - number / 1000,
                eta_seconds=754,
            ),
            ranks_run=state == "RUNNING",
            labels={"team": ("nlp", "vision")[number % 2]} | ({"stage": "trial"} if number % 3 == 0 else {}),
            notes="Warm-up halved: <b>compare</b> with gpt-0003." if number % 5 == 1 else "",
        )
        for number in range(count)
        for state in ["RUNNING" if number == 0 else states[number % 7] if number % 7 else "SUCCEEDED"]
    ]


class ListServer:
    """A stand-in for a server with a list of runs: `routes` answers requests and stores changes."""

    def __init__(self, count: int):
        self.rows = [row_of(summary) for summary in summaries(count)]
        self.looks = 0
        self.failed_actions: dict[str, Any] = {}
        self.routes: dict[str, Answer] = {"runs": self._runs}
        self.routes["columns"] = self._columns
        self.curves_of: list[str] = []
        self.routes["sparklines"] = self._sparklines
        for row in self.rows[:20]:
            name = row["name"]
            self.routes[f"run/{name}"] = lambda query, body, name=name: self._run(name, query, body)
            for action in ("stop", "resume"):
                self.routes[f"run/{name}/{action}"] = lambda query, body: {"state": "", "cause": None}

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.rows if row["name"] == name)

    def _runs(self, _query: dict[str, str], _: Any) -> Any:
        self.looks += 1
        about = {"root": "output", "run_root_id": "root-of-this-server"}
        return {"runs": self.rows, "failed_actions": self.failed_actions, **about}

    def _sparklines(self, query: dict[str, str], _: Any) -> Any:
        """Return the loss of the named runs, with NaN in the middle, as if of these runs only the last one
        existed.
        """
        self.curves_of.append(query["name"])
        line = {"steps": [1, 50, 60, 120], "values": [8.0, 4.0, None, 3.5], "label": "loss 8 at step 1"}
        return {"runs": {row["name"]: line for row in self.rows if row["name"] != "gpt-0004"}}

    def _columns(self, query: dict[str, str], _: Any) -> Any:
        """Return the learning rate of each run except the first."""
        rates = {row["name"]: 0.001 * number for number, row in enumerate(self.rows) if number}
        wanted = "key" in query
        cells = {
            name: {"lr_schedule.lr": {"text": f"{rate:.1e}", "value": rate}} for name, rate in rates.items()
        }
        return {"known": ["GPU hours", "lr_schedule.lr", "model.num_layers"], "runs": cells if wanted else {}}

    def _run(self, name: str, query: dict[str, str], body: Any) -> Any:
        row = self.row(name)
        if query.get("confirm") == name:
            self.rows.remove(row)
            return {"name": name}
        if body is not None:
            if "bad" in (body.get("labels") or {}).values():
                raise ConfigError("labels.team = 'bad': is not good.")
            labels = {**row["labels"], **body.get("labels", {})}
            row.update(body)
            row["labels"] = {key: value for key, value in labels.items() if value is not None}
            return {"name": name}
        if row["active"]:
            return {"actions": [{"key": "stop", "words": "Stop", "title": "Save and leave."}]}
        return {
            "actions": [
                {"key": "resume", "words": "Resume", "title": "Go on."},
                {"key": "clone", "words": "Clone", "title": "Again."},
                {
                    "key": "delete",
                    "words": "Delete",
                    "title": "",
                    "ask": f"Delete {name} with all its files?",
                },
            ]
        }
