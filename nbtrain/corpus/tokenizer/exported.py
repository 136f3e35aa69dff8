"""A tokenizer beside an exported model, as transformers reads it.

    data/tokenizer/<name>/as-given/   the files of a tokenizer that was taken over, as they were (chat
                                      template, added tokens, settings); exported again, byte for byte, but
                                      for a list of added tokens if the run has added some. Else
    tokenizer.json                    the vocabulary, and
    tokenizer_config.json             the tokens that begin, end and pad a text, for PreTrainedTokenizerFast

tokenizer.json alone would load too, without a token that ends a text.
"""

import shutil
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.corpus.tokenizer.beginning import SETTINGS, own_token, settings_of
from nbtrain.corpus.tokenizer.folder import CONTENT_FILES, KEPT, ONE_FILE, read_manifest
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer

CHAT_TEMPLATE = "chat_template.jinja"
CLASS = "PreTrainedTokenizerFast"
# tokenizer_config.json's own list of added tokens, {id: entry}, as transformers 4 writes it.
ADDED = "added_tokens_decoder"


def write_tokenizer(directory: Path, to: Path, model_max_length: int) -> dict[str, int | None]:
    """Write the tokenizer in `directory` into the folder `to`; the ids of the tokens that frame a text.

    Returns {bos_token_id, eos_token_id, pad_token_id}. Raises DataError as Tokenizer.load does.
    """
    tokenizer = Tokenizer.load(directory)
    kept = directory / KEPT
    if kept.is_dir():
        shutil.copytree(kept, to, dirs_exist_ok=True)
    if not (to / ONE_FILE).exists():
        files.write_bytes(to / ONE_FILE, (directory / ONE_FILE).read_bytes())
    if tokenizer.added_tokens:
        _renew_list(to)
    if not (to / SETTINGS).exists():
        token = tokenizer.eod_token
        settings = {
            "tokenizer_class": CLASS,
            # A text begins as a document does in training: after the token that ends the one before.
            **dict.fromkeys(("bos_token", "eos_token", "pad_token"), token),
            "model_max_length": model_max_length,
            "clean_up_tokenization_spaces": False,
        }
        files.write_json(to / SETTINGS, settings)
    return framing_ids(to, tokenizer.eod_id)


def _renew_list(folder: Path) -> None:
    """Write the added tokens of tokenizer.json into the list of tokenizer_config.json, if it has one.

    Some classes of transformers 5 (Qwen2Tokenizer, GPT2Tokenizer) take their added tokens from the list alone
    and would cut new ones into letters; transformers 4 adds what the list has besides tokenizer.json. With
    equal lists every version has the ids of training. Without a list both would take tokenizer.json's, but
    by a path that their sources call legacy.
    """
    settings = settings_of(folder)
    if ADDED in settings:
        added = files.read_json(folder / ONE_FILE)["added_tokens"]
        entries = {str(one["id"]): {key: one[key] for key in one if key != "id"} for one in added}
        files.write_json(folder / SETTINGS, {**settings, ADDED: entries})


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer of any form, also of one that is refused when it is taken over."""
    both = all((folder / name).is_file() for name in CONTENT_FILES)
    others = (*folder.glob("*.model"), *folder.glob("*.tiktoken"))
    return both or (folder / ONE_FILE).is_file() or any(others)


def entries_of(folder: Path) -> dict[str, int]:
    """{token: id} of a folder's tokenizer; {} if it has no form that is read. Raises DataError for damage."""
    document = files.read_json(folder / ONE_FILE)
    try:
        if document is None:
            vocabulary = files.read_json(folder / CONTENT_FILES[1]) or {}
        else:
            vocabulary = document["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram: pairs of a token and its score
            vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
        added = (document or {}).get("added_tokens") or ()
        return {**vocabulary, **{entry["content"]: entry["id"] for entry in added}}
    except (KeyError, TypeError, IndexError):
        raise DataError(f"{display(folder / ONE_FILE)}: is not a tokenizer.json of HF tokenizers.") from None


def framing_ids(folder: Path, default: int | None = None) -> dict[str, int | None]:
    """The ids of bos, eos and pad that tokenizer_config.json names; `default` for an eos that it does not."""
    entries = entries_of(folder)
    found = {
        f"{kind}_token_id": entries.get(own_token(folder, f"{kind}_token") or "")
        for kind in ("bos", "eos", "pad")
    }
    if found["eos_token_id"] is None:
        found["eos_token_id"] = default
    return found


def chat_template(folder: Path) -> tuple[str, Path] | None:
    """(chat template, the file it is in) of a folder, as transformers looks for it; None if it has none.

    Raises ValueError if the file is no text or no JSON.
    """
    if (folder / CHAT_TEMPLATE).is_file():
        return (folder / CHAT_TEMPLATE).read_text(encoding="utf-8"), folder / CHAT_TEMPLATE
    found = settings_of(folder).get("chat_template")
    if isinstance(found, list):
        # Several that have names.
        found = next(
            (one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"),
            None,
        )
    return (found, folder / SETTINGS) if isinstance(found, str) else None


def is_as_given(directory: Path, sha256: str | None) -> bool:
    """Whether the tokenizer in `directory` was taken over from the tokenizer.json of this hash.

    It may have tokens more (tokenizer.added_tokens): the others have kept their ids.
    """
    manifest = read_manifest(directory) or {}
    return sha256 is not None and sha256 in (
        (manifest.get("kept") or {}).get(ONE_FILE),
        manifest.get("extends"),
    )
