"""The tokenizer and data sections of a run."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.sections.fields import (
    Bytes,
    ConfigModel,
    Fraction,
    Name,
    PathText,
    PositiveAmount,
    PositiveBytes,
    PositiveRatio,
    PositiveSmallCount,
    Seed,
    VocabularySize,
    WideSeed,
    Word,
    WorkerCount,
)
from nbtrain.config.sections.markers import Binds, WithoutEffect
from nbtrain.config.sections.sources import FineTuningSourceModel, Source, TokensSource
from nbtrain.config.sections.workers_section import WorkersConfig

# The languages of data.split_sentences, known without importing sentencex, which cuts. It has rules of its
# own for some thirty languages. For most others it takes the rules of a related language (its table of
# fallbacks, src/languages/fallbacks.rs), and English rules for the rest, even if the code is not a language.
LANGUAGE_CODE = "^[a-z]{2,3}$"
# ISO 639-1, the codes of two letters.
ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el
en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu
ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na
nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so
sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
# Codes of three letters in sentencex's table of fallbacks.
WITH_FALLBACK = """
abs ace ady aeb aln alt ami anp arn arq ary arz ast atj avk awa azb ban bar bbc bcc bgn bjn bpy bqi btm bug
bxr cdo crh csb dsb dtp dty egl eml ext fit frc frp frr fur gag gan gcr glk gom gor gsw guc hak hif hrx hsb
hyw inh jam jut kaa kab kbd kbp khw kiu kjp koi krc krl ksh kum lad lbe lez lij liv lki lld lmo lrc ltg luz
lzh lzz mad mai mdf mhr min mnw mrj mwl myv mzn nah nan nap nds nia nrm olo pcd pdc pdt pfl pih pms pnt qug
rgn rmy rue rup ruq sah scn sco sdc sdh ses sgs shi shy skr sli smn srn stq sty szl szy tay tcy tet trv tyv
udm vec vep vls vmf vot vro wuu xal xmf zea zgh
"""
LANGUAGES = frozenset((ISO_639_1 + WITH_FALLBACK).split())
# Visible text: config/rules/data.py.
AddedToken = Annotated[str, Field(min_length=1, max_length=64)]


class TokenizerConfig(ConfigModel):
    """A byte-level BPE tokenizer in data/tokenizer/<name>/: imported from `path`, or trained if it does not
    exist.
    """

    name: Annotated[Name, Binds("tokenizer_sha256")] = ""
    """Folder under data/tokenizer/. The default is data.name. A run that extends another one and has other
    text does not inherit this name: it trains its own tokenizer, unless it has init_from.
    """
    vocab_size: Annotated[VocabularySize, Binds("vocab_size")]
    """Number of entries, including the end-of-document token. A trained tokenizer has at most this many
    entries; the model has exactly this many.
    """
    path: PathText | None = None
    """Tokenizer to import: a tokenizer.json, or a folder with vocab.json and merges.txt; null trains one."""
    added_tokens: Annotated[list[AddedToken], Field(max_length=10_000), WithoutEffect()] = []
    """Tokens to add to the tokenizer at `path`, e.g. the markers of a chat template: wherever the characters
    of such a token occur in a text, they become one id. An entry that exists already, such as <|im_start|>,
    keeps its id.
    """
    eod_token: Word = "<|endoftext|>"
    """Entry that ends every document. The same characters inside a text are ordinary text."""
    trainer: Literal["tokenizers", "rustbpe"] = "tokenizers"
    """Library that trains the tokenizer. tokenizers is Hugging Face's and reproducible; rustbpe takes at most
    half the time and breaks ties differently.
    """
    train_bytes: PositiveBytes = 100_000_000
    """Bytes of the text sample on which the tokenizer is trained; a smaller corpus is used in full."""
    train_seed: WideSeed = 1234
    """Seed of the text sample on which the tokenizer is trained."""
    max_unknown_fraction: Annotated[Fraction | None, WithoutEffect()] = 0.1
    """Largest share of unknown tokens in a source. Text of unknown tokens is lost, so a larger share is an
    error. null sets no limit.
    """


class NearDedupConfig(ConfigModel):
    """MinHash over shingles (sequences of words); among documents that share most shingles, the first is
    kept."""

    enabled: bool = False
    """Whether near duplicates are dropped."""
    threshold: Fraction = 0.8
    """Estimated Jaccard similarity from which two documents count as duplicates."""
    num_permutations: Annotated[int, Field(ge=1, le=10_000)] = 128
    """Number of hash functions in a signature."""
    shingle_words: PositiveSmallCount = 5
    """Number of words in a shingle."""
    seed: Seed = 42
    """Seed of the hash functions."""


class CleaningConfig(ConfigModel):
    """Repairs of text, and filters that drop documents before encoding. Dropped documents are counted by
    reason.
    """

    ftfy: bool = False
    """Whether ftfy repairs HTML entities and text that was decoded with the wrong code page."""
    min_bytes: Bytes = 0
    """Smallest size of a document, in UTF-8 bytes; shorter ones are dropped."""
    max_bytes: PositiveBytes | None = None
    """Largest size of a document, in UTF-8 bytes; longer ones are dropped. null sets no limit."""
    max_symbol_fraction: Fraction | None = None
    """Largest share of symbols (neither letter, mark, digit, space nor punctuation) in a document; null sets
    no limit."""
    max_digit_fraction: Fraction | None = None
    """Largest share of digits among the characters of a document; null sets no limit."""
    max_duplicate_line_fraction: Fraction | None = None
    """Largest share of repeated lines in a document (Gopher, arXiv:2112.11446, table A1); null sets no
    limit."""
    max_top_word_fraction: Fraction | None = None
    """Largest share of one word among all words of a document; null sets no limit."""
    max_word_chars: PositiveBytes | None = None
    """Largest length of a word, in characters. Documents with a longer word, such as base64 or minified code,
    are dropped. null sets no limit.
    """
    exact_dedup: bool = True
    """Whether a document is dropped if an earlier document has the same text."""
    near_dedup: NearDedupConfig = NearDedupConfig.model_construct()
    """Near duplicates: documents that are nearly the same as an earlier one, which are dropped."""


class BlendEntry(ConfigModel):
    """One dataset of a blend, given by its name in the data directory or by the path of its .bin and .idx
    without the ending."""

    name: Name | None = None
    """Name of a dataset in data/dataset/."""
    prefix: PathText | None = None
    """Path of a pair of .bin and .idx files without its ending, <folder>/<key>_document, relative to the
    workspace.
    """
    weight: PositiveRatio
    """Share of this dataset in the blend, relative to the other weights."""


class DataConfig(ConfigModel):
    """The dataset in data/dataset/<name>/, and how samples are built from it."""

    name: Annotated[Name, Binds("data_state.dataset_sha256")] = ""
    """Folder under data/dataset/. The default is the run's name. A run that extends another one and has other
    text does not inherit this name.
    """
    sources: list[Source] = []
    """Sources of the text, in order; empty for a blend, or if the .bin and .idx exist already."""
    blend: Annotated[list[BlendEntry], Binds()] = []
    """Datasets that are mixed by weight, instead of one dataset named data.name."""
    cleaning: CleaningConfig = CleaningConfig.model_construct()
    """Cleaning before encoding: repairs of documents, and filters that drop documents."""
    json_key: Annotated[Word, Binds()] = "text"
    """First part of the names of the dataset's files, <json_key>_document.bin and .idx, as in Megatron."""
    extra_json_keys: list[Word] = []
    """Other keys of each record to encode too, each into its own <key>_document.bin and .idx."""
    split_sentences: Annotated[str, Field(pattern=LANGUAGE_CODE)] | None = None
    """Language whose rules split documents into sentences, stored in <json_key>_sentence; null does not split
    them.
    """
    num_prepare_workers: Annotated[WorkerCount, WithoutEffect()] = 0
    """Largest number of processes that extract and encode; 0 means one per core. Small files (below 256 MiB,
    or 16 MiB if their text is extracted or cleaned, or encoded by the engine `tokenizers`) are processed by
    one, which is faster. The result is the same for any number.
    """
    workers: Annotated[WorkersConfig, WithoutEffect()] = WorkersConfig.model_construct()
    """Place where the prepare processes run: this machine, or the workers of a Dask scheduler."""
    split: Annotated[Word, Binds("data_state.split")] = "949,50,1"
    """Relative sizes of the training, validation and test splits."""
    split_rule: Annotated[Literal["megatron-deepspeed", "megatron-core"], Binds("data_state.split_rule")] = (
        "megatron-deepspeed"
    )
    """Program whose rounding is used to assign documents to splits and samples to a blend. For a quarter of
    all dataset sizes the two programs differ by one document.
    """
    seed: Annotated[Seed, Binds("data_state.seed")] = 1234
    """Seed that shuffles documents and samples."""
    index_samples: Annotated[PositiveAmount | None, Binds("data_state.index_samples")] = None
    """Number of training samples for which the order is computed; null means as many as train_tokens needs at
    the first launch.
    """
    shuffle: Annotated[Literal["megatron", "per_epoch"], Binds("data_state.shuffle")] = "megatron"
    """Order of samples. megatron shuffles all epochs together, as Megatron does. per_epoch shuffles
    each epoch separately: the samples differ from Megatron's, and training on more tokens never changes the
    order."""
    packing: Annotated[Literal["stream", "best_fit"] | None, Binds("data_state.packing")] = None
    """Way in which documents become samples. stream cuts samples from the concatenated documents. best_fit
    packs whole documents, without attention between them and with separate positions. null means best_fit if
    a source holds fine-tuning examples or token ids with a labels_key, else stream."""
    reset_position_ids: bool = False
    """With packing: stream, whether positions start at 0 again for each document of a sample."""
    inter_document_masking: bool = False
    """With packing: stream, whether attention stays inside a document."""
    eod_mask_loss: bool = False
    """Whether positions whose input is the end-of-document token are excluded from the loss."""
    num_workers: Annotated[WorkerCount, WithoutEffect()] = 0
    """Number of processes per rank that read samples ahead; 0 reads them in the training process."""

    @property
    def resolved_packing(self) -> Literal["stream", "best_fit"]:
        """`packing`, with null replaced by the value that it stands for."""
        if self.packing is not None:
            return self.packing
        is_tuning = any(
            isinstance(source, FineTuningSourceModel)
            or (isinstance(source, TokensSource) and source.labels_key is not None)
            for source in self.sources
        )
        return "best_fit" if is_tuning else "stream"

    @property
    def isolating_setting(self) -> str | None:
        """The setting that keeps attention inside a document, as "packing: best_fit"; None if attention
        crosses documents.
        """
        if self.resolved_packing == "best_fit":
            return "packing: best_fit"
        return "inter_document_masking: true" if self.inter_document_masking else None

    @property
    def isolates_documents(self) -> bool:
        """Whether attention stays inside a document."""
        return self.isolating_setting is not None
