"""A conversation with a run's model in this process, for `nbtrain chat`.

With a chat template, each prompt contains all earlier messages, in the format of the run's training data or
of its imported tokenizer. A model without a chat template was not trained on conversations, so it continues
each text separately.
"""

from collections.abc import Iterator
from dataclasses import replace

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.config.generation import Generation
from nbtrain.config.load import load_resolved
from nbtrain.corpus.sources.chat import ASSISTANT
from nbtrain.serving.chat import AlpacaTemplate, ChatPrompt, NoTemplate, Suffix, template_of
from nbtrain.serving.engine_process import Loading
from nbtrain.serving.refusals import Refusal
from nbtrain.serving.resident import RESIDENT


class Conversation:
    """The messages so far and the model that answers them. The model stays loaded inside the `with` block."""

    def __init__(self, loading: Loading, generation: Generation, template_file: str | None = None):
        """Prepare a conversation without loading the model. `template_file` replaces the run's template."""
        self.messages: list[dict[str, str]] = []
        self._generation, self._template_file = generation, template_file
        self._loading = loading
        self._used = RESIDENT.used(loading)

    def __enter__(self) -> "Conversation":
        """Load the model and the chat template. Raises NbtrainError if one of them cannot be loaded."""
        self._engine = self._used.__enter__()
        try:
            config = load_resolved(RunDir(self._loading.run_dir).config_yaml)
            tokenizer = tokenizer_dir(config.tokenizer.name)
            self._template = template_of(config, self._template_file, tokenizer, self._engine.ready["eod"])
        except BaseException:
            self._used.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._used.__exit__(None, None, None)

    @property
    def step(self) -> int:
        """Step of the loaded checkpoint."""
        return self._engine.ready["step"]

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template. Without a template, the model continues each text separately."""
        return not isinstance(self._template, NoTemplate)

    @property
    def remembers(self) -> bool:
        """Whether an answer depends on earlier messages. Alpaca's template holds only one instruction."""
        return self.has_template and not isinstance(self._template, AlpacaTemplate)

    def answer(self, text: str) -> Iterator[str]:
        """Yield the answer to a message piece by piece, and add both to the conversation.

        Raises ConfigError if the template rejects the message, or if the message is too long for the model.
        """
        if not self.remembers:
            self.messages.clear()
        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            prompt = self._template.prompt(messages) if self.has_template else ChatPrompt([text])
        except Refusal as refusal:
            raise ConfigError(refusal.message) from None
        generation = replace(self._generation, stop=(*self._generation.stop, *prompt.stop))
        # As in a notebook, and unlike a server: a conversation that grows too long drops its beginning.
        request = {**generation.to_dict(), "prompt": prompt.pieces, "slides": True}
        suffix, pieces = Suffix(prompt.suffix), list[str]()
        try:
            for _, event in self._engine.stream(request):
                if "text" not in event:
                    continue
                if piece := suffix.add(event["text"], bool(event.get("finish_reason"))):
                    pieces.append(piece)
                    yield piece
        finally:
            self.messages = [*messages, {"role": ASSISTANT, "content": "".join(pieces)}]
