"""Vans, stops and parcels."""
