"""Argument lists: tables of options, parsing as in argparse, and messages about unknown flags."""

import json
from pathlib import Path

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.foreign.syntax.flags import VERSIONS, choose_table, find_table, load_table, parse
from nbtrain.foreign.syntax.located import Word

SHARED = Path(__file__).parents[4] / "shared"
TARGETS = [f"{program}@{version}" for program, versions in VERSIONS.items() for version in versions]


def words(text: str) -> list[Word]:
    return [Word(word, f"a.sh:{number}") for number, word in enumerate(text.split(), start=1)]


def complaints(target: str, text: str) -> list[str]:
    found = parse(find_table(target), words(text)).complaints
    return [f"{one.place}: {one.message}" for one in found]


@pytest.mark.parametrize(
    ("target", "count"),
    list(zip(TARGETS, (228, 838, 290, 318))),
)
def test_a_table_holds_every_option(target, count):
    """A table has as many options as the program's parser, and no name twice."""
    table = find_table(target)
    assert (table.name, len(table.options)) == (target, count)
    assert len(table.by_flag) == sum(len(option.flags) for option in table.options)


@pytest.mark.parametrize("target", TARGETS)
def test_a_table_is_the_extracted_one(target):
    """A table has the flags, actions, types, numbers of values, choices and
    defaults of the extracted file.
    """
    source = SHARED / "reference" / "planner" / "flags" / f"{target.replace('@', '-')}.json"
    if not source.is_file():
        pytest.skip("no ../shared/reference/planner/flags next to the repository")
    rows = json.loads(source.read_text())["flags"]
    for option, row in zip(find_table(target).options, rows, strict=True):
        assert list(option.flags) == row["flags"]
        assert (option.dest, option.action, option.default) == (row["dest"], row["action"], row["default"])
        assert option.nargs == row.get("nargs") and list(option.choices or []) == row.get("choices", [])
        if option.action == "store":
            assert option.type == row["type"]


def test_values_are_taken_as_argparse_takes_them():
    """Values are parsed as argparse does: =value, one or several following values,
    negative numbers, switches.

    If a flag occurs twice, the last one wins.
    """
    text = "--num-layers=12 --lr -1 --rampup-batch-size 16 16 5859375 --fp16 --no-bias-gelu-fusion --lr 2e-4"
    found = parse(find_table("megatron-lm@d98e8a64"), words(text))
    assert found.complaints == ()
    values = {one.flag: one.value for one in found.settings}
    assert values == {
        "--num-layers": 12,
        "--lr": 2e-4,
        "--rampup-batch-size": [16, 16, 5859375],
        "--fp16": True,
        "--no-bias-gelu-fusion": False,
    }
    assert found.value("lr") == 2e-4 and found.get("lr").place == "a.sh:10"
    assert found.value("adam_beta2") == 0.999 and found.get("adam_beta2") is None


@pytest.mark.parametrize(
    ("target", "text", "expected"),
    [
        (
            "megatron-deepspeed@e7bff5ec",
            "--nccl-timeout 30",
            "a.sh:1: --nccl-timeout: megatron-deepspeed@e7bff5ec has no such flag. Nearest: "
            "--distributed-timeout-minutes.",
        ),
        (
            "megatron-lm@d98e8a64",
            "--save-dir=x",
            "a.sh:1: --save-dir: megatron-lm@d98e8a64 has no such flag. Nearest: --save.",
        ),
        (
            "megatron-lm@d98e8a64",
            "--layernorm-epsilon 1e-6",
            "a.sh:1: --layernorm-epsilon: megatron-lm@d98e8a64 has no such flag. Nearest: "
            "--norm-epsilon. megatron-lm@040eac94 has this flag.",
        ),
        (
            "megatron-lm@d98e8a64",
            "--fp8-hybrid",
            "a.sh:1: --fp8-hybrid: megatron-lm@d98e8a64 has no such flag. Nearest: "
            "--fp8-format. megatron-lm@040eac94 has this flag.",
        ),
        (
            "megatron-lm@040eac94",
            "--step-batch-size-schedule 0:16",
            "a.sh:1: --step-batch-size-schedule: megatron-lm@040eac94 has no such flag. "
            "Nearest: --rampup-batch-size. megatron-lm@d98e8a64 has this flag.",
        ),
        (
            "megatron-lm@d98e8a64",
            "--clip-gard 1",
            "a.sh:1: --clip-gard: megatron-lm@d98e8a64 has no such flag. Nearest: --clip-grad.",
        ),
        (
            "megatron-deepspeed@e7bff5ec",
            "--train-samples 2.5e6",
            "a.sh:2: --train-samples = 2.5e6: the value must be a whole number (argparse's "
            "int accepts neither 1e9 nor 2.5).",
        ),
        (
            "megatron-lm@d98e8a64",
            "--lr-decay-style cosin",
            "a.sh:2: --lr-decay-style = cosin: the value must be one of constant, linear, "
            "cosine, inverse-square-root, WSD. Nearest: cosine.",
        ),
        (
            "megatron-lm@d98e8a64",
            "--fp16=true",
            ("a.sh:1: --fp16=true: --fp16 is a switch without a value; write only --fp16, or remove it."),
        ),
        ("megatron-lm@d98e8a64", "--lr --fp16", "a.sh:1: --lr: the flag needs a value."),
        ("megatron-lm@d98e8a64", "--fp16 12", "a.sh:2: 12: this argument belongs to no flag."),
    ],
)
def test_what_the_program_would_refuse_is_named(target, text, expected):
    """A word that the program would refuse is reported with its place, the rule and the most similar flag."""
    assert complaints(target, text) == [expected]


