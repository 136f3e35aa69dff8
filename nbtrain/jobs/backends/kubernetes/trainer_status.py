"""Post progress, remaining time and metrics to a TrainJob's status.trainerStatus, from the supervisor's pod.

If its feature gate TrainJobStatus is on, the operator sets three variables: the HTTPS address, the file with
the pod's token, and the file with the certificate authority. Releases of the operator call them
KUBEFLOW_TRAINER_SERVER_*, and earlier builds KUBEFLOW_TRAINER_STATUS_*. Reports never delay training: each is
sent once, with a timeout of a few seconds, and the next report replaces one that did not arrive.
supervisor/progress_report.py calls this module.
"""

import json
import math
import ssl
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.records import TrainingProgress
from nbtrain.base.text.addresses import without_secrets

PREFIXES = ("KUBEFLOW_TRAINER_SERVER_", "KUBEFLOW_TRAINER_STATUS_")
# Seconds between two reports, each of which is a write to the cluster's store.
EVERY_SECONDS = 30.0
TIMEOUT_SECONDS = 5.0
# Limits in the CRD: number of metrics, and number of characters in a name or a value.
MOST_METRICS, MOST_CHARS = 256, 64
FIGURES = (
    *("loss", "validation_loss", "best_validation_loss", "test_loss", "grad_norm", "learning_rate"),
    *("tokens_per_second", "consumed_tokens", "checkpoint_step"),
)


class TrainerStatus:
    """Sender of a job's progress to the operator's server, at most once every EVERY_SECONDS."""

    def __init__(self, url: str, token: Path, ca_cert: Path):
        self._url, self._token, self._ca_cert = url, token, ca_cert
        self._next = 0.0
        self.trouble = ""
        """Why the newest report did not arrive; "" if it arrived."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "TrainerStatus | None":
        """Return a TrainerStatus for the operator's variables in `environment`.

        Returns None if the variables are not set, or if the address is not HTTPS.
        """
        prefix = next((known for known in PREFIXES if f"{known}URL" in environment), PREFIXES[0])
        url, token, ca_cert = (environment.get(prefix + name, "") for name in ("URL", "TOKEN", "CA_CERT"))
        # Over plain HTTP, anyone on the network path could read the token.
        if not (url.startswith("https://") and token and ca_cert):
            return None
        return cls(url, Path(token), Path(ca_cert))

    def due(self) -> bool:
        """Return whether EVERY_SECONDS have passed since the last report."""
        return time.monotonic() >= self._next

    def report(self, progress: TrainingProgress, step: int) -> bool:
        """Post the progress; return whether the server accepted it. Never raises."""
        self._next = time.monotonic() + EVERY_SECONDS
        try:
            self._post(trainer_status(progress, step))
        except (OSError, ValueError, HTTPException) as error:
            self.trouble = f"{without_secrets(self._url)}: {error}"
            return False
        self.trouble = ""
        return True

    def _post(self, status: dict[str, Any]) -> None:
        # The kubelet renews the token while the job runs, so both files are read for every report.
        token = self._token.read_text(encoding="utf-8").strip()
        context = ssl.create_default_context(cafile=str(self._ca_cert))
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect())
        request = urllib.request.Request(
            self._url,
            data=json.dumps({"trainerStatus": status}).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            method="POST",
        )
        with opener.open(request, timeout=TIMEOUT_SECONDS):
            return


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that rejects HTTP redirects, so that the token is not sent to another address."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def trainer_status(progress: TrainingProgress, step: int, now: float | None = None) -> dict[str, Any]:
    """Return the body of a report, within the limits of the CRD; unknown values are omitted."""
    done = progress.consumed_tokens / progress.goal_tokens if progress.goal_tokens else 0.0
    moment = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    status: dict[str, Any] = {
        # 100 is reported only at the end.
        "progressPercentage": max(0, min(100, math.floor(100 * done))),
        "lastUpdatedTime": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if progress.eta_seconds is not None and math.isfinite(progress.eta_seconds):
        status["estimatedRemainingSeconds"] = max(0, round(progress.eta_seconds))
    figures = {"step": step, "total_steps": progress.total_steps}
    figures |= {name: getattr(progress, name) for name in FIGURES}
    metrics = [
        {"name": name[:MOST_CHARS], "value": f"{value:.6g}" if isinstance(value, float) else str(value)}
        for name, value in figures.items()
        if value is not None
    ]
    status["metrics"] = metrics[:MOST_METRICS]
    return status
