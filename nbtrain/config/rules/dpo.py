"""Rules of training on preferences (the section `dpo`): one function for each rule."""

from collections.abc import Callable

from nbtrain.config.code_file import defines
from nbtrain.config.findings import mistake
from nbtrain.config.rules.limits import preference_answers, problems_of
from nbtrain.config.rules.wording import Problems, broken
from nbtrain.config.schema import RunConfig

PAIRS = "preference"


def preferences_have_a_reference(config: RunConfig) -> Problems:
    """dpo needs init_from: rewards are measured against the weights that the run starts from."""
    if config.dpo is not None and config.init_from is None:
        yield mistake(
            config,
            "dpo",
            "dpo\n  measures answers against the weights of init_from, which is null.",
            "Set init_from to a run that was fine-tuned, or to a folder of Hugging Face.",
        )


def preferences_are_pairs(config: RunConfig) -> Problems:
    """Sources are pairs if, and only if, the run trains with dpo."""
    kinds = [source.kind for source in config.data.sources]
    if config.dpo is None:
        if PAIRS in kinds:
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{kinds.index(PAIRS)}].kind = {PAIRS}\n  is read with the section dpo only: "
                "otherwise rejected answers would be trained on.",
                "Set dpo: {beta: 0.1}, or use another kind of source.",
            )
        return
    others = [number for number, kind in enumerate(kinds) if kind != PAIRS]
    if others or not kinds:
        what = f"data.sources[{others[0]}].kind = {kinds[others[0]]}" if others else "data.sources = []"
        yield mistake(
            config,
            "data.sources",
            f"{what}\n  with dpo, every source must have kind: {PAIRS}, and at least one source is required.",
        )


def preferences_are_packed(config: RunConfig) -> Problems:
    """Both answers of a pair are in one sequence and cannot attend to each other."""
    if config.dpo is not None and config.data.resolved_packing != "best_fit":
        yield broken(
            config,
            "data.packing",
            "with dpo must be best_fit, which puts both answers of a pair into one sequence and keeps "
            "them apart.",
            "Set packing: best_fit.",
        )


def answers_are_not_cut(config: RunConfig) -> Problems:
    """Answers are not split across ranks, because the log-probability of an answer is a sum over its
    tokens.
    """
    if config.dpo is not None:
        parallel = config.parallel
        sharing = parallel.ds_sequence_parallel_size, parallel.context_parallel_size
        yield from problems_of(config, preference_answers(*sharing))


def preferences_have_their_own_loss(config: RunConfig) -> Problems:
    """With dpo, the file of `code` defines no loss(): the loss of pairs is not a sum over tokens."""
    if config.dpo is not None and defines(config, "loss"):
        yield mistake(
            config,
            "code",
            f"code = {config.code}\n  defines loss(), which is for training on tokens; with dpo the loss is "
            "computed from pairs.",
            "Remove loss() from the file, or dpo from the run.",
        )


DPO_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    preferences_have_a_reference,
    preferences_are_pairs,
    preferences_are_packed,
    answers_are_not_cut,
    preferences_have_their_own_loss,
)
