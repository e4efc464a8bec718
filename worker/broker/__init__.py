"""Redis: intake, outbox, leases."""
