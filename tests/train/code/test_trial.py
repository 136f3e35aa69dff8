"""The trial of a user's file: one step of a two-layer model, and the messages about what it finds."""

import json
import os
import subprocess
import sys

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.errors import CodeError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import bundled
from nbtrain.checkpoint.own_layer import OwnLayer
from nbtrain.checkpoint.user_code import UserCode, checked, needs_trial
from nbtrain.config.code_file import HOOKS, OMITTED, PASSED
from nbtrain.config.load import load
from nbtrain.jobs.code_start import code_text
from nbtrain.model.custom_loss import LossBatch
from nbtrain.model.gpt import build_model
from nbtrain.parallel.groups import ALONE
from nbtrain.parallel.vocabulary import Vocabulary
from nbtrain.train.code.own_loss import OwnLoss
from nbtrain.train.code.trial import try_code
from tests.train import launch

HEAD = "import torch\n\n\ndef loss(logits, labels, mask, batch):\n"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(launch.TINY)
    return load(path)


def code_of(tmp_path, text):
    path = tmp_path / "my_code.py"
    path.write_text(text)
    return UserCode(checked(path))


def of_loss(*lines):
    return HEAD + "".join(f"    {line}\n" for line in lines)


def of_dataset(sample):
    return (
        "class _D:\n    def __len__(self): return 1\n"
        f"    def samples(self, index): return {sample}\ndef dataset(split): return _D()\n"
    )


def of_layer(made="pass", run="return x", built="return _Block(config, parts)"):
    """Return a file whose block makes something after its norm and attention, and does something with x."""
    return (
        "import torch\nclass _Block(torch.nn.Module):\n    def __init__(self, config, parts):\n"
        "        super().__init__()\n        self.norm, self.attention = parts.norm(), parts.attention()\n"
        f"        {made}\n    def forward(self, x, **context):\n"
        f"        x = x + self.attention(self.norm(x), **context)\n        {run}\n"
        f"def layer(config, index, parts):\n    {built}\n"
    )


