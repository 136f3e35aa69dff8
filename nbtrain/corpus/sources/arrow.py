"""Text out of Arrow's columns, for the sources that pyarrow reads."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.corpus.records import Tally, Texts
from nbtrain.corpus.sources.json_line import not_utf8


def check_columns(schema: Any, columns: Mapping[str, str], where: str) -> None:
    """Raises DataError if a column, here with the setting that names it, is not in the schema."""
    for name, setting in columns.items():
        if name not in schema.names:
            there = ", ".join(map(repr, schema.names[:20])) or "none"
            raise DataError(f"{where}: no column {name!r}; the columns are {there}. Set {setting}.")


def check_texts(schema: Any, columns: Mapping[str, str], where: str) -> None:
    """Raises DataError if one of `columns` is not there or holds no text."""
    check_columns(schema, columns, where)
    for name, setting in columns.items():
        if not holds_text(schema.field(name).type):
            others = [field.name for field in schema if holds_text(field.type)]
            there = ", ".join(map(repr, others[:20])) or "none"
            raise DataError(
                f"{where}: column {name!r} is {schema.field(name).type}, not text; columns of text are "
                f"{there}. "
                f"Set {setting}."
            )


def holds_text(kind: Any) -> bool:
    """Whether a pyarrow.DataType is one of strings; bytes count, as they may be UTF-8."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    views = [getattr(types, name) for name in ("is_string_view", "is_binary_view") if hasattr(types, name)]
    return any(test(kind) for test in (*tests, *views))


def text_rows(
    batches: Iterable[Any], keys: tuple[str, ...], path: str, tally: Tally, count_lines: bool
) -> Iterator[str | Texts]:
    """The rows of record batches: text if there is one key, else Texts. Null and bytes that are not UTF-8 are
    broken.
    """
    number = 0
    try:
        for batch in batches:
            columns = [_values(batch.column(key)) for key in keys]
            del batch
            for row in zip(*columns):
                number += 1
                if all(type(value) is str for value in row):
                    yield row[0] if len(row) == 1 else Texts(row[0], row[1:])
                    continue
                key, value = next((key, value) for key, value in zip(keys, row) if type(value) is not str)
                what = "null" if value is None else not_utf8(value)
                tally.add_broken(path, number, f"{key!r} is {what}")
            row = columns = ()  # type: ignore[assignment]  # not held while the next batch is read
    finally:
        tally.records += number
        tally.lines += number if count_lines else 0


def _values(column: Any) -> list[Any]:
    """str, or None, or bytes that are no UTF-8."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:
            column = column.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    elif hasattr(pa, "string_view") and kind in (pa.string_view(), pa.binary_view()):
        column = column.cast(pa.large_binary())
    return [_decoded(value) for value in column.to_pylist()]


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
