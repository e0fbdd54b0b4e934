-- Forgets all entities that are to be written again.
--   $1 projection
delete from weft_redo where projection = $1
