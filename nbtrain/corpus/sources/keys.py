"""Rules for the keys of records in each kind of source, used by the readers and by the documentation.

    used      read: its value becomes part of the text or of the loss mask
    refused   the record counts as broken: training without the key would change its meaning
    counted   not read; prepare, the manifest and the data card report how many records have a value there

A key without a rule is counted, with one exception. In fine-tuning records and token ids, a key is refused if
its name and value look like a mark of what is trained on (is_masked: true, turnWeight: 0.5), or if it is
another spelling of a key with a rule (toolCalls, System-Prompt). Refused and optional keys that a source
lists in `ignored_keys` are only counted. docs/record-keys.md is generated from TABLES.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import orjson

from nbtrain.config.sections.sources import TEXT_KINDS
from nbtrain.corpus.files.file_kinds import split_of
from nbtrain.corpus.records import MOST_KEYS, Tally

Use = Literal["used", "refused", "counted"]


class RefusedKeys(ValueError):
    """Raised for a record with refused keys; the message names them and the fix."""


def holds_value(value: Any) -> bool:
    """Return whether a value holds data: null, "", [], {} and lists or objects of only these do not."""
    if value is None:
        return False
    if isinstance(value, str):
        return bool(value)
    if isinstance(value, dict):
        return any(map(holds_value, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_value, value))
    size = getattr(value, "size", 1)  # the size of a NumPy array
    return not isinstance(size, int) or size > 0


FLAGS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
"""Text spellings of flags, with their values."""


def number_of(value: Any) -> float | None:
    """Return a flag or number as a float, also from text such as "false" or "0.5"; None for other values."""
    if isinstance(value, str):
        text = value.strip().lower()
        try:
            return FLAGS[text] if text in FLAGS else float(text)
        except ValueError:
            return None
    return float(value) if isinstance(value, bool | int | float) else None


def is_flag_or_number(value: Any) -> bool:
    """Return whether a value could rate a record: a flag or a number, alone or in a list."""
    if isinstance(value, list):
        return any(map(is_flag_or_number, value))
    return number_of(value) is not None or getattr(value, "size", 0) > 0


def is_weight(value: Any) -> bool:
    """Return whether a weight or mark changes what is trained on: a list, or a number other than 1."""
    if isinstance(value, list):
        return any(number_of(entry) is not None or isinstance(entry, dict | list) for entry in value)
    return number_of(value) not in (None, 1) or getattr(value, "size", 0) > 0


def is_mark(value: Any) -> bool:
    """Return whether a value could mark what is trained on: a flag, a number or a list.

    Unlike is_weight(), this also holds for true and 1: under some keys they mean that the text is masked.
    """
    return is_weight(value) or number_of(value) is not None


def leaves_out(value: Any) -> bool:
    """Return whether a flag is set: a number or flag other than 0 and false."""
    return number_of(value) not in (None, 0)


def is_off(value: Any) -> bool:
    """Return whether a flag is 0 or false."""
    return number_of(value) == 0


def names_tools(value: Any) -> bool:
    """Return whether a value, which may be JSON text, holds at least one tool; the text "[]" does not."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return bool(value.strip())
    return holds_value(value)


def names_held_out_split(value: Any) -> bool:
    """Return whether a value is the name of a split that is not trained on: validation, dev, test, ..."""
    return isinstance(value, str) and split_of(value) not in (None, "train")


@dataclass(frozen=True)
class KeyRule:
    """A rule for a group of keys, either of a record or of its messages."""

    names: tuple[str, ...]
    use: Use
    what: str
    """Description of what the keys hold, for messages."""
    how: str = ""
    """A sentence on how the keys are used, for docs/record-keys.md."""
    fix: str = ""
    """Sentence that suggests a fix for a refused key, besides adding the key to ignored_keys."""
    setting: str | None = None
    """Field of the source that, if set, names another key to read instead."""
    unread: Use = "counted"
    """Treatment of the key in a record in which the reader does not use its value, although it does in other
    records: "counted" or "refused".
    """
    matters: Callable[[Any], bool] = holds_value
    """Function that tells whether a refused key's value changes what is trained on; if not, it is counted."""


