"""Invariants, as queries that return violating rows."""

from typing import Final

INVARIANTS: Final = {
    "no message changes a row twice": """
        select message_id, count(*) from tally.changes group by message_id having count(*) > 1
    """,
    "every value is the count of its changes": """
        select r.id, r.value from tally.rows r
        where r.value <> (select count(*) from tally.changes c where c.row_id = r.id)
    """,
    "no message that was applied is still there": """
        select m.id from payonce.live_messages m join tally.changes c on c.message_id = m.id
    """,
}