def test_a_text_that_bash_split_is_named_once():
    """Words on the line of a flag with one value are one error, which shows the quotes that bash needs."""
    texts = ("--bf16", "--step-batch-size-schedule", "0:16", "2.4B:320", "12B:1536", "--lr", "1e-4")
    (complaint,) = parse(find_table("megatron-lm"), [Word(text, "a.sh:1") for text in texts]).complaints
    assert complaint.message == "2.4B:320 12B:1536: these arguments belong to no flag."
    assert complaint.fix.startswith(
        "If these arguments belong to the value of --step-batch-size-schedule, quote the array"
    )


def test_a_variable_that_no_shell_reads_is_filled_in_before():
    """A variable in a container's command is a text to the program; the error names the command that fills
    it in.
    """
    texts = ("--num-layers", "${LAYERS}", "--hidden-size", "x")
    found = parse(find_table("megatron-lm"), [Word(text, "a.yaml:1", ()) for text in texts]).complaints
    assert [complaint.fix for complaint in found] == [
        "Fill in the variables first: envsubst < FILE > NEW_FILE.",
        "Correct it.",
    ]


def test_a_value_that_the_shell_fills_in_is_no_complaint():
    """$1 and $(...) are accepted unchanged and only reported when their value is needed."""
    found = parse(find_table("megatron-lm"), words("--num-layers $1 $EXTRA_ARGS"))
    assert found.complaints == () and found.settings[0].word.from_outside == "$1"


def test_program_and_version_are_chosen_by_the_flags():
    """DeepSpeed's flags identify the program, and the newest flags identify the version."""
    assert choose_table(words("--deepspeed --train-tokens 5")).name == "megatron-deepspeed@e7bff5ec"
    assert choose_table(words("--ds-sequence-parallel-size 2")).name == "megatron-deepspeed@f4157bea"
    assert choose_table(words("--attention-backend auto")).name == "megatron-lm@d98e8a64"
    assert choose_table(words("--num-layers 2")).name == "megatron-lm@040eac94"
    assert choose_table(words("--num-layers 2"), "Megatron-DeepSpeed/pretrain_gpt.py").program == (
        "megatron-deepspeed"
    )


def test_an_unknown_target_is_named_with_the_known_ones():
    """An unknown program or version is refused with a list of the known ones."""
    with pytest.raises(ConfigError, match="no such program; known: megatron-lm, megatron-deepspeed"):
        find_table("megatrn-lm")
    with pytest.raises(ConfigError, match="known: megatron-lm@040eac94, megatron-lm@d98e8a64"):
        find_table("megatron-lm@12345678")
    assert load_table("megatron-lm", "d98e8a64") is find_table("megatron-lm")


def test_of_equal_versions_the_one_that_takes_the_values_is_chosen():
    """If the flags do not decide the version, their values do: HuggingFaceTokenizer was added after 2023."""
    words = [Word(text, "a.sh:1") for text in ("--tokenizer-type", "HuggingFaceTokenizer", "--bf16")]
    assert choose_table(words).name == "megatron-lm@d98e8a64"
    assert choose_table(words[2:]).name == "megatron-lm@040eac94"
