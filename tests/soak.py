"""The command `make soak`: tests too long for `make test`, in parts; writes docs/evidence/soak.md.

    python -m tests.soak [--only demo fuzz] [--list]

A part whose last run passed with the current code that it depends on is not run again, so a soak that was
interrupted continues with the remaining parts. Each part is one command; its log is build/soak/<part>.log.
Exits with 1 if a part failed; a part whose tests were all skipped counts as failed.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nbtrain.base import files
from tests.config.conftest import EXAMPLES, UPSTREAM
from tests.end_to_end.test_plain_cpu import SAMPLE as PLAIN_CPU_SAMPLE
from tests.fuzzing import FACTOR_VARIABLE
from tests.parity.sources import FAULTS, INTERRUPTIONS, PARITY, Evidence, staleness, stamp

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "evidence" / "soak.md"
LOGS = REPOSITORY / "build" / "soak"
FUZZ_FACTOR = 50
# Most parts take a few minutes; a hanging part must not keep the others from running.
LIMIT_SECONDS = 3 * 3600.0

ENGINE = (
    "nbtrain.train.__main__",
    "nbtrain.jobs.supervisor.__main__",
    "nbtrain.jobs.attempt.rank_wrapper",
)
OUTSIDE_ENGINE = ("nbtrain.corpus", "nbtrain.lab", "nbtrain.cli", "nbtrain.monitor")
FUZZED = (
    "tests/dataset/test_fuzz_idx.py",
    "tests/corpus/wiki/article/test_walker.py",
    "tests/corpus/sources/test_jsonl.py",
    "tests/corpus/sources/test_keys.py",
    "tests/corpus/sources/test_text.py",
    "tests/corpus/files/test_compression.py",
    "tests/dataset/samples/test_packing.py",
    "tests/dataset/samples/test_packed_index.py",
    "tests/config/test_yaml_source.py",
    "tests/foreign/test_damaged.py",
    "tests/foreign/bash/test_bash_oracle.py",
)


@dataclass(frozen=True)
class Part:
    """A part of the soak: a command, its description, and the sources that its result depends on."""

    name: str
    shows: str
    arguments: tuple[str, ...]
    """Arguments of Python."""
    evidence: Evidence
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_page(self) -> bool:
        """Return whether the part has its own results page with its own stamp."""
        return self.evidence.page != PAGE


def _pytest(*arguments: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", f"--timeout={LIMIT_SECONDS:g}", *arguments)


def _evidence(
    entry_points: tuple[str, ...], tests: tuple[str, ...], without: tuple[str, ...] = ()
) -> Evidence:
    return Evidence(PAGE, "make soak", entry_points, tests, without)


def _files(*patterns: str) -> list[str]:
    """Return the matching paths in the repository, sorted."""
    found = (path for pattern in patterns for path in REPOSITORY.glob(pattern))
    return sorted(str(path.relative_to(REPOSITORY)) for path in found)


EXAMPLE_YAMLS = sorted(str(path.relative_to(REPOSITORY)) for path in EXAMPLES.parent.glob("*/*.yaml"))
SITE_TEST = "tests/docs/test_site.py"
DASK_ON_SLURM_TEST = "tests/dataset/prepare/test_dask_on_slurm.py"
NETWORK_TESTS = (
    "tests/jobs/backends/test_hosts_network.py",
    "tests/jobs/backends/slurm/test_slurm_network.py",
)
LOAD_TEST = "tests/serving/test_load.py"
TWIN_TEST = "tests/end_to_end/test_twin_notebook.py"
JUPYTER_VERSIONS_TEST = "tests/end_to_end/test_jupyter_versions.py"
# The hashes of the user interface's sources.
UI_BUNDLE = "nbtrain/lab/labextension/prebuilt/nbtrain/built_from.json"
HARNESS_TEST = "tests/evaluation/test_harness.py"
CLIENTS_TESTS = ("tests/serving/test_clients.py", "tests/serving/test_conversation.py")
ENGINE_TESTS = (
    "tests/corpus/tokenizer/test_proven.py",
    "tests/corpus/tokenizer/test_exactness.py",
    "tests/corpus/tokenizer/test_adoption.py",
)
SWEEP_TESTS = ("tests/jobs/sweep/test_real_sweep.py", "tests/jobs/sweep/test_optuna.py")
BUNDLE_TEST = "tests/lab/labextension/test_bundle.py"
ENCODER_TEST = "tests/dataset/encode/test_encoder.py"
DOCS_TEST = "tests/docs/test_commands.py"
PLAIN_CPU_TEST = "tests/end_to_end/test_plain_cpu.py"
OWN_TEXT_TEST = "tests/end_to_end/test_own_text.py"
REPRODUCE_TEST = "tests/end_to_end/test_reproduce.py"
OWN_CODE_TEST = "tests/train/code/test_code_in_training.py"
EXAMPLE_COMMANDS_TEST = "tests/end_to_end/test_example_commands.py"
INSTRUCTIONS_TEST = "tests/end_to_end/test_instructions.py"
HUGGING_FACE = (
    "tests/train/test_init_from.py",
    "tests/train/test_lora.py",
    "tests/checkpoint/pretrained/test_export.py",
)
FINE_TUNING = (
    "tests/train/test_start_from_run.py",
    "tests/train/test_ia3.py",
    "tests/train/test_trained_rows.py",
    "tests/train/test_tasks.py",
    "tests/checkpoint/pretrained/test_adapters.py",
    "tests/train/test_qlora.py",
    "tests/train/test_dpo.py",
    "tests/model/test_preference_trl.py",
    "tests/exchange/test_further_training.py",
    "tests/train/test_data_options.py",
)
RESHAPE_TEST = "tests/checkpoint/test_reshape.py"
IN_A_BROWSER = (
    "tests/end_to_end/test_browser.py",
    "tests/end_to_end/test_first_visit.py",
    "tests/end_to_end/test_form_browser.py",
    "tests/end_to_end/test_labextension.py",
    "tests/end_to_end/test_outputs.py",
    "tests/end_to_end/test_tensorboard_soak.py",
)
PARTS = (
    Part("parity", "every layout against one process", ("-m", "tests.parity.matrix"), PARITY),
    Part("faults", "each fault suffered by a real run", ("-m", "tests.jobs.faults_table"), FAULTS),
    Part(
        "interruptions",
        "120 kills at drawn times with three save intervals: the planned cost, and the planned best interval",
        ("-m", "tests.planner.budget.real_interruptions"),
        INTERRUPTIONS,
    ),
    Part(
        "sweeps",
        "six runs, two killed, all processes killed, a boot: as undisturbed; Optuna's trials, if installed",
        _pytest("--soak", "-rs", *SWEEP_TESTS),
        _evidence(
            (*ENGINE, "nbtrain.api.sweep", "nbtrain.jobs.sweep.results", "nbtrain.dataset.prepare.prepare"),
            (*SWEEP_TESTS, "tests/jobs/sweep/test_drive.py", "tests/jobs/conftest.py", "docs/sweeps.md"),
            ("nbtrain.lab", "nbtrain.cli"),
        ),
    ),
    Part(
        "demo",
        "`make demo` at its full length, and a second call that redoes nothing",
        _pytest("--soak", "tests/end_to_end/test_demo.py"),
        _evidence(
            (*ENGINE, "nbtrain.cli.demo", "nbtrain.dataset.prepare.prepare"),
            ("tests/end_to_end/test_demo.py", "examples/megatron-gpt/training/gpt-tiny.yaml"),
        ),
    ),
    *(
        Part(
            f"twin-{name}",
            f"notebook 03 in twin mode for {name}",
            _pytest("--soak", f"{TWIN_TEST}::test_the_twin_of_each_upstream_run_passes[{name}-soak]"),
            _evidence(
                (*ENGINE, "nbtrain.proof.prove"),
                (TWIN_TEST, f"examples/megatron-gpt/training/{name}.yaml"),
                OUTSIDE_ENGINE,
            ),
        )
        for name in UPSTREAM
    ),
    Part(
        "full-size",
        "gpt-125m with all its 126 million parameters: two steps, a stop and a resume",
        _pytest("--soak", "tests/train/test_training.py"),
        _evidence(
            ("nbtrain.train.__main__",),
            ("tests/train/test_training.py", "examples/megatron-gpt/training/gpt-125m.yaml"),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "own-code",
        "losses, datasets and blocks of a run's own file in more layouts than the suite has",
        _pytest("--soak", OWN_CODE_TEST),
        _evidence(ENGINE, (OWN_CODE_TEST, *_files("examples/megatron-gpt/code/*.py")), OUTSIDE_ENGINE),
    ),
    Part(
        "twins-of-examples",
        "the whole twin of every other example whose shape differs, without notebooks",
        _pytest("--soak", "tests/proof/test_prove.py"),
        _evidence(
            (*ENGINE, "nbtrain.proof.prove"),
            ("tests/proof/test_prove.py", *EXAMPLE_YAMLS),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "harness",
        "tasks of lm-evaluation-harness (extra `eval`) on a run and, by transformers, on its export",
        _pytest("--soak", HARNESS_TEST),
        _evidence(("nbtrain.api.evaluate", "nbtrain.inference.generate"), (HARNESS_TEST,)),
    ),
    Part(
        "clients",
        "what openai, LiteLLM and LangChain, if installed, read of a server: refusals and conversations",
        _pytest("--soak", *CLIENTS_TESTS),
        _evidence(("nbtrain.serving.app", "nbtrain.inference.generate"), CLIENTS_TESTS),
    ),
    Part(
        "engines",
        "fastokens and HF tokenizers on every code point and 20,000 adversarial texts; converters",
        _pytest("--soak", *ENGINE_TESTS),
        _evidence(("nbtrain.corpus.tokenizer.tokenizer",), ENGINE_TESTS),
    ),
    Part(
        "hugging-face",
        "every model family imported from a transformers folder into layouts, and exported from layouts",
        _pytest("--soak", *HUGGING_FACE),
        _evidence(
            (
                "nbtrain.train.__main__",
                "nbtrain.checkpoint.pretrained.__main__",
                "nbtrain.exchange.export_model",
            ),
            (*HUGGING_FACE, "tests/pretrained/made.py", "tests/train/layouts.py"),
            ("nbtrain.lab", "nbtrain.cli", "nbtrain.monitor"),
        ),
    ),
    Part(
        "fine-tuning",
        "new rows, IA3, QLoRA, DPO, tasks in more layouts; losses against TRL's, if installed",
        _pytest("--soak", *FINE_TUNING),
        _evidence(
            ("nbtrain.train.__main__", "nbtrain.exchange.export_model"),
            (*FINE_TUNING, "tests/model/test_preference.py", "tests/train/layouts.py"),
            ("nbtrain.lab", "nbtrain.cli", "nbtrain.monitor"),
        ),
    ),
    Part(
        "instructions",
        "gpt-tiny pretrained, then LoRA: held-out questions are answered right; merged or in peft, one model",
        _pytest("--soak", "-s", INSTRUCTIONS_TEST),
        _evidence(
            (
                *ENGINE,
                "nbtrain.jobs.submission.submit",
                "nbtrain.dataset.prepare.prepare",
                "nbtrain.exchange.export_model",
                "nbtrain.checkpoint.pretrained.__main__",
                "nbtrain.inference.generate",
                "nbtrain.dataset.views.baselines",
            ),
            (INSTRUCTIONS_TEST, "examples/megatron-gpt/training/gpt-tiny.yaml"),
            ("nbtrain.lab", "nbtrain.cli", "nbtrain.monitor"),
        ),
    ),
    Part(
        "own-text",
        "`nbtrain new` on books, Chinese and little text: better than a bigram; demo and books in any order",
        _pytest("--soak", "-s", OWN_TEXT_TEST),
        _evidence(
            (
                *ENGINE,
                "nbtrain.jobs.new_run",
                "nbtrain.jobs.submission.submit",
                "nbtrain.dataset.prepare.prepare",
                "nbtrain.dataset.views.baselines",
            ),
            (
                OWN_TEXT_TEST,
                "examples/megatron-gpt/training/gpt-tiny.yaml",
                "notebooks/11_own_text.ipynb",
            ),
            ("nbtrain.lab", "nbtrain.cli", "nbtrain.monitor"),
        ),
    ),
    Part(
        "commands",
        "every command of the examples' README, in order, from raw text to a fine-tuned model that is served",
        _pytest("--soak", EXAMPLE_COMMANDS_TEST),
        _evidence(
            (
                *ENGINE,
                "nbtrain.cli.__main__",
                "nbtrain.jobs.submission.submit",
                "nbtrain.dataset.prepare.prepare",
                "nbtrain.proof.prove",
                "nbtrain.exchange.export_model",
                "nbtrain.inference.generate",
                "nbtrain.serving.__main__",
                "nbtrain.evaluation.evaluate",
            ),
            (
                EXAMPLE_COMMANDS_TEST,
                "examples/megatron-gpt/README.md",
                "examples/megatron-gpt/training/gpt-tiny.yaml",
                "examples/megatron-gpt/finetuning/gpt-tiny-instructions.yaml",
            ),
            ("nbtrain.lab",),
        ),
    ),
    Part(
        "documentation",
        "every command and Python block of docs/ in one workspace, and the output that the pages show",
        _pytest("--soak", DOCS_TEST),
        _evidence(
            (*ENGINE, "nbtrain.cli.__main__", "nbtrain.api.verbs", "nbtrain.dataset.prepare.prepare"),
            (
                DOCS_TEST,
                "tests/docs/pages.py",
                "examples/megatron-gpt/training/gpt-tiny.yaml",
                *_files("docs/*.md"),
            ),
            ("nbtrain.lab",),
        ),
    ),
    Part(
        "large-documents",
        "a document of 100 MB in any script is encoded in bounded memory, with GPT-2's own vocabulary too",
        _pytest("--soak", ENCODER_TEST),
        _evidence(("nbtrain.dataset.prepare.prepare",), (ENCODER_TEST, "tests/dataset/conftest.py")),
    ),
    Part(
        "bundle",
        "the JupyterLab bundle built again from its sources in another folder: the same bytes",
        _pytest("--soak", BUNDLE_TEST),
        _evidence((), (BUNDLE_TEST, "nbtrain/lab/labextension/build.py", UI_BUNDLE)),
    ),
    Part(
        "plain-cpu",
        "a sample of the tests on a processor without AVX-512, AMX and 16-bit arithmetic",
        _pytest("--soak", PLAIN_CPU_TEST),
        _evidence(
            ("nbtrain.model.gpt_pipe", "nbtrain.parallel.cross_entropy"),
            (PLAIN_CPU_TEST, "tests/plain_cpu.py", *PLAIN_CPU_SAMPLE),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "autotuner",
        "DeepSpeed's launcher with --autotuning run: three trials of a small run, then the training",
        _pytest("--soak", "tests/train/tuning/test_trial.py"),
        _evidence(
            ("nbtrain.train.tuning.__main__",),
            ("tests/train/tuning/test_trial.py", "tests/train/launch.py"),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "interrupted",
        "real jobs killed, cancelled, limited, measured and evaluated, each resumed to its end",
        _pytest("--soak", "tests/jobs/test_real_trainer.py"),
        _evidence(
            (*ENGINE, "nbtrain.jobs.submission.submit"),
            ("tests/jobs/test_real_trainer.py", "tests/jobs/conftest.py"),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "reproduce",
        "steps of the demo bit-exact in a second clone; a changed file and processor named; a notebook again",
        _pytest("--soak", "-s", REPRODUCE_TEST),
        _evidence(
            (
                *ENGINE,
                "nbtrain.cli.notebook_again",
                "nbtrain.proof.reproduce",
                "nbtrain.jobs.submission.submit",
            ),
            (REPRODUCE_TEST, "examples/megatron-gpt/training/gpt-tiny.yaml", "notebooks/03_launch.ipynb"),
        ),
    ),
    Part(
        "slurm",
        "a real Slurm: time limits, lost nodes, a lost controller, suspended, cancelled (faults-slurm.md)",
        ("-m", "tests.jobs.backends.slurm.faults_table"),
        _evidence(
            (
                *ENGINE,
                "nbtrain.jobs.submission.submit",
                "nbtrain.jobs.node.__main__",
                "nbtrain.jobs.backends.slurm.backend",
            ),
            (
                "tests/jobs/backends/slurm/faults_table.py",
                "tests/jobs/backends/fault_tables.py",
                "tests/clusters/slurm.py",
                "tests/jobs/fake_rank.py",
            ),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "hosts",
        "two hosts by ssh: one lost, a pulled cable, hangs, refused starts, launchers (faults-hosts.md)",
        ("-m", "tests.jobs.backends.hosts_faults_table"),
        _evidence(
            (
                *ENGINE,
                "nbtrain.jobs.submission.submit",
                "nbtrain.jobs.node.agent",
                "nbtrain.jobs.backends.hosts.backend",
            ),
            (
                "tests/jobs/backends/hosts_faults_table.py",
                "tests/jobs/backends/fault_tables.py",
                "tests/clusters/hosts.py",
                "tests/jobs/fake_rank.py",
            ),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "network",
        "calibrate --network over two hosts with a limited link: the limit within 10 %, the plan follows it; "
        "and through a real Slurm",
        _pytest("--soak", *NETWORK_TESTS),
        _evidence(
            (
                "nbtrain.train.calibration.network",
                "nbtrain.jobs.calibration.calibrate_network",
                "nbtrain.jobs.backends.hosts.backend",
                "nbtrain.jobs.backends.slurm.backend",
            ),
            (*NETWORK_TESTS, "tests/clusters/hosts.py", "tests/clusters/slurm.py"),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "local-checkpoints",
        "two hosts that save on their own disks first: a rank killed, then a disk lost; two jobs on them",
        _pytest("--soak", "tests/jobs/backends/test_hosts_cluster.py"),
        _evidence(
            (
                *ENGINE,
                "nbtrain.jobs.submission.submit",
                "nbtrain.jobs.node.agent",
                "nbtrain.jobs.backends.hosts.backend",
            ),
            (
                "tests/jobs/backends/test_hosts_cluster.py",
                "tests/clusters/hosts.py",
                "tests/jobs/conftest.py",
            ),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "dask-slurm",
        "data made by jobs of a real Slurm, one of them cancelled; Slurm's reason why no worker starts",
        _pytest("--soak", DASK_ON_SLURM_TEST),
        _evidence(
            (
                "nbtrain.dataset.prepare.prepare",
                "nbtrain.corpus.workers.dask_cluster",
                "nbtrain.corpus.workers.dask_worker",
            ),
            (
                DASK_ON_SLURM_TEST,
                "tests/dataset/prepare/test_dask.py",
                "tests/clusters/slurm.py",
                "tests/dataset/conftest.py",
            ),
        ),
        {"NBTRAIN_REQUIRE_SLURM": "1"},
    ),
    Part(
        "kubernetes",
        "pods evicted, lost, out of memory, held; a silent API server; refused starts (faults-kubernetes.md)",
        ("-m", "tests.jobs.backends.kubernetes.faults_table"),
        _evidence(
            (
                *ENGINE,
                "nbtrain.jobs.submission.submit",
                "nbtrain.jobs.node.__main__",
                "nbtrain.jobs.backends.kubernetes.backend",
            ),
            (
                "tests/jobs/backends/kubernetes/faults_table.py",
                "tests/jobs/backends/kubernetes/stub_server.py",
                "tests/jobs/backends/fault_tables.py",
                "tests/jobs/fake_rank.py",
            ),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "bad-steps",
        "a bad step thrown away in each of three ways, under every optimizer of DeepSpeed: no trace of it",
        _pytest("--soak", "tests/train/health/test_stability.py"),
        _evidence(
            ("nbtrain.train.health.stability", "nbtrain.train.health.discard"),
            ("tests/train/health/test_stability.py", "tests/train/stability_worker.py"),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "pods",
        "jobs of Kubernetes through several pods: paused, resumed, one of two evicted, and on to their ends",
        _pytest("--soak", "tests/jobs/backends/kubernetes/test_pods.py"),
        _evidence(
            (
                "nbtrain.jobs.submission.submit",
                "nbtrain.jobs.node.__main__",
                "nbtrain.jobs.supervisor.__main__",
                "nbtrain.jobs.backends.kubernetes.backend",
            ),
            (
                "tests/jobs/backends/kubernetes/test_pods.py",
                "tests/jobs/backends/kubernetes/stub_server.py",
                "tests/jobs/fake_rank.py",
            ),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "notebooks",
        "notebook 03 for every upstream run on a machine that is too small",
        _pytest("--soak", "tests/end_to_end/test_notebooks.py"),
        _evidence(
            ("nbtrain.api.verbs",),
            ("tests/end_to_end/test_notebooks.py",),
            ("nbtrain.corpus", "nbtrain.lab", "nbtrain.cli"),
        ),
    ),
    Part(
        "page-cost",
        "JupyterLab, 1,000 runs, a million points, ten minutes of polling: neither heap nor document grows",
        _pytest("--soak", "-s", "tests/end_to_end/test_page_cost.py"),
        _evidence(
            ("nbtrain.lab.server.extension",),
            (
                "tests/end_to_end/test_page_cost.py",
                # Names the bundle by the hash of its content.
                "nbtrain/lab/labextension/prebuilt/nbtrain/package.json",
            ),
        ),
    ),
    Part(
        "look",
        "every place in JupyterLab at three widths, light and dark: pictures in build/ui, and axe-core",
        _pytest("--soak", "tests/end_to_end/test_look.py"),
        _evidence(
            ("nbtrain.lab.server.extension", "nbtrain.api.verbs"),
            (
                "tests/end_to_end/test_look.py",
                "tests/end_to_end/stations.py",
                "tests/end_to_end/accessible.py",
                "tests/end_to_end/axe/yarn.lock",
                # The hash of every module of the user interface.
                "nbtrain/lab/labextension/prebuilt/nbtrain/built_from.json",
            ),
            ("nbtrain.corpus", "nbtrain.cli"),
        ),
        {"NBTRAIN_REQUIRE_AXE": "1"},
    ),
    Part(
        "readme",
        "README in both languages from the wheel on: every command, output and cell, in an empty folder",
        _pytest("--soak", "tests/end_to_end/test_readme.py"),
        _evidence(
            ENGINE,
            (
                *("tests/end_to_end/test_readme.py", "README.md", "README.zh-CN.md"),
                "examples/megatron-gpt/training/gpt-tiny.yaml",
            ),
            ("nbtrain.lab", "nbtrain.cli"),
        ),
    ),
    Part(
        "pictures",
        "pictures of the documentation show what is there today",
        _pytest("--soak", "tests/docs/test_pictures.py"),
        _evidence(
            (),
            ("tests/docs/test_pictures.py", "tests/pictures.py", "docs/pictures/manifest.json", UI_BUNDLE),
        ),
    ),
    Part(
        "site",
        "documentation and notebooks as pages: no warning, no request, a search in Chromium from file://",
        _pytest("--soak", SITE_TEST),
        _evidence(
            (),
            (
                *(SITE_TEST, "tests/site.py", "tests/docs/pages.py", "docs/conf.py", "README.md"),
                *_files("docs/*.md", "examples/**/*.md", "notebooks/*.ipynb"),
            ),
        ),
        {"NBTRAIN_REQUIRE_BROWSER": "1"},
    ),
    Part(
        "false-words",
        "real jobs stopped, killed, failed, on a full disk: what the browser says of them is what is saved",
        _pytest("--soak", "tests/end_to_end/test_no_false_word.py"),
        _evidence(
            (*ENGINE, "nbtrain.jobs.submission.submit", "nbtrain.lab.server.extension", "nbtrain.api.run"),
            ("tests/end_to_end/test_no_false_word.py", "tests/end_to_end/claims.py", UI_BUNDLE),
            ("nbtrain.corpus", "nbtrain.cli"),
        ),
    ),
    Part(
        "browser",
        "JupyterLab in Chromium: form, tabs, two browsers, a hub's proxy; no server, kernel or network",
        _pytest("--soak", *IN_A_BROWSER),
        _evidence(
            ("nbtrain.lab.server.extension", "nbtrain.api.verbs"),
            (*IN_A_BROWSER, "tests/end_to_end/jupyterlab.py", "tests/lab/widgets/fake_run.py", UI_BUNDLE),
            ("nbtrain.corpus", "nbtrain.cli"),
        ),
    ),
    Part(
        "jupyter-versions",
        "the installed wheel in JupyterLab 4.4, 4.5 and 4.6 and in Notebook 7.4 and 7.6, in Chromium",
        _pytest("--soak", JUPYTER_VERSIONS_TEST),
        _evidence(
            ("nbtrain.lab.server.extension", "nbtrain.api.run"),
            (JUPYTER_VERSIONS_TEST, "tests/end_to_end/jupyterlab.py", UI_BUNDLE),
            ("nbtrain.corpus", "nbtrain.cli"),
        ),
        {"NBTRAIN_REQUIRE_BROWSER": "1"},
    ),
    Part(
        "gpu-on-cpu",
        "every step of `make gpu` with tiny sizes on the CPU",
        ("-m", "tests.gpu", "--smoke", "--again", "--to", "build/gpu/smoke"),
        _evidence(
            ("nbtrain.train.__main__", "nbtrain.planner.plan"),
            tuple(_files("tests/gpu/*.py")),
        ),
    ),
    Part(
        "states",
        "model states of every layout on up to 8 ranks, byte for byte as planned",
        _pytest("--soak", "tests/planner/memory/test_states_allocated.py"),
        _evidence(
            (*ENGINE, "nbtrain.planner.memory.states"),
            ("tests/planner/memory/test_states_allocated.py", "tests/planner/memory/state_rank.py"),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "layouts",
        "checkpoints into more pairs of layouts, in fp32 and bf16",
        _pytest("--soak", RESHAPE_TEST),
        _evidence(
            ("nbtrain.train.__main__", "nbtrain.checkpoint.weights.store"),
            (RESHAPE_TEST, "tests/train/layouts.py", "tests/train/launch.py"),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "activations",
        "planned activations on two and four ranks, sharded in every way, within 2 % of what autograd keeps",
        _pytest(
            "--soak",
            "tests/planner/memory/test_activations_cut.py",
            "tests/planner/memory/test_activations_saved.py",
        ),
        _evidence(
            ("nbtrain.model.gpt_pipe", "nbtrain.planner.memory.buffers"),
            (
                "tests/planner/memory/test_activations_cut.py",
                "tests/planner/memory/test_activations_saved.py",
                "tests/planner/memory/saved_tensors.py",
            ),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "rules",
        "drawn runs: the engine trains what the rules take, and nothing that they refuse but by decision",
        _pytest("--soak", "tests/config/rules/test_engine_agrees.py"),
        _evidence(
            ("nbtrain.train.__main__", "nbtrain.config.rules.check"),
            (
                "tests/config/rules/test_engine_agrees.py",
                "tests/config/rules/drawn.py",
                "tests/config/rules/engine_rank.py",
            ),
            OUTSIDE_ENGINE,
        ),
    ),
    Part(
        "serving-load",
        "64 clients of `nbtrain serve` for 5 minutes, 16 of them bad: every text right, nothing left behind",
        _pytest("--soak", "-s", LOAD_TEST),
        _evidence(
            ("nbtrain.serving.__main__", "nbtrain.inference.generate"),
            (LOAD_TEST, "tests/serving/load.py", "tests/inference/saved.py"),
            ("nbtrain.lab", "nbtrain.cli", "nbtrain.monitor"),
        ),
    ),
    Part(
        "fuzz",
        f"seeded fuzz of indices, wikitext, sources and YAML, {FUZZ_FACTOR} times the cases of `make test`",
        _pytest("--hypothesis-seed=0", *FUZZED),
        _evidence(
            (
                "nbtrain.dataset.indexed",
                "nbtrain.dataset.indexed_writer",
                "nbtrain.dataset.samples.packed_index",
                "nbtrain.corpus.wiki.article.walker",
                "nbtrain.corpus.sources.base",
                "nbtrain.config.yaml_source",
            ),
            FUZZED,
        ),
        {FACTOR_VARIABLE: str(FUZZ_FACTOR)},
    ),
)


@dataclass(frozen=True)
class Result:
    """One row of the results page."""

    passed: bool
    words: str
    minutes: float
    stamp: str


def key_of(part: Part) -> str:
    """Return the hash of the sources that the part depends on, and the library versions, as text for a
    table.
    """
    found = re.search(r"`([0-9a-f]{16})[0-9a-f]*`, (.*)\.$", stamp(part.evidence))
    assert found is not None
    return f"`{found[1]}`, {found[2]}"


def read_page(page: Path) -> dict[str, Result]:
    """Return the results that are on the page, by part."""
    if not page.exists():
        return {}
    rows = re.findall(
        r"^\| `([\w.-]+)` \| [^|]* \| ([^|]*) \| ([\d.]+) \| ([^|]*) \|$", page.read_text(), re.M
    )
    return {
        name: Result(not words.startswith("FAILED"), words, float(minutes), key)
        for name, words, minutes, key in rows
    }


def page_text(results: Mapping[str, Result]) -> str:
    """Return the text of the page; parts with their own page are listed without a result."""
    lines = []
    for part in PARTS:
        if part.has_page:
            page = part.evidence.page.name
            lines.append(f"| `{part.name}` | {part.shows} | [{page}]({page}) | | its own stamp |")
        elif found := results.get(part.name):
            row = (f"`{part.name}`", part.shows, found.words, f"{found.minutes:.1f}", found.stamp)
            lines.append(f"| {' | '.join(row)} |")
        else:
            lines.append(f"| `{part.name}` | {part.shows} | not run yet | | |")
    table = "\n".join(lines)
    return f"""# Soak: what is too long for `make test`

