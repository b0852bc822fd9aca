"""An auction house in layers: handlers call services, and services call repositories."""
