"""Encode the same text with local processes and with a Dask cluster on this machine, in alternation.

    python tests/benchmarks/dask_workers.py [--text FILE.jsonl] [--megabytes 400] [--workers 1 2 4]
                                            [--rounds 3] [--pools local dask]

The text is installed source and documentation files, each once (or FILE.jsonl). A contender is `nbtrain data
encode` in a separate process: the tokenizer exists already, and the dataset and manifest are built. The
results are seconds from start to end and CPU seconds of all its processes, each as the median over the
rounds. `--megabytes 0` measures only the start and the end, with a text of one part.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.encode import given_texts, installed_texts, vocabulary, write_text

RUN = """
name: {name}
model: {{num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 128}}
tokenizer: {{name: benchmark, vocab_size: {vocab_size}, path: {tokenizer}}}
data: {{name: {name}, sources: [{{kind: jsonl, path: {text}}}]}}
batch: {{micro_batch_size: 1, global_batch_size: 1, train_tokens: 1280}}
lr_schedule: {{lr: 1.0e-3}}
"""


def overrides(pool: str, workers: int) -> list[str]:
    if pool == "local":
        return [f"data.num_prepare_workers={workers}"]
    return ["data.workers.kind=dask", "data.workers.cluster=local", f"data.workers.num_workers={workers}"]


def measure(run: Path, given: list[str]) -> tuple[float, float, str]:
    """Return (seconds, CPU seconds of all processes, SHA-256 of the .bin)."""
    command = [sys.executable, "-m", "nbtrain.cli", "data", "encode", str(run), "--force", *given]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(errors.decode()[-3000:])
    seconds = time.perf_counter() - begun
    manifest = json.loads(
        (Path(os.environ["NBTRAIN_DATA"]) / "dataset" / run.stem / "manifest.json").read_text()
    )
    sha256 = next(entry["sha256"] for name, entry in manifest["files"].items() if name.endswith(".bin"))
    return seconds, usage.ru_utime + usage.ru_stime, sha256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pools", nargs="+", choices=("local", "dask"), default=["local", "dask"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        os.environ |= {"NBTRAIN_WORKSPACE": folder, "NBTRAIN_DATA": f"{folder}/data"}
        text = workspace / "text.jsonl"
        source = given_texts(options.text) if options.text else installed_texts()
        written = write_text(text, source, max(options.megabytes * 1_000_000, 100_000))
        tokenizer, vocab_size = vocabulary(workspace, text)
        run = workspace / "measured.yaml"
        run.write_text(RUN.format(name="measured", text=text, tokenizer=tokenizer, vocab_size=vocab_size))
        measure(run, ["data.num_prepare_workers=1"])
        found: dict[tuple[int, str], list[tuple[float, float, str]]] = {}
        for _ in range(options.rounds):
            for workers in options.workers:
                for pool in options.pools:
                    entry = measure(run, overrides(pool, workers))
                    found.setdefault((workers, pool), []).append(entry)
        print(f"{written / 1e6:.0f} MB of text, {options.rounds} rounds; medians (least to most)\n")
        print(f"{'workers':>8}  {'pool':<6}{'seconds':>24}{'CPU s':>24}{'MB per CPU s':>14}  same .bin")
        shas = {sha256 for entries in found.values() for _, _, sha256 in entries}
        for (workers, pool), entries in found.items():
            wall, cpu = ([entry[index] for entry in entries] for index in (0, 1))
            shown = [
                f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
                for values in (wall, cpu)
            ]
            rate = written / 1e6 / statistics.median(cpu)
            print(f"{workers:>8}  {pool:<6}{shown[0]:>24}{shown[1]:>24}{rate:>14.1f}  {len(shas) == 1}")


if __name__ == "__main__":
    main()
