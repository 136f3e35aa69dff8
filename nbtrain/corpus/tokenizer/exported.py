"""Writes the tokenizer of an exported model, in the files that transformers reads.

    data/tokenizer/<name>/as-given/   the files of an imported tokenizer, unchanged (chat template, added
                                      tokens, settings). They are exported byte for byte, except for a list
                                      of added tokens if the run has added some, and for the padding token
                                      if it also ends a text (padding.py).
    For other tokenizers:
    tokenizer.json                    the vocabulary, and
    tokenizer_config.json             the tokens that begin, end and pad a text, for PreTrainedTokenizerFast

transformers could load tokenizer.json alone, but then no token would end a text.
"""

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display
from nbtrain.corpus.tokenizer.beginning import SETTINGS, own_token, settings_of
from nbtrain.corpus.tokenizer.folder import (
    ADDED_LIST,
    CONTENT_FILES,
    KEPT,
    ONE_FILE,
    VOCABULARY,
    read_manifest,
    refuse_other_than_gpt2,
)
from nbtrain.corpus.tokenizer.padding import PADDING, give_padding

CHAT_TEMPLATE = "chat_template.jinja"
CLASS = "PreTrainedTokenizerFast"


def write_tokenizer(
    directory: Path, to: Path, model_max_length: int, vocab_size: int, end_ids: Collection[int] = ()
) -> dict[str, int | None]:
    """Export the tokenizer in `directory` to the folder `to`; return the ids of its bos, eos and pad tokens.

    `end_ids` are ids that end a text, in addition to the tokenizer's own. `vocab_size` is the number of rows
    of the model's embedding. Returns {bos_token_id, eos_token_id, pad_token_id}, where the padding token
    never ends a text. Raises the errors of Tokenizer.load, and DataError if a vocabulary in as-given/ has
    changed.
    """
    # Imported here, because it imports NumPy, which no other function of this module needs.
    from nbtrain.corpus.tokenizer.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(directory)
    kept = directory / KEPT
    if kept.is_dir():
        _refuse_changed_vocabulary(kept, tokenizer.manifest.get("kept") or {})
        shutil.copytree(kept, to, dirs_exist_ok=True)
    if not (to / ONE_FILE).exists():
        files.write_bytes(to / ONE_FILE, (directory / ONE_FILE).read_bytes())
    if not (to / SETTINGS).exists():
        token = tokenizer.eod_token
        settings = {
            "tokenizer_class": CLASS,
            # In training, each document follows the token that ends the previous document, so that token
            # also begins a text.
            **dict.fromkeys(("bos_token", "eos_token"), token),
            "model_max_length": model_max_length,
            "clean_up_tokenization_spaces": False,
            # Without this, transformers 4 adds token_type_ids: generate() rejects them for Llama, and GPT-2
            # would add the embedding of token 0 to every position.
            "model_input_names": ["input_ids", "attention_mask"],
        }
        files.write_json(to / SETTINGS, settings)
    named = framing_ids(to, tokenizer.eod_id)["eos_token_id"]
    ends = {tokenizer.eod_id, *end_ids, *(() if named is None else (named,))}
    if give_padding(to, ends, vocab_size) == PADDING or tokenizer.added_tokens:
        _renew_list(to)
    return framing_ids(to, tokenizer.eod_id)


def _refuse_changed_vocabulary(kept: Path, sha256_of_names: Mapping[str, str]) -> None:
    """Raise DataError if a vocabulary file has changed, because its ids would mean different text.

    Settings and the chat template may be edited.
    """
    for name in (ONE_FILE, *CONTENT_FILES):
        path, known = kept / name, sha256_of_names.get(name)
        if path.is_file() and known is not None and files.sha256_of(path) != known:
            raise DataError(
                f"{display(path)}: the file has changed since the tokenizer was imported, so token ids would "
                f"mean different text. Restore the file, or remove {display(kept.parent)} and run `nbtrain "
                "prepare RUN.yaml`."
            )


