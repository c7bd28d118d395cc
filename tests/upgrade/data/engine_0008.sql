-- What migration 0008 added: the audit log.

insert into payonce.audit_log (xact, severity, location, reference, text, actor, created_at)
values
    ('700', 'INFO', 'queues.pause', 'payments', 'paused: the bank is closed', 'ada', '2026-01-02T00:00Z'),
    ('701', 'ERROR', 'effects.review', '00000000-0000-7000-8000-0000000000e4', 'did_not by ada: asked the portal',
     'ada', '2026-01-02T00:10Z');
