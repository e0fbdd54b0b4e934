-- Builds the index of partition $1, whose day is over. Answers whether there was none.
select weft_history_index('{table}', $1)
