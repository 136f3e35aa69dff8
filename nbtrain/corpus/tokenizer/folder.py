"""Imports a tokenizer into its folder, saves a trained one, and reads the manifest."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.git_lfs import pointer_problem_of
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import data_home, display
from nbtrain.corpus.tokenizer.beginning import (
    SETTINGS,
    SPECIAL_TOKENS_MAP,
    beginning_with,
    ids_before_text,
    ids_before_text_of_two_files,
    settings_of,
)
from nbtrain.corpus.tokenizer.unknown import unknown_text

EOD_TOKEN = "<|endoftext|>"

SCHEMA_VERSION = 1

# Keys that every manifest has. The manifest of an imported tokenizer also has source and kept, and
# added_tokens and extends if tokens were added. before_text may be missing if it is empty.
KEYS = (
    "schema_version",
    "vocab_size",
    "eod_id",
    "eod_token",
    "eod_from_text",
    "unknown_id",
    "sha256",
    "files",
    "trained",
)
MADE_AGAIN = "Remove the folder and run `nbtrain prepare RUN.yaml`."

MERGES = "merges.txt"
VOCABULARY = "vocab.json"
CONTENT_FILES = (MERGES, VOCABULARY)

ONE_FILE = "tokenizer.json"

ADDED_TOKENS = "added_tokens.json"
# Key of tokenizer_config.json for its list of added tokens, {id: entry}, as transformers 4 writes it.
ADDED_LIST = "added_tokens_decoder"

# transformers' classes for which vocab.json and merges.txt describe the tokenizer completely.
GPT2_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")

# The folder with the unchanged imported files: nbtrain may change the tokenizer.json that it loads, and the
# other files hold what encoding does not need (chat template, tokens that begin and end a text).
KEPT = "as-given"
KEPT_FILES = (
    ONE_FILE,
    SETTINGS,
    SPECIAL_TOKENS_MAP,
    ADDED_TOKENS,
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "tokenizer.model",
    *CONTENT_FILES,
)

# Files that list the entries; the other kept files hold settings.
LISTS = {ONE_FILE, ADDED_TOKENS, SPECIAL_TOKENS_MAP, "tokenizer.model", *CONTENT_FILES}
SETTINGS_FILES = tuple(name for name in KEPT_FILES if name not in LISTS)


class OtherFormat(NamedTuple):
    """A tokenizer format that nbtrain does not read, and how to convert it to a tokenizer.json."""

    name: str
    begins: re.Pattern[bytes]
    """Pattern of the first bytes of a file in the format."""
    packages: str
    """Packages that the conversion needs, followed by "is" or "are"."""
    load: str = "from transformers import AutoTokenizer; AutoTokenizer.from_pretrained('{folder}')"
    """Python code that loads the tokenizer, with the placeholder {folder} or {file}."""

    def command(self, path: Path) -> str:
        """Return the command that writes a tokenizer.json next to the file `path`."""
        folder = display(path.parent)
        load = self.load.format(folder=folder, file=display(path))
        return f"python -c \"{load}.save_pretrained('{folder}')\""


OTHER_FORMATS = (
    # A protobuf (sentencepiece_model.proto): field 1 is the first piece, in which field 1 is its text.
    OtherFormat(
        "a SentencePiece model",
        re.compile(rb"\n[\x01-\x7f]\n[\x01-\x7f](<|\[|\xe2\x96\x81|[ -~])"),
        "transformers, sentencepiece and tiktoken are",
    ),
    # Each line is a token in base64 and its rank.
    OtherFormat(
        "a tiktoken file",
        re.compile(rb"([\w+/]{4})*([\w+/]{4}|[\w+/]{3}=|[\w+/]{2}==) [0-9]+\r?\n", re.ASCII),
        "transformers, sentencepiece and tiktoken are",
    ),
    # JSON with the bytes of the entries in base64 under "vocab", and settings under "config".
    OtherFormat(
        "Mistral's tekken.json",
        re.compile(rb'\s*\{(?=.*"(token_bytes"\s*:\s*"|default_vocab_size"\s*:))', re.S),
        "transformers (5 or newer) is",
        "from transformers.integrations.mistral import convert_tekken_tokenizer; "
        "convert_tekken_tokenizer('{file}')",
    ),
    # One entry per line.
    OtherFormat(
        "a list of entries like BERT's vocab.txt",
        re.compile(rb"(?!\{)(\S+\r?\n){3}"),
        "transformers is",
        "from transformers import BertTokenizer; BertTokenizer.from_pretrained('{folder}')",
    ),
)
# Names of files in these formats, for which a folder without a tokenizer.json is searched.
OTHER_NAMES = ("*.model", "*.tiktoken", "tekken.json", "vocab.txt")

FORMAT_BYTES = 4 << 10

# Common names of tokens that end a document or an answer, suggested if the configured token is missing.
EOD_CANDIDATES = """
<|endoftext|> </s> <eos> <|end_of_text|> <|im_end|> <|eot_id|> <|end\u2581of\u2581sentence|> <|eos|>
<end_of_turn> [EOS] [SEP]
""".split()  # noqa: SIM905 (read best as words)


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """Return a tokenizer folder's manifest.json; None without one. Raises DataError if it is damaged."""
    path = directory / "manifest.json"
    try:
        manifest = files.read_json(path)
    except ValueError as error:
        raise DataError(f"{error}. {MADE_AGAIN}") from None
    if manifest is None:
        return None
    missing = [key for key in KEYS if not isinstance(manifest, dict) or key not in manifest]
    if missing:
        raise DataError(
            f"{display(path)}: not a tokenizer's manifest: the key {missing[0]} is missing. {MADE_AGAIN}"
        )
    return manifest


