"""Every notebook runs unattended for any run YAML, which is given as a parameter.

test_demo.py runs notebooks 00 to 05 in order for one run.
"""

import ast
import bz2
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from nbtrain.api.not_launched import NotLaunched
from nbtrain.api.run import Run
from nbtrain.api.verbs import launch, load
from nbtrain.base.errors import ConfigError, JobError, SubmitError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli.notebook_runner import check_parameter_names, folder_of, run_notebook, typed_parameters
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.views.inspect import verify
from tests.corpus import made
from tests.corpus.wiki.conftest import dump_xml

from ..config.conftest import UPSTREAM

if TYPE_CHECKING:
    import nbformat

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# The upstream run whose notebook runs here; `make soak` runs it for all nine.
SHOWN = "gpt-13b-4xdp-4xpp-4xtp"

# A smaller gpt-tiny on random words.
SMALL = (
    "batch.max_steps=12 model.num_layers=2 model.hidden_size=64 model.seq_length=64 tokenizer.name=mock "
    "tokenizer.vocab_size=512 data.name=mock 'data.sources=[{kind: mock}]' evaluation.eval_iters=1"
)


def sources_of(notebook: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"]]


# --- their form ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_form(notebook):
    """Each notebook has a title, its purpose, one cell of typed, commented parameters,
    few short cells and no outputs.
    """
    content = json.loads(notebook.read_text())
    cells = content["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert "".join(cells[0]["source"]).startswith("# ")
    assert len("".join(cells[0]["source"]).splitlines()) >= 3, "a title alone does not say why"
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    assert tagged == [code[0]]
    for line in "".join(code[0]["source"]).splitlines():
        assert ":" in line.partition("=")[0] and "  # " in line, (
            f"a parameter without type or comment: {line}"
        )
        assert line.count("=") == 1, f"papermill warns that it cannot parse a line with two =: {line}"
    assert len(code) <= 10
    assert all(len("".join(cell["source"]).splitlines()) <= 8 for cell in code), "a cell is one call"
    assert not any("def " in line or line.startswith("class ") for cell in code for line in cell["source"])
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_text_teaches(notebook):
    """Each notebook has sections, says what to see after cells and what to try, and
    links to the next notebook.
    """
    cells = json.loads(notebook.read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert len(re.findall(r"(?m)^## ", text)) >= 3
    assert text.count("**What you should see:**") >= 3
    assert "> **Try it.**" in text and "**Next:**" in text


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_scaffolding_is_folded(notebook):
    """The cells that check parameters, and the last cells, are folded in
    JupyterLab, also after nbstripout.
    """
    import nbformat  # with jsonschema, which takes seconds; every test process collects this file
    from nbstripout import strip_output

    content = nbformat.read(notebook, as_version=4)
    stripped = strip_output(content, keep_output=False, keep_count=False, keep_id=True)
    for cell in stripped.cells:
        is_scaffolding = "check_parameters()" in cell.source or "must_finish()" in cell.source
        is_folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        assert not is_scaffolding or is_folded, cell.source


def test_they_import_nothing_but_nbtrain():
    """Notebooks import only `import nbtrain as nb` and the standard library."""
    imported = set()
    for notebook in NOTEBOOKS:
        code = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        tree = ast.parse("\n".join("".join(cell["source"]) for cell in code))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    assert "nbtrain" in imported and imported - {"nbtrain"} <= sys.stdlib_module_names


def test_there_are_thirteen():
    """There are thirteen numbered notebooks, as the README says."""
    names = ["00_quickstart", "01_prepare_data", "02_plan", "03_launch", "04_monitor", "05_generate"]
    names += ["06_cluster", "07_evaluate_and_export", "08_finetune", "09_profile", "10_serve", "11_own_text"]
    names += ["12_sweep"]
    assert [path.stem for path in NOTEBOOKS] == names


def test_an_unknown_parameter_is_an_error_before_anything_runs():
    """An unknown parameter is refused before anything runs."""
    with pytest.raises(ConfigError) as error:
        check_parameter_names(ROOT / "notebooks" / "02_plan.ipynb", {"rum": "gpt-tiny"})
    for part in ("02_plan.ipynb has no parameter rum.", "run, overrides, gpus, gpu_type."):
        assert part in str(error.value)


@pytest.mark.parametrize("run", ["typo", "runs/typo.yaml", 5, ""])
def test_an_unknown_run_leaves_no_folder(workspace, run):
    """The name of a run that does not exist creates no folder, not even the output directory."""
    with pytest.raises(ConfigError) as error:
        run_notebook("02_plan", {"run": run})
    assert "run YAML" in str(error.value)
    assert [path.name for path in workspace.iterdir()] == []


def test_where_executed_notebooks_go(workspace):
    """Executed notebooks go to the run's folder if the run is given by name, and to
    a shared folder for a path.
    """
    made = RunDir.named("made-before")
    made.path.mkdir(parents=True)
    made.run_json.write_text("{}")
    (workspace / "own.yaml").write_text("name: other-name\n")
    output = workspace / "output"
    for run, folder in {
        "made-before": made.notebooks,
        "gpt-tiny": output / "gpt-tiny" / "notebooks",
        None: output / "notebooks",
        "own.yaml": output / "notebooks",
        str(made.path): output / "notebooks",
    }.items():
        assert folder_of(run) == folder, run
    assert [path.name for path in output.iterdir()] == ["made-before"]


def test_words_of_a_command_line_become_what_the_notebook_wants():
    """Words of a command line become the type of the parameter: a source in YAML
    braces is text, `true` a bool.
    """
    words = [("source", "{kind: wiki, language: bg}"), ("dataset", "5"), ("force", "true")]
    assert typed_parameters("01_prepare_data", words) == {
        "source": "{kind: wiki, language: bg}",
        "dataset": "5",
        "force": True,
    }


def test_overrides_that_notebook_01_prints_load():
    """The overrides that notebook 01 prints for the following notebooks can be loaded."""
    (words,) = re.findall(
        r"`('data\.sources=[^`]*)`", sources_of(ROOT / "notebooks/01_prepare_data.ipynb")[-1]
    )
    config = load("gpt-tiny", words.replace("NAME", "mine"))
    assert [source.language for source in config.data.sources] == ["simple"]
    assert (config.data.name, config.tokenizer.name) == ("mine", "mine")


# --- running them -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Create a workspace for all tests of this file."""
    folder = tmp_path_factory.mktemp("notebook workspace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_WORKSPACE", str(folder))
        yield folder


def execute(notebook: str, output: Path, **parameters) -> "nbformat.NotebookNode":
    from papermill.execute import execute_notebook

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from papermill's own dependencies
        return execute_notebook(
            str(ROOT / "notebooks" / f"{notebook}.ipynb"),
            str(output),
            parameters=parameters,
            progress_bar=False,
            start_timeout=900,
        )


def texts(notebook: "nbformat.NotebookNode") -> str:
    """Return all text that an executed notebook shows."""
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown.append(output.get("text", ""))
            shown += [str(value) for value in output.get("data", {}).values()]
    return "\n".join(shown)


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["made", pytest.param("shared", marks=pytest.mark.soak)])
def test_a_dump_of_wikipedia_to_verified_tokens(request, origin, tmp_path, monkeypatch):
    """01_prepare_data turns a generated or real dump into a trained tokenizer and a
    verified .bin/.idx pair.
    """
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    if origin == "made":
        path, articles = tmp_path / "made.xml.bz2", 400
        path.write_bytes(bz2.compress(dump_xml(made.dump_pages(articles))))
    else:
        folder, articles = request.getfixturevalue("shared_data") / "wiki", 106
        path = folder / "enwiki-pages-articles-sample.xml.bz2"
    parameters = {
        "source": f"{{kind: wiki, path: {path}}}",
        "dataset": "wiki-sample",
        "overrides": "tokenizer.vocab_size=1000 data.split=8,1,1 evaluation.eval_iters=1",
    }
    shown = texts(execute("01_prepare_data", tmp_path / "out.ipynb", **parameters))
    manifest = DatasetFiles.named("wiki-sample").manifest()
    assert manifest.counts["documents"] == articles
    assert manifest.sources[0]["licence"] == "CC-BY-SA-4.0"
    assert verify("wiki-sample").checks
    assert f"{manifest.counts['documents']:,} documents" in shown
    assert "ok: sha256 of all 2 files matches the manifest" in shown
    text = "".join(path.read_text() for path in (tmp_path / "data" / "corpus").glob("*/*.jsonl"))
    residue = re.findall(r"\{\{|\[\[|<ref|\{\||'''|\|thumb", text)
    assert len(residue) <= manifest.counts["documents"] / 100


@pytest.mark.slow
def test_the_plain_papermill_command(trial, tmp_path):
    """`papermill in.ipynb out.ipynb -p name value` runs a notebook, as a batch job would."""
    import nbformat

    output = tmp_path / "plan.ipynb"
    command = [sys.executable, "-m", "papermill", ROOT / "notebooks" / "02_plan.ipynb", output]
    parameters = {"run": "gpt-13b-4xdp-4xpp-4xtp", "gpus": "64", "gpu_type": "A100-80GB"}
    words = [word for name, value in parameters.items() for word in ("-p", name, value)]
    done = subprocess.run([*command, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    shown = texts(nbformat.read(output, 4))
    assert "12,8" in shown
    # The what-if page and the search are static without a live front end.
    on = "gpt-13b-4xdp-4xpp-4xtp on 64 x A100-80GB"
    for text in ("fits: yes, ", f"Layouts of {on}", "The longest sequence that fits with ", on):
        assert text in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == SHOWN else pytest.mark.soak) for name in UPSTREAM]
)
def test_launch_explains_what_this_machine_lacks(trial, tmp_path, name):
    """If this machine cannot train the run, 03_launch submits nothing, gives the
    numbers, and ends without an error.
    """
    text = texts(execute("03_launch", tmp_path / "out.ipynb", run=name))
    assert f"{name} was not launched: this machine is too small." in text
    assert "GPU" in text
    assert f"nbtrain submit {name}" in text
    assert not RunDir.named(name).exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", UPSTREAM)
def test_what_the_launch_cell_calls_explains_each_upstream_run(trial, name):
    """The call in the launch cell explains each upstream run; it is made here without a notebook."""
    text = str(launch(name))
    assert f"{name} was not launched: this machine is too small." in text
    assert "GPU" in text
    assert f"nbtrain submit {name}" in text
    assert not RunDir.named(name).exists()


ON_A_CLUSTER = {
    "slurm": ("backend.slurm.partition=gpu", "#SBATCH --partition=gpu"),
    "kubernetes": (
        "backend.kubernetes.image=registry.example.com/nbtrain:0.1.0 "
        "'backend.kubernetes.mounts=[{claim: workspace, mount_path: /workspace}]'",
        "kind: TrainJob",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ON_A_CLUSTER)
def test_the_same_run_on_a_cluster_that_is_not_there(trial, monkeypatch, backend):
    """Without a cluster, the calls in 06_cluster say why nothing is submitted and show what would be."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PATH", str(trial))
    monkeypatch.setenv("HOME", str(trial))
    overrides, shown = ON_A_CLUSTER[backend]
    config = load("gpt-125m-4xdp", f"name={backend}-run backend.kind={backend} {overrides}")
    said = str(launch(config))
    assert f"{config.name} was not launched: backend {backend} cannot start it from here.\n" in said
    assert shown in said.partition("What would be submitted:")[2]
    assert str(launch(config, dry_run=True)).startswith(
        f"{config.name} was not launched: this is a dry run.\n"
    )
    assert not RunDir.named(config.name).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("local", ("on-any on local: nodes: 1, ranks: 1", "SUCCEEDED", "Replicas")),
        # What its cells call is in test_the_same_run_on_a_cluster_that_is_not_there.
        pytest.param(
            "kubernetes", ("image: REPLACE-ME/image:tag", "There is no job"), marks=pytest.mark.soak
        ),
    ],
)
def test_one_notebook_for_every_backend(trial, tmp_path, backend, said):
    """06_cluster trains on this machine and, with one parameter, shows the same run's
    manifest without an image.
    """
    parameters = {"run": "gpt-tiny", "overrides": f"{SMALL} name=on-any", "max_steps": 4}
    shown = texts(execute("06_cluster", tmp_path / "out.ipynb", backend=backend, **parameters))
    assert [words for words in said if words not in shown] == []
    assert RunDir.named("on-any").exists() == (backend == "local")


@pytest.mark.slow
def test_a_server_from_a_notebook(trial, tmp_path):
    """10_serve answers a request, a streamed request and three at once, and its
    server ends with the notebook.
    """
    from tests.inference import saved  # with torch, which every test process would load

    saved.save_run("served")
    prompts = ["One day", "The next", "At night"]
    notebook = execute("10_serve", tmp_path / "out.ipynb", run="served", prompts=prompts, max_tokens=8)
    shown = texts(notebook)
    assert "served, step 7, fp32 on CPU" in shown and "/?token=" in shown
    answer, stream = (
        "".join(output.get("text", "") for output in cell.outputs)
        for cell in notebook.cells
        if "seed" in cell.source
    )
    assert answer == f"One day{stream}\n" and stream
    assert [prompt for prompt in prompts if f">>> {prompt!r}" in shown] == prompts
    assert "the server has ended" in shown


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_and_exported(trial, tmp_path):
    """07_evaluate_and_export computes perplexity, baselines and scores of questions, and exports the model.

    A second call keeps the exported folder.
    """
    from tests.evaluation import made as evaluated  # with torch, which every test process would load

    run = evaluated.run_with_data("evaluated")
    tasks = {kind: str(path) for kind, path in evaluated.files_in(tmp_path).items()}
    shown = texts(execute("07_evaluate_and_export", tmp_path / "out.ipynb", run=run.name, tasks=tasks))
    for text in (
        "evaluated, step 7",
        "bits_per_byte",
        "unigram",
        "hellaswag",
        "acc_norm",
        "logits differ from the run's by at most",
    ):
        assert text in shown
    assert (run.export / "hf" / "config.json").is_file()
    found = {path.name for path in (run.evaluation / "global_step7").iterdir()}
    assert found == {
        "perplexity-small-valid.json",
        "lambada.json",
        "hellaswag.json",
        "mmlu.json",
        "multiple-choice.json",
    }


@pytest.mark.slow
@pytest.mark.soak
def test_a_run_is_fine_tuned(trial, tmp_path):
    """08_finetune trains adapters on a run's weights.

    It shows the unmasked text, answers before and after, tasks and a chat.
    """
    (trial / "examples" / "megatron-gpt").mkdir(parents=True)
    (trial / "examples" / "megatron-gpt" / "finetuning").symlink_to(
        ROOT / "examples" / "megatron-gpt" / "finetuning"
    )
    launch(load("gpt-tiny", f"{SMALL} name=base")).wait()
    changes = SMALL.partition(" data.name")[0].partition(" ")[2]
    changes += " evaluation.eval_iters=1 data.name=answers name=answers init_from=base init_step=newest"
    shown = texts(
        execute(
            "08_finetune", tmp_path / "out.ipynb", base="", overrides=f"{changes} lora.rank=2", max_steps=4
        )
    )
    for text in (
        "answers starts from base, checkpoint: newest",
        "trained next to frozen weights",
        "SUCCEEDED",
        "What is the type of 374?",
        "multiple-choice-held-out  acc",
    ):
        assert text in shown


@pytest.mark.parametrize(
    ("start", "asked"),
    [({"run": "base", "step": 300}, [("base", 300), ("job", None)]), ({"files": {}}, [("job", None)])],
)
def test_the_model_before_a_fine_tuning_is_its_starting_checkpoint(tmp_path, capsys, start, asked):
    """Answers before fine-tuning come from the starting checkpoint, not the newest one.

    A run that started from a model folder has none.
    """
    directory = RunDir(tmp_path)
    directory.init_from_json.write_text(json.dumps(start))
    calls = []
    fake = SimpleNamespace(
        generate=lambda model, prompts, step=None, **how: calls.append((model, step)) or "a text"
    )
    (cell,) = [
        cell for cell in sources_of(ROOT / "notebooks" / "08_finetune.ipynb") if "init_from_json" in cell
    ]
    job = Run(directory)
    names = {"nb": fake, "job": job, "prompts": ["a"], "max_new_tokens": 3}
    exec(cell, {**names, "config": SimpleNamespace(init_from="base")})
    assert calls == [(job if model == "job" else model, step) for model, step in asked]
    assert capsys.readouterr().out == (
        "" if "step" in start else "base is not a run: there is no text from before\n"
    ) + "a text\n" * len(asked)


def test_a_fine_tuning_that_was_not_launched_ends_in_order(workspace, capsys):
    """08_finetune ends without an error if the run cannot be launched, and stops
    early if its base cannot be.
    """
    cells = json.loads((ROOT / "notebooks" / "08_finetune.ipynb").read_text())["cells"]
    _, _, base, _, _, *rest = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    config = load("gpt-tiny-instructions")
    refused = NotLaunched(config, ["8 GPUs are needed."], "nbtrain submit x")
    fake = SimpleNamespace(load=load, launch=lambda run: refused, runs=list)
    names = {"nb": fake, "config": config, "wait": "yes", "chat": "Hi", "base": "gpt-tiny"}
    names |= {"run": "gpt-tiny-instructions", "overrides": "", "max_steps": 0}
    exec("\n".join(rest), {**names, "max_new_tokens": 3})
    why = "gpt-tiny-instructions was not launched: this machine is too small.\n  - 8 GPUs are needed.\n"
    assert capsys.readouterr().out.startswith(why)
    with pytest.raises(SubmitError, match=f"^{re.escape(why)}"):
        exec(base.removeprefix("import nbtrain as nb\n"), names)


@pytest.mark.slow
@pytest.mark.soak
def test_a_few_steps_are_profiled(trial, tmp_path):
    """09_profile shows sentences, a picture with phases, and the plan, and leaves no run behind."""
    shown = texts(
        execute("09_profile", tmp_path / "out.ipynb", run="gpt-tiny", overrides=f"{SMALL} name=seen")
    )
    assert "seen-profile: 6 steps, ranks: 1" in shown
    for text in ("A step takes ", "The phases of the steps", "Memory, peak", "On the host&#x27;s clock"):
        assert text in shown
    assert not RunDir.named("seen").exists()


@pytest.mark.slow
@pytest.mark.soak
def test_a_sweep_in_batch(trial, tmp_path):
    """12_sweep plans, trains and compares two runs; a second execution trains nothing again."""
    given = {"run": "gpt-tiny", "sweep": "seen", "values": "0.001 2e-3", "overrides": SMALL, "steps": 12}
    shown = texts(execute("12_sweep", tmp_path / "out.ipynb", **given))
    assert "Plan of the sweep seen: 2 runs" in shown and "seen-lr-0-001-seed-1" in shown
    assert "2 of 2 runs ended" in shown and "Best: lr_schedule.lr=" in shown
    jobs = [RunDir.named(f"seen-lr-{value}-seed-1").job_ids() for value in ("0-001", "0-002")]
    execute("12_sweep", tmp_path / "again.ipynb", **given)
    assert jobs == [RunDir.named(f"seen-lr-{value}-seed-1").job_ids() for value in ("0-001", "0-002")]


@pytest.mark.slow
def test_a_failing_job_fails_the_notebook(trial, tmp_path):
    """If its job fails, the notebook fails with the cause and the end of the log;
    notebook and HTML are written.
    """
    overrides = (
        f"{SMALL} name=failing-trial backend.max_restarts=0 'backend.env={{GLOO_SOCKET_IFNAME: nowhere}}'"
    )
    with pytest.raises(JobError, match=r"failing-trial is FAILED: .*\n(.*\n)*.*nowhere"):
        run_notebook("03_launch", {"run": "gpt-tiny", "overrides": overrides}, tmp_path / "failing.ipynb")
    assert (tmp_path / "failing.ipynb").is_file()
    assert (tmp_path / "failing.html").is_file()
