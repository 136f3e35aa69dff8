"""Sizes of the largest Wikipedia editions, from which a plan estimates epochs before the download.

The table has the twenty editions with the most text in the dumps of 1 June 2023: number of articles, bytes of
the dump (pages-articles.xml.bz2), and bytes of text without markup. The source of every row is
tensorflow/datasets at 01934cd6, docs/catalog/wikipedia.md, configurations 20230601.<language> ("Examples",
"Download size", "Dataset size"). Wikipedia editions grow by a few percent per year, and nbtrain's extraction
may keep more or less of a page than that dataset.

The number of tokens is the bytes of text divided by the bytes per token. The assumed range of bytes per token
applies to vocabularies of at least 32,000 entries that were trained on the language. English has 4.4 bytes
per token with GPT-2's vocabulary; characters of other scripts have two or three bytes in UTF-8. A smaller
vocabulary, or an imported one for a language other than English, may have tokens as short as a byte, which
widens the range. Any other edition has less text than the last row, and is assumed to have at least a
megabyte.
"""

from dataclasses import dataclass

from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.devices import GIB
from nbtrain.config.arithmetic.splits import split_weights
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.sources import WikiSource

DATE = "2023-06-01"
SOURCE = "tensorflow/datasets, docs/catalog/wikipedia.md"
MIB = 2**20
# Assumed bytes per token: (with a vocabulary that suits the text badly, with one that suits it well).
LATIN, TWO_BYTES, HAN_AND_KANA = (3.5, 4.8), (5.0, 8.5), (3.5, 5.0)
ENGLISH = (4.0, 4.8)
SMALLEST_BYTES = 1e6
LEAST_VOCABULARY = 32_000
# Bytes of the shortest token of a byte-level vocabulary.
ONE_BYTE = 1.0


@dataclass(frozen=True, slots=True)
class Wikipedia:
    """Size of one Wikipedia edition on DATE."""

    articles: int
    """Number of articles."""
    dump_bytes: float
    """Bytes of pages-articles.xml.bz2."""
    text_bytes: float
    """Bytes of the articles without markup."""
    bytes_per_token: tuple[float, float] = LATIN
    """Assumed range of bytes per token."""


WIKIPEDIAS = {
    "en": Wikipedia(6_672_479, 20.53 * GIB, 19.88 * GIB, ENGLISH),
    "ru": Wikipedia(3_171_747, 4.87 * GIB, 9.52 * GIB, TWO_BYTES),
    "de": Wikipedia(3_703_022, 6.50 * GIB, 9.00 * GIB),
    "fr": Wikipedia(2_527_241, 5.64 * GIB, 7.44 * GIB),
    "ja": Wikipedia(1_714_906, 3.74 * GIB, 6.44 * GIB, HAN_AND_KANA),
    "es": Wikipedia(3_267_500, 4.05 * GIB, 5.67 * GIB),
    "uk": Wikipedia(1_943_992, 2.04 * GIB, 4.54 * GIB, TWO_BYTES),
    "it": Wikipedia(2_226_602, 3.49 * GIB, 4.48 * GIB),
    "ceb": Wikipedia(6_124_071, 2.04 * GIB, 4.10 * GIB),
    "ar": Wikipedia(2_237_839, 1.52 * GIB, 2.93 * GIB, TWO_BYTES),
    "pl": Wikipedia(1_959_303, 2.28 * GIB, 2.75 * GIB),
    "pt": Wikipedia(1_582_349, 2.08 * GIB, 2.57 * GIB),
    "zh": Wikipedia(1_935_042, 2.62 * GIB, 2.52 * GIB, HAN_AND_KANA),
    "nl": Wikipedia(2_651_793, 1.73 * GIB, 2.45 * GIB),
    "sv": Wikipedia(4_314_124, 1.47 * GIB, 2.11 * GIB),
    "fa": Wikipedia(2_786_413, 1.09 * GIB, 1.89 * GIB, TWO_BYTES),
    "sr": Wikipedia(3_183_435, 956.10 * MIB, 1.85 * GIB, TWO_BYTES),
    "ca": Wikipedia(851_793, 1.11 * GIB, 1.81 * GIB),
    "he": Wikipedia(527_620, 864.64 * MIB, 1.80 * GIB, TWO_BYTES),
    "vi": Wikipedia(1_521_735, 941.06 * MIB, 1.49 * GIB),
}
LARGEST_OTHER_BYTES = min(wikipedia.text_bytes for wikipedia in WIKIPEDIAS.values())