def manifest_of(directory: Path) -> dict[str, Any]:
    """Return the manifest.json of a tokenizer folder. Raises DataError if it is missing or damaged."""
    if (manifest := read_manifest(directory)) is not None:
        return manifest
    raise DataError(
        f"{display(directory / 'manifest.json')}: no such file: the tokenizer is not ready. Make it "
        f"with `nbtrain prepare RUN.yaml`."
    )


def folder_of(sha256: str, first: Sequence[Path] = (), eod_id: int | None = None) -> Path | None:
    """Return the folder of the tokenizer with this hash; None if no folder has it.

    Searches `first`, then the data directory. If `eod_id` is given, a tokenizer that ends documents with this
    token is preferred.
    """
    others: list[Path] = []
    for folder in [*first, *sorted((data_home() / "tokenizer").glob("[!.]*"))]:
        entry = read_manifest(folder)
        if entry and entry["sha256"] == sha256:
            if eod_id in (None, entry["eod_id"]):
                return folder
            others.append(folder)
    return others[0] if others else None


def adopt(
    path: str | Path, eod_token: str, directory: str | Path, added_tokens: Sequence[str] = ()
) -> dict[str, Any]:
    """Import a tokenizer into `directory` and return its manifest, which is written last.

    Each of `added_tokens` becomes an entry of the vocabulary. `path` is a tokenizer.json, a folder that holds
    one, or a folder with GPT-2's vocab.json and merges.txt; it may be `directory` itself. If a folder has all
    three files, tokenizer.json is used, because only that file defines how words are split; in a folder that
    nbtrain created, the other two are used, unless tokens are added.

    Raises DataError if there is no tokenizer, if it cannot be read or lacks `eod_token`, or if vocab.json and
    merges.txt belong to a model other than GPT-2.
    """
    path, directory = Path(path), Path(directory)
    one_file = path if path.is_file() else path / ONE_FILE
    vocab, merges = path / VOCABULARY, path / MERGES
    has_both_files = vocab.is_file() and merges.is_file()
    if has_both_files and not one_file.is_file():
        refuse_other_than_gpt2(path)
    if added_tokens and has_both_files and not one_file.is_file():
        built, _ = _from_two_files(path, eod_token)
        text = built.to_str()
        return _adopt_text(text.encode(), one_file, eod_token, directory, added_tokens)
    if added_tokens and one_file.is_file():
        return _adopt_text(one_file.read_bytes(), one_file, eod_token, directory, added_tokens)
    if one_file.is_file() and not (has_both_files and _is_own(path)):
        return _adopt_text(one_file.read_bytes(), one_file, eod_token, directory)
    if not has_both_files:
        for other in sorted(found for pattern in OTHER_NAMES for found in path.glob(pattern)):
            with other.open("rb") as stream:
                _refuse_other_formats(other, stream.read(FORMAT_BYTES))
        raise DataError(
            f"{display(path)}: no tokenizer found. Give the path of a tokenizer.json, of a folder that "
            "contains one, or of a folder with vocab.json and merges.txt (GPT-2's encoder.json and "
            "vocab.bpe, renamed)."
        )
    built, before = _from_two_files(path, eod_token)
    directory.mkdir(parents=True, exist_ok=True)
    kept = _keep(_beside(path), directory)
    for source in (vocab, merges):
        if not (directory / source.name).exists() or not source.samefile(directory / source.name):
            files.write_bytes(directory / source.name, source.read_bytes())
    more = {"before_text": before} if before else {}
    return save(built, directory, None, eod_token, source=display(path), kept=kept, **more)


