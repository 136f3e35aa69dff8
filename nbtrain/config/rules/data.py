"""Rules about the data and tokenizer sections: one function for each rule."""

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
    """Check that the vocabulary has at least two tokens: with a single token, there is nothing to predict."""
    if config.tokenizer.vocab_size < 2:
        yield broken(
            config,
            "tokenizer.vocab_size",
            f"must be at least 2: one end-of-document token ({config.tokenizer.eod_token}) and one text "
            "token. A tokenizer that nbtrain trains needs at least 257: the end-of-document token and 256 "
            "bytes.",
        )


def tokens_are_added_to_a_tokenizer(config: RunConfig) -> Problems:
    """Check that added_tokens extend an imported tokenizer, and that each token is visible text.

    A token must be listed once, and must not be the end-of-document token.
    """
    added, key = config.tokenizer.added_tokens, "tokenizer.added_tokens"
    if added and config.tokenizer.path is None:
        yield broken(
            config,
            key,
            "need an existing tokenizer to extend, but tokenizer.path is null.",
            "Set tokenizer.path to the tokenizer of the initial weights (if they come from a run: "
            "data/tokenizer/NAME, with that run's tokenizer.name), and set tokenizer.name to a new name.",
        )
    if twice := sorted({token for token in added if added.count(token) > 1}):
        yield broken(
            config,
            key,
            f"lists {', '.join(twice)} more than once.",
            "List each token once.",
        )
    for token in added:
        shown = token.replace("\u200c", "").replace("\u200d", "")  # joiners inside an emoji or letter
        if not shown.isprintable() or token != token.strip():
            yield broken(
                config,
                key,
                f"contains {token!r}, which is not visible text. A token may contain letters and symbols, "
                "with spaces between them, but no line breaks, tabs or control characters.",
            )
        elif len(token) == 1 and token.isascii():
            yield broken(
                config,
                key,
                f"contains {token}, a single ASCII character: every {token} in the text would become this "
                "token.",
                "Use a longer marker, such as <|user|>.",
            )
    if config.tokenizer.eod_token in added:
        yield broken(
            config,
            key,
            f"contains tokenizer.eod_token({config.tokenizer.eod_token}). That token marks the end of a "
            "document, so it must not occur in text.",
            "Remove this token from added_tokens.",
        )


def json_keys_name_files(config: RunConfig) -> Problems:
    """Check that each JSON key can be part of a file name, and that no key is listed twice."""
    data = config.data
    for key, values in (("json_key", [data.json_key]), ("extra_json_keys", data.extra_json_keys)):
        for value in values:
            if not re.fullmatch(r"\w[\w.-]*", value):
                shown = f"contains {value}, which " if key == "extra_json_keys" else ""
                yield broken(
                    config,
                    f"data.{key}",
                    f"{shown}becomes part of a file name: use only letters, digits, '_', '.' and '-', e.g. "
                    "text.",
                )
    keys = [data.json_key, *data.extra_json_keys]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        yield broken(
            config,
            "data.extra_json_keys",
            f"and data.json_key({data.json_key}) together list {', '.join(twice)} more than once. List each "
            "key once.",
        )


def extra_keys_are_in_the_records(config: RunConfig) -> Problems:
    """Check that the records of every source have named keys if extra_json_keys are set."""
    data = config.data
    without = [source.kind for source in data.sources if source.kind not in TEXT_KINDS]
    if data.extra_json_keys and without:
        yield broken(
            config,
            "data.extra_json_keys",
            "names keys of records, but data.sources has sources of kind "
            f"{', '.join(dict.fromkeys(without))}, whose records have no named keys.\n"
            f"  Set extra_json_keys: [], or use only sources of kind {', '.join(TEXT_KINDS)}.",
        )


def separators_are_lines(config: RunConfig) -> Problems:
    """Check that a document_separator is a single line, because it is compared with single lines."""
    for index, source in enumerate(config.data.sources):
        separator = getattr(source, "document_separator", None)
        if separator is not None and ("\n" in separator or "\r" in separator):
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{index}].document_separator = "
                f"{show(separator)}\n"
                "  is compared with single lines, so it must be one line without a line break, such as ---.",
            )


def paths_are_no_addresses(config: RunConfig) -> Problems:
    """Check that the path of each source is a file or a folder, not a URL."""
    for index, source in enumerate(config.data.sources):
        path = getattr(source, "path", None) or ""
        if problem := address_problem(path):
            yield mistake(config, "data.sources", f"data.sources[{index}].path = {show(path)}\n  {problem}")


