"""Sixty-four clients at once, some of them bad: each client's answers, and the server's state afterwards.

    python -m tests.serving.load [--seconds 120] [--size 14M]       prints docs/evidence/serving-load.md

48 use OpenAI's client, half of them with streams, and compare each text with the one generated alone; 4
disconnect in the middle of a stream; 4 read it slowly; 4 send bodies that are too large, truncated or
invalid; 4 send bytes that are not HTTP, or half a request, and hang up.
"""

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
import openai
import psutil

from nbtrain.serving.launched import Server
from nbtrain.serving.options import ServeOptions
from tests.benchmarks.generate_cpu import SIZES
from tests.inference import saved

GOOD, LEAVING, SLOW, BROKEN, RAW = 48, 4, 4, 4, 4
PROMPTS = [[number, *range(1, 2 + number % 40)] for number in range(1, 25)]
TOKENS = (4, 8, 16, 24)
BAD_BODIES = (
    b"{",
    b"[]",
    b'{"prompt": 5}',
    b'{"prompt": "a", "n": 1000}',
    b'{"prompt": "' + b"a" * 2_000_000 + b'"}',
    b'{"prompt": "a", "max_tokens": 1000000}',
    b"\x00\xff" * 100,
)
NO_HTTP = (
    b"\x16\x03\x01",
    b"GET / HTTP/9\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
)


@dataclass
class Seen:
    """Counts of the answers that the clients received."""

    good: Counter = field(default_factory=Counter)
    """Number of answers to well-behaved clients by result: "ok", "wrong text", or the class of the error."""
    statuses: Counter = field(default_factory=Counter)
    """Number of answers to bad requests by HTTP status."""
    left: int = 0
    slow: int = 0
    raw: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    """Seconds until each stream returned its first text."""
    seconds: float = 0.0
    grown_bytes: int = 0

    def problems(self) -> list[str]:
        """Return the failures that must not occur."""
        found = [
            f"{count} x {what}" for what, count in self.good.items() if what not in ("ok", "RateLimitError")
        ]
        found += [f"status {status}" for status in self.statuses if not 400 <= status < 500]
        for name in ("left", "slow", "raw"):
            found += [] if getattr(self, name) else [f"no client: {name}"]
        return found if self.good["ok"] else [*found, "no answer"]


async def load(server: Server, seconds: float) -> Seen:
    """Run all clients at the same time, for the given number of seconds."""
    seen, chance = Seen(), random.Random(0)
    limits = httpx.Limits(max_connections=None)
    process = psutil.Process(server._process.pid)
    async with openai.AsyncOpenAI(
        base_url=server.base_url,
        api_key=server.token,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(limits=limits, timeout=300),
    ) as client:
        alone = {}
        for number, prompt in enumerate(PROMPTS):
            count = TOKENS[number % len(TOKENS)]
            answer = await client.completions.create(**asked(prompt, count))
            alone[number] = answer.choices[0].text
        before, started = process.memory_info().rss, time.monotonic()
        end = started + seconds
        bad = httpx.AsyncClient(headers={"authorization": f"Bearer {server.token}"}, timeout=300)
        async with bad, asyncio.TaskGroup() as clients:
            for number in range(GOOD):
                clients.create_task(good(client, seen, alone, end, number % 2 == 0, random.Random(number)))
            for _ in range(LEAVING):
                clients.create_task(leaving(client, seen, end, chance))
            for _ in range(SLOW):
                clients.create_task(slow(client, seen, end))
            for _ in range(BROKEN):
                clients.create_task(broken(bad, server.base_url, seen, end, chance))
            for _ in range(RAW):
                clients.create_task(raw(server.url, seen, end, chance))
        seen.seconds = time.monotonic() - started
        seen.grown_bytes = process.memory_info().rss - before
        # The server is in its initial state again.
        for number, prompt in enumerate(PROMPTS[:4]):
            answer = await client.completions.create(**asked(prompt, TOKENS[number % len(TOKENS)]))
            seen.good["ok" if answer.choices[0].text == alone[number] else "wrong text"] += 1
    return seen


def asked(prompt: list[int], count: int) -> dict:
    more = {"ignore_eos": True}
    return {"model": "loaded", "prompt": prompt, "max_tokens": count, "temperature": 0, "extra_body": more}


