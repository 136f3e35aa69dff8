"""Entries of data.sources: where text comes from, with one model for each kind."""

import re
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field

from nbtrain.config.sections.fields import (
    MOST_TEXT_CHARS,
    ConfigModel,
    Fraction,
    Name,
    PathText,
    PositiveAmount,
    PositiveBytes,
    PositiveRatio,
    SmallCount,
    Text,
    WideSeed,
    Word,
)


class SourceModel(ConfigModel):
    """Fields that all sources have."""

    has_extra_keys: ClassVar[bool] = False
    """Whether its records have keys by name, so that data.extra_json_keys can be found in them."""

    name: Name | None = None
    """Name of the source in reports, in the data card and for its own loss; null means its kind."""
    licence: Text | None = None
    """Licence of the text, for the manifest; null uses the licence that the source itself states."""
    attribution: Text | None = None
    """Whom to credit for the text, for the manifest; null uses what the source itself states."""


class FileSourceModel(SourceModel):
    """Fields of a source that is read from a file, or from a folder that is searched."""

    path: PathText
    """File or folder, relative to the workspace."""
    max_broken_fraction: Fraction | None = 0.01
    """Largest share of records that cannot be read; a larger share is an error. null sets no limit."""


class FolderSourceModel(FileSourceModel):
    """Fields of a source that chooses the files of a folder by their names."""

    split: Literal["train", "validation", "test", "all"] | None = None
    """Split to read, if the names of the files in a folder tell their split; train also reads files whose
    names tell none. null refuses a folder that mixes files of validation or test with others.
    """
    exclude: list[Text] = []
    """Files of a folder to skip, e.g. ["stats.json", "old/*.jsonl"]. A pattern without a slash is
    compared with the name of the file and of every folder above it."""


class RecordSourceModel(FileSourceModel):
    """Fields of a source whose files hold records: objects or rows, with keys."""

    ignored_keys: list[Word] = []
    """Keys to ignore that would otherwise be refused or read: see docs/record-keys.md. Prepare counts
    them.
    """


class RecordFolderSourceModel(RecordSourceModel, FolderSourceModel):
    """Fields of a source whose records are in the files of a folder."""


class PythonDocsSource(SourceModel):
    """Docstrings of the standard library and of installed packages, read with ast, never imported."""

    kind: Literal["python-docs"]
    max_bytes: PositiveBytes = 8_000_000
    """Stop after this many bytes of text."""


class TextSource(FolderSourceModel):
    """Plain text: a file, or a folder of .txt and .md files; also .gz, .zst, .bz2 and .xz."""

    kind: Literal["text"]
    document_separator: Text | None = None
    """A line that ends a document; null makes each file one document."""
    document_bytes: PositiveBytes | None = None
    """Size at which a file is split into documents, at the end of a paragraph or at least of a line; null
    leaves it whole. A book in one file needs this, because training and validation never share a document.
    """
    newlines: Literal["lf", "keep"] = "lf"
    """Line ends: lf turns each \\r\\n of Windows into \\n, which saves a token per line; keep leaves them."""


class JsonlSource(RecordFolderSourceModel):
    """JSON objects, one per line or in one array: .jsonl, .ndjson, .json; also .gz, .zst, .bz2 and .xz."""

    has_extra_keys = True
    kind: Literal["jsonl"]
    text_key: Word = "text"
    """Key whose string is the document."""


class ParquetSource(RecordFolderSourceModel):
    """Parquet files: .parquet, .parq, .pq; one column is read, row group by row group."""

    has_extra_keys = True
    kind: Literal["parquet"]
    text_key: Word = "text"
    """Column whose string is the document."""


class HfDatasetSource(RecordSourceModel):
    """A Hugging Face dataset as save_to_disk writes it: Arrow files, read batch by batch."""

    has_extra_keys = True
    kind: Literal["hf-dataset"]
    split: Word | None = None
    """Split to read, e.g. train; null if the dataset has only one."""
    text_key: Word = "text"
    """Column whose string is the document."""