def text_is_cut_in_one_way(config: RunConfig) -> Problems:
    """Check that no source sets both ways of splitting files into documents: at a separator and by size."""
    for index, source in enumerate(config.data.sources):
        if isinstance(source, TextSource) and None not in (source.document_separator, source.document_bytes):
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{index}] sets both document_separator and document_bytes, but a file is split "
                "either at a separator or by size.",
                "Remove one of the two.",
            )


def sentences_have_a_language(config: RunConfig) -> Problems:
    """Check that the language code is known.

    Text with an unknown code would be split by English rules without a warning.
    """
    code = config.data.split_sentences
    if code is not None and code not in LANGUAGES:
        yield broken(
            config,
            "data.split_sentences",
            "is not a language that the sentence splitter knows. It must be an ISO 639 code such as en, de "
            "or zh.\n"
            "  Set the language of the text. For a language without its own rules, the splitter uses the "
            "rules of a related language, or the English rules.",
        )


def blend_is_whole(config: RunConfig) -> Problems:
    """Check that each entry of data.blend names its dataset in exactly one way.

    A run with a blend must not have sources.
    """
    data = config.data
    for number, entry in enumerate(data.blend):
        if (entry.name is None) == (entry.prefix is None):
            found = "sets both name and prefix" if entry.name else "sets neither name nor prefix"
            yield mistake(
                config,
                "data.blend",
                f"data.blend[{number}] {found}. Set one of the two: name for a dataset in data/dataset/, or "
                "prefix for any pair of .bin and .idx files.",
            )
        elif entry.name == data.name:
            yield mistake(
                config,
                "data.blend",
                f"data.blend[{number}].name = {entry.name} is the same as data.name, but data.name is the "
                "folder of the blend's own index.",
                "Set data.name to another name.",
            )
    if data.blend and data.sources:
        yield mistake(
            config,
            "data.blend",
            "data.blend mixes existing datasets, and data.sources builds a dataset from text; a run can use "
            "only one of the two.\n"
            "  Prepare the sources as a dataset with its own name and add it to the blend, or set sources: "
            "[] or blend: [].",
        )


def packing_goes_with_the_options(config: RunConfig) -> Problems:
    """Check that a run with packing: best_fit has no blend and no option of packing: stream."""
    data = config.data
    if data.resolved_packing != "best_fit":
        return
    for option in STREAM_OPTIONS:
        if getattr(data, option):
            yield broken(
                config,
                f"data.{option}",
                "applies only to packing: stream. With best_fit, examples are always isolated from each "
                "other in attention, positions and loss.",
                f"Set {option}: false.",
            )
    if data.blend:
        yield broken(
            config,
            "data.packing",
            "packs examples from data.sources, weighted by source, and cannot read data.blend.",
            "Set packing: stream, or list the data in data.sources instead.",
        )
    if data.shuffle == "per_epoch":
        yield broken(
            config,
            "data.shuffle",
            "applies only to packing: stream. best_fit always packs and shuffles each epoch separately.",
            "Remove data.shuffle.",
        )


def weights_are_read(config: RunConfig) -> Problems:
    """Check that sources have weights only with packing: best_fit, the only packing that uses weights."""
    if config.data.resolved_packing == "best_fit":
        return
    for number, source in enumerate(config.data.sources):
        if isinstance(source, FineTuningSourceModel) and source.weight != 1.0:
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{number}].weight = {source.weight:g}\n"
                "  applies only to packing: best_fit. With packing: stream, each epoch reads all documents "
                "once.",
                "Set packing: best_fit, or remove the weight.",
            )


def index_samples_decide_something(config: RunConfig) -> Problems:
    """Check that index_samples is set only with Megatron's sample order.

    No other order depends on the number of samples.
    """
    data = config.data
    if data.index_samples is None:
        return
    if data.shuffle == "per_epoch" or data.resolved_packing == "best_fit":
        why = "shuffle: per_epoch" if data.shuffle == "per_epoch" else "packing: best_fit"
        yield broken(
            config,
            "data.index_samples",
            f"has no effect with {why}, because the order of the data does not depend on the number of "
            "samples.",
            "Set index_samples: null.",
        )


def attention_backend_takes_a_mask(config: RunConfig) -> Problems:
    """Check that a run with attention_backend: flash does not keep attention inside documents.

    torch's flash kernel supports only a causal mask, and no mask between documents.
    """
    if config.model.attention_backend == "flash" and config.data.isolates_documents:
        yield broken(
            config,
            "model.attention_backend",
            f"does not support masks between documents, which data.{config.data.isolating_setting} requires.",
            "Set attention_backend: auto, which uses flash attention within each document where possible.",
        )


