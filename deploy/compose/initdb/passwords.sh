#!/bin/sh
# Gives weft's roles their passwords when the database is made. psql quotes them.
set -eu
psql -v ON_ERROR_STOP=1 -q --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
	-v owner="$(cat /run/secrets/weft-owner-password)" -v runner="$(cat /run/secrets/weft-password)" <<'SQL'
alter role weft_owner password :'owner';
alter role weft password :'runner';
SQL
