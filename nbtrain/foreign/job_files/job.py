"""A training job as its files describe it, whatever kind of files they are."""

from dataclasses import dataclass, field

from nbtrain.base.findings import Finding
from nbtrain.config.sections.imported import ImportedFile
from nbtrain.foreign.syntax.json_comments import Document
from nbtrain.foreign.syntax.located import Unknown, Value, Word


@dataclass(slots=True)
class Job:
    """The settings of a manifest, a script or a DeepSpeed JSON. None stands for a setting that is not set."""

    kind: str
    """Kind of the job's file.

    DeepSpeedJob, PyTorchJob, MPIJob, TrainJob, shell script, DeepSpeed JSON or Accelerate configuration.
    """
    label: str
    """Name of the job's file, for messages."""
    name: Word | None = None
    scripts: dict[str, Word] = field(default_factory=dict)
    """Scripts in ConfigMaps, by name; a container may mount them."""
    script_missing: Word | None = None
    """A script that the command runs, but that no given file contains."""
    other_program: tuple[str, str] | None = None
    """(place, message) if the command runs a program that does not train a GPT with Megatron's flags."""
    own_run: Word | None = None
    """Name or directory of the run, if nbtrain itself wrote the file for that run."""
    files: list[ImportedFile] = field(default_factory=list)
    """All imported files, with their hashes."""
    settings: dict[str, Value] = field(default_factory=dict)
    """{field: value} of settings that need no flag table: where the job runs, or its layout."""
    left: list[tuple[str, str]] = field(default_factory=list)
    """(place, text) of settings without a corresponding field, for the import's notes."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """(field, place, text) of values that only the cluster knows; an override can set the field instead."""
    unknown: list[tuple[str, Unknown]] = field(default_factory=list)
    """(field, value) of values that only the running shell knows; an override can set the field instead."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """(place, text) of settings that prevent the import."""
    workers: Value | None = None
    """Number of machines that the manifest requests, if the command uses fewer machines (`nodes`)."""
    world_size: Value | None = None
    """Total number of ranks, according to the launcher's command."""
    program: Word | None = None
    """The Python program, e.g. Megatron-DeepSpeed/pretrain_gpt.py."""
    flags: list[Word] = field(default_factory=list)
    nodes: Value | None = None
    gpus_per_node: Value | None = None
    """Number of ranks on each machine."""
    gpus_asked: Value | None = None
    """Number of GPUs that the container requests."""
    cpus: Value | None = None
    """Number of CPU cores requested on each machine."""
    memory_bytes: Value | None = None
    """Host memory requested on each machine, in bytes."""
    gpu_product: Value | None = None
    """GPU model that the pod's node selector requests, as labelled by the cluster."""
    image: Value | None = None
    environment: dict[str, Word] = field(default_factory=dict)
    volumes: list[Value] = field(default_factory=list)
    """Names of the persistent volume claims."""
    volume_bytes: Value | None = None
    """Size in bytes that the first claim in `volumes` requests; None if the files do not define it."""
    deepspeed: Document | None = None
    documents: dict[str, Word] = field(default_factory=dict)
    """JSON files that the script or a ConfigMap writes, by name."""
    substitutions: list[tuple[str, str]] = field(default_factory=list)
    """sed substitutions, for a JSON template."""
    remarks: list[Finding] = field(default_factory=list)
    """Remarks for the script's author, e.g. about a comment that ends a command."""
    alternatives: str = ""
    """Message about a value that decides which launcher call of a script runs; "" if no value decides it."""
    comments: list[tuple[str, str]] = field(default_factory=list)

    def is_asked(self, key: str) -> bool:
        """Return whether the import already requests a field's value."""
        return any(asked == key for asked, *_ in (*self.asked, *self.unknown))

    def flag(self, *names: str) -> Word | None:
        """Return the value of a flag, without using a flag table; None if the flag is not set."""
        for number, word in enumerate(self.flags):
            name, equals, _ = word.text.partition("=")
            if name in names:
                if equals:
                    return word.after("=")
                return self.flags[number + 1] if number + 1 < len(self.flags) else word
        return None