def wiki_is_local_or_downloaded(config: RunConfig) -> Problems:
    """Check that a Wikipedia source with a path sets neither date nor mirror, which only a download uses."""
    for number, source in enumerate(config.data.sources):
        if not isinstance(source, WikiSource) or source.path is None:
            continue
        plain = {name: field.default for name, field in WikiSource.model_fields.items()}
        set_fields = [name for name in ("date", "mirror") if getattr(source, name) != plain[name]]
        if set_fields:
            options = " and ".join(set_fields)
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{number}] sets path, so that no dump is downloaded, but it also sets "
                f"{options}, which only a download uses.",
                f"Remove path to download the dump, or remove {options} to read the file.",
            )


def document_sizes_are_ordered(config: RunConfig) -> Problems:
    """Check that min_bytes is less than max_bytes. Otherwise every document would be dropped."""
    cleaning = config.data.cleaning
    if cleaning.max_bytes is not None and cleaning.min_bytes >= cleaning.max_bytes:
        yield broken(
            config,
            "data.cleaning.min_bytes",
            f"must be less than max_bytes({cleaning.max_bytes}); otherwise every document would be dropped.",
        )


def workers_are_one_kind(config: RunConfig) -> Problems:
    """Check that Dask workers have a scheduler or a cluster to start, and that local workers have neither."""
    workers = config.data.workers
    given = [key for key in ("address", "cluster") if getattr(workers, key) is not None]
    if workers.kind == "local":
        for key in given:
            yield broken(
                config,
                f"data.workers.{key}",
                "applies only to a Dask scheduler, but data.workers.kind is local.",
                f"Set data.workers.kind: dask, or remove {key}.",
            )
    elif len(given) != 1:
        found = "both address and cluster are" if given else "neither address nor cluster is"
        yield broken(
            config,
            "data.workers.kind",
            f"needs a Dask scheduler, but {found} set. Set one of the two: address to use a running "
            "scheduler, or cluster: local or slurm to start one.",
        )
    elif workers.cluster == "slurm" and not workers.num_workers:
        yield broken(
            config,
            "data.workers.num_workers",
            "must be at least 1 with cluster: slurm. The default, the number of cores of this machine, does "
            "not apply to a cluster.",
        )
    if workers.kind == "dask" and config.data.num_prepare_workers:
        yield broken(
            config,
            "data.num_prepare_workers",
            "applies only to processes on this machine, but data.workers.kind is dask.",
            "Remove num_prepare_workers; to size a cluster that nbtrain starts, set "
            "data.workers.num_workers.",
        )


def scheduler_is_safe(config: RunConfig) -> Problems:
    """Check that a Dask scheduler on another machine uses TLS, its only authentication.

    Without TLS, anyone who can reach the scheduler's port can run code as the scheduler's user.
    """
    address = config.data.workers.address
    if address is None or address.startswith("tls://") or is_loopback(address):
        return
    yield broken(
        config,
        "data.workers.address",
        "must be tls://HOST:PORT, or tcp://127.0.0.1:PORT on this machine. Without TLS, anyone who can "
        "reach the port can run code as you.\n"
        "  Start the scheduler and its workers with --protocol tls, --tls-ca-file, --tls-cert and "
        "--tls-key, and set data.workers.tls_ca_file, tls_cert_file and tls_key_file. Or set cluster: local "
        "or slurm, and nbtrain starts them with TLS.",
    )


def is_loopback(address: str) -> bool:
    """Return whether a scheduler's address, with tcp:// or without a scheme, is a loopback address."""
    _, _, place = address.rpartition("://")
    host = place.rpartition(":")[0].strip("[]")
    if not address.startswith("tcp://") and "://" in address:
        return False
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_dataset_is_alone(config: RunConfig) -> Problems:
    """Check that a run with dataset() in its `code` file sets no other sources or document options.

    These settings would have no effect.
    """
    if not defines(config, "dataset"):
        return
    data = config.data
    cuts = {name: type(data).model_fields[name].default for name in CUT_OPTIONS}
    for key, is_set, value in (
        ("data.sources", bool(data.sources), "[]"),
        ("data.blend", bool(data.blend), "[]"),
        ("data.packing", data.packing == "best_fit", "stream"),
        *((f"data.{name}", getattr(data, name), "false") for name in STREAM_OPTIONS),
        # dataset() itself returns the splits, and each epoch shuffles the training samples.
        *((f"data.{name}", getattr(data, name) != value, show(value)) for name, value in cuts.items()),
        ("dpo", config.dpo is not None, "null"),
    ):
        if is_set:
            yield mistake(
                config,
                key,
                f"{key}\n"
                f"  has no effect, because the samples of this run come from dataset() in {config.code}.",
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
