"""Encryption of Jupyter kernels' messages, because every user of a machine can connect to a kernel's ports.

Messages to a kernel are signed, so other users cannot run code in the kernel. But a kernel sends the outputs
of all cells to every process that connects, unless CurveZMQ encrypts them.
"""


def kernel_encryption() -> dict[str, str]:
    """Return the settings of KernelManager, {trait: value}, that encrypt a kernel's messages.

    The result is empty if jupyter_client (before 8.10) or the installed ZeroMQ cannot encrypt.
    """
    import zmq
    from jupyter_client.manager import KernelManager

    if not (hasattr(KernelManager, "transport_encryption") and zmq.has("curve")):
        return {}
    # "auto" does not encrypt for kernels that do not declare support; ipykernel 7.4 declares it.
    return {"transport_encryption": "auto"}
