"""Names that a JSON object has twice are found, whatever their spelling and depth."""

import pytest

from payonce.kit.duplicate_names import repeated_name


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (b'{"amount": "1", "amount": "2"}', "'amount'"),
        (b'{"amount": "1", "am\\u006funt": "2"}', "'amount'"),
        (b'[{"a": {"b": 1, "c": 2, "b": 1}}]', "'b'"),
        (b'{"a": {"x": 1}, "b": {"x": 1}}', None),
        (b'{"a": 1, "A": 1}', None),
        (b'{"a": 1, "a"', None),
        (b"[" * 100_000, None),
        (b"\xff", None),
        (b"", None),
        ('{"\\n": 1, "\\n": 2}', "'\\n'"),
    ],
)
def test_a_repeated_name_is_found(document: bytes | str, name: str | None) -> None:
    assert repeated_name(document) == name
