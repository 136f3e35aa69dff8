"""From text to a verified token dataset and its GPT samples; uses only NumPy.

files.py       paths of a dataset's files                 of_run.py    the dataset of a run
manifest.py    description of a dataset's files           blend.py     several datasets used as one
indexed.py     the .bin/.idx format                       prepare/     from a run YAML to its dataset
encode/        parts of a corpus -> shards -> .bin/.idx   views/       card, inspect, browser, baselines
samples/       splits, sample order and packing
"""
