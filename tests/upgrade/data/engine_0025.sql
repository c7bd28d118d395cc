-- Migration 0025 added a function alone: a token, as runs write it together with their fence since then.

insert into payonce.commits (token, written_at) values ('00000000-0000-4000-8000-000000000c25', '2026-01-05T00:00Z');
