"""Errors that cross a process: by name, as the class that this process knows."""

from nbtrain.base import errors


def test_an_error_that_another_process_names_is_raised_here():
    """By its class's name; a name that is none of these classes is the base, and never another object."""
    found = errors.named_error({"error": "CheckpointError", "message": "it is torn"})
    assert (type(found), str(found)) == (errors.CheckpointError, "it is torn")
    for name in ("Mapping", "printable", "KeyError", "", None):
        assert type(errors.named_error({"error": name, "message": "x"})) is errors.NbtrainError
