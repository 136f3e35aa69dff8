"""`nbtrain check --json` and nb.check: findings with place, rule, fix and level."""

import json

import nbtrain as nb
from nbtrain.base.errors import ConfigError
from nbtrain.cli import __main__ as cli
from tests.foreign.upstream import write


def checked(capsys, *words):
    code = cli.main(["check", *words, "--json"])
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    assert found["schema_version"] == 1 and found["works"] == (code == 0)
    return code, found["findings"]


def test_a_run_that_is_refused_has_errors(workspace, capsys):
    """For a refused run, --json prints findings instead of the message, with the same exit code 2."""
    assert checked(capsys, "gpt-tiny") == (0, [])
    code, [rule] = checked(capsys, "gpt-tiny", "batch.micro_batch_size=5")
    assert (code, rule["level"], rule["key"]) == (2, "error", "batch.global_batch_size")
    assert (
        rule["place"].startswith("gpt-tiny.yaml:") and "must be a multiple of micro_batch" in rule["message"]
    )
    code, [key, text] = checked(capsys, "gpt-tiny", "batch.micro_batch=5", "labels={year: 2026}")
    assert (key["place"], key["key"]) == ("override batch.micro_batch=5", "batch.micro_batch")
    assert (text["place"], text["key"]) == ("override labels={year: 2026}", "labels.year")
    code, [one] = checked(capsys, "gpt-none")
    assert code == 2 and one["message"].startswith("gpt-none: no such run YAML")
    assert cli.main(["check", "gpt-tiny", "--json", "--resolved"]) == 2
    assert "use one of the two" in capsys.readouterr().err


def test_findings_of_a_run_and_of_files(workspace, tmp_path, capsys):
    """A warning has its fix and its cost; files of other programs get findings in the same form."""
    _, findings = checked(capsys, "gpt-175b")
    assert {"level", "rule", "key", "place", "message", "fix", "cost", "lacks"} == set(findings[0])
    assert any(finding["fix"] for finding in findings)
    code, findings = checked(capsys, str(write(tmp_path, "gpt-125m")))
    assert code == 0 and {finding["level"] for finding in findings} <= {"warning", "note"}


def test_python_checks_alike():
    """nb.check returns the findings of a refused run without raising, and shows what the command prints."""
    good, bad = nb.check("gpt-tiny"), nb.check("gpt-tiny", overrides="batch.micro_batch_size=5")
    assert (good.works, str(good)) == (True, "gpt-tiny: valid.")
    assert not bad.works and isinstance(bad.refused, ConfigError)
    assert repr(bad).splitlines()[:2] == [
        "gpt-tiny: not valid; 1 finding:",
        f"error, cannot run: {bad.findings[0].place}: batch.global_batch_size",
    ]


def test_a_hostfile_is_read_as_submit_reads_it(workspace, capsys):
    """A wrong line in a hostfile and too few hosts are findings; a hostfile that is
    not on this machine is skipped.
    """
    hosts = ("gpt-tiny", "backend.kind=hosts", "backend.hosts.hostfile=hosts.txt")
    assert checked(capsys, *hosts) == (0, [])
    (workspace / "hosts.txt").write_text("node-a slots=8\nnode-b slots\n")
    code, [found] = checked(capsys, *hosts)
    assert (code, found["level"], found["key"]) == (2, "error", "backend.hosts.hostfile")
    assert found["message"].startswith(
        f"{workspace}/hosts.txt:2: 'node-b slots' does not describe a machine. Write `name "
    )
    assert found["place"] == "override backend.hosts.hostfile=hosts.txt"
    (workspace / "hosts.txt").write_text("node-a slots=8\n")
    assert checked(capsys, *hosts) == (0, [])
