"""A run's certificate: its losses and gradient norms, with hashes of everything that they depend on.

    parts         the steps that each attempt contributed, with its settings, code, versions, device and data
    checkpoints   a chain of hashes: each link covers the previous link, the parts and numbers of the steps
                  since then, and the checkpoint's files
    numbers       bit-exact loss and gradient norm of every step

The supervisor writes certificate.json whenever a job ends. The certificate depends only on files in the run
directory: the jobs' provenance records and events, metrics.jsonl, and code/. A deleted checkpoint stays in
the chain, because its event contains its hash. Two runs with the same certificate hash were trained with the
same settings, code, versions, data and kind of device, and have the same numbers and checkpoints.

proof/reproduce.py trains a window of a run's steps again and compares it with the certificate.
"""

import bisect
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.code_hashes import joint_sha256
from nbtrain.base.errors import JobError, RecordError
from nbtrain.base.printing.report import Column, Facts, Report, Result, Table
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.metrics import scalar
from nbtrain.base.run_directory.records import JobRecord, Provenance, Record
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.monitor.metrics.series import Series

SCHEMA_VERSION = 1
# Entries of the data order that give the position at which a part begins, not the order of samples.
POSITION = ("consumed_samples", "next_batch_sha256")
# Key in a part's data: the hash of the initial weights that init_from names.
INITIAL_WEIGHTS = "initial_weights_sha256"
# Maximum number of nbtrain's files that are listed as different.
MOST_FILES = 6
SHOWN_CHECKPOINTS = 12
HASH_CHARACTERS = 12

Numbers = tuple[str | None, str | None]
"""Loss and gradient norm of a step as hexadecimal floats."""


@dataclass(frozen=True)
class Difference:
    """One difference between two training runs."""

    kind: str
    """Kind of difference: setting, file, library, device, variable, data or number."""
    name: str
    before: str
    now: str

    def __str__(self) -> str:
        words = {
            "file": "nbtrain file ",
            "library": "version of ",
            "device": "device ",
            "variable": "environment variable ",
            "data": "data: ",
        }
        return f"{words.get(self.kind, '')}{self.name}: {self.before} -> {self.now}"


@dataclass
class CertifiedPart(Record):
    """The steps that one attempt contributed to the run, with the attempt's provenance."""

    first_step: int
    """Step before the first trained step of the part."""
    last_step: int
    provenance: Provenance

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the part's numbers depend on, without job, attempt and position in the data."""
        made = asdict(self.provenance)
        order = {key: value for key, value in self.provenance.data.items() if key not in POSITION}
        kept = ("settings", "code_sha256", "versions", "device", "variables", "data_files")
        return {"data": order} | {key: made[key] for key in kept}


@dataclass
class CertifiedCheckpoint(Record):
    """A link in the chain: one saved checkpoint."""

    step: int
    files_sha256: str
    """SHA-256 of the checkpoint's files."""
    next_batch_sha256: str | None
    numbers_sha256: str
    """SHA-256 of the losses and gradient norms since the previous checkpoint."""
    chain_sha256: str
    """SHA-256 of the previous link, the parts since then, and the three hashes above."""