@dataclass(frozen=True)
class KeyTable:
    """The rules of one kind of source."""

    record: tuple[KeyRule, ...]
    message: tuple[KeyRule, ...] = ()
    """Rules for the messages of the kind's conversations."""
    marks: bool = True
    """Whether unknown keys that look like marks are refused."""


# -- Rules that several kinds share -----------------------------------------------------------------------

MEDIA = KeyRule(
    (
        *("image", "images", "video", "videos", "audio", "audios", "objects", "image_url", "image_urls"),
        *(
            "video_url",
            "video_urls",
            "audio_url",
            "audio_urls",
            "img",
            "imgs",
            "picture",
            "pictures",
            "media",
        ),
        *("pixel_values", "image_path", "image_paths", "video_path", "video_paths", "audio_path"),
        *("audio_paths", "files", "attachments"),
    ),
    "refused",
    "images, video or audio",
    "The model reads only text.",
    fix="Remove such records.",
)
FEEDBACK = KeyRule(
    ("label", "labels", "kto_tag", "desirable"),
    "refused",
    "a rating of the answer, or a class label",
    "Refused if it is true, false or a number; text is only counted.",
    fix="Remove the bad answers, or make pairs for kind: preference.",
    matters=is_flag_or_number,
)
REJECTED = KeyRule(
    (
        *("rejected", "rejected_response", "rejected_messages", "rejected_answer"),
        *("non_preferred_output", "non_preferred_completion", "negative_messages"),
    ),
    "refused",
    "the worse answer of a pair",
    fix="Use kind: preference for pairs.",
)
MASKS = KeyRule(
    (
        *("loss_mask", "completion_mask", "prompt_mask", "assistant_masks", "assistant_mask"),
        *("attention_mask", "input_ids", "prompt_length", "prompt_len", "segments", "mask"),
    ),
    "refused",
    "token ids, or a mask of the tokens in the loss",
    fix="To train on token ids with their masks, use kind: tokens.",
)
WEIGHTS = KeyRule(
    (
        *("weight", "loss_weight", "sample_weight", "example_weight", "loss_scale"),
        *("train", "training", "trainable", "loss"),
    ),
    "refused",
    "a weight of the record, or a mark that excludes it from training",
    "The values 1 and true are only counted.",
    fix="Remove such records, or make one source for each weight and set its `weight`.",
    matters=is_weight,
)
LEFT_OUT = KeyRule(
    ("skip", "skipped", "ignore", "ignored", "exclude", "excluded"),
    "refused",
    "a mark that excludes it from training",
    "Refused if it is true; false is only counted.",
    fix="Remove such records. To exclude a single message from the loss, set train: false in that message.",
    matters=leaves_out,
)
KEPT = replace(
    LEFT_OUT,
    names=("include", "included", "keep"),
    how="Refused if it is false; true is only counted.",
    matters=is_off,
)
SPLIT = KeyRule(
    ("split", "data_split", "dataset_split"),
    "refused",
    "the split of the record, which is not the training split",
    "Refused if it names a validation or test split; other values are only counted.",
    fix="A model must not be trained on the text that it is evaluated on: move such records to another file.",
    matters=names_held_out_split,
)
TEMPLATE_OPTIONS = KeyRule(
    ("chat_template_kwargs", "chat_template"),
    "refused",
    "options for another program's chat template",
    fix="Write the text that they produce into the messages.",
)
EARLIER_TURNS = KeyRule(
    (
        *("history", "previous_turns", "past_turns"),
        *("chat_history", "conversation_history", "dialogue_history", "dialog_history"),
    ),
    "refused",
    "earlier questions and answers",
    fix="Use kind: chat, which reads system, history, question and answer as one conversation.",
)
CONTEXT = KeyRule(
    (
        *("context", "contexts", "rag_context", "documents", "retrieved_documents"),
        *("knowledge", "passage", "passages", "background"),
    ),
    "refused",
    "text that the question is about",
    fix="Put it into the question.",
)
QUESTION_PARTS = KeyRule(
    ("question", "query", "prefix", "suffix", "choices", "options"),
    "refused",
    "another part of the question",
    fix="Join the parts of the question in one key.",
)
SYSTEM_NAMES = (
    *("system", "system_prompt", "system_message", "system_instruction", "system_instructions"),
    *("system_msg", "sys_prompt"),
)
SYSTEM = KeyRule(
    (*SYSTEM_NAMES, "developer"),
    "refused",
    "a system prompt",
    fix="Put it into the prompt, or use kind: chat, which turns system prompt, question and answer into "
    "messages.",
)
TOOLS = KeyRule(
    (
        *("tools", "functions", "available_tools", "tool_list", "function_list"),
        *("tool_definitions", "tools_json"),
    ),
    "refused",
    "tools that the model may call",
    "A list, or a list as JSON text.",
    fix="Use kind: chat with tools_template.",
    matters=names_tools,
)
REASONING_NAMES = (
    *("reasoning_content", "reasoning", "reasoning_text", "thinking", "thinking_content"),
    *("thought", "thoughts", "think"),
)
OTHER_REASONING = ("cot", "chain_of_thought", "rationale", "scratchpad", "reasoning_details")
REASONING = KeyRule(
    (*REASONING_NAMES, *OTHER_REASONING),
    "refused",
    "reasoning before the answer",
    fix="Put it into the answer between your own tags, or use kind: chat with reasoning_template.",
)
# A mark decides whether its message is in the loss; without a mark, learn_roles decides.
MARKS = ("train", "training", "trainable", "weight", "loss", "loss_weight", "loss_mask", "loss_scale")
MASKED = "masked"
SPANS = ("train_detail", "training_detail")

