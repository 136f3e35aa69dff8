"""Canonical names: the optimizer's groups, and conversion to and from a pipeline's numbering."""

import pytest

from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.model.names import canonical_name, optimizer_group, piped_name

MODEL = GPT(GPTConfig(3, 16, 2, 32, 32, 8))
NAMES = [name for name, _ in MODEL.named_parameters()]


UNTIED = GPT(GPTConfig(3, 16, 2, 32, 32, 8, untie_embeddings_and_output_weights=True, activation="swiglu"))


def test_matrices_and_embeddings_decay_biases_and_layernorms_do_not():
    """Splitting the parameters by name gives the same weight-decay groups as splitting them by number of
    dimensions.
    """
    for name, value in MODEL.named_parameters():
        assert optimizer_group(name) == ("decay" if value.dim() > 1 else "no_decay"), name


def test_a_pipelines_names_map_to_canonical_ones_and_back():
    piped = [piped_name(name, 3) for name in NAMES]
    assert len(set(piped)) == len(NAMES)
    assert [canonical_name(name, 3) for name in piped] == NAMES
    assert piped_name("word_embeddings.weight", 3) == "tied_modules.word_embeddings.weight"
    assert piped_name("layers.2.mlp.dense_4h_to_h.bias", 3) == "4.mlp.dense_4h_to_h.bias"


def test_the_output_of_a_pipeline_that_is_not_tied_has_a_number():
    names = [name for name, _ in UNTIED.named_parameters()]
    piped = [piped_name(name, 3, tied=False) for name in names]
    assert [canonical_name(name, 3) for name in piped] == names and len(set(piped)) == len(names)
    assert (piped[0], piped[-1]) == ("0.weight", "6.weight") and names[-1] == "output_layer.weight"


@pytest.mark.parametrize("name", ["7.weight", "lm_head.weight"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="is not a parameter of a pipeline with 3 layers"):
        canonical_name(name, 3)
