"""The choice of vocabulary size, model size and training length for a text: bounds and formulas; every choice
is a valid run.
"""

import pytest

from nbtrain.base.errors import ConfigError, DataError
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.arithmetic.vocabulary import (
    VocabularyFit,
    bytes_per_token,
    largest_seen,
    rounded,
    suited_to,
)
from nbtrain.config.load import load
from nbtrain.planner.plan import plan
from nbtrain.planner.search.choices import MOST_EPOCHS, SMALL, Hardware, Text, choose, predicted_loss
from nbtrain.planner.time import rates

# For 1 MB of English books: docs/choosing.md.
BOOKS = (
    VocabularyFit(512, 2.119, 411, 494_764),
    VocabularyFit(1024, 2.662, 78, 393_898),
    VocabularyFit(2048, 3.104, 19, 337_809),
    VocabularyFit(4096, 3.497, 4, 299_844),
)
A100 = Hardware(64, 4, "A100-80GB", 4)


def books(num_bytes, documents=500):
    source = {"kind": "jsonl", "path": "books.jsonl"}
    return Text("books", num_bytes, documents, BOOKS, [source])


@pytest.fixture(autouse=True)
def two_quick_cores(monkeypatch, workspace):
    """Plan CPU runs with the rate of the two cores in the documentation."""
    monkeypatch.setattr(rates, "matmul_flops_per_core", lambda: 154e9)


TWO_CORES = Hardware(2)


def chosen(text, hardware=TWO_CORES, **options):
    choices = choose(text, hardware, **options)
    return choices, load(choices.extends, {"name": "mine", **choices.overrides})


def test_entries_are_seen_100_times():
    """The chosen vocabulary is the largest whose rarest entry still occurs 100 times. Counts are scaled from
    the sample to the text, and extrapolated as 1 / size^2.
    """
    assert largest_seen(BOOKS, 2.93e6) == rounded(1024 * (78 * 2.93e6 / 2.662 / 393_898 / 100) ** 0.5) == 1536
    assert largest_seen(BOOKS, 100 * 2.93e6) == pytest.approx(10 * 1536, abs=640)
    assert (largest_seen(BOOKS, 1e3), largest_seen(BOOKS, 1e15)) == (512, 65_408)


def test_vocabularies_that_suit_a_model():
    """The vocabulary that suits a model follows arXiv:2407.13623, with its reference point and exponent
    0.83.
    """
    assert suited_to(70e9, 8192) == 65_408  # 216,000, which is more than 16-bit ids can hold
    assert suited_to(302e6, 1024) == pytest.approx(216_000 * 8 * (302e6 / 70e9) ** 0.83, abs=64)


def test_bytes_of_a_token_between_and_beyond_the_measured_sizes():
    """Bytes per token are exact at measured vocabulary sizes, interpolated logarithmically between them, and
    level off beyond them.
    """
    for fit in BOOKS:
        assert bytes_per_token(BOOKS, fit.size) == pytest.approx(fit.bytes_per_token)
    assert bytes_per_token(BOOKS, 1448) == pytest.approx((2.662 + 3.104) / 2, abs=0.001)
    # GPT-2's 50,257 entries: 4.4 bytes per token of English.
    assert bytes_per_token(BOOKS, 50_257) == pytest.approx(4.5, abs=0.15)


def test_the_data_constrained_law():
    """The data-constrained scaling law has the values of arXiv:2305.16264: one pass equals the plain law, and
    4 passes are almost as good as new text.
    """
    plain = 1.87 + 521 / 1e9**0.353 + 1488 / 2e10**0.353
    assert predicted_loss(1e9, 2e10, 2e10) == pytest.approx(plain, rel=0.001)
    four, new, forty = (predicted_loss(1e9, 2e10, 2e10 / epochs) for epochs in (4, 1, 40))
    assert new < four < new + 0.05 < forty


