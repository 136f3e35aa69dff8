"""The known names that are most similar to a name that is not known, for an error message."""

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], count: int = 1) -> str:
    """Return a sentence, after a space, with the known words most similar to `word`; "" if there are none."""
    # Imported here, because only a wrong word needs it.
    import difflib

    near = difflib.get_close_matches(word, list(known), n=count)
    return f" Nearest: {', '.join(near)}." if near else ""
