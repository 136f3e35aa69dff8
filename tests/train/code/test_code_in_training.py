"""The user's functions in training: equal losses in every layout, exact resumes, errors with their line."""

import json
import shutil

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, CodeError, ConfigError
from nbtrain.base.run_directory.metrics_files import metrics_files
from nbtrain.base.workspace import bundled
from nbtrain.checkpoint.own_layer import recorded_layer
from nbtrain.checkpoint.weights.model_weights import load_model_weights
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.code_file import HOOKS, PASSED, code_file
from nbtrain.config.load import load, load_resolved
from nbtrain.exchange.export_model import export_model
from nbtrain.inference.loaded import fill, model_of
from nbtrain.jobs.code_start import start_code
from nbtrain.jobs.request.own_code import write_code
from nbtrain.pretrained.start import fit, open_start
from tests.train import launch
from tests.train.layouts import HALF, STEPS, Place, assert_resumes, assert_same, layout

pytestmark = pytest.mark.slow
EXAMPLES = bundled("examples/megatron-gpt/code")
# A vocabulary of 500 ids whose shards are uneven: 256 and 244.
PADDED = {"model.make_vocab_size_divisible_by": 128}
DATA = {
    "loss_per_domain": {"data.name": "packed", "data.split": "80,10,10", "data.packing": "best_fit"},
    "own_dataset": {"data.split": "949,50,1"},
}


@pytest.fixture(scope="module")
def place(fork_server, tmp_path_factory):
    home = tmp_path_factory.mktemp("data")
    launch.make_dataset(home)
    launch.make_packed(home)
    return Place(tmp_path_factory.mktemp("runs"), home, fork_server)


# A block of single parameters, whose columns are normalized over all ranks.
COLUMNS = """import torch


class _MLP(torch.nn.Module):
    def __init__(self, config, parts):
        super().__init__()
        self.parts, hidden = parts, config.hidden_size
        self.up = parts.parameter("mlp.up", 2 * hidden, hidden, shard_dim=0, std=0.2)
        self.shift = parts.parameter("mlp.shift", 1, value=0.1, on_columns=True)
        self.down = parts.parameter("mlp.down", hidden, 2 * hidden, shard_dim=-1, std=0.2)

    def forward(self, x):
        columns = torch.relu(self.parts.copy(x) @ self.up.T) + self.shift
        whole = self.parts.gather(columns)
        normed = whole * torch.rsqrt(whole.square().mean(-1, keepdim=True) + 1e-5)
        return self.parts.reduce(self.parts.own_columns(normed) @ self.down.T)


class _Block(torch.nn.Module):
    def __init__(self, config, parts):
        super().__init__()
        self.parts, self.before, self.after = parts, parts.norm(), parts.norm()
        self.attention, self.mlp = parts.attention(), _MLP(config, parts)

    def forward(self, x, **context):
        return x + self.attention(self.before(x), **context) + self.mlp(self.after(x))


def layer(config, index, parts):
    return _Block(config, parts)
"""


def file_of(place, example):
    """Return the file of an example, or of COLUMNS."""
    if example != "columns":
        return EXAMPLES / f"{example}.py"
    path = place.root / "columns.py"
    path.write_text(COLUMNS)
    return path


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

    def of(example, kind="", **overrides):
        words = f"z1 fp32 {kind}".strip()
        if (key := (example, words)) not in trained:
            trained[key] = run = make(place, example, words, file_of(place, example), **overrides)
            place.train(run, 1)
        return trained[key]

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
    *(("own_mlp", words) for words in ("t2 z1 fp32", "p2 z1 fp32", "d2 z3 fp32", "s2 z1 fp32")),
    ("own_mlp", "c2 z1 fp32"),
    *(("columns", words) for words in ("t2 z1 fp32", "t2 sp z1 fp32", "t2 d2 z3 fp32")),
    *(("own_mlp", words) for words in ("t2 d2 z1 fp32 muon", "d2 z2 fp32 offload")),
    *(("own_mlp", f"{words} recompute") for words in ("t2 sp p2 z1 fp32", "t2 d2 z3 fp32")),
    *(("z_loss", words) for words in ("d2 z3 fp32", "s2 z1 fp32", "t2 p2 z1 fp32", "t2 d2 z3 fp32")),
    *(("z_loss", "p2 c2 z1 fp32"), ("loss_per_domain", "t2 c2 z3 fp32"), ("own_mlp", "p2 c2 z1 fp32")),
]


@pytest.mark.parametrize(
    "example, words", [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)]
)
def test_every_layout_has_the_losses_of_one_process(example, words, place, alone):
    data = DATA.get(example, {})
    expected = alone(example, "muon" if "muon" in words else "", **data)
    run = make(place, example, words, file_of(place, example), **data)
    place.train(run, layout(words)[0])
    assert launch.losses(run) == pytest.approx(launch.losses(expected), abs=1e-5)
    own, others = scalars(run), scalars(expected)
    assert own == pytest.approx(others, abs=2e-5)
    assert len(own) >= 2 * STEPS or example in ("own_dataset", "own_mlp", "columns")


def test_a_copy_of_our_own_functions_trains_as_without_a_file(place, tmp_path):
    start = start_code(
        [name for name in HOOKS if name != "dataset"], tmp_path / "my_code.py", load("gpt-tiny")
    )
    copy = make(place, "start", "z1 fp32", start)
    plain = launch.make_run(place.root, {**layout("z1 fp32")[1], **PADDED}, "plain")
    for run in (copy, plain):
        place.train(run, 1)
    assert launch.losses(copy) == pytest.approx(launch.losses(plain), abs=1e-5)


