"""From text to a verified token dataset and its GPT samples; NumPy only.

files.py       where a dataset's files lie                of_run.py    which dataset a run means
manifest.py    what a dataset's files are                 blend.py     several datasets as one
indexed.py     the .bin/.idx format                       prepare/     from a run YAML to its dataset
encode/        parts of a corpus -> shards -> .bin/.idx   look/        card, inspect, browser, baselines
samples/       splits, sample order and packing
"""
