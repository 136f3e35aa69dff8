"""Who watches this kernel: a person in a live front end, or nobody (papermill, nbclient, nbconvert)."""

import sys


def is_watched() -> bool:
    """Whether a live front end shows this kernel, by the message that is being answered.

    A front end with a person behind it allows input() in the cells it runs; papermill, nbclient and
    nbconvert do not. A widget's message comes only from a live front end.
    """
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    message = kernel.get_parent()
    if message.get("header", {}).get("msg_type", "").startswith("comm_"):
        return True
    return bool(message.get("content", {}).get("allow_stdin"))
