-- What came in over HTTP: whose transfer it is, and the trace of the request that ordered it.

alter table transfers.transfers
    add column tenant text collate "C" check (length(tenant) between 1 and 200),
    add column trace_id text collate "C";
