create trigger {base}_insert after insert on {watched} referencing new table as weft_new
	for each statement execute function {changed}();
create trigger {base}_update after update on {watched} referencing old table as weft_old new table as weft_new
	for each statement execute function {changed}();
create trigger {base}_delete after delete on {watched} referencing old table as weft_old
	for each statement execute function {changed}();
create trigger {base}_truncate before truncate on {watched}
	for each statement execute function {refuse}();
