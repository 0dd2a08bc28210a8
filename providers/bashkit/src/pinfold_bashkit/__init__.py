"""The bashkit provider: a bash interpreter on a virtual file system, in process."""
