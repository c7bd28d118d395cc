-- What a run has to say that is no error, such as how many messages it moved.

alter table payonce.job_logs add column info text;

-- Not validated: the column is new, and reading months of the log would hold up everybody who writes to it.
alter table payonce.job_logs add constraint job_logs_info_is_short check (length(info) <= 500) not valid;

-- The name is from its first use and stays: processes of the version before still write to it while they are replaced.
comment on table payonce.login_failures is
    'What is bounded per window. Guesses at passwords: name is a digest, address a network. Everything else that may come '
    'so and so often: name is empty, address says what and whose. failed_at is when it was counted, failed or not.';