@dataclass(repr=False)
class RunCertificate(Result, Record):
    """The certificate of a run, from its first step to its last."""

    run: str
    run_id: str
    parts: list[CertifiedPart]
    checkpoints: list[CertifiedCheckpoint]
    steps: list[int]
    losses: list[str | None]
    """Losses at `steps` as hexadecimal floats; None for a step without a token in the loss."""
    grad_norms: list[str | None]
    """Gradient norms at `steps` as hexadecimal floats; None for a step skipped after an fp16 overflow."""
    code: dict[str, dict[str, str]]
    """Files of nbtrain by the code hash of a part: {code_sha256: {file: SHA-256}}."""
    sha256: str
    """Hash of the whole run: the last link of the chain, extended to the last step."""
    schema_version: int = SCHEMA_VERSION

    def numbers(self) -> dict[int, tuple[float | None, float | None]]:
        """Return {step: (loss, gradient norm)}, bit-exact."""
        pairs = zip(self.losses, self.grad_norms, strict=True)
        return {step: (_number(loss), _number(norm)) for step, (loss, norm) in zip(self.steps, pairs)}

    def part_of(self, step: int) -> CertifiedPart | None:
        """Return the part that trained a step; None if no part trained the step."""
        return next((part for part in self.parts if part.first_step < step <= part.last_step), None)

    def checkpoint(self, step: int) -> CertifiedCheckpoint | None:
        """Return the link for a step's checkpoint; None if no checkpoint was saved at that step."""
        return next((link for link in self.checkpoints if link.step == step), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    def as_report(self) -> Report:
        """Return a report of the run's hash, what its parts depend on, and the chain."""
        numbers = self.numbers()
        saved = amounts.counted(len(self.checkpoints), "checkpoint")
        blocks: list[Any] = [Facts({"SHA-256 of the run": self.sha256})]
        for part in self.parts:
            made = part.provenance
            blocks.append(Facts(_part_facts(made), f"Steps {part.first_step + 1:,} to {part.last_step:,}"))
        rows = [
            (link.step, _shown(numbers.get(link.step, (None, None))[0]), link.chain_sha256[:HASH_CHARACTERS])
            for link in self.checkpoints[-SHOWN_CHECKPOINTS:]
        ]
        newest = f", the newest {SHOWN_CHECKPOINTS}" if len(self.checkpoints) > SHOWN_CHECKPOINTS else ""
        heads = (Column("step"), Column("loss", is_right=True), "chain")
        blocks.append(Table(heads, rows, f"Checkpoints{newest}"))
        return Report(
            f"Certificate of {self.run}: {amounts.counted(len(self.steps), 'step')}, {saved}", blocks
        )


def _part_facts(made: Provenance) -> dict[str, str]:
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    device = made.device
    threads = f", {amounts.counted(device['threads'], 'thread')}" if "threads" in device else ""
    data = made.data.get("dataset_sha256") or ""
    return {
        "settings": hash_of(made.settings)[:HASH_CHARACTERS],
        "nbtrain's code": made.code_sha256[:HASH_CHARACTERS],
        "versions": versions,
        "device": f"{device.get('model') or device['name']} ({device['name']}){threads}"
        if device["kind"] == "cpu"
        else str(device["name"]),
        "dataset": data[:HASH_CHARACTERS],
        "job": made.job_id,
    }


def hash_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value in hex. The order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def make_certificate(run: RunDir) -> RunCertificate:
    """Build a run's certificate from the current files in its directory.

    Raises JobError if the run has not trained a step yet, and RecordError if a file is damaged.
    """
    series = _series(run)
    parts = _parts(run, series["loss"], series["grad_norm"])
    if not parts:
        raise JobError(
            f"{display(run.path)}: the run has not trained a step yet, so there is nothing to certify. Run "
            f"`nbtrain status {run.name}` to see its state."
        )
    losses, norms = (dict(zip(series[name].steps, series[name].values)) for name in ("loss", "grad_norm"))
    steps = sorted(step for step in {*losses, *norms} if step <= parts[-1].last_step)
    written: dict[int, Numbers] = {step: (_hex(losses.get(step)), _hex(norms.get(step))) for step in steps}
    code = {part.provenance.code_sha256: _code(run, part.provenance.code_sha256) for part in parts}
    saved = dict(_saved(run, parts))
    checkpoints: list[CertifiedCheckpoint] = []
    before, chain = 0, ""
    for step, event in sorted(saved.items()):
        numbers = _numbers_sha256(written, steps, before, step)
        link = [
            chain,
            _identities(parts, before, step),
            event["files_sha256"],
            event["next_batch_sha256"],
            numbers,
        ]
        before, chain = step, hash_of(link)
        checkpoints.append(CertifiedCheckpoint(step, link[2], link[3], numbers, chain))
    last = parts[-1].last_step
    sha256 = hash_of([chain, _identities(parts, before, last), _numbers_sha256(written, steps, before, last)])
    return RunCertificate(
        run.name,
        run.run_id or "",
        parts,
        checkpoints,
        steps,
        [written[step][0] for step in steps],
        [written[step][1] for step in steps],
        code,
        sha256,
    )


def write_certificate(run: RunDir) -> None:
    """Write certificate.json, unless the run has not trained a step."""
    try:
        certificate = make_certificate(run)
    except JobError:
        return
    certificate.write(run.certificate_json)


def read_certificate(path: Path) -> RunCertificate | None:
    """Return the certificate in a file; None if the file does not exist.

    Raises RecordError if the file is not a certificate.
    """
    try:
        certificate = RunCertificate.read(path)
        if certificate is not None:
            certificate.numbers()
            if not certificate.parts:
                raise ValueError("its list `parts` is empty")
        return certificate
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"{display(path)} is not a run's certificate: {error}. Restore the file."
        ) from error


def differences(before: RunCertificate, now: RunCertificate) -> list[Difference]:
    """Return the differences between two certificates.

    First come the differences between the last part of each, then the first step whose loss or gradient norm
    differs, then a different number of steps. Checkpoint files are not compared, because a resumed run may
    write equal tensors as different bytes.
    """
    found = part_differences(before.parts[-1], now.parts[-1], before.code, now.code)
    ours, theirs = before.numbers(), now.numbers()
    if (step := first_difference(ours, theirs)) is not None:
        found.append(
            Difference("number", f"step {step:,}", numbers_text(ours[step]), numbers_text(theirs[step]))
        )
    if len(ours) != len(theirs):
        found.append(Difference("number", "steps", f"{len(ours):,}", f"{len(theirs):,}"))
    return found


