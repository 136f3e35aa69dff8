"""Holds the state of a conversion: a job that is read into fields, or fields that are written as flags."""

from dataclasses import dataclass, field
from typing import Any

from nbtrain.base.findings import FATAL, Finding
from nbtrain.config.schema import RunConfig
from nbtrain.foreign.job_files.job import Job
from nbtrain.foreign.syntax.flags import Arguments, Setting, Table
from nbtrain.foreign.syntax.located import Unknown, question


@dataclass
class Reading:
    """An import in progress: the job's arguments and JSON, and the fields read from them."""

    job: Job
    arguments: Arguments
    given: dict[str, Any] = field(default_factory=dict)
    """Overrides by field. They provide what the files do not contain."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values by field, e.g. {"model.num_layers": 12}."""
    origins: dict[str, str] = field(default_factory=dict)
    """Place of each value, e.g. {"model.num_layers": "train.sh:12"}."""
    comments: dict[str, str] = field(default_factory=dict)
    """Source of each value, for the YAML, e.g. {"model.num_layers": "--num-layers 12"}."""
    notes: list[Finding] = field(default_factory=list)
    """Notes about settings that are not imported, and why they do not matter."""
    auto: dict[str, str] = field(default_factory=dict)
    """Place of each JSON key with the value "auto", e.g. {"train_batch_size": "ds.json:2"}."""
    wrong: list[Finding] = field(default_factory=list)
    """Problems with JSON values that DeepSpeed rejects; these values are removed from the document."""
    failures: list[Finding] = field(default_factory=list)
    """Errors about settings that cannot be imported.

    `key` is the field that can be overridden instead, or "".
    """
    questions: dict[tuple[str, str], dict[str, Unknown]] = field(default_factory=dict)
    """{(variable, place): {field: value}} of values that only the running shell knows."""

    @property
    def table(self) -> Table:
        return self.arguments.table

    @property
    def program(self) -> str:
        return self.table.program

    def has(self, dest: str) -> bool:
        """Return whether the program's parser has an argument with this `dest`."""
        return dest in self.table.by_dest

    def setting(self, dest: str) -> Setting | None:
        """Return the flag in the argument list that sets `dest`; None if no flag does."""
        return self.arguments.get(dest)

    def value(self, dest: str) -> Any:
        """Return the value that the program would use: the flag's value, or the default."""
        return self.arguments.value(dest)

    def known(self, dest: str, key: str) -> Any:
        """Return the value that the program would use for `dest`, for use in a computation.

        If only the shell knows the value, the import fails at the field `key` and None is returned.
        """
        return None if self._is_outside(dest, key) else self.value(dest)

    def _is_outside(self, dest: str, key: str) -> bool:
        setting = self.setting(dest) if dest else None
        if setting is None:
            return False
        words = [word for word in (setting.words or [setting.word]) if word is not None]
        outside = next((word for word in words if word.from_outside), None)
        if outside is None:
            return False
        if outside.unknowns:
            self.ask(key, outside.unknowns[0])
        else:
            self.fail(
                key,
                setting.place,
                f"{setting.text}: the value of {outside.from_outside} is not known. Write it into the file, "
                f"or add {key}=... to the command.",
            )
        return True

    def ask(self, key: str, unknown: Unknown) -> None:
        """Fail the import with a question about a value that only the running shell knows.

        Values that depend on the same variable share one question.
        """
        roots = tuple(dict.fromkeys(root for root in unknown.roots() if root.name))
        asked = self.questions.setdefault(
            (roots[0].name, roots[0].place) if roots else ("", unknown.place), {}
        )
        before = self._asked(asked)
        asked.setdefault(key, unknown)
        self.failures = [failure for failure in self.failures if failure not in before]
        self.failures += self._asked(asked)

    def _asked(self, asked: dict[str, Unknown]) -> list[Finding]:
        """Return one error for each field whose value depends on a variable of the script that is not known.

        All errors have the same sentence, which names all of these variables.
        """
        if not asked:
            return []
        first = next(iter(asked.values()))
        others = list(dict.fromkeys(unknown.name for unknown in asked.values() if unknown.name))
        fields = list(dict.fromkeys(key for key in asked if key))
        place, text = question(first, fields, others)
        return [Finding("error", "import", key, place, text, cost=FATAL) for key in asked]

    def place(self, dest: str) -> str:
        """Return the place of the flag that sets `dest`; without such a flag, the name of the job's file."""
        setting = self.setting(dest)
        return setting.place if setting else self.job.label

    def set(self, key: str, value: Any, dest: str = "", comment: str = "", place: str = "") -> None:
        """Set a field, and record where its value comes from: the flag that sets `dest`, or `place`.

        `comment` names the source in the run YAML; the default is the flag. If only the shell knows the
        flag's value, the import fails instead.
        """
        setting = self.setting(dest) if dest else None
        if self._is_outside(dest, key):
            return
        self.values[key] = value
        self.origins[key] = place or (setting.place if setting else self.job.label)
        default = f"default of {self.table.name}"
        self.comments[key] = comment or (setting.text if setting else default if dest else "")

    def said(self, key: str, otherwise: Any = None) -> Any:
        """Return the override of a field, otherwise the value read so far, otherwise `otherwise`."""
        return self.given.get(key, self.values.get(key, otherwise))

    def note(self, place: str, text: str) -> None:
        self.notes.append(Finding("note", "import", "", place, text))

    def fail(self, key: str, place: str, message: str) -> None:
        """Record an error that makes the import fail unless the field `key` is overridden."""
        self.failures.append(Finding("error", "import", key, place, message, cost=FATAL))


@dataclass
class Writing:
    """One export in progress."""

    config: RunConfig
    table: Table
    flags: list[tuple[str, list[str]]] = field(default_factory=list)
    """Flags to write, each with its values, in their order."""
    reasons: dict[str, str] = field(default_factory=dict)
    """{field: reason why the flags do not express it}."""
    warnings: list[str] = field(default_factory=list)
    """Differences in what the program will do, and settings that it rejects."""

    def has(self, dest: str) -> bool:
        return dest in self.table.by_dest

    def add(self, dest: str, value: Any = True) -> None:
        """Add the flag that sets `dest` to a value. Raises AssertionError if the program has no such flag."""
        for option in self.table.by_dest.get(dest, ()):
            if option.takes_value and not isinstance(value, bool):
                values = value if isinstance(value, list) else [value]
                self.flags.append((option.flags[0], [_spelled(one) for one in values]))
                return
            if isinstance(value, bool) and option.action == ("store_true" if value else "store_false"):
                self.flags.append((option.flags[0], []))
                return
        raise AssertionError(f"{self.table.name} has no flag that sets {dest} to {value!r}")

    def may_have(self, dest: str, value: Any) -> bool:
        """Return whether the program's flag accepts a value."""
        choices = self.table.by_dest[dest][0].choices
        return choices is None or value in choices

    def cannot(self, key: str, reason: str) -> None:
        """Record a field that the program lacks, and warn that it would therefore train another model.

        `reason` is a clause that follows the program's name.
        """
        self.unsaid(key, f"{self.table.name} {reason}")
        self.warnings.append(f"with these flags, {self.table.name} {reason}")

    def unsaid(self, key: str, reason: str) -> None:
        """Record a field that the flags cannot express, or can only approximate."""
        self.reasons[key] = reason


def _spelled(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
