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
    """Fields common to all sources."""

    has_extra_keys: ClassVar[bool] = False
    """Whether records of this kind have named keys, so that data.extra_json_keys can name some of them."""

    name: Name | None = None
    """Name of the source in reports, in the data card and for its separate loss. null means the source's
    kind.
    """
    licence: Text | None = None
    """Licence of the text, recorded in the manifest. null uses the licence that the source itself states."""
    attribution: Text | None = None
    """Credit for the text, recorded in the manifest. null uses the credit that the source itself states."""


class FileSourceModel(SourceModel):
    """Fields of a source that is read from a file, or from the files of a folder."""

    path: PathText
    """File or folder to read, relative to the workspace."""
    max_broken_fraction: Fraction | None = 0.01
    """Maximum fraction of records that cannot be read. A larger fraction is an error. null sets no limit."""


class FolderSourceModel(FileSourceModel):
    """Fields of a source that selects files of a folder by their names."""

    split: Literal["train", "validation", "test", "all"] | None = None
    """Split to read from a folder whose file names indicate the split. train also reads files whose names
    indicate no split. null refuses a folder that mixes validation or test files with other files.
    """
    exclude: list[Text] = []
    """Files to skip in a folder, e.g. ["stats.json", "old/*.jsonl"]. A pattern without a slash is compared
    with the name of the file and of every folder above it.
    """


class RecordSourceModel(FileSourceModel):
    """Fields of a source whose files hold records: objects or rows with named keys."""

    ignored_keys: list[Word] = []
    """Record keys to ignore that would otherwise be refused or read: see docs/record-keys.md. `nbtrain
    prepare` counts how often each is ignored.
    """


class RecordFolderSourceModel(RecordSourceModel, FolderSourceModel):
    """Fields of a source whose records are in the files of a folder."""


class PythonDocsSource(SourceModel):
    """Docstrings of the standard library and of installed packages, parsed with ast and never imported."""

    kind: Literal["python-docs"]
    max_bytes: PositiveBytes = 8_000_000
    """Size of the text, in bytes, at which reading stops."""


class TextSource(FolderSourceModel):
    """Plain text: a file, or a folder of .txt and .md files. Either may be compressed (.gz, .zst, .bz2,
    .xz).
    """

    kind: Literal["text"]
    document_separator: Text | None = None
    """Line that ends a document. null makes each file one document."""
    document_bytes: PositiveBytes | None = None
    """Size in bytes at which a file is split into documents, at the end of a paragraph or at least of a line.
    A book in a single file needs this, because training and validation never share a document. null does not
    split files by size.
    """
    newlines: Literal["lf", "keep"] = "lf"
    """Treatment of line endings. lf converts the \\r\\n of Windows to \\n, which saves a token per line. keep
    leaves line endings unchanged.
    """


class JsonlSource(RecordFolderSourceModel):
    """JSON objects, one per line or in one array: .jsonl, .ndjson or .json, optionally compressed (.gz, .zst,
    .bz2 or .xz).
    """

    has_extra_keys = True
    kind: Literal["jsonl"]
    text_key: Word = "text"
    """Key whose string is the text of the document."""


class ParquetSource(RecordFolderSourceModel):
    """Parquet files (.parquet, .parq or .pq). One column is read, one row group at a time."""

    has_extra_keys = True
    kind: Literal["parquet"]
    text_key: Word = "text"
    """Column whose string is the text of the document."""


class HfDatasetSource(RecordSourceModel):
    """Hugging Face dataset as written by save_to_disk: Arrow files, read in batches."""

    has_extra_keys = True
    kind: Literal["hf-dataset"]
    split: Word | None = None
    """Split to read, e.g. train. null if the dataset has only one split."""
    text_key: Word = "text"
    """Column whose string is the text of the document."""


class WikiextractorSource(RecordFolderSourceModel):
    """Output of `wikiextractor --json`: folders AA, AB, ... with files wiki_00, wiki_01, ..."""

    has_extra_keys = True
    kind: Literal["wikiextractor"]
    text_key: Word = "text"
    """Key whose string is the text of the document."""


