-- What migration 0010 added: notes of the audit log, two seals over them, and a note that is not sealed.

insert into payonce.audit_log (id, xact, severity, location, reference, text, actor, created_at)
    overriding system value values
    (101, '100', 'INFO', 'queues.pause', 'pay', 'paused by ann: vendor is down', 'ann', '2026-01-01T00:00:00Z'),
    (102, '100', 'WARNING', 'effects.orphans', '00000000-0000-7000-8000-0000000000e4', 'put before a person', 'payonce',
     '2026-01-01T00:00:01Z'),
    (103, '102', 'ERROR', 'test', 'ünïcödé', 'späte Notiz', 'bob', '2026-01-01T00:00:02.123456Z'),
    (104, '103', 'INFO', 'queues.resume', 'pay', 'resumed', 'ann', '2026-01-01T00:00:03Z');
insert into payonce.audit_seals (number, previous, format, notes, server, horizon, hash, sealed_at) values
    (1, null, 1, 2, '7000000000000000001', '101',
     '\xfab025e04de9e7b08ce7262949b3c5d3060d760389fefc1535dc469dbe04cf95', '2026-01-01T00:00:10Z'),
    (2, '\xfab025e04de9e7b08ce7262949b3c5d3060d760389fefc1535dc469dbe04cf95', 1, 1, '7000000000000000001', '103',
     '\xfff8d5110285b2bc4c0f468c7f2707450351e66d0ad5d1113b9ef11741fb9a24', '2026-01-01T00:00:20Z');
insert into payonce.audit_sealed (seal, place, note, digest) values
    (1, 1, 101, '\xb4abba6fdd8af31df7b49e62864af3c144928d86fd97faed3ab28ecbfa463138'),
    (1, 2, 102, '\xae7baed7481a66cd9f5a28c248b38669bdd506fba0252f8070143c5b4cad3ac2'),
    (2, 1, 103, '\x0b40a9a8a90ac6b1a96edefa9a3e460d2186da7fb3b08ae034573ddd7b7ed265');
select setval(pg_get_serial_sequence('payonce.audit_log', 'id'), 104);