async def good(client, seen: Seen, alone: dict[int, str], end: float, streams: bool, chance) -> None:
    """Send requests until the time is over and at least one has been answered: a busy server may reject
    requests for a while, but not indefinitely.
    """
    answered = False
    while time.monotonic() < end or not answered:
        number = chance.randrange(len(PROMPTS))
        count = TOKENS[number % len(TOKENS)]
        started = time.monotonic()
        try:
            answer = await client.completions.create(**asked(PROMPTS[number], count), stream=streams)
            if streams:
                text = ""
                async for chunk in answer:
                    if not text and chunk.choices[0].text:
                        seen.first.append(time.monotonic() - started)
                    text += chunk.choices[0].text
            else:
                text = answer.choices[0].text
        except openai.APIError as error:
            # The error of a failed connection has no details, but its cause has.
            cause = f" ({error.__cause__!r})" if error.__cause__ is not None else ""
            seen.good[type(error).__name__ + cause] += 1
            await asyncio.sleep(0.2)
            continue
        seen.tokens += count
        answered = True
        seen.good["ok" if text == alone[number] else "wrong text"] += 1


async def leaving(client, seen: Seen, end: float, chance) -> None:
    while time.monotonic() < end:
        with contextlib.suppress(openai.RateLimitError):
            stream = await client.completions.create(**asked([5, 6], 60), stream=True)
            for _ in range(chance.randrange(1, 5)):
                await anext(aiter(stream), None)
            await stream.close()
            seen.left += 1
        await asyncio.sleep(chance.random())


async def slow(client, seen: Seen, end: float) -> None:
    while time.monotonic() < end:
        with contextlib.suppress(openai.RateLimitError):
            stream = await client.completions.create(**asked([7, 8], 40), n=2, logprobs=5, stream=True)
            async for _ in stream:
                await asyncio.sleep(0.05)
            seen.slow += 1
        await asyncio.sleep(0.1)


async def broken(client: httpx.AsyncClient, url: str, seen: Seen, end: float, chance) -> None:
    while time.monotonic() < end:
        body = chance.choice(BAD_BODIES)
        headers = {"content-type": "application/json"}
        with contextlib.suppress(httpx.TransportError):
            # A body that is too large is refused before it has been read.
            answer = await client.post(f"{url}/completions", content=body, headers=headers)
            seen.statuses[answer.status_code] += 1
        await asyncio.sleep(0.05)


async def raw(url: str, seen: Seen, end: float, chance) -> None:
    host, port = url.removeprefix("http://").split(":")
    while time.monotonic() < end:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(chance.choice(NO_HTTP))
        with contextlib.suppress(ConnectionError, TimeoutError):
            await writer.drain()
            if chance.random() < 0.5:
                async with asyncio.timeout(0.2):
                    await reader.read(100)
        writer.close()
        seen.raw += 1
        await asyncio.sleep(0.1)


def figures(server: Server) -> dict[str, float]:
    """Return the current values of /metrics, such as nbtrain_running_texts, summed over their labels."""
    headers = {"authorization": f"Bearer {server.token}"}
    found: Counter = Counter()
    for line in httpx.get(f"{server.url}/metrics", headers=headers).raise_for_status().text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0]] += float(value)
    return found


def table(seen: Seen, what: str) -> str:
    """Return the result as Markdown."""
    first = sorted(seen.first)
    rate = seen.tokens / seen.seconds
    bad = ", ".join(f"{count:,} x {status}" for status, count in sorted(seen.statuses.items()))
    good = ", ".join(f"{count:,} {name}" for name, count in seen.good.most_common())
    rows = [
        (f"64 clients, {seen.seconds:.0f} s", what),
        ("48 with OpenAI's client, every text compared", good),
        ("their tokens", f"{seen.tokens:,}, {rate:.0f} a second"),
        (
            "to the first text of a stream",
            f"median {statistics.median(first):.2f} s, 95 % within {first[int(0.95 * len(first))]:.2f} s",
        ),
        ("4 that left in the middle", f"{seen.left:,} streams left"),
        ("4 slow readers", f"{seen.slow:,} streams read to their end"),
        ("4 with bodies too large, broken or wrong", bad),
        ("4 with no HTTP", f"{seen.raw:,} connections"),
        ("memory of the server's process", f"{seen.grown_bytes / 2**20:+.1f} MiB"),
    ]
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {left} | {right} |" for left, right in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--size", choices=[*SIZES, "small"], default="14M")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    overrides = {}
    if options.size in SIZES:
        layers, hidden, heads, vocabulary, positions, _ = SIZES[options.size]
        overrides = {
            "model.num_layers": layers,
            "model.hidden_size": hidden,
            "model.num_attention_heads": heads,
        }
        overrides |= {"model.seq_length": positions, "tokenizer.vocab_size": vocabulary}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NBTRAIN_WORKSPACE"] = folder
        run = saved.save_run("loaded", overrides, std=0.1)
        serve = ServeOptions(run=str(run.path), port=0, max_batch=16, max_queue=40, threads=options.threads)
        with Server(serve) as server:
            seen = asyncio.run(load(server, options.seconds))
            assert server.is_running
    print(table(seen, f"{options.size}, 16 texts at once, 40 may wait, {options.threads} thread"))
    print(*seen.problems(), sep="\n")


if __name__ == "__main__":
    main()
