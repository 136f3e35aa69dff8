"""The name of the processor and its instructions."""

import pytest

from nbtrain.base.hardware import cpu


@pytest.mark.parametrize(
    ("text", "processor", "expected"),
    [
        (
            "processor\t: 0\nmodel name\t: CPU X\nflags\t\t: fma avx2\n\nmodel name\t: CPU Y\n",
            "x86_64",
            ("CPU X", {"fma", "avx2"}),
        ),
        ("processor\t: 0\nFeatures\t: fp asimd\n", "arm", ("arm", {"fp", "asimd"})),
        ("model name\t: \nflags\t\t: fma\n", "", ("aarch64", {"fma"})),
        ("model name\t: CPU \udcff\n", "", ("CPU \N{REPLACEMENT CHARACTER}", set())),
        (None, "", ("aarch64", set())),
    ],
    ids=["named", "no model", "neither", "not UTF-8", "no file"],
)
def test_the_model(text, processor, expected, tmp_path, monkeypatch):
    """Without a model in /proc, the name of the processor counts, and without that, its architecture."""
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr(cpu, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu.platform, "processor", lambda: processor)
    monkeypatch.setattr(cpu.platform, "machine", lambda: "aarch64")
    assert cpu.cpu_model() == expected
