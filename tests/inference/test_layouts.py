"""A checkpoint saved in any layout gives the same logits as the checkpoint of a single process."""

from types import SimpleNamespace

import pytest
import torch

from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.load import load_resolved
from nbtrain.inference.engine import Engine
from nbtrain.inference.loaded import fill, model_of
from nbtrain.inference.runner import Runner
from nbtrain.inference.scored import ScoreRequest
from tests.inference import made
from tests.train import launch
from tests.train.layouts import HALF, Place

pytestmark = pytest.mark.slow

LAYOUTS = ["t2 z1", "p2 z1", "p2 t2 z1", "d2 z3", "s2 z1"]
TOKENS = torch.randint(launch.VOCAB_SIZE, (2, 32), generator=torch.Generator().manual_seed(3))


def model_from(place: Place, layout: str):
    run = place.source(layout)
    model = model_of(load_resolved(run.config_yaml)).eval().requires_grad_(False)
    fill(model, CheckpointStore(run.checkpoint(HALF)))
    return model


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_one_process(place, layout):
    """In fp32, logits equal a single process's to 1e-5, ignoring the vocabulary's padding; text generated
    with a cache is identical.
    """
    one, model = model_from(place, "z1"), model_from(place, layout)
    with torch.inference_mode():
        expected, found = (each(TOKENS)[..., : launch.VOCAB_SIZE] for each in (one, model))
    assert float((found - expected).abs().max()) < 1e-5
    assert float(expected.std()) > 1e-2
    # The requests of `nbtrain evaluate`, one row of tokens after the other.
    engine, chances = Engine(Runner(model, 2), SimpleNamespace(eod_id=0)), {}
    for row, tokens in enumerate(TOKENS.tolist()):
        engine.score(ScoreRequest(str(row), tokens[:1], [tokens[1:]]))
    while not engine.is_idle:
        chances |= {event["id"]: event["logprobs"] for event in engine.step() if "logprobs" in event}
    known = expected.log_softmax(-1)[:, :-1].gather(2, TOKENS[:, 1:, None])[..., 0]
    assert torch.tensor([chances[str(row)] for row in range(2)]) == pytest.approx(known, abs=1e-5)
    cache, tokens = model.new_cache(1), [3, 1, 4]
    with torch.inference_mode():
        for _ in range(5):
            logits = model(torch.tensor([tokens[cache.length :]]), cache=cache, last_token_only=True)
            tokens.append(int(logits[0, -1].argmax()))
    assert tokens[3:] == made.without_cache(model, [3, 1, 4], 5)
