"""docs/record-keys.md: what each kind of source does with each key, from corpus/sources/keys.py."""

from collections.abc import Iterator, Sequence

from nbtrain.corpus.sources.keys import TABLES, KeyRule, KeyTable

INTRODUCTION = """\
# Keys of records

What each kind of source does with each key of a record. Generated from `nbtrain/corpus/sources/keys.py` by
`make docs`; do not edit.

- **used**: it is in the text that is trained on, or in the mask of what bears a loss.
- **refused**: if it holds a value, the record is left out as broken, with file, line, the key and what to
  do. More than `max_broken_fraction` of such records (default 0.01) end `nbtrain prepare` with an error.
  Without the key, the record would be trained on as something else than it is.
- **counted**: it is not read. `nbtrain prepare`, `manifest.json` (`unread_keys` of the source) and the data
  card name it and the number of records in which it holds a value.

null, `""`, `[]`, `{}` and what holds only these are no values. A key that no table names is counted, with
these exceptions in fine-tuning records and token ids, which are refused because they may say what is trained
on:

- a key whose name has one of the words *mask*, *loss*, *train*, *weight*, *label*, *learn* or *supervised*
  (`is_masked`, `turnWeight`, `no-loss`), and whose value is a flag, a number or a list;
- another spelling of a key that is refused or that a setting names: `toolCalls`, `System-Prompt`;
- in token ids, a list of numbers as long as the ids, and the place where a part of them begins or ends
  (`source_len`, `answer_start`).

To read on without a key, name it in `ignored_keys` of the source; it is then counted. This works for
refused keys, and for used keys that are optional, such as `weight` and `system`:

```yaml
data:
  sources:
    - kind: chat
      path: conversations.jsonl
      ignored_keys: [images, weight]
```

Columns of `.parquet` that are counted are not read at all; their nulls are known from the file's
statistics. Two columns of one name are refused if the name is used or refused.
"""
TITLES = {
    "record": "Keys of the record:",
    "message": "Keys of each message:",
}


def record_keys_page() -> str:
    """Return the whole page."""
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
        yield from (
            "",
            title,
            "",
            "| keys | | what they hold | what to do instead |",
            "| --- | --- | --- | --- |",
        )
        for use in ("used", "refused", "counted"):
            yield from (_row(rule) for rule in rules if rule.use == use)


def _row(rule: KeyRule) -> str:
    names = ", ".join(f"`{name}`" for name in rule.names)
    if rule.setting:
        names += f" (`{rule.setting}`)"
    what = f"{rule.what}. {rule.how}".strip() if rule.how else rule.what
    cells = (names, rule.use, what, rule.fix)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
