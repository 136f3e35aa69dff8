"""The user's functions in training: equal losses in every layout, exact resumes, errors with their line."""

import json

import pytest

from nbtrain.base.run_directory.metrics_files import metrics_files
from nbtrain.base.workspace import bundled
from nbtrain.config.code_file import HOOKS, PASSED, code_file
from nbtrain.config.load import load_resolved
from nbtrain.jobs.code_start import start_code
from nbtrain.jobs.request.own_code import write_code
from tests.train import launch
from tests.train.layouts import STEPS, Place, assert_resumes, layout

pytestmark = pytest.mark.slow
EXAMPLES = bundled("examples/megatron-gpt/code")
# A vocabulary of 500 ids whose shards are uneven: 256 and 244.
PADDED = {"model.make_vocab_size_divisible_by": 128}
MIXTURE = {"data.name": "packed", "data.split": "80,10,10", "data.packing": "best_fit"}


@pytest.fixture(scope="module")
def place(fork_server, tmp_path_factory):
    home = tmp_path_factory.mktemp("data")
    launch.make_dataset(home)
    launch.make_packed(home)
    return Place(tmp_path_factory.mktemp("runs"), home, fork_server)


def make(place, name, words, code, **overrides):
    """Create a run in a layout whose `code` is a file; the file counts as tried."""
    more = {**layout(words)[1], **PADDED, "code": str(code), **overrides}
    run = launch.make_run(place.root, more, f"{name}-{words}".replace(" ", "-").replace("_", "-"))
    config = load_resolved(run.config_yaml)
    write_code(run, config, code_file(config), PASSED)
    return run


@pytest.fixture(scope="module")
def alone(place):
    """Return a function from an example to its run in one process, trained once."""
    trained = {}

    def of(example, **overrides):
        if example not in trained:
            trained[example] = run = make(place, example, "z1 fp32", EXAMPLES / f"{example}.py", **overrides)
            place.train(run, 1)
        return trained[example]

    return of


def scalars(run):
    """Return {(step, name): value} of the file's scalars; the values of a step's newest line count."""
    found = {}
    for _, path in metrics_files(run.tensorboard):
        for line in map(json.loads, path.read_text().splitlines()):
            found |= {(line["step"], tag): value for tag, value in line.items() if tag.startswith("code/")}
    return found


CASES = [
    *(("z_loss", "t2 z1 fp32"), ("z_loss", "p2 z1 fp32")),
    *(("loss_per_domain", "d2 z3 fp32"), ("own_dataset", "d2 z3 fp32")),
]
MORE = [
    *(("loss_per_domain", words) for words in ("t2 z1 fp32", "p2 z1 fp32", "t2 d2 z2 fp32")),
    *(("own_dataset", words) for words in ("t2 z1 fp32", "p2 z1 fp32", "d2 z2 fp32")),
    *(("z_loss", words) for words in ("d2 z3 fp32", "s2 z1 fp32", "t2 p2 z1 fp32", "t2 d2 z3 fp32")),
]


@pytest.mark.parametrize(
    "example, words", [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)]
)
def test_every_layout_has_the_losses_of_one_process(example, words, place, alone):
    data = MIXTURE if example == "loss_per_domain" else {}
    expected = alone(example, **data)
    run = make(place, example, words, EXAMPLES / f"{example}.py", **data)
    place.train(run, layout(words)[0])
    assert launch.losses(run) == pytest.approx(launch.losses(expected), abs=1e-5)
    own, others = scalars(run), scalars(expected)
    assert own == pytest.approx(others, abs=2e-5)
    assert len(own) >= 2 * STEPS or example == "own_dataset"


def test_a_copy_of_our_own_functions_trains_as_without_a_file(place, tmp_path):
    start = start_code([name for name in HOOKS if name != "dataset"], tmp_path / "my_code.py")
    copy = make(place, "start", "z1 fp32", start)
    plain = launch.make_run(place.root, {**layout("z1 fp32")[1], **PADDED}, "plain")
    for run in (copy, plain):
        place.train(run, 1)
    assert launch.losses(copy) == pytest.approx(launch.losses(plain), abs=1e-5)


RESUMED = [("own_dataset", "d2 z1 bf16"), pytest.param("z_loss", "t2 z1 bf16", marks=pytest.mark.soak)]


@pytest.mark.parametrize("example, words", RESUMED)
def test_a_run_with_a_file_resumes_bit_for_bit(example, words, place):
    forked = launch.ForkedRuns(place.server, place.data_home)
    assert_resumes(place, forked, words, lambda name: make(place, name, words, EXAMPLES / f"{example}.py"))


FAILS = """import torch

STEP = 0


def loss(logits, labels, mask, batch):
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    if STEP == 2 and torch.distributed.get_rank() == 1:
        raise ValueError("of my own")
    return (losses * mask).sum(), mask.sum(), {}


def on_step(step, model):
    global STEP
    STEP = step


def on_checkpoint(step, folder):
    (folder.parent / f"seen-{step}").write_text(str((folder / "manifest.json").is_file()))
"""


def test_an_error_in_a_step_names_the_line_and_the_rank(place, tmp_path):
    """The rank that fails reports the line of the file, and checkpoints were shown to the file before."""
    path = tmp_path / "my_code.py"
    path.write_text(FAILS)
    run = make(place, "fails", "d2 z1 fp32", path, **{"checkpoint.save_interval_steps": 1})
    ended = launch.ForkedRuns(place.server, place.data_home).end(run, 2)
    assert not ended.succeeded
    log = run.newest_job().log(1, 0).read_text()
    assert "CodeError: my_code.py:9, loss: ValueError: of my own." in log
    assert 'raise ValueError("of my own")' in log
    assert (run.model / "seen-1").read_text() == (run.model / "seen-2").read_text() == "True"


def test_a_changed_copy_is_refused_by_the_ranks(place, tmp_path):
    path = tmp_path / "my_code.py"
    path.write_text("def scalars(step):\n    return {'twice': 2 * step}\n")
    run = make(place, "changed", "z1 fp32", path)
    copy = run.own_code / path.name
    copy.write_text(path.read_text().replace("2", "3"))
    forked = launch.ForkedRuns(place.server, place.data_home)
    assert not forked.end(run).succeeded
    log = launch.log_of(run)
    assert "own_code/my_code.py: is not the file that was submitted" in log and "nbtrain resume" in log