# Rules for keys that the kinds prompt-completion and alpaca do not read.
OTHER_MEANINGS = (
    TOOLS,
    REASONING,
    MEDIA,
    FEEDBACK,
    REJECTED,
    MASKS,
    WEIGHTS,
    LEFT_OUT,
    KEPT,
    SPLIT,
    TEMPLATE_OPTIONS,
)

# -- The table --------------------------------------------------------------------------------------------

TEXT_KEYS = KeyTable(
    record=(
        KeyRule(("text",), "used", "the document", setting="text_key"),
        replace(
            MASKS,
            names=(
                *("loss_mask", "completion_mask", "prompt_mask", "assistant_masks", "assistant_mask"),
                *("prompt_length", "prompt_len", "train_detail"),
            ),
            fix="A text is always in the loss as a whole. For token ids with masks, use kind: tokens.",
        ),
        SPLIT,
    ),
    marks=False,
)
LABELS = "labels"
LOSS_MASKS = ("loss_mask", "completion_mask", "assistant_masks", "assistant_mask")
PROMPT_LENGTHS = ("prompt_length", "prompt_len")
DOCUMENT_LENGTHS = ("seq_lens", "seq_lengths")
DOCUMENT_PLACES = (*DOCUMENT_LENGTHS, "cu_seqlens", "position_ids")
TOKEN_KEYS = KeyTable(
    record=(
        KeyRule(("input_ids",), "used", "the token ids", setting="input_ids_key"),
        KeyRule(
            (LABELS,),
            "used",
            "the token's own id, or -100 for a token outside the loss",
            setting="labels_key",
            unread="refused",
        ),
        KeyRule(
            LOSS_MASKS,
            "used",
            "1 for a token in the loss, 0 for other tokens",
            "A token is in the loss if all masks and labels of the record say so.",
        ),
        KeyRule(PROMPT_LENGTHS, "used", "how many tokens at the beginning are outside the loss"),
        KeyRule(("attention_mask",), "used", "0 for padding at either end", "The padding is removed."),
        KeyRule(
            DOCUMENT_PLACES,
            "used",
            "where documents begin in a packed record",
            "The record is split there. `position_ids` start at 0 in each document.",
        ),
        KeyRule(
            ("special_tokens_mask", "segment_ids", "sequence_ids", "document_ids", "doc_ids"),
            "refused",
            "a mask of special tokens, or the document number of each token",
            fix="Mark the tokens in the loss with labels or loss_mask, and packed documents with seq_lens.",
        ),
        replace(
            WEIGHTS,
            names=(*WEIGHTS.names, "loss_weights", "token_weights", "weights"),
            what="weights of the record or of its tokens, or a mark that excludes it from training",
        ),
        replace(MEDIA, names=(*MEDIA.names, "image_grid_thw", "image_sizes")),
        LEFT_OUT,
        KEPT,
        SPLIT,
        KeyRule(("token_type_ids", "length", "text"), "counted", "values that do not affect training"),
    ),
)
PROMPT_COMPLETION_KEYS = KeyTable(
    record=(
        KeyRule(("prompt",), "used", "the text before the answer", setting="prompt_key"),
        KeyRule(("completion",), "used", "the answer", setting="completion_key"),
        SYSTEM,
        EARLIER_TURNS,
        CONTEXT,
        KeyRule(
            ("input", "instruction"),
            "refused",
            "another part of the question",
            fix="Use kind: alpaca, which reads instruction, input and output, or put it into the prompt.",
        ),
        QUESTION_PARTS,
        *OTHER_MEANINGS,
    ),
)
ALPACA_KEYS = KeyTable(
    record=(
        KeyRule(("instruction",), "used", "the task or question", setting="instruction_key"),
        KeyRule(("input",), "used", "the text that the task is about", "Optional.", setting="input_key"),
        KeyRule(("output",), "used", "the answer", setting="output_key"),
        replace(
            SYSTEM,
            use="used",
            how="Used by a `template` with {system}; refused without one.",
            fix="Set a template with {system} for this source, or use kind: chat, which reads the key.",
            unread="refused",
        ),
        EARLIER_TURNS,
        replace(
            CONTEXT,
            fix="If the key holds the input, set input_key to the key; otherwise add its text to the input.",
        ),
        QUESTION_PARTS,
        *OTHER_MEANINGS,
    ),
)
CONVERSATION_KEYS = (
    replace(
        SYSTEM,
        names=SYSTEM_NAMES,
        use="used",
        how="Becomes the first message.",
        fix="Refused if the messages already begin with a system message, or if both answers are text: keep "
        "the system prompt in one place.",
        unread="refused",
    ),
    replace(
        TOOLS,
        use="used",
        how=f"{TOOLS.how} Placed after the system message by `tools_template`; refused without it.",
        fix=r'Set tools_template, e.g. "# Tools\n{tools}", unless the messages already list the tools.',
        unread="refused",
    ),
    replace(CONTEXT, fix="Put it into a message."),
    TEMPLATE_OPTIONS,
    MASKS,
    WEIGHTS,
    LEFT_OUT,
    KEPT,
    SPLIT,
    MEDIA,
)
CONTENT_NAMES = ("content", "value", "text")
CALL_NAMES = ("tool_calls", "function_call")
MESSAGE_KEYS = (
    KeyRule(("role", "from"), "used", "the role of the speaker"),
    KeyRule(CONTENT_NAMES, "used", "the text of the message", "Text, or a list of parts of type text."),
    KeyRule(
        MARKS,
        "used",
        "whether the message is in the loss",
        "true or 1 includes it, false or 0 excludes it, whatever `learn_roles` is. Other values are refused.",
        fix="Put the mark on the message, not on a part of its content.",
        unread="refused",
        matters=is_weight,
    ),
    KeyRule(
        (MASKED,),
        "used",
        "true if the message is outside the loss",
        fix="Put the mark on the message, not on a part of its content.",
        unread="refused",
        matters=leaves_out,
    ),
    KeyRule(
        SPANS,
        "used",
        "spans of the content, {begin_offset, end_offset, train}, in characters, with end_offset included",
        "Only spans with train: true are in the loss. Each span is tokenized separately.",
        fix="Put the spans on the message, not on a part of its content.",
        unread="refused",
    ),
    LEFT_OUT,
    KEPT,
    replace(
        REASONING,
        names=REASONING_NAMES,
        use="used",
        how="Placed before the content by `reasoning_template`; refused without it.",
        fix=r'Set reasoning_template, e.g. "<think>\n{reasoning}\n</think>\n\n".',
        unread="refused",
    ),
    KeyRule(
        CALL_NAMES,
        "used",
        "tool calls",
        "Placed after the content by `tool_call_template`; refused without it.",
        fix=r'Set tool_call_template, e.g. "<tool_call>\n{tool_call}\n</tool_call>".',
        unread="refused",
        matters=names_tools,
    ),
    KeyRule(
        ("tool_call", "function_calls", "tool_use", "tool_uses"),
        "refused",
        "tool calls",
        fix="Rename the key to tool_calls.",
        matters=names_tools,
    ),
    replace(TOOLS, fix="Move the tools from the message to the record."),
    replace(REASONING, names=OTHER_REASONING, fix="Rename the key to reasoning_content."),
    KeyRule(
        (
            *("refusal", "channel", "recipient", "documents", "context", "history", "parts", "system"),
            *("tool_results", "tool_outputs", "tool_responses", "tool_response", "observation"),
        ),
        "refused",
        "further text of the message, or its purpose",
        fix="Put it into the content.",
    ),
    replace(FEEDBACK, names=("label", "labels")),
    MEDIA,
    KeyRule(
        ("name", "tool_call_id", "id", "prefix", "lang", "rank"),
        "counted",
        "names and numbers of a message, which no template uses",
    ),
)
QUESTION_NAMES = ("instruction", "query", "question")
ANSWER_NAMES = ("output", "response", "answer")
MESSAGES_NAMES = ("messages", "conversations", "conversation")
CHAT_KEYS = KeyTable(
    record=(
        KeyRule(
            MESSAGES_NAMES,
            "used",
            "the messages",
            "Read from the first key that holds a value: a list, a list as JSON text, or an object of lists.",
            setting="messages_key",
        ),
        KeyRule(
            ("prompt", "completion"),
            "used",
            "text or messages outside the loss, and the answer to them",
            "Read if the record has no messages. `prompt` alone may hold an OpenAssistant message tree.",
        ),
        KeyRule(
            (*QUESTION_NAMES, "input", *ANSWER_NAMES),
            "used",
            "a question, the text that it is about, and its answer",
            "Read if the record has no messages.",
        ),
        replace(EARLIER_TURNS, use="used", how="Placed before the question.", fix="", unread="refused"),
        KeyRule(
            ("message_id", "parent_id", "message_tree_id", "role", "text", "deleted"),
            "used",
            "one message of an OpenAssistant message tree",
        ),
        *CONVERSATION_KEYS,
        FEEDBACK,
        REJECTED,
        replace(REASONING, names=("reasoning_content", "thinking"), fix="Put it into the message."),
    ),
    message=MESSAGE_KEYS,
)
OTHER_PROMPT_NAMES = ("question", "instruction", "query", "input")
PREFERENCE_KEYS = KeyTable(
    record=(
        KeyRule(("prompt",), "used", "text or messages before both answers", setting="prompt_key"),
        KeyRule(("chosen",), "used", "the better answer: text or messages", setting="chosen_key"),
        KeyRule(("rejected",), "used", "the worse answer", setting="rejected_key"),
        KeyRule(
            MESSAGES_NAMES,
            "used",
            "messages before both answers",
            "Read if the answers are messages and the record has no prompt.",
        ),
        KeyRule(
            OTHER_PROMPT_NAMES,
            "refused",
            "another part of the question",
            fix="Join the parts in one key, and set prompt_key to that key.",
        ),
        *CONVERSATION_KEYS,
        EARLIER_TURNS,
        FEEDBACK,
        REASONING,
    ),
    message=MESSAGE_KEYS,
)
TABLES: dict[str, KeyTable] = {
    **dict.fromkeys(TEXT_KINDS, TEXT_KEYS),
    "tokens": TOKEN_KEYS,
    "prompt-completion": PROMPT_COMPLETION_KEYS,
    "alpaca": ALPACA_KEYS,
    "chat": CHAT_KEYS,
    "preference": PREFERENCE_KEYS,
}


