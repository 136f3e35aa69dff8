"""evaluation.tasks: multiple-choice tasks that the training engine runs on the model during training.

Each choice of a question is a row: context and choice, padded, with a loss mask over the choice. The engine
processes the rows like validation's micro batches, in every layout. The loss of each token is its -ln p, and
the engine also returns whether the label was the likeliest token. Every rank reads the files; rank 0 writes
the results, as in `nbtrain evaluate`.
"""

import logging
import math
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from nbtrain.base.errors import DataError, RecordError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.sample import Sample, Samples
from nbtrain.dataset.samples.state import rank_positions
from nbtrain.evaluation.evaluate import Evaluation
from nbtrain.evaluation.of_run import tasks_of_run
from nbtrain.evaluation.questions import Questions
from nbtrain.evaluation.requests import Scored, ScoreRequest
from nbtrain.parallel.agreement import gather_objects
from nbtrain.train.engine.batches import Batch, Batches
from nbtrain.train.engine.engine import TrainEngine

# Micro batches of a rank in one pass of the engine. Their losses stay on the device until the end of the
# pass.
MICRO_BATCHES_AT_ONCE = 32
# Rows are padded to a multiple of this number of tokens, so that few different shapes occur.
LENGTH_STEP = 64

logger = logging.getLogger(__name__)


