"""All sources as numbered parts, whose records are cleaned one by one and whose drops are counted."""

from collections import Counter

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.config.sections.data_section import CleaningConfig
from nbtrain.config.sections.sources import JsonlSource, MockSource
from nbtrain.corpus.documents import cleaning
from nbtrain.corpus.documents.cleaning import Cleaner
from nbtrain.corpus.documents.corpus import (
    LOOSENED_BY,
    Corpus,
    SourceCounts,
    cleaned,
    empty_error,
    identities,
    length_of,
)
from nbtrain.corpus.documents.dedup import digest
from nbtrain.corpus.records import Example, Problem, SourcePart, Tally, Texts, TokenIds

NO_CLEANING = Cleaner(CleaningConfig())


def test_parts_are_numbered_over_all_sources(workspace):
    """Parts are numbered consecutively over all sources."""
    (workspace / "a.jsonl").write_text('{"text": "a"}\n')
    source = JsonlSource(kind="jsonl", path="a.jsonl")
    corpus = Corpus.open([source, MockSource(kind="mock"), source])
    assert [(task.number, task.source) for task in corpus.tasks()] == [(0, 0), (1, 1), (2, 2)]
    assert corpus.total_bytes() is None
    assert Corpus.open([source, source]).total_bytes() == 28


def test_what_stays_and_what_tells_it_from_others():
    """Empty records and invalid Unicode are dropped and counted; the hash of a record covers its bytes."""
    records = [
        "one",
        " \n",
        "",
        "\ud800",
        Texts("two", ("title",)),
        Example((("a", False), ("b", True))),
        TokenIds(np.array([1, 2], np.uint32)),
        TokenIds(np.array([], np.uint32)),
    ]
    tally = Tally()
    found = list(cleaned(iter(records), NO_CLEANING, tally))
    assert found == [records[index] for index in (0, 4, 5, 6)]
    assert [length_of(record) for record in found] == [3, 3, 2, 8]
    sizes, identity = identities(found)
    assert sizes == [3, 3, 3, 0]
    assert identity[:32] == digest(b"one") + digest(digest(b"two") + digest(b"title"))
    assert identity[32:48] == digest(digest(b"a\x1fb") + bytes([False, True]))
    assert identities(["one", "\u201etwo\u201c"]) == (
        [3, 9],
        digest(b"one") + digest("\u201etwo\u201c".encode()),
    )
    assert tally.dropped == {"empty": 3, "not_unicode": 1}


def test_what_is_learnt_tells_examples_apart():
    """Examples with the same chunks but different loss masks are different documents."""
    flags = [(False, True), (True, True), (False, True)]
    examples = [Example((("question", first), ("answer", second))) for first, second in flags]
    asked, both, again = (identities([record]) for record in cleaned(examples, NO_CLEANING, Tally()))
    assert asked == again != both


def test_what_is_learnt_tells_token_ids_apart():
    """Equal ids with different labels are different documents; a mask of all tokens equals no mask."""
    ids = np.array([1, 2, 3, 4], np.uint32)
    masks = [None, [True] * 4, [False, True, True, True], [True, False, False, False]]
    records = [TokenIds(ids, None if mask is None else np.array(mask)) for mask in masks]
    # The ids of this record have the same bytes as the ids and mask of the last record.
    records.append(TokenIds(np.array([1, 2, 3, 4, 1], np.uint32)))
    plain, named, *others = (identities([record])[1] for record in cleaned(records, NO_CLEANING, Tally()))
    assert plain == named == digest(ids.tobytes())
    assert len({plain, *others}) == 4


def test_cleaning_counts_its_reasons():
    """Drops are counted by rule, and a record that is kept keeps its extra keys."""
    tally = Tally()
    cleaner = Cleaner(CleaningConfig(min_bytes=4))
    records = ["long enough", "no", Texts("also long", ("x",))]
    assert list(cleaned(iter(records), cleaner, tally)) == [records[0], records[2]]
    assert tally.dropped == {"too_short": 1}