class WikiSource(SourceModel):
    """Wikipedia dump (pages-articles): a local file, or a download with resume and checksum."""

    kind: Literal["wiki"]
    path: PathText | None = None
    """Path of a dump on disk (.xml, .bz2, .gz, .xz or .zst), relative to the workspace. null downloads a
    dump.
    """
    language: Annotated[str, Field(pattern="^[a-z][a-z0-9-]{0,23}$")] = "en"
    """Language code of the Wikipedia to download: en, bg, simple, zh-min-nan, ..."""
    date: Annotated[str, Field(pattern="^([0-9]{8}|latest)$")] = "latest"
    """Date of the dump to download: YYYYMMDD, or latest."""
    mirror: PathText = "https://dumps.wikimedia.org"
    """Server to download dumps from: the part of the URL before /<language>wiki/<date>/."""
    sha1: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None = None
    """SHA-1 checksum of the dump. null checks a downloaded dump against the server's list of checksums, and
    does not check a local file.
    """
    namespaces: list[SmallCount] = [0]
    """Namespaces whose pages are read. Namespace 0 holds the articles."""
    max_articles: PositiveAmount | None = None
    """Maximum number of articles to keep. null keeps all of them."""
    max_broken_fraction: Fraction | None = 0.01
    """Maximum fraction of pages that cannot be parsed. A larger fraction is an error. null sets no limit."""


class TokensSource(RecordFolderSourceModel):
    """Documents that are already token ids: .jsonl, .ndjson or .json, optionally compressed, or .parquet."""

    kind: Literal["tokens"]
    input_ids_key: Word = "input_ids"
    """Key or column that holds the token ids."""
    labels_key: Word | None = None
    """Key or column that holds the labels of every record, with -100 for tokens that are not in the loss.
    null reads the key `labels` of each record that has it.
    """
    append_eod: bool = True
    """Whether to append the end-of-document token to documents that do not already end with it."""


class FineTuningSourceModel(RecordFolderSourceModel):
    """Fields of sources whose examples are only partly in the loss."""

    weight: PositiveRatio = 1.0
    """Number of times that each example occurs in an epoch: 1 is once and 2 is twice. With 0.5, one half of
    the examples occurs in one epoch and the other half in the next.
    """


class PromptCompletionSource(FineTuningSourceModel):
    """Records with a prompt and a completion. Only the completion is trained on. Files: .jsonl, .ndjson or
    .json, optionally compressed, or .parquet.
    """

    kind: Literal["prompt-completion"]
    prompt_key: Word = "prompt"
    """Key that holds the prompt."""
    completion_key: Word = "completion"
    """Key that holds the completion."""


class AlpacaSource(FineTuningSourceModel):
    """Records in Alpaca's format: instruction, input and output. Only the output is trained on. Files: .jsonl
    or .json, optionally compressed, or .parquet.
    """

    kind: Literal["alpaca"]
    template: Annotated[str, Field(pattern=r"\{instruction\}", max_length=MOST_TEXT_CHARS)] | None = None
    """Template for the text before the output, with {instruction}, {input} and {system}. null means Alpaca's
    own two templates, which have no {system}.
    """
    instruction_key: Word = "instruction"
    """Key that holds the instruction."""
    input_key: Word = "input"
    """Key that holds the input. The input may be missing or empty."""
    output_key: Word = "output"
    """Key that holds the output."""


