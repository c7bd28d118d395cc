-- An entry is found by its id. With the relay first, a plan that was made while the table was empty found entries by the
-- relay alone, and walked all of them for a few.

alter table payonce.outbox drop constraint outbox_pkey, add primary key (id, relay);
