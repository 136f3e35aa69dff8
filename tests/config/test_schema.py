

def test_packing_follows_the_sources():
    """Fine-tuning examples are packed whole unless the run says otherwise; text and ids are a stream."""

    def packing(kind, **data):
        return DataConfig(name="x", sources=[{"kind": kind, "path": "x"}], **data).resolved_packing

    tuning = ("chat", "preference", "alpaca", "prompt-completion")
    assert {packing(kind) for kind in tuning} == {"best_fit"}
    assert {packing(kind) for kind in ("jsonl", "tokens", "text")} == {"stream"}
    assert (packing("chat", packing="stream"), packing("jsonl", packing="best_fit")) == ("stream", "best_fit")
