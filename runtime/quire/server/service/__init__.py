"""Routes of this server's own: `status` (models, version, load, health, metrics), `tokens`, `generate`."""