LOSSES = "losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction='none')"
WRONG = {
    "a mistake in a line": (
        of_loss(LOSSES, "return (losses * masc).sum(), mask.sum(), {}"),
        "my_code.py:6, loss: NameError: name 'masc' is not defined",
    ),
    "an error at its import": (
        "import torch\n1 / 0\ndef scalars(step): return {}\n",
        "my_code.py:2, import: Zero",
    ),
    "a file next to it": (
        "import my_other_code\ndef scalars(step): return {}\n",
        "my_code.py:1, import: ModuleNotFoundError: No module named 'my_other_code'. Only the user's file",
    ),
    "a mean instead of a tuple": (
        of_loss("return logits.mean()"),
        "my_code.py:4: loss returned a tensor of shape []",
    ),
    "losses of tokens": (
        of_loss(LOSSES, "return losses, mask.sum(), {}"),
        r"my_code.py:4: loss returned a tensor of shape [2, 32], float32 as the sum of losses, which must be",
    ),
    "another count": (
        of_loss(LOSSES, "return (losses * mask).sum(), losses.numel(), {}"),
        "my_code.py:4: loss counted 64 tokens, but the masks have 62",
    ),
    "a count that is not finite": (
        of_loss(LOSSES, "return (losses * mask).sum(), float('nan'), {}"),
        "my_code.py:4: loss counted nan tokens, but the masks have 62",
    ),
    "no gradient": (
        of_loss(LOSSES, "return (losses.detach() * mask).sum(), mask.sum(), {}"),
        "my_code.py:4: the sum of losses that loss returned does not depend on the logits",
    ),
    "a gradient of zero": (
        of_loss("return (0 * logits).sum(), mask.sum(), {}"),
        "my_code.py:4: the gradient of the loss has norm 0",
    ),
    "a loss that is not finite": (
        of_loss(LOSSES, "return losses.sum() / (mask - 1).sum().clamp(min=0), mask.sum(), {}"),
        "my_code.py:4: the loss is inf for a model with its initial weights",
    ),
    "a scalar of many numbers": (
        of_loss(LOSSES, "return (losses * mask).sum(), mask.sum(), {'z': losses}"),
        "my_code.py:4: the scalar z is a tensor of shape [2, 32], float32. It must be one number",
    ),
    "a name that a file cannot have": (
        of_loss(LOSSES, "return (losses * mask).sum(), mask.sum(), {'a/b': 1}"),
        "my_code.py:4: loss returned a scalar named 'a/b'",
    ),
    "text as a scalar": ("def scalars(step):\n    return {'x': 'y'}\n", "my_code.py:1: the scalar x is 'y'"),
    "an exit": ("def scalars(step):\n    raise SystemExit(3)\n", "my_code.py:2, scalars: SystemExit: 3"),
    "a dataset without a length": (
        "class _D:\n    def samples(self, index): return {}\ndef dataset(split):\n    return _D()\n",
        "my_code.py:3: dataset('train') returned an object of type _D, which has no __len__()",
    ),
    "no samples": (
        of_dataset("{}").replace("return 1", "return 0"),
        "my_code.py:4: dataset('train') is empty. Return at least one sample.",
    ),
    "a length that is no number": (
        of_dataset("{'tokens': [1] * 33}").replace("return 1", "return 3 / 2"),
        "my_code.py:4: len(dataset('train')) fails: 'float' object cannot be interpreted as an integer",
    ),
    "samples without an index": (
        of_dataset("{'tokens': [1] * 33}").replace("samples(self, index)", "samples(self)"),
        "my_code.py:4: samples() of dataset('train') cannot be called with an index: too many positional",
    ),
    "a sample that is too short": (
        of_dataset("{'tokens': [1] * 32}"),
        "my_code.py:4: tokens of samples(0) of dataset('train') has shape [32], int64. It must hold 33 "
        "integer ids (model.seq_length + 1",
    ),
    "ids that the model does not have": (
        of_dataset("{'tokens': [500] * 33}"),
        "range from 500 to 500. Ids must be from 0 to 499 (tokenizer.vocab_size - 1)",
    ),
    "a key that is not read": (
        of_dataset("{'tokens': [1] * 33, 'weight': 2}"),
        "samples(0) of dataset('train') returned a dict with the keys tokens, weight. Return a dict with",
    ),
    "a mask of weights": (
        of_dataset("{'tokens': [1] * 33, 'loss_mask': [0.5] * 32}"),
        "loss_mask of samples(0) of dataset('train') has shape [32], float64. It must hold 32 values",
    ),
    "an error in samples": (
        of_dataset("{'tokens': missing}"),
        "my_code.py:3, dataset: NameError: name 'missing'",
    ),
    "no training samples": ("def dataset(split):\n    return None\n", "dataset('train') returned None"),
    "on_step": ("def on_step(step, model):\n    model.nothing()\n", "my_code.py:2, on_step: AttributeError"),
    "a class instead of a block": (
        of_layer(built="return _Block"),
        "my_code.py:10: layer returned type",
    ),
    "a block of another shape": (
        of_layer(run="return x[..., :16]"),
        "my_code.py:10: block 0 received a tensor of shape [2, 8, 32], float32 and returned a tensor of "
        "shape [2, 8, 16], float32. A block must return the residual stream",
    ),
    "a parameter without its shards": (
        of_layer("self.up = torch.nn.Linear(8, 8)"),
        "my_code.py:10: the parameter up.weight of block 0 was not created by `parts`, so its initial "
        "values and its shards on tensor-parallel ranks are unknown. Create it with parts.parameter(name, "
        "*sh",
    ),
    "a width that ranks cannot divide": (
        of_layer("self.up = parts.column_linear('up', config.hidden_size, 85)"),
        "my_code.py:6, layer: ValueError: layers.0.up: 85 outputs in units of 1 cannot be sharded across 2",
    ),
    "a width that is not the model's": (
        of_layer("self.up = parts.column_linear('up', 64, 64)", "return x + self.up(x).sum()"),
        "my_code.py:9, layer: RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x32 and 64x64). The "
        "trial model has hidden_size 32",
    ),
    "initial values that change every time": (
        of_layer(
            "self.gain = parts.parameter('gain', 1, value=torch.rand(()).item())", "return x * self.gain"
        ),
        "my_code.py:10: the initial values of layers.0.gain were changed after `parts` created it, or differ "
        "each time",
    ),
    "initial values that ranks would not change alike": (
        of_layer(
            "self.gain = parts.parameter('gain', 1); self.gain.data.zero_()", "return x * (1 + self.gain)"
        ),
        "Let `parts` set the initial values: std=...",
    ),
    "a name that is used twice": (
        of_layer("self.one, self.two = (parts.parameter('one', 4) for _ in range(2))"),
        "my_code.py:6, layer: ValueError: the name 'one' is used twice",
    ),
    "a state that no checkpoint has": (
        of_layer("self.register_buffer('mean', torch.zeros(1))"),
        "my_code.py:10: the buffer mean of block 0 would not be saved",
    ),
    "a parameter that is not used": (
        of_layer("self.gain = parts.parameter('gain', 4)"),
        "my_code.py:10: no gradient reaches layers.0.gain",
    ),
    "attention without its context": (
        of_layer().replace("(x), **context)", "(x))"),
        "my_code.py:10: a block returns different results if a sequence is processed in two chunks, as in "
        "generation. Pass the whole context to self.attention(x, **context)",
    ),
    "attention without documents": (
        of_layer().replace("(x), **context)", "(x), cache=context.get('cache'))"),
        "a block returns different results if another document is before it in the sequence",
    ),
    "a forward that takes no context": (
        of_layer().replace("(self, x, **context)", "(self, x)"),
        "my_code.py:10: forward() of _Block cannot be called with x and the arguments of attention",
    ),
    "parameters in a list": (
        of_layer("self.gains = [parts.parameter('gain', 4)]", "return x * self.gains[0].sum()"),
        "my_code.py:10: `parts` created a parameter of shape [4] that is not in block 0: it would be "
        "neither trained nor saved. Assign it to an attribute of the module",
    ),
    "an operation in place": (
        of_layer(run="x += self.norm(x); return x"),
        "my_code.py:10: the backward pass failed: one of the variables needed for gradient computation has "
        "been modified by an inplace operation. An in-place operation, such as x += y",
    ),
    "a state that changes": (
        of_layer(
            "self.register_buffer('mean', torch.zeros(()), persistent=False)", "self.mean += 1; return x"
        ),
        "my_code.py:10: forward() changes layers.0.mean, which is not a parameter",
    ),
    "sequences that see each other": (
        of_layer(run="return x + x.mean(0)"),
        "my_code.py:10: a block returns different results if other sequences are in the micro batch",
    ),
    "random numbers without training": (
        of_layer(run="return x + torch.rand_like(x)"),
        "my_code.py:10: a block returns different results at each call in evaluation mode",
    ),
    "random numbers that are not torch's": (
        of_layer(run="import random; return x + random.random() * self.training"),
        "my_code.py:10: forward() draws random numbers from `random` or NumPy",
    ),
    "a mistake in a block": (
        of_layer(run="return x + missing"),
        "my_code.py:9, layer: NameError: name 'missing' is not defined",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_reported_with_its_line_and_the_fix(case, config, tmp_path):
    text, words = WRONG[case]
    if "ranks" in case:
        config = load(config, {"parallel.tensor_parallel_size": 2})
    with pytest.raises(CodeError) as raised:
        try_code(config, code_of(tmp_path, text))
    assert words in str(raised.value)


@pytest.mark.parametrize("name", ["start", "loss_per_domain", "z_loss", "own_dataset", "own_mlp"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_examples_pass(name, dtype, config, tmp_path):
    text = bundled(f"examples/megatron-gpt/code/{name}.py").read_text()
    if name == "start":
        # Its dataset() reads the dataset of gpt-tiny.
        text = code_text([function for function in HOOKS if function != "dataset"], config)
    state = torch.get_rng_state()
    try_code(load(config, {"precision.dtype": dtype}), code_of(tmp_path, text))
    assert torch.equal(torch.get_rng_state(), state), "a rank tries the file before it draws its weights"


def test_the_parameters_of_a_block_are_counted(config, tmp_path):
    """The counts equal the model's, on one rank and on two, in the size of the run."""
    code = code_of(tmp_path, bundled("examples/megatron-gpt/code/own_mlp.py").read_text())
    block = try_code(load(config, {"parallel.tensor_parallel_size": 2}), code)
    held = dict(build_model(config, layer_function=OwnLayer(code)).layers[0].named_parameters())
    assert block.on_rank(1) == sum(value.numel() for value in held.values()) and block.tensors == len(held)
    assert block.matrices_on_rank(1) == sum(value.numel() for value in held.values() if value.dim() == 2)
    whole = [value for name, value in held.items() if name.endswith(("norm.weight", "norm.bias", "scale"))]
    whole += [value for name, value in held.items() if name.endswith("dense.bias")]
    assert block.whole == sum(value.numel() for value in whole)
    assert block.on_rank(2) == block.whole + (block.on_rank(1) - block.whole) // 2


def test_a_trial_calls_as_training_does(config, tmp_path):
    """on_step() may change the weights, because gradients are off; the file may have the name of a package
    that is imported later.
    """
    path = tmp_path / "deepspeed.py"
    path.write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass _Bounds:\n    largest: float = 1.0\n"
        "def on_step(step, model):\n    for weight in model.parameters():\n"
        "        weight.clamp_(-_Bounds().largest, _Bounds().largest)\n"
    )
    before = sys.modules.get("deepspeed")
    try_code(config, UserCode(checked(path)))
    assert sys.modules.get("deepspeed") is before


@pytest.mark.parametrize("tried, needed", [(PASSED, False), (OMITTED, False), ("", True)])
def test_ranks_try_a_file_that_nobody_has_tried_or_omitted(tried, needed, tmp_path):
    run = RunDir(tmp_path)
    files.write_json(run.own_code_json, {"tried": tried})
    assert needs_trial(run) is needed


def test_scalars_are_sums_and_means_over_the_calls(config, tmp_path):
    """A pair is a mean of all calls, not the mean of their means; a number is a sum."""
    text = of_loss(
        "return logits.sum(), mask.sum(), {'mean': (mask.sum() * 2, mask.sum()), 'sum': 1.5, 'none': (0, 0)}"
    )
    own = OwnLoss(code_of(tmp_path, text))

    class Engine:
        has_loss = True
        deepspeed = type("Device", (), {"device": torch.device("cpu")})
        over_data_axis = staticmethod(lambda values: values)

    for count in (3, 5):
        logits = torch.ones(1, 8, 4, requires_grad=True)
        ids, mask = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8)
        mask[:, :count] = 1
        own(logits, LossBatch(ids, ids, mask), Vocabulary(ALONE, 4, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbtrain.train.code.own_loss.gather_objects", lambda value: [value])
        assert own.end_step(Engine(), torch.tensor(8.0)) == {"mean": 2.0, "sum": 3.0}
        with pytest.raises(CodeError, match="counted 8 tokens, but the masks have 9"):
            own.end_step(Engine(), torch.tensor(9.0))


@pytest.mark.slow
def test_the_process_that_tries_a_file_answers_with_its_error(config, tmp_path):
    (tmp_path / "my_code.py").write_text(
        "import os\nimport torch\ndef scalars(step):\n    print(torch.distributed.get_rank(), end='')\n"
        "    return {'folder': os.getcwd()}\n"
    )
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    request = {"path": str(tmp_path / "my_code.py"), "config": config.model_dump(mode="json")}
    done = subprocess.run(
        [sys.executable, "-m", "nbtrain.train.code"],
        input=json.dumps(request),
        env={**os.environ, "NBTRAIN_WORKSPACE": str(workspace)},
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["error"] == "CodeError"
    assert f"my_code.py:3: the scalar folder is {str(workspace)[:50]!r}" in answer["message"]


def test_the_trial_passes_the_names_of_a_blend_that_the_run_has(tmp_path):
    """Entries with one stem in two folders are two datasets, named as in training."""
    path = tmp_path / "blended.yaml"
    path.write_text(launch.TINY)
    blend = [{"prefix": f"{folder}/text_document", "weight": 1.0} for folder in ("a", "b", "c/a")]
    config = load(path, {"data.blend": blend}, check=False)
    text = of_loss(
        "assert batch.dataset_names == ('a', 'b', 'a#2'), batch.dataset_names",
        "assert batch.dataset_ids.max() == 2",
        "return (logits.float().mean(-1) * mask).sum(), mask.sum(), {}",
    )
    try_code(config, code_of(tmp_path, text))
