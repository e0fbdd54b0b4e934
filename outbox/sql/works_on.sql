-- Answers whether a term has begun to work on the table of a projection.
--   $1 group, $2 epoch, $3 projection
select exists (select from weft_progress where group_name = $1 and epoch = $2 and projection = $3)
