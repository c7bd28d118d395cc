"""Numbers with nouns."""


def counted(count: int, one: str, many: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {one if count == 1 else many}"
