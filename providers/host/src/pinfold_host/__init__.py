"""The host provider: processes on this machine, plain or in namespaces."""