def _beside(folder: Path) -> Path:
    """Return the folder with the files that came with a tokenizer: `folder`, or its as-given/ subfolder.

    as-given/ holds these files if nbtrain created `folder`.
    """
    is_ours = read_manifest(folder) is not None and (folder / KEPT).is_dir()
    return folder / KEPT if is_ours else folder


def _given_sha256(path: Path, content: bytes) -> str:
    """Return the hash of the tokenizer.json as it was imported first.

    If nbtrain created the folder of `path`, the manifest records that hash; otherwise `content` is hashed.
    """
    ours = read_manifest(path.parent) if path.name == ONE_FILE else None
    known = ours and (ours.get("extends") or (ours.get("kept") or {}).get(ONE_FILE))
    return known or hashlib.sha256(content).hexdigest()


def _spelled(document: dict[str, Any]) -> str:
    """Serialize tokenizer.json with merges as "a b" and a sorted vocabulary, which loads a third faster."""
    model = document["model"]
    # A merge with a space in one of its parts could not be split again. A byte-level BPE has no such merges,
    # because it writes spaces as another character.
    if model["type"] == "BPE" and not any(" " in piece for merge in model["merges"] for piece in merge):
        model["merges"] = [" ".join(merge) for merge in model["merges"]]
    model["vocab"] = dict(sorted(model["vocab"].items()))
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def _is_own(folder: Path) -> bool:
    manifest = read_manifest(folder)
    return manifest is not None and set(CONTENT_FILES) <= set(manifest["files"])


def _refuse_other_formats(path: Path, content: bytes) -> None:
    """Raise DataError if a file is a Git LFS pointer or another tokenizer format, which can be converted."""
    if problem := pointer_problem_of(path):
        raise DataError(f"{display(path)}: {problem}.")
    form = next((form for form in OTHER_FORMATS if form.begins.match(content[:FORMAT_BYTES])), None)
    if form is None:
        return
    raise DataError(
        f"{display(path)}: the file is {form.name}, but a tokenizer.json is needed. Most models have one in "
        f"the same folder. Otherwise put the model's tokenizer_config.json into that folder and convert the "
        f"file once, where {form.packages} installed: {form.command(path)}. Then set tokenizer.path to "
        f"{display(path.parent / ONE_FILE)}."
    )


def _not_in_vocabulary(folder: Path, settings: dict[str, Any]) -> tuple[str, str] | None:
    """Return (an added token that vocab.json lacks, the file that lists it); None if none is missing."""
    beside = files.read_json(folder / ADDED_TOKENS)
    listed = settings.get(ADDED_LIST)
    entries = listed.values() if isinstance(listed, dict) else ()
    named = [(token, ADDED_TOKENS) for token in (beside if isinstance(beside, dict) else ())]
    named += [(one.get("content"), SETTINGS) for one in entries if isinstance(one, dict)]
    vocabulary = files.read_json(folder / VOCABULARY) if named else None
    if not isinstance(vocabulary, dict):
        return None
    return next((one for one in named if isinstance(one[0], str) and one[0] not in vocabulary), None)


def refuse_other_than_gpt2(folder: Path) -> None:
    """Raise DataError if the files next to vocab.json and merges.txt belong to a model other than GPT-2.

    The two files of such a slow tokenizer do not define how text is normalized and split (Qwen2 uses NFC and
    single digits), and their vocabulary lacks the added tokens. If they were read like GPT-2's, ids would
    silently be wrong.
    """
    settings = settings_of(folder)
    named = settings.get("tokenizer_class")
    if named not in (None, *GPT2_CLASSES):
        why = f"{SETTINGS} names {shortened(str(named))}, which splits text differently"
    elif lacking := _not_in_vocabulary(folder, settings):
        why = f"{lacking[1]} lists the added token {shortened(lacking[0])}, which {VOCABULARY} lacks"
    else:
        return
    raise DataError(
        f"{display(folder)}: {VOCABULARY} and {MERGES} without a {ONE_FILE} are read as GPT-2's, but {why}. "
        f"Create the {ONE_FILE} once, where transformers is installed: "
        f"{OTHER_FORMATS[0].command(folder / VOCABULARY)}."
    )


