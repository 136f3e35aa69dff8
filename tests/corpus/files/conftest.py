"""Fixtures of tests/corpus/sources (a source that is read part by part), shared with this folder."""

from tests.corpus.sources.conftest import read, refusal  # noqa: F401
