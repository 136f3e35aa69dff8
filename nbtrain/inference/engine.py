"""Continuous batching: requests join and leave at every step, and shared prompt prefixes are copied.

    engine = Engine(runner, tokenizer)
    engine.add(Request("a", prompt, generation, slides=False))
    while not engine.is_idle:
        for event in engine.step(): ...

In one pass, a step reads the newest token of every text and up to prefill_tokens tokens of new prompts. Then
each text gets its next token. Slots 0 .. n-1 of the cache belong to the n running texts; when a text ends,
the last text moves into its slot. If a new prompt begins with tokens that another slot holds, they are copied
from that slot. Therefore several texts of one prompt read the prompt only once, and the next question of a
conversation reads only its new tokens.

Events of a generation request, in order:

    {"id", "prompt"}                                         first, if the request has echo
    {"id", "prompt_logprobs"}                                if log-probabilities are requested too
    {"id", "index", "text", "tokens", ["logprobs"]}          for new text; the last event of a text also has
                                                             "finish_reason" and "new_tokens"
    {"id", "end": True, "prompt_tokens", "new_tokens"}       once all texts of the request have ended

If one of end_ids ended a text and log-probabilities are requested, its last event has the entry of that token
as "end_logprob". The entries (logprobs.py) of new tokens also have an "offset": the position in the prompt
and the new text at which the token begins. A scoring request (scored.py) gets {"id", "index", "logprobs",
"greedy"} for each continuation, then the end.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from nbtrain.base.errors import ConfigError, ContextLengthError
from nbtrain.base.text.amounts import counted
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.inference import sampling
from nbtrain.inference.beams import Beams
from nbtrain.inference.choice import LENGTH, STOP, Choice, Event, Request
from nbtrain.inference.logprobs import logprobs_of
from nbtrain.inference.runner import Reading, Runner
from nbtrain.inference.scored import Scored, ScoreRequest, Scores, scores_of

PREFILL_TOKENS = 256
# While texts are only scored, no request waits for its next token, so a GPU gets larger passes. (On a CPU
# core, a pass of 4,096 tokens takes as long per token as one of 256.) MOST_LOGITS limits their logits to 1
# GiB in fp32.
SCORED_TOKENS_ON_GPU = 8192
MOST_LOGITS = 1 << 28
# Reading a shorter shared prefix is as fast as copying it.
LEAST_SHARED_TOKENS = 8


class Engine:
    """Generates texts with one model, for any number of requests."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        end_ids: frozenset[int] = frozenset(),
        prefill_tokens: int = PREFILL_TOKENS,
    ):
        self.runner, self.tokenizer, self.prefill_tokens = runner, tokenizer, prefill_tokens
        self.end_ids = end_ids | {tokenizer.eod_id}
        """Ids of the tokens that end a text."""
        on_gpu = runner.device.type != "cpu"
        self.scored_tokens = min(SCORED_TOKENS_ON_GPU, MOST_LOGITS // runner.vocab_size) if on_gpu else 0
        """Maximum number of tokens in a pass while texts are only scored, unless prefill_tokens is larger."""
        self.running: list[Choice | Scored] = []
        """Running texts by slot."""
        self.waiting: deque[Choice | Scored] = deque()
        self._requests: dict[str, Request | ScoreRequest] = {}
        self._beams: dict[str, Beams] = {}
        self._past: list[list[int]] = [[] for _ in range(runner.slots)]
        """Tokens whose keys and values each slot holds, from position 0 on."""
        self._events: list[Event] = []

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting and not self._events

    def add(self, request: Request) -> None:
        """Add a request to generate texts.

        Raises ConfigError if a setting does not suit the model. In particular, raises ContextLengthError if
        the request needs more positions than the model has.
        """
        self._check(request)
        generation, prompt = request.generation, request.prompt
        self._requests[request.id] = request
        searches = generation.num_beams > 1 and generation.max_new_tokens > 0
        count = generation.num_beams if searches else generation.n
        request.choices = [self._choice(request, index) for index in range(count)]
        if generation.echo:
            self._events.append({"id": request.id, "prompt": request.shown_prompt(self.tokenizer)})
        if searches:
            room = self.runner.positions - len(prompt)
            self._beams[request.id] = Beams(generation, self.end_ids, room, tuple(prompt))
            for choice in request.choices[1:]:
                choice.pending = []
        if generation.max_new_tokens == 0 and not request.wants_prompt:
            for choice in request.choices:
                self._end(choice, choice.end(LENGTH))
        else:
            self.waiting += request.choices

    def _choice(self, request: Request, index: int) -> Choice:
        text = request.text_prompt(self.tokenizer.eod_id)
        return Choice(request, index, self.tokenizer, text, self.end_ids)

    def score(self, request: ScoreRequest) -> None:
        """Add a request to score texts.

        Raises ConfigError if a text is empty or needs more positions than the model has.
        """
        longest = len(request.context) + max(map(len, request.continuations), default=0) - 1
        if not request.context or not all(request.continuations) or not request.continuations:
            raise ConfigError("the context and each of its continuations must have at least one token.")
        for tokens in (request.context, *request.continuations):
            self._check_tokens(tokens)
        if longest > self.runner.positions:
            raise ConfigError(
                f"the longest text to score has {counted(longest, 'token')} to read, but the model has only "
                f"{self.runner.positions:,} positions."
            )
        self._requests[request.id] = request
        self.waiting.append(Scored(request))

    def cancel(self, request_id: str) -> None:
        """Cancel a request, which then produces no more events.

        Ids of requests that have ended are ignored.
        """
        if (request := self._requests.pop(request_id, None)) is None:
            return
        self._beams.pop(request_id, None)
        self.waiting = deque(choice for choice in self.waiting if choice.request is not request)
        self._events = [event for event in self._events if event["id"] != request_id]
        self._leave([choice for choice in self.running if choice.request is request])

    def step(self) -> list[Event]:
        """Run one pass and return the events since the last step."""
        self._admit()
        readings, readers = self._next_pass()
        if readings:
            self._read(readings, readers)
        events, self._events = self._events, []
        return events

    def _check(self, request: Request) -> None:
        prompt, limit, generation = request.prompt, self.runner.positions, request.generation
        if not prompt:
            raise ConfigError("the prompt has no tokens; it must have at least one.")
        self._check_tokens(prompt)
        for token, _ in generation.logit_bias:
            if not 0 <= token < self.runner.vocab_size:
                raise ConfigError(
                    f"logit_bias: token id {token} must be from 0 to {self.runner.vocab_size - 1}."
                )
        if generation.num_beams > self.runner.slots:
            raise ConfigError(
                f"num_beams = {generation.num_beams} must be at most {self.runner.slots}, the number of "
                "slots in the batch."
            )
        slides = request.slides and generation.num_beams == 1 and not request.wants_prompt
        if not slides and len(prompt) + generation.max_new_tokens > limit:
            room = f" or request at most {limit - len(prompt):,} new tokens" if len(prompt) < limit else ""
            raise ContextLengthError(
                f"the prompt has {counted(len(prompt), 'token')} and the request is for "
                f"{generation.max_new_tokens:,} new tokens, but the model has only {limit:,} positions. "
                f"Shorten the prompt{room}.",
                limit,
                len(prompt),
                generation.max_new_tokens,
            )

    def _check_tokens(self, prompt: list[int]) -> None:
        if wrong := [token for token in prompt if not 0 <= token < self.runner.vocab_size]:
            raise ConfigError(
                f"token id {wrong[0]} in the prompt must be from 0 to {self.runner.vocab_size - 1}."
            )

    def _admit(self) -> None:
        """Assign free slots to the waiting requests, in order."""
        while self.waiting and len(self.running) < self.runner.slots:
            choice = self.waiting[0]
            if isinstance(choice, Scored):
                self._join(self.waiting.popleft())
                continue
            request = choice.request
            if request.id in self._beams:
                # A beam search waits until there are slots for all of its beams.
                if len(self.running) + len(request.choices) > self.runner.slots:
                    return
                for beam in request.choices:
                    self.waiting.popleft()
                    self._join(beam)
                continue
            if choice.index and request.choices[0].is_reading_prompt:
                # Wait until the request's first text has read the prompt, which is then copied.
                return
            self._join(self.waiting.popleft())

    def _join(self, choice: Choice | Scored) -> None:
        slot = len(self.running)
        self.running.append(choice)
        if not choice.pending:
            self._past[slot] = []
            return
        limit = self.runner.positions
        if isinstance(choice, Choice) and len(choice.pending) > limit:
            # The prompt is longer than the window, so only its newest tokens are read.
            choice.pending = choice.newest(limit)
        shared, source = 0, slot
        wanted = choice.shareable
        for other, past in enumerate(self._past):
            found = _common(past, wanted, shared)
            if found > shared:
                shared, source = found, other
        if shared < LEAST_SHARED_TOKENS:
            shared = 0
        elif source != slot:
            self.runner.copy([slot], [source], [shared])
        self._past[slot] = choice.pending[:shared]
        choice.pending = choice.pending[shared:]

    def _next_pass(self) -> tuple[list[Reading], list[Choice | Scored]]:
        """Return (readings for the next pass, the text to which each reading belongs).

        Readings of a single token come first.
        """
        singles: list[tuple[Reading, Choice | Scored]] = []
        longer: list[tuple[Reading, Choice | Scored]] = []
        only_scored = all(isinstance(choice, Scored) for choice in self.running)
        budget = max(self.scored_tokens, self.prefill_tokens) if only_scored else self.prefill_tokens
        for slot, choice in enumerate(self.running):
            if not choice.pending:
                continue
            too_long = len(self._past[slot]) + len(choice.pending) > self.runner.positions
            if too_long and isinstance(choice, Choice):
                self._slide(slot, choice)
            start = len(self._past[slot])
            if len(choice.pending) == 1:
                singles.append((Reading(slot, start, choice.pending), choice))
            elif budget > 0:
                part = choice.pending[:budget]
                budget -= len(part)
                longer.append((Reading(slot, start, part), choice))
        both = singles + longer
        return [reading for reading, _ in both], [choice for _, choice in both]

    def _slide(self, slot: int, choice: Choice) -> None:
        """Schedule the newest half of the window to be read again, from position 0.

        The cached keys cannot be reused, because learned positions cannot be shifted.
        """
        choice.pending = choice.newest(max(1, self.runner.positions // 2))
        self._past[slot] = []

    def _read(self, readings: list[Reading], readers: list[Choice | Scored]) -> None:
        wanted: list[int] = []
        rows: list[slice] = []
        first = 0
        for (_, start, tokens), choice in zip(readings, readers):
            places = choice.needs_logits(start, len(tokens))
            rows.append(slice(len(wanted), len(wanted) + len(places)))
            wanted += [first + place for place in places]
            first += len(tokens)
        logits = self.runner.read(readings, wanted)
        ready: list[Choice] = []
        last: list[int] = []
        scored: list[tuple[Scored, Reading, slice]] = []
        for reading, choice, part in zip(readings, readers, rows):
            slot, start, tokens = reading
            if isinstance(choice, Choice) and choice.wants_prompt:
                self._prompt_logprobs(choice, logits[part], start)
            self._past[slot] += tokens
            choice.pending = choice.pending[len(tokens) :]
            if isinstance(choice, Scored):
                scored.append((choice, reading, part))
            elif not choice.pending:
                ready.append(choice)
                last.append(part.stop - 1)
        if scored:
            self._give_scores(scored, logits)
        if ready:
            self._choose(ready, logits if len(last) == len(logits) else logits[last])

    def _give_scores(self, readers: list[tuple[Scored, Reading, slice]], logits: torch.Tensor) -> None:
        """Score the tokens just read, and add an event for each continuation that is complete."""
        labels: list[int] = []
        at: list[int] = []
        for scored, reading, part in readers:
            labels += scored.labels(reading.start, len(reading.tokens))
            at += range(part.start, part.stop)
        logprobs, likeliest = scores_of(logits if len(at) == len(logits) else logits[at], labels)
        ended: list[Choice | Scored] = []
        first = 0
        for scored, reading, part in readers:
            last = first + part.stop - part.start
            scored.take(Scores(logprobs[first:last], likeliest[first:last]))
            first = last
            if scored.pending:
                continue
            self._events.append(scored.end_of_one())
            if scored.next():
                del self._past[reading.slot][len(scored.shareable) :]
            else:
                self._requests.pop(scored.request.id)
                tokens = len(scored.request.context) + sum(map(len, scored.request.continuations))
                end = {"id": scored.request.id, "end": True, "prompt_tokens": tokens, "new_tokens": 0}
                self._events.append(end)
                ended.append(scored)
        self._leave(ended)

    def _choose(self, ready: list[Choice], logits: torch.Tensor) -> None:
        """Choose the next token of each text from its row of logits."""
        ended: list[Choice | Scored] = []
        apart = [row for row, choice in enumerate(ready) if choice.request.id in self._beams]
        if apart:
            ended += self._advance_beams([ready[row] for row in apart], logits[apart])
            kept = [row for row in range(len(ready)) if row not in apart]
            ready, logits = [ready[row] for row in kept], logits[kept]
        # These requests ask only for the prompt's log-probabilities.
        done = [choice for choice in ready if choice.request.generation.max_new_tokens == 0]
        if done:
            for choice in done:
                self._end(choice, choice.end(LENGTH))
            ended += done
            kept = [row for row, choice in enumerate(ready) if choice not in done]
            ready, logits = [ready[row] for row in kept], logits[kept]
        if ready:
            tokens = self._next_tokens(ready, logits)
            entries = self._entries(ready, logits, tokens)
            for choice, token, entry in zip(ready, tokens, entries):
                event = choice.add(token, entry)
                if choice.finish_reason is not None:
                    assert event is not None
                    self._end(choice, event)
                    ended.append(choice)
                elif event is not None:
                    self._events.append(event)
        self._leave(ended)

    def _next_tokens(self, choices: list[Choice], logits: torch.Tensor) -> list[int]:
        penalized = [row for row, choice in enumerate(choices) if choice.request.generation.is_penalized]
        if penalized:
            logits = logits.clone()
            for row in penalized:
                choice = choices[row]
                present, counts = choice.present(logits.device), choice.counts
                logits[row] = sampling.penalized(logits[row], choice.request.generation, present, counts)
        groups: dict[Any, list[int]] = {}
        for row, choice in enumerate(choices):
            groups.setdefault(sampling.how(choice.request.generation), []).append(row)
        picked = torch.empty(len(choices), dtype=torch.long, device=logits.device)
        for rows in groups.values():
            generation = choices[rows[0]].request.generation
            drawn = None
            if not generation.is_greedy:
                drawn = torch.tensor([choices[row].random.random() for row in rows], dtype=torch.float64)
            whole = len(rows) == len(choices)
            chosen = sampling.choose(logits if whole else logits[rows], generation, drawn)
            if whole:
                return chosen.tolist()
            picked[rows] = chosen
        return picked.tolist()

    def _entries(
        self, choices: list[Choice], logits: torch.Tensor, tokens: list[int]
    ) -> Sequence[Event | None]:
        """Return the log-probability entry of each text's token.

        The entry is None for texts whose request did not include log-probabilities.
        """
        found: list[Event | None] = [None] * len(choices)
        for row, (choice, token) in enumerate(zip(choices, tokens)):
            if (alternatives := choice.request.generation.logprobs) is not None:
                (found[row],) = logprobs_of(logits[row : row + 1], [token], alternatives, self.tokenizer)
        return found

    def _prompt_logprobs(self, choice: Choice, logits: torch.Tensor, start: int) -> None:
        """Add an event with the log-probabilities of the prompt tokens that follow the tokens just read."""
        prompt = choice.request.prompt
        following: list[int | None] = [*prompt[start + 1 : start + 1 + len(logits)]]
        following += [None] * (len(logits) - len(following))
        alternatives = choice.request.generation.logprobs
        assert alternatives is not None
        entries = logprobs_of(logits, following, alternatives, self.tokenizer)
        found = [entry for entry in entries if entry is not None]
        if found:
            self._events.append({"id": choice.request.id, "prompt_logprobs": found})

    def _advance_beams(self, ready: list[Choice], logits: torch.Tensor) -> list[Choice | Scored]:
        """Advance every beam search by one step, and return the choices of the searches that are done."""
        ended: list[Choice | Scored] = []
        requests = {choice.request.id: choice.request for choice in ready}
        for request in requests.values():
            # The order of slots may differ from the order of beams, because texts move between slots.
            rows = [row for row, choice in enumerate(ready) if choice.request is request]
            rows.sort(key=lambda row: ready[row].index)
            search = self._beams[request.id]
            readers = [ready[row] for row in rows]
            sources, tokens = search.advance(logits[rows])
            if search.is_done:
                self._end_beams(request, search)
                ended += request.choices
                continue
            slots = {choice: slot for slot, choice in enumerate(self.running) if isinstance(choice, Choice)}
            targets = [slots[choice] for choice in request.choices]
            origins = [slots[readers[source]] for source in sources]
            moved = [(target, origin) for target, origin in zip(targets, origins) if target != origin]
            pasts = [list(self._past[origin]) for origin in origins]
            if moved:
                lengths = [len(self._past[origin]) for _, origin in moved]
                self.runner.copy([target for target, _ in moved], [origin for _, origin in moved], lengths)
            for target, past, choice, token in zip(targets, pasts, request.choices, tokens):
                self._past[target] = past
                choice.pending = [token]
                choice.tokens.append(token)
        return ended

    def _end_beams(self, request: Request, search: Beams) -> None:
        """Add the events of a finished beam search, one for each of its best texts."""
        for index, best in enumerate(search.best()):
            whole = self._choice(request, index)
            pieces = []
            for token in best.tokens:
                event = whole.add(token)
                pieces.append(event["text"] if event is not None else "")
            reason = STOP if best.at_eod else LENGTH
            self._events.append(
                {
                    "id": request.id,
                    "index": index,
                    "text": "".join(pieces),
                    "tokens": best.tokens,
                    "score": best.score,
                    "finish_reason": reason,
                    "new_tokens": len(best.tokens),
                }
            )
        self._events.append(self._end_of(request))

    def _end(self, choice: Choice, event: Event) -> None:
        request = choice.request
        self._events.append(event)
        request.ended += 1
        if request.ended == len(request.choices):
            self._events.append(self._end_of(request))

    def _end_of(self, request: Request) -> Event:
        self._requests.pop(request.id, None)
        self._beams.pop(request.id, None)
        return {
            "id": request.id,
            "end": True,
            "prompt_tokens": len(request.prompt),
            "new_tokens": request.new_tokens,
        }

    def _leave(self, choices: list[Choice | Scored]) -> None:
        """Free the slots of finished choices by moving the last running texts into them."""
        slots = sorted((slot for slot, choice in enumerate(self.running) if choice in choices), reverse=True)
        for slot in slots:
            last = len(self.running) - 1
            if slot != last:
                # The slot that the moved text leaves keeps its content, so later prompts may still copy from
                # it.
                length = len(self._past[last])
                if length:
                    self.runner.copy([slot], [last], [length])
                self._past[slot] = list(self._past[last])
                self.running[slot] = self.running[last]
            self.running.pop()


def _common(past: list[int], wanted: list[int], more_than: int) -> int:
    """Return the length of the common prefix, or 0 if it is not longer than `more_than`."""
    most = min(len(past), len(wanted))
    if most <= more_than or past[: more_than + 1] != wanted[: more_than + 1]:
        return 0
    return next((place for place in range(more_than + 1, most) if past[place] != wanted[place]), most)