RESUMED = [
    ("own_dataset", "d2 z1 bf16"),
    *(
        pytest.param(*case, marks=pytest.mark.soak)
        for case in [
            ("z_loss", "t2 z1 bf16"),
            *(("own_mlp", words) for words in ("z1 bf16", "t2 sp z1 bf16", "p2 z1 bf16", "d2 z3 bf16")),
        ]
    ),
]


@pytest.mark.parametrize("example, words", RESUMED)
def test_a_run_with_a_file_resumes_bit_for_bit(example, words, place):
    forked = launch.ForkedRuns(place.server, place.data_home)
    assert_resumes(
        place,
        forked,
        words,
        lambda name: make(place, name, words, EXAMPLES / f"{example}.py", **DATA.get(example, {})),
    )


def test_every_reader_of_a_checkpoint_has_the_blocks_of_the_file(place, alone, tmp_path):
    """A checkpoint of two tensor-parallel ranks says how each parameter is shared, and gives the logits of
    one process; a file that is not the recorded one is refused, and so is what no block of the user can do.
    """
    one, two = alone("own_mlp"), make(place, "readers", "t2 sp z1 fp32", EXAMPLES / "own_mlp.py")
    place.train(two, 2)
    assert launch.losses(two) == pytest.approx(launch.losses(one), abs=1e-5)
    config, store = load_resolved(two.config_yaml), CheckpointStore(two.checkpoint(STEPS))
    own = {name.removeprefix("layers.0.mlp."): entry for name, entry in store.manifest["parameters"].items()}
    assert (own["gain"]["partition_dim"], own["gain"]["group"]) == (0, "no_decay")
    assert (own["scale"]["partition_dim"], own["scale"]["group"]) == (None, "no_decay")
    assert (own["closing.weight"]["partition_dim"], own["closing.weight"]["group"]) == (1, "decay")

    # Each rank has the gradient of its tokens: the moments show whether it was summed.
    scales = [
        CheckpointStore(run.checkpoint(STEPS)).full("layers.0.mlp.scale", "exp_avg") for run in (one, two)
    ]
    assert torch.allclose(*scales, rtol=1e-3, atol=1e-8) and scales[0].any()

    def logits(run, tokens):
        read = CheckpointStore(run.checkpoint(STEPS))
        model = model_of(config, layer_function=recorded_layer(run, config, read.manifest)).eval()
        fill(model, read)
        assert hasattr(model.layers[1].mlp, "gain")
        with torch.inference_mode():
            cache = model.new_cache(1)
            pieces = [model(piece, cache=cache) for piece in tokens.split(5, dim=1)]
            whole = model(tokens)
        found, again = (each[..., : launch.VOCAB_SIZE] for each in (whole, torch.cat(pieces, 1)))
        assert torch.allclose(found, again, atol=1e-5)
        return found

    tokens = torch.arange(1, 16)[None]
    assert torch.allclose(logits(two, tokens), logits(one, tokens), atol=1e-5)

    other = load(config, {"name": "other", "code": None, "init_from": str(two.path), "init_step": STEPS})
    start = open_start(other)
    # 12 rows pad the vocabulary.
    assert start.count == sum(value.numel() for value in load_model_weights(two.path).values()) - 12 * 32
    ((key, words),) = fit(start, other).problems
    assert key == "code" and words.startswith("has no layer(), but the blocks of ")
    assert not fit(start, load(other, {"code": str(EXAMPLES / "own_mlp.py")})).problems
    with pytest.raises(ConfigError, match=r"blocks come from layer\(\) in own_mlp\.py, but --to gguf"):
        export_model(two, tmp_path / "model.gguf", "gguf")

    copy = two.own_code / "own_mlp.py"
    copy.write_text(copy.read_text().replace("64", "32"))
    with pytest.raises(CodeError, match="is not the file that was submitted"):
        recorded_layer(two, config, store.manifest)
    record = files.read_json(two.own_code_json)
    files.write_json(two.own_code_json, {**record, "sha256": files.sha256_of(copy)})
    with pytest.raises(CheckpointError, match=r"the checkpoint was trained with the layer\(\) of a file"):
        recorded_layer(two, config, store.manifest)


@pytest.fixture(scope="module")
def halfway(place):
    """The run of two tensor-parallel ranks with the user's blocks, after half of its steps."""
    run = make(place, "from", "t2 sp z1 fp32", EXAMPLES / "own_mlp.py", **{"batch.max_steps": HALF})
    place.train(run, 2)
    return run


@pytest.mark.soak
@pytest.mark.parametrize("words", ["z1 fp32", "t2 d2 z3 fp32", "p2 z1 fp32", "s2 z2 fp32"])
def test_a_checkpoint_is_loaded_into_another_layout(words, place, halfway):
    """Masters and moments of the user's blocks are the same after a checkpoint went into a layout and
    out.
    """
    target = make(place, "to", words, EXAMPLES / "own_mlp.py")
    shutil.copytree(halfway.model, target.model, dirs_exist_ok=True)
    assert_same(halfway.checkpoint(HALF), place.resave(target, layout(words)[0]))


@pytest.mark.soak
def test_a_run_starts_from_the_weights_of_such_a_run(place, alone):
    """init_from reads every parameter of the blocks, and the first loss belongs to these weights."""
    source = alone("own_mlp")
    more = {"init_from": str(source.path), "batch.max_steps": 1}
    run = make(place, "from-weights", "t2 z1 fp32", EXAMPLES / "own_mlp.py", **more)
    place.train(run, 2)
    assert launch.losses(run)[0] < min(launch.losses(source))


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
