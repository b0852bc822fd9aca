
-- The last transaction that emptied a slot of the change feed. Older snapshots see the slot as empty too, and no snapshot
-- matters to a sequence. Written by the pruner, and by readers that find the database restored; read by searches.
create sequence if not exists penstock.change_emptied;
