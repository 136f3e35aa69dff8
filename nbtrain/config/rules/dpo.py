"""Rules about preference training (the section `dpo`): one function for each rule."""

from collections.abc import Callable

from nbtrain.config.code_file import defines
from nbtrain.config.findings import mistake
from nbtrain.config.rules.limits import preference_answers, problems_of
from nbtrain.config.rules.wording import Problems, broken
from nbtrain.config.schema import RunConfig

PAIRS = "preference"


def preferences_have_a_reference(config: RunConfig) -> Problems:
    """Check that a run with dpo sets init_from.

    Rewards are measured relative to the run's initial weights.
    """
    if config.dpo is not None and config.init_from is None:
        yield mistake(
            config,
            "dpo",
            "dpo\n  scores answers relative to the model named by init_from, but init_from is null.",
            "Set init_from to a fine-tuned run, or to a folder with a Hugging Face model.",
        )


def preferences_are_pairs(config: RunConfig) -> Problems:
    """Check that sources have kind preference if, and only if, the run trains with dpo."""
    kinds = [source.kind for source in config.data.sources]
    if config.dpo is None:
        if PAIRS in kinds:
            yield mistake(
                config,
                "data.sources",
                f"data.sources[{kinds.index(PAIRS)}].kind = {PAIRS}\n"
                "  needs the section dpo; without it, the model would be trained on rejected answers.",
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
    """Check that pairs are packed with best_fit.

    Both answers of a pair are then in one sequence and cannot attend to each other.
    """
    if config.dpo is not None and config.data.resolved_packing != "best_fit":
        yield broken(
            config,
            "data.packing",
            "must be best_fit with dpo: best_fit puts both answers of a pair into one sequence, where they "
            "cannot attend to each other.",
            "Set packing: best_fit.",
        )


def answers_are_not_cut(config: RunConfig) -> Problems:
    """Check that sequences are not split across ranks in a run with dpo.

    The log-probability of an answer is a sum over its tokens.
    """
    if config.dpo is not None:
        parallel = config.parallel
        sharing = parallel.ds_sequence_parallel_size, parallel.context_parallel_size
        yield from problems_of(config, preference_answers(*sharing))


def preferences_have_their_own_loss(config: RunConfig) -> Problems:
    """Check that the `code` file of a run with dpo defines no loss().

    The DPO loss is not a sum over tokens.
    """
    if config.dpo is not None and defines(config, "loss"):
        yield mistake(
            config,
            "code",
            f"code = {config.code}\n"
            "  defines loss(), a loss over tokens, but with dpo the loss is computed from pairs of answers.",
            "Remove loss() from the file, or remove dpo from the run.",
        )


DPO_RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    preferences_have_a_reference,
    preferences_are_pairs,
    preferences_are_packed,
    answers_are_not_cut,
    preferences_have_their_own_loss,
)
