-- Answers when an event of the table was last done, and the time.
select max(last_settle_at), clock_timestamp()
from weft_progress
where table_name = '{table}' and isfinite(last_settle_at)
