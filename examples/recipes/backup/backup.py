"""Copy the database of a running program: ``python backup.py penstock.db copy.db``."""

import sqlite3
import sys
from contextlib import closing

_program, database, copy = sys.argv
with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source, closing(sqlite3.connect(copy)) as target:
    source.backup(target)
