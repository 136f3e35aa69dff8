"""Encryption of the messages of Jupyter's kernels: every user of a machine can connect to a kernel's ports.

Messages to a kernel are signed, so that nobody else can have it run code. The outputs of all cells go to
whoever connects, unless CurveZMQ encrypts them.
"""


def kernel_encryption() -> dict[str, str]:
    """The settings of KernelManager, {trait: value}, that encrypt a kernel's messages.

    Empty if jupyter_client (before 8.10) or the installed ZeroMQ cannot encrypt.
    """
    import zmq
    from jupyter_client.manager import KernelManager

    if not (hasattr(KernelManager, "transport_encryption") and zmq.has("curve")):
        return {}
    # "auto" leaves a kernel alone that does not say that it can decrypt; ipykernel 7.4 says so.
    return {"transport_encryption": "auto"}
