"""Text from a checkpoint: `python -m nbtrain.inference.generate` reads one JSON request and streams JSON
lines.

sampling.py      logits -> the next token
decode.py        prompt -> tokens, one at a time, with a key-value cache
text_stream.py   tokens -> finished characters
"""
