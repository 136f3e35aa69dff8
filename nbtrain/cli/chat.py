"""`nbtrain chat RUN`: questions and answers in the terminal, until Ctrl-D."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli.output import show, show_text
from nbtrain.cli.serve import add_loading, add_sampling, generation_of
from nbtrain.cli.verbs import run_of, run_verb

YOU, FORGET = "you> ", "/new"


def add_verbs(under: Any) -> None:
    """Add the verb `nbtrain chat` to `under`, the subparsers of nbtrain."""
    text = (
        "Uses the chat template of the run's data or, if it has none, of the run's tokenizer. Type "
        f"{FORGET} to begin another conversation, press Ctrl-C to stop an answer and Ctrl-D to end the chat. "
        "Messages may also be piped in, one per line."
    )
    parser = run_verb(under, "chat", chat, text, "nbtrain chat gpt-tiny-instructions")
    add_sampling(parser)
    text = (
        "File with the chat template to use, written as in a run YAML or in Jinja. Default: the template of "
        "the run's data or, if it has none, of the run's tokenizer."
    )
    parser.add_argument("--chat-template", metavar="FILE", help=text)
    add_loading(parser)


def chat(options: argparse.Namespace) -> None:
    """Answer messages until the user ends the input."""
    from nbtrain.api.generate import loading_of
    from nbtrain.serving.conversation import Conversation

    run = run_of(options)
    loading = loading_of(run, options.step, options.dtype, options.tensor_parallel_size)
    with Conversation(loading, generation_of(options), options.chat_template) as conversation:
        show(
            f"{run.name}, step {conversation.step:,}, seed {options.seed}. Type {FORGET} to begin "
            "another conversation, and press Ctrl-D to end the chat.",
            sys.stderr,
        )
        if not conversation.has_template:
            show(
                f"{run.name} was not trained on conversations: it continues each text that you type. "
                "docs/finetuning.md explains how to train it on conversations.",
                sys.stderr,
            )
        for message in _messages():
            if message.strip() == FORGET:
                conversation.messages.clear()
                continue
            try:
                for piece in conversation.answer(message):
                    show_text(piece)
            except ConfigError as error:
                show(f"{type(error).__name__}: {error}", sys.stderr)
            except KeyboardInterrupt:
                pass
            print(flush=True)


def _messages() -> Iterator[str]:
    """Yield the non-empty lines of stdin; at a terminal, with a prompt and line editing."""
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        import readline  # noqa: F401  (input() then edits lines and remembers them)
    while True:
        try:
            line = input(YOU if at_terminal else "")
        except EOFError:
            return
        if line.strip():
            yield line
