-- The two roles of weft: weft_owner owns its tables and migrates them, weft runs.
--
-- Once, as a superuser or as the owner of the database, connected to that database:
--
--     psql -v ON_ERROR_STOP=1 -1 -f roles.sql "$ADMIN_URL"
--
-- Then give both a password (\password weft), or let pg_hba.conf ask for a certificate, and
--
--     DATABASE_URL=postgres://weft_owner@…  weft migrate up
--     DATABASE_URL=postgres://weft_owner@…  weft migrate grant weft
--     DATABASE_URL=postgres://weft@…        weft run
--
-- The second line does what grants.sql says, and is to be repeated after each migration; give
-- it the settings of the instances (--finished, --retention). A schema other than public: put
-- its name here, and search_path=NAME into the URLs.
-- Nothing in this file takes a right from anybody, and all of it may be repeated.

do $$
declare
    role text;
begin
    foreach role in array array['weft_owner', 'weft'] loop
        if not exists (select from pg_roles where rolname = role) then
            execute format('create role %I login nosuperuser nocreatedb nocreaterole noreplication nobypassrls', role);
        end if;
        execute format('grant connect on database %I to %I', current_database(), role);
    end loop;
end
$$;

grant usage, create on schema public to weft_owner;
grant usage on schema public to weft; -- weft_owner may not grant that

-- Where the tables of the application are there already, its role owns them. Adding weft's
-- columns and indexes takes an owner, and so does letting weft read them:
--
--     grant wordloom to weft_owner;
--
-- Where weft has made them, the application needs its share of them:
--
--     grant select, insert, update, delete on search_index, chronicle_events to wordloom;
--     grant insert on search_outbox_events, chronicle_outbox_events to wordloom;
--
-- weft ends sessions of earlier terms that stand in the way of a new one. They are its own:
-- a role may do that to itself, so neither pg_signal_backend nor pg_monitor is needed. All
-- instances of a group should therefore log in as one role.