def test_the_choice_for_books_on_two_cores():
    """For books on two cores, the choice equals the example in docs/choosing.md and finishes in the requested
    time.
    """
    for minutes in (4, 20):
        _, config = chosen(books(2.93e6), minutes=minutes)
        assert config.resources.cpus_per_node == 2
        assert plan(config).duration.seconds < 60 * minutes * 1.02
        assert config.train_tokens <= MOST_EPOCHS * books(2.93e6).train_tokens(config.tokenizer.vocab_size)
        assert not [one for one in plan(config).findings if one.level != "note"]
    longer = count_parameters(chosen(books(2.93e7), minutes=60)[1]).total
    assert longer > count_parameters(chosen(books(2.93e7), minutes=2)[1]).total


def test_an_earlier_run_of_the_base_changes_nothing(monkeypatch):
    """The choice is the same whether or not gpt-tiny was trained on this machine before."""
    monkeypatch.setattr(
        rates, "measured_rate", lambda config, setup: pytest.fail("a last job was looked for")
    )
    chosen(books(3_000_000))


@pytest.mark.parametrize("num_bytes", [3e5, 3e7, 3e9, 3e11])
@pytest.mark.parametrize("hardware", [Hardware(2), Hardware(64), A100, Hardware(8, 64, "H100", 8)])
def test_every_choice_is_a_run(num_bytes, hardware):
    """For any text and device, the chosen run passes every rule, uses all devices, and fits in memory."""
    _, config = chosen(books(num_bytes, 5000), hardware)
    assert config.world_size == max(hardware.gpus, 1)
    assert plan(config).memory.fits
    assert config.tokenizer.vocab_size <= largest_seen(BOOKS, num_bytes)
    assert config.batch.train_amount[0] == "tokens"


@pytest.mark.parametrize("size", ["125M", "1.3B", "13B", "3.7B", "1B", "20M"])
def test_a_size_that_is_named(size):
    """A requested size selects a preset or the nearest small model, for the requested GPUs."""
    _, config = chosen(books(1e11, 100_000), Hardware(64, 16, "A100-80GB", 8), size=size)
    wanted = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
    assert 0.6 < count_parameters(config).total / wanted < 1.7
    assert config.world_size == 16 and plan(config).memory.fits


def test_a_size_too_large_for_the_text():
    """A requested size that is too large for the text is used, with a note that names a suitable size."""
    choices, _ = chosen(books(3e7), A100, size="125M")
    (note,) = choices.notes
    assert "tokens per parameter; 20 are usual" in note and "This text is enough for" in note


def test_what_is_refused():
    """Text that is too short, too few documents, and options that would have no effect are rejected."""
    with pytest.raises(DataError, match=r"too short to train a model on\. It has about [\d,]+ tokens"):
        choose(books(20e3), Hardware(2))
    with pytest.raises(DataError, match="too few documents"):
        choose(books(3e6, 9), Hardware(2))
    for options, words in (
        ({"size": "125M"}, "--gpus 4 --gpu-type"),
        ({"size": "large"}, "must be a parameter count"),
        ({"minutes": 0}, "must be more than 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            choose(books(3e6), Hardware(2), **options)
    with pytest.raises(ConfigError, match=r"minutes = 30 cannot be combined with size = 125M"):
        choose(books(3e12), A100, size="125M", minutes=30)
    # The search of the message is on the GPUs that were named, not on the GPUs of the preset.
    with pytest.raises(
        ConfigError, match="run `nbtrain search 175B --gpus 4 --gpu-type A100-80GB --gpus-per-node 4`"
    ):
        choose(books(3e12), A100, size="175B")
    # A shell reads the name that nvidia-smi has as one word.
    with pytest.raises(ConfigError, match="--gpus 4 --gpu-type 'NVIDIA L4' --gpus-per-node 2`"):
        choose(books(3e12), Hardware(2, 4, "NVIDIA L4", 2), size="175B")
    with pytest.raises(ConfigError, match=r"not in the device table\. Nearest: A100"):
        choose(books(3e6), Hardware(2, 4, "A100-90GB"))


def test_one_minute_is_no_minutes():
    choices, _ = chosen(books(2.93e6), minutes=1)
    assert choices.reasons["model"].endswith("the lowest predicted loss in 1 minute")
    assert choices.reasons["batch"].endswith("as many as fit into 1 minute")


def test_small_models_are_in_order():
    """The list of small models is sorted by number of parameters, so that the nearest one to a size can be
    found.
    """
    sizes = [12 * layers * width**2 for layers, width in SMALL]
    assert sizes == sorted(sizes)
