"""The sections `tokenizer` and `data` of a run YAML."""

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

# Languages that data.split_sentences accepts, listed here so that a check need not import sentencex, the
# library that splits sentences. It has its own rules for about thirty languages. For most others it uses the
# rules of a related language (its table of fallbacks, src/languages/fallbacks.rs), and English rules for the
# rest, even if the code does not name a language.
LANGUAGE_CODE = "^[a-z]{2,3}$"
# Two-letter codes of ISO 639-1.
ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el
en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu
ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na
nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so
sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
# Three-letter codes in sentencex's table of fallbacks.
WITH_FALLBACK = """
abs ace ady aeb aln alt ami anp arn arq ary arz ast atj avk awa azb ban bar bbc bcc bgn bjn bpy bqi btm bug
bxr cdo crh csb dsb dtp dty egl eml ext fit frc frp frr fur gag gan gcr glk gom gor gsw guc hak hif hrx hsb
hyw inh jam jut kaa kab kbd kbp khw kiu kjp koi krc krl ksh kum lad lbe lez lij liv lki lld lmo lrc ltg luz
lzh lzz mad mai mdf mhr min mnw mrj mwl myv mzn nah nan nap nds nia nrm olo pcd pdc pdt pfl pih pms pnt qug
rgn rmy rue rup ruq sah scn sco sdc sdh ses sgs shi shy skr sli smn srn stq sty szl szy tay tcy tet trv tyv
udm vec vep vls vmf vot vro wuu xal xmf zea zgh
"""
LANGUAGES = frozenset((ISO_639_1 + WITH_FALLBACK).split())
# config/rules/data.py also requires that an added token is visible text.
AddedToken = Annotated[str, Field(min_length=1, max_length=64)]


class TokenizerConfig(ConfigModel):
    """Byte-level BPE tokenizer in data/tokenizer/<name>/. It is imported from `path`, or trained if `path` is
    null and the tokenizer does not exist yet.
    """

    name: Annotated[Name, Binds("tokenizer_sha256")] = ""
    """Name of the tokenizer's folder under data/tokenizer/. The default is data.name. A run that extends
    another YAML and uses different text does not inherit the name: it trains its own tokenizer, unless it
    sets init_from.
    """
    vocab_size: Annotated[VocabularySize, Binds("vocab_size")]
    """Vocabulary size, including the end-of-document token. A trained tokenizer has at most this many
    entries; the model has exactly this many, before padding.
    """
    path: PathText | None = None
    """Tokenizer to import: a tokenizer.json file, or a folder with vocab.json and merges.txt. null trains a
    tokenizer.
    """
    added_tokens: Annotated[list[AddedToken], Field(max_length=10_000), WithoutEffect()] = []
    """Tokens to add to the tokenizer at `path`, e.g. the markers of a chat template. Wherever the characters
    of an added token occur in a text, they become one id. An entry that already exists, such as <|im_start|>,
    keeps its id.
    """
    eod_token: Word = "<|endoftext|>"
    """End-of-document token, which ends every document. The same characters inside a text are encoded as
    ordinary text.
    """
    trainer: Literal["tokenizers", "rustbpe"] = "tokenizers"
    """Library that trains the tokenizer. tokenizers is Hugging Face's library and is reproducible. rustbpe
    takes at most half the time and breaks ties differently.
    """
    train_bytes: PositiveBytes = 100_000_000
    """Size in bytes of the text sample on which the tokenizer is trained. A smaller corpus is used in
    full.
    """
    train_seed: WideSeed = 1234
    """Random seed that selects the text sample on which the tokenizer is trained."""
    max_unknown_fraction: Annotated[Fraction | None, WithoutEffect()] = 0.1
    """Maximum fraction of unknown tokens in a source. The text of unknown tokens is lost, so a larger
    fraction is an error. null sets no limit.
    """


class NearDedupConfig(ConfigModel):
    """Removal of near duplicates by MinHash over shingles (sequences of words). Among documents that share
    most of their shingles, the first one is kept.
    """

    enabled: bool = False
    """Whether near duplicates are dropped."""
    threshold: Fraction = 0.8
    """Estimated Jaccard similarity, from 0 to 1, at which two documents start to count as duplicates."""
    num_permutations: Annotated[int, Field(ge=1, le=10_000)] = 128
    """Number of hash functions in a MinHash signature."""
    shingle_words: PositiveSmallCount = 5
    """Number of words in a shingle."""
    seed: Seed = 42
    """Random seed of the hash functions."""


class CleaningConfig(ConfigModel):
    """Text repairs, and filters that drop documents, both applied before encoding. Dropped documents are
    counted by reason.
    """

    ftfy: bool = False
    """Whether the ftfy library repairs HTML entities and text that was decoded with the wrong encoding."""
    min_bytes: Bytes = 0
    """Minimum size of a document, in UTF-8 bytes. Shorter documents are dropped."""
    max_bytes: PositiveBytes | None = None
    """Maximum size of a document, in UTF-8 bytes. Longer documents are dropped. null sets no limit."""
    max_symbol_fraction: Fraction | None = None
    """Maximum fraction of symbols among the characters of a document. Characters other than letters, marks,
    digits, spaces and punctuation count as symbols. Documents above the limit are dropped. null sets no
    limit.
    """
    max_digit_fraction: Fraction | None = None
    """Maximum fraction of digits among the characters of a document. Documents above the limit are dropped.
    null sets no limit.
    """
    max_duplicate_line_fraction: Fraction | None = None
    """Maximum fraction of repeated lines in a document (Gopher, arXiv:2112.11446, table A1). Documents above
    the limit are dropped. null sets no limit.
    """
    max_top_word_fraction: Fraction | None = None
    """Maximum fraction that a single word may make up of all words of a document. Documents above the limit
    are dropped. null sets no limit.
    """
    max_word_chars: PositiveBytes | None = None
    """Maximum length of a word, in characters. Documents with a longer word, such as base64 data or minified
    code, are dropped. null sets no limit.
    """
    exact_dedup: bool = True
    """Whether to drop a document if an earlier document has exactly the same text."""
    near_dedup: NearDedupConfig = NearDedupConfig.model_construct()
    """Removal of near duplicates: documents that are almost the same as an earlier document."""