# -- How readers apply the table --------------------------------------------------------------------------

MARK = KeyRule(
    (), "refused", "its name suggests a mask or weight that selects the text in the loss", matters=is_mark
)
TOKEN_VALUES = KeyRule(
    (),
    "refused",
    "a number for each token, which may select what is trained on",
    fix="Rename the key to labels if it holds labels, or to loss_mask if it holds a mask of 0 and 1.",
)
TOKEN_COUNT = KeyRule(
    (),
    "refused",
    "where a part of the tokens begins or ends",
    fix="If it counts the tokens at the beginning that are outside the loss, rename it to prompt_length.",
    matters=is_flag_or_number,
)
COUNTED = KeyRule((), "counted", "not read")
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
MARK_WORDS = frozenset(
    (
        *("mask", "masks", "masked", "masking", "unmasked", "loss", "losses", "label", "labels"),
        *("train", "training", "trainable", "trained", "untrained", "weight", "weights"),
        *("learn", "learnt", "learned", "learnable", "supervised", "unsupervised", "grad", "gradient"),
    )
)
PART_WORDS = frozenset(
    (
        *("prompt", "prompts", "source", "query", "question", "instruction", "context", "prefix"),
        *("response", "answer", "completion", "target", "output"),
    )
)
LENGTH_WORDS = frozenset(
    (
        *("len", "lens", "length", "lengths", "start", "end", "begin", "offset", "boundary"),
        *("tokens", "token", "count", "size", "idx", "index"),
    )
)


