"""Registration of readers: each kind of source in the schema has a reader, found by name."""

import inspect
import pkgutil
from importlib import import_module

import pytest

from nbtrain.config.sections.sources import SOURCE_TYPES, kind_of
from nbtrain.corpus import sources
from nbtrain.corpus.sources.base import SourceReader, reader_class


@pytest.mark.parametrize("source", SOURCE_TYPES, ids=kind_of)
def test_every_kind_has_its_reader(source):
    """Every kind of source has a reader, which is found by the kind's name and reports that kind."""
    assert reader_class(kind_of(source)).kind == kind_of(source)
    assert source.__doc__


def test_every_reader_has_its_kind():
    """Every reader in the folder belongs to a kind of source."""
    modules = [
        import_module(f"{sources.__name__}.{found.name}") for found in pkgutil.iter_modules(sources.__path__)
    ]
    readers = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, SourceReader) and not inspect.isabstract(value)
    }
    assert readers == {reader_class(kind_of(source)) for source in SOURCE_TYPES}
