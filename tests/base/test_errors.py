"""Errors that cross a process boundary and are raised again under the name of their class."""

from nbtrain.base import errors


def test_an_error_that_another_process_names_is_raised_here():
    """An error's name selects its class; an unknown name gives the base class, and no other object can be
    named.
    """
    found = errors.named_error({"error": "CheckpointError", "message": "it is torn"})
    assert (type(found), str(found)) == (errors.CheckpointError, "it is torn")
    for name in ("Mapping", "printable", "KeyError", "", None):
        assert type(errors.named_error({"error": name, "message": "x"})) is errors.NbtrainError
