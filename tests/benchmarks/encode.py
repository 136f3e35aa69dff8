"""Encode text with each tokenizer engine in turn, in one call; the rest of the pipeline is the same.

    python tests/benchmarks/encode.py [--text FILE.jsonl] [--sizes 100 250] [--rounds 2] [--memory-mb 1000]

The text is installed source and documentation files, each once by its hash (or FILE.jsonl). It is never
repeated, because repetition favors engines that cache words. A contender is a separate process that makes
tokens, index and manifest from the text, as `nbtrain data encode` does. The results are CPU seconds of the
process and its children, as the median over the rounds, and the peak memory of the process (VmHWM). CPU
seconds grow when the machine is busy: check the load first.

datatrove's tokenizer, if it is installed, gets the first 10 MB. Engines that are not installed are skipped
with a message. The last table shows only memory, on seeded random words, so its speeds mean nothing.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nbtrain.corpus.tokenizer.folder import save

ENGINES = ("fastokens", "gigatoken", "tiktoken", "tokenizers")
SUFFIXES = {
    ".py",
    ".pyi",
    ".md",
    ".rst",
    ".txt",
    ".h",
    ".hpp",
    ".c",
    ".js",
    ".ts",
    ".html",
    ".css",
    ".json",
    ".xml",
    ".yaml",
}
LARGEST_FILE_BYTES = 1 << 20
DATATROVE_MB = 10
WORKSPACE_YAML = """
name: encode-benchmark
model: {{num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 128}}
tokenizer: {{name: benchmark, vocab_size: {vocab_size}, path: {tokenizer}}}
data: {{name: {name}, sources: [{{kind: jsonl, path: {text}}}], num_prepare_workers: 1}}
batch: {{micro_batch_size: 1, global_batch_size: 1, train_tokens: 1280}}
lr_schedule: {{lr: 1.0e-3}}
"""


# --- text -----------------------------------------------------------------------------------------


def installed_texts() -> Iterator[str]:
    """Yield source and documentation files of this machine, each text once."""
    seen: set[bytes] = set()
    roots = [
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        "/usr/share",
        "/usr/include",
        "/usr/lib",
    ]
    for root in dict.fromkeys(roots):
        for path in sorted(Path(root).rglob("*")):
            try:
                if path.suffix not in SUFFIXES or not 0 < path.stat().st_size <= LARGEST_FILE_BYTES:
                    continue
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest not in seen and not text.isspace():
                seen.add(digest)
                yield text


def given_texts(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)["text"]


def random_words() -> Iterator[str]:
    """Yield words that hardly ever repeat, so that an unbounded cache of an engine grows."""
    import numpy as np

    generator = np.random.default_rng(1234)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    while True:
        lengths = generator.integers(3, 12, 1000)
        drawn = "".join(letters[generator.integers(0, 26, int(lengths.sum()))])
        ends = np.cumsum(lengths).tolist()
        yield " ".join(drawn[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True))


def write_text(path: Path, texts: Iterator[str], num_bytes: int) -> int:
    """Write at most `num_bytes` of text as JSON lines, and return the number of lines."""
    written = 0
    with path.open("w", encoding="utf-8") as stream:
        for text in texts:
            written += len(text.encode())
            if written > num_bytes:
                break
            stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return min(written, num_bytes)


# --- one contender --------------------------------------------------------------------------------


def use_engine(engine: str) -> None:
    """Make the pipeline use `engine` instead of fastokens."""
    import numpy as np

    from nbtrain.corpus.tokenizer import tokenizer as module

    if engine == "fastokens":
        return
    module.Tokenizer.check_exact = lambda self, texts=(): None
    if engine == "tokenizers":
        module._best_engine = lambda: "tokenizers"
        return
    made = {}

    def of_gigatoken(self, texts):
        if "it" not in made:
            import gigatoken

            made["it"] = gigatoken.Tokenizer(str(self.directory / "tokenizer.json"))
        array = made["it"].encode_batch(list(texts)).layout
        offsets = np.asarray(array.offsets.data, np.int64)
        content = np.asarray(array.content.data)
        return content[offsets[0] : offsets[-1]], offsets - offsets[0]

    def of_tiktoken(self, texts):
        if "it" not in made:
            import tiktoken

            from nbtrain.corpus.tokenizer.training import GPT2_PATTERN
            from nbtrain.corpus.tokenizer.unfinished import byte_letters

            vocabulary = json.loads((self.directory / "vocab.json").read_text())
            byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
            ranks = {
                bytes(byte_of[letter] for letter in token): number
                for token, number in vocabulary.items()
                if number != self.eod_id
            }
            made["it"] = tiktoken.Encoding(
                "benchmark", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={}
            )
        rows = made["it"].encode_ordinary_batch(list(texts), num_threads=1)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return np.fromiter((number for row in rows for number in row), np.uint32, int(offsets[-1])), offsets

    module.Tokenizer.encode_batch = {"gigatoken": of_gigatoken, "tiktoken": of_tiktoken}[engine]


def child(engine: str, run: str) -> None:
    """Encode one dataset in a process of its own, which is measured as a whole."""
    if engine == "datatrove":
        return child_datatrove(run)
    from nbtrain.cli import __main__ as cli
    from nbtrain.cli.data import without_idle_threads

    without_idle_threads()
    use_engine(engine)
    if cli.main(["data", "encode", run]):
        raise SystemExit(1)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    dataset = Path(os.environ["NBTRAIN_DATA"]) / "dataset" / Path(run).stem
    manifest = json.loads((dataset / "manifest.json").read_text())
    files = manifest["files"]
    print(
        json.dumps(
            {
                "tokens": manifest["counts"]["tokens"],
                "sha256": next(entry["sha256"] for name, entry in files.items() if name.endswith(".bin")),
                "peak_mib": int(status["VmHWM"].split()[0]) / 1024,
            }
        )
    )


def child_datatrove(run: str) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    text, tokenizer, output = run.split("|")
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(Path(text).parent), glob_pattern=Path(text).name),
            DocumentTokenizer(
                output, tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", shuffle_documents=False
            ),
        ],
        tasks=1,
        logging_dir=output + "-logs",
    ).run()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps({"tokens": 0, "sha256": "", "peak_mib": int(status["VmHWM"].split()[0]) / 1024}))


def measure(engine: str, argument: str, workspace: Path) -> dict:
    """Return a contender's output and its CPU seconds, child processes included."""
    environment = {**os.environ, "NBTRAIN_WORKSPACE": str(workspace), "NBTRAIN_DATA": str(workspace / "data")}
    # The warm-up run leaves compiled modules, as an installation does.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        [sys.executable, __file__, "--child", engine, argument],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{engine} failed:\n{err[-3000:]}")
    return {**json.loads(out.splitlines()[-1]), "cpu_seconds": usage.ru_utime + usage.ru_stime}


