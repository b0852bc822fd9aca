"""Parcel lockers, written tersely."""
