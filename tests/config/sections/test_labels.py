"""Labels of a run: their form, where they are set, and where they are passed on."""

from pathlib import Path

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.config.load.changes import changes_between
from nbtrain.jobs.backends.kubernetes.manifests.work import work_of
from nbtrain.jobs.backends.slurm.backend import _own
from nbtrain.jobs.backends.slurm.engine import read_scontrol
from nbtrain.jobs.backends.slurm.script import batch_script, comment_of

JOB = JobDir(RunDir(Path("/shared/output/gpt-tiny")), "20260101-120000-abcd")


def test_labels_are_set_one_by_one_or_together(tmp_path: Path) -> None:
    """A label with a domain is not read as a section; overrides are added to the
    YAML's labels, and all are stored.
    """
    config = load("gpt-tiny", ["labels.team=nlp", "labels.example.com/stage=trial"])
    assert config.labels == {"team": "nlp", "example.com/stage": "trial"}
    again = load(config, ["labels={team: vision}"])
    assert again.labels == {"team": "vision", "example.com/stage": "trial"}
    (tmp_path / "config.yaml").write_text(to_yaml(again))
    assert load_resolved(tmp_path / "config.yaml").labels == again.labels
    [change] = changes_between(load("gpt-tiny"), config)
    assert str(change) == "labels: {} -> {team: nlp, example.com/stage: trial}"
    assert config.where("labels") == "override labels.team=nlp"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("labels={year: 2026}", r"labels\.year = 2026: must be text; write it in quotes\."),
        ("labels.a=b c", r"labels\.a = b c: must be empty, or at most 63 letters, digits, dots,"),
        (f"labels.a={'b' * 64}", r"must be empty, or at most 63 letters"),
        ("labels.-a=b", r"must be at most 63 .* A domain may come before it: example\.com/team\."),
        ("labels=nlp", r"labels = nlp: must be a mapping\."),
    ],
)
def test_labels_have_the_form_of_kubernetes(override: str, message: str) -> None:
    """Labels follow Kubernetes' rules for every backend, because a run can be moved to a cluster later."""
    with pytest.raises(ConfigError, match=message):
        load("gpt-tiny", [override])


def test_an_engine_gets_the_labels() -> None:
    """Slurm gets the labels in the job's comment, next to its id; Kubernetes gets them
    on the object and its pods.
    """
    config = load("gpt-tiny", ["labels.team=nlp", "labels.stage=trial", "backend.kind=slurm"])
    script = batch_script(config, JOB, {})
    assert f"\n#SBATCH --comment={comment_of(JOB)},team=nlp,stage=trial\n" in script
    line = "JobId=7 JobName=nbtrain-gpt-tiny JobState=RUNNING Comment={} StdErr=x"
    for comment, known in (
        (f"{comment_of(JOB)},team=nlp,stage=trial", True),
        (comment_of(JOB), True),
        ("", True),
        (f"{comment_of(JOB)}0,team=nlp", False),
    ):
        assert bool(_own(JOB, read_scontrol(line.format(comment)))) is known, comment
    overrides = {"backend.kind": "kubernetes", "backend.kubernetes.labels": {"team": "pods"}}
    on_pods = load(config, {**overrides, "backend.kubernetes.image": "nbtrain:1"}, check=False)
    labels = work_of(on_pods, on_pods.backend.kubernetes, "id", JOB).labels
    assert (labels["team"], labels["stage"], labels["nbtrain/run"]) == ("pods", "trial", "gpt-tiny")