class Tasks:
    """The tasks of one run. All ranks create and run them together."""

    def __init__(self, config: RunConfig, run: RunDir, engine: TrainEngine, valid: Samples):
        """Read the tasks. `valid` is the validation split; rows are built with the same fields as its
        samples.

        Raises DataError if a file is invalid, or if the ranks read different files.
        """
        self.config, self.run, self.engine = config, run, engine
        self._tasks = tasks_of_run(config)
        self._refuse_other_files()
        self._asked = [list(task.requests()) for task in self._tasks]
        self._like = valid.sample(0) if self._tasks else None

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def ask(self, step: int, beat: Callable[[], None]) -> Evaluation:
        """Run the tasks after `step`. All ranks call it together; the returned evaluation is filled in and
        written only on rank 0.
        """
        precision = self.config.precision
        found = Evaluation(self.run, step, "bf16" if precision.autocast else precision.dtype)
        for task, asked in zip(self._tasks, self._asked, strict=True):
            started = time.time()
            self._take(task, asked, beat)
            if dist.get_rank() == 0:
                self._keep(found, task, started)
        return found

    def _take(self, task: Questions, asked: list[ScoreRequest], beat: Callable[[], None]) -> None:
        """Score all questions of a task and pass the scores to the task."""
        rows = [(one.context, continuation) for one in asked for continuation in one.continuations]
        sums = iter(self._scores(rows, beat).tolist())
        for number, one in enumerate(asked):
            scored = []
            for continuation in one.continuations:
                nats, hits = next(sums)
                scored.append(Scored([-nats], hits == len(continuation)))
            task.take(number, scored)

    def _keep(self, found: Evaluation, task: Questions, started: float) -> None:
        try:
            found.keep_task(task, started)
        except RecordError as error:
            # The result is also in the scalars. If the disk is full, the run ends at its next checkpoint.
            logger.warning("step %6s | %s", f"{found.step:,}", error)

    def _scores(self, rows: list[tuple[list[int], list[int]]], beat: Callable[[], None]) -> torch.Tensor:
        """Return float64 [rows, 2] on all ranks: for each row, the sum of -ln p over its continuation, and
        its number of hits.

        A hit is a token of the continuation that the model finds likeliest.
        """
        engine, micro = self.engine, self.config.batch.micro_batch_size
        data, device = engine.groups.data_parallel, engine.deepspeed.device
        each = micro * data.size
        padded = -(-len(rows) // each) * each
        samples = _Rows(rows, self._length(rows), self._like)
        sums = torch.zeros(padded, 2, dtype=torch.float64, device=device)
        for first in range(0, padded, each * MICRO_BATCHES_AT_ONCE):
            places = np.arange(first, min(first + each * MICRO_BATCHES_AT_ONCE, padded))
            own = rank_positions(places, micro, data.rank, data.size)
            noted = NotedTokens(device)
            with Batches(samples, iter(own.tolist()), device, masked=True) as batches:
                engine.evaluate(batches, len(own), beat, noted)
            if engine.has_loss:
                for positions, values in zip(own, noted.sums(), strict=True):
                    sums[torch.as_tensor(positions, device=device)] = values
        return engine.over_data_axis(sums)[: len(rows)].cpu()

    def _length(self, rows: list[tuple[list[int], list[int]]]) -> int:
        """Return the common length of the rows in tokens: the length of the longest row, rounded up, if the
        layout accepts any length, otherwise the model's sequence length.
        """
        config, parallel = self.config, self.config.parallel
        whole = config.model.seq_length
        is_fixed = (
            parallel.pipeline_parallel_size > 1
            or parallel.sequence_ranks > 1
            or config.model.compile
            or parallel.fpdt_chunk_tokens > 0
        )
        if is_fixed:
            return whole
        unit = math.lcm(LENGTH_STEP, parallel.tensor_parallel_size)
        longest = max(len(context) + len(continuation) - 1 for context, continuation in rows)
        return min(-(-longest // unit) * unit, whole)

    def _refuse_other_files(self) -> None:
        own = [(task.source, task.source_sha256) for task in self._tasks]
        if not own:
            return
        everyones = gather_objects(own)
        for rank, theirs in enumerate(everyones):
            if theirs != everyones[0]:
                names = ", ".join(name for (name, _), _ in zip(theirs, own) if (name, _) not in everyones[0])
                raise DataError(
                    f"{self.config.where('evaluation.tasks')}: rank {rank} reads different files than rank 0 "
                    f"({names}). Put the same files on every machine."
                )


class NotedTokens:
    """Losses and hits of the tokens of some micro batches. Call of() before each forward pass."""

    def __init__(self, device: torch.device):
        self._device = device
        self._noted: list[tuple[Batch, torch.Tensor]] = []

    def of(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return tensors, fp32 [b, s], that the model fills: each token's loss, and whether it was the
        likeliest.
        """
        values = torch.zeros(2, *batch.labels.shape, device=self._device)
        self._noted.append((batch, values))
        return {"token_losses": values[0], "likeliest": values[1]}

    def sums(self) -> list[torch.Tensor]:
        """Return float64 [b, 2] for each micro batch: for each row, the sum of losses and the number of hits
        over its masked tokens.
        """
        found = []
        for batch, values in self._noted:
            assert batch.loss_mask is not None
            found.append((values.double() * batch.loss_mask).sum(-1).T)
        return found


class _Rows:
    """Contexts with their continuations as samples; positions after the last row continue with the first."""

    def __init__(self, rows: list[tuple[list[int], list[int]]], length: int, like: Sample | None):
        self._rows, self._length, self._like = rows, length, like

    def sample(self, position: int) -> Sample:
        context, continuation = self._rows[position if position < len(self._rows) else 0]
        whole, length = context + continuation, self._length
        tokens, labels = np.zeros(length, np.int64), np.zeros(length, np.int64)
        tokens[: len(whole) - 1], labels[: len(whole) - 1] = whole[:-1], whole[1:]
        mask = np.zeros(length, np.float32)
        mask[len(context) - 1 : len(whole) - 1] = 1
        # Either all samples of a run have documents and positions or no sample has them, because pipeline
        # stages must agree on what they send.
        like = self._like
        positions = None if like is None or like.position_ids is None else np.arange(length)
        bounds = None
        if like is not None and like.cu_seqlens is not None:
            bounds = np.full(length + 1, length, np.int32)
            bounds[0] = 0
        return Sample(tokens, labels, mask, positions, bounds)
