"""From text to a verified token dataset and its GPT samples; NumPy only.

files.py, manifest.py    where a dataset's files lie and what they are    of_run.py    which dataset a run means
indexed.py               the .bin/.idx format                             blend.py     several datasets as one
encode/                  parts of a corpus -> shards -> .bin/.idx         prepare/     from a run YAML to its dataset
samples/                 splits, sample order and packing                 look/        card, inspect, browser, baselines
"""