@dataclass(frozen=True, slots=True)
class TextEstimate:
    """Estimated number of tokens in the training split of Wikipedia editions that are not prepared yet."""

    least_tokens: float
    most_tokens: float
    basis: str
    """Facts and assumptions about the text, with their source."""

    def epochs(self, train_tokens: int) -> tuple[float, float]:
        """Return the lowest and the highest estimate of the number of passes over the training split."""
        return train_tokens / self.most_tokens, train_tokens / self.least_tokens


def estimate_text(config: RunConfig) -> TextEstimate | None:
    """Estimate the training tokens of a run that downloads all of its text from Wikipedia.

    Returns None for other sources, and for dumps on disk.
    """
    sources = config.data.sources
    if not sources or config.data.blend:
        return None
    least = most = 0.0
    words = []
    for source in sources:
        if not isinstance(source, WikiSource) or source.path is not None or source.namespaces != [0]:
            return None
        low, high, basis = _tokens(source, _suits(config, source))
        least, most = least + low, most + high
        words.append(basis)
    weights = split_weights(config.data.split)
    share = weights[0] / sum(weights)
    if not share:
        return None
    return TextEstimate(share * least, share * most, "; ".join(words))


def _suits(config: RunConfig, source: WikiSource) -> bool:
    """Return whether the assumed bytes per token apply to the run's vocabulary (see the top of this file)."""
    tokenizer = config.tokenizer
    return tokenizer.vocab_size >= LEAST_VOCABULARY and (tokenizer.path is None or source.language == "en")


def _tokens(source: WikiSource, suits: bool) -> tuple[float, float, str]:
    """Return (lowest number of tokens, highest number, basis of both) for a Wikipedia edition.

    `suits` says whether the vocabulary has the assumed bytes per token.
    """
    known = WIKIPEDIAS.get(source.language)
    if known is None:
        low, high = SMALLEST_BYTES / TWO_BYTES[1], LARGEST_OTHER_BYTES / (LATIN[0] if suits else ONE_BYTE)
        return low, high, (
            f"the {source.language} Wikipedia is not among the {len(WIKIPEDIAS)} largest, so less than "
            f"{LARGEST_OTHER_BYTES / 1e9:.1f} GB of text is assumed"
        )  # fmt: skip
    share = min(source.max_articles / known.articles, 1.0) if source.max_articles else 1.0
    text = share * known.text_bytes
    few, many = known.bytes_per_token
    few = few if suits else ONE_BYTE
    articles = f"{round(share * known.articles):,} articles"
    return text / many, text / few, (
        f"the {source.language} Wikipedia of {DATE}, {articles} with {text / 1e9:.1f} GB of text "
        f"(dump: {known.dump_bytes / 1e9:.1f} GB; {SOURCE}), assuming {few:g} to {many:g} bytes per token"
    )  # fmt: skip


def epochs_words(estimate: TextEstimate, train_tokens: int) -> str:
    """Return the estimated epochs as text, with the basis of the estimate."""
    least, most = estimate.epochs(train_tokens)
    tokens = f"{amounts.count(round(estimate.least_tokens))} to {amounts.count(round(estimate.most_tokens))}"
    size = f"{tokens} training tokens, estimated because the data are not prepared yet"
    return f"{least:,.3g} to {most:,.3g}, with {size}: {estimate.basis}"
