-- What the customer paid with, in words for people; null when nothing was charged, and for payments before this.
alter table subscriptions.invoices add column paid_with text check (length(paid_with) between 1 and 100);
