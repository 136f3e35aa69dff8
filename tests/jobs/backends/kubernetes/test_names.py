"""Names of objects, within the rules of RFC 1123 and the maximum lengths of the operators."""

import pytest

from nbtrain.base.errors import SubmitError
from nbtrain.jobs.backends.kubernetes.manifests.names import (
    checked,
    checked_namespace,
    object_name,
    own_labels,
)

JOB = "20261121-031500-a1b2"


def test_a_name_is_the_runs_and_a_hash_of_its_job():
    """The object name of a job is unique and does not change, has at most 45 characters, and starts with a
    letter.
    """
    assert object_name("gpt-tiny", "id", JOB) == object_name("gpt-tiny", "id", JOB) == "gpt-tiny-df9910"
    assert object_name("gpt-tiny", "id", JOB[:-1] + "3") != object_name("gpt-tiny", "id", JOB)
    longest = object_name("a" * 37 + "-" + "b" * 15, "id", JOB)
    assert longest == "a" * 37 + "-df9910"
    assert object_name("175b", "id", JOB) == "run-175b-df9910"


def test_what_is_no_name_never_reaches_the_server():
    """An invalid name is rejected with the rule and a fix before a request is sent."""
    for bad in ("Gpt", "gpt_tiny", "-gpt", "1gpt", "g" * 46, ""):
        with pytest.raises(SubmitError) as caught:
            checked(bad)
    assert str(caught.value) == (
        "'' cannot be the name of a Kubernetes object: a name must have 1 to 45 lowercase letters, digits "
        "and inner dashes, and begin with a letter. Rename the run."
    )
    with pytest.raises(SubmitError, match="'a/b' is not a valid namespace"):
        checked_namespace("a/b")
    with pytest.raises(SubmitError, match="nbtrain/run = 'a b' is not a valid label value"):
        own_labels("a b", "id", JOB)
