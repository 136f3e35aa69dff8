"""docs/record-keys.md: how each kind of source treats each key, from corpus/sources/keys.py."""

from collections.abc import Iterator, Sequence

from nbtrain.base.printing.report import Table
from nbtrain.corpus.sources.keys import TABLES, KeyRule, KeyTable

INTRODUCTION = """\
# Keys of records

This page lists how each kind of source treats each key of a record. Generated from
`nbtrain/corpus/sources/keys.py` by `make docs`; do not edit.

- **used**: the key's value becomes part of the training text or of the loss mask.
- **refused**: if the key has a value, the record is skipped as broken, and `nbtrain prepare` prints its file,
  line and key, and how to fix it. If more than `max_broken_fraction` of the records (default 0.01) are
  broken, `nbtrain prepare` ends with an error. These keys are refused because they change what a record
  means: without the key, the model would be trained on something else.
- **counted**: the key is not read. `nbtrain prepare`, `manifest.json` (`unread_keys` of the source) and the
  data card list it with the number of records in which it has a value.

null, `""`, `[]`, `{}`, and lists and objects that contain only these, do not count as values. A key that no
table lists is counted. In fine-tuning records and token ids, the following keys are refused even if no table
lists them, because they may select what is trained on:

- a key whose name contains one of the words *mask*, *loss*, *train*, *weight*, *label*, *learn* or
  *supervised* (`is_masked`, `turnWeight`, `no-loss`), and whose value is a flag, a number or a list;
- another spelling of a key that is refused or that a setting names: `toolCalls`, `System-Prompt`;
- in token ids, a list of numbers as long as the ids, and the position where a part of them begins or ends
  (`source_len`, `answer_start`).

To train without a key, list it in `ignored_keys` of the source; it is then only counted. This works for
refused keys, and for used keys that are optional, such as `weight` and `system`:

```yaml
data:
  sources:
    - kind: chat
      path: conversations.jsonl
      ignored_keys: [images, weight]
```

Counted columns of a `.parquet` file are not read from the disk at all; the file's statistics tell how many
of their values are null. Two columns with the same name are refused if the table lists the name as used or
refused.
"""
TITLES = {
    "record": "Keys of the record:",
    "message": "Keys of each message:",
}


def record_keys_page() -> str:
    """Return the page docs/record-keys.md."""
    groups: dict[int, list[str]] = {}
    for kind, table in TABLES.items():
        groups.setdefault(id(table), []).append(kind)
    lines = [INTRODUCTION]
    for kinds in groups.values():
        lines += [*_section(kinds, TABLES[kinds[0]]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(kinds: Sequence[str], table: KeyTable) -> Iterator[str]:
    yield f"## {', '.join(f'`kind: {kind}`' for kind in kinds)}"
    for name, title in TITLES.items():
        rules = getattr(table, name)
        if not rules:
            continue
        rows = [_row(rule) for use in ("used", "refused", "counted") for rule in rules if rule.use == use]
        heads = ("keys", "treatment", "content", "what to do instead")
        yield from ("", title, "", *Table(heads, rows).markdown())


def _row(rule: KeyRule) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in rule.names)
    if rule.setting:
        names += f" (`{rule.setting}`)"
    what = f"{rule.what}. {rule.how}".strip() if rule.how else rule.what
    return names, rule.use, what, rule.fix
