"""Rules that join fields of the data section: one function for each rule."""

import ipaddress
import re
from collections.abc import Callable

from nbtrain.config.code_file import defines
from nbtrain.config.findings import mistake
from nbtrain.config.rules.wording import Problems, broken
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.data_section import LANGUAGES
from nbtrain.config.sections.sources import (
    TEXT_KINDS,
    FineTuningSourceModel,
    TextSource,
    WikiSource,
    address_problem,
)
from nbtrain.config.yaml_source import show

CUT_OPTIONS = ("split", "split_rule", "shuffle", "index_samples")
STREAM_OPTIONS = ("reset_position_ids", "inter_document_masking", "eod_mask_loss")


def vocabulary_holds_text(config: RunConfig) -> Problems:
    """A model with a single token has nothing to predict."""
    if config.tokenizer.vocab_size < 2:
        yield broken(
            config,
            "tokenizer.vocab_size",
            f"must be at least 2: {config.tokenizer.eod_token}, which ends documents, and one entry of "
            "text. A tokenizer that is trained has at least 257: that one and 256 bytes.",
        )


def tokens_are_added_to_a_tokenizer(config: RunConfig) -> Problems:
    """Added tokens need a tokenizer that is imported, are named once, and are not the end-of-document
    token.
    """
    added, key = config.tokenizer.added_tokens, "tokenizer.added_tokens"
    if added and config.tokenizer.path is None:
        yield broken(
            config,
            key,
            "are added to the tokenizer at tokenizer.path, which is null.",
            "Set path to the tokenizer of the weights (a run's is data/tokenizer/<its tokenizer.name>), "
            "and give tokenizer.name a new value.",
        )
    if twice := sorted({token for token in added if added.count(token) > 1}):
        yield broken(
            config,
            key,
            f"names {', '.join(twice)} twice.",
            "Name each token once.",
        )
    for token in added:
        shown = token.replace("\u200c", "").replace("\u200d", "")  # joiners inside one visible sign
        if not shown.isprintable() or token != token.strip():
            yield broken(
                config,
                key,
                f"has {token!r}, which is not visible text. A token may hold letters and signs, "
                "and spaces between them, but no line ends, tabs or control characters.",
            )
        elif len(token) == 1 and token.isascii():
            yield broken(
                config,
                key,
                f"has {token}, one character of ASCII: each {token} of a text would be this token.",
                "Use a longer marker, such as <|user|>.",
            )
    if config.tokenizer.eod_token in added:
        yield broken(
            config,
            key,
            f"has tokenizer.eod_token({config.tokenizer.eod_token}), which ends documents: a text must "
            "not hold it.",
            "Remove it.",
        )


def json_keys_name_files(config: RunConfig) -> Problems:
    """Each key is part of a file name in the dataset's folder, and has its own files."""
    data = config.data
    for key, values in (("json_key", [data.json_key]), ("extra_json_keys", data.extra_json_keys)):
        for value in values:
            if not re.fullmatch(r"\w[\w.-]*", value):
                shown = f"has {value}, which " if key == "extra_json_keys" else ""
                yield broken(
                    config,
                    f"data.{key}",
                    f"{shown}becomes part of a file's name: use letters, digits, '_', '.' and '-' only, e.g. "
                    "text.",
                )
    keys = [data.json_key, *data.extra_json_keys]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        yield broken(
            config,
            "data.extra_json_keys",
            f"names {', '.join(twice)} twice (data.json_key({data.json_key}) included); each key is "
            "encoded once.",
        )


def extra_keys_are_in_the_records(config: RunConfig) -> Problems:
    """The records of every source have named keys, in which the extra keys can be found."""
    data = config.data
    without = [source.kind for source in data.sources if source.kind not in TEXT_KINDS]
    if data.extra_json_keys and without:
        yield broken(
            config,
            "data.extra_json_keys",
            f"are keys of records, but records of kind {', '.join(dict.fromkeys(without))} in data.sources "
            "have no keys by name.\n"
            f"  Set extra_json_keys: [], or use {', '.join(TEXT_KINDS)}.",
        )


def separators_are_lines(config: RunConfig) -> Problems:
    """A document_separator is one line, because it is compared with single lines."""
    for index, source in enumerate(config.data.sources):
        separator = getattr(source, "document_separator", None)
        if separator is not None and ("\n" in separator or "\r" in separator):
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{index}].document_separator = "
                f"{show(separator)}\n"
                "  is compared with single lines: it must be one line without its line end, such as ---.",
            )


def paths_are_no_addresses(config: RunConfig) -> Problems:
    """Paths of sources are files and folders, not addresses."""
    for index, source in enumerate(config.data.sources):
        path = getattr(source, "path", None) or ""
        if problem := address_problem(path):
            yield mistake(config, "data.sources", f"data.sources[{index}].path = {show(path)}\n  {problem}")


