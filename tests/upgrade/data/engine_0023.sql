-- What migration 0023 added: a seal over the first posting of migration 0005's rows; the others are not sealed.

insert into payonce.ledger_seals (number, previous, format, postings, digests, hash, sealed_at) values
    (1, null, 1, '{1}', '\x42a4e60c909cb8145f5965cea09632d3e2cf245e30e7401d997469a9ad3050f1',
     '\x622b8f48d06ca61b93b6d3ffc92c2c3821c2671d991e3da5a5039705d2d4dbcb', '2026-01-01T00:00:10Z');
