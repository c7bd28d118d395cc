-- What migration 0028 added: a minute of calls to a vendor that did not answer.

insert into payonce.vendor_minutes (minute, vendor, call, outcome, calls) values
    ('2026-01-05T00:00:00Z', 'southbank', 'pay_in', 'no_answer', 3);
