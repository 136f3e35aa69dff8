"""The known names that are most similar to an unknown name, for an error message.

config/names/keys.py finds the most similar keys of a run YAML.
"""

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], count: int = 1) -> str:
    """Return " Nearest: ...", a sentence with a leading space: the known words most similar to `word`.

    "" if no known word is similar.
    """
    # Imported here, because it is only needed for a wrong word.
    import difflib

    near = difflib.get_close_matches(word, list(known), n=count)
    return f" Nearest: {', '.join(near)}." if near else ""
