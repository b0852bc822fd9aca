-- What the process of a lease runs, as JSON; null for everything.

alter table penstock.lease add column scope text;