@lru_cache(maxsize=4096)
def looks_like_mark(name: str) -> bool:
    """Return whether a key's name suggests a mark of what is trained on: is_masked, turnWeight, no-loss."""
    return not MARK_WORDS.isdisjoint(words_of(name))


@lru_cache(maxsize=4096)
def looks_like_length(name: str) -> bool:
    """Return whether a key's name suggests where a part of a record begins or ends, as in source_len."""
    words = words_of(name)
    return not PART_WORDS.isdisjoint(words) and not LENGTH_WORDS.isdisjoint(words)


def words_of(name: str) -> set[str]:
    """Return the words of a key's name, in lower case."""
    return {word.lower() for word in WORDS.findall(name)}


@lru_cache(maxsize=4096)
def letters_of(name: str) -> str:
    """Return a key in lower case without separators: "toolcalls" for tool_calls, toolCalls and Tool-Calls."""
    return re.sub(r"[\W_]+", "", name).lower()


@dataclass
class RecordNotes:
    """Collects the keys of one record that hold values but were not read."""

    unread: set[str] = field(default_factory=set)
    """Counted keys that hold a value; keys of messages are written as messages[].key."""
    refused: dict[str, tuple[str, KeyRule]] = field(default_factory=dict)
    """Refused keys that hold a value, as {location in the record: (key, its rule)}."""

    def check(self, kind: str) -> None:
        """Raise RefusedKeys, which names the keys and the fix, if the record has a refused key."""
        if not self.refused:
            return
        places, rules = ", ".join(self.refused), [rule for _, rule in self.refused.values()]
        keys = ", ".join(dict.fromkeys(key for key, _ in self.refused.values()))
        meanings = "; ".join(dict.fromkeys(rule.what for rule in rules))
        verb = "hold values" if len(self.refused) > 1 else "holds a value"
        ignored = "the keys" if len(self.refused) > 1 else "the key"
        without = f"To ignore {ignored} in all records, add to this source: ignored_keys: [{keys}]"
        fixes = [*dict.fromkeys(rule.fix for rule in rules if rule.fix), without]
        raise RefusedKeys(f"{places} {verb} that kind: {kind} does not read ({meanings}). {' '.join(fixes)}")


