-- Whether a credit note's money went back by another way than the card; null when an invoice is taken back that was never
-- paid, and for refunds before this.
alter table subscriptions.credit_notes add column outside boolean check (outside is null or refund_id is not null);