def test_lines_are_counted_over_the_parts_of_a_file(caplog):
    """A broken line in a later part is reported by its line in the file; the first three are logged."""
    counts = SourceCounts()
    for _ in range(5):
        tally = Tally(records=10, lines=10)
        tally.add_broken("a.jsonl", 4, "not JSON")
        counts.absorb(tally, "a.jsonl")
    assert counts.named == ["a.jsonl:4: not JSON", "a.jsonl:14: not JSON", "a.jsonl:24: not JSON"]
    assert caplog.records[0].getMessage() == "a.jsonl:4: not JSON; the record is skipped."
    assert (counts.records, counts.broken, counts.dropped) == (50, 5, {"broken_record": 5})


def test_a_broken_record_commands_no_terminal(caplog):
    """Control characters in a file's name or in a record never reach the terminal."""
    tally = Tally()
    tally.add_broken("a\x1b[2J.jsonl", 1, "no key 'text' among '\u202e'")
    SourceCounts().absorb(tally, None)
    assert caplog.messages == ["a\\x1b[2J.jsonl:1: no key 'text' among '\\u202e'; the record is skipped."]


def test_too_many_broken_records(workspace):
    """Too large a share of broken records is an error with the numbers; null removes the limit."""
    (workspace / "a.jsonl").write_text("")
    counts = SourceCounts(records=200, broken=3, named=["a.jsonl:1: not JSON"])
    reader = Corpus.open([JsonlSource(kind="jsonl", path="a.jsonl")]).readers[0]
    with pytest.raises(DataError) as caught:
        counts.check_broken(reader)
    assert str(caught.value) == (
        "data.sources[0]: 3 of 200 records (1.50%) cannot be read, more than max_broken_fraction = 1.00% "
        "allows. First: a.jsonl:1: not JSON; and 2 more. Fix the records, correct the source's key "
        "settings (such as text_key), or raise its max_broken_fraction."
    )
    free = Corpus.open([JsonlSource(kind="jsonl", path="a.jsonl", max_broken_fraction=None)]).readers[0]
    counts.check_broken(free)


@pytest.mark.parametrize(
    ("dropped", "first", "advice"),
    [
        (
            {"too_short": 5, "empty": 2},
            "",
            "(empty 2, too_short 5). The rule too_short drops most records: loosen data.cleaning.min_bytes, "
            "or use other sources.",
        ),
        (
            {"broken_record": 1, "empty": 2},
            "a.jsonl:1: not JSON",
            "(broken_record 1, empty 2). First: a.jsonl:1: not JSON. Fix the records, or correct the "
            "source's key settings (such as text_key).",
        ),
        (
            {"empty": 2},
            "",
            "(empty 2). Most records have no text. If the text is under another key, set text_key to that "
            "key; otherwise use other sources.",
        ),
        (
            {"redirect": 2},
            "",
            "(redirect 2). Most records are dropped for the reason redirect: use other sources.",
        ),
        ({}, "", "(nothing read). The sources contain no records: use other sources."),
    ],
)
def test_empty_corpus(dropped, first, advice):
    """If no document is left, the error gives the drops by rule and the settings to change."""
    error = empty_error("run.yaml:3: data.sources", Counter(dropped), first)
    assert str(error) == f"run.yaml:3: data.sources: the corpus is empty: no document is left {advice}"


def test_every_rule_of_cleaning_names_its_setting():
    """The settings that the error about an empty corpus suggests to change exist."""
    for reason in cleaning.REASONS:
        if reason != cleaning.EMPTY:
            assert LOOSENED_BY[reason].removeprefix("data.cleaning.") in CleaningConfig.model_fields


def test_a_tally_travels():
    """A tally can be converted to JSON and back without loss."""
    tally = Tally(3, 4, 1, [Problem("a", None, "bad")], Counter(x=2))
    assert Tally.from_dict(tally.to_dict()) == tally
    assert SourcePart("a").size_bytes == 0