class WikiextractorSource(RecordFolderSourceModel):
    """The output of wikiextractor --json: folders AA, AB, ... with files wiki_00, wiki_01, ..."""

    has_extra_keys = True
    kind: Literal["wikiextractor"]
    text_key: Word = "text"
    """Key whose string is the document."""


class WikiSource(SourceModel):
    """A Wikipedia dump, pages-articles: a local file, or downloaded with resume and checksum."""

    kind: Literal["wiki"]
    path: PathText | None = None
    """A dump on disk, .xml or .bz2, .gz, .xz, .zst, relative to the workspace; null downloads one."""
    language: Annotated[str, Field(pattern="^[a-z][a-z0-9-]{0,23}$")] = "en"
    """Language of the Wikipedia that is downloaded: en, bg, simple, zh-min-nan, ..."""
    date: Annotated[str, Field(pattern="^([0-9]{8}|latest)$")] = "latest"
    """Date of the dump: YYYYMMDD, or latest."""
    mirror: PathText = "https://dumps.wikimedia.org"
    """Server of the dumps: the part of the address before /<language>wiki/<date>/."""
    sha1: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None = None
    """SHA-1 of the dump. With null, a downloaded dump is checked against the server's list of checksums, and
    a file named by path is not checked."""
    namespaces: list[SmallCount] = [0]
    """Namespaces whose pages are read; 0 holds the articles."""
    max_articles: PositiveAmount | None = None
    """Stop after this many articles have been kept; null reads all of them."""
    max_broken_fraction: Fraction | None = 0.01
    """Largest share of pages that cannot be parsed; a larger share is an error. null sets no limit."""


class TokensSource(RecordFolderSourceModel):
    """Documents that are already token ids: .jsonl, .ndjson or .json, also compressed, or .parquet."""

    kind: Literal["tokens"]
    input_ids_key: Word = "input_ids"
    """Key or column that holds the token ids."""
    labels_key: Word | None = None
    """Key or column with the labels of every record, -100 for tokens without loss. null reads the key
    `labels` of records that have it.
    """
    append_eod: bool = True
    """Whether to append the end-of-document token to documents that do not end with it."""


class FineTuningSourceModel(RecordFolderSourceModel):
    """Fields of sources with examples of which only a part is trained on."""

    weight: PositiveRatio = 1.0
    """Number of times that each example occurs in an epoch: 1 is once, 2 is twice, and 0.5 uses one half of
    the examples in one epoch and the other half in the next.
    """


class PromptCompletionSource(FineTuningSourceModel):
    """Prompts and completions; only the completion is trained on: .jsonl, .ndjson or .json, also compressed,
    or .parquet.
    """

    kind: Literal["prompt-completion"]
    prompt_key: Word = "prompt"
    """Key of the prompt."""
    completion_key: Word = "completion"
    """Key of the completion."""


class AlpacaSource(FineTuningSourceModel):
    """Alpaca's instruction, input and output; only the output is trained on: .jsonl or .json, also
    compressed, or .parquet.
    """

    kind: Literal["alpaca"]
    template: Annotated[str, Field(pattern=r"\{instruction\}", max_length=MOST_TEXT_CHARS)] | None = None
    """Text with {instruction}, {input} and {system} before the output; null means Alpaca's own two templates,
    which have no {system}."""
    instruction_key: Word = "instruction"
    """Key of the instruction."""
    input_key: Word = "input"
    """Key of the input, which may be missing or empty."""
    output_key: Word = "output"
    """Key of the output."""


