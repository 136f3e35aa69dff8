"""Token ids with and without labels, in lines, arrays and columns."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbtrain.config.sections.sources import TokensSource
from nbtrain.corpus.sources.base import open_source

RECORDS = [
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
    {"input_ids": [70_000], "labels": [70_000]},
    {"input_ids": [], "labels": []},
    {"input_ids": [0, 2**31 - 1], "labels": [-100, 2**31 - 1]},
]


def tokens(path, **settings):
    return TokensSource(kind="tokens", path=path, **settings)


def write(path, records, row_group_size=2):
    if path.name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=row_group_size)
    elif path.name.endswith(".json"):
        path.write_text(json.dumps(records, indent=1))
    else:
        content = "".join(json.dumps(record) + "\n" for record in records).encode()
        path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)


formats = pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.parquet"])


@formats
@pytest.mark.parametrize("size", [1, 10**6])
def test_ids_and_labels(workspace, read, part_bytes, name, size):
    """Ids are uint32; a token is in the loss unless its label is -100; empty documents are dropped."""
    part_bytes(size)
    write(workspace / name, RECORDS)
    found = read(tokens(name, labels_key="labels"))
    assert [record.ids.tolist() for record in found.records] == [[1, 2, 3], [70_000], [0, 2**31 - 1]]
    assert [record.learnt.tolist() for record in found.records] == [
        [False, True, True],
        [True],
        [False, True],
    ]
    assert {record.ids.dtype for record in found.records} == {np.dtype(np.uint32)}
    assert {record.learnt.dtype for record in found.records} == {np.dtype(bool)}
    assert found.counts == {"records": 4, "broken": 0}
    assert found.dropped == {"empty": 1}


@formats
def test_without_labels(workspace, read, name):
    """Without labels, every token is in the loss and no mask is stored."""
    write(workspace / name, [{"ids": record["input_ids"], "x": "y"} for record in RECORDS])
    found = read(tokens(name, input_ids_key="ids"))
    assert [(record.ids.tolist(), record.learnt) for record in found.records] == [
        ([1, 2, 3], None),
        ([70_000], None),
        ([0, 2**31 - 1], None),
    ]


BROKEN = {
    '{"labels": [1]}': "no key 'input_ids' among 'labels'",
    '{"input_ids": 5, "labels": [5]}': "'input_ids' is not a list but a number",
    '{"input_ids": "1 2", "labels": [5]}': "'input_ids' is not a list but text",
    '{"input_ids": [1.0], "labels": [1]}': "'input_ids' is not a list of whole numbers",
    '{"input_ids": [1, null], "labels": [1, 2]}': "'input_ids' is not a list of whole numbers",
    '{"input_ids": [true], "labels": [1]}': "'input_ids' is not a list of whole numbers",
    '{"input_ids": ["1"], "labels": [1]}': "'input_ids' is not a list of whole numbers",
    '{"input_ids": [[1], [1, 2]], "labels": [1]}': "'input_ids' is not a list of whole numbers",
    '{"input_ids": [[1, 2]], "labels": [1]}': "'input_ids' is not a list of whole numbers",
    '{"input_ids": [1, -5], "labels": [1, 2]}': "'input_ids' contains -5; token ids must be from 0 to "
    "2,147,483,647",
    '{"input_ids": [2147483648], "labels": [1]}': "'input_ids' contains 2147483648; token ids must be from 0 "
    "to 2,147,483,647",
    '{"input_ids": [18446744073709551615], "labels": [1]}': (
        "'input_ids' contains 18446744073709551615; token ids must be from 0 to 2,147,483,647"
    ),
    '{"input_ids": [1, 2]}': "no key 'labels' among 'input_ids'",
    '{"input_ids": [1, 2], "labels": [1]}': "'labels' has 1 entries, 'input_ids' has 2",
    '{"input_ids": [1, 2], "labels": [2, -100]}': (
        "labels[0] = 2 is neither -100 nor input_ids[0] = 1; labels must be aligned with the tokens, not "
        "shifted by one"
    ),
    '{"input_ids": [1, 2], "labels": [-100, -100]}': "every entry of 'labels' is -100: no token is in the "
    "loss",
    "[1]": "not an object but a list; each line must hold one object, not an array",
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_numbers_for_tokens_under_other_names(workspace, read, name):
    """A key under another name that may be a loss mask (a list as long as the ids,
    or a position) is refused.
    """
    ids = {"input_ids": [1, 2, 3]}
    for key, value in (
        ("targets", [-100, 2, 3]),
        ("target_ids", [2, 3, -100]),
        ("keep_flags", [False, True, True]),
        ("source_len", 2),
        ("answerStart", 1),
    ):
        write(workspace / name, [{**ids, key: value}])
        (problem,) = read(tokens(name, max_broken_fraction=None)).problems
        assert f"{key!r} holds a value that kind: tokens does not read" in problem
        assert "loss_mask" in problem or "prompt_length" in problem
        found = read(tokens(name, ignored_keys=[key]))
        assert [record.learnt for record in found.records] == [None] and found.unread_keys == {key: 1}
    others = {"token_type_ids": [0, 0, 1], "pieces": ["a", "b", "c"], "num_tokens": 3, "chunks": [1, 2]}
    write(workspace / name, [{**ids, **others}])
    found = read(tokens(name))
    assert len(found.records) == 1 and found.unread_keys == dict.fromkeys(others, 1)


@pytest.mark.parametrize("line", list(BROKEN))
def test_one_broken_record(workspace, read, line):
    """A broken record is counted and reported, and the other records are read."""
    (workspace / "a.jsonl").write_text(f'{{"input_ids": [1], "labels": [1]}}\n{line}\n')
    found = read(tokens("a.jsonl", labels_key="labels"))
    assert [record.ids.tolist() for record in found.records] == [[1]]
    assert found.problems == [f"a.jsonl:2: {BROKEN[line]}"]
    assert found.counts == {"records": 2, "broken": 1}


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 2)], ids=str
)
@pytest.mark.parametrize("size", [1, 10**6])
def test_every_type_of_list(workspace, read, part_bytes, kind, size):
    """Lists of every integer type are read; null lists and nulls inside lists break
    the row, given by number.
    """
    part_bytes(size)
    column = pa.array([[1, 2], [3, 4], None, [5, None], [6, 7]], kind)
    pq.write_table(pa.table({"input_ids": column}), workspace / "a.parquet", row_group_size=2)
    found = read(tokens("a.parquet"))
    assert [record.ids.tolist() for record in found.records] == [[1, 2], [3, 4], [6, 7]]
    assert found.problems == [
        "a.parquet:3: 'input_ids' is not a list but null",
        "a.parquet:4: 'input_ids' is not a list of whole numbers",
    ]


def test_missing_columns(workspace, refusal):
    """The error about a missing column names the setting that selects the column."""
    write(workspace / "a.parquet", [{"input_ids": [1]}])
    assert refusal(tokens("a.parquet", labels_key="labels")) == (
        "run.yaml:7: data.sources[0]: a.parquet: no column 'labels'; the columns are 'input_ids'; set "
        "labels_key to an existing column."
    )


def learnt_of(found):
    return [None if record.learnt is None else record.learnt.tolist() for record in found.records]


IDS = {"input_ids": [5, 6, 7, 8]}
MASKED = [
    ({"labels": [-100, -100, 7, 8]}, [False, False, True, True]),
    ({"loss_mask": [0, 0, 1, 1]}, [False, False, True, True]),
    (
        {"completion_mask": [0, 1, 1, 1], "assistant_masks": [False, True, True, False]},
        [False, True, True, False],
    ),
    ({"prompt_length": 3}, [False, False, False, True]),
    ({"labels": [-100, 6, 7, 8], "prompt_length": 2}, [False, False, True, True]),
    ({"attention_mask": [1, 1, 1, 1]}, None),
    ({"labels": None, "position_ids": [0, 1, 2, 3], "token_type_ids": [0, 0, 0, 0]}, None),
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_masks_beside_the_ids(workspace, read, name):
    """Labels, masks and lengths next to the ids are used; a token is in the loss if all of them agree."""
    for more, expected in MASKED:
        write(workspace / name, [{**IDS, **more}])
        found = read(tokens(name))
        assert (found.problems, learnt_of(found)) == ([], [expected]), more
        assert open_source(tokens(name)).bears_mask() == (expected is not None)
    write(workspace / name, [{**IDS, "labels": [5, 6, 7, -100]}])
    found = read(tokens(name, ignored_keys=["labels"]))
    assert learnt_of(found) == [None] and found.unread_keys == {"labels": 1}


def test_padding_is_dropped_and_packed_records_are_cut(workspace, read):
    """Padding at either end is dropped, and packed records are split by their lengths or positions."""
    padded = {
        "input_ids": [0, 0, 5, 6, 0],
        "attention_mask": [0, 0, 1, 1, 0],
        "labels": [-100, -100, -100, 6, -100],
    }
    packed = {"input_ids": [5, 6, 7, 8, 9], "loss_mask": [0, 1, 0, 0, 1]}
    lengths = [{"seq_lens": [2, 3]}, {"cu_seqlens": [0, 2, 5]}, {"position_ids": [0, 1, 0, 1, 2]}]
    write(workspace / "a.jsonl", [padded, *({**packed, **more} for more in lengths)])
    found = read(tokens("a.jsonl"))
    both = [[5, 6], [7, 8, 9]]
    assert [record.ids.tolist() for record in found.records] == [[5, 6], *both * 3]
    assert learnt_of(found) == [[False, True], *[[False, True], [False, False, True]] * 3]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"attention_mask": [1, 0, 1, 1]}, "'attention_mask' is 0 between tokens"),
        ({"attention_mask": [1, 1, 2, 2]}, "attention_mask[2] = 2 is neither 0 nor 1"),
        ({"attention_mask": [[1], [1]]}, "'attention_mask' is not a list of 0 and 1"),
        ({"loss_mask": [0, 1]}, "'loss_mask' has 2 entries, but the number of ids is 4"),
        ({"loss_mask": [0, 0.5, 1, 1]}, "loss_mask[1] = 0.5 is neither 0 nor 1"),
        ({"loss_mask": [0, 0, 0, 0]}, "'loss_mask': no token is in the loss"),
        ({"prompt_length": 5}, "'prompt_length' = 5 must be a number of tokens from 0 to 4"),
        ({"prompt_length": 4}, "'prompt_length': no token is in the loss"),
        ({"seq_lens": [2, 3]}, "the lengths in 'seq_lens' must not be negative and must add up to"),
        ({"position_ids": [0, 2, 3, 4]}, "'position_ids' does not count up from 0 in each document"),
        (
            {"special_tokens_mask": [1, 0, 0, 1]},
            "'special_tokens_mask' holds a value that kind: tokens does not read",
        ),
        ({"loss_weights": [0.1, 1, 1, 1]}, "'loss_weights' holds a value"),
        ({"my_mask": [0, 1, 1, 1]}, "'my_mask' holds a value"),
        ({"weight": 0.5}, "'weight' holds a value"),
    ],
)
def test_masks_that_are_not_read(workspace, read, more, what):
    """Invalid or unknown masks are refused by name, and the records after them are read."""
    write(workspace / "a.jsonl", [{**IDS, **more}, IDS])
    found = read(tokens("a.jsonl"))
    assert len(found.records) == 1 and found.problems[0].startswith(f"a.jsonl:1: {what}")
