"""Others' published figures in a comparison: the file, its errors with places, and the columns."""

import re

import pytest
import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.monitor.runs.compare import UNKNOWN, compared
from nbtrain.monitor.runs.published import MOST_ENTRIES, parse_published
from tests.conftest import SHARED
from tests.monitor.runs.test_compare import made

TEXT = """\
345M on 8 NPUs:
  samples/s: 59.7
  validation perplexity: 26.485
  steps: 500,000
  source: its page
345M on 8 GPUs:
  samples/s, mean of 100 steps: 37.8
  HellaSwag: 29
"""


@pytest.fixture
def run(workspace):
    speed = {"tokens_per_second": 9.0, "samples_per_second": 10.0, "consumed_samples": 20}
    return made(workspace, "one", {}, [(1, 3600)], loss=2.5, validation_loss=2.0, **speed)


def test_published_figures_are_columns(run):
    """A figure that the runs have is in their row and can be the best; any other one gets a row below."""
    found = compared([run], parse_published(TEXT, "others.yaml"))
    assert found["published"] == ["345M on 8 NPUs", "345M on 8 GPUs"] and found["names"] == ["one"]
    table = found["figures"]
    assert table["heads"] == ["result", "one", "345M on 8 NPUs", "345M on 8 GPUs"]
    rows = {row[0]: row[1:] for row in table["rows"]}
    assert rows["samples/s, mean of 100 steps"] == ["10.0", "59.7", "37.8"]
    assert rows["validation perplexity"] == ["7.39", "26.48", UNKNOWN]
    assert rows["steps"] == ["20 / 20", "500,000", UNKNOWN]
    assert [*rows][-2:] == ["source", "HellaSwag"] and rows["HellaSwag"] == [UNKNOWN, UNKNOWN, "29"]
    at = [row[0] for row in table["rows"]].index("samples/s, mean of 100 steps")
    assert (table["values"][at], table["better"][at]) == ([10.0, 59.7, 37.8], "high")
    assert all(len(row) == 4 for row in table["rows"]) and all(len(row) == 3 for row in table["values"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "others.yaml: the file is empty; published figures are a mapping"),
        ("- a", "others.yaml:1: published figures are a mapping from names to figures"),
        ("a:\n  loss: 2\nb: 3", "others.yaml:3: b = 3 must be a mapping of 1 to 100 figures"),
        ("a: {}", "others.yaml:1: a = {} must be a mapping of 1 to 100 figures"),
        ("a:\n  loss: .nan", "others.yaml:2: loss = .nan must be a finite number"),
        ("a:\n  loss: [1]", "others.yaml:2: loss = [1] must be a finite number"),
        ("a:\n  loss: 2.5 nats", "others.yaml:2: loss = 2.5 nats must be a number, because this row"),
        (
            "a:\n\n  samples/ s: 2",
            "others.yaml:3: 'samples/ s' is not a row of the comparison. Write 'samples",
        ),
        ("one:\n  loss: 2", "others.yaml:1: one is also the name of a compared run."),
        ("a:\n  loss: 2\na:\n  loss: 3", "a is written twice; keep one"),
        (
            "\n".join(f"a{number}: {{loss: 2}}" for number in range(25)),
            f"at most {MOST_ENTRIES}. Remove",
        ),
        (
            "a:\n" + "  loss: 2\n" * 8000,
            "others.yaml: the file has 78.1 KiB, but a file of published figures may have at most 64.0 KiB",
        ),
        ("a\ud800: {loss: 2}", "others.yaml: character 2 is half of a surrogate pair"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_the_fix(run, text, words):
    with pytest.raises(ConfigError) as error:
        compared([run], parse_published(text, "others.yaml"))
    assert words in str(error.value)


def test_the_results_of_the_ascend_example_come_out(run):
    """The table and the sentence of results of its page, as figures of nine columns."""
    path = SHARED / "reference" / "presets.md"
    if not path.is_file():
        pytest.skip("no ../shared/reference/presets.md next to the repository")
    part = path.read_text().partition("## 4. Ascend example")[2].partition("\n## 5.")[0]
    sizes = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) == 10 and re.fullmatch(r"[\d.]+[MB]", cells[0]):
            sizes[cells[0]] = {"sequence length": int(cells[4]), "global batch": int(cells[6])}
    assert [*sizes] == ["345M", "1.3B", "2.7B", "3.7B"]
    results = " ".join(part.partition("Results")[2].split())
    speeds = re.findall(r"([\d.]+[MB]) ([\d.]+) / (\d+\.\d+)", results)
    perplexities = re.search(r"PPL ([\d.]+) / ([\d.]+), 500k", results).groups()
    alone = re.search(r"competitor A: (\d+) / (\d+) \(PPL ([\d.]+) / ([\d.]+)", results).groups()
    entries = {}
    for place, device in enumerate(("NPU", "competitor V")):
        for size, *pair in speeds:
            entries[f"{size} {device}"] = sizes[size] | {"samples/s": float(pair[place])}
        entries[f"345M {device}"]["validation perplexity"] = float(perplexities[place])
    for place, device in enumerate(("NPU", "competitor A")):
        figures = {"samples/s": float(alone[place]), "validation perplexity": float(alone[2 + place])}
        entries[f"345M without model parallelism, {device}"] = figures
    found = compared([run], parse_published(yaml.safe_dump(entries, sort_keys=False), "ascend.yaml"))
    assert len(entries) == 10 and found["published"] == [*entries]
    table = {row[0]: dict(zip(found["figures"]["heads"][1:], row[1:])) for row in found["figures"]["rows"]}
    speed = table["samples/s, mean of 100 steps"]
    assert (speed["345M NPU"], speed["345M competitor V"]) == ("59.7", "37.8")
    assert (speed["3.7B NPU"], speed["1.3B competitor V"]) == ("4.6", "15.7")
    assert speed["345M without model parallelism, competitor A"] == "235.0"
    assert table["validation perplexity"]["345M NPU"] == "26.48"
    assert table["sequence length"]["2.7B NPU"] == "2,048 tokens"
    assert table["global batch"]["1.3B NPU"] == "32"