class ConversationSourceModel(FineTuningSourceModel):
    """Fields of sources whose records hold messages."""

    template: Annotated[str, Field(pattern=r"\{content\}", max_length=MOST_TEXT_CHARS)] = (
        "<|{role}|>\n{content}\n"
    )
    """Text of one message, with {role} and {content}; the text before {content} is not in the loss."""
    learn_roles: Annotated[list[Word], Field(min_length=1)] = ["assistant"]
    """Roles whose messages are trained on: system, user (ShareGPT's human), assistant (ShareGPT's gpt), tool
    or others. A mark in the data, such as train: false, decides for its own message.
    """
    roles: dict[Word, Word] = {}
    """Meaning of additional names of roles in the files, e.g. {bot: assistant, customer: user}."""
    tools_template: Annotated[str, Field(pattern=r"\{tools\}", max_length=MOST_TEXT_CHARS)] | None = None
    """Text with {tools}, one JSON object per line, after the system message; null refuses records that have
    tools."""
    tool_call_template: Annotated[str, Field(pattern=r"\{tool_call\}", max_length=MOST_TEXT_CHARS)] | None = (
        None
    )
    """Text of one tool call, with {tool_call}, a JSON object of name and arguments, on lines after the
    content; null refuses messages with tool_calls.
    """
    reasoning_template: Annotated[str, Field(pattern=r"\{reasoning\}", max_length=MOST_TEXT_CHARS)] | None = (
        None
    )
    """Text of the reasoning, with {reasoning}, before the content; null refuses messages with
    reasoning_content or thinking.
    """


class ChatSource(ConversationSourceModel):
    """Conversations in .jsonl, .ndjson or .json, also compressed, or .parquet: role and content, ShareGPT's,
    or OpenAssistant's trees."""

    kind: Literal["chat"]
    messages_key: Word | None = None
    """Key of the list of messages. null uses the first of messages, conversations and conversation that a
    record has, else a question with its answer.
    """


class PreferenceSource(ConversationSourceModel):
    """A prompt with a chosen and a rejected answer, texts or messages, for the section dpo: .jsonl, .ndjson
    or .json, also compressed, or .parquet."""

    kind: Literal["preference"]
    prompt_key: Word = "prompt"
    """Key of the prompt: a text or a list of messages. Not needed if both answers begin with the prompt."""
    chosen_key: Word = "chosen"
    """Key of the preferred answer: a text or a list of messages."""
    rejected_key: Word = "rejected"
    """Key of the rejected answer: a text or a list of messages."""


class MockSource(SourceModel):
    """Seeded random words, without meaning, of any size."""

    kind: Literal["mock"]
    num_documents: PositiveAmount = 1000
    """Number of documents to make."""
    seed: WideSeed = 1234
    """Seed of the random words."""


Source = Annotated[
    PythonDocsSource
    | TextSource
    | JsonlSource
    | ParquetSource
    | HfDatasetSource
    | WikiextractorSource
    | WikiSource
    | TokensSource
    | PromptCompletionSource
    | AlpacaSource
    | ChatSource
    | PreferenceSource
    | MockSource,
    Field(discriminator="kind"),
]
# The union is the one list of kinds; corpus/sources/base.py finds the reader of each by its name.
SOURCE_TYPES: tuple[type[SourceModel], ...] = get_args(get_args(Source)[0])


def kind_of(source: type[SourceModel]) -> str:
    """Return the value of `kind:` for a source model."""
    return get_args(source.model_fields["kind"].annotation)[0]


# Kinds of sources whose records have keys by name, one of which holds a document.
TEXT_KINDS = tuple(kind_of(source) for source in SOURCE_TYPES if source.has_extra_keys)

_OF_HUB = re.compile(r"hf://(?:datasets/)?([^/@]+/[^/@]+)(@[^/]+)?(/.*)?")


def address_problem(path: str) -> str | None:
    """Return why an address cannot be the path of a source, and what to do; None for any other path."""
    if "://" not in path:
        return None
    if (match := _OF_HUB.fullmatch(path)) is None:
        return (
            "is an address, but sources are read from disk. Download it, and set the path to the file or "
            "folder."
        )
    name, revision, _ = match.groups()
    folder = f"corpus/{name.partition('/')[2]}"
    at = f" --revision {revision[1:]}" if revision else ""
    return (
        "is a dataset of the Hugging Face Hub, which is not read from there. Download it with `hf download "
        f"{name}{at} --repo-type dataset --local-dir {folder}`, and set the path to {folder}."
    )


# Settings of a source that do not change its text; the mirror's address may hold a password.
BESIDE_THE_TEXT = ("name", "licence", "attribution", "weight", "max_broken_fraction", "mirror")


def text_settings(source: Any) -> dict[str, Any]:
    """Return the settings of one source that decide its text."""
    return {key: value for key, value in source.model_dump().items() if key not in BESIDE_THE_TEXT}
