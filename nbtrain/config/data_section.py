"""The tokenizer and data sections of a run."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.fields import (
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
from nbtrain.config.sources import Source

# The languages of data.split_sentences, known without importing sentencex, which cuts. It has rules of its own for some
# thirty languages, those of a related one for most others (its table of fallbacks, src/languages/fallbacks.rs), and in the
# end English: a code that is no language would be cut by English rules without a word.
LANGUAGE_CODE = "^[a-z]{2,3}$"
# ISO 639-1, the codes of two letters.
ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv
ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne
ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st
su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
# Codes of three letters in sentencex's table of fallbacks.
WITH_FALLBACK = """
abs ace ady aeb aln alt ami anp arn arq ary arz ast atj avk awa azb ban bar bbc bcc bgn bjn bpy bqi btm bug bxr cdo
crh csb dsb dtp dty egl eml ext fit frc frp frr fur gag gan gcr glk gom gor gsw guc hak hif hrx hsb hyw inh jam jut
kaa kab kbd kbp khw kiu kjp koi krc krl ksh kum lad lbe lez lij liv lki lld lmo lrc ltg luz lzh lzz mad mai mdf mhr
min mnw mrj mwl myv mzn nah nan nap nds nia nrm olo pcd pdc pdt pfl pih pms pnt qug rgn rmy rue rup ruq sah scn sco
sdc sdh ses sgs shi shy skr sli smn srn stq sty szl szy tay tcy tet trv tyv udm vec vep vls vmf vot vro wuu xal xmf
zea zgh
"""
LANGUAGES = frozenset((ISO_639_1 + WITH_FALLBACK).split())


class TokenizerConfig(ConfigModel):
    """A byte-level BPE in data/tokenizer/<name>/: brought, or trained on the corpus when it is not there."""

    name: Name
    """Folder under data/tokenizer/."""
    vocab_size: VocabularySize
    """Entries, the end-of-document token included; trained to at most this many, and the model is built for this many."""
    path: PathText | None = None
    """Take this tokenizer: a tokenizer.json, or a folder with vocab.json and merges.txt; null trains one."""
    eod_token: Word = "<|endoftext|>"
    """The entry that ends every document; its letters in a text are text."""
    trainer: Literal["tokenizers", "rustbpe"] = "tokenizers"
    """Who trains: tokenizers is upstream's and reproducible; rustbpe takes half of its time or less and breaks ties otherwise."""
    train_bytes: PositiveBytes = 100_000_000
    """Size of the sample of text that it is trained on; all of a smaller corpus."""
    train_seed: WideSeed = 1234
    """Seed of the sample of text that it is trained on."""
    max_unknown_fraction: Fraction | None = 0.1
    """Stop with an error when more than this share of a source's tokens is the unknown token: its text is lost; null sets no limit."""


class NearDedupConfig(ConfigModel):
    """MinHash over shingles of words: of documents that share most of them the first stays."""

    enabled: bool = False
    """Drop near duplicates."""
    threshold: Fraction = 0.8
    """Estimated Jaccard similarity from which two documents count as one."""
    num_permutations: Annotated[int, Field(ge=1, le=10_000)] = 128
    """Hash functions of a signature."""
    shingle_words: PositiveSmallCount = 5
    """Words in a shingle."""
    seed: Seed = 42
    """Seed of the hash functions."""


class CleaningConfig(ConfigModel):
    """What is mended and what is dropped before encoding; every drop is counted by its reason."""

    ftfy: bool = False
    """Mend text that was decoded with the wrong code page, and HTML entities, with ftfy."""
    min_bytes: Bytes = 0
    """Drop shorter documents (UTF-8 bytes)."""
    max_bytes: PositiveBytes | None = None
    """Drop longer documents (UTF-8 bytes); null sets no limit."""
    max_symbol_fraction: Fraction | None = None
    """Drop documents with a larger share of characters that are no letter, mark, digit, space or punctuation."""
    max_digit_fraction: Fraction | None = None
    """Drop documents with a larger share of digits among their characters."""
    max_duplicate_line_fraction: Fraction | None = None
    """Drop documents in which a larger share of the lines repeats an earlier one (Gopher, arXiv:2112.11446, table A1)."""
    max_top_word_fraction: Fraction | None = None
    """Drop documents in which one word is a larger share of all words."""
    max_word_chars: PositiveBytes | None = None
    """Drop documents that hold a longer word: base64, minified code."""
    exact_dedup: bool = True
    """Drop documents whose text has come before."""
    near_dedup: NearDedupConfig = NearDedupConfig()
    """Drop documents that are nearly an earlier one."""


class BlendEntry(ConfigModel):
    """One dataset of a blend: by name in the data home, or by the prefix of its .bin/.idx."""

    name: Name | None = None
    """A dataset in data/dataset/."""
    prefix: PathText | None = None
    """<folder>/<key>_document of any .bin/.idx, relative to the workspace."""
    weight: PositiveRatio
    """Its share, relative to the others."""


class DataConfig(ConfigModel):
    """The dataset in data/dataset/<name>/ and how samples are cut from it."""

    name: Name
    """Folder under data/dataset/."""
    sources: list[Source] = []
    """Where the text comes from, in order; empty when the .bin/.idx are there already, or for a blend."""
    blend: list[BlendEntry] = []
    """Datasets to mix by weight in place of one of this name."""
    cleaning: CleaningConfig = CleaningConfig()
    """What is mended and dropped before encoding."""
    json_key: Word = "text"
    """The files are <json_key>_document.bin and .idx, as in Megatron."""
    extra_json_keys: list[Word] = []
    """Further keys of the same records, each encoded to its own <key>_document.bin and .idx."""
    split_sentences: Annotated[str, Field(pattern=LANGUAGE_CODE)] | None = None
    """Language whose rules cut documents into sentences, one sequence each, in <json_key>_sentence.bin and .idx; null does not cut."""
    num_prepare_workers: WorkerCount = 0
    """Processes that extract and encode; 0 means one per core. The result is the same for any number."""
    split: Word = "949,50,1"
    """Relative sizes of training, validation and test."""
    split_rule: Literal["megatron-deepspeed", "megatron-core"] = "megatron-deepspeed"
    """How a split is rounded to documents and a blend to samples; the two differ by a document for a quarter of all sizes."""
    seed: Seed = 1234
    """Seed of the document and sample order."""
    index_samples: PositiveAmount | None = None
    """Training samples the order is built for; null means as many as train_tokens needs, fixed at first launch."""
    shuffle: Literal["megatron", "per_epoch"] = "megatron"
    """megatron shuffles all epochs as one, as upstream; per_epoch shuffles each by itself: other samples, and more tokens never change the order."""
    packing: Literal["stream", "best_fit"] = "stream"
    """stream cuts samples from the concatenated documents; best_fit packs whole documents, apart from each other in attention and positions."""
    reset_position_ids: bool = False
    """stream: positions start again at each document of a sample."""
    inter_document_masking: bool = False
    """stream: attention stays inside a document."""
    eod_mask_loss: bool = False
    """No loss where the input token is the end-of-document token."""
    num_workers: WorkerCount = 0
    """Processes that read ahead for each rank; 0 reads in the training process."""
