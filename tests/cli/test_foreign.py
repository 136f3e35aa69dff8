"""`nbtrain import`, `export` and `check` with files of other programs."""

from nbtrain.cli import __main__ as cli
from tests.foreign.upstream import flags_of, manifest, write


def test_import_prints_or_writes_a_run_yaml(workspace, tmp_path, capsys):
    """An imported run YAML is printed, or written with -o but never overwritten, together with notes."""
    path = write(tmp_path, "gpt-125m")
    assert cli.main(["import", str(path), "tokenizer.vocab_size=52000"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# Made by nbtrain import from gpt-125m.yaml (megatron-deepspeed@e7bff5ec).")
    out = tmp_path / "run.yaml"
    command = ["import", str(path), "-o", str(out), "tokenizer.vocab_size=52000"]
    assert cli.main(command) == 0 and out.read_text() == printed
    assert "--data-impl mmap: it only changes how data is read" in capsys.readouterr().out
    assert cli.main(command) == 2
    assert "already exists" in capsys.readouterr().err
    assert cli.main([*command, "--overwrite"]) == 0
    assert cli.main(["plan", str(out)]) == 0


def test_an_import_that_fails_names_file_and_line(workspace, tmp_path, capsys):
    """An import that fails reports the file and line, with exit code 2."""
    path = write(tmp_path, "gpt-125m")
    assert cli.main(["import", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "ConfigError: gpt-125m.yaml:38: no given file contains the size of the vocabulary."
    )


def test_the_value_of_a_variable_may_be_longer_than_a_file_name(workspace, tmp_path, capsys):
    """A long list of flags is a value, although the file system takes no file of that name."""
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 $ARGS\n")
    assert cli.main(["import", str(script), "ARGS=" + "--hidden-size 1024 " * 30]) == 2
    assert capsys.readouterr().err.startswith("ConfigError: run.sh: no given file contains")


def test_an_export_is_imported_again(workspace, tmp_path, capsys):
    """An exported script can be imported again; what it cannot express is listed with the reason."""
    script = tmp_path / "run.sh"
    assert cli.main(["export", "gpt-tiny", "--to", "megatron-lm", "-o", str(script), "model.seed=7"]) == 0
    assert (
        "batch.train_tokens: the program counts samples; they are rounded up to complete steps."
        in capsys.readouterr().out
    )
    assert cli.main(["import", str(script)]) == 0
    assert "  seed: 7  # --seed 7" in capsys.readouterr().out
    assert cli.main(["export", "gpt-tiny", "--to", "deepspeed"]) == 0
    assert '"train_batch_size": 8' in capsys.readouterr().out
    assert cli.main(["export", "gpt-tiny", "--to", "megatron"]) == 2
    assert (
        "no such target. The targets are hf, consolidated, gguf, peft, megatron-lm" in capsys.readouterr().err
    )


def test_check_takes_the_version_of_the_flags(workspace, tmp_path, capsys):
    """`check --from` accepts known versions, and only for files of other programs."""
    path = write(tmp_path, "gpt-125m")
    assert cli.main(["check", str(path), "--from", "megatron-deepspeed@e7bff5ec"]) == 0
    assert cli.main(["check", str(path), "--from", "nemo"]) == 2
    assert "nemo" in capsys.readouterr().err
    assert cli.main(["check", "gpt-tiny", "--from", "megatron-lm"]) == 2
    assert (
        "omit program (--from): it is only for scripts and manifests, and gpt-tiny is a run."
        in capsys.readouterr().err
    )


def test_check_says_which_keys_are_auto(workspace, tmp_path, capsys):
    """check lists the keys that are "auto" in a Trainer's JSON, with nbtrain's fields
    for them, and exits with 0.
    """
    path = tmp_path / "hf.json"
    path.write_text('{"train_batch_size": "auto",\n "optimizer": {"params": {"lr": "auto"}}}')
    assert cli.main(["check", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "warning, costs values that no program fills in: hf.json:1: auto",
        "  train_batch_size, optimizer.params.lr: the Trainer of transformers and Accelerate "
        "fill in these values from their arguments, but DeepSpeed does not.",
        "  Write numbers into the JSON. Or create a run that sets batch.global_batch_size, lr_schedule.lr, "
        "and apply the JSON to that run: `nbtrain import hf.json --onto RUN`.",
    ]


def test_iterations_beside_samples_are_refused(workspace, tmp_path, capsys):
    """train-iters together with train-samples, which both programs refuse, is refused by import and check."""
    path = tmp_path / "job.yaml"
    path.write_text(manifest("gpt-125m", [*flags_of("gpt-125m"), "--train-iters=10"]))
    assert cli.main(["import", str(path), "tokenizer.vocab_size=52000"]) == 2
    assert "--train-samples 2500000 with --train-iters 10 (job.yaml:" in capsys.readouterr().err
    assert cli.main(["check", str(path)]) == 2
    assert "the program counts either iterations or samples, not both." in capsys.readouterr().out


def test_check_takes_files_of_other_programs(workspace, tmp_path, capsys):
    """check exits with 2 if a finding is an error, else with 0, for files of other
    programs as for run YAMLs.
    """
    path, other = write(tmp_path, "gpt-125m"), write(tmp_path, "gpt-1-3b-4xdp-4xpp")
    assert cli.main(["check", str(path), "resources.gpu_type=A100-40GB"]) == 0
    printed = capsys.readouterr().out
    assert "findings, most expensive first:" in printed and "gpt-125m.yaml:57: --zero-stage" in printed
    assert cli.main(["check", str(other), str(tmp_path / "ds_config_1-3b.json")]) == 2
    assert "DeepSpeed refuses ZeRO 2 and 3 in a pipeline." in capsys.readouterr().out
    assert cli.main(["check", str(path), str(other)]) == 2
    capsys.readouterr()
    assert cli.main(["check", "gpt-tiny"]) == 0
    assert capsys.readouterr().out.startswith("gpt-tiny: valid")