def text_is_cut_in_one_way(config: RunConfig) -> Problems:
    """A file is split at a separator or by size, not both."""
    for index, source in enumerate(config.data.sources):
        if isinstance(source, TextSource) and None not in (source.document_separator, source.document_bytes):
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{index}] has document_separator and document_bytes; a file is split by one.",
                "Remove one of the two.",
            )


def sentences_have_a_language(config: RunConfig) -> Problems:
    """The language code is known. Text with an unknown code would be split by English rules, without a
    warning.
    """
    code = config.data.split_sentences
    if code is not None and code not in LANGUAGES:
        yield broken(
            config,
            "data.split_sentences",
            "is not a language that the splitter knows; it must be an ISO 639 code such as en, de or zh.\n"
            "  Set the language of the text. Sentences of a language without rules are found by the rules of "
            "a related one, or by English rules.",
        )


def blend_is_whole(config: RunConfig) -> Problems:
    """Each entry names its dataset in one way. A run with a blend has no sources."""
    data = config.data
    for number, entry in enumerate(data.blend):
        if (entry.name is None) == (entry.prefix is None):
            said = "both name and prefix" if entry.name else "neither name nor prefix"
            yield mistake(
                config,
                "data.blend",
                f"data.blend[{number}] has {said}; give one: name for a "
                "dataset in data/dataset/, prefix for any .bin/.idx.",
            )
        elif entry.name == data.name:
            yield mistake(
                config,
                "data.blend",
                f"data.blend[{number}].name = {entry.name} is data.name too, the folder that keeps the "
                "blend's own index.",
                "Give the blend another name.",
            )
    if data.blend and data.sources:
        yield mistake(
            config,
            "data.blend",
            "data.blend mixes datasets that exist, and data.sources makes a "
            "dataset from text: a run has one or the other.\n"
            "  Prepare the sources as a dataset with its own name and blend that one, or set sources: [] or "
            "blend: [].",
        )


def packing_goes_with_the_options(config: RunConfig) -> Problems:
    """Options of a stream and blends need packing: stream. With best_fit, examples are always kept apart."""
    data = config.data
    if data.resolved_packing != "best_fit":
        return
    for option in STREAM_OPTIONS:
        if getattr(data, option):
            yield broken(
                config,
                f"data.{option}",
                "is for packing: stream; best_fit always keeps examples apart in attention, positions and "
                "loss.",
                "Set it to false.",
            )
    if data.blend:
        yield broken(
            config,
            "data.packing",
            "packs the examples of data.sources, each source with its weight, and does not read data.blend.",
            "Set packing: stream, or list the sources.",
        )
    if data.shuffle == "per_epoch":
        yield broken(
            config,
            "data.shuffle",
            "is for packing: stream; best_fit always packs and shuffles each epoch by itself.",
            "Remove it.",
        )


def weights_are_read(config: RunConfig) -> Problems:
    """Weights of sources are set only with packing: best_fit, which is the only packing that reads them."""
    if config.data.resolved_packing == "best_fit":
        return
    for number, source in enumerate(config.data.sources):
        if isinstance(source, FineTuningSourceModel) and source.weight != 1.0:
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{number}].weight = {source.weight:g}\n  is for packing: best_fit; stream goes "
                "through all documents once in each epoch.",
                "Set packing: best_fit, or remove the weight.",
            )


def index_samples_decide_something(config: RunConfig) -> Problems:
    """index_samples is set only with Megatron's order, the only one that depends on the number of samples."""
    data = config.data
    if data.index_samples is None:
        return
    if data.shuffle == "per_epoch" or data.resolved_packing == "best_fit":
        why = "shuffle: per_epoch" if data.shuffle == "per_epoch" else "packing: best_fit"
        yield broken(
            config,
            "data.index_samples",
            f"has no effect with {why}, whose order does not depend on a number of samples.",
            "Leave it null.",
        )


def attention_backend_takes_a_mask(config: RunConfig) -> Problems:
    """torch's flash kernel supports only the causal mask."""
    if config.model.attention_backend == "flash" and config.data.isolates_documents:
        yield broken(
            config,
            "model.attention_backend",
            f"takes no mask between documents, but data has {config.data.isolating_setting}.",
            "Set attention_backend: auto, which uses flash attention inside each document if it can.",
        )


def wiki_is_local_or_downloaded(config: RunConfig) -> Problems:
    """date and mirror choose a download, so they cannot be combined with a path."""
    for number, source in enumerate(config.data.sources):
        if not isinstance(source, WikiSource) or source.path is None:
            continue
        plain = {name: field.default for name, field in WikiSource.model_fields.items()}
        said = [name for name in ("date", "mirror") if getattr(source, name) != plain[name]]
        if said:
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{number}] has a path, and {' and '.join(said)} for a download.",
                "Remove path to download the dump, or remove the rest to read the file.",
            )


