"""Imported by every Python started with this folder in PYTHONPATH: torch has no 16-bit units.

tests/plain_cpu.py puts the folder there, so that ranks, supervisors and the checks before a launch believe
what the test process believes. Only the standard library is imported here: most of these processes never load
torch.
"""

import importlib.abc
import importlib.machinery
import sys

UNITS = ("_is_mkldnn_bf16_supported", "_is_mkldnn_fp16_supported")


class _No:
    """An operator that answers no, and is itself in all else: torch lists its operators' overloads."""

    def __init__(self, operator):
        self.operator = operator

    def __call__(self):
        return False

    def __getattr__(self, name):
        return getattr(self.operator, name)


def without_units(torch):
    """Fails if torch no longer has such an operator, so that the sample cannot pass by mistake."""
    for name in UNITS:
        setattr(torch.ops.mkldnn, name, _No(getattr(torch.ops.mkldnn, name)))


class _TorchLoader(importlib.abc.Loader):
    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        without_units(module)


class _TorchFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _TorchLoader(spec.loader)
        return spec


sys.meta_path.insert(0, _TorchFinder())