# --- all of them ----------------------------------------------------------------------------------


def vocabulary(workspace: Path, text: Path) -> tuple[Path, int]:
    """Return GPT-2's vocabulary if the reference data exists; otherwise train one of
    50,257 entries on the text.
    """
    shared = Path(__file__).resolve().parents[3] / "shared" / "data" / "gpt2"
    if shared.is_dir():
        return shared, 50_257
    from nbtrain.corpus.tokenizer import training as tokenizer_training

    folder = workspace / "trained"
    trained = tokenizer_training.train(given_texts(text), 50_257, "tokenizers", train_bytes=20_000_000)
    save(trained, folder, {})
    (folder / "manifest.json").unlink()
    return folder, trained.get_vocab_size()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 250], metavar="MB")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--memory-mb", type=int, default=1000, help="0: no memory table")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(*options.child)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        (workspace / "notebooks").mkdir()
        (workspace / "examples" / "megatron-gpt").mkdir(parents=True)
        compare(options, workspace)


def compare(options: argparse.Namespace, workspace: Path) -> None:
    texts = {}
    for megabytes in (*options.sizes, DATATROVE_MB):
        texts[megabytes] = workspace / f"text-{megabytes}.jsonl"
        source = given_texts(options.text) if options.text else installed_texts()
        found = write_text(texts[megabytes], source, megabytes * 1_000_000)
        if found < 0.98 * megabytes * 1_000_000:
            print(f"only {found / 1e6:.0f} MB of text for {megabytes} MB: name more with --text")
    brought, vocab_size = vocabulary(workspace, texts[max(texts)])
    present = [name for name in ENGINES if importlib.util.find_spec(name)]
    for name in set(ENGINES) - set(present):
        print(f"{name} is not installed and is skipped")

    def run_yaml(text: Path, name: str) -> str:
        path = workspace / f"{name}.yaml"
        path.write_text(WORKSPACE_YAML.format(name=name, text=text, tokenizer=brought, vocab_size=vocab_size))
        return str(path)

    measure("fastokens", run_yaml(texts[DATATROVE_MB], "warm-up"), workspace)
    results: dict[tuple[str, int], list[dict]] = {}
    for turn in range(options.rounds):
        for megabytes in options.sizes:
            for engine in present:
                if engine in ("tokenizers", "tiktoken") and turn:
                    continue  # takes minutes: only once
                if engine == "tiktoken" and megabytes != options.sizes[0]:
                    continue
                run = run_yaml(texts[megabytes], f"{engine}-{megabytes}-{turn}")
                results.setdefault((engine, megabytes), []).append(measure(engine, run, workspace))
    print_speed(results, options.sizes, texts)
    if importlib.util.find_spec("datatrove"):
        print_datatrove(workspace, brought, texts[DATATROVE_MB], run_yaml(texts[DATATROVE_MB], "ten"))
    else:
        print("datatrove is not installed and is skipped")
    if options.memory_mb:
        text = workspace / "random.jsonl"
        write_text(text, random_words(), options.memory_mb * 1_000_000)
        found = measure("fastokens", run_yaml(text, "random"), workspace)
        print(
            f"\npeak memory at {options.memory_mb:,} MB of seeded random words: {found['peak_mib']:.0f} MiB "
            "(at most 250)"
        )