`make soak` runs these parts, continues where it was stopped, and writes this page. The last column is the
hash of the code that a part depends on, with the versions of the libraries. When the hash or a version has
changed, the part is run again.

| part | what it shows | result | minutes | holds for |
| --- | --- | --- | --- | --- |
{table}
"""


def why_not_done(part: Part, results: Mapping[str, Result]) -> str:
    """Return the reason why the part has to be run; "" if it has already passed with this code."""
    if part.has_page:
        return staleness(part.evidence)
    found = results.get(part.name)
    if found is None:
        return "not run yet"
    if not found.passed:
        return found.words
    return "" if found.stamp == key_of(part) else "what it depends on has changed"


def run(part: Part) -> Result:
    """Run the part's command. The last line of its output is the result."""
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{part.name}.log"
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **part.environment}
    key, began = key_of(part), time.monotonic()
    with path.open("wb") as log:
        try:
            code = subprocess.run(
                [sys.executable, *part.arguments],
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    minutes = (time.monotonic() - began) / 60
    lines = path.read_text(errors="replace").strip().splitlines() or ["said nothing"]
    # The duration has a separate column.
    last = re.sub(r" in [\d.]+s.*$", "", lines[-1]).strip("= ").replace("|", "/")
    # A part of which pytest skipped every test has shown nothing.
    passed = code == 0 and re.match(r"\d+ skipped", last) is None
    return Result(passed, last if passed else f"FAILED: {last}", minutes, key)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--list", action="store_true", help="say what is to be run, and why; run nothing")
    options = parser.parse_args()
    failed = 0
    for part in PARTS:
        results = read_page(PAGE)
        reason = why_not_done(part, results)
        if options.only and part.name not in options.only:
            continue
        if options.list or not reason:
            print(f"{part.name}: {reason or 'done'}", flush=True)
            continue
        print(f"{part.name}: {reason}; running", flush=True)
        found = run(part)
        failed += not found.passed
        print(f"{part.name}: {found.words} ({found.minutes:.1f} minutes)", flush=True)
        if not part.has_page:
            # Read again: another soak may have written other parts meanwhile.
            files.write_text(PAGE, page_text({**read_page(PAGE), part.name: found}))
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
