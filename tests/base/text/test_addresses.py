"""Redaction of the parts of an address that may be secret."""

import pytest

from nbtrain.base.text.addresses import redacted, text_without_secrets, without_secrets


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://u:p@host:8/a/b?k=v&s#f", "https://***@host:8/a/b?k=***&***"),
        ("https://dumps.wikimedia.org", "https://dumps.wikimedia.org"),
        ("http://[broken", "***"),
        # Passwords with characters that should have been quoted: they end the host too early.
        ("http://u:pa/ss@host/dumps", "http://***@host/dumps"),
        ("http://u:p@a/ss@host", "http://***@host"),
        ("http://u:pa?ss@host", "***"),
        ("http://u:pa#ss@host", "***"),
        # The part of the password before the ? might be a port.
        ("https://alice:2024?Secret@host/", "***"),
        ("https://alice:2024#Secret@host/", "***"),
        ("u:pass@host", "***@host"),
        ("http://host:8/?mail=a@b", "http://host:8/?mail=***"),
        ("http://[::1]:8/?mail=a@b", "http://[::1]:8/?mail=***"),
        ("http://h:x", "http://h:x"),
        ("", ""),
    ],
)
def test_redacted(address, shown):
    """The user, the password, the query values and the fragment are hidden."""
    assert redacted(address) == shown


def test_values_without_secrets():
    """Strings nested at any depth are redacted; a `mirror` counts as an address even without https://."""
    sources = [{"kind": "wiki", "mirror": "me:s3cret@host", "sha1": None}, {"path": "a@b:c"}]
    assert without_secrets({"sources": sources, "number": 5}) == {
        "sources": [{"kind": "wiki", "mirror": "***@host", "sha1": None}, {"path": "a@b:c"}],
        "number": 5,
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[{mirror: 'http://me:s3 cret@host/'}]", "[{mirror: 'http://***@host/'}]"),
        ("[{mirror: http://host/?key=s3cret}, {x: 1}]", "[{mirror: http://host/?key=*** {x: 1}]"),
        ("http://me:s3cret@host/a b", "http://***@host/a b"),
        ("curl https://h/cb#access_token=S", "curl https://h/cb#***"),
        ("see https://h/x?S3cret now", "see https://h/x?*** now"),
        ("a?b=c d@e", "a?b=c d@e"),
    ],
)
def test_text_without_secrets(text, shown):
    """When in doubt, redaction hides the text; text without an address is unchanged."""
    assert text_without_secrets(text) == shown