def _adopt_text(
    content: bytes, path: Path, eod_token: str, directory: Path, added_tokens: Sequence[str] = ()
) -> dict[str, Any]:
    """Import the tokenizer.json `content`, which was read from `path`."""
    import tokenizers

    _refuse_other_formats(path, content)
    given = _given_sha256(path, content)
    try:
        document = json.loads(content)
        # Rust raises bare Exceptions.
        built = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:
        is_one_of_two = all((path.parent / name).is_file() for name in CONTENT_FILES)
        both = (
            f" To import vocab.json and merges.txt, give their folder, {display(path.parent)}."
            if is_one_of_two
            else ""
        )
        raise DataError(f"{display(path)}: not a tokenizer.json of HF tokenizers: {error}.{both}") from error
    # Old files, such as GPT-2's own, do not name the model type, and tokenizers infers it. Record it here.
    is_typed = "type" in document["model"]
    document["model"]["type"] = type(built.model).__name__
    entries = built.get_vocab(with_added_tokens=True)
    _require_eod(entries, eod_token, path)
    unknown = unknown_text(document)
    if unknown.becomes == "nothing":
        raise DataError(
            f"{display(path)}: the BPE has neither an entry for each byte nor an unknown token, so text "
            f"would be lost silently. Train it again with all bytes (in HF tokenizers: BpeTrainer with "
            "initial_alphabet=ByteLevel.alphabet()), or set model.unk_token in the file to one of its "
            "entries."
        )
    eod_id = entries[eod_token]
    entries |= _add(document, entries, added_tokens)
    if _fix(document, eod_token, eod_id) or added_tokens or not is_typed:
        content = (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    directory.mkdir(parents=True, exist_ok=True)
    kept = {}
    # A folder that nbtrain created may already have added tokens, which an export must list too.
    ours = (read_manifest(path.parent) or {}) if path.name == ONE_FILE else {}
    all_added = [*ours.get("added_tokens", ()), *added_tokens]
    if path.name == ONE_FILE:
        # Do not copy files that list the vocabulary, because they lack the added tokens.
        kept = _keep(_beside(path.parent), directory, SETTINGS_FILES if all_added else KEPT_FILES)
    files.write_bytes(directory / ONE_FILE, content)
    sha256 = hashlib.sha256(content).hexdigest()
    manifest = {
        "schema_version": SCHEMA_VERSION,
        # Ids may have gaps: the model needs a row for each id up to the largest.
        "vocab_size": max(entries.values()) + 1,
        "eod_id": eod_id,
        "eod_token": eod_token,
        "eod_from_text": _text_may_become_eod(document["model"], eod_token),
        "unknown_id": unknown.unknown_id,
        "before_text": ids_before_text(built),
        "sha256": sha256,
        "files": {ONE_FILE: {"bytes": len(content), "sha256": sha256}},
        "trained": None,
        "source": display(path),
        "kept": kept,
        **({"added_tokens": list(dict.fromkeys(all_added)), "extends": given} if all_added else {}),
    }
    files.write_json(directory / "manifest.json", manifest)
    return manifest


def _add(document: dict[str, Any], entries: dict[str, int], tokens: Sequence[str]) -> dict[str, int]:
    """Make each of `tokens` an entry that text can match; return {new token: id}.

    A special entry never matches text (tokenizer.py), so an existing special entry becomes an ordinary one.
    """
    added = document["added_tokens"] = document.get("added_tokens") or []
    new = {
        token: max(entries.values()) + 1 + number
        for number, token in enumerate(token for token in tokens if token not in entries)
    }
    for token in tokens:
        entry = next((one for one in added if one["content"] == token), None)
        if entry is None:
            entry = {"id": new.get(token, entries.get(token)), "content": token}
            added.append(entry)
        entry |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added.sort(key=lambda one: one["id"])
    return new


def _keep(path: Path, directory: Path, patterns: Sequence[str] = KEPT_FILES) -> dict[str, str]:
    """Copy the files that come with an imported tokenizer, unchanged; return {name: sha256}.

    If there are no files other than vocab.json and merges.txt, nothing is copied.
    """
    found = sorted(one for pattern in patterns for one in path.glob(pattern) if one.is_file())
    if {one.name for one in found} <= set(CONTENT_FILES):
        return {}
    kept = {}
    for one in found:
        if problem := pointer_problem_of(one):
            raise DataError(f"{display(one)}: {problem}.")
        name = one.relative_to(path).as_posix()
        target = directory / KEPT / name
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(target, one.read_bytes())
        kept[name] = files.sha256_of(target)
    return kept


def _fix(document: dict[str, Any], eod_token: str, eod_id: int) -> bool:
    """Change settings that would lose text or turn text into EOD. Return whether anything was changed.

    Truncation and padding are meant for inference, dropout makes ids random, and an EOD that is not marked as
    special could match text.
    """
    before = json.dumps(document)
    document["truncation"] = document["padding"] = None
    if document["model"].get("dropout") is not None:
        document["model"]["dropout"] = None
    entries = document.setdefault("added_tokens", [])
    entry = next((entry for entry in entries if entry["content"] == eod_token), None)
    if entry is None:
        entry = {"id": eod_id, "content": eod_token, "single_word": False}
        entry |= {"lstrip": False, "rstrip": False, "normalized": False}
        entries.append(entry)
        entries.sort(key=lambda entry: entry["id"])
    entry["special"] = True
    return json.dumps(document) != before


def _text_may_become_eod(model: dict[str, Any], eod_token: str) -> bool:
    """Return whether the model itself, without special tokens, could encode ordinary text as EOD."""
    if model["type"] != "BPE" or model.get("ignore_merges"):
        return True
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return len(eod_token) == 1 or any("".join(merge) == eod_token for merge in merges)


def _require_eod(vocab: Iterable[str], eod_token: str, path: Path) -> None:
    vocab = set(vocab)
    if eod_token in vocab:
        return
    likely = [token for token in EOD_CANDIDATES if token in vocab]
    offered = f"one of these tokens: {', '.join(likely)}" if likely else "one of its tokens"
    problem = f"the tokenizer lacks the end-of-document token {eod_token}"
    raise DataError(f"{display(path)}: {problem}. Set tokenizer.eod_token to {offered}.")


def from_vocabulary(vocab: Path, merges: Path, eod_token: str = EOD_TOKEN) -> Any:
    """Build a tokenizers.Tokenizer from GPT-2's two files. Raises DataError if they are not usable."""
    import tokenizers
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    for path in (vocab, merges):
        if problem := pointer_problem_of(path):
            raise DataError(f"{display(path)}: {problem}.")
    try:
        # Both calls raise bare Exceptions from Rust.
        built = byte_level(tokenizers.Tokenizer(BPE.from_file(str(vocab), str(merges))))
    except Exception as error:
        raise DataError(f"{display(vocab)}, {display(merges)}: not a byte-level BPE: {error}.") from error
    entries = built.get_vocab(with_added_tokens=True)
    _require_eod(entries, eod_token, vocab)
    if missing := [letter for letter in ByteLevel.alphabet() if letter not in entries]:
        raise DataError(
            f"{display(vocab)}: not a byte-level BPE: {len(missing)} of the 256 bytes have no entry, so text "
            f"would be lost. Import the tokenizer's tokenizer.json instead."
        )
    built.add_special_tokens([eod_token])
    return built


def _from_two_files(folder: Path, eod_token: str) -> tuple[Any, list[int]]:
    """Return (a tokenizers.Tokenizer from a folder's two files, the ids that settings put before a text)."""
    import tokenizers

    built = from_vocabulary(folder / VOCABULARY, folder / MERGES, eod_token)
    before = ids_before_text_of_two_files(_beside(folder), built)
    if before:
        document = beginning_with(json.loads(built.to_str()), built.id_to_token(before[0]), before[0])
        built = tokenizers.Tokenizer.from_str(json.dumps(document))
    return built, before


def byte_level(tokenizer: Any) -> Any:
    """Give a tokenizers.Tokenizer GPT-2's rule for splitting words and its characters for bytes."""
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def save(
    tokenizer: Any,
    directory: Path,
    trained: dict[str, Any] | None,
    eod_token: str = EOD_TOKEN,
    **imported: Any,
) -> dict[str, Any]:
    """Save a tokenizer as four files in `directory` and return its manifest, which is written last.

    If vocab.json and merges.txt are there already, as for an imported tokenizer, they stay unchanged.
    `trained` records the settings and the text of a training; it is None for an imported tokenizer.
    `imported` holds further keys of the manifest.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not all((directory / name).is_file() for name in CONTENT_FILES):
        tokenizer.model.save(str(directory))
    document = json.loads(tokenizer.to_str())
    files.write_text(directory / ONE_FILE, _spelled(document))
    entries = {
        name: {"bytes": (directory / name).stat().st_size, "sha256": files.sha256_of(directory / name)}
        for name in (*CONTENT_FILES, ONE_FILE)
    }
    # Hash only the vocabulary, because another version of tokenizers may write tokenizer.json differently.
    identity = "".join(f"{name} {entries[name]['sha256']}\n" for name in CONTENT_FILES)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "vocab_size": tokenizer.get_vocab_size(),
        "eod_id": tokenizer.token_to_id(eod_token),
        "eod_token": eod_token,
        "eod_from_text": _text_may_become_eod(document["model"], eod_token),
        "unknown_id": None,  # not needed, because the vocabulary has all 256 bytes
        "sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "files": entries,
        "trained": trained,
        **imported,
    }
    files.write_json(directory / "manifest.json", manifest)
    return manifest
