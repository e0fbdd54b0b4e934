-- Makes the partition of the UTC day that $1 is in. Answers whether there was none.
select weft_history_attach('{table}', ($1::timestamptz at time zone 'UTC')::date)
