-- Drops partition $1, whose day is over. Answers whether it was there.
select weft_history_drop('{table}', $1)
