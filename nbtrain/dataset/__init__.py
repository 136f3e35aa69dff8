"""From text to a verified token dataset and its GPT samples; NumPy only.

sources/         one streaming reader for each kind      indexed.py      the .bin/.idx format
corpus.py        documents, each once                    gpt_index.py    splits and sample order
tokenizer.py     byte-level BPE                          gpt_dataset.py  samples by position
dataset_files.py paths and manifest of a dataset         state.py        where a run stands in its data
prepare.py       what is missing, step by step           card.py, baselines.py  what is in a dataset
"""
