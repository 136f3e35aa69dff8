"""From text to a verified token dataset and its GPT samples; uses only NumPy.

files.py       paths of a dataset's files
manifest.py    description of a dataset's files
indexed.py     the .bin/.idx format
of_run.py      the dataset of a run
blend.py       several datasets used as one
prepare/       from a run YAML to its dataset
encode/        parts of a corpus -> shards -> .bin/.idx
samples/       splits, sample order and packing
views/         card, inspect, browser, baselines
"""
