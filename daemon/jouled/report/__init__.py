"""A finished job's report: what the ledger and the kept samples say of it, and the folder that the files go to."""
