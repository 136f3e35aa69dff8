"""A dataset made for other inputs: which key differs and where it is set, which file changed and how."""

import os

import pytest

from nbtrain.base.errors import DataError
from nbtrain.config.load import load
from nbtrain.dataset.prepare.prepare import prepare

RUN = """\
name: small
model: {num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 16}
tokenizer: {name: small, vocab_size: 300}
data:
  name: small
  sources:
    - {kind: text, path: texts}
  cleaning:
    min_bytes: 0
  split: 1,0,0
batch: {micro_batch_size: 2, global_batch_size: 4, train_tokens: 1920}
lr_schedule: {lr: 1.0e-3}
evaluation: {eval_iters: 0}
"""
END = (
    "Runs may refer to it: give data.name another value, or make it again with `nbtrain prepare RUN.yaml "
    "--force`."
)


@pytest.fixture
def folder(workspace):
    """run.yaml over a folder of two texts, prepared through the step encode."""
    (workspace / "texts").mkdir()
    write(workspace / "texts" / "a.txt", "one text" * 40)
    write(workspace / "texts" / "b.txt", "second")
    (workspace / "run.yaml").write_text(RUN)
    prepare(load("run.yaml"), through="encode")
    return workspace / "texts"


def write(path, text, time=1):
    path.write_text(text)
    os.utime(path, ns=(time, time))


def refuses(message, *overrides):
    with pytest.raises(DataError) as caught:
        prepare(load("run.yaml", overrides), through="encode")
    assert str(caught.value) == f"data/dataset/small: {message}. {END}"


def test_the_place_of_the_key_that_differs(folder, workspace):
    """The line or the override that sets the changed key, even if another override sets the sources."""
    same = "data.sources=[{kind: text, path: texts}]"
    (workspace / "run.yaml").write_text(RUN.replace("min_bytes: 0", "min_bytes: 5"))
    refuses("made with other settings: data.cleaning.min_bytes = 0 there, 5 in run.yaml:9", same)
    refuses(
        "made with other settings: data.cleaning.min_bytes = 0 there, 7 in override "
        "data.cleaning.min_bytes=7; data.sources[0].path = 'texts' there, 'texts/a.txt' in override "
        "data.sources.0.path=texts/a.txt",
        "data.cleaning.min_bytes=7",
        "data.sources.0.path=texts/a.txt",
    )
    (workspace / "run.yaml").write_text(
        RUN.replace("  cleaning", "    - {kind: text, path: more}\n  cleaning")
    )
    (workspace / "more").mkdir()
    write(workspace / "more" / "c.txt", "third")
    refuses("made with other settings: data.sources = 1 entry there, 2 entries in run.yaml:6")


def test_files_that_are_new_gone_and_changed(folder):
    """Changed files are named before files that were only written again, then how many more there are."""
    where = "run.yaml:6: data.sources[0]"
    write(folder / "c.txt", "third")
    refuses(f"the sources have changed since it was made: {where}: c.txt is new")
    write(folder / "a.txt", "one text" * 40, 2)
    (folder / "b.txt").unlink()
    refuses(
        f"the sources have changed since it was made: {where}: b.txt is gone; {where}: c.txt is new; "
        f"{where}: a.txt was written again (320 bytes then and now)"
    )
    write(folder / "a.txt", "one", 3)
    write(folder / "d.txt", "fourth")
    refuses(
        f"the sources have changed since it was made: {where}: a.txt has changed (320 bytes then, 3 now); "
        f"{where}: b.txt is gone; {where}: c.txt is new; and 1 more"
    )
