-- Makes what the UTC day that $1 is in lacks of partitions. Answers whether there was something.
select weft_history_attach('{table}', ($1::timestamptz at time zone 'UTC')::date)
