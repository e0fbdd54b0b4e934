-- Deletes one page of ended terms and of audit entries.
--   $1 least age, $2 least age of what tells of failures, $3 most rows of each kind
-- Answers how many rows of the larger kind it has deleted.
select weft_forget($1, $2, $3)
