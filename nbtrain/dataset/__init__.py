"""From text to a verified token dataset and its GPT samples; NumPy only.

files.py       paths of a dataset's files                 of_run.py    the dataset that a run means
manifest.py    description of a dataset's files           blend.py     several datasets as one
indexed.py     the .bin/.idx format                       prepare/     from a run YAML to its dataset
encode/        parts of a corpus -> shards -> .bin/.idx   look/        card, inspect, browser, baselines
samples/       splits, sample order and packing
"""
