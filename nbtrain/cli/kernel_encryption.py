"""What has Jupyter encrypt the messages of its kernels: every user of a machine can connect to their ports.

Messages to a kernel are signed, so that nobody else can have it run something. What it sends (the outputs of
all cells) goes to whoever connects, unless it is encrypted by CurveZMQ.
"""


def kernel_encryption() -> dict[str, str]:
    """{trait of KernelManager: value}; empty if jupyter_client (before 8.10) or ZeroMQ cannot encrypt."""
    import zmq
    from jupyter_client.manager import KernelManager

    if not (hasattr(KernelManager, "transport_encryption") and zmq.has("curve")):
        return {}
    # "auto": only of a kernel that says that it can, as ipykernel 7.4 does.
    return {"transport_encryption": "auto"}
