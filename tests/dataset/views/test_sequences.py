"""Display of loss masks: documents with marked tokens, and training sequences with padding."""

import json

import numpy as np
import pytest

from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.samples.build import build_datasets
from nbtrain.dataset.views import marked
from nbtrain.dataset.views.browser import Browser, Document
from nbtrain.dataset.views.card import data_card
from nbtrain.dataset.views.inspect import inspect
from nbtrain.dataset.views.sequences import LOSS, PADDING, READ, TrainingSequence, training_sequences
from tests.dataset.dataset_maker import make_dataset, make_tokenizer

TALK = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "wrong", "weight": 0},
    {"role": "user", "content": "no"},
    {"role": "assistant", "content": "right"},
]


@pytest.fixture
def tuned(workspace, make_config):
    """Prepare a run with two conversations, of which the first answer is outside the
    loss; return it and its report.
    """
    make_tokenizer("small", ["one wrong no right by the model"] * 20)
    records = [{"messages": TALK, "id": number, "url": "u"} for number in range(2)]
    records[1]["messages"] = [{**TALK[0], "content": "two"}, *TALK[1:]]
    (workspace / "talk.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    sources = [{"kind": "chat", "name": "talk", "path": "talk.jsonl"}]
    config = make_config(
        data={"sources": sources, "packing": "best_fit", "split": "1,0,0"}, model={"seq_length": 256}
    )
    return config, prepare(config)


def test_prepare_reports_the_loss_and_the_keys(tuned):
    """prepare reports the share of tokens in the loss, marked examples, and unread keys."""
    config, report = tuned
    counts = report.manifest.counts
    browser = Browser(config)
    in_loss = sum(int(np.count_nonzero(chunk)) for chunk in browser.mask.chunks())
    assert counts["loss_tokens"] == report.manifest.sources[0]["loss_tokens"] == in_loss > 0
    assert report.manifest.sources[0]["unread_keys"] == {"id": 2, "url": 2}
    text = str(report)
    assert f"tokens in the loss: {in_loss:,} ({in_loss / counts['tokens']:.1%})" in text
    assert "talk    id, url (2)" in text
    assert text.count("  | wrong\n") == 2 and text.count("  | [[right\n  | <EOD>]]") == 2
    assert "&lt;EOD&gt;" in report._repr_html_() and marked.LEGEND_HTML in report._repr_html_()
    assert "\x1b[32mright\x1b[0m\n" in report.as_report().text(colors=True)
    assert prepare(config).examples == report.examples
    card = data_card(config)
    assert card.learnt_tokens == in_loss and "talk    id, url (2)" in str(card)


def test_a_document_keeps_its_marks(tuned):
    """A document keeps its marks through JSON; a truncated document shows no end-of-document token."""
    config, _ = tuned
    browser = Browser(config)
    document = browser.document(0)
    assert Document.from_dict(document.to_dict()).to_text() == document.to_text()
    assert document.end_in_loss is True and document.title.endswith(f", {document.loss_tokens} in the loss)")
    cut = browser.document(0, 10)
    assert cut.end_in_loss is None and cut.loss_tokens == document.loss_tokens
    assert document.to_text(most_chars=12).endswith(" ...")


def test_packed_sequences(tuned):
    """A packed sequence shows documents, labels and padding; its strip has a cell for each position."""
    config, _ = tuned
    browser = Browser(config)
    sequence, *_ = training_sequences(config, browser)
    sample = build_datasets(config).train.sample(0)
    kinds = np.array(sequence.kinds)
    padding = int(sample.cu_seqlens[sample.cu_seqlens < 256].max())
    assert (kinds[padding:] == PADDING).all() and len(sequence.begins) == 2 and padding not in sequence.begins
    assert np.array_equal(kinds[:padding] == LOSS, sample.loss_mask[:padding] == 1)
    whole = [document.marked for document in (browser.document(0), browser.document(1))]
    shown = [marked.text_of(part.pieces) for part in sequence.parts]
    assert sorted(shown) == sorted(map(marked.text_of, whole))
    assert [part.last + 1 for part in sequence.parts] == [sequence.begins[1], padding]
    assert sequence.title.endswith(f"{(kinds == LOSS).sum()} in the loss, {256 - padding} padding")
    assert TrainingSequence.from_dict(sequence.to_dict()) == sequence
    lines = str(inspect(config)).splitlines()
    strip = lines[lines.index(sequence.title) + 1]
    assert strip.count("|") == 2 and strip.endswith("...") and len(strip) == marked.STRIP_CELLS
    assert sequence.title in inspect(config)._repr_html_() and "<svg" in data_card(config)._repr_html_()


def test_a_stream(workspace, make_config, texts):
    """In a stream, every document ends at its end-of-document token, and every token is in the loss."""
    config = make_config(data={"split": "1,0,0"}, model={"seq_length": 64})
    make_dataset(config, texts)
    sequence, second = training_sequences(config, Browser(config))
    assert sequence.kinds == [LOSS] * 64 and sequence.begins[0] == 0
    sample = build_datasets(config).train.sample(0)
    ends = np.flatnonzero(sample.tokens == 0)
    assert sequence.begins[1:] == [int(end) + 1 for end in ends if end < 63]
    text = "".join(text for part in sequence.parts for text, _ in part.pieces)
    assert text.count(marked.END_OF_DOCUMENT) == len(ends) or sample.labels[-1] == 0
    assert second.position == 1


def test_the_strip():
    """A cell that covers several positions shows the most frequent kind, and whether all
    or only some are in the loss.
    """
    kinds = np.array([READ] * 160 + [LOSS] * 160 + [READ] * 70 + [LOSS] + [READ] * 9 + [PADDING] * 80)
    strip = marked.strip_text(kinds, [0, 160])
    assert len(strip) == marked.STRIP_CELLS and strip[0] == "|" and strip[-1] == "."
    assert strip.count("|") == 2 and strip.count("+") == 1 and set(strip) == set("|-#+.")
    assert marked.strip_text(np.array([LOSS, READ]), [0]) == "|-"
    assert marked.strip_svg(kinds, [0, 160]).count("<rect") == 6 + 1 + 2


def test_what_could_move_a_terminal_is_shown_as_text():
    """Escape sequences in a document are shown as text; only nbtrain's own colours take effect."""
    pieces = [("a\x1b[31mb\r\n", "read"), ("c", "loss")]
    assert marked.text_of(pieces) == "a\\x1b[31mb\n[[c]]"
    assert marked.text_of(pieces, colour=True) == "\x1b[90ma\\x1b[31mb\x1b[0m\n\x1b[32mc\x1b[0m"