class BlendEntry(ConfigModel):
    """One dataset of a blend. Set either its name in the data directory, or the path of its .bin and .idx
    files without the extension.
    """

    name: Name | None = None
    """Name of a dataset in data/dataset/. null if `prefix` is set."""
    prefix: PathText | None = None
    """Path of a pair of .bin and .idx files without the extension, <folder>/<key>_document, relative to the
    workspace. null if `name` is set.
    """
    weight: PositiveRatio
    """Weight of this dataset in the blend, relative to the weights of the other datasets."""


class DataConfig(ConfigModel):
    """Dataset in data/dataset/<name>/, and how samples are built from it."""

    name: Annotated[Name, Binds("data_state.dataset_sha256")] = ""
    """Name of the dataset's folder under data/dataset/. The default is the run's name. A run that extends
    another YAML and uses different text does not inherit the name.
    """
    sources: list[Source] = []
    """Sources of the text, in order. Leave the list empty for a blend, or if the .bin and .idx files already
    exist.
    """
    blend: Annotated[list[BlendEntry], Binds()] = []
    """Datasets to mix by weight, instead of using a single dataset named data.name."""
    cleaning: CleaningConfig = CleaningConfig.model_construct()
    """Cleaning before encoding: text repairs, and filters that drop documents."""
    json_key: Annotated[Word, Binds()] = "text"
    """Prefix of the dataset's file names, <json_key>_document.bin and .idx, as in Megatron."""
    extra_json_keys: list[Word] = []
    """Additional keys of each record to encode, each into its own <key>_document.bin and .idx."""
    split_sentences: Annotated[str, Field(pattern=LANGUAGE_CODE)] | None = None
    """Code of the language, such as en, whose rules split documents into sentences. The sentences are stored
    as <json_key>_sentence. null does not split documents.
    """
    num_prepare_workers: Annotated[WorkerCount, WithoutEffect()] = 0
    """Maximum number of processes that extract and encode text. 0 means one per core. Small files (below 256
    MiB, or below 16 MiB if their text is extracted or cleaned, or encoded with the `tokenizers` library) are
    processed by a single process, which is faster. The result is the same for any number.
    """
    workers: Annotated[WorkersConfig, WithoutEffect()] = WorkersConfig.model_construct()
    """Workers that prepare the dataset: processes on this machine, or workers of a Dask scheduler."""
    split: Annotated[Word, Binds("data_state.split")] = "949,50,1"
    """Relative sizes of the training, validation and test splits, separated by commas."""
    split_rule: Annotated[Literal["megatron-deepspeed", "megatron-core"], Binds("data_state.split_rule")] = (
        "megatron-deepspeed"
    )
    """Rounding rules by which documents are assigned to splits, and samples to the datasets of a blend: the
    rules of Megatron-DeepSpeed or of megatron-core. For a quarter of all dataset sizes, their splits differ
    by one document.
    """
    seed: Annotated[Seed, Binds("data_state.seed")] = 1234
    """Random seed for shuffling documents and samples."""
    index_samples: Annotated[PositiveAmount | None, Binds("data_state.index_samples")] = None
    """Number of training samples for which the order is computed. null means as many as train_tokens needs at
    the first launch.
    """
    shuffle: Annotated[Literal["megatron", "per_epoch"], Binds("data_state.shuffle")] = "megatron"
    """Order of the samples. megatron shuffles all epochs together, as Megatron does. per_epoch shuffles each
    epoch separately: the samples differ from Megatron's, and training on more tokens never changes the order.
    """
    packing: Annotated[Literal["stream", "best_fit"] | None, Binds("data_state.packing")] = None
    """Method of building samples from documents. stream cuts samples from the concatenated documents.
    best_fit packs whole documents into samples, with separate positions and without attention between
    documents. null means best_fit if a source holds fine-tuning examples or token ids with a labels_key, and
    stream otherwise.
    """
    reset_position_ids: bool = False
    """With packing: stream, whether positions restart at 0 for each document in a sample."""
    inter_document_masking: bool = False
    """With packing: stream, whether tokens attend only to tokens of the same document."""
    eod_mask_loss: bool = False
    """Whether positions whose input is the end-of-document token are excluded from the loss."""
    num_workers: Annotated[WorkerCount, WithoutEffect()] = 0
    """Number of processes per rank that read samples ahead of time. 0 reads samples in the training
    process.
    """

    @property
    def resolved_packing(self) -> Literal["stream", "best_fit"]:
        """Packing method: the value of `packing` or, if that is null, the method that null stands for."""
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
        """Setting that keeps attention inside a document, such as "packing: best_fit".

        None if attention crosses document boundaries.
        """
        if self.resolved_packing == "best_fit":
            return "packing: best_fit"
        return "inter_document_masking: true" if self.inter_document_masking else None

    @property
    def isolates_documents(self) -> bool:
        """Whether attention stays inside a document."""
        return self.isolating_setting is not None