def part_differences(
    before: CertifiedPart,
    now: CertifiedPart,
    code_before: Mapping[str, Mapping[str, str]],
    code_now: Mapping[str, Mapping[str, str]],
) -> list[Difference]:
    """Return the differences between two parts: settings, files, versions, device, variables and data."""
    ours, theirs = before.provenance, now.provenance
    settings = _mapping_differences("setting", ours.settings, theirs.settings)
    # The code file and the checkpoint chosen by init_step are compared by their hashes in the data instead.
    compared = {"code"}
    if ours.data.get(INITIAL_WEIGHTS) == theirs.data.get(INITIAL_WEIGHTS):
        compared.add("init_step")
    found = [difference for difference in settings if difference.name not in compared]
    found += _file_differences(code_before.get(ours.code_sha256, {}), code_now.get(theirs.code_sha256, {}))
    found += _mapping_differences("library", ours.versions, theirs.versions)
    found += device_differences(ours, theirs)
    found += _mapping_differences("variable", ours.variables, theirs.variables)
    found += _mapping_differences("data", before.identity["data"], now.identity["data"])
    found += _hash_differences("data", ours.data_files, theirs.data_files)
    return found


def device_differences(before: Provenance, now: Provenance) -> list[Difference]:
    """Return the differences between the devices of two parts, such as the CPU model."""
    found = []
    for key, ours, theirs in _unequal(before.device, now.device):
        if isinstance(ours, list) and isinstance(theirs, list):
            # Show only the instructions that the other processor lacks.
            ours, theirs = (
                [name for name in own if name not in other] for own, other in ((ours, theirs), (theirs, ours))
            )
        found.append(Difference("device", key.replace("_", " "), _text(ours), _text(theirs)))
    return found


def first_difference(
    ours: Mapping[int, tuple[float | None, float | None]],
    theirs: Mapping[int, tuple[float | None, float | None]],
) -> int | None:
    """Return the first common step at which losses or gradient norms differ in any bit; None without one."""
    common = sorted(ours.keys() & theirs.keys())
    return next((step for step in common if _bits(ours[step]) != _bits(theirs[step])), None)


def numbers_text(numbers: tuple[float | None, float | None]) -> str:
    """Format a step's loss and gradient norm with all digits."""
    loss, norm = (("none" if number is None else repr(number)) for number in numbers)
    return f"loss {loss}, gradient norm {norm}"


def certificate_problems(run: RunDir) -> list[str]:
    """Return how certificate.json differs from the files in the run directory; [] if they agree.

    The check finds settings, numbers, checkpoint hashes and code lists that were edited after training. If a
    later attempt, for example in an active job, has replaced steps, only the steps up to the checkpoint that
    it loaded are compared. The checkpoint files themselves are not read; `nbtrain checkpoint verify` reads
    them.
    """
    stored, made = read_certificate(run.certificate_json), make_certificate(run)
    if stored is None:
        return []
    later = _attempts_since(run, stored)
    if later:
        resumed = min(attempt.first_step for attempt in later)
        stored, made = _up_to(stored, resumed), _up_to(made, resumed)
        if not stored.parts or not made.parts:
            return []
    where = display(run.certificate_json)
    found = [f"{where}: {difference}" for difference in differences(stored, made)]
    now = {link.step: link.chain_sha256 for link in made.checkpoints}
    changed = next((link for link in stored.checkpoints if now.get(link.step) != link.chain_sha256), None)
    if changed is not None and not found:
        found.append(
            f"{where}: the chain of hashes differs, first at the checkpoint of step {changed.step:,}"
        )
    if not (found or later) and stored.sha256 != made.sha256:
        digests = f"{_short(stored.sha256)} in the file, {_short(made.sha256)} from the run directory"
        found.append(f"{where}: the run's SHA-256 differs: {digests}")
    return found


def _attempts_since(run: RunDir, certificate: RunCertificate) -> list[Provenance]:
    """Return the attempts after a certificate's newest attempt; [] if the certificate names no attempt."""
    known = {_attempt(part.provenance) for part in certificate.parts}
    attempts = list(_provenances(run))
    places = [number for number, attempt in enumerate(attempts) if _attempt(attempt) in known]
    return attempts[places[-1] + 1 :] if places else []


def _up_to(certificate: RunCertificate, step: int) -> RunCertificate:
    """Return a certificate cut to the parts, checkpoints and numbers up to a step."""
    count = bisect.bisect_right(certificate.steps, step)
    return replace(
        certificate,
        parts=[
            replace(part, last_step=min(part.last_step, step))
            for part in certificate.parts
            if part.first_step < step
        ],
        checkpoints=[link for link in certificate.checkpoints if link.step <= step],
        steps=certificate.steps[:count],
        losses=certificate.losses[:count],
        grad_norms=certificate.grad_norms[:count],
    )


