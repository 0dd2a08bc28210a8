"""The suite's own adapters: the reference, and broken ones that prove the checks."""