def _renew_list(folder: Path) -> None:
    """Copy the added tokens of tokenizer.json to the list in tokenizer_config.json, if it has that list.

    Some classes of transformers 5 (Qwen2Tokenizer, GPT2Tokenizer) read added tokens only from the list and
    would split new ones into characters; transformers 4 reads tokenizer.json and adds the list's tokens. If
    both files list the same tokens, every version gives the ids of training. Without the list, both versions
    use tokenizer.json, but in a code path that their source calls legacy.
    """
    settings = settings_of(folder)
    if ADDED_LIST in settings:
        document = files.read_json(folder / ONE_FILE) or {}
        entries = {
            str(one["id"]): {key: one[key] for key in one if key != "id"} for one in document["added_tokens"]
        }
        files.write_json(folder / SETTINGS, {**settings, ADDED_LIST: entries})


def holds_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a tokenizer in any format, even one that an import would reject."""
    both = all((folder / name).is_file() for name in CONTENT_FILES)
    others = (*folder.glob("*.model"), *folder.glob("*.tiktoken"))
    return both or (folder / ONE_FILE).is_file() or any(others)


def entries_of(folder: Path) -> dict[str, int]:
    """Return the vocabulary of a folder's tokenizer as {token: id}; {} if its format cannot be read.

    Raises DataError for damaged files, and for a two-file vocabulary that is not GPT-2's.
    """
    document = files.read_json(folder / ONE_FILE)
    read = folder / (VOCABULARY if document is None else ONE_FILE)
    if document is None and read.is_file():
        refuse_other_than_gpt2(folder)
    try:
        if document is None:
            vocabulary = files.read_json(read) or {}
        else:
            vocabulary = document["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram: pairs of a token and its score
            vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
        added = (document or {}).get("added_tokens") or ()
        entries = {**vocabulary, **{entry["content"]: entry["id"] for entry in added}}
    except (KeyError, TypeError, IndexError):
        what = "a vocab.json in GPT-2's format" if document is None else "a tokenizer.json of HF tokenizers"
        raise DataError(f"{display(read)}: the file is not {what}. Copy or download it again.") from None
    for token, number in entries.items():
        if type(number) is not int or number < 0:
            raise DataError(
                f"{display(read)}: the id of {shortened(repr(token))} is {shortened(json.dumps(number))}; an "
                "id must be a whole number of at least 0. Copy or download the file again."
            )
    return entries


def framing_ids(folder: Path, default: int | None = None) -> dict[str, int | None]:
    """Return {bos_token_id, eos_token_id, pad_token_id} for the tokens in tokenizer_config.json.

    The id of a missing token is None, except that a missing eos id becomes `default`.
    """
    entries = entries_of(folder)
    found = {
        f"{kind}_token_id": entries.get(own_token(folder, f"{kind}_token") or "")
        for kind in ("bos", "eos", "pad")
    }
    if found["eos_token_id"] is None:
        found["eos_token_id"] = default
    return found


def chat_template(folder: Path) -> tuple[str, Path] | None:
    """Return (the chat template that transformers would use from a folder, its file); None if there is none.

    Raises ValueError if the file is not text or not JSON.
    """
    if (folder / CHAT_TEMPLATE).is_file():
        return (folder / CHAT_TEMPLATE).read_text(encoding="utf-8"), folder / CHAT_TEMPLATE
    found = settings_of(folder).get("chat_template")
    if isinstance(found, list):
        # A list of named templates.
        found = next(
            (one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"),
            None,
        )
    return (found, folder / SETTINGS) if isinstance(found, str) else None


def is_as_given(directory: Path, sha256: str | None) -> bool:
    """Return whether the tokenizer in `directory` was imported from the tokenizer.json with this hash.

    It may have additional tokens (tokenizer.added_tokens), which do not change the ids of the other tokens.
    """
    manifest = read_manifest(directory) or {}
    return sha256 is not None and sha256 in (
        (manifest.get("kept") or {}).get(ONE_FILE),
        manifest.get("extends"),
    )
