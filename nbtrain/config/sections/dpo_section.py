"""The section `dpo` of a run YAML: training on pairs of answers, one of which is preferred."""

from typing import Annotated

from pydantic import Field

from nbtrain.config.sections.fields import ConfigModel, PositiveRatio


class DpoConfig(ConfigModel):
    """Direct preference optimization (DPO, arXiv:2305.18290). The chosen answer of each pair becomes more
    likely than the rejected one, compared with the weights of init_from.
    """

    beta: PositiveRatio = 0.1
    """Strength with which the model is kept close to its initial weights. The reward of an answer is beta
    times the difference between its log-probabilities under the trained and the initial weights.
    """
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Fraction of the pairs whose preference is assumed to be wrong (conservative DPO)."""