def _series(run: RunDir) -> dict[str, Series]:
    """Return {"loss", "grad_norm"} over the steps that no later attempt replaced."""
    tags = {name: scalar(name).tag for name in ("loss", "grad_norm")}
    reader = ScalarReader(run.tensorboard, tags.values())
    reader.refresh()
    return {name: reader.series.get(tag, Series()) for name, tag in tags.items()}


def _parts(run: RunDir, *numbers: Series) -> list[CertifiedPart]:
    """Return the parts in the order of their steps.

    A later attempt replaces the steps after the checkpoint that it loaded.
    """
    reached = max((series.steps[-1] for series in numbers if len(series)), default=0)
    parts: list[CertifiedPart] = []
    for provenance in _provenances(run):
        for part in parts:
            part.last_step = min(part.last_step, provenance.first_step)
        parts.append(CertifiedPart(provenance.first_step, reached, provenance))
    return [part for part in parts if part.first_step < part.last_step]


def _provenances(run: RunDir) -> Iterator[Provenance]:
    for job_id in run.job_ids():
        job = run.job(job_id)
        record = JobRecord.read(job.job_json)
        for attempt in record.attempts if record else []:
            if (found := Provenance.read(job.provenance(attempt.attempt))) is not None:
                yield found


def _attempt(provenance: Provenance) -> tuple[str, int]:
    """Return (job id, attempt), which identifies a provenance record."""
    return provenance.job_id, provenance.attempt


def _saved(run: RunDir, parts: list[CertifiedPart]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (step, event) for each checkpoint that the parts saved."""
    for job_id in dict.fromkeys(part.provenance.job_id for part in parts):
        for event in read_events(run.job(job_id)):
            if event["kind"] != "checkpoint" or "files_sha256" not in event:
                continue
            for part in parts:
                own = _attempt(part.provenance) == (job_id, event["attempt"])
                if own and part.first_step < event["step"] <= part.last_step:
                    yield event["step"], event


def _code(run: RunDir, sha256: str) -> dict[str, str]:
    """Return {file: SHA-256} for nbtrain's code in a part; {} if the list is missing.

    Raises RecordError if the list was changed.
    """
    path = run.code(sha256)
    hashes = files.read_json(path)
    if hashes is None:
        return {}
    if not isinstance(hashes, dict) or joint_sha256(hashes) != sha256:
        raise RecordError(
            f"{display(path)} was changed: its SHA-256 does not match its name. Restore the file."
        )
    return hashes


def _identities(parts: list[CertifiedPart], first: int, last: int) -> list[str]:
    """Return the hashes of the parts that trained steps after `first` up to `last`.

    Equal consecutive hashes appear once.
    """
    hashes = [hash_of(part.identity) for part in parts if part.first_step < last and part.last_step > first]
    return [own for number, own in enumerate(hashes) if number == 0 or own != hashes[number - 1]]


def _numbers_sha256(written: Mapping[int, Numbers], steps: list[int], first: int, last: int) -> str:
    """Return the SHA-256 of the losses and gradient norms of the steps after `first` up to `last`."""
    own = steps[bisect.bisect_right(steps, first) : bisect.bisect_right(steps, last)]
    lines = "".join(f"{step} {written[step][0]} {written[step][1]}\n" for step in own)
    return hashlib.sha256(lines.encode()).hexdigest()


def _mapping_differences(
    kind: str, before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[Difference]:
    for key, ours, theirs in _unequal(before, now):
        if key.endswith("sha256"):
            ours, theirs = _short(ours), _short(theirs)
        yield Difference(kind, key, _text(ours), _text(theirs))


def _hash_differences(kind: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    for name, ours, theirs in _unequal(before, now):
        yield Difference(kind, name, _short(ours), _short(theirs))


def _file_differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[Difference]:
    found = list(_hash_differences("file", before, now))
    if len(found) <= MOST_FILES:
        return found
    more = amounts.counted(len(found) - MOST_FILES, "more file")
    return [*found[:MOST_FILES], Difference("file", more, "different contents", "see the certificates")]


def _unequal(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys([*before, *now]):
        if before.get(key) != now.get(key):
            yield key, before.get(key), now.get(key)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:HASH_CHARACTERS]


def _bits(numbers: tuple[float | None, float | None]) -> tuple[str | None, ...]:
    return tuple(None if number is None else number.hex() for number in numbers)


def _hex(number: float | None) -> str | None:
    return None if number is None else float(number).hex()


def _number(text: str | None) -> float | None:
    return None if text is None else float.fromhex(text)


def _shown(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"
