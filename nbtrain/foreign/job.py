"""A training job as its files describe it, whatever kind of file they are."""

from dataclasses import dataclass, field

from nbtrain.foreign.json_comments import Document
from nbtrain.foreign.words import Value, Word


@dataclass(slots=True)
class Job:
    """The settings of a manifest, a script or a DeepSpeed JSON; None for those that it does not set."""

    kind: str
    """ "DeepSpeedJob", "PyTorchJob", "MPIJob", "TrainJob", "shell script" or "DeepSpeed JSON"."""
    label: str
    """The file."""
    name: Word | None = None
    scripts: dict[str, Word] = field(default_factory=dict)
    """Scripts of ConfigMaps by name, which a container may mount."""
    script_missing: Word | None = None
    """A script that the command runs and no file holds."""
    other_program: Word | None = None
    """A program that the command runs and that is none of Megatron's, by its flags."""
    workers: Value | None = None
    """Machines that the manifest takes, if the command starts ranks on fewer of them (`nodes`)."""
    world_size: Value | None = None
    """Ranks altogether, as the launcher's command says."""
    program: Word | None = None
    """The Python program, e.g. Megatron-DeepSpeed/pretrain_gpt.py."""
    flags: list[Word] = field(default_factory=list)
    nodes: Value | None = None
    gpus_per_node: Value | None = None
    """Ranks on each machine."""
    gpus_asked: Value | None = None
    """GPUs that the container requests."""
    cpus: Value | None = None
    """CPU cores of each machine: requested."""
    memory_bytes: Value | None = None
    """Host memory of each machine: requested."""
    gpu_product: Value | None = None
    """The kind of GPU that the pod's node selector wants, as the cluster labels it."""
    image: Value | None = None
    environment: dict[str, Word] = field(default_factory=dict)
    volumes: list[Value] = field(default_factory=list)
    """Names of persistent volume claims."""
    volume_bytes: Value | None = None
    """Size that the first of these claims requests, if the files contain the claim."""
    deepspeed: Document | None = None
    documents: dict[str, Word] = field(default_factory=dict)
    """JSON files that the script or a ConfigMap writes, by name."""
    substitutions: list[tuple[str, str]] = field(default_factory=list)
    """sed's replacements, for a template of the JSON."""
    undecided: dict[str, str] = field(default_factory=dict)
    """Variables of the script that are set only if the shell says so: where."""
    comments: list[tuple[str, str]] = field(default_factory=list)

    def flag(self, *names: str) -> Word | None:
        """The value of a flag, before any table is asked; None if the flag is not given."""
        for number, word in enumerate(self.flags):
            name, equals, inline = word.text.partition("=")
            if name in names:
                if equals:
                    return Word(inline, word.place)
                return self.flags[number + 1] if number + 1 < len(self.flags) else word
        return None
