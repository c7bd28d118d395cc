-- What an effect asks for, compared whenever it is asked for again under its key: the same key with another request is
-- an error. JSON null: the request itself. SQL null, which rows from before have and those that were adopted from a
-- vendor's statement: nothing to compare.
alter table payonce.effects add column identity json;
