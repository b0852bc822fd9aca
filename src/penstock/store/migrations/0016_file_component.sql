-- The component whose file it is; empty for the program's own. Older releases write the latter.

alter table penstock.stored_file add column component text not null default '';
