-- Two logins besides the administrator: one owns and migrates the schema, one is for the services. May be repeated:
--   BILLING_OWNER_PASSWORD=… BILLING_SERVICE_PASSWORD=… psql --dbname=payonce --file=deploy/postgres/logins.sql
\set ON_ERROR_STOP on
set client_min_messages = warning;
\getenv owner_password BILLING_OWNER_PASSWORD
\getenv service_password BILLING_SERVICE_PASSWORD

select format('create role %I', name) from unnest(array['payonce_service', 'billing_owner', 'billing_service']) name
where not exists (select from pg_roles where rolname = name) \gexec

alter role payonce_service nologin nosuperuser nocreatedb nocreaterole noreplication nobypassrls;
alter role billing_owner login nosuperuser nocreatedb nocreaterole noreplication nobypassrls password :'owner_password';
alter role billing_service login nosuperuser nocreatedb nocreaterole noreplication nobypassrls
    password :'service_password';
grant payonce_service to billing_owner, billing_service;

alter database :"DBNAME" owner to billing_owner;
revoke all on database :"DBNAME" from public;
grant connect, temporary on database :"DBNAME" to billing_service;
revoke create on schema public from public;