def document_sizes_are_ordered(config: RunConfig) -> Problems:
    """min_bytes is less than max_bytes. Otherwise every document would be dropped."""
    cleaning = config.data.cleaning
    if cleaning.max_bytes is not None and cleaning.min_bytes >= cleaning.max_bytes:
        yield broken(
            config,
            "data.cleaning.min_bytes",
            f"must be less than max_bytes({cleaning.max_bytes}), or every document is dropped.",
        )


def workers_are_one_kind(config: RunConfig) -> Problems:
    """kind: dask has a running scheduler or a cluster that is started; kind: local has neither."""
    workers = config.data.workers
    given = [key for key in ("address", "cluster") if getattr(workers, key) is not None]
    if workers.kind == "local":
        for key in given:
            yield broken(
                config,
                f"data.workers.{key}",
                "is for a Dask scheduler, but data.workers.kind is local.",
                "Set kind: dask, or remove it.",
            )
    elif len(given) != 1:
        said = "both address and cluster" if given else "neither address nor cluster"
        yield broken(
            config,
            "data.workers.kind",
            f"has {said}; give one: address for a scheduler that runs, cluster: local or slurm for one "
            "that is started.",
        )
    elif workers.cluster == "slurm" and not workers.num_workers:
        yield broken(
            config,
            "data.workers.num_workers",
            "must be at least 1 with cluster: slurm: the number of cores of this machine does not apply "
            "to a cluster.",
        )
    if workers.kind == "dask" and config.data.num_prepare_workers:
        yield broken(
            config,
            "data.num_prepare_workers",
            "is for this machine's processes, but data.workers.kind is dask.",
            "Remove it; a cluster that is started has data.workers.num_workers.",
        )


def scheduler_is_safe(config: RunConfig) -> Problems:
    """A Dask scheduler on another machine uses TLS, its only authentication: without TLS, anyone who reaches
    it can run code as its owner.
    """
    address = config.data.workers.address
    if address is None or address.startswith("tls://") or is_loopback(address):
        return
    yield broken(
        config,
        "data.workers.address",
        "must be tls://HOST:PORT, or tcp://127.0.0.1:PORT on this machine: without TLS anyone who reaches "
        "the port can run code as you.\n"
        "  Start scheduler and workers with --protocol tls and --tls-ca-file, --tls-cert, --tls-key, and set "
        "data.workers.tls_ca_file, tls_cert_file and tls_key_file; or let cluster: local or slurm start "
        "them, always with TLS.",
    )


def is_loopback(address: str) -> bool:
    """Return whether the address of a scheduler, tcp:// or without a scheme, is reachable from this machine
    only.
    """
    _, _, place = address.rpartition("://")
    host = place.rpartition(":")[0].strip("[]")
    if not address.startswith("tcp://") and "://" in address:
        return False
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_dataset_is_alone(config: RunConfig) -> Problems:
    """With dataset() in the file of `code`, no other text and no option of documents is read."""
    if not defines(config, "dataset"):
        return
    data = config.data
    cuts = {name: type(data).model_fields[name].default for name in CUT_OPTIONS}
    for key, is_set, value in (
        ("data.sources", bool(data.sources), "[]"),
        ("data.blend", bool(data.blend), "[]"),
        ("data.packing", data.packing == "best_fit", "stream"),
        *((f"data.{name}", getattr(data, name), "false") for name in STREAM_OPTIONS),
        # dataset() cuts the splits, and each epoch shuffles the training samples.
        *((f"data.{name}", getattr(data, name) != value, show(value)) for name, value in cuts.items()),
        ("dpo", config.dpo is not None, "null"),
    ):
        if is_set:
            yield mistake(
                config,
                key,
                f"{key}\n  is not read: the samples of this run come from dataset() in {config.code}.",
                f"Set {key}: {value}, or remove dataset() from the file.",
            )


DATA_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    vocabulary_holds_text,
    tokens_are_added_to_a_tokenizer,
    json_keys_name_files,
    extra_keys_are_in_the_records,
    separators_are_lines,
    paths_are_no_addresses,
    text_is_cut_in_one_way,
    sentences_have_a_language,
    blend_is_whole,
    packing_goes_with_the_options,
    weights_are_read,
    index_samples_decide_something,
    attention_backend_takes_a_mask,
    wiki_is_local_or_downloaded,
    document_sizes_are_ordered,
    workers_are_one_kind,
    scheduler_is_safe,
    own_dataset_is_alone,
)