class KeyPolicy:
    """A source's key rules for its records or for its messages, with the key names set in the source."""

    def __init__(self, rules: Iterable[KeyRule], config: Any, marks: bool):
        self._rules: dict[str, KeyRule] = {}
        self._marks = marks
        named: dict[str, KeyRule] = {}
        for rule in rules:
            own = getattr(config, rule.setting) if rule.setting else None
            if own is not None:
                named[own] = rule
            else:
                self._rules |= dict.fromkeys(rule.names, rule)
        self._ignored = frozenset(config.ignored_keys)
        self._rules |= {**named, **dict.fromkeys(self._ignored, COUNTED)}
        self._spellings = {
            letters_of(name): (name, rule)
            for name, rule in self._rules.items()
            if marks and (rule.setting or "refused" in (rule.use, rule.unread))
        }

    def readable(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return `names` without the names that the source ignores."""
        return tuple(name for name in names if name not in self._ignored)

    def has_rule(self, name: str) -> bool:
        """Return whether a key has its own rule or is ignored."""
        return name in self._rules

    def is_counted(self, name: str) -> bool:
        """Return whether a key is counted whatever its values are, so that its values need not be read."""
        return self._rule(name).use == "counted"

    def note_unread(
        self, value: Mapping[str, Any], read: Container[str], notes: RecordNotes, place: str = ""
    ) -> None:
        """Add the keys that hold values and are not in `read` to `notes`.

        `value` is a record, or the message of a record at `place`.
        """
        for name, entry in value.items():
            if name in read or entry is None or not holds_value(entry):
                continue
            rule = self._rule(name)
            use = rule.unread if rule.use == "used" else rule.use
            if use == "refused" and rule.matters(entry):
                notes.refused[f"{place}.{name}" if place else repr(name)] = name, rule
            else:
                notes.unread.add(f"messages[].{name}" if place else name)

    def _rule(self, name: str) -> KeyRule:
        rule = self._rules.get(name)
        if rule is not None:
            return rule
        known, rule = self._spellings.get(letters_of(name), ("", None))
        if rule is not None:
            if rule.use == "refused":
                return rule
            fix = f"If the key means the same as {known!r}, rename it to {known!r}."
            return replace(rule, use="refused", fix=fix, matters=holds_value)
        return MARK if self._marks and looks_like_mark(name) else COUNTED


class KeyCounter:
    """Counts the keys of plain-text records, fast enough for a million records per minute.

    Records that have the same keys in the same order are not checked key by key if all their keys hold values
    and are only counted.
    """

    def __init__(self, policy: KeyPolicy, read: tuple[str, ...]):
        self._policy, self._read = policy, read
        self._shapes: dict[tuple[str, ...], int] = {}

    def add(self, record: dict[str, Any], tally: Tally) -> bool:
        """Count the keys of a record. Return False if one of them is refused."""
        shape = tuple(record)
        count = self._shapes.get(shape)
        if count is not None and all(record.values()):
            self._shapes[shape] = count + 1
            return True
        notes = RecordNotes()
        self._policy.note_unread(record, self._read, notes)
        if notes.refused:
            return False
        tally.add_unread(notes.unread)
        is_counted = all(name in self._read or self._policy.is_counted(name) for name in shape)
        if count is None and is_counted and len(self._shapes) < MOST_KEYS:
            self._shapes[shape] = 0
        return True

    def finish(self, tally: Tally) -> None:
        """Add the counts of records that were not checked key by key to the tally."""
        for shape, count in self._shapes.items():
            tally.add_unread([name for name in shape if name not in self._read], count)
        self._shapes.clear()


def record_policy(config: Any) -> KeyPolicy:
    """Return the rules for the records of a source; `config` is its entry in data.sources."""
    table = TABLES[config.kind]
    return KeyPolicy(table.record, config, table.marks)


def message_policy(config: Any) -> KeyPolicy:
    """Return the rules for the messages of a source of conversations."""
    table = TABLES[config.kind]
    return KeyPolicy(table.message, config, table.marks)
