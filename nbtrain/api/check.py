"""The function nb.check: findings about a run or files of other programs, before anything starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.api.run import Run, RunLike
from nbtrain.base.errors import ConfigError
from nbtrain.base.printing.report import Findings, Report, Result
from nbtrain.base.text import amounts
from nbtrain.config.load import Overrides
from nbtrain.config.load import load as load_config

if TYPE_CHECKING:
    from nbtrain.base.findings import Finding

CHECK_SCHEMA_VERSION = 1


@dataclass(frozen=True, repr=False)
class Checked(Result):
    """Findings about a run or files, most expensive first. `print` shows them as `nbtrain check` does."""

    what: str
    """Name of the run, or of the files."""
    findings: "list[Finding]"
    refused: ConfigError | None = None
    """Error that kept the run from being built, with the problems in `findings`; None if it was built."""
    of_files: bool = False
    """Whether the input is files of other programs, which may hold several jobs."""

    @property
    def works(self) -> bool:
        """Whether the run can be submitted, judged by its files. If not, `nbtrain check` exits with 2."""
        from nbtrain.base.findings import stops

        return self.refused is None and not stops(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as JSON values: level (error, warning, note), rule, key, place, message,
        fix.
        """
        findings = [finding.to_dict() for finding in self.findings]
        start = {"schema_version": CHECK_SCHEMA_VERSION, "what": self.what}
        return {**start, "works": self.works, "findings": findings}

    def as_report(self) -> Report:
        """Return the findings with their places, below the verdict."""
        return Report(self._heading(), [Findings(self.findings, places=True)])

    def _heading(self) -> str:
        num = len(self.findings)
        listed = f"{amounts.counted(num, 'finding')}{', most expensive first' if num > 1 else ''}:"
        if self.of_files:
            return f"{self.what}: {listed if num else 'no problems found.'}"
        verdict = "not valid" if self.refused is not None else "valid" if self.works else "cannot work"
        return f"{self.what}: {verdict}{f'; {listed}' if num else '.'}"


def check(*runs: RunLike, overrides: Overrides = None, program: str = "") -> Checked:
    """Check a run, or manifests, scripts and JSON files of other programs, without reading the training data.

    Pass one run, named as for nb.plan, or one or several files of other programs. If the model that
    `init_from` names exists, it is opened and compared with the run, as nb.submit does. `overrides` add
    settings that the files lack, and `program` names the program and version that the flags belong to
    ("megatron-lm@040eac94"). A run that nb.submit would refuse raises no error here: its problems are
    error-level findings.
    """
    from nbtrain.config.findings import findings_of
    from nbtrain.foreign.job_files.file_kinds import is_foreign
    from nbtrain.jobs.checks.run_findings import findings_of_run

    if any(isinstance(source, str | Path) and is_foreign(source) for source in runs):
        return _check_files([str(source) for source in runs], overrides, program)
    if len(runs) != 1:
        raise ConfigError(f"nb.check takes one run, or files of other programs; {len(runs)} runs were given.")
    if program:
        raise ConfigError(
            f"omit program (--from): it is only for scripts and manifests, and {runs[0]} is a run."
        )

    run = runs[0].config if isinstance(runs[0], Run) else runs[0]
    try:
        config = load_config(run, overrides)
        return Checked(config.name, findings_of_run(config))
    except ConfigError as error:
        return Checked(str(getattr(run, "name", run)), findings_of(error), error)


def _check_files(files: Sequence[str], overrides: Overrides, program: str) -> Checked:
    from nbtrain.foreign.lint import lint

    return Checked(", ".join(files), lint(files, overrides, program), of_files=True)
