"""Make the example files next to this file, the same ones each time: `python make.py`.

Questions for the type of a Python literal, in the forms that fine-tuning data are published in: prompt and completion
(questions.jsonl), Alpaca's (tasks.json), conversations (conversations.jsonl), and pairs of a better and a worse answer
(preferences.jsonl). No literal in them holds a 7 and none comes twice. All in held-out.jsonl and asked.jsonl do: the
model has seen none of those questions.
"""

import json
import random
from pathlib import Path

QUESTIONS, TASKS, CONVERSATIONS, PAIRS, HELD_OUT, ASKED = 200, 60, 400, 36, 60, 8
TYPES = ("int", "float", "list", "str")
FIRST = ("code", "data", "file", "host", "item", "key", "line", "list", "mode", "name", "path", "user")
SECOND = ("body", "count", "field", "index", "label", "size", "state", "text", "time", "type", "word")


def literals(count: int, seed: int, is_held_out: bool) -> list[tuple[str, str]]:
    """Return pairs (literal, its type). Either each literal contains a 7, or none does."""
    drawn = random.Random(seed)

    def number() -> str:
        return str(drawn.randrange(10, 1000))

    kinds = {
        "int": number,
        "float": lambda: f"{number()}.{drawn.randrange(10)}",
        "list": lambda: f"[{number()}, {number()}]",
        "str": lambda: f'"{drawn.choice(FIRST)}_{drawn.choice(SECOND)}_{number()}"',
    }
    found: dict[str, str] = {}
    while len(found) < count:
        kind = TYPES[len(found) % len(TYPES)] if is_held_out else drawn.choice(TYPES)
        literal = kinds[kind]()
        if ("7" in literal) == is_held_out:
            found.setdefault(literal, kind)
    return list(found.items())


def made() -> dict[str, str]:
    """{file: its text}."""
    drawn = iter(literals(QUESTIONS + TASKS + 2 * CONVERSATIONS + PAIRS, seed=1234, is_held_out=False))
    questions = [
        {"prompt": f"What is the type of {literal}?\n", "completion": f"Its type is {kind}."}
        for literal, kind in (next(drawn) for _ in range(QUESTIONS))
    ]
    tasks = [
        {"instruction": "Name the type of the literal.", "input": literal, "output": kind}
        for literal, kind in (next(drawn) for _ in range(TASKS))
    ]
    conversations = []
    for number in range(CONVERSATIONS):
        messages = []
        # Every fourth one continues with a second question.
        for opening in ["What is the type of", "And of"][: 1 + (number % 4 == 0)]:
            literal, kind = next(drawn)
            messages.append({"role": "user", "content": f"{opening} {literal}?"})
            messages.append({"role": "assistant", "content": f"Its type is {kind}."})
        conversations.append({"messages": messages})
    # Whole sentences are preferred to single words, and what is right to what is not.
    pairs = [
        {
            "prompt": f"What is the type of {literal}?\n",
            "chosen": f"Its type is {kind}.",
            "rejected": kind if number % 2 else f"Its type is {TYPES[TYPES.index(kind) - 1]}.",
        }
        for number, (literal, kind) in enumerate(next(drawn) for _ in range(PAIRS))
    ]
    asked = literals(HELD_OUT, seed=5678, is_held_out=True)
    held_out = [
        {
            "context": f"<|user|>\nWhat is the type of {literal}?\n<|assistant|>\nIts type is",
            "choices": [f"{each}." for each in TYPES],
            "answer": TYPES.index(kind),
            "group": kind,
        }
        for literal, kind in asked
    ]
    prompts = [{"prompt": f"What is the type of {literal}?\n"} for literal, _ in asked[:ASKED]]
    return {
        "questions.jsonl": _lines(questions),
        "tasks.json": "[\n" + ",\n".join(f"  {json.dumps(one)}" for one in tasks) + "\n]\n",
        "conversations.jsonl": _lines(conversations),
        "preferences.jsonl": _lines(pairs),
        "held-out.jsonl": _lines(held_out),
        "asked.jsonl": _lines(prompts),
    }


def _lines(values: list) -> str:
    return "".join(f"{json.dumps(one)}\n" for one in values)


if __name__ == "__main__":
    for name, text in made().items():
        (Path(__file__).parent / name).write_text(text, encoding="utf-8")
