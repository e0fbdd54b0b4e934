"""Write events for weft in the transaction that changes the entities.

Guaranteed: an event is committed with its change, or neither is; all events of a call go in
one statement, whose row count is checked; invalid events are refused before anything is
sent, with all that is wrong with them; values travel as bind parameters.

Not guaranteed: order. weft sees two events of one entity in the order of their versions
only if versions grow in the order of commits: take the version while the transaction holds a
lock on the entity, as the update of its row does, or guard it with version_id_col.

``weft_outbox.psycopg`` has enqueue and aenqueue, ``weft_outbox.sqlalchemy`` the session hook.
"""

from .event import Event, InvalidEvents, NotInTransaction, Op, OutboxError

__all__ = ["Event", "InvalidEvents", "NotInTransaction", "Op", "OutboxError"]