def print_speed(results: dict, sizes: list[int], texts: dict[int, Path]) -> None:
    def cpu(engine: str, megabytes: int) -> float:
        return statistics.median(entry["cpu_seconds"] for entry in results[engine, megabytes])

    print(
        f"\n{'engine':<12}{'MB':>6}{'CPU s':>9}{'MB per CPU s':>15}{'of fastokens':>15}{'peak MiB':>10}  "
        "same .bin"
    )
    for (engine, megabytes), found in sorted(results.items(), key=lambda entry: (entry[0][1], entry[0][0])):
        seconds = cpu(engine, megabytes)
        same = found[0]["sha256"] == results["fastokens", megabytes][0]["sha256"]
        peak = max(entry["peak_mib"] for entry in found)
        rate, ratio = megabytes / seconds, seconds / cpu("fastokens", megabytes)
        print(f"{engine:<12}{megabytes:>6}{seconds:>9.2f}{rate:>15.1f}{ratio:>14.2f}x{peak:>10.0f}  {same}")
    if len(sizes) > 1 and ("gigatoken", sizes[0]) in results:
        small, large = sizes[0], sizes[-1]
        rates = {
            engine: (large - small) / (cpu(engine, large) - cpu(engine, small))
            for engine in ("fastokens", "gigatoken")
        }
        print(
            f"\nmarginal MB per CPU s, {small} to {large} MB: fastokens {rates['fastokens']:.0f}, gigatoken "
            f"{rates['gigatoken']:.0f}: {rates['fastokens'] / rates['gigatoken']:.2f}x of gigatoken's (at "
            "least 0.75)"
        )
        for megabytes in sizes:
            ratio = cpu("fastokens", megabytes) / cpu("gigatoken", megabytes)
            print(
                f"whole process at {megabytes} MB: {ratio:.2f}x the CPU of the gigatoken variant (at most "
                "1.3)"
            )


def print_datatrove(workspace: Path, brought: Path, text: Path, run: str) -> None:
    tokenizer_json = workspace / "data" / "tokenizer" / "benchmark" / "tokenizer.json"
    theirs = measure("datatrove", f"{text}|{tokenizer_json}|{workspace / 'datatrove'}", workspace)
    ours = measure("fastokens", run, workspace)
    print(
        f"\ndatatrove DocumentTokenizer, {DATATROVE_MB} MB: {theirs['cpu_seconds']:.2f} CPU s, ours "
        f"{ours['cpu_seconds']:.2f}: {theirs['cpu_seconds'] / ours['cpu_seconds']:.1f}x"
    )


if __name__ == "__main__":
    main()