class ConversationSourceModel(FineTuningSourceModel):
    """Fields of sources whose records hold messages."""

    template: Annotated[str, Field(pattern=r"\{content\}", max_length=MOST_TEXT_CHARS)] = (
        "<|{role}|>\n{content}\n"
    )
    """Template for one message, with {role} and {content}. The text before {content} is not in the loss."""
    learn_roles: Annotated[list[Word], Field(min_length=1)] = ["assistant"]
    """Roles whose messages are trained on: system, user (ShareGPT's human), assistant (ShareGPT's gpt), tool
    or others. A marker in the data, such as train: false, takes precedence for its own message.
    """
    roles: dict[Word, Word] = {}
    """Additional role names that occur in the files, and the role that each stands for, e.g. {bot: assistant,
    customer: user}.
    """
    tools_template: Annotated[str, Field(pattern=r"\{tools\}", max_length=MOST_TEXT_CHARS)] | None = None
    """Template for the list of tools, placed after the system message. {tools} stands for one JSON object per
    line. null refuses records that have tools.
    """
    tool_call_template: Annotated[str, Field(pattern=r"\{tool_call\}", max_length=MOST_TEXT_CHARS)] | None = (
        None
    )
    """Template for one tool call, placed on a new line after the content. {tool_call} stands for a JSON
    object of name and arguments. null refuses messages with tool_calls.
    """
    reasoning_template: Annotated[str, Field(pattern=r"\{reasoning\}", max_length=MOST_TEXT_CHARS)] | None = (
        None
    )
    """Template for the reasoning, placed before the content. {reasoning} stands for its text. null refuses
    messages with reasoning_content or thinking.
    """


class ChatSource(ConversationSourceModel):
    """Conversations in one of three formats: messages with role and content, ShareGPT, or OpenAssistant's
    trees. Files: .jsonl, .ndjson or .json, optionally compressed, or .parquet.
    """

    kind: Literal["chat"]
    messages_key: Word | None = None
    """Key that holds the list of messages. null uses the first of the keys messages, conversations and
    conversation that a record has. A record with none of them is read as a question with its answer.
    """


class PreferenceSource(ConversationSourceModel):
    """Records with a prompt, a chosen answer and a rejected answer, for the section `dpo`. Each of the three
    is a text or a list of messages. Files: .jsonl, .ndjson or .json, optionally compressed, or .parquet.
    """

    kind: Literal["preference"]
    prompt_key: Word = "prompt"
    """Key that holds the prompt: a text or a list of messages. It may be missing if both answers begin with
    the prompt.
    """
    chosen_key: Word = "chosen"
    """Key that holds the preferred answer: a text or a list of messages."""
    rejected_key: Word = "rejected"
    """Key that holds the rejected answer: a text or a list of messages."""


class MockSource(SourceModel):
    """Random words without meaning, generated from a seed, in any amount."""

    kind: Literal["mock"]
    num_documents: PositiveAmount = 1000
    """Number of documents to generate."""
    seed: WideSeed = 1234
    """Random seed of the words."""


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
# This union is the only list of kinds. corpus/sources/base.py finds the reader of each kind by its name.
SOURCE_TYPES: tuple[type[SourceModel], ...] = get_args(get_args(Source)[0])


def kind_of(source: type[SourceModel]) -> str:
    """Return the value of `kind:` for a source model."""
    return get_args(source.model_fields["kind"].annotation)[0]


# Kinds of sources whose records have named keys, one of which holds the document.
TEXT_KINDS = tuple(kind_of(source) for source in SOURCE_TYPES if source.has_extra_keys)

_OF_HUB = re.compile(r"hf://(?:datasets/)?([^/@]+/[^/@]+)(@[^/]+)?(/.*)?")


def address_problem(path: str) -> str | None:
    """Return a text that says why a URL cannot be the path of a source, and what to do instead.

    None if `path` is not a URL.
    """
    if "://" not in path:
        return None
    if (match := _OF_HUB.fullmatch(path)) is None:
        return (
            "is a URL, but sources are read from disk. Download the data, then set the path to the file or "
            "folder that you downloaded."
        )
    name, revision, _ = match.groups()
    folder = f"corpus/{name.partition('/')[2]}"
    at = f" --revision {revision[1:]}" if revision else ""
    return (
        "is a dataset on the Hugging Face Hub, but sources are read from disk. Download it with `hf download "
        f"{name}{at} --repo-type dataset --local-dir {folder}`, then set the path to {folder}."
    )


# Settings of a source that do not change its text. The mirror is one of them, and its URL may hold a
# password.
BESIDE_THE_TEXT = ("name", "licence", "attribution", "weight", "max_broken_fraction", "mirror")


def text_settings(source: Any) -> dict[str, Any]:
    """Return the settings of a source that decide its text."""
    return {key: value for key, value in source.model_dump().items() if key not in BESIDE_THE_TEXT}
